"""The log of a topic in one process."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from embeddedpulsar._engine.filenames import log_path
from embeddedpulsar._engine.format.entry import encode_single
from embeddedpulsar._engine.log.log_opening import LedgerOptions
from embeddedpulsar._engine.log.log_view import LogView
from embeddedpulsar._engine.log.managed_ledger import ManagedLedger
from embeddedpulsar._engine.log.segment import Segment
from embeddedpulsar._engine.log.segments import SEGMENTS
from embeddedpulsar._engine.platform.mapped_file import MappedFile
from embeddedpulsar.exceptions import AlreadyClosed, StorageError, TopicTerminated
from embeddedpulsar.message_id import Position
from embeddedpulsar.testing.manual_clock import ManualClock
from tests.ledger_site import EVERYTHING, PREFIX, START, LedgerSite, drain, send, send_batch, values


def test_what_is_appended_is_read_in_order(site: LedgerSite):
    """Entries come back once each, in order, with the positions `append` returned, over many ledgers."""
    ledger = site.open(max_entries=7)
    sent = [(send(ledger, b"%d" % n), b"%d" % n) for n in range(50)]
    entries = drain(ledger.cursor(START, inclusive=True), step=3)
    assert [(Position(e.ledger_id, e.entry_id), e.value(0)) for e in entries] == sent
    assert len({position.ledger_id for position, _ in sent}) == 8


def test_a_batch_is_one_entry_of_many_messages(site: LedgerSite):
    """A batch has one position; its messages count for the backlog."""
    ledger = site.open()
    send(ledger, b"one")
    position = send_batch(ledger, [b"a", b"b", b"c"])
    (entry,) = drain(ledger.cursor(position, inclusive=True))
    assert entry.values() == [b"a", b"b", b"c"] and entry.batched
    assert ledger.messages_after(Position(0, -1)) == 4
    assert ledger.messages_after(position) == 0


@pytest.mark.parametrize("size", [0, 1, 4_000, 16_384, 65_536, 300_000, 3_000_000])
def test_every_size_survives(site: LedgerSite, size: int):
    """Small frames go through the map, large ones by pwrite; what is read is what was sent."""
    ledger = site.open(segment_size=1 << 20)
    payloads = [bytes([n]) * size for n in range(3)]
    for payload in payloads:
        send(ledger, payload)
    assert values(ledger) == payloads


def test_reopening_goes_on_where_it_was(site: LedgerSite):
    """A closed topic opens without a scan and continues the same ledger."""
    ledger = site.open()
    before = [send(ledger, b"%d" % n) for n in range(5)]
    ledger.close()
    ledger = site.open()
    after = send(ledger, b"5")
    assert after == before[-1].next()
    assert values(ledger) == [b"%d" % n for n in range(6)]


def test_positions_of_an_empty_topic(site: LedgerSite):
    """Before the first append there is no ledger; cursors wait for it."""
    ledger = site.open()
    assert ledger.tail == 0 and ledger.last_position() is None
    assert ledger.first_position() == Position(0, 0)
    assert ledger.messages_after(Position(0, -1)) == 0
    assert ledger.find_by_publish_time(1) == Position(0, 0)
    assert ledger.segments() == []
    cursor = ledger.cursor(ledger.first_position(), inclusive=True)
    assert cursor.read(1, 1, 1) == [] and cursor.position == Position(0, 0)
    position = send(ledger, b"x")
    assert [e.value(0) for e in cursor.read(9, 9, 9)] == [b"x"]
    assert ledger.first_position() == ledger.last_position() == position


def test_reading_respects_the_maxima(site: LedgerSite):
    """A read ends at the first maximum it reaches, but gives at least one entry."""
    ledger = site.open()
    for _ in range(4):
        send_batch(ledger, [b"x" * 100] * 10)
    cursor = ledger.cursor(START, inclusive=True)
    assert len(cursor.read(1, 1000, 1 << 20)) == 1
    assert len(cursor.read(1000, 11, 1 << 20)) == 2
    assert len(cursor.read(1000, 1000, 1)) == 1
    assert cursor.read(1000, 1000, 1 << 20) == []


def test_cursors_start_anywhere(site: LedgerSite):
    """Inclusive and exclusive starts, at ledger ends, before the first and behind the last entry."""
    ledger = site.open(max_entries=3)
    sent = [send(ledger, b"%d" % n) for n in range(8)]
    for n, position in enumerate(sent):
        assert values(ledger, position) == [b"%d" % k for k in range(n, 8)]
        exclusive = drain(ledger.cursor(position, inclusive=False))
        assert [entry.value(0) for entry in exclusive] == [b"%d" % k for k in range(n + 1, 8)]
    assert values(ledger, Position(sent[0].ledger_id, 99)) == [b"%d" % k for k in range(3, 8)]
    ahead = ledger.cursor(Position(10**6, 5), inclusive=True)
    assert ahead.read(1, 1, 1) == []
    send(ledger, b"late")
    assert [entry.value(0) for entry in ahead.read(9, 9, 9)] == [b"late"]


def test_seek_moves_a_cursor(site: LedgerSite):
    """A cursor goes back and forth."""
    ledger = site.open(max_entries=4)
    sent = [send(ledger, b"%d" % n) for n in range(10)]
    cursor = ledger.cursor(START, inclusive=True)
    drain(cursor)
    for n in (9, 0, 5, 3, 4):
        cursor.seek(sent[n])
        assert cursor.position == sent[n]
        assert cursor.read(1, 1, 1)[0].value(0) == b"%d" % n


def test_the_index_tells_of_the_next_entries(site: LedgerSite):
    """Counts and flags of entries without reading them, within a ledger and the maxima."""
    ledger = site.open(max_entries=30)
    sent = [send(ledger, b"%d" % n) for n in range(20)]
    sent += [send_batch(ledger, [b"x"] * 10) for _ in range(20)]
    first = ledger.upcoming(sent[0], 100, EVERYTHING)
    assert first is not None and first.counts == [1] * 20 + [10] * 8
    assert first.flags == bytes(20) + b"\x01" * 8
    assert first.messages[-1] == 100 and first.key_hashes == [0] * 28
    batches = ledger.upcoming(sent[20], 25, EVERYTHING)
    assert batches is not None and batches.counts == [10] * 3
    few_bytes = ledger.upcoming(sent[1], 100, 300)
    assert few_bytes is not None and 1 < len(few_bytes.counts) < 5
    assert all(ledger.upcoming(one, 100, EVERYTHING) is None for one in (sent[29], Position(99, 0), START))


def test_single_entries_are_read_by_place(site: LedgerSite):
    """Spans of a ledger come in order, nothing between them, until the bytes are used up."""
    ledger = site.open(max_entries=30)
    sent = [send(ledger, b"%d" % n) for n in range(15)]
    sent += [send_batch(ledger, [b"%d" % n] * 2) for n in range(15, 40)]
    ledger_id = sent[0].ledger_id
    cursor = ledger.cursor(START, inclusive=True)
    for spans in ([(0, 0)], [(3, 5), (9, 9), (14, 16), (29, 29)], [(1, 2)], [(10, 10), (12, 12)]):
        found = cursor.read_spans(ledger_id, spans, EVERYTHING)
        wanted = [n for first, last in spans for n in range(first, last + 1)]
        assert [(one.entry_id, one.value(0)) for one in found] == [(n, b"%d" % n) for n in wanted]
    assert [one.entry_id for one in cursor.read_spans(ledger_id, [(2, 4), (6, 9)], 300)] == [2, 3, 4]
    assert cursor.read_spans(99, [(0, 3)], EVERYTHING) == []
    assert cursor.read_spans(sent[-1].ledger_id, [(5, 20)], EVERYTHING)[-1].value(0) == b"39"


def resident_bytes(name: str) -> int:
    """How much of the mapped files of that name this process has in memory."""
    found, is_wanted = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ")[0]:
            is_wanted = line.endswith(name)
        elif is_wanted and line.startswith("Rss:"):
            found += int(line.split()[1]) << 10
    return found


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps"), reason="asks the kernel of Linux")
def test_what_was_read_does_not_stay_in_memory(site: LedgerSite):
    """Reading a log of any size keeps a few MiB of its pages in the process, over several ledgers."""
    ledger = site.open(segment_size=12 << 20)
    count, value = 900, b"x" * (32 << 10)
    for _ in range(count):
        send(ledger, value)
    ledger.close()  # unmaps what the writer brought into memory
    ledger = site.open(segment_size=12 << 20)
    cursor = ledger.cursor(START, inclusive=True)
    found = most = 0
    while entries := cursor.read(10, 10, EVERYTHING):
        found += len(entries)
        most = max(most, resident_bytes(".log"))
    assert found == count and len(ledger.segments()) == 3
    assert 1 << 20 < most < 6 << 20


def test_what_is_read_again_stays_in_memory(site: LedgerSite, monkeypatch: pytest.MonkeyPatch):
    """The second reading takes no pages out, so the third one brings none back."""
    ledger = site.open(segment_size=12 << 20)
    for _ in range(40):
        send(ledger, b"x" * (512 << 10))
    taken: list[int] = []
    monkeypatch.setattr(MappedFile, "not_needed", lambda self, start, end: taken.append(end))
    passes = []
    for _ in range(3):
        cursor = ledger.cursor(START, inclusive=True)
        while cursor.read(10, 10, EVERYTHING):
            pass
        passes.append(len(taken))
    assert len(ledger.segments()) == 2 and passes[0] >= 4 and passes == [passes[0]] * 3


def test_publish_time_never_goes_back(tmp_path: Path):
    """A wall clock that steps back keeps the last publish time, also over rolls and reopening."""
    clock = ManualClock(wall_ms=50_000)
    with LedgerSite(tmp_path, clock=clock) as site:
        ledger = site.open(max_entries=2)
        send(ledger, b"a")
        clock.set_wall_ms(10_000)
        send(ledger, b"b")
        send(ledger, b"c")
        ledger.close()
        ledger = site.open()
        send(ledger, b"d")
        clock.set_wall_ms(60_000)
        send(ledger, b"e")
        times = [entry.publish_time for entry in drain(ledger.cursor(START, inclusive=True))]
        assert times == [50_000, 50_000, 50_000, 50_000, 60_000]


def test_finding_by_publish_time(tmp_path: Path):
    """The first entry at that time or later, over several ledgers and entries of the same millisecond."""
    clock = ManualClock(wall_ms=1_000)
    with LedgerSite(tmp_path, clock=clock) as site:
        ledger = site.open(max_entries=3)
        sent = []
        for n in range(20):
            clock.set_wall_ms(1_000 + n // 2 * 10)
            sent.append((1_000 + n // 2 * 10, send(ledger, b"%d" % n)))
        for wanted in range(990, 1_110):
            expected = next((position for at, position in sent if at >= wanted), sent[-1][1].next())
            assert ledger.find_by_publish_time(wanted) == expected, wanted


def test_exact_backlog(site: LedgerSite):
    """Messages behind any position, counted from the index alone, equal those that can be read."""
    ledger = site.open(max_entries=3)
    sent = [send_batch(ledger, [b"x"] * (n + 1)) for n in range(10)]
    counts = [n + 1 for n in range(10)]
    for n, position in enumerate(sent):
        assert ledger.messages_after(position) == sum(counts[n + 1 :])
        assert ledger.entries_between(position, sent[-1]) == 9 - n
        for m, other in enumerate(sent):
            assert ledger.messages_between(position, other) == sum(counts[n + 1 : m + 1])
    assert ledger.messages_after(Position(0, -1)) == sum(counts)


def test_trimming(site: LedgerSite):
    """Whole ledgers go, never the tail's; cursors and counts begin at the first retained ledger."""
    ledger = site.open(max_entries=2)
    sent = [send(ledger, b"%d" % n) for n in range(9)]
    behind = ledger.cursor(START, inclusive=True)
    inside = ledger.cursor(sent[1], inclusive=True)
    assert inside.read(1, 1, 1)[0].value(0) == b"1"
    assert ledger.trim_before(sent[4].ledger_id) == 2
    assert ledger.first_position() == sent[4]
    assert [entry.value(0) for entry in drain(behind)] == [b"4", b"5", b"6", b"7", b"8"]
    assert [entry.value(0) for entry in drain(inside)] == [b"4", b"5", b"6", b"7", b"8"]
    assert ledger.messages_after(Position(0, -1)) == 5
    assert ledger.trim_before(10**6) == 2
    assert values(ledger) == [b"8"]
    assert ledger.trim_before(1) == 0
    assert len(ledger.segments()) == 1


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (lambda ledger, sent: ledger.last_position(), lambda sent: sent[-1]),
        (lambda ledger, sent: ledger.messages_after(sent[0]), lambda sent: 0),
        (lambda ledger, sent: ledger.entries_between(sent[0], sent[1]), lambda sent: 0),
        (lambda ledger, sent: ledger.messages_between(sent[0], sent[1]), lambda sent: 0),
        (lambda ledger, sent: ledger.survey().behind(sent[0]).messages, lambda sent: 0),
        (lambda ledger, sent: ledger.survey().appended().entries, lambda sent: 4),
        (lambda ledger, sent: len(ledger.segments()), lambda sent: 1),
        (lambda ledger, sent: drain_values(ledger, sent[0]), lambda sent: [b"3"]),
    ],
    ids=["last", "after", "entries", "between", "behind", "appended", "segments", "read"],
)
def test_the_tail_is_trimmed_while_it_is_looked_at(
    site: LedgerSite,
    monkeypatch: pytest.MonkeyPatch,
    question: Callable[[ManagedLedger, list[Position]], object],
    answer: Callable[[list[Position]], object],
):
    """Others have left and removed the ledger by the time its file is opened: no error, and no going back.

    Counts may be those of the moment before."""
    writer = site.open(max_entries=2)
    sent = [send(writer, b"0"), send(writer, b"1")]
    ledger = site.open(max_entries=2)
    segment, calls = LogView.segment, iter([0])

    def trimmed_first(view: LogView, ledger_id: int) -> Segment:
        if view is ledger.view and next(calls, None) is not None:
            sent.append(send(writer, b"2"))
            writer.roll()
            sent.append(send(writer, b"3"))
            assert writer.trim_before(sent[-1].ledger_id) == 2
            SEGMENTS.drop(view.control.home, ledger_id)
        return segment(view, ledger_id)

    monkeypatch.setattr(LogView, "segment", trimmed_first)
    result = question(ledger, sent)
    assert next(calls, None) is None
    assert result == answer(sent)


