"""What one consumer knows of chunked messages: incomplete ones, and the parts of those it was given.

Expiry of incomplete chunked messages, so that they do not hold back a subscription for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from embeddedpulsar._engine.format.acknowledgement import FORM_RANGE, Ack, AckBatch, AckGroup
from embeddedpulsar._engine.format.entry_decoder import EntryView, RawPosition
from embeddedpulsar._engine.format.subscription_record import (
    AckCumulative,
    AckedThrough,
    Command,
    Ledgers,
)
from embeddedpulsar._engine.log.log_positions import ChunkAssembler, made_whole
from embeddedpulsar._engine.platform import fork, threads, timing
from embeddedpulsar._engine.platform.timing import Backoff, is_idle
from embeddedpulsar._engine.subscription.shared_state import SharedState
from embeddedpulsar.exceptions import AlreadyClosed, ConsumerAssignError, ConsumerBusy, LockTimeout
from embeddedpulsar.message_id import Isolation, Position
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from typing import Final

    from embeddedpulsar._engine.log.log import Log
    from embeddedpulsar._engine.platform.timing import Timer


# Up to so many messages it is not worth asking which of them others acknowledged.
_FEW: Final = 100
Key = tuple[str, int]
"""Producer and sequence id. They stand outside of what is packed or encrypted."""


class ChunkOptions(NamedTuple):
    """What a consumer does with messages whose last part does not come.

    Attributes:
        max_pending: most incomplete messages; 0 for any number.
        is_oldest_acked: whether the oldest, when there are more, is acknowledged; else it is left alone and
            comes when it is asked for again.
        expire_ms: how long the last part may take; 0 for ever.
    """

    max_pending: int = 10
    is_oldest_acked: bool = False
    expire_ms: int = 60_000


DEFAULT_CHUNKS: Final = ChunkOptions()


class OpenChunks:
    """The parts of one incomplete message.

    Attributes:
        key: the message they belong to.
        places: their entries.
        since: when the first was seen, in seconds.
        is_dropped: there were too many incomplete messages: this one is not to be delivered.
        is_counted: whether it counts as incomplete here; else another consumer read it.
        last: where the last part is, if that was looked up.
    """

    __slots__ = ("is_counted", "is_dropped", "key", "last", "places", "since")

    def __init__(self, key: Key, since: float, is_counted: bool) -> None:
        self.key: Final = key
        self.places: set[Position] = set()
        self.since = since
        self.is_counted = is_counted
        self.is_dropped = False
        self.last: Position | None = None


class PendingChunks:
    """Incomplete messages, the oldest first.

    Role: counts and forgets; decides nothing about acknowledgements. A producer that begins a message anew
    under the same sequence id adds to it; what its last part does not name stays incomplete. Not thread-safe.

    >>> PendingChunks(ChunkOptions()).expired(60.0)
    []
    """

    def __init__(self, options: ChunkOptions) -> None:
        self._options: Final = options
        self._open: dict[Key, OpenChunks] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, part: EntryView, now: float, *, is_counted: bool = True) -> OpenChunks | None:
        """Note a part that is not the last; the oldest message, if this makes one too many."""
        key = key_of(part)
        message = self._open.get(key)
        dropped = None
        if message is None:
            # Before the new message is noted, so that it is not the one that is dropped.
            if is_counted:
                dropped = self._drop_oldest()
            message = self._open[key] = OpenChunks(key, now, is_counted)
        message.places.add(Position(part.ledger_id, part.entry_id))
        return dropped

    def _drop_oldest(self) -> OpenChunks | None:
        limit = self._options.max_pending
        counted = [
            message for message in self._open.values() if message.is_counted and not message.is_dropped
        ]
        # 0 stands for any number. The message that is dropped is remembered until its last part
        # comes, which must not be delivered.
        if not limit or len(counted) < limit:
            return None
        counted[0].is_dropped = True
        return counted[0]

    def finish(
        self, key: Key, last: Position, earlier: Iterable[tuple[int, int]] | None
    ) -> OpenChunks | None:
        """Note the last part, and return what was known of the message, which is complete now."""
        message = self._open.get(key)
        if message is None:
            return None
        # A last part that names no others takes all that were seen.
        named = message.places if earlier is None else {Position(*entry) for entry in earlier}
        # Parts of another attempt of the producer: no last part names them, so they stay until they
        # expire.
        unnamed = {place for place in message.places if place > last or place not in named}
        del self._open[key]
        if unnamed:
            rest = self._open[key] = OpenChunks(key, message.since, message.is_counted)
            rest.places = unnamed
        message.places -= unnamed
        return message

    def remove(self, message: OpenChunks) -> None:
        if self._open.get(message.key) is message:
            del self._open[message.key]

    def expired(self, now: float) -> list[OpenChunks]:
        expire_ms = self._options.expire_ms
        if not expire_ms:
            return []
        # A microsecond of tolerance: rounding must not find the message too young when its own timer
        # fires.
        return [message for message in self._open.values() if now - message.since >= expire_ms / 1000 - 1e-6]

    def next_due(self) -> float | None:
        expire_ms = self._options.expire_ms
        if not expire_ms or not self._open:
            return None
        return min(message.since for message in self._open.values()) + expire_ms / 1000

    def places(self) -> set[Position]:
        return {place for message in self._open.values() for place in message.places}


def key_of(view: EntryView) -> Key:
    """The message of which an entry is a part."""
    return view.producer_name, view.first_sequence_id


class ChunkKeeper:
    """The chunked messages of one consumer.

    Role: between what a consumer reads and what it hands out. The entries of a message are acknowledged
    together, so it remembers the parts of those it handed out; and it watches over incomplete ones, so that
    their entries do not hold back the mark-delete position for ever.

    Invariants: `delivered` names the parts of every chunked message that was handed out and is not
    acknowledged, and of some that others acknowledged since. The next `read` acknowledges what is in
    `finished`.
    Callers: any thread.

    Attributes:
        assembler: puts messages together.
        on_delivered: called before a message of several parts is handed out.
        on_left: called for an entry that was dropped and not acknowledged: (ledger, entry, redelivery count).
    """

    def __init__(
        self, assembler: ChunkAssembler, options: ChunkOptions, monotonic: Callable[[], float]
    ) -> None:
        self.assembler: Final = assembler
        self.on_left: Callable[[RawPosition, int], object] | None = None
        self.on_delivered: Callable[[], object] = int
        self.delivered: dict[RawPosition, tuple[RawPosition, ...]] = {}
        self.finished: list[RawPosition] = []
        self._options: Final = options
        self._monotonic: Final = monotonic
        self._pending: Final = PendingChunks(options)
        self._unwanted: dict[RawPosition, OpenChunks] = {}
        self._many = _FEW
        self._lock: Final = threads.RLock()

    # -- reading -----------------------------------------------------------------------------------

    def complete(
        self, views: Sequence[EntryView], max_bytes: int, *, is_noted: bool
    ) -> tuple[list[EntryView], EntryView | None]:
        """`made_whole`. ``is_noted`` says that the entries were passed to `record_part` before."""

        def whole(view: EntryView) -> EntryView | None:
            if not is_noted:
                self.record_part(view)
            return self._whole(view) if view.count else None

        return made_whole(views, max_bytes, whole)

    def record_part(self, view: EntryView) -> None:
        """Note that an entry of a chunked message was read, in the order of the log."""
        try:
            self._lock.acquire()
            # A part that is not the last has no messages.
            if not view.count:
                dropped = self._pending.add(view, self._monotonic())
                if dropped is not None and self._options.is_oldest_acked:
                    # The next `read` acknowledges them, outside of the lock of the keeper.
                    self.finished += sorted(dropped.places)
                return
            place = Position(view.ledger_id, view.entry_id)
            done = self._pending.finish(key_of(view), place, self.assembler.reader.earlier(view))
            # It was one too many before it was complete; `_whole` drops it when its turn comes.
            if done is not None and done.is_dropped:
                self._unwanted[place] = done
        finally:
            self._lock.release()

    def _whole(self, last: EntryView) -> EntryView | None:
        place = (last.ledger_id, last.entry_id)
        dropped = self._unwanted.pop(place, None)
        if dropped is not None:
            self._drop(last, dropped)
            return None
        whole = self.assembler.try_whole(last)
        earlier = self.assembler.reader.earlier(last) or ()
        # A part is missing for ever. The others must not hold back the mark-delete position.
        if whole is None:
            self.finished += [*earlier, place]
        elif earlier:
            self.delivered[place] = earlier
            self.on_delivered()
        return whole

    def _drop(self, last: EntryView, dropped: OpenChunks) -> None:
        """Drop the oldest incomplete message: there were too many."""
        place = (last.ledger_id, last.entry_id)
        earlier = self.assembler.reader.earlier(last) or tuple(sorted(dropped.places))
        if self._options.is_oldest_acked:
            self.finished += [*earlier, place]
            return
        # Not acknowledged: it counts as handed out, so that an acknowledgement or redelivery takes
        # all its parts along.
        self.delivered[place] = earlier
        if self.on_left is not None:
            self.on_left(place, last.redelivery_count)

    def take_finished(self) -> list[RawPosition]:
        """Parts that are to be acknowledged although they were never delivered."""
        finished, self.finished = self.finished, []
        return finished

    # -- acknowledging -----------------------------------------------------------------------------

    def strange_parts(self, groups: Iterable[AckGroup], entries: Sequence[RawPosition]) -> list[RawPosition]:
        """The parts of messages that are to be acknowledged and were not delivered here: the application
        holds a message of another consumer or of a reader, or only its id.
        """
        parts: list[RawPosition] = []
        for group in groups:
            # Few entries end chunked messages, so these are looked for, and not each of the entries.
            last_parts = self.assembler.last_parts.between(group.ledger_id, group.first, group.last)
            if last_parts:
                wanted = set(entries)
                for place in last_parts:
                    if place in wanted and place not in self.delivered:
                        parts += self.assembler.parts_of(place)
        return parts

    def with_parts(self, entries: Sequence[RawPosition]) -> list[RawPosition]:
        """These entries and, if they belong to chunked messages, all other parts of those."""
        delivered = self.delivered
        parts = [part for entry in entries for part in delivered.get(entry, ())]
        return [*parts, *entries] if parts else list(entries)

    def settled(self, entries: Sequence[RawPosition]) -> None:
        for entry in entries:
            self.delivered.pop(entry, None)

    def drop(self, is_acked: Callable[[Position], bool]) -> None:
        """Forget messages that other consumers acknowledged, once there may be many."""
        # A copy, because other threads hand out and acknowledge meanwhile.
        for place in list(self.delivered):
            if is_acked(Position(*place)):
                self.delivered.pop(place, None)
        # Twice what stays: so the look costs a constant part for each message.
        self._many = max(_FEW, 2 * len(self.delivered))

    @property
    def has_many(self) -> bool:
        """Whether it is time to `drop` some."""
        return len(self.delivered) > self._many

    def settled_through(self, last: RawPosition) -> None:
        self.settled([entry for entry in list(self.delivered) if entry <= last])

    def unfinished(self, through: RawPosition) -> list[RawPosition]:
        """Parts up to ``through`` of messages that end behind it: not to be acknowledged with the rest."""
        try:
            self._lock.acquire()
            parts: set[RawPosition] = {place for place in self._pending.places() if place <= through}
        finally:
            self._lock.release()
        # So are the parts of messages that were handed out, if the last one lies behind ``through``.
        for last, earlier in list(self.delivered.items()):
            if last > through:
                parts.update(place for place in earlier if place <= through)
        return sorted(parts)

    # -- expiry ------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to watch, and nothing to acknowledge."""
        return not self._pending and not self.delivered

    def next_due(self) -> float | None:
        """When an incomplete message expires, in seconds of the clock; None for never."""
        try:
            self._lock.acquire()
            return self._pending.next_due()
        finally:
            self._lock.release()

    def adopt(self, parts: Sequence[tuple[EntryView, float]]) -> None:
        """Watch over parts that another consumer read, which may be gone; each with its time of reading."""
        try:
            self._lock.acquire()
            for part, since in parts:
                self._pending.add(part, since, is_counted=False)
        finally:
            self._lock.release()

    def known(self) -> set[RawPosition]:
        """All parts that are watched, or belong to a message that was handed out."""
        try:
            self._lock.acquire()
            parts: set[RawPosition] = set(self._pending.places())
        finally:
            self._lock.release()
        for earlier in list(self.delivered.values()):
            parts.update(earlier)
        return parts

    def expired(self) -> list[OpenChunks]:
        try:
            self._lock.acquire()
            return self._pending.expired(self._monotonic())
        finally:
            self._lock.release()

    def wait_on(self, message: OpenChunks, last: Position) -> None:
        """Wait on for a message whose last part is in the log and not acknowledged: as long again."""
        message.last = last
        message.since = self._monotonic()

    def remove(self, gone: Sequence[OpenChunks]) -> None:
        try:
            self._lock.acquire()
            for message in gone:
                self._pending.remove(message)
        finally:
            self._lock.release()


