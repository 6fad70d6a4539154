"""Backups of stores with transactions: whole ones, of those that had committed at one moment."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from embeddedpulsar import Admin, Client, ConsumerType
from embeddedpulsar._engine.store.care.store_cut import TransactionMoment
from embeddedpulsar.client.transaction import Transaction
from embeddedpulsar.exceptions import StorageError
from embeddedpulsar.testing import assert_clean
from tests.unit.store.care.test_backup_moment import EARLIEST, KINDS, STEPS, Site, left, site

assert site  # a fixture
OUTPUTS = ("a-out", "z-out")
ALL_STEPS = [*STEPS, "backup:transactions_taken"]


def outputs(root: Path, topic: str) -> list[int]:
    """The numbers that committed."""
    pytest.importorskip("pyarrow", reason="the extra `arrow` is not installed")
    from embeddedpulsar.arrow import read_topic

    return [int(row["value"]) for row in read_topic(root, topic, ["value"]).to_pylist()]


def prepare(site: Site, count: int = 8) -> None:
    """Inputs with a subscription, and two topics of outputs."""
    site.keep("in", *OUTPUTS)
    site.client.subscribe("in", "s", ConsumerType.Shared, initial_position=EARLIEST).close()
    site.send("in", *range(count))


def transform(
    site: Site, count: int, end: Callable[[Transaction], object] = Transaction.commit, name: str = "s"
) -> Transaction:
    """Pass inputs on to both outputs and acknowledge them, in one transaction."""
    txn = site.client.new_transaction()
    producers = [site.client.create_producer(topic) for topic in OUTPUTS]
    with site.client.subscribe("in", name, ConsumerType.Shared) as consumer:
        for _ in range(count):
            message = consumer.receive(2000)
            for producer in producers:
                producer.send(message.data(), txn=txn)
            consumer.acknowledge(message, txn=txn)
        end(txn)
    for producer in producers:
        producer.close()
    return txn


def check(root: Path, inputs: set[int], name: str = "s") -> list[int]:
    """Each input has been passed on to both topics, or comes again; returns those that were."""
    first, second = (outputs(root, topic) for topic in OUTPUTS)
    again = left(root, "in", name)
    assert sorted(first) == sorted(second) and len(first) == len(set(first))
    assert sorted([*first, *again]) == sorted(inputs), (first, again)
    return first


@pytest.mark.parametrize("point", ALL_STEPS)
def test_a_commit_at_each_step(site: Site, point: str) -> None:
    """It is in the backup with all of its messages and acknowledgements, or with none."""
    prepare(site)
    transform(site, 2)
    site.backup_while(point, lambda: transform(site, 3))
    done = check(site.restore(), {*range(8)})
    assert done[:2] == [0, 1] and len(done) in (2, 5)
    assert (len(done) == 5) == (point == "backup:journals_taken")
    # The next one has it, and uses again what is there.
    site.admin.backup(site.target)
    assert len(check(site.restore(), {*range(8)})) == 5


@pytest.mark.parametrize("point", ALL_STEPS)
@pytest.mark.parametrize("kind", ["commit", "abort"])
def test_an_end_at_each_step(site: Site, point: str, kind: str) -> None:
    """All of it was stored before the backup began, and only its end comes meanwhile."""
    prepare(site)
    txn = transform(site, 3, lambda txn: None)
    site.backup_while(point, getattr(txn, kind))
    done = check(site.restore(), {*range(8)})
    assert len(done) == (3 if kind == "commit" and point == "backup:journals_taken" else 0)


def test_an_open_one_is_aborted_in_the_copy(site: Site) -> None:
    """And goes on in the store."""
    prepare(site)
    txn = transform(site, 3, lambda txn: None)
    site.admin.backup(site.target)
    assert check(site.restore(), {*range(8)}) == []
    txn.commit()
    assert check(site.root, {*range(8)}) == [0, 1, 2]


def test_a_prepared_one_is_prepared_in_the_copy(site: Site) -> None:
    """With all of it, whether it is committed there or aborted; also if it was prepared meanwhile."""
    prepare(site)
    txn = transform(site, 2, lambda txn: txn.prepare("first"))
    site.backup_while("backup:journals_taken", lambda: transform(site, 2, lambda txn: txn.prepare("second")))
    places = site.restore(), site.restore()
    for place, decisions in zip(places, (("commit", "abort"), ("abort", "commit")), strict=True):
        with Client(place) as client:
            prepared = client.prepared_transactions()
            assert [each.label for each in prepared] == ["first", "second"]
            for each, decision in zip(prepared, decisions, strict=True):
                getattr(client.resume_transaction(each), decision)()
        done = check(place, {*range(8)})
        assert done == ([0, 1] if decisions[0] == "commit" else [2, 3])
        assert_clean(place)
    txn.commit()
    (second,) = site.client.prepared_transactions()
    site.client.resume_transaction(second).abort()


def test_a_prepared_one_that_is_aborted_behind_the_decisions(site: Site) -> None:
    """A journal of a subscription that is taken then lacks what a commit in the copy needs: it is named."""
    prepare(site)
    transform(site, 3, lambda txn: txn.prepare("invoice"))
    moment = TransactionMoment(str(site.root))
    moment.advance()
    directories = [path.name for path in (Path(site.root) / "topics").iterdir()]
    assert not any(map(moment.named_since(), directories))
    (prepared,) = site.client.prepared_transactions()
    site.client.resume_transaction(prepared).abort()
    assert len(list(filter(moment.named_since(), directories))) == 1  # that of the inputs
    moment.close()


def test_one_that_never_stops_is_held_up_in_the_end(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits name the same subscription whenever its journal was taken again; then the lock is held."""
    prepare(site, 20)
    calls = []

    def commit() -> None:
        calls.append(transform(site, 2))

    from embeddedpulsar._engine.platform import failpoints

    failpoints.set("backup:journals_taken", commit, nth=0)
    site.backup_while("backup:journals_retaken", commit, nth=0)
    # Three attempts with two commits each, and one before the lock is taken.
    assert len(calls) == 7
    assert len(check(site.restore(), {*range(20)})) == 14


