"""Who watches a partitioned topic is told that it grew: once, without a lock held, and within a second."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import AlreadyClosed, Client
from tests.conformance.manual_time import ManualTime

NAME = "persistent://public/default/orders"


@pytest.fixture
def time(tmp_path: Path) -> Iterator[ManualTime]:
    """A client whose time passes when the test says so, on a store with a topic of two partitions."""
    made = ManualTime(tmp_path / "store")
    made.client._core.store.topics.create_partitioned(NAME, 2)
    yield made
    made.close()


def core_of(time: ManualTime) -> Any:
    """The working half of its client."""
    return time.client._core


def test_growth_is_told_within_a_second(time: ManualTime):
    """Every number once; other changes of the catalog, and other topics, are not told."""
    core = core_of(time)
    told: list[int] = []
    watched = core.partition_watch.add(NAME, 2, told.append)
    time.pass_ms(2000)
    core.store.topics.create_topic("other")
    time.pass_ms(2000)
    assert told == [] and watched.partitions == 2
    core.store.grow_partitions(NAME, 3)
    time.pass_ms(1000)
    core.store.grow_partitions(NAME, 4)
    core.store.grow_partitions(NAME, 6)
    time.pass_ms(1000)
    time.pass_ms(5000)
    assert told == [3, 6] and watched.partitions == 6


def test_what_came_before_is_told_too(time: ManualTime):
    """Between asking for the number and watching, a topic may grow."""
    core = core_of(time)
    core.store.grow_partitions(NAME, 3)
    told: list[int] = []
    core.partition_watch.add(NAME, 2, told.append)
    assert told == []
    time.pass_ms(0)
    assert told == [3]


def test_whoever_is_removed_is_not_told(time: ManualTime):
    """With nobody left there is no timer and no listener."""
    core = core_of(time)
    told: list[str] = []
    before = core.store.mailbox._listeners
    first = core.partition_watch.add(NAME, 2, lambda _: told.append("first"))
    second = core.partition_watch.add(NAME, 2, lambda _: told.append("second"))
    time.pass_ms(0)
    core.partition_watch.remove(first)
    core.partition_watch.remove(first)
    core.store.grow_partitions(NAME, 3)
    time.pass_ms(1000)
    assert told == ["second"]
    core.partition_watch.remove(second)
    assert core.scheduler.next_due() is None and core.store.mailbox._listeners == before
    core.store.grow_partitions(NAME, 4)
    time.pass_ms(2000)
    assert told == ["second"]


def test_one_that_fails_is_told_again(time: ManualTime, caplog: pytest.LogCaptureFixture):
    """A second later; the others are told all the same. One that is closed is told no more."""
    core = core_of(time)
    calls: list[str] = []

    def fail_once(partitions: int) -> None:
        calls.append(f"fails with {partitions}")
        if len(calls) == 1:
            raise RuntimeError("no descriptors")

    def is_closed(partitions: int) -> None:
        calls.append("closed")
        raise AlreadyClosed("closed")

    core.partition_watch.add(NAME, 2, fail_once)
    core.partition_watch.add(NAME, 2, is_closed)
    core.store.grow_partitions(NAME, 3)
    with caplog.at_level(logging.ERROR):
        time.pass_ms(0)
    assert calls == ["fails with 3", "closed"] and "Following the partitions" in caplog.text
    time.pass_ms(3000)
    assert calls == ["fails with 3", "closed", "fails with 3"]


def test_the_one_that_grows_rings(tmp_path: Path):
    """A thread that waits notices at once, long before the second is over."""
    with Client(tmp_path / "store") as client:
        core: Any = client._core
        core.store.topics.create_partitioned(NAME, 2)
        told = threading.Event()
        core.partition_watch.add(NAME, 2, lambda _: told.set())
        consumer = client.subscribe("other", "s")
        waiting = threading.Thread(target=lambda: consumer.receive_nowait() or told.wait(10))
        waiting.start()
        core.store.grow_partitions(NAME, 3)
        assert told.wait(10)
        waiting.join()


def test_a_closed_client_watches_nothing(time: ManualTime):
    """And a forked child starts with nothing."""
    core = core_of(time)
    told: list[int] = []
    core.partition_watch.add(NAME, 2, told.append)
    core.partition_watch.after_fork_in_child()
    core.partition_watch.report_changes()
    core.partition_watch.add(NAME, 2, told.append)
    core.partition_watch.close()
    core.store.grow_partitions(NAME, 3)
    core.partition_watch.report_changes()
    time.pass_ms(2000)
    assert told == []
