"""Reading the frames of one segment in order: the hot path of every receive (benchmarks/micro/read.py).

Reading a topic's entries in order, without a lock.
"""

from __future__ import annotations

import struct
import weakref
from collections.abc import Iterable, Sequence
from zlib import crc32

from embeddedpulsar._engine.format.control import TopicWord
from embeddedpulsar._engine.format.entry import EntryView, decode
from embeddedpulsar._engine.format.entry_decoder import decode_singles
from embeddedpulsar._engine.format.frame import (
    FIRST_FRAME_OFFSET,
    HEADER_SIZE,
    KIND_ENTRY,
    MIN_FRAME_SIZE,
    TRAILER_SIZE,
    FrameHeader,
    read_header,
    slot_offset,
)
from embeddedpulsar._engine.log.log_view import LogView
from embeddedpulsar._engine.log.segment import Segment
from embeddedpulsar._engine.log.segments import SEGMENTS
from embeddedpulsar.damage import HOLE, Damage
from embeddedpulsar.exceptions import AlreadyClosed, CorruptionError
from embeddedpulsar.message_id import Isolation, Position
from embeddedpulsar.records import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Final

WINDOW: Final = 16 << 10
_SMALL: Final = WINDOW // 4
"""Frames up to here are cut out of one copy of a stretch of the map.

Larger ones are not copied before they are decoded: checksum first (it lets other threads run above 5 KB, and
takes the page faults of a cold file meanwhile), then one copy of the payload. pread would take a fresh buffer
of that size instead, whose page faults alone cost four times as much (docs/decisions).
"""
_UNMAPPED: Final = 32
"""Reads of a segment in a row without a map, before it is mapped in the place of another one."""
_KEPT: Final = 4 << 20
"""Bytes behind the place that stay in the memory of this process. Without that, a process that reads a log
once holds pages of the size of all its segments."""
_MAPPED_AGAIN: Final = 8
"""Segments of which pages that are read again stay: half a gigabyte of the page cache if they are full."""
UNKNOWN_CRC: Final = -1
_UNLIMITED: Final = 1 << 62
_PLACE: Final = struct.Struct("<II")
"""Two fields of the index that lie side by side: the crc of a slot, and the offset in the next."""


