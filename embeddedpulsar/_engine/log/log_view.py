"""What every reader of a topic needs: where the log ends, what is retained, where an entry lies.

How far a topic can be read because of its open transactions, and what of it was aborted.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from embeddedpulsar import damage
from embeddedpulsar._engine.filenames import index_path, log_path
from embeddedpulsar._engine.format.control import TopicWord, split_tail, tail_word
from embeddedpulsar._engine.format.entry_decoder import (
    EntryView,
    RawPosition,
    decode,
    transaction_ids,
)
from embeddedpulsar._engine.format.frame import (
    FIRST_FRAME_OFFSET,
    FLAG_TXN,
    FLAGS_AT,
    HEADER_SIZE,
    SLOT_SIZE,
    SLOTS_OFFSET,
    TRAILER_SIZE,
    FrameHeader,
    IndexSlot,
    SlotColumns,
    last_frame_start,
    read_header,
    slot_offset,
)
from embeddedpulsar._engine.log.segment import Segment
from embeddedpulsar._engine.log.segment_index import SegmentIndex, slot_of, visible_slots, write_index
from embeddedpulsar._engine.log.segments import SEGMENTS, LedgerChain, SegmentSet
from embeddedpulsar._engine.log.topic_control import MUST_ROLL, TopicControl
from embeddedpulsar._engine.platform import threads
from embeddedpulsar._engine.platform.descriptors import late_imports
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar.damage import Damage, DamageHook
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.message_id import BEFORE_FIRST, Isolation, Position
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from typing import Final, NoReturn


class Part(NamedTuple):
    """An entry as it is stored, not yet verified; `let_go` says that its bytes are not needed again soon."""

    header: FrameHeader
    body: bytes | memoryview
    let_go: Callable[[], object]


def segment_part(segment: Segment, entry_id: int) -> Part:
    """One entry of a segment, for a `ChunkReader`."""
    view = segment.view  # first: the log of an offloaded ledger is fetched by that
    offset, header = _frame_of(segment, entry_id)
    end = offset + header.length
    body = view[offset + HEADER_SIZE : end - TRAILER_SIZE]
    return Part(header, body, partial(segment.file.not_needed, offset, end))


class SegmentParts:
    """The entries of a topic, for a `ChunkReader` without an open log. One segment at a time is mapped: the
    parts of a message are in order.

    Args:
        directory: of the topic.
    """

    def __init__(self, directory: str) -> None:
        self._directory: Final = directory
        self._last: Segment | None = None

    def __call__(self, place: RawPosition) -> Part:
        ledger_id, entry_id = place
        if self._last is None or self._last.ledger_id != ledger_id:
            self._last = Segment.open(self._directory, ledger_id)
        return segment_part(self._last, entry_id)


def _frame_of(segment: Segment, entry_id: int) -> tuple[int, FrameHeader]:
    """Where an entry is: by the index, or, where that does not fit, by the frames."""
    try:
        # The index is a hint here: where it does not fit, the frames of the whole segment are
        # followed.
        return segment.frame_of(entry_id, segment.file.size)
    except (CorruptionError, FileNotFoundError):
        header = segment.header
        with late_imports():
            from embeddedpulsar._engine.log.chain_scan import scan_log
        scan = scan_log(segment.path, chain_seed=header.chain_seed, base_publish_ms=header.base_publish_ms)
        slots = bytes(scan.slots)
        if entry_id > scan.last_entry_id or not slot_of(slots, entry_id).crc:
            refuse_part((segment.ledger_id, entry_id), "it cannot be found")
        offset = slot_of(slots, entry_id).offset
        return offset, segment.frame_header(offset, segment.file.size)


def refuse_part(place: RawPosition, reason: str) -> NoReturn:
    """Raise for a part of a chunked message that cannot be used."""
    raise CorruptionError(reason=f"chunk in entry {place[0]}:{place[1]}: {reason}")


class Outcomes(Protocol):
    """What became of transactions, as the log of one topic asks. Any thread, under any lock but those of
    transactions."""

    def outcome(self, txn_id: int) -> int:
        """1 committed, 2 aborted; another number while it is not decided, or prepared. Lock-free."""

    def range_of(self, txn_id: int) -> tuple[int, memoryview] | None:
        """The first of a range of ids that has ``txn_id``, and a byte for each as of `outcome`; None without
        such a table."""

    def is_any_open(self) -> bool:
        """Whether a transaction of the store may be undecided. One load."""

    def note_blocked(self, txn_id: int) -> None:
        """Note that something stopped at a transaction. If no process can go on with it, it is ended soon,
        also for callers that only poll. Cheap, without a lock."""

    def end_if_abandoned(self, txn_id: int) -> bool:
        """End a transaction if no process can go on with it, and return whether it has ended. Raises nothing;
        takes the lock of transactions only for one that can be ended."""

    def await_end(self, txn_id: int) -> bool:
        """Have this process rung when a transaction ends, end it if no process can go on with it; False if it
        has ended.

        Raises:
            LockTimeout: another process stayed in the lock of transactions.
        """


_TAIL: Final = TopicWord.TAIL
_FIRST_OPEN: Final = TopicWord.FIRST_OPEN_TXN
_TXN: Final = FLAG_TXN >> 16
_COMMITTED: Final = 1
_ABORTED: Final = 2
_NO_ID: Final = 0
"""Of an entry whose id cannot be read: it counts as one without a transaction, and reading it reports it."""
_MOST_BLOCKED: Final = 64
_FEW: Final = 64
_NEAR: Final = 64 << 10 >> 3
"""Of two tail words of one ledger."""
_NO_TABLE: Final = (0, memoryview(b""))


class Horizon(NamedTuple):
    """How far transactions were looked at.

    Attributes:
        word: a tail word: all entries before it are decided.
        position: the entry there, or where the next one will be.
        txn_id: the undecided transaction of the entry; 0 if it was the end of the log.
    """

    word: int
    position: Position
    txn_id: int


class MaxReadPosition:
    """How far a topic can be read: up to the first entry of a transaction that is not decided.

    Role: tells readers which of their entries they may give out, and figures where the log ends for them and
    what of it was aborted. A topic without transactions costs one look at a word.
    Invariants: what is decided stays decided, so nothing is looked at twice. The word FIRST_OPEN_TXN only
    says where to begin: what stands before it is decided. What a reader gives out depends on the
    flags of its entries alone. Before anything is said to hold readers up, it is asked whether a process can
    go on with it, and it is ended if none can.
    Callers: any thread, also under the topic lock. Two at a time may both look, and find the same.

    Args:
        view: of the topic.
        outcomes: of transactions.

    Attributes:
        blocked: ids of transactions at which something in this process stopped; see `is_unblocked`.
    """

    __slots__ = (
        "_aborted",
        "_horizon",
        "_last",
        "_outcomes",
        "_plain_ledger",
        "_table",
        "_view",
        "_words",
        "blocked",
    )

    def __init__(self, view: LogView, outcomes: Outcomes) -> None:
        self._view: Final = view
        self._words: Final = view.words
        self._outcomes: Final = outcomes
        self._horizon = Horizon(0, Position(0, 0), _NO_ID)
        self._last: tuple[Position, Position] = (BEFORE_FIRST, BEFORE_FIRST)
        self._aborted: dict[int, tuple[int, list[int]]] = {}
        self._table = _NO_TABLE  # the outcomes of a range of ids, and the first of them
        self._plain_ledger = 0  # a tail ledger that has no entries of transactions
        self.blocked: Final[dict[int, None]] = {}

    # -- entries that were read ------------------------------------------------------------------------

    def visible(
        self, views: list[EntryView], isolation: int
    ) -> tuple[list[EntryView], EntryView | None, int]:
        """Of entries that were read one after the other, those that may be given out.

        Returns:
            The entries; and the first of those behind them that is not decided, with its transaction: None
            and 0 if there is none.
        """
        ids = transaction_ids(views)
        if self._are_committed(ids):
            return views, None, _NO_ID
        outcome, known, is_seen = self._outcomes.outcome, _NO_ID, True
        visible: list[EntryView] = []
        for view, txn_id in zip(views, ids, strict=True):
            if txn_id:
                if txn_id < 0:
                    txn_id = self._id_at(view.ledger_id, view.entry_id)
                if txn_id != known:  # batches of one transaction often follow each other
                    decided = outcome(txn_id) if txn_id else _COMMITTED
                    if decided not in (_COMMITTED, _ABORTED) and isolation == Isolation.COMMITTED:
                        if self._is_blocked_by(txn_id):
                            return visible, view, txn_id
                        decided = outcome(txn_id)
                    known, is_seen = txn_id, decided != _ABORTED
                if not is_seen:
                    continue
            visible.append(view)
        return visible, None, _NO_ID

    def _are_committed(self, ids: list[int]) -> bool:
        """Whether all of these transactions are committed, as far as one table says; 0 stands for none."""
        wanted = [txn_id for txn_id in ids if txn_id] if 0 in ids else ids
        if not wanted:
            return True
        lowest, highest = min(wanted), max(wanted)
        first, table = self._table
        if not first <= lowest <= highest < first + len(table):
            self._table = first, table = (
                self._outcomes.range_of(lowest) if lowest > 0 else None
            ) or _NO_TABLE
            if not first <= lowest <= highest < first + len(table):
                return False
        try:
            return [table[txn_id - first] for txn_id in wanted].count(_COMMITTED) == len(wanted)
        except ValueError:  # the table was folded, and unmapped
            self._table = _NO_TABLE
            return False

    def is_any_open(self) -> bool:
        """Whether any transaction may be undecided; of what is admitted under the topic lock, under that."""
        return self._outcomes.is_any_open()

    def is_decided(self, txn_id: int) -> bool:
        """Whether a transaction has ended. One load."""
        return self._outcomes.outcome(txn_id) in (_COMMITTED, _ABORTED)

    def _id_at(self, ledger_id: int, entry_id: int) -> int:
        """The transaction of an entry."""
        try:
            header, body, _ = self._view.part((ledger_id, entry_id))
            if not header.message_count:  # a part of a chunked message; its columns are those of one message
                header = header._replace(message_count=1)
            return decode(header, body, ledger_id).transaction_id()
        except (CorruptionError, FileNotFoundError):
            return _NO_ID

    # -- waiting ---------------------------------------------------------------------------------------

    def has_been_decided(self, txn_id: int) -> bool:
        """Whether a transaction has ended, which is done here if no process can go on with it."""
        return self.is_decided(txn_id) or self._outcomes.end_if_abandoned(txn_id)

    def _is_blocked_by(self, txn_id: int) -> bool:
        """Whether an undecided transaction goes on, which is noted then; else it is ended."""
        if self._outcomes.end_if_abandoned(txn_id):
            return False
        self._note_blocked(txn_id)
        return True

    def _note_blocked(self, txn_id: int) -> None:
        blocked = self.blocked
        if len(blocked) >= _MOST_BLOCKED:  # nothing here waits, and so nothing asked which have ended
            for known in list(blocked):
                if self.is_decided(known):
                    blocked.pop(known, None)
        if txn_id not in blocked:
            blocked[txn_id] = None
            self._outcomes.note_blocked(txn_id)

    def is_unblocked(self) -> bool:
        """Whether a transaction has ended at which something stopped; else this process is rung when one
        does.

        Raises:
            LockTimeout: another process stayed in the lock of transactions.
        """
        is_any = False
        for txn_id in list(self.blocked):
            if not self._outcomes.await_end(txn_id):
                self.blocked.pop(txn_id, None)
                is_any = True
        return is_any

    def has_ended(self) -> bool:
        """Whether a transaction has ended at which something stopped. No ring is asked for."""
        return any(map(self.has_been_decided, list(self.blocked)))

    def forget_ended(self) -> bool:
        """Drop from `blocked` what has ended, and return whether anything may go on."""
        blocked = self.blocked
        if not blocked:
            return True
        ended = [txn_id for txn_id in list(blocked) if self.has_been_decided(txn_id)]
        for txn_id in ended:
            blocked.pop(txn_id, None)
        return bool(ended)

    # -- the end for readers ---------------------------------------------------------------------------

    def horizon(self) -> Horizon | None:
        """Where the first undecided entry stands; None if all entries are decided."""
        words = self._words
        # The tail first: an entry that it covers had its place stored in the other word before.
        tail = words[_TAIL]
        first = words[_FIRST_OPEN]
        if not first or first >= tail:
            return None
        known = self._horizon
        while known.txn_id or known.word < tail:
            if known.txn_id and not self.is_decided(known.txn_id) and self._is_blocked_by(known.txn_id):
                return known
            # From what is known, if that is near: to find the place of an offset takes longer than slots.
            is_near = known.word >= first or (known.word >> 32 == first >> 32 and first - known.word < _NEAR)
            known = self._horizon = self._advance(known if is_near else self._place_of(first))
            if not known.txn_id:
                break
        return None

    def _place_of(self, word: int) -> Horizon:
        ledger_id, offset = split_tail(word)
        try:
            entry_id = visible_slots(self._view.segment(ledger_id).index, offset)
        except (CorruptionError, FileNotFoundError):
            entry_id = 0
        return Horizon(word, Position(ledger_id, entry_id), _NO_ID)

    def _advance(self, start: Horizon) -> Horizon:
        """Look on for an undecided entry, up to the end of the log."""
        view = self._view
        for ledger_id in _ledgers_from(view.chain(), start.position.ledger_id):
            begin = start.position.entry_id if ledger_id == start.position.ledger_id else 0
            try:
                last, end = view.extent(ledger_id)
                for entry_id, txn_id in self._entries(ledger_id, begin, last + 1):
                    if not self.is_decided(txn_id):
                        word = tail_word(ledger_id, view.offset_of(ledger_id, entry_id))
                        return Horizon(word, Position(ledger_id, entry_id), txn_id)
            except FileNotFoundError:
                continue  # it was trimmed, so it was decided
            start = Horizon(tail_word(ledger_id, end), Position(ledger_id, last + 1), _NO_ID)
        return start

    def _entries(self, ledger_id: int, first: int, stop: int) -> Iterator[tuple[int, int]]:
        """The entries of transactions among `first` to `stop` - 1 of a ledger, with their transactions."""
        if first >= stop or not self._may_be_in(ledger_id):
            return
        if stop - first <= _FEW:
            # By the flags in the index: the few entries of a commit are looked at in 20 us.
            with contextlib.suppress(CorruptionError):
                flags = self._view.flags(ledger_id, first, stop)
                for entry_id, flag in enumerate(flags, first):
                    if flag & _TXN and (txn_id := self._id_at(ledger_id, entry_id)):
                        yield entry_id, txn_id
                return
        with late_imports():
            from embeddedpulsar._engine.log.segment_snapshot import transactions_in
        end = self._view.end_of(ledger_id)
        entries, _, ids = transactions_in(self._view.segment(ledger_id), first, stop, end)
        yield from ((entry, txn_id) for entry, txn_id in zip(entries, ids, strict=True) if txn_id)

    def _may_be_in(self, ledger_id: int) -> bool:
        """Whether a ledger may have entries of transactions, by the version of its segment."""
        try:
            return self._view.segment(ledger_id).header.may_have_transactions
        except CorruptionError:
            return True

    # -- what was aborted ------------------------------------------------------------------------------

    def last_committed(self, last: Position) -> Position:
        """The last entry up to ``last``, before which all are decided, that is of no aborted transaction."""
        # Behind what was found before, nothing is looked at twice.
        before, committed = self._last
        position, view = last, self._view
        while position > before and self._is_aborted(position):
            closed = view.chain().before(position.ledger_id) if position.entry_id <= 0 else None
            if closed is not None:
                position = Position(closed.ledger_id, closed.last_entry_id)
            elif position.entry_id >= 0:
                position = position.previous()
            else:
                break  # nothing that is retained
        if position <= before:
            position = committed
        self._last = (last, position)
        return position

    def _is_aborted(self, position: Position) -> bool:
        if position.entry_id < 0:
            return True  # an empty ledger: what comes before it is asked
        try:
            if not self._may_be_in(position.ledger_id) or not self._view.slot(*position).flags & _TXN:
                return False
        except (CorruptionError, FileNotFoundError):
            return False
        txn_id = self._id_at(*position)
        return bool(txn_id) and self._outcomes.outcome(txn_id) == _ABORTED

    def aborted_in(self, ledger_id: int, stop: int) -> Sequence[int]:
        """The entries of aborted transactions before entry ``stop`` of a ledger, which are all decided. About
        1 us for each entry of a transaction, the first time."""
        known, entries = self._aborted.get(ledger_id, (0, []))
        if known < stop:
            with late_imports():
                from embeddedpulsar._engine.cold.cold_ledger import offloaded_ledger
            note = offloaded_ledger(self._view.directory, ledger_id) if not known else None
            if note is not None:  # it says so itself, and its log is away
                stop = max(stop, note.entries)
                entries = [entry_id for first, end in note.aborted for entry_id in range(first, end)]
            else:
                outcome = self._outcomes.outcome
                transactional = self._entries(ledger_id, known, stop)
                entries = [
                    *entries,
                    *(entry for entry, txn_id in transactional if outcome(txn_id) == _ABORTED),
                ]
            self._aborted[ledger_id] = stop, entries
        return entries[: bisect_left(entries, stop)]

    @property
    def is_plain(self) -> bool:
        """Whether the topic has no entries of transactions: once it has one, its later segments are of the
        version that may have them."""
        tail_ledger = self._words[_TAIL] >> 32
        if tail_ledger != self._plain_ledger:
            try:
                if not tail_ledger or self._may_be_in(tail_ledger):
                    return not tail_ledger
            except FileNotFoundError:
                return False
            self._plain_ledger = tail_ledger
        return True

    def aborted_runs(
        self, after: Position, through: Position | None = None
    ) -> Iterator[tuple[int, Sequence[int]]]:
        """The entries of aborted transactions behind a position, up to another or to the first that is not
        decided: by ledger."""
        if self.is_plain:
            return
        horizon = self.horizon()
        for ledger_id in _ledgers_from(self._view.chain(), after.ledger_id):
            if through is not None and ledger_id > through.ledger_id:
                return
            try:
                stop = self._view.extent(ledger_id)[0] + 1
                if horizon is not None and ledger_id >= horizon.position.ledger_id:
                    stop = horizon.position.entry_id if ledger_id == horizon.position.ledger_id else 0
                if through is not None and ledger_id == through.ledger_id:
                    stop = min(stop, through.entry_id + 1)
                entries = self.aborted_in(ledger_id, stop)
            except FileNotFoundError:
                continue  # it was trimmed meanwhile
            if ledger_id == after.ledger_id:
                entries = entries[bisect_left(entries, after.entry_id + 1) :]
            if entries:
                yield ledger_id, entries

    def aborted_behind(
        self, after: Position, through: Position | None, acked: Sequence[tuple[int, int, int]]
    ) -> tuple[int, int]:
        """Entries of aborted transactions, and messages in them, as of `aborted_runs`; without those in the
        runs ``acked``, by ledger, first and last entry, ascending."""
        entries = messages = 0
        for ledger_id, aborted in self.aborted_runs(after, through):
            unacked = set(aborted)
            for _, first, last in (run for run in acked if run[0] == ledger_id):
                unacked.difference_update(
                    aborted[bisect_left(aborted, first) : bisect_left(aborted, last + 1)]
                )
            if unacked:
                entries += len(unacked)
                counts = self._view.slots(ledger_id, aborted[0], aborted[-1] + 1).counts
                messages += sum(counts[entry_id - aborted[0]] for entry_id in unacked)
        return entries, messages

    def past_aborted(self, position: Position) -> Position:
        """How far a reader has come that has everything up to a position: entries of aborted transactions
        that follow are no messages."""
        if self.is_plain:
            return position
        view, horizon = self._view, self.horizon()
        for ledger_id in _ledgers_from(view.chain(), position.ledger_id):
            at = position.entry_id + 1 if ledger_id == position.ledger_id else 0
            try:
                last, _ = view.extent(ledger_id)
                stop = last + 1
                if horizon is not None and ledger_id >= horizon.position.ledger_id:
                    stop = horizon.position.entry_id if ledger_id == horizon.position.ledger_id else 0
                aborted = self.aborted_in(ledger_id, stop)
            except FileNotFoundError:
                return position
            number = bisect_left(aborted, at)
            while number < len(aborted) and aborted[number] == at:
                number, at = number + 1, at + 1
                position = Position(ledger_id, at - 1)
            if at <= last:
                break
        return position


def _ledgers_from(chain: LedgerChain, ledger_id: int) -> Iterator[int]:
    """The ledgers of a chain from one on, the tail's as well."""
    yield from chain.ids[bisect_left(chain.ids, ledger_id) :]
    if chain.tail_ledger >= ledger_id and chain.tail_ledger:
        yield chain.tail_ledger


