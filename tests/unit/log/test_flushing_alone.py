"""Flushing without the sync lock, by the one that had it last; and what a flush writes."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from embeddedpulsar._engine.filenames import sync_lock_path
from embeddedpulsar._engine.format.entry import encode_single
from embeddedpulsar._engine.log import group_commit
from embeddedpulsar._engine.log.topic_control import FLUSHER, FLUSHING
from embeddedpulsar._engine.platform import failpoints, mapped_file, timing
from embeddedpulsar._engine.platform.lease import is_number_held
from embeddedpulsar.exceptions import LockTimeout, PoisonedSegment
from tests.ledger_site import PREFIX, LedgerSite, send, values
from tests.support.disks.faulty_disk import FaultyDisk
from tests.support.held_elsewhere import held_elsewhere

NO_PROCESS = 0x7FFFFFFF  # beyond the largest number of a process


@pytest.fixture(autouse=True)
def clear_failpoints() -> Iterator[None]:
    """None is set for the next test."""
    yield
    failpoints.clear()


def test_the_second_durable_append_locks_the_topic_alone(site: LedgerSite):
    """The sync lock is needed to become the one that flushes, not to go on: no second pair of ``flock``."""
    ledger = site.open(durability="flush")
    send(ledger, b"first")
    with held_elsewhere(sync_lock_path(site.directory)):
        send(ledger, b"second")
    assert ledger.statistics().is_synced
    assert ledger.statistics().syncs_here == 2


def test_another_flusher_is_seen(site: LedgerSite):
    """Who finds that another had the lock takes it again. The word stays with the last holder."""
    ledgers = [site.open(durability="flush") for _ in range(2)]
    words = ledgers[0].view.words
    holders = []
    for ledger in (*ledgers, *ledgers):
        send(ledger, b"x")
        holders.append(words[FLUSHER])
    assert holders[:2] == holders[2:] and holders[0] != holders[1]
    with held_elsewhere(sync_lock_path(site.directory)), pytest.raises(LockTimeout):
        timing.within(0.01, send, ledgers[0], b"y")


def test_a_flush_under_way_is_waited_for(site: LedgerSite, faulty: FaultyDisk):
    """Another one gets the lock while a flush without it goes on: it begins its own only after that."""
    first, second = site.open(durability="flush"), site.open(durability="flush")
    send(first, b"warm")
    is_inside, may_end, order = threading.Event(), threading.Event(), []

    def alone() -> None:
        is_inside.set()
        assert may_end.wait(30)
        order.append("alone")

    failpoints.set("sync:alone", alone)
    senders = [threading.Thread(target=send, args=(first, b"alone"))]
    senders[0].start()
    assert is_inside.wait(30)
    faulty.on_call = lambda call, path: order.append("flush") if call == "fdatasync" else None
    end = second.append_nowait(encode_single(b"other", 0, PREFIX))[3]
    with pytest.raises(LockTimeout, match="did not end its flush"):
        timing.within(0.01, second.wait_durable, end)
    senders.append(threading.Thread(target=second.wait_durable, args=(end,)))
    senders[1].start()
    assert order == []
    may_end.set()
    for sender in senders:
        sender.join(30)
    assert order == ["alone", "flush"]  # one flush was enough for both
    assert first.view.words[FLUSHING] == 0
    assert sorted(values(first)) == [b"alone", b"other", b"warm"]


def test_a_flush_that_fails_alone_is_final(site: LedgerSite, faulty: FaultyDisk):
    """It is poisoned before another flush begins, so nobody is told that its entries are durable."""
    first, second = site.open(durability="flush"), site.open(durability="flush")
    send(first, b"warm")
    end = second.append_nowait(encode_single(b"waits", 0, PREFIX))[3]
    faulty.fail("fdatasync")
    with pytest.raises(PoisonedSegment):
        send(first, b"lost")
    with pytest.raises(PoisonedSegment):
        second.wait_durable(end)
    assert first.view.words[FLUSHING] == 0
    send(second, b"after")
    assert second.statistics().is_synced


@pytest.mark.parametrize("pid", [NO_PROCESS, 0], ids=["dead", "interrupted"])
def test_what_a_dead_flush_left_is_cleared(site: LedgerSite, pid: int, monkeypatch: pytest.MonkeyPatch):
    """A process that was killed in a flush of its own is not waited for; one that lives, for 2 s at most."""
    monkeypatch.setattr(group_commit, "_LONGEST_ALONE_S", 0.01 if not pid else 60.0)
    ledger = site.open(durability="flush")
    send(ledger, b"warm")
    words = ledger.view.words
    words[FLUSHER], words[FLUSHING] = 1, (pid or os.getpid()) << 32 | 7
    send(ledger, b"next")
    assert words[FLUSHING] == 0 and ledger.statistics().is_synced


def test_a_flush_of_another_container_is_waited_for(site: LedgerSite):
    """Its process has no number here. What it has locked says that it lives, until it has closed that."""
    ledger, waiting = site.open(durability="flush"), site.open(durability="flush")
    send(ledger, b"warm")
    words = ledger.view.words
    words[FLUSHING] = NO_PROCESS << 32 | words[FLUSHER] & 0xFFFFFFFF
    end = waiting.append_nowait(encode_single(b"next", 0, PREFIX))[3]
    for _ in range(2):  # who gives up takes nothing from the next
        with pytest.raises(LockTimeout, match="did not end its flush"):
            timing.within(0.01, waiting.wait_durable, end)
    ledger.close()
    timing.within(1.0, waiting.wait_durable, end)
    assert waiting.view.words[FLUSHING] == 0 and waiting.statistics().is_synced


def test_a_lock_at_rest_is_taken_for_the_next_flush(site: LedgerSite):
    """With its descriptor goes what shows that the one that flushes lives, so it takes the lock again."""
    ledger = site.open(durability="flush")
    send(ledger, b"warm")
    holder = ledger.view.words[FLUSHER]
    assert ledger._commit.lock.close_descriptor()
    send(ledger, b"next")
    assert ledger.view.words[FLUSHER] not in (0, holder)
    fd = os.open(sync_lock_path(site.directory), os.O_RDWR)
    try:
        assert is_number_held(fd, ledger.view.words[FLUSHER] & 0xFFFFFFFF)
        assert not is_number_held(fd, holder & 0xFFFFFFFF)
    finally:
        os.close(fd)


def test_threads_share_a_flush_alone(site: LedgerSite):
    """Threads of the process that flushes alone take turns, and find what the one before flushed for them."""
    ledger = site.open(durability="flush")
    send(ledger, b"warm")
    ends = [ledger.append_nowait(encode_single(b"%d" % n, n, PREFIX))[3] for n in range(20)]
    before = ledger.statistics().syncs_here
    threads = [threading.Thread(target=ledger.wait_durable, args=(end,)) for end in ends]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ledger.statistics().syncs_here == before + 1


def test_a_durable_append_writes_its_blocks_alone(site: LedgerSite, faulty: FaultyDisk):
    """Through the map, a folio of up to 1 MiB would be made dirty and flushed. Groups of entries, too."""
    written: list[int] = []
    ledger = site.open(durability="flush")
    send(ledger, b"first")
    faulty.on_call = lambda call, path: written.append(1) if call == "pwrite_all" else None
    send(ledger, b"second")
    assert len(written) == 1
    entries = [encode_single(b"%d" % n, n, PREFIX) for n in range(5)]
    hold, stored = ledger.hold(), []
    try:
        hold.acquire(1.0)
        ledger.append_run(entries, hold, stored)
    finally:
        hold.release()
    assert len(stored) == 5 and len(written) == 2
    ledger.wait_durable(stored[-1][2])
    assert values(ledger) == [b"first", b"second", *(b"%d" % n for n in range(5))]


def test_the_times_of_the_log_are_not_asked_for(site: LedgerSite, monkeypatch: pytest.MonkeyPatch):
    """After a question for the times of a file, Linux notes the time of the next write exactly, and flushes
    the inode with the data. So the descriptor is proved by its position."""
    ledger = site.open(durability="flush")
    send(ledger, b"first")
    send(ledger, b"second")
    segment = ledger.view.segment(1)
    asked: list[int] = []

    def is_of(fd: int, device: int, inode: int) -> bool:
        asked.append(fd)
        return True

    monkeypatch.setattr(mapped_file, "descriptors", SimpleNamespace(is_of=is_of))
    for _ in range(10):
        send(ledger, b"x")
    assert asked == []
    assert segment.file.fd >= 0
