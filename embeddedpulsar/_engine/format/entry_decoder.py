"""Decoding entries: one, or many small ones in one go, as unbatched producers store them. Hot.

Decoded entries (docs/format/frame.md).

Encrypted entries as they are read: what of them can be asked for without a key (docs/format/frame.md).

The chunk column: what a part of a message over ``maxMessageSize`` says of it. Every part is an entry. All but
the last hold no message (their frame says 0) and bytes of the payload; the last one holds the message, the
rest of the payload, and where the others are.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from zlib import crc32

from embeddedpulsar._engine.format.columns import (
    NO_FIELDS,
    EntryFields,
    LazyColumns,
    Slice,
    key_of_text,
    read_bit,
    read_fields,
    read_offsets,
)
from embeddedpulsar._engine.format.compression import CODECS, decompress
from embeddedpulsar._engine.format.document import unpack_map, unpack_text_map
from embeddedpulsar._engine.format.frame import (
    CODEC_ENCRYPTED,
    CODEC_PULSAR,
    CODEC_SNAPPY,
    CODEC_SNAPPY_RAW,
    COLUMN_FLAGS,
    FLAG_BATCHED,
    FLAG_CHUNK,
    FLAG_FIELDS,
    FLAG_REVISED,
    FLAG_TRANSACTION,
    FLAG_TXN,
    HEADER,
    HEADER_SIZE,
    KIND_ENTRY,
    MAGIC,
    METADATA_SIZE,
    MIN_FRAME_SIZE,
    TRAILER_SIZE,
    FrameHeader,
)
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Any, Final

    from embeddedpulsar.encryption import EncryptedKey, EncryptionFacts

METADATA: Final = struct.Struct(
    "<"
    "q"  # 0  first_sequence_id
    "I"  # 8  columns_size: bytes of all columns, uncompressed, padding included
    "I"  # 12 key_hash: 31-bit hash of the sticky key of message 0, or 0
    "i"  # 16 schema_version, -1 for none
    "I"  # 20 producer_epoch
    "H"  # 24 name_length; the UTF-8 name follows the struct, padded with zeros to 8
    "H"  # 26 reserved, 0
    "I"  # 28 reserved, 0
)
TWO: Final = struct.Struct("<ii")
TRANSACTION: Final = struct.Struct("<QQ")  # most, least significant half
_BEHIND_TRANSACTION: Final = FLAG_TRANSACTION * 62  # the five bitmaps of `OPTIONAL` behind it
_NOT_LAST: Final = _BEHIND_TRANSACTION | FLAG_FIELDS
_VERSION: Final = struct.Struct("<i")


class _Seen:
    """Whether this process ever decoded an encrypted entry: until then no caller has to look for them."""

    __slots__ = ("encrypted",)

    def __init__(self) -> None:
        self.encrypted = False


SEEN: Final = _Seen()


class EntryView:
    """One entry, decoded. Owns its bytes, so it outlives maps and trims; not safe to mutate from two threads.

    Made by `decode` and `decode_singles`. Message i is `payload[offsets[i]:offsets[i + 1]]`; what else may
    stand in `payload` has no meaning. Other columns are decoded when
    asked for; a column of a hostile writer may then raise `CorruptionError`.

    `encryption` is set in entries that were decrypted, and in no others. The last four slots belong to the
    consumer that holds the view: `redelivery_count`, `acked` (one byte per
    message, or None while none is), `number` (of the entry among those its consumer was assigned), `skip`
    (batch indexes that were acknowledged before the view was made, as a bit set, or None).
    """

    __slots__ = (
        "_lazy",
        "_metadata",
        "acked",
        "batched",
        "codec",
        "count",
        "encryption",
        "entry_id",
        "flags",
        "ledger_id",
        "number",
        "offsets",
        "payload",
        "publish_time",
        "redelivery_count",
        "skip",
    )

    ledger_id: int
    entry_id: int
    publish_time: int
    count: int
    flags: int
    codec: int
    batched: bool
    payload: bytes
    offsets: list[int]
    redelivery_count: int
    acked: bytearray | None
    number: int
    skip: int | bytearray | None
    encryption: Any
    _metadata: bytes
    _lazy: LazyColumns | int | None  # an int is where the columns begin in `_metadata`

    def _columns(self) -> LazyColumns | None:
        # An int says where the columns begin: the object is made for the first column that is asked
        # for, and most entries are never asked for one.
        lazy = self._lazy
        if lazy.__class__ is int:
            lazy = self._lazy = LazyColumns(self._metadata, lazy, self.flags, self.count)
        return lazy  # type: ignore[return-value]  # the class of an int was looked at

    def __repr__(self) -> str:
        return f"EntryView({self.ledger_id}:{self.entry_id}, {self.count} messages)"

    @property
    def first_sequence_id(self) -> int:
        return int(METADATA.unpack_from(self._metadata)[0])

    @property
    def key_hash(self) -> int:
        """31-bit hash of the sticky key of message 0; 0 if it has none."""
        return int(METADATA.unpack_from(self._metadata)[2])

    @property
    def schema_version(self) -> int:
        """Version of the schema of all messages; -1 for none."""
        version: int = _VERSION.unpack_from(self._metadata, 16)[0]  # for each value of some schemas
        return version

    @property
    def producer_epoch(self) -> int:
        return int(METADATA.unpack_from(self._metadata)[4])

    @property
    def producer_name(self) -> str:
        length = METADATA.unpack_from(self._metadata)[5]
        try:
            return self._metadata[METADATA.size : METADATA.size + length].decode()
        except UnicodeDecodeError as e:
            raise CorruptionError(reason="the producer name is not UTF-8") from e

    def value(self, i: int) -> bytes:
        return self.payload[self.offsets[i] : self.offsets[i + 1]]

    def values(self) -> list[bytes]:
        payload = self.payload
        offsets = self.offsets
        return [payload[a:b] for a, b in pairwise(offsets)]

    def keys(self) -> list[str | None] | None:
        """Partition keys, None for a message without; None if no message has one."""
        lazy = self._columns()
        if lazy is None:
            return None
        at = lazy.located()
        return lazy.texts(at.key_offsets, at.key_data, at.key_absent)

    def ordering_keys(self) -> list[str | None] | None:
        """Ordering keys, None for a message without; None if no message has one."""
        lazy = self._columns()
        if lazy is None:
            return None
        at = lazy.located()
        return lazy.texts(at.ordering_key_offsets, at.ordering_key_data, at.ordering_key_absent)

    def properties(self, i: int) -> dict[str, str]:
        """Properties of message `i`; empty if it has none."""
        lazy = self._columns()
        if lazy is None:
            return {}
        at = lazy.located()
        packed = lazy.item(at.property_offsets, at.property_data, i)
        return unpack_text_map(packed) if packed else {}

    def chunk(self, i: int) -> dict[str, Any]:
        """Chunk fields of message `i`; empty if it is no chunk."""
        lazy = self._columns()
        if lazy is None:
            return {}
        at = lazy.located()
        packed = lazy.item(at.chunk_offsets, at.chunk_data, i)
        return unpack_map(packed) if packed else {}

    def event_times(self) -> list[int] | None:
        """Event times in ms, 0 for none; None if no message has one."""
        lazy = self._columns()
        return None if lazy is None else lazy.fixed(lazy.located().event_times)

    def deliver_at(self) -> list[int] | None:
        """Delivery times in ms, 0 for at once; None if no message has one."""
        lazy = self._columns()
        return None if lazy is None else lazy.fixed(lazy.located().deliver_at)

    def sequence_ids(self) -> Sequence[int]:
        """Sequence ids of all messages."""
        lazy = self._columns()
        ids = None if lazy is None else lazy.fixed(lazy.located().sequence_ids)
        first = self.first_sequence_id
        return range(first, first + self.count) if ids is None else ids

    def null(self, i: int) -> bool:
        """Whether the value of message `i` is null."""
        lazy = self._columns()
        if lazy is None:
            return False
        at = lazy.located().null_values
        return at is not None and read_bit(lazy.buf, at, i)

    def transaction(self) -> tuple[int, int] | None:
        """Transaction id of the entry as (most, least significant half), or None."""
        lazy = self._columns()
        at = None if lazy is None else lazy.located().transaction
        return None if lazy is None or at is None else TRANSACTION.unpack_from(lazy.buf, at[0])

    def transaction_id(self) -> int:
        """The least half of the transaction id; 0 without one. 0.3 us, as nothing else is located for it."""
        lazy, flags = self._lazy, self.flags
        if lazy is None or not flags & FLAG_TRANSACTION or flags & FLAG_FIELDS:
            return (self.transaction() or (0, 0))[1]  # else it stands before bitmaps of known sizes
        buf = self._metadata if lazy.__class__ is int else lazy.buf  # type: ignore[union-attr]
        behind = (flags & _BEHIND_TRANSACTION).bit_count() * (self.count + 63 >> 6 << 3)
        return int.from_bytes(buf[len(buf) - behind - 8 : len(buf) - behind], "little")

    def is_key_bytes(self, i: int) -> bool:
        """Whether the partition key of message `i` was given as bytes: `keys` has their Base64."""
        return self._bit("key_bytes", i)

    def is_key_null(self, i: int) -> bool:
        """Whether the partition key of message `i` is null, which is neither none nor an empty one."""
        return self._bit("key_null", i)

    def is_ordering_key_bytes(self, i: int) -> bool:
        """Whether the ordering key of message `i` is no UTF-8: `ordering_keys` has its Base64."""
        return self._bit("ordering_key_bytes", i)

    def key(self, i: int) -> bytes | None:
        """The bytes of the partition key of message `i`; None if it has none, or a null one.

        Raises:
            CorruptionError: it was given as bytes, and what is stored is not their Base64.
        """
        return _key(self.keys(), i, self.is_key_bytes)

    def ordering_key(self, i: int) -> bytes | None:
        """The bytes of the ordering key of message `i`; None if it has none. Errors as of `key`."""
        return _key(self.ordering_keys(), i, self.is_ordering_key_bytes)

    def entry_fields(self) -> EntryFields:
        """What the entry as a whole has beside its messages.

        Raises:
            CorruptionError: the stored map is malformed, or a field has another type.
        """
        lazy = self._columns() if self.flags & FLAG_FIELDS else None
        if lazy is None:
            return NO_FIELDS
        at = lazy.located()
        return read_fields(unpack_map(lazy.one(at.fields_offsets, at.fields_data)))

    def highest_sequence_id(self) -> int:
        """What deduplication compares: the highest sequence id, unless the writer gave another number."""
        given = self.entry_fields().deduplication_id if self.flags & FLAG_FIELDS else None
        return max(self.sequence_ids()) if given is None else given

    def _bit(self, name: str, i: int) -> bool:
        lazy = self._columns() if self.flags & FLAG_REVISED else None
        at: Slice | None = None if lazy is None else getattr(lazy.located(), name)
        return lazy is not None and at is not None and read_bit(lazy.buf, at, i)


def _key(keys: list[str | None] | None, i: int, is_bytes: Callable[[int], bool]) -> bytes | None:
    text = None if keys is None else keys[i]
    if text is None:
        return None
    return key_of_text(text) if is_bytes(i) else text.encode()


ENVELOPE: Final = struct.Struct(
    "<"
    "I"  # 0  fields_length: bytes of the packed map behind this, without its padding
    "I"  # 4  cipher_length: bytes of the ciphertext, authentication tag included
    "B"  # 8  algorithm
    "B"  # 9  codec: how the columns were packed before
    "H"  # 10 reserved, 0
    "I"  # 12 reserved, 0
    "q"  # 16 last_sequence_id
    "q"  # 24 deliver_at: of the message that is due last, ms since 1970; 0 for none
    "12s"  # 32 iv
    "I"  # 44 reserved, 0
)
AES_256_GCM: Final = 1
PULSAR_AES_256_GCM: Final = 2
"""As Pulsar's clients encrypt: the payload of their entry, and nothing is authenticated with it."""
IV_SIZE: Final = 12
TAG_SIZE: Final = 16
FIELD_KEYS: Final = "keys"
FIELD_CHUNK: Final = "chunk"
FIELD_TRANSACTION: Final = "transaction"
FIELD_ENTRY: Final = "entry"
FIELD_PULSAR: Final = "pulsar"
_SHOWN_CODECS: Final = {CODEC_SNAPPY_RAW: CODEC_SNAPPY}
"""What applications call a codec that has two forms in files."""
AHEAD: Final = struct.Struct("<II")  # flags and number of messages, which begin the associated data


