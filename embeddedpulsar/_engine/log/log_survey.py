"""Sizes, times and counts of a log by its indexes, for those that only look.

The sequence ids in the log by producer name: deduplication needs them after a producer died.

The figures of a managed ledger: its segments, and their sums.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate

from embeddedpulsar._engine.filenames import index_path, log_path
from embeddedpulsar._engine.format.control import TopicWord, split_tail
from embeddedpulsar._engine.format.entry import decode
from embeddedpulsar._engine.format.entry_decoder import METADATA
from embeddedpulsar._engine.format.frame import (
    FIRST_FRAME_OFFSET,
    FLAG_FIELDS,
    FLAG_SEQUENCE_IDS,
    HEADER,
    HEADER_SIZE,
    KIND_ENTRY,
    MAGIC,
    MIN_FRAME_SIZE,
    TRAILER,
    TRAILER_SIZE,
    FrameHeader,
    read_header,
    verify_body,
)
from embeddedpulsar._engine.log.log_view import LogView
from embeddedpulsar._engine.log.segment import Segment
from embeddedpulsar._engine.log.segment_reader import EntryCursor
from embeddedpulsar._engine.log.segment_snapshot import SegmentInfo
from embeddedpulsar._engine.log.segments import ClosedLedger
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.message_id import Isolation, Position
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Any, Final

_ATTEMPTS: Final = 100
_EVERYTHING: Final = Isolation.EVERYTHING
"""A transaction that was aborted has used its sequence ids."""
_WORTH_A_LOOK_UP: Final = 200
"""Entries whose slots are read in the time in which two of them are looked up singly."""


class LedgerFigures(NamedTuple):
    """What one retained ledger holds.

    Attributes:
        base_publish_ms: nothing in it was published before that.
    """

    ledger_id: int
    entries: int
    messages: int
    size: int
    base_publish_ms: int


class Appended(NamedTuple):
    """What was ever appended; after a recovery of the control words, what was retained then, and since."""

    entries: int
    messages: int
    size: int


class Behind(NamedTuple):
    """What of the retained entries stands behind a position.

    Attributes:
        messages: how many messages.
        size: bytes of their frames.
        published_ms: when the first of the entries was published; 0 if there is none.
    """

    messages: int
    size: int
    published_ms: int


class LogSurvey:
    """Sizes, times and counts of one log, from the chain of ledgers and the indexes.

    Role: answers those that only look; no entry is read. Sizes are those of frames.

    The ledgers are determined once for each state of the log, so that one survey answers many questions.
    Callers: any thread; takes no lock, unless an index is damaged and derived again.
    """

    def __init__(self, view: LogView, readable: LogView | None = None) -> None:
        self._view: Final = view
        self._readable: Final = readable or view
        self._known: tuple[int, int, list[LedgerFigures]] | None = None

    def ledgers(self) -> list[LedgerFigures]:
        """The retained ledgers, oldest first. The list is not to be changed."""
        # The words before the ledgers: then what is kept is never older than them.
        words, known = self._view.words, self._known
        tail, trim = words[TopicWord.TAIL], words[TopicWord.TRIM]
        if known is None or known[:2] != (tail, trim):
            known = self._known = (tail, trim, self._ledgers(self._view))
        return known[2]

    def readable(self) -> list[LedgerFigures]:
        """The same, as far as the log can be read: up to the first entry that waits for a transaction."""
        max_read = self._view.max_read
        if max_read is None or max_read.horizon() is None:
            return self.ledgers()
        return self._ledgers(self._readable)

    def _ledgers(self, view: LogView) -> list[LedgerFigures]:
        chain = view.chain()
        figures = [
            LedgerFigures(
                closed.ledger_id,
                closed.last_entry_id + 1,
                closed.messages,
                max(0, closed.end_offset - FIRST_FRAME_OFFSET),
                closed.base_publish_ms,
            )
            for closed in chain.closed
        ]
        if chain.tail_ledger:
            # The tail's ledger grows while it is looked at: count, messages and size are those of one
            # end.
            last, end = view.extent(chain.tail_ledger)
            messages = _or_zero(view.messages_through, chain.tail_ledger, last)
            size = max(0, end - FIRST_FRAME_OFFSET)
            tail = LedgerFigures(chain.tail_ledger, last + 1, messages, size, chain.tail_base_publish_ms)
            figures.append(tail)
        return figures

    def closed(self) -> tuple[ClosedLedger, ...]:
        """The retained ledgers that another one follows, oldest first."""
        return self._view.chain().closed

    def appended(self) -> Appended:
        """What was ever appended, of one moment."""
        words = self._view.words
        closed = words[TopicWord.TOTAL_ENTRIES], words[TopicWord.TOTAL_MESSAGES], words[TopicWord.TOTAL_BYTES]
        # Totals of closed ledgers and figures of the tail's must be of one moment: a roll between the
        # two moves a ledger from one to the other. Each attempt fails only if a roll happened during
        # it.
        for _ in range(_ATTEMPTS):
            ledgers = self.ledgers()
            tail = ledgers[-1] if ledgers else LedgerFigures(0, 0, 0, 0, 0)
            before, closed = (
                closed,
                (
                    words[TopicWord.TOTAL_ENTRIES],
                    words[TopicWord.TOTAL_MESSAGES],
                    words[TopicWord.TOTAL_BYTES],
                ),
            )
            if before == closed and words[TopicWord.TAIL] >> 32 == tail.ledger_id:
                break
        entries, messages, size = closed
        return Appended(entries + tail.entries, messages + tail.messages, size + tail.size)

    def behind(self, position: Position) -> Behind:
        """The entries behind ``position`` that can be read: one slot of an index tells the rest.

        Where that cannot be read, all of its ledger counts, from when it was begun.
        """
        messages = size = published_ms = 0
        for segment in self.readable():
            entry_id = max(position.entry_id + 1, 0) if segment.ledger_id == position.ledger_id else 0
            if segment.ledger_id < position.ledger_id or entry_id >= segment.entries:
                continue
            messages += segment.messages
            size += segment.size
            if published_ms:
                continue
            try:
                slot = self._view.slot(segment.ledger_id, entry_id)
            except (FileNotFoundError, CorruptionError):  # lost or trimmed meanwhile
                published_ms = max(0, segment.base_publish_ms)
                continue
            published_ms = segment.base_publish_ms + slot.publish_delta_ms
            if entry_id:
                messages = max(0, messages - slot.messages + slot.count)
                size -= max(0, min(slot.offset - FIRST_FRAME_OFFSET, segment.size))
        return Behind(messages, size, published_ms)

    def bytes_after(self, position: Position) -> int:
        """Bytes of the retained entries behind ``position`` that can be read."""
        view, chain = self._readable, self._readable.chain()
        ends = {
            closed.ledger_id: closed.end_offset
            for closed in chain.closed
            if closed.ledger_id >= position.ledger_id
        }
        if chain.tail_ledger >= position.ledger_id and chain.tail_ledger:
            ends[chain.tail_ledger] = view.end_of(chain.tail_ledger)
        size = sum(max(0, end - FIRST_FRAME_OFFSET) for end in ends.values())
        # Of the ledger with the position only what lies behind it counts.
        if position.ledger_id in ends and position.entry_id >= 0:
            end = ends[position.ledger_id]
            last, _ = view.extent(position.ledger_id)
            start = end
            if position.entry_id < last:
                start = _or_zero(view.offset_of, position.ledger_id, position.entry_id + 1)
            size -= max(0, min(start, end) - FIRST_FRAME_OFFSET)
        return size

    def last_before_bytes(self, max_bytes: int) -> Position | None:
        """The first entry behind which there are ``max_bytes`` bytes at most; None if all are as few."""
        view = self._view
        # From the end backwards; the ledger in which the bytes run out is searched by the offsets in
        # its index.
        for ledger in reversed(self.readable()):
            if ledger.size > max_bytes:
                end = FIRST_FRAME_OFFSET + ledger.size

                def end_of(entry_id: int, end: int = end, ledger: LedgerFigures = ledger) -> int:
                    is_last = entry_id + 1 >= ledger.entries
                    return end if is_last else view.offset_of(ledger.ledger_id, entry_id + 1)

                entry_id = bisect_left(range(ledger.entries), end - max_bytes, key=end_of)
                return Position(ledger.ledger_id, entry_id)
            max_bytes -= ledger.size
        return None

    def messages_in(self, ledger_id: int, runs: Sequence[tuple[int, int]]) -> int | None:
        """Messages in runs of entries of one ledger, given by first and last, ascending; there is one.

        Returns:
            None if looking up each run costs less, or the index does not say.
        """
        start, stop = runs[0][0], runs[-1][1] + 1
        # Runs that lie far apart: two look-ups each cost less than reading all slots between them.
        if stop - start >= _WORTH_A_LOOK_UP * len(runs):
            return None
        try:
            columns = self._view.slots(ledger_id, start, stop)
        except (FileNotFoundError, CorruptionError):
            return None
        # Slots have the messages up to and including an entry. The first value is what came before
        # the first of them.
        through = [columns.messages[0] - columns.counts[0], *columns.messages]
        return sum(through[last + 1 - start] - through[first - start] for first, last in runs)

    def entries_after(self, position: Position) -> int:
        """Retained entries behind ``position`` that can be read."""
        entries = 0
        for ledger in self.readable():
            if ledger.ledger_id > position.ledger_id:
                entries += ledger.entries
            elif ledger.ledger_id == position.ledger_id:
                entries += max(0, ledger.entries - position.entry_id - 1)
        return entries

    def published_after(self, position: Position) -> int:
        """Publish time of the first retained entry behind ``position`` that can be read, in ms; 0 if there is
        none."""
        view = self._view
        for ledger in self.readable():
            entry_id = position.entry_id + 1 if ledger.ledger_id == position.ledger_id else 0
            # The first ledger from there on that has such an entry.
            if ledger.ledger_id >= position.ledger_id and 0 <= entry_id < ledger.entries:
                try:
                    return ledger.base_publish_ms + view.slot(ledger.ledger_id, entry_id).publish_delta_ms
                except (FileNotFoundError, CorruptionError):
                    return max(0, ledger.base_publish_ms)  # lost or trimmed meanwhile
        return 0

    def complete_since(self) -> int:
        """Everything that was published at this time or later, in ms, is retained; 0 if everything is."""
        for ledger in self.ledgers():
            try:
                # Only the oldest ledger that can be read decides: if nothing was trimmed before it,
                # everything is there.
                return ledger.base_publish_ms if self._view.trimmed_before(ledger.ledger_id) else 0
            except (FileNotFoundError, CorruptionError):
                continue
        return 0

    def messages(self) -> int:
        """Retained messages that can be read."""
        total = 0
        for ledger in self.readable():
            aborted = self._aborted_in(ledger)
            total += self._sums(ledger, aborted)[-1] if aborted else ledger.messages
        return total

    def _aborted_in(self, ledger: LedgerFigures) -> Sequence[int]:
        max_read = self._view.max_read
        if max_read is None or max_read.is_plain:
            return ()
        return max_read.aborted_in(ledger.ledger_id, ledger.entries)

    def _sums(self, ledger: LedgerFigures, aborted: Sequence[int]) -> list[int]:
        """Messages up to and including each entry of a ledger, which has some, without those that were
        aborted."""
        counts = self._view.slots(ledger.ledger_id, 0, ledger.entries).counts
        for entry_id in aborted:
            counts[entry_id] = 0
        return list(accumulate(counts))

    def nth_message(self, number: int) -> tuple[Position, int] | None:
        """The entry with the retained message of that number, of those that can be read, counted from 0, and
        its index there; None if there are not as many."""
        view = self._view
        for ledger in self.readable():
            aborted = self._aborted_in(ledger)
            if aborted:
                sums = self._sums(ledger, aborted)
                if number < sums[-1]:
                    entry_id = bisect_right(sums, number)
                    before = sums[entry_id - 1] if entry_id else 0
                    return Position(ledger.ledger_id, entry_id), number - before
                number -= sums[-1]
                continue
            # Within the ledger by binary search: message counts in the slots rise.
            if number < ledger.messages:

                def through(entry_id: int, ledger_id: int = ledger.ledger_id) -> int:
                    return view.messages_through(ledger_id, entry_id)

                entry_id = bisect_left(range(ledger.entries), number + 1, key=through)
                return Position(ledger.ledger_id, entry_id), number - through(entry_id - 1)
            number -= ledger.messages
        return None


def _or_zero(ask: Callable[[int, int], int], ledger_id: int, entry_id: int) -> int:
    """What a view answers; 0 if the ledger was lost or trimmed meanwhile."""
    try:
        return ask(ledger_id, entry_id)
    except (FileNotFoundError, CorruptionError):
        return 0


_PROGRESS_EVERY: Final = 1 << 16
_NAME_AT: Final = HEADER_SIZE + METADATA.size
_OWN_IDS: Final = FLAG_SEQUENCE_IDS | FLAG_FIELDS
"""Of an entry without these, the highest id follows from the first."""
_ENTRIES_A_LOOK: Final = 256
_BYTES_A_LOOK: Final = 8 << 20

Progress = Callable[[int], object]


class SequenceScan:
    """The highest sequence id of each producer in a stretch of the log.

    Role: goes from the end to the front, by the lengths that frames end with, and looks at their metadata
    alone: some 1 us per entry. What the answer rests on is verified. Where only certain names are wanted it
    stops when each was met once, because their ids rise while duplicates are dropped. Where frames do not fit
    together, or the answer would rest on damage, it reads the ledger forward, as consumers do.
    Callers: any thread, without a lock: what lies below a tail word never changes.
    """

    def __init__(
        self, view: LogView, wanted: Iterable[str] | None = None, on_progress: Progress | None = None
    ) -> None:
        self._view: Final = view
        self._left: Final = None if wanted is None else {name.encode() for name in wanted}
        self._on_progress: Final = on_progress
        self._found: Final[dict[bytes, int]] = {}
        self._entries = 0

    def run(self, end_word: int, floor_word: int) -> dict[str, int]:
        """Look at the entries before ``end_word``, down to ``floor_word`` (both tail words)."""
        # From the newest ledger to the oldest, so that the first id that is met of a producer is its
        # highest.
        ledger_id, end = split_tail(end_word)
        floor_ledger, floor = split_tail(floor_word)
        while ledger_id and ledger_id >= floor_ledger and self._left != set():
            with contextlib.suppress(FileNotFoundError):  # trimmed, or lost and reported
                self._look_at(ledger_id, floor if ledger_id == floor_ledger else FIRST_FRAME_OFFSET, end)
            before = self._view.chain().before(ledger_id)
            if before is None:
                break
            ledger_id, end = before.ledger_id, before.end_offset
        return {name.decode(errors="replace"): highest for name, highest in self._found.items()}

    def _look_at(self, ledger_id: int, floor: int, end: int) -> None:
        try:
            segment = self._view.segment(ledger_id)
            # Backwards costs 1 us an entry and needs each frame's trailer. Damage sends it forward
            # through this one ledger, where the cursor reports and steps over it.
            self._read_back(segment, max(floor, FIRST_FRAME_OFFSET), end)
        except CorruptionError:
            self._read_forward(ledger_id)

    def _read_back(self, segment: Segment, floor: int, end: int) -> None:
        data: Any = segment.data  # a map: its slices are bytes
        wanted, highest_ids = self._left, self._found
        header, metadata, trailer = HEADER.unpack_from, METADATA.unpack_from, TRAILER.unpack_from
        while end > floor:
            # The trailer is compared with the header it leads to; bodies are read only of frames that
            # the answer rests on.
            zero, length = trailer(data, end - TRAILER_SIZE)
            start = end - length
            if zero or length < MIN_FRAME_SIZE or length & 7 or start < FIRST_FRAME_OFFSET:
                raise CorruptionError(reason="no frame ends here", offset=end)
            own, _, _, _, magic, kind, _, flags, _, _, count, _, _ = header(data, start)
            if own != length or magic != MAGIC:
                raise CorruptionError(reason="no frame starts here", offset=start)
            first, _, _, _, _, name_length, _, _ = metadata(data, start + HEADER_SIZE)
            name = data[start + _NAME_AT : start + _NAME_AT + name_length]
            # A part of a message that is not the last counts 0 messages, and says nothing.
            if count and kind == KIND_ENTRY and (wanted is None or name in wanted):
                highest = first + count - 1
                if flags & _OWN_IDS:
                    highest = self._highest_of(segment, start, end)
                if highest > highest_ids.get(name, -1):
                    # By an id that is damage, what was never stored would be taken for stored.
                    self._verified(segment, start, end)
                    highest_ids[name] = highest
                # With names given it stops once each was met: ids rise while duplicates are dropped.
                if wanted is not None:
                    wanted.discard(name)
                    if not wanted:
                        return
            end = start
            self._count()

    def _count(self) -> None:
        self._entries += 1
        if self._on_progress is not None and not self._entries % _PROGRESS_EVERY:
            self._on_progress(self._entries)

    @staticmethod
    def _verified(segment: Segment, start: int, end: int) -> FrameHeader:
        header = read_header(segment.data, start, end)
        verify_body(segment.data, start, header)
        return header

    def _highest_of(self, segment: Segment, start: int, end: int) -> int:
        header = self._verified(segment, start, end)
        body = bytes(segment.data[start + HEADER_SIZE : end - TRAILER_SIZE])
        return decode(header, body, segment.ledger_id).highest_sequence_id()

    def _read_forward(self, ledger_id: int) -> None:
        cursor = EntryCursor(self._view, Position(ledger_id, 0), inclusive=True, isolation=_EVERYTHING)
        while views := cursor.read(_ENTRIES_A_LOOK, 1 << 30, _BYTES_A_LOOK):
            # The cursor goes on into the next ledger; there this scan has been already.
            for view in views:
                if view.ledger_id != ledger_id:
                    self._note_found()
                    return
                name = view.producer_name.encode()
                # Forwards the highest id comes last, so a name is followed to the end of the ledger
                # when it was met, too.
                if view.count and (self._left is None or name in self._left or name in self._found):
                    self._found[name] = max(self._found.get(name, -1), view.highest_sequence_id())
                self._count()
        self._note_found()

    def _note_found(self) -> None:
        if self._left is not None:
            self._left.difference_update(self._found)


def segment_infos(view: LogView) -> list[SegmentInfo]:
    """The retained segments, oldest first, with what they hold now."""
    chain = view.chain()
    directory = view.directory
    infos = []
    # Nothing in a ledger was published after the next one began.
    bases = [ledger.base_publish_ms for ledger in chain.closed[1:]] + [chain.tail_base_publish_ms]
    # The time of the last entry is not stored for a closed ledger; the base of the next one is an
    # upper bound.
    for ledger, latest in zip(chain.closed, bases, strict=False):
        infos.append(
            SegmentInfo(
                ledger.ledger_id,
                log_path(directory, ledger.ledger_id),
                index_path(directory, ledger.ledger_id),
                ledger.end_offset,
                ledger.last_entry_id + 1,
                ledger.messages,
                ledger.base_publish_ms,
                latest,
            )
        )
    ledger_id = chain.tail_ledger
    if ledger_id:
        last, end = view.extent(ledger_id)
        last_ms, messages = _ending(view, ledger_id, last, chain.tail_base_publish_ms)
        infos.append(
            SegmentInfo(
                ledger_id,
                log_path(directory, ledger_id),
                index_path(directory, ledger_id),
                end,
                last + 1,
                messages,
                chain.tail_base_publish_ms,
                last_ms,
            )
        )
    return infos


def _ending(view: LogView, ledger_id: int, last: int, base_ms: int) -> tuple[int, int]:
    """Publish time of the last entry of the tail's ledger, and its messages; none if it is unreadable."""
    if last < 0:
        return base_ms, 0
    try:
        slot = view.slot(ledger_id, last)
    except (FileNotFoundError, CorruptionError):
        return base_ms, 0
    return base_ms + slot.publish_delta_ms, slot.messages


