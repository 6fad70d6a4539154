"""Outcomes of finished transactions: folded into the topics that may ask, and forgotten by the store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from embeddedpulsar import Admin, Client, ConsumerType, MessageId
from embeddedpulsar._engine.filenames import folded_path, lock_path, outcomes_in
from embeddedpulsar._engine.format.control import OUTCOMES_PER_FILE, TransactionWord
from embeddedpulsar._engine.format.entry import EntryContent, EntryFields, ProducerPrefix, encode
from embeddedpulsar._engine.log.journal_file import JournalDescriptor
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar._engine.store import topic_transactions, transaction_folding
from embeddedpulsar._engine.store.care.store_check import check_store
from embeddedpulsar._engine.store.care.store_repair import repair_store
from embeddedpulsar._engine.store.housekeeping import ChoresFailed
from embeddedpulsar._engine.store.store import Store
from embeddedpulsar._engine.store.topic import Topic
from embeddedpulsar._engine.store.topic_transactions import FoldedOutcomes, FoldedTransactions
from embeddedpulsar._engine.store.transaction_folding import Folder
from embeddedpulsar._engine.txn.transaction import Transaction
from embeddedpulsar._engine.txn.transaction_state import Outcome
from embeddedpulsar.exceptions import CorruptionError, LockTimeout
from embeddedpulsar.message_id import Position
from embeddedpulsar.testing.trial_store import assert_clean

PREFIX = ProducerPrefix("p")


class Site:
    """A store with transactions, of which the test folds the outcomes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = Store.open(root)
        # The thread of the store makes none beside those of a test, which are not under its lock.
        self.chore = self.store.transactions.fold
        self.store.transactions.fold = lambda log, done: False
        self.log = self.store.transactions.log()
        self.folder = self.new_folder()

    def new_folder(self) -> Folder:
        """As that of another process."""
        return self.store.make_folder(self.store._current())

    def topic(self, name: str) -> Topic:
        """Open as long as the store."""
        return self.store.use_topic(name).topic

    def begin(self) -> Transaction:
        return Transaction(self.log, 900_000)

    def stored(self, transaction: Transaction, *names: str) -> Transaction:
        """An entry in each topic."""
        for name in names:
            content = EntryContent([b"x"], 0, False, transaction=(0, transaction.id))
            self.topic(name).ledger.append(encode(content, PREFIX), check_open=transaction.check_open)
        return transaction

    def committed(self, *names: str) -> int:
        """A transaction with an entry in each topic."""
        transaction = self.stored(self.begin(), *names)
        transaction.commit()
        return transaction.id

    def aborted(self, *names: str) -> int:
        transaction = self.stored(self.begin(), *names)
        transaction.abort()
        return transaction.id

    def resumed(self) -> Transaction:
        """The one that is prepared."""
        (prepared,) = self.log.prepared()
        return Transaction.resume(self.log, prepared)

    def end_range(self) -> None:
        """Let the next transaction have the first id of the next table."""
        words = self.log.control.words
        words[TransactionWord.NEXT_ID] = words[TransactionWord.RESERVED]

    def fold(self, folder: Folder | None = None) -> list[str]:
        """All slices of a pass."""
        folder, done = folder or self.folder, []
        folder._look_at = 0.0
        while folder.fold(self.log, done):
            pass
        return done

    def document(self, name: str) -> FoldedTransactions:
        return FoldedTransactions.read(self.topic(name).directory)

    def folded_outcomes(self, name: str) -> FoldedOutcomes:
        return FoldedOutcomes(self.topic(name).directory, self.log.lowest)

    def tables(self) -> list[int]:
        return outcomes_in(os.listdir(self.root / "txn"))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A store with transactions."""
    site = Site(tmp_path / "store")
    yield site
    site.store.release()
    assert_clean(tmp_path / "store")


def test_outcomes_go_into_the_topics(site: Site) -> None:
    """The aborted ones are listed, where they stored something; the table of outcomes goes."""
    committed = site.committed("a", "b")
    aborted = site.aborted("a")
    assert site.fold() == [] and site.tables() == [0]  # no whole table can go
    site.end_range()
    assert site.fold() == ["the outcomes of 65,535 finished transactions were folded into their topics"]
    assert site.log.outcome(committed) is site.log.outcome(aborted) is Outcome.FOLDED
    assert site.tables() == [] and site.log.lowest() == OUTCOMES_PER_FILE
    document = site.document("a")
    assert document.ids() == {aborted} and (document.committed, document.aborted) == (1, 1)
    assert document.through == site.topic("a").ledger.last_position()
    assert site.document("b").ids() == set() and site.document("b").committed == 1
    outcomes = site.folded_outcomes("a")
    assert outcomes.is_aborted(aborted) and not outcomes.is_aborted(committed)
    assert site.fold() == []


def test_the_next_pass_goes_on_behind_the_last(site: Site) -> None:
    """A transaction counts once, and readers see what a later pass added."""
    first = site.aborted("a", "a")
    site.end_range()
    site.fold()
    outcomes = site.folded_outcomes("a")
    assert outcomes.is_aborted(first)
    second = site.aborted("a")
    site.committed("a")
    site.end_range()
    site.fold()
    assert outcomes.is_aborted(first) and outcomes.is_aborted(second)
    document = site.document("a")
    assert (document.committed, document.aborted) == (1, 2) and document.below == 2 * OUTCOMES_PER_FILE


def test_an_open_transaction_keeps_the_later_ones(site: Site) -> None:
    """What is decided behind it is looked up as before; once it ended everything goes."""
    before = site.aborted("a")
    site.end_range()
    site.committed("a")
    opened = site.stored(site.begin(), "a")
    after = site.aborted("a")
    site.end_range()
    site.end_range()
    last = site.begin()
    assert last.id
    site.fold()
    assert site.log.lowest() == opened.id
    assert site.log.outcome(before) is Outcome.FOLDED and site.log.outcome(after) is Outcome.ABORTED
    document = site.document("a")
    assert document.ids() == {before} and document.through < site.topic("a").ledger.last_position()
    opened.commit()
    site.fold()
    assert site.document("a").ids() == {before, after} and site.document("a").committed == 2
    last.abort()


def test_a_prepared_transaction_holds_it_up(site: Site) -> None:
    """It may commit: its outcome is not known."""
    prepared = site.stored(site.begin(), "a")
    prepared.prepare("invoice")
    site.end_range()
    assert site.fold() == [] and site.tables() == [0]
    site.resumed().abort()
    site.fold()
    assert site.document("a").ids() == {prepared.id}


def test_a_transaction_that_its_process_left_is_aborted(site: Site) -> None:
    """A byte of 0 without a slot: nobody can commit it."""
    left = site.stored(site.begin(), "a")
    words = site.log.control.words
    words[site.log.control.word_of(site.log.control.find(left.id))] = 0
    words[TransactionWord.OPEN] -= 1
    site.end_range()
    site.fold()
    assert site.document("a").ids() == {left.id}


def test_ids_go_with_their_ledgers(site: Site) -> None:
    """One that is in two ledgers stays as long as the later one."""
    early = site.aborted("a")
    both = site.stored(site.begin(), "a")
    site.topic("a").ledger.roll()
    site.stored(both, "a").abort()
    site.end_range()
    site.fold()
    assert site.document("a").ids() == {early, both.id}
    site.topic("a").ledger.roll()
    site.committed("a")
    ledgers = [ledger_id for ledger_id, _ in site.document("a").ledgers]
    site.topic("a").create_subscription("s", site.topic("a").ledger.last_position())
    site.topic("a").trim_now()
    assert site.topic("a").ledger.first_position().ledger_id > ledgers[-1]
    site.end_range()
    site.fold()
    assert site.document("a").ids() == set() and site.document("a").aborted == 2


def test_topics_without_transactions_get_no_document(site: Site) -> None:
    """Neither those of the first version, nor those whose entries need another one for other reasons."""
    site.topic("plain").ledger.append(encode(EntryContent([b"x"], 0, False), PREFIX))
    site.topic("revised").ledger.append(
        encode(EntryContent([b"x"], 0, False, fields=EntryFields(replicated_from="east")), PREFIX)
    )
    site.committed("a")
    site.end_range()
    site.fold()
    assert site.log.lowest() == OUTCOMES_PER_FILE
    for name in ("plain", "revised"):
        assert not os.path.exists(folded_path(site.topic(name).directory)), name
    assert site.folder._scanned == {
        site.topic("revised").directory: site.topic("revised").ledger.last_position()
    }


def test_what_is_pending_in_a_subscription_is_settled_first(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks no more for the outcome, which is forgotten then; not after a power loss either."""
    topic = site.topic("a")
    position = Position(*topic.ledger.append(encode(EntryContent([b"x"], 0, False), PREFIX))[:2])
    topic.create_subscription("s", Position(position.ledger_id, -1))
    subscription = topic.use_subscription("s")
    transaction = site.begin()
    attachment = subscription.attach("consumer", client_uuid=site.store.mailbox.uuid)
    attachment.acknowledge([position], {}, transaction=(0, transaction.id))
    assert [each.transaction for each in subscription.pending_transactions()] == [(0, transaction.id)]
    attachment.detach()
    site.store.transactions.on_ended = int
    transaction.commit()
    assert subscription._shared is not None and subscription._shared.has_pending_transactions
    site.end_range()
    flushed, real, raise_lowest = [], JournalDescriptor.flush, site.log.raise_lowest

    def flush(journal: JournalDescriptor) -> None:
        real(journal)
        if "subscriptions" in journal._path:
            flushed.append(subscription._shared.has_pending_transactions)

    def forget(lowest: int) -> int:
        assert flushed[-1:] == [False]  # behind the end of the transaction, and before it is forgotten
        return raise_lowest(lowest)

    monkeypatch.setattr(JournalDescriptor, "flush", flush)
    monkeypatch.setattr(site.log, "raise_lowest", forget)
    site.fold()
    assert flushed and not subscription._shared.has_pending_transactions
    assert subscription.mark_delete == position
    assert site.log.outcome(transaction.id) is Outcome.FOLDED


