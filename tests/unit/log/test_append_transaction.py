"""Entries of transactions: the check under the topic's lock, and the word that says where the first is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from embeddedpulsar._engine.format.columns import EntryContent
from embeddedpulsar._engine.format.control import TopicWord, tail_word
from embeddedpulsar._engine.format.entry import EncodedEntry, encode
from embeddedpulsar._engine.format.frame import FIRST_FRAME_OFFSET
from embeddedpulsar._engine.log.log_check import check_topic
from embeddedpulsar._engine.log.managed_ledger import ManagedLedger
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar.exceptions import InvalidTxnStatusError, NotAllowedError
from tests.ledger_site import PREFIX, LedgerSite, send


@pytest.fixture
def site(tmp_path: Path) -> Iterator[LedgerSite]:
    """A place for ledgers."""
    with LedgerSite(tmp_path) as made:
        yield made


def entry_of(value: bytes, txn_id: int = 7) -> EncodedEntry:
    """One message of a transaction."""
    return encode(EntryContent([value], batched=False, transaction=(0, txn_id)), PREFIX)


def admitted() -> None:
    """The check of a transaction that is open."""


def refused() -> None:
    """The check of one that is not."""
    raise InvalidTxnStatusError("the transaction (0,7) cannot be used: it is committed")


Check = Callable[[], object]
Append = Callable[[ManagedLedger, list[EncodedEntry], Check], object]


def append_run(
    ledger: ManagedLedger, entries: list[EncodedEntry], check: Check | None = admitted
) -> list[int]:
    """Append entries in one hold of the lock; return their ids."""
    stored: list[tuple[int, int, int]] = []
    hold = ledger.hold()
    try:
        ledger.lock.acquire(1.0)
        ledger.append_run(entries, hold, stored, check)
    finally:
        ledger.lock.release()
        hold.ring_all()
    return [entry_id for _, entry_id, _ in stored]


def append_each(ledger: ManagedLedger, entries: list[EncodedEntry], check: Check | None = admitted) -> None:
    """Append entries one by one."""
    for entry in entries:
        ledger.append(entry, check_open=check)


BOTH_WAYS = pytest.mark.parametrize("append", [append_run, append_each])


def test_an_entry_of_a_transaction_is_appended_behind_a_check(site: LedgerSite):
    """The check is made under the lock; where the entry is to stand is stored before it is visible."""
    ledger = site.open()
    send(ledger, b"plain")
    seen: list[tuple[bool, int, int]] = []

    def check() -> None:
        seen.append((ledger.lock.enter_alone(), ledger.tail, ledger.words[TopicWord.FIRST_OPEN_TXN]))
        ledger.lock.release()

    ledger.append_nowait(entry_of(b"a"), None, None, None, check)
    first = ledger.words[TopicWord.FIRST_OPEN_TXN]
    assert first == tail_word(ledger.tail >> 32, FIRST_FRAME_OFFSET)  # a ledger of version 2 began with it
    ledger.append(entry_of(b"b"), check_open=check)
    assert ledger.words[TopicWord.FIRST_OPEN_TXN] == first
    assert len(seen) == 2
    assert [is_alone for is_alone, *_ in seen] == [False, False]
    assert seen[0][2] == 0
    assert check_topic(ledger.directory).is_clean


def test_an_entry_behind_plain_ones_is_where_the_word_says(site: LedgerSite):
    """The word has the offset of the entry, also if others follow."""
    ledger = site.open()
    ledger.append(entry_of(b"a"), check_open=admitted)
    ledger.words[TopicWord.FIRST_OPEN_TXN] = 0  # as whoever ends a transaction does
    send(ledger, b"plain")
    before = ledger.tail
    ledger.append(entry_of(b"b"), check_open=admitted)
    ledger.append(entry_of(b"c"), check_open=admitted)
    assert ledger.words[TopicWord.FIRST_OPEN_TXN] == before


@BOTH_WAYS
@pytest.mark.parametrize("is_revised", [False, True])
def test_a_refused_entry_leaves_nothing(site: LedgerSite, append: Append, is_revised: bool):
    """Neither bytes nor words; the next append needs no repair."""
    ledger = site.open()
    send(ledger, b"plain")
    if is_revised:
        ledger.append(entry_of(b"a"), check_open=admitted)
        ledger.words[TopicWord.FIRST_OPEN_TXN] = 0
    tail = ledger.tail
    with pytest.raises(InvalidTxnStatusError):
        append(ledger, [entry_of(b"b"), entry_of(b"c")], refused)
    assert ledger.tail == tail
    assert ledger.words[TopicWord.FIRST_OPEN_TXN] == ledger.words[TopicWord.OWNER] == 0
    send(ledger, b"after")
    assert ledger.statistics().recoveries == 0
    assert check_topic(ledger.directory).is_clean


def test_an_entry_without_a_check_is_refused(site: LedgerSite):
    """Nobody may forget it."""
    ledger = site.open()
    with pytest.raises(ValueError, match="with the check"):
        ledger.append_nowait(entry_of(b"a"))
    with pytest.raises(ValueError, match="with the check"):
        append_run(ledger, [entry_of(b"a")], None)
    assert not ledger.tail
    ledger.append(entry_of(b"a"), check_open=admitted)
    with pytest.raises(ValueError, match="with the check"):
        append_run(ledger, [entry_of(b"a")], None)


def test_a_run_of_a_transaction_is_committed_at_once(site: LedgerSite):
    """In a ledger that can have it; the first one begins such a ledger."""
    ledger = site.open()
    entries = [entry_of(b"%d" % number) for number in range(5)]
    assert append_run(ledger, entries) == list(range(5))
    ledger.words[TopicWord.FIRST_OPEN_TXN] = 0
    before, stores = ledger.tail, []
    try:
        failpoints.set("append:tail_stored", lambda: stores.append(ledger.tail), nth=0)
        failpoints.set(
            "append:first_open_stored",
            lambda: stores.append(ledger.words[TopicWord.FIRST_OPEN_TXN]),
            nth=0,
        )
        assert append_run(ledger, entries) == list(range(5, 10))
    finally:
        failpoints.clear()
    assert stores[0] == before  # no entry was visible before the word
    assert len(stores) <= 3
    assert stores[-1] == ledger.tail
    assert check_topic(ledger.directory).is_clean


@BOTH_WAYS
def test_a_run_that_rolls_keeps_the_word(site: LedgerSite, append: Append):
    """The first entry of the transaction is the one the word names, in whatever ledger the last one is."""
    ledger = site.open(max_entries=3)
    append(ledger, [entry_of(b"%d" % number) for number in range(10)], admitted)
    first = ledger.first_position()
    assert ledger.words[TopicWord.FIRST_OPEN_TXN] == tail_word(first.ledger_id, FIRST_FRAME_OFFSET)


def test_a_non_persistent_topic_refuses_transactions(site: LedgerSite):
    """Its messages are gone before a transaction ends."""
    ledger = site.open()
    ledger.append(entry_of(b"a"), check_open=admitted)
    ledger._writer.bars_transactions = True  # as that of a non-persistent topic
    with pytest.raises(NotAllowedError, match="non-persistent"):
        ledger.append(entry_of(b"b"), check_open=admitted)
    with pytest.raises(NotAllowedError, match="non-persistent"):
        append_run(ledger, [entry_of(b"b")])
    send(ledger, b"plain")
    assert ledger.statistics().recoveries == 0


@BOTH_WAYS
@pytest.mark.parametrize("point", ["append:first_open_stored", "append:body_done", "append:index_done"])
def test_a_word_without_its_entry_holds_nothing_up(site: LedgerSite, point: str, append: Append):
    """A writer died between the two stores: the word is a lower limit of what comes."""
    ledger = site.open()
    ledger.append(entry_of(b"a"), check_open=admitted)
    ledger.words[TopicWord.FIRST_OPEN_TXN] = 0
    before = ledger.tail
    try:
        failpoints.set(point, "raise")
        with pytest.raises(failpoints.InjectedFailure):
            append(ledger, [entry_of(b"b"), entry_of(b"c")], admitted)
    finally:
        failpoints.clear()
    assert ledger.tail == before == ledger.words[TopicWord.FIRST_OPEN_TXN]
    send(ledger, b"plain")
    ledger.append(entry_of(b"d"), check_open=admitted)
    assert ledger.words[TopicWord.FIRST_OPEN_TXN] == before
    assert check_topic(ledger.directory).is_clean
