"""The ends of a transaction: commit, abort, timeout, prepare, and the ends of its client and its process."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path

import pytest

from embeddedpulsar import (
    AlreadyClosed,
    Client,
    ConsumerType,
    InvalidConfiguration,
    InvalidTxnStatusError,
    MessageId,
    NotAllowedError,
    TransactionNotFound,
    TransactionState,
    TxnID,
)
from embeddedpulsar.exceptions import ReadOnlyStoreError, TransactionHasOperationFailed
from embeddedpulsar.message_id import Position
from embeddedpulsar.testing.trial_store import assert_clean
from tests.children import in_child
from tests.conformance.conftest import numbers, receive_all


def opened(path, **options):
    """A client of a store in a directory."""
    return Client(path, **options)


def set_conf(path: Path, text: str) -> None:
    path.mkdir(exist_ok=True)
    (path / "broker.conf").write_text(text)


def test_an_id(client):
    """A value, in Pulsar's form; the first look begins the transaction."""
    txn = client.new_transaction(label="a label")
    assert str(txn) == "(not begun)" and txn.state is TransactionState.OPEN
    assert txn.id == TxnID(0, 1) and str(txn.id) == str(txn) == "(0,1)"
    assert repr(txn) == "<Transaction (0,1) OPEN>"
    (shown,) = client._core.store.transactions.log().open_transactions()
    assert (shown.txn_id, shown.label) == (1, "a label")
    txn.abort()
    assert txn.state is TransactionState.ABORTED and txn.id == TxnID(0, 1)


def test_nothing_done(client):
    """Commit and abort of nothing, by all ways; no id is used."""
    with client.transaction() as txn:
        pass
    assert txn.state is TransactionState.COMMITTED
    txn.commit()
    txn = client.new_transaction()
    txn.abort()
    txn.abort()
    assert txn.state is TransactionState.ABORTED
    with pytest.raises(InvalidTxnStatusError):
        txn.commit()
    assert client.new_transaction().id == TxnID(0, 1)


def test_ended_within_the_block(client, topic):
    """The end of the block leaves it as it is."""
    producer = topic.producer()
    with client.transaction() as committed:
        producer.send(b"a", txn=committed)
        committed.commit()
    with client.transaction() as aborted:
        producer.send(b"b", txn=aborted)
        aborted.abort()
    with client.transaction() as prepared:
        producer.send(b"c", txn=prepared)
        prepared.prepare("c")
    assert committed.state is TransactionState.COMMITTED and aborted.state is TransactionState.ABORTED
    assert prepared.state is TransactionState.PREPARED
    prepared.abort()
    assert client.prepared_transactions() == []


def test_arguments(client):
    """Of a wrong type, and beyond the limit."""
    for call in (client.transaction, client.new_transaction):
        for timeout_ms in (0, -1, 900_001, 1.5, None):
            with pytest.raises((ValueError, TypeError)):
                call(timeout_ms)
        with pytest.raises(ValueError, match="label"):
            call(label=5)
    with pytest.raises(ValueError, match="token"):
        client.join_transaction("x")
    with pytest.raises(ValueError, match="no token"):
        client.join_transaction(b"x")
    with pytest.raises(TypeError):
        client.resume_transaction(17)
    with pytest.raises(TransactionNotFound):
        client.resume_transaction(TxnID(0, 17))
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(client.new_transaction())


def test_the_limits_of_the_store(store_path):
    """Settings: whether there are transactions, how many, and how long."""
    set_conf(store_path, "maxActiveTransactionsPerCoordinator=2\ntransactionMaxTimeoutInSeconds=5\n")
    with opened(store_path) as client:
        with pytest.raises(ValueError, match="transactionMaxTimeoutInSeconds"):
            client.new_transaction(5001)
        one, other, third = (client.new_transaction(5000) for _ in range(3))
        assert one.id and other.id
        with pytest.raises(NotAllowedError, match="maxActiveTransactionsPerCoordinator"):
            client.create_producer("topic").send(b"a", txn=third)
        one.abort()
        assert third.id == TxnID(0, 3)
    set_conf(store_path, "transactionCoordinatorEnabled=false\n")
    with opened(store_path) as client:
        with pytest.raises(InvalidConfiguration, match="transactionCoordinatorEnabled"):
            client.new_transaction()
        with pytest.raises(InvalidConfiguration):
            client.join_transaction(b"x" * 40)
    with opened(store_path, read_only=True) as client:
        with pytest.raises(ReadOnlyStoreError):
            client.new_transaction()
        assert client.prepared_transactions() == []


