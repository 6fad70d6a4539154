"""Consumers of Shared and Key_Shared: a consumer that has nothing left claims entries. Hot: `read`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from embeddedpulsar._engine.format import subscription_record as record
from embeddedpulsar._engine.format.acknowledgement import Ack, AckGroup, group_entries
from embeddedpulsar._engine.format.control import ConsumerSlotWord
from embeddedpulsar._engine.format.entry import EntryView
from embeddedpulsar._engine.format.subscription_record import STAY, Assign
from embeddedpulsar._engine.log.log import Log
from embeddedpulsar._engine.log.log_positions import has_chunks
from embeddedpulsar._engine.log.waiter_slots import EACH
from embeddedpulsar.exceptions import AlreadyClosed, ConsumerAssignError, ConsumerBusy, LockTimeout
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.subscription.attachment.attachment import Attachment, Entry
from embeddedpulsar.subscription.attachment.chunk_keeper import ChunkOptions
from embeddedpulsar.subscription.attachment.membership import Membership
from embeddedpulsar.subscription.attachment.shared_sleep import SharedSleep
from embeddedpulsar.subscription.attachment.unacked_reader import unacked
from embeddedpulsar.subscription.control import Granted, Handed, handed_tag, slot_of
from embeddedpulsar.subscription.dispatch.assignment import Claim
from embeddedpulsar.subscription.dispatch.dispatcher import CLAIM_DISPATCHERS
from embeddedpulsar.subscription.dispatch.look_ahead import LookAhead
from embeddedpulsar.subscription.dispatch.range_reader import FetchedRange, RangeReader, ranges_for
from embeddedpulsar.subscription.dispatch.wakeups import is_apart
from embeddedpulsar.subscription.log_queries import ledgers_of, news_for
from embeddedpulsar.subscription.shared_state import SharedState
from embeddedpulsar.subscription.state.consumer_registry import Consumer
from embeddedpulsar.subscription.state.state_machine import SubscriptionState

_HANDED: Final = ConsumerSlotWord.HANDED
_GRANTED: Final = ConsumerSlotWord.GRANTED


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
        self._ahead: Final = LookAhead(log, shared.control, self._keys_matter)
        self._reader: Final = RangeReader(log, self._ahead)
        self._fetched = 0  # number of the next entry of the assigned entries
        self._has_rest = False  # the last read did not take all that is assigned
        self._must_look = True  # whatever the hint says
        self._sleep: Final = SharedSleep(log, shared, membership, is_apart(consumer))
        self._sleep.is_of(consumer.code, consumer.consumer_id)
        self._base = slot_of(consumer.code)
        self._tag = handed_tag(consumer.consumer_id)

    # -- reading -----------------------------------------------------------------------------------

    def read(self, max_messages: int, max_bytes: int) -> list[EntryView]:
        """The next entries for this consumer; none if it cannot have any now."""
        self._check_usable()
        try:
            if not self._has_any(max(max_messages, 0)):
                return []
            while ready := self._claim(max_messages, max_bytes):
                views = self._fetch(ready, max_bytes)
                if views:
                    return views
            return []
        except (ConsumerBusy, ConsumerAssignError):
            return []  # taken for dead; consumers that attached since refuse it
        except ValueError:
            if self._shared.control.closed:
                raise AlreadyClosed(f"the subscription of consumer {self.name!r} is closed") from None
            raise

    def _has_any(self, room: int) -> bool:
        """Whether there may be entries for it. Lock-free."""
        return (
            self._sleep.begin_look(room)
            or self._has_rest
            or self._must_look
            or not self.is_fresh()
            or bool(self._ahead.chunks)
        )

    def _claim(self, room: int, max_bytes: int) -> list[FetchedRange]:
        while True:
            self._must_look = True  # until the assignment is known: an interrupt may strike
            if self._has_rest:
                outcome = self._shared.transact(lambda state: self._rest(state, room))
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
            self.chunks.note(view)
        self._watch_chunks()
        self._chunk_expiry.arm()

    def _rest(self, state: SubscriptionState, room: int) -> _Outcome:
        """The entries the last read left, under the lock. Looked up anew: some may be acknowledged, or
        given back, since."""
        if self._follow(state):
            return _Outcome([], was_moved=True)
        ready = self._ready(state, room)
        self._has_rest = bool(ready)
        return _Outcome(ready)

    def _ready(self, state: SubscriptionState, room: int) -> list[FetchedRange]:
        ready = ranges_for(state, self.consumer_id, self._fetched, max(room, 1))
        if not ready:
            self._fetched = state.dispatch.assigned_by_consumer[self.consumer_id].end
        return ready

    def _try_to_claim(self, room: int, max_bytes: int) -> _Outcome:
        ahead, known = self._ahead, self._shared.state
        ahead.look(room, max_bytes)
        backlog = ahead.backlog(room) if len(known.consumers) > 1 else ahead.messages
        facts = ledgers_of(self._log) if ahead.last_ledger > known.acks.newest_ledger else None
        return self._shared.transact(lambda state: self._decide(state, room, backlog, facts))

    def _decide(
        self, state: SubscriptionState, room: int, backlog: int, facts: record.Ledgers | None
    ) -> _Outcome:
        """Take the entries assigned already, else claim more. Under the lock."""
        if self._follow(state):
            return _Outcome([], was_moved=True)
        shared, dispatch, ahead = self._shared, state.dispatch, self._ahead
        shared.wakeups.waiting.clear_assigned(self.code)
        ready = self._ready(state, room)
        if ready:
            if dispatch.waiting or ahead.has_beyond(dispatch.read):
                shared.wakeups.one(
                    state, self.consumer_id
                )  # it may have been woken for these entries, and does not claim them
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
        self._fetched, self._has_rest = fetched, has_rest
        return views

    def handed(self, view: EntryView) -> bool:
        """Note that the application gets the first message of an entry: it counts as delivered from here on.

        Returns:
            False if something happened to the subscription since this consumer last read: it may have been
            moved, and the entry be void. `look` tells, and then this is to be asked again.
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

    def _is_announced(self) -> bool:
        return self._sleep.is_announced()

    def _announce(self, seen_version: int) -> bool:
        if not self._sleep.can_announce() or not super()._announce(seen_version):
            return False
        self._sleep.announced()
        return True

    def leave(self, is_served: bool) -> None:
        """See `Attachment.leave`: another is to be rung in its place."""
        self._sleep.leave(is_served)

    @property
    def key(self) -> int:
        """The same for all consumers of a subscription, so that one is rung; see `Attachment.key`."""
        return EACH if self._sleep.is_apart else self._shared.control.identity

    @property
    def awaits_appends(self) -> bool:
        """False while it holds so much that it can have no more."""
        assigned = self._sleep.assigned()
        return assigned is None or self._keys_matter or not assigned.is_blocked

    def has_news(self, has_tail_moved: bool, seen_version: int) -> bool:
        return self._sleep.has_news()

    def back_stop(self, seconds: float) -> float:
        return self._sleep.back_stop(seconds)

    def due_ms(self) -> int:
        """When to look for the next delayed entry, in ms since the epoch; 0 for none. Lock-free."""
        return self._sleep.due_ms()

    # -- giving back -------------------------------------------------------------------------------

    def redeliver(self) -> None:
        """Everything this consumer holds waits for a consumer that is ready. Entries that its application
        received count as redelivered."""
        self._give_back(())

    def redeliver_entries(self, entries: Sequence[Entry]) -> bool:
        """These entries wait for a ready consumer, and count as redelivered once more. Always False."""
        groups = group_entries(existing_ids(entries))
        if groups:
            self._give_back(groups)
        return False

    def _give_back(self, groups: tuple[AckGroup, ...]) -> None:
        def body(state: SubscriptionState) -> bool:
            if self._follow(state):
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
        self._ahead.clear()
        # Not its end: others may have assigned something since the subscription was moved.
        self._fetched = state.dispatch.assigned_by_consumer[self.consumer_id].start

    def read_position(self) -> Entry:
        return self._shared.control.read_position


def existing_ids(entries: Sequence[Entry]) -> list[Entry]:
    """These ids, without those that no entry can have."""
    return [one for one in entries if one[0] >= 0 and one[1] >= 0]
