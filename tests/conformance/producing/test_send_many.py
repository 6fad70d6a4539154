"""`send_many`: many messages in one call, in whole entries, as if each had been sent."""

from __future__ import annotations

import errno
import os
import signal
import threading

import pytest

from embeddedpulsar import (
    AlreadyClosed,
    BatchingType,
    Client,
    CompressionType,
    ConsumerType,
    Interrupted,
    InvalidConfiguration,
    MessageId,
    MessageTooBig,
    OperationNotSupported,
    ProducerInterceptor,
)
from embeddedpulsar._engine.platform import disk, failpoints
from embeddedpulsar.exceptions import StorageFullError
from embeddedpulsar.schema import StringSchema
from tests.conformance.conftest import numbers, receive_all
from tests.conformance.partitioned import PartitionedTopic
from tests.support.disks.faulty_disk import FaultyDisk
from tests.support.key_files import key_files


def hellos(start, stop):
    """The payloads that `numbers` understands."""
    return [b"hello-%d" % i for i in range(start, stop)]


@pytest.mark.in_memory
def test_consumers_see_one_message_after_the_other(topic):
    """In order, with their ids, and acknowledged one by one like messages of any batch."""
    consumer = topic.consumer()
    with topic.producer() as producer:
        sent = producer.send_many(hellos(0, 100), batching_max_messages=30)
    messages = receive_all(consumer)
    assert numbers(messages) == list(range(100))
    assert [message.message_id() for message in messages] == list(sent)
    assert len(sent) == 100 and sent.entries() == 4
    assert sent[-1] == sent[99] and sent[2:5] == list(sent)[2:5]
    with pytest.raises(IndexError):
        sent[100]
    assert [one.batch_index() for one in sent[28:32]] == [28, 29, 0, 1]


def test_nothing_is_nothing(topic):
    """No values: no entry, no id, no error."""
    with topic.producer() as producer:
        assert list(producer.send_many([])) == []
        assert producer.last_sequence_id() == -1


def test_order_with_other_sends(topic):
    """What waits in a batch goes first, what comes later goes behind, and sequence ids count through."""
    consumer = topic.consumer()
    with topic.producer(batching_enabled=True, batching_max_publish_delay_ms=60_000) as producer:
        producer.send_async(b"hello-0", None)
        producer.send_many(hellos(1, 4))
        producer.send_async(b"hello-4", None)
        producer.send_many(iter(hellos(5, 7)))
        producer.send(b"hello-7")
        assert producer.last_sequence_id() == 7
    messages = receive_all(consumer)
    assert numbers(messages) == list(range(8))
    assert [message.sequence_id() for message in messages] == list(range(8))


def test_explicit_sequence_ids(topic):
    """They are used as they are, 0 as well, and do not advance the automatic ones."""
    consumer = topic.consumer()
    with topic.producer() as producer:
        producer.send_many(hellos(0, 3), sequence_ids=range(3))
        producer.send_many(hellos(3, 6), sequence_ids=[7, 5, 5])
        producer.send(b"hello-6")
    assert [message.sequence_id() for message in receive_all(consumer)] == [0, 1, 2, 7, 5, 5, 0]


def test_an_entry_never_exceeds_the_limits(topic):
    """Messages, bytes of payload, and maxMessageSize with keys and properties."""
    with topic.producer() as producer:
        assert producer.send_many([b"x" * 100] * 10, batching_max_allowed_size_in_bytes=350).entries() == 4
        assert producer.send_many([b"x" * 1000] * 3, batching_max_allowed_size_in_bytes=1).entries() == 3
        keys = ["k" * (1 << 20)] * 9
        sent = producer.send_many([b"x"] * 9, partition_keys=keys, batching_max_allowed_size_in_bytes=1 << 25)
        assert sent.entries() == 3
        big = producer.send_many([bytes(2 << 20)] * 5, batching_max_allowed_size_in_bytes=1 << 30)
        assert big.entries() == 3


