"""Transactions that end in another process than the one that waits for what they acknowledged."""

from __future__ import annotations

from pathlib import Path

import pytest

from embeddedpulsar import Client, ConsumerType
from embeddedpulsar._engine.store.store import REGISTRY
from embeddedpulsar.testing import ManualClock
from tests.support.clients import present, send, subscribe, texts


@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.Exclusive])
def test_a_consumer_hears_of_a_timeout_that_another_process_notices(tmp_path: Path, kind: ConsumerType):
    """A process that joined the transaction ends it first; what it acknowledged comes again all the same."""
    root = tmp_path / "store"
    with ManualClock(wall_ms=1_700_000_000_000) as clock, Client(root) as other:
        REGISTRY.stores.clear()
        with Client(root) as client:
            consumer = subscribe(client, "orders", consumer_type=kind)
            send(client, "orders", b"tea")
            txn = client.new_transaction(timeout_ms=1000)
            joined = other.join_transaction(txn.token)
            send(other, "invoices", b"tea", txn=joined)
            consumer.acknowledge(present(consumer)[0], txn=txn)
            assert present(consumer) == []
            clock.advance(100)
            assert texts(present(consumer)) == ["tea"]
