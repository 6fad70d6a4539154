"""The messages of a batch in Pulsar's wire format, for programs that keep or decrypt such batches."""

from __future__ import annotations

from embeddedpulsar._engine.format.pulsar_batch import Single, singles
from embeddedpulsar.message import Message, ValueDecoder
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.records import TYPE_CHECKING
from embeddedpulsar.schema import BytesSchema

if TYPE_CHECKING:
    from typing import Any, Self

# Numbers of the fields of Pulsar's `SingleMessageMetadata`.
_KEY, _EVENT_TIME, _ORDERING_KEY, _SEQUENCE_ID, _NULL = 2, 5, 7, 8, 9


class MessageBatch:
    """Reads the payload of a batch that a Pulsar client encoded: the decompressed, decrypted bytes.

    Entries of this package have another layout, which consumers read by themselves.

    Example:
        >>> one = bytes.fromhex("00000002 1803") + b"tea"
        >>> batch = MessageBatch().with_message_id(MessageId(-1, 7, 4))
        >>> [(message.data(), message.message_id()) for message in batch.parse_from(one, 1)]
        [(b'tea', (7,4,-1,0))]
    """

    def __init__(self) -> None:
        self._message_id = MessageId.earliest

    def with_message_id(self, msg_id: MessageId) -> Self:
        """Set the id of the entry, of which the messages have ids; returns this object.

        Raises:
            TypeError: it is no message id.
        """
        if not isinstance(msg_id, MessageId):
            raise TypeError("unknown message id type")
        self._message_id = msg_id
        return self

    def parse_from(self, data: bytes, size: int) -> list[Message[bytes]]:
        """Return the messages of a payload.

        Args:
            data: the payload.
            size: number of messages to read.

        Raises:
            ValueError: the payload is not a batch of so many messages.
        """
        entry = _Entry(self._message_id, list(singles(bytes(data), size)))
        origin = _Origin(self._message_id.partition())
        return [Message(entry, index, origin) for index in range(size)]


class _Origin:
    """What the messages share; a payload does not say of which topic it is."""

    topic_name, by_message = "", False

    def __init__(self, partition: int) -> None:
        self.schema: ValueDecoder = BytesSchema()
        self.partition = partition


class _Entry:
    """The messages as `DecodedEntry`."""

    batched = True
    publish_time = redelivery_count = first_sequence_id = 0
    producer_name = ""
    schema_version = -1

    def __init__(self, message_id: MessageId, messages: list[Single]) -> None:
        self.ledger_id, self.entry_id = message_id.ledger_id(), message_id.entry_id()
        self.count = len(messages)
        self._singles = messages
        self.payload = b"".join(single.payload for single in messages)
        self.offsets = [0]
        for single in messages:
            self.offsets.append(self.offsets[-1] + len(single.payload))

    def _column(self, number: int, default: Any) -> list[Any]:
        return [single.fields.get(number, default) for single in self._singles]

    def keys(self) -> list[str | None]:
        """Partition keys."""
        return [key.decode() for key in self._column(_KEY, b"")]

    def ordering_keys(self) -> list[str | None]:
        """Ordering keys."""
        return [key.decode() for key in self._column(_ORDERING_KEY, b"")]

    def properties(self, index: int) -> dict[str, str]:
        """The properties of one message."""
        return self._singles[index].properties

    def event_times(self) -> list[int]:
        """Event times, in ms."""
        return self._column(_EVENT_TIME, 0)

    def sequence_ids(self) -> list[int]:
        """Sequence ids."""
        return self._column(_SEQUENCE_ID, 0)

    def null(self, index: int) -> bool:
        """Whether the value of one message is null."""
        return bool(self._singles[index].fields.get(_NULL))
