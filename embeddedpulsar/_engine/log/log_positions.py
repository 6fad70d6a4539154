"""Positions in a log, and what lies between them by its indexes.

Chunked messages as readers of a topic see them: found by the index, put together from the entries that hold
their parts, and whole or damaged.

Single entries of a log, by position.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from zlib import crc32

from embeddedpulsar._engine.format.columns import Slice, locate
from embeddedpulsar._engine.format.compression import decompress
from embeddedpulsar._engine.format.document import unpack_map
from embeddedpulsar._engine.format.entry_decoder import (
    LARGEST_MESSAGE,
    Chunk,
    EntryView,
    RawPosition,
    WholeEntryView,
    decode,
    read_chunk,
    whole_entry,
)
from embeddedpulsar._engine.format.frame import FLAG_CHUNK, FLAG_CHUNKS, FLAG_ENCRYPTED, FrameHeader
from embeddedpulsar._engine.log.log_view import LogView, Part, refuse_part
from embeddedpulsar._engine.log.segments import LedgerChain
from embeddedpulsar.damage import HOLE, Damage
from embeddedpulsar.exceptions import CorruptionError, CryptoError
from embeddedpulsar.message_id import MessageId, Position, make
from embeddedpulsar.records import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Final

    from embeddedpulsar._engine.log.log import Log


def messages_between(view: LogView, after: Position, through: Position) -> int:
    """Messages in the retained entries behind `after`, up to and including `through`. O(log ledgers)."""
    if through <= after:
        return 0
    chain = view.chain()
    # Both counts have the same origin, that of the chain, so the difference is exact within one
    # snapshot.
    return max(0, _messages_through(view, chain, through) - _messages_through(view, chain, after))


def messages_after(view: LogView, after: Position) -> int:
    """Messages in the retained entries behind `after`, up to the tail."""
    chain = view.chain()
    if not chain.tail_ledger:
        return 0
    last, _ = view.extent(chain.tail_ledger)
    return messages_between(view, after, Position(chain.tail_ledger, last))


def entries_between(view: LogView, after: Position, through: Position) -> int:
    """Retained entries behind `after`, up to and including `through`."""
    chain = view.chain()
    # Ledgers that were trimmed are not in the chain and do not count. An end behind the tail counts
    # up to the tail.
    count = 0
    for ledger_id in (*chain.ids, chain.tail_ledger):
        if not ledger_id or not after.ledger_id <= ledger_id <= through.ledger_id:
            continue
        last, _ = view.extent(ledger_id)
        first = after.entry_id + 1 if ledger_id == after.ledger_id else 0
        if ledger_id == through.ledger_id:
            last = min(last, through.entry_id)
        count += max(0, last - max(first, 0) + 1)
    return count


def _messages_through(view: LogView, chain: LedgerChain, position: Position) -> int:
    """Messages from the chain's origin up to and including `position`, or where it would be."""
    # Three cases: behind the tail, before what is retained (or between two ledgers), and in a
    # retained ledger.
    ledger_id = chain.at_or_after(position.ledger_id)
    if not ledger_id:  # behind the tail
        ledger_id, entry_id = chain.tail_ledger, -1
        last, _ = view.extent(ledger_id)
        entry_id = last
    elif ledger_id != position.ledger_id:  # trimmed: nothing of the first retained ledger yet
        entry_id = -1
    else:
        last, _ = view.extent(ledger_id)
        entry_id = min(position.entry_id, last)
    closed = chain.find(ledger_id)
    # The end of a closed ledger is known from the header that follows: no index is read.
    if closed is not None and entry_id == closed.last_entry_id:
        return closed.messages_before + closed.messages
    before = closed.messages_before if closed is not None else chain.messages_before_tail
    try:
        return before + view.messages_through(ledger_id, entry_id)
    except (FileNotFoundError, CorruptionError):
        return before  # lost or trimmed meanwhile: count the whole ledger


def find_by_publish_time(view: LogView, publish_ms: int) -> Position:
    """The first entry published at `publish_ms` or later; the position behind the last if there is none.

    Binary search over ledgers, then over index slots: some 10 us, whatever the topic holds. Position (0, 0)
    for a topic without a ledger.
    """
    chain = view.chain()
    ledger_id = chain.floor_by_time(publish_ms)
    # The ledger that begins before the time may still end before it: then the answer is the first
    # entry of the next.
    while ledger_id:
        try:
            entry_id, entries = _find_in(view, ledger_id, publish_ms)
        except (FileNotFoundError, CorruptionError):  # trimmed or lost: what can be read begins behind it
            entry_id = entries = 0
        following = chain.after(ledger_id)
        if entry_id < entries or not following:
            return Position(ledger_id, entry_id)
        ledger_id = following
    return Position(0, 0)


