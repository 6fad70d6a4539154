"""Decoded entries (docs/format/frame.md)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.format.columns import (
    ColumnSlices,
    Slice,
    locate,
    read_bit,
    read_fixed,
    read_texts,
)
from embeddedpulsar.format.packed_map import unpack_map, unpack_text_map

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
        return None if lazy is None or at is None else struct.unpack_from("<QQ", lazy.buf, at[0])


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
        start, end = TWO.unpack_from(self.buf, offsets[0] + 4 * i)
        if not 0 <= start <= end <= data[1]:
            raise CorruptionError(reason=f"item {i} of a column runs from {start} to {end} of {data[1]}")
        return self.buf[data[0] + start : data[0] + end]
