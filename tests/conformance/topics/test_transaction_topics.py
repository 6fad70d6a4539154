"""The topics in which Pulsar keeps transactions: their metadata is known, and nobody uses them."""

from __future__ import annotations

from pathlib import Path

import pytest

from embeddedpulsar import Admin, Client, MessageId
from embeddedpulsar.exceptions import NotAllowedError, TopicNotFound
from embeddedpulsar.testing.trial_store import assert_clean

ASSIGN = "persistent://pulsar/system/transaction_coordinator_assign"
LOG = "persistent://pulsar/system/__transaction_log_0"
SNAPSHOT = "persistent://public/default/__transaction_buffer_snapshot"
PENDING = "persistent://public/default/fast-orders-my-sub__transaction_pending_ack"


def partitions(admin: Admin, name: str) -> int | None:
    try:
        return admin.topics().get_partitioned_topic_metadata(name).partitions
    except TopicNotFound:
        return None


def test_metadata(tmp_path: Path) -> None:
    """As of brokers: what finds coordinators gets one; the others are not partitioned, once they would be."""
    root = tmp_path / "store"
    with Client(root) as client, Admin(root) as admin:
        assert partitions(admin, ASSIGN) == 1
        assert client.get_topic_partitions(ASSIGN) == [f"{ASSIGN}-partition-0"]
        assert partitions(admin, f"{ASSIGN}-partition-0") == partitions(admin, LOG) == 0
        assert partitions(admin, LOG.replace("0", "1")) is None
        assert partitions(admin, SNAPSHOT) is partitions(admin, PENDING) is None
        producer = client.create_producer("fast-orders")
        client.subscribe("fast-orders", "my-sub").close()
        with client.transaction() as txn:
            producer.send(b"x", txn=txn)
        assert partitions(admin, SNAPSHOT) == partitions(admin, f"{SNAPSHOT}_segments") == 0
        assert partitions(admin, SNAPSHOT.replace("public/default", "no/such")) is None
        assert partitions(admin, PENDING) == 0 and partitions(admin, PENDING.replace("my", "no")) is None
    assert_clean(root)


@pytest.mark.parametrize("name", [ASSIGN, LOG, SNAPSHOT, PENDING])
def test_nobody_uses_them(tmp_path: Path, name: str) -> None:
    """They are not listed, and the refusal says where transactions are shown."""
    root = tmp_path / "store"
    with Client(root) as client, Admin(root) as admin:
        producer = client.create_producer("fast-orders")
        client.subscribe("fast-orders", "my-sub").close()
        with client.transaction() as txn:
            producer.send(b"x", txn=txn)
        for use in (
            lambda: client.create_producer(name),
            lambda: client.subscribe(name, "s"),
            lambda: client.create_reader(name, MessageId.earliest),
            lambda: admin.topics().create_non_partitioned_topic(name),
            lambda: admin.topics().create_partitioned_topic(name, 4),
        ):
            with pytest.raises(NotAllowedError, match=r"system topics.*Admin\.transactions"):
                use()
        for namespace in ("pulsar/system", "public/default"):
            assert name not in admin.topics().get_list(namespace, include_system_topic=True)
            assert name not in admin.topics().get_partitioned_topic_list(namespace)
    assert_clean(root)


def test_without_transactions_there_are_none(tmp_path: Path) -> None:
    """A client of Pulsar finds no coordinator."""
    root = tmp_path / "store"
    Client(root).close()
    (root / "broker.conf").write_text("transactionCoordinatorEnabled=false\n")
    with Client(root) as client, Admin(root) as admin:
        assert partitions(admin, ASSIGN) is None and client.get_topic_partitions(ASSIGN) == [ASSIGN]