def around_parts(command: AckCumulative, spared: Sequence[RawPosition], facts: Ledgers) -> list[Command]:
    """The commands that acknowledge what ``command`` does, but for some entries.

    Example:
        >>> plain = AckCumulative(1, 1, 7, 9, -1, 0)
        >>> before, rest = around_parts(plain, [(7, 4), (7, 6)], Ledgers(((7, -1),)))
        >>> before.entry_id, [(group.first, group.last) for group in rest.groups]
        (3, [(5, 5), (7, 9)])
    """
    consumer_id, epoch, ledger_id, entry_id, index, size = command
    is_partial = 0 <= index < size - 1
    # A batch of which a part is acknowledged is no whole entry: it becomes a command for its indexes.
    end = entry_id - 1 if is_partial else entry_id
    # Everything before the first spared entry is acknowledged cumulatively, the rest by ranges around
    # the spared ones.
    before = Position(*spared[0]).previous()
    groups: list[AckGroup] = []
    for ledger, entries in facts.listed:
        if not before.ledger_id <= ledger <= ledger_id:
            continue
        first = before.entry_id + 1 if ledger == before.ledger_id else 0
        # The last ledger may still grow, so its number of entries is not asked.
        last = end if ledger == ledger_id else entries - 1
        # The end of the ledger stands behind the parts: it closes the last range.
        for part_ledger, part in [*spared, (ledger, last + 1)]:
            if part_ledger == ledger and first <= part <= last + 1:
                if first < part:
                    groups.append(AckGroup(ledger, first, part - 1, FORM_RANGE, b""))
                first = part + 1
    # The bits 0 to ``index``.
    batches = (AckBatch(ledger_id, entry_id, size, (2 << index) - 1),) if is_partial else ()
    commands: list[Command] = [AckCumulative(consumer_id, epoch, *before, -1, 0)]
    if groups or batches:
        commands.append(Ack(consumer_id, epoch, tuple(groups), batches))
    return commands


