"""Compacted ledgers on disk: written whole, then read by the processes that map them.

A place in a topic that is read compacted: in its compacted ledger, and then in its log.

What is known of the compactions of a topic: which compacted ledger holds, and how the last one ended.
"""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from zlib import crc32

from embeddedpulsar._engine.filenames import compacted_in, compacted_path, compaction_path
from embeddedpulsar._engine.format.columns import NO_FIELDS, EntryFields
from embeddedpulsar._engine.format.compacted import (
    BLOCK,
    COMPACTED_HEADER_SIZE,
    Block,
    BlockPlace,
    CompactedHeader,
    Head,
    RowIds,
    frame_of,
    pack_block,
    pack_block_index,
    pack_compacted_header,
    parse_block_index,
    parse_compacted_header,
)
from embeddedpulsar._engine.format.compression import CODECS
from embeddedpulsar._engine.format.document import KIND_COMPACTION, decode_document, encode_document
from embeddedpulsar._engine.format.entry import EntryContent, EntryView, ProducerPrefix, encode
from embeddedpulsar._engine.format.entry_decoder import SealedView
from embeddedpulsar._engine.format.frame import FLAG_BATCHED, FLAG_REVISED, MAX_FRAME_SIZE
from embeddedpulsar._engine.platform import descriptors, disk, failpoints
from embeddedpulsar._engine.platform.mapped_file import MappedFile
from embeddedpulsar.damage import COMPACT_AGAIN, HOLE, TOPIC_FILES, Damage, DamageHook
from embeddedpulsar.exceptions import CorruptionError, ForeignFileError, UnsupportedFormatVersion
from embeddedpulsar.message_id import BEFORE_FIRST, Position
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Any, Final

    from embeddedpulsar._engine.log.log import Log

failpoints.declare("compaction:block_written", "compaction:written", "compaction:synced")

MOST_ROWS: Final = 1000
"""Of a block."""
_MOST_BYTES: Final = 256 << 10
_LARGEST: Final = MAX_FRAME_SIZE - (64 << 20)
"""Bytes of a value: the frame also holds the other fields of the message."""
_NO_PREFIX: Final = ProducerPrefix("")


class CompactedLedger:
    """A complete compacted ledger, mapped.

    Invariants: the file never changes; it stays readable when its name is removed. Blocks are copied out of
    the map and verified. Callers: any thread.

    Args:
        path: of the file.
        incarnation: which life of the topic it must be of; None for any.

    Attributes:
        path: of the file.
        horizon: the last entry that was looked at; the log follows behind it.
        messages: how many it holds.
        size: bytes of the file.

    Raises:
        FileNotFoundError: there is no such file.
        CorruptionError: header or index are damaged, or it is another topic's.
    """

    def __init__(self, path: str, incarnation: int | None) -> None:
        self.path: Final = path
        # The file is complete or has no header: `CompactedWriter.finish` writes that last. So
        # everything that does not verify here is damage, and a new compaction makes it again.
        try:
            self._file: Final = MappedFile.open(path, writable=False)
            self._file.close_descriptor()
            self._header: Final = parse_compacted_header(bytes(self._file.view[:COMPACTED_HEADER_SIZE]))
            self.places: Final = parse_block_index(self._file.view, self._header)
            if incarnation not in (None, self._header.incarnation):
                raise CorruptionError(reason=f"it is of life {self._header.incarnation} of its topic")
        except CorruptionError as e:
            raise CorruptionError(path=path, offset=e.offset, reason=e.reason, remedy=COMPACT_AGAIN) from None
        self._firsts: Final = [place.first for place in self.places]
        self.horizon: Final = Position(*self._header.horizon)
        self.messages: Final = self._header.messages
        self.size: Final = self._file.size

    def block(self, number: int) -> Block:
        """Read a block.

        Raises:
            CorruptionError: it is damaged.
        """
        # The length is read before the block is copied, and must end before the index. A block that
        # is damaged is stepped over by readers, and stops a compaction.
        offset, view = self.places[number].offset, self._file.view
        try:
            (length,) = memoryview(view[offset : offset + 4]).cast("I")
            if not BLOCK.size <= length <= self._header.index_offset - offset:
                raise CorruptionError(reason=f"a block of {length} bytes")
            block = Block(bytes(view[offset : offset + length]))
        except CorruptionError as e:
            e.offset = offset
            raise e.at(self.path) from None
        # Blocks are read in order. Without this a reader would keep the pages of the whole file in
        # its memory.
        self._file.not_needed(0, offset)
        return block

    def number_at(self, position: Position) -> int:
        """The number of the block that may hold the first row at or behind ``position``."""
        return max(0, bisect_right(self._firsts, position) - 1)

    def find_by_publish_time(self, publish_ms: int) -> Position | None:
        """The first entry published at ``publish_ms`` or later; None if there is none."""
        # By the index to the block before the first that begins too late, then row by row: the time
        # may come in its middle.
        times = [place.publish_time for place in self.places]
        number = max(0, bisect_right(times, publish_ms - 1) - 1)
        for at in range(number, len(self.places)):
            ids = self.block(at).ids
            for row, time in enumerate(ids.times):
                if time >= publish_ms:
                    return Position(ids.ledgers[row], ids.entries[row])
        return None

    def close(self) -> None:
        self._file.close()


