"""The reader of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from embeddedpulsar.client.arguments import check_type
from embeddedpulsar.client.consumer.reader import Reader
from embeddedpulsar.cluster.cluster_errors import not_supported, translated
from embeddedpulsar.cluster.handle import ClusterSource
from embeddedpulsar.cluster.message import ClusterMessage
from embeddedpulsar.cluster.translation import to_pulsar
from embeddedpulsar.exceptions import Timeout
from embeddedpulsar.message import Message, T

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from embeddedpulsar.message_id import MessageId


class ClusterReader(ClusterSource, Reader[T]):
    """`Reader` over the reader of ``pulsar-client``. Thread-safe."""

    def __init__(self, theirs: Any) -> None:
        super().__init__(theirs, theirs._reader.read_next_async)

    def read_next(self, timeout_millis: int | None = None) -> Message[T]:
        if timeout_millis is not None:
            check_type(int, timeout_millis, "timeout_millis")
        kept: Message[T] | None = self._awaited.take_kept()
        if kept is not None:
            return kept
        with translated:
            return ClusterMessage(self.theirs.read_next(timeout_millis))

    async def read_next_async(self) -> Message[T]:
        message: Message[T] = await self._awaited.next()
        return message

    def read_nowait(self) -> Message[T] | None:
        # The end of the topic is asked for: what is there may not have arrived yet.
        if not self.has_message_available():
            return None
        try:
            return self.read_next(1000)
        except Timeout:
            return None

    def has_message_available(self) -> bool:
        with translated:
            return bool(self.theirs.has_message_available())

    def seek(self, messageid: MessageId | int) -> None:
        with translated:
            self.theirs.seek(to_pulsar(messageid))

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        raise not_supported("Reader.to_arrow()", "read the messages one by one")

    def __repr__(self) -> str:
        return f"<Reader on {self.topic()} {'open' if self.is_connected() else 'closed'}>"
