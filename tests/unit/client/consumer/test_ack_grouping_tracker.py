"""Acknowledgements are collected, and written in groups."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar._engine.filenames import acks_path
from embeddedpulsar._engine.format.control import Unwritten, parse_ring
from embeddedpulsar._engine.format.entry import ProducerPrefix, encode_plain
from embeddedpulsar._engine.platform import timing
from embeddedpulsar._engine.subscription.ack_ring import MOST_ENTRIES, AckRing
from embeddedpulsar.client.client_threads import ClientLog
from embeddedpulsar.client.consumer.ack_grouping_tracker import GROUP_SIZE, AckGroupingTracker
from embeddedpulsar.exceptions import (
    CumulativeAcknowledgementNotAllowedError,
    LockTimeout,
    NotAllowedError,
    StorageError,
)
from embeddedpulsar.testing.manual_clock import ManualClock, ManualScheduler
from tests.unit.client.fakes import view_of


class Attachment:
    """Remembers what is written, and fails on demand."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.written: list[Any] = []
        self.fail: Exception | None = None
        self.is_held = False
        self.left: list[float] = []
        self.tries = 0
        self.commits = 0  # of others, which hold the lock one after the other
        self.epoch = 1
        self.consumer_id = 1
        self.rings: list[AckRing] = []
        self.is_full = False
        self.epochs: list[int | None] = []
        self.delivers_singly = False

    def progress(self) -> int:
        return self.commits

    def acknowledge(self, entries: Any, partial: Any, *, epoch: int | None = None) -> bool:
        self.epochs.append(epoch)
        self._write("some", list(entries), dict(partial))
        return epoch == self.epoch

    def acknowledge_cumulative(
        self, ledger: int, entry: int, index: int, size: int, *, epoch: int | None = None
    ) -> bool:
        self.epochs.append(epoch)
        self._write("all", (ledger, entry), index, size)
        return epoch == self.epoch

    def make_ring(self, epoch: int) -> AckRing | None:
        if self.is_full:
            return None
        self.rings.append(AckRing.make(self.directory, self.consumer_id, epoch, bytes(16)))
        return self.rings[-1]

    def is_plain(self, ledger: int, entry: int, is_cumulative: bool = False) -> bool:
        return entry < 1 << 20

    def _write(self, *what: Any) -> None:
        self.tries += 1
        if self.is_held:
            self.left.append(timing.left(30.0))
            raise LockTimeout(f"held, and {timing.left(30.0):g} s are left")
        failure, self.fail = self.fail, None
        if failure is not None:
            raise failure
        self.written.append(what)


@pytest.fixture
def attachment(tmp_path) -> Attachment:
    return Attachment(str(tmp_path))


@pytest.fixture
def scheduler() -> ManualScheduler:
    return ManualScheduler(ManualClock())


@pytest.fixture
def make(attachment, scheduler):
    """Make a tracker for the attachment."""

    def make_tracker(group_time_ms: int = 100, index_acks: bool = False) -> AckGroupingTracker:
        return AckGroupingTracker(attachment, group_time_ms, index_acks, scheduler.call_later, ClientLog())

    return make_tracker


def batch(tracker: AckGroupingTracker, entry: int, count: int, skip: int | None = None):
    """Deliver a batch."""
    view = view_of(encode_plain([b"x"] * count, 0, ProducerPrefix("p")), 7, entry)
    view.skip = skip
    tracker.track(view)
    return view


def run(scheduler: ManualScheduler, seconds: float) -> None:
    """Let time pass."""
    scheduler._clock.advance(seconds)  # type: ignore[attr-defined]
    scheduler.run_due()


def test_a_group_is_written_after_its_time(make, attachment, scheduler):
    """Nothing is written at once; after 100 ms everything collected is written together."""
    tracker = make()
    tracker.acknowledge(7, 0, -1, 0)
    tracker.acknowledge(7, 1, -1, 0)
    run(scheduler, 0.099)
    assert attachment.written == []
    run(scheduler, 0.001)
    assert attachment.written == [("some", [(7, 0), (7, 1)], {})]
    assert scheduler.pending == 0


