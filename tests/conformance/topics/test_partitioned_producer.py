"""The producer of a partitioned topic is a producer like any other, on all partitions at once."""

from __future__ import annotations

import asyncio
import gc
import threading
from itertools import chain
from typing import Any

import pytest

from embeddedpulsar import (
    AlreadyClosed,
    Client,
    MessageId,
    MessageTooBig,
    Producer,
    ProducerBusy,
    Result,
)
from embeddedpulsar.asyncio import Client as AsyncClient
from embeddedpulsar.schema import StringSchema
from tests.children import in_child
from tests.conformance.conftest import numbers
from tests.conformance.partitioned import NAME, PartitionedTopic, hello


@pytest.fixture
def topic(client):
    """A topic of three partitions."""
    return PartitionedTopic(client, 3)


def test_it_is_a_producer(topic):
    """It is one by its class, is called after the topic, and has one name on all partitions."""
    producer = topic.producer()
    assert isinstance(producer, Producer)
    assert producer.topic() == NAME
    assert producer.is_connected()
    name = producer.producer_name()
    assert topic.names() == [[name]] * 3
    assert repr(producer) == f"<Producer {name} on {NAME} open>"
    for _ in range(3):
        producer.send(b"x")
    for index in range(3):
        (message,) = topic.messages(index)
        assert (message.producer_name(), message.topic_name()) == (name, f"{NAME}-partition-{index}")
    producer.close()
    assert not producer.is_connected()
    assert repr(producer) == f"<Producer {name} on {NAME} closed>"
    assert topic.names() == [[]] * 3


@pytest.mark.in_memory
@pytest.mark.parametrize("batching", [False, True])
def test_ids_name_the_partition(topic, batching):
    """What is returned, what callbacks get and what consumers see are equal, partition included."""
    sent: list[MessageId] = []
    with topic.producer(batching_enabled=batching) as producer:
        for i in range(6):
            producer.send_async(hello(i), lambda result, message_id: sent.append(message_id))
        producer.flush()
        sent.append(producer.send(hello(6)))
        sent.append(producer.send(hello(7), partition_key="key"))
    for index in range(3):
        here = [one for one in sent if one.partition() == index]
        assert [message.message_id() for message in topic.messages(index)] == here


def test_sequence_ids_count_on_each_partition(topic):
    """last_sequence_id() is the largest; an initial id is that of every partition."""
    with topic.producer(initial_sequence_id=10) as producer:
        assert producer.last_sequence_id() == 10
        for _ in range(4):
            producer.send(b"x")
        assert producer.last_sequence_id() == 12
        producer.send(b"x", sequence_id=99)
        assert producer.last_sequence_id() == 99
    ids = [message.sequence_id() for index in range(3) for message in topic.messages(index)]
    assert sorted(ids) == [11, 11, 11, 12, 99]


def test_a_partition_has_a_plain_producer(topic):
    """By its own name a partition is a topic like any other."""
    with topic.client.create_producer("topic-partition-2") as producer:
        assert producer.topic() == f"{NAME}-partition-2"
        assert {producer.send(hello(i), partition_key=f"key-{i}").partition() for i in range(5)} == {2}
    assert topic.numbers(2) == [0, 1, 2, 3, 4]


def test_flush_stores_all_partitions(topic):
    """And waits for the callbacks of all."""
    results: list[Result] = []
    producer = topic.batching()
    for i in range(30):
        producer.send_async(hello(i), lambda result, message_id: results.append(result), partition_key=f"{i}")
    producer.flush()
    assert results == [Result.Ok] * 30
    assert sorted(chain(*topic.all_numbers())) == list(range(30))
    producer.close()


def test_a_full_batch_of_one_partition_leaves_alone(topic):
    """Each partition has its own batch, with its own limits."""
    with topic.batching(
        batching_max_messages=2, message_router=lambda message, n: message.data()[-1] % n
    ) as it:
        for i in (0, 1, 2, 3, 3):
            it.send_async(hello(i), None)
        stored = topic.all_numbers()
        assert sorted(map(len, stored)) == [0, 0, 2]
        it.flush()
    assert sorted(chain(*topic.all_numbers())) == [0, 1, 2, 3, 3]


def test_close_does_not_flush(topic):
    """What waits fails with AlreadyClosed, on every partition; a second close is one too many."""
    results: list[Result] = []
    producer = topic.batching()
    for i in range(9):
        producer.send_async(hello(i), lambda result, message_id: results.append(result), partition_key=f"{i}")
    producer.close()
    assert results == [Result.AlreadyClosed] * 9
    assert topic.all_numbers() == [[], [], []]
    for use in (producer.close, producer.flush, lambda: producer.send(b"x")):
        with pytest.raises(AlreadyClosed):
            use()
    producer.send_async(b"x", lambda result, message_id: results.append(result))
    with pytest.raises(AlreadyClosed):
        producer.send_async(b"x", None, partition_key="key")


