"""The workers of a function: started, started again after delays, and ended."""

from __future__ import annotations

import json
from typing import Any

import pytest

from embeddedpulsar.functions.function_config import FunctionConfig
from embeddedpulsar.functions.io import Definition
from embeddedpulsar.functions.supervisor import WorkerGroup, start_worker
from embeddedpulsar.testing import ManualClock


class FakeProcess:
    """A worker that runs until the test ends it."""

    def __init__(self, arguments: list[str]) -> None:
        self.order = json.loads(arguments[0])
        self.pid = 1000 + self.order["instance"]
        self.ended: int | None = None
        self.is_stuck = False
        self.asked: list[str] = []

    def status(self) -> int | None:
        """As `ChildProcess.status`."""
        return self.ended

    def wait(self, timeout_s: float) -> bool:
        """As `ChildProcess.wait`."""
        return self.ended is not None

    def terminate(self) -> None:
        """End, unless stuck."""
        self.asked.append("terminate")
        if not self.is_stuck:
            self.ended = 0

    def kill(self) -> None:
        """End."""
        self.asked.append("kill")
        self.ended = -9


class Site:
    """A group with two workers, on a clock that the test moves."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.started: list[FakeProcess] = []
        config = FunctionConfig("a.B", "b", inputs=["in"], parallelism=2).check()
        start: Any = self._start
        self.group = WorkerGroup("./data", Definition(config, "id"), self.clock, start)

    def _start(self, arguments: list[str]) -> FakeProcess:
        self.started.append(FakeProcess(arguments))
        return self.started[-1]

    def looks_until_started(self) -> int:
        """Look ten times a second until a worker is started; how often."""
        before, looks = len(self.started), 0
        while len(self.started) == before:
            self.clock.advance(0.1)
            self.group.start_missing()
            looks += 1
        return looks


@pytest.fixture
def site() -> Site:
    """A group whose workers run."""
    made = Site()
    made.group.start_missing()
    return made


def test_each_instance_has_a_worker(site: Site):
    """With its number, and the definition of the function."""
    site.group.start_missing()
    assert [one.order["instance"] for one in site.started] == [0, 1]
    assert {one.order["definition"]["config"]["className"] for one in site.started} == {"a.B"}
    assert site.group.pids() == {0: 1000, 1: 1001}


def test_a_worker_that_ends_is_started_again(site: Site):
    """At once; then after delays that double, until one lived for ten seconds."""
    looks = []
    for _ in range(5):
        site.started[-1].ended = 1
        looks.append(site.looks_until_started())
    assert (looks[0], looks == sorted(looks), looks[-1] in (9, 10)) == (1, True, True), looks
    assert (site.started[-1].order["instance"], site.started[-1].order["restarts"]) == (1, 5)
    site.clock.advance(11)
    site.started[-1].ended = 1
    assert site.looks_until_started() == 1


def test_a_worker_that_keeps_failing_is_started_each_half_minute(site: Site):
    """However often: the delay does not grow beyond what a float holds."""
    worker = site.group._workers[1]
    worker.failures = 5000
    site.started[-1].ended = 1
    site.group.start_missing()
    assert worker.due_s - site.clock.monotonic() == 30


def test_a_command_line_shows_no_secrets(site: Site, monkeypatch: pytest.MonkeyPatch):
    """The worker reads its order, whatever its size, from its input."""
    made: list[Any] = []
    monkeypatch.setattr("embeddedpulsar.functions.supervisor.ChildProcess", lambda *args: made.append(args))
    start_worker(["hidden"])
    command, _, given = made[0]
    assert (command[1:], given) == (["-m", "embeddedpulsar.functions.worker"], b"hidden")


def test_the_end_of_a_group(site: Site):
    """Workers are asked; one that does not end is killed."""
    site.started[0].is_stuck = True
    site.group.end()
    assert [one.asked for one in site.started] == [["terminate", "kill"], ["terminate"]]
    assert site.group.pids() == {}
