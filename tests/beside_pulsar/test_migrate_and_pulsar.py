"""`embeddedpulsar migrate` from a store to a broker of Pulsar and back: nothing is lost or changed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.contest import Unavailable
from benchmarks.peers.pulsar_standalone import Broker
from embeddedpulsar import Admin, Client, ConsumerType, FileLogger, LoggerLevel, MessageId, connect
from embeddedpulsar.cli.main import main
from embeddedpulsar.schema import StringSchema
from embeddedpulsar.testing.trial_store import assert_clean

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The addresses of a broker: that of its protocol, and that of its REST interface."""
    pytest.importorskip("pulsar")
    place = tmp_path / "broker"
    place.mkdir()
    try:
        server = Broker(place, is_tuned=True)
    except Unavailable as reason:
        pytest.skip(str(reason))
    settings = dict(
        line.split("=", 1) for line in (place / "standalone.conf").read_text().splitlines() if "=" in line
    )
    try:
        yield server.url, f"http://127.0.0.1:{settings['webServicePort']}"
    finally:
        server.stop()


def described(client: Client, log: str) -> list[tuple[Any, ...]]:
    """What the messages of a log have, without what a migration adds."""
    listed = []
    with client.create_reader(log, MessageId.earliest) as reader:
        while reader.has_message_available():
            message = reader.read_next(10_000)
            properties = {
                key: text for key, text in message.properties().items() if not key.startswith("ep.")
            }
            listed.append(
                (
                    message.data(), message.partition_key(), message.ordering_key(), properties,
                    message.event_timestamp(), message.schema_version() != "",
                )
            )  # fmt: skip
    return listed


def migrated(capfd: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """Run the command; the reports by topic."""
    status = main(["migrate", *arguments, "--json"])
    out, err = capfd.readouterr()
    assert status == 0, err
    return {report["topic"].rpartition("/")[2]: report for report in json.loads(out)}


def test_to_a_broker_and_back(broker: tuple[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    """Keys, properties, times, schemas, partitions, large messages and subscriptions are the same."""
    url, web = broker
    first, second = tmp_path / "first", tmp_path / "second"
    with Client(first) as client, Admin(first) as admin:
        admin.topics().create_partitioned_topic("parts", 2)
        for topic in ("parts", "plain"):
            admin.topics().create_subscription(topic, "work", MessageId.earliest)
        with client.create_producer("parts", schema=StringSchema(), batching_enabled=True) as producer:
            for number in range(500):
                producer.send_async(f"für {number}", None, {"n": str(number)}, f"k{number % 5}", "o")
        with client.create_producer("plain", chunking_enabled=True) as producer:
            for number in range(30):
                content = b"%d" % number + b"x" * (3_000_000 if number == 12 else 10)
                producer.send(content, event_timestamp=1000 + number)
        with client.subscribe("plain", "work", ConsumerType.Shared) as consumer:
            for number in range(20):
                message = consumer.receive()
                if number not in (5, 9):
                    consumer.acknowledge(message)
    reports = migrated(capfd, str(first), url, "--topics", "parts|plain", "--to-admin", web)
    assert sum(report["copied"] for report in reports.values()) == 530
    assert reports["plain"]["subscriptions"] == ["work"]
    again = migrated(capfd, str(first), url, "--topics", "parts|plain", "--to-admin", web)
    assert [report["copied"] for report in again.values()] == [0, 0, 0]
    back = migrated(capfd, url, str(second), "--topics", "parts|plain", "--from-admin", web)
    assert sum(report["copied"] for report in back.values()) == 530
    logger = FileLogger(LoggerLevel.Error, os.devnull)
    with Client(first) as before, connect(url, logger=logger) as there, Client(second) as after:
        for log in ("parts-partition-0", "parts-partition-1", "plain"):
            expected = described(before, log)
            assert described(there, log) == expected
            assert described(after, log) == expected
    with Admin(first) as before, Admin(second) as after:
        expected = [message.data()[:3] for message in before.topics().peek_messages("plain", "work", 100)]
        assert [
            message.data()[:3] for message in after.topics().peek_messages("plain", "work", 100)
        ] == expected
        assert after.topics().get_partitioned_topic_metadata("parts").partitions == 2
    for root in (first, second):
        assert_clean(root)