def test_with(topic):
    """The end of a with-statement flushes; after an exception it only closes."""
    with topic.batching() as producer:
        producer.send_async(hello(0), None)
    assert sorted(chain(*topic.all_numbers())) == [0]
    with pytest.raises(KeyError), topic.batching() as producer:  # noqa: PT012
        producer.send_async(hello(1), None)
        raise KeyError
    assert not producer.is_connected()
    assert sorted(chain(*topic.all_numbers())) == [0]


def test_closing_the_client_closes_it(topic):
    """As it does for every producer; a with-statement around it ends in peace."""
    with topic.batching() as producer:
        topic.client.close()
        assert not producer.is_connected()
        with pytest.raises(AlreadyClosed):
            producer.send(b"x")


def test_callbacks_keep_the_order_of_each_partition(topic):
    """Among partitions there is none."""
    order: dict[int, list[int]] = {0: [], 1: [], 2: []}
    with topic.producer(batching_enabled=True, batching_max_messages=5) as producer:
        for i in range(200):
            producer.send_async(
                b"x", lambda result, sent, i=i: order[sent.partition()].append(i), partition_key=f"{i % 11}"
            )
    assert sorted(chain(*order.values())) == list(range(200))
    assert all(numbers == sorted(numbers) for numbers in order.values())


def test_limits_are_shared_out(topic):
    """Each partition may have its share of ``max_pending_messages_across_partitions`` pending, so a batch
    leaves at that number.
    """
    sent: list[int] = []
    with topic.batching(max_pending_messages_across_partitions=9) as producer:
        for i in range(3):
            producer.send_async(hello(i), lambda result, message_id: sent.append(message_id.batch_index()))
        assert sorted(chain(*topic.all_numbers())) == [0, 1, 2]
    assert sent == [0, 1, 2]


def test_a_schema_encodes(topic):
    """For every partition, batched or not."""
    for batching in (False, True):
        with topic.producer(schema=StringSchema(), batching_enabled=batching) as producer:
            producer.send("größe")
            producer.send_async("größe", None, partition_key="key")
            producer.send_async(None, None)
    found = [message for index in range(3) for message in topic.messages(index)]
    assert sorted(message.data() for message in found) == [b"", b""] + ["größe".encode()] * 4
    assert sorted(message.has_null_value() for message in found) == [False] * 4 + [True] * 2


def test_what_is_too_big(topic):
    """Fails as on a plain topic: raised, or told to the callback; the next message goes its way."""
    payload = bytes(6 << 20)
    results = []
    for batching in (False, True):
        with topic.producer(batching_enabled=batching) as producer:
            with pytest.raises(MessageTooBig):
                producer.send(payload)
            producer.send_async(payload, lambda result, message_id: results.append(result))
            producer.send(b"hello-0")
    assert results == [Result.MessageTooBig] * 2
    assert sorted(chain(*topic.all_numbers())) == [0, 0]


def test_a_name_that_is_taken_on_one_partition(topic):
    """ProducerBusy, and no other partition stays attached."""
    plain = topic.client.create_producer("topic-partition-1", "till")
    with pytest.raises(ProducerBusy):
        topic.producer(producer_name="till")
    assert topic.names() == [[], ["till"], []]
    plain.close()
    with topic.producer(producer_name="till") as producer:
        assert producer.producer_name() == "till"
        assert topic.names() == [["till"]] * 3
        with pytest.raises(ProducerBusy):
            topic.producer(producer_name="till")
        assert topic.names() == [["till"]] * 3