def drain_values(ledger: ManagedLedger, after: Position) -> list[bytes]:
    """The payloads behind a position."""
    return [entry.value(0) for entry in drain(ledger.cursor(after, inclusive=False))]


def test_a_slice_of_trimming_is_bounded(site: LedgerSite):
    """By number and by time, but each removes one; the slices together remove all that was given up."""
    ledger = site.open(max_entries=1)
    sent = [send(ledger, b"%d" % n) for n in range(12)]
    assert ledger.trimming.give_up(sent[10].ledger_id, ledger.trimming.rewind_count())
    assert ledger.trimming.remove(3, 60.0) == 3
    assert [ledger.trimming.remove(3, 0.0) for _ in range(2)] == [1, 1]
    assert ledger.trimming.remove(100, 60.0) == 5
    assert ledger.trimming.remove(100, 60.0) == 0
    assert values(ledger) == [b"10", b"11"]


def test_a_slice_that_finds_an_index_alone_is_not_the_last(site: LedgerSite):
    """A process died between the two files of a ledger; the next one removes the index, then the others."""
    ledger = site.open(max_entries=1)
    sent = [send(ledger, b"%d" % n) for n in range(5)]
    assert ledger.trimming.give_up(sent[3].ledger_id, ledger.trimming.rewind_count())
    os.unlink(log_path(str(site.directory), sent[0].ledger_id))
    assert [ledger.trimming.remove(9, 0.0) for _ in range(4)] == [1, 1, 1, 0]


