"""A client of a store, and transactions that send what a test says: entries, by the log itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from embeddedpulsar import Client, Consumer, ConsumerType, InitialPosition, Producer
from embeddedpulsar._engine.format.columns import EntryContent
from embeddedpulsar._engine.format.entry import ProducerPrefix, encode
from embeddedpulsar._engine.log.log import Log
from embeddedpulsar._engine.txn.transaction import Participant, Transaction

PREFIX = ProducerPrefix("transactional")
ALL_TYPES = [ConsumerType.Exclusive, ConsumerType.Failover, ConsumerType.Shared, ConsumerType.KeyShared]
SHARING = [ConsumerType.Shared, ConsumerType.KeyShared]


class Site:
    """A client of a store, whose transactions send what the test says."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.client = Client(str(root))

    def begin(self, timeout_ms: int = 60_000) -> Transaction:
        """A transaction that has an id."""
        transaction = Transaction(self.client._core.store.transactions.log(), timeout_ms)
        assert transaction.id
        return transaction

    def send(
        self, transaction: Transaction, *payloads: bytes, topic: str = "topic", **columns: Any
    ) -> tuple[int, int]:
        """Append an entry."""
        use = self.client._core.store.use_topic(f"persistent://public/default/{topic}")
        try:
            ledger = use.topic.ledger
            content = EntryContent(
                list(payloads), batched=len(payloads) > 1, transaction=(0, transaction.id), **columns
            )
            placed = ledger.append(encode(content, PREFIX), check_open=transaction.check_open)
            key = (1, use.topic.incarnation, use.topic.directory)
            transaction.enlist(Participant(key, on_end=lambda outcome: ledger.settle_transactions()))
        finally:
            use.release()
        return placed[:2]

    def log(self, topic: str = "topic") -> Log:
        """Of a topic, as long as the client has it open."""
        use = self.client._core.store.use_topic(f"persistent://public/default/{topic}")
        use.release()
        return use.topic.ledger

    def producer(self, topic: str = "topic") -> Producer:
        """Of plain messages."""
        return self.client.create_producer(topic)

    def subscribe(self, kind: ConsumerType = ConsumerType.Exclusive, **options: Any) -> Consumer:
        """A consumer of all that there is."""
        options.setdefault("initial_position", InitialPosition.Earliest)
        return self.client.subscribe("topic", "sub", consumer_type=kind, **options)


def received(consumer: Any, most: int = 100) -> list[bytes]:
    """All that is there now, acknowledged."""
    found = []
    for _ in range(most):
        message = consumer.receive_nowait()
        if message is None:
            break
        found.append(message.data())
        consumer.acknowledge(message)
    return found