def test_a_full_group_is_written_at_once(make, attachment):
    """At 1,000 entries nobody waits for the timer."""
    tracker = make()
    for entry in range(GROUP_SIZE):
        tracker.acknowledge(7, entry, -1, 0)
    assert len(attachment.written[0][1]) == GROUP_SIZE


def test_a_handler_in_the_middle_of_a_writing(make, attachment, scheduler):
    """What signal handlers acknowledge while a group is written is written once more or later, and none of it
    is taken for written."""
    tracker = make()
    write, added = attachment._write, iter(range(GROUP_SIZE, GROUP_SIZE + 5))

    def strike(*what: Any) -> None:
        for entry in added:  # the first one finds a full group, and would write and remove it
            tracker.acknowledge(7, entry, -1, 0)
        write(*what)

    attachment._write = strike
    for entry in range(GROUP_SIZE):
        tracker.acknowledge(7, entry, -1, 0)
    run(scheduler, 10)
    written = [entry for _, entries, _ in attachment.written for entry in entries]
    assert sorted(set(written)) == [(7, entry) for entry in range(GROUP_SIZE + 5)]
    assert not tracker.done

    def flush(*what: Any) -> None:
        with pytest.raises(NotAllowedError, match="signal handler"):
            tracker.flush()
        write(*what)

    attachment._write = flush
    tracker.acknowledge(7, 5000, -1, 0)
    tracker.flush()
    assert attachment.written[-1][1] == [(7, 5000)]


def test_group_time_0_writes_each(make, attachment):
    """Without a group time every acknowledgement is written before the call returns."""
    tracker = make(0)
    assert not tracker.quick
    tracker.acknowledge(7, 0, -1, 0)
    assert attachment.written == [("some", [(7, 0)], {})]


def test_a_batch_is_acknowledged_when_all_its_messages_are(make, attachment):
    """Single messages of a batch stay local until the last one."""
    tracker = make()
    batch(tracker, 0, 3)
    for index in (2, 0):
        tracker.acknowledge(7, 0, index, 3)
    tracker.flush()
    assert attachment.written == []
    tracker.acknowledge(7, 0, 1, 3)
    tracker.flush()
    assert attachment.written == [("some", [(7, 0)], {})]
    assert tracker.open == {}
    tracker.acknowledge(7, 0, 1, 3)  # again, which the subscription knows to be done
    tracker.flush()
    assert attachment.written[1:] == [("some", [], {(7, 0): (0b010, 3)})]


def test_messages_acknowledged_before_count(make, attachment):
    """In a batch that came back, what the subscription knows to be acknowledged need not be again."""
    tracker = make()
    batch(tracker, 0, 3, skip=0b101)
    tracker.acknowledge(7, 0, 1, 3)
    tracker.flush()
    assert attachment.written == [("some", [(7, 0)], {})]


def test_batch_index_acknowledgement(make, attachment):
    """With it, each message of a batch is written, then the entry."""
    tracker = make(index_acks=True)
    batch(tracker, 0, 3)
    tracker.acknowledge(7, 0, 0, 3)
    tracker.flush()
    tracker.acknowledge(7, 0, 2, 3)
    tracker.flush()
    tracker.flush()
    tracker.acknowledge(7, 0, 1, 3)
    tracker.flush()
    assert attachment.written == [
        ("some", [], {(7, 0): (0b001, 3)}),
        ("some", [], {(7, 0): (0b101, 3)}),
        ("some", [(7, 0)], {}),
    ]


@pytest.mark.parametrize("index_acks", [False, True])
def test_an_id_of_a_batch_that_was_not_delivered_here(make, attachment, index_acks):
    """A deserialized id counts by itself, since its batch never completes here."""
    tracker = make(index_acks=index_acks)
    tracker.acknowledge(7, 0, 1, 3)
    tracker.acknowledge(7, 1, 1, 0)  # the size of this batch is not known
    tracker.flush()
    assert attachment.written == [("some", [], {(7, 0): (0b010, 3)})]