def test_the_client_aborts_what_it_leaves_open(store_path):
    """So nobody waits for its timeout, also where the process has another client."""
    with opened(store_path) as other:
        consumer = other.subscribe("topic", "sub", ConsumerType.Shared)
        client = opened(store_path)
        producer = client.create_producer("topic")
        producer.send(b"hello-0")
        message = consumer.receive(1000)
        txn = client.new_transaction()
        producer.send(b"hello-1", txn=txn)
        consumer.acknowledge(message, txn=txn)
        client.close()
        assert txn.state is TransactionState.ABORTED
        assert numbers(receive_all(consumer)) == [0]
        with pytest.raises(AlreadyClosed):
            client.transaction()
    assert_clean(store_path)


def test_a_forked_child(client, topic):
    """Its copy is dead; the parent goes on."""
    producer = topic.producer()
    txn = client.new_transaction()
    producer.send(b"a", txn=txn)

    def child():
        for call in (txn.commit, txn.abort, lambda: producer.send(b"b", txn=txn), lambda: txn.token):
            with pytest.raises(AlreadyClosed):
                call()
        with client.transaction() as own:
            producer.send(b"c", txn=own)
        return "done"

    assert in_child(child) == "done"
    txn.commit()
    assert txn.state is TransactionState.COMMITTED


def test_two_phases(store_path):
    """A prepared transaction outlives its process, and any other ends it."""
    with opened(store_path) as client:
        producer = client.create_producer("topic")
        consumer = client.subscribe("in", "sub", ConsumerType.Shared)
        inputs = client.create_producer("in")
        prepared = []
        for number in range(2):
            inputs.send(b"hello-%d" % number)
            txn = client.new_transaction()
            producer.send(b"hello-%d" % number, txn=txn)
            consumer.acknowledge(consumer.receive(1000), txn=txn)
            prepared.append(txn.prepare(f"invoice-{number}"))
            with pytest.raises(InvalidTxnStatusError, match="prepared"):
                producer.send(b"more", txn=txn)
        assert [one.label for one in prepared] == ["invoice-0", "invoice-1"]
    with opened(store_path) as client:
        assert client.prepared_transactions() == prepared
        consumer = client.subscribe("in", "sub", ConsumerType.Shared)
        assert receive_all(consumer) == []
        first = client.resume_transaction(prepared[0])
        assert first.state is TransactionState.PREPARED
        first.commit()
        client.resume_transaction(prepared[1].id).abort()
        assert numbers(receive_all(consumer)) == [1]
        with pytest.raises(TransactionNotFound):
            client.resume_transaction(prepared[0])
        assert client.prepared_transactions() == []
    assert_clean(store_path)


def test_preparing_what_has_a_failure(client, topic):
    """It is aborted instead."""
    txn = client.new_transaction()
    topic.producer().send_async(bytes(6 << 20), None, txn=txn)
    with pytest.raises(TransactionHasOperationFailed):
        txn.prepare("x")
    with pytest.raises(ValueError, match="label"):
        client.new_transaction().prepare(5)
    with pytest.raises(ValueError, match=r"4096|label"):
        client.new_transaction().prepare("x" * 5000)


def test_taking_part(store_path):
    """Another client sends and acknowledges in a transaction; only who began it commits."""
    with opened(store_path) as client, opened(store_path) as worker:
        producer, inputs = worker.create_producer("topic"), client.create_producer("in")
        consumer = worker.subscribe("in", "sub", ConsumerType.Shared)
        for is_committed in (True, False):
            inputs.send(b"hello-7")
            txn = client.new_transaction()
            with worker.join_transaction(txn.token) as joined:
                producer.send_async(b"a", None, txn=joined)
                consumer.acknowledge(consumer.receive(1000), txn=joined)
                for call in (joined.commit, joined.prepare, lambda joined=joined: joined.token):
                    with pytest.raises(NotAllowedError):
                        call()
            assert joined.id == txn.id and txn.state is TransactionState.OPEN
            if is_committed:
                txn.commit()
                assert receive_all(consumer) == []
            else:
                txn.abort()
                assert numbers(receive_all(consumer)) == [7]
            with pytest.raises(InvalidTxnStatusError):
                producer.send(b"late", txn=joined)
    assert_clean(store_path)


