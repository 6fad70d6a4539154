"""Processes that share a subscription of a virtual log, for tests of attachments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from embeddedpulsar._engine.subscription.attachment.attachment import Attachment
from embeddedpulsar.enums import ConsumerType
from embeddedpulsar.message_id import Position
from embeddedpulsar.settings import BrokerSettings
from tests.storms.dispatch.virtual_consumer import VirtualConsumer
from tests.storms.dispatch.virtual_log import VirtualEntry, VirtualLog
from tests.storms.dispatch.virtual_process import VirtualProcess, VirtualWorld

LEDGER = 7
EVERYTHING = 1 << 30


class VirtualSite:
    """A virtual world with one process, and as many more as are started."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.log = VirtualLog(LEDGER)
        self.world = VirtualWorld(str(root / "s"), self.log, BrokerSettings(**settings), 1 << 20)
        self.process = self.world.start()

    def __enter__(self) -> VirtualSite:
        return self

    def __exit__(self, *_: object) -> None:
        self.world.close()

    def publish(self, count: int, key: int = 0, messages: int = 1, delay_ms: int = 0) -> list[VirtualEntry]:
        """Entries of one message each."""
        now = self.world.clock.wall_ms()
        deliver_at = now + delay_ms if delay_ms else 0
        return [self.log.append(now, messages, key, deliver_at, 10) for _ in range(count)]

    def attach(
        self,
        consumer_type: ConsumerType = ConsumerType.Shared,
        process: VirtualProcess | None = None,
        queue: int = 1000,
        **options: Any,
    ) -> Attachment:
        """A consumer of a process, by default the first."""
        subscription = (process or self.process).subscription
        name = options.pop("name", "c")
        return subscription.attach(name, consumer_type, receiver_queue_size=queue, **options)

    def consumer(self, attachment: Attachment, queue: int = 1000) -> VirtualConsumer:
        """The client's side of an attachment."""
        process = next(
            one for one in self.world.processes.values() if one.subscription._shared is attachment._shared
        )
        return VirtualConsumer(process, self.log, attachment, queue)

    @property
    def dispatch(self) -> Any:
        """The dispatch half of the state."""
        return self.process.shared.transact(lambda state: state.dispatch)


def ids(views: Any) -> list[int]:
    """Entry ids."""
    return [view.entry_id for view in views]


def read(attachment: Attachment, room: int = 1000, max_bytes: int = EVERYTHING) -> list[int]:
    """Ids of the entries one read gives."""
    attachment._shared._options.clock.looks = 0  # type: ignore[attr-defined]
    return ids(attachment.read(room, max_bytes))


def position(entry: int) -> Position:
    return Position(LEDGER, entry)