def test_a_batch_of_one_is_an_entry(make, attachment):
    """The only message of a batch acknowledges the entry, whether or not it was delivered here."""
    tracker = make()
    view = batch(tracker, 0, 1)
    assert view.acked is None
    tracker.acknowledge(7, 0, 0, 1)
    tracker.flush()
    assert attachment.written == [("some", [(7, 0)], {})]


def test_ids_of_nothing_are_ignored(make, attachment):
    """earliest and latest acknowledge nothing."""
    tracker = make()
    largest = 2**63 - 1
    tracker.acknowledge(-1, -1, -1, 0)
    tracker.acknowledge(largest, largest, -1, 0)
    tracker.acknowledge_cumulative(-1, -1, -1, 0)
    tracker.acknowledge_cumulative(largest, largest, -1, 0)
    tracker.flush()
    assert attachment.written == []


def test_cumulative_acknowledgement(make, attachment):
    """The highest cumulative position is written, once, before single ones."""
    tracker = make()
    tracker.acknowledge_cumulative(7, 3, -1, 0)
    tracker.acknowledge_cumulative(7, 1, -1, 0)
    tracker.acknowledge(7, 9, -1, 0)
    tracker.flush()
    assert attachment.written == [("all", (7, 3), -1, 0), ("some", [(7, 9)], {})]


def test_cumulative_in_the_middle_of_a_batch(make, attachment):
    """Without batch index acknowledgement it covers what is before the batch, and the rest completes it."""
    tracker = make()
    batch(tracker, 4, 3)
    batch(tracker, 5, 3)
    tracker.acknowledge_cumulative(7, 5, 1, 3)
    tracker.flush()
    assert attachment.written == [("all", (7, 4), -1, 0)]
    assert list(tracker.open) == [(7, 5)]
    tracker.acknowledge(7, 5, 2, 3)
    tracker.flush()
    assert attachment.written[1:] == [("some", [(7, 5)], {})]


def test_cumulative_in_the_middle_of_the_first_batch(make, attachment):
    """Before the first entry of a ledger stands entry -1."""
    tracker = make()
    batch(tracker, 0, 3)
    tracker.acknowledge_cumulative(7, 0, 0, 3)
    tracker.flush()
    assert attachment.written == [("all", (7, -1), -1, 0)]


def test_cumulative_at_the_end_of_a_batch(make, attachment):
    """The last message of a batch covers the batch."""
    tracker = make()
    batch(tracker, 5, 3)
    tracker.acknowledge_cumulative(7, 5, 2, 3)
    tracker.flush()
    assert attachment.written == [("all", (7, 5), -1, 0)]
    assert tracker.open == {}


def test_cumulative_with_batch_index_acknowledgement(make, attachment):
    """With it, the middle of a batch is written as such."""
    tracker = make(index_acks=True)
    batch(tracker, 5, 3)
    tracker.acknowledge_cumulative(7, 5, 1, 3)
    tracker.flush()
    assert attachment.written == [("all", (7, 5), 1, 3)]


def test_a_failure_loses_nothing(make, attachment, scheduler, caplog):
    """What could not be written stays collected, is logged, and is tried again."""
    tracker = make()
    tracker.acknowledge(7, 0, -1, 0)
    attachment.fail = StorageError(reason="the disk is gone")
    with caplog.at_level(logging.WARNING, "embeddedpulsar"):
        run(scheduler, 0.1)
    assert "the disk is gone" in caplog.text
    tracker.acknowledge(7, 1, -1, 0)
    run(scheduler, 1.0)
    assert attachment.written == [("some", [(7, 0), (7, 1)], {})]


