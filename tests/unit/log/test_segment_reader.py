"""Reading frames of one segment."""

from __future__ import annotations

import random

import pytest

from embeddedpulsar._engine.format.entry import EntryView
from embeddedpulsar._engine.log.segment import Segment
from embeddedpulsar._engine.log.segment_reader import WINDOW, SegmentReader
from embeddedpulsar.exceptions import CorruptionError
from tests.ledger_site import LedgerSite, send, send_batch


def test_sizes_in_any_order(site: LedgerSite):
    """Small frames out of a window, middling ones out of the map, large ones by pread: all the same bytes."""
    rng = random.Random(5)
    ledger = site.open()
    sizes = [0, 1, WINDOW - 200, WINDOW, WINDOW + 1, 70_000, 200_000, 3]
    sizes += [rng.choice([10, 3000, 5000, 16_300, 16_400, 66_000]) for _ in range(200)]
    sent = [bytes([n % 251]) * size for n, size in enumerate(sizes)]
    for value in sent:
        last = send(ledger, value)
    segment = Segment.open(site.directory, last.ledger_id)
    end = (ledger.tail & 0xFFFFFFFF) << 3
    for limit in (1, 7, 1000):
        reader = SegmentReader(segment)
        found: list[EntryView] = []
        while reader.pos < end:
            reader.read_into(found, end, limit, limit, 1 << 40)
        assert [entry.value(0) for entry in found] == sent
        assert reader.entry_id == len(sent)


def test_nothing_at_or_above_the_limit_is_looked_at(site: LedgerSite):
    """The limit may be any frame boundary, whatever lies behind it."""
    ledger = site.open()
    sent = [send(ledger, b"%d" % n) for n in range(50)]
    segment = Segment.open(site.directory, sent[0].ledger_id)
    for n in (0, 1, 7, 49):
        found: list[EntryView] = []
        SegmentReader(segment).read_into(found, segment.index.slot(n).offset, 1000, 1000, 1 << 40)
        assert [entry.entry_id for entry in found] == list(range(n))


def test_damage_stops_with_what_came_before(site: LedgerSite):
    """The entries before it are given out; the error names file and offset; the place stays."""
    ledger = site.open()
    sent = [send(ledger, b"%d" % n) for n in range(5)]
    segment = Segment.open(site.directory, sent[0].ledger_id, writable=True)
    at = segment.index.slot(3).offset
    segment.data[at + 50] ^= 1
    reader = SegmentReader(segment)
    found: list[EntryView] = []
    with pytest.raises(CorruptionError, match="body checksum mismatch in entry 3") as caught:
        reader.read_into(found, (ledger.tail & 0xFFFFFFFF) << 3, 1000, 1000, 1 << 40)
    assert (caught.value.path, caught.value.offset) == (segment.path, at)
    assert [entry.entry_id for entry in found] == [0, 1, 2]
    assert (reader.pos, reader.entry_id) == (at, 3)
    segment.data[at + 50] ^= 1
    reader.check((ledger.tail & 0xFFFFFFFF) << 3)  # repaired: it was the reader's copy that was stale
    reader.read_into(found, (ledger.tail & 0xFFFFFFFF) << 3, 1000, 1000, 1 << 40)
    assert len(found) == 5


def test_runs_of_single_messages_between_batches(site: LedgerSite):
    """Small entries of one message are read in runs, from window to window, whatever stands between."""
    rng = random.Random(8)
    ledger = site.open()
    sent: list[list[bytes]] = []
    for number in range(400):
        count = rng.choice([1, 1, 1, 1, 1, 1, 2])
        sent.append([bytes([number % 251]) * rng.choice([5, 700, 4000, 4100]) for _ in range(count)])
        last = send_batch(ledger, sent[-1]) if count > 1 else send(ledger, sent[-1][0])
    segment = Segment.open(site.directory, last.ledger_id)
    end = (ledger.tail & 0xFFFFFFFF) << 3
    for most_entries, most_messages, most_bytes in [(1, 9, 1 << 40), (7, 9, 9000), (1000, 5, 1 << 40)]:
        reader = SegmentReader(segment)
        found: list[EntryView] = []
        while reader.pos < end:
            part: list[EntryView] = []
            reader.read_into(part, end, most_entries, most_messages, most_bytes)
            assert 0 < len(part) <= most_entries
            assert sum(one.count for one in part[:-1]) < most_messages
            assert sum(len(one.value(0)) for one in part[:-1]) < most_bytes
            found += part
        assert [entry.values() for entry in found] == sent


def test_a_run_over_damage(site: LedgerSite):
    """It ends where an entry does not verify, wherever in the window that is."""
    ledger = site.open()
    sent = [send(ledger, b"%d" % n * 100) for n in range(60)]
    segment = Segment.open(site.directory, sent[0].ledger_id, writable=True)
    for damaged in (0, 1, 30, 59):
        at = segment.index.slot(damaged).offset
        for byte in (4, 24, 60):
            segment.data[at + byte] ^= 1
            reader = SegmentReader(segment)
            found: list[EntryView] = []
            with pytest.raises(CorruptionError) as caught:
                reader.read_into(found, (ledger.tail & 0xFFFFFFFF) << 3, 1000, 1000, 1 << 40)
            assert (caught.value.offset, reader.pos, reader.entry_id) == (at, at, damaged)
            assert [entry.entry_id for entry in found] == list(range(damaged))
            segment.data[at + byte] ^= 1