class SegmentReader:
    """A place in a segment, and the frames from there on.

    Role: decodes what lies below the limit its caller gives (the tail, or the end of a closed ledger) and
    stops at the first frame that does not verify; the caller decides how to continue.
    Invariants: every frame was checked (header and body checksum, entry id, chain) before an entry of it is
    given out. Entries own their bytes. The window is a copy of bytes below a limit, so it never gets stale.
    The segment is referred to weakly: a reader that rests keeps no file open, and maps it again when it goes
    on.
    Callers: one thread at a time. Takes no lock.
    """

    __slots__ = (
        "_base",
        "_dropped",
        "_home",
        "_length",
        "_segment",
        "_unmapped",
        "_window",
        "crc",
        "entry_id",
        "is_revised",
        "ledger_id",
        "pos",
    )

    def __init__(
        self, segment: Segment, pos: int = FIRST_FRAME_OFFSET, entry_id: int = 0, crc: int = UNKNOWN_CRC
    ) -> None:
        self._segment = weakref.ref(segment)
        self._home = segment.home
        self.ledger_id = segment.ledger_id
        self.is_revised = segment.header.may_have_transactions
        """Whether there may be entries of transactions."""
        self.pos = pos
        self.entry_id = entry_id
        """The entry expected at `pos`."""
        self.crc = segment.header.chain_seed if pos == FIRST_FRAME_OFFSET else crc
        """What that entry must name as the checksum before it; `UNKNOWN_CRC` behind a gap."""
        self._window = b""
        self._base = 0
        self._length = MIN_FRAME_SIZE
        self._unmapped = 0
        self._dropped = pos

    @property
    def segment(self) -> Segment:
        """The segment, mapped again if it was dropped.

        Raises:
            FileNotFoundError: it was trimmed meanwhile, or cannot be used any more: find a place anew.
        """
        # The cache may have dropped it meanwhile. A damaged header is raised as "gone": the cursor
        # then finds a place anew.
        segment = self._segment()
        if segment is None:
            try:
                segment = SEGMENTS.get(self._home, self.ledger_id)
            except CorruptionError as e:
                raise FileNotFoundError(str(e)) from e
            self._segment = weakref.ref(segment)
            self._unmapped = 0
        return segment

    def forget_pages(self) -> None:
        """Take what lies before the place out of the memory of this process, unless it is read again, and few
        segments are mapped: taking pages out and bringing them back is a quarter of the time that large
        messages take."""
        # `given_back` says how far any reader of the process has given pages back: a second reader
        # that is behind it reads them again, and keeps them if few segments are mapped.
        segment = self._segment()
        if segment is not None and (self._dropped >= segment.given_back or len(SEGMENTS) > _MAPPED_AGAIN):
            segment.give_back(self.pos)
        self._dropped = self.pos

    def read_spans(
        self, out: list[EntryView], spans: Iterable[tuple[int, int]], limit: int, max_bytes: int
    ) -> None:
        """Append visible entries, from the first to the last of each span, found where their slots say.

        The slots are not verified: if one is wrong, no frame is found there. Ends early at `max_bytes`, and
        before what is no entry.

        Raises:
            CorruptionError, FileNotFoundError: see `read_into`.
        """
        segment, ledger_id = self.segment, self.ledger_id
        data, slots = segment.data, segment.index.data
        window, base, end = b"", 0, 0
        # Every 4 MiB, or after a jump backwards.
        if not -1 < self.pos - self._dropped < _KEPT:
            self.forget_pages()
        for first, last in spans:
            start, crc = self.pos, self.crc
            # The slot before has the checksum that this entry must name; 0 is of a lost entry, which
            # names nothing.
            if first != self.entry_id:
                before, offset = _PLACE.unpack_from(slots, slot_offset(first) - 4)
                start = offset << 3
                crc = (before or UNKNOWN_CRC) if first else segment.header.chain_seed
            # Spans near each other share one window.
            if not base <= start < end:
                window = bytes(data[start : min(limit, start + WINDOW)])
                base, end = start, start + len(window)
            at, entry_id, self.crc, _ = decode_singles(
                out, window, start - base, last + 1 - first, max_bytes, ledger_id, first, crc
            )
            self.pos, self.entry_id = base + at, entry_id
            # A larger frame, a batch or damage: the general way decides, and fewer entries than
            # expected end the call.
            if entry_id <= last and self.pos < start + max_bytes:  # not all in the window, or a batch
                count = len(out)
                self.read_into(out, limit, last + 1 - entry_id, _UNLIMITED, max_bytes - self.pos + start)
                # Something that is no entry lies in between. What the general way read is not given
                # out.
                if len(out) - count != self.entry_id - entry_id:
                    del out[count:]
                    return
            max_bytes -= self.pos - start
            if self.entry_id <= last or max_bytes <= 0:
                return

    def read_into(
        self, out: list[EntryView], limit: int, max_entries: int, max_messages: int, max_bytes: int
    ) -> None:
        """Append entries below `limit` to `out` until a maximum is reached; at least one if there is one.

        About 1 us per entry of one message, plus checksum and one copy of the bytes.

        Raises:
            CorruptionError: the frame at `pos` does not verify; what came before it is in `out`.
            FileNotFoundError: see `segment`.
        """
        # Weakly referred to: a local keeps the map alive during the call.
        segment = self._segment()
        if not -1 < self.pos - self._dropped < _KEPT:
            self.forget_pages()
        if segment is None:
            if self._read_unmapped(out, limit, min(max_entries, max_messages), max_bytes):
                return
            segment = self.segment
        # Everything in locals, stored back in the `finally`: an error leaves the place at the frame
        # that caused it.
        pos, entry_id, crc, length = self.pos, self.entry_id, self.crc, self._length
        window, base = self._window, self._base
        end = base + len(window)
        data, view, ledger_id = segment.data, segment.view, self.ledger_id
        is_single = True
        try:
            while pos < limit and max_entries > 0 and max_messages > 0 and max_bytes > 0:
                header: FrameHeader | None = None
                body: bytes | memoryview = b""
                if length <= _SMALL:  # the frame before is a good guess at the length of this one
                    if not base <= pos < end or (pos + length > end and end < limit):
                        window = bytes(data[pos : min(limit, pos + WINDOW)])
                        base, end = pos, pos + len(window)
                    at, singles = pos - base, min(max_entries, max_messages)
                    # Runs of small unbatched entries by one call. It takes nothing where a frame is
                    # of another kind, is damaged, or is not all in the window; then the frame is
                    # looked at below.
                    if is_single and crc != UNKNOWN_CRC:
                        run = decode_singles(out, window, at, singles, max_bytes, ledger_id, entry_id, crc)
                        # Progress, or a frame that is longer than the window says: the loop comes
                        # back with a new window.
                        if run[1] != entry_id or (run[3] > end - pos and base < pos):
                            max_entries -= run[1] - entry_id
                            max_messages -= run[1] - entry_id
                            max_bytes -= run[0] - at
                            pos, entry_id, crc, length = base + run[0], run[1], run[2], run[3]
                            continue
                    try:
                        header = read_header(window, at, end - base)
                        length = header[0]
                        body = window[at + HEADER_SIZE : at + length - TRAILER_SIZE]
                    except CorruptionError:
                        header = None  # it may just be longer than the window
                # Larger frames are read in the map, where the checksum is computed without a copy.
                if header is None:
                    header = read_header(data, pos, min(limit, len(data)))
                    length = header[0]
                    if not header[10]:  # a part of a chunked message: a reader of its bytes checks them
                        out.append(self._part(header, pos, entry_id, crc))
                        max_entries -= 1
                        pos, entry_id, crc = pos + length, entry_id + 1, header[1]
                        continue
                    body = view[pos + HEADER_SIZE : pos + length - TRAILER_SIZE]
                _, own_crc, prev_crc, body_crc, _, kind, _, _, own_id, _, count, _, _ = header
                # All three: the bytes are those that were written, of this entry, and behind the
                # entry before.
                if crc32(body) != body_crc or own_id != entry_id or prev_crc != crc != UNKNOWN_CRC:
                    raise self._mismatch(pos, header, body, entry_id)
                # Frames of kinds to come are passed over.
                if kind == KIND_ENTRY:
                    out.append(decode(header, body, ledger_id))
                    max_entries -= 1
                    max_messages -= count
                    is_single = count == 1
                    max_bytes -= length
                pos += length
                entry_id += 1
                crc = own_crc
        except CorruptionError as e:
            if e.offset is None:
                e.offset = pos
            raise e.at(segment.path) from None
        finally:
            self.pos, self.entry_id, self.crc, self._length = pos, entry_id, crc, length
            self._window, self._base = window, base

    def _read_unmapped(self, out: list[EntryView], limit: int, max_entries: int, max_bytes: int) -> bool:
        """Read small entries of one message before the limit by pread, while there is no room for a map.

        Returns:
            False if nothing was read: anything else there, damage included, is read from the map.
        """
        pos, entry_id = self.pos, self.entry_id
        size = limit - pos
        # Only near the end of the log, where a consumer waits for single entries: a map for each
        # topic of thousands would push out another one each time.
        if size > _SMALL or self.crc == UNKNOWN_CRC or self._unmapped >= _UNMAPPED:
            return False
        window = SEGMENTS.read_unmapped(self._home, self.ledger_id, pos, size)
        at, self.entry_id, self.crc, _ = decode_singles(
            out, window, 0, max_entries, max_bytes, self.ledger_id, entry_id, self.crc
        )
        self.pos = pos + at
        self._unmapped += 1
        return at > 0

    def _part(self, header: FrameHeader, pos: int, entry_id: int, crc: int) -> EntryView:
        view = self.segment.view
        # The bytes of a part are verified by the reader that joins them; order and chain are verified
        # here.
        if header.entry_id != entry_id or header.prev_crc != crc != UNKNOWN_CRC:
            raise self._mismatch(
                pos, header, view[pos + HEADER_SIZE : pos + header.length - TRAILER_SIZE], entry_id
            )
        return decode(
            header, view[pos + HEADER_SIZE : pos + HEADER_SIZE + header.metadata_length], self.ledger_id
        )

    def _mismatch(
        self, pos: int, header: FrameHeader, body: bytes | memoryview, entry_id: int
    ) -> CorruptionError:
        # The most specific reason that is true.
        if crc32(body) != header.body_crc:
            reason = f"body checksum mismatch in entry {header.entry_id} ({header.length} bytes)"
        elif header.entry_id != entry_id:
            reason = f"entry {header.entry_id} where entry {entry_id} belongs"
        else:
            reason = f"entry {entry_id} does not follow the entry before it"
        return CorruptionError(reason=reason, offset=pos)

    def check(self, limit: int) -> None:
        """Read the frame at `pos` again, from the file, and verify it; the place stays."""
        self.forget_window()
        segment = self.segment
        data = segment.data
        header = read_header(data, self.pos, min(limit, len(data)))
        body = segment.view[self.pos + HEADER_SIZE : self.pos + header.length - TRAILER_SIZE]
        if (
            crc32(body) != header.body_crc
            or header.entry_id != self.entry_id
            or header.prev_crc != self.crc != UNKNOWN_CRC
        ):
            raise self._mismatch(self.pos, header, body, self.entry_id)
        if header.kind == KIND_ENTRY:
            decode(header, body, self.ledger_id)

    def forget_window(self) -> None:
        """Look at the file again: the bytes copied last did not verify."""
        self._window, self._base = b"", 0


