"""Flushing: who waits, who flushes for whom, and what a failed flush means."""

from __future__ import annotations

import os
import random
import shutil
import threading
from pathlib import Path

import pytest

from embeddedpulsar._engine.filenames import sync_lock_path
from embeddedpulsar._engine.format.entry import encode_single
from embeddedpulsar._engine.log import group_commit
from embeddedpulsar._engine.platform import disk, failpoints
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar.exceptions import PoisonedSegment, StoreGoneError
from embeddedpulsar.testing.manual_clock import ManualClock, ManualScheduler
from tests.ledger_site import PREFIX, LedgerSite, send, values
from tests.support.disks.fake_disk import FakeDisk
from tests.support.disks.faulty_disk import FaultyDisk
from tests.support.ledger_files import LedgerIds, open_ledger, pretend_reboot


def flushes(faulty: FaultyDisk) -> list[str]:
    """The ends of the names of the files and directories flushed so far."""
    return [
        path.rsplit("/", 1)[-1].lstrip("0")
        for call, path in faulty.log
        if call in ("fdatasync", "fsync", "fsync_dir")
    ]


def test_level_process_flushes_nothing(site: LedgerSite, faulty: FaultyDisk):
    """Creating a topic and appending to it waits for no disk."""
    ledger = site.open()
    send(ledger, b"x")
    assert flushes(faulty) == [] and not ledger.statistics().is_synced


def test_a_full_segment_is_followed_without_a_flush(site: LedgerSite, faulty: FaultyDisk):
    """At level "process" rolls wait for no disk, and the first flush covers all they made."""
    ledger = site.open(max_entries=2)
    for n in range(5):
        send(ledger, b"%d" % n)
    assert flushes(faulty) == []
    send(ledger, b"5", "flush")
    found = flushes(faulty)
    assert [name for name in found if name.endswith(".log")] == ["1.log", "2.log", "3.log"]
    assert found[-2:] == ["topic", site.root.name]


def test_what_a_roll_left_to_the_kernel_is_durable_with_the_next_flush(tmp_path: Path):
    """Segments without a flush of their own, then one entry of a producer at level "flush": after any power
    loss all of it is there, and the topic goes on."""
    root, clock, ids = tmp_path / "disk", ManualClock(), LedgerIds()
    directory = root / "topic"
    directory.mkdir(parents=True)
    timers = ManualScheduler(clock)
    with disk.use(FakeDisk(root)) as fake:
        assert isinstance(fake, FakeDisk)
        careless = open_ledger(directory, ids, clock, timers)
        careful = open_ledger(directory, ids, clock, timers, durability="flush")
        payloads = [b"%d" % n for n in range(100)]  # 40 to a segment
        for n, payload in enumerate(payloads):
            careless.append(encode_single(payload, n, PREFIX))
        assert careless.statistics().syncs_here == 0 and careless.tail >> 32 == 3
        careful.append(encode_single(b"flushed", 100, PREFIX))
        state = fake.capture()
        careless.close()
        careful.close()
    for seed in range(30):
        image = tmp_path / f"image-{seed}"
        state.write_image(random.Random(seed), str(image))
        if seed % 2:
            pretend_reboot(str(image / "topic"))
        ledger = open_ledger(image / "topic", ids, clock, timers)
        assert values(ledger) == [*payloads, b"flushed"]
        send(ledger, b"after")
        ledger.close()


def test_a_segment_that_is_demanded_is_flushed(site: LedgerSite, faulty: FaultyDisk):
    """After a failed flush the new header alone says for certain where the old ledger ends."""
    ledger = site.open()
    faulty.fail("fdatasync")
    with pytest.raises(PoisonedSegment):
        send(ledger, b"unknown", "flush")
    before = len(flushes(faulty))
    send(ledger, b"after")
    assert flushes(faulty)[before:] == ["2.idx", "2.log", "topic"]


