"""The ledgers of a log in the memory of this process, and reading them in order without a lock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from embeddedpulsar.damage import HOLE, Damage, DamageHook
from embeddedpulsar.exceptions import AlreadyClosed, CorruptionError
from embeddedpulsar.format.control import TopicWord, split_tail
from embeddedpulsar.format.entry import EntryView, decode
from embeddedpulsar.format.entry_view import METADATA
from embeddedpulsar.format.frame import FrameHeader
from embeddedpulsar.format.index import IndexSlot, SlotColumns
from embeddedpulsar.format.segment_header import FIRST_FRAME_OFFSET
from embeddedpulsar.managed_ledger.position import Position
from embeddedpulsar.platform.file_lock import FileLock
from embeddedpulsar.storage.chunk_reader import Part
from embeddedpulsar.storage.segment_chain import ClosedLedger, LedgerChain

_TAIL: Final = TopicWord.TAIL
_OFFSET_BITS: Final = 0xFFFFFFFF
_NO_LIMIT: Final = 1 << 62

Record = tuple[int, int, FrameHeader, bytes]
"""An entry: where it ends, the messages of its ledger up to and including it, its frame header without
checksums of its own, and its body."""


class MemoryLedger:
    """The entries of one ledger, by entry id. The last may lie above the tail word, and is not there then.

    Offsets are those that the same entries would have in a segment, so that sizes and tail words mean the
    same in every kind of log.

    Attributes:
        before: the last entry before this ledger, if there was any.
    """

    __slots__ = ("base_ms", "before", "ledger_id", "records")

    def __init__(self, ledger_id: int, base_ms: int, before: tuple[int, int] | None) -> None:
        self.ledger_id: Final = ledger_id
        self.base_ms: Final = base_ms
        self.before: Final = before
        self.records: Final[dict[int, Record]] = {}


Contents = dict[int, MemoryLedger]


class MemoryLedgers:
    """A `LedgersView` of ledgers in memory, which are kept beyond this object.

    Args:
        keep: the ledgers of each topic of the store, by directory.

    Invariants: what lies above the tail word is not looked at. A ledger without entries is the tail's.
    Callers: any thread; takes no lock but in `barrier`.
    """

    def __init__(
        self,
        name: str,
        keep: dict[str, Contents],
        directory: str,
        words: memoryview,
        lock: FileLock,
        lock_timeout_s: float,
        report: DamageHook,
    ) -> None:
        self.words: Final = words
        self.report: Final = report
        self.name: Final = name
        self.lock: Final = lock
        self._keep: Final = keep
        self._directory: Final = directory
        self._contents: Final = keep.setdefault(directory, {})
        self._timeout_s: Final = lock_timeout_s
        self._chain = LedgerChain((), (), 0, 0, 0, 0)

    def add(self, ledger: MemoryLedger) -> None:
        """Keep a new ledger. Under the topic lock, before it becomes the tail's."""
        self._contents[ledger.ledger_id] = ledger

    def remove_trimmed(self, most: int) -> int:
        """Remove ledgers that were given up, at most so many; return how many went."""
        point = self.words[TopicWord.TRIM]
        expired = [ledger_id for ledger_id in list(self._contents) if ledger_id < point][:most]
        return sum(self._contents.pop(ledger_id, None) is not None for ledger_id in expired)

    def forget(self) -> None:
        """Remove all of them: the topic is deleted."""
        self._keep.pop(self._directory, None)

    def records(self, ledger_id: int) -> list[Record]:
        """The entries of a ledger, perhaps one above the tail word; none if it is trimmed."""
        ledger = self._contents.get(ledger_id)
        return [] if ledger is None else list(ledger.records.values())

    def ledger(self, ledger_id: int) -> MemoryLedger:
        """A ledger.

        Raises:
            FileNotFoundError: trimmed.
        """
        try:
            return self._contents[ledger_id]
        except KeyError:
            raise FileNotFoundError(f"{self.name}: ledger {ledger_id} was trimmed") from None

    def chain(self) -> LedgerChain:
        """See `LedgersView`."""
        words, chain = self.words, self._chain
        tail, trim = words[_TAIL] >> 32, words[TopicWord.TRIM]
        if tail == chain.tail_ledger and trim == chain.first_retained:
            return chain
        closed: list[ClosedLedger] = []
        before = base = 0
        for ledger in list(self._contents.values()):
            if ledger.ledger_id == tail:
                base = ledger.base_ms
            elif trim <= ledger.ledger_id < tail:
                count = len(ledger.records)
                end, messages, *_ = ledger.records[count - 1]
                closed.append(
                    ClosedLedger(ledger.ledger_id, end, count - 1, 0, messages, before, ledger.base_ms)
                )
                before += messages
        ids = tuple([one.ledger_id for one in closed])
        self._chain = chain = LedgerChain(tuple(closed), ids, tail, base, before, trim)
        return chain

    def end_of(self, ledger_id: int) -> int:
        """See `LedgersView`."""
        tail_ledger, end = split_tail(self.words[_TAIL])
        if ledger_id == tail_ledger:
            return end
        closed = self.chain().find(ledger_id)
        return closed.end_offset if closed is not None else 0

    def extent(self, ledger_id: int) -> tuple[int, int]:
        """See `LedgersView`."""
        tail_ledger, end = split_tail(self.words[_TAIL])
        records = self.ledger(ledger_id).records
        last = len(records) - 1
        if ledger_id == tail_ledger:
            while last >= 0 and records[last][0] > end:
                last -= 1
        elif last >= 0:
            end = records[last][0]
        return last, end

    def trimmed_before(self, ledger_id: int) -> tuple[int, int] | None:
        """See `LedgersView`."""
        return self.ledger(ledger_id).before

    def messages_through(self, ledger_id: int, entry_id: int) -> int:
        """See `LedgersView`."""
        return self.ledger(ledger_id).records[entry_id][1] if entry_id >= 0 else 0

    def slot(self, ledger_id: int, entry_id: int) -> IndexSlot:
        """See `LedgersView`. Without the hash of the key, which is in the entry."""
        ledger = self.ledger(ledger_id)
        end, messages, header, _ = ledger.records[entry_id]
        since = header.publish_time - ledger.base_ms
        return IndexSlot(
            end - header.length, since, messages, 0, header.flags >> 16, header.message_count, header.crc
        )

    def slots(self, ledger_id: int, first: int, stop: int) -> SlotColumns:
        """See `LedgersView`."""
        records = list(map(self.ledger(ledger_id).records.__getitem__, range(first, stop)))
        return SlotColumns(
            [end - header.length >> 3 for end, _, header, _ in records],
            [messages for _, messages, _, _ in records],
            [METADATA.unpack_from(body)[2] for *_, body in records],
            bytes([header.flags >> 16 & 0xFF for _, _, header, _ in records]),
            [header.message_count for _, _, header, _ in records],
        )

    def flags(self, ledger_id: int, first: int, stop: int) -> bytes:
        """See `LedgersView`."""
        records = self.ledger(ledger_id).records
        return bytes([records[entry_id][2].flags >> 16 & 0xFF for entry_id in range(first, stop)])

    def part(self, place: tuple[int, int]) -> Part:
        """See `LedgersView`."""
        ledger_id, entry_id = place
        record = self.ledger(ledger_id).records.get(entry_id)
        if record is None or record[0] > (self.end_of(ledger_id) or record[0]):
            raise FileNotFoundError(f"{self.name}: there is no entry {ledger_id}:{entry_id}")
        return Part(record[2], record[3], int)

    def offset_of(self, ledger_id: int, entry_id: int) -> int:
        """See `LedgersView`."""
        return self.slot(ledger_id, entry_id).offset if entry_id > 0 else FIRST_FRAME_OFFSET

    def path_of(self, ledger_id: int) -> str:
        """See `LedgersView`."""
        return f"{self.name} (ledger {ledger_id}, in memory)"

    def barrier(self) -> None:
        """See `LedgersView`."""
        try:
            self.lock.acquire(self._timeout_s)
        finally:
            self.lock.release()


