"""A message before it is sent, as interceptors see it."""

from __future__ import annotations

from embeddedpulsar.client.arguments import Options, check_options
from embeddedpulsar.client.producer.message_router import RoutedEntry
from embeddedpulsar.message import Message, T
from embeddedpulsar.records import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Sender(Protocol):
    """What all messages of one producer share; see `message.Origin`. `Interception` has it."""

    topic_name: str
    schema: Any
    wall_ms: Callable[[], int]
    partition: int
    by_message: bool

    @property
    def encode(self) -> Callable[[Any, Options], tuple[bytes, Options]]:
        """Payload and options of a value."""


class ProducerMessage(Message[T]):
    """A message before it is stored. Producers make it for `ProducerInterceptor`.

    It has the methods of `Message`. It has no position yet: its id is ``(-1,-1,-1,-1)``, its publish time 0.
    Immutable: `replace` makes a changed copy.
    """

    __slots__ = ("_content", "_given", "options", "payload")

    _origin: Sender

    def __init__(self, sender: Sender, content: T | None, options: Options) -> None:
        self._content = content
        self._given = options  # without a key that the schema makes of the content
        self.payload, self.options = sender.encode(content, options)
        super().__init__(RoutedEntry(self.payload, self.options), 0, sender)

    def value(self) -> T:
        """Return the content as it was given to ``send``."""
        return self._content  # type: ignore[return-value]

    def replace(self, **fields: Any) -> ProducerMessage[T]:
        """Return a copy with other arguments of `Producer.send`: ``content``, ``properties`` and so on.

        Raises:
            TypeError: ``send`` has no such argument, or the schema rejects the content.
            ValueError: an argument has a wrong type or value.

        Example:
            >>> from embeddedpulsar.client.arguments import NO_OPTIONS
            >>> from types import SimpleNamespace as Sender
            >>> sender = Sender(topic_name="persistent://public/default/t", partition=-1, wall_ms=int)
            >>> sender.encode = lambda content, options: (content, options)
            >>> ProducerMessage(sender, b"one tea", NO_OPTIONS).replace(partition_key="table-7")
            <Message (-1,-1,-1,-1) of persistent://public/default/t key='table-7' 7 bytes>
        """
        properties, key, ordering_key, sequence_id, event_time, deliver_at, _ = self._given
        given: dict[str, Any] = {
            "content": self._content,
            "properties": properties,
            "partition_key": key,
            "ordering_key": ordering_key,
            "sequence_id": sequence_id,
            "replication_clusters": None,
            "disable_replication": False,
            "event_timestamp": event_time,
            "deliver_at": deliver_at,
            "deliver_after": None,
        }
        # The names are those of `send`: `check_options` would answer a wrong one with another text. Times
        # are checked again, from the clock of the client: ``deliver_after`` counts from now.
        unknown = sorted(fields.keys() - given.keys())
        if unknown:
            raise TypeError(f"send() has no argument {unknown[0]!r}; it has {', '.join(sorted(given))}")
        given |= fields
        content = given.pop("content")
        options = check_options(content is None, **given, now_ms=self._origin.wall_ms)
        return ProducerMessage(self._origin, content, options)
