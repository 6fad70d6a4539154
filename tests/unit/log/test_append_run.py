"""Entries appended together: what they leave in the files, also when their writer dies."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from embeddedpulsar._engine.format.control import split_tail
from embeddedpulsar._engine.format.entry import EncodedEntry, encode_single
from embeddedpulsar._engine.format.frame import SLOT_SIZE, SLOTS_OFFSET
from embeddedpulsar._engine.log.log_check import check_topic
from embeddedpulsar._engine.log.managed_ledger import ManagedLedger
from embeddedpulsar._engine.log.segment import Segment
from embeddedpulsar._engine.log.segment_index import visible_slots
from embeddedpulsar._engine.log.segment_writer import SegmentWriter
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar.exceptions import StorageFullError
from embeddedpulsar.testing.manual_clock import ManualClock
from tests.ledger_site import PREFIX, LedgerSite, send, values


@pytest.fixture
def site(tmp_path: Path) -> Iterator[LedgerSite]:
    """A place for ledgers, with a clock that stands still."""
    with LedgerSite(tmp_path, clock=ManualClock(wall_ms=1_000_000)) as made:
        yield made


def entries_of(payloads: list[bytes]) -> list[EncodedEntry]:
    """One entry per payload."""
    return [encode_single(payload, number, PREFIX) for number, payload in enumerate(payloads)]


def append_run(ledger: ManagedLedger, payloads: list[bytes]) -> list[tuple[int, int, int]]:
    """Append entries in one hold of the lock; return what is known to be stored, also after an error."""
    stored: list[tuple[int, int, int]] = []
    hold = ledger.hold()
    try:
        ledger.lock.acquire(1.0)
        ledger.append_run(entries_of(payloads), hold, stored)
    finally:
        ledger.lock.release()
        hold.ring_all()
    return stored


def check(ledger: ManagedLedger, expected: list[bytes]) -> None:
    """The ledger holds these payloads, and its files are in order."""
    assert values(ledger) == expected
    report = check_topic(ledger.directory)
    assert report.is_clean, report.problems


@pytest.mark.parametrize(
    ("payloads", "options"),
    [
        ([b"%d" % number for number in range(10)], {}),
        ([b"%d" % number for number in range(10)], {"max_entries": 3}),
        ([b"%d" % number for number in range(2100)], {}),
        ([b"x" * 9000] * 40, {"segment_size": 128 << 10}),
        ([b"a", b"b" * 70_000, b"c", b"d" * 200_000, b"e"], {}),
    ],
    ids=["few", "rolls", "blocks of slots", "segments", "large"],
)
def test_a_run_is_stored_like_single_entries(
    site: LedgerSite, payloads: list[bytes], options: dict[str, int]
):
    """Ids, tail words and bytes are those of as many appends, wherever room has to be made."""
    ledger = site.open(**options)
    send(ledger, b"before")
    stored = append_run(ledger, payloads)
    other = site.open(**options)  # follows the log of the first
    stored += append_run(other, [b"after", b"that"])
    check(ledger, [b"before", *payloads, b"after", b"that"])
    assert [word for _, _, word in stored] == sorted({word for _, _, word in stored})
    assert stored[-1][2] == ledger.tail
    for earlier, later in pairwise(stored):
        assert later[:2] in ((earlier[0], earlier[1] + 1), (earlier[0] + 1, 0))


def test_a_run_is_committed_at_once(site: LedgerSite):
    """One store of the tail word, the first of which makes room."""
    ledger = site.open()
    send(ledger, b"before")
    tails: list[int] = []
    try:
        failpoints.set("append:tail_stored", lambda: tails.append(ledger.tail), nth=0)
        stored = append_run(ledger, [b"%d" % number for number in range(150)])
    finally:
        failpoints.clear()
    assert len(tails) <= 3
    assert tails[-1] == stored[-1][2] == ledger.tail


@pytest.mark.parametrize("size", [1, 300, 700])
@pytest.mark.parametrize("point", ["append:owner_set", "append:body_done", "append:index_done"])
def test_nothing_of_a_run_that_died_comes_back(site: LedgerSite, point: str, size: int):
    """Neither its frames nor its slots are there when a longer entry has taken the place of several."""
    ledger = site.open()
    send(ledger, b"before")
    send(ledger, b"and this")
    try:
        failpoints.set(point, "raise")
        with pytest.raises(failpoints.InjectedFailure):
            append_run(ledger, [b"ghost %d" % number for number in range(20)])
    finally:
        failpoints.clear()
    after = b"a" * size
    send(ledger, after)
    check(ledger, [b"before", b"and this", after])
    ledger_id, end = split_tail(ledger.tail)
    segment = Segment.open(site.directory, ledger_id)
    assert visible_slots(segment.index, end) == 3
    assert b"ghost" not in segment.data[:]
    assert not any(segment.index.data[SLOTS_OFFSET + 3 * SLOT_SIZE : SLOTS_OFFSET + 40 * SLOT_SIZE])
    segment.close()


def test_nothing_of_a_run_that_died_comes_back_in_an_empty_ledger(site: LedgerSite):
    """Its slots are the first of the ledger."""
    ledger = site.open()
    send(ledger, b"before")
    ledger.roll()
    other = site.open()
    assert other.tail  # found by the look of the run below
    try:
        other.lock.acquire(1.0)
        other._writer._refresh()
    finally:
        other.lock.release()
    try:
        failpoints.set("append:index_done", "raise")
        with pytest.raises(failpoints.InjectedFailure):
            append_run(other, [b"ghost %d" % number for number in range(20)])
    finally:
        failpoints.clear()
    send(ledger, b"a" * 700)
    check(ledger, [b"before", b"a" * 700])
    ledger_id, _ = split_tail(ledger.tail)
    segment = Segment.open(site.directory, ledger_id)
    assert not any(segment.index.data[SLOTS_OFFSET + SLOT_SIZE : SLOTS_OFFSET + 40 * SLOT_SIZE])
    segment.close()


def test_a_run_that_fails_says_how_far_it_came(site: LedgerSite, monkeypatch: pytest.MonkeyPatch):
    """The entries before the one that found no room are stored, and the caller knows their places."""
    ledger = site.open()
    send(ledger, b"before")
    stored: list[tuple[int, int, int]] = []

    def full(*arguments: object) -> None:
        raise StorageFullError(path=site.directory, reason="no room")

    monkeypatch.setattr(SegmentWriter, "_extend", full)
    hold = ledger.hold()
    try:
        ledger.lock.acquire(1.0)
        with pytest.raises(StorageFullError):
            ledger.append_run(entries_of([b"a", b"b", b"c" * (8 << 20), b"d"]), hold, stored)
    finally:
        ledger.lock.release()
    monkeypatch.undo()
    assert [entry for _, entry, _ in stored] == [1, 2]
    check(ledger, [b"before", b"a", b"b"])