class CompactedWriter:
    """Writes a compacted ledger: rows in the order of their ids, then `finish`.

    Invariants: the file has no valid header before `finish`, and is on the disk when that returns. The
    memory is that of one block. Callers: one thread.
    """

    def __init__(self, path: str, incarnation: int) -> None:
        self.messages = 0
        self._path: Final = path
        self._incarnation: Final = incarnation
        self._fd: Final = disk.DISK.create_exclusive(path)
        self._end = COMPACTED_HEADER_SIZE
        self._places: list[BlockPlace] = []
        self._begin()

    def _begin(self) -> None:
        self._values: list[bytes] = []
        self._keys: list[str | bytes | None] = []
        self._ordering_keys: list[str | bytes | None] = []
        self._null_keys: set[int] = set()
        self._given: dict[int, EntryFields] = {}
        self._properties: list[dict[str, str] | None] = []
        self._event_times: list[int] = []
        self._deliver_at: list[int] = []
        self._nulls: list[bool] = []
        self._sequence_ids: list[int] = []
        self._ids = RowIds([], [], [], [], [], [])
        self._heads: dict[Head, int] = {}
        self._chunks: dict[int, tuple[int, int]] = {}
        self._codec = self._bytes = 0
        self._last = (0, 0)

    def add(self, view: EntryView, index: int, key: str | None) -> None:
        """Add one message of an entry. About 2 us.

        Raises:
            CorruptionError: the message is too large for a compacted ledger.
        """
        offsets = view.offsets
        value = view.payload[offsets[index] : offsets[index + 1]]
        if len(value) > _LARGEST:
            raise CorruptionError(
                reason=f"the message {view.ledger_id}:{view.entry_id} has {len(value)} bytes; a topic with "
                f"messages of more than {_LARGEST} cannot be compacted"
            )
        # A reader gives an entry out once, so a block may grow beyond the limits until its last entry
        # is complete.
        is_full = len(self._values) >= MOST_ROWS or self._bytes + len(value) > _MOST_BYTES
        if is_full and self._last != (view.ledger_id, view.entry_id):  # an entry is in one block
            self.flush()
        self._last = (view.ledger_id, view.entry_id)
        row = len(self._values)
        self._values.append(value)
        self._bytes += len(value)
        ordering_keys, event_times, deliver_at = view.ordering_keys(), view.event_times(), view.deliver_at()
        self._keys.append(key)
        self._ordering_keys.append(None if ordering_keys is None else ordering_keys[index])
        if view.flags & FLAG_REVISED:
            self._add_revised(view, index, row)
        self._properties.append(view.properties(index))
        self._event_times.append(0 if event_times is None else event_times[index])
        self._deliver_at.append(0 if deliver_at is None else deliver_at[index])
        self._nulls.append(view.null(index))
        self._sequence_ids.append(view.sequence_ids()[index])
        # Most messages of a block have the same producer, so a row names one of the few heads by its
        # number.
        head = (view.producer_name, view.producer_epoch, view.schema_version)
        number = self._heads.setdefault(head, len(self._heads))
        is_batched = view.flags & FLAG_BATCHED
        fields = (
            view.ledger_id, view.entry_id, view.publish_time, index, view.count if is_batched else 0, number,
        )  # fmt: skip
        for column, field in zip(self._ids, fields, strict=True):
            column.append(field)  # type: ignore[attr-defined]  # lists, while it is written
        first_chunk = getattr(view, "first_chunk", None)
        if first_chunk is not None:
            self._chunks[row] = first_chunk
        # The columns are packed by the codec that the messages were packed by, the last one if they
        # differ.
        self._codec = view.codec or self._codec

    def _add_revised(self, view: EntryView, index: int, row: int) -> None:
        """What few messages have: keys that are bytes or null, and fields of their entry."""
        # The key stays the text by which the message was chosen; only its form is that of the log.
        if view.is_key_bytes(index):
            self._keys[row] = view.key(index)
        if view.is_ordering_key_bytes(index):
            self._ordering_keys[row] = view.ordering_key(index)
        if view.is_key_null(index):
            self._null_keys.add(row)
        fields = view.entry_fields()
        if fields != NO_FIELDS:
            self._given[row] = fields

    def add_sealed(self, view: EntryView) -> None:
        """Add an encrypted entry as it is."""
        # A block of its own: what is inside cannot be read, so the entry stays byte for byte, with
        # its own codec and flags.
        assert isinstance(view, SealedView)
        self.flush()
        size = len(view.clear) + len(view.payload)
        parts = (view.clear, view.payload, bytes(-size & 7))
        fields = (view.codec, view.flags, view.count, len(view._metadata))
        ids = RowIds([view.ledger_id], [view.entry_id], [view.publish_time], [0], [view.count], [0])
        frame = frame_of(parts, fields, view.entry_id, view.publish_time)
        self.copy(ids, pack_block(ids, [("", 0, -1)], {}, frame))

    def copy(self, ids: RowIds, packed: bytes) -> None:
        """Add a block that is complete."""
        # Rows that wait come first: places are in the order of ids. `flush` comes back here with a
        # list that is empty.
        self.flush()
        first = (ids.ledgers[0], ids.entries[0])
        self._places.append(BlockPlace(first, ids.times[0], self._end))
        disk.DISK.pwrite_all(self._fd, [packed], self._end)
        self._end += len(packed)
        self.messages += len(ids.ledgers)
        failpoints.hit("compaction:block_written")

    def flush(self) -> None:
        """Write the rows that were added."""
        if not self._values:
            return
        nulls = self._null_keys
        content = EntryContent(
            self._values,
            keys=[key or None for key in self._keys],
            ordering_keys=self._ordering_keys,
            properties=self._properties,
            event_times=self._event_times,
            deliver_at=self._deliver_at,
            null_values=self._nulls,
            sequence_ids=self._sequence_ids,
            null_keys=[row in nulls for row in range(len(self._values))] if nulls else None,
        )
        # An entry in Pulsar's own format is laid out as rows, which are not packed then.
        entry = encode(content, _NO_PREFIX, self._codec if self._codec in CODECS else 0)
        fields = (entry.codec, entry.flags, entry.count, entry.metadata_length)
        # The frame is outside of the chain of a log: entry id 0 and no time. What the log said of
        # each row is in `ids`.
        ids, heads, chunks, given = self._ids, list(self._heads), self._chunks, self._given
        self._begin()
        self.copy(ids, pack_block(ids, heads, chunks, frame_of(entry.parts, fields, 0, 0), given))

    def finish(self, horizon: Position) -> None:
        """Write index and header, and flush everything to the disk."""
        # The index, then the header, then one flush. The document that names the file is written
        # after this returns, so no reader meets a header that a power loss kept without its blocks.
        self.flush()
        index = pack_block_index(self._places)
        header = CompactedHeader(
            len(self._places), self._incarnation, horizon, self.messages, self._end, crc32(index)
        )
        disk.DISK.pwrite_all(self._fd, [index], self._end)
        disk.DISK.pwrite_all(self._fd, [pack_compacted_header(header)], 0)
        failpoints.hit("compaction:written")
        disk.DISK.fsync(self._fd, self._path)
        failpoints.hit("compaction:synced")

    def close(self) -> None:
        os.close(self._fd)


