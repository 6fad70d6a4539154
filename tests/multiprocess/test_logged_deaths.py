"""The log of a process names the consumers of others that it detached."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from embeddedpulsar import Client, ConsumerType, InitialPosition
from embeddedpulsar.testing.trial_store import assert_clean
from tests.children import start_python

HOLDER = """
import sys
import embeddedpulsar as pulsar
client = pulsar.Client(sys.argv[1])
consumer = client.subscribe("orders", "kitchen", pulsar.ConsumerType.Failover, consumer_name="one")
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_death_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """At level INFO: who was detached and why, and who takes over."""
    holder = start_python(HOLDER, str(tmp_path))
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        with caplog.at_level(logging.INFO, "embeddedpulsar"), Client(tmp_path) as client:
            position = InitialPosition.Earliest
            two = client.subscribe(
                "orders", "kitchen", ConsumerType.Failover, consumer_name="two", initial_position=position
            )
            client.create_producer("orders").send(b"soup")
            holder.kill()
            holder.wait()
            assert two.receive(20_000).data() == b"soup"
        assert [
            text for text in caplog.messages if text.endswith("consumer one is detached: its process is gone")
        ]
        assert [text for text in caplog.messages if text.endswith("consumer two takes over")]
    finally:
        holder.kill()
        holder.communicate()
    Client(tmp_path).close()
    assert_clean(tmp_path)