def _find_in(view: LogView, ledger_id: int, publish_ms: int) -> tuple[int, int]:
    """The first entry of a ledger at `publish_ms` or later, and how many entries the ledger has."""
    # A time before the ledger's base gives its first entry, and asks no index.
    last, end = view.extent(ledger_id)
    entries = last + 1
    segment = view.segment(ledger_id)
    delta = publish_ms - segment.header.base_publish_ms
    if delta <= 0:
        return 0, entries
    entry_id = segment.index.first_published_at(delta, entries)
    # The index is only a hint: both frames around the answer must agree.
    # A damaged slot may mislead the binary search. If a frame around the answer contradicts it, the
    # times are read from all frames in order: slow, and right.
    at, before = (_published(view, ledger_id, entry, end) for entry in (entry_id, entry_id - 1))
    if (at is not None and at < publish_ms) or (before is not None and before >= publish_ms):
        entry_id = _scan(view, ledger_id, publish_ms, entries, end)
    return entry_id, entries


def _published(view: LogView, ledger_id: int, entry_id: int, end: int) -> int | None:
    """The publish time in the frame of a visible entry; None if there is none, or it is unreadable."""
    last, _ = view.extent(ledger_id)
    if not 0 <= entry_id <= last:
        return None
    try:
        return view.segment(ledger_id).frame_of(entry_id, end)[1].publish_time
    except (FileNotFoundError, CorruptionError):
        return None


def _scan(view: LogView, ledger_id: int, publish_ms: int, entries: int, end: int) -> int:
    # A frame that cannot be read has no time and is passed over.
    for entry_id in range(entries):
        published = _published(view, ledger_id, entry_id, end)
        if published is not None and published >= publish_ms:
            return entry_id
    return entries


_LARGE: Final = 256 << 10

Opener = Callable[[EntryView], EntryView]


