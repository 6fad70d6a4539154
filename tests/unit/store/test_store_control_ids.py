"""Ledger ids: rising, unique, durable before use."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from pathlib import Path

import pytest

from embeddedpulsar._engine.format.control import StoreWord
from embeddedpulsar._engine.format.entry import ProducerPrefix, encode_single
from embeddedpulsar._engine.platform import disk, failpoints
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar._engine.store.store import Store
from embeddedpulsar._engine.store.store_session import (
    LARGEST_BLOCK,
    LAST_ID,
    SMALLEST_BLOCK,
    LedgerIds,
    StoreControl,
)
from embeddedpulsar.exceptions import CorruptionError, StorageFullError
from tests.support.disks.fake_disk import FakeDisk
from tests.support.disks.faulty_disk import FaultyDisk

BOOT = bytes(range(16))


class Process:
    """One process's view of a store's ids."""

    def __init__(self, root: Path) -> None:
        self.control = StoreControl(str(root / "store.ctl"))
        self.lock = FileLock(root / "store.lock")
        self.ids = LedgerIds(self.control, self.lock)

    def close(self) -> None:
        self.control.close()
        self.lock.close()


@pytest.fixture
def process(tmp_path: Path):
    """Makes processes; closes them."""
    made: list[Process] = []

    def make() -> Process:
        made.append(Process(tmp_path))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_ids_start_at_one_and_rise(process):
    """0 means "no ledger" everywhere; a process hands out its block in order."""
    ids = process().ids
    assert [ids.allocate(0) for _ in range(5)] == [1, 2, 3, 4, 5]


def test_two_processes_never_share_an_id_and_stay_above_each_other(process):
    """Alternating on one topic, each takes an id above the other's last."""
    one, other = process().ids, process().ids
    last, seen = 0, set()
    for turn in range(60):
        last = (one, other)[turn % 2].allocate(last)
        assert last not in seen
        seen.add(last)
    assert sorted(seen) == list(dict.fromkeys(sorted(seen)))


def test_a_process_that_opens_many_topics_flushes_seldom(process, tmp_path: Path):
    """Blocks double up to 1024: a thousand first ledgers cost eight flushes."""
    counting = FaultyDisk()
    flushes = []
    counting.fdatasync = lambda fd, path: flushes.append(path)  # type: ignore[method-assign]
    with disk.use(counting):
        ids = process().ids
        for _ in range(1000):
            ids.allocate(0)
        assert len(flushes) == 7
        for _ in range(5000):
            ids.allocate(0)
    assert len(flushes) <= 13 and ids._block == LARGEST_BLOCK


def test_the_word_is_durable_before_an_id_is_used(tmp_path: Path):
    """After a power loss at any time, the next id is above every id that was handed out."""
    fake = FakeDisk(tmp_path)
    with disk.use(fake):
        one = Process(tmp_path)
        for expected in range(1, 40):
            assert one.ids.allocate(0) == expected
            durable = int.from_bytes(
                read_durable(fake, tmp_path)[StoreWord.NEXT_LEDGER_ID * 8 :][:8], "little"
            )
            assert durable > expected
        one.close()


def read_durable(fake: FakeDisk, root: Path) -> bytes:
    """The words of the ctl as a power loss would leave them, in the worst case."""
    node = fake._lookup(str(root / "store.ctl"))
    durable = node.durable  # type: ignore[union-attr]
    return b"".join(durable.page(number) for number in range(2))  # type: ignore[union-attr]


def test_a_flush_that_fails_hands_out_nothing(process):
    """The error comes out; the next attempt takes another block."""
    one = process()
    faulty = FaultyDisk()
    faulty.fail(call="fdatasync", nth=1, errno=errno.EIO)
    with disk.use(faulty), pytest.raises(OSError):
        one.ids.allocate(0)
    assert one.ids.allocate(0) == 1 + SMALLEST_BLOCK


@pytest.mark.parametrize("point", ["ledger_ids:raised", "ledger_ids:synced"])
def test_dying_between_the_steps_wastes_ids_but_repeats_none(process, point: str):
    """An interrupt after the word was raised: its block is lost, the next one is above it."""
    one = process()
    failpoints.set(point, "raise:KeyboardInterrupt")
    try:
        with pytest.raises(KeyboardInterrupt):
            one.ids.allocate(0)
    finally:
        failpoints.clear()
    assert process().ids.allocate(0) == 1 + SMALLEST_BLOCK
    assert one.ids.allocate(0) == 1 + 2 * SMALLEST_BLOCK


def test_a_forked_child_takes_a_block_of_its_own(process):
    """Parent and child go on from the same object, and never meet."""
    ids = process().ids
    assert ids.allocate(0) == 1
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, repr([ids.allocate(0) for _ in range(3)]).encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    childs = os.read(read, 100)
    os.close(read)
    os.close(write)
    assert childs == repr([1 + SMALLEST_BLOCK + n for n in range(3)]).encode()
    assert [ids.allocate(0) for _ in range(3)] == [2, 3, 4]


def test_the_end_of_the_ids_is_an_error_with_a_remedy(process):
    """After four billion ledgers nothing wraps around."""
    one = process()
    one.control.words[StoreWord.NEXT_LEDGER_ID] = LAST_ID - 2
    with pytest.raises(StorageFullError, match="copy the messages"):
        one.ids.allocate(0)


def test_a_new_boot_keeps_ledger_ids_and_jumps_over_client_numbers(process):
    """The ledger word was flushed, the client number was not."""
    control = process().control
    assert not control.is_current(BOOT)
    control.adopt(BOOT, 1)
    assert control.is_current(BOOT) and not control.is_current(bytes(16))
    assert [control.next_client_number() for _ in range(3)] == [0, 1, 2]
    control.words[StoreWord.NEXT_LEDGER_ID] = 500
    control.adopt(bytes(16), 7)
    assert control.words[StoreWord.NEXT_LEDGER_ID] == 500
    assert control.next_client_number() == 10_000


def test_an_impossible_word_is_damage(process):
    """Within a boot an error that names the file and the way out; a new boot does not believe it."""
    one = process()
    one.control.words[StoreWord.NEXT_LEDGER_ID] = 7 << 40
    with pytest.raises(CorruptionError, match=r"store\.ctl.*next ledger id is damaged.*remove this file"):
        one.ids.allocate(0)
    one.control.adopt(bytes(16), 900)
    assert one.ids.allocate(0) == 900


def test_a_store_with_an_impossible_word_is_derived_again(tmp_path, caplog):
    """After a reboot (here: in a copy) the files say which ids were used; the log tells."""
    root = tmp_path / "store"
    store = Store.open(root)
    first = store.use_topic("t").topic.ledger.append(encode_single(b"x", 0, ProducerPrefix("p")))[0]
    store.release()
    copy = tmp_path / "copy"
    shutil.copytree(root, copy)
    with open(copy / "store.ctl", "r+b") as file:
        file.seek(8 * StoreWord.NEXT_LEDGER_ID + 5)
        file.write(b"\xee\xee")
    with caplog.at_level(logging.WARNING, "embeddedpulsar"):
        store = Store.open(copy)
    assert "next ledger id was damaged" in caplog.text
    assert store.use_topic("t").topic.ledger.append(encode_single(b"y", 0, ProducerPrefix("p")))[0] > first
    store.release()
