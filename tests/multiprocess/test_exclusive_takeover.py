"""One exclusive consumer at a time, over real processes that are killed, stopped and forked."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from embeddedpulsar.exceptions import AlreadyClosed, ConsumerBusy
from embeddedpulsar.message_id import BEFORE_FIRST, Position
from tests.children import in_child
from tests.multiprocess.children import Child, say
from tests.subscription_site import SubscriptionSite, positions, read_all
from tests.support.timing import median_within

ENTRIES = 2000


@pytest.fixture
def site(tmp_path: Path) -> Iterator[SubscriptionSite]:
    with SubscriptionSite(tmp_path, max_entries=500, segment_size=256 << 10) as made:
        yield made


def consume_until_killed(root: str, name: str) -> None:
    """Child: attach, read everything, acknowledge in random order, and say what is acknowledged."""
    with SubscriptionSite(root) as site:
        consumer = site.subscription(initial=None, compact_bytes=3000).attach(name)
        say("attached", site.mailbox.uuid.hex())
        left = positions(read_all(consumer))
        random.Random(name).shuffle(left)
        for start in range(0, len(left), 5):
            group = left[start : start + 5]
            assert consumer.acknowledge(group)
            say(*(f"{at.ledger_id}:{at.entry_id}" for at in group))
        say("done")
        signal.pause()


def stay_attached(root: str) -> None:
    """Child: attach, say so, and go on when told."""
    with SubscriptionSite(root) as site:
        consumer = site.subscription(initial=None).attach("stayer")
        say(site.mailbox.uuid.hex())
        while input() == "read":
            say(len(read_all(consumer)))


def acknowledged_in(lines: list[str]) -> set[Position]:
    return {Position(*map(int, at.split(":"))) for line in lines for at in line.split()}


def test_consumers_that_are_killed_lose_and_repeat_nothing_acknowledged(site: SubscriptionSite):
    """Killed at any moment; each successor gets everything that was not acknowledged, in order, at once."""
    sent = site.publish(ENTRIES)
    subscription = site.subscription()
    rng = random.Random(4)
    done: set[Position] = set()
    for number in range(12):
        with Child(consume_until_killed, site.root, f"victim-{number}") as child:
            lines = []
            child.read()
            with pytest.raises(ConsumerBusy):
                subscription.attach("impatient")
            for _ in range(rng.randrange(30)):
                line = child.read()
                if line == "done":
                    break
                lines.append(line)
            child.kill()
            child.join()
            assert child.process.stdout is not None
            rest = child.process.stdout.read()
            lines += [line for line in rest.split("\n")[:-1] if line != "done"]
        done |= acknowledged_in(lines)
        consumer = subscription.attach("survivor")
        left = positions(read_all(consumer))
        assert left == sorted(set(left))
        gone = set(sent) - set(left)
        assert done <= gone
        assert len(gone) <= len(done) + 5
        done = gone
        consumer.detach()
    assert subscription.statistics().divergences == 0
    assert site.damage == []


def test_the_end_of_a_consumer_is_noticed_at_once(site: SubscriptionSite):
    """From SIGKILL to the first message at the standby: a few milliseconds, without a poll."""
    sent = site.publish(3)
    subscription = site.subscription()

    def kill_and_notice() -> float:
        with Child(stay_attached, site.root) as child:
            holder = bytes.fromhex(child.read())
            deaths: list[bytes] = []
            site.mailbox.watch(holder, deaths.append)
            before = time.monotonic()
            child.kill()
            while not deaths:
                site.mailbox.wait(site.mailbox.generation, 5)
            consumer = subscription.attach("standby")
            assert positions(consumer.read(10, 1 << 20)) == sent
            taken_s = time.monotonic() - before
            consumer.detach()
            return taken_s

    median_within(1.0, kill_and_notice, of=5)


def test_a_stopped_consumer_keeps_the_subscription(site: SubscriptionSite):
    """Stopped is not dead: its lease is held, and nothing is taken from it."""
    site.publish(3)
    subscription = site.subscription()
    with Child(stay_attached, site.root) as child:
        child.read()
        child.process.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(ConsumerBusy):
                subscription.attach("impatient")
        finally:
            child.process.send_signal(signal.SIGCONT)
        child.tell("read")
        assert child.read() == "3"
        subscription.seek(BEFORE_FIRST, inclusive=True)
        child.tell("read")
        assert child.read() == "3"
        child.tell("leave")
        assert child.join() == 0
    assert subscription.consumers() == []


def race_to_attach(root: str, name: str) -> None:
    """Child: attach when told, and say how it went."""
    with SubscriptionSite(root) as site:
        subscription = site.subscription(initial=None)
        say("ready")
        input()
        try:
            subscription.create(BEFORE_FIRST)
            subscription.attach(name)
            say("won")
        except ConsumerBusy:
            say("lost")
        input()


def test_of_several_that_come_at_once_one_wins(site: SubscriptionSite):
    """Creation and attachment race over processes: one subscription, one consumer."""
    site.publish(1)
    children = [Child(race_to_attach, site.root, f"c{number}") for number in range(4)]
    try:
        for child in children:
            assert child.read() == "ready"
        for child in children:
            child.tell("go")
        assert sorted(child.read() for child in children) == ["lost", "lost", "lost", "won"]
        assert len(site.subscription(initial=None).consumers()) == 1
        for child in children:
            child.tell("end")
        assert all(child.join() == 0 for child in children)
    finally:
        for child in children:
            child.__exit__(None, None, None)


def test_a_forked_child_leaves_its_parents_consumer_alone(site: SubscriptionSite):
    """The child's copy is closed; whatever it does, the parent goes on."""
    sent = site.publish(4)
    subscription = site.subscription()
    consumer = subscription.attach("parent")
    consumer.read(1, 1)

    def misuse() -> str:
        consumer.detach()
        refused = 0
        for call in (
            lambda: consumer.read(1, 1),
            lambda: consumer.acknowledge(sent),
            lambda: consumer.seek(BEFORE_FIRST, True),
            subscription.consumers,
        ):
            try:
                call()
            except AlreadyClosed as error:
                refused += "parent of this forked process" in str(error)
        subscription.close()
        os.close(os.open(site.root / "survived", os.O_CREAT))
        return str(refused)

    assert in_child(misuse) == "4"
    assert (site.root / "survived").exists()
    assert positions(read_all(consumer)) == sent[1:]
    assert consumer.acknowledge(sent)
    assert consumer.backlog() == 0
