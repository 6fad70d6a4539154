"""A message before it is sent, as interceptors see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from embeddedpulsar.client.common.message_options import check_options
from embeddedpulsar.client.common.value_type import T
from embeddedpulsar.client.producer.partitioned.routed_message import RoutedEntry
from embeddedpulsar.message import Message

if TYPE_CHECKING:
    from collections.abc import Callable

_FIELDS = frozenset(
    (
        *("content", "properties", "partition_key", "ordering_key", "sequence_id", "replication_clusters"),
        *("disable_replication", "event_timestamp", "deliver_at", "deliver_after"),
    )
)


class Sender:
    """The properties that all messages of one producer share; see `message.Origin`.

    Args:
        topic_name: full name.
        encode: encodes a value into bytes.
        schema: of the producer.
        wall_ms: returns the time.
    """

    partition = -1

    def __init__(
        self, topic_name: str, encode: Callable[[Any], bytes], schema: Any, wall_ms: Callable[[], int]
    ) -> None:
        self.topic_name = topic_name
        self.encode = encode
        self.schema = schema
        self.wall_ms = wall_ms


class ProducerMessage(Message[T]):
    """A message before it is stored. Producers make it for `ProducerInterceptor`.

    It has the methods of `Message`. It has no position yet: its id is ``(-1,-1,-1,-1)``, its publish time 0.
    Immutable: `replace` makes a changed copy.
    """

    __slots__ = ("arguments",)

    _origin: Sender

    def __init__(self, sender: Sender, arguments: dict[str, Any]) -> None:
        content = arguments["content"]
        options = check_options(
            content is None,
            arguments["properties"],
            arguments["partition_key"],
            arguments["ordering_key"],
            arguments["sequence_id"],
            arguments["replication_clusters"],
            arguments["disable_replication"],
            arguments["event_timestamp"],
            arguments["deliver_at"],
            arguments["deliver_after"],
            sender.wall_ms,
        )
        super().__init__(RoutedEntry(sender.encode(content), options), 0, sender)
        self.arguments = arguments

    def value(self) -> T:
        """Return the content as it was given to ``send``."""
        content: T = self.arguments["content"]
        return content

    def replace(self, **fields: Any) -> ProducerMessage[T]:
        """Return a copy with other arguments of `Producer.send`: ``content``, ``properties`` and so on.

        Raises:
            TypeError: ``send`` has no such argument, or the schema rejects the content.
            ValueError: an argument has a wrong type or value.

        Example:
            >>> from embeddedpulsar.schema import BytesSchema
            >>> nothing = dict.fromkeys(_FIELDS) | {"disable_replication": False}
            >>> sender = Sender("persistent://public/default/t", bytes, BytesSchema(), lambda: 0)
            >>> message = ProducerMessage(sender, nothing | {"content": b"one tea"})
            >>> message.replace(partition_key="table-7")
            <Message (-1,-1,-1,-1) of persistent://public/default/t key='table-7' 7 bytes>
        """
        unknown = sorted(fields.keys() - _FIELDS)
        if unknown:
            raise TypeError(f"send() has no argument {unknown[0]!r}; it has {', '.join(sorted(_FIELDS))}")
        return ProducerMessage(self._origin, {**self.arguments, **fields})
