"""Reading the entries of a log in memory in order, without a lock."""

from __future__ import annotations

from typing import Final

from embeddedpulsar.damage import HOLE, Damage
from embeddedpulsar.exceptions import AlreadyClosed, CorruptionError
from embeddedpulsar.format.control import TopicWord
from embeddedpulsar.format.entry import EntryView, decode
from embeddedpulsar.format.segment_header import FIRST_FRAME_OFFSET
from embeddedpulsar.managed_ledger.memory_ledgers import MemoryLedger, MemoryLedgers
from embeddedpulsar.managed_ledger.position import Position

_TAIL: Final = TopicWord.TAIL
_OFFSET_BITS: Final = 0xFFFFFFFF
_UNLIMITED: Final = 1 << 62


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
                limit = (tail & _OFFSET_BITS) << 3 if is_tail else _UNLIMITED
                self._read_into(out, ledger, limit, max_entries, max_messages, max_bytes)
                if out or is_tail:
                    return out
                following = self._ledgers.chain().after(ledger.ledger_id)
                if not following:
                    return out
                self.seek(Position(following, 0))
        except ValueError:  # the control words are not mapped any more
            raise AlreadyClosed("the topic is closed") from None

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