def test_a_value_that_is_too_big(topic):
    """It is named, and the error tells what was stored before it."""
    consumer = topic.consumer()
    values = [*hellos(0, 5), bytes(6 << 20), *hellos(5, 7)]
    with topic.producer() as producer:
        with pytest.raises(MessageTooBig, match="the value 5 has") as caught:
            producer.send_many(values)
        stored = caught.value.stored
        assert list(stored.numbers()) == list(range(5))
        assert "5 messages were stored before" in caught.value.__notes__[0]
        producer.send_many(hellos(5, 7))
    messages = receive_all(consumer)
    assert numbers(messages) == list(range(7))
    assert list(stored) == [message.message_id() for message in messages[:5]]
    with topic.producer(compression_type=CompressionType.ZLib) as producer:
        assert len(producer.send_many(values)) == 8


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"partition_keys": ["a"]}, "partition_keys has 1 elements for 3 values"),
        ({"partition_keys": lambda: iter("ab")}, "partition_keys ends after 2 elements"),
        ({"partition_keys": lambda: iter("abcd")}, "partition_keys has more than 3 elements"),
        ({"partition_keys": "abc"}, "partition_keys must be a list"),
        ({"ordering_keys": ["a", 5, None]}, r"ordering_keys\[1\] is int, not None or str"),
        ({"properties": [None, {"a": 1}, None]}, r"properties\[1\] holds 1"),
        ({"properties": {"a": "b"}}, "one for each message"),
        ({"event_timestamps": [1, 2, -3]}, "event_timestamps must be between 0"),
        ({"event_timestamps": [1, 2, "3"]}, r"event_timestamps\[2\] is str"),
        ({"sequence_ids": [1, 2, None]}, r"sequence_ids\[2\] is NoneType, not int"),
        ({"sequence_ids": [1, 2, 2**63]}, "sequence_ids must be between"),
        ({"partition_keys": ["a", "\ud800", "c"]}, "surrogates"),
        ({"batching_max_messages": 0}, "batching_max_messages"),
        ({"batching_max_allowed_size_in_bytes": "1"}, "batching_max_allowed_size_in_bytes"),
    ],
)
def test_wrong_options_store_nothing(topic, options, text):
    """A wrong type, value or length is told with its place; nothing of the entry is stored."""
    options = {name: value() if callable(value) else value for name, value in options.items()}
    with topic.producer() as producer:
        with pytest.raises(ValueError, match=text) as caught:
            producer.send_many(hellos(0, 3), **options)
        if "more than" in text:
            assert len(caught.value.stored) == 3  # only the end of the values tells
            return
        with pytest.raises(TypeError, match="not bytes"):
            producer.send_many([b"a", "b"])
    assert receive_all(topic.consumer()) == []


def test_schemas_encode_each_value(topic):
    """With another schema than bytes, values are encoded one by one; None is a null value."""
    consumer = topic.consumer(schema=StringSchema())
    with topic.producer(schema=StringSchema()) as producer:
        producer.send_many(["tea", None, "Kölsch"])
        with pytest.raises(TypeError):
            producer.send_many([b"bytes"])
    messages = receive_all(consumer)
    assert [message.value() for message in messages] == ["tea", None, "Kölsch"]
    assert [message.has_null_value() for message in messages] == [False, True, False]


def test_an_iterator_that_fails(topic):
    """Its error comes out, after what it gave before in full portions is stored."""

    def values():
        yield from hellos(0, 70_000)
        raise RuntimeError("no more")

    with topic.producer() as producer:
        with pytest.raises(RuntimeError, match="no more") as caught:
            producer.send_many(values())
        assert len(caught.value.stored) == 65_536
        assert len(producer.send_many(hellos(0, 3))) == 3