def ack_around_parts(ack: Ack, through: AckedThrough, spared: Sequence[RawPosition], facts: Ledgers) -> Ack:
    """Everything up to ``through`` as single acknowledgements, but for some entries; consumer and epoch are
    those of ``ack``.

    Example:
        >>> none = Ack(1, 1, (), ())
        >>> ack = ack_around_parts(none, AckedThrough(7, 9), [(7, 4), (7, 6)], Ledgers(((5, 3), (7, -1))))
        >>> [(group.ledger_id, group.first, group.last) for group in ack.groups]
        [(5, 0, 2), (7, 0, 3), (7, 5, 5), (7, 7, 9)]
    """
    cumulative = AckCumulative(ack.consumer_id, ack.epoch, *through)
    before, *rest = around_parts(cumulative, spared, facts)
    assert isinstance(before, AckCumulative)
    groups = [
        AckGroup(ledger, 0, last, FORM_RANGE, b"")
        for ledger, entries in facts.listed
        if ledger <= before.ledger_id
        and (last := before.entry_id if ledger == before.ledger_id else entries - 1) >= 0
    ]
    batches: tuple[AckBatch, ...] = ()
    for command in rest:
        assert isinstance(command, Ack)
        groups += command.groups
        batches += command.batches
    return ack._replace(groups=tuple(groups), batches=batches)


