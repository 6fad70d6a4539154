"""The committed segments of a topic directory, read without a lock and without the right to write.

Where the log ends is said by the control words, as long as they were written in this boot and on this very
file. Otherwise (after a reboot, or in a copied directory) the end of the last ledger is found by following
its frames; nothing is repaired, that is for the next process that opens the topic for writing.

What readers of whole logs see of them: up to the first undecided transaction, without entries of aborted
ones. By the flags in the index slots, taken together; only of entries of transactions are some bytes of the
log read. What became of a transaction is asked of a function that the caller brings.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterable
from contextlib import closing
from itertools import compress

from embeddedpulsar._engine import filenames
from embeddedpulsar._engine.format.control import (
    CONTROL_SIZE,
    KIND_TOPIC,
    TopicWord,
    parse_control_header,
    split_tail,
)
from embeddedpulsar._engine.format.entry_decoder import decode
from embeddedpulsar._engine.format.frame import (
    FIRST_FRAME_OFFSET,
    FLAG_FIELDS,
    FLAG_KEY_ABSENT,
    FLAG_KEY_BYTES,
    FLAG_KEY_NULL,
    FLAG_ORDERING_KEY_ABSENT,
    FLAG_ORDERING_KEY_BYTES,
    FLAG_TRANSACTION,
    FLAG_TXN,
    FLAGS_AT,
    HEADER,
    HEADER_SIZE,
    MIN_FRAME_SIZE,
    REVISED_VERSION,
    SLOT,
    SLOT_SIZE,
    SLOTS_PER_BLOCK,
    TRAILER_SIZE,
    SegmentHeader,
    is_block_sealed_and_intact,
    read_header,
    verify_body,
)
from embeddedpulsar._engine.log.chain_scan import scan_log
from embeddedpulsar._engine.log.segment import (
    Segment,
    find_segment_header,
    is_never_written,
    ledgers_with_cold,
    note_of_offloaded,
)
from embeddedpulsar._engine.log.topic_control import is_of_this_boot
from embeddedpulsar._engine.platform import descriptors, threads
from embeddedpulsar._engine.platform.mapped_file import MappedFile
from embeddedpulsar.damage import MISSING_SEGMENT, SEGMENT_HEADER, Damage, DamageHook
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Final

Runs = tuple[tuple[int, int], ...]
"""Entries of a ledger: the first of each run, and the one behind its last."""


class SegmentInfo(NamedTuple):
    """One committed segment. Bytes and entries below its ends never change any more.

    Attributes:
        ledger_id: the ledger it holds.
        path, index_path: its two files.
        end_offset: first byte behind the last committed frame; `FIRST_FRAME_OFFSET` while there is none.
        entries: committed entries; their ids are 0 to entries - 1.
        messages: messages in them; -1 in a segment that was cut for readers.
        base_publish_ms: what the publish times of its index slots count from.
        last_publish_ms: no entry was published later; publish times never go back within a topic.
        is_revised: whether it may have entries of transactions; False only if it was looked at.
        aborted: entries of aborted transactions, where the listing was made for readers (`visible_logs`).
    """

    ledger_id: int
    path: str
    index_path: str
    end_offset: int
    entries: int
    messages: int
    base_publish_ms: int
    last_publish_ms: int
    is_revised: bool = True
    aborted: Runs = ()


class _End(NamedTuple):
    """Where a ledger ends; numbers are -1 where they are still to be looked up."""

    offset: int
    entries: int = -1
    messages: int = -1
    last_publish_ms: int = -1


def committed_segments(
    directory: str, on_lost: DamageHook | None = None, since: int = 0
) -> list[SegmentInfo]:
    """The segments of a topic, oldest first; empty when nothing was ever published.

    Costs some 0.1 ms per segment. A segment that is trimmed meanwhile is either listed or not.

    Args:
        directory: of the topic.
        on_lost: called with segments that should be there and cannot be read, which are left out; may raise.
        since: the oldest ledger that is wanted.

    Raises:
        FileNotFoundError: there is no such directory.
        CorruptionError: a segment is missing or has no readable header, and there is no ``on_lost``.
    """
    # Without words (another boot, a copy) the end is derived from the frames of the newest ledger.
    words = _control_words(directory)
    lost = on_lost or _refuse
    if words is None:
        ledger, end = _derived_end(directory, 1 << 32, lost)
        trim = 0
    else:
        tail, trim = words
        ledger, offset = split_tail(tail)
        end = _End(offset)
    infos: list[SegmentInfo] = []
    latest = 1 << 63  # no entry of the segment at hand was published later
    # From the newest to the oldest along the links. Where a header is lost, the listing takes its
    # place, as in readers.
    while ledger and ledger >= max(trim, since):
        try:
            header, info = _describe(directory, ledger, end, latest)
        except FileNotFoundError:
            # The trim point is read again: what it says now decides between trimmed and lost.
            now = _control_words(directory)
            if now is None or ledger < now[1]:
                break  # trimmed since we began
            reason = f"the segment of ledger {ledger} is gone, although it was not trimmed; restore the file"
            lost(_lost(directory, ledger, end, reason, MISSING_SEGMENT))
            ledger, end = _derived_end(directory, ledger, lost)
            continue
        except CorruptionError as e:
            lost(_lost(directory, ledger, end, f"{e.reason}; {e.remedy}", SEGMENT_HEADER))
            ledger, end = _derived_end(directory, ledger, lost)
            continue
        infos.append(info)
        latest = header.base_publish_ms
        end = _End(header.prev_end_offset, header.prev_last_entry_id + 1, header.prev_messages)
        ledger = header.prev_ledger_id
    infos.reverse()
    return infos


def is_trimmed(directory: str, ledger_id: int) -> bool:
    """Whether a ledger that was there once was trimmed, or went with its topic; if not, its file is lost."""
    try:
        tail_and_trim = _control_words(directory)
    except FileNotFoundError:
        return True
    return tail_and_trim is not None and ledger_id < tail_and_trim[1]


def is_trimmed_behind(place: tuple[int, int], oldest: SegmentInfo) -> bool:
    """Whether entries at or behind a place were trimmed; the oldest segment tells."""
    # Ledger 0 is before everything, and no ledger that was trimmed.
    if not 0 < place[0] < oldest.ledger_id:
        return False
    try:
        # The oldest ledger says what was before it: the id of the last ledger and its last entry. If the
        # place is behind those, it was at the very end and nothing behind it went.
        segment = Segment.open(os.path.dirname(oldest.path), oldest.ledger_id)
    except (FileNotFoundError, CorruptionError):
        # It cannot tell any more, and the ledger of the place is gone: that counts as loss.
        return True
    last = segment.header.prev_ledger_id, segment.header.prev_last_entry_id
    segment.close()
    return last >= place


def topic_incarnation(directory: str) -> int:
    """Which life of the topic this directory holds; 0 when its control file cannot tell.

    A topic that was deleted and made again under the same name has another one.
    """
    try:
        with closing(_open_control(directory)) as control:
            return parse_control_header(control.view, KIND_TOPIC).incarnation
    except (FileNotFoundError, CorruptionError):
        return 0


def _lost(directory: str, ledger: int, end: _End, reason: str, kind: str) -> Damage:
    first = 0 if end.entries >= 0 else -1
    last = end.entries - 1 if end.entries >= 0 else -1
    return Damage(filenames.log_path(directory, ledger), ledger, first, last, 0, 0, reason, kind)


def _refuse(report: Damage) -> None:
    raise CorruptionError(path=report.path, offset=report.offset, reason=report.reason)


def _open_control(directory: str) -> MappedFile:
    return MappedFile.open(filenames.control_path(directory), writable=False, size=CONTROL_SIZE)


def _control_words(directory: str) -> tuple[int, int] | None:
    """(tail word, first retained ledger id), or None where the words may not be believed."""
    if not os.path.isdir(directory):
        raise FileNotFoundError(directory)
    try:
        with closing(_open_control(directory)) as control:
            # Both conditions of trust: this very file, and this boot.
            header = parse_control_header(control.view, KIND_TOPIC)
            here = (control.device, control.inode)
            if (header.device, header.inode) != here or not is_of_this_boot(header, directory):
                return None
            words = control.words[TopicWord.TAIL], control.words[TopicWord.TRIM]
            threads.await_stores()  # frames and slots before that tail are seen from here on
            return words
    except (FileNotFoundError, CorruptionError):
        return None


def _describe(directory: str, ledger: int, end: _End, latest: int) -> tuple[SegmentHeader, SegmentInfo]:
    segment = Segment.open(directory, ledger)
    header = segment.header
    # The next header does not say when the last entry was published, so its frame does.
    if end.last_publish_ms < 0:
        end = _completed(segment, end, latest)
    info = SegmentInfo(
        ledger,
        segment.path,
        filenames.index_path(directory, ledger),
        end.offset,
        end.entries,
        end.messages,
        header.base_publish_ms,
        end.last_publish_ms,
        # A header that was derived does not know its version, nor its store.
        header.version >= REVISED_VERSION or not any(header.store_id),
    )
    segment.close()
    return header, info


def _completed(segment: Segment, end: _End, latest: int) -> _End:
    """`end` with its numbers: from the last frame and its slot, else from all frames."""
    try:
        ending = segment.ending(end.offset)
    # With the numbers of the next header only the time is missing, and the base of the next ledger
    # bounds it.
    except (CorruptionError, FileNotFoundError):
        if end.entries >= 0:
            return end._replace(last_publish_ms=latest)
        header = segment.header
        scan = scan_log(
            segment.path,
            chain_seed=header.chain_seed,
            base_publish_ms=header.base_publish_ms,
            end=end.offset,
        )
        return _End(end.offset, scan.last_entry_id + 1, scan.messages, scan.last_publish_ms)
    return _End(end.offset, ending.last_entry_id + 1, ending.messages, ending.last_publish_ms)


def _derived_end(directory: str, below: int, lost: DamageHook) -> tuple[int, _End]:
    """The last ledger below an id that has any entries, and where its frames end; ledger 0 without one."""
    # A ledger without frames counts only if it is the first of the topic; any other is one that was
    # never switched to.
    for ledger in reversed(ledgers_with_cold(directory, descriptors.names_in(directory))):
        if ledger >= below:
            continue
        path = filenames.log_path(directory, ledger)
        try:
            header = find_segment_header(directory, ledger).header
            scan = scan_log(path, chain_seed=header.chain_seed, base_publish_ms=header.base_publish_ms)
        except FileNotFoundError:
            continue  # removed meanwhile
        except CorruptionError as e:
            if not is_never_written(path):  # else its creator died before the header was written
                lost(_lost(directory, ledger, _End(0), f"{e.reason}; {e.remedy}", SEGMENT_HEADER))
            continue
        if scan.frames or not header.prev_ledger_id:
            return ledger, _End(scan.end_offset, scan.last_entry_id + 1, scan.messages, scan.last_publish_ms)
    return 0, _End(0)


Fate = Callable[[str, int, int], bool | None]
"""What became of a transaction in a ledger of a topic's directory: True if it is committed, False if it is
aborted, None while it is undecided or prepared. One that is decided has the same fate for ever."""

_TXN: Final = FLAG_TXN >> 16
"""In the low byte of a slot's flags."""
_IS_TXN: Final = bytes(flags & _TXN for flags in range(256))
_FLAGS_SHIFT: Final = 16
_BITMAPS: Final = (
    FLAG_KEY_ABSENT | FLAG_ORDERING_KEY_ABSENT | FLAG_KEY_BYTES | FLAG_KEY_NULL | FLAG_ORDERING_KEY_BYTES
)
"""Columns between that of the transaction and the end of the entry, a bit for each message."""
_LEAST: Final = 8
"""The id is the second half of the column."""
_NO_ID: Final = 0