@pytest.mark.parametrize("batching", [False, True])
def test_any_number_of_threads(topic, batching):
    """May send: everything is stored once, and in the order of each thread on each partition."""
    threads, each = 4, 300
    with topic.producer(batching_enabled=batching, batching_max_messages=7) as producer:

        def send(thread: int) -> None:
            for i in range(each):
                producer.send_async(
                    b"%d %d" % (thread, i), None, partition_key=f"{i}" if i % 5 == 0 else None
                )

        workers = [threading.Thread(target=send, args=[thread]) for thread in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    found: dict[tuple[int, int], list[int]] = {}
    for index in range(3):
        for message in topic.messages(index):
            thread, number = map(int, message.data().split())
            found.setdefault((index, thread), []).append(number)
    assert sorted(chain(*found.values())) == sorted(list(range(each)) * threads)
    assert all(numbers == sorted(numbers) for numbers in found.values())


def test_dropped_without_being_closed(topic):
    """Its partitions are left and its watch ends with the next call that opens a topic."""
    producer = topic.batching(producer_name="till")
    producer.send_async(b"x", None)
    core: Any = topic.client._core
    assert core.partition_watch._watched
    del producer
    gc.collect()
    topic.producer(producer_name="till").close()
    assert topic.names() == [[]] * 3
    assert not core.partition_watch._watched


def test_in_a_forked_child(topic):
    """The child's copy has a name of its own, one for all partitions; a batch stays with the parent."""
    producer = topic.batching()
    for i in range(3):
        producer.send_async(hello(i), None)

    def send() -> str:
        for i in range(3, 9):
            producer.send(hello(i))
        return f"{producer.producer_name()} {len(topic.names())} {len(set(chain(*topic.names())))}"

    name, partitions, names = in_child(send).split()
    assert (partitions, names) == ("3", "2")
    assert name != producer.producer_name()
    producer.close()
    assert sorted(chain(*topic.all_numbers())) == [3, 4, 5, 6, 7, 8]
    found = [message for index in range(3) for message in topic.messages(index)]
    assert {message.producer_name() for message in found} == {name}


def test_asyncio(store_path):
    """The producer of an asyncio client is the same one underneath."""

    async def main() -> list[int]:
        async with AsyncClient(store_path) as client:
            client._blocking._core.store.topics.create_partitioned("topic", 3)
            async with await client.create_producer("topic", batching_enabled=False) as producer:
                sent = await asyncio.gather(*[producer.send(hello(i)) for i in range(6)])
        return [message_id.partition() for message_id in sent]

    partitions = asyncio.run(main())
    assert partitions == [(partitions[0] + i) % 3 for i in range(6)]


def test_delayed_messages_leave_alone(topic):
    """They join no batch and take no turn, so what waits goes on waiting."""
    with topic.batching() as producer:
        producer.send_async(hello(0), None)
        producer.send_async(hello(1), None, deliver_at=1)
        assert sorted(chain(*topic.all_numbers())) == [1]
        producer.send_async(hello(2), None)
    assert sorted(chain(*topic.all_numbers())) == [0, 1, 2]
    assert sorted(map(len, topic.all_numbers())) == [0, 0, 3]


def test_consumers_get_it_all(topic):
    """What was sent by key arrives once, in order of each key."""
    consumer = topic.client.subscribe("topic", "sub")
    with topic.batching(batching_max_messages=4) as producer:
        for i in range(40):
            producer.send_async(hello(i), None, partition_key=f"key-{i % 4}")
    received = [consumer.receive(5000) for _ in range(40)]
    for key in range(4):
        mine = [message for message in received if message.partition_key() == f"key-{key}"]
        assert numbers(mine) == list(range(key, 40, 4))


def test_a_topic_is_made_partitioned_where_broker_conf_says_so(store_path):
    """The first producer makes it, with the number of partitions that is set."""
    store_path.mkdir(mode=0o700)
    (store_path / "broker.conf").write_text(
        "allowAutoTopicCreationType=partitioned\ndefaultNumPartitions=4\n", "utf-8"
    )
    with Client(store_path) as client, client.create_producer("topic") as producer:
        assert {producer.send(b"x").partition() for _ in range(8)} == {0, 1, 2, 3}


def test_a_partition_whose_lock_is_held_does_not_hold_up_the_others(topic):
    """Its own messages wait, and fail when too many do; of the others a batch goes to each free partition."""
    producer = topic.batching(batching_max_messages=10, max_pending_messages=10)
    log = topic.store.use_topic("topic-partition-1").topic.ledger
    held, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        try:
            log.lock.acquire()
            held.set()
            let_go.wait(60)
        finally:
            log.lock.release()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(10)
    results: dict[int, Result] = {}
    try:
        for i in range(600):
            producer.send_async(hello(i), lambda result, message_id, i=i: results.update({i: result}))
        stored = topic.all_numbers()
        assert stored[1] == []
        assert len(stored[0]) + len(stored[2]) > 500
    finally:
        let_go.set()
        holder.join()
    producer.flush()
    producer.close()
    assert len(results) == 600
    failed = [i for i, result in results.items() if result != Result.Ok]
    assert {results[i] for i in failed} <= {Result.ProducerQueueIsFull}
    assert len(failed) < 60
    assert sorted([*chain(*topic.all_numbers()), *failed]) == list(range(600))
