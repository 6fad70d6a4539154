"""Commits of instances that do not know of each other: stopped ones, and those that died."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import Client, Function, InitialPosition, MessageId, MessageTooBig, ProducerBusy
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.functions.function_config import FunctionConfig, ProcessingGuarantees
from embeddedpulsar.functions.instance import Instance, Run
from embeddedpulsar.functions.io import Definition, OutputProducers, Taken
from embeddedpulsar.functions.state import (
    Changes,
    Output,
    Pending,
    StateLog,
    StateTable,
    pending_record,
    read_state,
)
from embeddedpulsar.testing import ManualClock, assert_clean

NAME = "public/default/tested"


class Count(Function):
    """Counts, and publishes."""

    def process(self, input: Any, context: Any) -> Any:
        """Count an input."""
        context.incr_counter("all", 1)
        return input


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """A client of a store that is whole at the end."""
    with Client(tmp_path / "store") as made:
        yield made
    assert_clean(tmp_path / "store")


@pytest.fixture(autouse=True)
def unset() -> Iterator[None]:
    """No failpoint stays set."""
    yield
    failpoints.clear()


def instance(client: Client, **options: Any) -> Instance:
    """An instance of `Count` over ``in``."""
    options = {"output": "out"} | options
    config = FunctionConfig(
        name="tested",
        inputs=["in"],
        processing_guarantees=ProcessingGuarantees.EFFECTIVELY_ONCE,
        subscription_position=InitialPosition.Earliest,
        **options,
    ).check()
    return Instance(client, Definition(config, "id"), function=Count)


def outputs(client: Client, topic: str = "out") -> list[bytes]:
    """What was published."""
    with client.create_reader(topic, MessageId.earliest) as reader:
        return [one.data() for one in reader]


def test_an_instance_that_was_overtaken_throws_its_run_away(client: Client):
    """Another one has processed the same message between its function and its commit."""
    client.create_producer("in").send(b"tea")
    first, second = instance(client), instance(client)
    with client.create_reader("in", MessageId.earliest) as reader:
        (message,) = list(reader)
    failpoints.set("function:processed", lambda: commit_elsewhere())

    def commit_elsewhere() -> None:
        run, changes = Run(), Changes()
        changes.add("all", 1)
        run.add(Taken(message, second._inputs._consumers[0]), changes, [])
        assert second._committer.commit(run, [])

    assert first.step() == 1
    assert read_state(client, NAME).value("all") == 1
    assert outputs(client) == []
    first.close()
    second.close()


@pytest.mark.parametrize("at", [1, 3])
def test_what_is_delivered_again_within_a_run_is_processed_once(client: Client, at: int):
    """The consumer of the instance loses its turn to another one and gets it back, before the run is
    committed."""
    producer = client.create_producer("in")
    for number in range(5):
        producer.send(b"%d" % number)
    only = instance(client)
    consumer: Any = only._inputs._consumers[0]
    calls: list[int] = []

    process = only._process

    def process_and_switch(payload: int, context: Any) -> Any:
        calls.append(payload)
        if payload == at and calls.count(at) == 1:
            consumer.redeliver_unacknowledged_messages()
        return process(payload, context)

    setattr(only, "_process", process_and_switch)
    while only.step():
        continue
    assert outputs(client) == [b"%d" % number for number in range(5)]
    assert read_state(client, NAME).value("all") == 5
    assert calls == list(range(5))
    only.close()
    again = instance(client)
    assert again.step(0) == 0  # all of them are acknowledged
    again.close()


def test_what_a_dead_instance_left_is_settled_before_the_next_commit(client: Client):
    """Under the name that it had, whatever the next one processes."""
    producer = client.create_producer("in")
    producer.send(b"1")
    first, second = instance(client), instance(client)
    failpoints.set("function:committed", "raise")
    with pytest.raises(failpoints.InjectedFailure):
        first.step()
    assert outputs(client) == []
    first.close()
    producer.send(b"2")
    while second.step():
        continue
    assert outputs(client) == [b"1", b"2"]
    assert read_state(client, NAME).pending is None
    second.close()


def test_outputs_of_an_instance_that_lives_are_not_settled(client: Client, monkeypatch: pytest.MonkeyPatch):
    """Its producer name is in use."""
    monkeypatch.setattr("embeddedpulsar.functions.io._PATIENCE_S", 0.0)
    owner, other = OutputProducers(client, "owner"), OutputProducers(client, "other")
    pending = Pending("owner", [Output("persistent://public/default/out", 1, b"x", {})])
    owner.publish(pending)
    with pytest.raises(ProducerBusy):
        other.publish_for_dead_instance(pending)
    owner.close()
    other.publish_for_dead_instance(pending)
    assert outputs(client) == [b"x"]
    other.close()


@pytest.mark.parametrize("step", ["function:committed", "function:published"])
def test_what_a_dead_instance_left_is_settled_however_late(tmp_path: Path, step: str):
    """The topic has forgotten its name, and is asked itself what it has."""
    with ManualClock() as clock, Client(tmp_path / "store") as client:
        client.create_producer("in").send_many([b"1", b"2", b"3"])
        first = instance(client)
        failpoints.set(step, "raise")
        with pytest.raises(failpoints.InjectedFailure):
            first.step()
        first.close()
        clock.advance(timedelta(hours=7))
        second = instance(client)
        assert second.step() == 3
        assert outputs(client) == [b"1", b"2", b"3"]
        assert read_state(client, NAME).value("all") == 3
        second.close()
    assert_clean(tmp_path / "store")


def test_a_part_of_the_outputs_is_settled_however_late(tmp_path: Path):
    """Each topic has another part, one of them behind an open transaction."""
    with ManualClock() as clock, Client(tmp_path / "store") as client:
        owner, other = OutputProducers(client, "owner"), OutputProducers(client, "other")
        topics = [f"persistent://public/default/{name}" for name in ("out", "left", "right")]
        sent = [Output(topic, number, b"%d" % number, {}) for topic in topics for number in (1, 2, 3)]
        pending = Pending("owner", sent, clock.wall_ms())
        txn = client.new_transaction(900_000)
        client.create_producer("out").send(b"open", txn=txn)
        owner.publish(pending._replace(outputs=[*sent[:2], sent[3]]))
        owner.close()
        clock.advance(timedelta(minutes=1))
        txn.commit()
        again = client.new_transaction(900_000)
        client.create_producer("left").send(b"open", txn=again)
        clock.advance(timedelta(hours=7))
        other.publish_for_dead_instance(pending)
        other.publish_for_dead_instance(pending)
        other.close()
        again.abort()
        assert outputs(client) == [b"open", b"1", b"2", b"3"]
        assert outputs(client, "left") == outputs(client, "right") == [b"1", b"2", b"3"]
    assert_clean(tmp_path / "store")


def test_outputs_that_do_not_fit_into_a_commit(client: Client):
    """The error names the limit; nothing is counted."""
    client.create_producer("in").send(b"x" * 5_242_700)
    made = instance(client)
    with pytest.raises(MessageTooBig, match="maxMessageSize"):
        made.step()
    made.close()
    assert outputs(client) == []
    assert read_state(client, NAME).positions == {}


def test_state_that_is_not_understood(client: Client):
    """A record that is none is damage; keys of a later release are left alone."""
    table = StateTable()
    table.apply("z/later", b"x")
    for key, payload in (("p/topic", b"1 2"), ("s/key", b"?"), ("o", b"x"), ("i/one", b"")):
        with pytest.raises(CorruptionError):
            table.apply(key, payload)
    assert table.keys() == []


def test_changes_on_top_of_each_other():
    """Counters are amounts, so they add up; values replace."""
    table, first, later = StateTable(), Changes(), Changes()
    first.add("n", 2)
    first.put("v", "a")
    later.add("n", 3)
    later.put("v", None)
    later.put("m", 7)
    later.add("m", -2)
    first.merge(later)
    table.apply("s/n", b"n10")
    assert {one.key: one.payload for one in table.records_of(first)} == {"s/n": b"n15", "s/m": b"n5"}
    table.apply("s/v", b"sold")
    assert {one.key: one.payload for one in table.records_of(first)}["s/v"] is None


def test_a_commit_is_one_entry(client: Client):
    """However many records it has."""
    state = StateLog(client, NAME, "0-test")
    changes = Changes()
    for number in range(2000):
        changes.put(f"key {number}", "x")
    try:
        state.acquire()
        state.commit([*state.table.records_of(changes), pending_record(None)])
    finally:
        state.release()
    with client.create_reader(state.topic, MessageId.earliest) as reader:
        assert len({one.message_id().entry_id() for one in reader}) == 1
    state.close()
