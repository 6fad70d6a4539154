"""Planned ranges as record batches or as one table: each column is one array or a few chunks of the map.

What a group of frames consists of: entries of many messages, and runs of entries of one message each.

Both give their columns as Arrow arrays over the map. An entry of many messages is laid out as Arrow wants it,
so nothing is copied. Entries of one message are gathered: the offsets array alternates between start and end
of each value, every second element of that array is a value, and one `take` copies those out in C.
"""

from __future__ import annotations

import logging
import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain, repeat
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from embeddedpulsar.arrow import schema as names
from embeddedpulsar.arrow.engine import (
    CODEC_ENCRYPTED,
    COLUMN_FLAGS,
    FLAG_BATCHED,
    FLAG_EVENT_TIMES,
    FLAG_KEYS,
    FLAG_NULL_VALUES,
    FLAG_ORDERING_KEYS,
    FLAG_PROPERTIES,
    FLAG_SEQUENCE_IDS,
    HEADER_SIZE,
    METADATA,
    OPTIONAL,
    TRAILER_SIZE,
    ColumnSlices,
    EntryRange,
    RawPosition,
    Slice,
    decompressed_columns,
    locate,
    unpack_text_map,
)
from embeddedpulsar.arrow.entry_pruning import ColdTable
from embeddedpulsar.arrow.mapped_segment import DamageHandler, FrameGroup, MappedSegment, Source, frame_groups
from embeddedpulsar.arrow.schema import arrow_schema
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
        # Three places that columns come from: a decrypted copy, a decompressed copy, or the map itself. The
        # offsets of a copy begin at 0, those of the map at the frame.
        start, end = body + header[11], at + header[0] - TRAILER_SIZE
        if header[6]:
            if header[6] == CODEC_ENCRYPTED:
                # `frame_groups` has decrypted it where entries without a key are left out, and the segment
                # remembers that.
                content = segment.decrypted(at, header)
            else:
                metadata = segment.view[body:start]
                stored = segment.view[body:end]
                content = decompressed_columns(header[6], metadata, stored, header[11], header[7], header[10])
            self._content: Any = content
            self._buffer = pa.py_buffer(content)
            # Without `ints` the short way of `var` is closed: a copy is viewed as 32-bit numbers nowhere.
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
            # The last offset is the size of all payloads. -1 where the offsets alone would reach behind the
            # entry.
            total = ints[(start + size >> 2) - 1] if first <= self._end else -1
            if name != "value":
                return None
            # The entry is the limit, and not the segment behind it; and the first offset is 0
            # (docs/format/frame.md).
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
        located = self._slices
        # Most readers ask for one column; those of several look it up once.
        if located is None:
            located = locate(self._flags, self.rows, self._content, self._start, self._end)
            self._slices = located
        return located


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
        # The payload of a chunked message is put together elsewhere and stands alone, so its offsets are made
        # here.
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
        # The columns begin behind the metadata, whose length differs with the producer name.
        at = [
            position + HEADER_SIZE + header[11] for position, header in zip(positions, headers, strict=True)
        ]
        # With one message, the value column is two offsets and the bytes, so the place of each further column
        # depends on the sizes before it. They are looked for when one is asked for.
        self._columns: dict[str, list[int]] = {"value": at}
        self._located = not self._flags & COLUMN_FLAGS

    def var(self, name: str) -> Any:
        """As `Batch.var`, gathered."""
        at = self._find(name)
        if at is None:
            return None
        ints = self._segment.ints
        # Offsets count from the first value of the run, so that 32 bits suffice: a run is part of a group of
        # some MiB, and a segment may be larger.
        base = at[0] + 8
        starts = [x + 8 - base for x in at]
        # The array that is made alternates: value, what lies between two values, value, and so on. The even
        # elements are the messages.
        offsets = array("i", bytes(8 * len(at)))
        offsets[0::2] = array("i", starts)
        try:
            # The second offset of an entry is the length of its only value; `array` refuses what is beyond 32
            # bits.
            ends = [start + ints[(x >> 2) + 1] for x, start in zip(at, starts, strict=True)]
            offsets[1::2] = array("i", ends)
        except OverflowError:
            raise _malformed("an item ends behind its segment") from None
        buffers = [None, pa.py_buffer(offsets), self._segment.buffer.slice(base)]
        # The last value has nothing behind it, so there is one element less than twice the messages.
        mixed = _binary(2 * len(at) - 1, buffers)
        # This copies the payloads, in C: without a copy Arrow would need `binary_view`, which Spark refuses
        # (decision 0041).
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
        # A bitmap of one message is one byte of which bit 0 counts, padded to 8.
        return None if at is None else pa.array([view[x] & 1 == 1 for x in at], _BOOL)

    def _find(self, name: str) -> list[int] | None:
        """Where the column lies in each entry; None if they have none of that name."""
        if not self._located:
            self._locate()
        return self._columns.get(name)

    def _locate(self) -> None:
        at = self._behind(self._columns["value"])
        # The order of OPTIONAL is that in which columns are stored.
        for flag, kind, name in OPTIONAL:
            if not self._flags & flag:
                continue
            self._columns[name] = at
            if kind == "var" or kind == "map":
                at = self._behind(at)
            else:
                # A fixed column of one message has 8 bytes, a bitmap is padded to 8, and the transaction of
                # an entry has 16.
                size = 16 if kind == "once" else 8
                at = [x + size for x in at]
        self._located = True

    def _behind(self, at: list[int]) -> list[int]:
        """The first byte behind a variable column of one item at each of `at`."""
        ints = self._segment.ints
        try:
            # Two offsets of 4 bytes, the item, and padding to 8.
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
    # A chunked message whose payload is None cannot be decrypted. It becomes a `Batch` of its last part
    # below, which raises when something is asked for that is encrypted.
    if group.chunked is not None and group.chunked.payload is not None:
        return [Whole(segment, positions[0], headers[0], group.chunked.payload)]
    # The group says it of itself: the usual case of a topic without batches takes no step per entry here.
    if group.uniform:
        return [Singles(segment, positions, headers)]
    pieces: list[Piece] = []
    run: list[int] = []
    for i, header in enumerate(headers):
        # Compressed or encrypted entries of one message are copies of their own, so they cannot be gathered
        # out of the map.
        if header[10] == 1 and not header[6]:
            run.append(i)
            continue
        if run:
            pieces.append(_singles(group, run))
            run = []
        pieces.append(Batch(segment, positions[i], header))
    if run:
        pieces.append(_singles(group, run))
    return pieces