class ChunkReader:
    """Reads the earlier parts of chunked messages, wherever in a topic's log they are.

    Role: knows entries as they are stored, neither tail nor subscription. Memory: one buffer of the size of
    the message, filled part by part; where the message is compressed, that and the payload.
    Callers: any thread. Takes no lock.

    Args:
        parts: reads one entry; raises CorruptionError, or FileNotFoundError if it was removed.

    Attributes:
        opened: makes an entry whose columns are ciphertext readable; None if there are no keys.
    """

    def __init__(self, parts: Callable[[RawPosition], Part], opened: Opener | None = None) -> None:
        self._parts: Final = parts
        self.opened = opened

    def whole(self, last: EntryView) -> WholeEntryView:
        """The message whose last part is ``last``, all of it verified.

        Raises:
            CorruptionError: a part is damaged, gone, or another message's.
            CryptoError: it is encrypted, and there is no key.
            FileNotFoundError: a part lies in a segment that was trimmed, or lost.
        """
        # The last part is what a reader has: it says how many parts there were, and where.
        chunk = read_chunk(last.chunk(0))
        if not chunk.is_last:
            raise CorruptionError(reason=f"chunk {chunk.number} of {chunk.total} in the place of the last")
        last = self._opened(last)
        # A message of one part.
        if not chunk.earlier:
            packed = last.payload
        else:
            packed = self._joined(last, chunk)
        if len(packed) != chunk.size:
            raise CorruptionError(reason=f"{len(packed)} bytes of a chunked message of {chunk.size}")
        # The message was packed as a whole before it was cut, so it is unpacked as a whole.
        if chunk.codec:
            packed = decompress(chunk.codec, packed, chunk.length, LARGEST_MESSAGE)
        return whole_entry(last, packed, chunk.earlier)

    def earlier(self, last: EntryView) -> tuple[RawPosition, ...] | None:
        """The parts a last part names; None if that cannot be read."""
        try:
            return read_chunk(last.chunk(0)).earlier
        except CorruptionError:
            return None

    def _opened(self, view: EntryView) -> EntryView:
        if not view.flags & FLAG_ENCRYPTED:
            return view
        if self.opened is None:
            raise CryptoError("a chunked message is encrypted, and there is no crypto_key_reader")
        return self.opened(view)

    def _joined(self, last: EntryView, chunk: Chunk) -> bytes:
        # A BytesIO of the final size gives its buffer away as bytes: nothing is ever there twice.
        out = io.BytesIO()
        out.seek(chunk.size - 1)
        out.write(b"\0")
        with out.getbuffer() as buffer:
            at = 0
            # Each part is copied to its place and then let go. The sizes have to add up to what the
            # last part says.
            for number, place in enumerate(chunk.earlier):
                at = self._fill(buffer, at, place, chunk._replace(number=number))
            end = at + len(last.payload)
            if end != chunk.size:
                raise CorruptionError(reason=f"{end} bytes of a chunked message of {chunk.size}")
            buffer[at:end] = last.payload
        return out.getvalue()

    def _fill(self, buffer: memoryview, at: int, place: RawPosition, wanted: Chunk) -> int:
        """Copy the bytes of one part to ``at``; returns where the next one goes."""
        header, body, let_go = self._parts(place)
        # Parts are not read by a cursor, so all it would have checked is checked here; then that it
        # is the part that is wanted and of this message.
        if crc32(body) != header.body_crc:
            refuse_part(place, "body checksum mismatch")
        if header.message_count or not header.flags & FLAG_CHUNKS:
            refuse_part(place, "it is no part of a chunked message")
        payload, fields = self._content(header._replace(message_count=1), body, place)
        if read_chunk(fields)[:4] != wanted[:4]:
            refuse_part(place, f"it is not part {wanted.number} of {wanted.uuid}")
        end = at + len(payload)
        if end > len(buffer):
            refuse_part(place, f"it goes beyond the {len(buffer)} bytes of its message")
        buffer[at:end] = payload
        # Pages of large parts are given back at once: a message may be larger than what a process
        # should hold.
        if len(payload) > _LARGE:
            let_go()
        return end

    def _content(
        self, header: FrameHeader, body: bytes | memoryview, place: RawPosition
    ) -> tuple[bytes | memoryview, dict[str, object]]:
        # An encrypted or compressed part is decoded; of any other the payload is cut out of the map
        # without a copy.
        if header.codec or header.flags & FLAG_ENCRYPTED:
            view = decode(header, body, place[0])
            return self._opened(view).payload, view.chunk(0)
        at = locate(header.flags, 1, body, header.metadata_length, len(body))
        fields = at.chunk_data
        assert fields is not None
        return _cut(body, at.value_data), unpack_map(_cut(body, fields))


def _cut(body: bytes | memoryview, part: Slice) -> bytes | memoryview:
    return body[part[0] : part[0] + part[1]]


_CHUNK: Final = FLAG_CHUNK >> 16
_MOST_LEDGERS: Final = 100
_AHEAD: Final = 1000
_WITHOUT: Final = bytes(flags for flags in range(256) if not flags & _CHUNK)


def last_parts(view: LogView, after: Position) -> Iterator[EntryView]:
    """Every entry behind ``after`` that is the last part of a chunked message, payload of that part only.

    What cannot be read is left out.
    """
    chain = view.chain()
    for ledger_id in (*chain.ids, chain.tail_ledger):
        if not ledger_id or ledger_id < after.ledger_id:
            continue
        first = after.entry_id + 1 if ledger_id == after.ledger_id else 0
        try:
            last, _ = view.extent(ledger_id)
            if first > last:
                continue
            flags = view.flags(ledger_id, first, last + 1)
        except (CorruptionError, FileNotFoundError):
            continue
        # The flag tells of any part; which of them is the last is in the entry.
        for entry_id, flag in enumerate(flags, first):
            if flag & _CHUNK:
                part = read_last_part(view, Position(ledger_id, entry_id))
                if part is not None:
                    yield part


def read_last_part(view: LogView, place: Position) -> EntryView | None:
    """One entry that is the last part of a chunked message; None if it is another part, or not readable."""
    try:
        header, body, _ = view.part(place)
        return decode(header, body, place.ledger_id) if header.message_count else None
    except (CorruptionError, FileNotFoundError):
        return None


def has_parts(view: LogView, ledger_id: int) -> bool:
    """Whether a ledger holds anything of chunked messages: about 10 ns per entry."""
    try:
        last, _ = view.extent(ledger_id)
        return last >= 0 and bool(view.flags(ledger_id, 0, last + 1).translate(None, _WITHOUT))
    except (CorruptionError, FileNotFoundError):
        return True  # unknown: the caller has to read the entries