def test_the_timer_waits_for_no_lock(make, attachment, scheduler, caplog):
    """While the lock is held elsewhere it tries again, ever less often; a warning tells after a second."""
    tracker = make()
    tracker.acknowledge(7, 0, -1, 0)
    attachment.is_held = True
    with caplog.at_level(logging.WARNING, "embeddedpulsar"):
        run(scheduler, 0.1)
        assert attachment.tries == 1
        assert "held" not in caplog.text
        for _ in range(40):
            run(scheduler, 0.05)
    assert 15 < attachment.tries < 30
    assert caplog.text.count("held, and 0 s are left") == 1
    assert tracker.unwritten == 1
    attachment.is_held = False
    run(scheduler, 1.0)
    assert attachment.written == [("some", [(7, 0)], {})]
    assert tracker.unwritten == 0
    assert scheduler.pending == 0


def test_a_busy_lock_is_no_reason_to_warn(make, attachment, scheduler, caplog):
    """As long as other processes commit, the lock is not stuck, however often it is found held."""
    tracker = make()
    tracker.acknowledge(7, 0, -1, 0)
    attachment.is_held = True
    with caplog.at_level(logging.WARNING, "embeddedpulsar"):
        for _ in range(100):
            attachment.commits += 1
            run(scheduler, 0.05)
    assert attachment.tries > 10 and not caplog.text
    with caplog.at_level(logging.WARNING, "embeddedpulsar"):
        for _ in range(100):
            run(scheduler, 0.05)
    assert caplog.text.count("held, and 0 s are left") == 1
    attachment.is_held = False
    run(scheduler, 1.0)
    assert attachment.written == [("some", [(7, 0)], {})]


def test_who_fills_a_group_waits_for_no_lock(make, attachment, scheduler):
    """Thousands of acknowledgements behind a stuck lock take no time and are all written afterwards."""
    tracker = make()
    attachment.is_held = True
    for entry in range(3 * GROUP_SIZE):
        tracker.acknowledge(7, entry, -1, 0)
    assert attachment.tries <= 2
    assert tracker.unwritten == 3 * GROUP_SIZE
    attachment.is_held = False
    run(scheduler, 0.1)
    assert [len(what[1]) for what in attachment.written] == [3 * GROUP_SIZE]
    assert scheduler.pending == 0


def test_an_acknowledgement_that_is_written_at_once_waits(make, attachment):
    """Without grouping the caller gets the error; it stays collected."""
    tracker = make(group_time_ms=0)
    attachment.is_held = True
    with pytest.raises(LockTimeout, match="held, and 30 s are left"):
        tracker.acknowledge(7, 0, -1, 0)
    assert tracker.unwritten == 1
    attachment.is_held = False
    tracker.flush()
    assert attachment.written == [("some", [(7, 0)], {})]


def test_who_flushes_sees_the_failure(make, attachment):
    """A flush on demand raises, and keeps what it could not write."""
    tracker = make()
    tracker.acknowledge_cumulative(7, 3, -1, 0)
    attachment.fail = LockTimeout("held")
    with pytest.raises(LockTimeout):
        tracker.flush()
    tracker.flush()
    assert attachment.written == [("all", (7, 3), -1, 0)]


def test_completed_entries_are_announced(make):
    """Other trackers learn of every entry that is done."""
    tracker = make()
    done: list[tuple[int, int]] = []
    tracker.on_done = done.append
    batch(tracker, 0, 2)
    tracker.acknowledge_cumulative(7, 1, -1, 0)
    tracker.acknowledge(7, 5, -1, 0)
    assert done == [(7, 0), (7, 5)]


def test_what_was_collected_before_a_move_is_void(make, attachment):
    """Acknowledgements are written with the epoch they were collected in; a move drops those before it."""
    tracker = make()
    tracker.acknowledge(7, 0, -1, 0)
    tracker.flush()
    tracker.acknowledge(7, 1, -1, 0)
    tracker.acknowledge_cumulative(7, 1, -1, 0)
    batch(tracker, 2, 3)
    attachment.epoch = 2
    tracker.begin_epoch()
    tracker.flush()
    tracker.acknowledge(7, 5, -1, 0)
    tracker.flush()
    assert attachment.written == [("some", [(7, 0)], {}), ("some", [(7, 5)], {})]
    assert attachment.epochs == [1, 2]
    assert tracker.open == {}