def _singles(group: FrameGroup, run: list[int]) -> Piece:
    # A `Singles` has one layout. Entries with and without a key, say, are gathered apart and put in order by
    # a second `take`.
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
    # Where each message of the run is in the arrays of the parts put together.
    placed = [i for part in kinds.values() for i in part]
    order = [0] * len(run)
    for where, i in enumerate(placed):
        # A run has no gaps, so the number within it is the distance from its first entry.
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
        # The parts of an id that do not change: field numbers and types as protobuf encodes them.
        self._partition = partition
        self._front = b"\x08" + varint(ledger_id) + b"\x10"
        self._back = b"" if partition < 0 else b"\x18" + varint(partition)
        self._indexes: list[bytes] = []
        self._offsets: dict[int, Any] = {}
        self._high: dict[int, bytes] = {}

    def batch(self, entry_id: int, count: int) -> Any:
        """Ids of messages 0 to count - 1 of a batch, as a binary array."""
        # All ids of a batch as one text: what stands before an index, the index, what stands behind it. One
        # `join` takes 10 ns for each id (decision 0041).
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
        # A batch of one message: index 0 in a batch of 1. An entry that is no batch has neither field.
        if batched:
            back += b"\x20\x00\x30\x01"
        # The number of an entry is a varint: its low 7 bits differ from entry to entry, and the rest is the
        # same for 128 of them, so it is made once.
        for upper in {entry_id >> 7 for entry_id in entry_ids} - high.keys():
            high[upper] = varint(upper)
        return [
            front + bytes((e,)) + back
            if e < 0x80
            else b"%b%c%b%b" % (front, e & 0x7F | 0x80, high[e >> 7], back)
            for e in entry_ids
        ]

    def chunked(self, entry_id: int, earlier: tuple[RawPosition, ...]) -> bytes:
        """The id of a chunked message, which remembers its first part."""
        message_id = make(self._ledger_id, entry_id, -1, self._partition, 0)
        # A seek to a chunked message goes to its first part, which its id names, as in Pulsar.
        if earlier:
            message_id._first_chunk = make(*earlier[0], -1, self._partition, 0)
        return message_id.serialize()

    def _batch_offsets(self, fixed: int, count: int) -> Any:
        """Offsets of `count` ids that are `fixed` bytes long without their index."""
        # Offsets depend on the length without the index alone, which is the same for many batches; so they
        # are kept, longer than asked for.
        have = self._offsets.get(fixed)
        if have is None or have.size < 4 * count + 4:
            # The keys are lengths of ids, of which a ledger has few. The limit is for one with names and
            # numbers of all lengths.
            if len(self._offsets) > _CACHED_OFFSETS:
                self._offsets.clear()
            # Indexes up to 127 take one byte, up to 16,383 two, and so on: so many ids of each length.
            lengths = chain.from_iterable(
                repeat(fixed + size, (1 << 7 * size) - (1 << 7 * (size - 1) if size > 1 else 0))
                for size in range(1, 6)
            )
            # Rounded up, so that batches of growing size do not make the offsets again each time.
            room = max(count, 1024)
            limited = (length for length, _ in zip(lengths, range(room), strict=False))
            have = pa.py_buffer(array("i", accumulate(limited, initial=0)))
            self._offsets[fixed] = have
        return have.slice(0, 4 * count + 4)


