"""What is sent in a transaction is seen when that commits, in its place, and never when it is aborted."""

from __future__ import annotations

import datetime
import sys

import pytest

from embeddedpulsar import (
    BatchingType,
    Client,
    CompressionType,
    ConsumerType,
    InvalidTxnStatusError,
    MessageId,
    NotAllowedError,
    Result,
    TransactionState,
)
from embeddedpulsar.exceptions import TransactionHasOperationFailed, TransactionTimeout
from embeddedpulsar.schema import JsonSchema, Record, String
from tests.conformance.conftest import receive_all
from tests.support.clients import texts
from tests.support.key_files import key_files, sealing

OPTIONS = {
    "single": {},
    "batched": {"batching_enabled": True},
    "compressed": {"batching_enabled": True, "compression_type": CompressionType.ZLib},
    "by key": {"batching_enabled": True, "batching_type": BatchingType.KeyBased},
    "few": {"batching_enabled": True, "batching_max_messages": 2},
}


@pytest.fixture(autouse=True)
def kept(request):
    """Without a subscription, closed ledgers are trimmed; the first message of a transaction closes one."""
    if "client" in request.fixturenames:
        request.getfixturevalue("client").subscribe("topic", "keeping").close()


def read(client, topic="topic"):
    """The texts of all messages that a reader gets."""
    with client.create_reader(topic, MessageId.earliest) as reader:
        found = []
        while (message := reader.read_nowait()) is not None:
            found.append(message.data().decode())
        return found


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("is_committed", [True, False])
def test_all_ways_of_sending(client, topic, options, is_committed):
    """Sync, async, with and without key, and whole columns, in one transaction."""
    producer = topic.producer(**options)
    producer.send(b"before")
    txn = client.new_transaction()
    ids = [producer.send(b"a", txn=txn), producer.send(b"b", partition_key="k", txn=txn)]
    results = []
    producer.send_async(b"c", lambda result, sent: results.append(result), txn=txn)
    producer.send_async(b"d", None, {"n": "1"}, event_timestamp=5, txn=txn)
    ids += producer.send_many([b"e", b"f"], partition_keys=["k", None], txn=txn)
    producer.send(b"g", deliver_after=datetime.timedelta(milliseconds=1), txn=txn)
    assert read(client) == ["before"]
    if is_committed:
        txn.commit()
    else:
        txn.abort()
    producer.send(b"after")
    producer.flush()
    expected = ["before", *("abcdefg" if is_committed else ""), "after"]
    assert read(client) == expected
    assert results == [Result.Ok] and len({str(one) for one in ids}) == 4


def test_an_arrow_table(client, topic):
    """Its rows are those of the transaction."""
    pa = pytest.importorskip("pyarrow")
    producer = topic.producer()
    table = pa.table({"value": ["a", "b"], "key": ["k", None]})
    with client.transaction() as txn:
        producer.send_arrow(table, key="key", txn=txn)
        assert read(client) == []
    assert read(client) == ["a", "b"]


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_batch_is_of_one_transaction_or_none(client, topic, options):
    """Plain messages and those of two transactions, through one producer: each follows its own fate, in the
    order of the sends."""
    producer = topic.producer(**options, batching_max_publish_delay_ms=60_000)
    one, other = client.new_transaction(), client.new_transaction()
    for number in range(12):
        producer.send_async(b"%d" % number, None, txn=(None, one, other)[number % 3])
    other.abort()
    one.commit()
    producer.flush()
    assert sorted(map(int, read(client))) == [n for n in range(12) if n % 3 < 2]
    if options.get("batching_type") is not BatchingType.KeyBased:
        assert read(client) == [str(n) for n in range(12) if n % 3 < 2]


def test_a_chunked_message(client, topic):
    """All its parts are those of the transaction."""
    producer = topic.producer(chunking_enabled=True)
    large = bytes(range(256)) * 30_000
    kept, dropped = client.new_transaction(), client.new_transaction()
    producer.send(large, txn=kept)
    producer.send(large, txn=dropped)
    consumer = topic.consumer()
    assert receive_all(consumer) == []
    dropped.abort()
    kept.commit()
    assert [message.data() for message in receive_all(consumer)] == [large]


def test_a_schema(client):
    """Values are encoded as without a transaction."""

    class Order(Record):
        text = String()

    producer = client.create_producer("topic", schema=JsonSchema(Order))
    consumer = client.subscribe("topic", "sub", schema=JsonSchema(Order))
    with client.transaction() as txn:
        producer.send(Order(text="tea"), txn=txn)
    assert consumer.receive(1000).value().text == "tea"


