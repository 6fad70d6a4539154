"""The properties of a consumer that is to be attached."""

from __future__ import annotations

from typing import NamedTuple

from embeddedpulsar.format.consumer_record import ConsumerRules
from embeddedpulsar.format.subscription_record import Attach


class AttachRequest(NamedTuple):
    """A consumer that has not attached yet.

    Attributes:
        name: for statistics, and to order consumers by.
        consumer_type: must be that of the consumers attached already.
        client_uuid: the lease of its process.
        priority: priority level, 0 being the best.
        receiver_queue_size: messages it is ready to take at once.
        rules: its requirements for dispatch.
    """

    name: str
    consumer_type: int
    client_uuid: bytes
    priority: int
    receiver_queue_size: int
    rules: ConsumerRules

    def command(self, consumer_id: int, now_ms: int) -> Attach:
        """The command by which it attaches."""
        return Attach(
            consumer_id, self.name, self.consumer_type, self.priority, self.client_uuid, now_ms, self.rules
        )