class ChunkLocator:
    """Which entries of a log are last parts of chunked messages, asked again and again.

    Role: remembers of each ledger one stretch of entries without anything of chunked messages, as read or
    found in the index. Callers: any thread; two that look at once may forget what one of them saw.

    >>> ChunkLocator.__slots__
    ('_plain', '_view')
    """

    __slots__ = ("_plain", "_view")

    def __init__(self, view: LogView) -> None:
        self._view = view
        self._plain: dict[int, tuple[int, int]] = {}

    def between(self, ledger_id: int, first: int, last: int) -> list[Position]:
        """The last parts among entries ``first`` to ``last`` of a ledger; what cannot be read is left out.

        0.2 us if it is known that there are none; else 10 us, and 1 ns per entry.
        """
        # A stretch that is known to have no part answers without the log. An acknowledgement of one
        # entry asks this each time.
        start, end = self._plain.get(ledger_id, (first, first))
        if start <= first and last < end:
            return []
        try:
            newest, _ = self._view.extent(ledger_id)
            if last > newest:
                return []  # made up
            # Looks ahead, so that the next thousand answers are known too.
            stop = min(newest, last + _AHEAD) + 1
            flags = self._view.flags(ledger_id, first, stop)
        except (CorruptionError, FileNotFoundError):
            return []
        parts = []
        if flags.translate(None, _WITHOUT):
            parts = [entry_id for entry_id, flag in enumerate(flags, first) if flag & _CHUNK]
        # Known to be plain up to the first part. Without a lock: a thread that stores at the same
        # time may replace it, which costs one more look.
        if not parts or parts[0] > last:
            self._remember_plain(ledger_id, first, parts[0] if parts else stop)
        return [
            Position(ledger_id, entry) for entry in parts if entry <= last and self._is_last(ledger_id, entry)
        ]

    def note_read(self, views: Sequence[EntryView]) -> bool:
        """Note that entries were read; there is at least one. 0.3 us.

        Returns:
            False if one of them belongs to a chunked message: then nothing is noted.
        """
        for view in views:
            if view.flags & FLAG_CHUNK:
                return False
        first, last = views[0], views[-1]
        # Only entries that follow each other without a gap say something of all between them.
        ledger_id, start, end = first.ledger_id, first.entry_id, last.entry_id + 1
        if last.ledger_id == ledger_id and end - start == len(views):
            known = self._plain.get(ledger_id)
            if known is not None and known[1] == start:
                self._plain[ledger_id] = known[0], end
            else:
                self._remember_plain(ledger_id, start, end)
        return True

    def _is_last(self, ledger_id: int, entry_id: int) -> bool:
        try:
            return self._view.slot(ledger_id, entry_id).count > 0
        except (CorruptionError, FileNotFoundError):
            return False

    def _remember_plain(self, ledger_id: int, first: int, end: int) -> None:
        # Stretches that overlap or touch are joined; of two apart the newer one is kept.
        if len(self._plain) >= _MOST_LEDGERS:
            self._plain = {}
        start, before = self._plain.get(ledger_id, (first, first))
        self._plain[ledger_id] = (start, max(before, end)) if start <= first <= before else (first, end)


def has_chunks(views: Sequence[EntryView]) -> bool:
    """Whether any of the entries belongs to a chunked message. Hot: one look per entry."""
    for view in views:
        if view.flags & FLAG_CHUNK:
            return True
    return False


def made_whole(
    views: Sequence[EntryView], max_bytes: int, whole: Callable[[EntryView], EntryView | None]
) -> tuple[list[EntryView], EntryView | None]:
    """Of entries that a cursor gave, those with messages, of about ``max_bytes`` of payload.

    Args:
        whole: makes a message of an entry that belongs to a chunked one; None if there is none to be had.

    Returns:
        The entries, and the first that was not looked at because they are large enough.
    """
    messages: list[EntryView] = []
    size = 0
    for view in views:
        # At least one is given, however large. The view that did not fit is handed back: the cursor
        # has passed it.
        if size >= max_bytes and messages:
            return messages, view
        if view.flags & FLAG_CHUNK:
            message = whole(view)
            if message is None:
                continue
            view = message
        messages.append(view)
        size += view.offsets[-1]
    return messages, None


