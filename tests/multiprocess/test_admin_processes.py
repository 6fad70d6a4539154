"""An Admin manages subscriptions whose consumers are in another process."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from embeddedpulsar import Admin, AlreadyClosed, BrokerMetadataError, Client, ConsumerType, MessageId
from embeddedpulsar.testing.trial_store import assert_clean
from tests.multiprocess.children import Child, say


def consume(root: str, kind: str) -> None:
    """Print what is received, and acknowledge nothing, until the subscription ends."""
    with Client(root) as client, contextlib.suppress(AlreadyClosed):
        consumer = client.subscribe("topic", "sub", ConsumerType[kind])
        say("attached")
        while True:
            say(consumer.receive().data().decode())


def readings(child: Child, count: int) -> list[int]:
    """The next messages that the child receives."""
    return [int(child.read()) for _ in range(count)]


@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "KeyShared"])
def test_a_consumer_elsewhere_follows(tmp_path: Path, kind: str):
    """While it waits for messages: it is woken, and gets what is left for it."""
    with Admin(tmp_path) as admin, Client(tmp_path) as client:
        topics = admin.topics()
        topics.create_subscription("topic", "sub")
        with Child(consume, tmp_path, kind) as child, client.create_producer("topic") as producer:
            assert child.read() == "attached"
            ids = [producer.send(b"%d" % number) for number in range(6)]
            assert readings(child, 6) == [0, 1, 2, 3, 4, 5]
            topics.reset_cursor("topic", "sub", ids[4])
            assert readings(child, 2) == [4, 5]
            topics.reset_cursor("topic", "sub", MessageId.earliest)
            assert readings(child, 6) == [0, 1, 2, 3, 4, 5]
            topics.unload("topic")
            assert readings(child, 6) == [0, 1, 2, 3, 4, 5]
            topics.skip_messages("topic", "sub", 4)
            if kind == "Exclusive":  # it goes back to the first message that is left
                assert readings(child, 2) == [4, 5]
            topics.skip_all_messages("topic", "sub")
            producer.send(b"6")
            assert readings(child, 1) == [6]
            assert [message.data() for message in topics.peek_messages("topic", "sub", 9)] == [b"6"]
            with pytest.raises(BrokerMetadataError, match="has consumers"):
                topics.delete_subscription("topic", "sub")
            topics.delete_subscription("topic", "sub", force=True)
            assert child.join() == 0
    assert_clean(tmp_path)
