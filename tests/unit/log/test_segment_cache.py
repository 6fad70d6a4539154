"""The budget of mapped segments."""

from __future__ import annotations

import gc
import os

import pytest

from embeddedpulsar._engine.log import segments
from embeddedpulsar._engine.log.segment import Segment
from embeddedpulsar._engine.log.segments import SegmentCache
from embeddedpulsar._engine.log.topic_control import DirectoryIdentity
from tests.ledger_site import START, LedgerSite, drain, send, values
from tests.support.process_state import open_descriptors


def test_the_least_recently_used_goes_first(site: LedgerSite):
    """Over budget the oldest use is forgotten; what somebody still holds stays usable."""
    ledger = site.open(max_entries=1)
    sent = [send(ledger, b"%d" % n) for n in range(4)]
    cache = SegmentCache(2)
    ids = [position.ledger_id for position in sent]
    first = cache.get(DirectoryIdentity(site.directory), ids[0])
    cache.get(DirectoryIdentity(site.directory), ids[1])
    assert cache.get(DirectoryIdentity(site.directory), ids[0]) is first
    cache.get(DirectoryIdentity(site.directory), ids[2])
    assert len(cache) == 2
    assert cache.get(DirectoryIdentity(site.directory), ids[0]) is first
    cache.get(DirectoryIdentity(site.directory), ids[3])
    cache.get(DirectoryIdentity(site.directory), ids[2])
    assert first.data[:4] == b"EPSG"


def test_a_writable_mapping_replaces_a_read_only_one(site: LedgerSite):
    """A reader may have mapped the tail's segment before the writer needs it."""
    ledger = site.open()
    position = send(ledger, b"x")
    cache = SegmentCache(2)
    reading = cache.get(DirectoryIdentity(site.directory), position.ledger_id)
    writing = cache.get(DirectoryIdentity(site.directory), position.ledger_id, writable=True)
    assert not reading.writable and writing.writable
    assert cache.get(DirectoryIdentity(site.directory), position.ledger_id) is writing


def test_reading_many_segments_keeps_few_open(site: LedgerSite, monkeypatch: pytest.MonkeyPatch):
    """A topic of a hundred segments is read within the budget of descriptors."""
    ledger = site.open(max_entries=1, max_open_segments=1)
    monkeypatch.setattr(segments.SEGMENTS, "_capacity", 4)
    for n in range(100):
        send(ledger, b"%d" % n)
    gc.collect()  # what tests before this one left is closed now
    before = open_descriptors()
    cursor = ledger.cursor(START, inclusive=True)
    most = 0
    for n in range(100):
        assert cursor.read(1, 1, 1)[0].value(0) == b"%d" % n
        most = max(most, open_descriptors())
    assert most - before < 20


def test_idle_writers_let_go(site: LedgerSite, monkeypatch: pytest.MonkeyPatch):
    """With more topics than budget, a topic nobody writes to keeps no segment; writing opens it again."""
    ledgers = []
    for n in range(6):
        site.directory = str(site.root / f"topic-{n}")
        os.makedirs(site.directory)
        ledgers.append(site.open(max_open_segments=1))
    monkeypatch.setattr(segments.SEGMENTS, "_capacity", 2)
    for ledger in ledgers:
        send(ledger, b"first")
    assert sum(ledger._writer._segment is not None for ledger in ledgers) <= 2
    for ledger in ledgers:
        send(ledger, b"second")
        assert values(ledger) == [b"first", b"second"]
        assert ledger.statistics().recoveries == 0


def test_the_budget_follows_the_open_topics(site: LedgerSite, monkeypatch: pytest.MonkeyPatch):
    """Every open topic brings its share, up to what the maps or the descriptors of the process allow."""
    cache = SegmentCache()
    with monkeypatch.context() as patched:
        patched.setattr(segments, "_descriptor_budget", lambda: 100)
        patched.setattr(segments, "_map_budget", lambda: 500)
        cache.allow(32)
        assert cache._capacity == 32
        cache.allow(32)
        assert cache._capacity == 64
        cache.allow(500)
        assert cache._capacity == 500
        patched.setattr(segments, "_map_budget", lambda: 0)
        cache.allow(0)
        assert cache._capacity == 100
        cache.allow(-500)
        cache.allow(-64)
        assert cache._capacity == 32
    gc.collect()  # ledgers that tests before this one left give their shares back now
    before = segments.SEGMENTS._capacity
    site.open(max_open_segments=200).close()
    assert segments.SEGMENTS._capacity == before


def test_forgetting(site: LedgerSite):
    """A closed or trimmed topic leaves nothing behind; segments close with their last reference."""
    ledger = site.open(max_entries=1)
    sent = [send(ledger, b"%d" % n) for n in range(3)]
    cache = SegmentCache()
    for position in sent:
        cache.get(DirectoryIdentity(site.directory), position.ledger_id)
    cache.drop_below(DirectoryIdentity(site.directory), sent[1].ledger_id)
    assert len(cache) == 2
    cache.drop(DirectoryIdentity(site.directory), sent[1].ledger_id)
    assert len(cache) == 1
    cache.drop(DirectoryIdentity(site.directory))
    assert len(cache) == 0
    gc.collect()  # what tests before this one left is closed now
    before = open_descriptors()
    segment = Segment.open(site.directory, sent[0].ledger_id, writable=True)
    assert open_descriptors() > before and segment.index.capacity
    del segment
    assert open_descriptors() == before


def test_closing_a_ledger_gives_everything_back(site: LedgerSite):
    """No descriptor and no map is left, cursors notwithstanding."""
    gc.collect()  # what tests before this one left is closed now
    before = open_descriptors()
    ledger = site.open(max_entries=2)
    for n in range(9):
        send(ledger, b"%d" % n, "flush")
    cursor = ledger.cursor(START, inclusive=True)
    drain(cursor)
    ledger.close()
    del cursor
    assert open_descriptors() == before


def test_a_busy_writer_keeps_its_segment_until_it_is_done(site: LedgerSite, monkeypatch: pytest.MonkeyPatch):
    """It stays in the cache, so that it is asked again: nothing is mapped that nobody counts."""
    ledger = site.open(max_open_segments=1)
    position = send(ledger, b"x")
    cache = segments.SEGMENTS
    try:
        ledger.lock.acquire()
        cache.drop_all()
        assert ledger._writer._segment is cache.get(ledger._control.home, position.ledger_id)
    finally:
        ledger.lock.release()
    cache.drop_all()
    assert (
        ledger._writer._segment is None and (ledger._control.home, position.ledger_id) not in cache._segments
    )
    assert values(ledger) == [b"x"]