class ChunkAssembler:
    """Makes messages of the entries a cursor gives.

    Role: between a cursor and the reader of its messages. A message that cannot be put together is
    reported as any other damage is, once each time it is read.
    Callers: any thread; takes the topic lock only where a part does not verify.

    Attributes:
        reader: puts messages together. Its ``opened`` makes encrypted parts readable.
        last_parts: tells which entries are last parts.
    """

    def __init__(self, view: LogView) -> None:
        self._view: Final = view
        self.reader: Final = ChunkReader(view.part)
        self.last_parts: Final = ChunkLocator(view)

    def complete(
        self, views: Sequence[EntryView], max_bytes: int
    ) -> tuple[list[EntryView], EntryView | None]:
        """`made_whole`; parts that are not the last are left out."""
        return made_whole(views, max_bytes, lambda view: self.try_whole(view) if view.count else None)

    def are_in(self, ledger_id: int) -> bool:
        """Whether a ledger holds anything of chunked messages, or cannot tell."""
        return has_parts(self._view, ledger_id)

    def find_last(self, key: tuple[str, int], parts: Iterable[Position]) -> Position | None:
        """The last part of a message, if it is in the log behind the others: by the index, about 0.3 us per
        entry.

        Args:
            key: producer and sequence id.
            parts: those that are known; a last part that can be read names one of them.
        """
        # A last part names all others, so one common part proves that it is of this message. Producer
        # and sequence id alone may be used again.
        known = set(parts)
        for view in last_parts(self._view, max(known)):
            if (view.producer_name, view.first_sequence_id) == key:
                earlier = self.reader.earlier(view)
                if earlier is None or known.intersection(earlier):
                    return Position(view.ledger_id, view.entry_id)
        return None

    def parts_of(self, place: Position) -> tuple[Position, ...]:
        """The parts before a last part; none if that cannot be read."""
        last = read_last_part(self._view, place)
        earlier = None if last is None else self.reader.earlier(last)
        return tuple(Position(*entry) for entry in earlier or ())

    def try_whole(self, last: EntryView) -> EntryView | None:
        """The message of a last part; None, and a report, if it is damaged.

        One that cannot be decrypted is left as it is: the caller decides what becomes of it.
        """
        try:
            try:
                # The second attempt is behind the lock: on machines that reorder stores a part may
                # have looked damaged once.
                return self.reader.whole(last)
            except CorruptionError:
                self._view.barrier()  # for machines that reorder; and a last look at the files
                return self.reader.whole(last)
        except CryptoError:
            return last
        except (CorruptionError, FileNotFoundError) as e:
            # A damaged message is one lost entry: its parts are frames of their own and stay as they
            # are.
            reason = e.reason if isinstance(e, CorruptionError) else "a part of it is not in the log any more"
            path = self._view.path_of(last.ledger_id)
            offset = self._offset_of(last)
            lost = (last.entry_id, last.entry_id, offset, offset)
            self._view.report(Damage(path, last.ledger_id, *lost, f"chunked message: {reason}", HOLE))
            return None

    def _offset_of(self, view: EntryView) -> int:
        try:
            return self._view.offset_of(view.ledger_id, view.entry_id)
        except (CorruptionError, FileNotFoundError):
            return 0  # trimmed since it was read


def read_entry(log: Log, position: Position) -> EntryView | None:
    """Read one entry; None if it was removed."""
    # The cursor steps over what is gone, so what it gives may be a later entry.
    views = log.cursor(position, inclusive=True).read(1, 1 << 30, 1)
    if views and (views[0].ledger_id, views[0].entry_id) == position:
        return views[0]
    return None


def read_whole_entry(log: Log, position: Position, assembler: ChunkAssembler) -> EntryView | None:
    """Read one entry with messages, a chunked one as a whole; None if it was removed, or is damaged."""
    view = read_entry(log, position)
    if view is None or not view.flags & FLAG_CHUNK:
        return view
    return assembler.try_whole(view) if view.count else None


def last_message_id(log: Log, partition: int) -> MessageId:
    """Return the id of the last message that can be read; for an empty topic, an id before every message."""
    position = log.last_readable()
    # Without an entry, or if it cannot be read, the id has no batch index.
    if position is None or position.entry_id < 0:
        return make(-1 if position is None else position.ledger_id, -1, -1, partition, 0)
    view = read_entry(log, position)
    if view is None or not view.batched:
        return make(position.ledger_id, position.entry_id, -1, partition, 0)
    return make(position.ledger_id, position.entry_id, view.count - 1, partition, view.count)
