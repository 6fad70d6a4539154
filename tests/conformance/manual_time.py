"""A store whose time passes when the test says so: minutes are tested to the millisecond, at once."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

from embeddedpulsar import Client
from embeddedpulsar.testing import ManualClock

_PATIENCE_S = 10.0
_NEVER = threading.Event()


class ManualTime:
    """A client, its store and its timers, all on one clock that stands still."""

    def __init__(self, url: Path | str) -> None:
        self.url = url
        self.clock = ManualClock(wall_ms=1_700_000_000_000)
        self._clock_in_use = contextlib.ExitStack()
        self._clock_in_use.enter_context(self.clock)
        self.client = Client(url)

    def reopen(self) -> None:
        """Close the store and open it again, as another process would later."""
        self.client.shutdown()
        self._clock_in_use.enter_context(self.clock)  # `close` may have left it
        self.client = Client(self.url)

    def close(self) -> None:
        """Close the client, unless the test did so, and go back to the clock of the machine."""
        try:
            self.client.shutdown()
        finally:
            self._clock_in_use.close()

    def now_ms(self) -> int:
        """The time of day."""
        return self.clock.wall_ms()

    def pass_ms(self, milliseconds: float) -> None:
        """Let time pass, running every timer at its own time."""
        self.clock.advance(milliseconds / 1000)

    def wait_for_flusher(self) -> None:
        """Return when the client's flusher has stored what it can, for example after a change of a rate.

        The flusher is a real thread: while the interpreter holds it up inside the lock of a producer, hours
        of this clock may pass in which that producer stores nothing."""
        flusher, end = self.client._core.flusher, time.monotonic() + _PATIENCE_S
        while flusher._waiting or (flusher._thread.is_started and not flusher._sleeps):
            assert time.monotonic() < end, "the flusher still waits for a lock"
            _NEVER.wait(0.001)