def test_everything_can_be_trimmed_after_a_roll(site: LedgerSite):
    """The last position stays known although its ledger is gone."""
    ledger = site.open()
    last = send(ledger, b"x")
    new = ledger.roll()
    assert new > last.ledger_id
    assert ledger.trim_before(new) == 1
    assert ledger.last_position() == last
    assert ledger.first_position() == Position(new, 0)
    assert ledger.roll() == new  # an empty ledger is kept
    assert send(ledger, b"y") == Position(new, 0)


def test_rolling_by_age_size_and_entries(tmp_path: Path):
    """Each limit starts a new ledger with the entry that would break it."""
    clock = ManualClock(wall_ms=1_000)
    with LedgerSite(tmp_path, clock=clock) as site:
        ledger = site.open(segment_size=64 << 10, max_entries=1000, max_age_ms=5_000)
        first = send(ledger, b"a")
        clock.advance(5)
        second = send(ledger, b"b")
        assert second == Position(second.ledger_id, 0) and second.ledger_id > first.ledger_id
        for _ in range(5):
            position = send(ledger, b"x" * 20_000)
        assert position.ledger_id > second.ledger_id
        assert all(segment.end_offset <= 64 << 10 for segment in ledger.segments())


def test_segments_describe_the_log(site: LedgerSite):
    """Ends, entries and messages of every retained segment, the open one included."""
    ledger = site.open(max_entries=2)
    for n in range(5):
        send_batch(ledger, [b"x"] * (n + 1))
    segments = ledger.segments()
    assert [segment.entries for segment in segments] == [2, 2, 1]
    assert [segment.messages for segment in segments] == [3, 7, 5]
    statistics = ledger.statistics()
    assert statistics.retained_messages == statistics.total_messages == 15
    assert statistics.ledgers == 3 and statistics.total_entries == 5 and statistics.damage_here == 0


