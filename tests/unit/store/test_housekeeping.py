"""What is due, who does it, and what becomes of it when he cannot."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest

from embeddedpulsar._engine.platform import fork
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar._engine.platform.package_log import DamageChannel
from embeddedpulsar._engine.store.housekeeping import (
    GATHER_S,
    NOT_TRIMMED,
    PAUSE_S,
    ChoresFailed,
    Housekeeping,
)
from embeddedpulsar.exceptions import CorruptionError, LockTimeout, StorageError
from embeddedpulsar.testing.manual_clock import ManualClock, ManualScheduler


class Chores:
    """A topic that has so many slices to do."""

    def __init__(self, name: str, slices: int = 1, *, is_watched: bool = False) -> None:
        self.name = name
        self.slices = slices
        self.is_watched = is_watched
        self.every_s = 120.0
        self.done = 0
        self.error: Exception | None = None
        self.is_deleted = False

    def do_chores(self, done: list[str]) -> bool:
        if self.error is not None:
            raise self.error
        done.append(f"{self.name}: a slice")
        self.done += 1
        self.slices -= 1
        return self.slices > 0

    def chores_every_s(self) -> float:
        return self.every_s if self.is_watched else 0.0


class Site:
    """Housekeeping on a clock that stands still."""

    def __init__(self, root: Path) -> None:
        self.clock = ManualClock()
        self.scheduler = ManualScheduler(self.clock)
        self.lock_path = str(root / "housekeeping.lock")
        self.housekeeping = Housekeeping(
            self.lock_path,
            SimpleNamespace(chores=self.scheduler, check_in_place=int, damage=DamageChannel()),
            120,
            self.clock.monotonic,
        )

    def pass_s(self, seconds: float) -> int:
        """Let time pass; how often something ran."""
        end, count = self.clock.monotonic() + seconds, 0
        while (due := self.scheduler.next_due()) is not None and due <= end:
            self.clock.advance(max(0.0, due - self.clock.monotonic()))
            count += self.scheduler.run_due()
        self.clock.advance(max(0.0, end - self.clock.monotonic()))
        return count


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_what_becomes_due_together_is_done_together(site: Site) -> None:
    """One timer, however often it is said."""
    one, other = Chores("one"), Chores("other")
    for _ in range(5):
        site.housekeeping.look_at(one)
        site.housekeeping.look_at(other)
    assert site.scheduler.pending == 1
    assert site.pass_s(GATHER_S) == 1
    assert (one.done, other.done) == (1, 1)
    assert site.scheduler.pending == 0


def test_more_than_a_slice(site: Site) -> None:
    """Is done slice by slice."""
    topic = Chores("t", 7)
    site.housekeeping.look_at(topic)
    site.pass_s(1)
    assert topic.done == 7
    assert site.scheduler.pending == 0


def test_slices_follow_each_other_closely(site: Site) -> None:
    """Also while ledgers are closed all the time: trimming has to be faster than one producer fills them."""
    topic = Chores("t", 7)
    do_chores = topic.do_chores

    def do_chores_beside_a_roll(done: list[str]) -> bool:
        site.housekeeping.look_at(Chores("busy", 0))
        return do_chores(done)

    topic.do_chores = do_chores_beside_a_roll  # type: ignore[method-assign]
    site.housekeeping.look_at(topic)
    site.pass_s(GATHER_S)
    assert topic.done == 1
    site.pass_s(6.5 * PAUSE_S)
    assert topic.done == 7
    assert site.scheduler.pending <= 1


def test_what_time_may_bring_is_looked_at_again(site: Site) -> None:
    """At the interval, as long as the topic is open and may have something."""
    topic = Chores("t", is_watched=True)
    site.housekeeping.look_at(topic)
    site.pass_s(1000)
    assert topic.done == 1 + 1000 // 120
    topic.is_watched = False
    site.pass_s(1000)
    assert topic.done == 2 + 1000 // 120
    topic.is_watched = True
    site.housekeeping.look_at(topic)
    site.pass_s(1)
    site.housekeeping.discard(topic)
    done = topic.done
    site.pass_s(1000)
    assert topic.done == done


def test_each_at_its_own_interval(site: Site) -> None:
    """One that is looked at often makes the others be looked at no sooner."""
    often, seldom = Chores("often", is_watched=True), Chores("seldom", is_watched=True)
    often.every_s, seldom.every_s = 60, 1200
    site.housekeeping.look_at(often)
    site.housekeeping.look_at(seldom)
    site.pass_s(1)
    before = often.done, seldom.done
    site.pass_s(1000)
    assert (often.done - before[0], seldom.done - before[1]) == (16, 0)
    site.pass_s(300)
    assert seldom.done - before[1] == 1


def test_somebody_else_is_at_it(site: Site) -> None:
    """Nobody waits; it is tried again, ever more seldom."""
    topic = Chores("t")
    lock = FileLock(site.lock_path)
    try:
        lock.acquire()
        site.housekeeping.look_at(topic)
        tries = site.pass_s(1000)
        assert 10 < tries < 25
        assert topic.done == 0
    finally:
        lock.release()
    lock.close()
    site.pass_s(130)
    assert topic.done == 1


def test_somebody_stays_in_the_lock_of_a_topic(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """It is tried again, without a word: whoever needs the lock says so."""
    topic = Chores("t")
    topic.error = LockTimeout("somebody is in it")
    site.housekeeping.look_at(topic)
    assert 10 < site.pass_s(1000) < 25
    assert not caplog.records
    topic.error = None
    site.pass_s(130)
    assert topic.done == 1


def test_a_topic_that_cannot_be_trimmed(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """Is reported once, tried again at the interval, and holds up no other."""
    bad, good = Chores("bad"), Chores("good")
    bad.error = StorageError(path="x", reason="it is broken")
    site.housekeeping.look_at(bad)
    site.housekeeping.look_at(good)
    site.pass_s(1000)
    assert good.done == 1
    assert [record.message.count("it is broken") for record in caplog.records] == [1]
    bad.error = None
    site.pass_s(130)
    assert bad.done == 1


def test_damage_is_reported_once(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """A topic whose policies or acknowledgements cannot be read keeps everything, and the report says so."""
    bad = Chores("bad")
    error = CorruptionError(path="x/policies", offset=7, reason="the document is damaged")
    bad.error = ChoresFailed([(error, NOT_TRIMMED)])
    for _ in range(2):
        site.housekeeping.look_at(bad)
        site.pass_s(10 * GATHER_S)
    (record,) = caplog.records
    assert all(text in record.getMessage() for text in ("bad: x/policies", "nothing of the topic is trimmed"))


def test_a_failure_says_what_is_not_done(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """A check that fails is not reported as trimming that fails."""
    bad = Chores("bad")
    bad.error = ChoresFailed([(StorageError(path="x", reason="broken"), "messages do not expire")])
    site.housekeeping.look_at(bad)
    site.pass_s(10 * GATHER_S)
    (record,) = caplog.records
    assert record.getMessage().startswith("bad: messages do not expire: ")
    assert "trimmed" not in record.getMessage()


@pytest.mark.parametrize("error", [FileNotFoundError("x"), CorruptionError(path="x", reason="it is gone")])
def test_a_deleted_topic_is_no_failure(
    site: Site, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """Another process took its files: nothing is reported, and nothing is tried again."""
    topic = Chores("t", is_watched=True)
    topic.error, topic.is_deleted = error, True
    site.housekeeping.look_at(topic)
    site.pass_s(10 * GATHER_S)
    topic.error = None
    site.pass_s(1000)
    assert topic.done == 0 and not caplog.records


def test_a_lock_that_cannot_be_opened(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Is reported, and tried again."""
    site = Site(tmp_path / "absent")
    topic = Chores("t")
    site.housekeeping.look_at(topic)
    site.pass_s(10)
    assert "nothing is trimmed" in caplog.text
    (tmp_path / "absent").mkdir()
    site.pass_s(130)
    assert topic.done == 1