def test_an_encrypted_message(client, topic, tmp_path):
    """The outcome is known to those that cannot decrypt it."""
    pytest.importorskip("cryptography")
    keys = key_files(tmp_path)
    producer = topic.producer(**sealing(keys), batching_enabled=True)
    consumer = topic.consumer(crypto_key_reader=keys)
    for is_committed in (True, False):
        txn = client.new_transaction()
        producer.send(b"secret", txn=txn)
        if is_committed:
            txn.commit()
        else:
            txn.abort()
    assert texts(receive_all(consumer)) == ["secret"]


def test_partitions(client, admin):
    """A transaction spans the partitions of a topic, and other topics."""
    admin.topics().create_partitioned_topic("parted", 3)
    producer, other = client.create_producer("parted"), client.create_producer("topic")
    consumer = client.subscribe(["parted", "topic"], "sub", ConsumerType.Shared)
    with client.transaction() as txn:
        for number in range(9):
            producer.send_async(b"%d" % number, None, txn=txn)
        other.send(b"9", txn=txn)
        assert receive_all(consumer) == []
    assert sorted(texts(receive_all(consumer))) == list("0123456789")


def test_interceptors_see_the_messages(client):
    """As those without a transaction."""
    from embeddedpulsar import ProducerInterceptor

    seen = []

    class Note(ProducerInterceptor):
        def on_send_acknowledgement(self, producer, message, message_id, error):
            seen.append((message.data(), error))

    producer = client.create_producer("topic", interceptors=[Note()])
    with client.transaction() as txn:
        producer.send(b"a", txn=txn)
        producer.send_async(b"b", None, txn=txn)
    producer.flush()
    assert sorted(seen) == [(b"a", None), (b"b", None)] and read(client) == ["a", "b"]


@pytest.mark.parametrize("error", [KeyError("x"), KeyboardInterrupt()])
def test_an_exception_aborts(client, topic, error):
    """Also Ctrl-C; the error goes to the caller."""
    producer, begun = topic.producer(), []

    def work():
        with client.transaction() as txn:
            begun.append(txn)
            producer.send(b"a", txn=txn)
            raise error

    with pytest.raises(type(error)):
        work()
    assert begun[0].state is TransactionState.ABORTED
    assert read(client) == []


def test_it_cannot_be_used_after_its_end(client, topic):
    """The error says how it ended."""
    producer = topic.producer()
    with client.transaction() as txn:
        producer.send(b"a", txn=txn)
    with pytest.raises(InvalidTxnStatusError, match="committed"):
        producer.send(b"b", txn=txn)
    results = []
    producer.send_async(b"b", lambda result, sent: results.append(result), txn=txn)
    with pytest.raises(InvalidTxnStatusError, match="committed"):
        producer.send_many([b"b"], txn=txn)
    with pytest.raises(InvalidTxnStatusError, match="committed"):
        txn.abort()
    producer.flush()
    assert read(client) == ["a"] and results == [Result.InvalidTxnStatusError]


def test_a_timeout(time):
    """The transaction is aborted, and says so."""
    time.client.subscribe("topic", "keeping").close()
    producer = time.client.create_producer("topic")
    txn = time.client.new_transaction(1000)
    producer.send(b"a", txn=txn)
    time.pass_ms(2000)
    assert txn.state is TransactionState.TIME_OUT
    with pytest.raises(TransactionTimeout):
        txn.commit()
    with pytest.raises(TransactionTimeout):
        producer.send(b"b", txn=txn)
    producer.send(b"c")
    assert read(time.client) == ["c"]


def test_a_send_that_failed_makes_of_the_commit_an_abort(client, topic):
    """Its error is the cause."""
    producer = topic.producer()
    txn = client.new_transaction()
    producer.send(b"a", txn=txn)
    results = []
    producer.send_async(bytes(6 << 20), lambda result, sent: results.append(result), txn=txn)
    with pytest.raises(TransactionHasOperationFailed) as raised:
        txn.commit()
    assert "maxMessageSize" in str(raised.value) and txn.state is TransactionState.ABORTED
    assert read(client) == []
    client.create_producer("other").flush()
    assert results == [Result.MessageTooBig]


def test_a_producer_that_is_closed_first(client, topic):
    """What it had queued is lost with it, so the transaction is aborted."""
    producer = topic.producer(batching_enabled=True, batching_max_publish_delay_ms=60_000)
    txn = client.new_transaction()
    producer.send_async(b"a", None, txn=txn)
    producer.close()
    with pytest.raises(TransactionHasOperationFailed):
        txn.commit()


