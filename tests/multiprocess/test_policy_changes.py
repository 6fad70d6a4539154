"""A policy that one process changes holds in the others within 50 ms, whatever they are doing."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path

import pytest

from embeddedpulsar import Admin, AlreadyClosed, Client, ConsumerType
from embeddedpulsar._engine.store.policies.admitting import MAX_PRODUCERS
from embeddedpulsar._engine.store.store import Store
from embeddedpulsar.policies import BacklogQuota
from embeddedpulsar.testing.trial_store import assert_clean
from tests.children import die_at
from tests.multiprocess.children import Child, say

CHANGES = 8
LATEST_S = 0.05


def report_changes(store: Store) -> None:
    """Print the limit of producers and the time whenever it changes here."""
    policies = store.use_topic("topic").topic.policies
    policies.listen(lambda: say(f"{policies.value(MAX_PRODUCERS)} {time.monotonic()}"))
    say("ready")


def asleep(root: str) -> None:
    """Sleep in `receive`."""
    with Client(root) as client, contextlib.suppress(AlreadyClosed):
        store = Store.open(root)
        consumer = client.subscribe("topic", "sub")
        report_changes(store)
        while consumer.receive().data() != b"end":
            pass
        store.release()


def sending(root: str) -> None:
    """Send as fast as possible, until a file says that it is enough. No thread sleeps here."""
    with Client(root) as client:
        store = Store.open(root)
        producer = client.create_producer("topic")
        report_changes(store)
        while not (Path(root).parent / "end").exists():
            for _ in range(100):
                producer.send(b"")
        store.release()


def on_demand(root: str) -> None:
    """Do nothing until asked, and then say what holds."""
    with Client(root):
        store = Store.open(root)
        policies = store.use_topic("topic").topic.policies
        say(f"ready {policies.value(MAX_PRODUCERS)}")
        for _ in sys.stdin:
            say(f"{policies.value(MAX_PRODUCERS)} {time.monotonic()}")
        store.release()


@pytest.mark.parametrize("act", [asleep, sending])
@pytest.mark.parametrize("name", ["topic", "public/default"])
def test_a_change_is_noticed_by_others_within_50_ms(tmp_path: Path, act, name: str):
    """By one that sleeps in `receive` and by one that sends, of a topic and of its namespace."""
    root = tmp_path / "store"
    with Admin(root) as admin, Client(root) as client:
        admin.topics().create_non_partitioned_topic("topic")
        owner = admin.topics() if name == "topic" else admin.namespaces()
        with Child(act, root) as child:
            assert child.read() == "ready"
            delays = []
            for most in range(10, 10 + CHANGES):
                begun = time.monotonic()
                if name == "topic":
                    owner.set_max_producers(name, most)
                else:
                    owner.set_max_producers_per_topic(name, most)
                value, seen = child.read().split()
                while int(value) == most - 1:  # a listener may be called once more for one change
                    value, seen = child.read().split()
                assert int(value) == most
                delays.append(float(seen) - begun)
            (tmp_path / "end").touch()
            if act is asleep:
                client.create_producer("topic").send(b"end")
            assert child.join() == 0
    # The machine may be busy, and the processes wait for a processor: then some are late.
    assert sorted(delays)[len(delays) // 4] < LATEST_S, delays
    assert_clean(root)


def test_a_process_that_acts_next_sees_the_change(tmp_path: Path):
    """One that neither waits nor sends needs no wake-up: the value it uses next is the new one."""
    with Admin(tmp_path) as admin:
        admin.topics().create_non_partitioned_topic("topic")
        with Child(on_demand, tmp_path) as child:
            assert child.read() == "ready 0"
            for most in (3, 4):
                admin.topics().set_max_producers("topic", most)
                child.tell("what holds?")
                assert child.read().split()[0] == str(most)
            assert child.process.stdin is not None
            child.process.stdin.close()
            assert child.join() == 0
    assert_clean(tmp_path)


def test_a_process_that_has_the_topic_open_expires_its_messages(tmp_path: Path):
    """As soon as another one sets a time to live, which itself does not open the topic to use it."""
    with Client(tmp_path) as client, client.create_producer("topic") as producer:
        client.subscribe("topic", "s").close()
        producer.send(b"")
    with Child(asleep, tmp_path) as child, Admin(tmp_path) as admin:
        assert child.read() == "ready"
        topics = admin.topics()
        time.sleep(1.1)
        topics.set_message_ttl("topic", 1)
        end = time.monotonic() + 30
        while topics.get_stats("topic").subscriptions["s"].msg_backlog:
            assert time.monotonic() < end
            time.sleep(0.01)
        with Client(tmp_path) as client:
            client.create_producer("topic").send(b"end")
        assert child.join() == 0
    assert_clean(tmp_path)


@pytest.mark.parametrize("step", ["policies:changing", "policies:written"])
def test_a_process_that_dies_in_a_change_leaves_it_done_or_undone(tmp_path: Path, step: str):
    """Others see the document that is there, and the next change as ever."""
    with Admin(tmp_path) as admin, Client(tmp_path) as client:
        topics = admin.topics()
        topics.create_non_partitioned_topic("topic")
        with Child(on_demand, tmp_path) as child:
            assert child.read() == "ready 0"

            def change() -> None:
                with Admin(tmp_path) as mine:
                    mine.topics().set_max_producers("topic", 5)

            assert die_at(step, change)
            child.tell("what holds?")
            assert child.read().split()[0] == ("0" if step == "policies:changing" else "5")
            topics.set_max_producers("topic", 1)
            child.tell("what holds?")
            assert child.read().split()[0] == "1"
            client.create_producer("topic")
            assert child.process.stdin is not None
            child.process.stdin.close()
            assert child.join() == 0
    Store.open(tmp_path).release()  # sweeps the doorbell of the process that died
    assert_clean(tmp_path)


def held_back(root: str) -> None:
    """Send with a quota that the parent exceeds and relieves; print how it went."""
    with Client(root) as client:
        producer = client.create_producer("topic")
        producer.send(b"before")
        say("ready")
        for _ in range(2):
            sys.stdin.readline()
            begun = time.monotonic()
            producer.send(b"after")
            say(f"{time.monotonic() - begun}")


def test_a_producer_elsewhere_is_held_back_and_released(tmp_path: Path):
    """By a quota that another process sets, and by the acknowledgements of a consumer in that process."""
    with Client(tmp_path) as client, Admin(tmp_path) as admin:
        consumer = client.subscribe("topic", "s")
        with Child(held_back, tmp_path) as child:
            assert child.read() == "ready"
            admin.topics().set_backlog_quota("topic", BacklogQuota(1))
            store = Store.open(tmp_path)
            use = store.use_topic("topic")
            end = time.monotonic() + 30
            while not use.topic.quotas.is_held:  # housekeeping of one of the two processes looks
                assert time.monotonic() < end
                time.sleep(0.01)
            child.tell("send")
            time.sleep(0.3)
            consumer.acknowledge(consumer.receive(10_000))
            assert float(child.read()) >= 0.25
            child.kill()  # a producer that dies leaves nothing behind that holds others back
            child.join()
            consumer.acknowledge(consumer.receive(10_000))
            consumer.close()
            client.create_producer("topic").send(b"again")
            use.release()
            store.release()
    Store.open(tmp_path).release()  # sweeps the doorbell of the process that died
    assert_clean(tmp_path)


def holding(root: str) -> None:
    """Receive without acknowledging; print when each message came."""
    with Client(root) as client, contextlib.suppress(AlreadyClosed):
        consumer = client.subscribe("topic", "sub", ConsumerType.Shared)
        say("ready")
        while consumer.receive().data() != b"end":
            say(str(time.monotonic()))


@pytest.mark.parametrize("of", ["consumer", "subscription"])
def test_what_a_consumer_elsewhere_may_hold(tmp_path: Path, of: str):
    """A higher limit wakes one that waits for its acknowledgements; a lower one holds for it at once."""
    root, delays = tmp_path / "store", []
    with Admin(root) as admin, Client(root) as client:
        topics = admin.topics()
        topics.create_non_partitioned_topic("topic")
        limit = getattr(topics, f"set_max_unacked_messages_on_{of}")
        limit("topic", 1)
        with Child(holding, root) as child, client.create_producer("topic") as producer:
            assert child.read() == "ready"
            for _ in range(CHANGES + 1):
                producer.send(b"x")
            child.read()
            for most in range(2, CHANGES + 1):
                begun = time.monotonic()
                limit("topic", most)
                delays.append(float(child.read()) - begun)
            limit("topic", 3)
            stats = topics.get_stats("topic").subscriptions["sub"]
            assert stats.unacked_messages == CHANGES
            limit("topic", 0)
            child.read()
            producer.send(b"end")
            assert child.join() == 0
    # The machine may be busy: a late one is no fault, all of them late would be.
    assert sorted(delays)[len(delays) // 2] < LATEST_S, delays
    assert_clean(root)
