"""A store whose time passes when the test says so: minutes are tested to the millisecond, at once."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from embeddedpulsar import Client
from embeddedpulsar.platform.clock import ManualClock
from embeddedpulsar.platform.scheduler import ManualScheduler
from embeddedpulsar.topic.store import Store


class ManualTime:
    """A client, its store and its timers, all on one clock that stands still."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock()
        self._schedulers: list[ManualScheduler] = []
        self._open()

    def _open(self) -> None:
        store = Store.open(self.path, clock=self.clock)
        session: Any = store._session
        session.scheduler.close()
        session.scheduler = self._scheduler()
        session.chores.close()
        session.chores = self._scheduler()
        self.client = Client(self.path)  # of the same store: a process has one per directory
        store.release()
        core: Any = self.client._core
        assert core.store is store
        core.scheduler.close()
        core.scheduler = self._scheduler()
        core.workers = SimpleNamespace(start=lambda job: job(), close=lambda: None)

    def _scheduler(self) -> ManualScheduler:
        scheduler = ManualScheduler(self.clock)
        self._schedulers.append(scheduler)
        return scheduler

    def reopen(self) -> None:
        """Close the store and open it again, as another process would later."""
        self.close()
        self._open()

    def close(self) -> None:
        """Close the client, unless the test did so."""
        self.client.shutdown()
        self._schedulers.clear()

    def now_ms(self) -> int:
        """The time of day."""
        return self.clock.wall_ms()

    def pass_ms(self, milliseconds: float) -> None:
        """Let time pass, running every timer at its own time."""
        end = self.clock.monotonic() + milliseconds / 1000
        while True:
            due = min((one.next_due() or math.inf for one in self._schedulers), default=math.inf)
            if due > end:
                break
            self.clock.advance(max(due - self.clock.monotonic(), 0))
            for scheduler in self._schedulers:
                scheduler.run_due()
        self.clock.advance(max(end - self.clock.monotonic(), 0))
