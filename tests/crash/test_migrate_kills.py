"""A migration that is killed at any step: the next run goes on, and nothing is lost or copied twice."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from embeddedpulsar import Admin, Client, ConsumerType, MessageId
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar.cli.main import main
from embeddedpulsar.cli.migrate_commands import HOLD
from embeddedpulsar.schema import StringSchema
from embeddedpulsar.testing.trial_store import assert_clean
from tests.children import die_at

STEPS = [name for name in failpoints.names() if name.startswith("migrate:")]
STORE_STEPS = ["append:body_done"]
MESSAGES = 60


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory):
    """A store with partitions, large messages, schemas, and subscriptions in the middle of the topics."""
    root = tmp_path_factory.mktemp("migrate") / "origin"
    with Client(root) as client, Admin(root) as admin:
        admin.topics().create_partitioned_topic("parts", 2)
        for topic in ("parts", "plain"):
            admin.topics().create_subscription(topic, "work", MessageId.earliest)
        with client.create_producer("parts", schema=StringSchema(), batching_enabled=True) as producer:
            for number in range(MESSAGES):
                producer.send_async(f"{number}", None, partition_key=f"{number % 5}")
        with client.create_producer("plain", chunking_enabled=True) as producer:
            for number in range(MESSAGES):
                producer.send(b"%d" % number + b"x" * (6_000_000 if number == 40 else 10))
        with client.subscribe("plain", "work", ConsumerType.Shared) as consumer:
            for number in range(30):
                message = consumer.receive()
                if number not in (10, 20):
                    consumer.acknowledge(message)
    yield root
    assert_clean(root)


def run(origin: Path, target: Path) -> None:
    """Migrate all, in silence."""
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    assert main(["migrate", str(origin), str(target)]) == 0


def contents(root: Path) -> dict[str, list[bytes]]:
    """The payloads of each log, shortened, and what its subscription has not acknowledged."""
    listed = {}
    with Client(root) as client, Admin(root) as admin:
        for log in admin.topics().get_list():
            with client.create_reader(log, MessageId.earliest) as reader:
                messages = []
                while reader.has_message_available():
                    messages.append(reader.read_next().data()[:4])
                listed[log] = messages
            peeked = admin.topics().peek_messages(log, "work", 2 * MESSAGES)
            listed[f"{log} work"] = [message.data()[:4] for message in peeked]
    return listed


@pytest.mark.parametrize(
    ("step", "nth"),
    [(step, 1) for step in STEPS]
    + [("migrate:sent", 45), ("append:body_done", 45)]
    + [pytest.param(step, 2, marks=pytest.mark.slow) for step in [*STEPS, *STORE_STEPS]],
)
def test_a_migration_that_is_killed(origin: Path, tmp_path: Path, step: str, nth: int):
    """At each of its steps, and within an append: what it left is the beginning of the origin."""
    target = tmp_path / "target"
    was_killed = die_at(step, lambda: run(origin, target), nth)
    assert was_killed or nth > 1  # it may come less often
    expected = contents(origin)
    if was_killed and target.exists():
        with Client(target) as client, Admin(target) as admin:
            for log in admin.topics().get_list():
                with client.create_reader(log, MessageId.earliest) as reader:
                    for payload in expected[log]:
                        if not reader.has_message_available():
                            break
                        assert reader.read_next().data()[:4] == payload
    assert not die_at("migrate:never", lambda: run(origin, target))
    assert contents(target) == expected
    with Admin(target) as admin:
        assert HOLD in admin.topics().get_subscriptions("plain")
    assert_clean(target)


def test_kills_one_after_the_other(origin: Path, tmp_path: Path):
    """Each run is killed after more messages, of which some are stored; the last one ends with all, once."""
    target = tmp_path / "target"
    kills = 0
    while die_at("migrate:sent", lambda: run(origin, target), nth=9 + 20 * kills):
        kills += 1
    assert kills >= 2
    assert contents(target) == contents(origin)
    assert_clean(target)
