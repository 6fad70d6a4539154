"""Models on topics: a field with a default is added while programs of both versions go on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from embeddedpulsar import IncompatibleSchema, InitialPosition
from embeddedpulsar.schema import AutoConsumeSchema, AvroSchema, JsonSchema


@dataclass
class Part:
    """A model with defaults."""

    a: int = 1


@dataclass
class Before:
    """The first version."""

    id: str


@dataclass
class After:
    """Fields with defaults are new."""

    id: str
    tags: list[str] = field(default_factory=list)
    part: Part = field(default_factory=Part)
    count: int | None = 5
    raw: bytes = b"\xff"


@dataclass
class Without:
    """A new field that has no default."""

    id: str
    size: int


@pytest.mark.parametrize("make", [JsonSchema, AvroSchema])
def test_a_field_with_a_default_is_added(topic: Any, make: Any):
    """Consumers of each version read messages of each version."""
    if make is AvroSchema:
        pytest.importorskip("fastavro", reason="the extra is not installed")

    def consumer(name: str, schema: Any) -> Any:
        return topic.client.subscribe(
            topic.name, name, schema=schema, initial_position=InitialPosition.Earliest
        )

    old = consumer("old", make(Before))
    with topic.producer(schema=make(Before)) as producer:
        producer.send(Before("1"))
    after = After("2", ["x"], Part(2), None, b"tea")
    with topic.producer(schema=make(After)) as producer:
        producer.send(after)
    new = consumer("new", make(After))
    assert [new.receive(1000).value() for _ in range(2)] == [After("1"), after]
    assert [old.receive(1000).value() for _ in range(2)] == [Before("1"), Before("2")]
    generic = consumer("generic", AutoConsumeSchema())
    assert [generic.receive(1000).value()["id"] for _ in range(2)] == ["1", "2"]
    with pytest.raises(IncompatibleSchema, match="the field 'size' of record Without has no default"):
        topic.producer(schema=make(Without))


def test_a_topic_of_any_value(topic: Any):
    """Each comes back as it was sent."""
    consumer = topic.consumer(schema=JsonSchema(Any))
    with topic.producer(schema=JsonSchema(Any)) as producer:
        for value in (1, "x", [None], {"a": {"b": 1.5}}):
            producer.send(value)
    assert [consumer.receive(1000).value() for _ in range(4)] == [1, "x", [None], {"a": {"b": 1.5}}]
