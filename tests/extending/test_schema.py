"""A schema is a class derived from `Schema`: asked before anything is made, it versions its messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import Admin, BytesSchema, Client, IncompatibleSchema, InitialPosition, MessageId
from embeddedpulsar import asyncio as aio
from embeddedpulsar.testing.trial_store import assert_clean
from tests.support.key_files import key_files

NAMESPACE = "persistent://public/default"


class Versioned(BytesSchema):
    """Notes what it is asked; refuses topics whose name ends with the word "closed"."""

    def __init__(self, version: Any = 5) -> None:
        super().__init__()
        self.version = version
        self.asked: list[tuple[str, bool]] = []

    def check_topic(self, topic: str, *, is_producer: bool) -> int:
        self.asked.append((topic, is_producer))
        if topic.endswith("closed"):
            raise IncompatibleSchema(f"{topic} takes no such messages")
        return self.version


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with Client(tmp_path) as made:
        yield made
    assert_clean(tmp_path)


USES: dict[str, Callable[[Client, str, Any], Any]] = {
    "producer": lambda client, topic, schema: client.create_producer(topic, schema=schema),
    "consumer": lambda client, topic, schema: client.subscribe(topic, "s", schema=schema),
    "reader": lambda client, topic, schema: client.create_reader(topic, MessageId.earliest, schema=schema),
    "consumer of several": lambda client, topic, schema: client.subscribe(
        ["open", topic], "s", schema=schema
    ),
}


@pytest.mark.parametrize("use", USES)
def test_a_refused_topic_is_not_created(client: Client, use: str):
    """Nor any other topic of the call."""
    with pytest.raises(IncompatibleSchema, match="takes no such messages"):
        USES[use](client, "closed", Versioned())
    assert client._core.store.topics.names() == []


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("partitions", [0, 3])
def test_nothing_is_registered_for_a_refused_topic(client: Client, tmp_path: Path, use: str, partitions: int):
    """No producer, no consumer and no subscription, on it or on another topic of the call."""
    store = client._core.store
    with Admin(tmp_path) as admin:
        if partitions:
            admin.topics().create_partitioned_topic("closed", partitions)
        else:
            admin.topics().create_non_partitioned_topic("closed")
        admin.topics().create_non_partitioned_topic("open")
    schema = Versioned()
    with pytest.raises(IncompatibleSchema):
        USES[use](client, "closed", schema)
    assert schema.asked[-1] == (f"{NAMESPACE}/closed", use == "producer")
    names = [f"closed-partition-{index}" for index in range(partitions)] or ["closed"]
    for name in [*names, "open"]:
        hold = store.use_topic(name)
        assert hold.topic.subscriptions() == [] == hold.topic.consumers() and not hold.topic.had_producers
        hold.release()
        with pytest.raises(IncompatibleSchema):
            USES[use](client, name if name != "open" else "closed", schema)


def test_coroutines_are_refused_too(tmp_path: Path):
    """By the same call."""

    async def run() -> None:
        client = aio.Client(str(tmp_path))
        with pytest.raises(aio.PulsarException):
            await client.create_producer("closed", schema=Versioned())
        with pytest.raises(aio.PulsarException):
            await client.subscribe("closed", "s", schema=Versioned())
        await client.close()

    asyncio.run(run())
    with Client(tmp_path) as client:
        assert client._core.store.topics.names() == []


WAYS: dict[str, dict[str, Any]] = {
    "single": {"batching_enabled": False},
    "batch": {"batching_enabled": True},
    "compressed": {"batching_enabled": False, "compression_type": 1},
    "chunks": {"batching_enabled": False, "chunking_enabled": True, "chunk_max_message_size": 100},
}


@pytest.mark.parametrize("partitions", [0, 2])
@pytest.mark.parametrize("way", [*WAYS, "encrypted", "many"])
def test_the_version_reaches_entry_and_message(
    client: Client, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, way: str, partitions: int
):
    """With and without a key, however the message is stored."""
    from embeddedpulsar import CompressionType

    if partitions:
        with Admin(tmp_path) as admin:
            admin.topics().create_partitioned_topic("t", partitions)
    options = dict(WAYS.get(way, {}))
    if "compression_type" in options:
        options["compression_type"] = CompressionType.LZ4
    reader = None
    if way == "encrypted":
        reader = key_files(tmp_path_factory.mktemp("keys"))
        options = {"encryption_key": "key", "crypto_key_reader": reader}
    consumer = client.subscribe(
        "t", "s", initial_position=InitialPosition.Earliest, crypto_key_reader=reader, schema=Versioned(9)
    )
    with client.create_producer("t", schema=Versioned(), **options) as producer:
        if way == "many":
            producer.send_many([b"x" * 500, b"y" * 500])
        else:
            producer.send_async(b"x" * 500, None)
            producer.send_async(b"y" * 500, None, partition_key="k")
            producer.flush()
    found = [consumer.receive(2000) for _ in range(2)]
    assert {message.schema_version() for message in found} == {"\0\0\0\0\0\0\0\5"}


def test_without_a_version_there_is_none(client: Client):
    """The schemas of the package give none."""
    consumer = client.subscribe("t", "s")
    client.create_producer("t").send(b"x")
    assert consumer.receive(2000).schema_version() == ""


def test_topics_are_named_in_full_and_partitions_by_their_topic(client: Client, tmp_path: Path):
    """Once for each call, whatever the number of partitions."""
    with Admin(tmp_path) as admin:
        admin.topics().create_partitioned_topic("parts", 3)
    schema = Versioned()
    client.create_producer("parts", schema=schema)
    client.create_producer("parts-partition-1", schema=schema)
    client.subscribe(["parts", "plain"], "s", schema=schema)
    assert schema.asked == [
        (f"{NAMESPACE}/parts", True),
        (f"{NAMESPACE}/parts", True),
        (f"{NAMESPACE}/parts", False),
        (f"{NAMESPACE}/plain", False),
    ]


@pytest.mark.parametrize("version", [-2, 2**31, "1", None])
def test_versions_are_numbers(client: Client, version: Any):
    """An error in a schema is found before anything is made."""
    with pytest.raises(ValueError, match="the schema version"):
        client.create_producer("t", schema=Versioned(version))
    assert client._core.store.topics.names() == []