_TIME: Final = pa.timestamp("us", "UTC")
_MILLISECONDS: Final = pa.timestamp("ms", "UTC")
_TIMES: Final = (names.PUBLISH_TIME, names.EVENT_TIME)
_MOST_MS: Final = (2**63 - 1) // 1000
_NAME_LENGTH: Final = struct.Struct("<H")
_NAME_LENGTH_OFFSET: Final = 24
_SCHEMA_VERSION_OFFSET: Final = 16
_ENTRY_ID, _PUBLISH_TIME, _COUNT, _FLAGS = 8, 9, 10, 7

# Columns that are null (or empty) throughout unless an entry has this flag.
_OPTIONAL: Final = {
    names.KEY: FLAG_KEYS,
    names.ORDERING_KEY: FLAG_ORDERING_KEYS,
    names.EVENT_TIME: FLAG_EVENT_TIMES,
    names.PROPERTIES: FLAG_PROPERTIES,
}


class ColumnBuilder:
    """Builds columns of groups of one range. Holds what is the same for all groups; one thread at a time.

    What is one value per entry (publish time, producer) is made for the whole group at once; what lies in the
    entries (payloads, keys) piece by piece, without a copy where the piece is a batch.
    """

    def __init__(self, planned: EntryRange, columns: Sequence[str]) -> None:
        # Times are milliseconds while they are columns: the cast to microseconds, which may fail, is the last
        # step.
        self.schema = _with_milliseconds(names.arrow_schema(columns))
        self._planned = planned
        self._types = {field.name: field.type for field in self.schema}
        self._ids = MessageIds(planned.ledger_id, planned.partition)
        self._constants: dict[str, Any] = {
            names.TOPIC: _Repeated(planned.topic, pa.string()),
            names.PARTITION: _Repeated(planned.partition, pa.int32()),
            names.LEDGER_ID: _Repeated(planned.ledger_id, pa.int64()),
        }
        self._producer = _Repeated("", pa.string())
        self._counting = pa.array([], pa.int64())
        self._by_group: dict[str, Callable[[FrameGroup], Any]] = {
            names.PUBLISH_TIME: _publish_times,
            names.PRODUCER_NAME: self._producer_names,
            names.SEQUENCE_ID: self._sequence_ids,
            names.ENTRY_ID: _entry_ids,
            names.BATCH_INDEX: self._batch_indexes,
            names.SCHEMA_VERSION: _schema_versions,
        }
        self._by_piece: dict[str, Callable[[Batch | Whole | Singles], Any]] = {
            names.VALUE: lambda piece: piece.var("value"),
            names.KEY: lambda piece: _texts(piece, "key"),
            names.ORDERING_KEY: lambda piece: _texts(piece, "ordering_key"),
            names.EVENT_TIME: _event_times,
            names.PROPERTIES: _properties,
        }

    def chunks(self, group: FrameGroup) -> list[list[Any]]:
        """For each column of the schema the arrays that make it up.

        Raises:
            CorruptionError: an entry whose columns do not fit, or are malformed.
        """
        pieces: list[Piece] = []
        # For each column the cheapest way that there is: one value for the range, one for each entry, a
        # column that no entry of the group has, and the columns of the entries themselves.
        columns = []
        for name in self.schema.names:
            constant = self._constants.get(name)
            make = self._by_group.get(name)
            if constant is not None:
                columns.append([constant.slice(group.rows)])
            elif make is not None:
                columns.append([make(group)])
            elif name == names.MESSAGE_ID:
                columns.append(self._message_ids(group))
            elif name in _OPTIONAL and not group.flags & _OPTIONAL[name]:
                columns.append([_empty(self._types[name], group.rows)])
            else:
                # Once for all columns: the pieces remember where their columns lie.
                pieces = pieces or pieces_of(group)
                columns.append([self._of_piece(name, piece, group.flags) for piece in pieces])
        return columns

    def _of_piece(self, name: str, piece: Piece, flags: int) -> Any:
        if isinstance(piece, Mixed):
            parts = [self._of_piece(name, part, flags) for part in piece.parts]
            return pa.concat_arrays(parts).take(piece.order)
        values = self._by_piece[name](piece)
        # The flag is that of the group; a piece without it has no bitmap, and no nulls then.
        if name == names.VALUE and flags & FLAG_NULL_VALUES:
            return _without(values, piece.bits("null_values"))
        return values

    def message_at(self, group: FrameGroup, row: int) -> str:
        """The name of the message in a row of a group, as it is after `_cut`."""
        # For an error, so it may take a pass of its own. The cut is that of the rows: their numbers are those
        # behind it.
        planned = self._planned
        places = [_entry_ids(group), self._batch_indexes(group)]
        cut = _cut(planned, group, pa.RecordBatch.from_arrays(places, names=["entry", "index"]))
        entry, index = (column[row].as_py() for column in cut.columns)
        return f"{planned.topic}: message {planned.ledger_id}:{entry}:{index}"

    def _message_ids(self, group: FrameGroup) -> list[Any]:
        """Runs of entries of one message are made together, batches one by one."""
        parts: list[Any] = []
        run: list[bytes] = []
        ids = self._ids
        if group.chunked is not None:
            chunked = ids.chunked(group.headers[0][_ENTRY_ID], group.chunked.earlier)
            return [pa.array([chunked], pa.binary())]
        if group.uniform:
            entries = [header[_ENTRY_ID] for header in group.headers]
            return [pa.array(ids.singles(entries, batched=group.flags & FLAG_BATCHED != 0), pa.binary())]
        for header in group.headers:
            if header[_COUNT] == 1:
                run += ids.singles([header[_ENTRY_ID]], batched=header[_FLAGS] & FLAG_BATCHED != 0)
                continue
            if run:
                parts.append(pa.array(run, pa.binary()))
                run = []
            parts.append(ids.batch(header[_ENTRY_ID], header[_COUNT]))
        if run:
            parts.append(pa.array(run, pa.binary()))
        return parts

    def _producer_names(self, group: FrameGroup) -> Any:
        view = group.segment.view
        packed = set()
        texts = []
        # The names are read without their entries: the metadata is never compressed and never encrypted.
        for at in group.positions:
            at += HEADER_SIZE
            (length,) = _NAME_LENGTH.unpack_from(view, at + _NAME_LENGTH_OFFSET)
            at += METADATA.size
            text = bytes(view[at : at + length])
            packed.add(text)
            texts.append(text)
        # A group nearly always has one producer, or a few: each name is decoded once.
        decoded = {text: _decoded(text) for text in packed}
        if len(decoded) == 1:
            (name,) = decoded.values()
            # The array of the last group is used again, since the producer of a log rarely changes.
            if name != self._producer.value:
                self._producer = _Repeated(name, pa.string())
            return self._producer.slice(group.rows)
        return _repeated_by_entry(group, [decoded[text] for text in texts], pa.string())

    def _sequence_ids(self, group: FrameGroup) -> Any:
        # Explicit ids that do not count up are columns of their entries; the others follow from the first id
        # of the entry.
        if group.flags & FLAG_SEQUENCE_IDS:
            return pa.concat_arrays([self._piece_sequence_ids(group, i) for i in range(len(group.headers))])
        longs = group.segment.longs
        # The first sequence id is the first field of the metadata.
        first = [longs[at + HEADER_SIZE >> 3] for at in group.positions]
        firsts = _repeated_by_entry(group, first, pa.int64())
        # Every entry has one message, so there is nothing to count.
        if len(first) == group.rows:
            return firsts
        counts = [header[_COUNT] for header in group.headers]
        counting = self._count_to(max(counts))
        return pc.add(firsts, pa.concat_arrays([counting.slice(0, count) for count in counts]))

    def _piece_sequence_ids(self, group: FrameGroup, i: int) -> Any:
        header, at = group.headers[i], group.positions[i]
        if header[_FLAGS] & FLAG_SEQUENCE_IDS:
            return Batch(group.segment, at, header).fixed("sequence_ids")
        first = group.segment.longs[at + HEADER_SIZE >> 3]
        return pc.add(self._count_to(header[_COUNT]).slice(0, header[_COUNT]), first)

    def _batch_indexes(self, group: FrameGroup) -> Any:
        # -1 for a message that is no batch, as Pulsar's `MessageId` has it.
        if not group.flags & FLAG_BATCHED:
            return pa.repeat(pa.scalar(-1, pa.int32()), group.rows)
        single = pa.array([-1], pa.int64())
        counting = self._count_to(max(header[_COUNT] for header in group.headers))
        parts = [
            counting.slice(0, header[_COUNT]) if header[_FLAGS] & FLAG_BATCHED else single
            for header in group.headers
        ]
        return pa.concat_arrays(parts).cast(pa.int32())

    def _count_to(self, rows: int) -> Any:
        if len(self._counting) < rows:
            self._counting = pa.array(range(rows), pa.int64())
        return self._counting


