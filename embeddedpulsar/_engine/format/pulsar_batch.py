"""Entries as Pulsar's clients encode them: metadata and payload of one SEND (docs/format/frame.md).

What such an entry has is laid out as columns when it is read, so a reader of columns needs to know no other
format. Which columns there are is said by the flags of its frame, which its writer found by the same rules;
those of an encrypted one, whose content its writer did not see, may be empty.

The records are protobuf messages, of which a field is a number and a value.
"""

from __future__ import annotations

from collections.abc import Iterator

from embeddedpulsar._engine.format.columns import (
    OPTIONAL,
    EntryContent,
    EntryFields,
    encode_bitmap,
    encode_fixed,
    encode_var,
    key_of_text,
    optional_columns,
)
from embeddedpulsar._engine.format.compression import decompress
from embeddedpulsar._engine.format.document import pack_map
from embeddedpulsar._engine.format.frame import (
    CODEC_LZ4,
    CODEC_NONE,
    CODEC_SNAPPY_RAW,
    CODEC_ZLIB,
    CODEC_ZSTD,
    COLUMN_FLAGS,
    FLAG_BATCHED,
    FLAG_KEY_ABSENT,
    FLAG_KEYS,
    FLAG_ORDERING_KEY_ABSENT,
    FLAG_ORDERING_KEYS,
)
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.message_id import read_varint, skip_field
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Any, Final

# Numbers of the fields of the metadata of one message of a batch.
_PROPERTY, _KEY, _SIZE, _COMPACTED_OUT, _EVENT_TIME, _KEY_IS_BASE64 = 1, 2, 3, 4, 5, 6
_ORDERING_KEY, _SEQUENCE_ID, _NULL, _NULL_KEY = 7, 8, 9, 10

CODECS_OF_PULSAR: Final = (CODEC_NONE, CODEC_LZ4, CODEC_ZLIB, CODEC_ZSTD, CODEC_SNAPPY_RAW)
"""The codecs of this store in the order of Pulsar's numbers; Pulsar's Snappy is the one without frames."""
_MOST_SCHEMA: Final = (1 << 31) - 1
_MOST: Final = (1 << 63) - 1

# What a column has that the flags of an encrypted entry announce and none of its messages needs.
_NEUTRAL_BITS: Final = {FLAG_KEY_ABSENT: FLAG_KEYS, FLAG_ORDERING_KEY_ABSENT: FLAG_ORDERING_KEYS}


class Single(NamedTuple):
    """One message of a batch: its payload, its properties, and the other fields of its metadata by number."""

    payload: bytes
    properties: dict[str, str]
    fields: dict[int, Any]


def singles(data: bytes, size: int, *, is_all: bool = False) -> Iterator[Single]:
    """The messages of a payload, decompressed and decrypted.

    Args:
        data: the payload.
        size: number of messages to read.
        is_all: whether nothing may be behind them.

    Raises:
        ValueError: the payload is not a batch of so many messages.
    """
    at = 0
    for _ in range(size):
        # A batch is a sequence of: four bytes with the length of the metadata, the metadata, the payload. The
        # length of the payload is a field of the metadata.
        start = at + 4
        end = start + int.from_bytes(data[at:start], "big")
        # Lengths are compared before anything is cut: slices of bytes beyond the end are silently short.
        if len(data) < max(start, end):
            raise ValueError(f"the batch has no {size} messages: it ends in the metadata of one, at {at}")
        properties: dict[str, str] = {}
        fields: dict[int, Any] = {}
        for number, value in fields_of(data[start:end]):
            if number == _PROPERTY:
                name, text = _pair(value)
                properties[name] = text
            else:
                fields[number] = value
        length = fields.get(_SIZE)
        if type(length) is not int or length > len(data) - end:
            raise ValueError(f"the batch has no {size} messages: it ends in the payload of one, at {end}")
        at = end + length
        yield Single(data[end:at], properties, fields)
    if is_all and at != len(data):
        raise ValueError(f"{len(data) - at} bytes behind the {size} messages of a batch")