_TAIL: Final = TopicWord.TAIL
_OFFSET_BITS: Final = 0xFFFFFFFF


class EntryCursor:
    """A place in a topic's log that moves forward as entries are read.

    Role: the lock-free reader behind every consumer and reader.
    Invariants: nothing above the tail is given out. Ledgers are crossed by the next segment's word on where
    this one ends. A frame that does not verify is read again, then once more under the topic lock (a barrier
    for machines that reorder); only then it is damage: reported, skipped, never removed. If a ledger was
    trimmed, reading continues at the first that is retained; a position behind the tail means the tail.
    It stops before an entry of a transaction that is not decided, and steps over those of aborted ones, as
    its isolation says.
    Callers: one thread at a time.
    """

    __slots__ = ("_blocker", "_isolation", "_limit", "_max_read", "_pending", "_reader", "_view", "_words")

    def __init__(
        self,
        view: LogView,
        position: Position,
        *,
        inclusive: bool,
        isolation: int = Isolation.COMMITTED,
    ) -> None:
        self._view: Final = view
        self._isolation: Final = isolation
        self._max_read: Final = None if isolation == Isolation.EVERYTHING else view.max_read
        self._blocker = 0  # the undecided transaction before which it stands
        self._words: Final = view.words
        self._reader: SegmentReader | None = None
        self._limit = 0
        self._pending = position if inclusive else position.next()

    @property
    def position(self) -> Position:
        """The entry that is read next, if it is there."""
        reader = self._reader
        if reader is None:
            return self._pending
        return Position(reader.ledger_id, reader.entry_id)

    def is_at(self, tail: int) -> bool:
        """Whether it stands where the log ends by that tail word."""
        reader = self._reader
        return reader is not None and tail == reader.ledger_id << 32 | reader.pos >> 3

    def seek(self, position: Position) -> None:
        """Let `position` be the entry that is read next."""
        self._reader = None
        self._pending = position
        self._blocker = 0

    def read(self, max_entries: int, max_messages: int, max_bytes: int) -> list[EntryView]:
        """The next entries, at most as many as the three maxima allow but at least one; none at the tail.

        About 3 us per unbatched entry. `max_bytes` counts frames as they are stored.

        Raises:
            AlreadyClosed: the topic was closed.
            ImportError: the next entry is packed by a codec that is not installed here. The cursor stays.
        """
        out: list[EntryView] = []
        words = self._words
        try:
            # The reader, its limit, then frames. A pass that gives nothing moved on: to the next
            # ledger, behind damage, or to what is retained.
            while True:
                reader = self._reader or self._attach()
                if reader is None:
                    return out
                # After the reader's ledger is known: so if the tail's is another, it is a later one.
                tail = words[_TAIL]
                if tail >> 32 == reader.ledger_id:
                    limit = (tail & _OFFSET_BITS) << 3
                    if reader.pos >= limit:
                        return out
                # A ledger that is not the tail's any more has a fixed end, which is asked once.
                else:
                    limit = self._closed_limit(reader)
                    if reader.pos >= limit:
                        if not self._next_ledger(reader):
                            return out
                        continue
                try:
                    try:
                        # An error behind entries waits: these are given out first, and the next read
                        # meets it again.
                        reader.read_into(out, limit, max_entries, max_messages, max_bytes)
                    except CorruptionError as e:
                        if not out:
                            self._step_over(reader, limit, e)
                    except ImportError:
                        if not out:
                            raise
                # The place is sought again by its position: trimmed ledgers lead to the first that is
                # retained.
                except FileNotFoundError:  # trimmed, or lost, while this process had not mapped it
                    self.seek(self.position)
                if out:
                    if not reader.is_revised or self._max_read is None:
                        return out
                    out = self._visible(out)
                    if out or self._blocker:
                        return out
        except ValueError:
            if self._view.is_open():
                raise
            raise AlreadyClosed("the topic is closed") from None

    def read_spans(self, ledger_id: int, spans: Sequence[tuple[int, int]], max_bytes: int) -> list[EntryView]:
        """See `Cursor`. About 1 us per span, and 1 us per entry."""
        out: list[EntryView] = []
        reader, is_whole = self._reader, False
        try:
            # Spans of another ledger: the cursor goes there, and comes back when it is read in order
            # again.
            if reader is None or reader.ledger_id != ledger_id:
                self.seek(Position(ledger_id, spans[0][0]))
                reader = self._attach()
                if reader is None or reader.ledger_id != ledger_id:
                    return out
            reader.read_spans(out, spans, self._view.end_of(ledger_id), max_bytes)
            is_whole = reader.entry_id > spans[-1][1]
        except (CorruptionError, FileNotFoundError):
            is_whole = False
        except ImportError:
            if not out:
                raise
        except ValueError:
            if self._view.is_open():
                raise
            raise AlreadyClosed("the topic is closed") from None
        assert reader is not None
        # The next read is by the frames, which verify what the slots said.
        if not is_whole:
            self.seek(Position(ledger_id, reader.entry_id))  # a slot may be wrong: the next is verified
        return self._visible(out) if out and reader.is_revised and self._max_read is not None else out

    def _visible(self, views: list[EntryView]) -> list[EntryView]:
        """Leave out what may not be given out, and stand before it if it is only too early for it."""
        first, blocker, is_known = views[0], 0, False
        try:
            assert self._max_read is not None
            visible, stop, blocker = self._max_read.visible(views, self._isolation)
            first = stop or first
            is_known = True
        finally:
            if blocker or not is_known:
                self.seek(Position(first.ledger_id, first.entry_id))
                self._blocker = blocker
        return visible

    # -- moving between ledgers ----------------------------------------------------------------------------

    def _closed_limit(self, reader: SegmentReader) -> int:
        """Where the reader's ledger, which is not the tail's any more, ends."""
        if not self._limit:
            self._limit = self._view.end_of(reader.ledger_id) or reader.pos
        return self._limit

    def _next_ledger(self, reader: SegmentReader) -> bool:
        following = self._view.chain().after(reader.ledger_id)
        if not following:
            return False
        reader.forget_pages()
        self.seek(Position(following, 0))
        return True

    def _attach(self) -> SegmentReader | None:
        """Stand at the pending position, or where reading continues from it; None without a ledger."""
        if self._blocker and self._max_read is not None:
            if not self._max_read.has_been_decided(self._blocker):
                return None
            self._blocker = 0
        # Each pass ends with a reader, or moves the pending position to a later ledger, so it ends.
        while True:
            wanted = self._pending
            chain = self._view.chain()
            if not chain.tail_ledger:
                return None
            ledger_id = chain.at_or_after(wanted.ledger_id) or chain.tail_ledger
            try:
                if ledger_id < wanted.ledger_id:  # behind the tail: a power loss took what was there
                    self._pending = wanted = Position(ledger_id, self._view.extent(ledger_id)[0] + 1)
                elif ledger_id != wanted.ledger_id:  # trimmed, or not of this topic
                    self._pending = wanted = Position(ledger_id, 0)
                self._reader = reader = self._reader_at(wanted)
            # Trimmed: look again at the chain, which has the new trim point. Lost: the next ledger,
            # as readers of a log expect.
            except FileNotFoundError:
                if not self._view.is_trimmed(ledger_id):  # lost; the chain reported it
                    following = chain.after(ledger_id)
                    if not following:
                        return None
                    self._pending = Position(following, 0)
                continue
            except CorruptionError:
                following = chain.after(ledger_id)
                if not following:  # the tail's own segment, reported: reading continues behind it
                    return None
                self._pending = Position(following, 0)
                continue
            self._limit = 0
            return reader

    def _reader_at(self, position: Position) -> SegmentReader:
        view = self._view
        ledger_id, entry_id = position
        segment = view.segment(ledger_id)
        if entry_id <= 0:
            return SegmentReader(segment)
        # Behind the last entry the reader stands at the end, and waits there.
        last, end = view.extent(ledger_id)
        if entry_id > last:
            return SegmentReader(segment, end, last + 1)
        return SegmentReader(segment, view.offset_of(ledger_id, entry_id), entry_id)

    # -- damage --------------------------------------------------------------------------------------------

    def _step_over(self, reader: SegmentReader, limit: int, error: CorruptionError) -> None:
        """Read again where no entry could be read, then continue behind the damage."""
        if self._is_readable_after_all(reader, limit):
            return
        segment, pos, entry_id = reader.segment, reader.pos, reader.entry_id
        try:
            # A body that is damaged under a good header is one lost entry; a damaged header may hide
            # any number.
            header = segment.frame_header(pos, limit)
            is_framed = header.entry_id == entry_id
        except CorruptionError:
            is_framed = False
        if is_framed:
            following, offset = entry_id + 1, pos + header.length
        else:
            following, offset = self._view.next_readable(segment.ledger_id, entry_id, pos)
        # At least 8 bytes forward, so that no damage can hold a cursor for ever.
        offset = min(max(offset, pos + 8), limit)
        self._view.report(
            Damage(segment.path, segment.ledger_id, entry_id, following - 1, pos, offset, error.reason, HOLE)
        )
        self._reader = SegmentReader(segment, offset, following, UNKNOWN_CRC)

    def _is_readable_after_all(self, reader: SegmentReader, limit: int) -> bool:
        # First from the file again; then behind the lock, which orders the stores of its holders on
        # machines that reorder.
        for is_locked in (False, True):
            try:
                if is_locked:
                    self._view.barrier()
                reader.check(limit)
            except CorruptionError:
                continue
            return True
        return False
