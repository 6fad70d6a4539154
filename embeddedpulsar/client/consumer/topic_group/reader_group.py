"""The state of a reader of a partitioned topic: one `ReaderCore` for each partition, used together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from embeddedpulsar.client.consumer.reader_core import ReaderCore
from embeddedpulsar.client.consumer.topic_group.topic_group import TopicGroup, is_end, queue_share
from embeddedpulsar.exceptions import OperationNotSupported
from embeddedpulsar.message_id import MessageId

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from embeddedpulsar.client.common.client_context import ClientContext
    from embeddedpulsar.client.consumer.consumer_config import ReaderConfig

_MOST_AHEAD: Final = 50_000
"""Messages fetched ahead of all partitions together."""


class ReaderGroup:
    """`ReaderCore` over one `ReaderCore` for each partition; see `TopicGroup`."""

    def __init__(self, client: ClientContext, config: ReaderConfig, topic: str, partitions: int) -> None:
        self.client = client
        self.config = config
        self.topic_name = topic
        self._group = TopicGroup(client, config, config.name or "", {topic: partitions}, self._open)
        self.delivery = self._group.delivery
        self.take = self.delivery.take
        self.receiver = self._group.receiver
        if not is_end(config.start) and (found := self._partition_of(config.start)) is not None:
            for reader in self._readers:
                if reader is not found:
                    reader.seek(MessageId.earliest)

    def _open(self, name: str, count: int, is_late: bool) -> ReaderCore:
        size = queue_share(self.config.receiver_queue_size, _MOST_AHEAD, count)
        own = self.config._replace(topic=name, listener=None, receiver_queue_size=size)
        return ReaderCore(self.client, own._replace(start=MessageId.earliest) if is_late else own)

    @property
    def _readers(self) -> list[ReaderCore]:
        return list(self._group.members.values())

    def _partition_of(self, target: MessageId) -> ReaderCore | None:
        for reader in self._readers:
            if any(segment.ledger_id == target._ledger for segment in reader.ledger.segments()):
                return reader
        return None

    def start(self) -> None:
        self._group.watch()

    def has_message_available(self) -> bool:
        self.delivery.check_open()
        return bool(self.delivery.find(lambda reader: reader.has_message_available() or None))

    def seek(self, target: MessageId | int) -> None:
        self.delivery.check_open()
        readers = self._readers
        if isinstance(target, MessageId) and not is_end(target):
            found = self._partition_of(target)
            if found is None:
                raise OperationNotSupported(f"{target!r} belongs to no partition of {self.topic_name}")
            readers = [found]
        for reader in readers:
            reader.seek(target)

    def to_arrow(self, columns: Sequence[str] | None) -> pa.Table:
        from embeddedpulsar.arrow.schema import require_pyarrow  # it is large, and rarely needed

        tables = [reader.to_arrow(columns) for reader in self._readers]
        joined: pa.Table = require_pyarrow().concat_tables(tables)
        return joined

    def close(self) -> None:
        self._group.close()
