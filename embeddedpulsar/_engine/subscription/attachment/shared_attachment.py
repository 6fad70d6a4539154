"""Consumers of Shared and Key_Shared: a consumer that has nothing left claims entries. Hot: `read`.

How a consumer of Shared or Key_Shared sleeps among many of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from embeddedpulsar._engine.format import subscription_record as record
from embeddedpulsar._engine.format.acknowledgement import Ack, AckGroup, group_entries
from embeddedpulsar._engine.format.control import ConsumerSlotWord, SubscriptionWord
from embeddedpulsar._engine.format.entry import EntryView
from embeddedpulsar._engine.format.entry_decoder import RawPosition
from embeddedpulsar._engine.format.subscription_record import STAY, Assign
from embeddedpulsar._engine.log.log_positions import has_chunks
from embeddedpulsar._engine.log.waiter_slots import EACH
from embeddedpulsar._engine.platform import failpoints, fork, threads, timing
from embeddedpulsar._engine.subscription.attachment.attachment import Attachment
from embeddedpulsar._engine.subscription.attachment.chunk_keeper import ChunkOptions
from embeddedpulsar._engine.subscription.attachment.membership import Membership
from embeddedpulsar._engine.subscription.dispatch.dispatch_rules import Claim
from embeddedpulsar._engine.subscription.dispatch.dispatchers import CLAIM_DISPATCHERS
from embeddedpulsar._engine.subscription.dispatch.look_ahead import (
    FetchedRange,
    LogEnd,
    LookAhead,
    RangeReader,
    ranges_for,
)
from embeddedpulsar._engine.subscription.dispatch.wakeups import (
    STAND_BY_S,
    STRANGER,
    Traffic,
    WaitingConsumers,
    is_apart,
)
from embeddedpulsar._engine.subscription.log_queries import ledgers_of, news_for, unacked
from embeddedpulsar._engine.subscription.shared_state import SharedState
from embeddedpulsar._engine.subscription.state.dispatch_state import UNLIMITED, AssignedEntries, Consumer
from embeddedpulsar._engine.subscription.state.replica import SubscriptionState
from embeddedpulsar._engine.subscription.subscription_files import (
    Granted,
    Handed,
    SubscriptionControl,
    handed_tag,
    slot_of,
)
from embeddedpulsar.exceptions import (
    AlreadyClosed,
    ConsumerAssignError,
    ConsumerBusy,
    LockTimeout,
    PulsarException,
)
from embeddedpulsar.message_id import BEFORE_FIRST, Position
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Any, Final

    from embeddedpulsar._engine.log.log import Log

failpoints.declare("range:taken")
_GRANTED: Final = ConsumerSlotWord.GRANTED
_RANGE_OWNER: Final = SubscriptionWord.RANGE_OWNER
_RANGE_TAKEN: Final = SubscriptionWord.RANGE_TAKEN
_JOURNAL: Final = SubscriptionWord.JOURNAL
_PUBLISHED: Final = SubscriptionWord.PUBLISHED
CLAIMS_BEFORE_RANGE: Final = 2
"""Claims of a consumer that is alone before it reads on without: one that comes for a message or two writes
no command for that."""
_MOST_TAKEN: Final = 4096
"""Messages that a lone consumer takes before it has them assigned: who closes its range looks them up."""
_TURN_S: Final = 4e-3
"""A consumer may take messages for so long beyond its part of the backlog: about the time after which a
process that is woken runs on a processor that others use too."""
_TELLING: Final = 32
"""Messages that tell how fast an application is."""
_REMEMBERED: Final = 1024
_LONGEST_TURN: Final = 256
_QUICK_TURN: Final = 20
"""Messages of a turn of an application that is so quick that its consumers may stand by."""
_LEAVE_S: Final = 2e-3
"""How long a consumer that waits no more waits for the lock, to say so."""
_SUSPICION_S: Final = 0.02
_STEP: Final = 3
"""By so much longer than the one before it sleeps each that stands by."""
_FIRST_BACK_STOP_S: Final = 0.5
_LONGEST_BACK_STOP_S: Final = 10.0
_GRACE_MS: Final = 50
_MOST_GRACE_MS: Final = 2000
_NEXT_DUE_MS: Final = SubscriptionWord.NEXT_DUE_MS
_WAITING: Final = SubscriptionWord.WAITING
_READ_LEDGER: Final = SubscriptionWord.READ_LEDGER
_READ_ENTRY: Final = SubscriptionWord.READ_ENTRY
_CLAIMS: Final = SubscriptionWord.CLAIMS
_JOURNAL_END: Final = 0xFFFFFFFF


class WorkHint:
    """Tells whether there may be something for a consumer, from words that others publish.

    Role: keeps consumers that have nothing to do out of the subscription's lock and of its journal, however
    many there are. A moment behind the truth, and then on the side of looking. Callers: the consumer's
    threads.
    """

    def __init__(
        self,
        log: Log,
        end: LogEnd,
        control: SubscriptionControl,
        waiting: WaitingConsumers,
        cutoff_ms: Callable[[], int],
    ) -> None:
        self._log: Final = log
        self._end: Final = end
        self._control: Final = control
        self._words: Final = control.words
        self._waiting: Final = waiting
        self._cutoff_ms: Final = cutoff_ms
        self._suspect: tuple[int, int, int] | None = None
        self._futile: Any = None

    def has_any(self, code: int, consumer_id: int) -> bool:
        """Whether there may be entries, so that taking the lock to look is worth its cost."""
        words = self._words
        return bool(
            words[_WAITING]
            or self._waiting.has_assigned(code)
            or not self._control.is_published
            or self._is_due()
            or self._has_unread()
            or self._is_lost(code, consumer_id)
        )

    def _is_due(self) -> bool:
        due_ms = self._words[_NEXT_DUE_MS]
        return bool(due_ms and due_ms <= self._cutoff_ms())

    def _has_unread(self) -> bool:
        last = self._end.last_position()
        return last is not None and last >= self._control.read_position

    def _is_lost(self, code: int, consumer_id: int) -> bool:
        """Whether the consumer was detached, or its subscription deleted."""
        is_deleted = not self._words[SubscriptionWord.JOURNAL] & _JOURNAL_END
        return is_deleted or self._waiting.code_of(code, consumer_id) == STRANGER

    # -- the back-stop -----------------------------------------------------------------------------

    @property
    def is_suspicious(self) -> bool:
        """Whether entries lay there at the last `has_lain`: if they still do soon after, a wake-up
        was lost."""
        return self._suspect is not None

    def note_futile(self) -> None:
        """Note that the consumer looked and could have nothing: it need not look again before a change."""
        self._futile = self._fact(), self._log.tail
        self._suspect = None

    def has_lain(self, code: int, consumer_id: int) -> bool:
        """Whether a wake-up was lost: a consumer was woken for these entries, or should have been, and does
        not come for them. True only if they lay there at the last call already."""
        if self._waiting.has_assigned(code) or self._is_due() or self._is_lost(code, consumer_id):
            return True
        fact, before = self._fact(), self._suspect
        is_something = self._words[_WAITING] or not self._control.is_published or self._has_unread()
        self._suspect = fact if is_something and (fact, self._log.tail) != self._futile else None
        return self._suspect is not None and self._suspect == before

    def _fact(self) -> tuple[int, int, int]:
        words = self._words
        return words[_READ_LEDGER], words[_READ_ENTRY], words[_CLAIMS]


class SharedSleep:
    """One consumer's part in the waiting of its subscription (decision 0115).

    Role: of all consumers that sleep, one is woken for entries that any of them may have. So each of them
    notes under the lock that it sleeps, and later that it does not; one that was woken and leaves without
    having looked wakes another. A killed or stopped process cannot do so: the others look in turns
    whether entries lie there, the first of them soon, the hundredth seldom. Callers: the threads of
    the consumer.

    Attributes:
        room: messages the consumer is ready for when it goes to sleep.
        is_apart: it consumes several topics, and does not leave one because it was served by another: it is
            woken beside the one that is chosen, and waits for delayed entries by itself.
    """

    def __init__(
        self, log: Log, end: LogEnd, shared: SharedState, membership: Membership, is_apart: bool
    ) -> None:
        self.is_apart: Final = is_apart
        self._shared: Final = shared
        self._words: Final = shared.control.words
        self._waiting: Final = shared.wakeups.waiting
        self._work_hint: Final = WorkHint(log, end, shared.control, self._waiting, membership.cutoff_ms)
        self._traffic: Final = Traffic(shared.control, end, membership.monotonic)
        self._is_standing_by = False  # it sleeps for a moment, while another sees to what is appended
        self._leaves_entries = False  # the same, and it has not looked whether entries lie there
        self._has_announced = False
        self._was_armed = False  # when it last looked: a wake-up since was not for what it got then
        self._own_code = self._consumer_id = 0
        self.room = 1

    def is_of(self, code: int, consumer_id: int) -> None:
        """Set the consumer that sleeps; it gets another id when it joins again."""
        self._own_code, self._consumer_id = code, consumer_id

    @property
    def _code(self) -> int:
        """`STRANGER` once the consumer was taken for dead: then its own code may be another's."""
        return self._waiting.code_of(self._own_code, self._consumer_id)

    def begin_look(self, room: int) -> bool:
        """Note that the consumer looks for entries; False if it need not take the lock for
        that."""
        self.room = room
        self._was_armed = self._waiting.is_announced(self._code)
        return self._work_hint.has_any(self._own_code, self._consumer_id)

    @property
    def has_assigned(self) -> bool:
        """Whether others assigned entries to the consumer since it looked. Lock-free."""
        return self._waiting.has_assigned(self._own_code)

    def assigned(self) -> AssignedEntries | None:
        return self._shared.state.dispatch.assigned_by_consumer.get(self._consumer_id)

    # -- while messages come fast ------------------------------------------------------------------

    def leaves_entries(self) -> bool:
        """Whether it leaves what lies there to another consumer. False if its caller has not the time to wait
        until it is known that the other one takes it."""
        if self.is_apart or self.has_assigned:
            return False
        self._leaves_entries = self._traffic.is_led(self._own_code) and timing.left(STAND_BY_S) >= STAND_BY_S
        return self._leaves_entries

    def leaves_appends(self, is_quick: bool) -> bool:
        """Whether another consumer sees to what is appended, and this one, of a quick application, sleeps for
        some milliseconds: no append need ring it."""
        is_decided, self._leaves_entries = self._leaves_entries, False
        is_able = is_quick and not self.is_apart
        try:
            # One that left entries without a look may not sleep for longer than that.
            self._is_standing_by = is_decided or (
                is_able and self._code != STRANGER and self._traffic.is_led(self._own_code)
            )
        except ValueError:
            return False  # closed: the caller finds out
        return self._is_standing_by

    @property
    def is_led(self) -> bool:
        """Whether it slept while another saw to what is appended, and still does."""
        return self._is_standing_by and self._traffic.is_led(self._own_code)

    # -- falling asleep and leaving ----------------------------------------------------------------

    def is_announced(self) -> bool:
        """Whether its sleep is announced to others, and a consumer waits for the next delayed entry."""
        code = self._code
        is_watched = self.is_apart or code == STRANGER or self._waiting.is_watched(code)
        return is_watched and self._waiting.is_announced(code)

    def can_announce(self) -> bool:
        """Whether no entries were assigned to it since it looked. Under the lock."""
        return not self._waiting.has_assigned(self._code)

    def announced(self) -> None:
        """Note under the lock that it sleeps until it is rung for entries that it can have."""
        code, self._has_announced, self._was_armed = self._code, True, True
        if code != STRANGER:
            assigned = self.assigned()
            if assigned is not None:
                self._words[slot_of(code) + _GRANTED] = assigned.messages + self.room
            if not self.is_apart and not self._waiting.is_watched(code):
                self._waiting.watch(code)
        self._work_hint.note_futile()

    def end_wait(self, is_served: bool) -> None:
        has_announced, self._has_announced = self._has_announced, False
        waiting, shared = self._waiting, self._shared
        try:
            code = self._code
            if not has_announced or code == STRANGER:
                return
            is_watcher, is_armed = waiting.watcher == code, waiting.is_announced(code)
            if not is_watcher:
                if not is_armed and is_served and not self._was_armed:
                    return
                if is_armed and timing.within(_LEAVE_S, shared.in_lock, lambda: waiting.withdraw(self._code)):
                    return
            timing.within(_LEAVE_S, shared.transact, lambda state: self._withdraw(state, is_served))
        except (PulsarException, ValueError):
            return  # closed, or its lock is held for long: the back-stop of the others finds what is left

    def _withdraw(self, state: SubscriptionState, is_served: bool) -> None:
        wakeups, code = self._shared.wakeups, self._code
        if code == STRANGER:
            return
        if self._waiting.watcher == code:
            self._waiting.watch(0)
            if not self._waiting.is_watched(0):
                wakeups.hand_watch_on(state, self._consumer_id)
        was_taken = not self._waiting.withdraw(code)
        if was_taken and (self._was_armed or not is_served):
            wakeups.one(state, self._consumer_id)

    # -- the back-stop -----------------------------------------------------------------------------

    def has_news(self) -> bool:
        """Whether a wake-up was lost. Other events do not count: other consumers handle them. Lock-free."""
        try:
            if self._is_standing_by and not self.is_led:
                return True
            return self._work_hint.has_lain(self._own_code, self._consumer_id)
        except ValueError:
            return True  # closed

    def back_stop(self, seconds: float) -> float:
        """How long it sleeps at most: longer, the more consumers look before this one."""
        try:
            if self._work_hint.is_suspicious and not self._is_standing_by:
                return _SUSPICION_S
            rank = self._waiting.rank(self._code)
        except ValueError:
            return seconds
        if self._is_standing_by:  # the leader, if it sleeps, and one more look often enough
            return STAND_BY_S * (1 + _STEP * max(rank - 1, 0))
        # However long this one has been idle: entries of a consumer that was rung and stopped wait for it.
        seconds = min(seconds, _FIRST_BACK_STOP_S)
        return min(seconds * (1 + rank), _LONGEST_BACK_STOP_S)

    def due_ms(self) -> int:
        """When the next delayed entry is due, and a little later if another consumer waits for it; 0 for
        none."""
        try:
            due_ms = int(self._words[SubscriptionWord.NEXT_DUE_MS])
            if not due_ms or self.is_apart or self._waiting.watcher in (0, self._code):
                return due_ms
            return due_ms + min(_GRACE_MS * (1 + self._waiting.rank(self._code)), _MOST_GRACE_MS)
        except ValueError:
            return 0


