"""Key_Shared: each key belongs to one consumer at a time, and comes to it in order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from embeddedpulsar._engine.format.subscription_record import (
    FLAG_CLASSIC,
    FLAG_OUT_OF_ORDER,
    Assign,
    ConsumerRules,
)
from embeddedpulsar.enums import KeySharedMode
from embeddedpulsar.policies import KeySharedPolicy
from embeddedpulsar.subscription.control import Facts
from embeddedpulsar.subscription.dispatch.assignment import (
    Assignment,
    Claim,
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
        most = min(LOOK_AHEAD_PER_CONSUMER * len(consumers), LOOK_AHEAD)
        round_ = _Round(consumers, dispatch, claim, assignment, is_ordered)
        round_.give_waiting(claim.consumer_id)
        if round_.held_back < most and round_.is_anyone_ready():
            round_.give_fresh(claim.cutoff_ms, most)
        return assignment.command(claim)

    def leaves_more(
        self, consumers: ConsumerRegistry, dispatch: DispatchState, claim: Claim, has_beyond: bool
    ) -> bool:
        """Whether more can be read. What was read and waits is for consumers that claim it when they are
        ready, or that are woken when its key is free."""
        most = min(LOOK_AHEAD_PER_CONSUMER * len(consumers), LOOK_AHEAD)
        is_full = len(dispatch.pending.waiting_keys) >= most
        return has_beyond and not is_full and others_are_ready(consumers, dispatch, claim)


class _Permits(dict[int, int]):
    """Messages each consumer is ready for; looked up when needed, for there may be hundreds of consumers."""

    __slots__ = ("_consumers", "_dispatch", "_granted")

    def __init__(self, consumers: ConsumerRegistry, dispatch: DispatchState, granted: Facts) -> None:
        super().__init__()
        self._consumers = consumers
        self._dispatch = dispatch
        self._granted = granted

    def __missing__(self, consumer_id: int) -> int:
        consumer = self._consumers.get(consumer_id)
        permits = 0 if consumer is None else permits_of(self._dispatch, self._granted, consumer)
        self[consumer_id] = permits
        return permits


class _Round:
    """One pass over the entries that could be given. Hot: a few operations for each entry."""

    def __init__(
        self,
        consumers: ConsumerRegistry,
        dispatch: DispatchState,
        claim: Claim,
        assignment: Assignment,
        is_ordered: bool,
    ) -> None:
        self._dispatch = dispatch
        self._assignment = assignment
        self._is_ordered = is_ordered
        self._permits = _Permits(consumers, dispatch, claim.granted)
        self._others: Final = iter(consumers.all())
        self._ready: Consumer | None = next(self._others, None)  # those before it are not ready for more
        self._waiting: Final = dispatch.pending.waiting_keys
        self._served: dict[int, int] = {}  # by hash; a `Counter` takes longer than what is left of a round
        self.held_back = len(self._waiting)
        """Entries that no consumer got."""

    def is_anyone_ready(self) -> bool:
        """Whether a consumer is ready for more, and may have more."""
        while self._ready is not None and self._permits[self._ready.consumer_id] <= 0:
            self._ready = next(self._others, None)
        return self._ready is not None and self._assignment.room > 0

    def _codes(self) -> dict[int | None, int]:
        return {one: assigned.code for one, assigned in self._dispatch.assigned_by_consumer.items()}

    def give_waiting(self, consumer_id: int) -> None:
        """Give a consumer what waits for it, in order, as far as it is ready to take it."""
        dispatch, assignment, permits = self._dispatch, self._assignment, self._permits
        if not self._waiting or permits[consumer_id] <= 0:
            return
        pending, is_ordered = dispatch.pending, self._is_ordered
        code, holders = dispatch.assigned_by_consumer[consumer_id].code, pending.keys.holders
        joined = dispatch.joined.get(consumer_id) if is_ordered else None
        room, left = assignment.room, permits[consumer_id]
        given: list[int] = []
        for entry, key_hash in self._waiting.of_consumer(consumer_id, dispatch.owner_of, dispatch.membership):
            if left <= 0 or room <= 0 or (joined is not None and entry >= joined):
                break
            if is_ordered and holders.get(key_hash & _SLOT, code) != code:
                continue
            states = pending.ledger(entry[0])
            assert states is not None
            messages = 1 if states.messages is None else states.messages_of(entry[1])
            assignment.give(consumer_id, *entry, messages)
            left -= messages
            room -= messages
            given.append(key_hash)
        permits[consumer_id] = left
        for key_hash in given:
            self._served[key_hash] = self._served.get(key_hash, 0) + 1
        self.held_back -= len(given)

    def give_fresh(self, cutoff_ms: int, most: int) -> None:
        """Give each entry that was not read yet to the consumer of its key, or hold it back.

        An entry is held back, and with it all later ones of its key, while entries of this key wait, another
        consumer holds some, or its consumer is not ready.
        """
        dispatch, assignment, permits, served = self._dispatch, self._assignment, self._permits, self._served
        is_ordered, joined = self._is_ordered, dispatch.joined
        owner_of, holders, codes = dispatch.owner_of, dispatch.pending.keys.holders, self._codes()
        numbers: Mapping[int, int] = self._waiting.numbers() if is_ordered and len(self._waiting) else {}
        held = set[int]()
        for entry in assignment.due(cutoff_ms):
            key_hash = entry.key_hash
            slot, consumer_id = key_hash & _SLOT, owner_of(key_hash)
            if (
                consumer_id is None
                or permits[consumer_id] <= 0
                or (
                    is_ordered
                    and (
                        slot in held
                        or (numbers and numbers.get(key_hash, 0) > served.get(key_hash, 0))
                        or holders.get(slot, codes[consumer_id]) != codes[consumer_id]
                        # The classic rule: a new consumer gets only what stood before it joined, until that
                        # is acknowledged.
                        or (joined and consumer_id in joined and entry[:2] >= joined[consumer_id])
                    )
                )
            ):
                held.add(slot)
                self.held_back += 1
                if self.held_back >= most:
                    return
                continue
            assignment.give(consumer_id, entry.ledger_id, entry.entry_id, entry.messages)
            left = permits[consumer_id] = permits[consumer_id] - entry.messages
            if (left <= 0 or assignment.room <= 0) and not self.is_anyone_ready():
                return