class TransactionEntries(NamedTuple):
    """Entries of a segment that belong to transactions.

    Attributes:
        entries: their ids, ascending.
        offsets: where their frames begin.
        ids: their transactions; 0 where an entry is damaged.
    """

    entries: list[int]
    offsets: list[int]
    ids: list[int]


_NONE: Final = TransactionEntries([], [], [])


def transactions_in(segment: Segment, first: int, entries: int, end_offset: int) -> TransactionEntries:
    """The entries of transactions in a segment whose log is here, from entry ``first`` on.

    Args:
        segment: mapped.
        first: the first that is wanted.
        entries, end_offset: how far the segment is committed.
    """
    if first >= entries:
        return _NONE
    try:
        numbers, offsets = _marked(segment, first, entries, end_offset)
    except (CorruptionError, FileNotFoundError):  # no index, or one that the frames contradict
        numbers, offsets = _scanned(segment, first, end_offset)
    return TransactionEntries(numbers, offsets, _ids(segment, offsets, end_offset))


def _marked(segment: Segment, first: int, entries: int, end_offset: int) -> tuple[list[int], list[int]]:
    index = segment.index
    slots = index.packed_slots(first, entries)
    if len(slots) != SLOT_SIZE * (entries - first):
        raise CorruptionError(path=index.path, reason="the index ends early")
    # The flags of all slots as bytes, and of these one bit: two steps in C, whatever their number.
    marks = bytearray(slots[FLAGS_AT::SLOT_SIZE].translate(_IS_TXN))
    offsets = memoryview(slots).cast("I")[:: SLOT_SIZE // 4]
    # A block with a checksum that fits has the flags that were written. Of others the frames are asked, which
    # the read verifies: those of the last block, as a rule.
    for block in range(first // SLOTS_PER_BLOCK, (entries - 1) // SLOTS_PER_BLOCK + 1):
        if not is_block_sealed_and_intact(index.data, block):
            start = max(first, block * SLOTS_PER_BLOCK)
            for entry in range(start, min(entries, (block + 1) * SLOTS_PER_BLOCK)):
                packed = SLOT.unpack_from(slots, SLOT_SIZE * (entry - first))
                marks[entry - first] = _flags_at(segment, entry, packed, end_offset) & _TXN
    numbers = list(compress(range(first, entries), marks))
    return numbers, [at << 3 for at in compress(offsets, marks)] if numbers else []


def _flags_at(segment: Segment, entry: int, slot: tuple[int, ...], end: int) -> int:
    at = slot[0] << 3
    if FIRST_FRAME_OFFSET <= at <= end - MIN_FRAME_SIZE:
        header = HEADER.unpack_from(segment.data, at)
        if header[1] == slot[-1] and header[8] == entry:
            return int(header[7]) >> _FLAGS_SHIFT
    raise CorruptionError(path=segment.path, offset=at, reason=f"entry {entry} is not where its slot says")


def _scanned(segment: Segment, first: int, end_offset: int) -> tuple[list[int], list[int]]:
    header = segment.header
    scan = scan_log(
        segment.path, chain_seed=header.chain_seed, base_publish_ms=header.base_publish_ms, end=end_offset
    )
    # Entries that are lost have slots without flags: the read reports them.
    offsets = [
        (entry, slot[0] << 3)
        for entry, slot in enumerate(SLOT.iter_unpack(scan.slots))
        if entry >= first and slot[4] & _TXN
    ]
    return [entry for entry, _ in offsets], [at for _, at in offsets]


def _ids(segment: Segment, offsets: list[int], end_offset: int) -> list[int]:
    words, longs = segment.view.cast("I"), segment.view.cast("Q")
    ids: list[int] = []
    behind: dict[tuple[int, int, int], int] = {}
    for at in offsets:
        # The frame is taken as it is: the read verifies it, or `LogTransactions` where it would be left out.
        # Words of it: length, then codec, flags and count.
        word = at >> 2
        kind = words[word + 4] >> 24, words[word + 5] & 0xFFFF, words[word + 10]
        distance = behind.get(kind)
        if distance is None:
            distance = behind[kind] = _distance(*kind)
        if distance:
            place = at + words[word] - distance
            is_in = at + HEADER_SIZE <= place <= end_offset - _LEAST
            ids.append(longs[place >> 3] if is_in else _NO_ID)
        else:
            ids.append(_decoded_id(segment, at, end_offset))
    return ids


def _distance(codec: int, flags: int, count: int) -> int:
    """How far before the end of a frame the id of its transaction stands; 0 if it has to be decoded."""
    # What is compressed or encrypted has its columns elsewhere, and one column behind that of the transaction
    # has no fixed size.
    if codec or flags & FLAG_FIELDS or not flags & FLAG_TRANSACTION:
        return 0
    bitmap = (max(count, 1) + 63) // 64 * 8
    return TRAILER_SIZE + (flags & _BITMAPS).bit_count() * bitmap + _LEAST


def _decoded_id(segment: Segment, at: int, end: int) -> int:
    try:
        header = read_header(segment.data, at, end)
        verify_body(segment.view, at, header)
        body = bytes(segment.view[at + HEADER_SIZE : at + header.length - TRAILER_SIZE])
        return (decode(header, body, segment.ledger_id).transaction() or (0, _NO_ID))[1]
    except CorruptionError:
        return _NO_ID


def _is_intact(segment: Segment, at: int, end: int) -> bool:
    try:
        verify_body(segment.view, at, read_header(segment.data, at, end))
    except CorruptionError:
        return False
    return True


class LogTransactions:
    """What transactions have in one log, and where reading it ends because of them.

    Args:
        segments: a listing, oldest first.
        fate: what became of a transaction.
        since: ledger and entry; nothing before is asked for.
    """

    def __init__(self, segments: list[SegmentInfo], fate: Fate, since: tuple[int, int] = (0, 0)) -> None:
        self._segments: Final = segments
        self._fate: Final = fate
        self._since: Final = since
        self._looked_at: Final[dict[int, TransactionEntries]] = {}
        self._aborted: Final[dict[int, Runs]] = {}
        self._end = next(filter(None, map(self._judge, range(len(segments)))), None)

    @property
    def is_cut(self) -> bool:
        """Whether reading ends before the log does."""
        return self._end is not None

    def visible(self) -> list[SegmentInfo]:
        """The listing up to the end, with what was aborted in each segment. The last one may be cut."""
        infos = [
            info._replace(aborted=self._aborted[info.ledger_id]) if info.ledger_id in self._aborted else info
            for info in self._segments
        ]
        if self._end is not None:
            number, entry, offset = self._end
            infos[number:] = [infos[number]._replace(entries=entry, end_offset=offset, messages=-1)]
        return infos

    def committed_behind(self) -> set[int]:
        """The committed transactions that have an entry behind the end."""
        ids: set[int] = set()
        if self._end is not None:
            number, end, _ = self._end
            for info in self._segments[number:]:
                entries, _, own = self._transactions(info)
                behind = set(own[bisect_left(entries, end) :])
                ids |= {txn_id for txn_id in behind - ids if self._fate(*_home(info), txn_id)}
                end = 0
        return ids

    def end_before(self, ids: set[int]) -> bool:
        """Have reading end before the first entry of these transactions; returns whether that is earlier."""
        last = len(self._segments) - 1 if self._end is None else self._end[0]
        for number, info in enumerate(self._segments[: last + 1]):
            places = zip(*self._transactions(info), strict=True)
            first = next(((number, entry, at) for entry, at, txn_id in places if txn_id in ids), None)
            if first is not None and (self._end is None or first < self._end):
                self._end = first
                return True
        return False

    def _judge(self, number: int) -> tuple[int, int, int] | None:
        """Note what was aborted in a segment; returns the place of its first undecided entry: the number of
        the segment, the entry, and its offset."""
        info = self._segments[number]
        entries, offsets, ids = self._transactions(info)
        fates = {txn_id: not txn_id or self._fate(*_home(info), txn_id) for txn_id in set(ids)}
        if all(fates.values()):
            return None
        segment = Segment.open(*_home(info))
        aborted: list[int] = []
        undecided: tuple[int, int, int] | None = None
        for entry, at, txn_id in zip(entries, offsets, ids, strict=True):
            # The id of a damaged entry says nothing. It stays, so that the read reports it.
            if fates[txn_id] or not _is_intact(segment, at, info.end_offset):
                continue
            if fates[txn_id] is None:
                undecided = number, entry, at
                break
            aborted.append(entry)
        if aborted:
            self._aborted[info.ledger_id] = runs_of(aborted)
        return undecided

    def _transactions(self, info: SegmentInfo) -> TransactionEntries:
        known = self._looked_at.get(info.ledger_id)
        if known is None:
            known = self._looked_at[info.ledger_id] = self._read_entries(info)
        return known

    def _read_entries(self, info: SegmentInfo) -> TransactionEntries:
        ledger, first = self._since
        if not info.is_revised or info.ledger_id < ledger:
            return _NONE
        note = note_of_offloaded(*_home(info))
        if note is not None:  # all in it was decided before, and what was aborted is noted
            if note.aborted:
                self._aborted[info.ledger_id] = note.aborted
            return _NONE
        try:
            segment = Segment.open(*_home(info))
        except FileNotFoundError:  # trimmed: the plan leaves it out
            return _NONE
        first = first if info.ledger_id == ledger else 0
        return transactions_in(segment, first, info.entries, info.end_offset)


def visible_logs(listings: list[list[SegmentInfo]], fate: Fate) -> list[list[SegmentInfo]]:
    """What can be read of several logs together, so that it has whole transactions.

    Reading of each log ends before its first undecided entry. A transaction that committed may have entries
    behind such an end, and others before it, there or in another log: then the others wait as well.

    Args:
        listings: of each log, oldest segment first, made after the moment of which ``fate`` speaks.
        fate: what had become of a transaction.
    """
    logs = [LogTransactions(segments, fate) for segments in listings]
    if any(log.is_cut for log in logs):
        # An end that moves may leave further transactions behind it, so this is done until none moves. Ends
        # only move back, so it ends.
        while True:
            halves = set().union(*(log.committed_behind() for log in logs))
            if not any(log.end_before(halves) for log in logs):
                break
    return [log.visible() for log in logs]


def runs_of(entries: Iterable[int]) -> Runs:
    """Ascending entries as runs: the first of each, and the one behind its last.

    Example:
        >>> runs_of([3, 4, 5, 9])
        ((3, 6), (9, 10))
    """
    runs: list[tuple[int, int]] = []
    for entry in entries:
        if runs and runs[-1][1] == entry:
            runs[-1] = runs[-1][0], entry + 1
        else:
            runs.append((entry, entry + 1))
    return tuple(runs)


def _home(info: SegmentInfo) -> tuple[str, int]:
    return os.path.dirname(info.path), info.ledger_id
