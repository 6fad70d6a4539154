"""A topic's log in memory, for simulations of its subscriptions: what `ManagedLedger` is to them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, Final, cast

from embeddedpulsar._engine.format.control import CONTROL_SIZE, TopicWord
from embeddedpulsar._engine.format.frame import FLAG_CHUNK, FLAG_DELAYED, SlotColumns
from embeddedpulsar._engine.log.log_opening import LedgerOptions
from embeddedpulsar._engine.log.segment_snapshot import SegmentInfo
from embeddedpulsar._engine.log.waiter_slots import Ringing
from embeddedpulsar._engine.platform.peers import Peers
from embeddedpulsar.message_id import Isolation, Position

_FEW: Final = 3


class VirtualEntry:
    """One entry as it was published; `view` makes what a consumer gets.

    Attributes:
        key: of its messages; 0 for none. It is the hash as well.
        deliver_at: ms since the epoch; 0 for at once.
        is_damaged: no cursor gives it out.
        message: number of the chunked message it belongs to; 0 for none. All parts but the last have count 0.
        earlier: of a last part, the others.
        last: of another part, the last one, once that is there.
    """

    __slots__ = (
        "count",
        "deliver_at",
        "earlier",
        "is_damaged",
        "key",
        "last",
        "message",
        "position",
        "publish_ms",
        "size",
    )

    def __init__(
        self, position: Position, publish_ms: int, count: int, key: int, deliver_at: int, size: int
    ) -> None:
        self.position = position
        self.publish_ms = publish_ms
        self.count = count
        self.key = key
        self.deliver_at = deliver_at
        self.size = size
        self.is_damaged = False
        self.message = 0
        self.earlier: tuple[Position, ...] = ()
        self.last: VirtualEntry | None = None

    @property
    def may_expire(self) -> bool:
        """Whether this is a part whose message does not come any more, as far as the log can tell."""
        return not self.count and (self.last is None or self.last.is_damaged)


class VirtualView:
    """What `EntryView` is to dispatch."""

    __slots__ = (
        "count",
        "entry_id",
        "first_sequence_id",
        "flags",
        "key_hash",
        "ledger_id",
        "number",
        "offsets",
        "origin",
        "payload",
        "producer_name",
        "publish_time",
        "redelivery_count",
        "skip",
    )

    def __init__(self, entry: VirtualEntry) -> None:
        self.origin = entry
        self.ledger_id, self.entry_id = entry.position
        self.count = entry.count
        self.flags = (FLAG_DELAYED if entry.deliver_at else 0) | (FLAG_CHUNK if entry.message else 0)
        self.producer_name, self.first_sequence_id = "p", entry.message
        self.offsets = [0, entry.size]
        self.key_hash = entry.key
        self.payload = bytes(entry.size)
        self.publish_time = 0  # long ago: parts expire by the timer of who sees them
        self.redelivery_count = 0
        self.number = 0
        self.skip: int | None = None

    def deliver_at(self) -> list[int]:
        """When each of its messages may be delivered."""
        return [self.origin.deliver_at] * self.count


class VirtualTrimming:
    """Nothing is trimmed here."""

    def note_retreat(self) -> None:
        """A subscription was made or put back."""

    def suggest(self) -> None:
        """There may be something to trim."""


class VirtualLock:
    """A lock that is always free."""

    held = False

    def acquire(self, timeout_s: float = 0.0) -> None:
        """Take it."""

    def try_acquire(self) -> bool:
        """Take it."""
        return True

    def release(self) -> None:
        """Give it back."""


class VirtualLog:
    """Ledgers of entries. Single-threaded.

    Attributes:
        entries: all of them, in order.
        words: the ctl, as far as waiting is concerned.
        lock: the topic lock; nothing contends for it.
    """

    name: Final = "virtual"
    is_volatile: Final = False

    def __init__(self, first_ledger: int) -> None:
        self.options: Final = LedgerOptions(durability="process")
        self.entries: list[VirtualEntry] = []
        self.words: Final = memoryview(bytearray(CONTROL_SIZE)).cast("Q")
        self.lock: Final = VirtualLock()
        self._ledgers: list[int] = [first_ledger]
        self._counts: dict[int, int] = {first_ledger: 0}
        self._ringing: Ringing | None = None
        self.trimming: Final = VirtualTrimming()

    def ring_by(self, peers: Peers) -> None:
        """How processes that sleep at the tail are woken."""
        self._ringing = Ringing(self.words, cast("Any", self.lock), peers)

    def check_in_place(self) -> None:
        """It has no place that could be lost."""

    # -- writing -----------------------------------------------------------------------------------

    def append(self, publish_ms: int, count: int, key: int, deliver_at: int, size: int) -> VirtualEntry:
        """Publish an entry and wake who waits for it."""
        ledger_id = self._ledgers[-1]
        position = Position(ledger_id, self._counts[ledger_id])
        entry = VirtualEntry(position, publish_ms, count, key, deliver_at, size)
        self._counts[ledger_id] += 1
        self.entries.append(entry)
        self.words[TopicWord.TAIL] += 1
        if self._ringing is not None:
            for uuid in self._ringing.waiters.take_all():
                self._ringing(uuid)
        return entry

    def roll(self, step: int) -> None:
        """Begin a ledger."""
        ledger_id = self._ledgers[-1] + step
        self.words[TopicWord.TAIL] += 1
        self._ledgers.append(ledger_id)
        self._counts[ledger_id] = 0

    # -- as `ManagedLedger` has it -----------------------------------------------------------------

    @property
    def tail(self) -> int:
        """Differs from what it was when something was appended."""
        return int(self.words[TopicWord.TAIL])

    def cursor(
        self, position: Position, *, inclusive: bool, isolation: int = Isolation.COMMITTED
    ) -> VirtualCursor:
        return VirtualCursor(self, position if inclusive else position.next())

    def chunks(self) -> VirtualChunks:
        return VirtualChunks(self)

    def first_position(self) -> Position:
        return self.entries[0].position if self.entries else Position(self._ledgers[-1], 0)

    def last_position(self) -> Position | None:
        return self.entries[-1].position if self.entries else None

    max_read_position = last_readable = last_position

    def aborted_behind(self, *_: object) -> tuple[int, int]:
        """It has no transactions."""
        return 0, 0

    def past_aborted(self, position: Position) -> Position:
        return position

    def index_of(self, position: tuple[int, int]) -> int:
        """Index of the first entry at or after a position."""
        return bisect_left(self.entries, position, key=_position_of)

    def find_by_publish_time(self, publish_ms: int) -> Position:
        for entry in self.entries:
            if entry.publish_ms >= publish_ms:
                return entry.position
        return Position(self._ledgers[-1], self._counts[self._ledgers[-1]])

    def upcoming(self, position: Position, max_messages: int, max_bytes: int) -> SlotColumns | None:
        """The index has all of them, damaged or not; of a few, the entries are read."""
        found: list[VirtualEntry] = []
        messages = size = 0
        for entry in self.entries[self.index_of(position) : self.index_of((position.ledger_id + 1, 0))]:
            if messages >= max_messages or size >= max_bytes:
                break
            found.append(entry)
            messages += entry.count
            size += entry.size if entry.count else 0
        if len(found) < _FEW or found[0].position != position:
            return None
        return _columns_of(found)

    def columns(self, position: Position, entries: int) -> SlotColumns | None:
        """The index has all of them, damaged or not."""
        first = self.index_of(position)
        return _columns_of(self.entries[first : first + entries])

    def messages_after(self, position: Position) -> int:
        return sum(entry.count for entry in self.entries[self.index_of(position.next()) :])

    def messages_between(self, after: Position, through: Position) -> int:
        return self.messages_after(after) - self.messages_after(through)

    def ledgers(self) -> list[tuple[int, int]]:
        found = [(one.ledger_id, one.entries) for one in self.segments()]
        return [*found[:-1], (found[-1][0], -1)] if found else []

    def segments(self) -> list[SegmentInfo]:
        found = []
        for ledger_id in self._ledgers:
            inside = self.entries[self.index_of((ledger_id, 0)) : self.index_of((ledger_id + 1, 0))]
            messages = sum(entry.count for entry in inside)
            found.append(SegmentInfo(ledger_id, "", "", 0, len(inside), messages, 0, 0))
        return found


def _columns_of(found: Sequence[VirtualEntry]) -> SlotColumns:
    return SlotColumns(
        list(range(len(found))),
        list(accumulate(entry.count for entry in found)),
        [entry.key for entry in found],
        bytes([VirtualView(entry).flags >> 16 for entry in found]),
        [entry.count for entry in found],
    )


class VirtualChunks:
    """What `ChunkAssembler`, its `ChunkReader` and its `ChunkLocator` are: every part can be read."""

    def __init__(self, log: VirtualLog) -> None:
        self._log = log
        self.last_parts = self.reader = self

    def between(self, ledger_id: int, first: int, last: int) -> list[Position]:
        inside = (one for one in self._log.entries if one.position.ledger_id == ledger_id and one.count)
        return [one.position for one in inside if one.earlier and first <= one.position.entry_id <= last]

    def note_read(self, views: Sequence[VirtualView]) -> None:
        """Nothing to note: looking at an entry costs nothing here."""

    def parts_of(self, place: Position) -> tuple[Position, ...]:
        return self._log.entries[self._log.index_of(place)].earlier

    def try_whole(self, last: VirtualView) -> VirtualView:
        return last

    def earlier(self, last: VirtualView) -> tuple[Position, ...]:
        return last.origin.earlier

    def find_last(self, key: tuple[str, int], parts: Iterable[Position]) -> Position | None:
        behind = self._log.entries[self._log.index_of(max(parts).next()) :]
        found = (one.position for one in behind if one.message == key[1] and one.count and not one.is_damaged)
        return next(found, None)

    def are_in(self, ledger_id: int) -> bool:
        return any(one.message for one in self._log.entries if one.position.ledger_id == ledger_id)


class VirtualCursor:
    """What `EntryCursor` is: it steps over what is damaged, and stops at the end of a ledger."""

    def __init__(self, log: VirtualLog, position: Position) -> None:
        self._log = log
        self.position = position

    def seek(self, position: Position) -> None:
        self.position = position

    def read(self, max_entries: int, max_messages: int, max_bytes: int) -> list[VirtualView]:
        entries = self._log.entries
        found: list[VirtualView] = []
        messages = size = 0
        for entry in entries[self._log.index_of(self.position) :]:
            is_full = len(found) >= max_entries or messages + entry.count > max_messages
            is_full = is_full or size + entry.size > max_bytes
            if found and (is_full or entry.position.ledger_id != found[-1].ledger_id):
                break
            self.position = entry.position.next()
            if not entry.is_damaged:
                found.append(VirtualView(entry))
                messages += entry.count
                size += entry.size
        return found

    def read_spans(
        self, ledger_id: int, spans: Sequence[tuple[int, int]], max_bytes: int
    ) -> list[VirtualView]:
        found: list[VirtualView] = []
        for first, last in spans:
            for entry_id in range(first, last + 1):
                self.position = Position(ledger_id, entry_id)
                entry = self._log.entries[self._log.index_of(self.position)]
                if entry.is_damaged or max_bytes <= 0:
                    return found
                found.append(VirtualView(entry))
                self.position = self.position.next()
                max_bytes -= entry.size if entry.count else 0
        return found


def _position_of(entry: VirtualEntry) -> Position:
    return entry.position
