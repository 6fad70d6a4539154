"""A process dies at each step of the registration of a schema; others register at the same time."""

from __future__ import annotations

from pathlib import Path

import pytest

from embeddedpulsar import Admin, Client, IncompatibleSchema, InitialPosition, MessageId
from embeddedpulsar.schema import AutoConsumeSchema, Integer, JsonSchema, Record, String
from embeddedpulsar.testing.trial_store import assert_clean
from tests.children import ForkedChild, die_at

STEPS = [
    "schema:locked",
    "document:written",
    "document:synced",
    "document:replaced",
    "document:directory_synced",
    "schema:written",
]


class Order(Record):
    """The first version."""

    table = Integer(required=True)


class Noted(Record):
    """Compatible with it."""

    table = Integer(required=True)
    note = String(required_default=True)


class Strict(Record):
    """Not compatible with any."""

    waiter = String(required=True)


def versions(root: Path, topic: str = "t") -> list[int]:
    """Those of a topic."""
    with Admin(root) as admin:
        return [one.version for one in admin.schemas().get_all_schemas(topic)]


def register(root: Path, durability: str, kind: type[Record]) -> None:
    """As a producer does."""
    with (
        Client(root, durability=durability) as client,
        client.create_producer("t", schema=JsonSchema(kind)) as one,
    ):
        one.send(kind(table=2))


@pytest.mark.parametrize("durability", ["process", "flush"])
@pytest.mark.parametrize("step", STEPS)
def test_a_registration_that_dies(tmp_path: Path, step: str, durability: str):
    """It is there or it is not, and can be repeated; messages of before and after are read."""
    with Client(tmp_path) as client, client.create_producer("t", schema=JsonSchema(Order)) as producer:
        producer.send(Order(table=1))
    assert die_at(step, lambda: register(tmp_path, durability, Noted))
    assert versions(tmp_path) in ([0], [0, 1])
    register(tmp_path, durability, Noted)
    assert versions(tmp_path) == [0, 1]
    with Client(tmp_path) as client:
        reader = client.create_reader("t", MessageId.earliest, schema=AutoConsumeSchema())
        found = [reader.read_next(2000).value().get_fields() for _ in range(2)]
    assert found == [["table"], ["table", "note"]]
    assert not list(tmp_path.glob("topics/*/*.tmp"))
    assert_clean(tmp_path)


@pytest.mark.parametrize("step", STEPS)
def test_a_deletion_that_dies(tmp_path: Path, step: str):
    """All schemas are there, or none; messages are read in either case."""
    register(tmp_path, "process", Noted)

    def delete() -> None:
        with Admin(tmp_path) as admin:
            admin.schemas().delete_schema("t")

    assert die_at(step, delete)
    assert versions(tmp_path) in ([0], [])
    delete()
    with Client(tmp_path) as client:
        client.create_producer("t", schema=JsonSchema(Strict)).close()
        reader = client.create_reader("t", MessageId.earliest, schema=AutoConsumeSchema())
        assert reader.read_next(2000).value()["table"] == 2
    assert versions(tmp_path) == [2]
    assert_clean(tmp_path)


def test_two_processes_register_at_once(tmp_path: Path):
    """Of two schemas that do not fit, one wins, on each topic; of two that fit, each gets its own version."""
    topics = [f"t{number}" for number in range(12)]

    def race(own: type[Record]) -> str:
        found = ""
        with Client(tmp_path) as client:
            for name in topics:
                try:
                    producer = client.create_producer(name, schema=JsonSchema(own))
                    version = producer._publisher.config.schema_version
                    found += str(version)
                except IncompatibleSchema:
                    found += "-"
        return found

    with Client(tmp_path) as client:
        for name in topics:
            client.subscribe(name, "s", initial_position=InitialPosition.Earliest).close()
    for own, expected in ((Strict, {"0-", "-0"}), (Noted, {"01", "10"})):
        children = [ForkedChild(lambda kind=kind: race(kind)) for kind in (Order, own)]
        answers = [child.ready() for child in children]
        for child in children:
            child.end()
        assert {one + other for one, other in zip(*answers, strict=True)} <= expected, answers
        for name in topics:
            assert versions(tmp_path, name) == list(range(len(versions(tmp_path, name))))
        with Admin(tmp_path) as admin:
            for name in topics:
                admin.schemas().delete_schema(name, force=True)
                admin.topics().delete(name)
    assert_clean(tmp_path)