class _Repeated:
    """One value as an array of any length; grows when a longer one is asked for."""

    def __init__(self, value: Any, kind: Any) -> None:
        self.value = value
        self._scalar = pa.scalar(value, kind)
        self._array = pa.repeat(self._scalar, 0)

    def slice(self, rows: int) -> Any:
        if len(self._array) < rows:
            self._array = pa.repeat(self._scalar, rows)
        return self._array.slice(0, rows)


def _publish_times(group: FrameGroup) -> Any:
    times = [header[_PUBLISH_TIME] for header in group.headers]
    return _repeated_by_entry(group, times, pa.int64())


def _schema_versions(group: FrameGroup) -> Any:
    ints = group.segment.ints
    versions = [ints[at + HEADER_SIZE + _SCHEMA_VERSION_OFFSET >> 2] for at in group.positions]
    return _repeated_by_entry(group, versions, pa.int32())


def _entry_ids(group: FrameGroup) -> Any:
    return _repeated_by_entry(group, [header[_ENTRY_ID] for header in group.headers], pa.int64())


def _repeated_by_entry(group: FrameGroup, values: list[Any], kind: Any) -> Any:
    """One value per entry, repeated for each of its messages."""
    if len(values) == group.rows:
        return pa.array(values, kind)
    if len(values) == 1:
        return pa.repeat(pa.scalar(values[0], kind), group.rows)
    # Each entry's value is repeated by the ends of runs, in C.
    ends = pa.array(accumulate(header[_COUNT] for header in group.headers), pa.int32())
    return pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(ends, pa.array(values, kind)))


