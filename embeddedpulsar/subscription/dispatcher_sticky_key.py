"""Key_Shared: each key belongs to one consumer at a time, and comes to it in order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from embeddedpulsar.format.consumer_record import FLAG_OUT_OF_ORDER
from embeddedpulsar.format.dispatch_record import Assign
from embeddedpulsar.managed_ledger.position import Position
from embeddedpulsar.subscription.assignment import Assignment, Claim, FreshEntry, permits_of
from embeddedpulsar.subscription.consumer_registry import Consumer, ConsumerRegistry
from embeddedpulsar.subscription.dispatch_state import DispatchState
from embeddedpulsar.subscription.sticky_key_selector import STICKY, make_selector, selector_of

LOOK_AHEAD_PER_CONSUMER: Final = 2000
LOOK_AHEAD: Final = 20_000
_SLOT: Final = 0xFFFF


class KeySharedDispatcher:
    """Key_Shared: the selector names the consumer of a key.

    Whoever runs dry gives entries to everyone, because the next entries may be for anyone; but only to
    consumers that said they are ready for more. An entry is held back, and with it all later ones of its
    key, while its consumer is not ready or another one still holds entries of that key. What is held back
    waits in the state, up to 2,000 entries a consumer and 20,000 in all; then nothing more is read.
    """

    def refusal(self, consumers: ConsumerRegistry, newcomer: Consumer, dispatch: DispatchState) -> str:
        for other in consumers.all():
            if (other.rules.selector == STICKY) != (newcomer.rules.selector == STICKY):
                return "Subscription is of different key_shared mode"
            if other.rules.flags & FLAG_OUT_OF_ORDER and not newcomer.rules.flags & FLAG_OUT_OF_ORDER:
                return "Subscription allows out of order delivery"
            if newcomer.rules.flags & FLAG_OUT_OF_ORDER and not other.rules.flags & FLAG_OUT_OF_ORDER:
                return "Subscription does not allow out of order delivery"
        return ""

    def assign(self, consumers: ConsumerRegistry, dispatch: DispatchState, claim: Claim) -> Assign | None:
        """What everybody gets; None for nothing at all."""
        if dispatch.selector is None or dispatch.is_blocked:
            return None
        assignment = Assignment(claim.fresh, keys_matter=True)
        first = consumers.get(claim.consumer_id)
        is_ordered = (
            not (first and first.rules.flags & FLAG_OUT_OF_ORDER) and dispatch.selector_kind != STICKY
        )
        round_ = _Round(consumers, dispatch, claim, assignment, is_ordered)
        for entry in _waiting(dispatch):
            if round_.is_over:
                break
            round_.offer(entry)
        most = min(LOOK_AHEAD_PER_CONSUMER * len(consumers), LOOK_AHEAD)
        while not round_.is_over and round_.held_back < most:
            fresh = assignment.next_fresh(claim.cutoff_ms)
            if fresh is None:
                break
            round_.offer(fresh)
            assignment.pass_one()
        return assignment.command(claim)


def key_refusal(newcomer: Consumer, dispatch: DispatchState) -> str:
    """Why the keys cannot be divided with ``newcomer`` too; empty if they can."""
    if dispatch.handouts and dispatch.selector is not None:
        trial = selector_of(dispatch.selector_kind, dispatch.selector.pack())
    else:
        trial = make_selector(newcomer.rules.selector, newcomer.rules.points)
    try:
        trial.add(newcomer.consumer_id, newcomer.name, newcomer.rules.ranges)
    except ValueError as e:
        return str(e)
    return ""


class _Round:
    """One pass over the entries that could be given."""

    def __init__(
        self,
        consumers: ConsumerRegistry,
        dispatch: DispatchState,
        claim: Claim,
        assignment: Assignment,
        is_ordered: bool,
    ) -> None:
        assert dispatch.selector is not None
        self._dispatch = dispatch
        self._assignment = assignment
        self._is_ordered = is_ordered
        self._select = dispatch.selector.select
        self._codes = {one: handout.code for one, handout in dispatch.handouts.items()}
        self._permits = {one.consumer_id: permits_of(dispatch, claim, one) for one in consumers.all()}
        self._open = sum(permits > 0 for permits in self._permits.values())
        self._held: set[int] = set()
        self.held_back = 0
        """Entries nobody got."""

    @property
    def is_over(self) -> bool:
        """Whether nobody is ready for more."""
        return not self._open

    def offer(self, entry: FreshEntry) -> None:
        """Give an entry to the consumer of its key, or hold it back."""
        slot = entry.key_hash & _SLOT
        consumer_id = self._select(entry.key_hash)
        if consumer_id is None or not self._may_have(consumer_id, slot, entry):
            self.held_back += 1
            if self._is_ordered:
                self._held.add(slot)
            return
        self._assignment.give(consumer_id, entry.ledger_id, entry.entry_id, entry.messages)
        left = self._permits[consumer_id] - entry.messages
        self._permits[consumer_id] = left
        self._open -= left <= 0

    def _may_have(self, consumer_id: int, slot: int, entry: FreshEntry) -> bool:
        if self._permits[consumer_id] <= 0:
            return False
        if not self._is_ordered:
            return True
        if slot in self._held:
            return False
        holder = self._dispatch.pending.keys.holder(slot)
        if holder and holder != self._codes[consumer_id]:
            return False
        return self._is_before_joining(consumer_id, entry)

    def _is_before_joining(self, consumer_id: int, entry: FreshEntry) -> bool:
        """The classic rule: a newcomer gets only what stood before it joined, until that is acknowledged."""
        joined = self._dispatch.joined.get(consumer_id)
        return joined is None or Position(entry.ledger_id, entry.entry_id) < joined


def _waiting(dispatch: DispatchState) -> Iterator[FreshEntry]:
    pending = dispatch.pending
    for ledger_id, first, last in pending.waiting_runs():
        states = pending.ledger(ledger_id)
        if states is None:
            continue
        hashes, base = states.hashes, states.base
        for entry_id in range(first, last + 1):
            key_hash = 0 if hashes is None else hashes[entry_id - base]
            yield FreshEntry(ledger_id, entry_id, states.messages_of(entry_id), key_hash, 0)
