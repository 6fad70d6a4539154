"""The log of one topic as everything above sees it, whatever kind it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from embeddedpulsar._engine.format.entry import EncodedFields
from embeddedpulsar._engine.format.entry_decoder import EntryView
from embeddedpulsar._engine.format.frame import SlotColumns
from embeddedpulsar._engine.log.log_opening import LedgerOptions
from embeddedpulsar._engine.log.log_positions import ChunkAssembler
from embeddedpulsar._engine.log.segment_writer import AppendGuard
from embeddedpulsar._engine.log.trimming import Trimming
from embeddedpulsar._engine.log.waiter_slots import AppendHold, TailWait
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar.message_id import Isolation, Position
from embeddedpulsar.records import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from embeddedpulsar._engine.log.log_survey import LogSurvey


class Cursor(Protocol):
    """A place in a log that moves forward as entries are read. Callers: one thread at a time."""

    @property
    def position(self) -> Position:
        """The entry that is read next, if it is there."""

    def is_at(self, tail: int) -> bool:
        """Whether it stands where the log ends by that tail word."""

    def seek(self, position: Position) -> None:
        """Let `position` be the entry that is read next."""

    def read(self, max_entries: int, max_messages: int, max_bytes: int) -> list[EntryView]:
        """The next entries, at most as many as the three maxima allow but at least one; none at the tail.

        Raises:
            AlreadyClosed: the topic was closed.
            ImportError: the next entry is packed by a codec that is not installed here. The cursor stays.
        """

    def read_spans(self, ledger_id: int, spans: Sequence[tuple[int, int]], max_bytes: int) -> list[EntryView]:
        """Entries of one ledger, from the first to the last of each of the spans, which are in order.

        Returns:
            As many as make up `max_bytes`, without a gap; they end before the first that cannot be read. None
            if that is the first of all, and `read` is to step over it.

        Raises:
            AlreadyClosed, ImportError: as `read`.
        """


class LedgerCounts(Protocol):
    """What one retained ledger holds now."""

    @property
    def ledger_id(self) -> int:
        """Its id."""

    @property
    def entries(self) -> int:
        """Entries; their ids are 0 to entries - 1."""

    @property
    def messages(self) -> int:
        """Messages in them."""


class AppendNowait(Protocol):
    """See `SegmentWriter.append`."""

    def __call__(
        self,
        entry: EncodedFields,
        guard: AppendGuard | None = None,
        timeout_s: float | None = None,
        hold: AppendHold | None = None,
        check_open: Callable[[], object] | None = None,
    ) -> tuple[int, int, int, int]: ...


class AppendRun(Protocol):
    """See `SegmentWriter.append_run`."""

    def __call__(
        self,
        entries: Sequence[EncodedFields],
        hold: AppendHold,
        stored: list[tuple[int, int, int]],
        check_open: Callable[[], object] | None = None,
    ) -> None: ...


class Log(Protocol):
    """An endless sequence of entries, cut into ledgers.

    Role: what `Topic`, `Subscription`, producers, consumers and readers use of a `ManagedLedger`; nothing
    else of it is used above this layer.
    Invariants: entries appear in the order of their positions and publish times, all at once. Ids are never
    given out twice. The control words and the lock are those of the topic's directory: the journal of the
    producers, the waiters and the deletion of the topic use them, too.
    Callers: any thread.
    """

    @property
    def name(self) -> str:
        """The topic, for messages."""

    @property
    def is_volatile(self) -> bool:
        """Whether the topic is non-persistent: the log keeps the newest entries, read or not, and no others;
        and its subscriptions deliver each message at most once."""

    @property
    def is_derived(self) -> bool:
        """Whether the log may not be written, and its end was found by its segments; see `DerivedControl`."""

    @property
    def options(self) -> LedgerOptions:
        """Layout and durability."""

    @property
    def words(self) -> memoryview:
        """The control words of the topic (docs/format/control.md)."""

    @property
    def lock(self) -> FileLock:
        """The topic lock."""

    @property
    def check_in_place(self) -> Callable[[], object]:
        """Raises `StoreGoneError` if the topic was removed, moved or replaced."""

    @property
    def is_in_place(self) -> Callable[[], bool]:
        """Whether `check_in_place` would not raise."""

    # -- writing -------------------------------------------------------------------------------------------

    @property
    def append_nowait(self) -> AppendNowait:
        """Append without waiting for durability: (ledger, entry, publish ms, word for `wait_durable`)."""

    @property
    def hold(self) -> Callable[[], AppendHold]:
        """Makes a hold for several appends in one hold of the lock."""

    @property
    def append_run(self) -> AppendRun:
        """Append several entries in a hold; see `SegmentWriter.append_run`."""

    def wait_durable(self, end_word: int) -> None:
        """Wait until everything before `end_word` (from `append_nowait`) is as durable as it can be."""

    def note_dirty(self) -> None:
        """An entry of level "interval" was appended by `append_nowait`."""

    def sync(self) -> None:
        """Make everything appended so far as durable as it can be."""

    def roll(self) -> int:
        """Close the open ledger, start the next one and return its id; an open ledger without entries stays.

        Raises:
            TopicTerminated: nothing is appended to the topic any more.
            StorageFullError: no room for the next one, and nothing was changed.
        """

    # -- reading -------------------------------------------------------------------------------------------

    @property
    def tail(self) -> int:
        """The tail word: it differs from what it was when something was appended, or a ledger begun."""

    def cursor(self, position: Position, *, inclusive: bool, isolation: int = Isolation.COMMITTED) -> Cursor:
        """A cursor whose next entry is that at `position`, or (not `inclusive`) the one behind it.
        ``isolation`` says what becomes of entries of transactions."""

    @property
    def chunks(self) -> Callable[[], ChunkAssembler]:
        """Makes what puts chunked messages together."""

    def upcoming(self, position: Position, max_messages: int, max_bytes: int) -> SlotColumns | None:
        """What the index says of the entries from `position` on, within its ledger.

        Returns:
            At least one entry, and then as many as the two maxima allow. None if there are so few that
            reading them costs less, if the index does not say, or if `position` is not in a ledger.
        """

    def columns(self, position: Position, entries: int) -> SlotColumns | None:
        """What the index says of ``entries`` entries from `position` on, which are in the log, in its ledger.
        None if the index does not say."""

    def first_position(self) -> Position:
        """The first retained entry, or where it will be; (0, 0) before the first ledger."""

    def last_position(self) -> Position | None:
        """The last entry, trimmed or not, also of a transaction that is not decided; None if nothing was ever
        appended."""

    def max_read_position(self) -> Position | None:
        """The last entry before those that wait for a transaction: `last_position` if no transaction is open.
        What comes behind it can be read later."""

    def last_readable(self) -> Position | None:
        """As `max_read_position`, and the entry is of no aborted transaction."""

    def settle_transactions(self, timeout_s: float = ...) -> bool:
        """Note for all processes which transactions have ended, and ring those that wait for the topic. Only
        the time depends on it that looks take. To be called without locks.

        Returns:
            False if that was not done: the topic lock was not to be had within ``timeout_s``.
        """

    def ended_before(self, ledger_id: int) -> Position | None:
        """The last entry of the ledger before a retained one, trimmed or not; None if it is unknown."""

    def find_by_publish_time(self, publish_ms: int) -> Position:
        """The first entry published at `publish_ms` or later; the position behind the last if none was."""

    def messages_after(self, position: Position) -> int:
        """Messages behind `position`, up to `max_read_position`; aborted ones count."""

    def aborted_behind(
        self, after: Position, through: Position | None = None, acked: Sequence[tuple[int, int, int]] = ()
    ) -> tuple[int, int]:
        """Entries of aborted transactions behind ``after``, up to ``through`` or `max_read_position`, and
        messages in them; without those in the runs ``acked``: ledger, first and last entry, ascending."""

    def past_aborted(self, position: Position) -> Position:
        """``position``, or the last of the entries of aborted transactions that stand directly behind it."""

    def messages_between(self, after: Position, through: Position) -> int:
        """Messages behind `after`, up to and including `through`."""

    def segments(self) -> Sequence[LedgerCounts]:
        """The retained ledgers, oldest first."""

    def ledgers(self) -> Sequence[tuple[int, int]]:
        """The retained ledgers, oldest first, and how many entries they have: -1 for the last one, which may
        grow. Reads no entry."""

    def survey(self) -> LogSurvey:
        """Answers of its indexes to an onlooker."""

    def sequence_ids(
        self,
        wanted: Iterable[str] | None,
        end_word: int,
        floor_word: int,
        on_progress: Callable[[int], object] | None = None,
    ) -> dict[str, int]:
        """The highest sequence id of each producer (None: of all) between two tail words."""

    def reaches(self, word: int) -> bool:
        """Whether the log goes as far as when its tail word was ``word``."""

    # -- the rest ------------------------------------------------------------------------------------------

    def call_on_look(self, listener: Callable[[], object]) -> None:
        """Have ``listener()`` called by appends of a log that several processes share, every 10 ms at most,
        under the topic lock. It must not wait for anything."""

    @property
    def waits(self) -> TailWait:
        """Sleeps until something is appended."""

    @property
    def trimming(self) -> Trimming:
        """Gives up the oldest ledgers."""

    def close(self) -> None:
        """Release everything. Idempotent; cursors end too."""