def _texts(piece: Batch | Whole | Singles, name: str) -> Any:
    texts = piece.var(name)
    if texts is None:
        return pa.nulls(piece.rows, pa.binary())
    return _without(texts, piece.bits(f"{name}_absent"))


def _event_times(piece: Batch | Whole | Singles) -> Any:
    # A column of its own, or none: null for all.
    times = piece.fixed("event_times")
    if times is None:
        return pa.nulls(piece.rows, pa.int64())
    # 0 stands for "no event time" in the format.
    return _without(times, pc.equal(times, 0))


def _properties(piece: Batch | Whole | Singles) -> Any:
    packed = piece.var("property")
    if packed is None:
        return _empty(pa.map_(pa.string(), pa.string()), piece.rows)
    ends = [0]
    keys: list[str] = []
    values: list[str] = []
    for item in packed.to_pylist():  # the one column without a columnar form: a msgpack map per message
        if item:
            fields = unpack_text_map(item)
            keys += fields.keys()
            values += fields.values()
        ends.append(len(keys))
    # Maps are built from flat lists: one array of keys and one of values, and the number of the first pair of
    # each message.
    return _maps(pa.py_buffer(array("i", ends)), len(ends), keys, values)


def _empty(kind: Any, rows: int) -> Any:
    """`rows` messages that have nothing in this column: nulls, or empty maps."""
    if not pa.types.is_map(kind):
        return pa.nulls(rows, kind)
    return _maps(pa.py_buffer(bytes(4 * rows + 4)), rows + 1, [], [])


