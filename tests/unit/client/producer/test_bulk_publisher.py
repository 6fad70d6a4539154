"""Entries that are encoded ahead: under the right ids, in order, and none lost to what fails behind it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from embeddedpulsar import Client, MessageId
from embeddedpulsar._engine.format.entry import EncodedEntry, ProducerPrefix
from embeddedpulsar.client.producer.bulk_publisher import BulkPublisher, Rows
from embeddedpulsar.client.producer.pending_entry import AHEAD, WORTH_A_THREAD

TOPIC = "bulk"


@pytest.fixture
def client() -> Iterator[Client]:
    """A store in memory."""
    with Client("memory://") as made:
        yield made


class Portion(Rows):
    """One large message; tells when it is encoded."""

    def __init__(self, number: int, on_encode: Callable[[int], object], *, is_copied: bool = False) -> None:
        super().__init__(range(number, number + 1), [b"%d" % number + bytes(WORTH_A_THREAD)])
        self.is_copied = is_copied
        self._on_encode = on_encode

    def encode(self, first: int, prefix: ProducerPrefix, codec: int) -> EncodedEntry:
        self._on_encode(self.numbers[0])
        return super().encode(first, prefix, codec)


def publisher_of(producer: Any) -> BulkPublisher:
    """One call's."""
    return BulkPublisher(producer._publisher.of_partition, 0)


def stored(client: Client) -> list[tuple[int, bytes]]:
    """Producer's sequence id and first bytes of all messages."""
    reader = client.create_reader(TOPIC, MessageId.earliest)
    found = []
    while reader.has_message_available():
        message = reader.read_next()
        found.append((message.sequence_id(), message.data().rstrip(b"\0")))
    return found


@pytest.mark.parametrize("is_copied", [False, True])
def test_a_send_in_between_costs_only_those_that_wait(client: Client, is_copied: bool):
    """They were encoded under ids it took; those behind them are encoded once, under ids that follow."""
    producer = client.create_producer(TOPIC)
    encoded: list[int] = []

    def on_encode(number: int) -> None:
        encoded.append(number)
        if encoded.count(5) == 1 and number == 5:
            producer.send(b"between")

    portions = [Portion(number, on_encode, is_copied=is_copied) for number in range(20)]
    sent = publisher_of(producer).publish(iter(portions))
    assert len(sent) == 20
    assert 20 < len(encoded) <= 20 + 1 + AHEAD
    found = stored(client)
    assert [sequence_id for sequence_id, _ in found] == list(range(21))
    values = [value for _, value in found]
    values.remove(b"between")
    assert values == [b"%d" % number for number in range(20)]


def test_copies_are_made_by_one_thread(client: Client):
    """The second, from the second entry on; whoever stores does not join in. So they take the same memory."""
    producer = client.create_producer(TOPIC)
    encoded_by: list[int] = []
    portions = [
        Portion(number, lambda _: encoded_by.append(threading.get_ident()), is_copied=True)
        for number in range(12)
    ]
    publisher_of(producer).publish(iter(portions))
    first, *others = encoded_by
    assert first == threading.get_ident() and len(others) == 11
    assert len(set(others)) == 1 and others[0] != first


def test_what_came_before_a_failure_is_stored(client: Client):
    """Also what was encoded ahead when the source of the values failed."""
    producer = client.create_producer(TOPIC)

    def portions() -> Iterator[Portion]:
        for number in range(6):
            yield Portion(number, id)
        raise LookupError("no more")

    with pytest.raises(LookupError) as caught:
        publisher_of(producer).publish(portions())
    assert len(caught.value.stored) == 6  # type: ignore[attr-defined]
    assert [value for _, value in stored(client)] == [b"%d" % number for number in range(6)]


def test_an_entry_that_cannot_be_encoded_ends_the_call_in_its_turn(client: Client):
    """Those before it are stored, those behind it are not, though some are encoded by then."""
    producer = client.create_producer(TOPIC)

    def on_encode(number: int) -> None:
        if number == 4:
            raise LookupError("four")

    with pytest.raises(LookupError, match="four") as caught:
        publisher_of(producer).publish(iter([Portion(number, on_encode) for number in range(9)]))
    assert list(caught.value.stored.numbers()) == [0, 1, 2, 3]  # type: ignore[attr-defined]
    producer.send(b"next")
    assert [sequence_id for sequence_id, _ in stored(client)] == [0, 1, 2, 3, 4]
