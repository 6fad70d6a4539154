"""What one feature of a producer does to another, where both are in the way of the same message."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import embeddedpulsar.asyncio as coroutines
from embeddedpulsar import (
    Client,
    CompressionType,
    ConsumerDeadLetterPolicy,
    ConsumerType,
    InitialPosition,
    MessageId,
    ProducerAccessMode,
    ProducerFenced,
    ProducerInterceptor,
    ProducerQueueIsFull,
    Result,
)
from embeddedpulsar._engine.store.policies.admitting import DEDUPLICATION
from embeddedpulsar.client.producer.log_writer import LogWriter
from embeddedpulsar.client.producer.send_queue import SendQueue
from tests.children import in_child
from tests.conformance.chunks import begin_ledger, log_of, payload, use_small_entries
from tests.conformance.conftest import Topic, receive_all
from tests.conformance.held import Answers, held, payloads
from tests.conformance.manual_time import ManualTime
from tests.support.clients import present
from tests.support.key_files import key_files

LIMIT = 1000
BIG = payload(3 * LIMIT)
CHUNKED = {"chunking_enabled": True}


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    """A store in which large messages are cut."""
    use_small_entries(tmp_path / "store", LIMIT)
    return tmp_path / "store"


@pytest.fixture
def without_flusher(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits is stored by those who wait for it, and by nobody else."""
    monkeypatch.setattr(SendQueue, "retry", lambda queue: False)


def sealing(path: Path) -> dict[str, Any]:
    """Options of a producer that encrypts."""
    return {"encryption_key": "app", "crypto_key_reader": key_files(path, "ec")}


class Noting(ProducerInterceptor):
    """Gives every message a property, and remembers what became of it."""

    def __init__(self) -> None:
        self.told: list[tuple[int, MessageId | None, Any]] = []

    def before_send(self, producer: Any, message: Any) -> Any:
        """Add the property."""
        return message.replace(properties={**message.properties(), "seen": "yes"})

    def on_send_acknowledgement(self, producer: Any, message: Any, message_id: Any, error: Any) -> None:
        """Remember."""
        self.told.append((len(message.data()), message_id, error))


@pytest.mark.parametrize("is_partitioned", [False, True])
def test_interceptors_see_chunked_messages_once(client: Client, tmp_path: Path, is_partitioned: bool):
    """However many entries they become, encrypted and on partitions, and from coroutines."""
    if is_partitioned:
        client._core.store.topics.create_partitioned("topic", 2)
    noting = Noting()
    options = {**CHUNKED, **sealing(tmp_path), "interceptors": [noting]}
    consumer = client.subscribe("topic", "sub", crypto_key_reader=key_files(tmp_path, "ec"))
    with client.create_producer("topic", **options) as producer:
        sent = [producer.send(BIG, partition_key="k")]
        answers = Answers()
        producer.send_async(BIG, answers.of(1), partition_key="k")
        producer.flush()
        sent += [place for _, _, place in answers]

    async def send() -> MessageId:
        async with coroutines.Client(client._core.store.root) as other:
            async with await other.create_producer("topic", batching_enabled=False, **options) as one:
                return await one.send(BIG, partition_key="k")

    sent.append(asyncio.run(send()))
    assert noting.told == [(len(BIG), place, None) for place in sent]
    received = receive_all(consumer)
    assert [one.message_id() for one in received] == sent
    assert all(one.data() == BIG and one.properties() == {"seen": "yes"} for one in received)