_HANDED: Final = ConsumerSlotWord.HANDED


class _Pace:
    """How fast the application of a consumer handles messages: from a read that returned some to the next.

    Role: tells how many messages are a turn, of `_TURN_S`. Waking another process takes some 0.3 ms of CPU
    time, which is the time of 30 messages where nothing is done with them but acknowledging; so a small
    backlog is divided only as far as that helps. Callers: the consumer's reading thread.
    """

    __slots__ = ("_messages", "_monotonic", "_pending", "_seconds", "_since")

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic: Final = monotonic
        self._messages = self._pending = 0
        self._seconds = self._since = 0.0

    def begin(self, messages: int) -> None:
        """Note that the application gets so many messages now."""
        self._pending, self._since = messages, self._monotonic()

    def end(self) -> None:
        """Note that it has them all, and wants more."""
        messages, self._pending = self._pending, 0
        if not messages:
            return  # it waits since then, and no message takes this long
        self._messages += messages
        self._seconds += self._monotonic() - self._since
        if self._messages > _REMEMBERED:
            self._messages //= 2
            self._seconds /= 2

    @property
    def turn_messages(self) -> int:
        """Messages of a turn; 0 while too few were handled to tell, or the clock stands still."""
        if self._messages < _TELLING or self._seconds <= 0:
            return 0
        return min(int(self._messages * _TURN_S / self._seconds), _LONGEST_TURN)

    @property
    def is_quick(self) -> bool:
        """Whether another consumer that does the same need not help before messages lie there for long."""
        return self.turn_messages >= _QUICK_TURN