class SealedView(EntryView):
    """An entry that is encrypted. What dispatch needs can be asked for; payload is the ciphertext.

    Attributes:
        envelope: its fields, as unpacked.
        fields: the packed map: keys, and of some entries a chunk's fields, a transaction, or the fields
            of the entry.
        clear: all bytes before the ciphertext, which were authenticated with it.
    """

    __slots__ = ("clear", "envelope", "fields")

    envelope: tuple[Any, ...]
    fields: dict[str, Any]
    clear: bytes

    def sequence_ids(self) -> Sequence[int]:
        """The first and the highest, which is the last; others are guesses if the application chose them."""
        first, last = self.first_sequence_id, self.envelope[6]
        if last - first == self.count - 1:
            return range(first, last + 1)
        return [first] * (self.count - 1) + [last]

    def deliver_at(self) -> list[int] | None:
        """The latest delivery time of the entry, for each message."""
        return [self.envelope[7]] * self.count if self.envelope[7] else None

    def chunk(self, i: int) -> dict[str, Any]:
        """The fields of a chunk, which is an entry of its own."""
        fields = self.fields.get(FIELD_CHUNK)
        return dict(fields) if isinstance(fields, dict) else {}

    def transaction(self) -> tuple[int, int] | None:
        """Transaction id of the entry."""
        halves = self.fields.get(FIELD_TRANSACTION)
        return (halves[0], halves[1]) if isinstance(halves, list) and len(halves) == 2 else None

    def entry_fields(self) -> EntryFields:
        """What the entry as a whole has beside its messages."""
        fields = self.fields.get(FIELD_ENTRY)
        return read_fields(fields) if isinstance(fields, dict) else NO_FIELDS

    def keys_wrapped(self) -> tuple[EncryptedKey, ...]:
        """The data key, once for each holder of a private key.

        Raises:
            CorruptionError: they do not have the shape they should.
        """
        from embeddedpulsar.encryption import EncryptedKey  # on first use: most entries are not encrypted

        try:
            return tuple(EncryptedKey(str(n), bytes(v), dict(m)) for n, v, m in self.fields[FIELD_KEYS])
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptionError(reason=f"entry {self.entry_id}: malformed encryption keys") from error

    @property
    def is_pulsar(self) -> bool:
        """Whether a client of Pulsar encrypted it, and it is stored as that client sent it."""
        return bool(self.envelope[2] == PULSAR_AES_256_GCM)

    def pulsar_metadata(self) -> bytes:
        """Pulsar's metadata of such an entry.

        Raises:
            CorruptionError: it is missing.
        """
        metadata = self.fields.get(FIELD_PULSAR)
        if type(metadata) is not bytes:
            raise CorruptionError(reason=f"entry {self.entry_id}: no metadata of Pulsar")
        return metadata

    def associated_data(self, topic: str) -> bytes:
        """What was authenticated together with the ciphertext of this entry on that topic."""
        if self.is_pulsar:
            return b""
        return associated_data(self.flags, self.count, topic, self.clear)

    def facts(self, topic: str, is_failed: bool) -> EncryptionFacts:
        """The facts for the application; without keys if these are malformed and that is why it failed.

        Raises:
            CorruptionError: the keys are malformed, and nothing failed yet.
        """
        from embeddedpulsar.encryption import EncryptionFacts

        codec = self.envelope[3]
        keys: tuple[EncryptedKey, ...] = ()
        try:
            keys = self.keys_wrapped()
        except CorruptionError:
            if not is_failed:
                raise
        return EncryptionFacts(
            keys,
            self.envelope[8],
            _SHOWN_CODECS.get(codec, codec) if codec in CODECS else 0,
            METADATA.unpack_from(self._metadata)[1] if codec else 0,
            self.count if self.batched else -1,
            self.associated_data(topic),
            is_failed,
        )