def test_terminated_topics_refuse(site: LedgerSite):
    """Nothing can be appended any more, by anyone who has it open; reading goes on."""
    ledger, other = site.open(), site.open()
    last = send(ledger, b"a")
    send(other, b"b")
    assert ledger.terminate() == last.next()
    for one in (ledger, other, ledger):
        with pytest.raises(TopicTerminated):
            send(one, b"c")
    assert values(other) == [b"a", b"b"]


def test_closed_ledgers_refuse(site: LedgerSite):
    """Every use after `close` says so; closing twice does nothing."""
    ledger = site.open()
    send(ledger, b"x")
    cursor = ledger.cursor(START, inclusive=True)
    append_nowait, entry = ledger.append_nowait, encode_single(b"z", 0, PREFIX)
    ledger.close()
    ledger.close()
    for use in (
        lambda: append_nowait(entry),
        lambda: ledger.append_nowait(entry),
        lambda: send(ledger, b"y"),
        lambda: cursor.read(1, 1, 1),
        lambda: ledger.tail,
        ledger.roll,
        ledger.sync,
        ledger.statistics,
        ledger.last_position,
        lambda: ledger.request_ring(0),
        lambda: ledger.messages_after(START),
    ):
        with pytest.raises(AlreadyClosed):
            use()
    assert repr(ledger) == "<ManagedLedger topic closed>"