class LogView:
    """The read side of a topic's log.

    Role: answers by ledger and entry id, from the tail word, the chain of headers and the indexes. An index
    that does not fit its frames is derived again, once, under the topic lock.
    Invariants: nothing at or above the tail is looked at. Frames are never changed, cut or skipped here.
    Callers: any thread; a repair of an index takes the topic lock. A segment that was trimmed or lost raises
    FileNotFoundError, and an entry that neither index nor log can tell of CorruptionError.
    """

    def __init__(
        self, directory: str, control: TopicControl, lock: FileLock, lock_timeout_s: float, report: DamageHook
    ) -> None:
        self.directory: Final = directory
        self.words: Final = control.words
        self.report: Final = report
        self.control: Final = control
        self.lock: Final = lock
        self.timeout_s: Final = lock_timeout_s
        self._segments = SegmentSet(control.home, control.words, report)
        self.max_read: MaxReadPosition | None = None  # of a topic that may have transactions
        # The tail word, and the last entry below it: what was committed stays where it is.
        self._tail_extent = (0, -1)

    @property
    def tail(self) -> int:
        return int(self.words[TopicWord.TAIL])

    def is_open(self) -> bool:
        """Whether the control words are still mapped."""
        try:
            # A memoryview that was released raises ValueError.
            return self.tail >= 0
        except ValueError:
            return False

    def chain(self) -> LedgerChain:
        return self._segments.chain()

    def segment(self, ledger_id: int) -> Segment:
        """The mapped segment of a ledger."""
        return SEGMENTS.get(self.control.home, ledger_id)

    def is_trimmed(self, ledger_id: int) -> bool:
        """Whether the ledger lies before the trim point; the tail's never does, whatever the word says."""
        words = self.words
        return ledger_id < int(words[TopicWord.TRIM]) and ledger_id < int(words[TopicWord.TAIL]) >> 32

    def end_of(self, ledger_id: int) -> int:
        """Where the ledger ends now: its end offset; 0 if it is not in the log (any more)."""
        # One load of the word, so ledger and offset are of one moment.
        tail_ledger, end = split_tail(self.words[TopicWord.TAIL])
        if ledger_id == tail_ledger:
            return end
        closed = self._segments.chain().find(ledger_id)
        return closed.end_offset if closed is not None else 0

    def extent(self, ledger_id: int) -> tuple[int, int]:
        """The last entry of a ledger and its end offset, of one moment; also if the segment is damaged.

        Entry -1 if neither segment nor index is readable, or the ledger is not in the log (any more).
        """
        # The tail's ledger ends where the word says, and its last frame names the last entry. A
        # closed one is described by the header of its successor, also if its own file is damaged.
        tail = self.words[TopicWord.TAIL]
        tail_ledger, end = split_tail(tail)
        if ledger_id != tail_ledger:
            closed = self._segments.chain().find(ledger_id)
            if closed is not None:
                return closed.last_entry_id, closed.end_offset
            return self._last_known_entry(ledger_id, 0), 0
        known_tail, last = self._tail_extent
        if known_tail != tail:
            try:
                last = self._last_known_entry(ledger_id, end)
            except FileNotFoundError:
                return -1, 0  # others were begun behind it, and it was trimmed, since the word was loaded
            if last >= 0:  # else perhaps for lack of a file that comes back
                self._tail_extent = (tail, last)
        return last, end

    def trimmed_before(self, ledger_id: int) -> tuple[int, int] | None:
        """The last entry of the ledger before, which is trimmed; None if there was none, or it is unknown."""
        segment = self._readable(ledger_id)
        if segment is None or segment.header.prev_last_entry_id < 0:
            return None
        return segment.header.prev_ledger_id, segment.header.prev_last_entry_id

    def after_fork_in_child(self) -> None:
        """Renew the thread locks: they may be held by threads that do not exist here."""
        self._segments.after_fork_in_child()

    def barrier(self) -> None:
        """Pass through the topic lock: what its holders wrote before is seen afterwards, on any machine."""
        try:
            self.lock.acquire(self.timeout_s)
        finally:
            self.lock.release()

    def _last_frame(self, segment: Segment, end: int, is_again: bool = False) -> FrameHeader:
        try:
            start = last_frame_start(segment.data, FIRST_FRAME_OFFSET, end)
            return read_header(segment.data, start, end)
        except CorruptionError as e:
            # The tail word may be seen before the frame. With too low an entry, a reader that stands at the
            # end would pass over the next one as damage.
            if is_again or not threads.await_stores():
                raise e.at(segment.path) from None
        return self._last_frame(segment, end, is_again=True)

    def messages_through(self, ledger_id: int, entry_id: int) -> int:
        """Messages of a ledger up to and including a visible entry; 0 for entry -1."""
        if entry_id < 0:
            return 0
        return self.slot(ledger_id, entry_id).messages

    def slot(self, ledger_id: int, entry_id: int) -> IndexSlot:
        """The index slot of a visible entry, checked against its frame as far as that is readable."""
        # The slot counts if its frame agrees. If not, the index is derived from the frames once, for
        # all readers.
        segment = self.segment(ledger_id)
        if self._fits(segment, entry_id):
            return segment.index.slot(entry_id)
        slots = self._repair_index(ledger_id, entry_id)
        if len(slots) < (entry_id + 1) * SLOT_SIZE:
            raise CorruptionError(path=segment.path, reason=f"entry {entry_id} is not in the log")
        return slot_of(slots, entry_id)

    def slots(self, ledger_id: int, first: int, stop: int) -> SlotColumns:
        """What the index says of visible entries, `first` to `stop` - 1: see `SegmentIndex.slots`. The
        last is compared with its frame.

        Raises:
            CorruptionError: the index, or the last frame, is damaged; nothing is repaired.
        """
        segment = self.segment(ledger_id)
        try:
            columns = segment.index.slots(first, stop)
            segment.frame_of(stop - 1, self.end_of(ledger_id))
        except CorruptionError:
            if not threads.await_stores():
                raise
            columns = segment.index.slots(first, stop)
            segment.frame_of(stop - 1, self.end_of(ledger_id))
        return columns

    def flags(self, ledger_id: int, first: int, stop: int) -> bytes:
        """The low byte of the entry flags of visible entries, `first` to `stop` - 1, by the index."""
        # The last slot of the stretch stands for all: an index that was not written to the end fails here.
        self.slot(ledger_id, stop - 1)  # derives the index again, should it need that
        index = self.segment(ledger_id).index
        # Those between may not be seen yet; their sixth number is a checksum. Afterwards, 0 is a lost entry.
        if threads.REORDERS and 0 in memoryview(index.packed_slots(first, stop)).cast("I")[5::6]:
            threads.await_stores()
        return bytes(index.data[slot_offset(first) + FLAGS_AT : slot_offset(stop) : SLOT_SIZE])

    def part(self, place: tuple[int, int]) -> Part:
        """An entry as it is stored, not verified."""
        return segment_part(self.segment(place[0]), place[1])

    def path_of(self, ledger_id: int) -> str:
        """The file of a ledger, for a damage report."""
        return log_path(self.directory, ledger_id)

    def offset_of(self, ledger_id: int, entry_id: int) -> int:
        """Where to begin reading for a visible entry: at its frame, or where that should be."""
        if entry_id <= 0:
            return FIRST_FRAME_OFFSET
        return max(self.slot(ledger_id, entry_id).offset, FIRST_FRAME_OFFSET)

    def _fits(self, segment: Segment, entry_id: int, is_again: bool = False) -> bool:
        """Whether the entry's slot is right: its own frame says so, or the one before."""
        # The frame proves the slot; if it is damaged, the frame before it tells where the slot should point.
        end = self.end_of(segment.ledger_id)
        try:
            segment.frame_of(entry_id, end)
        except FileNotFoundError:
            return False
        except CorruptionError:
            if not is_again and threads.await_stores():
                return self._fits(segment, entry_id, is_again=True)
            try:
                offset = segment.index.slot(entry_id).offset
                if not entry_id:
                    return offset == FIRST_FRAME_OFFSET
                before, frame = segment.frame_of(entry_id - 1, end)
            except (CorruptionError, FileNotFoundError):
                return False
            return before + frame.length == offset  # the frame is damaged, but not the slot
        # The checksum that was compared stands in one word, the messages in another, which is stored before.
        return not threads.REORDERS or (slot := segment.index.slot(entry_id)).messages >= slot.count

    def _derived_slots(self, segment: Segment) -> bytes:
        """The slots of a ledger by its frames alone: a scan of the file, some 0.2 s for 64 MiB."""
        closed = self._segments.chain().find(segment.ledger_id)
        with late_imports():
            from embeddedpulsar._engine.log.chain_scan import scan_log
        scan = scan_log(
            segment.path,
            chain_seed=segment.header.chain_seed,
            base_publish_ms=segment.header.base_publish_ms,
            end=self.end_of(segment.ledger_id),
            last_entry_id=closed.last_entry_id if closed is not None else -1,
        )
        return bytes(scan.slots)

    def _repair_index(self, ledger_id: int, entry_id: int) -> bytes:
        """Derive the index of a ledger from its frames, put it in place, and return its slots.

        If the ledger is the tail's, the next append starts a new one: other processes have the old index
        mapped and would continue to write there.
        """
        try:
            # Under the topic lock no writer stores slots, and of several processes that meet the
            # damage one repairs it.
            self.lock.acquire(self.timeout_s)
            SEGMENTS.drop(self.control.home, ledger_id)
            segment = self.segment(ledger_id)
            last, _ = self.extent(ledger_id)
            if entry_id <= last and self._fits(segment, entry_id):  # another process was faster
                index = segment.index.data
                return bytes(index[SLOTS_OFFSET : SLOTS_OFFSET + SLOT_SIZE * (last + 1)])
            slots = self._derived_slots(segment)
            self.control.check_in_place()
            reason = "it did not fit its segment and was derived from the log again"
            try:
                write_index(self.directory, segment.header, slots)
                # Writers in other processes have the old file mapped, and their slots would go there.
                if ledger_id == self.tail >> 32:
                    self.control.demand(MUST_ROLL)
            # Not fatal: the slots that were derived serve this call, and the next one tries again.
            except OSError as e:
                reason = f"it does not fit its segment and cannot be replaced: {e}"
            segment.use_index(None)
        finally:
            self.lock.release()
        path = index_path(self.directory, ledger_id)
        self.report(Damage(path, ledger_id, -1, -1, 0, 0, reason, damage.INDEX))
        return slots

    def next_readable(self, ledger_id: int, entry_id: int, pos: int) -> tuple[int, int]:
        """The first entry behind `entry_id` whose frame lies behind `pos` and has a good header; its offset.

        (last entry + 1, end of the ledger) if there is none. For continuing behind damage.
        """
        segment = self.segment(ledger_id)
        last, end = self.extent(ledger_id)
        # By the index first, frame by frame. Then by a scan of the whole ledger, which also finds
        # entries whose slots are damaged.
        for candidate in range(entry_id + 1, last + 1):
            try:
                offset, _ = segment.frame_of(candidate, end)
            except FileNotFoundError:
                break
            except CorruptionError:
                continue
            if offset > pos:
                return candidate, offset
        if entry_id < last:
            slots = self._derived_slots(segment)
            for candidate in range(entry_id + 1, len(slots) // SLOT_SIZE):
                slot = slot_of(slots, candidate)
                if slot.crc and slot.offset > pos:
                    return candidate, slot.offset
        return last + 1, end

    def _last_known_entry(self, ledger_id: int, end: int) -> int:
        """The last entry of a ledger that ends at `end`, also when its last frame is damaged."""
        if end <= FIRST_FRAME_OFFSET:
            return -1
        # From the best source to the worst: the last frame, the slots below the end, a scan of all
        # frames.
        segment = self._readable(ledger_id)
        try:
            if segment is not None:
                return self._last_frame(segment, end).entry_id
            index = SegmentIndex.open(self.directory, ledger_id, writable=False)
            return visible_slots(index, end) - 1
        except (CorruptionError, FileNotFoundError):
            if segment is None:
                return -1
        try:
            entries = visible_slots(segment.index, end)
        except (CorruptionError, FileNotFoundError):
            entries = 0
        return (entries or len(self._derived_slots(segment)) // SLOT_SIZE) - 1

    def _readable(self, ledger_id: int) -> Segment | None:
        """The segment; None if it is lost or damaged (the chain reported it)."""
        try:
            # A ledger that was trimmed meanwhile is an answer of its own, which callers handle.
            return self.segment(ledger_id)
        except FileNotFoundError:
            if self.is_trimmed(ledger_id):
                raise
        except CorruptionError:
            return None
        return None


class ReadableView(LogView):
    """A topic as far as it can be read: the log up to the first entry of a transaction that is not decided.

    Role: gives figures and positions the end that readers find. Callers: as of `LogView`.
    """

    def __init__(self, view: LogView, max_read: MaxReadPosition) -> None:
        super().__init__(view.directory, view.control, view.lock, view.timeout_s, view.report)
        self._whole: Final = view
        self._horizon: Final = max_read.horizon
        self.max_read = max_read

    @property
    def tail(self) -> int:
        horizon = self._horizon()
        return self._whole.tail if horizon is None else horizon.word

    def chain(self) -> LedgerChain:
        chain, horizon = self._whole.chain(), self._horizon()
        if horizon is None or horizon.position.ledger_id >= chain.tail_ledger:
            return chain
        at = bisect_left(chain.ids, horizon.position.ledger_id)
        last = chain.closed[at]
        return chain._replace(
            closed=chain.closed[:at],
            ids=chain.ids[:at],
            tail_ledger=last.ledger_id,
            tail_base_publish_ms=last.base_publish_ms,
            messages_before_tail=last.messages_before,
        )

    def end_of(self, ledger_id: int) -> int:
        horizon = self._horizon()
        if horizon is None or ledger_id < horizon.position.ledger_id:
            return self._whole.end_of(ledger_id)
        return split_tail(horizon.word)[1] if ledger_id == horizon.position.ledger_id else 0

    def extent(self, ledger_id: int) -> tuple[int, int]:
        horizon = self._horizon()
        if horizon is None or ledger_id < horizon.position.ledger_id:
            return self._whole.extent(ledger_id)
        if ledger_id == horizon.position.ledger_id:
            return horizon.position.entry_id - 1, split_tail(horizon.word)[1]
        return -1, 0

    # What is damaged is derived again for the whole log.

    def slot(self, ledger_id: int, entry_id: int) -> IndexSlot:
        return self._whole.slot(ledger_id, entry_id)

    def slots(self, ledger_id: int, first: int, stop: int) -> SlotColumns:
        return self._whole.slots(ledger_id, first, stop)

    def flags(self, ledger_id: int, first: int, stop: int) -> bytes:
        return self._whole.flags(ledger_id, first, stop)