def test_level_flush_makes_names_durable_once(site: LedgerSite, faulty: FaultyDisk):
    """The first flush covers the file's name and the topic's; later ones only the bytes."""
    ledger = site.open()
    send(ledger, b"x", "flush")
    assert flushes(faulty) == ["1.log", "topic", site.root.name]
    send(ledger, b"y", "flush")
    assert flushes(faulty)[3:] == ["1.log"]
    assert ledger.statistics().is_synced and ledger.statistics().syncs_here == 2


def test_every_segment_between_is_flushed(site: LedgerSite, faulty: FaultyDisk):
    """A roll between two flushes leaves nothing behind: the old segment is flushed with the new one."""
    ledger = site.open(max_entries=2)
    send(ledger, b"0", "flush")
    for n in range(4):
        send(ledger, b"%d" % n)
    before = len(faulty.log)
    send(ledger, b"last", "flush")
    flushed = [
        path.rsplit("/", 1)[-1].lstrip("0") for call, path in faulty.log[before:] if call == "fdatasync"
    ]
    assert flushed == ["1.log", "2.log", "3.log"]
    before = len(faulty.log)
    send(ledger, b"more", "flush")
    assert [path[-5:] for call, path in faulty.log[before:] if call == "fdatasync"] == ["4.log"]


def test_one_flush_serves_everybody(site: LedgerSite, faulty: FaultyDisk):
    """Whoever waits while a flush is going on is served by the next one, all together."""
    ledger = site.open()
    send(ledger, b"warm", "flush")
    ends = [ledger.append_nowait(encode_single(b"%d" % n, n, PREFIX))[3] for n in range(20)]
    before = ledger.statistics().syncs_here
    threads = [threading.Thread(target=ledger.wait_durable, args=(end,)) for end in ends]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ledger.statistics().syncs_here == before + 1


@pytest.mark.parametrize("call", ["fdatasync", "fsync_dir"])
def test_a_failed_flush_is_final(site: LedgerSite, faulty: FaultyDisk, call: str):
    """The waiter is told, the flush is not tried again, and appending goes on in a new segment."""
    ledger = site.open()
    other = site.open()
    if call == "fdatasync":
        send(ledger, b"durable", "flush")
    waiting = other.append_nowait(encode_single(b"other's", 0, PREFIX))
    faulty.fail(call, path="topic")
    with pytest.raises(PoisonedSegment, match="a flush failed"):
        send(ledger, b"unknown", "flush")
    before = len(faulty.log)
    with pytest.raises(PoisonedSegment):  # no second flush may say that all is well
        other.wait_durable(waiting[3])
    assert len(faulty.log) == before
    position = send(other, b"after", "flush")
    assert position.ledger_id > waiting[0]
    flushed = {path.rsplit("/", 1)[-1] for name, path in faulty.log[before:] if name == "fdatasync"}
    assert not any(f"{waiting[0]}.log" in name for name in flushed)
    with pytest.raises(PoisonedSegment):  # later flushes do not change what is unknown
        ledger.wait_durable(waiting[3])
    assert values(ledger)[-3:] == [b"other's", b"unknown", b"after"]
    ledger.sync()


def test_a_poisoned_topic_that_is_closed(site: LedgerSite, faulty: FaultyDisk):
    """Closing does not flush the poisoned range again, nor claim that it is durable."""
    ledger = site.open(durability="interval")
    send(ledger, b"x")
    faulty.fail("fdatasync")
    with pytest.raises(PoisonedSegment):
        ledger.sync()
    before = len(faulty.log)
    ledger.close()
    assert not [call for call, _ in faulty.log[before:] if call == "fdatasync"]


