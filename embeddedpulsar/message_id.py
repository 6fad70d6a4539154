"""Message identifiers: the position of a message in its topic, their order, and their binary form.

Positions: where an entry stands in a topic; and which of them a reader gets.
"""

from __future__ import annotations

from operator import index

from embeddedpulsar.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Any, ClassVar, Final, SupportsIndex


LARGEST_ID = 0x7FFFFFFFFFFFFFFF
_MASK = 0xFFFFFFFFFFFFFFFF
_PARSE_ERROR = "Failed to parse serialized message id"


class MessageId:
    """The identity of one message: ledger, entry, index in its batch, and partition.

    Immutable by convention; safe to share between threads and processes. The text form is
    ``(ledger,entry,partition,batch_index)``. The binary form is Pulsar's, so one client can store ids and the
    other can read them.

    Ids order by ledger, entry and batch index, while equality also compares the partition. So of two ids that
    differ only in the partition, neither is equal or less, and each counts as greater, as in
    ``pulsar-client``. Unlike in ``pulsar-client``, ids are hashable.

    Args:
        partition: index of the partition; -1 when the topic is not partitioned.
        ledger_id: the ledger; -1 in `MessageId.earliest`.
        entry_id: the entry within the ledger.
        batch_index: index within the batch; -1 for a message that was not batched.

    Raises:
        TypeError: an argument is not an integer, or out of the range of Pulsar's binary form.

    Example:
        >>> first, second = MessageId(-1, 7, 0, 3), MessageId(-1, 7, 1)
        >>> first, second > first, MessageId.deserialize(first.serialize()) == first
        ((7,0,-1,3), True, True)
        >>> first.ledger_id(), first.entry_id(), first.batch_index(), first.partition()
        (7, 0, 3, -1)
        >>> MessageId.wrap(first) is first
        True
    """

    __slots__ = ("_batch_index", "_batch_size", "_entry", "_first_chunk", "_ledger", "_partition", "_topic")

    _partition: int
    _ledger: int
    _entry: int
    _batch_index: int
    _batch_size: int  # messages of the batch; 0 = unknown
    _first_chunk: MessageId  # set only on the id of a chunked message
    _topic: str  # set only by deserialize(topic=...) and by consumers of several topics

    _origin: ClassVar[None] = None
    """That of no message: `Consumer.acknowledge` tells messages and ids apart by it, in half the time."""
    earliest: ClassVar[MessageId]
    latest: ClassVar[MessageId]

    def __init__(
        self, partition: int = -1, ledger_id: int = -1, entry_id: int = -1, batch_index: int = -1
    ) -> None:
        self._partition = _whole(partition, 32)
        self._ledger = _whole(ledger_id, 64)
        self._entry = _whole(entry_id, 64)
        self._batch_index = _whole(batch_index, 32)
        self._batch_size = 0

    def ledger_id(self) -> int:
        """Return the ledger id."""
        return self._ledger

    def entry_id(self) -> int:
        """Return the entry id."""
        return self._entry

    def batch_index(self) -> int:
        """Return the index within the batch, or -1."""
        return self._batch_index

    def partition(self) -> int:
        """Return the partition index, or -1."""
        return self._partition

    def serialize(self) -> bytes:
        """Return the id in Pulsar's binary form (the protobuf message ``MessageIdData``).

        Example:
            >>> MessageId(0, 1, 2, 3).serialize().hex()
            '0801100218002003'
        """
        # Fields in the order of their numbers, as protobuf writes them: ledger 1, entry 2, partition 3, batch
        # index 4, batch size 6, first chunk 7. Defaults are left out.
        parts = [b"\x08", _varint(self._ledger), b"\x10", _varint(self._entry)]
        if self._partition != -1:
            parts += (b"\x18", _varint(self._partition))
        if self._batch_index != -1:
            parts += (b"\x20", _varint(self._batch_index))
        if self._batch_size:
            parts += (b"\x30", _varint(self._batch_size))
        first_chunk = getattr(self, "_first_chunk", None)
        # Pulsar's clients write the first chunk of a chunked message into the id of the last.
        if first_chunk is not None:
            nested = first_chunk.serialize()
            parts += (b"\x3a", _varint(len(nested)), nested)
        return b"".join(parts)

    @staticmethod
    def deserialize(message_id_bytes: bytes, topic: str | None = None) -> MessageId:
        """Return the id that `serialize` wrote, in this package or in any Pulsar client.

        Args:
            message_id_bytes: the binary form.
            topic: full name of the topic; consumers of several topics need it to acknowledge or seek.

        Raises:
            ValueError: the bytes are not a message id.
            TypeError: the argument is not bytes.

        Example:
            >>> MessageId.deserialize(bytes.fromhex("08051006"))
            (5,6,-1,-1)
        """
        # pulsar-client raises this error for a text.
        if isinstance(message_id_bytes, str):
            raise ValueError(_PARSE_ERROR)
        if not isinstance(message_id_bytes, bytes | bytearray | memoryview):
            raise TypeError(f"a serialized message id is bytes, not {type(message_id_bytes).__name__}")
        self = _parse(bytes(message_id_bytes), nested=False)
        if topic is not None:
            self._topic = topic
        return self

    @classmethod
    def wrap(cls, msg_id: MessageId) -> MessageId:
        """Return ``msg_id`` itself: this package has one class of ids, ``pulsar-client`` has two."""
        return msg_id

    def topic_name(self, topic: str) -> None:
        """Set the topic of the message, as `deserialize` does with its ``topic``.

        As in ``pulsar-client`` there is no getter: consumers of several topics use it to find the topic.

        Raises:
            TypeError: ``topic`` is not a str.

        Example:
            >>> message_id = MessageId(-1, 7, 0)
            >>> message_id.topic_name("persistent://public/default/orders")
        """
        if not isinstance(topic, str):
            raise TypeError(f"a topic is a str, not {type(topic).__name__}")
        self._topic = topic

    def __reduce__(self) -> tuple[Any, ...]:
        # By the binary form, which does not depend on the release.
        return MessageId.deserialize, (self.serialize(), getattr(self, "_topic", None))

    def __repr__(self) -> str:
        text = f"({self._ledger},{self._entry},{self._partition},{self._batch_index})"
        first_chunk = getattr(self, "_first_chunk", None)
        return text if first_chunk is None else f"{first_chunk!r};{text}"

    def __hash__(self) -> int:
        # Without the partition, which does not change where equal ids fall, and which ids of a single log
        # lack.
        return hash((self._ledger, self._entry, self._batch_index))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MessageId):
            return NotImplemented
        return (
            # The entry first: it differs most often.
            self._entry == other._entry
            and self._ledger == other._ledger
            and self._batch_index == other._batch_index
            and self._partition == other._partition
        )

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, MessageId):
            return NotImplemented
        return _order(self) < _order(other)

    def __le__(self, other: object) -> bool:
        if not isinstance(other, MessageId):
            return NotImplemented
        return self == other or self < other

    def __gt__(self, other: object) -> bool:
        if not isinstance(other, MessageId):
            return NotImplemented
        return self != other and not self < other

    def __ge__(self, other: object) -> bool:
        if not isinstance(other, MessageId):
            return NotImplemented
        return not self < other