def associated_data(flags: int, count: int, topic: str, clear: bytes) -> bytes:
    """The topic, and everything that is stored with an entry and known before it is appended."""
    return b"".join((AHEAD.pack(flags, count), topic.encode(), b"\0", clear))


def sealed_view(header: FrameHeader, body: bytes, ledger_id: int) -> SealedView:
    """The view of an encrypted entry whose `body_crc` was verified; called by `decode` alone.

    Raises:
        CorruptionError: the body does not have the shape its header claims.
    """
    # From now on consumers of this process look for encrypted entries. A store of a constant, so no
    # lock is needed.
    SEEN.encrypted = True
    start = header.metadata_length
    at = start + ENVELOPE.size
    if at > len(body):
        raise CorruptionError(reason=f"entry {header.entry_id}: no room for an envelope")
    envelope = ENVELOPE.unpack_from(body, start)
    fields_length, cipher_length, algorithm = envelope[:3]
    # The lengths are those of the envelope, and of any writer: both ends are compared with the body
    # before it is cut.
    begin = at + fields_length + (-fields_length & 7)
    end = begin + cipher_length
    # An algorithm that this release does not know looks like damage.
    if algorithm not in (AES_256_GCM, PULSAR_AES_256_GCM) or cipher_length < TAG_SIZE or end > len(body):
        raise CorruptionError(
            reason=f"entry {header.entry_id}: {cipher_length} bytes of ciphertext (algorithm {algorithm}) "
            f"in {len(body) - begin}"
        )
    view = SealedView()
    view.ledger_id = ledger_id
    view.entry_id = header.entry_id
    view.publish_time = header.publish_time
    view.count = header.message_count
    view.flags = header.flags
    view.codec = header.codec
    view.batched = header.flags & FLAG_BATCHED != 0
    view.payload = body[begin:end]
    view.offsets = [0, cipher_length]
    view.redelivery_count = 0
    view.acked = None
    view.number = 0
    view.skip = None
    view._metadata = body[:start]
    view._lazy = None
    view.envelope = envelope
    view.fields = unpack_map(body[at : at + fields_length])
    # Kept as stored, padding included: the tag authenticates these very bytes.
    view.clear = body[:begin]
    return view


