"""Ranges of entries of one segment: planned by places and times, cut, counted and mapped.

A plan freezes the committed ends at the moment it is made; what is published later is not in it. Reading it
later needs no lock and no right to write. What lies where is looked up in the entry index.

Readers of whole logs read by ranges: `plan_segments` makes them of a listing of the committed segments, a
range opens what it lies in, `part_of`, `split` and `head` cut it, and `resumed` says what is behind damage.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from operator import itemgetter

from embeddedpulsar._engine.cold.cold_ledger import is_away
from embeddedpulsar._engine.format.frame import (
    FIRST_FRAME_OFFSET,
    SLOT,
    SLOT_SIZE,
    SLOTS_OFFSET,
    FrameHeader,
    read_header,
    slot_offset,
    verify_body,
)
from embeddedpulsar._engine.log.chain_scan import map_log, scan_log
from embeddedpulsar._engine.log.segment import Segment, find_segment_header
from embeddedpulsar._engine.log.segment_snapshot import Runs, SegmentInfo, is_trimmed
from embeddedpulsar._engine.platform.mapped_file import MappedFile
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.records import TYPE_CHECKING
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from typing import Final


@dataclass(frozen=True, slots=True)
class EntryRange:
    """Entries `first_entry` up to, not including, `end_entry` of one segment; half-open like all ranges here.

    Attributes:
        topic: full name of the topic, or of its partition.
        partition: index of the partition, -1 for none.
        ledger_id: the ledger.
        path, index_path: the files of the segment.
        first_entry, end_entry: ids of the entries.
        first_offset, end_offset: bytes of the segment they lie in.
        skip: messages at the start of the first entry that are left out.
        keep: messages of the last entry (end_entry - 1) that are read; 0 for all of them.
        log_start: the oldest ledger of the log when this was planned; what lay before it was trimmed by then.
        aborted: entries of aborted transactions, which are no messages; those outside of the range count for
            nothing.
    """

    topic: str
    partition: int
    ledger_id: int
    path: str
    index_path: str
    first_entry: int
    end_entry: int
    first_offset: int
    end_offset: int
    skip: int = 0
    keep: int = 0
    log_start: int = 0
    aborted: Runs = ()

    @property
    def size(self) -> int:
        """Bytes of the segment the range covers."""
        return self.end_offset - self.first_offset

    @property
    def directory(self) -> str:
        """The directory of the topic, or of its partition."""
        return os.path.dirname(self.path)

    def segment(self) -> Segment:
        """The segment, mapped with its index. Errors as of `Segment.open`."""
        return Segment.open(self.directory, self.ledger_id)

    def log(self) -> MappedFile:
        """The log of the segment, fetched if it is in a location. Its descriptor is closed: the map stays as
        long as there are slices of it, whatever is trimmed.

        Raises:
            FileNotFoundError: the segment is gone.
            CorruptionError: it is shorter than what was committed.
            ColdReadError, LockTimeout: as of `map_log`.
        """
        mapped = map_log(self.path)
        mapped.close_descriptor()
        # The end was committed when the plan was made, and a segment is never shortened: the file was cut by
        # something else.
        if self.end_offset > mapped.size:
            raise CorruptionError(
                path=self.path,
                reason=f"the segment has {mapped.size} bytes where {self.end_offset} were committed",
                remedy="restore the file from a backup",
            )
        return mapped

    def is_offloaded(self) -> bool:
        """Whether the log is in an offload location and not here."""
        return not os.path.exists(self.path) and is_away(self.directory, self.ledger_id)

    def is_trimmed(self) -> bool:
        """Whether the segment, which is gone, was trimmed, or went with its topic; else its file is lost."""
        return is_trimmed(self.directory, self.ledger_id)


_LATEST = MessageId.latest


@dataclass(frozen=True, slots=True)
class Bounds:
    """A half-open piece of a topic: from `start` on, up to and without `end`; None leaves a side open.

    Attributes:
        start, end: message ids.
        start_ms, end_ms: publish times in ms since the epoch.
    """

    start: MessageId | None = None
    end: MessageId | None = None
    start_ms: int | None = None
    end_ms: int | None = None


EVERYTHING = Bounds()


def plan_segments(
    segments: list[SegmentInfo], name: TopicName, bounds: Bounds = EVERYTHING
) -> list[EntryRange]:
    """The entries of one topic or partition within `bounds`, one range for each segment, in order.

    Args:
        segments: a listing of the committed segments. Those that were trimmed since it was made are left out,
            as if they had been trimmed before.
        name: of the topic or partition.
        bounds: from where to where.

    Raises:
        FileNotFoundError: a segment is gone, and was not trimmed.
    """
    ranges: list[EntryRange] = []
    # The start is the first segment that was listed, also where bounds leave it out.
    log_start = segments[0].ledger_id if segments else 0
    # Every segment of the log is looked at, but only those that the bounds can reach are opened.
    for info in segments:
        if info.entries and _may_hold(info, bounds):
            try:
                planned = _plan_segment(info, name, bounds)
            except FileNotFoundError:
                # It is gone, and was not trimmed: a file of the store was removed by hand.
                if not is_trimmed(os.path.dirname(info.path), info.ledger_id):
                    raise
                # Retention went on while the plan was made. With this segment all before it went, so the plan
                # begins behind it, as if it had been made now.
                ranges.clear()  # trimming begins with the oldest
                log_start = info.ledger_id + 1
                continue
            if planned is not None:
                aborted = _within(info.aborted, planned.first_entry, planned.end_entry)
                ranges.append(replace(planned, log_start=log_start, aborted=aborted))
    return ranges


def part_of(planned: EntryRange, first: int, end: int) -> EntryRange | None:
    """The entries of a range from `first` up to, not including, `end`; None if there are none.

    Raises:
        FileNotFoundError: the segment is gone.
    """
    first, end = max(first, planned.first_entry), min(end, planned.end_entry)
    if first >= end:
        return None
    if (first, end) == (planned.first_entry, planned.end_entry):
        return planned
    lookup = EntryLookup.of(planned)
    return replace(
        planned,
        first_entry=first,
        end_entry=end,
        first_offset=lookup.offset_of(first),
        end_offset=lookup.offset_of(end),
        # The cuts within entries belong to the ends of the range; a new end lies between two entries.
        skip=planned.skip if first == planned.first_entry else 0,
        keep=planned.keep if end == planned.end_entry else 0,
    )


def split(planned: EntryRange, most_bytes: int) -> list[EntryRange]:
    """Cut a range at entry boundaries into pieces of about `most_bytes`, equal in size.

    One whose segment is gone stays whole: reading it raises the error.
    """
    # Equal pieces, so that no task of Spark has a remainder of a few entries alone.
    pieces = -(-planned.size // max(1, most_bytes))
    if pieces <= 1:
        return [planned]
    lookup = EntryLookup.of(planned)
    cuts = [(planned.first_entry, planned.first_offset)]
    try:
        for i in range(1, pieces):
            entry, offset = lookup.entry_at_offset(planned.first_offset + planned.size * i // pieces)
            # Entries larger than a piece would give cuts that coincide.
            if cuts[-1][0] < entry < planned.end_entry:
                cuts.append((entry, offset))
    except FileNotFoundError:
        return [planned]
    cuts.append((planned.end_entry, planned.end_offset))
    last = len(cuts) - 2
    # `skip` and `keep` stay with the piece that has the first and the last entry.
    return [
        replace(
            planned,
            first_entry=cuts[i][0],
            first_offset=cuts[i][1],
            end_entry=cuts[i + 1][0],
            end_offset=cuts[i + 1][1],
            skip=planned.skip if i == 0 else 0,
            keep=planned.keep if i == last else 0,
            aborted=_within(planned.aborted, cuts[i][0], cuts[i + 1][0]),
        )
        for i in range(last + 1)
    ]


def _within(runs: Runs, first: int, end: int) -> Runs:
    """What of runs lies in entries `first` to `end` - 1. A range travels to other processes without more."""
    inside = [(max(first, start), min(end, stop)) for start, stop in runs if start < end and stop > first]
    return tuple(inside)


def _may_hold(info: SegmentInfo, bounds: Bounds) -> bool:
    start, end = bounds.start, bounds.end
    # By what the listing says alone, without opening the segment. `latest` as a start lies behind everything;
    # as an end it has a ledger id beyond all others.
    return not (
        (start is not None and start != _LATEST and start.ledger_id() > info.ledger_id)
        or start == _LATEST
        or (end is not None and end.ledger_id() < info.ledger_id)
        or (bounds.start_ms is not None and info.last_publish_ms < bounds.start_ms)
        or (bounds.end_ms is not None and info.base_publish_ms >= bounds.end_ms)
    )


def _plan_segment(info: SegmentInfo, name: TopicName, bounds: Bounds) -> EntryRange | None:
    first, last, skip, keep = 0, info.entries, 0, 0
    lookup = EntryLookup(info.path, info.ledger_id, info.end_offset, info.entries)
    start, end = bounds.start, bounds.end
    if start is not None and start.ledger_id() == info.ledger_id:
        # A start in this ledger. An entry id of -1 stands before its first entry.
        first = max(0, start.entry_id())
        skip = max(0, start.batch_index()) if start.entry_id() >= 0 else 0
    if end is not None and end.ledger_id() == info.ledger_id:
        # The end is exclusive: up to and without the message. With a batch index, some messages of its entry
        # are read, so that entry is part of the range.
        last = min(last, max(0, end.entry_id()))
        keep = max(0, end.batch_index()) if 0 <= end.entry_id() < info.entries else 0
        last += keep > 0
    if bounds.start_ms is not None:
        first_timed = lookup.first_published(bounds.start_ms)
        # A bound by time that lies behind the one by id replaces it, and with it the cut within its entry.
        if first_timed > first:
            first, skip = first_timed, 0
    if bounds.end_ms is not None:
        end_timed = lookup.first_published(bounds.end_ms)
        if end_timed < last:
            last, keep = end_timed, 0
    if first >= last:
        return None
    return EntryRange(
        name.full,
        name.partition,
        info.ledger_id,
        info.path,
        info.index_path,
        first,
        last,
        lookup.offset_of(first),
        lookup.offset_of(last),
        skip,
        keep,
    )


class EntryLookup:
    """Finds entries of one segment by id, time or byte, by its index as far as the frames agree with it.

    The index promises nothing. A search in it is believed when the frames it ends between say the same;
    otherwise all frames are read instead.
    """

    def __init__(self, path: str, ledger_id: int, end_offset: int, entries: int) -> None:
        self._directory, self._ledger_id = os.path.dirname(path), ledger_id
        self._end, self._entries = end_offset, entries
        self._opened: Segment | None = None
        self._frames: list[tuple[int, int, int]] | None = None

    @classmethod
    def of(cls, planned: EntryRange) -> EntryLookup:
        """That of the segment of a range, up to the end of the range."""
        return cls(planned.path, planned.ledger_id, planned.end_offset, planned.end_entry)

    def offset_of(self, entry: int) -> int:
        """Where entry `entry` starts; the end of the segment behind the last."""
        if entry >= self._entries:
            # Two places are known without the index.
            return self._end
        if entry == 0:
            return FIRST_FRAME_OFFSET
        frame = self._frame(entry)
        return frame[0] if frame is not None else self._scanned()[entry][0]

    def first_published(self, ms: int) -> int:
        """The first entry published at or after `ms`; the number of entries if there is none."""
        segment = self._segment()
        base = segment.header.base_publish_ms
        # The search in the index is believed only if the frames on both sides of its result say the same; a
        # damaged slot leads elsewhere.
        try:
            entry = segment.index.first_published_at(ms - base, self._entries)
        except (CorruptionError, FileNotFoundError):
            entry = -1
        before = self._frame(entry - 1) if entry > 0 else None
        behind = self._frame(entry) if 0 <= entry < self._entries else None
        if (entry == 0 or (before is not None and before[1].publish_time < ms)) and (
            entry == self._entries or (behind is not None and behind[1].publish_time >= ms)
        ):
            return entry
        # What cannot be believed costs a scan of the segment.
        times = [published for _offset, published, _messages in self._scanned()]
        return next((i for i, published in enumerate(times) if published >= ms), len(times))

    def entry_at_offset(self, offset: int) -> tuple[int, int]:
        """The first entry that starts at or behind byte `offset`, and where."""
        # A binary search; each step checks the frame at its slot.
        low, high = 0, self._entries
        while low < high:
            middle = (low + high) // 2
            if self.offset_of(middle) < offset:
                low = middle + 1
            else:
                high = middle
        return low, self.offset_of(low)

    def messages_before(self, entry: int) -> int:
        """Messages of the segment before entry `entry`."""
        if entry == 0:
            return 0
        # The slot of an entry counts the messages up to it and with it.
        if self._frame(entry - 1) is not None:  # so its slot is the frame's
            return self._segment().index.slot(entry - 1).messages
        return self._scanned()[entry - 1][2]

    def publish_ms(self, entry: int) -> int:
        """When entry `entry` was published."""
        frame = self._frame(entry)
        return frame[1].publish_time if frame is not None else self._scanned()[entry][1]

    def _segment(self) -> Segment:
        if self._opened is None:
            self._opened = Segment.open(self._directory, self._ledger_id)
        return self._opened

    def _frame(self, entry: int) -> tuple[int, FrameHeader] | None:
        try:
            return self._segment().frame_of(entry, self._end)
        except (CorruptionError, FileNotFoundError):
            return None

    def _scanned(self) -> list[tuple[int, int, int]]:
        """(offset, publish time, messages up to it) of every entry, from the frames; losses at the end have
        the last time."""
        if self._frames is None:
            segment = self._segment()
            header, base = segment.header, segment.header.base_publish_ms
            scan = scan_log(segment.path, chain_seed=header.chain_seed, base_publish_ms=base, end=self._end)
            # As the index has them: offset divided by 8, ms since the base of the segment, messages so far.
            slots = [(slot[0] << 3, base + slot[1], slot[2]) for slot in SLOT.iter_unpack(scan.slots)]
            lost = (scan.end_offset, scan.last_publish_ms, scan.messages)
            # Entries that were committed and cannot be found any more are all placed at the end, so numbers
            # behind them stay right.
            slots += [lost] * (self._entries - len(slots))
            self._frames = slots[: self._entries]
        return self._frames


def messages_in(planned: EntryRange) -> int:
    """How many messages a range has; every part of a chunked message counts as the index counts it, and
    what was aborted does not."""
    counts = _VisibleCounts(planned)
    last = counts.before(planned.end_entry)
    if planned.keep and not counts.is_aborted(planned.end_entry - 1):
        last = counts.before(planned.end_entry - 1) + planned.keep
    return max(0, last - counts.before(planned.first_entry) - counts.skip)


class _VisibleCounts:
    """Counts the messages of a range, without those of aborted transactions.

    Attributes:
        lookup: in the segment of the range.
        skip: messages of the first entry that are left out; none if it was aborted as a whole.
    """

    def __init__(self, planned: EntryRange) -> None:
        self.lookup: Final = EntryLookup.of(planned)
        self._runs: Final = _within(planned.aborted, planned.first_entry, planned.end_entry)
        # Messages in all runs before each.
        self._sums: Final = [0]
        for first, end in self._runs:
            count = self.lookup.messages_before(end) - self.lookup.messages_before(first)
            self._sums.append(self._sums[-1] + count)
        self.skip: Final = 0 if self.is_aborted(planned.first_entry) else planned.skip

    def before(self, entry: int) -> int:
        """Messages of the segment before entry `entry` of the range, but for those aborted in the range."""
        messages = self.lookup.messages_before(entry)
        run = bisect_left(self._runs, entry, key=_first)
        if run and entry < self._runs[run - 1][1]:  # within a run
            run -= 1
            messages = self.lookup.messages_before(self._runs[run][0])
        return messages - self._sums[run]

    def is_aborted(self, entry: int) -> bool:
        """Whether an entry is of an aborted transaction."""
        run = bisect_right(self._runs, entry, key=_first)
        return bool(run) and entry < self._runs[run - 1][1]


_first: Final = itemgetter(0)


def first_publish_ms(planned: EntryRange) -> int:
    """When the first entry of a range was published."""
    return EntryLookup.of(planned).publish_ms(planned.first_entry)


def head(planned: EntryRange, messages: int, size: int, *, takes_one: bool = False) -> EntryRange | None:
    """The first messages of a range: at most so many, in whole entries of at most `size` bytes together.

    The last entry may be read in part, if the number of messages ends in it.

    Args:
        takes_one: whether the first entry is taken even if it alone is larger than `size`.

    Returns:
        The range itself if all of it fits; None if nothing does.
    """
    counts, first = _VisibleCounts(planned), planned.first_entry
    lookup = counts.lookup
    # Progress: an entry larger than the limit would be left for the next batch of a stream, and for the one
    # after it.
    if takes_one:
        size = max(size, lookup.offset_of(first + 1) - planned.first_offset)
    if messages <= 0 or size <= 0:
        return None
    # Nothing to cut, in the common case of a stream that keeps up.
    if planned.size <= size and messages_in(planned) <= messages:
        return planned
    # Counted from the start of the segment, as the index counts.
    limit = counts.before(first) + counts.skip + messages
    # An entry that is read in part cannot end the range as a whole one.
    low, high = first, planned.end_entry - 1 if planned.keep else planned.end_entry
    while low < high:  # the last entry boundary within both limits
        middle = (low + high + 1) // 2
        if counts.before(middle) <= limit and lookup.offset_of(middle) - planned.first_offset <= size:
            low = middle
        else:
            high = middle - 1
    end, keep = low, 0
    # The first messages of the next entry, where only the number of messages ends in it: bytes are counted in
    # whole entries.
    if low < planned.end_entry and lookup.offset_of(low + 1) - planned.first_offset <= size:
        part = limit - counts.before(low)
        # Not more of the entry than the range itself has.
        if planned.keep and low == planned.end_entry - 1:
            part = min(part, planned.keep)
        # The start of the range may be within the same entry: the part has to reach beyond it.
        if part > (counts.skip if low == first else 0):
            end, keep = low + 1, part
    if end == first:
        return None
    return replace(planned, end_entry=end, end_offset=lookup.offset_of(end), keep=keep)


def resumed(
    planned: EntryRange, view: memoryview, at: int, expected: int
) -> tuple[CorruptionError, int, int]:
    """What is wrong at byte `at` of a range, where entry `expected` should be; and where reading continues.

    Args:
        view: the log up to the end of the range.

    Returns:
        The error, without its place; the offset and the id of the next entry that can be read.
    """
    # Two cases. The header is whole and only the body is damaged: the next frame begins right behind. Or
    # nothing here can be believed: the next place is looked for, first by the index, which is quick and may
    # itself be damaged, then by a scan of all frames, as recovery does it.
    error, header = _diagnose(view, at, planned.end_offset, expected)
    if header is not None:
        return error, at + header.length, expected + 1
    place = _next_readable(planned, view, at, expected, _indexed(planned))
    place = place or _next_readable(planned, view, at, expected, _scanned(planned))
    # Committed bytes behind the last entry that could be counted are at least one entry more.
    return error, *(place or (planned.end_offset, max(planned.end_entry, expected + 1)))


def _diagnose(
    view: memoryview, at: int, end: int, expected: int
) -> tuple[CorruptionError, FrameHeader | None]:
    """What is wrong at `at`, and the header if that much of the frame can be believed."""
    try:
        # In the order of the checks of a reader, so the same one fails, with its reason.
        header = read_header(view, at, end)
    except CorruptionError as error:
        return error, None
    if header.entry_id != expected:
        return CorruptionError(reason=f"entry {header.entry_id} where entry {expected} belongs"), None
    try:
        verify_body(view, at, header)
    except CorruptionError as error:
        return error, header
    # Checksums are right, and yet the reader refused the frame: only its counts are left to be wrong.
    return CorruptionError(reason=f"entry {expected} has no messages"), header


def _indexed(planned: EntryRange) -> bytes:
    """The index slots of all entries up to the end of the range; empty if there is no such index."""
    try:
        # Mapped with the size that the range needs: a shorter index is refused.
        index = MappedFile.open(planned.index_path, writable=False, size=slot_offset(planned.end_entry))
    except (FileNotFoundError, CorruptionError):
        return b""
    slots = bytes(index.view[SLOTS_OFFSET:])
    index.close()
    return slots


def _scanned(planned: EntryRange) -> bytes:
    """The same, derived from all frames of the segment, as recovery would."""
    header = find_segment_header(os.path.dirname(planned.path), planned.ledger_id).header
    scan = scan_log(
        planned.path,
        chain_seed=header.chain_seed,
        base_publish_ms=header.base_publish_ms,
        end=planned.end_offset,
    )
    return bytes(scan.slots)


def _next_readable(
    planned: EntryRange, view: memoryview, at: int, expected: int, slots: bytes
) -> tuple[int, int] | None:
    """The next entry behind `at` whose slot and frame agree; the index alone promises nothing."""
    # Slots of the index, or of a scan, count from the first entry of the segment.
    for entry in range(expected + 1, min(planned.end_entry, len(slots) // SLOT_SIZE)):
        offset, *_, crc = SLOT.unpack_from(slots, SLOT_SIZE * entry)
        offset <<= 3
        # A slot that leads backwards, or out of the range, is damaged.
        if not at < offset < planned.end_offset:
            continue
        try:
            header = read_header(view, offset, planned.end_offset)
        except CorruptionError:
            continue
        # Header checksum and number agree, so it is the entry that the slot means.
        if header.crc == crc and header.entry_id == entry:
            return offset, entry
    return None