def test_threads_that_wait_for_receipts_share_a_commit(attachment, scheduler):
    """While one commit is under way, others collect, and go together in the next."""
    tracker = AckGroupingTracker(attachment, 100, False, scheduler.call_later, ClientLog(), receipts=True)
    begun, go_on = threading.Event(), threading.Event()
    write = attachment._write

    def write_slowly(*what: Any) -> None:
        begun.set()
        assert go_on.wait(10)
        write(*what)

    attachment._write = write_slowly
    workers = [threading.Thread(target=tracker.acknowledge, args=(7, entry, -1, 0)) for entry in range(5)]
    workers[0].start()
    assert begun.wait(10)
    for worker in workers[1:]:
        worker.start()
    while len(tracker.done) < 5:
        threading.Event().wait(0.001)
    go_on.set()
    for worker in workers:
        worker.join()
    assert [len(entries) for _, entries, _ in attachment.written] == [1, 4]
    assert tracker.done == []
    assert tracker.sent == 5


def test_cumulative_acknowledgement_is_refused_where_messages_come_singly(attachment, make):
    """Shared and Key_Shared have no order to cover."""
    attachment.delivers_singly = True
    with pytest.raises(CumulativeAcknowledgementNotAllowedError):
        make().acknowledge_cumulative(7, 0, -1, 0)
    assert attachment.written == []


@pytest.mark.parametrize("failure", [OSError(5, "planned"), MemoryError("planned"), ValueError("planned")])
def test_what_the_system_refuses_is_tried_again(make, attachment, scheduler, caplog, failure: Exception):
    """Any failure of the timer is logged, and the acknowledgements are written a second later."""
    tracker = make()
    tracker.acknowledge(7, 0, -1, 0)
    attachment.fail = failure
    with caplog.at_level(logging.WARNING, "embeddedpulsar"):
        run(scheduler, 0.1)
    assert "planned" in caplog.text
    assert attachment.written == []
    run(scheduler, 1.0)
    assert attachment.written == [("some", [(7, 0)], {})]


def test_what_a_full_group_could_not_write_is_tried_again(make, attachment, scheduler):
    """Whoever acknowledges gets the error; the timer writes it all the same."""
    tracker = make()
    for entry in range(GROUP_SIZE - 1):
        tracker.acknowledge(7, entry, -1, 0)
    run(scheduler, 0.1)
    for entry in range(GROUP_SIZE - 1):
        tracker.acknowledge(8, entry, -1, 0)
    attachment.fail = OSError(5, "planned")
    with pytest.raises(OSError, match="planned"):
        tracker.acknowledge(9, 0, -1, 0)
    run(scheduler, 1.0)
    assert sum(len(one[1]) for one in attachment.written) == 2 * GROUP_SIZE - 1


def found_in(ring: AckRing) -> Unwritten:
    """What another process would find."""
    return parse_ring(Path(acks_path(ring_directory(ring), ring.consumer_id)).read_bytes())[1]


def ring_directory(ring: AckRing) -> str:
    """Where it is."""
    assert ring._file is not None
    return os.path.dirname(ring._file.path)


def test_what_is_collected_stands_in_the_ring(make, attachment):
    """Entries, parts and cumulative acknowledgements, when the call returns."""
    tracker = make(index_acks=True)
    batch(tracker, 3, 4)
    tracker.acknowledge(7, 0, -1, 0)
    tracker.acknowledge(7, 3, 1, 4)
    tracker.acknowledge(7, 9, 2, 5)
    tracker.acknowledge_cumulative(6, 8, -1, 0)
    (ring,) = attachment.rings
    found = found_in(ring)
    assert attachment.written == []
    assert found.entries == [(7, 0)]
    assert found.parts == {(7, 3): (2, 4), (7, 9): (4, 5)}
    assert found.cumulative == [(6, 8, -1, 0)]
    tracker.flush()
    tracker.end()
    assert not os.path.exists(acks_path(attachment.directory, 1))