_AREA: Final = struct.Struct("<II")
_COPY_BYTES: Final = 8 << 10
"""Bodies in a memoryview are copied whole below this size, and only their payload above."""
_AROUND: Final = HEADER_SIZE + TRAILER_SIZE


def decode(
    header: FrameHeader, body: bytes | memoryview, ledger_id: int, _new: Any = object.__new__
) -> EntryView:
    """Decode the body (frame bytes [48, length-8)) of a frame whose `body_crc` was verified.

    About 1 us, and 0.02 us per message. A memoryview (over a map) is copied from, never kept: better for
    payloads above some KiB, which are then copied once instead of twice.

    Raises:
        CorruptionError: the body does not have the shape its header claims.
    """
    _, _, _, _, _, kind, codec, flags, entry_id, publish_time, count, start, _ = header
    size = len(body)
    # No message at all is right for one case only: a part of a chunked message that is not the last.
    if kind != KIND_ENTRY or count < 1 or start < METADATA_SIZE or start > size:
        if kind == KIND_ENTRY and not count and flags & FLAG_CHUNK and METADATA_SIZE <= start <= size:
            return decode_part(header, body[:start], ledger_id)
        raise CorruptionError(reason=f"entry {entry_id}: kind {kind}, {count} messages, metadata {start}")
    # A body over a map is copied at once where it is small, or where more than the payload will be
    # asked for: what a view keeps must not depend on the map, which may be unmapped while the view
    # lives.
    if type(body) is not bytes and (size < _COPY_BYTES or codec or flags & COLUMN_FLAGS):
        body = bytes(body)
    metadata = body[:start]
    columns = body
    if codec:
        if codec == CODEC_ENCRYPTED:
            return sealed_view(header, bytes(body), ledger_id)
        columns = decompressed_columns(codec, metadata, body, start, flags, count)
        start = 0
        size = len(columns)
    # One message: its two offsets are unpacked without making a list of the array first.
    if count == 1:
        data = start + 8
        if data > size:
            raise CorruptionError(reason=f"entry {entry_id}: no room for a value")
        zero, total = TWO.unpack_from(columns, start)
        offsets = [0, total]
    else:
        width = 4 * count + 4
        data = start + width + (-width & 7)
        if data > size:
            raise CorruptionError(reason=f"entry {entry_id}: no room for {count} values")
        offsets = read_offsets(columns, (start, width))
        zero = offsets[0]
        total = offsets[count]
    end = data + total
    # First and last offset are checked here. Those between are trusted: the body checksum covers
    # them, and slicing with a wrong one gives wrong bytes of this payload and never bytes beyond it.
    if zero or total < 0 or end > size:
        raise CorruptionError(reason=f"entry {entry_id}: values run from {zero} to {total}")
    payload = columns[data:end]
    # Filled here rather than by __init__: an entry of one message is decoded a quarter faster.
    view: EntryView = _new(EntryView)
    view.ledger_id = ledger_id
    view.entry_id = entry_id
    view.publish_time = publish_time
    view.count = count
    view.flags = flags
    view.codec = codec
    view.batched = flags & FLAG_BATCHED != 0
    view.offsets = offsets
    view.redelivery_count = 0
    view.acked = None
    view.number = 0
    view.skip = None
    if type(payload) is bytes:
        view.payload = payload
        view._metadata = metadata  # type: ignore[assignment]  # bytes, as the payload is
    else:
        view.payload = bytes(payload)
        view._metadata = bytes(metadata)
    has_columns = flags & COLUMN_FLAGS
    view._lazy = LazyColumns(columns, start, flags, count) if has_columns else None  # type: ignore[arg-type]
    return view


