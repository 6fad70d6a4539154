"""Progress bars that stay in place on a terminal, and say nothing anywhere else."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from typing import TextIO

FULL, EMPTY = "█", "░"
PLAIN_FULL, PLAIN_EMPTY = "#", "."


class Bar:
    """One line: a name, how far it got, and how fast since it first moved."""

    def __init__(self, name: str, total: int) -> None:
        self.name, self.total, self.done = name, total, 0
        self._begun: float | None = None
        self._ended: float | None = None

    def advance(self, done: int) -> None:
        """Set how far it got."""
        now = time.monotonic()
        if done and self._begun is None:
            self._begun = now
        if done >= self.total > self.done:
            self._ended = now
        self.done = done

    @property
    def rate(self) -> float:
        """Items per second, from the first to the last."""
        if self._begun is None:
            return 0.0
        seconds = (self._ended or time.monotonic()) - self._begun
        return self.done / seconds if seconds > 0.05 else 0.0

    def line(self, width: int, full: str, empty: str) -> str:
        """The bar in at most `width` columns."""
        share = self.done / self.total if self.total else 1.0
        tail = f" {share:4.0%} {self.done:>9,}  {self.rate:>9,.0f}/s"
        room = max(4, min(40, width - 14 - len(tail)))
        filled = int(share * room)
        return f"  {self.name:<11}{full * filled}{empty * (room - filled)}{tail}"[:width]


class Display:
    """Bars at the bottom, lines of text above them. Not a terminal: the lines only."""

    def __init__(self, out: TextIO = sys.stdout) -> None:
        self._out = out
        self._live = out.isatty()
        self._bars: Sequence[Bar] = ()
        self._drawn = 0
        unicode = (out.encoding or "").lower().replace("-", "").startswith("utf")
        self._full, self._empty = (FULL, EMPTY) if unicode else (PLAIN_FULL, PLAIN_EMPTY)

    def say(self, text: str = "") -> None:
        """Print a line for good, above the bars."""
        self._erase()
        self._out.write(text + "\n")
        self._draw()

    def show(self, bars: Sequence[Bar]) -> None:
        """Draw the bars, or draw them again."""
        self._erase()
        self._bars = bars
        self._draw()

    def settle(self) -> None:
        """Leave the bars as they are and go on below them; without a terminal, print them once."""
        if not self._live:
            for bar in self._bars:
                self._out.write(bar.line(80, self._full, self._empty) + "\n")
        self._bars = ()
        self._drawn = 0
        self._out.flush()

    def _erase(self) -> None:
        if self._drawn:
            self._out.write(f"\x1b[{self._drawn}F\x1b[0J")
            self._drawn = 0

    def _draw(self) -> None:
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            for bar in self._bars:
                self._out.write(bar.line(width, self._full, self._empty) + "\n")
            self._drawn = len(self._bars)
        self._out.flush()
