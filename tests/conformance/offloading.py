"""A topic with short ledgers, and a location for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from embeddedpulsar import Admin, Client, ConsumerCryptoFailureAction, MessageId
from embeddedpulsar._engine.filenames import COLD_SUFFIX, ledgers_of
from embeddedpulsar._engine.platform import timing
from embeddedpulsar.policy_values import OffloadPolicies
from tests.conformance.chunks import begin_ledger

TOPIC = "topic"
PER_LEDGER = 10


class Site:
    """A store whose ledgers hold `PER_LEDGER` entries and are never trimmed, with an offload location.

    Args:
        path: of the test.
        lag_ms: as `OffloadPolicies`.
        settings: further lines of ``broker.conf``.
    """

    def __init__(self, path: Path, lag_ms: int = 0, **settings: object) -> None:
        self.root = path / "store"
        self.cold = path / "cold"
        self.root.mkdir()
        lines = {
            "managedLedgerMaxEntriesPerLedger": PER_LEDGER,
            "defaultRetentionTimeInMinutes": -1,
            "defaultRetentionSizeInMB": -1,
        } | settings
        (self.root / "broker.conf").write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        self._is_closed = False
        self.client = Client(self.root)
        self.admin = Admin(self.root)
        self.admin.namespaces().set_offload_policies(
            "public/default", OffloadPolicies(str(self.cold), offload_deletion_lag_in_millis=lag_ms)
        )

    def publish(self, count: int, topic: str = TOPIC) -> list[Any]:
        """Send messages and return their ids."""
        with self.client.create_producer(topic) as producer:
            return [producer.send(b"%d" % number, partition_key=f"k{number % 3}") for number in range(count)]

    def roll(self, topic: str = TOPIC) -> None:
        """What is sent from here on is in another ledger."""
        use = self.client._core.store.use_topic(topic)
        try:
            begin_ledger(use.topic.ledger)
        finally:
            use.release()

    def offload(self, topic: str = TOPIC, size_threshold: int = 0) -> str:
        """Offload what is closed, wait for the end, and return the error."""
        return finished(self.admin, topic, lambda: self.admin.topics().offload(topic, size_threshold))

    def read_all(self, topic: str = TOPIC) -> list[tuple[Any, bytes]]:
        """Ids and payloads of all messages, by a reader."""
        with self.client.create_reader(topic, MessageId.earliest) as reader:
            found = []
            while reader.has_message_available():
                message = reader.read_next(1000)
                found.append((message.message_id(), message.data()))
            return found

    def read_all_ids(self, topic: str) -> list[tuple[Any, str]]:
        """Ids and representations of all messages, encrypted ones as they are."""
        with self.client.create_reader(
            topic, MessageId.earliest, crypto_failure_action=ConsumerCryptoFailureAction.CONSUME
        ) as reader:
            found = []
            while reader.has_message_available():
                message = reader.read_next(1000)
                found.append((message.message_id(), f"{message.data()!r} {message.partition_key()}"))
            return found

    def policies(self, lag_ms: int) -> OffloadPolicies:
        """Those of the site with another lag."""
        return OffloadPolicies(str(self.cold), offload_deletion_lag_in_millis=lag_ms)

    def directory(self) -> Path:
        """Of the only topic."""
        (found,) = (path for path in self.root.glob("topics/*") if path.is_dir())
        return found

    def logs(self) -> list[int]:
        """The ledgers whose log is in the store."""
        return ledgers_of(path.name for path in self.root.glob("topics/*/*.log"))

    def notes(self) -> list[int]:
        """The ledgers of which there is a note."""
        return ledgers_of((path.name for path in self.root.glob("topics/*/*.cold")), COLD_SUFFIX)

    def objects(self) -> list[Path]:
        """The files in the location."""
        return sorted(path for path in self.cold.rglob("*") if path.is_file())

    def close(self) -> None:
        """Close what is open. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self.admin.close()
            self.client.close()

    def reopen(self) -> None:
        """As another process would, later."""
        self.close()
        self.client, self.admin, self._is_closed = Client(self.root), Admin(self.root), False


def finished(admin: Admin, topic: str, begin: Callable[[], object]) -> str:
    """Begin to offload a topic, wait for the end, and return the error."""
    begin()
    until = timing.perf_counter() + 60
    while (status := admin.topics().offload_status(topic)).status == "RUNNING":
        assert timing.perf_counter() < until
    return status.last_error
