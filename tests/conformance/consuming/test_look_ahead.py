"""Shared and Key_Shared read the frames of the entries they deliver; of others, what the index says."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from embeddedpulsar import ConsumerType
from embeddedpulsar._engine.filenames import index_path, log_path
from embeddedpulsar._engine.log.segment import Segment
from embeddedpulsar._engine.log.segment_reader import EntryCursor
from tests.conformance.chunks import payload, use_small_entries
from tests.conformance.conftest import Topic
from tests.conformance.pool import acknowledge_all, take_turns

SINGLY = [ConsumerType.Shared, ConsumerType.KeyShared]
COUNT = 60


def drained(*consumers):
    """The messages that each consumer gets when they take turns, acknowledged."""
    found = take_turns(consumers)
    for consumer, mine in zip(consumers, found, strict=True):
        acknowledge_all(consumer, mine)
        consumer._acks.flush()
    return found


def subscription(client):
    return client._core.store.use_topic("topic").topic.subscription("sub")


def send_keyed(topic, count=COUNT):
    with topic.producer() as producer:
        return [producer.send(b"%d" % n, partition_key=f"key-{n % 17}") for n in range(count)]


@pytest.fixture
def made(monkeypatch):
    """The entries that cursors read."""
    views = []
    for name in ("read", "read_spans"):
        method = getattr(EntryCursor, name)

        def reading(self, *arguments, _method=method):
            found = _method(self, *arguments)
            views.extend((view.ledger_id, view.entry_id) for view in found)
            return found

        monkeypatch.setattr(EntryCursor, name, reading)
    return views


@pytest.mark.parametrize("kind", SINGLY)
def test_each_entry_is_read_once(topic, kind, made):
    """Three consumers read 60 entries together, not 60 each."""
    consumers = [topic.consumer(consumer_type=kind, receiver_queue_size=10) for _ in range(3)]
    send_keyed(topic)
    found = drained(*consumers)
    assert all(found)
    assert sorted(int(message.data()) for mine in found for message in mine) == list(range(COUNT))
    # Where only a few entries are left, they are read to see what they are.
    assert len(set(made)) == COUNT and len(made) <= COUNT + 20


@pytest.fixture
def small_entries(store_path: Path) -> None:
    """Entries of at most 1,000 bytes."""
    use_small_entries(store_path)


@pytest.mark.usefixtures("small_entries")
@pytest.mark.parametrize("kind", SINGLY)
def test_delayed_and_chunked_messages_among_others(time, kind):
    """What has to be known of them stands in their frames: they come when they are due, and whole."""
    topic = Topic(time.client)
    consumers = [topic.consumer(consumer_type=kind, receiver_queue_size=20) for _ in range(2)]
    sent, late = [], []
    with topic.producer(chunking_enabled=True) as producer:
        for number in range(COUNT):
            value = payload(2500, number) if number % 10 == 7 else b"%d" % number
            delay = {"deliver_after": timedelta(hours=1)} if number % 10 in (3, 4) else {}
            (late if delay else sent).append(value)
            producer.send(value, partition_key=f"key-{number % 17}", **delay)
    first = [message.data() for mine in drained(*consumers) for message in mine]
    assert sorted(first) == sorted(sent)
    time.pass_ms(3_600_000)
    second = [message.data() for mine in drained(*consumers) for message in mine]
    assert sorted(second) == sorted(late)
    assert subscription(time.client).backlog() == 0


@pytest.mark.parametrize("kind", SINGLY)
def test_a_damaged_frame_holds_nothing_back(topic, store_path, kind):
    """It is assigned by what the index says, found by the consumer that reads it, and acknowledged."""
    consumers = [topic.consumer(consumer_type=kind) for _ in range(2)]
    ids = send_keyed(topic)
    victims = [0, 11, 12, 30, COUNT - 1]
    directory = topic.client._core.store.use_topic("topic").topic.ledger.directory
    for victim in victims:
        ledger, entry = ids[victim].ledger_id(), ids[victim].entry_id()
        offset = Segment.open(directory, ledger).index.slot(entry).offset
        flip(log_path(directory, ledger), offset + 60)
    found = drained(*consumers)
    numbers = sorted(int(message.data()) for mine in found for message in mine)
    assert numbers == [number for number in range(COUNT) if number not in victims]
    assert subscription(topic.client).backlog() == 0


@pytest.mark.parametrize("at", [0, 4, 8, 12, 16, 18, 20])
@pytest.mark.parametrize("kind", SINGLY)
def test_a_damaged_slot_loses_nothing(topic, store_path, kind, at):
    """The frames tell what a slot of the index does not: every message is delivered, once."""
    consumers = [topic.consumer(consumer_type=kind) for _ in range(2)]
    ids = send_keyed(topic)
    directory = topic.client._core.store.use_topic("topic").topic.ledger.directory
    for victim in (0, 20, 21, COUNT - 1):
        flip(index_path(directory, ids[victim].ledger_id()), 4096 + 24 * ids[victim].entry_id() + at)
    found = drained(*consumers)
    assert sorted(int(message.data()) for mine in found for message in mine) == list(range(COUNT))


def flip(path, offset):
    """Change a byte of a file."""
    with open(path, "r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 0x41]))
