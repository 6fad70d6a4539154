"""Another process is stopped inside the lock of a subscription: timers and deaths wait for nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from embeddedpulsar._engine.filenames import lock_path
from embeddedpulsar._engine.subscription.attachment.attachment import Attachment
from embeddedpulsar._engine.subscription.subscription import Subscription
from embeddedpulsar.enums import ConsumerType
from embeddedpulsar.settings import BrokerSettings
from embeddedpulsar.testing.manual_clock import ManualClock, ManualScheduler
from tests.subscription_site import SubscriptionSite
from tests.support.held_elsewhere import held_elsewhere

KEEP_ALIVE_S = 30


class Site(SubscriptionSite):
    """A process whose timers run when the test says so."""

    def __init__(self, root: Path, clock: ManualClock) -> None:
        super().__init__(root, clock=clock, settings=BrokerSettings(keepAliveIntervalSeconds=KEEP_ALIVE_S))
        self.time = clock
        self.timers = ManualScheduler(clock)

    def of(self, name: str) -> Subscription:
        return self.subscription(name, scheduler=self.timers)

    def pass_s(self, seconds: float) -> None:
        end = self.time.monotonic() + seconds
        while (due := self.timers.next_due()) is not None and due <= end:
            self.time.advance(max(due - self.time.monotonic(), 0))
            self.timers.run_due()
        self.time.advance(max(end - self.time.monotonic(), 0))


@pytest.fixture
def clock() -> ManualClock:
    """One clock for both processes."""
    return ManualClock()


@pytest.fixture
def site(tmp_path: Path, clock: ManualClock) -> Iterator[Site]:
    """This process."""
    with Site(tmp_path, clock) as made:
        yield made


@pytest.fixture
def other(site: Site, tmp_path: Path, clock: ManualClock) -> Iterator[Site]:
    """Another process."""
    with Site(tmp_path, clock) as made:
        yield made


def attached(site: Site, name: str) -> tuple[Subscription, Attachment]:
    """A Shared consumer."""
    subscription = site.of(name)
    return subscription, subscription.attach("c", ConsumerType.Shared)


def test_the_keep_alive_of_all_goes_on(site: Site, other: Site):
    """The lock of one subscription is stuck for two minutes: no consumer is taken for silent, neither of
    the stuck subscription nor of another one."""
    names = ("stuck", "healthy")
    ours = {name: attached(site, name) for name in names}
    theirs = {name: attached(other, name) for name in names}
    with held_elsewhere(lock_path(site.directory_of("stuck"))):
        for _ in range(120):
            site.pass_s(1)
            other.pass_s(0)
    for name in names:
        for process, attachments in ((site, ours), (other, theirs)):
            subscription, attachment = attachments[name]
            assert attachment.is_current(), (process, name)
            assert len(subscription.consumers()) == 2


def test_a_silent_consumer_is_detached_when_the_lock_is_free(site: Site, other: Site):
    """What the timer could not do is done within 50 ms of the release, not at its next turn."""
    subscription, _ = attached(site, "s")
    attached(other, "s")
    subscription._existing().transact(lambda _: None)
    with held_elsewhere(lock_path(site.directory_of("s"))):
        site.pass_s(KEEP_ALIVE_S + 11)  # the timers of the other process do not run
    assert len(subscription._existing().state.consumers) == 2
    site.pass_s(0.05)
    subscription._existing().transact(lambda _: None)
    assert len(subscription._existing().state.consumers) == 1


def test_a_death_is_dealt_with_when_the_lock_is_free(site: Site, tmp_path: Path, clock: ManualClock):
    """The thread that hears of a death, which may be an event loop, does not wait for the lock."""
    subscription, _ = attached(site, "s")
    dying = Site(tmp_path, clock)
    attached(dying, "s")
    subscription._existing().transact(lambda _: None)
    with held_elsewhere(lock_path(site.directory_of("s"))):
        dying.mailbox.close()  # its lease is free, as after SIGKILL
        heard = threading.Thread(target=site.mailbox.glance)
        heard.start()
        heard.join(10)
        assert not heard.is_alive()
        assert len(subscription._existing().state.consumers) == 2
        assert site.timers.pending >= 2  # the keep-alive, and this
    site.pass_s(0.05)
    assert len(subscription._existing().state.consumers) == 1
    dying._subscriptions.clear()
    dying.close()


def test_closing_ends_what_was_to_be_tried(site: Site):
    """No timer is left behind."""
    subscription, _ = attached(site, "s")
    with held_elsewhere(lock_path(site.directory_of("s"))):
        subscription._liveness_monitor._tidying.run()
        assert site.timers.pending >= 1
    subscription.close()
    assert site.timers.pending == 0
