"""A message before it is routed, as a ``message_router`` sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from embeddedpulsar.client.common.message_options import NO_OPTIONS, PARTITION_KEY, SEQUENCE_ID
from embeddedpulsar.message import Message
from embeddedpulsar.schema import BytesSchema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from embeddedpulsar.client.common.message_options import Options
    from embeddedpulsar.message import ValueDecoder


class RoutedEntry:
    """One message without a position, in the form of a decoded entry; see `message.DecodedEntry`."""

    __slots__ = ("_options", "offsets", "payload")

    ledger_id = entry_id = -1
    publish_time = 0
    count = 1
    batched = False
    redelivery_count = 0
    producer_name = ""
    schema_version = -1

    def __init__(self, value: bytes, options: Options) -> None:
        self.payload = value
        self.offsets = [0, len(value)]
        self._options = options

    @property
    def first_sequence_id(self) -> int:
        return self._options[SEQUENCE_ID]

    def keys(self) -> Sequence[str | None] | None:
        return (self._options[PARTITION_KEY],)

    def ordering_keys(self) -> Sequence[str | None] | None:
        return (self._options[2],)

    def properties(self, index: int) -> dict[str, str] | None:
        return self._options[0]

    def event_times(self) -> Sequence[int] | None:
        return (self._options[4],)

    def sequence_ids(self) -> Sequence[int] | None:
        return None

    def null(self, index: int) -> bool:
        return self._options[6]


class _Nowhere:
    """The topic of a message that is not routed yet; see `message.Origin`."""

    topic_name = ""
    schema: ValueDecoder = BytesSchema()
    partition = -1


_NOWHERE = _Nowhere()


def routed_message(value: bytes, options: Options | None) -> Message[Any]:
    """Return the message for a router: payload and options, no id, no topic; its value is its bytes.

    >>> message = routed_message(b"pasta", ({"table": "7"}, "Ada", None, 0, 0, 0, False))
    >>> message.value(), message.partition_key(), message.properties(), message.message_id()
    (b'pasta', 'Ada', {'table': '7'}, (-1,-1,-1,-1))
    """
    return Message(RoutedEntry(value, options or NO_OPTIONS), 0, _NOWHERE)
