"""Two processes append to one topic."""

from __future__ import annotations

from pathlib import Path

import pytest

from embeddedpulsar._engine.format.entry import encode_single
from embeddedpulsar._engine.log.log_check import check_topic
from embeddedpulsar._engine.platform import disk
from embeddedpulsar.exceptions import PoisonedSegment
from tests.ledger_site import PREFIX, START, LedgerSite, drain, send, values
from tests.multiprocess.children import Child, say
from tests.support.disks.faulty_disk import FaultyDisk

OPTIONS = {"segment_size": 256 << 10, "max_entries": 70}


def append_on_demand(root: str, name: str) -> None:
    """For every line on standard input append that many entries and say the last position."""
    with LedgerSite(root) as site:
        ledger = site.open(**OPTIONS)
        say("ready")
        sent = 0
        while (count := int(input())) >= 0:
            for _ in range(count):
                position = send(ledger, f"{name} {sent}".encode())
                sent += 1
            say(position)


def append_at_level_flush(root: str, name: str, count: str) -> None:
    """Append at level "flush"; say how many flushes it took."""
    with LedgerSite(root) as site:
        ledger = site.open(durability="flush")
        say("ready")
        input()
        for n in range(int(count)):
            send(ledger, f"{name} {n}".encode())
        say(ledger.statistics().syncs_here)


def fail_to_flush(root: str) -> None:
    """Append, and let the flush fail."""
    with LedgerSite(root) as site, disk.use(FaultyDisk()) as faulty:
        assert isinstance(faulty, FaultyDisk)
        ledger = site.open()
        faulty.fail("fdatasync")
        with pytest.raises(PoisonedSegment):
            send(ledger, b"unknown", "flush")
        say("poisoned")


@pytest.mark.parametrize("turn", [1, 2, 33])
def test_taking_turns(tmp_path: Path, turn: int):
    """Each finds the other's entries before its own, over rolls; ids are given out once."""
    with LedgerSite(tmp_path) as site:
        ledger = site.open(**OPTIONS)
        with Child(append_on_demand, tmp_path, "a") as a, Child(append_on_demand, tmp_path, "b") as b:
            assert a.read() == b.read() == "ready"
            expected = []
            for n in range(20):
                for child, name in ((a, "a"), (b, "b")):
                    child.tell(str(turn))
                    last = child.read()
                    assert last == str(ledger.last_position())
                    expected += [f"{name} {n * turn + k}".encode() for k in range(turn)]
            a.tell("-1")
            b.tell("-1")
            assert a.join() == b.join() == 0
        assert values(ledger) == expected
        assert check_topic(site.directory).is_clean


def test_at_the_same_time(tmp_path: Path):
    """Both at full speed and this process too: one order for all, each writer's own order kept in it."""
    with LedgerSite(tmp_path) as site:
        ledger = site.open(**OPTIONS)
        with Child(append_on_demand, tmp_path, "a") as a, Child(append_on_demand, tmp_path, "b") as b:
            assert a.read() == b.read() == "ready"
            a.tell("3000")
            b.tell("3000")
            for n in range(3000):
                send(ledger, b"c %d" % n)
            a.read()
            b.read()
            a.tell("-1")
            b.tell("-1")
            assert a.join() == b.join() == 0
        entries = drain(ledger.cursor(START, inclusive=True))
        found: dict[bytes, list[int]] = {b"a": [], b"b": [], b"c": []}
        for entry in entries:
            who, number = entry.value(0).split()
            found[who].append(int(number))
        assert all(numbers == list(range(3000)) for numbers in found.values())
        positions = [(entry.ledger_id, entry.entry_id) for entry in entries]
        assert positions == sorted(set(positions))
        times = [entry.publish_time for entry in entries]
        assert times == sorted(times)
        assert ledger.statistics().recoveries == 0 and ledger.statistics().damage_here == 0
        assert check_topic(site.directory).is_clean


def test_flushes_are_shared(tmp_path: Path):
    """Two processes at level "flush": everything ends up durable, with no more flushes than appends."""
    with LedgerSite(tmp_path) as site:
        ledger = site.open()
        arguments = (tmp_path, "x", 200)
        with Child(append_at_level_flush, *arguments) as a, Child(append_at_level_flush, *arguments) as b:
            assert a.read() == b.read() == "ready"
            a.tell("go")
            b.tell("go")
            flushes = int(a.read()) + int(b.read())
            assert a.join() == b.join() == 0
        assert flushes <= 400 and ledger.statistics().is_synced
        assert len(values(ledger)) == 400


def test_a_flush_that_failed_elsewhere(tmp_path: Path):
    """A process learns from the shared words that its entry was in a flush that failed; no second try."""
    with LedgerSite(tmp_path) as site:
        ledger = site.open()
        end = ledger.append_nowait(encode_single(b"waiting", 0, PREFIX))[3]
        with Child(fail_to_flush, tmp_path) as child:
            assert child.read() == "poisoned" and child.join() == 0
        with pytest.raises(PoisonedSegment):
            ledger.wait_durable(end)
        assert send(ledger, b"after", "flush").ledger_id == (end >> 32) + 1
        assert values(ledger) == [b"waiting", b"unknown", b"after"]