def make(ledger: int, entry: int, batch_index: int, partition: int, batch_size: int) -> MessageId:
    """Return an id from valid ints. Hot: 0.2 us, without the checks of the constructor.

    Example:
        >>> make(7, 1, 0, -1, 10)
        (7,1,-1,0)
    """
    self = _new(MessageId)
    self._ledger = ledger
    self._entry = entry
    self._batch_index = batch_index
    self._partition = partition
    self._batch_size = batch_size
    return self


_new = object.__new__


def _whole(number: SupportsIndex, bits: int) -> int:
    """Return a plain int; NumPy integers are accepted as well."""
    try:
        whole = index(number)
    except TypeError:
        raise TypeError(f"a MessageId is made of ints, not of {type(number).__name__}") from None
    # Checked here, since protobuf would cut the number off and name another message.
    if not -1 << (bits - 1) <= whole < 1 << (bits - 1):
        raise TypeError(f"a MessageId has no room for {number}: it is no number of {bits} bits")
    return int(whole)


def _order(message_id: MessageId) -> tuple[int, int, int]:
    return (message_id._ledger, message_id._entry, message_id._batch_index)


def _varint(value: int) -> bytes:
    value &= _MASK  # a negative number is written as its 64-bit two's complement
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of a protobuf message, and where it ends; raises ValueError if it is cut off."""
    value = 0
    # A varint of 64 bits takes ten bytes at most; what goes on longer is none.
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _MASK, at
    raise ValueError(_PARSE_ERROR)


def _signed(value: int, bits: int) -> int:
    # Two's complement, as protobuf has negative numbers.
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def skip_field(data: bytes, at: int, wire_type: int) -> int:
    """Return the end of the value of a field; raises ValueError if it is cut off."""
    # Fields that this release does not know are skipped by their type: 0 is a varint, 1 and 5 are 8 and 4
    # bytes, 2 has its length before it. Groups, 3 and 4, are in no message of Pulsar.
    if wire_type == 0:
        return read_varint(data, at)[1]
    if wire_type == 2:
        length, at = read_varint(data, at)
    elif wire_type in (1, 5):
        length = 8 if wire_type == 1 else 4
    else:
        raise ValueError(_PARSE_ERROR)
    # A length that leads behind the end would be taken for a short field.
    if length > len(data) - at:
        raise ValueError(_PARSE_ERROR)
    return at + length


def _parse(data: bytes, *, nested: bool) -> MessageId:
    numbers: dict[int, int] = {}
    first_chunk: MessageId | None = None
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        field, wire_type = key >> 3, key & 7
        # One level: the first chunk is no chunked message itself, and a nested one could be as deep as the
        # bytes allow.
        if field == 7 and wire_type == 2 and not nested:
            start = read_varint(data, at)[1]
            at = skip_field(data, at, wire_type)
            first_chunk = _parse(data[start:at], nested=True)
        elif wire_type == 0:
            numbers[field], at = read_varint(data, at)
        elif field == 0:
            # There is no field 0, so these bytes are no protobuf message.
            raise ValueError(_PARSE_ERROR)
        else:
            at = skip_field(data, at, wire_type)
    # Both are required in `MessageIdData`.
    if 1 not in numbers or 2 not in numbers:
        raise ValueError(_PARSE_ERROR)
    self = make(
        _signed(numbers[1], 64),
        _signed(numbers[2], 64),
        _signed(numbers.get(4, -1), 32),
        _signed(numbers.get(3, -1), 32),
        # Some clients write -1 for "no batch".
        max(_signed(numbers.get(6, 0), 32), 0),
    )
    if first_chunk is not None:
        self._first_chunk = first_chunk
    return self


MessageId.earliest = make(-1, -1, -1, -1, 0)
MessageId.latest = make(LARGEST_ID, LARGEST_ID, -1, -1, 0)


class Position(NamedTuple):
    """An entry by ledger and entry id; ordered as the log is. Entry -1 stands before a ledger's first entry.

    Example:
        >>> Position(3, 9) < Position(4, 0) < Position(4, 0).next()
        True
        >>> str(Position(4, 1).previous())
        '4:0'
    """

    ledger_id: int
    entry_id: int

    def next(self) -> Position:
        """The position behind this one in the same ledger, whether or not an entry is there."""
        return Position(self.ledger_id, self.entry_id + 1)

    def previous(self) -> Position:
        """The position before this one in the same ledger; entry -1 from the first."""
        return Position(self.ledger_id, self.entry_id - 1)

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"


BEFORE_FIRST: Final = Position(0, -1)
"""Before every entry of every topic: ledger ids start at 1."""


class Isolation:
    """Which entries of transactions a reader gets.

    COMMITTED: those that committed; it stops before the first that is not decided. UNCOMMITTED: also those
    that are not decided, and none that is known to be aborted. EVERYTHING: all, whatever became of them.
    """

    COMMITTED: Final = 0
    UNCOMMITTED: Final = 1
    EVERYTHING: Final = 2
