"""One process deletes inactive topics while others use them, or is killed in the middle."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from embeddedpulsar import Admin, MessageId
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar._engine.store import topic_deletion  # it declares steps when it is imported
from embeddedpulsar.policy_values import InactiveTopicPolicies
from embeddedpulsar.testing.trial_store import assert_clean
from tests.children import ForkedChild, die_at
from tests.conformance.manual_time import ManualTime

MODULES = (topic_deletion,)
STEPS = [name for name in failpoints.names() if name.startswith("deletion:")]
TOPIC = "persistent://public/default/topic"
HOUR_S = 3600


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with a message in a topic that is to be deleted after an hour."""
    time = ManualTime(tmp_path)
    try:
        time.client.create_producer(TOPIC).send(b"old")
        with Admin(tmp_path) as admin:
            admin.topics().set_inactive_topic_policies(
                TOPIC, InactiveTopicPolicies(max_inactive_duration_seconds=HOUR_S)
            )
    finally:
        time.close()
    return tmp_path


def later(root: Path, action: Callable[[ManualTime], object]) -> None:
    """Open the store two hours later; housekeeping runs while the action lets time pass."""
    time = ManualTime(root)
    try:
        time.client.shutdown()
        time.clock.advance(2 * HOUR_S)
        time.reopen()
        action(time)
    finally:
        time.close()


def look(time: ManualTime) -> None:
    """Let housekeeping have its turn."""
    time.pass_ms(1000)


def texts(time: ManualTime) -> list[bytes]:
    """What is in the topic."""
    found = []
    with time.client.create_reader(TOPIC, MessageId.earliest) as reader:
        while reader.has_message_available():
            found.append(reader.read_next(1000).data())
    return found


def is_there(root: Path) -> bool:
    with Admin(root) as admin:
        return TOPIC in admin.topics().get_list()


@pytest.mark.parametrize("step", STEPS)
def test_a_killed_deletion(root: Path, step: str) -> None:
    """The topic is gone, or as it was, and the next process that looks deletes it."""
    assert die_at(step, lambda: later(root, look))
    assert is_there(root) == (step in ("deletion:noted", "deletion:checked", "deletion:marked"))
    later(root, lambda time: time.pass_ms(200_000))
    assert not is_there(root)
    with Admin(root) as admin:  # what the killed process left makes way for a new topic
        admin.topics().create_non_partitioned_topic(TOPIC)
        admin.topics().delete(TOPIC)
    assert_clean(root)


@pytest.mark.parametrize("arrival", ["message", "reader"])
def test_what_arrives_during_the_deletion_keeps_the_topic(root: Path, arrival: str) -> None:
    """Between the first check and the mark: the second check sees it."""
    path = root.parent / f"{root.name}-{arrival}"
    os.mkfifo(f"{path}.reached")
    os.mkfifo(f"{path}.go")

    def delete() -> str:
        failpoints.set("deletion:checked", f"pause:{path}")
        later(root, look)
        return "looked"

    child = ForkedChild(delete)
    try:
        with open(f"{path}.reached", "rb", buffering=0) as reached:
            assert reached.read(1) == b"!"
        time = ManualTime(root)
        try:
            time.clock.advance(2 * HOUR_S)
            if arrival == "message":
                producer = time.client.create_producer(TOPIC)
                producer.send(b"new")
                producer.close()
            else:
                reader = time.client.create_reader(TOPIC, MessageId.earliest)
            with open(f"{path}.go", "wb", buffering=0) as go:
                go.write(b"!")
            assert child.ready() == "looked"
            assert is_there(root)
            if arrival == "message":
                assert texts(time) == [b"old", b"new"]
            else:
                assert reader.read_next(1000).data() == b"old"
        finally:
            time.close()
    finally:
        child.end()
    assert_clean(root)


def test_a_process_keeps_what_it_reads(root: Path) -> None:
    """Others see that it does, although a reader leaves no other trace; until it is killed."""

    def read() -> str:
        time = ManualTime(root)
        reader = time.client.create_reader(TOPIC, MessageId.earliest)
        time.clock.advance(2 * HOUR_S)
        return reader.read_next(1000).data().decode()

    child = ForkedChild(read)
    try:
        assert child.ready() == "old"
        later(root, look)
        assert is_there(root)
    finally:
        child.end()
    later(root, lambda time: time.pass_ms(2 * HOUR_S * 1000))
    assert not is_there(root)
    Admin(root).close()  # clears away the doorbell of the killed process
    assert_clean(root)