def decode_part(header: FrameHeader, metadata: bytes | memoryview, ledger_id: int) -> EntryView:
    """The entry of a part of a chunked message that is not the last: no messages, and no payload."""
    view = EntryView()
    view.ledger_id = ledger_id
    view.entry_id = header.entry_id
    view.publish_time = header.publish_time
    view.count = 0
    view.flags = header.flags
    view.codec = 0
    view.batched = False
    view.offsets = [0]
    view.payload = b""
    view.redelivery_count = 0
    view.acked = None
    view.number = 0
    view.skip = None
    view._metadata = bytes(metadata)
    view._lazy = None
    return view


def decompressed_columns(
    codec: int, metadata: bytes | memoryview, body: bytes | memoryview, start: int, flags: int, count: int
) -> bytes:
    """All columns of a compressed entry, or of one in Pulsar's own format.

    Args:
        codec: of the frame, or of an envelope.
        metadata: of the entry.
        body: the metadata, and what is behind it.
        start: where the metadata ends in `body`.
        flags, count: of the frame.

    Raises:
        CorruptionError: the compressed area does not fit, or does not decompress to what the metadata says.
    """
    size = METADATA.unpack_from(metadata)[1]
    area = packed_area(body, start)
    if codec != CODEC_PULSAR:
        return decompress(codec, area, size)
    transaction, data = split_verbatim(area, flags)
    # On first use: few stores have such entries.
    from embeddedpulsar._engine.format.pulsar_batch import columns_of, split_entry

    columns = columns_of(*split_entry(data), transaction, flags, count)
    if len(columns) != size:
        raise CorruptionError(reason=f"an entry of Pulsar gave {len(columns)} bytes instead of {size}")
    return columns


