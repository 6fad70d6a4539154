"""Every way to send, with every two options of a producer together: what comes back is what was sent."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import embeddedpulsar.asyncio as coroutines
from embeddedpulsar import (
    BatchingType,
    Client,
    CompressionType,
    ConsumerType,
    CryptoKeyReader,
    InitialPosition,
    MessageId,
    Result,
)
from embeddedpulsar._engine.store.policies.admitting import DEDUPLICATION
from embeddedpulsar.arrow import read_topic
from tests.conformance.chunks import payload
from tests.support.key_files import key_files

pa = pytest.importorskip("pyarrow", reason="the extra `arrow` is not installed")

LIMIT = 3000
PARTITIONS = 3
OPTIONS: dict[str, tuple[Any, ...]] = {
    "topic": ("plain", "partitioned"),
    "entries": ("single", "chunked", "batch", "batch by key"),
    "codec": tuple(CompressionType),
    "is_encrypted": (False, True),
    "drops_duplicates": (False, True),
    "way": ("send", "send_async", "send_many", "send_arrow", "coroutines"),
    "kind": tuple(ConsumerType),
    "durability": ("process", "interval", "flush"),
}


class Case(NamedTuple):
    """One choice of everything."""

    topic: str
    entries: str
    codec: CompressionType
    is_encrypted: bool
    drops_duplicates: bool
    way: str
    kind: ConsumerType
    durability: str


def pairwise() -> list[Case]:
    """Few cases in which every two options meet; always the same ones.

    Each begins with a pair that has not met yet, and takes of some random completions the one with most.
    """
    chance = random.Random(4)
    columns = list(OPTIONS.values())
    places = list(itertools.combinations(range(len(columns)), 2))
    missing = {(a, x, b, y) for a, b in places for x in columns[a] for y in columns[b]}
    cases = []
    while missing:
        a, x, b, y = min(missing, key=str)
        best: tuple[int, list[Any]] = (0, [])
        for _ in range(30):
            row = [chance.choice(column) for column in columns]
            row[a], row[b] = x, y
            met = sum((a, row[a], b, row[b]) in missing for a, b in places)
            best = max(best, (met, row), key=lambda pair: pair[0])
        missing -= {(a, best[1][a], b, best[1][b]) for a, b in places}
        cases.append(Case(*best[1]))
    return cases


class Sent(NamedTuple):
    """A message as it is to come back."""

    value: bytes | None
    key: str | None
    ordering_key: str | None
    properties: dict[str, str]
    event_time: int


def messages_of(case: Case) -> list[Sent]:
    """Some with everything, some with nothing; empty and null ones; large ones where they can be cut."""
    columns = case.way in ("send_many", "send_arrow")
    large = payload(2 * LIMIT + 17) if case.entries == "chunked" and not columns else payload(500)
    found = [Sent(b"plain %d" % number, None, None, {}, 0) for number in range(4)]
    for number in range(24):
        value = [b"%d" % number, None, b"", b"\0" * number, large, "größer €".encode()][number % 6]
        key = [None, "a", "ключ", "🗝", "b"][number % 5]
        ordering_key = ["a", "порядок", None][number // 5 % 3]
        fields: dict[str, str] = {} if number % 4 else {"name": "wert", "ünï": "", "": "€"}
        found.append(Sent(value, key, ordering_key, fields, [0, 1_700_000_000_000 + number][number % 2]))
    return found


class Site:
    """One store for all cases."""

    def __init__(self, path: Path) -> None:
        self.path = path / "store"
        self.path.mkdir()
        (self.path / "broker.conf").write_text(f"maxMessageSize={LIMIT}\n")
        self.client = Client(self.path)
        self.keys = key_files(path, "ec")
        self._numbers = itertools.count()

    def topic(self, case: Case) -> str:
        """A new topic."""
        name = f"topic-{next(self._numbers)}"
        store = self.client._core.store
        if case.topic == "partitioned":
            store.topics.create_partitioned(name, PARTITIONS)
        else:
            self.client.create_producer(name).close()
        if case.drops_duplicates:
            store.set_policy(name, DEDUPLICATION, True)
        return name

    def reading(self, case: Case) -> dict[str, CryptoKeyReader]:
        """What whoever reads needs."""
        return {"crypto_key_reader": self.keys} if case.is_encrypted else {}

    def producing(self, case: Case) -> dict[str, Any]:
        """The options of the producer."""
        options: dict[str, Any] = {"producer_name": "p", "compression_type": case.codec}
        options["batching_enabled"] = False  # coroutines would
        if case.way != "coroutines":
            options["durability"] = case.durability
        if case.is_encrypted:
            options |= {"encryption_key": "app", "crypto_key_reader": self.keys}
        if case.entries == "chunked":
            options["chunking_enabled"] = True
        if case.entries.startswith("batch"):
            options |= {"batching_enabled": True, "batching_max_messages": 7}
            options["batching_max_publish_delay_ms"] = 20 if case.way == "coroutines" else 60_000
        if case.entries == "batch by key":
            options["batching_type"] = BatchingType.KeyBased
        return options


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The store."""
    made = Site(tmp_path_factory.mktemp("combinations"))
    yield made
    made.client.shutdown()