def test_another_incarnation_is_refused(site: LedgerSite):
    """A topic that was deleted and created again is not taken for the old one."""
    site.open().close()
    with pytest.raises(StorageError, match="incarnation 1 of the topic, not 2"):
        ManagedLedger.open(
            site.directory,
            name="topic",
            incarnation=2,
            store_id=bytes(16),
            allocate_ledger_id=site.allocate,
            mailbox=site.mailbox,
            peers=site.peers,
            options=LedgerOptions(),
            clock=site.clock,
        )


def test_an_unknown_level_is_an_error(site: LedgerSite):
    """Durability has three names."""
    with pytest.raises(ValueError, match="process, interval or flush"):
        send(site.open(), b"x", "paranoid")


def test_waiting_for_an_append(tmp_path: Path):
    """`wait` returns at once when the tail moved, and after the timeout when it did not."""
    with LedgerSite(tmp_path) as site:
        ledger = site.open()
        assert ledger.wait(ledger.tail, 0.0) is False
        seen = ledger.tail
        assert ledger.request_ring(seen) is True and ledger.request_ring(seen) is True
        generation = site.mailbox.generation
        send(ledger, b"x")
        assert site.mailbox.wait(generation, 1.0) != generation
        assert ledger.wait(seen, 10.0) is True and ledger.request_ring(seen) is False
