"""What the documentation shows, works: doctests of all modules, and code in the pages.

A page opts a block out by a comment of its own before it, ``<!-- not run: why -->``; the reason is required.
"""

from __future__ import annotations

import doctest
import importlib
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from embeddedpulsar.testing.trial_store import assert_clean
from tests.source_tree import ROOT, module_name, python_files

BLOCK = re.compile(r"(?P<before>[^\n]*\n)?^```python\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)
OPT_OUT = re.compile(r"<!-- not run: .{8,} -->")
LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)#]+)(?:#[^)]*)?\)")
DEFINITION = re.compile(r"^\[([\w.]+)\]: (?!https?://)(\S+)$", re.MULTILINE)

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


# Module -> the package that it cannot be imported without.
OF_FRAMEWORKS = {
    "embeddedpulsar.frameworks.celery": "celery",
    "embeddedpulsar.frameworks.django": "django",
    "embeddedpulsar.frameworks.dramatiq": "dramatiq",
    "embeddedpulsar.frameworks.faststream": "faststream",
    "embeddedpulsar.frameworks.faststream_parts": "faststream",
    "embeddedpulsar.frameworks.huey": "huey",
    "embeddedpulsar.frameworks.kombu": "celery",
    "embeddedpulsar.frameworks.taskiq": "taskiq",
}


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
    for ending, needed in (("schema_avro", "fastavro"), ("schema_protobuf", "google.protobuf")):
        if name.endswith(ending):
            pytest.importorskip(needed, reason="the extra is not installed")
    if name in OF_FRAMEWORKS:  # its page has the name of the package
        pytest.importorskip(OF_FRAMEWORKS[name], reason="the extra is not installed")
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
    if page.stem in OF_FRAMEWORKS.values():
        pytest.importorskip(page.stem, reason="the extra is not installed")
    # Not the name of the page: a script in this folder would hide the package of that name.
    script = tmp_path / f"page_{page.stem}.py"
    script.write_text(script_of(page), "utf-8")
    done = run(script, tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["README.md", "docs/quickstart.md", "examples/01_quickstart.py"])
def test_first_steps_may_be_repeated(name: str, tmp_path: Path):
    """Who runs the first program again, in the same folder, gets no error; the store is whole."""
    script = tmp_path / "first_steps.py"
    path = ROOT / name
    script.write_text(script_of(path) if path.suffix == ".md" else path.read_text("utf-8"), "utf-8")
    for _ in range(2):
        done = run(script, tmp_path)
        assert done.returncode == 0, done.stderr
    for store in tmp_path.glob("*/store.meta"):
        assert_clean(store.parent)


@pytest.mark.parametrize("page", PAGES, ids=label)
def test_links_lead_somewhere(page: Path):
    """Every relative link of a page names a file of the project."""
    text = page.read_text("utf-8")
    targets = LINK.findall(text) + [target for _, target in DEFINITION.findall(text)]
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing


def test_every_guarantee_names_its_test():
    """A row of the page of guarantees ends with the files that show it, and they exist."""
    text = (ROOT / "docs" / "guarantees.md").read_text("utf-8")
    rows = [
        line
        for line in text.splitlines()
        if line.startswith("|") and not line.startswith(("| promise", "|--"))
    ]
    assert len(rows) > 50
    for row in rows:
        files = re.findall(r"`((?:tests|benchmarks)/[^`]+)`", row.rstrip(" |").rpartition("|")[2])
        assert files, row
        assert not [one for one in files if not (ROOT / one).exists()], row


def test_the_readme_defines_its_links_in_one_place():
    """An index that shows the README elsewhere needs absolute links: only the block at its end has targets.

    Where `[project.urls]` names the repository, each target begins with its address.
    """
    text = (ROOT / "README.md").read_text("utf-8")
    assert not LINK.findall(text)
    used = set(re.findall(r"\]\[([\w.]+)\]", text))
    defined = dict(re.findall(r"^\[([\w.]+)\]: (\S+)$", text, re.MULTILINE))
    assert used == set(defined)
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"].get("urls", {})
    if "Repository" in urls:
        assert all(target.startswith(urls["Repository"]) for target in defined.values())