def rows_of(ledger: CompactedLedger | None) -> Iterator[Block]:
    """All blocks, in order; none without a ledger.

    Raises:
        CorruptionError: one is damaged.
    """
    if ledger is not None:
        for number in range(len(ledger.places)):
            yield ledger.block(number)


def horizon_of(ledger: CompactedLedger | None) -> Position:
    """Up to where a topic is compacted."""
    return BEFORE_FIRST if ledger is None else ledger.horizon


failpoints.declare("compaction:published", "compaction:unlinked")

_ATTEMPTS: Final = 10


class CompactionRecord(NamedTuple):
    """The document about the compactions of a topic. Times in ms since the epoch, 0 for never.

    Attributes:
        file: number of the compacted ledger that holds; 0 before the first compaction.
        ledger, entry: its horizon.
        messages, size: what it holds.
        removed: messages that the last compaction left out.
        succeeded_ms: end of the last one that succeeded.
        failed_ms: end of the last one that failed.
        duration_ms: how long the last one took that succeeded.
        error: why the last one failed; empty if it succeeded.
    """

    file: int = 0
    ledger: int = 0
    entry: int = -1
    messages: int = 0
    size: int = 0
    removed: int = 0
    succeeded_ms: int = 0
    failed_ms: int = 0
    duration_ms: int = 0
    error: str = ""

    @property
    def horizon(self) -> Position:
        """The last entry that was compacted."""
        return Position(self.ledger, self.entry)

    def write(self, directory: str) -> None:
        """Replace the document of a topic: the commit of a compaction."""
        data = encode_document(KIND_COMPACTION, self._asdict())
        disk.DISK.atomic_write(compaction_path(directory), data, True)


