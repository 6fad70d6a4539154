"""How far a log can be read because of transactions: cursors, positions, waiting."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from embeddedpulsar._engine.format.columns import EntryContent
from embeddedpulsar._engine.format.control import TopicWord
from embeddedpulsar._engine.format.entry import encode, encode_plain
from embeddedpulsar._engine.log.managed_ledger import ManagedLedger
from embeddedpulsar.message_id import Isolation, Position
from tests.ledger_site import PREFIX, START, LedgerSite, drain, send, values

UNDECIDED, COMMITTED, ABORTED, PREPARED = range(4)
FIRST_OPEN = TopicWord.FIRST_OPEN_TXN


class FakeOutcomes:
    """What became of transactions, as the test says."""

    def __init__(self) -> None:
        self.by_id: dict[int, int] = {}
        self.awaited: list[int] = []
        self.abandoned: set[int] = set()
        self.may_have_open = True

    def outcome(self, txn_id: int) -> int:
        """Undecided unless the test says otherwise."""
        return self.by_id.get(txn_id, UNDECIDED)

    def range_of(self, txn_id: int) -> None:
        """No table."""

    def is_any_open(self) -> bool:
        """There may be others."""
        return self.may_have_open

    def note_blocked(self, txn_id: int) -> None:
        """Nobody looks."""

    def end_if_abandoned(self, txn_id: int) -> bool:
        """It is, if the test says so; then it is aborted."""
        if txn_id in self.abandoned:
            self.by_id[txn_id] = ABORTED
        return self.outcome(txn_id) in (COMMITTED, ABORTED)

    def await_end(self, txn_id: int) -> bool:
        """Note the wish."""
        self.awaited.append(txn_id)
        return self.outcome(txn_id) not in (COMMITTED, ABORTED)


class Topic:
    """A log with transactions."""

    def __init__(self, site: LedgerSite) -> None:
        self.outcomes = FakeOutcomes()
        self._site = site
        self.log = self.open()

    def open(self, **options: int) -> ManagedLedger:
        """Another one, as of another process."""
        return self._site.open(outcomes=self.outcomes, **options)

    def send(self, txn_id: int, *payloads: bytes) -> Position:
        """Append an entry of a transaction."""
        content = EntryContent(list(payloads), batched=len(payloads) > 1, transaction=(0, txn_id))
        ledger_id, entry_id, *_ = self.log.append(encode(content, PREFIX), check_open=int)
        return Position(ledger_id, entry_id)

    def end(self, txn_id: int, outcome: int) -> None:
        """Decide a transaction."""
        self.outcomes.by_id[txn_id] = outcome


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[Topic]:
    """A log without entries."""
    with LedgerSite(tmp_path) as site:
        yield Topic(site)


def test_a_cursor_stops_before_what_is_not_decided(topic: Topic):
    """Also before plain entries behind it; it goes on where it stopped, in order."""
    send(topic.log, b"a")
    topic.send(1, b"b")
    send(topic.log, b"c")
    topic.send(2, b"d")
    cursor = topic.log.cursor(START, inclusive=True)
    assert [entry.payload for entry in drain(cursor)] == drain_of(topic, b"a")
    assert drain(cursor) == []
    topic.end(2, COMMITTED)
    assert drain(cursor) == []
    topic.end(1, PREPARED)
    assert drain(cursor) == []
    topic.end(1, COMMITTED)
    assert payloads(drain(cursor)) == [b"b", b"c", b"d"]


def payloads(views: list) -> list[bytes]:
    """Of all messages."""
    return [value for view in views for value in view.values()]


def drain_of(topic: Topic, *expected: bytes) -> list[bytes]:
    """The payloads of the entries with these messages."""
    views = drain(topic.log.cursor(START, inclusive=True))
    assert payloads(views) == list(expected)
    return [view.payload for view in views]


def test_what_no_process_can_go_on_with_holds_nothing_back(topic: Topic):
    """It is ended by the cursor or the figure that meets it, whichever asks first; the next one holds."""
    topic.send(1, b"a")
    send(topic.log, b"b")
    topic.send(2, b"c")
    topic.outcomes.abandoned.add(1)
    cursor = topic.log.cursor(START, inclusive=True)
    assert payloads(drain(cursor)) == [b"b"]
    assert drain(cursor) == []
    assert list(topic.log.waits.max_read.blocked) == [2]
    assert not topic.log.waits.max_read.has_ended()
    last = topic.send(3, b"d")
    assert topic.log.last_readable().entry_id == 1
    topic.outcomes.abandoned.update((2, 3))
    assert topic.log.max_read_position() == last
    assert topic.log.last_readable().entry_id == 1
    assert drain(cursor) == []
    assert topic.log.waits.forget_ended() and topic.log.waits.forget_ended()


def test_a_cursor_steps_over_what_was_aborted(topic: Topic):
    """At the start, in the middle and at the end; then it stands at the tail."""
    topic.send(1, b"x")
    send(topic.log, b"a")
    topic.send(1, b"x", b"y")
    topic.send(2, b"b")
    topic.send(1, b"x")
    topic.end(1, ABORTED)
    topic.end(2, COMMITTED)
    cursor = topic.log.cursor(START, inclusive=True)
    assert payloads(drain(cursor, 1)) == [b"a", b"b"]
    assert cursor.is_at(topic.log.tail)
    send(topic.log, b"c")
    assert payloads(drain(cursor)) == [b"c"]


@pytest.mark.parametrize("max_entries", [2, 100])
def test_ledgers_are_crossed(tmp_path: Path, max_entries: int):
    """Where the log rolled in the middle of transactions."""
    with LedgerSite(tmp_path) as site:
        topic = Topic(site)
        topic.log = topic.open(max_entries=max_entries)
        expected = []
        for number in range(30):
            txn_id = number % 5
            if txn_id:
                topic.send(txn_id, b"%d" % number)
            else:
                send(topic.log, b"%d" % number)
            if txn_id != 3:
                expected.append(b"%d" % number)
        assert values(topic.log) == [b"0"]
        assert topic.log.max_read_position() == topic.log.first_position()
        for txn_id in (4, 2, 1):
            topic.end(txn_id, COMMITTED)
        assert values(topic.log) == [b"0", b"1", b"2"]
        topic.end(3, ABORTED)
        assert values(topic.log) == expected
        assert topic.log.max_read_position() == topic.log.last_position()
        assert topic.log.last_readable() == topic.log.last_position()


def test_isolation(topic: Topic):
    """What readers get that ask for more."""
    topic.send(1, b"a")
    topic.send(2, b"b")
    send(topic.log, b"c")
    topic.end(2, ABORTED)

    def read(isolation: int) -> list[bytes]:
        return payloads(drain(topic.log.cursor(START, inclusive=True, isolation=isolation)))

    assert read(Isolation.COMMITTED) == []
    assert read(Isolation.UNCOMMITTED) == [b"a", b"c"]
    assert read(Isolation.EVERYTHING) == [b"a", b"b", b"c"]


def test_spans_end_before_what_is_not_decided(topic: Topic):
    """As `read` does; what was aborted is left out."""
    for txn_id in (1, 2, 3):
        topic.send(txn_id, b"%d" % txn_id)
    topic.end(1, COMMITTED)
    topic.end(2, ABORTED)
    ledger_id = topic.log.first_position().ledger_id
    cursor = topic.log.cursor(START, inclusive=True)
    assert payloads(cursor.read_spans(ledger_id, [(0, 2)], 1 << 20)) == [b"1"]
    assert cursor.position == (ledger_id, 2)
    topic.end(3, COMMITTED)
    assert payloads(cursor.read_spans(ledger_id, [(0, 2)], 1 << 20)) == [b"1", b"3"]
    assert cursor.position == (ledger_id, 3)


def test_an_error_of_a_lookup_loses_no_entry(topic: Topic, monkeypatch: pytest.MonkeyPatch):
    """The cursor stays where it was."""
    topic.send(1, b"a")
    topic.end(1, COMMITTED)
    cursor = topic.log.cursor(START, inclusive=True)
    with monkeypatch.context() as patch:
        patch.setattr(topic.outcomes, "outcome", lambda txn_id: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            cursor.read(10, 10, 1 << 20)
    assert payloads(drain(cursor)) == [b"a"]


def test_positions(topic: Topic):
    """The last entry, the last before the first that waits, and the last that can be read."""
    log = topic.log
    assert log.max_read_position() is log.last_readable() is None
    first = topic.send(1, b"a")
    assert log.max_read_position() is None  # nothing can be read, and nothing was trimmed
    topic.end(1, COMMITTED)
    assert log.max_read_position() == log.last_readable() == first
    aborted = topic.send(2, b"b")
    topic.end(2, ABORTED)
    assert log.last_position() == log.max_read_position() == aborted
    assert log.last_readable() == first
    open_one = topic.send(3, b"c")
    later = send(log, b"d")
    assert log.last_position() == later
    assert log.max_read_position() == open_one.previous() == aborted
    assert log.last_readable() == first
    topic.end(3, ABORTED)
    assert log.last_readable() == log.last_position() == later


def test_the_last_readable_entry_is_in_an_earlier_ledger(tmp_path: Path):
    """All entries of the last ledgers were aborted; or all that there are."""
    with LedgerSite(tmp_path) as site:
        topic = Topic(site)
        topic.log = topic.open(max_entries=2)
        for number in range(5):
            topic.send(1, b"%d" % number)
        topic.end(1, ABORTED)
        assert topic.log.last_readable() == topic.log.first_position().previous()
        place = send(topic.log, b"a")
        for number in range(7):
            topic.send(2, b"%d" % number)
        topic.end(2, ABORTED)
        for _ in range(2):
            assert topic.log.last_readable() == place
        topic.log.roll()
        assert topic.log.last_readable() == place
        again = send(topic.log, b"b")
        assert topic.open(max_entries=2).last_readable() == topic.log.last_readable() == again


def test_who_ended_a_transaction_moves_the_word(topic: Topic):
    """To the next entry that is not decided; to 0 if there is none."""
    log, words = topic.log, topic.log.words
    topic.send(1, b"a")
    topic.send(2, b"b")
    first = words[FIRST_OPEN]
    assert log.settle_transactions()
    assert words[FIRST_OPEN] == first
    topic.end(1, COMMITTED)
    assert log.settle_transactions()
    assert words[FIRST_OPEN] > first
    assert log.max_read_position().entry_id == 0
    topic.end(2, ABORTED)
    assert log.settle_transactions()
    assert words[FIRST_OPEN] == 0
    topic.send(3, b"c")
    assert words[FIRST_OPEN] == log.tail - (log.tail - words[FIRST_OPEN]) > first


def test_where_no_transaction_is_open_nothing_is_looked_at(topic: Topic, monkeypatch: pytest.MonkeyPatch):
    """The store has no open one, so the topic has none."""
    topic.send(1, b"a")
    topic.outcomes.may_have_open = False
    monkeypatch.setattr(topic.outcomes, "outcome", lambda txn_id: 1 // 0)
    assert topic.log.settle_transactions()
    assert topic.log.words[FIRST_OPEN] == 0


def test_the_word_is_not_moved_within_an_append(topic: Topic):
    """The entry that is about to stand there would be missed."""
    topic.send(1, b"a")
    topic.end(1, COMMITTED)
    before = topic.log.words[FIRST_OPEN]
    results = []

    def check() -> None:
        results.append(topic.log.settle_transactions())

    content = EntryContent([b"b"], batched=False, transaction=(0, 2))
    topic.log.append(encode(content, PREFIX), check_open=check)
    assert results == [False]
    assert topic.log.words[FIRST_OPEN] == before
    assert topic.log.settle_transactions()
    assert topic.log.max_read_position().entry_id == 0


def test_a_word_that_names_no_open_entry_holds_nothing_up(topic: Topic):
    """A plain entry, one that is decided, or none at all."""
    first = send(topic.log, b"a")
    topic.send(1, b"b")
    topic.end(1, COMMITTED)
    last = send(topic.log, b"c")
    for word in (1, topic.log.words[FIRST_OPEN], topic.log.tail, topic.log.tail + 100):
        topic.log.words[FIRST_OPEN] = word
        for log in (topic.log, topic.open()):
            assert log.max_read_position() == log.last_readable() == last
    assert first < last


def test_a_sleeper_asks_for_the_end_of_what_it_waits_for(topic: Topic):
    """Not before it met it; and it looks again when that is over."""
    waits = topic.log.waits
    topic.send(7, b"a")
    assert waits.request_ring(topic.log.tail)
    assert topic.outcomes.awaited == []
    assert not waits.is_blocked
    assert values(topic.log) == []
    assert waits.is_blocked
    assert waits.request_ring(topic.log.tail)
    assert topic.outcomes.awaited == [7]
    assert not waits.has_moved(topic.log.tail)
    topic.end(7, COMMITTED)
    assert waits.has_moved(topic.log.tail)
    assert not waits.request_ring(topic.log.tail)
    assert not waits.is_blocked
    assert waits.request_ring(topic.log.tail)


def test_what_nobody_waits_for_is_forgotten(topic: Topic):
    """A process that only polls meets any number of transactions."""
    for txn_id in range(1, 300):
        topic.send(txn_id, b"a")
        values(topic.log)
        topic.end(txn_id, COMMITTED)
        values(topic.log)
    assert len(topic.log.waits.max_read.blocked) <= 64


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"keys": ["k"]},
        {"keys": [b"k"]},
        {"keys": [b"k"], "ordering_keys": [b"o"]},
        {"properties": [{"a": "b"}], "event_times": [7]},
        {"null_keys": [True], "ordering_keys": ["o"]},
        {"deliver_at": [1]},
    ],
)
@pytest.mark.parametrize("codec", [0, 2])
@pytest.mark.parametrize("count", [1, 3, 65])
def test_the_transaction_of_an_entry(topic: Topic, fields: dict, codec: int, count: int):
    """Found without locating the columns, whatever stands behind it."""
    spread = {name: column * count for name, column in fields.items()}
    txn_id = (1 << 59) + 12345
    content = EntryContent([b"v"] * count, batched=count > 1, transaction=(0, txn_id), **spread)
    topic.log.append(encode(content, PREFIX, codec), check_open=int)
    (view,) = topic.log.cursor(START, inclusive=True, isolation=Isolation.EVERYTHING).read(9, 99, 1 << 20)
    assert view.transaction_id() == txn_id
    assert view.transaction() == (0, txn_id)
    topic.log.append(encode_plain([b"v"], 0, PREFIX))
    plain = topic.log.cursor(topic.log.last_position(), inclusive=True, isolation=Isolation.EVERYTHING)
    assert plain.read(1, 9, 1 << 20)[0].transaction_id() == 0


def test_after_a_recovery_open_entries_are_found(tmp_path: Path):
    """The words of the boot before are void; a prepared transaction outlives it."""
    with LedgerSite(tmp_path) as site:
        topic = Topic(site)
        for number in range(3):
            send(topic.log, b"%d" % number)
        topic.send(1, b"a")
        topic.send(2, b"b")
        send(topic.log, b"c")
        topic.end(1, COMMITTED)
        topic.end(2, PREPARED)
    with LedgerSite(tmp_path) as site:
        log = site.open(outcomes=topic.outcomes, boot=b"another boot id.")
        assert log.statistics().recoveries == 1
        assert log.words[FIRST_OPEN]
        assert log.max_read_position().entry_id == 0
        assert values(log) == [b"0", b"1", b"2", b"a"]
        assert log.settle_transactions()
        topic.end(2, ABORTED)
        assert log.settle_transactions()
        assert log.words[FIRST_OPEN] == 0
        assert values(log) == [b"0", b"1", b"2", b"a", b"c"]
