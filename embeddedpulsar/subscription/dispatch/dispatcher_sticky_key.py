"""Key_Shared: each key belongs to one consumer at a time, and comes to it in order."""

from __future__ import annotations

from contextlib import closing
from heapq import heappop, heappush
from typing import Final

from embeddedpulsar.enums import KeySharedMode
from embeddedpulsar.format.consumer_record import FLAG_CLASSIC, FLAG_OUT_OF_ORDER, ConsumerRules
from embeddedpulsar.format.dispatch_record import Assign
from embeddedpulsar.policies import KeySharedPolicy
from embeddedpulsar.subscription.dispatch.assignment import (
    Assignment,
    Claim,
    FreshEntry,
    others_are_ready,
    permits_of,
)
from embeddedpulsar.subscription.dispatch.dispatch_rules import Asked, ClaimDispatcher
from embeddedpulsar.subscription.state.consumer_registry import Consumer, ConsumerRegistry
from embeddedpulsar.subscription.state.dispatch_state import DispatchState
from embeddedpulsar.subscription.state.sticky_key_selector import (
    CONSISTENT_HASHING,
    HASH_RANGE,
    STICKY,
    make_selector,
    selector_of,
)

LOOK_AHEAD_PER_CONSUMER: Final = 2000
LOOK_AHEAD: Final = 20_000
_SLOT: Final = 0xFFFF


