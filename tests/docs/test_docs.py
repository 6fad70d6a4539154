"""What the documentation shows, works: doctests of all modules, code in the pages, and the examples.

A page opts a block out by a comment of its own before it, ``<!-- not run: why -->``; the reason is required.
"""

from __future__ import annotations

import doctest
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.source_tree import ROOT, module_name, python_files

BLOCK = re.compile(r"(?P<before>[^\n]*\n)?^```python\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)
OPT_OUT = re.compile(r"<!-- not run: .{8,} -->")
LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)#]+)(?:#[^)]*)?\)")

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# A folder in examples/ is a program of several files with a test of its own.
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py") if not path.name.startswith("_"))

# Example -> why it is not run here.
EXAMPLES_NOT_RUN: dict[str, str] = {}


def label(path: Path) -> str:
    """The path of a file below the project."""
    return str(path.relative_to(ROOT))


def run(script: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a script in an empty folder, with warnings as errors."""
    environment = dict(os.environ, PYTHONPATH=str(ROOT), PYTHONWARNINGS="error")
    return subprocess.run(
        [sys.executable, str(script)],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )


def script_of(page: Path) -> str:
    """The Python blocks of a page as one script, at the lines where they stand in the page."""
    text = page.read_text("utf-8")
    lines = [""] * text.count("\n")
    for match in BLOCK.finditer(text):
        if not OPT_OUT.fullmatch((match["before"] or "").strip()):
            first = text.count("\n", 0, match.start("code"))
            code = match["code"].splitlines()
            lines[first : first + len(code)] = code
    return "\n".join(lines).rstrip() + "\n"


@pytest.mark.parametrize("name", [module_name(path) for path in python_files()])
def test_doctests(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Every example in a docstring gives what it shows."""
    if ".spark" in name or ".arrow" in name:
        pytest.importorskip("pyarrow", reason="the extra is not installed")
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    report: list[str] = []
    for test in doctest.DocTestFinder(exclude_empty=True).find(module, name):
        runner.run(test, out=report.append)
    assert not runner.failures, "".join(report)


@pytest.mark.parametrize("page", [page for page in PAGES if script_of(page).strip()], ids=label)
def test_code_in_pages(page: Path, tmp_path: Path):
    """The Python blocks of a page run, one after the other, as one program."""
    script = tmp_path / f"{page.stem}.py"
    script.write_text(script_of(page), "utf-8")
    done = run(script, tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "example", [one for one in EXAMPLES if label(one) not in EXAMPLES_NOT_RUN], ids=label
)
def test_examples(example: Path, tmp_path: Path):
    """Each example runs alone, in an empty folder, and prints its result."""
    done = run(example, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_exceptions_are_needed():
    """An example that is opted out exists."""
    assert set(EXAMPLES_NOT_RUN) <= {label(example) for example in EXAMPLES}


@pytest.mark.parametrize("page", PAGES, ids=label)
def test_links_lead_somewhere(page: Path):
    """Every relative link of a page names a file of the project."""
    targets = LINK.findall(page.read_text("utf-8"))
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing
