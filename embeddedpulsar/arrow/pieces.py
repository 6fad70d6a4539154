"""What a group of frames consists of: entries of many messages, and runs of entries of one message each.

Both give their columns as Arrow arrays over the map. An entry of many messages is laid out as Arrow wants it,
so nothing is copied. Entries of one message are gathered: the offsets array alternates between start and end
of each value, every second element of that array is a value, and one `take` copies those out in C.
"""

from __future__ import annotations

from array import array
from itertools import accumulate, chain, repeat
from typing import Any, Final

import pyarrow as pa

from embeddedpulsar._engine.format.chunk import Entry
from embeddedpulsar._engine.format.columns import OPTIONAL, ColumnSlices, Slice, locate
from embeddedpulsar._engine.format.entry_decoder import decompressed_columns
from embeddedpulsar._engine.format.frame import CODEC_ENCRYPTED, COLUMN_FLAGS, HEADER_SIZE, TRAILER_SIZE
from embeddedpulsar.arrow.mapped_segment import MappedSegment
from embeddedpulsar.arrow.segment_frames import FrameGroup
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.message_id import make

Header = tuple[Any, ...]

_BINARY, _INT64, _BOOL = pa.binary(), pa.int64(), pa.bool_()
_from_buffers = pa.Array.from_buffers
_CACHED_OFFSETS: Final = 64


class Batch:
    """One entry. Its columns are located when the first is asked for; those it does not have are None."""

    __slots__ = ("_buffer", "_content", "_end", "_flags", "_ints", "_slices", "_start", "rows")

    def __init__(self, segment: MappedSegment, at: int, header: Header) -> None:
        self.rows: int = header[10]
        self._flags: int = header[7]
        self._slices: ColumnSlices | None = None
        body = at + HEADER_SIZE
        start, end = body + header[11], at + header[0] - TRAILER_SIZE
        if header[6]:
            if header[6] == CODEC_ENCRYPTED:
                content = segment.decrypted(at, header)
            else:
                metadata = segment.view[body:start]
                content = decompressed_columns(header[6], metadata, segment.view[body:end], header[11])
            self._content: Any = content
            self._buffer = pa.py_buffer(content)
            self._ints = None
            self._start, self._end = 0, len(content)
        else:
            self._content, self._buffer, self._ints = segment.view, segment.buffer, segment.ints
            self._start, self._end = start, end

    def var(self, name: str) -> Any:
        """The variable column `name` ("value", "key", "ordering_key", "property") as a binary array."""
        ints = self._ints
        offsets: Slice | None
        data: Slice | None
        if ints is not None and not self._flags & COLUMN_FLAGS:
            # The commonest entry has payloads only: what locate() does for it, in a third of the time.
            start = self._start
            size = 4 * self.rows + 4
            first = start + size + (-size & 7)
            total = ints[(start + size >> 2) - 1] if first <= self._end else -1
            if name != "value":
                return None
            if total < 0 or first + total > self._end or ints[start >> 2]:
                raise _malformed(f"{self.rows} values do not fit their entry")
            offsets, data = (start, size), (first, total)
        else:
            located = self._located()
            offsets = getattr(located, f"{name}_offsets")
            data = getattr(located, f"{name}_data")
        if offsets is None or data is None:
            return None
        buffers = [None, self._buffer.slice(*offsets), self._buffer.slice(*data)]
        return _binary(self.rows, buffers)

    def fixed(self, name: str) -> Any:
        """The column `name` of 64-bit integers."""
        at: Slice | None = getattr(self._located(), name)
        return None if at is None else _from_buffers(_INT64, self.rows, [None, self._buffer.slice(*at)], 0)

    def bits(self, name: str) -> Any:
        """The bitmap column `name` as a boolean array."""
        at: Slice | None = getattr(self._located(), name)
        return None if at is None else _from_buffers(_BOOL, self.rows, [None, self._buffer.slice(*at)], 0)

    def _located(self) -> ColumnSlices:
        found = self._slices
        if found is None:
            found = locate(self._flags, self.rows, self._content, self._start, self._end)
            self._slices = found
        return found


