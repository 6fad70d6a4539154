"""Deduplication together with what decides the order of storing: it drops what comes behind a higher id."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import BatchingType, Client, CompressionType, Interrupted, MessageId, Result
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar._engine.store.policies.admitting import DEDUPLICATION
from tests.conformance.chunks import payload
from tests.conformance.held import Answers, entries, held, payloads
from tests.support.key_files import key_files

WAITS = {"batching_enabled": True, "batching_max_publish_delay_ms": 60_000}
KEYED = {**WAITS, "batching_type": BatchingType.KeyBased}


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    """The directory of a store that drops duplicates, and whose entries are small."""
    path = tmp_path / "store"
    path.mkdir()
    (path / "broker.conf").write_text("brokerDeduplicationEnabled=true\nmaxMessageSize=1000\n")
    return path


def last_id(client: Client, name: str = "p") -> int:
    """The highest sequence id remembered under a producer name."""
    with client.create_producer("topic", name) as producer:
        return producer.last_sequence_id()


@pytest.mark.parametrize("is_given", [False, True], ids=["automatic", "explicit"])
@pytest.mark.parametrize("is_locked", [False, True], ids=["free", "locked"])
def test_batches_by_key_lose_nothing(topic, is_given, is_locked):
    """The entries of several keys are no duplicates of each other."""
    answers = Answers()
    producer = topic.producer(**KEYED, producer_name="p")

    def send() -> None:
        for number, key in enumerate("abbacab", 1):
            options: dict[str, Any] = {"sequence_id": number} if is_given else {}
            producer.send_async(b"%d" % number, answers.of(number), partition_key=key, **options)

    if is_locked:
        with held(topic.client):
            send()
    else:
        send()
    producer.flush()
    assert sorted(payloads(topic.client)) == [b"%d" % number for number in range(1, 8)]
    assert all(result == Result.Ok and place.entry_id() >= 0 for _, result, place in answers)
    assert all(len(set(entry)) == len(entry) for entry in entries(topic.client))
    producer.close()
    assert last_id(topic.client) == (7 if is_given else 6)


def test_repeated_batches_by_key(topic):
    """With ids of the application's, the same messages again are duplicates, one and all."""
    for _ in range(2):
        with topic.producer(**KEYED, producer_name="p") as producer:
            for number, key in enumerate("abba", 1):
                producer.send_async(b"%d" % number, None, partition_key=key, sequence_id=number)
    assert entries(topic.client) == [[b"1"], [b"2", b"3"], [b"4"]]


@pytest.mark.parametrize("way", ["send", "send_async", "locked"])
def test_a_delayed_message_does_not_overtake_ids_that_are_given(topic, way):
    """It would be stored ahead of the batch, and that would then be taken for duplicates."""
    answers = Answers()
    producer = topic.producer(**WAITS, producer_name="p")

    def send(number: int, **options: Any) -> None:
        producer.send_async(b"%d" % number, answers.of(number), sequence_id=number, **options)

    def send_most() -> None:
        send(1)
        send(2, partition_key="k")
        if way != "send":
            send(3, deliver_at=1)
            send(4, deliver_at=1)
            send(5)

    if way == "locked":
        with held(topic.client):
            send_most()
    else:
        send_most()
    if way == "send":
        assert producer.send(b"3", sequence_id=3, deliver_at=1).entry_id() == 1
    producer.flush()
    wanted = [[b"1", b"2"], [b"3"]] if way == "send" else [[b"1", b"2"], [b"3"], [b"4"], [b"5"]]
    assert entries(topic.client) == wanted
    assert [(number, result) for number, result, _ in answers] == [
        (number, Result.Ok) for number in (range(1, 3) if way == "send" else range(1, 6))
    ]
    # Nobody shares an entry, and so a batch index, with a message that waits.
    assert [place.batch_index() for _, _, place in answers][2:] == [-1, -1, 0][: len(answers) - 2]


