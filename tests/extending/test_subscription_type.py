"""A subscription type is one module and one call of `register`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from embeddedpulsar._engine.format.subscription_record import CONSUMER_TYPES, Assign
from embeddedpulsar._engine.subscription.dispatch.dispatch_rules import (
    ActiveDispatcher,
    Assignment,
    Claim,
    ClaimDispatcher,
    others_are_ready,
)
from embeddedpulsar._engine.subscription.dispatch.dispatchers import (
    ACTIVE_DISPATCHERS,
    CLAIM_DISPATCHERS,
    register,
)
from embeddedpulsar._engine.subscription.state.dispatch_state import ConsumerRegistry, DispatchState
from embeddedpulsar.enums import ConsumerType
from embeddedpulsar.exceptions import ConsumerBusy
from tests.subscription_site import SubscriptionSite, positions, read_all

NEWEST, MODULO = 100, 101


class NewestDispatcher(ActiveDispatcher):
    """The consumer that attached last gets everything."""

    def active(self, consumers: ConsumerRegistry) -> int:
        return max((one.consumer_id for one in consumers.each()), default=0)


class ModuloDispatcher(ClaimDispatcher):
    """The number of an entry decides which consumer gets it."""

    def assign(self, consumers: ConsumerRegistry, dispatch: DispatchState, claim: Claim) -> Assign | None:
        assignment = Assignment(claim.fresh, dispatch.room, keys_matter=False)
        ids = [one.consumer_id for one in consumers.all()]
        while (entry := assignment.next_fresh(claim.cutoff_ms)) is not None:
            assignment.give(ids[entry.entry_id % len(ids)], entry.ledger_id, entry.entry_id, entry.messages)
            assignment.pass_one()
        return assignment.command(claim)

    def leaves_more(
        self, consumers: ConsumerRegistry, dispatch: DispatchState, claim: Claim, has_beyond: bool
    ) -> bool:
        return has_beyond and others_are_ready(consumers, dispatch, claim)


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    try:
        register(NEWEST, NewestDispatcher())
        register(MODULO, ModuloDispatcher())
        yield
    finally:
        del ACTIVE_DISPATCHERS[NEWEST], CLAIM_DISPATCHERS[MODULO]
        del CONSUMER_TYPES[NEWEST], CONSUMER_TYPES[MODULO]


def test_a_type_with_one_active_consumer(tmp_path: Path):
    """The consumer that attaches later takes over, in another process too, and gives back when it leaves."""
    with SubscriptionSite(tmp_path) as one, SubscriptionSite(tmp_path) as other:
        sent = one.publish(3)
        first = one.subscription().attach("first", NEWEST)
        assert positions(read_all(first)) == sent
        first.acknowledge(sent[:1])
        second = other.subscription(initial=None).attach("second", NEWEST)
        assert read_all(first) == []
        assert positions(read_all(second)) == sent[1:]
        second.detach()
        assert positions(read_all(first)) == sent[1:]


def test_a_type_whose_consumers_claim(tmp_path: Path):
    """Assigned in one process, read in the other; the state is the same after both were opened again."""
    with SubscriptionSite(tmp_path) as one, SubscriptionSite(tmp_path) as other:
        first = one.subscription().attach("even", MODULO)
        second = other.subscription(initial=None).attach("odd", MODULO)
        sent = one.publish(10)
        assert positions(read_all(first)) == sent[::2]
        assert positions(read_all(second)) == sent[1::2]
        first.acknowledge(sent[::2])
    with SubscriptionSite(tmp_path) as later:
        consumer = later.subscription(initial=None).attach("c", MODULO)
        assert positions(read_all(consumer)) == sent[1::2]
        assert later.damage == []


def test_types_do_not_mix(tmp_path: Path):
    """A consumer of another type is refused, and the error names the type."""
    with SubscriptionSite(tmp_path) as site:
        subscription = site.subscription()
        subscription.attach("c", NEWEST)
        with pytest.raises(ConsumerBusy, match="different type: 'c' attached as type 100"):
            subscription.attach("d", ConsumerType.Shared)


@pytest.mark.parametrize("number", [-1, 0, 3, NEWEST, 256])
def test_a_number_is_used_once(number: int):
    """Numbers are stored with each consumer: none may have two meanings."""
    with pytest.raises(ValueError, match="not the number"):
        register(number, NewestDispatcher())
