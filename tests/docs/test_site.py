"""The site of the pages: every page has its place, and the build, which looks at all links, succeeds."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.source_tree import ROOT

SITE = ROOT / "docs" / "site"
ELSEWHERE = re.compile(r'<(?:link|script|img|source|iframe)[^>]*(?:href|src)="((?:https?:)?//[^"]+)"')
NEEDED = ("sphinx", "furo", "myst_parser", "sphinx_copybutton", "grandalf")


def module_of(name: str) -> ModuleType:
    """A module of the site, which is not a part of the package."""
    spec = importlib.util.spec_from_file_location(f"site_{name}", SITE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_is_in_one_section_at_most():
    """The navigation names no page twice."""
    names = [name for pages in module_of("navigation").SECTIONS.values() for name in pages]
    assert len(names) == len(set(names))


def test_every_module_is_in_the_reference_once():
    """A second time, each of its names is described twice, and links do not know which is meant."""
    modules = [name for names in module_of("navigation").REFERENCE.values() for name in names]
    assert len(modules) == len(set(modules))


def test_the_pages_of_readers_have_their_place():
    """Pages that come with other parts may wait in the last section; those that lead a reader may not."""
    placed = {name for pages in module_of("navigation").SECTIONS.values() for name in pages}
    led = {path.stem for path in (ROOT / "docs").glob("*.md") if path.stem.startswith(("from-", "tutorial"))}
    assert led <= placed
    assert {"quickstart", "installation", "cookbook", "envelope", "operators-guide"} <= placed


FLOWCHART = """
flowchart LR
    subgraph process
        Client --> Store
        Store --> Log[Log: ManagedLedger]
    end
    Log -.-> f1[(ctl, segments)]
    Alone
"""


def test_flowcharts_are_drawn():
    """Nodes, arrows, dashed ones and groups become SVG; what is not understood names the line."""
    pytest.importorskip("grandalf", reason="the group `site` is not installed")
    pytest.importorskip("sphinx", reason="the group `site` is not installed")
    flowcharts = module_of("flowcharts")
    drawn = flowcharts.svg_of(FLOWCHART, "an example")
    assert drawn.count('class="node"') == 5
    assert (drawn.count('class="head"'), drawn.count('class="dashed"'), drawn.count('class="group"')) == (
        3,
        1,
        1,
    )
    assert all(f">{text}<" in drawn for text in ("Log: ManagedLedger", "ctl, segments", "process", "Alone"))
    with pytest.raises(ValueError, match="line 2 of a flowchart is not understood: a ==> b"):
        flowcharts.svg_of("flowchart TB\na ==> b", "wrong")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_site_is_built_without_the_network():
    """Every link leads to a page, a heading or a file; no page has anything fetched from elsewhere."""
    for name in NEEDED:
        pytest.importorskip(name, reason="the group `site` is not installed")
    done = subprocess.run(
        [sys.executable, str(SITE / "build.py")], capture_output=True, text=True, timeout=800
    )
    assert done.returncode == 0, done.stderr
    pages = sorted((ROOT / "build" / "site" / "html").rglob("*.html"))
    assert len(pages) > 100
    for page in pages:
        assert not ELSEWHERE.findall(page.read_text("utf-8")), page
    assert (ROOT / "build" / "site" / "html" / "searchindex.js").is_file()
    html = Path(ROOT / "build" / "site" / "html" / "architecture.html").read_text("utf-8")
    assert html.count("<svg viewBox") == 2