class LedgerStatistics(NamedTuple):
    """A snapshot. Counts without "here" are the topic's, over all processes.

    Attributes:
        ledgers: retained ledgers.
        retained_entries, retained_messages, retained_bytes: what they hold; bytes of frames.
        total_entries, total_messages, total_bytes: ever appended, as far as the control words know: after a
            reboot they start again at what is retained, and a process that died at the instant it started a
            ledger may have counted the one before twice.
        last_publish_ms: publish time of the last entry; 0 without one.
        is_synced: whether everything appended is durable.
        recoveries: holders of the topic lock that died inside, plus recoveries after a reboot.
        rolls_here, syncs_here: done by this process.
        damage_here: stretches of unreadable log this process met.
    """

    ledgers: int
    retained_entries: int
    retained_messages: int
    retained_bytes: int
    total_entries: int
    total_messages: int
    total_bytes: int
    last_publish_ms: int
    is_synced: bool
    recoveries: int
    rolls_here: int
    syncs_here: int
    damage_here: int


def gathered(
    segments: list[SegmentInfo], words: memoryview, rolls_here: int, syncs_here: int, damage_here: int
) -> LedgerStatistics:
    """The statistics of a topic whose retained segments and control words are given."""
    bytes_of = [max(0, segment.end_offset - FIRST_FRAME_OFFSET) for segment in segments]
    tail = segments[-1] if segments else None
    return LedgerStatistics(
        ledgers=len(segments),
        retained_entries=sum(segment.entries for segment in segments),
        retained_messages=sum(segment.messages for segment in segments),
        retained_bytes=sum(bytes_of),
        total_entries=words[TopicWord.TOTAL_ENTRIES] + (tail.entries if tail else 0),
        total_messages=words[TopicWord.TOTAL_MESSAGES] + (tail.messages if tail else 0),
        total_bytes=words[TopicWord.TOTAL_BYTES] + (bytes_of[-1] if bytes_of else 0),
        last_publish_ms=words[TopicWord.LAST_PUBLISH_MS],
        is_synced=words[TopicWord.SYNCED] >= words[TopicWord.TAIL],
        recoveries=words[TopicWord.RECOVERIES],
        rolls_here=rolls_here,
        syncs_here=syncs_here,
        damage_here=damage_here,
    )
