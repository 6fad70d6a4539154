"""A topic and its subscriptions, as one process or several have them, without a store."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from embeddedpulsar._engine.format.entry import EntryView
from embeddedpulsar._engine.log.managed_ledger import ManagedLedger
from embeddedpulsar._engine.platform.timing import Clock
from embeddedpulsar._engine.subscription.attachment.attachment import Attachment
from embeddedpulsar._engine.subscription.subscription import Subscription
from embeddedpulsar.exceptions import StorageError
from embeddedpulsar.message_id import BEFORE_FIRST, Position
from embeddedpulsar.settings import BrokerSettings
from tests.ledger_site import LedgerSite, send, send_batch

EVERYTHING = 1 << 40


class SubscriptionSite(LedgerSite):
    """One process's view of a topic with subscriptions; two sites over one root are two processes."""

    def __init__(
        self,
        root: Path | str,
        *,
        clock: Clock | None = None,
        settings: BrokerSettings | None = None,
        **options: Any,
    ) -> None:
        os.makedirs(root, exist_ok=True)
        super().__init__(root, clock=clock)
        self.settings = settings or BrokerSettings()
        self.log: ManagedLedger = self.open(**options)
        self.damage: list[StorageError] = []
        self._subscriptions: list[Subscription] = []

    def directory_of(self, name: str = "s") -> str:
        return os.path.join(self.directory, "subscriptions", name)

    def subscription(
        self, name: str = "s", initial: Position | None = BEFORE_FIRST, **options: Any
    ) -> Subscription:
        """Open a subscription, and create it unless ``initial`` is None."""
        subscription = Subscription.open(
            self.directory_of(name),
            name,
            managed_ledger=self.log,
            mailbox=self.mailbox,
            peers=self.peers,
            clock=self.clock,
            settings=self.settings,
            damage=self.damage.append,
            **options,
        )
        self._subscriptions.append(subscription)
        if initial is not None:
            subscription.create(initial)
        return subscription

    def publish(self, count: int, prefix: str = "m") -> list[Position]:
        """Append ``count`` single messages."""
        return [send(self.log, f"{prefix}{number}".encode()) for number in range(count)]

    def publish_batches(self, *sizes: int) -> list[Position]:
        """Append batches of these sizes."""
        return [
            send_batch(self.log, [f"{entry}.{index}".encode() for index in range(size)])
            for entry, size in enumerate(sizes)
        ]

    def close(self) -> None:
        for subscription in self._subscriptions:
            subscription.close()
        super().close()


def read_all(attachment: Attachment, step: int = 1000) -> list[EntryView]:
    """Everything the consumer gets until the tail."""
    found: list[EntryView] = []
    while views := attachment.read(step, EVERYTHING):
        found += views
    return found


def positions(views: Sequence[EntryView]) -> list[Position]:
    return [Position(view.ledger_id, view.entry_id) for view in views]