def test_without_the_lock_there_is_no_backup(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A moment without it may not be had; the error says why, and the backup before is as it was."""
    from embeddedpulsar._engine.store.care import store_cut

    prepare(site, 4)
    transform(site, 1)
    site.admin.backup(site.target)
    monkeypatch.setattr(store_cut, "hold_for", lambda path, locks: False)
    monkeypatch.setattr(store_cut, "_ATTEMPTS", 4)
    monkeypatch.setattr(store_cut.TransactionMoment, "named_since", lambda moment: lambda directory: True)
    monkeypatch.setattr(store_cut.TransactionMoment, "advance", lambda moment: lambda directory: True)
    with pytest.raises(StorageError, match="transactions acknowledged messages whenever"):
        site.admin.backup(site.target)
    monkeypatch.undo()
    assert check(site.restore(), {*range(4)}) == [0]


@pytest.mark.parametrize("kind", KINDS)
def test_acknowledgements_of_each_type(site: Site, kind: ConsumerType) -> None:
    """Individual and cumulative ones, of a transaction that commits while positions are taken."""
    prepare(site)
    site.client.subscribe("in", "t", kind, initial_position=EARLIEST).close()

    def end() -> None:
        with site.client.subscribe("in", "t", kind) as consumer, site.client.transaction() as txn:
            messages = [consumer.receive(2000) for _ in range(3)]
            if kind in (ConsumerType.Exclusive, ConsumerType.Failover):
                consumer.acknowledge_cumulative(messages[-1], txn=txn)
            else:
                for message in messages:
                    consumer.acknowledge(message, txn=txn)
            with site.client.create_producer("a-out") as producer:
                producer.send(b"1", txn=txn)

    site.backup_while("backup:journals_taken", end)
    place = site.restore()
    assert sorted(left(place, "in", "t") if kind is ConsumerType.Shared else unread(place, kind)) == [
        *range(3, 8)
    ]
    assert outputs(place, "a-out") == [1]


def unread(root: Path, kind: ConsumerType) -> list[int]:
    """What is left of subscription t."""
    with Client(root) as client, client.subscribe("in", "t", kind) as consumer:
        found = []
        while (message := consumer.receive_nowait()) is not None:
            found.append(int(message.data()))
        return found


def test_ids_are_not_given_out_twice(site: Site) -> None:
    """What was open in the store when it was copied stays aborted in the copy."""
    prepare(site)
    site.backup_while("backup:transactions_taken", lambda: transform(site, 1))
    place = site.restore()
    with Client(place) as client, client.create_producer("a-out") as producer:
        with client.transaction() as txn:
            producer.send(b"100", txn=txn)
    assert outputs(place, "a-out") == [100]


def test_of_one_topic(site: Site) -> None:
    """Its part of the transactions, and the decisions of all."""
    prepare(site)
    transform(site, 2)
    txn = transform(site, 1, lambda txn: None)
    site.admin.backup(site.target, topics=["a-out"])
    place = site.restore()
    assert outputs(place, "a-out") == [0, 1]
    txn.abort()


def test_a_store_that_gets_its_first_transaction_meanwhile(site: Site) -> None:
    """There were no decisions when the backup began."""
    prepare(site)
    site.backup_while("backup:journals_taken", lambda: transform(site, 3))
    assert len(check(site.restore(), {*range(8)})) == 3


@pytest.mark.parametrize("point", ["backup:cut", "backup:logs_taken"])
def test_the_first_transaction_behind_the_decisions(site: Site, point: str) -> None:
    """Its entries may be in the copy, whose format says that; they are aborted."""
    prepare(site)
    site.backup_while(point, lambda: transform(site, 3))
    assert check(site.restore(), {*range(8)}) == []


def test_outcomes_that_the_store_has_forgotten(site: Site) -> None:
    """The copy has what its topics say of them, as of the cut: a later document lacks what is trimmed."""
    from array import array

    from embeddedpulsar._engine.store.topic_transactions import FoldedTransactions
    from embeddedpulsar.message_id import BEFORE_FIRST

    prepare(site)
    transform(site, 2)
    txn = transform(site, 2, Transaction.abort)
    below = txn.id.least_sig_bits + 1
    (directory,) = site.root.glob("topics/*-a-out")
    folded = FoldedTransactions(below, BEFORE_FIRST, 1, 1, ((1 << 30, array("Q", [below - 1])),))
    folded.write(str(directory))
    assert site.client._core.store.transactions.log().raise_lowest(below) == below
    assert outputs(site.root, "a-out") == [0, 1]
    site.backup_while("backup:logs_taken", lambda: FoldedTransactions(below).write(str(directory)))
    place = site.restore()
    assert outputs(place, "a-out") == [0, 1]
    folded.write(str(directory))


def test_backups_while_transactions_go_on(site: Site) -> None:
    """One after the other into the same place: each holds whole transactions."""
    count = 120
    prepare(site, count)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            for number in range(count // 4):
                transform(
                    site, 4 if number % 3 else 2, Transaction.abort if number % 5 == 4 else Transaction.commit
                )
        except BaseException as error:
            errors.append(error)

    worker = threading.Thread(target=run)
    worker.start()
    sizes = []
    for _ in range(3):
        site.admin.backup(site.target)
        sizes.append(len(check(site.restore(), {*range(count)})))
    worker.join()
    assert not errors
    assert sizes == sorted(sizes)
    with Admin(site.root) as admin:
        admin.backup(site.target)
    assert sorted(outputs(site.restore(), "a-out")) == sorted(outputs(site.root, "z-out"))