def test_a_subscription_without_control_words_is_asked_too(site: Site, tmp_path: Path) -> None:
    """As in a store that was restored, which folds soon: the next id is behind the reserved range."""
    topic = site.topic("a")
    position = Position(*topic.ledger.append(encode(EntryContent([b"x"], 0, False), PREFIX))[:2])
    topic.create_subscription("s", Position(position.ledger_id, -1))
    transaction = site.begin()
    attachment = topic.use_subscription("s").attach("consumer", client_uuid=site.store.mailbox.uuid)
    attachment.acknowledge([position], {}, transaction=(0, transaction.id))
    attachment.detach()
    site.store.transactions.on_ended = int
    transaction.commit()
    with Admin(site.root) as admin:
        admin.backup(tmp_path / "backup")
    Admin.restore(tmp_path / "backup", tmp_path / "copy")
    copy = Site(tmp_path / "copy")
    copy.fold()
    assert copy.log.outcome(transaction.id) is Outcome.FOLDED
    assert copy.topic("a").use_subscription("s").mark_delete == position
    copy.store.release()
    assert_clean(tmp_path / "copy")


def test_a_file_that_is_missing_holds_it_up(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have what the document of the topic is to say."""
    aborted = site.aborted("a")
    site.end_range()

    def missing(*arguments: object) -> Iterator[list[tuple[int, int, int]]]:
        raise FileNotFoundError("moved meanwhile")
        yield []

    with monkeypatch.context() as patch:
        patch.setattr(transaction_folding, "entries_of_transactions", missing)
        with pytest.raises(ChoresFailed, match="moved meanwhile"):
            site.fold()
    assert site.log.outcome(aborted) is Outcome.ABORTED
    site.fold()
    assert site.log.outcome(aborted) is Outcome.FOLDED and site.document("a").ids() == {aborted}


def test_a_document_of_another_process_is_not_replaced(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pass came between two slices of this one: what it wrote counts, and is looked at again."""
    monkeypatch.setattr(transaction_folding, "SLICE_S", -1.0)
    first = site.aborted("a")
    site.end_range()
    site.folder._look_at = 0.0
    done: list[str] = []
    assert site.folder.fold(site.log, done)  # stands between the reading of the topic and its document
    assert not os.path.exists(folded_path(site.topic("a").directory))
    second = site.aborted("a")
    site.end_range()
    site.fold(site.new_folder())
    assert site.document("a").ids() == {first, second}
    while site.folder.fold(site.log, done):
        pass
    assert site.document("a").ids() == {first, second} and site.log.lowest() == 2 * OUTCOMES_PER_FILE
    assert site.document("a").aborted == 2


def test_a_pass_that_another_process_overtook_ends(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of a topic, what it would ask for is forgotten: nothing of it is left to be done."""
    monkeypatch.setattr(transaction_folding, "SLICE_S", -1.0)
    monkeypatch.setattr(topic_transactions, "_CHUNK", 1)
    ids = {site.aborted("a"), site.aborted("a")}
    site.end_range()
    site.folder._look_at = 0.0
    done: list[str] = []
    assert site.folder.fold(site.log, done)
    site.fold(site.new_folder())
    assert not site.folder.fold(site.log, done) and done == []
    assert site.document("a").ids() == ids


def test_a_commit_that_a_power_loss_took_behind_its_document(site: Site) -> None:
    """It was folded as committed, and forgotten nowhere: it is aborted now, and so says the next document."""
    ids = [site.committed("a"), site.aborted("a"), site.committed("a")]
    site.end_range()
    failpoints.set("fold:topics_done", "raise:KeyboardInterrupt")
    try:
        with pytest.raises(KeyboardInterrupt):
            site.fold()
    finally:
        failpoints.clear()
    assert site.document("a").ids() == {ids[1]} and site.log.lowest() == 1
    table = site.log.range_of(ids[2])
    assert table is not None
    table[1][ids[2]] = Outcome.ABORTED  # as derived from a journal without its record
    site.fold(site.new_folder())
    assert site.document("a").ids() == set(ids[1:]) and site.document("a").aborted == 2


def test_a_process_in_the_lock_of_a_topic_holds_it_up(site: Site) -> None:
    """It may be about to store an entry of a transaction that was aborted meanwhile."""
    aborted = site.aborted("a")
    site.end_range()
    lock = FileLock(lock_path(site.topic("a").directory))
    lock.acquire(1.0)
    with pytest.raises(LockTimeout):
        site.fold()
    assert site.log.outcome(aborted) is Outcome.ABORTED and site.tables() == [0]
    lock.release()
    lock.close()
    site.fold()
    assert site.document("a").ids() == {aborted}


def test_a_damaged_document_is_kept_and_holds_it_up(tmp_path: Path) -> None:
    """Readers are told which file, and what to do; nothing is forgotten."""
    site = Site(tmp_path)
    first = site.aborted("a")
    site.end_range()
    site.fold()
    path = folded_path(site.topic("a").directory)
    good = Path(path).read_bytes()
    Path(path).write_bytes(good[:20] + b"!!" + good[22:])
    with pytest.raises(CorruptionError, match=r"transactions.*repair the store"):
        site.folded_outcomes("a").is_aborted(first)
    site.committed("a")
    site.end_range()
    with pytest.raises(ChoresFailed, match="finished transactions are kept"):
        site.fold()
    assert site.log.lowest() == OUTCOMES_PER_FILE and site.tables() == [1]
    Path(path).write_bytes(good)
    site.fold()
    assert site.document("a").ids() == {first}
    site.store.release()


def test_a_damaged_document_is_found_and_put_away(tmp_path: Path) -> None:
    """A check names it, and what it means; a repair keeps it, and says what counts as committed then."""
    site = Site(tmp_path)
    site.aborted("a")
    site.committed("a")
    site.end_range()
    site.fold()
    path = folded_path(site.topic("a").directory)
    site.store.release()
    Path(path).write_bytes(Path(path).read_bytes()[:-1])
    (problem,) = check_store(tmp_path).damage
    assert problem.path == path and "not delivered" in problem.meaning
    (step,) = [step for step in repair_store(tmp_path).steps if step.path == path]
    assert "count as committed" in step.note
    assert not os.path.exists(path) and list((tmp_path / "quarantine").rglob("transactions"))
    assert read_all(tmp_path) == [b"x", b"x"]
    assert_clean(tmp_path)


def read_all(root: Path, *, read_only: bool = False) -> list[bytes]:
    """What a reader gets."""
    with Client(root, read_only=read_only) as client:
        reader = client.create_reader("a", MessageId.earliest)
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(2000).data())
        return found


def test_readers_ask_the_topic(tmp_path: Path) -> None:
    """What was aborted stays away, what was committed stays, for all that may write, and others; also for
    a reader and a consumer that stood before it all the time."""
    root = tmp_path / "store"
    with Client(root) as client:
        producer = client.create_producer("a")
        consumer = client.subscribe("a", "s", ConsumerType.Shared)
        for number in range(6):
            txn = client.new_transaction()
            producer.send(b"%d" % number, txn=txn)
            txn.commit() if number % 3 else txn.abort()
        producer.send(b"plain")
        store = client._core.store
        log = store.transactions.log()
        words = log.control.words
        words[TransactionWord.NEXT_ID] = words[TransactionWord.RESERVED]
        folder = store.make_folder(store._current())
        while folder.fold(log, []):
            pass
        assert log.outcome(1) is Outcome.FOLDED
        wanted = [b"1", b"2", b"4", b"5", b"plain"]
        assert [consumer.receive(2000).data() for _ in wanted] == wanted
        assert read_all(root) == wanted
        assert read_all(root, read_only=True) == wanted
    assert read_all(root) == wanted
    assert_clean(root)


def test_whole_columns_ask_the_topic(site: Site) -> None:
    """Arrow reads what committed, without opening the store."""
    arrow = pytest.importorskip("embeddedpulsar.arrow", reason="the extra `arrow` is not installed")
    for _ in range(2):
        site.committed("a")
        site.aborted("a", "a")
    assert arrow.read_topic(site.root, "a", ["value"]).num_rows == 2
    site.end_range()
    site.fold()
    assert arrow.read_topic(site.root, "a", ["value"]).num_rows == 2
    assert arrow.read_topic(site.root, "a", ["value"], isolation="read_uncommitted").num_rows == 6


def test_a_topic_that_is_deleted_meanwhile(site: Site) -> None:
    """Nothing asks any more for what was in it."""
    site.aborted("a")
    site.end_range()
    site.store.delete_topic("a", force=True)
    site.fold()
    assert site.log.lowest() == OUTCOMES_PER_FILE


def test_the_journal_is_short_when_nothing_is_decided(site: Site) -> None:
    """After two looks without a decision both generations begin anew."""
    label = "l" * 4000
    for _ in range(40):
        transaction = site.begin()
        assert transaction.id
        transaction.prepare(label)
        site.resumed().abort()

    def size() -> int:
        return sum(path.stat().st_size for path in (site.root / "txn").glob("journal.*"))

    assert size() > 160_000
    for _ in range(6):
        site.fold()
    assert size() < 4096


def test_housekeeping_folds(site: Site) -> None:
    """The chore of the transactions does it, and a store that is closed does not."""
    aborted = site.aborted("a")
    site.end_range()
    done: list[str] = []
    site.store.transactions.fold = site.chore
    while site.store.transactions.do_chores(done):
        pass
    assert site.log.outcome(aborted) is Outcome.FOLDED and "folded" in done[-1]
    site.store.transactions.fold = lambda log, done: False
    site.aborted("a")
    site.end_range()
    assert not site.store.transactions.do_chores(done)
    assert site.tables() == [1]