def test_a_non_persistent_topic(client):
    """It keeps nothing that could be undone."""
    producer = client.create_producer("non-persistent://public/default/fleeting")
    with client.transaction() as txn, pytest.raises(NotAllowedError, match="non-persistent"):
        producer.send(b"a", txn=txn)


def test_wrong_transactions(client, topic, tmp_path):
    """What is no transaction is refused, and so is one of another store."""
    from embeddedpulsar import Client

    producer = topic.producer()
    with pytest.raises(ValueError, match="txn"):
        producer.send(b"a", txn="(0,1)")
    with Client(tmp_path / "other") as other, pytest.raises(ValueError, match="is one of the store"):
        producer.send(b"a", txn=other.new_transaction())


def test_deduplication(client, topics):
    """Ids that an aborted transaction used are used."""
    client.create_producer("topic").close()
    topics.set_deduplication_status("topic", True)
    producer = client.create_producer("topic", "till-1")
    with client.transaction() as txn:
        producer.send(b"a", sequence_id=5, txn=txn)
        producer.send(b"again", sequence_id=5, txn=txn)
    assert read(client) == ["a"]
    txn = client.new_transaction()
    producer.send(b"b", sequence_id=6, txn=txn)
    txn.abort()
    producer.send(b"b", sequence_id=6)
    producer.send(b"c", sequence_id=7)
    assert read(client) == ["a", "c"]


def test_a_later_message_of_a_batch_takes_one_call(client, topic):
    """As one without a transaction does."""
    producer = topic.producer(batching_enabled=True, batching_max_publish_delay_ms=60_000)
    calls = []

    def note(frame, event, argument):
        if event == "call":
            calls.append(frame.f_code.co_name)

    with client.transaction() as txn:
        producer.send_async(b"a", None, txn=txn)
        sys.setprofile(note)
        producer.send_async(b"b", None, txn=txn)
        producer.send_async(b"c", lambda result, sent: None, txn=txn)
        sys.setprofile(None)
        producer.send_async(None, None, txn=txn)
    assert calls == ["send_async"] * 2
    with client.create_reader("topic", MessageId.earliest) as reader:
        sent = [reader.read_next() for _ in range(4)]
    assert [(message.data(), message.has_null_value()) for message in sent][-1] == (b"", True)
    assert [message.data() for message in sent[:3]] == [b"a", b"b", b"c"]


@pytest.mark.parametrize("durability", ["process", "interval", "flush"])
@pytest.mark.parametrize("options", [{}, {"batching_enabled": True}], ids=["single", "batched"])
def test_a_later_send_takes_few_calls(tmp_path, durability, options):
    """At every level: its commit waits for the disk, and not the send."""
    calls = []

    def note(frame, event, argument):
        if event == "call":
            calls.append(frame.f_code.co_name)

    with Client(tmp_path / "store", durability=durability) as client:
        client.subscribe("topic", "keeps the first ledger, which the first transaction closes").close()
        producer = client.create_producer("topic", **options)
        for number in range(100):  # the first ones are measured
            producer.send(b"%d" % number)
        with client.transaction() as txn:
            producer.send(b"100", partition_key="k", txn=txn)  # the first key of a process imports its hash
            sys.setprofile(note)
            message_id = producer.send(b"101", partition_key="k", txn=txn)
            sys.setprofile(None)
            producer.send_async(b"102", None, txn=txn)
            producer.send(b"103", properties={"a": "b"}, txn=txn)  # behind what is queued
        assert len(calls) < 38, calls
        assert message_id.batch_index() == (0 if options else -1)
        assert read(client) == [str(number) for number in range(104)]
        with client.create_reader("topic", message_id, start_message_id_inclusive=True) as reader:
            message = reader.read_next()
            assert (message.data(), message.partition_key(), message.message_id()) == (
                b"101",
                "k",
                message_id,
            )


def test_a_batch_behind_columns(client, topic):
    """The first messages of the transaction were no batch of the queue."""
    producer = topic.producer(batching_enabled=True, batching_max_publish_delay_ms=60_000)
    txn = client.new_transaction()
    producer.send_many([b"a", b"b"], txn=txn)
    producer.send_async(b"c", None, txn=txn)
    producer.send_async(b"d", None)
    producer.flush()
    txn.abort()
    assert read(client) == ["d"]