def test_what_cannot_stand_there_is_written_at_once(make, attachment):
    """No room for a ring; an entry that may not exist."""
    tracker = make()
    tracker.acknowledge(7, 1 << 21, -1, 0)
    assert attachment.written == [("some", [(7, 1 << 21)], {})]
    attachment.is_full = True
    tracker.acknowledge(7, 0, -1, 0)
    assert attachment.written[1:] == [("some", [(7, 0)], {})]
    attachment.is_full = False
    tracker.acknowledge(7, 1, -1, 0)
    assert len(attachment.written) == 2
    assert found_in(attachment.rings[0]).entries == [(7, 1)]


def test_parts_without_room_are_written_at_once(make, attachment):
    """The ring holds some hundred; nothing is overwritten that is not written."""
    tracker = make(index_acks=True)
    for index in range(500):
        tracker.acknowledge(7, index, 0, 2)
        (ring,) = attachment.rings
        written = {place for _, _, partial in attachment.written for place in partial}
        assert written | set(found_in(ring).parts) >= {(7, one) for one in range(index + 1)}
    assert 1 <= len(attachment.written) <= 3


def test_a_group_that_cannot_be_written_is_not_overwritten(make, attachment):
    """While writing fails each call beyond the group says so; those before stay known."""
    tracker = make()
    for entry in range(GROUP_SIZE - 1):
        tracker.acknowledge(7, entry, -1, 0)
    for entry in range(GROUP_SIZE, 3 * GROUP_SIZE):
        attachment.fail = StorageError(reason="no room")
        with pytest.raises(StorageError):
            tracker.acknowledge(7, entry, -1, 0)
    assert {(7, entry) for entry in range(GROUP_SIZE - 1)} <= set(found_in(attachment.rings[0]).entries)
    tracker.flush()
    assert len(attachment.written[0][1]) == 3 * GROUP_SIZE - 1


def test_a_consumer_that_joins_again_has_a_new_ring(make, attachment):
    """Nobody else reads the old one, and what stands there is void."""
    tracker = make()
    tracker.acknowledge(7, 0, -1, 0)
    assert tracker.ready
    attachment.consumer_id = attachment.epoch = 2
    tracker.begin_epoch()
    assert not tracker.ready
    tracker.acknowledge(7, 1, -1, 0)
    old, new = attachment.rings
    assert (old.consumer_id, new.consumer_id) == (1, 2)
    assert found_in(new)[:3] == (2, 2, [(7, 1)])
    attachment.epoch = 3
    tracker.begin_epoch()
    assert found_in(new)[:3] == (2, 3, [])


def test_the_timer_waits_for_a_lock_that_is_busy(make, attachment, scheduler):
    """When it found it held, and others held it one after the other since; not for one that is stuck."""
    tracker = make()
    tracker.acknowledge(7, 1, -1, 0)
    attachment.is_held = True
    for _ in range(3):
        run(scheduler, 0.2)
    assert attachment.left == [0.0, 0.0, 0.0]
    attachment.commits += 1
    run(scheduler, 0.2)
    run(scheduler, 0.2)
    assert 0.0 < attachment.left[3] <= 0.02 and attachment.left[4] == 0.0
    attachment.is_held = False
    run(scheduler, 0.2)
    assert attachment.written == [("some", [(7, 1)], {})]


def test_behind_a_lock_that_stays_held_as_many_are_known_as_the_ring_holds(make, attachment):
    """No call waits, and none is lost by this process; more than 1,256 are not known to others."""
    tracker = make()
    attachment.is_held = True
    for entry in range(2 * GROUP_SIZE):
        tracker.acknowledge(7, entry, -1, 0)
    assert found_in(attachment.rings[0]).entries == [(7, entry) for entry in range(MOST_ENTRIES)]
    attachment.is_held = False
    tracker.flush()
    assert len(attachment.written[0][1]) == 2 * GROUP_SIZE
