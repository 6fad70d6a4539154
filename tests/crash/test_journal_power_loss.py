"""The power goes at any moment; the disk kept any part of what was not flushed."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from embeddedpulsar._engine.platform import disk
from embeddedpulsar.message_id import BEFORE_FIRST, Position
from tests.subscription_site import SubscriptionSite, positions, read_all
from tests.support.disks.crash_image import CrashState
from tests.support.disks.fake_disk import FakeDisk

ENTRIES = 40


class Moment:
    """One captured power loss: the disk, and what had been promised until then."""

    def __init__(self, state: CrashState, done: set[int], tried: set[int], sought: int) -> None:
        self.state = state
        self.done = done
        self.tried = tried
        self.sought = sought


def small_site(root: Path, durability: str) -> SubscriptionSite:
    return SubscriptionSite(root, max_entries=10, segment_size=16 << 10, durability=durability)


def run_script(root: Path, durability: str, every: int) -> list[Moment]:
    """Acknowledge in random order with compactions, seek once; capture before every n-th call to the disk."""
    moments: list[Moment] = []
    done, tried = set[int](), set[int]()
    sought = -1
    fake = FakeDisk(root)
    with disk.use(fake), small_site(root, durability) as site:
        sent = site.publish(ENTRIES)
        site.log.sync()
        subscription = site.subscription(compact_bytes=300)
        subscription.sync()
        consumer = subscription.attach("c")
        read_all(consumer)

        def capture(call: str, path: str) -> None:
            if fake.count % every == 0:
                moments.append(Moment(fake.capture(), set(done), set(tried), sought))

        fake.on_call = capture
        order = random.Random(2).sample(range(ENTRIES), ENTRIES)
        for number in range(0, ENTRIES, 2):
            group = order[number : number + 2]
            tried |= set(group)
            assert consumer.acknowledge([sent[n] for n in group])
            done |= set(group)
            if number == 20:
                tried |= set(range(ENTRIES))
                done.clear()
                consumer.seek(sent[5], inclusive=True)
                sought, done = 5, set(range(5))
        fake.on_call = None
    return moments


def acknowledged_after(moment: Moment, rng: random.Random, target: Path) -> set[int]:
    """Open one image, see what is acknowledged, acknowledge the rest, and lose power no more."""
    moment.state.write_image(rng, str(target))
    with small_site(target, "process") as site:
        subscription = site.subscription(initial=None)
        subscription.create(BEFORE_FIRST)
        consumer = subscription.attach("survivor")
        left = positions(read_all(consumer))
        assert left == sorted(left)
        stored = read_log(site)
        assert consumer.acknowledge(left)
        assert consumer.backlog() == 0
        more = site.publish(2, "more")
        assert positions(read_all(consumer)) == more
        assert site.damage == []
        return {number for number, position in enumerate(stored) if position not in left}


def read_log(site: SubscriptionSite) -> list[Position]:
    """All positions of the topic."""
    cursor = site.log.cursor(BEFORE_FIRST, inclusive=False)
    found: list[Position] = []
    while views := cursor.read(1000, 1000, 1 << 30):
        found += positions(views)
    return found


@pytest.mark.parametrize(("durability", "every"), [("flush", 1), ("process", 3)])
def test_power_loss(tmp_path: Path, durability: str, every: int) -> None:
    """At level "flush" what was acknowledged stays so; at every level nothing else is, and all goes on."""
    root = tmp_path / "root"
    (root / "topic").mkdir(parents=True)
    moments = run_script(root, durability, every)
    assert len(moments) > 20
    rng = random.Random(11)
    image = tmp_path / "image"
    for moment in moments:
        for _ in range(2):
            image.mkdir()
            acknowledged = acknowledged_after(moment, rng, image)
            shutil.rmtree(image)
            if moment.sought < 0:
                assert acknowledged <= moment.tried
            if durability == "flush":
                assert acknowledged >= moment.done


def test_acknowledgements_of_lost_messages_are_forgotten(tmp_path: Path) -> None:
    """Acknowledgements survived, their messages did not: the subscription ends where the log does."""
    root, image = tmp_path / "root", tmp_path / "image"
    (root / "topic").mkdir(parents=True)
    image.mkdir()
    fake = FakeDisk(root)
    with disk.use(fake), small_site(root, "process") as site:
        sent = site.publish(15)
        site.log.sync()
        subscription = site.subscription()
        consumer = subscription.attach("c")
        sent += site.publish(5)
        read_all(consumer)
        consumer.acknowledge([*sent[:14], *sent[16:]])
        subscription.sync()
        disk.DISK.fsync_dir(subscription.directory)
        disk.DISK.fsync_dir(str(Path(subscription.directory).parent))
        disk.DISK.fsync_dir(site.directory)
        state = fake.capture()
    for seed in range(30):
        state.write_image(random.Random(seed), str(image))
        with small_site(image, "process") as site:
            subscription = site.subscription(initial=None)
            assert subscription.exists()
            survived = read_log(site)
            assert survived == sent[: len(survived)]
            assert len(survived) >= 15
            assert subscription.mark_delete <= survived[-1]
            more = site.publish(3, "more")
            expected = [sent[n] for n in (14, 15) if n < len(survived)]
            assert positions(read_all(subscription.attach("d"))) == [*expected, *more]
        shutil.rmtree(image)
        image.mkdir()


def test_a_deletion_is_done_or_not_begun(tmp_path: Path) -> None:
    """Power lost at any step of it: the subscription is as it was, or gone; never an older one, or a
    blank.
    """
    root, image = tmp_path / "root", tmp_path / "image"
    (root / "topic").mkdir(parents=True)
    fake = FakeDisk(root)
    states: list[CrashState] = []
    with disk.use(fake), small_site(root, "flush") as site:
        sent = site.publish(20)
        subscription = site.subscription(compact_bytes=200)
        consumer = subscription.attach("c")
        for position in sent[:18]:
            consumer.acknowledge([position])
        consumer.detach()
        fake.on_call = lambda call, path: states.append(fake.capture())
        subscription.delete()
        fake.on_call = None
        states.append(fake.capture())
    outcomes = []
    for number, state in enumerate(states):
        for seed in range(6):
            state.write_image(random.Random(seed), str(image))
            with small_site(image, "process") as site:
                subscription = site.subscription(initial=None)
                outcomes.append(subscription.exists())
                if outcomes[-1]:
                    assert positions(read_all(subscription.attach("d"))) == sent[18:]
                    assert number < len(states) - 1
                assert site.damage == []
            shutil.rmtree(image)
    assert {True, False} == set(outcomes)
