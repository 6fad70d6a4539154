"""Columns of an entry body: building blocks, and where each column lies (docs/format/frame.md).

A variable column is `int32 offsets[n+1]`, zero padding to 8, the bytes, zero padding to 8: what Arrow calls
a binary array and numpy can cast. A fixed column is `int64[n]`. A bitmap is one bit per message, least
significant first, padded to 8. Value column first, then the optional ones in the order of their flag bits.

Rows that a task of a sink has staged are columns, too: a file of them has a header, then records
(docs/format/sink.md), each the columns of one entry, and the number of the log that it goes to. Sequence ids,
producer and publish time are added when the entry is published.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from zlib import crc32

from embeddedpulsar._engine.format.document import pack_map
from embeddedpulsar._engine.format.frame import (
    FLAG_CHUNK,
    FLAG_CHUNKS,
    FLAG_DELAYED,
    FLAG_DELIVER_AT,
    FLAG_EVENT_TIMES,
    FLAG_FIELDS,
    FLAG_KEY_ABSENT,
    FLAG_KEY_BYTES,
    FLAG_KEY_NULL,
    FLAG_KEYS,
    FLAG_NULL_VALUES,
    FLAG_ORDERING_KEY_ABSENT,
    FLAG_ORDERING_KEY_BYTES,
    FLAG_ORDERING_KEYS,
    FLAG_PROPERTIES,
    FLAG_REVISED,
    FLAG_SEQUENCE_IDS,
    FLAG_TRANSACTION,
    FLAG_TXN,
    FORMAT_VERSION,
    Buffer,
    FrameHeader,
)
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Any, Final

PADDING: Final = tuple(bytes(n) for n in range(8))
"""`PADDING[-n & 7]` fills n bytes up to a multiple of 8."""
_I32: Final = struct.Struct("<i")
_TWO: Final = struct.Struct("<ii")

Slice = tuple[int, int]
"""(start, length) in bytes."""


class ColumnSlices(NamedTuple):
    """Where the columns lie in a buffer, each (start, length) in bytes or None when absent.

    Offsets arrays hold count + 1 little-endian int32, relative to the start of their data slice. Bounds and
    both ends of every offsets array are checked; the offsets between are covered by the body checksum only.
    """

    count: int  # type: ignore[assignment]  # hides tuple.count, which is not needed here
    value_offsets: Slice
    value_data: Slice
    key_offsets: Slice | None = None
    key_data: Slice | None = None
    ordering_key_offsets: Slice | None = None
    ordering_key_data: Slice | None = None
    property_offsets: Slice | None = None
    property_data: Slice | None = None
    event_times: Slice | None = None
    sequence_ids: Slice | None = None
    null_values: Slice | None = None
    deliver_at: Slice | None = None
    chunk_offsets: Slice | None = None
    chunk_data: Slice | None = None
    transaction: Slice | None = None
    key_absent: Slice | None = None
    ordering_key_absent: Slice | None = None
    key_bytes: Slice | None = None
    key_null: Slice | None = None
    ordering_key_bytes: Slice | None = None
    fields_offsets: Slice | None = None
    fields_data: Slice | None = None


# (flag, kind, field or prefix of fields) in stored order; persistent, never reorder.
OPTIONAL: Final = (
    (FLAG_KEYS, "var", "key"),
    (FLAG_ORDERING_KEYS, "var", "ordering_key"),
    (FLAG_PROPERTIES, "var", "property"),
    (FLAG_EVENT_TIMES, "i64", "event_times"),
    (FLAG_SEQUENCE_IDS, "i64", "sequence_ids"),
    (FLAG_NULL_VALUES, "bits", "null_values"),
    (FLAG_DELIVER_AT, "i64", "deliver_at"),
    (FLAG_CHUNKS, "var", "chunk"),
    (FLAG_TRANSACTION, "once", "transaction"),
    (FLAG_KEY_ABSENT, "bits", "key_absent"),
    (FLAG_ORDERING_KEY_ABSENT, "bits", "ordering_key_absent"),
    (FLAG_KEY_BYTES, "bits", "key_bytes"),
    (FLAG_KEY_NULL, "bits", "key_null"),
    (FLAG_ORDERING_KEY_BYTES, "bits", "ordering_key_bytes"),
    (FLAG_FIELDS, "map", "fields"),
)
_KEYS: Final = (FLAG_KEYS, FLAG_KEY_ABSENT, FLAG_KEY_BYTES)
_ORDERING_KEYS: Final = (FLAG_ORDERING_KEYS, FLAG_ORDERING_KEY_ABSENT, FLAG_ORDERING_KEY_BYTES)
_PACKED: Final = {bytes}


def offsets_of(values: list[bytes] | list[str]) -> bytes:
    """`int32 offsets[n+1]` of `values`, not padded. About 50 ns per value.

    Raises:
        ValueError: the values are 2 GiB or more together.
    """
    try:
        return struct.pack(f"<{len(values) + 1}i", *accumulate(map(len, values), initial=0))
    except struct.error as e:
        raise ValueError("a column holds less than 2 GiB") from e


def encode_var(values: list[bytes]) -> bytes:
    """One variable column.

    Example:
        >>> encode_var([b"ab"]).hex(" ", 4)
        '00000000 02000000 61620000 00000000'
    """
    offsets = offsets_of(values)
    data = b"".join(values)
    return b"".join((offsets, PADDING[-len(offsets) & 7], data, PADDING[-len(data) & 7]))


def encode_texts(texts: list[str]) -> bytes:
    r"""One variable column of UTF-8.

    Example:
        >>> encode_texts(["a", "\u00e9"]) == encode_var([b"a", "\u00e9".encode()])
        True
    """
    # All is ASCII as a rule: then each text is as long as its bytes, and one call encodes them all.
    joined = "".join(texts)
    if not joined.isascii():
        return encode_var(list(map(str.encode, texts)))
    offsets, data = offsets_of(texts), joined.encode()
    return b"".join((offsets, PADDING[-len(offsets) & 7], data, PADDING[-len(data) & 7]))


def encode_fixed(values: list[int]) -> bytes:
    """One column of signed 64-bit integers."""
    return struct.pack(f"<{len(values)}q", *values)


def encode_bitmap(bits: list[bool]) -> bytes:
    """One bit per message, padded to 8 bytes.

    Example:
        >>> encode_bitmap([True, False, True]).hex()
        '0500000000000000'
    """
    out = bytearray((len(bits) + 63) // 64 * 8)
    for i, bit in enumerate(bits):
        if bit:
            out[i >> 3] |= 1 << (i & 7)
    return bytes(out)


def locate(flags: int, count: int, buf: Buffer, pos: int, end: int) -> ColumnSlices:
    """Find every column of `count` messages in the uncompressed columns at `buf[pos:end]`."""
    offsets, data, pos = _locate_var(count, buf, pos, end)
    # `OPTIONAL` is in stored order, so one pass finds each column behind the one before. Every end is
    # compared with ``end`` before the next begins: flags that lie cannot lead out of the body.
    slices: dict[str, Slice] = {}
    for flag, kind, name in OPTIONAL:
        if not flags & flag:
            continue
        if kind == "var" or kind == "map":
            items = count if kind == "var" else 1
            slices[name + "_offsets"], slices[name + "_data"], pos = _locate_var(items, buf, pos, end)
        else:
            size = count * 8 if kind == "i64" else 16 if kind == "once" else (count + 7) // 8
            if pos + size > end:
                raise CorruptionError(reason=f"column {name} of {count} messages does not fit")
            slices[name] = (pos, size)
            pos += size + (-size & 7)
    # All bytes have to be used. Columns that are too short mean that flags or count are not those of
    # this body.
    if pos != end:
        raise CorruptionError(reason=f"columns end at {pos}, not at {end}")
    return ColumnSlices(count, offsets, data, **slices)


def _locate_var(count: int, buf: Buffer, pos: int, end: int) -> tuple[Slice, Slice, int]:
    size = 4 * count + 4
    # The sizes are compared with the buffer before the first offset is read.
    data = pos + size + (-size & 7)
    if count < 1 or data > end or end > len(buf):
        raise CorruptionError(reason=f"offsets of {count} messages do not fit")
    (first,) = _I32.unpack_from(buf, pos)
    (total,) = _I32.unpack_from(buf, pos + size - 4)
    if first != 0 or total < 0 or data + total > end:
        raise CorruptionError(reason=f"offsets run from {first} to {total} in {end - data} bytes")
    return (pos, size), (data, total), data + total + (-total & 7)


def column_slices(header: FrameHeader, body: Buffer) -> ColumnSlices:
    """Where each column lies in the body (frame bytes [48, length-8)) of an uncompressed entry.

    For zero-copy readers. The body must have been verified: the offsets inside a column are not looked at.

    Raises:
        CorruptionError: the columns do not fit.
        ValueError: the entry is compressed; decode it instead.
    """
    if header.codec:
        raise ValueError("the columns of a compressed entry are not laid out in its body")
    return locate(header.flags, header.message_count, body, header.metadata_length, len(body))


def read_offsets(buf: Buffer, part: Slice) -> list[int]:
    """An offsets array as a list. About 15 ns per value."""
    return memoryview(buf)[part[0] : part[0] + part[1]].cast("i").tolist()


def read_fixed(buf: Buffer, part: Slice) -> list[int]:
    """A column of 64-bit integers as a list."""
    return memoryview(buf)[part[0] : part[0] + part[1]].cast("q").tolist()


def read_texts(buf: Buffer, offsets: Slice, data: Slice) -> list[str]:
    """A variable column of UTF-8 as a list of str.

    Raises:
        CorruptionError: not UTF-8.
    """
    ends = read_offsets(buf, offsets)
    content = bytes(buf[data[0] : data[0] + data[1]])
    try:
        # A slice of a text that is decoded once costs less than decoding each item. In other texts a
        # byte offset is no offset of a character.
        text = content.decode()
        if len(text) == len(content):  # ASCII: byte offsets are text offsets, one decode serves all
            return [text[a:b] for a, b in pairwise(ends)]
        return [content[a:b].decode() for a, b in pairwise(ends)]
    except UnicodeDecodeError as e:
        raise CorruptionError(reason=f"a key is not UTF-8: {e.reason}") from e


def read_bit(buf: Buffer, part: Slice, i: int) -> bool:
    """Bit `i` of a bitmap column."""
    return bool(buf[part[0] + (i >> 3)] >> (i & 7) & 1)


class LazyColumns:
    """The columns of an entry that has more than payloads; located and decoded on first use, then kept.

    Kept, because every message of a batch asks for its own key: decoding anew each time would make a batch
    cost the square of its size.
    """

    __slots__ = ("_decoded", "base", "buf", "count", "flags", "slices")

    def __init__(self, buf: bytes, base: int, flags: int, count: int) -> None:
        self.buf = buf
        self.base = base
        self.flags = flags
        self.count = count
        self.slices: ColumnSlices | None = None
        self._decoded: dict[Slice, Any] = {}

    def located(self) -> ColumnSlices:
        slices = self.slices
        if slices is None:
            slices = self.slices = locate(self.flags, self.count, self.buf, self.base, len(self.buf))
        return slices

    def fixed(self, at: Slice | None) -> list[int] | None:
        if at is None:
            return None
        # The slice is the key: no two columns begin at the same place, because even an empty one has
        # offsets or padding.
        numbers: list[int] | None = self._decoded.get(at)
        if numbers is None:
            numbers = self._decoded[at] = read_fixed(self.buf, at)
        return numbers

    def texts(
        self, offsets: Slice | None, data: Slice | None, absent: Slice | None
    ) -> list[str | None] | None:
        if offsets is None or data is None:
            return None
        texts: list[str | None] | None = self._decoded.get(offsets)
        if texts is None:
            texts = list(read_texts(self.buf, offsets, data))
            if absent is not None:
                for i in range(self.count):
                    if read_bit(self.buf, absent, i):
                        texts[i] = None
            self._decoded[offsets] = texts
        return texts

    def item(self, offsets: Slice | None, data: Slice | None, i: int) -> bytes:
        if offsets is None or data is None:
            return b""
        if not 0 <= i < self.count:
            raise IndexError(f"message {i} of {self.count}")
        # The offsets between the first and the last are covered by the body checksum only, so a
        # writer may have stored any.
        start, end = _TWO.unpack_from(self.buf, offsets[0] + 4 * i)
        if not 0 <= start <= end <= data[1]:
            raise CorruptionError(reason=f"item {i} of a column runs from {start} to {end} of {data[1]}")
        return self.buf[data[0] + start : data[0] + end]

    def one(self, offsets: Slice | None, data: Slice | None) -> bytes:
        """The only item of a column that an entry has once; `locate` has compared its ends."""
        return b"" if offsets is None or data is None else self.buf[data[0] : data[0] + data[1]]


class EntryContent:
    """The messages of one entry before encoding. Lists are as long as `values`, or None for "none has any".

    Args:
        values: payloads.
        first_sequence_id: sequence id of the first message.
        batched: whether messages get batch indexes; False only for a single message.
        keys: partition keys, text or bytes; None for a message without one.
        ordering_keys: ordering keys, text or bytes; None for a message without one.
        properties: str to str maps, packed or not; None or empty for none.
        event_times: ms since the epoch; 0 for none.
        deliver_at: ms since the epoch; 0 for at once.
        sequence_ids: of all messages, when they are not consecutive; then `first_sequence_id` is not used.
        null_values: True for a null value (its payload is empty).
        schema_version: of all messages; -1 for none, or the producer's.
        chunks: fields of a chunk, one map per message.
        transaction: (most, least significant half) of the transaction id of the entry.
        null_keys: True for a key that is null, which is not the same as none; its message has no key.
        fields: what the entry as a whole has beside its messages.
    """

    __slots__ = (
        "batched",
        "chunks",
        "deliver_at",
        "event_times",
        "fields",
        "first_sequence_id",
        "keys",
        "null_keys",
        "null_values",
        "ordering_keys",
        "properties",
        "schema_version",
        "sequence_ids",
        "transaction",
        "values",
    )

    def __init__(
        self,
        values: list[bytes],
        first_sequence_id: int = 0,
        batched: bool = True,
        *,
        keys: Sequence[str | bytes | None] | None = None,
        ordering_keys: Sequence[str | bytes | None] | None = None,
        properties: Sequence[dict[str, str] | bytes | None] | None = None,
        event_times: list[int] | None = None,
        sequence_ids: list[int] | None = None,
        deliver_at: list[int] | None = None,
        null_values: list[bool] | None = None,
        schema_version: int = -1,
        chunks: list[dict[str, Any] | None] | None = None,
        transaction: tuple[int, int] | None = None,
        null_keys: list[bool] | None = None,
        fields: EntryFields | None = None,
    ) -> None:
        # Plain stores and no checks: `optional_columns` compares the lengths when the entry is
        # encoded, once.
        self.values = values
        self.first_sequence_id = first_sequence_id
        self.batched = batched
        self.keys = keys
        self.ordering_keys = ordering_keys
        self.properties = properties
        self.event_times = event_times
        self.sequence_ids = sequence_ids
        self.deliver_at = deliver_at
        self.null_values = null_values
        self.schema_version = schema_version
        self.chunks = chunks
        self.transaction = transaction
        self.null_keys = null_keys
        self.fields = fields


_FIELD_PUBLISH_TIME: Final = "publish_time"
_FIELD_REPLICATED_FROM: Final = "replicated_from"
_FIELD_REPLICATE_TO: Final = "replicate_to"
_FIELD_DEDUPLICATION_ID: Final = "deduplication_id"


class EntryFields(NamedTuple):
    """What an entry as a whole has beside its messages. Each is None if the writer did not say it.

    Attributes:
        publish_time: of the client that published it first, ms since the epoch. The store has its own time in
            the frame, by which entries are ordered, found, kept and removed.
        replicated_from: the cluster that it came from.
        replicate_to: the clusters that it may go to; ``["__local__"]`` for none.
        deduplication_id: what deduplication compares instead of the highest sequence id of its messages.
    """

    publish_time: int | None = None
    replicated_from: str | None = None
    replicate_to: tuple[str, ...] | None = None
    deduplication_id: int | None = None

    def packed(self) -> dict[str, Any]:
        """The map that is stored.

        Example:
            >>> EntryFields(replicated_from="east").packed()
            {'replicated_from': 'east'}
        """
        fields = {name: value for name, value in self._asdict().items() if value is not None}
        if self.replicate_to is not None:
            fields[_FIELD_REPLICATE_TO] = list(self.replicate_to)
        return fields


NO_FIELDS: Final = EntryFields()


def read_fields(fields: dict[str, Any]) -> EntryFields:
    """The fields that a stored map has. Names that this release does not know are left alone.

    Raises:
        CorruptionError: one has another type.

    Example:
        >>> read_fields({"publish_time": 5, "replicate_to": ["west"]})
        EntryFields(publish_time=5, replicated_from=None, replicate_to=('west',), deduplication_id=None)
    """
    time, source, targets, number = (
        fields.get(name)
        for name in (
            _FIELD_PUBLISH_TIME,
            _FIELD_REPLICATED_FROM,
            _FIELD_REPLICATE_TO,
            _FIELD_DEDUPLICATION_ID,
        )
    )
    # `type` and not `isinstance`: a bool is an int for Python and is no number here.
    if not (
        all(
            value is None or (type(value) is int and -(1 << 63) <= value < 1 << 63)
            for value in (time, number)
        )
        and (source is None or type(source) is str)
        and (targets is None or (type(targets) is list and all(type(name) is str for name in targets)))
    ):
        raise CorruptionError(reason="a field of an entry has another type than it should")
    return EntryFields(time, source, None if targets is None else tuple(targets), number)


def optional_columns(content: EntryContent, count: int) -> tuple[int, list[bytes]]:
    """Flags and encoded columns, in the order of the flags."""
    # A column is stored only if a message has a value for it. The order is that of `OPTIONAL` in
    # columns.py, which is the order in the file; the bitmaps of absent keys come last there, so they
    # are collected beside.
    flags = 0
    columns: list[bytes] = []
    absent: list[bytes] = []
    revised: list[bytes] = []
    for keys, (flag, absent_flag, bytes_flag) in (
        (content.keys, _KEYS),
        (content.ordering_keys, _ORDERING_KEYS),
    ):
        if keys is None:
            continue
        # The columns carry no lengths of their own: a list that is too short would shift every column
        # behind it.
        _same_length(keys, count)
        missing = keys.count(None)
        if missing == count:
            continue
        flags |= flag
        if missing:
            flags |= absent_flag
            absent.append(encode_bitmap([key is None for key in keys]))
            keys = ["" if key is None else key for key in keys]
        try:
            columns.append(encode_texts(keys))  # type: ignore[arg-type]
        except TypeError:  # not all are text
            texts, bits = _texts_of(keys, always=bytes_flag == FLAG_KEY_BYTES)
            columns.append(encode_texts(texts))
            if any(bits):
                flags |= bytes_flag | FLAG_REVISED
                revised.append(encode_bitmap(bits))
    if content.properties is not None and any(content.properties):
        _same_length(content.properties, count)
        flags |= FLAG_PROPERTIES
        columns.append(encode_var(_packed(content.properties)))
    if content.event_times is not None and any(content.event_times):
        _same_length(content.event_times, count)
        flags |= FLAG_EVENT_TIMES
        columns.append(encode_fixed(content.event_times))
    # Of ids that follow each other the metadata has the first one.
    ids = content.sequence_ids
    if ids is not None:
        _same_length(ids, count)
        if ids != list(range(ids[0], ids[0] + count)):
            flags |= FLAG_SEQUENCE_IDS
            columns.append(encode_fixed(ids))
    if content.null_values is not None and any(content.null_values):
        _same_length(content.null_values, count)
        flags |= FLAG_NULL_VALUES
        columns.append(encode_bitmap(content.null_values))
    if content.deliver_at is not None and any(content.deliver_at):
        _same_length(content.deliver_at, count)
        # Two flags for one column here and below: one says that the column is there, the other is
        # copied into the index slot (bits 16 and up), where dispatch sees it without reading the
        # frame.
        flags |= FLAG_DELIVER_AT | FLAG_DELAYED
        columns.append(encode_fixed(content.deliver_at))
    if content.chunks is not None and any(content.chunks):
        _same_length(content.chunks, count)
        flags |= FLAG_CHUNKS | FLAG_CHUNK
        columns.append(encode_var([pack_map(fields) if fields else b"" for fields in content.chunks]))
    if content.transaction is not None:
        flags |= FLAG_TRANSACTION | FLAG_TXN
        columns.append(struct.pack("<QQ", *content.transaction))
    if content.null_keys is None and content.fields is None:
        return flags, columns + absent + revised
    return _with_revised(content, count, flags, columns + absent, revised)


def _with_revised(
    content: EntryContent, count: int, flags: int, columns: list[bytes], revised: list[bytes]
) -> tuple[int, list[bytes]]:
    """`optional_columns` of an entry that has null keys, or fields of its own."""
    # The bitmaps of keys that are bytes stand around that of null keys.
    if content.null_keys is not None and any(content.null_keys):
        _same_length(content.null_keys, count)
        for key, is_null in zip(content.keys or [None] * count, content.null_keys, strict=True):
            if is_null and key is not None:
                raise ValueError(f"the key {key!r} cannot be null, too")
        at = 1 if flags & FLAG_KEY_BYTES else 0
        flags |= FLAG_KEY_NULL | FLAG_REVISED
        revised.insert(at, encode_bitmap(content.null_keys))
    if content.fields is not None and content.fields != NO_FIELDS:
        packed = content.fields.packed()
        try:
            read_fields(packed)  # so that nothing is stored that cannot be read
        except CorruptionError as e:
            raise ValueError(f"{content.fields}: {e.reason}") from None
        flags |= FLAG_FIELDS | FLAG_REVISED
        revised.append(encode_var([pack_map(packed)]))
    return flags, columns + revised


def _texts_of(keys: Sequence[str | bytes | None], *, always: bool) -> tuple[list[str], list[bool]]:
    """Keys as they are stored, and which of them are Base64 of bytes.

    Args:
        always: whether bytes are Base64 also where they are UTF-8; else such are stored as that text, since
            the field is one of bytes and has no text of its own.
    """
    texts: list[str] = []
    bits: list[bool] = []
    # Three cases: text, bytes that are shown as Base64, and bytes of an ordering key that are text.
    for key in keys:
        text, is_base64 = key, False
        if isinstance(key, bytes):
            try:
                text, is_base64 = ("", True) if always else (key.decode(), False)
            except UnicodeDecodeError:
                is_base64 = True
            if is_base64:
                text = text_of_key(key)
        if not isinstance(text, str):
            raise TypeError(f"a key is {type(key).__name__}, not str or bytes")
        texts.append(text)
        bits.append(is_base64)
    return texts, bits


def text_of_key(key: bytes) -> str:
    """What is stored of a key of bytes: Base64, as in Pulsar."""
    from binascii import b2a_base64  # on first use: most processes have no such keys

    return b2a_base64(key, newline=False).decode()


def key_of_text(text: str) -> bytes:
    """The bytes of a key that is stored as Base64.

    Raises:
        CorruptionError: it is no Base64, or not the one that was made of bytes.

    Example:
        >>> key_of_text("aGk=")
        b'hi'
    """
    from binascii import a2b_base64

    try:
        key = a2b_base64(text, strict_mode=True)
    except ValueError as e:  # also for a letter that is not ASCII
        raise CorruptionError(reason=f"a key of bytes is no Base64: {e}") from e
    if text_of_key(key) != text:
        raise CorruptionError(reason="a key of bytes is not in the form of Base64 that was stored")
    return key


def _packed(properties: Sequence[dict[str, str] | bytes | None]) -> list[bytes]:
    if set(map(type, properties)) == _PACKED:
        return properties  # type: ignore[return-value] # the usual case, without a step per message
    return [
        fields if fields.__class__ is bytes else pack_map(fields) if fields else b""  # type: ignore[arg-type]
        for fields in properties
    ]


def _same_length(values: Sequence[Any], count: int) -> None:
    if len(values) != count:
        raise ValueError(f"{len(values)} values in a column of {count} messages")


STAGED_HEADER: Final = struct.Struct(
    "<"
    "4s"  # 0  magic
    "H"  # 4  version
    "H"  # 6  reserved
)
STAGED_RECORD: Final = struct.Struct(
    "<"
    "I"  # 0  crc: crc32 of the columns, seeded with the crc32 of bytes [4,32)
    "I"  # 4  log: its number in the task's list
    "I"  # 8  count: messages
    "I"  # 12 flags: as in the frame header
    "I"  # 16 key_hash: of the first message
    "I"  # 20 schema_version: of the messages, plus 1; 0 for none
    "Q"  # 24 size: bytes of the columns, a multiple of 8
)
MAGIC: Final = b"EPSR"
HEADER: Final = STAGED_HEADER.pack(MAGIC, FORMAT_VERSION, 0)
_GATHERED: Final = 1 << 20
_CRC: Final = struct.Struct("<I")


class StagedRecord(NamedTuple):
    """One entry of a staged file.

    Attributes:
        log: the number of the log that it goes to.
        count: messages.
        flags: which columns it has, as in a frame header.
        key_hash: of the key of its first message.
        columns: the columns as they are stored, uncompressed.
        schema_version: of the messages; -1 for none.
    """

    log: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not needed here
    flags: int
    key_hash: int
    columns: Any
    schema_version: int = -1


def record_head(
    log: int, count: int, flags: int, key_hash: int, columns: list[Any], schema_version: int = -1
) -> bytes:
    """What precedes the columns of an entry in a staged file."""
    size = sum(map(len, columns))
    rest = STAGED_RECORD.pack(0, log, count, flags, key_hash, schema_version + 1, size)[4:]
    crc = crc32(rest)
    for part in columns:
        crc = crc32(part, crc)
    return _CRC.pack(crc) + rest


def staged_chunks(records: Iterable[list[Any]]) -> Iterator[list[Any]]:
    """What is written to a file with these records, each a head and columns: a MiB or so at a time."""
    pieces: list[Any] = [HEADER]
    size = 0
    for record in records:
        pieces += record
        size += sum(map(len, record))
        if size >= _GATHERED:
            yield pieces
            pieces, size = [], 0
    if size:
        yield pieces


def staged_records(data: memoryview, *, verifies: bool) -> Iterator[StagedRecord]:
    """The entries of a staged file.

    Args:
        data: the whole file.
        verifies: whether checksums are compared, for a file that an earlier process wrote.

    Raises:
        CorruptionError: the file is damaged or cut short.
    """
    if bytes(data[: len(HEADER)]) != HEADER:
        raise CorruptionError(reason="these are no staged rows of this format version", offset=0)
    at, end = len(HEADER), len(data)
    while at < end:
        if end - at < STAGED_RECORD.size:
            raise CorruptionError(reason="the staged rows are cut short", offset=at)
        crc, log, count, flags, key_hash, schema, size = STAGED_RECORD.unpack_from(data, at)
        begin = at + STAGED_RECORD.size
        if size > end - begin or not count:
            raise CorruptionError(reason="the staged rows are cut short", offset=at)
        columns = data[begin : begin + size]
        if verifies and crc != crc32(columns, crc32(data[at + _CRC.size : begin])):
            raise CorruptionError(reason="the staged rows are damaged", offset=at)
        yield StagedRecord(log, count, flags, key_hash, columns, schema - 1)
        at = begin + size
