"""Topics with short ledgers: what is left of them? `path` and `time` are fixtures, for modules that give them
these names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import MessageId
from embeddedpulsar.testing.trial_store import assert_clean
from tests.conformance.manual_time import ManualTime
from tests.support import clients

TOPIC = "topic"
PER_LEDGER = 10


def store_with(path: Path, **settings: object) -> Path:
    """A directory that becomes a store whose ledgers hold `PER_LEDGER` entries."""
    path.mkdir()
    lines = [f"managedLedgerMaxEntriesPerLedger={PER_LEDGER}"]
    lines += [f"{name}={value}" for name, value in settings.items()]
    (path / "broker.conf").write_text("\n".join(lines), "utf-8")
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The directory of a store with short ledgers."""
    return store_with(tmp_path / "store")


@pytest.fixture
def time(path: Path) -> Iterator[ManualTime]:
    """That store; at the end it is whole."""
    site = ManualTime(path)
    try:
        yield site
    finally:
        site.close()
        assert_clean(path)


def ledgers(path: Path) -> list[int]:
    """The ledgers of all topics of a store that have a file, in order."""
    return sorted(int(file.stem) for file in path.glob("topics/*/*.log"))


def publish(time: ManualTime, count: int, size: int = 10) -> list[Any]:
    """Send messages and return their ids."""
    with time.client.create_producer(TOPIC) as producer:
        return [producer.send(b"%d" % number + bytes(size)) for number in range(count)]


def subscribe(time: ManualTime, name: str = "s", **options: Any) -> Any:
    """A consumer of the topic from its earliest message on."""
    return clients.subscribe(time.client, TOPIC, name, **options)


def read_all(time: ManualTime) -> list[Any]:
    """The ids of everything that a reader gets from the earliest message on."""
    with time.client.create_reader(TOPIC, MessageId.earliest) as reader:
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(1000).message_id())
        return found


def acknowledge(consumer: Any, count: int) -> list[Any]:
    """Receive and acknowledge so many messages, one by one."""
    messages = [consumer.receive(1000) for _ in range(count)]
    for message in messages:
        consumer.acknowledge(message)
    return [message.message_id() for message in messages]