class _Outcome(NamedTuple):
    """The result of a claim.

    Attributes:
        ready: what is to be read from the log.
        was_moved: the subscription was moved, which is reported before anything is read.
        is_stale: nothing is `ready`, and the claim is to be tried again at once.
    """

    ready: list[FetchedRange]
    was_moved: bool = False
    is_stale: bool = True


class SharedAttachment(Attachment):
    """A consumer that claims entries when it has none left.

    Role: see `Attachment`. It looks at the log first, without a lock, and then claims under the lock what the
    dispatcher lets it have; if others were faster, it looks again. Invariants: what is read was assigned to
    this consumer, in the order of the assignments; each entry once.
    """

    delivers_singly = True
    shares_rings = True

    def __init__(
        self,
        log: Log,
        shared: SharedState,
        membership: Membership,
        consumer: Consumer,
        chunks: ChunkOptions,
    ) -> None:
        super().__init__(log, shared, membership, consumer, chunks)
        self._dispatcher: Final = CLAIM_DISPATCHERS[consumer.consumer_type]
        self._keys_matter: Final = self._dispatcher.keys_matter
        self._end: Final = LogEnd(log)
        self._ahead: Final = LookAhead(log, shared.control, self._keys_matter, self._end)
        self._reader: Final = RangeReader(log, self._ahead)
        self._fetched = 0  # number of the next entry of the assigned entries
        self._has_rest = False  # the last read did not take all that is assigned
        self._is_cut = False  # there was more than the last look at what is assigned took
        self._must_look = True  # whatever the hint says
        self._was_served = False  # by the last read, which claimed or was assigned something
        self._claims = 0  # so far, of those that found entries
        self._range_room = 0  # messages it may take without a claim; 0 while it has no open range
        self._range_end = 0  # number of the next entry it takes in the range
        self._range_next = BEFORE_FIRST  # that entry
        self._fence: Final = threads.new_fence()
        self._sleep: Final = SharedSleep(log, self._end, shared, membership, is_apart(consumer))
        self._sleep.is_of(consumer.code, consumer.consumer_id)
        self._pace: Final = _Pace(membership.monotonic)
        self._key: Final = EACH if self._sleep.is_apart else shared.control.identity
        self._base = slot_of(consumer.code)
        self._tag = handed_tag(consumer.consumer_id)

    # -- reading -----------------------------------------------------------------------------------

    def read(self, max_messages: int, max_bytes: int) -> list[EntryView]:
        """The next entries for this consumer; none if it cannot have any now."""
        try:
            # A subscription that is closed has no words any more: that is found out below.
            if self._range_room and not self._must_look and self._fork_generation == fork.GENERATION:
                taken = self._read_on(max_messages, max_bytes)
                if taken is not None:
                    return taken
            self._check_usable()
            self._pace.end()
            was_served, self._was_served = self._was_served, False
            if was_served and self._pace.is_quick and not (self._has_rest or self._must_look):
                if self.is_fresh() and self._sleep.leaves_entries():
                    return []
            if not self._has_any(max(max_messages, 0)):
                return []
            while ready := self._claim(max_messages, max_bytes):
                views = self._fetch(ready, max_bytes)
                if views:
                    self._was_served = True
                    self._pace.begin(sum([view.count for view in views]))
                    return views
            return []
        except (ConsumerBusy, ConsumerAssignError):
            return []  # taken for dead; consumers that attached since refuse it
        except ValueError:
            if self._shared.control.closed:
                raise AlreadyClosed(f"the subscription of consumer {self.name!r} is closed") from None
            raise

    def _read_on(self, room: int, max_bytes: int) -> list[EntryView] | None:
        """Take the next entries without a claim: see `OpenRange`. Lock-free.

        Returns:
            None if it may not, or if what comes next takes a claim: the start of another ledger, a delayed
            entry, a part of a chunked message, damage.
        """
        words, fresh, owner = self.words, self.fresh, self.consumer_id
        if (
            words[_RANGE_OWNER] != owner  # another consumer came, or something else ended the range
            or words[_WAITING]  # entries that were given back go first
            or words[_PUBLISHED] != words[_JOURNAL]  # a transaction is under way, or was interrupted
            or fresh.epoch != fresh.mark
            or self._has_rest
            or self._fetched != self._range_end
            or room <= 0
        ):
            return None
        self._sleep.room = room
        start = self._range_next
        views = self._ahead.read_on(start, min(room, self._range_room), max_bytes)
        if not views:
            return views
        number = self._range_end
        for view in views:
            number += 1
            view.number = number
        # An interrupt from here on leaves entries taken that were not returned: the next read looks up under
        # the lock what is assigned to this consumer.
        self._must_look = True
        words[_RANGE_TAKEN] = self._tag | number
        if failpoints.ACTIVE:
            failpoints.hit("range:taken")
        self._fence.acquire(False)  # the store is seen before the load that follows
        self._fence.release()
        if words[_RANGE_OWNER] != owner:
            return None  # closed meanwhile, before or after the store was seen: the claim tells
        messages = views[0].count if len(views) == 1 else sum([view.count for view in views])
        self._range_room = max(self._range_room - messages, 0)
        self._range_next = Position(start.ledger_id, start.entry_id + len(views))
        self._fetched = self._range_end = number
        self._must_look = False
        return views

    def _keep_range(self, state: SubscriptionState, room: int) -> None:
        """Let this consumer read on without claims, or end that. Under the lock, after a look."""
        assigned = state.dispatch.assigned_by_consumer[self.consumer_id]
        self._range_room = self._room_of_range(state) if room > 0 else 0
        if self._range_room:
            self._range_next, self._range_end = state.dispatch.read, assigned.end
            self._shared.let_read_on(self.consumer_id, assigned.end)
        elif self._shared.open_range.is_own:
            self._shared.close_range()

    def _room_of_range(self, state: SubscriptionState) -> int:
        """Messages it may take without a claim: 0 if any but the next entry of the log is to be decided
        on."""
        dispatch, consumer = state.dispatch, state.consumers.get(self.consumer_id)
        if (
            consumer is None
            or len(state.consumers) != 1
            or self._claims < CLAIMS_BEFORE_RANGE
            or not self._dispatcher.gives_all_to_one(dispatch)
            or self._log.is_volatile  # its entries count as delivered one by one
            or dispatch.waiting
            or len(dispatch.delayed)
            or dispatch.has_blocked
            or dispatch.joined
            or dispatch.counts
            or dispatch.pending.has_parts
            or self._ahead.chunks
            or state.acks.ledger(dispatch.read.ledger_id) is None
            or state.acks.last_touched() >= dispatch.read
            or state.pending_acks.last_touched >= dispatch.read
        ):
            return 0
        limit = consumer.rules.max_unacked or UNLIMITED
        return max(min(_MOST_TAKEN, limit - dispatch.holds(self.consumer_id), dispatch.room), 0)

    def _has_any(self, room: int) -> bool:
        """Whether there may be entries for it. Lock-free."""
        return (
            self._sleep.begin_look(room)
            or self._has_rest
            or self._must_look
            or not self.is_fresh()
            or bool(self._ahead.chunks)
            # After the death of their process no ring comes.
            or self._shared.has_ended_transactions
        )

    def _claim(self, room: int, max_bytes: int) -> list[FetchedRange]:
        while True:
            self._must_look = True  # until the assignment is known: an interrupt may strike
            if self._has_rest or self._sleep.has_assigned:
                outcome = self._read_assigned(room)
            else:
                outcome = self._try_to_claim(room, max_bytes)
            self._tell_if_moved(outcome.was_moved)
            if self._ahead.chunks or self._shared.state.dispatch.pending.has_parts:
                self._note_chunks()
            if outcome.ready or not outcome.is_stale:
                self._has_rest = bool(outcome.ready)  # until it is fetched, which may fail
                self._must_look = False
                return outcome.ready

    def _note_chunks(self) -> None:
        """Note that the read position passed entries of chunked messages, whichever consumer claimed them."""
        passed, self._ahead.chunks = self._ahead.chunks, []
        try:
            if passed:
                passed = self._shared.transact(lambda state: unacked(state, passed))
        except LockTimeout:
            self._ahead.chunks = passed + self._ahead.chunks
            raise
        for view in passed:
            self.chunks.record_part(view)
        self._watch_chunks()
        self._chunk_expiry.start_timer()

    def _read_assigned(self, room: int) -> _Outcome:
        """What others assigned, or the last read left. It takes no look at the entries behind the read
        position: on Key_Shared most reads are like this, as one consumer assigns what all of them get."""
        end = self._end.last_position()
        return self._shared.transact(lambda state: self._take_assigned(state, room, end))

    def _take_assigned(self, state: SubscriptionState, room: int, end: Position | None) -> _Outcome:
        """The same under the lock. Looked up anew: some may be acknowledged, or given back, since. ``end`` is
        the last entry of the log."""
        if self._adopt_state(state):
            return _Outcome([], was_moved=True)
        wakeups, dispatch = self._shared.wakeups, state.dispatch
        is_first = not self._has_rest
        wakeups.waiting.clear_assigned(self.code)
        ready = self._ready(state, room)
        self._has_rest = bool(ready)
        if ready and is_first:
            self._pass_on(state, room, ready, end is not None and end >= dispatch.read)
        return _Outcome(ready)

    def _pass_on(
        self, state: SubscriptionState, room: int, ready: Sequence[FetchedRange], has_beyond: bool
    ) -> None:
        """Say how much more this consumer can take, and wake another in its place: it may have been woken for
        entries that it does not claim, because it has others to read. If one leads, that sees to them."""
        unclaimed = max(room - sum([part.messages for part in ready]), 0)
        assigned = state.dispatch.assigned_by_consumer[self.consumer_id]
        self.words[self._base + _GRANTED] = assigned.messages + unclaimed
        if (state.dispatch.waiting or has_beyond) and not self._sleep.is_led:
            self._shared.wakeups.one(state, self.consumer_id)

    def _ready(self, state: SubscriptionState, room: int) -> list[FetchedRange]:
        ready = ranges_for(state, self.consumer_id, self._fetched, max(room, 1))
        end = state.dispatch.assigned_by_consumer[self.consumer_id].end
        if not ready:
            self._fetched = end
        self._is_cut = bool(ready) and ready[-1].end < end
        return ready

    def _try_to_claim(self, room: int, max_bytes: int) -> _Outcome:
        ahead, known = self._ahead, self._shared.state
        # In the range, the word of the read position is behind by what was taken since the last transaction.
        start = self._range_next if self._has_open_range() else self._shared.control.read_position
        ahead.read_ahead(room, max_bytes, start)
        backlog = ahead.backlog(room) if len(known.consumers) > 1 else ahead.messages
        facts = ledgers_of(self._log) if ahead.last_ledger > known.acks.newest_ledger else None

        def body(state: SubscriptionState) -> _Outcome:
            outcome = self._decide(state, room, backlog, facts)
            if len(state.consumers) == 1 and not outcome.was_moved:
                self._keep_range(state, room)
            return outcome

        return self._shared.transact(body)

    def _decide(
        self, state: SubscriptionState, room: int, backlog: int, facts: record.Ledgers | None
    ) -> _Outcome:
        """Take the entries assigned already, else claim more. Under the lock."""
        if self._adopt_state(state):
            return _Outcome([], was_moved=True)
        shared, dispatch, ahead = self._shared, state.dispatch, self._ahead
        shared.wakeups.waiting.clear_assigned(self.code)
        ready = self._ready(state, room)
        if ready:
            self._pass_on(state, room, ready, ahead.has_beyond(dispatch.read))
            return _Outcome(ready)
        self.words[self._base + _GRANTED] = dispatch.assigned_by_consumer[self.consumer_id].messages + max(
            room, 0
        )
        cutoff_ms = self._membership.cutoff_ms()
        if dispatch.is_due(cutoff_ms):
            shared.commit([Assign(STAY, cutoff_ms, (), (), (), ())])
            if dispatch.selector is not None:
                shared.wakeups.claimers(state, self.consumer_id)
        is_more_due = dispatch.is_due(cutoff_ms)
        is_known = ahead.covers(dispatch.read)
        if is_known:
            self._tell(state, facts)
            # The read position may have jumped over entries acknowledged long ago, beyond what was looked at.
            is_known = ahead.covers(dispatch.read) and not ahead.is_exhausted_at(dispatch.read)
        claim = self._claim_of(state, room, backlog if is_known else 0, cutoff_ms, is_known)
        command = self._dispatcher.assign(state.consumers, dispatch, claim)
        if command is None:
            if is_known and self._dispatcher.leaves_more(
                state.consumers, dispatch, claim, ahead.has_beyond(dispatch.read)
            ):
                shared.wakeups.one(state, self.consumer_id)  # it holds too much itself
            return _Outcome([], is_stale=not is_known or is_more_due)
        others = command.consumers - {self.consumer_id}
        shared.wakeups.assigned(state, others)
        self._claims += 1
        shared.commit([command])
        shared.control.note_claim()
        if others:
            shared.control.bump()  # consumers of several topics look where something changed
            shared.wakeups.consumers(state, others)
        if self._dispatcher.leaves_more(state.consumers, dispatch, claim, ahead.has_beyond(dispatch.read)):
            shared.wakeups.one(state, self.consumer_id)
        ahead.drop_before(dispatch.read)
        ready = self._ready(state, room)
        # Entries that were held back may be available now that this claim is made.
        has_more = command.read != STAY and (dispatch.waiting > 0 or ahead.has_beyond(dispatch.read))
        return _Outcome(ready, is_stale=not is_known or is_more_due or has_more)

    def _tell(self, state: SubscriptionState, facts: record.Ledgers | None) -> None:
        """Give the state the ledgers that exist, and the entries on the way that cannot be read."""
        commands: list[record.Command] = [] if facts is None else news_for(state, facts)
        gaps = [gap for gap in self._ahead.gaps_from(state.dispatch.read) if not state.acks.has(gap)]
        if gaps:
            commands.append(Ack(self.consumer_id, self.epoch, tuple(gaps), ()))
        if commands:
            self._shared.commit(commands)

    def _claim_of(
        self, state: SubscriptionState, room: int, backlog: int, cutoff_ms: int, is_known: bool
    ) -> Claim:
        control, consumers = self._shared.control, state.consumers
        return Claim(
            self.consumer_id,
            room,
            self._ahead.entries_from(state.dispatch.read) if is_known else (),
            backlog,
            Granted(control, consumers),
            Handed(control, consumers),
            cutoff_ms,
            self._pace.turn_messages,
        )

    def _fetch(self, ready: list[FetchedRange], max_bytes: int) -> list[EntryView]:
        """Read assigned entries, about ``max_bytes`` of them. If that fails, they are read next time."""
        reader = self._reader
        views, fetched, has_rest = reader.read(ready, self._fetched, max_bytes)
        if reader.missing:
            missing, reader.missing = reader.missing, []
            self._acknowledger.acknowledge_unreadable(missing)
        if has_chunks(views):
            views, rest = self._complete(views, max_bytes, is_noted=True)
            if rest is not None:
                fetched, has_rest = rest.number - 1, True
        self._fetched, self._has_rest = fetched, has_rest or self._is_cut
        return views

    def handed(self, view: EntryView) -> bool:
        """Note that the application gets the first message of an entry: it counts as delivered from here on.

        Returns:
            False if something happened to the subscription since this consumer last read: it may have been
            moved, and the entry be void. `catch_up` tells, and then this is to be asked again.
        """
        fresh = self.fresh
        try:
            # The first comparison makes no number: see `Freshness`.
            if fresh.epoch != fresh.mark and fresh.epoch[()] != fresh.seen:
                return False
            self.words[self._base + _HANDED] = self._tag | view.number
        except ValueError:
            return True  # closed meanwhile
        return True

    # -- waiting -----------------------------------------------------------------------------------

    def _announce(self, seen_version: int) -> bool:
        if not self._sleep.can_announce() or not super()._announce(seen_version):
            return False
        self._sleep.announced()
        return True

    def end_wait(self, is_served: bool) -> None:
        """See `Attachment.end_wait`: another is to be rung in its place. While it is alone, its announcement
        stands: who closes its range takes that back, and rings it."""
        if not self._has_open_range():
            self._sleep.end_wait(is_served)

    def _has_open_range(self) -> bool:
        try:
            return bool(self.words[_RANGE_OWNER] == self.consumer_id)
        except ValueError:
            return False  # closed

    @property
    def key(self) -> int:
        """The same for all consumers of a subscription, so that one is rung; see `Attachment.key`."""
        return self._key

    @property
    def awaits_appends(self) -> bool:
        """False while it holds so much that it can have no more."""
        if self._range_room:
            return True
        if self._sleep.leaves_appends(self._pace.is_quick):
            return False
        assigned = self._sleep.assigned()
        return assigned is None or self._keys_matter or not assigned.is_blocked

    def has_news(self, has_tail_moved: bool, seen_version: int) -> bool:
        if self._has_open_range():  # then all there is to come stands behind the tail, or raises the version
            return has_tail_moved or self.version != seen_version
        return self._sleep.has_news()

    def back_stop(self, seconds: float) -> float:
        return seconds if self._has_open_range() else self._sleep.back_stop(seconds)

    def due_ms(self) -> int:
        """When to look for the next delayed entry, in ms since the epoch; 0 for none. Lock-free."""
        return self._sleep.due_ms()

    # -- giving back -------------------------------------------------------------------------------

    def redeliver(self) -> None:
        """Everything this consumer holds waits for a consumer that is ready. Entries that its application
        received count as redelivered."""
        self._give_back(())

    def redeliver_entries(self, entries: Sequence[RawPosition]) -> bool:
        """These entries wait for a ready consumer, and count as redelivered once more. Always False."""
        groups = group_entries(existing_ids(entries))
        if groups:
            self._give_back(groups)
        return False

    def _give_back(self, groups: tuple[AckGroup, ...]) -> None:
        def body(state: SubscriptionState) -> bool:
            if self._adopt_state(state):
                return True  # the entries to give back are void, or others have them
            handed = self._shared.control.handed(self.code, self.consumer_id)
            self._shared.commit([record.Redeliver(self.consumer_id, self.epoch, handed, groups)])
            if not groups:
                self._go_to(state)
            return False

        self._check_usable()
        try:
            self._tell_if_moved(self._shared.transact(body))
        except (ConsumerBusy, ConsumerAssignError):
            return  # taken for dead: others have the entries, and refuse this one

    # -- position in the state ----------------------------------------------------------------------

    def _own(self, state: SubscriptionState) -> Consumer:
        before = self.consumer_id
        consumer = super()._own(state)
        if consumer.consumer_id != before:
            self._base, self._tag = slot_of(consumer.code), handed_tag(consumer.consumer_id)
            self._sleep.is_of(consumer.code, consumer.consumer_id)
        return consumer

    def _go_to(self, state: SubscriptionState) -> None:
        self._has_rest, self._must_look = False, True
        self._range_room, self._range_next = 0, BEFORE_FIRST
        self._ahead.clear()
        # Not its end: others may have assigned something since the subscription was moved.
        self._fetched = state.dispatch.assigned_by_consumer[self.consumer_id].start

    def read_position(self) -> Position:
        """See `Holder.read_position`: what was taken without a claim exists, though no word shows it."""
        return max(self._shared.control.read_position, self._range_next)


def existing_ids(entries: Sequence[RawPosition]) -> list[RawPosition]:
    """These ids, without those that no entry can have."""
    return [entry for entry in entries if entry[0] >= 0 and entry[1] >= 0]
