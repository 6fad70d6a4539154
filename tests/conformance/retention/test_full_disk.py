"""A disk that is full of acknowledged messages: they are given back, by itself and by commands."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import Admin, InitialPosition, PulsarException, StorageFullError, TopicTerminated
from embeddedpulsar._engine.log.segment import KEPT_FREE
from embeddedpulsar._engine.platform import disk
from embeddedpulsar.policy_values import OffloadPolicies
from embeddedpulsar.testing.trial_store import assert_clean
from tests.conformance.manual_time import ManualTime
from tests.support.disks.faulty_disk import FaultyDisk
from tests.support.disks.small_disk import SmallDisk

SIZE = 6 << 20
VALUE = b"x" * 50_000


@pytest.fixture
def small(tmp_path: Path) -> Iterator[SmallDisk]:
    """A disk of 6 MiB."""
    with disk.use(SmallDisk(tmp_path, SIZE)) as made:
        assert isinstance(made, SmallDisk)
        yield made


@pytest.fixture
def time(tmp_path: Path, small: SmallDisk) -> Iterator[ManualTime]:
    """A store on it; at the end it is whole."""
    site = ManualTime(tmp_path / "store")
    try:
        yield site
    finally:
        site.close()
        assert_clean(tmp_path / "store")


@pytest.fixture
def admin(time: ManualTime) -> Iterator[Admin]:
    """The Admin of the store."""
    with Admin(time.url) as made:
        yield made


def subscribed(time: ManualTime, topic: str = "topic") -> Any:
    """A consumer of everything."""
    return time.client.subscribe(topic, "s", initial_position=InitialPosition.Earliest)


def filled(producer: Any) -> int:
    """Send until the disk is full; returns how many were stored."""
    count = 0
    while True:
        try:
            producer.send(b"%d " % count + VALUE)
        except StorageFullError:
            return count
        count += 1


def drained(time: ManualTime, consumer: Any, count: int) -> list[int]:
    """Receive and acknowledge so many messages, durably; returns their numbers."""
    numbers = []
    for _ in range(count):
        message = consumer.receive(1000)
        numbers.append(int(message.data().split()[0]))
        consumer.acknowledge(message)
    time.pass_ms(200)
    return numbers


def test_producers_leave_room_for_acknowledgements(time: ManualTime, small: SmallDisk):
    """A log takes no more of a disk than leaves 1 MiB; what is full can be received and acknowledged."""
    consumer, producer = subscribed(time), time.client.create_producer("topic")
    count = filled(producer)
    assert SIZE - small.used() >= KEPT_FREE
    assert drained(time, consumer, count) == list(range(count))


def test_the_next_send_has_room(time: ManualTime, small: SmallDisk):
    """A producer that goes on trying gets the space of what is acknowledged: of the open ledger."""
    consumer, producer = subscribed(time), time.client.create_producer("topic")
    for _ in range(3):
        count = filled(producer)
        assert count > 50
        drained(time, consumer, count)
        with pytest.raises(StorageFullError):
            producer.send(VALUE)
        time.pass_ms(100)
        assert small.used() < 200 << 10
    producer.send(b"1 " + VALUE)
    assert drained(time, consumer, 1) == [1]


def test_another_topic_gives_back(time: ManualTime, small: SmallDisk):
    """The space that one topic lacks is given back by the others that are in use in the process."""
    consumer, producer = subscribed(time), time.client.create_producer("topic")
    drained(time, consumer, filled(producer))
    other = time.client.create_producer("other")
    assert filled(other) <= 1
    time.pass_ms(100)
    assert filled(other) > 50


def test_what_is_not_acknowledged_stays(time: ManualTime, admin: Admin):
    """One message that a subscription needs keeps the open ledger, whatever is tried."""
    consumer, producer = subscribed(time), time.client.create_producer("topic")
    count = filled(producer)
    drained(time, consumer, count - 1)
    with pytest.raises(StorageFullError):
        producer.send(VALUE)
    time.pass_ms(100)
    assert admin.topics().trim_topic("topic") == 0
    assert drained(time, consumer, 1) == [count - 1]


def test_retention_keeps(time: ManualTime, admin: Admin):
    """Acknowledged messages that retention keeps stay until they are old enough."""
    consumer, producer = subscribed(time), time.client.create_producer("topic")
    admin.topics().set_retention("topic", 1, -1)
    drained(time, consumer, filled(producer))
    assert admin.topics().trim_topic("topic") == 0
    time.pass_ms(61_000)
    assert admin.topics().trim_topic("topic") == 1


@pytest.mark.parametrize("command", ["trim_topic", "truncate"])
def test_commands(time: ManualTime, admin: Admin, small: SmallDisk, command: str):
    """Trimming and truncating free the open ledger; the producer goes on behind it."""
    consumer, producer = subscribed(time), time.client.create_producer("topic")
    count = filled(producer)
    if command == "trim_topic":
        drained(time, consumer, count)
    getattr(admin.topics(), command)("topic")
    assert small.used() < 200 << 10
    assert producer.send(b"9 ") is not None
    assert drained(time, consumer, 1) == [9] if command == "trim_topic" else True


def test_a_topic_without_subscription(time: ManualTime, admin: Admin, small: SmallDisk):
    """Nobody has acknowledged anything, so the open ledger stays; closed, it goes as any other."""
    filled(time.client.create_producer("topic"))
    time.pass_ms(100)
    assert admin.topics().trim_topic("topic") == 0
    assert admin.topics().roll_ledger("topic") == 1
    admin.topics().trim_topic("topic")
    assert small.used() < 200 << 10


def test_closing_the_open_ledger(time: ManualTime, admin: Admin):
    """It loses nothing; one without messages stays; a terminated topic refuses."""
    topics = admin.topics()
    topics.create_partitioned_topic("parts", 2)
    assert topics.roll_ledger("parts") == 0
    consumer, producer = subscribed(time, "parts"), time.client.create_producer("parts")
    for number in range(8):
        producer.send(b"%d " % number)
    assert topics.roll_ledger("parts") == 2
    assert topics.roll_ledger("parts") == 0
    producer.send(b"8 ")
    assert sorted(drained(time, consumer, 9)) == list(range(9))
    topics.terminate_partitioned_topic("parts")
    with pytest.raises(TopicTerminated):
        topics.roll_ledger("parts")


def test_unload_closes_the_open_ledger(time: ManualTime, admin: Admin):
    """As in Pulsar; of a terminated topic it stays."""
    consumer, producer = subscribed(time), time.client.create_producer("topic")
    first = producer.send(b"0 ")
    admin.topics().unload("topic")
    assert producer.send(b"1 ").ledger_id() > first.ledger_id()
    assert drained(time, consumer, 2) == [0, 1]
    admin.topics().terminate_topic("topic")
    admin.topics().unload("topic")


def test_offload_says_how_many(time: ManualTime, admin: Admin, tmp_path: Path):
    """0 where no ledger is closed, or all that are closed are to stay."""
    topics = admin.topics()
    producer = time.client.create_producer("topic")
    producer.send(VALUE)
    topics.set_offload_policies("topic", OffloadPolicies(str(tmp_path / "cold")))
    subscribed(time)
    assert topics.offload("topic") == 0
    while topics.offload_status("topic").status == "RUNNING":
        pass
    topics.roll_ledger("topic")
    assert topics.offload("topic", 1 << 20) == 0
    while topics.offload_status("topic").status == "RUNNING":
        pass
    assert topics.offload("topic") == 1
    while topics.offload_status("topic").status == "RUNNING":
        pass


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_every_call_of_the_disk_fails_once(tmp_path: Path, code: int):
    """While the open ledger is closed and given back: what is not acknowledged is there, and the next
    attempt succeeds."""
    calls = _trimmed(tmp_path / "counted", 0, code)
    assert calls > 5
    for nth in range(1, calls + 1):
        _trimmed(tmp_path / f"{nth}", nth, code)


def _trimmed(root: Path, nth: int, code: int) -> int:
    """Trim a topic of which all is acknowledged beside one that nobody has read, with the ``nth`` call
    failing; returns how many calls there were."""
    site = ManualTime(root)
    try:
        consumer, producer = subscribed(site), site.client.create_producer("topic")
        unread, kept = subscribed(site, "kept"), site.client.create_producer("kept")
        for number in range(3):
            producer.send(b"%d " % number + VALUE)
            kept.send(b"%d " % number + VALUE)
        drained(site, consumer, 3)
        with Admin(root) as admin:
            with disk.use(FaultyDisk()) as faulty:
                assert isinstance(faulty, FaultyDisk)
                if nth:
                    faulty.fail(nth=nth, errno=code)
                try:
                    removed = admin.topics().trim_topic("topic") + admin.topics().trim_topic("kept")
                except (PulsarException, OSError):
                    assert nth
                    removed = 0
                calls = faulty.count
            removed += admin.topics().trim_topic("topic")
            assert removed <= 1
            assert admin.topics().get_internal_stats("topic").current_ledger_entries == 0
        producer.send(b"3 ")
        assert drained(site, consumer, 1) == [3]
        assert drained(site, unread, 3) == [0, 1, 2]
    finally:
        site.close()
    assert_clean(root)
    return calls