def packed_area(body: bytes | memoryview, start: int) -> bytes | memoryview:
    """The bytes that a codec made, behind the metadata, whose end is `start`."""
    if start + _AREA.size > len(body):
        raise CorruptionError(reason="no room for compressed columns")
    # The sizes come before the compressed bytes, so nothing is allocated on the word of the codec.
    length, zero = _AREA.unpack_from(body, start)
    start += _AREA.size
    if zero or length > len(body) - start:
        raise CorruptionError(reason=f"compressed columns of {length} bytes in {len(body) - start}")
    return body[start : start + length]


def split_verbatim(area: bytes | memoryview, flags: int) -> tuple[tuple[int, int] | None, bytes]:
    """The transaction of an entry in Pulsar's format, which stands before it, and the entry."""
    data = bytes(area)
    if not flags & FLAG_TRANSACTION:
        return None, data
    if len(data) < TRANSACTION.size:
        raise CorruptionError(reason="no room for a transaction")
    return TRANSACTION.unpack_from(data), data[TRANSACTION.size :]


def decode_singles(
    out: list[EntryView],
    buf: bytes,
    at: int,
    max_entries: int,
    max_bytes: int,
    ledger_id: int,
    entry_id: int,
    crc: int,
    # Bound as defaults: local names.
    _unpack: Any = HEADER.unpack_from,
    _two: Any = TWO.unpack_from,
    _new: Any = object.__new__,
) -> tuple[int, int, int, int]:
    """Append entries of one message that is not compressed, up to the first frame that is anything else.

    What it takes is checked as `read_header` and `decode` check it, in half the time. It raises nothing: a
    frame that does not verify, or is not all in ``buf``, is left to them.

    Args:
        out: where the entries go. Each keeps one copy of the bytes of its body.
        buf: a copy of a stretch of a segment.
        at: where the first frame begins in it.
        max_entries: at most so many.
        max_bytes: once so many bytes of frames were taken, no more are.
        ledger_id: of the segment.
        entry_id: expected at ``at``.
        crc: of the frame before, which the first one must repeat.

    Returns:
        The place behind the last entry that was taken, the entry id expected there, the crc of that entry's
        frame, and how long the frame at the place claims to be; if its header is not all in ``buf``, the
        least length of a frame.
    """
    size = len(buf)
    # A frame needs its header in the buffer to be judged; ``max_bytes`` counts what was taken before
    # the last one.
    stop = min(size - MIN_FRAME_SIZE, at + max_bytes - 1)
    end_id = entry_id + max_entries
    length = MIN_FRAME_SIZE
    while at <= stop and entry_id < end_id:
        length, own_crc, before, body_crc, magic, kind, codec, flags, own_id, time, count, start, _ = _unpack(
            buf, at
        )
        # The body is cut before the checks, so that one copy serves checksum and view. A length that
        # is damaged cuts a wrong or empty body, and the checks below refuse it before it is used.
        data = start + 8
        body = buf[at + HEADER_SIZE : at + length - TRAILER_SIZE]
        if (
            count != 1
            or codec
            or flags & FLAG_CHUNK
            or kind != KIND_ENTRY
            or magic != MAGIC
            or before != crc
            or own_id != entry_id
            or length & 7
            or length > size - at
            or not METADATA_SIZE <= start <= length - _AROUND - 8
            or crc32(buf[at + 8 : at + HEADER_SIZE], length) != own_crc
            or crc32(body) != body_crc
        ):
            break
        # The value has to lie between its two offsets, behind them and before the trailer.
        zero, end = _two(body, start)
        end += data
        if zero or not data <= end <= length - _AROUND:
            break
        view: EntryView = _new(EntryView)
        view.ledger_id = ledger_id
        view.entry_id = entry_id
        view.publish_time = time
        view.count = 1
        view.flags = flags
        view.codec = 0
        view.batched = flags & FLAG_BATCHED != 0
        view.offsets = [data, end]
        view.redelivery_count = 0
        view.acked = None
        view.number = 0
        view.skip = None
        view.payload = view._metadata = body
        view._lazy = start if flags & COLUMN_FLAGS else None
        out.append(view)
        at += length
        entry_id += 1
        crc = own_crc
        length = MIN_FRAME_SIZE
    return at, entry_id, crc, length