@pytest.mark.parametrize("way", ["nack", "reconsume"])
def test_letters_of_chunked_encrypted_compressed_messages(time: ManualTime, tmp_path: Path, way: str):
    """The copy is whole, and as secret as the original."""
    keys, text = key_files(tmp_path, "ec"), b"secret " * 200
    consumer = time.client.subscribe(
        "topic",
        "sub",
        ConsumerType.Shared,
        crypto_key_reader=keys,
        dead_letter_policy=ConsumerDeadLetterPolicy(1),
        negative_ack_redelivery_delay_ms=100,
        enable_retry=way == "reconsume",
    )
    options = {**CHUNKED, **sealing(tmp_path), "chunk_max_message_size": 950}
    producer = time.client.create_producer("topic", **options, compression_type=CompressionType.LZ4)
    producer.send(text + BIG, {"a": "b"}, "ключ", event_timestamp=7)
    for _ in range(2):
        if way == "nack":
            consumer.negative_acknowledge(consumer.receive(1000))
        else:
            consumer.reconsume_later(consumer.receive(1000), 100)
        time.pass_ms(1000)
    with time.client.create_reader("topic-sub-DLQ", MessageId.earliest, crypto_key_reader=keys) as reader:
        (letter,) = list(reader)
    assert letter.data() == text + BIG
    assert (letter.partition_key(), letter.event_timestamp(), letter.properties()["a"]) == ("ключ", 7, "b")
    assert [key.key for key in letter.encryption_context().keys()] == ["app"]
    assert not any(b"secret secret" in file.read_bytes() for file in time.url.rglob("*.log"))


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared])
def test_earlier_parts_hold_their_ledger_until_the_last_is_acknowledged(time, kind):
    """Everything around it is acknowledged, ledgers are trimmed, and the message still comes whole."""
    client = time.client
    consumer = client.subscribe("topic", "sub", kind, initial_position=InitialPosition.Earliest)
    producer = client.create_producer("topic", **CHUNKED)
    log = log_of(client)
    topic = client._core.store.use_topic("topic").topic
    producer.send(b"before")
    queue = producer._publisher.queue
    out = queue.encoder.encode_one(BIG, None, 100).chunks
    for part in out.parts():
        out.earlier.append(log.append_nowait(part, queue)[:2])
        producer.send(b"between")
        begin_ledger(log)
    between = [consumer.receive(1000) for _ in range(1 + len(out.earlier))]
    for message in between:
        consumer.acknowledge(message)
    time.pass_ms(1000)
    topic.trim_now()
    log.append_nowait(out.finish(), queue)
    last = consumer.receive(1000)
    assert last.data() == BIG
    topic.trim_now()
    consumer.close()
    consumer = client.subscribe("topic", "sub", kind)
    last = consumer.receive(1000)
    assert last.data() == BIG
    consumer.acknowledge(last)
    consumer.close()
    begin_ledger(log)
    topic.trim_now()
    assert log.trimming.first_retained > last.message_id().ledger_id()


@pytest.mark.usefixtures("without_flusher")
@pytest.mark.parametrize("content", [BIG, b"small"], ids=["chunked", "single"])
def test_a_fenced_producer_stores_nothing_that_waited(client: Client, content: bytes):
    """What the lock of the topic held up belongs to nobody any more."""
    answers = Answers()
    producer = client.create_producer("topic", **CHUNKED)
    with held(client):
        producer.send_async(content, answers.of(0))
        producer.send_async(content, answers.of(1))
    fencing = client.create_producer("topic", access_mode=ProducerAccessMode.ExclusiveWithFencing)
    for call in (
        lambda: producer.send(content),
        lambda: producer.send_many([b"a"]),
        lambda: producer.send(BIG),
    ):
        with pytest.raises(ProducerFenced):
            call()
    producer._publisher.queue.completions.wait()
    assert [result for _, result, _ in answers] == [Result.ProducerFenced] * 2
    fencing.send(b"mine")
    assert payloads(client) == [b"mine"]


def test_limits_count_chunks(client: Client):
    """A message of several entries counts for each of them, and one beyond the limit may wait alone."""
    producer = client.create_producer("topic", **CHUNKED, max_pending_messages=3)
    answers = Answers()
    with held(client):
        producer.send_async(BIG, answers.of(0))
        producer.send_async(b"1", answers.of(1))
        producer.send_async(BIG, answers.of(2))
        producer.send_async(b"3", answers.of(3))
        producer.send_async(b"4", answers.of(4))
        producer.send_async(b"5", answers.of(5))
    producer.flush()
    assert {number for number, result, _ in answers} == set(range(6))
    full = {number for number, result, _ in answers if result == Result.ProducerQueueIsFull}
    assert 2 in full and 5 in full and 0 not in full and 1 not in full
    assert payloads(client) == [
        BIG if number in (0, 2) else b"%d" % number for number in range(6) if number not in full
    ]