class Whole:
    """A chunked message: the payload is a copy, everything else is the last part's."""

    __slots__ = ("_last", "_payload", "_place", "rows")

    def __init__(self, segment: MappedSegment, at: int, header: Header, payload: bytes) -> None:
        self.rows = 1
        self._payload = payload
        self._place = segment, at, header
        self._last: Batch | None = None  # unpacked only when something of it is asked for

    def var(self, name: str) -> Any:
        """As `Batch.var`."""
        if name != "value":
            return self._columns().var(name)
        ends = pa.py_buffer(array("i", [0, len(self._payload)]))
        return _binary(1, [None, ends, pa.py_buffer(self._payload)])

    def fixed(self, name: str) -> Any:
        """As `Batch.fixed`."""
        return self._columns().fixed(name)

    def bits(self, name: str) -> Any:
        """As `Batch.bits`."""
        return self._columns().bits(name)

    def _columns(self) -> Batch:
        if self._last is None:
            self._last = Batch(*self._place)
        return self._last


class Singles:
    """Entries of one message each, none compressed, all with the same columns."""

    def __init__(self, segment: MappedSegment, positions: list[int], headers: list[Header]) -> None:
        self.rows = len(positions)
        self._segment = segment
        self._flags: int = headers[0][7]
        at = [
            position + HEADER_SIZE + header[11] for position, header in zip(positions, headers, strict=True)
        ]
        self._columns: dict[str, list[int]] = {"value": at}
        self._located = not self._flags & COLUMN_FLAGS

    def var(self, name: str) -> Any:
        """As `Batch.var`, gathered."""
        at = self._find(name)
        if at is None:
            return None
        ints = self._segment.ints
        base = at[0] + 8
        starts = [x + 8 - base for x in at]
        offsets = array("i", bytes(8 * len(at)))
        offsets[0::2] = array("i", starts)
        try:
            ends = [start + ints[(x >> 2) + 1] for x, start in zip(at, starts, strict=True)]
            offsets[1::2] = array("i", ends)
        except OverflowError:
            raise _malformed("an item ends behind its segment") from None
        buffers = [None, pa.py_buffer(offsets), self._segment.buffer.slice(base)]
        mixed = _binary(2 * len(at) - 1, buffers)
        return mixed.take(pa.array(range(0, 2 * len(at), 2), pa.int32()))

    def fixed(self, name: str) -> Any:
        """As `Batch.fixed`, gathered."""
        at = self._find(name)
        longs = self._segment.longs
        return None if at is None else pa.array([longs[x >> 3] for x in at], _INT64)

    def bits(self, name: str) -> Any:
        """As `Batch.bits`, gathered."""
        at = self._find(name)
        view = self._segment.view
        return None if at is None else pa.array([view[x] & 1 == 1 for x in at], _BOOL)

    def _find(self, name: str) -> list[int] | None:
        """Where the column lies in each entry; None if they have none of that name."""
        if not self._located:
            self._locate()
        return self._columns.get(name)

    def _locate(self) -> None:
        at = self._behind(self._columns["value"])
        for flag, kind, name in OPTIONAL:
            if not self._flags & flag:
                continue
            self._columns[name] = at
            if kind == "var":
                at = self._behind(at)
            else:
                size = 16 if kind == "once" else 8
                at = [x + size for x in at]
        self._located = True

    def _behind(self, at: list[int]) -> list[int]:
        """The first byte behind a variable column of one item at each of `at`."""
        ints = self._segment.ints
        try:
            return [x + 8 + (ints[(x >> 2) + 1] + 7 & ~7) for x in at]
        except IndexError:
            raise _malformed("an item ends behind its segment") from None


class Mixed:
    """Entries of one message each that differ in their columns: `Singles` for each kind, and their order."""

    def __init__(self, parts: list[Singles], order: Any) -> None:
        self.parts = parts
        self.order = order


Piece = Batch | Whole | Singles | Mixed


def pieces_of(group: FrameGroup) -> list[Piece]:
    """The group cut into pieces, in order.

    Raises:
        CorruptionError: an entry whose columns do not fit.
    """
    headers, positions, segment = group.headers, group.positions, group.segment
    if group.chunked is not None and group.chunked.payload is not None:
        return [Whole(segment, positions[0], headers[0], group.chunked.payload)]
    if group.uniform:
        return [Singles(segment, positions, headers)]
    found: list[Piece] = []
    run: list[int] = []
    for i, header in enumerate(headers):
        if header[10] == 1 and not header[6]:
            run.append(i)
            continue
        if run:
            found.append(_singles(group, run))
            run = []
        found.append(Batch(segment, positions[i], header))
    if run:
        found.append(_singles(group, run))
    return found