def test_level_interval_flushes_by_timer(tmp_path: Path, faulty: FaultyDisk):
    """One flush per interval and topic with news, none without; a last one on close."""
    clock = ManualClock()
    with LedgerSite(tmp_path, clock=clock) as site:
        scheduler = ManualScheduler(clock)
        ledger = site.open(durability="interval", interval_ms=500, scheduler=scheduler)
        send(ledger, b"0")
        created = len(flushes(faulty))  # a new segment is flushed before it is used, at this level
        for n in range(1, 10):
            send(ledger, b"%d" % n)
        assert len(flushes(faulty)) == created and scheduler.pending == 1
        clock.advance(0.5)
        scheduler.run_due()
        assert ledger.statistics().is_synced and ledger.statistics().syncs_here == 1
        clock.advance(5)
        scheduler.run_due()
        assert ledger.statistics().syncs_here == 1
        send(ledger, b"last")
        ledger.close()
        assert flushes(faulty)[-1] == "1.log" and scheduler.pending == 0


def test_a_dead_process_is_covered_by_the_next(tmp_path: Path):
    """Entries of level "interval" whose process is gone are flushed by whoever looks after the interval."""
    clock = ManualClock()
    with LedgerSite(tmp_path, clock=clock) as site:
        ledger = site.open(durability="interval", scheduler=ManualScheduler(clock))
        send(ledger, b"x")
        other = site.open(scheduler=ManualScheduler(clock))
        assert other.sync_if_due() is False
        clock.advance(2)
        assert other.sync_if_due() is True
        assert other.statistics().is_synced and other.sync_if_due() is False


def test_a_waiting_process_takes_over(tmp_path: Path):
    """Whoever waits for entries notices an overdue flush and does it, by its timer; so does an opener."""
    clock = ManualClock()
    with LedgerSite(tmp_path, clock=clock) as site:
        ledger = site.open(durability="interval", scheduler=ManualScheduler(clock))
        send(ledger, b"x")
        timers = ManualScheduler(clock)
        other = site.open(scheduler=timers)
        clock.advance(1.5)
        assert other.wait(other.tail, 0.15) is False and timers.pending == 0
        clock.advance(1)
        assert other.wait(other.tail, 0.15) is False and timers.pending == 1
        opener = ManualScheduler(clock)
        site.open(scheduler=opener)
        assert opener.pending == 1
        timers.run_due()
        assert other.statistics().is_synced


@pytest.mark.parametrize("point", ["sync:before", "sync:after"])
def test_an_interrupted_flush_claims_nothing(site: LedgerSite, point: str):
    """An interrupt in the middle leaves the lock free and the synced word true."""
    ledger = site.open()
    failpoints.set(point, "raise:KeyboardInterrupt")
    try:
        with pytest.raises(KeyboardInterrupt):
            send(ledger, b"x", "flush")
    finally:
        failpoints.clear()
    assert ledger.statistics().is_synced == (point == "sync:after")
    send(ledger, b"y", "flush")
    assert ledger.statistics().is_synced


def test_the_lock_is_made_by_the_first_flush(site: LedgerSite):
    """Most topics are never flushed. What is put in the place of a removed topic gets no lock file."""
    ledger = site.open(durability="process")
    send(ledger, b"x")
    path = sync_lock_path(site.directory)
    assert not os.path.exists(path)
    send(ledger, b"y", "flush")
    assert os.path.exists(path)
    other = site.open()
    shutil.rmtree(site.directory)
    os.mkdir(site.directory)
    with pytest.raises(StoreGoneError):
        other._commit.wait_durable(1 << 62)
    assert not os.listdir(site.directory)


def test_two_threads_make_the_lock_at_once(site: LedgerSite, monkeypatch: pytest.MonkeyPatch):
    """Wherever another thread comes between, both have the same one, and the other is closed."""
    commit = site.open(durability="flush")._commit
    made: list[FileLock] = []

    def make(path: str) -> FileLock:
        lock = FileLock(path)
        made.append(lock)
        if len(made) == 1:
            assert commit.lock is made[1]  # another thread, which is faster
        return lock

    monkeypatch.setattr(group_commit, "FileLock", make)
    assert commit.lock is made[1] and commit.lock is made[1]
    with pytest.raises(ValueError, match="is closed"):
        made[0].acquire()