def test_a_timeout_in_the_middle_of_a_chunked_message(time: ManualTime, monkeypatch: pytest.MonkeyPatch):
    """It fails as a whole, is not finished later, and what follows is stored."""
    producer = time.client.create_producer("topic", **CHUNKED, send_timeout_millis=1000)
    publisher = producer._publisher
    answers, stored = Answers(), []
    append = LogWriter._append_part

    def first_alone(writer: LogWriter, *arguments: Any) -> Any:
        stored.append(None if stored else append(writer, *arguments))
        return stored[-1]

    monkeypatch.setattr(LogWriter, "_append_part", first_alone)
    producer.send_async(BIG, answers.of(0))
    time.pass_ms(1500)
    monkeypatch.undo()
    publisher.queue.completions.wait()
    assert [result for _, result, _ in answers] == [Result.Timeout]
    producer.send(b"after")
    assert payloads(time.client) == [b"after"]


@pytest.mark.usefixtures("without_flusher")
def test_close_fails_a_chunked_message_that_waits(client: Client):
    """Nothing of it is ever a message."""
    answers = Answers()
    producer = client.create_producer("topic", **CHUNKED)
    with held(client):
        producer.send_async(BIG, answers.of(0))
    producer.close()
    assert [result for _, result, _ in answers] == [Result.AlreadyClosed]
    assert payloads(client) == []


def test_what_waits_is_not_sent_by_a_forked_child(topic: Topic):
    """Neither a batch nor a large message; the child's own go under a name of its own."""
    producer = topic.producer(**CHUNKED, producer_name="p")
    answers = Answers()
    with held(topic.client):
        producer.send_async(BIG, answers.of(0))
        producer.send_async(b"1", answers.of(1))
        child = in_child(lambda: producer._publisher.pending)
    producer.flush()
    assert child == "0"
    assert in_child(lambda: (producer.send(BIG), producer.producer_name())[1] != "p") == "True"
    assert payloads(topic.client) == [BIG, b"1", BIG]
    assert [result for _, result, _ in answers] == [Result.Ok] * 2


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "encrypted"])
def test_delayed_chunked_messages_on_partitions(time: ManualTime, tmp_path: Path, is_encrypted: bool):
    """Not before their time, and then whole."""
    time.client._core.store.topics.create_partitioned("topic", 2)
    keys = key_files(tmp_path, "ec")
    options = {**CHUNKED, **(sealing(tmp_path) if is_encrypted else {})}
    consumer = time.client.subscribe("topic", "sub", ConsumerType.Shared, crypto_key_reader=keys)
    with time.client.create_producer("topic", **options) as producer:
        for number in range(4):
            producer.send(BIG + b"%d" % number, deliver_at=time.now_ms() + 1000)
        producer.send(BIG)
    assert [one.data() for one in present(consumer)] == [BIG]
    time.pass_ms(1500)
    assert sorted(one.data() for one in present(consumer)) == [BIG + b"%d" % n for n in range(4)]


def test_a_full_queue_refuses_whole_messages(client: Client):
    """A chunked message is not taken by halves."""
    producer = client.create_producer("topic", **CHUNKED, max_pending_messages=2)
    with held(client):
        producer.send_async(b"0", None)
        producer.send_async(b"1", None)
        producer.send_async(BIG, None)
    with pytest.raises(ProducerQueueIsFull):
        producer.flush()
    assert payloads(client) == [b"0", b"1"]


def test_partitions_remember_sequence_ids_each(tmp_path: Path, client: Client):
    """Keyed messages sent again by the next producer of the name are dropped, on every partition; whole
    columns and chunks, too."""
    store = client._core.store
    store.topics.create_partitioned("topic", 3)
    store.set_policy("topic", DEDUPLICATION, True)
    keys = [f"ключ-{number}" for number in range(12)]
    for _ in range(2):
        with client.create_producer("topic", "p", **CHUNKED) as producer:
            for number, key in enumerate(keys, 1):
                producer.send(BIG if number == 5 else b"%d" % number, partition_key=key, sequence_id=number)
    with client.create_producer("topic", "p", lazy_start_partitioned_producers=True) as producer:
        sent = producer.send_many(
            [b"%d" % number for number in range(1, 25)],
            partition_keys=keys * 2,
            sequence_ids=range(1, 25),
            batching_max_messages=1,
        )
    assert all(place.entry_id() == -1 for place in list(sent)[:12])
    wanted = [BIG if number == 5 else b"%d" % number for number in range(1, 25)]
    assert sorted(payloads(client)) == sorted(wanted)