_RETRY_S: Final = 1.0


class Timing(Protocol):
    """The part of `Membership` that measures time."""

    @property
    def monotonic(self) -> Callable[[], float]: ...
    @property
    def wall_ms(self) -> Callable[[], int]: ...
    @property
    def call_later(self) -> Callable[[float, Callable[[], object]], Timer]: ...


class ChunkExpiry:
    """Acknowledges the parts of messages whose last part does not come.

    It is a timer while there are such parts. When the time of a message is over, the log is asked first: its
    last part may stand there and only not be read yet, or another consumer may have it; then it gets as much
    time again. On Shared and Key_Shared, parts whose reader died are found in the state. Callers: of
    `start_timer` any thread, not under the subscription's lock; the rest runs in the timer thread.

    Args:
        keeper: what the consumer knows.
        log: the topic's.
        shared: the subscription's state.
        acknowledge: acknowledges entries in the consumer's name.
        is_usable: whether the consumer is still attached.
        time: has the clock and the timers.
        expire_ms: how long a last part may take; 0 for ever.
    """

    def __init__(
        self,
        keeper: ChunkKeeper,
        log: Log,
        shared: SharedState,
        acknowledge: Callable[[list[RawPosition]], object],
        is_usable: Callable[[], bool],
        time: Timing,
        expire_ms: int,
    ) -> None:
        self._keeper: Final = keeper
        self._log: Final = log
        self._shared: Final = shared
        self._acknowledge: Final = acknowledge
        self._is_usable: Final = is_usable
        self._monotonic: Final = time.monotonic
        self._wall_ms: Final = time.wall_ms
        self._call_later: Final = time.call_later
        self._expire_s: Final = expire_ms / 1000
        self._fork_generation: Final = fork.GENERATION
        self._timer: Timer | None = None
        self._armed_at = 0.0
        self._backoff: Final = Backoff()

    def start_timer(self) -> None:
        """Watch the parts that were read, so that they expire in time."""
        # A timer that is set already is early enough, as it was set for an older part.
        if self._expire_s and is_idle(self._timer):
            self._armed_at = self._monotonic()
            self._timer = self._call_later(self._expire_s, self._on_timer)

    def cancel(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _on_timer(self) -> None:
        self._timer = None
        if self._fork_generation != fork.GENERATION or not self._is_usable():
            return
        is_watched, wait_s = False, 0.0
        try:
            is_watched = timing.try_now(self._expire)
            self._backoff.reset()
        except LockTimeout:
            # The timer thread waits for no lock of a subscription: it comes again a little later each
            # time.
            self._timer = self._call_later(self._backoff.next(), self._on_timer)
        except (AlreadyClosed, ConsumerBusy, ConsumerAssignError):
            return  # detached: others look after it
        except Exception:
            # It may pass, as a full disk does: the parts are still watched, and not in a tight loop.
            is_watched, wait_s = True, _RETRY_S
            raise  # to the log
        finally:
            if self._is_usable():
                self._go_on(is_watched, wait_s)

    def _go_on(self, is_watched: bool, wait_s: float) -> None:
        if not is_idle(self._timer) or not is_watched:
            return
        now, due = self._monotonic(), self._keeper.next_due()
        self._armed_at = now
        # Without parts of its own it watches those of consumers that are gone.
        delay_s = self._expire_s if due is None else max(due - now, 0.0)
        self._timer = self._call_later(max(delay_s, wait_s, 0.001), self._on_timer)

    def _expire(self) -> bool:
        """Acknowledge the parts of messages that expired. True if parts are left that may expire."""
        keeper = self._keeper
        known = keeper.known()
        # On Shared and Key_Shared the state says which parts were read, by whatever consumer.
        parts = self._shared.transact(lambda state: state.dispatch.pending.parts())
        strange = [part for part in parts if part not in known]
        if strange:
            keeper.adopt([(part, self._read_since(part)) for part in self._read(strange)])
        gone = []
        for message in keeper.expired():
            # The log is asked before the message is given up: its last part may be stored and not
            # read yet.
            last = message.last or keeper.assembler.find_last(message.key, message.places)
            if last is not None and not self._is_acked(last):
                keeper.wait_on(message, last)
            else:
                gone.append(message)
        if gone:
            self._acknowledge([place for message in gone for place in sorted(message.places)])
            keeper.remove(gone)
        return bool(parts) or keeper.next_due() is not None

    def _read_since(self, part: EntryView) -> float:
        """The earliest time, on the monotonic clock, at which another consumer can have read a part.

        That it was read is seen here only when a timer runs, so it counts from the timer before, or from its
        publication if that was later: a part that was published a second ago has not waited for a minute.
        A wall clock that was set back since makes the part wait longer, never shorter than it should.
        """
        age_s = max(self._wall_ms() - part.publish_time, 0) / 1000
        return max(self._armed_at, self._monotonic() - age_s)

    def _is_acked(self, position: Position) -> bool:
        return self._shared.transact(lambda state: state.acks.is_acked(position))

    def _read(self, parts: list[RawPosition]) -> list[EntryView]:
        cursor = self._log.cursor(Position(0, 0), inclusive=True, isolation=Isolation.EVERYTHING)
        part_views = []
        for part in parts:
            # Neighbours need no seek.
            if cursor.position != part:
                cursor.seek(Position(*part))
            views = cursor.read(1, 1, 1)
            # The cursor steps over what is missing: only the part itself counts.
            part_views += [
                view for view in views if (view.ledger_id, view.entry_id) == part and not view.count
            ]
        return part_views
