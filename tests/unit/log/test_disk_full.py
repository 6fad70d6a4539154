"""Disks that fill up and calls that fail: nothing is published, and the topic goes on afterwards."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from embeddedpulsar._engine.log.log_check import check_topic
from embeddedpulsar._engine.platform import disk
from embeddedpulsar.exceptions import PulsarException, StorageFullError
from tests.ledger_site import LedgerSite, send, values
from tests.support.disks.faulty_disk import FaultyDisk


@pytest.mark.parametrize("size", [100, 30_000, 100_000])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_no_room_for_an_entry(site: LedgerSite, size: int, code: int):
    """The append that needs more disk fails; what fits still goes in, and all does when space returns."""
    with disk.use(FaultyDisk()) as faulty:
        assert isinstance(faulty, FaultyDisk)
        ledger, other = site.open(), site.open()
        sent = []
        faulty.fail("fallocate", nth=3, errno=code, times=10**9)
        caught: StorageFullError | None = None
        while caught is None:
            try:
                send(ledger, b"%d " % len(sent) + b"x" * size)
                sent.append(len(sent))
            except StorageFullError as e:
                caught = e
        assert caught.errno == code and "nothing was published" in str(caught)
        assert [int(value.split()[0]) for value in values(ledger)] == sent
        with pytest.raises(StorageFullError):
            send(other, b"x" * 5_000_000)
        faulty.heal()
        send(other, b"-1 ")
        send(ledger, b"-2 " + b"x" * size)
        assert [int(value.split()[0]) for value in values(other)] == [*sent, -1, -2]
        assert ledger.statistics().recoveries == 0
    assert check_topic(site.directory).is_clean


def test_the_last_space_is_used(site: LedgerSite):
    """When the generous step does not fit, the smallest one that holds the entry is tried."""

    class NearlyFull(disk.Disk):
        def fallocate(self, fd: int, offset: int, length: int, *, in_use: bool = False) -> None:
            if length > 64 << 10:
                raise StorageFullError("only 64 KiB at a time here")
            super().fallocate(fd, offset, length, in_use=in_use)

    with disk.use(NearlyFull()):
        ledger = site.open()
        for n in range(30):
            send(ledger, b"x" * 20_000 + b"%d" % n)
        assert len(values(ledger)) == 30


def test_a_roll_without_room_leaves_nothing(site: LedgerSite):
    """The old ledger stays the tail, no file is left over, and the roll is made up for later."""
    with disk.use(FaultyDisk()) as faulty:
        assert isinstance(faulty, FaultyDisk)
        ledger = site.open(max_entries=2)
        first = [send(ledger, b"0"), send(ledger, b"1")]
        listing = set(os.listdir(site.directory))
        for call, path in (("create_exclusive", ".log"), ("create_exclusive", ".idx"), ("fallocate", "")):
            faulty.fail(call, path=path, errno=errno.ENOSPC, times=10)
            with pytest.raises(StorageFullError):
                send(ledger, b"2")
            faulty.heal()
            assert set(os.listdir(site.directory)) == listing
        assert send(ledger, b"2").ledger_id > first[0].ledger_id
        assert values(ledger) == [b"0", b"1", b"2"]


def script(site: LedgerSite, acknowledged: list[bytes]) -> None:
    """Appends of all sizes and levels, rolls, a trim; errors do not stop it."""
    ledger = site.open(segment_size=256 << 10, max_entries=6, durability="flush")
    for n in range(24):
        value = b"%d " % n + b"x" * (70_000 if n % 5 == 4 else 100)
        try:
            send(ledger, value)
        except (PulsarException, OSError):
            continue
        acknowledged.append(value)
    ledger.close()


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_every_call_fails_once(tmp_path: Path, code: int):
    """With the Nth call to the disk failing, for every N: no acknowledged entry is lost, none is invented."""
    with disk.use(FaultyDisk()) as faulty, LedgerSite(tmp_path) as site:
        assert isinstance(faulty, FaultyDisk)
        script(site, [])
        calls = faulty.count
    assert calls > 60
    for nth in range(1, calls + 1, 3):
        root = tmp_path / f"{nth}"
        root.mkdir()
        acknowledged: list[bytes] = []
        with disk.use(FaultyDisk()) as faulty, LedgerSite(root) as site:
            assert isinstance(faulty, FaultyDisk)
            faulty.fail(nth=nth, errno=code)
            try:
                script(site, acknowledged)
            except (PulsarException, OSError):
                assert len(acknowledged) < 24
            faulty.heal()
            ledger = site.open()
            send(ledger, b"end")
            found = values(ledger)
            assert [value for value in found if value in acknowledged] == acknowledged, nth
            assert len(found) == len(set(found)) <= 25 and found[-1] == b"end"
            assert check_topic(site.directory).is_clean
