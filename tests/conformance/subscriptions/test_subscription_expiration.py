"""Durable subscriptions that have had no consumers for too long are deleted."""

from __future__ import annotations

from pathlib import Path

import pytest

from embeddedpulsar import Admin, ConsumerType, InvalidConfiguration
from embeddedpulsar._engine.subscription.state import replica
from embeddedpulsar.testing.trial_store import assert_clean
from tests.conformance import retention_site
from tests.conformance.manual_time import ManualTime
from tests.conformance.retention_site import TOPIC, ledgers, publish, store_with

MINUTES = 60
CHECK_MS = 5 * 60_000
MOMENT_MS = 200


path, time = retention_site.path, retention_site.time


def names(path: Path) -> list[str]:
    with Admin(path) as admin:
        return admin.topics().get_subscriptions(TOPIC)


def set_expiration(path: Path, minutes: int = MINUTES) -> None:
    with Admin(path) as admin:
        admin.topics().set_subscription_expiration_time(TOPIC, minutes)


def test_by_default_none_expires(time: ManualTime, path: Path) -> None:
    """However long it has no consumers."""
    time.client.subscribe(TOPIC, "s").close()
    publish(time, 1)
    time.pass_ms(365 * 86_400_000)
    assert names(path) == ["s"]


@pytest.mark.parametrize("level", ["topic", "namespace", "broker"])
def test_those_without_consumers_for_so_long_are_deleted(tmp_path: Path, level: str) -> None:
    """With their backlog, which is removed; those with consumers stay, and those that were used meanwhile."""
    settings = {"subscriptionExpirationTimeMinutes": MINUTES} if level == "broker" else {}
    path = store_with(tmp_path / "store", **settings)
    time = ManualTime(path)
    try:
        kept = time.client.subscribe(TOPIC, "attached", consumer_type=ConsumerType.Shared)
        for name in ("left", "used"):
            time.client.subscribe(TOPIC, name).close()
        if level != "broker":
            with Admin(path) as admin:
                owner, name = (
                    (admin.topics(), TOPIC) if level == "topic" else (admin.namespaces(), "public/default")
                )
                owner.set_subscription_expiration_time(name, MINUTES)
                assert admin.topics().get_subscription_expiration_time(TOPIC, applied=True) == MINUTES
        publish(time, 25)
        time.pass_ms((MINUTES - 10) * 60_000)
        assert names(path) == ["attached", "left", "used"]
        time.client.subscribe(TOPIC, "used").close()
        for _ in range(25):
            kept.acknowledge(kept.receive(1000))
        time.pass_ms(10 * 60_000 + CHECK_MS + MOMENT_MS)
        assert names(path) == ["attached", "used"]
        time.pass_ms(MINUTES * 60_000 + CHECK_MS)
        assert names(path) == ["attached"]
        time.pass_ms(120_000)
        assert len(ledgers(path)) == 1
    finally:
        time.close()
    assert_clean(path)


def test_the_time_counts_while_the_store_is_closed(time: ManualTime, path: Path) -> None:
    """It is stored; and what housekeeping itself does to a subscription does not prolong its life."""
    time.client.subscribe(TOPIC, "s").close()
    set_expiration(path)
    with Admin(path) as admin:
        admin.topics().set_message_ttl(TOPIC, 1)
    publish(time, 3)
    time.pass_ms(30 * 60_000)  # the messages expire meanwhile
    time.clock.advance(30 * 60 - 1)
    time.reopen()
    assert names(path) == ["s"]
    time.clock.advance(1)
    time.reopen()
    publish(time, 1)
    time.pass_ms(MOMENT_MS)
    assert names(path) == []


def test_a_state_of_an_older_release_counts_from_the_first_look(time: ManualTime, path: Path) -> None:
    """It does not say when the subscription was last used."""
    time.client.subscribe(TOPIC, "s").close()
    use = time.client._core.store.use_topic(TOPIC)
    try:
        subscription = use.topic.subscription("s", create=False)
        shared = subscription._shared
        assert shared is not None
        assert shared.state.last_active_ms == time.now_ms()
        shared.state.last_active_ms = 0
        time.pass_ms(1000)
        assert not subscription.operator_commands().end_if_idle(time.now_ms())
        assert shared.state.last_active_ms == time.now_ms()
        assert not subscription.operator_commands().end_if_idle(time.now_ms() - 1)
        assert subscription.operator_commands().end_if_idle(time.now_ms())
    finally:
        use.release()
    assert names(path) == []


def test_a_snapshot_keeps_the_time() -> None:
    """And one without it is of an older release."""
    state = replica.SubscriptionState()
    state.exists = True
    before = replica.encode_snapshot(state)
    assert replica.decode_snapshot(before).last_active_ms == 0
    state.last_active_ms = 1_700_000_000_000
    assert replica.decode_snapshot(replica.encode_snapshot(state)).last_active_ms == 1_700_000_000_000
    unknown = replica.decode_snapshot(before)
    assert replica.checkpoint_of(state) == replica.checkpoint_of(unknown)


def test_wrong_numbers_are_refused(time: ManualTime, path: Path) -> None:
    """As for every number of a policy."""
    publish(time, 1)
    with pytest.raises(InvalidConfiguration):
        set_expiration(path, -1)
