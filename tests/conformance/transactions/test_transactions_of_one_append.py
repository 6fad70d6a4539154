"""A transaction that is one batch of one producer is one append at its commit: it has no id, and nothing is
stored before. Whatever else is done begins it, and then it is as any other."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress

import pytest

from embeddedpulsar import (
    AlreadyClosed,
    Client,
    CompressionType,
    Interrupted,
    InvalidTxnStatusError,
    MessageId,
    Result,
    TransactionState,
)
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar.exceptions import (
    LockTimeout,
    NotAllowedError,
    TransactionHasOperationFailed,
    TransactionTimeout,
)
from embeddedpulsar.testing.trial_store import assert_clean
from tests.children import in_child
from tests.conformance.conftest import receive_all
from tests.support.held_elsewhere import held_elsewhere

LONG_MS = 60_000
"""A publish delay that no test waits for."""


@pytest.fixture(autouse=True)
def kept(request):
    """Without a subscription, closed ledgers are trimmed; the first entry with an id closes one."""
    if "client" in request.fixturenames:
        request.getfixturevalue("client").subscribe("topic", "keeping").close()


def batching(client, topic="topic", **options):
    """A producer whose batches wait."""
    defaults = {"batching_enabled": True, "batching_max_publish_delay_ms": LONG_MS}
    return client.create_producer(topic, **(defaults | options))


def positions(client, topic="topic"):
    """Text, ledger, entry and index of each message that a reader gets."""
    with client.create_reader(topic, MessageId.earliest) as reader:
        read = []
        while (message := reader.read_nowait()) is not None:
            place = message.message_id()
            read.append((message.data().decode(), place.ledger_id(), place.entry_id(), place.batch_index()))
        return read


def texts(client, topic="topic"):
    """The texts of all messages that a reader gets."""
    return [text for text, *_ in positions(client, topic)]


def has_begun(txn):
    """Whether it has an id, without giving it one."""
    return "(0," in str(txn)


@pytest.mark.parametrize("options", [{}, {"compression_type": CompressionType.ZLib}], ids=["plain", "packed"])
def test_it_is_one_entry_without_an_id(client, admin, options):
    """Its messages are seen at its commit, all at once."""
    producer = batching(client, **options)
    with client.transaction() as txn:
        for text in (b"a", b"b", b"c"):
            producer.send_async(text, None, txn=txn)
        producer.send_async(b"d", None, partition_key="k", properties={"n": "1"}, txn=txn)
        assert texts(client) == [] and not has_begun(txn)
        assert txn.state is TransactionState.OPEN and not admin.transactions().get_slow_transactions(0)
    assert not has_begun(txn) and txn.state is TransactionState.COMMITTED
    read = positions(client)
    assert [text for text, *_ in read] == list("abcd")
    assert len({(ledger, entry) for _, ledger, entry, _ in read}) == 1
    assert [index for *_, index in read] == [0, 1, 2, 3]
    assert producer.last_sequence_id() == 3


def test_an_id_is_given_to_those_that_ask(client, admin):
    """It is that of a transaction that is committed, and of no other."""
    producer = batching(client)
    transactions = []
    for _ in range(2):
        with client.transaction() as txn:
            producer.send_async(b"a", None, txn=txn)
        transactions.append(txn)
    ids = [txn.id for txn in transactions]
    assert len(set(ids)) == 2 and [txn.id for txn in transactions] == ids
    assert [str(txn) for txn in transactions] == [str(one) for one in ids]
    assert all(txn.state is TransactionState.COMMITTED for txn in transactions)
    with pytest.raises(InvalidTxnStatusError):
        admin.transactions().abort_transaction(ids[0])
    with pytest.raises(InvalidTxnStatusError, match="committed"):
        producer.send(b"b", txn=transactions[0])


def test_a_call_of_an_ended_one(client):
    """A second commit does nothing, an abort and a send are refused."""
    producer = batching(client)
    txn = client.new_transaction()
    producer.send_async(b"a", None, txn=txn)
    txn.commit()
    txn.commit()
    with pytest.raises(InvalidTxnStatusError, match="committed"):
        txn.abort()
    results = []
    producer.send_async(b"b", lambda result, sent: results.append(result), txn=txn)
    producer.flush()
    assert results == [Result.InvalidTxnStatusError] and texts(client) == ["a"]


def _acknowledge(client, producer, txn):
    with client.create_producer("in") as feeding:
        consumer = client.subscribe("in", "s")
        feeding.send(b"x")
    consumer.acknowledge(consumer.receive(1000), txn=txn)


OTHERS = {
    "acknowledgement": _acknowledge,
    "other producer": lambda client, producer, txn: client.create_producer("other").send(b"x", txn=txn),
    "other batch": lambda client, producer, txn: batching(client, "other").send_async(b"x", None, txn=txn),
    "send": lambda client, producer, txn: producer.send(b"x", txn=txn),
    "send_many": lambda client, producer, txn: producer.send_many([b"x"], txn=txn),
    "delayed": lambda client, producer, txn: producer.send_async(b"x", None, deliver_at=1, txn=txn),
    "explicit id": lambda client, producer, txn: producer.send_async(b"x", None, sequence_id=9, txn=txn),
    "plain send": lambda client, producer, txn: producer.send(b"x"),
    "flush": lambda client, producer, txn: producer.flush(),
    "publish delay": lambda client, producer, txn: producer._publisher.store_soon(),
    "id": lambda client, producer, txn: txn.id,
    "token": lambda client, producer, txn: txn.token,
    "more than a batch": lambda client, producer, txn: [
        producer.send_async(b"x", None, txn=txn) for _ in range(3)
    ],
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("is_committed", [True, False])
def test_what_begins_it(client, admin, other, is_committed):
    """Then it has an id, is listed, and its messages are in the places of their sends."""
    producer = batching(client, batching_max_messages=3)
    txn = client.new_transaction()
    producer.send_async(b"a", None, txn=txn)
    producer.send_async(b"b", None, txn=txn)
    other(client, producer, txn)
    assert has_begun(txn) and len(admin.transactions().get_slow_transactions(0)) == 1
    producer.send_async(b"c", None, txn=txn)
    assert texts(client) == []
    if is_committed:
        txn.commit()
    else:
        txn.abort()
    producer.flush()
    read = [text for text in texts(client) if text != "x"]
    assert read == (["a", "b", "c"] if is_committed else [])
    if "x" in texts(client):
        assert texts(client)[:2] == (["a", "b"] if is_committed else ["x"])
    assert not admin.transactions().get_slow_transactions(0)


def test_prepared(client):
    """It is stored, and waits for its end."""
    producer = batching(client)
    txn = client.new_transaction()
    producer.send_async(b"a", None, txn=txn)
    prepared = txn.prepare("invoice")
    assert texts(client) == [] and client.prepared_transactions() == [prepared]
    client.resume_transaction(prepared).commit()
    assert texts(client) == ["a"]


def test_plain_messages_behind_it(client):
    """A plain message of the producer is stored behind it: it begins when that is stored."""
    producer = batching(client)
    txn = client.new_transaction()
    producer.send_async(b"a", None, txn=txn)
    producer.send_async(b"plain", None)
    assert not has_begun(txn)
    txn.commit()
    assert texts(client) == ["a"]
    producer.flush()
    assert texts(client) == ["a", "plain"]


def test_messages_before_it(client):
    """What waits in the batch of the producer comes first, so the transaction begins at once."""
    producer = batching(client)
    producer.send_async(b"plain", None)
    with client.transaction() as txn:
        producer.send_async(b"a", None, txn=txn)
        assert has_begun(txn)
    assert texts(client) == ["plain", "a"]


def test_a_full_batch_is_kept_if_nobody_waits_for_it(client):
    """With a callback it is stored, because somebody may wait for that before the commit."""
    producer = batching(client, batching_max_messages=2)
    with client.transaction() as txn:
        producer.send_async(b"a", None, txn=txn)
        producer.send_async(b"b", None, txn=txn)
        assert not has_begun(txn)
    results = []
    with client.transaction() as other:
        producer.send_async(b"c", None, txn=other)
        producer.send_async(b"d", lambda result, sent: results.append((result, sent.entry_id())), txn=other)
        producer.flush()
        assert has_begun(other) and [result for result, _ in results] == [Result.Ok]
    assert texts(client) == list("abcd")


@pytest.mark.parametrize("size", [10, 400, 4000, 70_000])
def test_sizes(client, size):
    """A batch ends at its bytes, too, and the transaction then has several entries."""
    producer = batching(client)
    for count in (1, 3, 50):
        with client.transaction() as txn:
            for number in range(count):
                producer.send_async(b"%d" % number + b"x" * size, None, txn=txn)
        assert has_begun(txn) == (count > 1 and size * count > 128 << 10)
    read = [text.rstrip("x") for text in texts(client)]
    assert read == ["0", *map(str, range(3)), *map(str, range(50))]


def test_callbacks(client):
    """They are called at the commit, in their order, with the ids that readers see."""
    producer = batching(client)
    told = []
    txn = client.new_transaction()
    for number in range(3):
        producer.send_async(b"%d" % number, lambda result, sent: told.append((result, sent)), txn=txn)
    txn.commit()
    producer.flush()
    assert [result for result, _ in told] == [Result.Ok] * 3
    read = [(ledger, entry, index) for _, ledger, entry, index in positions(client)]
    assert [(sent.ledger_id(), sent.entry_id(), sent.batch_index()) for _, sent in told] == read


@pytest.mark.parametrize("has_callback", [True, False])
def test_an_abort(client, has_callback):
    """Nothing is stored if nobody waits for it; a callback gets the id of a message that nobody sees."""
    producer = batching(client)
    results = []
    callback = (lambda result, sent: results.append(result)) if has_callback else None
    txn = client.new_transaction()
    producer.send_async(b"a", callback, txn=txn)
    txn.abort()
    txn.abort()
    assert txn.state is TransactionState.ABORTED and has_begun(txn) == has_callback
    producer.send(b"b")
    producer.flush()
    assert texts(client) == ["b"] and producer.last_sequence_id() == (1 if has_callback else 0)
    assert results == ([Result.Ok] if has_callback else [])
    with pytest.raises(InvalidTxnStatusError):
        txn.commit()


def test_a_timeout(time):
    """At the commit, and at the publish delay: nothing is stored, and the callback gets the reason."""
    time.client.subscribe("topic", "keeping").close()
    producer = batching(time.client)
    for store in (lambda txn: txn.commit(), lambda txn: producer.flush()):
        results = []
        txn = time.client.new_transaction(1000)
        producer.send_async(b"a", lambda result, sent, told=results: told.append(result), txn=txn)
        time.pass_ms(2000)
        assert txn.state is TransactionState.TIME_OUT
        try:
            store(txn)
        except TransactionTimeout:
            producer.flush()
        with pytest.raises((TransactionTimeout, TransactionHasOperationFailed)):
            txn.commit()
        assert [result.name for result in results] == ["TransactionTimeout"] or results == [
            Result.InvalidTxnStatusError
        ]
    assert texts(time.client) == []


@pytest.mark.parametrize("has_callback", [True, False])
def test_a_producer_that_is_closed_first(client, has_callback):
    """Its messages fail, and the commit is an abort."""
    producer = batching(client)
    results = []
    callback = (lambda result, sent: results.append(result)) if has_callback else None
    txn = client.new_transaction()
    producer.send_async(b"a", callback, txn=txn)
    producer.close()
    with pytest.raises(TransactionHasOperationFailed):
        txn.commit()
    assert txn.state is TransactionState.ABORTED and texts(client) == []
    assert results == ([Result.AlreadyClosed] if has_callback else [])


def test_a_topic_that_refuses_it(client, topics):
    """As any failed send does, that makes of the commit an abort."""
    producer = batching(client)
    txn = client.new_transaction()
    producer.send_async(b"a", None, txn=txn)
    topics.terminate_topic("topic")
    with pytest.raises(TransactionHasOperationFailed):
        txn.commit()
    assert txn.state is TransactionState.ABORTED and texts(client) == []


def test_where_it_does_not_begin(client):
    """A message of a non-persistent topic is refused, as before."""
    producer = batching(client, "non-persistent://public/default/fleeting")
    txn = client.new_transaction()
    producer.send_async(b"a", None, txn=txn)
    with pytest.raises(NotAllowedError, match="non-persistent"):
        producer.flush()
    txn.abort()


def test_deduplication(client, topics):
    """The ids that it used are used, and a producer of the name goes on behind them."""
    client.create_producer("topic").close()
    topics.set_deduplication_status("topic", True)
    with batching(client, producer_name="till-1") as producer:
        with client.transaction() as txn:
            producer.send_async(b"a", None, txn=txn)
            producer.send_async(b"b", None, txn=txn)
        assert not has_begun(txn)
        producer.send(b"again", sequence_id=1)
    with batching(client, producer_name="till-1") as producer:
        assert producer.last_sequence_id() == 1
    assert texts(client) == ["a", "b"]


@pytest.mark.parametrize("level", ["interval", "flush"])
def test_levels(store_path, level):
    """At level "flush" it is as any other: its commit shows nothing that is not on the disk."""
    with Client(store_path, durability=level) as client:
        client.subscribe("topic", "keeping").close()
        producer = batching(client)
        with client.transaction() as txn:
            producer.send_async(b"a", None, txn=txn)
        assert has_begun(txn) == (level == "flush") and texts(client) == ["a"]
    assert_clean(store_path)


POINTS = (
    "client_txn:deferred_encoded",
    "append:owner_set",
    "append:body_done",
    "append:tail_stored",
    "client_txn:committed",
)


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("then", ["abort", "commit", "flush"])
def test_an_interrupted_commit(store_path, point, then):
    """Its state says what became of it, and an abort, another commit, or a flush agree with that."""
    with Client(store_path) as client:
        client.subscribe("topic", "keeping").close()
        producer = batching(client)
        txn = client.new_transaction()
        producer.send_async(b"a", None, txn=txn)
        failpoints.set(point, "raise:KeyboardInterrupt")
        try:
            with pytest.raises(Interrupted):
                txn.commit()
        finally:
            failpoints.clear()
        if then == "commit":
            txn.commit()
        elif then == "flush":
            producer.flush()
        else:
            # What was about to be stored may be stored by the thread that retries, before this.
            with suppress(InvalidTxnStatusError):
                txn.abort()
        is_committed = txn.state is TransactionState.COMMITTED
        assert txn.state.is_final and (is_committed or then == "abort")
        assert is_committed or point not in ("append:tail_stored", "client_txn:committed")
        assert not producer._publisher.queue.singles
        producer.send(b"b")
        assert texts(client) == (["a", "b"] if is_committed else ["b"])
    assert_clean(store_path)


def test_a_topic_that_is_locked(store_path):
    """The commit waits. If it may wait no longer, the messages fail, and nothing is stored later."""
    with Client(store_path, operation_timeout_seconds=1) as client:
        client.subscribe("topic", "keeping").close()
        producer = batching(client)
        lock = producer._publisher.session.ledger.lock.path
        for is_long in (True, False):
            txn = client.new_transaction()
            producer.send_async(b"a", None, txn=txn)
            with held_elsewhere(lock):
                if is_long:
                    with pytest.raises((TransactionHasOperationFailed, LockTimeout)):
                        txn.commit()
                else:
                    thread = threading.Thread(target=txn.commit)
                    thread.start()
            if not is_long:
                thread.join(20)
                assert txn.state is TransactionState.COMMITTED
        assert texts(client) == ["a"]
    assert_clean(store_path)


def test_a_forked_child(client):
    """Its copy is dead; the parent goes on."""
    producer = batching(client)
    txn = client.new_transaction()
    producer.send_async(b"a", None, txn=txn)

    def child():
        results = []
        producer.send_async(b"child", lambda result, sent: results.append(result), txn=txn)
        for call in (txn.commit, txn.abort):
            with pytest.raises(AlreadyClosed):
                call()
        producer.flush()
        return [result.name for result in results]

    assert in_child(child) == "['AlreadyClosed']"
    txn.commit()
    assert texts(client) == ["a"]


def test_threads_that_send_at_once(client):
    """What is sent in one transaction by several threads, while others store the queue, is all of it."""
    producer = batching(client, batching_max_messages=8)
    is_over = threading.Event()

    def store():
        while not is_over.is_set():
            producer._publisher.store_soon()

    storing = threading.Thread(target=store)
    interval = sys.getswitchinterval()
    try:
        sys.setswitchinterval(1e-5)
        storing.start()
        for number in range(60):
            with client.transaction() as txn:

                def send(thread, txn=txn, number=number):
                    for count in range(5):
                        producer.send_async(b"%d-%d-%d" % (number, thread, count), None, txn=txn)

                threads = [threading.Thread(target=send, args=(thread,)) for thread in range(3)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
    finally:
        sys.setswitchinterval(interval)
        is_over.set()
        storing.join()
    read = texts(client)
    assert sorted(read) == sorted(f"{n}-{t}-{c}" for n in range(60) for t in range(3) for c in range(5))
    for thread in range(3):
        mine = [text for text in read if text.split("-")[1] == str(thread)]
        assert mine == [f"{n}-{thread}-{c}" for n in range(60) for c in range(5)]


def test_a_consumer_gets_it_with_its_commit(client):
    """As one batch."""
    consumer = client.subscribe("topic", "s")
    producer = batching(client)
    with client.transaction() as txn:
        for number in range(5):
            producer.send_async(b"%d" % number, None, txn=txn)
        assert consumer.receive_nowait() is None
    assert [message.data() for message in receive_all(consumer)] == [b"%d" % number for number in range(5)]