class MemoryCursor:
    """The `Cursor` of a `MemoryLog`.

    Invariants: nothing above the tail is given out. If the ledger of a position was trimmed, reading goes on
    at the first that is retained; a position behind the tail is taken for the tail. An entry that cannot be
    decoded is reported and skipped.
    Callers: one thread at a time.
    """

    __slots__ = ("_entry_id", "_ledger", "_ledgers", "_pending", "_words")

    def __init__(self, ledgers: MemoryLedgers, position: Position, *, inclusive: bool) -> None:
        self._ledgers: Final = ledgers
        self._words: Final = ledgers.words
        self._ledger: MemoryLedger | None = None
        self._entry_id = 0
        self._pending = position if inclusive else position.next()

    @property
    def position(self) -> Position:
        """See `Cursor`."""
        ledger = self._ledger
        return self._pending if ledger is None else Position(ledger.ledger_id, self._entry_id)

    def is_at(self, tail: int) -> bool:
        """See `Cursor`."""
        ledger, entry_id = self._ledger, self._entry_id
        if ledger is None:
            return False
        end = ledger.records[entry_id - 1][0] if entry_id else FIRST_FRAME_OFFSET
        return tail == ledger.ledger_id << 32 | end >> 3

    def seek(self, position: Position) -> None:
        """See `Cursor`."""
        self._ledger = None
        self._pending = position

    def read(self, max_entries: int, max_messages: int, max_bytes: int) -> list[EntryView]:
        """See `Cursor`. About 1.5 us per unbatched entry."""
        out: list[EntryView] = []
        try:
            while True:
                ledger = self._ledger or self._attach()
                if ledger is None:
                    return out
                # After the ledger is known: so if the tail's is another, it is a later one.
                tail = self._words[_TAIL]
                is_tail = tail >> 32 == ledger.ledger_id
                limit = (tail & _OFFSET_BITS) << 3 if is_tail else _NO_LIMIT
                self._read_into(out, ledger, limit, max_entries, max_messages, max_bytes)
                if out or is_tail:
                    return out
                following = self._ledgers.chain().after(ledger.ledger_id)
                if not following:
                    return out
                self.seek(Position(following, 0))
        except ValueError:  # the control words are not mapped any more
            raise AlreadyClosed("the topic is closed") from None

    def read_spans(self, ledger_id: int, spans: Sequence[tuple[int, int]], max_bytes: int) -> list[EntryView]:
        """See `Cursor`."""
        out: list[EntryView] = []
        try:
            find = self._ledgers.ledger(ledger_id).records.get
            for first, last in spans:
                for entry_id in range(first, last + 1):
                    record = find(entry_id)
                    if record is None or max_bytes <= 0:
                        return out
                    out.append(decode(record[2], record[3], ledger_id))
                    max_bytes -= record[2].length
        except (CorruptionError, FileNotFoundError):
            return out
        except ImportError:
            if not out:
                raise
        return out

    def _read_into(
        self,
        out: list[EntryView],
        ledger: MemoryLedger,
        limit: int,
        max_entries: int,
        max_messages: int,
        max_bytes: int,
    ) -> None:
        find, ledger_id, entry_id = ledger.records.get, ledger.ledger_id, self._entry_id
        try:
            while max_entries > 0 and max_messages > 0 and max_bytes > 0:
                record = find(entry_id)
                if record is None or record[0] > limit:
                    return
                header = record[2]
                try:
                    out.append(decode(header, record[3], ledger_id))
                    max_entries -= 1
                    max_messages -= header.message_count
                    max_bytes -= header.length
                except CorruptionError as e:
                    self._skip(ledger_id, entry_id, record[0], e.reason)
                except ImportError:
                    if out:
                        return
                    raise
                entry_id += 1
        finally:
            self._entry_id = entry_id

    def _skip(self, ledger_id: int, entry_id: int, end: int, reason: str) -> None:
        ledgers = self._ledgers
        start = ledgers.offset_of(ledger_id, entry_id)
        path = ledgers.path_of(ledger_id)
        ledgers.report(Damage(path, ledger_id, entry_id, entry_id, start, end, reason, HOLE))

    def _attach(self) -> MemoryLedger | None:
        """Stand at the pending position, or where reading goes on from it; None while there is no ledger."""
        while True:
            wanted = self._pending
            chain = self._ledgers.chain()
            if not chain.tail_ledger:
                return None
            ledger_id = chain.at_or_after(wanted.ledger_id) or chain.tail_ledger
            try:
                last, _ = self._ledgers.extent(ledger_id)
                ledger = self._ledgers.ledger(ledger_id)
            except FileNotFoundError:  # trimmed since
                continue
            if ledger_id > wanted.ledger_id:  # trimmed, or not of this topic
                entry_id = 0
            elif ledger_id < wanted.ledger_id:  # behind the tail
                entry_id = last + 1
            else:
                entry_id = min(max(wanted.entry_id, 0), last + 1)
            self._entry_id = entry_id
            self._ledger = ledger
            return ledger