def transaction_ids(views: Sequence[EntryView], _number: Any = int.from_bytes) -> list[int]:
    """`EntryView.transaction_id` of entries, 0.15 us each; -1 where the view does not have it: in a part."""
    ids = []
    for view in views:
        if not view.flags & FLAG_TXN:
            ids.append(0)
        elif view._lazy.__class__ is int and not view.flags & _NOT_LAST:
            ids.append(_number(view._metadata[-8:], "little"))
        else:
            ids.append(view.transaction_id() or -1)
    return ids


RUN: Final = struct.Struct(
    "<"
    "Q"  # 0  ledger_id
    "I"  # 8  first entry
    "I"  # 12 how many entries follow each other
)
LARGEST_MESSAGE: Final = 0x7E00_0000
"""Bytes of a chunked payload: what LZ4 takes, and what fits into an Arrow column. Just below 2 GiB."""

MOST_CHUNKS: Final = 1 << 20

RawPosition = tuple[int, int]
"""Ledger and entry id: a `Position` of the log as a bare tuple, where one is made for every message."""


class Chunk(NamedTuple):
    """One part of a chunked message.

    Attributes:
        uuid: of the message, ``<producer>-<sequence id>``.
        number: of this part, from 0.
        total: parts of the message.
        size: bytes of all parts together, as they are stored.
        earlier: the entries of the parts before, in order; only in the last part.
        codec: how the payload was packed before it was cut; only in the last part.
        length: bytes of the payload; only in the last part.
    """

    uuid: str
    number: int
    total: int
    size: int
    earlier: tuple[RawPosition, ...] = ()
    codec: int = 0
    length: int = 0

    @property
    def is_last(self) -> bool:
        """Whether this part holds the message."""
        return self.number == self.total - 1

    def fields(self) -> dict[str, Any]:
        """The map that is stored."""
        fields: dict[str, Any] = {
            "uuid": self.uuid,
            "chunk": self.number,
            "chunks": self.total,
            "size": self.size,
        }
        if self.is_last:
            fields |= {"earlier": pack_runs(self.earlier), "codec": self.codec, "length": self.length}
        return fields