def test_a_failure_of_one_that_takes_part(store_path):
    """The transaction is aborted for all."""
    with opened(store_path) as client, opened(store_path) as worker:
        txn = client.new_transaction()
        token = txn.token

        def work():
            with worker.join_transaction(token) as joined:
                worker.create_producer("topic").send(b"a", txn=joined)
                raise KeyError

        with pytest.raises(KeyError):
            work()
        with pytest.raises(InvalidTxnStatusError):
            txn.commit()
        assert txn.state is TransactionState.ABORTED
        with pytest.raises(InvalidTxnStatusError):
            worker.join_transaction(token)


@pytest.mark.parametrize("durability", ["process", "interval", "flush"])
def test_the_levels_of_durability(store_path, durability):
    """At level flush all participants are flushed by the commit, and not one by one."""
    from embeddedpulsar._engine.platform import disk

    with opened(store_path, durability=durability) as client:
        producer, inputs = client.create_producer("topic"), client.create_producer("in")
        consumer = client.subscribe("in", "sub")
        for _ in range(5):
            inputs.send(b"hello-1")
        messages = receive_all(consumer)
        with client.transaction() as txn:  # the files are there
            producer.send(b"a", txn=txn)
            consumer.acknowledge(messages[0], txn=txn)
        counting = _Counting(disk.DISK)
        txn = client.new_transaction()
        with disk.use(counting):
            for message in messages[1:]:
                producer.send(b"a", txn=txn)
                consumer.acknowledge(message, txn=txn)
            before = counting.flushes
            txn.commit()
        if durability == "flush":
            assert before == 0 and counting.flushes == 3
        else:
            assert counting.flushes == 0
    assert_clean(store_path)


class _Counting:
    """A disk that counts flushes, but for those of timers, which follow the ends of earlier transactions."""

    def __init__(self, real):
        self._real = real
        self.flushes = 0

    def __getattr__(self, name):
        return getattr(self._real, name)

    def fdatasync(self, *arguments):
        self.flushes += "timers" not in threading.current_thread().name
        return self._real.fdatasync(*arguments)


def test_facts_of_the_commit(client, topic):
    """The record of the decision says what was stored where."""
    log = client._core.store.transactions.log()
    consumer = topic.consumer()
    topic.publish(1)
    producer, other = topic.producer(), topic.producer()
    with client.transaction() as txn:
        first = producer.send(b"a", txn=txn)
        other.send(b"b", txn=txn)
        last = producer.send(b"c", txn=txn)
        consumer.acknowledge(receive_all(consumer)[0], txn=txn)
    from embeddedpulsar._engine.txn.transaction_view import TransactionView

    view = TransactionView(client._core.store.root, log.options.boot, log.options.clock, lambda uuid: True)
    view.refresh()
    (commit,) = view.commits()
    on_topic, on_subscription = commit.participants
    assert (on_topic.operations, on_subscription.operations) == (3, 1)
    for word, sent in ((on_topic.first, first), (on_topic.last, last)):
        assert Position(word >> 32, word & 0xFFFFFFFF) == (sent.ledger_id(), sent.entry_id())
    assert on_subscription.name.startswith(on_topic.name + "/subscriptions/")
    view.close()


def test_a_commit_that_does_not_answer(store_path):
    """The state tells, and the call may be repeated."""
    from tests.support.held_elsewhere import held_elsewhere

    with opened(store_path, operation_timeout_seconds=1) as client:
        producer = client.create_producer("topic")
        txn = client.new_transaction()
        producer.send(b"a", txn=txn)
        with held_elsewhere(store_path / "txn" / "lock"):
            with pytest.raises(Exception, match="lock"):
                txn.commit()
            assert txn.state in (TransactionState.OPEN, TransactionState.COMMITTING)
        txn.commit()
        assert txn.state is TransactionState.COMMITTED
        reader = client.create_reader("topic", MessageId.earliest)
        assert reader.read_next(1000).data() == b"a"