def read_record(
    directory: str, incarnation: int | None, report: DamageHook | None = None
) -> CompactionRecord:
    """The record of a topic; one of zeros before the first compaction.

    Where the document is damaged, the newest compacted ledger holds: it had its name before the document did.

    Args:
        directory: of the topic.
        incarnation: which life of the topic the compacted ledger must be of; None for any.
        report: called with a document that is damaged.
    """
    # No document: never compacted, or the first compaction has not ended. Files of another one are
    # not looked for.
    try:
        data = disk.DISK.read_file(compaction_path(directory))
    except FileNotFoundError:
        return CompactionRecord()
    # A damaged document loses figures and no messages: the compacted ledger has its name before the
    # document names it.
    try:
        return _record_of(decode_document(data, KIND_COMPACTION))
    except (CorruptionError, ForeignFileError) as e:
        path = compaction_path(directory)
        if report is not None:
            report(
                Damage(
                    path,
                    offset=e.offset or 0,
                    reason=e.reason,
                    kind=TOPIC_FILES,
                    done="the newest compacted ledger holds",
                    remedy="nothing needs to be done: the next compaction writes it again",
                )
            )
        return _derived(directory, incarnation, f"{path}: {e.reason}")
    except UnsupportedFormatVersion as e:
        raise e.at(compaction_path(directory)) from None


