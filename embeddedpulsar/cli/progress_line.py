"""Says how far a command is that takes longer than a second."""

from __future__ import annotations

from typing import Final, TextIO

from embeddedpulsar._engine.platform.clock import SYSTEM_CLOCK
from embeddedpulsar.cli.terminal import printable, raw_stream

_QUIET_S: Final = 1.0


class ProgressLine:
    """Writes progress to a stream, once a second, starting after the first second.

    On a terminal it is one line, removed at the end; elsewhere there is a line every ten seconds.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = raw_stream(stream)
        self._is_terminal = stream.isatty()
        self._next = SYSTEM_CLOCK.monotonic() + _QUIET_S
        self._width = 0

    @property
    def is_due(self) -> bool:
        """Whether it is time for `show`."""
        return SYSTEM_CLOCK.monotonic() >= self._next

    def follow(self, progress: object) -> None:
        """`show` what a call reports of its progress, if it is time."""
        if self.is_due:
            self.show(str(progress))

    def show(self, text: str) -> None:
        """Write a text."""
        if self._is_terminal:
            self._next = SYSTEM_CLOCK.monotonic() + _QUIET_S
            text = printable(text)
            self._stream.write("\r" + text.ljust(self._width))
            self._width = len(text)
        else:
            self._next = SYSTEM_CLOCK.monotonic() + 10 * _QUIET_S
            self._stream.write(text + "\n")
        self._stream.flush()

    def end(self) -> None:
        """Remove the line."""
        if self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()
            self._width = 0
