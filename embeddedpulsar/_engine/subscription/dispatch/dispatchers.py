"""The subscription types: a registry of their dispatchers.

Shared: a consumer that has nothing left claims the next entries; a small backlog is spread over all.

Subscription types in which one consumer at a time gets everything, in order.

Key_Shared: each key belongs to one consumer at a time, and comes to it in order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache

from embeddedpulsar._engine.format.entry import sticky_key_hash
from embeddedpulsar._engine.format.subscription_record import (
    CONSUMER_TYPES,
    FLAG_CLASSIC,
    FLAG_OUT_OF_ORDER,
    FLAG_RING,
    FLAG_SEVERAL_TOPICS,
    Assign,
    ConsumerRules,
)
from embeddedpulsar._engine.subscription.dispatch.dispatch_rules import (
    ActiveDispatcher,
    Asked,
    Assignment,
    Claim,
    ClaimDispatcher,
    Dispatcher,
    others_are_ready,
    permits_of,
)
from embeddedpulsar._engine.subscription.state.dispatch_state import Consumer, ConsumerRegistry, DispatchState
from embeddedpulsar._engine.subscription.state.sticky_key_selector import (
    CONSISTENT_HASHING,
    HASH_RANGE,
    STICKY,
    make_selector,
    selector_of,
)
from embeddedpulsar._engine.subscription.subscription_files import Facts
from embeddedpulsar.enums import ConsumerType, KeySharedMode
from embeddedpulsar.policies import KeySharedPolicy
from embeddedpulsar.records import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any, Final


class SharedDispatcher(ClaimDispatcher):
    """Shared: each entry goes to one consumer, to any that is ready.

    What came back goes first, in order of position, then what was not read yet. Consumers of a better
    priority level are served before the claimer, in turns, as far as they are ready to take more; among its
    equals the claimer takes its part of the backlog, so that the others find some too. It takes more than its
    part only of messages that it handles before another one would have woken.
    """

    def gives_all_to_one(self, dispatch: DispatchState) -> bool:
        """A claim without others gets what comes next."""
        return True

    def assign(self, consumers: ConsumerRegistry, dispatch: DispatchState, claim: Claim) -> Assign | None:
        """What the claimer and consumers of better priority get; None if there is nothing to assign."""
        claimer = consumers.get(claim.consumer_id)
        if claimer is None or dispatch.is_blocked:
            return None
        assignment = Assignment(claim.fresh, dispatch.room, keys_matter=False)
        supply = _Supply(dispatch, assignment, claim.cutoff_ms)
        for level in _better_levels(consumers, claimer.priority_level):
            permits = {
                consumer.consumer_id: permits_of(dispatch, claim.granted, consumer) for consumer in level
            }
            _deal(supply, permits)
        room = min(claim.room, permits_of(dispatch, claim.granted, claimer))
        if room > 0:
            backlog = dispatch.waiting + claim.backlog - sum(assignment.given.values())
            ready = _ready_peers(consumers, dispatch, claim, claimer.priority_level, backlog)
            supply.give(claim.consumer_id, min(room, max(-(-backlog // ready), claim.turn)))
        return assignment.command(claim)

    def leaves_more(
        self, consumers: ConsumerRegistry, dispatch: DispatchState, claim: Claim, has_beyond: bool
    ) -> bool:
        """Whether entries are left and another consumer is ready for some."""
        return (has_beyond or dispatch.waiting > 0) and others_are_ready(consumers, dispatch, claim)


def _ready_peers(
    consumers: ConsumerRegistry, dispatch: DispatchState, claim: Claim, level: int, most: int
) -> int:
    """How many are ready, of that level; the claimer is. Not counted beyond ``most``, where each gets one."""
    ready = 1
    for consumer in consumers.each():
        if ready >= most:
            break
        if consumer.consumer_id != claim.consumer_id and consumer.priority_level == level:
            ready += permits_of(dispatch, claim.granted, consumer) > 0
    return ready


def _better_levels(consumers: ConsumerRegistry, level: int) -> Iterator[list[Consumer]]:
    for better in consumers.levels:
        if better >= level:
            return
        yield [consumer for consumer in consumers.each() if consumer.priority_level == better]


def _deal(supply: _Supply, permits: dict[int, int]) -> None:
    """Give each consumer one entry in turn, until no consumer is ready for more."""
    while any(permit > 0 for permit in permits.values()):
        for consumer_id, permit in permits.items():
            if permit > 0:
                messages = supply.give(consumer_id, 1)
                if not messages:
                    return
                permits[consumer_id] = permit - messages


class _Supply:
    """The entries there are to give: those that came back, then fresh ones."""

    def __init__(self, dispatch: DispatchState, assignment: Assignment, cutoff_ms: int) -> None:
        self._pending = dispatch.pending
        self._assignment = assignment
        self._cutoff_ms = cutoff_ms
        self._runs = self._pending.waiting_runs()
        self._run: tuple[int, int, int] | None = next(self._runs, None)

    def give(self, consumer_id: int, most: int) -> int:
        """Give about so many messages, at least one entry if there is any; returns how many it were."""
        assignment, given, is_plain = self._assignment, 0, most > 1
        while given < most and assignment.room > 0:
            if self._run is not None:
                given += self._give_waiting(consumer_id, min(most - given, assignment.room))
                continue
            if is_plain:
                count = assignment.give_plain(consumer_id, min(most - given, assignment.room))
                given += count
                is_plain = count > 0  # one entry among them that is not: singly, rather than looked at again
                continue
            entry = assignment.next_fresh(self._cutoff_ms)
            if entry is None:
                break
            assignment.give(consumer_id, entry.ledger_id, entry.entry_id, entry.messages)
            assignment.pass_one()
            given += entry.messages
        return given

    def _give_waiting(self, consumer_id: int, most: int) -> int:
        """Give from the first run of entries that came back."""
        assert self._run is not None
        ledger_id, first, last = self._run
        states = self._pending.ledger(ledger_id)
        assert states is not None
        end, given = first, 0
        if states.messages is None:
            end = min(last + 1, first + most)
            given = end - first
        while end <= last and given < most:
            given += states.messages_of(end)
            end += 1
        self._assignment.give_range(consumer_id, ledger_id, first, end - 1, given)
        self._run = (ledger_id, end, last) if end <= last else next(self._runs, None)
        return given


RING_POINTS: Final = 100


class ExclusiveDispatcher(ActiveDispatcher):
    """Exclusive: the first to attach is the only one, and reads lock-free behind the tail.

    A detached consumer leaves nothing behind: the next one reads what it did not acknowledge again, in order.
    """

    def refusal(self, consumers: ConsumerRegistry, new_consumer: Consumer, dispatch: DispatchState) -> str:
        for holder in consumers.all():
            since = datetime.fromtimestamp(holder.attached_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
            place = " of this very process" if holder.client_uuid == new_consumer.client_uuid else ""
            return (
                f"Exclusive consumer is already connected: {holder.name!r}{place} holds the subscription "
                f"that {new_consumer.name!r} wants, since {since}; close it, or subscribe as Shared or "
                "Failover"
            )
        return ""

    def active(self, consumers: ConsumerRegistry) -> int:
        """The only one there is."""
        for only in consumers.each():
            return only.consumer_id
        return 0


class FailoverDispatcher(ActiveDispatcher):
    """Failover: one consumer is active, the others stand by; of those with the best priority level.

    On a partition they are ordered by name and the number of the partition chooses, so that the consumers of
    a partitioned topic share its partitions. On any other topic the longest attached is active; but where one
    of them consumes several topics, a ring of the hashes of their names chooses, so that they share those.
    """

    def rules(self, request: Asked) -> ConsumerRules:
        return super().rules(request)._replace(topic_hash=sticky_key_hash(request.topic))

    def active(self, consumers: ConsumerRegistry) -> int:
        """The consumer that gets everything until others come or go."""
        everybody = consumers.all()
        if len(everybody) <= 1:
            return everybody[0].consumer_id if everybody else 0
        best = min(consumer.priority_level for consumer in everybody)
        candidates = [consumer for consumer in everybody if consumer.priority_level == best]
        rules = candidates[0].rules
        is_ring = (
            any(consumer.rules.flags & FLAG_SEVERAL_TOPICS for consumer in everybody) and rules.partition < 0
        )
        if is_ring or rules.flags & FLAG_RING:
            names = tuple(consumer.name for consumer in candidates)
            return candidates[chosen_on_ring(names, rules.topic_hash)].consumer_id
        if rules.partition >= 0:
            by_name = sorted(candidates, key=_name_and_id)
            return by_name[rules.partition % len(by_name)].consumer_id
        return candidates[0].consumer_id


def _name_and_id(consumer: Consumer) -> tuple[str, int]:
    return consumer.name, consumer.consumer_id


@lru_cache(maxsize=64)
def chosen_on_ring(names: Sequence[str], topic_hash: int) -> int:
    """Index of the name whose point on the ring of hashes follows that of the topic.

    Each name has 100 points, the hashes of the name and a number from 0 to 99; of two names on one point the
    later one has it.

    >>> from embeddedpulsar._engine.format.entry import sticky_key_hash
    >>> topics = [f"persistent://public/default/topic-{i}" for i in range(1, 5)]
    >>> [chosen_on_ring(("con-1", "con-2"), sticky_key_hash(topic)) for topic in topics]
    [1, 1, 1, 0]
    """
    order = sorted(range(len(names)), key=lambda index: names[index])
    owners = {
        sticky_key_hash(f"{names[index]}{point}"): index for index in order for point in range(RING_POINTS)
    }
    ring = sorted(owners)
    return owners[ring[bisect_left(ring, topic_hash) % len(ring)]]


LOOK_AHEAD_PER_CONSUMER: Final = 2000
LOOK_AHEAD: Final = 20_000
_SLOT: Final = 0xFFFF
_FEW: Final = 8
"""Entries that are looked at one by one: for so few, steps for all of them cost as much."""


class KeySharedDispatcher(ClaimDispatcher):
    """Key_Shared: the selector names the consumer of a key.

    A consumer that has nothing left takes the entries that wait for it, and distributes the entries behind
    the read position over all consumers that said they are ready for more. An entry is held
    back, and with it all later ones of its key, while its consumer is not ready or another one still holds
    entries of that key. What is held back waits in the state, up to 2,000 entries a consumer and 20,000 in
    all; then nothing more is read.
    """

    keys_matter = True

    def rules(self, request: Asked) -> ConsumerRules:
        policy, settings = request.key_shared or KeySharedPolicy(), request.settings
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
            .rules(request)
            ._replace(
                selector=selector,
                points=settings.subscriptionKeySharedConsistentHashingReplicaPoints,
                flags=request.flags | flags,
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

    def gives_all_to_one(self, dispatch: DispatchState) -> bool:
        """All keys are those of the only consumer, unless it asked for ranges of its own."""
        return dispatch.selector_kind in (HASH_RANGE, CONSISTENT_HASHING)

    def assign(self, consumers: ConsumerRegistry, dispatch: DispatchState, claim: Claim) -> Assign | None:
        """What each consumer gets; None if there is nothing to assign."""
        if dispatch.selector is None or dispatch.is_blocked:
            return None
        assignment = Assignment(claim.fresh, dispatch.room, keys_matter=True)
        first = consumers.get(claim.consumer_id)
        is_ordered = (
            not (first and first.rules.flags & FLAG_OUT_OF_ORDER) and dispatch.selector_kind != STICKY
        )
        max_waiting = min(LOOK_AHEAD_PER_CONSUMER * len(consumers), LOOK_AHEAD)
        round_ = _Round(consumers, dispatch, claim, assignment, is_ordered)
        round_.give_waiting(claim.consumer_id)
        if round_.held_back < max_waiting and round_.is_anyone_ready():
            round_.give_fresh(claim.cutoff_ms, max_waiting)
        return assignment.command(claim)

    def leaves_more(
        self, consumers: ConsumerRegistry, dispatch: DispatchState, claim: Claim, has_beyond: bool
    ) -> bool:
        """Whether more can be read. What was read and waits is for consumers that claim it when they are
        ready, or that are woken when its key is free."""
        max_waiting = min(LOOK_AHEAD_PER_CONSUMER * len(consumers), LOOK_AHEAD)
        is_full = len(dispatch.pending.waiting_keys) >= max_waiting
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
        return {
            consumer_id: assigned.code
            for consumer_id, assigned in self._dispatch.assigned_by_consumer.items()
        }

    def give_waiting(self, consumer_id: int) -> None:
        """Give a consumer what waits for it, in order, as far as it is ready to take it."""
        dispatch, assignment, permits = self._dispatch, self._assignment, self._permits
        if not self._waiting or permits[consumer_id] <= 0:
            return
        pending, is_ordered = dispatch.pending, self._is_ordered
        code, holders = dispatch.assigned_by_consumer[consumer_id].code, pending.keys.holders
        joined = dispatch.joined.get(consumer_id) if is_ordered else None
        room, permit = assignment.room, permits[consumer_id]
        given: list[int] = []
        for entry, key_hash in self._waiting.of_consumer(consumer_id, dispatch.owner_of, dispatch.membership):
            if permit <= 0 or room <= 0 or (joined is not None and entry >= joined):
                break
            if is_ordered and holders.get(key_hash & _SLOT, code) != code:
                continue
            states = pending.ledger(entry[0])
            assert states is not None
            messages = 1 if states.messages is None else states.messages_of(entry[1])
            assignment.give(consumer_id, *entry, messages)
            permit -= messages
            room -= messages
            given.append(key_hash)
        permits[consumer_id] = permit
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
        if not joined and not self._waiting:
            self._deal(owner_of, holders, codes)
            if not self.is_anyone_ready():
                return
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
            permit = permits[consumer_id] = permits[consumer_id] - entry.messages
            if (permit <= 0 or assignment.room <= 0) and not self.is_anyone_ready():
                return

    def _deal(
        self,
        owner_of: Callable[[int], int | None],
        holders: Mapping[int, int],
        codes: Mapping[int | None, int],
    ) -> None:
        """Give the fresh entries as far as each can go to the consumer of its key: one step for all of them.
        What is held back, delayed or of several messages is left to `give_fresh`, with all that follows."""
        run = self._assignment.plain_run()
        hashes = [entry[3] for entry in run]
        owners: list[Any] = list(map(owner_of, hashes))
        numbers = Counter(owners)
        if not run or not all(map(codes.get, numbers)):
            return
        permits = self._permits
        count = min(len(run), self._assignment.room)
        if any(number > permits[consumer_id] for consumer_id, number in numbers.items()):
            count = min(
                count, *[permits[consumer_id] for consumer_id in numbers]
            )  # none gets more than it may
        if count < _FEW:
            return
        owners = owners[:count]
        if self._is_ordered:
            own = [codes[consumer_id] for consumer_id in owners]
            if list(map(holders.get, [key_hash & _SLOT for key_hash in hashes[:count]], own)) != own:
                return  # another consumer holds entries of some key
        self._assignment.deal(owners)
        for consumer_id, number in self._assignment.given.items():
            permits[consumer_id] -= number


ACTIVE_DISPATCHERS: Final[dict[int, ActiveDispatcher]] = {}
CLAIM_DISPATCHERS: Final[dict[int, ClaimDispatcher]] = {}


def register(number: int, dispatcher: ActiveDispatcher | ClaimDispatcher) -> None:
    """Add a subscription type. Its number is stored with every consumer.

    Raises:
        ValueError: the number is taken, or is not 0 to 255.
    """
    if not 0 <= number <= 255 or number in ACTIVE_DISPATCHERS or number in CLAIM_DISPATCHERS:
        raise ValueError(f"{number} is not the number of a new subscription type")
    if isinstance(dispatcher, ActiveDispatcher):
        ACTIVE_DISPATCHERS[number] = dispatcher
    else:
        CLAIM_DISPATCHERS[number] = dispatcher
    CONSUMER_TYPES[number] = isinstance(dispatcher, ClaimDispatcher)


def dispatcher_for(consumer_type: int) -> Dispatcher:
    """The rules of a subscription type."""
    return ACTIVE_DISPATCHERS.get(consumer_type) or CLAIM_DISPATCHERS[consumer_type]


register(ConsumerType.Exclusive, ExclusiveDispatcher())
register(ConsumerType.Shared, SharedDispatcher())
register(ConsumerType.Failover, FailoverDispatcher())
register(ConsumerType.KeyShared, KeySharedDispatcher())