class KeySharedDispatcher(ClaimDispatcher):
    """Key_Shared: the selector names the consumer of a key.

    A consumer that has nothing left takes the entries that wait for it, and distributes the entries behind
    the read position over all consumers that said they are ready for more. An entry is held
    back, and with it all later ones of its key, while its consumer is not ready or another one still holds
    entries of that key. What is held back waits in the state, up to 2,000 entries a consumer and 20,000 in
    all; then nothing more is read.
    """

    keys_matter = True

    def rules(self, asked: Asked) -> ConsumerRules:
        policy, settings = asked.key_shared or KeySharedPolicy(), asked.settings
        selector = HASH_RANGE
        ranges: tuple[tuple[int, int], ...] = ()
        if policy.get_key_shared_mode() == KeySharedMode.Sticky:
            selector, ranges = STICKY, tuple((a, b) for a, b in policy.get_sticky_ranges())
        elif settings.subscriptionKeySharedUseConsistentHashing:
            selector = CONSISTENT_HASHING
        flags = FLAG_OUT_OF_ORDER if policy.is_allow_out_of_order_delivery() else 0
        flags |= FLAG_CLASSIC if settings.subscriptionKeySharedUseClassicPersistentImplementation else 0
        return (
            super()
            .rules(asked)
            ._replace(
                selector=selector,
                points=settings.subscriptionKeySharedConsistentHashingReplicaPoints,
                flags=asked.flags | flags,
                ranges=ranges,
            )
        )

    def refusal(self, consumers: ConsumerRegistry, new_consumer: Consumer, dispatch: DispatchState) -> str:
        for other in consumers.all():
            if (other.rules.selector == STICKY) != (new_consumer.rules.selector == STICKY):
                return "Subscription is of different key_shared mode"
            if other.rules.flags & FLAG_OUT_OF_ORDER and not new_consumer.rules.flags & FLAG_OUT_OF_ORDER:
                return "Subscription allows out of order delivery"
            if new_consumer.rules.flags & FLAG_OUT_OF_ORDER and not other.rules.flags & FLAG_OUT_OF_ORDER:
                return "Subscription does not allow out of order delivery"
        return ""

    def key_refusal(self, new_consumer: Consumer, dispatch: DispatchState) -> str:
        if dispatch.assigned_by_consumer and dispatch.selector is not None:
            trial = selector_of(dispatch.selector_kind, dispatch.selector.pack())
        else:
            trial = make_selector(new_consumer.rules.selector, new_consumer.rules.points)
        try:
            trial.add(new_consumer.consumer_id, new_consumer.name, new_consumer.rules.ranges)
        except ValueError as e:
            return str(e)
        return ""

    def assign(self, consumers: ConsumerRegistry, dispatch: DispatchState, claim: Claim) -> Assign | None:
        """What each consumer gets; None if there is nothing to assign."""
        if dispatch.selector is None or dispatch.is_blocked:
            return None
        assignment = Assignment(claim.fresh, dispatch.room, keys_matter=True)
        first = consumers.get(claim.consumer_id)
        is_ordered = (
            not (first and first.rules.flags & FLAG_OUT_OF_ORDER) and dispatch.selector_kind != STICKY
        )
        round_ = _Round(consumers, dispatch, claim, assignment, is_ordered)
        round_.give_waiting(claim.consumer_id)
        most = min(LOOK_AHEAD_PER_CONSUMER * len(consumers), LOOK_AHEAD)
        while not round_.is_over and round_.held_back < most:
            fresh = assignment.next_fresh(claim.cutoff_ms)
            if fresh is None:
                break
            round_.offer(fresh)
            assignment.pass_one()
        return assignment.command(claim)

    def leaves_more(
        self, consumers: ConsumerRegistry, dispatch: DispatchState, claim: Claim, has_beyond: bool
    ) -> bool:
        """Whether more can be read. What was read and waits is for consumers that claim it when they are
        ready, or that are woken when its key is free."""
        most = min(LOOK_AHEAD_PER_CONSUMER * len(consumers), LOOK_AHEAD)
        is_full = len(dispatch.pending.waiting_keys) >= most
        return has_beyond and not is_full and others_are_ready(consumers, dispatch, claim)


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
        self._granted = claim.granted
        self._consumers = consumers
        self._permits: dict[int, int] = {}  # of those that were asked for: there may be hundreds
        self._others: Final = iter(consumers.all())
        self._ready: Consumer | None = next(self._others, None)  # those before it are not ready for more
        self._held: set[int] = set()
        self._waiting: Final = dispatch.pending.waiting_keys
        self._served: dict[int, int] = {}
        self.held_back = len(self._waiting)
        """Entries that no consumer got."""

    @property
    def is_over(self) -> bool:
        """Whether no consumer is ready for more, or may have more."""
        while self._ready is not None and self._permits_of(self._ready.consumer_id) <= 0:
            self._ready = next(self._others, None)
        return self._ready is None or self._assignment.room <= 0

    def _permits_of(self, consumer_id: int) -> int:
        """Messages the consumer is ready for. Within a round the number only falls."""
        permits = self._permits.get(consumer_id)
        if permits is None:
            consumer = self._consumers.get(consumer_id)
            permits = 0 if consumer is None else permits_of(self._dispatch, self._granted, consumer)
            self._permits[consumer_id] = permits
        return permits

    def give_waiting(self, consumer_id: int) -> None:
        """Give a consumer what waits for it, in order, as far as it is ready to take it."""
        waiting, assignment = self._waiting, self._assignment
        if not waiting or self._permits_of(consumer_id) <= 0:
            return
        following: list[tuple[tuple[int, int], int]] = []  # entries behind one that is given, of its key
        with closing(waiting.in_order(consumer_id, self._select, self._dispatch.membership)) as firsts:
            first = next(firsts, None)
            while self._permits[consumer_id] > 0 and assignment.room > 0:
                if following and (first is None or following[0] < first):
                    self._give_one(consumer_id, *heappop(following), following)
                elif first is None:
                    break
                else:
                    if self._may_have(consumer_id, first[1] & _SLOT, first[0]):
                        self._give_one(consumer_id, *first, following)
                    first = next(firsts, None)
        self.held_back -= sum(self._served.values())

    def _give_one(
        self,
        consumer_id: int,
        entry: tuple[int, int],
        key_hash: int,
        following: list[tuple[tuple[int, int], int]],
    ) -> None:
        states = self._dispatch.pending.ledger(entry[0])
        assert states is not None
        self._give(consumer_id, *entry, states.messages_of(entry[1]))
        served = self._served[key_hash] = self._served.get(key_hash, 0) + 1
        entries = self._waiting.entries_of(key_hash)
        if served < len(entries) and self._is_before_joining(consumer_id, entries[served]):
            heappush(following, (entries[served], key_hash))

    def _give(self, consumer_id: int, ledger_id: int, entry_id: int, messages: int) -> None:
        self._assignment.give(consumer_id, ledger_id, entry_id, messages)
        self._permits[consumer_id] = self._permits_of(consumer_id) - messages

    def _waits(self, key_hash: int) -> bool:
        """Whether entries of this key still wait, so that later ones have to."""
        return len(self._waiting.entries_of(key_hash)) > self._served.get(key_hash, 0)

    def offer(self, entry: FreshEntry) -> None:
        """Give an entry to the consumer of its key, or hold it back."""
        slot = entry.key_hash & _SLOT
        consumer_id = self._select(entry.key_hash)
        is_next = not self._is_ordered or not self._waits(entry.key_hash)
        if consumer_id is None or not is_next or not self._may_have(consumer_id, slot, entry[:2]):
            self.held_back += 1
            if self._is_ordered:
                self._held.add(slot)
            return
        self._give(consumer_id, entry.ledger_id, entry.entry_id, entry.messages)

    def _may_have(self, consumer_id: int, slot: int, entry: tuple[int, int]) -> bool:
        if self._permits_of(consumer_id) <= 0:
            return False
        if not self._is_ordered:
            return True
        if slot in self._held:
            return False
        holder = self._dispatch.pending.keys.holder(slot)
        if holder and holder != self._dispatch.assigned_by_consumer[consumer_id].code:
            return False
        return self._is_before_joining(consumer_id, entry)

    def _is_before_joining(self, consumer_id: int, entry: tuple[int, int]) -> bool:
        """Whether the classic rule admits the entry: a new consumer gets only what stood before it joined,
        until that is acknowledged."""
        joined = self._dispatch.joined.get(consumer_id)
        return joined is None or entry < joined
