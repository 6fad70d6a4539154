"""A process that dies inside `send_many` or `send_arrow` leaves whole entries, in order: a prefix."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

import embeddedpulsar as pulsar
from embeddedpulsar._engine.platform import failpoints
from tests.multiprocess.children import Child, say
from tests.support.clients import stored

ROWS = 40_000
ENTRY = 1000


def rows() -> list[bytes]:
    """What is sent."""
    return [b"%07d" % number * 40 for number in range(ROWS)]


def send(producer: pulsar.Producer, how: str) -> None:
    """All rows, in entries of `ENTRY`."""
    if how == "send_many":
        producer.send_many(rows(), batching_max_messages=ENTRY)
        return
    import pyarrow as pa

    producer.send_arrow(pa.table({"value": rows()}), batching_max_messages=ENTRY)


def die_at(root: str, how: str, point: str, nth: str) -> None:
    """Send, and die at a step of the Nth entry."""
    with pulsar.Client(root) as client:
        producer = client.create_producer("columns")
        failpoints.set(point, "kill", nth=int(nth))
        send(producer, how)


def go_on(root: str, how: str) -> None:
    """Send again and again until somebody kills this."""
    with pulsar.Client(root) as client:
        producer = client.create_producer("columns")
        say("ready")
        while True:
            send(producer, how)


@pytest.mark.parametrize("how", ["send_many", "send_arrow"])
@pytest.mark.parametrize(
    ("point", "whole"),
    [("append:owner_set", 4), ("append:body_part", 4), ("append:index_done", 4), ("append:tail_stored", 5)],
)
def test_killed_at_every_step(tmp_path: Path, how: str, point: str, whole: int):
    """At whichever step of the fifth entry: four whole ones or five, and the next producer goes on."""
    if how == "send_arrow":
        pytest.importorskip("pyarrow", reason="the extra `arrow` is not installed")
    with Child(die_at, tmp_path, how, point, 5) as child:
        assert child.join() == -signal.SIGKILL
    with pulsar.Client(tmp_path) as client:
        assert [message.data() for message in stored(client, "columns")] == rows()[: whole * ENTRY]
        client.create_producer("columns").send_many(rows()[whole * ENTRY :])
        assert [message.data() for message in stored(client, "columns")] == rows()


@pytest.mark.parametrize("delay_ms", [3, 17, 41])
def test_killed_at_any_time(tmp_path: Path, delay_ms: int):
    """Wherever it was: entries are whole, rows in order, sequence ids without a gap."""
    with Child(go_on, tmp_path, "send_many") as child:
        assert child.read() == "ready"
        time.sleep(delay_ms / 1000)
        child.kill()
        assert child.join() == -signal.SIGKILL
    with pulsar.Client(tmp_path) as client:
        messages = stored(client, "columns")
        assert len(messages) % ENTRY == 0
        assert [message.sequence_id() for message in messages] == list(range(len(messages)))
        expected = rows()
        assert all(message.data() == expected[i % ROWS] for i, message in enumerate(messages))
