"""Consumers of Exclusive and Failover: the active one reads everything, in order. Hot: `read`.

Reading what compaction left of the entries of a topic that a subscription has not acknowledged.

Reading the entries of a topic that a subscription has not acknowledged, in order. Hot.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from embeddedpulsar._engine.filenames import compacted_start_path
from embeddedpulsar._engine.format.acknowledgement import AckGroup
from embeddedpulsar._engine.format.document import KIND_COMPACTED_START, decode_document, encode_document
from embeddedpulsar._engine.format.entry import EntryView
from embeddedpulsar._engine.format.entry_decoder import RawPosition
from embeddedpulsar._engine.format.subscription_record import AckedThrough, Ledgers
from embeddedpulsar._engine.platform import disk, fork
from embeddedpulsar._engine.subscription.attachment.attachment import Attachment
from embeddedpulsar._engine.subscription.attachment.chunk_keeper import ChunkOptions
from embeddedpulsar._engine.subscription.attachment.membership import Membership
from embeddedpulsar._engine.subscription.dispatch.dispatchers import ACTIVE_DISPATCHERS
from embeddedpulsar._engine.subscription.log_queries import deliverable, skipped_entries, unacked
from embeddedpulsar._engine.subscription.shared_state import SharedState
from embeddedpulsar._engine.subscription.state.dispatch_state import Consumer
from embeddedpulsar._engine.subscription.state.pending_acks import PartlyPending
from embeddedpulsar._engine.subscription.state.replica import SubscriptionState
from embeddedpulsar.damage import JOURNAL, Damage
from embeddedpulsar.exceptions import ConsumerBusy, CorruptionError, ForeignFileError, PulsarException
from embeddedpulsar.message_id import BEFORE_FIRST, Position
from embeddedpulsar.records import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from typing import Final

    from embeddedpulsar._engine.log.log import Cursor, Log

_AT_ONCE: Final = 100
_BYTES_AT_ONCE: Final = 1 << 20

R = TypeVar("R")


class UnackedReader:
    """The read position of an active consumer.

    Role: a cursor that leaves out what is acknowledged. It looks at acknowledgements, which needs the
    lock, only while it is behind the highest one that was there when it was put back; ahead of that it is
    the bare cursor. Callers: one thread at a time; `rewind` and `note_ack` inside, or after, a
    transaction.

    Attributes:
        position: the entry that is expected next, as (ledger, entry).
        furthest: the highest `position` before the last `rewind`.
        has_jumped: the entry read was not the one behind the last: a ledger ended, or something is missing.
        skipped: damaged entries that were stepped over and are to be acknowledged, lest they hold back the
            mark-delete position for ever.
    """

    __slots__ = (
        "_acked_through",
        "_cursor",
        "_held_through",
        "_log",
        "_rewinds",
        "_shared",
        "furthest",
        "has_jumped",
        "position",
        "skipped",
    )

    def __init__(
        self, log: Log, shared: SharedState, state: SubscriptionState, cursor: Cursor | None = None
    ) -> None:
        self._log: Final = log
        self._shared: Final = shared
        self._cursor: Final = cursor or log.cursor(state.mark_delete, inclusive=False)
        self.has_jumped = False
        self.skipped: list[AckGroup] = []
        self.position: tuple[int, int] = BEFORE_FIRST
        self.furthest: tuple[int, int] = BEFORE_FIRST
        self.rewind(state)

    def rewind(self, state: SubscriptionState) -> None:
        start = state.mark_delete.next()
        self._cursor.seek(start)
        self.furthest = max(self.furthest, self.position)
        self.position = start
        # Beyond the highest acknowledgement nothing is left out, so `read` takes the short way there.
        last = state.last_touched()
        self._acked_through: Position | None = last if last > state.mark_delete else None
        self._rewinds = state.pending_acks.rewinds
        # Up to where entries were left out because a transaction acknowledged them cumulatively.
        self._held_through: AckedThrough | None = None

    def must_go_back(self, state: SubscriptionState) -> bool:
        """Whether entries behind the position come again, because the transaction that had acknowledged them
        aborted: those of single acknowledgements in any case, those of a cumulative one if they were left
        out here. Else the consumer has them, and asks for them if it wants them again."""
        pending, held, acks = state.pending_acks, self._held_through, state.acks
        if pending.rewinds != self._rewinds:
            return True
        if held is None or (pending.cumulative is not None and pending.cumulative.rank >= held.rank):
            return False
        self._held_through = None
        first, last = acks.next_unacked(state.mark_delete.next()), (held.ledger_id, held.entry_id)
        if first != last or not held.is_partial:
            return first <= last
        return (2 << held.batch_index) - 1 & ~acks.indexes(first) != 0

    def prepare(self) -> None:
        """Read the next entry and stay before it, so that its segment is mapped when it is asked for."""
        with contextlib.suppress(PulsarException, OSError, ImportError):  # met again by the read that counts
            self._cursor.read(1, 1, 1)
        self._cursor.seek(Position(*self.position))

    def go_back(self, position: tuple[int, int]) -> None:
        self._cursor.seek(Position(*position))
        self.position = position
        self.has_jumped, self.skipped = False, []
        # Acknowledgements from that position on matter again.
        self.note_ack(self._shared.state.last_touched())

    def note_ack(self, last: Position) -> None:
        """Note that entries up to ``last`` were acknowledged; before the read position they do not matter."""
        if last >= self.position and (self._acked_through is None or last > self._acked_through):
            self._acked_through = last

    def read(self, max_messages: int, max_bytes: int) -> list[EntryView]:
        """The next entries; none at the tail. Entries acknowledged in part have their ``skip`` set."""
        # Something ahead is acknowledged: stretch by stretch, with looks under the lock.
        if self._acked_through is not None:
            return self._read_between(max_messages, max_bytes)
        views = self._cursor.read(max_messages, max_messages, max_bytes)
        if views:
            first = views[0]
            if len(views) == 1 and (first.ledger_id, first.entry_id) == self.position:
                self.position = (first.ledger_id, first.entry_id + 1)  # as `_advance`, without the call
            else:
                self._advance(views)
        return views

    def before_seek(self, position: Position) -> None:
        """Called before the subscription is moved to ``position``, without its lock."""

    def take_deferred(self, ledger_id: int) -> list[AckGroup]:
        """Entries that are to be acknowledged together with one of this ledger, up to it."""
        return []

    def has_read_all(self, tail: int) -> bool:
        """Whether it stands where the log ended when its tail word was ``tail``."""
        return self._acked_through is None and self._cursor.is_at(tail)

    def _advance(self, views: list[EntryView]) -> None:
        first, last = views[0], views[-1]
        is_contiguous = last.entry_id - first.entry_id + 1 == len(views)
        # A ledger ended, or entries are damaged or removed; which of these the log has to say.
        if not is_contiguous or (first.ledger_id, first.entry_id) != self.position:
            self.has_jumped = True
            self.skipped += skipped_entries(self._log, self.position, views)
        self.position = (last.ledger_id, last.entry_id + 1)

    def _read_between(self, max_messages: int, max_bytes: int) -> list[EntryView]:
        while self._acked_through is not None:
            # Only the acknowledgements are looked at under the lock. The log is read without it.
            start, limit = self._shared.transact(lambda state: self._next_stretch(state, max_messages))
            if start != self._cursor.position:
                self._cursor.seek(start)
                self.position = start
            views = self._cursor.read(limit, max_messages, max_bytes)
            if not views:
                return views
            self._advance(views)
            # Some may have been acknowledged since, or in part.
            views = self._leave_out_acked(views)
            # All that was acknowledged lies before the position: the short way from here on.
            if self.position > self._acked_through:
                self._acked_through = None
            if views:
                return views
        return self.read(max_messages, max_bytes)

    def _leave_out_acked(self, views: list[EntryView]) -> list[EntryView]:
        return self._shared.transact(lambda state: self._deliverable(state, views))

    def _deliverable(self, state: SubscriptionState, views: list[EntryView]) -> list[EntryView]:
        self._note_held(state, (views[0].ledger_id, views[0].entry_id))
        return deliverable(state, views)

    def _note_held(self, state: SubscriptionState, position: RawPosition) -> None:
        """Note that entries from a position on are left out, if a transaction has them cumulatively."""
        through = state.pending_acks.cumulative
        if through is not None and position <= through[:2]:
            self._held_through = through

    def _next_stretch(self, state: SubscriptionState, most: int) -> tuple[Position, int]:
        """Where the next unacknowledged entry may be, and how many follow before an acknowledged one."""
        pending, acks = state.pending_acks, state.acks
        if pending.transactions:
            self._note_held(state, self.position)
            start = pending.next_open(Position(*self.position), acks)
            return start, min(acks.run_length(start, most), pending.run_length(start, most))
        start = acks.next_unacked(Position(*self.position))
        return start, acks.run_length(start, most)


class Look(Protocol):
    """Calls a function with the state of a subscription; returns None if that is gone."""

    def __call__(self, body: Callable[[SubscriptionState], R], /) -> R | None: ...


def unacked_entries(log: Log, look: Look) -> Iterator[EntryView]:
    """The entries that are not acknowledged, in order, chunked messages whole, up to the tail."""
    chunks, start = log.chunks(), look(lambda state: state.mark_delete)
    cursor = log.cursor(start or BEFORE_FIRST, inclusive=False)
    while views := cursor.read(_AT_ONCE, _AT_ONCE, _BYTES_AT_ONCE):
        # What the limit of bytes cut off is read again.
        views, rest = chunks.complete(views, _BYTES_AT_ONCE)
        if rest is not None:
            cursor.seek(Position(rest.ledger_id, rest.entry_id))
        remaining = look(partial(unacked, views=views))
        # The subscription is gone.
        if remaining is None:
            return
        yield from remaining


def note_start(directory: str, position: Position) -> None:
    """Note that a subscription begins with the first compacted message as long as it stands at ``position``.
    Before it is put there: a crash between leaves a note without effect."""
    data = encode_document(KIND_COMPACTED_START, {"ledger": position.ledger_id, "entry": position.entry_id})
    disk.DISK.atomic_write(compacted_start_path(directory), data, False)


def _noted_start(directory: str) -> Position | None:
    """None without a note.

    Raises:
        CorruptionError, ForeignFileError: it is damaged.
    """
    try:
        data = disk.DISK.read_file(compacted_start_path(directory))
    except FileNotFoundError:  # it may be missing after a power loss, too
        return None
    fields = decode_document(data, KIND_COMPACTED_START)
    return Position(int(fields.get("ledger", -1)), int(fields.get("entry", -1)))


def note_first(directory: str, mark_delete: Position, facts: Ledgers) -> None:
    """`note_start` for a subscription that was made at the earliest message and never had a consumer."""
    if mark_delete == BEFORE_FIRST and facts.listed:
        # The first ledger with entries; without entries the one that is written to.
        first = next((ledger_id for ledger_id, entries in facts.listed if entries), facts.listed[-1][0])
        note_start(directory, Position(first, -1))


class CompactedSource(Protocol):
    """What has the compacted ledger of a topic, with its log behind it."""

    @property
    def cursor(self) -> Callable[..., Cursor]:
        """As `Log.cursor`."""


class CompactedReader(UnackedReader):
    """The read position of an active consumer that reads compacted.

    Role: entries that compaction removed are stepped over, and acknowledged as damaged ones are. A
    subscription at the earliest message begins with the first message of the compacted ledger, be it trimmed
    from the log. Acknowledgements of these cannot be kept, so a consumer that comes back before any other was
    acknowledged begins there again. Until then the removed entries are acknowledged only with an entry that
    the log retains.
    Callers: as of `UnackedReader`.
    """

    __slots__ = ("_deferred", "_is_from_start", "_is_trimmed")

    def __init__(
        self, log: Log, shared: SharedState, state: SubscriptionState, source: CompactedSource
    ) -> None:
        self._deferred: list[AckGroup] = []
        self._is_from_start = self._is_trimmed = False
        super().__init__(log, shared, state, source.cursor(BEFORE_FIRST, inclusive=False))

    def rewind(self, state: SubscriptionState) -> None:
        super().rewind(state)
        self._deferred = []
        self._is_trimmed = False
        is_untouched = state.acks.last_touched() <= state.mark_delete
        self._is_from_start = is_untouched and self._begins_at(state.mark_delete)
        # Before all that the log still has, where the mark-delete position cannot stand.
        if self._is_from_start:
            start = BEFORE_FIRST.next()
            self._cursor.seek(start)
            self.position = start

    def _begins_at(self, mark_delete: Position) -> bool:
        """Whether a subscription that stands there begins with the first compacted message.

        If the note is damaged it does: some messages come again, and none that only the compacted ledger has
        is passed over. The note is written again, so that they do not come each time.
        """
        directory = self._shared.directory
        try:
            return _noted_start(directory) == mark_delete
        except (CorruptionError, ForeignFileError) as e:
            note_start(directory, mark_delete)
            path, done = compacted_start_path(directory), "it reads again from the first compacted message"
            self._shared.note_damage(
                Damage(path, reason=e.reason, kind=JOURNAL, done=done, remedy="expect messages again")
            )
            return True

    def before_seek(self, position: Position) -> None:
        first = self._log.first_position()
        if position < first:
            note_start(self._shared.directory, first.previous())

    def take_deferred(self, ledger_id: int) -> list[AckGroup]:
        groups = [group for group in self._deferred if group.ledger_id <= ledger_id]
        if groups:
            self._deferred = [group for group in self._deferred if group.ledger_id > ledger_id]
        return groups

    def _advance(self, views: list[EntryView]) -> None:
        super()._advance(views)
        if self._is_from_start and not self._is_trimmed:
            # Only the compacted ledger has what is read here.
            self._is_trimmed = views[0].ledger_id < self._log.first_position().ledger_id
        if self._is_trimmed and self.has_jumped:
            self._deferred += self.skipped
            self.has_jumped, self.skipped = False, []

    def _next_stretch(self, state: SubscriptionState, most: int) -> tuple[Position, int]:
        if self.position[0] < state.mark_delete.ledger_id:  # what is trimmed is not acknowledged
            return self._cursor.position, most
        return super()._next_stretch(state, most)

    def _leave_out_acked(self, views: list[EntryView]) -> list[EntryView]:
        def body(state: SubscriptionState) -> list[EntryView]:
            # What the log has no more counts as acknowledged in the state, and is delivered all the
            # same.
            if views[0].ledger_id < state.mark_delete.ledger_id:
                return views
            remaining = self._deliverable(state, views)
            for view in remaining:
                removed: int = getattr(view, "removed", 0)
                # Messages of a batch that compaction removed are left out like acknowledged ones.
                if removed:
                    kind = PartlyPending if isinstance(view.skip, PartlyPending) else int
                    view.skip = kind(removed | (view.skip or 0))  # type: ignore[operator]  # it is an int
            return remaining

        return self._shared.transact(body)


class ActiveAttachment(Attachment):
    """A consumer that gets everything while it is the active one, and nothing while it is not.

    Role: see `Attachment`. Invariants: a consumer that becomes active begins at the first unacknowledged
    entry; the consumer that was active before sees the epoch raised before it reads on. Acknowledgements of
    entries that were read while active count afterwards too.
    """

    def __init__(
        self,
        log: Log,
        shared: SharedState,
        membership: Membership,
        consumer: Consumer,
        state: SubscriptionState,
        chunks: ChunkOptions,
        compacted: CompactedSource | None = None,
    ) -> None:
        super().__init__(log, shared, membership, consumer, chunks)
        self._active_of: Final = ACTIVE_DISPATCHERS[consumer.consumer_type].active
        self._reader: Final = (
            UnackedReader(log, shared, state)
            if compacted is None
            else CompactedReader(log, shared, state, compacted)
        )
        self._note_read: Final = self.chunks.assembler.last_parts.note_read
        self._is_active = self._active_of(state.consumers) == self.consumer_id
        self._was_switched = False

    def read(self, max_messages: int, max_bytes: int) -> list[EntryView]:
        """The next unacknowledged entries; none at the tail, or while another consumer is active.

        Lock-free while nothing ahead is acknowledged: 0.4 us on top of `EntryCursor.read`.
        """
        fresh = self.fresh
        if fresh.epoch != fresh.mark or self._fork_generation != fork.GENERATION:  # or it is closed
            try:
                self._resync()
            except ConsumerBusy:
                return []  # taken for dead, and another consumer came: ours waits until it may join again
        if not self._is_active:
            return []
        reader = self._reader
        position = reader.position
        try:
            while True:
                views = reader.read(max_messages, max_bytes)
                # At once, even if nothing is delivered: the gap holds back the mark-delete position.
                if reader.has_jumped:
                    reader.has_jumped = False
                    skipped, reader.skipped = reader.skipped, []
                    self._acknowledger.acknowledge_unreadable(skipped)
                # No chunked message is among them: they are delivered as they are.
                if not views or self._note_read(views):
                    return views
                views, rest = self._complete(views, max_bytes, is_noted=False)
                if rest is not None:
                    reader.go_back((rest.ledger_id, rest.entry_id))
                if views:
                    return views
        except BaseException:
            reader.go_back(position)  # an interrupt, for example: the entries read were not delivered
            raise

    def prepare(self) -> None:
        if not self._is_active and not self._log.is_volatile:
            self._reader.prepare()

    def _tell_moved(self, was_moved: bool) -> None:
        super()._tell_moved(was_moved)
        if self._was_switched:
            self._was_switched = False
            if self.on_switched is not None:
                self.on_switched()

    def is_active(self) -> bool:
        return self._shared.transact(lambda state: self._active_of(state.consumers) == self.consumer_id)

    @property
    def awaits_appends(self) -> bool:
        """Whether it is the active one: the others wait to become active, not for entries."""
        return self._is_active

    def has_news(self, has_tail_moved: bool, seen_version: int) -> bool:
        return (has_tail_moved and self._is_active) or self.version != seen_version

    def has_read_all(self, tail: int) -> bool:
        return self._reader.has_read_all(tail)

    def _adopt_state(self, state: SubscriptionState) -> bool:
        was_moved = super()._adopt_state(state)
        is_active = self._active_of(state.consumers) == self.consumer_id
        # What it read when it was active before is void.
        if is_active and not self._is_active:
            self._shared.log_later(f"consumer {self.name} takes over")
            self._reader.rewind(state)
        # Reported by `_tell_moved`, outside of the lock.
        elif self._is_active and not is_active:
            self._was_switched = True
        # What it read on from there comes again with what came back, in order; so that is void, too.
        elif is_active and self._reader.must_go_back(state):
            self._was_switched = True
            self._reader.rewind(state)
        self._is_active = is_active
        self._reader.note_ack(state.last_touched())
        return was_moved

    def before_ack(self, state: SubscriptionState, ledger_id: int) -> list[AckGroup]:
        """Make an inactive consumer's acknowledgement known: the active one must not deliver its entries."""
        if self._active_of(state.consumers) != self.consumer_id:
            self._shared.control.announce()
        return self._reader.take_deferred(ledger_id)

    def _go_to(self, state: SubscriptionState) -> None:
        self._reader.rewind(state)

    def seek(self, position: Position, inclusive: bool) -> None:
        self._reader.before_seek(position)
        super().seek(position, inclusive)

    def read_position(self) -> RawPosition:
        return self._reader.position

    @property
    def read_before(self) -> RawPosition:
        return self._reader.furthest

    def note_ack(self, last: Position) -> None:
        self._reader.note_ack(last)

    def redeliver(self) -> None:
        """Read again from the first unacknowledged entry, leaving out acknowledged ones.

        Only this consumer's read position moves: nothing is journalled, and acknowledgements under way count.
        """
        try:
            self._tell_if_moved(self._shared.transact(self._rewind))
        except ConsumerBusy:
            return  # taken for dead: another consumer has it

    def redeliver_entries(self, entries: Sequence[RawPosition]) -> bool:
        """Redeliver everything: redelivering single entries would break the order."""
        self.redeliver()
        return True

    def _rewind(self, state: SubscriptionState) -> bool:
        was_moved = self._adopt_state(state)
        self._reader.rewind(state)
        return was_moved