def _singles(group: FrameGroup, run: list[int]) -> Piece:
    headers, positions = group.headers, group.positions
    kinds: dict[int, list[int]] = {}
    for i in run:
        kinds.setdefault(headers[i][7] & COLUMN_FLAGS, []).append(i)
    parts = [
        Singles(group.segment, [positions[i] for i in part], [headers[i] for i in part])
        for part in kinds.values()
    ]
    if len(parts) == 1:
        return parts[0]
    placed = [i for part in kinds.values() for i in part]
    order = [0] * len(run)
    for where, i in enumerate(placed):
        order[i - run[0]] = where
    return Mixed(parts, pa.array(order, pa.int32()))


def _binary(count: int, buffers: list[Any]) -> Any:
    # Checksums say that the bytes are those that were written, not that the writer was sane; Arrow would
    # follow a wild offset out of the map.
    try:
        values = _from_buffers(_BINARY, count, buffers, 0)
        values.validate(full=True)
    except pa.ArrowInvalid as error:
        raise _malformed(str(error)) from None
    return values


def _malformed(reason: str) -> CorruptionError:
    return CorruptionError(reason=f"malformed column: {reason}", remedy="find out what wrote this store")


def varint(value: int) -> bytes:
    """A non-negative number as protobuf writes it.

    Example:
        >>> varint(5).hex(), varint(300).hex()
        ('05', 'ac02')
    """
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class MessageIds:
    """Serializes the ids of the messages of one ledger, without a Python step per message.

    Within a batch only the batch index differs, so its ids are one `join` of the 1- and 2-byte index texts
    with what stands between them, and their offsets are an arithmetic progression per index length:

        08 <ledger> 10 <entry> [18 <partition>] 20 | <index> | 30 <size>

    Holds caches; one thread at a time. `partition` is -1 for none.
    """

    def __init__(self, ledger_id: int, partition: int) -> None:
        self._ledger_id = ledger_id
        self._partition = partition
        self._front = b"\x08" + varint(ledger_id) + b"\x10"
        self._back = b"" if partition < 0 else b"\x18" + varint(partition)
        self._indexes: list[bytes] = []
        self._offsets: dict[int, Any] = {}
        self._high: dict[int, bytes] = {}

    def batch(self, entry_id: int, count: int) -> Any:
        """Ids of messages 0 to count - 1 of a batch, as a binary array."""
        before = self._front + varint(entry_id) + self._back + b"\x20"
        after = b"\x30" + varint(count)
        indexes = self._indexes
        if len(indexes) < count:
            indexes.extend(map(varint, range(len(indexes), count)))
        data = b"".join((before, (after + before).join(indexes[:count]), after))
        offsets = self._batch_offsets(len(before) + len(after), count)
        return pa.Array.from_buffers(pa.binary(), count, [None, offsets, pa.py_buffer(data)], null_count=0)

    def singles(self, entry_ids: list[int], *, batched: bool) -> list[bytes]:
        """Ids of entries that hold one message each; `batched` for a batch of one."""
        front, back, high = self._front, self._back, self._high
        if batched:
            back += b"\x20\x00\x30\x01"
        for upper in {entry_id >> 7 for entry_id in entry_ids} - high.keys():
            high[upper] = varint(upper)
        return [
            front + bytes((e,)) + back
            if e < 0x80
            else b"%b%c%b%b" % (front, e & 0x7F | 0x80, high[e >> 7], back)
            for e in entry_ids
        ]

    def chunked(self, entry_id: int, earlier: tuple[Entry, ...]) -> bytes:
        """The id of a chunked message, which remembers its first part."""
        found = make(self._ledger_id, entry_id, -1, self._partition, 0)
        if earlier:
            found._first_chunk = make(*earlier[0], -1, self._partition, 0)
        return found.serialize()

    def _batch_offsets(self, fixed: int, count: int) -> Any:
        """Offsets of `count` ids that are `fixed` bytes long without their index."""
        have = self._offsets.get(fixed)
        if have is None or have.size < 4 * count + 4:
            if len(self._offsets) > _CACHED_OFFSETS:
                self._offsets.clear()
            lengths = chain.from_iterable(
                repeat(fixed + size, (1 << 7 * size) - (1 << 7 * (size - 1) if size > 1 else 0))
                for size in range(1, 6)
            )
            room = max(count, 1024)
            limited = (length for length, _ in zip(lengths, range(room), strict=False))
            have = pa.py_buffer(array("i", accumulate(limited, initial=0)))
            self._offsets[fixed] = have
        return have.slice(0, 4 * count + 4)