def fields_of(data: bytes) -> Iterator[tuple[int, Any]]:
    """The numbers and the values of a protobuf message: an int, or bytes.

    Raises:
        ValueError: the message is cut off, or has a group.
    """
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        # Wire type 0 is a number, 2 has a length before it. Others do not occur in these messages, and are
        # skipped.
        if key & 7 == 0:
            value, at = read_varint(data, at)
            yield key >> 3, value
            continue
        start, at = read_varint(data, at)[1] if key & 7 == 2 else at, skip_field(data, at, key & 7)
        yield key >> 3, data[start:at]


def _pair(data: bytes) -> tuple[str, str]:
    pair = dict(fields_of(data))
    return _text(pair.get(1, b"")), _text(pair.get(2, b""))


def _text(value: Any) -> str:
    if not isinstance(value, bytes):
        raise ValueError("a text of the metadata is a number")
    return value.decode()


class PulsarMetadata(NamedTuple):
    """Pulsar's metadata of an entry, as far as it matters here. What is missing has the default of protobuf.

    Attributes:
        producer_name, sequence_id, publish_time: as the client set them.
        properties: of a single message; those of a batch are in its messages.
        replicated_from, replicate_to: clusters.
        compression: Pulsar's number of the codec.
        uncompressed_size: of the payload, before compression.
        batch_size: messages of a batch; None for a single message outside of one.
        event_time, key, is_key_base64, ordering_key, is_null, is_key_null: of a single message.
        encryption_keys: name, wrapped key, and metadata of each.
        encryption_param: the initialization vector.
        schema_version: as it is stored, eight bytes.
        deliver_at: ms since the epoch; 0 for at once.
        marker: the kind of a marker; None for a message.
        highest_sequence_id: of a batch; 0 where the client did not say it.
        chunks: parts of the chunked message of which this is one; 0 for none.
        has_compacted: whether some of its messages were removed by a compaction.
    """

    producer_name: str
    sequence_id: int
    publish_time: int
    properties: dict[str, str]
    replicated_from: str | None
    replicate_to: tuple[str, ...]
    compression: int
    uncompressed_size: int
    batch_size: int | None
    event_time: int
    key: str | None
    is_key_base64: bool
    ordering_key: bytes | None
    is_null: bool
    is_key_null: bool
    encryption_keys: tuple[tuple[str, bytes, dict[str, str]], ...]
    encryption_param: bytes
    schema_version: bytes
    deliver_at: int
    marker: int | None
    highest_sequence_id: int
    chunks: int
    has_compacted: bool

    @property
    def schema_number(self) -> int:
        """The version of the schema, as this store counts; -1 for none, or a number that it cannot have."""
        number = int.from_bytes(self.schema_version, "big") if len(self.schema_version) == 8 else -1
        return number if number <= _MOST_SCHEMA else -1

    @property
    def deduplication_id(self) -> int:
        """What Pulsar's deduplication compares."""
        return max(self.sequence_id, self.highest_sequence_id)


def read_metadata(data: bytes) -> PulsarMetadata:
    """The metadata of an entry.

    Raises:
        CorruptionError: it is malformed, or lacks what it must have.
    """
    try:
        return _metadata(data)
    except (ValueError, TypeError) as e:  # UnicodeDecodeError is a ValueError
        raise CorruptionError(reason=f"malformed metadata of Pulsar: {e}") from e


