"""Topics that producers of every kind wrote to, in random order, and what a Reader gets of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from embeddedpulsar import (
    Admin,
    BatchingType,
    Client,
    CompressionType,
    ConsumerCryptoFailureAction,
    CryptoKeyReader,
    MessageId,
)
from tests.conformance.chunks import HalfSent, log_of

LIMIT = 3000
TOPIC = "mixed"
_CODECS = tuple(CompressionType.__members__.values())


def make_store(root: Path, **settings: object) -> None:
    """A store of small entries that deduplicates and keeps everything, unless settings say otherwise."""
    root.mkdir(parents=True)
    lines = {
        "maxMessageSize": LIMIT,
        "brokerDeduplicationEnabled": "true",
        "defaultRetentionTimeInMinutes": -1,
        "defaultRetentionSizeInMB": -1,
    } | settings
    (root / "broker.conf").write_text("".join(f"{name}={value}\n" for name, value in lines.items()))


class MixedTopic:
    """Publishes to one topic whatever a seed says, by producers that come and go.

    Args:
        client: of a store that `make_store` made.
        seed: for the same one the same calls are made.
        keys: key pairs of the producers that encrypt; without them none does.
        partitions: of the topic; 0 for a plain one.
    """

    def __init__(
        self, client: Client, seed: int, *, keys: CryptoKeyReader | None = None, partitions: int = 0
    ) -> None:
        self._client = client
        self._random = random.Random(seed)
        self._keys = keys
        self._partitions = partitions
        self._names = 0
        self._slow: list[HalfSent] = []
        if partitions:
            with Admin(client._core.store.root) as admin:
                admin.topics().create_partitioned_topic(TOPIC, partitions)

    def run(self, steps: int) -> None:
        """So many producers one after the other, each with some messages of its own."""
        acts: list[Callable[[Any], None]] = [self._singles, self._async, self._many, self._arrow, self._again]
        for _ in range(steps):
            chance = self._random.random()
            if chance < 0.2:
                self._roll()
            elif chance < 0.3 and self._partitions:
                self._grow()
            elif chance < 0.5:
                self._chunks()
            with self._producer() as producer:
                self._random.choice(acts)(producer)

    def _producer(self, **options: Any) -> Any:
        choose = self._random
        options.setdefault("compression_type", choose.choice(_CODECS))
        if self._keys is not None and choose.random() < 0.4:
            options |= {"encryption_key": "app", "crypto_key_reader": self._keys}
        if options.get("chunking_enabled") or choose.random() < 0.4:
            options |= {"chunking_enabled": True, "batching_enabled": False}
        else:
            options["batching_enabled"] = choose.random() < 0.7
            options["batching_type"] = choose.choice([BatchingType.Default, BatchingType.KeyBased])
        options["batching_max_messages"] = choose.choice([2, 3, 20])
        self._names += 1
        topic = options.pop("topic", TOPIC)
        if self._partitions and topic == TOPIC:
            # Turns begin at a partition that is drawn by the system; the seed decides here.
            options["message_router"] = lambda _, partitions: self._random.randrange(partitions)
        return self._client.create_producer(topic, f"producer-{self._names}", **options)

    def _options(self) -> dict[str, Any]:
        choose = self._random
        found: dict[str, Any] = {}
        if choose.random() < 0.5:
            found["partition_key"] = choose.choice(["", "k1", "schlüssel", "k" * 40])
        if choose.random() < 0.2:
            found["ordering_key"] = choose.choice(["", "o1"])
        if choose.random() < 0.3:
            found["properties"] = {f"p{n}": "ä" * n for n in range(choose.randrange(3))}
        if choose.random() < 0.3:
            found["event_timestamp"] = choose.choice([0, 1, 1_700_000_000_123])
        return found

    def _value(self) -> bytes | None:
        choose = self._random
        kind = choose.randrange(8)
        if kind < 2:
            return [None, b""][kind]
        if kind == 2:
            return b"0123456789" * choose.randrange(1, 40)
        return choose.randbytes(choose.randrange(1, 200))

    def _singles(self, producer: Any) -> None:
        for _ in range(self._random.randrange(1, 6)):
            late = {"deliver_after": timedelta(hours=1)} if self._random.random() < 0.2 else {}
            producer.send(self._value(), **self._options(), **late)

    def _async(self, producer: Any) -> None:
        sequence_id = 0
        for _ in range(self._random.randrange(1, 40)):
            sequence_id += self._random.randrange(1, 3)
            producer.send_async(self._value(), None, sequence_id=sequence_id, **self._options())
        producer.flush()

    def _again(self, producer: Any) -> None:
        """Ids that were sent before, which deduplication refuses."""
        for sequence_id in (4, 5, 5, 3, 6):
            producer.send(b"id %d" % sequence_id, sequence_id=sequence_id)

    def _many(self, producer: Any) -> None:
        rows = [(self._value(), self._options()) for _ in range(self._random.randrange(1, 60))]
        producer.send_many(
            [value for value, _ in rows],
            partition_keys=[options.get("partition_key") for _, options in rows],
            ordering_keys=[options.get("ordering_key") for _, options in rows],
            properties=[options.get("properties") for _, options in rows],
            event_timestamps=[options.get("event_timestamp") for _, options in rows],
            batching_max_messages=self._random.choice([1, 7, 1000]),
        )

    def _arrow(self, producer: Any) -> None:
        values = [self._value() for _ in range(self._random.randrange(1, 60))]
        keys = [self._random.choice([None, "a", "b"]) for _ in values]
        table = pa.table({"v": pa.array(values, pa.binary()), "k": pa.array(keys, pa.string())})
        producer.send_arrow(table, value="v", key="k")

    def _chunks(self) -> None:
        """Large messages; some slowly, with messages of others and new segments between, some never whole."""
        choose = self._random
        if self._slow and choose.random() < 0.6:
            slow = self._slow.pop(0)
            if choose.random() < 0.3:
                slow.send(min(1, slow.left))
            else:
                slow.finish()
            return
        if choose.random() < 0.5:
            with self._producer(chunking_enabled=True) as producer:
                for _ in range(choose.randrange(1, 3)):
                    size = choose.randrange(LIMIT, 5 * LIMIT)
                    value = choose.randbytes(size) if choose.random() < 0.8 else b"packed " * size
                    producer.send(value, **self._options())
            return
        topic = f"{TOPIC}-partition-0" if self._partitions else TOPIC
        producer = self._producer(chunking_enabled=True, compression_type=CompressionType.NONE, topic=topic)
        self._slow.append(HalfSent(producer, choose.randbytes(4 * LIMIT)).send(choose.randrange(1, 3)))

    def _roll(self) -> None:
        number = self._random.randrange(max(1, self._partitions))
        log_of(self._client, f"{TOPIC}-partition-{number}" if self._partitions else TOPIC).roll()

    def _grow(self) -> None:
        self._partitions += 1
        with Admin(self._client._core.store.root) as admin:
            admin.topics().update_partitioned_topic(TOPIC, self._partitions)

    def logs(self) -> list[str]:
        """The names to read one by one, in order."""
        return [f"{TOPIC}-partition-{i}" for i in range(self._partitions)] or [TOPIC]


Row = dict[str, Any]


def rows_of_messages(
    client: Client,
    logs: list[str],
    keys: CryptoKeyReader | None = None,
    action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL,
) -> list[Row]:
    """What a Reader gets of these logs, one after the other, as rows of a table."""
    found = []
    for name in logs:
        options: dict[str, Any] = {"crypto_key_reader": keys, "crypto_failure_action": action}
        with client.create_reader(name, MessageId.earliest, **options) as reader:
            found += [_row(message) for message in reader]
    return found


def _row(message: Any) -> Row:
    partition = message.topic_name().rpartition("-partition-")[2]
    return {
        "value": None if message.has_null_value() else message.data(),
        "__key": message.partition_key().encode() or None,
        "__topic": message.topic_name(),
        "__messageId": message.message_id().serialize(),
        "__publishTime": message.publish_timestamp(),
        "__eventTime": message.event_timestamp() or None,
        "__messageProperties": message.properties(),
        "__partition": int(partition) if partition.isdecimal() else -1,
        "__orderingKey": message.ordering_key().encode() or None,
        "__sequenceId": message.sequence_id(),
        "__producerName": message.producer_name(),
    }


def rows_of_table(table: pa.Table) -> list[Row]:
    """The same of a table: keys that are empty are none, as they are to a Reader; times are ms."""
    for name in ("__publishTime", "__eventTime"):
        at = table.column_names.index(name)
        table = table.set_column(
            at, name, table.column(name).cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
        )
    rows = table.to_pylist()
    for row in rows:
        row["__messageProperties"] = dict(row["__messageProperties"])
        for name in ("__key", "__orderingKey"):
            row[name] = row[name] or None
    return rows