def test_a_delayed_message_without_an_id_still_goes_ahead(topic):
    """Automatic ids are given in the order of storing."""
    with topic.producer(**WAITS, producer_name="p") as producer:
        producer.send_async(b"batched", None)
        producer.send_async(b"delayed", None, deliver_at=1)
    assert entries(topic.client) == [[b"delayed"], [b"batched"]]
    assert last_id(topic.client) == 1


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "encrypted"])
def test_a_batch_whose_last_id_is_not_its_highest(topic, tmp_path, is_encrypted):
    """Whoever takes the name of a dead producer finds the highest id, also where ids are not readable."""
    options: dict[str, Any] = {}
    if is_encrypted:
        options = {"encryption_key": "app", "crypto_key_reader": key_files(tmp_path, "ec")}
    store = topic.client._core.store
    producer = topic.producer(**WAITS, **options, producer_name="p")
    store.set_policy("topic", DEDUPLICATION, False)
    for number in (3, 9, 4):
        producer.send_async(b"%d" % number, None, sequence_id=number)
    producer.flush()
    store.set_policy("topic", DEDUPLICATION, True)  # reads what is there
    producer.close()
    assert last_id(topic.client) == 9


def test_whole_columns_repeated(topic, tmp_path):
    """Entries that were stored come back without a place; encrypted and compressed as well."""
    options = {
        "producer_name": "p",
        "encryption_key": "app",
        "crypto_key_reader": key_files(tmp_path, "ec"),
        "compression_type": CompressionType.LZ4,
    }
    values = [b"%d" % number for number in range(1, 7)]
    with topic.producer(**options) as producer:
        producer.send_many(values[:4], sequence_ids=range(1, 5), batching_max_messages=2)
    with topic.producer(**options) as producer:
        sent = producer.send_many(values, sequence_ids=range(1, 7), batching_max_messages=2)
        assert [place.entry_id() for place in sent] == [-1, -1, -1, -1, 2, 2]
        assert (len(sent), producer.last_sequence_id(), producer.stats().messages_sent) == (6, 6, 2)
    consumer = topic.consumer(crypto_key_reader=key_files(tmp_path, "ec"))
    assert [consumer.receive(1000).data() for _ in values] == values


def test_automatic_ids_of_whole_columns_go_on_after_singles_and_chunks(topic):
    """All ways of sending count together."""
    producer = topic.producer(producer_name="p", chunking_enabled=True)
    counted = itertools.count()
    big = payload(2500)
    for _ in range(2):
        producer.send(b"%d" % next(counted))
        producer.send_many([b"%d" % next(counted), b"%d" % next(counted)])
        next(counted)
        producer.send(big)
        producer.send_async(b"%d" % next(counted), None)
    producer.flush()
    assert producer.last_sequence_id() == next(counted) - 1
    producer.close()
    assert last_id(topic.client) == 9
    wanted = [b"0", b"1", b"2", big, b"4", b"5", b"6", b"7", big, b"9"]
    assert payloads(topic.client) == wanted


@pytest.mark.parametrize("way", ["send", "send_async"])
@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "encrypted"])
def test_a_chunked_message_that_was_interrupted(topic, tmp_path, way, is_encrypted):
    """Sent again under its id it is stored once and whole, whichever part the interrupt came after."""
    options: dict[str, Any] = {"producer_name": "p", "chunking_enabled": True}
    keys = key_files(tmp_path, "ec")
    if is_encrypted:
        options |= {"encryption_key": "app", "crypto_key_reader": keys}
    big = [payload(3000, number) for number in range(4)]
    for number in range(1, 4):
        producer = topic.producer(**options)
        failpoints.set("chunk:part_stored", "raise:KeyboardInterrupt", nth=number)
        try:
            if way == "send":
                with pytest.raises(Interrupted):
                    producer.send(big[number], sequence_id=number)
            else:
                with pytest.raises((Interrupted, KeyboardInterrupt)):
                    producer.send_async(big[number], None, sequence_id=number)
        finally:
            failpoints.clear()
        if number == 2:  # by the next producer of the name
            producer.close()
            producer = topic.producer(**options)
        producer.send(big[number], sequence_id=number)
        producer.send(big[number], sequence_id=number)
        producer.close()
    with topic.client.create_reader("topic", MessageId.earliest, crypto_key_reader=keys) as reader:
        assert [message.data() for message in reader] == big[1:]