def _maps(ends: Any, count: int, keys: list[str], values: list[str]) -> Any:
    offsets = pa.Array.from_buffers(pa.int32(), count, [None, ends])
    return pa.MapArray.from_arrays(offsets, pa.array(keys, pa.string()), pa.array(values, pa.string()))


def _without(values: Any, absent: Any) -> Any:
    """`values` with nulls where `absent` is true; the values themselves are not copied."""
    if absent is None:
        return values
    buffers = values.buffers()
    # Only the bitmap is new: Arrow keeps validity apart from the values.
    buffers[0] = pc.invert(absent).buffers()[1]
    return pa.Array.from_buffers(values.type, len(values), buffers)


def _decoded(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError as error:
        raise CorruptionError(reason="a producer name is not UTF-8") from error


# Rows of a chunk of a table: those of many small entries are gathered, so that a table has few chunks.
_TABLE_ROWS: Final = 1 << 17
_COUNT, _ENTRY_ID = 10, 8


def record_batches(
    opened: Iterable[tuple[EntryRange, Source]],
    columns: tuple[str, ...],
    *,
    rows: int,
    large: int,
    on_damage: DamageHandler,
    mode: str = names.FAILFAST,
) -> Iterator[Any]:
    """The messages of ranges as record batches of these columns, in order.

    Buffers of large entries are those of the map; they stay valid as long as the batch is referenced, also
    when the segment is trimmed meanwhile.

    Args:
        opened: what to read, as `open_ahead` gives it.
        columns: names out of `ALL_COLUMNS`.
        rows: small entries are gathered into batches of about this many rows.
        large: entries of this many messages or more become batches of their own, without a copy.
        on_damage: called with what is skipped; may raise.
        mode: what becomes of a message with a time that a column cannot hold.

    Raises:
        UnreadableMessage: there is such a time, in mode FAILFAST.
        CryptoError: an entry cannot be decrypted.
        CorruptionError: the file is shorter than what was committed, or a column is malformed.
    """
    # A column that only decides which messages are left out is read, too, and dropped at the end.
    read = _with_event_times(columns, mode)
    for planned, segment in opened:
        if isinstance(segment, ColdTable):  # which has no time that a column cannot hold
            yield from segment.batches(columns, rows)
            continue
        # One builder for a range: its constants and caches are those of one ledger.
        builder = ColumnBuilder(planned, read)
        for group in frame_groups(planned, segment, rows=rows, large=large, on_damage=on_damage):
            chunks = _chunks(planned, builder, group)
            # A batch has one array for each column: a single piece stays a view of the map, several are
            # copied together.
            arrays = [parts[0] if len(parts) == 1 else pa.concat_arrays(parts) for parts in chunks]
            batch = pa.RecordBatch.from_arrays(arrays, schema=builder.schema)
            batch = _with_times(builder, group, _cut(planned, group, batch), mode)
            # A group may lose all of its rows to the cut, or to DROPMALFORMED.
            if batch.num_rows:
                yield batch if read is columns else batch.select(columns)


def table(
    opened: Iterable[tuple[EntryRange, Source]],
    columns: tuple[str, ...],
    on_damage: DamageHandler,
    mode: str = names.FAILFAST,
) -> Any:
    """The messages of ranges as a table; payloads and keys of batches are chunks of the map."""
    # Threads, one for each piece of 16 MiB, gained nothing where that was measured: two cores that share one
    # unit for the checksums, and half of the rest under the GIL.
    tables = [arrow_schema(columns).empty_table()]
    read = _with_event_times(columns, mode)
    for planned, segment in opened:
        if isinstance(segment, ColdTable):
            tables += [pa.Table.from_batches([batch]) for batch in segment.batches(columns, _TABLE_ROWS)]
            continue
        builder = ColumnBuilder(planned, read)
        # A table is made of chunks, so no entry needs a group of its own to stay uncopied.
        for group in frame_groups(planned, segment, rows=_TABLE_ROWS, large=sys.maxsize, on_damage=on_damage):
            chunks = _chunks(planned, builder, group)
            arrays = [pa.chunked_array(parts) for parts in chunks]
            whole = pa.Table.from_arrays(arrays, schema=builder.schema)
            timed = _with_times(builder, group, _cut(planned, group, whole), mode)
            tables.append(timed if read is columns else timed.select(columns))
    return pa.concat_tables(tables)


def _chunks(planned: EntryRange, builder: ColumnBuilder, group: FrameGroup) -> list[list[Any]]:
    try:
        # Columns know no files: the path is added here, where it is known.
        return builder.chunks(group)
    except CorruptionError as error:
        raise error.at(planned.path) from None


def _cut(planned: EntryRange, group: FrameGroup, whole: Any) -> Any:
    """Without the messages of the first and last entry that are outside of the range."""
    # `keep` first: it counts from the start of the last entry, which is the first one, too, in a range of one
    # entry, and `skip` would move that start.
    if planned.keep and group.headers[-1][_ENTRY_ID] == planned.end_entry - 1:
        whole = whole.slice(0, group.rows - max(0, group.headers[-1][_COUNT] - planned.keep))
    if planned.skip and group.headers[0][_ENTRY_ID] == planned.first_entry:
        whole = whole.slice(min(planned.skip, group.headers[0][_COUNT]))
    return whole


def _with_event_times(columns: tuple[str, ...], mode: str) -> tuple[str, ...]:
    """The columns that are read. Which messages are left out does not depend on the columns asked for."""
    # With DROPMALFORMED a time that no column holds leaves its message out. Without the event time, a query
    # of other columns would count messages that the same query with it does not.
    has_times = mode != names.DROPMALFORMED or names.EVENT_TIME in columns
    return columns if has_times else (*columns, names.EVENT_TIME)


def _with_milliseconds(schema: Any) -> Any:
    """A schema of times as they are stored."""
    return pa.schema([(field.name, pa.int64() if field.name in _TIMES else field.type) for field in schema])


def _with_times(builder: ColumnBuilder, group: FrameGroup, rows: Any, mode: str) -> Any:
    """Batch or table with columns of times in place of milliseconds.

    Milliseconds reach a thousand times as far as a column of microseconds. What is beyond that is refused,
    null, or left out with its message, by the mode; it never becomes another time.
    """
    present = [name for name in _TIMES if name in rows.schema.names]
    # The usual case costs two casts in C; which messages are to blame is looked for when they fail.
    try:
        return _timed(rows, present)
    except pa.ArrowInvalid:  # Arrow checks the range of each time
        return _timed(_with_fitting_times(builder, group, rows, present, mode), present)


def _timed(rows: Any, present: list[str]) -> Any:
    for name in present:
        # First the meaning, then the unit: the second cast multiplies by 1000 and checks the range.
        times = rows.column(name).cast(_MILLISECONDS).cast(_TIME)
        rows = rows.set_column(rows.schema.get_field_index(name), pa.field(name, _TIME), times)
    return rows


def _with_fitting_times(
    builder: ColumnBuilder, group: FrameGroup, rows: Any, present: list[str], mode: str
) -> Any:
    # Messages that are kept, by all columns of times together.
    kept = pa.scalar(True)
    for name in present:
        times = rows.column(name)
        is_fit = pc.and_(pc.greater_equal(times, -_MOST_MS), pc.less_equal(times, _MOST_MS))
        # A null time is no fault.
        fits = pc.fill_null(is_fit, True)
        unfit = pc.indices_nonzero(pc.invert(fits)).to_pylist()
        if not unfit:
            continue
        message = f"{builder.message_at(group, unfit[0])}: its {name} of {times[unfit[0]]} ms"
        if mode == names.FAILFAST:
            raise names.UnreadableMessage(
                f"{message} is not in the years that a column of microseconds has; leave the column out, or "
                "use the mode PERMISSIVE, in which such a time is null, or DROPMALFORMED"
            )
        logging.getLogger("embeddedpulsar.arrow").warning(
            "%s is not in the years of its column, like %d others beside it; %s",
            message,
            len(unfit) - 1,
            "they are null" if mode == names.PERMISSIVE else "these messages are left out",
        )
        nulled = pc.if_else(fits, times, pa.scalar(None, pa.int64()))
        rows = rows.set_column(rows.schema.get_field_index(name), pa.field(name, pa.int64()), nulled)
        kept = pc.and_(kept, fits)
    return rows.filter(kept) if mode == names.DROPMALFORMED else rows