def test_after_the_end(site: Site) -> None:
    """A store that is being closed has no timers any more: nothing happens."""
    closed = Site(Path(site.lock_path).parent)

    def refuse(*_: object) -> None:
        raise RuntimeError("the scheduler is closed")

    closed.scheduler.call_later = refuse  # type: ignore[assignment, method-assign]
    closed.housekeeping.look_at(Chores("t"))


def test_in_a_forked_child(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent's does nothing."""
    monkeypatch.setattr(fork, "GENERATION", fork.GENERATION + 1)
    site.housekeeping.look_at(Chores("t"))
    assert site.scheduler.pending == 0


def test_a_failure_of_any_kind_ends_nothing(site: Site) -> None:
    """It is said, the other topics have their turn, and the topic is looked at again in time."""
    one, other = Chores("one", is_watched=True), Chores("other")
    one.error = ZeroDivisionError("planned")
    site.housekeeping.look_at(one)
    site.housekeeping.look_at(other)
    site.pass_s(GATHER_S)
    assert other.done == 1
    one.error = None
    site.pass_s(121)
    assert one.done == 1


def test_what_was_done_is_logged_without_the_lock(site: Site) -> None:
    """At level INFO; a log handler may do what needs housekeeping, as closing a topic does."""
    seen = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lock = FileLock(site.lock_path)
            seen.append((record.getMessage(), lock.try_acquire()))
            lock.release()
            lock.close()

    logger, handler = logging.getLogger("embeddedpulsar"), Handler()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        site.housekeeping.look_at(Chores("t", 2))
        site.pass_s(1)
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
    assert seen == [("t: a slice", True), ("t: a slice", True)]
