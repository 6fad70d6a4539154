"""Processes that send and receive while another one removes their store and makes a new one."""

from __future__ import annotations

import contextlib
import shutil
import time
from pathlib import Path

import pytest

from embeddedpulsar import Client, InitialPosition
from embeddedpulsar._engine.log.segment_writer import LOOK_NS
from embeddedpulsar.exceptions import StoreGoneError
from embeddedpulsar.testing.trial_store import assert_clean
from tests.multiprocess.children import Child, say


def send_until_refused(root: str, batching: str) -> None:
    """Send as fast as possible; in the end say when the last acknowledged send began."""
    client = Client(root)
    producer = client.create_producer("t", batching_enabled=bool(int(batching)), durability="process")
    producer.send(b"old")
    say("sending")
    began = last = 0.0
    try:
        while True:
            began = time.perf_counter()
            producer.send(b"old")
            last = began
    except StoreGoneError:
        say(last)
    client.close()
    say("closed")


def receive_until_refused(root: str) -> None:
    """Receive and acknowledge what comes, waiting without a time-out."""
    client = Client(root)
    consumer = client.subscribe("t", "s", initial_position=InitialPosition.Earliest)
    say("receiving")
    try:
        while True:
            message = consumer.receive()
            assert message.data() == b"old"
            consumer.acknowledge(message)
    except StoreGoneError:
        say("refused")
    client.close()
    say("closed")


@pytest.mark.parametrize("batching", [0, 1])
@pytest.mark.parametrize("way", ["rmtree", "rename"])
def test_a_store_that_is_made_again_under_load(tmp_path: Path, batching: int, way: str):
    """No send that begins after the removal is acknowledged, every process notices, and the new store has
    what was sent to it, no more and no less."""
    for turn in range(2):
        root = tmp_path / f"store-{turn}"
        with (
            Child(send_until_refused, root, batching) as sender,
            Child(receive_until_refused, root) as receiver,
        ):
            assert sender.read() == "sending"
            assert receiver.read() == "receiving"
            time.sleep(0.1)
            if way == "rename":
                root.rename(tmp_path / f"elsewhere-{turn}")
                allowed_s = 0.011
            else:
                while root.exists():
                    with contextlib.suppress(FileNotFoundError):  # the processes remove files, too
                        shutil.rmtree(root)
                allowed_s = LOOK_NS / 1e9
            gone_at = time.perf_counter()
            with Client(root) as client:
                consumer = client.subscribe("t", "s", initial_position=InitialPosition.Earliest)
                producer = client.create_producer("t")
                sent = [producer.send(b"new %d" % number) for number in range(100)]
                got = [consumer.receive(5000) for _ in sent]
                assert float(sender.read()) <= gone_at + allowed_s
                assert receiver.read() == "refused"
                assert [message.message_id() for message in got] == sent
                assert {message.data()[:4] for message in got} == {b"new "}
                assert sender.read() == receiver.read() == "closed"
                assert consumer.receive_nowait() is None
            assert sender.join() == receiver.join() == 0
        assert_clean(root)
