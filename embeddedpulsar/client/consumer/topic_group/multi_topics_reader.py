"""The reader of a partitioned topic: one reader per partition, used together."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from embeddedpulsar.client.common.arguments import checked_seek_target
from embeddedpulsar.client.common.close_guard import CloseGuard
from embeddedpulsar.client.common.value_type import T
from embeddedpulsar.client.consumer.delivery import Delivery
from embeddedpulsar.client.consumer.listener import ListenerTarget
from embeddedpulsar.client.consumer.reader import Reader, nothing_to_take
from embeddedpulsar.client.consumer.topic_group.multi_topics_consumer_core import is_end, queue_share
from embeddedpulsar.client.consumer.topic_group.multi_topics_consumer_delivery import MultiTopicsDelivery
from embeddedpulsar.exceptions import AlreadyClosed, OperationNotSupported
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.platform import fork, interrupts, threads
from embeddedpulsar.topic.catalog.topic_list import partition_names

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from embeddedpulsar.client.common.client_context import ClientContext
    from embeddedpulsar.client.common.partition_watch import WatchedTopic
    from embeddedpulsar.client.consumer.consumer_config import ReaderConfig
    from embeddedpulsar.message import Message

_MOST_AHEAD = 50_000
"""Messages fetched ahead of all partitions together."""


class _Part(NamedTuple):
    """The reader of one partition, in the form that `MultiTopicsDelivery` uses."""

    reader: Reader[Any]
    delivery: Delivery
    take: Callable[[], Message[Any]]


class MultiTopicsReader(Reader[T]):
    """A `Reader` of all partitions of a topic. Made by `Client.create_reader`.

    Each partition keeps its order; there is no order between partitions, which take turns. Partitions added
    later join, from their first message on. With an id as its start, the partition of that message is read
    from there and the others from their beginning, so that no message is missed.

    Example:
        >>> from embeddedpulsar import Client
        >>> with Client("memory://") as client:
        ...     client._core.store.create_partitioned_topic("log", 2)
        ...     for index in range(2):
        ...         message_id = client.create_producer(f"log-partition-{index}").send(b"line %d" % index)
        ...     reader = client.create_reader("log", MessageId.earliest)
        ...     sorted((message.data(), message.message_id().partition()) for message in reader)
        [(b'line 0', 0), (b'line 1', 1)]
    """

    def __init__(self, core: ClientContext, config: ReaderConfig, topic: str, partitions: int) -> None:
        prefix = f"{config.role_prefix}-" if config.role_prefix else ""
        self._name = config.name or f"{prefix}reader-{os.urandom(5).hex()}"
        self._core = core
        self._close_guard = CloseGuard(core)
        self._config = config
        self._topic_name = topic
        self._joining = threads.RLock()  # guards partitions that are added or removed
        self._parts: dict[str, _Part] = {}
        try:
            for name in partition_names(topic, partitions):
                self._join(name, partitions, config.start)
            self._start_at(config.start)
        except BaseException:
            self._close_parts()
            raise
        store = core.store
        delivery = MultiTopicsDelivery(tuple(self._parts.values()), store.mailbox, store.clock, self._on_lost)
        self._delivery: Any = delivery
        self._take = self._taken = delivery.take
        self._listener = None
        if config.listener is not None:
            self._take = nothing_to_take
            self._listener = ListenerTarget(self, config.listener, delivery, self._taken, core.log)
        self._in_child = fork.InChild(self._after_fork_in_child)
        self._watched: WatchedTopic | None = None

    def _start(self) -> None:
        watch = self._core.partition_watch
        self._watched = watch.add(self._topic_name, len(self._parts), self._on_partitions)
        super()._start()

    # -- partitions --------------------------------------------------------------------------------------

    def _join(self, name: str, count: int, start: MessageId) -> None:
        size = queue_share(self._config.receiver_queue_size, _MOST_AHEAD, count)
        own = self._config._replace(topic=name, start=start, listener=None, receiver_queue_size=size)
        reader: Reader[Any] = Reader(self._core, own)
        self._parts = {**self._parts, name: _Part(reader, reader._delivery, reader._taken)}

    def _start_at(self, start: MessageId) -> None:
        """Start at an id on its partition, and at the first message on the others."""
        found = None if is_end(start) else self._part_of(start)
        for part in self._parts.values():
            if found is not None and part is not found:
                part.reader.seek(MessageId.earliest)

    def _part_of(self, target: MessageId) -> _Part | None:
        """Return the partition of an id."""
        for part in self._parts.values():
            if any(segment.ledger_id == target._ledger for segment in part.reader._ledger.segments()):
                return part
        return None

    def _on_partitions(self, partitions: int) -> None:
        """Add new partitions, or close after a deletion. Called when the topic has changed."""
        if not partitions:
            self._on_lost(AlreadyClosed(f"the topic {self._topic_name} was deleted"))
            return
        try:
            self._joining.acquire()
            for name in partition_names(self._topic_name, partitions):
                if name not in self._parts and not self._delivery.closed_text:
                    self._join(name, partitions, MessageId.earliest)
                    self._delivery.replace(tuple(self._parts.values()))
        finally:
            self._joining.release()
        self._core.wake()

    # -- reading -----------------------------------------------------------------------------------------

    def has_message_available(self) -> bool:
        """Return whether any partition has a message; see `Reader.has_message_available`."""
        self._delivery.check_open()
        return bool(self._delivery.find(lambda part: part.reader.has_message_available() or None))

    def seek(self, messageid: MessageId | int) -> None:
        """Continue at another position: all partitions at a time or an end, one partition at an id.

        Raises:
            ValueError: another type.
            OperationNotSupported: no partition has a message of that id.
            AlreadyClosed: the reader is closed.
        """
        target = checked_seek_target(messageid)
        self._delivery.check_open()
        if isinstance(target, MessageId) and not is_end(target):
            part = self._part_of(target)
            if part is None:
                raise OperationNotSupported(f"{target!r} belongs to no partition of {self._topic_name}")
            part.reader.seek(target)
        else:
            for part in self._parts.values():
                part.reader.seek(target)

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the remaining messages of every partition in sequence; see `Reader.to_arrow`."""
        self._check_can_read()
        from embeddedpulsar.arrow.schema import require_pyarrow  # it is large, and rarely needed

        joined: pa.Table = require_pyarrow().concat_tables(
            [part.reader.to_arrow(columns) for part in self._parts.values()]
        )
        return joined

    # -- leaving -----------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the reader.

        Raises:
            AlreadyClosed: it was closed before.
        """
        if not self._close_guard.begin(self._delivery.closed_text):
            return
        self._shut("the reader is closed; make a new one")

    def _shut(self, text: str) -> None:
        self._delivery.close(text)
        if self._watched is not None:
            self._core.partition_watch.remove(self._watched)
        if self._listener is not None:
            self._core.listeners.remove(self._listener)
        self._close_parts()
        self._core.wake()
        self._core.forget_consumer(self)

    def _close_parts(self) -> None:
        try:
            self._joining.acquire()
            for part in self._parts.values():
                if part.reader.is_connected():
                    part.reader.close()
        finally:
            self._joining.release()

    def _on_lost(self, error: AlreadyClosed) -> None:
        """Close all partitions, because the reader of one was closed."""
        if not self._delivery.closed_text:
            with interrupts.translated:
                self._shut(str(error))

    def _after_fork_in_child(self) -> None:
        """Close the child's copy: the fetched messages belong to the parent."""
        self._joining = threads.RLock()
        self._close_guard.after_fork_in_child()
        self._delivery.after_fork_in_child()
        if not self._delivery.closed_text:
            self._delivery.closed_text = (
                f"the reader {self._name} belongs to the parent of this forked process; make one in the child"
            )
