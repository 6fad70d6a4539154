"""Shared: a consumer that has nothing left claims the next entries; a small backlog is spread over all."""

from __future__ import annotations

from collections.abc import Iterator

from embeddedpulsar._engine.format.subscription_record import Assign
from embeddedpulsar.subscription.dispatch.assignment import Assignment, Claim, others_are_ready, permits_of
from embeddedpulsar.subscription.dispatch.dispatch_rules import ClaimDispatcher
from embeddedpulsar.subscription.state.consumer_registry import Consumer, ConsumerRegistry
from embeddedpulsar.subscription.state.dispatch_state import DispatchState


class SharedDispatcher(ClaimDispatcher):
    """Shared: each entry goes to one consumer, to any that is ready.

    What came back goes first, in order of position, then what was not read yet. Consumers of a better
    priority level are served before the claimer, in turns, as far as they are ready to take more; among its
    equals the claimer takes its part of the backlog, so that the others find some too.
    """

    def assign(self, consumers: ConsumerRegistry, dispatch: DispatchState, claim: Claim) -> Assign | None:
        """What the claimer and consumers of better priority get; None if there is nothing to assign."""
        claimer = consumers.get(claim.consumer_id)
        if claimer is None or dispatch.is_blocked:
            return None
        assignment = Assignment(claim.fresh, dispatch.room, keys_matter=False)
        supply = _Supply(dispatch, assignment, claim.cutoff_ms)
        for level in _better_levels(consumers, claimer.priority_level):
            permits = {one.consumer_id: permits_of(dispatch, claim.granted, one) for one in level}
            _deal(supply, permits)
        room = min(claim.room, permits_of(dispatch, claim.granted, claimer))
        if room > 0:
            left = dispatch.waiting + claim.backlog - sum(assignment.given.values())
            ready = _ready_peers(consumers, dispatch, claim, claimer.priority_level, left)
            supply.give(claim.consumer_id, min(room, -(-left // ready)))
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
    for one in consumers.each():
        if ready >= most:
            break
        if one.consumer_id != claim.consumer_id and one.priority_level == level:
            ready += permits_of(dispatch, claim.granted, one) > 0
    return ready


def _better_levels(consumers: ConsumerRegistry, level: int) -> Iterator[list[Consumer]]:
    for better in consumers.levels:
        if better >= level:
            return
        yield [one for one in consumers.each() if one.priority_level == better]


def _deal(supply: _Supply, permits: dict[int, int]) -> None:
    """Give each consumer one entry in turn, until no consumer is ready for more."""
    while any(left > 0 for left in permits.values()):
        for consumer_id, left in permits.items():
            if left > 0:
                messages = supply.give(consumer_id, 1)
                if not messages:
                    return
                permits[consumer_id] = left - messages


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