def _metadata(data: bytes) -> PulsarMetadata:
    properties: dict[str, str] = {}
    targets: list[str] = []
    keys: list[tuple[str, bytes, dict[str, str]]] = []
    once: dict[int, Any] = {}
    has_compacted = False
    # Fields that may be there several times are collected; of the others the last one holds, as in protobuf.
    # Numbers that are not known are passed over: the bytes keep them.
    for number, value in fields_of(data):
        if number == 4:
            name, text = _pair(value)
            properties[name] = text
        elif number == 7:
            targets.append(_text(value))
        elif number == 13:
            keys.append(_encryption_key(value))
        elif number == 31:
            has_compacted = True
        else:
            once[number] = value

    def number_of(field: int) -> int:
        value = once.get(field, 0)
        if type(value) is not int:
            raise ValueError(f"field {field} is no number")
        return value if value <= _MOST else value - (1 << 64)

    def bytes_of(field: int) -> bytes | None:
        value = once.get(field)
        if value is not None and type(value) is not bytes:
            raise ValueError(f"field {field} is a number")
        return value

    if not {1, 2, 3} <= once.keys():
        raise ValueError("producer, sequence id or publish time is missing")
    key, source = bytes_of(6), bytes_of(5)
    return PulsarMetadata(
        producer_name=_text(once[1]),
        sequence_id=number_of(2),
        publish_time=number_of(3),
        properties=properties,
        replicated_from=None if source is None else source.decode(),
        replicate_to=tuple(targets),
        compression=number_of(8),
        uncompressed_size=number_of(9),
        batch_size=number_of(11) if 11 in once else None,
        event_time=number_of(12),
        key=None if key is None else key.decode(),
        is_key_base64=bool(number_of(17)),
        ordering_key=bytes_of(18),
        is_null=bool(number_of(25)),
        is_key_null=bool(number_of(30)),
        encryption_keys=tuple(keys),
        encryption_param=bytes_of(15) or b"",
        schema_version=bytes_of(16) or b"",
        deliver_at=number_of(19),
        marker=number_of(20) if 20 in once else None,
        highest_sequence_id=number_of(24),
        chunks=number_of(27),
        has_compacted=has_compacted,
    )


def _encryption_key(data: bytes) -> tuple[str, bytes, dict[str, str]]:
    name, value, metadata = "", b"", {}
    for number, item in fields_of(data):
        if number == 1:
            name = _text(item)
        elif number == 2:
            value = bytes(item)
        elif number == 3:
            key, text = _pair(item)
            metadata[key] = text
    return name, value, metadata


def split_entry(data: bytes) -> tuple[bytes, bytes]:
    """Metadata and payload of an entry: four bytes with the length of the metadata stand before it.

    Raises:
        CorruptionError: the length leads behind the end.
    """
    end = 4 + int.from_bytes(data[:4], "big")
    if len(data) < end:
        raise CorruptionError(reason=f"an entry of Pulsar of {len(data)} bytes with metadata up to {end}")
    return data[4:end], data[end:]


def content_of(
    metadata: PulsarMetadata, payload: bytes, transaction: tuple[int, int] | None = None
) -> EntryContent:
    """The messages of an entry whose payload is not encrypted, or not any more.

    Raises:
        CorruptionError: the payload is not what the metadata says.
        ImportError: it is compressed by a codec whose package is not installed.
    """
    number = metadata.compression
    if not 0 <= number < len(CODECS_OF_PULSAR):
        raise CorruptionError(reason=f"a codec of Pulsar with the number {number}")
    if number:
        payload = decompress(CODECS_OF_PULSAR[number], payload, metadata.uncompressed_size)
    try:
        if metadata.batch_size is None:
            messages = [_only_message(metadata, payload)]
        else:
            messages = list(singles(payload, metadata.batch_size, is_all=True))
        return _content(metadata, messages, transaction)
    except (ValueError, TypeError) as e:
        raise CorruptionError(reason=f"a malformed payload of Pulsar: {e}") from e


def _only_message(metadata: PulsarMetadata, payload: bytes) -> Single:
    """A message outside of a batch: its fields are those of the entry."""
    fields: dict[int, Any] = {_EVENT_TIME: metadata.event_time}
    if metadata.key is not None:
        fields[_KEY] = metadata.key.encode()
    if metadata.ordering_key is not None:
        fields[_ORDERING_KEY] = metadata.ordering_key
    fields |= {
        _KEY_IS_BASE64: metadata.is_key_base64,
        _NULL: metadata.is_null,
        _NULL_KEY: metadata.is_key_null,
    }
    return Single(payload, metadata.properties, fields)