def _record_of(fields: dict[str, Any]) -> CompactionRecord:
    # Types are compared exactly: a bool or a text in the place of a number would fail somewhere else.
    known = {name: fields[name] for name in CompactionRecord._fields if name in fields}
    defaults = CompactionRecord._field_defaults
    if any(type(value) is not type(defaults[name]) for name, value in known.items()):
        raise CorruptionError(reason="a document about a compaction with wrong values")
    return CompactionRecord(**known)


def _derived(directory: str, incarnation: int | None, error: str) -> CompactionRecord:
    # The newest first. One that an interrupted compaction left is whole if it opens, and later than
    # the one that the document named; everything up to its horizon is in it.
    numbers = compacted_in(descriptors.names_in(directory)).values()
    for number in sorted((each for each in numbers if each > 0), reverse=True):
        try:
            ledger = CompactedLedger(compacted_path(directory, number), incarnation)
        except (CorruptionError, FileNotFoundError):
            continue
        try:
            return CompactionRecord(number, *ledger.horizon, ledger.messages, ledger.size, error=error)
        finally:
            ledger.close()
    return CompactionRecord(error=error)


def remove_others(directory: str, record: CompactionRecord) -> int:
    """Remove the compacted ledgers that do not hold: replaced ones, and what a crash left. Readers that have
    them mapped read on. Under the compaction lock; returns how many went."""
    removed = 0
    # Number -1 is of unfinished files. Without a record, number 0, nothing finished is kept either:
    # no reader looks for it.
    for name, number in sorted(compacted_in(descriptors.names_in(directory)).items()):
        if number != record.file or not number:
            with contextlib.suppress(FileNotFoundError):
                disk.DISK.unlink(os.path.join(directory, name))
                removed += 1
            failpoints.hit("compaction:unlinked")
    return removed


class CompactedLedgers:
    """The compacted ledger of one topic, as its readers find it.

    Role: made by the `Topic`, for those that read it compacted. Takes no lock: a compaction publishes by one
    rename, and the file that is replaced goes afterwards. Callers: any thread.

    Attributes:
        directory: of the topic.
        incarnation: which life of the topic this is.
        report: called with damage.
    """

    def __init__(self, directory: str, incarnation: int, report: DamageHook) -> None:
        self.directory: Final = directory
        self.incarnation: Final = incarnation
        self.report: Final = report

    def record(self) -> CompactionRecord:
        """See `read_record`."""
        return read_record(self.directory, self.incarnation, self.report)

    @property
    def horizon(self) -> Position:
        """The last entry that was compacted."""
        record = self.record()
        return record.horizon if record.file else BEFORE_FIRST

    def open(self) -> CompactedLedger | None:
        """Map the compacted ledger; None before the first compaction.

        Raises:
            CorruptionError: header or index are damaged.
        """
        # The document is read without a lock, and the file it names may be replaced and removed
        # before it is opened. Each failure means that another compaction ended meanwhile.
        for _ in range(_ATTEMPTS):
            record = self.record()
            if not record.file:
                return None
            with contextlib.suppress(FileNotFoundError):  # replaced since the record was read
                return CompactedLedger(compacted_path(self.directory, record.file), self.incarnation)
        path = compacted_path(self.directory, record.file)
        raise CorruptionError(path=path, reason="the compacted ledger is missing", remedy=COMPACT_AGAIN)

    def find_by_publish_time(self, publish_ms: int) -> Position | None:
        """The first entry that is left and was published at ``publish_ms`` or later; None if there is none
        before the horizon."""
        ledger = self.open()
        if ledger is None:
            return None
        try:
            return ledger.find_by_publish_time(publish_ms)
        finally:
            ledger.close()

    def report_block(self, error: CorruptionError, first: Position, horizon: Position) -> None:
        """Report a block that is stepped over."""
        offset = error.offset or 0
        path = error.path or self.directory
        reason = f"messages of the compacted ledger from {first} on, up to {horizon} at most: {error.reason}"
        place = Damage(path, first.ledger_id, first.entry_id, first.entry_id, offset, offset, reason, HOLE)
        self.report(place._replace(remedy=COMPACT_AGAIN))


