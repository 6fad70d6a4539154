"""The clock for the tests of applications: all that a store does in time happens when it is advanced."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import embeddedpulsar as pulsar
import embeddedpulsar.asyncio
from embeddedpulsar.testing import ManualClock, assert_clean

HOUR_S = 3600
SHARED = pulsar.ConsumerType.Shared
WAIT_MS = 20_000


@pytest.fixture
def clock() -> Iterator[ManualClock]:
    """The clock of every store of a test."""
    with ManualClock() as made:
        yield made


@pytest.fixture
def client(clock: ManualClock, tmp_path: Path) -> Iterator[pulsar.Client]:
    """A client of a store that is checked afterwards."""
    with pulsar.Client(tmp_path / "store") as made:
        yield made
    assert_clean(tmp_path / "store")


def has_none(consumer: pulsar.Consumer[Any]) -> bool:
    """Whether no message is there."""
    try:
        message = consumer.receive(timeout_millis=0)
    except pulsar.Timeout:
        return True
    raise AssertionError(f"{message.data()!r} was delivered early")


def test_it_moves_only_when_told():
    """Advancing moves both clocks together."""
    manual = ManualClock(wall_ms=5, monotonic=1.0)
    assert (manual.wall_ms(), manual.monotonic()) == (5, 1.0)
    manual.advance(1.5)
    assert (manual.wall_ms(), manual.wall_ns(), manual.monotonic()) == (1505, 1_505_000_000, 2.5)


def test_it_starts_with_the_present():
    """A due time that the application computes from its own clock is in the future of this one."""
    started_ms = ManualClock().wall_ms()
    assert 0 <= time.time() * 1000 - started_ms < 60_000


def test_the_time_of_day_steps_alone():
    """A step of the wall clock, back or forth, is not seen by timeouts."""
    manual = ManualClock(wall_ms=5000, monotonic=1.0)
    manual.set_wall_ms(100)
    assert (manual.wall_ms(), manual.monotonic()) == (100, 1.0)


def test_time_cannot_go_back():
    """Asking for it is an error of the test."""
    with pytest.raises(ValueError, match="cannot go back"):
        ManualClock().advance(-1)


def test_each_timer_runs_at_its_own_time():
    """Also one that another timer sets, and those of two schedulers, in order."""
    clock = ManualClock(monotonic=0.0)
    one, other = clock.scheduler(), clock.scheduler()
    seen: list[tuple[str, float]] = []
    one.call_later(3, lambda: seen.append(("three", clock.monotonic())))
    other.call_later(1, lambda: one.call_later(1.1, lambda: seen.append(("then", clock.monotonic()))))
    clock.advance(10)
    assert seen == [("then", 2.1), ("three", 3.0)]
    assert clock.monotonic() == 10


def test_fractions_add_up():
    """A timer of 0.3 s is due after three times 0.1 s, whatever binary fractions make of it."""
    clock = ManualClock()
    due: list[bool] = []
    clock.advance(0.7)
    clock.scheduler().call_later(0.3, lambda: due.append(True))
    for _ in range(3):
        assert not due
        clock.advance(0.1)
    assert due


def test_what_a_timer_raises_comes_out():
    """A test sees what fails in the background."""
    clock = ManualClock()
    clock.scheduler().call_later(1, lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        clock.advance(1)


def test_sleeping_lets_time_pass_without_timers():
    """Code that sleeps inside a timer cannot start another timer."""
    clock = ManualClock(monotonic=0.0)
    scheduler = clock.scheduler()
    scheduler.call_later(1, lambda: None)
    pause = clock.sleep
    pause(2)
    assert (clock.monotonic(), scheduler.pending) == (2.0, 1)
    clock.advance(0)
    assert scheduler.pending == 0


def test_a_delayed_message(clock: ManualClock, client: pulsar.Client):
    """It is there on the millisecond, and not before."""
    consumer = client.subscribe("t", "s", SHARED)
    client.create_producer("t").send(b"later", deliver_after=timedelta(hours=1))
    clock.advance(HOUR_S - 0.001)
    assert has_none(consumer)
    clock.advance(0.001)
    assert consumer.receive(WAIT_MS).data() == b"later"


def test_a_due_time_of_the_clock(clock: ManualClock, client: pulsar.Client):
    """`wall_ms` is the time that `deliver_at` means."""
    consumer = client.subscribe("t", "s", SHARED)
    client.create_producer("t").send(b"later", deliver_at=clock.wall_ms() + 1000)
    clock.advance(0.999)
    assert has_none(consumer)
    clock.advance(0.001)
    assert consumer.receive(WAIT_MS).publish_timestamp() == clock.wall_ms() - 1000


def test_a_negative_acknowledgement(clock: ManualClock, client: pulsar.Client):
    """It is redelivered after its delay; the clock of the machine does not matter."""
    consumer = client.subscribe("t", "s", SHARED, negative_ack_redelivery_delay_ms=60_000)
    client.create_producer("t").send(b"again")
    consumer.negative_acknowledge(consumer.receive(WAIT_MS))
    clock.advance(40)
    assert has_none(consumer)
    clock.advance(21)
    assert consumer.receive(WAIT_MS).redelivery_count() == 1


def test_an_acknowledgement_timeout(clock: ManualClock, client: pulsar.Client):
    """What is not acknowledged in time is redelivered."""
    consumer = client.subscribe("t", "s", SHARED, unacked_messages_timeout_ms=30_000)
    client.create_producer("t").send(b"again")
    consumer.receive(WAIT_MS)
    clock.advance(29)
    assert has_none(consumer)
    clock.advance(3)
    assert consumer.receive(WAIT_MS).redelivery_count() == 1


def test_a_redelivery_backoff(clock: ManualClock, client: pulsar.Client):
    """Each delay is longer than the one before."""
    backoff = pulsar.MultiplierRedeliveryBackoff(min_delay_ms=1000, max_delay_ms=60_000, multiplier=10)
    consumer = client.subscribe("t", "s", SHARED, negative_ack_redelivery_backoff=backoff)
    client.create_producer("t").send(b"again")
    for delay_s in (1, 10, 60, 60):
        consumer.negative_acknowledge(consumer.receive(WAIT_MS))
        clock.advance(delay_s * 0.6)
        assert has_none(consumer)
        clock.advance(delay_s * 0.6)
    assert consumer.receive(WAIT_MS).redelivery_count() == 4


def test_a_dead_letter(clock: ManualClock, client: pulsar.Client):
    """It is in its topic when `advance` returns: threads of the client would store it some time later."""
    letters = client.subscribe("t-s-DLQ", "test")
    policy = pulsar.ConsumerDeadLetterPolicy(max_redeliver_count=1)
    consumer = client.subscribe("t", "s", SHARED, dead_letter_policy=policy)
    client.create_producer("t").send(b"bad")
    for _ in range(2):
        consumer.negative_acknowledge(consumer.receive(WAIT_MS))
        clock.advance(61)
    assert letters.receive(timeout_millis=0).data() == b"bad"
    assert has_none(consumer)


def test_a_retry_letter(clock: ManualClock, client: pulsar.Client):
    """`reconsume_later` is a delayed message of the retry topic."""
    consumer = client.subscribe("t", "s", SHARED, enable_retry=True)
    client.create_producer("t").send(b"again")
    consumer.reconsume_later(consumer.receive(WAIT_MS), 600_000)
    clock.advance(599)
    assert has_none(consumer)
    clock.advance(1)
    assert consumer.receive(WAIT_MS).data() == b"again"


def test_a_batch(clock: ManualClock, client: pulsar.Client):
    """A batch that is not full is stored when its delay is over."""
    consumer = client.subscribe("t", "s")
    producer = client.create_producer("t", batching_enabled=True, batching_max_publish_delay_ms=5000)
    producer.send_async(b"hello", None)
    clock.advance(4)
    assert has_none(consumer)
    clock.advance(1)
    assert consumer.receive(WAIT_MS).data() == b"hello"


def test_retention(clock: ManualClock, tmp_path: Path):
    """Acknowledged ledgers are removed when the retention time is over."""
    (tmp_path / "broker.conf").write_text(
        "managedLedgerMaxEntriesPerLedger=10\ndefaultRetentionTimeInMinutes=60\ndefaultRetentionSizeInMB=-1\n"
    )
    with pulsar.Client(tmp_path) as client:
        consumer = client.subscribe("t", "s")
        producer = client.create_producer("t")
        for number in range(25):
            producer.send(b"%d" % number)
            consumer.acknowledge(consumer.receive(WAIT_MS))
        counts = []
        for _ in range(2):
            clock.advance(HOUR_S / 2 + 60)
            counts.append(len(list(tmp_path.glob("topics/*/*.log"))))
        assert counts == [3, 1]
    assert_clean(tmp_path)


def test_a_day_is_short(clock: ManualClock, client: pulsar.Client):
    """All timers of a day, keep-alives among them, run at once; the consumer stays attached."""
    consumer = client.subscribe("t", "s", SHARED)
    producer = client.create_producer("t", batching_enabled=True)
    began = time.monotonic()
    clock.advance(24 * HOUR_S)
    assert time.monotonic() - began < 60
    producer.send(b"tomorrow")
    assert consumer.receive(WAIT_MS).data() == b"tomorrow"
    assert consumer.is_connected()


def test_the_timeout_of_a_call_is_real_time(clock: ManualClock, client: pulsar.Client):
    """`receive` ends although the clock stands still, alone and for several topics."""
    for topic in ("one", ["one", "two"]):
        consumer = client.subscribe(topic, "s", SHARED)
        with pytest.raises(pulsar.Timeout):
            consumer.receive(timeout_millis=5)
        consumer.close()
    policy = pulsar.ConsumerBatchReceivePolicy(10, 1000, 5)
    consumer = client.subscribe("one", "s", SHARED, batch_receive_policy=policy)
    assert consumer.batch_receive() == []


@pytest.mark.parametrize("topic", ["t", ["t", "u"]])
def test_a_thread_that_waits(clock: ManualClock, client: pulsar.Client, topic: Any):
    """A message that becomes due wakes a thread that is already waiting for it."""
    consumer = client.subscribe(topic, "s", SHARED)
    client.create_producer("t").send(b"later", deliver_after=timedelta(hours=1))
    received: list[bytes] = []
    thread = threading.Thread(target=lambda: received.append(consumer.receive(WAIT_MS).data()))
    thread.start()
    clock.advance(HOUR_S)
    thread.join(WAIT_MS / 1000)
    assert received == [b"later"]


def test_a_listener(clock: ManualClock, client: pulsar.Client):
    """A listener is called on its own thread: a test waits for what it does."""
    called = threading.Event()
    client.subscribe("t", "s", SHARED, message_listener=lambda _consumer, _message: called.set())
    client.create_producer("t").send(b"later", deliver_after=timedelta(hours=1))
    assert not called.wait(0)
    clock.advance(HOUR_S)
    assert called.wait(WAIT_MS / 1000)


def test_a_coroutine_that_waits(clock: ManualClock, tmp_path: Path):
    """The same in an event loop, which the clock does not move."""

    async def main() -> bytes:
        client = embeddedpulsar.asyncio.Client(tmp_path)
        consumer = await client.subscribe("t", "s", SHARED)
        producer = await client.create_producer("t")
        await producer.send(b"later", deliver_after=timedelta(hours=1))
        waiting = asyncio.create_task(consumer.receive())
        assert await asyncio.wait([waiting], timeout=0) == (set(), {waiting})  # it has begun, and waits
        clock.advance(HOUR_S)
        data = (await asyncio.wait_for(waiting, WAIT_MS / 1000)).data()
        await client.close()
        return data

    assert asyncio.run(main()) == b"later"
    assert_clean(tmp_path)


def test_an_admin_shares_the_clock(clock: ManualClock, client: pulsar.Client, tmp_path: Path):
    """All that opens the store inside the ``with`` has its clock."""
    with pulsar.Admin(tmp_path / "store") as admin:
        admin.topics().create_non_partitioned_topic("t")
        assert admin._store.clock is clock


def test_a_store_in_use_has_another_clock(tmp_path: Path):
    """A client that was made before the clock would not notice it, so one made inside is refused."""
    with pulsar.Client(tmp_path), ManualClock(), pytest.raises(ValueError, match="another clock"):
        pulsar.Client(tmp_path)
    with ManualClock():
        client = pulsar.Client(tmp_path)
    with pytest.raises(ValueError, match="another clock"):
        pulsar.Client(tmp_path)
    client.close()
    pulsar.Client(tmp_path).close()
    assert_clean(tmp_path)


def test_a_client_from_before_is_noticed(tmp_path: Path):
    """The clock of a test whose only client was made before it would have no effect."""
    with (
        pulsar.Client(tmp_path),
        ManualClock() as clock,
        pytest.raises(RuntimeError, match="inside the with"),
    ):
        clock.advance(1)


def test_clocks_may_be_nested(tmp_path: Path):
    """The inner one ends first."""
    with ManualClock() as outer:
        with ManualClock() as inner, pulsar.Client(tmp_path) as client:
            assert client._core.store.clock is inner
        with pulsar.Client(tmp_path) as client:
            assert client._core.store.clock is outer
    with pulsar.Client(tmp_path) as client:
        assert not isinstance(client._core.store.clock, ManualClock)


def test_a_restart_later(clock: ManualClock, tmp_path: Path):
    """A store that is closed for a week knows what became due meanwhile."""
    with pulsar.Client(tmp_path) as client:
        client.subscribe("t", "s", SHARED)
        client.create_producer("t").send(b"later", deliver_after=timedelta(days=6))
    clock.advance(7 * 24 * HOUR_S)
    with pulsar.Client(tmp_path) as client:
        assert client.subscribe("t", "s", SHARED).receive(WAIT_MS).data() == b"later"
    assert_clean(tmp_path)