def test_threads_send_at_the_same_time(topic):
    """Entries of several calls come between each other, never into each other; ids stay those of the log."""
    consumer = topic.consumer()
    sent = {}
    with topic.producer(batching_enabled=True) as producer:

        def run(mark):
            values = [b"%d-%d" % (mark, i) for i in range(500)]
            sent[mark] = list(producer.send_many(values, batching_max_messages=20))
            producer.send_async(b"%d-500" % mark, None)

        threads = [threading.Thread(target=run, args=(mark,)) for mark in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    messages = receive_all(consumer)
    assert [message.sequence_id() for message in messages] == list(range(4 * 501))
    for mark in range(4):
        mine = [message for message in messages if message.data().startswith(b"%d-" % mark)]
        assert [int(message.data().split(b"-")[1]) for message in mine] == list(range(501))
        assert [message.message_id() for message in mine[:500]] == sent[mark]


def test_a_closed_producer(topic, client):
    """AlreadyClosed, and so after the client is closed."""
    producer = topic.producer()
    producer.close()
    with pytest.raises(AlreadyClosed):
        producer.send_many(hellos(0, 2))


@pytest.mark.parametrize("level", ["process", "interval", "flush"])
def test_levels_of_durability(client, level):
    """At level "flush" one flush covers the whole call."""
    with client.create_producer("durable", durability=level) as producer:
        syncs = client._core.store.use_topic("durable").topic.ledger.statistics().syncs_here
        assert len(producer.send_many(hellos(0, 50), batching_max_messages=5)) == 50
        done = client._core.store.use_topic("durable").topic.ledger.statistics().syncs_here - syncs
    assert done == (1 if level == "flush" else 0)


def test_key_shared_gets_whole_keys(topic):
    """With key-based batching every consumer gets its keys only, each in order."""
    first = topic.consumer(consumer_type=ConsumerType.KeyShared)
    second = topic.consumer(consumer_type=ConsumerType.KeyShared)
    with topic.producer(batching_type=BatchingType.KeyBased) as producer:
        producer.send_many(hellos(0, 300), partition_keys=[f"key-{i % 10}" for i in range(300)])
    got = [receive_all(consumer) for consumer in (first, second)]
    keys = [{message.partition_key() for message in one} for one in got]
    assert not keys[0] & keys[1] and len(keys[0] | keys[1]) == 10
    for messages in got:
        for key in {message.partition_key() for message in messages}:
            mine = numbers([message for message in messages if message.partition_key() == key])
            assert mine == sorted(mine) and len(mine) == 30


def test_a_mixed_entry_goes_where_its_first_key_goes(topic):
    """Without key-based batching an entry is not divided, as in Pulsar."""
    consumers = [topic.consumer(consumer_type=ConsumerType.KeyShared) for _ in range(2)]
    with topic.producer() as producer:
        producer.send_many(hellos(0, 50), partition_keys=[f"key-{i}" for i in range(50)])
    assert sorted(len(receive_all(consumer)) for consumer in consumers) == [0, 50]


def test_a_full_disk_leaves_whole_entries(topic, monkeypatch):
    """What was stored before is stored, in order and told; with room again the rest follows."""
    values = [b"hello-%06d" % i + bytes(1000) for i in range(1000)]
    with disk.use(FaultyDisk()) as faulty, topic.producer() as producer:
        producer.send_many(values[:1])
        faulty.fail("pwrite_all", 4, errno.ENOSPC, path="")
        with pytest.raises(StorageFullError) as caught:
            producer.send_many(values[1:], batching_max_messages=100)
        stored = caught.value.stored
        assert list(stored.numbers()) == list(range(len(stored)))
        assert 0 < len(stored) < 999 and len(stored) % 100 == 0
        producer.send_many(values[1 + len(stored) :])
    with topic.client.create_reader(topic.name, MessageId.earliest) as reader:
        assert [message.data() for message in reader] == values


@pytest.mark.parametrize(
    ("point", "is_stored"),
    [("append:body_done", False), ("append:index_done", False), ("append:tail_stored", True)],
)
def test_ctrl_c_is_told_what_was_stored(topic, point, is_stored):
    """Wherever it hits the third entry, `stored` is what readers find, and the rest can be sent."""
    values = hellos(0, 100)
    with topic.producer() as producer:
        failpoints.set(point, lambda: os.kill(os.getpid(), signal.SIGINT), nth=3)
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with pytest.raises(Interrupted) as caught:
                producer.send_many(values, batching_max_messages=10)
        finally:
            signal.signal(signal.SIGINT, before)
            failpoints.clear()
        stored = caught.value.stored
        assert len(stored) == (30 if is_stored else 20)
        producer.send_many(values[len(stored) :])
    consumer = topic.consumer()
    assert numbers(receive_all(consumer)) == list(range(100))


def test_after_a_fork(store_url):
    """The child's calls are the child's, under a producer of its own; the parent goes on."""
    with Client(store_url) as client, client.create_producer("forked") as producer:
        producer.send_many(hellos(0, 10))
        child = os.fork()
        if not child:
            try:
                producer.send_many(hellos(10, 20))
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        producer.send_many(hellos(20, 30))
        with client.create_reader("forked", MessageId.earliest) as reader:
            messages = list(reader)
        assert numbers(messages) == list(range(30))
        assert len({message.producer_name() for message in messages[10:20]}) == 1
        assert messages[10].producer_name() != messages[0].producer_name() == messages[29].producer_name()


class TestPartitions:
    """On a topic with partitions."""

    @pytest.fixture
    def parts(self, client):
        """Three of them."""
        return PartitionedTopic(client, 3)

    @pytest.mark.parametrize("batching_type", list(BatchingType))
    def test_keys_go_where_send_puts_them(self, parts, batching_type):
        """Each key to the partition of its hash, in order; the ids returned belong to the values."""
        keys = [f"key-{i % 7}" for i in range(100)]
        with parts.producer() as one_by_one:
            expected = [one_by_one.send(b"x", partition_key=key).partition() for key in keys[:7]]
        with parts.producer(batching_type=batching_type) as producer:
            sent = producer.send_many(hellos(0, 100), partition_keys=keys)
        assert [one.partition() for one in sent] == [expected[i % 7] for i in range(100)]
        assert list(sent.numbers()) == list(range(100))
        for partition in range(3):
            messages = [one for one in parts.messages(partition) if one.data() != b"x"]
            mine = numbers(messages)
            assert sorted(mine) == [i for i in range(100) if expected[i % 7] == partition]
            assert [sent[i] for i in mine] == [message.message_id() for message in messages]
            for key in range(7):
                assert [i for i in mine if i % 7 == key] == sorted(i for i in mine if i % 7 == key)

    def test_no_key_goes_round_by_entry(self, parts):
        """One entry each in turn, all in the order of the values."""
        with parts.producer() as producer:
            sent = producer.send_many(hellos(0, 60), batching_max_messages=10)
        turns = [sent[i].partition() for i in range(0, 60, 10)]
        assert sorted(turns[:3]) == [0, 1, 2] and turns[:3] == turns[3:]
        assert all(len(parts.numbers(partition)) == 20 for partition in range(3))

    def test_some_have_keys(self, parts):
        """Mixed values keep their ids and their order within partition and key."""
        keys = [f"key-{i}" if i % 2 else None for i in range(50)]
        with parts.producer() as producer:
            sent = producer.send_many(hellos(0, 50), partition_keys=keys)
        found = {}
        for partition in range(3):
            for message in parts.messages(partition):
                found[numbers([message])[0]] = message.message_id()
        assert [found[i] for i in range(50)] == list(sent)

    def test_the_application_chooses(self, parts):
        """A message_router is asked for each message, with its key and payload."""

        def choose(message, partitions):
            return int(message.data().removeprefix(b"hello-")) // 10 % partitions

        with parts.producer(message_router=choose) as producer:
            sent = producer.send_many(hellos(0, 60))
        assert [one.partition() for one in sent] == [i // 10 % 3 for i in range(60)]

    def test_what_waits_goes_first(self, parts):
        """In each partition the entries of a call stand behind the batch that was waiting there."""
        with parts.batching() as producer:
            for i in range(3):
                producer.send_async(b"hello-%d" % i, None, partition_key="key-1")
            sent = producer.send_many(hellos(3, 6), partition_keys=["key-1"] * 3)
        assert parts.numbers(sent[0].partition()) == list(range(6))


def test_encrypted(topic, tmp_path):
    """Entries of a producer that encrypts are encrypted, in halves where they would be too large then."""
    pytest.importorskip("cryptography", reason="the extra `crypto` is not installed")
    keys = key_files(tmp_path)
    with topic.producer(encryption_key="app", crypto_key_reader=keys) as producer:
        sent = producer.send_many(hellos(0, 50), partition_keys=["secret"] * 50, batching_max_messages=20)
        publisher = producer._publisher
        total = (
            publisher.max_size - publisher.prefix.metadata_length - 16
        )  # fits, but for what encryption adds
        large = [bytes(total // 2), bytes(total - total // 2)]
        assert producer.send_many(large, batching_max_allowed_size_in_bytes=1 << 30).entries() == 2
    consumer = topic.consumer(crypto_key_reader=keys)
    messages = receive_all(consumer)
    assert numbers(messages[:50]) == list(range(50))
    assert [message.message_id() for message in messages[:50]] == list(sent)
    assert messages[0].encryption_context() is not None
    assert len(messages) == 52
    assert receive_all(topic.client.subscribe(topic.name, "blind")) == []


def test_not_with_interceptors(topic):
    """Interceptors see single messages, so the call is refused, and nothing is stored."""
    with topic.producer(interceptors=[ProducerInterceptor()]) as producer:
        with pytest.raises(OperationNotSupported, match="use send_async"):
            producer.send_many(hellos(0, 3))
        producer.send(b"hello-0")
    assert numbers(receive_all(topic.consumer())) == [0]


def test_ids_and_groups_exclude_each_other(topic):
    """Explicit ids that fall from entry to entry would be taken for duplicates."""
    with topic.producer(batching_type=BatchingType.KeyBased) as producer:
        with pytest.raises(InvalidConfiguration, match="key-based batching"):
            producer.send_many(hellos(0, 3), sequence_ids=[1, 2, 3])
    assert receive_all(topic.consumer()) == []


def test_with_chunking(topic):
    """A producer that chunks stores columns too; what needs chunks is for `send`."""
    consumer = topic.consumer()
    with topic.producer(chunking_enabled=True) as producer:
        producer.send_many(hellos(0, 10))
        with pytest.raises(MessageTooBig):
            producer.send_many([bytes(6 << 20)])
        producer.send(b"hello-10" + bytes(6 << 20))
        producer.send_many(hellos(11, 20))
    messages = receive_all(consumer)
    assert [int(message.data()[6:8]) if i > 9 else i for i, message in enumerate(messages)] == list(range(20))
    assert [message.sequence_id() for message in messages][:10] == list(range(10))


def test_what_is_queued_goes_first(topic):
    """Single messages that wait for the topic, with or without an id yet, stand before the call's entries."""
    consumer = topic.consumer()
    with topic.producer() as producer:
        ledger = producer._publisher.session.ledger
        held, release = threading.Event(), threading.Event()

        def hold():
            ledger.lock.acquire(10)
            held.set()
            release.wait(10)
            ledger.lock.release()

        holder = threading.Thread(target=hold)
        holder.start()
        held.wait(10)
        for i in range(5):
            producer.send_async(b"hello-%d" % i, None)
        assert len(producer._publisher.queue) == 5
        release.set()
        producer.send_many(hellos(5, 10))
        holder.join()
    messages = receive_all(consumer)
    assert numbers(messages) == list(range(10))
    assert [message.sequence_id() for message in messages] == list(range(10))


def test_statistics_count_messages(topic):
    """What a call stores shows in the statistics of the producer, message by message and entry by entry."""
    with topic.producer() as producer:
        producer.send_many(hellos(0, 100), batching_max_messages=30)
        stats = producer.stats()
        assert (stats.messages_sent, stats.entries_sent, stats.send_failures) == (100, 4, 0)


@pytest.mark.parametrize("topic", ["orders", "keyed"])
def test_common_properties(client: Client, topic: str):
    """Every message of a call has them, those of values and those of rows, beside its own."""
    consumer = client.subscribe(topic, "kitchen")
    kind = BatchingType.KeyBased if topic == "keyed" else BatchingType.Default
    producer = client.create_producer(topic, batching_type=kind)
    common = {"till": "1", "table": "none"}
    keys = ["7", "9", "7"]
    own: list[dict[str, str] | None] = [{"table": "7"}, None, {}]
    producer.send_many(iter([b"a", b"b", b"c"]), partition_keys=keys, common_properties=common)
    producer.send_many([b"d", b"e", b"f"], partition_keys=keys, properties=own, common_properties=common)
    common["till"] = "2"  # a copy was sent
    received = {message.data(): message.properties() for message in (consumer.receive() for _ in range(6))}
    till = {"till": "1", "table": "none"}
    assert received == {
        b"a": till,
        b"b": till,
        b"c": till,
        b"d": {**till, "table": "7"},
        b"e": till,
        b"f": till,
    }
    with pytest.raises(TypeError, match="dict of str to str"):
        producer.send_many([b"a"], common_properties={"a": 1})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="common_properties"):
        producer.send_many([b"a"], common_properties=[{}])  # type: ignore[arg-type]