class CompactedCursor:
    """The `Cursor` of those that read compacted.

    Role: up to the horizon it gives what compaction left, behind it the log; each entry once, in the order of
    ids. Invariants: a cursor that has begun a compacted ledger reads it to its end, also when it is replaced
    meanwhile, because its map stays. In the log it reads on, however often the topic is compacted: only so it
    sees that keys were removed. If the log lost what comes next to trimming, it goes on in the compacted
    ledger, behind the entry it read last.
    Callers: one thread at a time.
    """

    __slots__ = ("_block", "_horizon", "_ledger", "_ledgers", "_log", "_number", "_raw", "_row", "_wanted")

    def __init__(self, ledgers: CompactedLedgers, log: Log, position: Position, *, inclusive: bool) -> None:
        self._ledgers: Final = ledgers
        self._log: Final = log
        self._raw: Final = log.cursor(position, inclusive=inclusive)
        self._ledger: CompactedLedger | None = None
        self._block: Block | None = None
        self._number = self._row = 0
        self.seek(position if inclusive else position.next())

    @property
    def position(self) -> Position:
        """The entry that is read next, if it is there: at the latest behind the horizon."""
        # Three places: in a block, between two blocks, behind the last one. `_wanted` is where a seek
        # went or reading stopped, and may lie behind the first row that is left.
        block = self._block
        if self._ledger is None:
            return self._raw.position
        if block is not None and self._row < block.rows:
            return max(self._wanted, Position(block.ids.ledgers[self._row], block.ids.entries[self._row]))
        if self._number < len(self._ledger.places):
            return max(self._wanted, Position(*self._ledger.places[self._number].first))
        return self._horizon.next()

    @property
    def is_compacted(self) -> bool:
        """Whether it is still before the horizon."""
        return self._ledger is not None

    def is_at(self, tail: int) -> bool:
        """See `Cursor`."""
        return self._ledger is None and self._raw.is_at(tail)

    def seek(self, position: Position) -> None:
        """See `Cursor`."""
        self._close_ledger()
        self._raw.seek(position)
        self._enter(position)

    def _enter(self, position: Position) -> None:
        """Go on in the compacted ledger if it reaches ``position``."""
        # The horizon is read from the document alone, so a cursor behind it opens nothing. The ledger
        # is compared again: another compaction may have replaced it between the two.
        ledger = None
        if self._ledgers.horizon >= position:
            ledger = self._ledgers.open()
        if ledger is not None and ledger.horizon >= position:
            self._wanted = position
            self._ledger, self._horizon = ledger, ledger.horizon
            self._number = ledger.number_at(position)
        elif ledger is not None:
            ledger.close()

    def _close_ledger(self) -> None:
        ledger, self._ledger, self._block = self._ledger, None, None
        self._row = 0
        if ledger is not None:
            ledger.close()

    def read(self, max_entries: int, max_messages: int, max_bytes: int) -> list[EntryView]:
        """See `Cursor`. About 2 us per entry of the compacted ledger."""
        # Entries of the compacted ledger until its end, then the log. In the log one read at a time
        # is compared with what was expected, because trimming may take away what comes next, and
        # compaction has kept it.
        while True:
            while self._ledger is not None:
                block = self._next_block()
                if block is not None:
                    views_of_block = self._read_block(block, max_entries, max_messages, max_bytes)
                    if views_of_block:
                        return views_of_block
            expected = self._raw.position
            views = self._raw.read(max_entries, max_messages, max_bytes)
            reached = views[0].ledger_id if views else self._raw.position.ledger_id
            if not self._has_lost(expected, reached):
                return views
            self._enter(expected)
            if self._ledger is None:  # what is lost was not compacted
                return views

    def _has_lost(self, expected: Position, ledger_id: int) -> bool:
        """Whether entries were trimmed between where the log was read last and the ledger it came to now."""
        # The same ledger: nothing was jumped over. A ledger that is still retained was not trimmed
        # either.
        if ledger_id <= expected.ledger_id:
            return False
        if expected.ledger_id >= self._log.trimming.first_retained:
            return False
        # Its own ledger was read to the end if what follows it says so.
        return self._log.ended_before(ledger_id) != expected.previous()

    def _next_block(self) -> Block | None:
        """The block that is read; None, and on to the log, behind the last one."""
        ledger, block = self._ledger, self._block
        assert ledger is not None
        # A damaged block is reported. What the log still has of it is read there, and so is everything
        # behind it, as by a reader that has come to the log; what was trimmed is stepped over.
        while block is None or self._row >= block.rows:
            if self._number >= len(ledger.places):
                # On behind the horizon, or behind a seek that went further than the last block.
                self._close_ledger()
                self._raw.seek(max(self._horizon.next(), self._wanted))
                return None
            self._row = 0
            try:
                block = self._block = ledger.block(self._number)
            except CorruptionError as e:
                place = Position(*ledger.places[self._number].first)
                self._ledgers.report_block(e, place, self._horizon)
                self._number += 1
                retained = Position(self._log.trimming.first_retained, 0)
                in_log = max(place, self._wanted, retained)
                if in_log < self._end_of_block(ledger, self._number - 1):
                    self._close_ledger()
                    self._raw.seek(in_log)
                    return None
                continue
            self._number += 1
            self._skip_to(block)
        return block

    def _end_of_block(self, ledger: CompactedLedger, number: int) -> Position:
        """Behind the last entry that a block stands for, of those that were compacted away, too."""
        last = number == len(ledger.places) - 1
        return ledger.horizon.next() if last else Position(*ledger.places[number + 1].first)

    def _skip_to(self, block: Block) -> None:
        ids, wanted = block.ids, self._wanted
        # Only the block in which a seek ended has rows before the place.
        if (ids.ledgers[0], ids.entries[0]) < wanted:
            row = 0
            while row < block.rows and (ids.ledgers[row], ids.entries[row]) < wanted:
                row += 1
            self._row = row

    def _read_block(
        self, block: Block, max_entries: int, max_messages: int, max_bytes: int
    ) -> list[EntryView]:
        views: list[EntryView] = []
        for view, row in block.entries(self._row):
            # At least one entry, whatever the maxima: a reader with less room could not get on.
            views.append(view)
            self._row = row
            max_entries -= 1
            max_messages -= view.count
            max_bytes -= view.offsets[-1] - view.offsets[0]
            if max_entries <= 0 or max_messages <= 0 or max_bytes <= 0:
                break
        if views:
            self._wanted = Position(views[-1].ledger_id, views[-1].entry_id + 1)
        return views

    def take_block(self) -> Block | None:
        """The whole of the next block, if the cursor stands before the horizon, at its begin."""
        # For whole columns. In the middle of a block rows are given one by one.
        if self._ledger is None or (self._block is not None and 0 < self._row < self._block.rows):
            return None
        block = self._next_block()
        if block is None or self._row:
            return None
        self._row = block.rows
        self._wanted = Position(block.ids.ledgers[-1], block.ids.entries[-1] + 1)
        return block

    def read_spans(self, ledger_id: int, spans: Sequence[tuple[int, int]], max_bytes: int) -> list[EntryView]:
        """See `Cursor`: always of the log."""
        return self._raw.read_spans(ledger_id, spans, max_bytes)
