"""Finalizers that send, in whatever instruction of another send the garbage collection begins."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from embeddedpulsar import MessageId, StorageError

_OBJECTS = 60
"""More than a send makes of those that count for the next collection."""


@pytest.fixture
def collector() -> Iterator[None]:
    """Collections are about what the test makes, and begin when it says."""
    limits = gc.get_threshold()
    gc.collect()
    gc.freeze()
    yield
    gc.set_threshold(*limits)
    gc.enable()
    gc.unfreeze()


@pytest.mark.parametrize("together", [1, 3])
def test_what_was_accepted_is_stored(client, topic, collector, together):
    """The append that it interrupts, of one message or of several in one hold, begins again behind it."""
    producer, other = client.create_producer("topic"), client.create_producer("topic")
    accepted: list[bytes] = []
    refusals: list[str] = []

    class Sender:
        """A cycle, so that only a collection ends it."""

        def __init__(self):
            self.itself = self

        def __del__(self):
            try:
                other.send(b"last words")
            except StorageError as e:  # room was being made, which cannot begin again
                refusals.append(str(e))
            else:
                accepted.append(b"last words")

    producer.send(b"first")
    accepted.append(b"first")
    slices = []  # the interpreter keeps one slice that was given up, and makes none then
    for allocated in range(_OBJECTS):
        gc.collect()
        gc.disable()
        Sender()
        slices += [slice(0, 1), slice(0, 1)]
        gc.set_threshold(gc.get_count()[0] + allocated, 1000, 1000)
        gc.enable()
        if together == 1:
            producer.send(b"a message")
        else:
            producer.send_many([b"a message"] * together)
        gc.disable()
        accepted += [b"a message"] * together
    gc.collect()
    with client.create_reader("topic", MessageId.earliest) as reader:
        stored = []
        while reader.has_message_available():
            stored.append(reader.read_next().data())
    assert sorted(stored) == sorted(accepted)
    assert all("from the program's main flow" in refusal for refusal in refusals)
    assert accepted.count(b"last words") > _OBJECTS // 2