def read_chunk(fields: dict[str, Any]) -> Chunk:
    """The part that a stored map describes.

    Raises:
        CorruptionError: something is missing, or does not fit together.

    Example:
        >>> read_chunk(Chunk("p-7", 1, 2, 30, ((5, 0),), 0, 30).fields()).earlier
        ((5, 0),)
    """
    uuid, numbers = fields.get("uuid"), [fields.get(name) for name in ("chunk", "chunks", "size")]
    # The map is msgpack of any writer, so the types are looked at before anything is counted with.
    # `type` and not `isinstance`, because a bool is an int for Python and is no number here.
    if type(uuid) is not str or not all(type(value) is int for value in numbers):
        raise CorruptionError(reason="a chunk without its fields")
    number, total, size = (int(value or 0) for value in numbers)
    # Bounds before `unpack_runs` makes a tuple of that many places: a damaged count allocates
    # nothing.
    if not 0 <= number < total <= MOST_CHUNKS or not 0 <= size <= LARGEST_MESSAGE:
        raise CorruptionError(reason=f"chunk {number} of {total}, {size} bytes")
    # Every part but the last: where all of them are is known only when the last one is stored.
    if number < total - 1:
        return Chunk(uuid, number, total, size)
    packed, codec, length = (fields.get(name) for name in ("earlier", "codec", "length"))
    if type(packed) is not bytes or type(codec) is not int or type(length) is not int:
        raise CorruptionError(reason="a last chunk without its fields")
    earlier = tuple(unpack_runs(packed, total - 1))
    # The last part. Without a codec the payload is what was stored, so the two sizes are one.
    if not 0 <= length <= LARGEST_MESSAGE or (not codec and length != size):
        raise CorruptionError(reason=f"a chunked message of {length} bytes in {size}")
    return Chunk(uuid, number, total, size, earlier, codec, length)


def pack_runs(entries: Sequence[RawPosition]) -> bytes:
    """Entries in order as runs; entries that follow each other take 16 bytes together.

    Example:
        >>> len(pack_runs([(5, 0), (5, 1), (5, 3), (6, 0)]))
        48
    """
    if not entries:
        return b""
    breaks = [0]
    breaks += [
        at
        for at, ((ledger, entry), following) in enumerate(pairwise(entries), 1)
        if following != (ledger, entry + 1)
    ]
    breaks.append(len(entries))
    return b"".join(RUN.pack(*entries[start], end - start) for start, end in pairwise(breaks))


def unpack_runs(packed: bytes, chunks: int) -> Iterator[RawPosition]:
    """What `pack_runs` packed, which must be ``chunks`` entries."""
    if len(packed) % RUN.size or sum(count for _, _, count in RUN.iter_unpack(packed)) != chunks:
        raise CorruptionError(reason=f"places of {chunks} chunks in {len(packed)} bytes")
    before = (-1, -1)
    for ledger, first, count in RUN.iter_unpack(packed):
        if (ledger, first) <= before:
            raise CorruptionError(reason="chunks that are not in order")
        yield from ((ledger, first + at) for at in range(count))
        before = (ledger, first + count - 1)


class WholeEntryView(EntryView):
    """The last part of a chunked message with the payload of all.

    Attributes:
        earlier: the entries of the parts before it, in order.
    """

    __slots__ = ("earlier",)

    earlier: tuple[tuple[int, int], ...]

    @property
    def first_chunk(self) -> tuple[int, int] | None:
        """The entry of the first part; None for the only one."""
        return self.earlier[0] if self.earlier else None


def whole_entry(last: EntryView, payload: bytes, earlier: tuple[tuple[int, int], ...]) -> WholeEntryView:
    """A chunked message, of its last part and all that belongs to it."""
    view = WholeEntryView()
    for name in EntryView.__slots__:
        if hasattr(last, name):  # not all entries have an encryption context
            setattr(view, name, getattr(last, name))
    view.payload = payload
    view.offsets = [0, len(payload)]
    view.earlier = earlier
    return view