def _content(
    metadata: PulsarMetadata, messages: list[Single], transaction: tuple[int, int] | None
) -> EntryContent:
    # What a broker has compacted away would be delivered as an empty message.
    if not messages:
        raise ValueError("a batch without a message")
    fields = [message.fields for message in messages]
    if any(each.get(_COMPACTED_OUT) for each in fields):
        raise ValueError("a batch of which a compaction has removed messages")
    first = metadata.sequence_id
    ids = [
        _signed(each[_SEQUENCE_ID]) if _SEQUENCE_ID in each else first + index
        for index, each in enumerate(fields)
    ]
    if max(ids) > _MOST:
        raise ValueError("sequence ids of more than 63 bits")
    number = metadata.deduplication_id
    return EntryContent(
        [message.payload for message in messages],
        batched=metadata.batch_size is not None,
        keys=[_key(each) for each in fields],
        ordering_keys=[each.get(_ORDERING_KEY) for each in fields],
        properties=[message.properties for message in messages],
        event_times=[_signed(each.get(_EVENT_TIME, 0)) for each in fields],
        sequence_ids=ids,
        deliver_at=[metadata.deliver_at] * len(messages) if metadata.deliver_at > 0 else None,
        null_values=[bool(each.get(_NULL)) for each in fields],
        null_keys=[bool(each.get(_NULL_KEY)) and _KEY not in each for each in fields],
        transaction=transaction,
        fields=entry_fields(metadata, None if number == max(ids) else number),
    )


def entry_fields(metadata: PulsarMetadata, deduplication_id: int | None) -> EntryFields:
    """What an entry as a whole has beside its messages."""
    return EntryFields(
        metadata.publish_time,
        metadata.replicated_from,
        metadata.replicate_to or None,
        deduplication_id,
    )


def _signed(value: int) -> int:
    return value if value <= _MOST else value - (1 << 64)


def _key(fields: dict[int, Any]) -> str | bytes | None:
    """A key as text, or as bytes where it is the Base64 of bytes."""
    value = fields.get(_KEY)
    return None if value is None else key_of(_text(value), is_base64=bool(fields.get(_KEY_IS_BASE64)))


def key_of(text: str, *, is_base64: bool) -> str | bytes:
    """A partition key of Pulsar, as an entry has it.

    Example:
        >>> key_of("aGk=", is_base64=True), key_of("aGk=", is_base64=False), key_of("aGl=", is_base64=True)
        (b'hi', 'aGk=', 'aGl=')
    """
    if not is_base64:
        return text
    try:
        return key_of_text(text)
    except CorruptionError:
        return text


def columns_of(
    metadata: bytes, payload: bytes, transaction: tuple[int, int] | None, flags: int, count: int
) -> bytes:
    """The columns of an entry of which the frame has the flags and the number of messages.

    Raises:
        CorruptionError: metadata and payload are malformed, or not those of this frame.
    """
    content = content_of(read_metadata(metadata), payload, transaction)
    if len(content.values) != count or content.batched != (flags & FLAG_BATCHED != 0):
        raise CorruptionError(reason=f"an entry of Pulsar of {len(content.values)} messages, and not {count}")
    return laid_out(content, flags)


def laid_out(content: EntryContent, flags: int) -> bytes:
    """The columns of an entry as its flags announce them: value column first.

    Raises:
        CorruptionError: the messages have what the flags do not announce.
    """
    count = len(content.values)
    own, columns = optional_columns(content, count)
    if own & COLUMN_FLAGS & ~flags:
        raise CorruptionError(reason=f"an entry of Pulsar with columns {own:#x}, announced as {flags:#x}")
    # An announced column that no message needs is there all the same, and says so of each.
    parts, given = [encode_var(content.values)], iter(columns)
    # `columns` are in the order of `OPTIONAL`, and so are those that the flags announce.
    for flag, kind, name in OPTIONAL:
        if flags & flag:
            parts.append(next(given) if own & flag else _neutral(content, count, own, flag, kind, name))
    return b"".join(parts)


def _neutral(content: EntryContent, count: int, own: int, flag: int, kind: str, name: str) -> bytes:
    """A column that says of each message that it has nothing."""
    # Ids that count up have no column of their own, and one that is announced has them.
    if name == "sequence_ids":
        return encode_fixed(content.sequence_ids or list(range(count)))
    if kind == "var":
        return encode_var([b""] * count)
    if kind == "map":
        return encode_var([pack_map({})])
    if kind == "i64":
        return encode_fixed([0] * count)
    if kind == "once":
        raise CorruptionError(reason="an entry of Pulsar without the transaction that its flags announce")
    # A key is absent in all messages where there is no column of keys, and in none where there is one without
    # this bitmap.
    present = _NEUTRAL_BITS.get(flag, 0)
    return encode_bitmap([bool(present) and not own & present] * count)
