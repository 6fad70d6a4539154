"""What a group of frames consists of: entries of many messages, and runs of entries of one message each.

Both give their columns as Arrow arrays over the map. An entry of many messages is laid out as Arrow wants it,
so nothing is copied. Entries of one message are gathered: the offsets array alternates between start and end
of each value, every second element of that array is a value, and one `take` copies those out in C.
"""

from __future__ import annotations

from array import array
from typing import Any

import pyarrow as pa

from embeddedpulsar.arrow.mapped_segment import MappedSegment
from embeddedpulsar.arrow.segment_frames import FrameGroup
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.format.columns import OPTIONAL, ColumnSlices, Slice, locate
from embeddedpulsar.format.entry_decoder import decompressed_columns
from embeddedpulsar.format.frame import CODEC_ENCRYPTED, COLUMN_FLAGS, HEADER_SIZE, TRAILER_SIZE

Header = tuple[Any, ...]

_BINARY, _INT64, _BOOL = pa.binary(), pa.int64(), pa.bool_()
_from_buffers = pa.Array.from_buffers


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