def send_all(site: Site, case: Case, topic: str, messages: list[Sent]) -> list[MessageId]:
    """Send messages, and return their ids."""
    if case.way == "coroutines":
        return asyncio.run(send_by_coroutines(site, case, topic, messages))
    with site.client.create_producer(topic, **site.producing(case)) as producer:
        if case.way == "send_many":
            values, keys, ordering_keys, fields, times = zip(*messages, strict=True)
            return list(
                producer.send_many(
                    values,
                    partition_keys=keys,
                    ordering_keys=ordering_keys,
                    properties=fields,
                    event_timestamps=times,
                    batching_max_messages=7,
                )
            )
        if case.way == "send_arrow":
            kinds = [pa.binary(), pa.string(), pa.string(), pa.map_(pa.string(), pa.string()), pa.int64()]
            table = pa.table(
                {
                    name: pa.array(column, kind)
                    for name, column, kind in zip(
                        Sent._fields, zip(*messages, strict=True), kinds, strict=True
                    )
                }
            )
            names = {name: name for name in Sent._fields[1:]}
            return list(producer.send_arrow(table, **names, batching_max_messages=7))
        if case.way == "send":
            return [producer.send(one.value, **options_of(one)) for one in messages]
        answers: list[tuple[int, MessageId]] = []
        for number, one in enumerate(messages):

            def told(result: Result, place: MessageId, number: int = number) -> None:
                assert result == Result.Ok
                answers.append((number, place))

            producer.send_async(one.value, told, **options_of(one))
        producer.flush()
        return [place for _, place in sorted(answers, key=lambda answer: answer[0])]


async def send_by_coroutines(site: Site, case: Case, topic: str, messages: list[Sent]) -> list[MessageId]:
    """The same, all at once."""
    async with coroutines.Client(site.path) as client:
        producer = await client.create_producer(topic, **site.producing(case))
        sends = [producer.send(one.value, **options_of(one)) for one in messages]
        ids = await asyncio.gather(*sends)
        await producer.close()
        return list(ids)


def options_of(one: Sent) -> dict[str, Any]:
    """The arguments of a send."""
    return {
        "properties": one.properties or None,
        "partition_key": one.key,
        "ordering_key": one.ordering_key,
        "event_timestamp": one.event_time,
    }


def place_of(one: MessageId) -> tuple[int, int, int, int]:
    """Where a message is."""
    return one.partition(), one.ledger_id(), one.entry_id(), one.batch_index()


def as_sent(message: Any) -> Sent:
    """What a consumer or reader sees."""
    return Sent(
        None if message.has_null_value() else message.data(),
        message.partition_key() or None,
        message.ordering_key() or None,
        message.properties(),
        message.event_timestamp(),
    )


def by_consumer(site: Site, case: Case, topic: str, count: int) -> list[Any]:
    """What a consumer is given, which acknowledges it and is given nothing more later."""
    options = {"initial_position": InitialPosition.Earliest, "consumer_type": case.kind, **site.reading(case)}
    found = []
    with site.client.subscribe(topic, "sub", **options) as consumer:
        for _ in range(count):
            found.append(consumer.receive(2000))
            consumer.acknowledge(found[-1])
    with site.client.subscribe(topic, "sub", **options) as consumer:
        assert consumer.receive_nowait() is None
    return found


def by_reader(site: Site, case: Case, topic: str) -> list[Any]:
    """What a reader finds."""
    with site.client.create_reader(topic, MessageId.earliest, **site.reading(case)) as reader:
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(2000))
        return found


def by_arrow(site: Site, case: Case, topic: str) -> dict[tuple[int, int, int, int], Sent]:
    """What is in the columns."""
    rows = read_topic(site.path, topic, **site.reading(case)).to_pylist()
    found = {}
    for row in rows:
        time = row["__eventTime"]
        place = place_of(MessageId.deserialize(row["__messageId"]))
        found[place] = Sent(
            row["value"],
            row["__key"].decode() if row["__key"] is not None else None,
            row["__orderingKey"].decode() if row["__orderingKey"] is not None else None,
            dict(row["__messageProperties"]),
            0 if time is None else round(time.timestamp() * 1000),
        )
        assert row["__producerName"] == "p"
    assert len(found) == len(rows)
    return found


@pytest.mark.parametrize("case", pairwise(), ids=lambda case: "-".join(map(str, case)))
def test_what_comes_back_is_what_was_sent(site: Site, case: Case):
    """Ids, contents and order, as consumers, readers and Arrow see them."""
    topic, messages = site.topic(case), messages_of(case)
    ids = [place_of(one) for one in send_all(site, case, topic, messages)]
    sent = dict(zip(ids, messages, strict=True))
    assert len(sent) == len(messages)

    read = by_reader(site, case, topic)
    assert {place_of(one.message_id()): as_sent(one) for one in read} == sent
    received = by_consumer(site, case, topic, len(messages))
    assert {place_of(one.message_id()): as_sent(one) for one in received} == sent
    assert by_arrow(site, case, topic) == sent

    for partition in {place[0] for place in ids}:
        logged = [one for one in read if one.message_id().partition() == partition]
        places = [place_of(one.message_id()) for one in logged]
        assert places == sorted(places)
        numbers = [one.sequence_id() for one in logged]
        assert numbers == list(range(len(numbers)))
        mine = [place for place in ids if place[0] == partition]  # as they were sent
        is_routed = case.topic == "partitioned" and case.way in ("send_many", "send_arrow")
        if case.entries != "batch by key" and not is_routed:
            assert mine == places
        groups: dict[Any, list[Any]] = {}
        for place in mine:  # whole columns go to partitions key by key
            groups.setdefault((sent[place].key if is_routed else "", sticky_key(sent[place])), []).append(
                place
            )
        assert all(group == sorted(group) for group in groups.values())
    if case.entries == "batch by key" and case.way != "send":
        for _, entry in itertools.groupby(sorted(ids), lambda place: place[:3]):
            assert len({sticky_key(sent[place]) for place in entry}) == 1


def sticky_key(one: Sent) -> str:
    """What an order is promised for."""
    return one.ordering_key or one.key or ""
