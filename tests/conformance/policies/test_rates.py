"""Rates of publishing and delivering, by topic, subscription and namespace, to the millisecond."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

import embeddedpulsar.asyncio as asyncio_client
from embeddedpulsar import Admin, ConsumerType, InitialPosition, MessageId, Timeout
from embeddedpulsar.exceptions import CorruptionError, InvalidConfiguration
from embeddedpulsar.policy_values import DispatchRate, PublishRate
from tests.conformance.manual_time import ManualTime
from tests.conformance.pool import take, take_turns, write_settings

SPACE = "public/default"


class Site:
    """A client and an Admin on a clock that the test moves."""

    def __init__(self, url: Path | str) -> None:
        self.time = ManualTime(url)
        self.client = self.time.client
        self.admin = Admin(url)
        self.topics = self.admin.topics()

    def stored(self, topic: str = "orders") -> int:
        """How many messages were published."""
        return self.topics.get_stats(topic).msg_in_counter

    def filled(self, messages: int = 100, topic: str = "orders") -> list[MessageId]:
        """Publish messages, one by one."""
        with self.client.create_producer(topic, batching_enabled=False) as producer:
            return [producer.send(b"%d" % number) for number in range(messages)]

    def consumer(self, kind: ConsumerType = ConsumerType.Exclusive, name: str = "kitchen", **options: object):
        """From the first message on."""
        return self.client.subscribe(
            "orders",
            name,
            kind,
            initial_position=InitialPosition.Earliest,
            **options,  # type: ignore[arg-type]
        )

    def close(self) -> None:
        """Leave nothing behind."""
        self.admin.close()
        self.time.close()


@pytest.fixture
def site(store_url: Path | str) -> Iterator[Site]:
    with contextlib.closing(Site(store_url)) as made:
        made.topics.create_non_partitioned_topic("orders")
        yield made


# -- publishing ------------------------------------------------------------------------------------------


@pytest.mark.in_memory
@pytest.mark.parametrize("batching", [False, True])
def test_messages_wait_for_the_rate(site: Site, batching: bool):
    """As many as the rate in a second, in order; the callbacks come with them."""
    site.topics.set_publish_rate("orders", PublishRate(10))
    done: list[bytes] = []
    with site.client.create_producer(
        "orders", batching_enabled=batching, batching_max_messages=5
    ) as producer:
        for number in range(35):
            text = b"%d" % number
            producer.send_async(text, lambda result, _, text=text: done.append(text))  # type: ignore[misc]
        site.time.pass_ms(0)
        for seconds in range(4):
            assert site.stored() == min(10 * (seconds + 1), 35)
            site.time.pass_ms(999)
            assert site.stored() <= min(10 * (seconds + 2), 35)
            site.time.pass_ms(1)
        producer.flush()
    assert done == [b"%d" % number for number in range(35)]
    assert site.topics.get_stats("orders").publish_rate_limited_times > 0


def test_a_large_batch_passes_and_delays_the_next(site: Site):
    """It counts its messages, which are made good before the next one."""
    site.topics.set_publish_rate("orders", PublishRate(10))
    with site.client.create_producer("orders", batching_enabled=True, batching_max_messages=40) as producer:
        for _ in range(80):
            producer.send_async(b"x", None)
        site.time.pass_ms(0)
        assert site.stored() == 40
        site.time.pass_ms(3000)
        assert site.stored() == 40
        site.time.pass_ms(100)
        assert site.stored() == 80


def test_bytes(site: Site):
    """Of entries, which are somewhat larger than the payloads."""
    site.topics.set_publish_rate("orders", PublishRate(-1, 10_000))
    with site.client.create_producer("orders", batching_enabled=False) as producer:
        for _ in range(20):
            producer.send_async(bytes(2000), None)
        site.time.pass_ms(0)
        assert site.stored() == 5
        for _ in range(40):
            site.time.pass_ms(100)
        assert 20 >= site.stored() >= 18


def test_a_send_waits_and_fails_with_its_timeout(site: Site):
    """It was not stored; when there is room it succeeds at once."""
    site.topics.set_publish_rate("orders", PublishRate(2))
    with site.client.create_producer("orders", batching_enabled=False, send_timeout_millis=60) as producer:
        producer.send(b"x")
        producer.send(b"x")
        for _ in range(2):
            with pytest.raises(Timeout, match="publish rate of persistent://public/default/orders"):
                producer.send(b"x")
        assert site.stored() == 2
        site.time.pass_ms(1000)
        producer.send(b"x")
        assert site.stored() == 3


def test_queued_messages_fail_with_their_timeout(site: Site):
    """The oldest decides, as while a topic is locked; the text says why."""
    site.topics.set_publish_rate("orders", PublishRate(1))
    found = []
    with site.client.create_producer("orders", batching_enabled=False, send_timeout_millis=3500) as producer:
        for _ in range(10):
            producer.send_async(b"x", lambda result, _: found.append(result.name))
        for _ in range(200):
            site.time.pass_ms(100)
        with contextlib.suppress(Timeout):
            producer.flush()
        assert site.stored() == 4
        assert sorted(found) == ["Ok"] * 4 + ["Timeout"] * 6


def test_a_full_queue(site: Site):
    """As ever, `send_async` is refused once so many messages wait."""
    found: list[str] = []
    site.topics.set_publish_rate("orders", PublishRate(1))
    with site.client.create_producer("orders", batching_enabled=False, max_pending_messages=5) as producer:
        for _ in range(10):
            producer.send_async(b"x", lambda result, _: found.append(result.name))
        for _ in range(10):
            site.time.pass_ms(1000)
        producer.flush()
    assert sorted(found) == ["Ok"] * 6 + ["ProducerQueueIsFull"] * 4


def test_the_rate_may_come_change_and_go(site: Site):
    """With producers that are open: from the next message on, and for what waits."""
    with site.client.create_producer("orders", batching_enabled=False) as producer:
        for _ in range(100):
            producer.send(b"x")
        site.topics.set_publish_rate("orders", PublishRate(10))
        for _ in range(100):
            producer.send_async(b"x", None)
        assert site.stored() == 110
        site.topics.set_publish_rate("orders", PublishRate(30))
        site.time.wait_for_flusher()
        site.time.pass_ms(1000)
        assert site.stored() == 140
        site.topics.remove_publish_rate("orders")
        site.time.wait_for_flusher()
        site.time.pass_ms(1000)
        producer.flush()
        assert site.stored() == 200
        for _ in range(100):
            producer.send(b"x")
        assert site.stored() == 300


def test_producers_share_the_rate(site: Site):
    """Those of a topic, whatever client has them; those of another topic have their own."""
    site.admin.namespaces().set_publish_rate(SPACE, PublishRate(10))
    producers = [site.client.create_producer("orders", batching_enabled=False) for _ in range(4)]
    for _ in range(10):
        for producer in producers:
            producer.send_async(b"x", None)
    assert site.stored() == 10
    site.time.pass_ms(1000)
    assert site.stored() == 20
    site.filled(10, "bills")
    assert site.stored("bills") == 10
    site.topics.set_publish_rate("orders", PublishRate())
    site.time.pass_ms(1000)
    for producer in producers:
        producer.close()
    assert site.stored() == 40


def test_partitions_have_the_rate_of_their_topic_each(site: Site):
    """As in Pulsar, where a partition is a topic."""
    site.topics.create_partitioned_topic("parts", 2)
    site.topics.set_publish_rate("parts", PublishRate(3))
    with site.client.create_producer("parts", batching_enabled=False) as producer:
        for _ in range(20):
            producer.send_async(b"x", None)
        stats = site.topics.get_partitioned_stats("parts", True)
        assert [one.msg_in_counter for one in stats.partitions.values()] == [3, 3]
        site.topics.remove_publish_rate("parts")
        site.time.pass_ms(1000)


def test_chunks_and_whole_columns(site: Site):
    """A chunked message is one; a batch of `send_many` counts its messages, and the call waits."""
    site.topics.set_publish_rate("orders", PublishRate(3))
    options = {"batching_enabled": False, "chunking_enabled": True, "chunk_max_message_size": 1000}
    with site.client.create_producer("orders", **options) as producer:  # type: ignore[arg-type]
        producer.send(bytes(5000))
        producer.send(bytes(5000))
    with site.client.create_producer("orders", send_timeout_millis=60) as producer:
        producer.send_many([b"x"] * 5)
        with pytest.raises(Timeout):
            producer.send_many([b"x"] * 5)


def test_a_rate_for_all_topics(tmp_path: Path):
    """By ``broker.conf``, unless a namespace or topic says otherwise."""
    write_settings(tmp_path / "store", maxPublishRatePerTopicInMessages=4)
    with contextlib.closing(Site(tmp_path / "store")) as site:
        with site.client.create_producer("orders", batching_enabled=False) as producer:
            for _ in range(9):
                producer.send_async(b"x", None)
            assert site.stored() == 4
            site.admin.namespaces().set_publish_rate(SPACE, PublishRate())
            site.time.wait_for_flusher()
            site.time.pass_ms(1000)
            assert site.stored() == 9


# -- delivering ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ConsumerType)
def test_consumers_receive_at_the_rate(site: Site, kind: ConsumerType):
    """Of whatever type, in order, nothing lost and nothing twice."""
    site.filled(35)
    site.topics.set_subscription_dispatch_rate("orders", DispatchRate(10))
    with contextlib.closing(site.consumer(kind)) as consumer:
        found = []
        for seconds in range(4):
            found += take(consumer)
            assert len(found) == min(10 * (seconds + 1), 35)
            site.time.pass_ms(999)
            found += take(consumer)
            assert len(found) <= min(10 * (seconds + 2), 35)
            site.time.pass_ms(1)
        assert [one.data() for one in found] == [b"%d" % number for number in range(35)]


def test_the_consumers_of_a_subscription_share(site: Site):
    """However many there are; another subscription has as much for itself."""
    site.filled(100)
    site.admin.namespaces().set_subscription_dispatch_rate(SPACE, DispatchRate(20, rate_period_in_second=2))
    consumers = [site.consumer(ConsumerType.Shared) for _ in range(4)]
    other = site.consumer(name="bar")
    assert sum(map(len, take_turns(consumers))) == len(take(other)) == 20
    site.time.pass_ms(1000)
    assert sum(map(len, take_turns(consumers))) == 10
    site.topics.set_subscription_dispatch_rate("orders", DispatchRate())
    assert sum(map(len, take_turns(consumers))) == 70
    assert len(take(other)) == 80
    for consumer in (*consumers, other):
        consumer.close()


def test_all_of_a_topic_share(site: Site):
    """Consumers and readers."""
    site.filled(100)
    site.topics.set_dispatch_rate("orders", DispatchRate(10))
    reader = site.client.create_reader("orders", MessageId.earliest)
    one, two = site.consumer(), site.consumer(name="bar")
    found = [len(take(one, 4))]  # which fetched all that may be delivered now
    assert take(two) == []
    assert reader.has_message_available() and reader.read_nowait() is None
    site.time.pass_ms(500)
    assert reader.read_nowait() is not None
    found += [len(take(one)), len(take(two))]
    assert found == [4, 6, 0]
    for closable in (reader, one, two):
        closable.close()


def test_a_reader_keeps_the_rate_of_a_subscription(site: Site):
    """It is one of its own."""
    site.filled(30)
    site.topics.set_subscription_dispatch_rate("orders", DispatchRate(10))
    reader = site.client.create_reader("orders", MessageId.earliest)
    found = 0
    for _ in range(3):
        while reader.read_nowait() is not None:
            found += 1
        site.time.pass_ms(500)
    assert found == 20
    assert reader.has_message_available()
    reader.close()


def test_bytes_of_deliveries(site: Site):
    """The payloads count."""
    with site.client.create_producer("orders", batching_enabled=False) as producer:
        for _ in range(20):
            producer.send(bytes(1000))
    site.topics.set_dispatch_rate("orders", DispatchRate(-1, 4000))
    with contextlib.closing(site.consumer()) as consumer:
        found = len(take(consumer))
        assert 3 <= found <= 5
        site.time.pass_ms(2000)
        found += len(take(consumer))
        assert 7 <= found <= 9


def test_batches_count_their_messages(site: Site):
    """One that is larger than the rest passes as a whole, and delays the next."""
    with site.client.create_producer("orders", batching_enabled=True, batching_max_messages=25) as producer:
        for _ in range(50):
            producer.send_async(b"x", None)
        producer.flush()
    site.topics.set_dispatch_rate("orders", DispatchRate(10))
    with contextlib.closing(site.consumer()) as consumer:
        assert len(take(consumer)) == 25
        site.time.pass_ms(1500)
        assert take(consumer) == []
        site.time.pass_ms(100)
        assert len(take(consumer)) == 25


def test_redeliveries_count(site: Site):
    """What is delivered again takes tokens again."""
    site.filled(10)
    site.topics.set_subscription_dispatch_rate("orders", DispatchRate(10))
    with contextlib.closing(site.consumer(ConsumerType.Shared)) as consumer:
        assert len(take(consumer)) == 10
        consumer.redeliver_unacknowledged_messages()
        assert take(consumer) == []
        site.time.pass_ms(300)
        assert [one.redelivery_count() for one in take(consumer)] == [1, 1, 1]


def test_delayed_messages(site: Site):
    """They take tokens when they are delivered, not while they wait."""
    with site.client.create_producer("orders", batching_enabled=False) as producer:
        for _ in range(10):
            producer.send(b"late", deliver_after=timedelta(seconds=60))
        for _ in range(3):
            producer.send(b"soon")
    site.topics.set_subscription_dispatch_rate("orders", DispatchRate(5))
    with contextlib.closing(site.consumer(ConsumerType.Shared)) as consumer:
        assert [one.data() for one in take(consumer)] == [b"soon"] * 3
        site.time.pass_ms(60_000)
        assert [one.data() for one in take(consumer)] == [b"late"] * 5
        site.time.pass_ms(1000)
        assert len(take(consumer)) == 5


def test_a_rate_relative_to_what_is_published(site: Site):
    """The backlog shrinks by the rate."""
    site.filled(1000)
    site.topics.set_subscription_dispatch_rate("orders", DispatchRate(10, relative_to_publish_rate=True))
    with contextlib.closing(site.consumer()) as consumer:
        assert len(take(consumer)) == 10
        for _ in range(4):
            site.filled(50)
            site.time.pass_ms(1000)
            assert len(take(consumer)) == 60


def test_waiting_ends_when_there_is_room(site: Site):
    """A `receive` that sleeps is woken by the time, and by a change of the policy."""
    site.filled(3)
    site.topics.set_subscription_dispatch_rate("orders", DispatchRate(1, rate_period_in_second=1))
    with contextlib.closing(site.consumer()) as consumer:
        consumer.receive(1000)
        with pytest.raises(Timeout):
            consumer.receive(50)
        site.time.pass_ms(1000)
        consumer.receive(1000)
        site.topics.remove_subscription_dispatch_rate("orders")
        consumer.receive(1000)


def test_several_topics(site: Site):
    """A consumer of them gets from each at its rate."""
    site.topics.create_partitioned_topic("parts", 3)
    site.topics.set_subscription_dispatch_rate("parts", DispatchRate(5))
    with site.client.create_producer("parts", batching_enabled=False) as producer:
        for _ in range(60):
            producer.send(b"x")
    with contextlib.closing(
        site.client.subscribe("parts", "kitchen", initial_position=InitialPosition.Earliest)
    ) as consumer:
        assert len(take(consumer)) == 15
        site.time.pass_ms(1000)
        assert len(take(consumer)) == 15
        site.topics.remove_subscription_dispatch_rate("parts")
        site.time.pass_ms(0)
        assert len(take(consumer)) == 30


def test_listeners_and_loops(site: Site):
    """They wait for the rate as `receive` does."""
    site.filled(6)
    site.topics.set_subscription_dispatch_rate("orders", DispatchRate(3))

    async def main() -> list[bytes]:
        client = asyncio_client.Client(site.time.url)
        consumer = await client.subscribe("orders", "loop", initial_position=InitialPosition.Earliest)
        found = [(await consumer.receive()).data() for _ in range(3)]
        waiting = asyncio.ensure_future(consumer.receive())
        assert not (await asyncio.wait({waiting}, timeout=0))[0]
        site.time.pass_ms(1000)
        found.append((await waiting).data())
        await consumer.close()
        await client.close()
        return found

    assert asyncio.run(main()) == [b"0", b"1", b"2", b"3"]


# -- values ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [PublishRate(-2), PublishRate(True), PublishRate(1.5), PublishRate("5")],  # type: ignore[arg-type]
)
def test_wrong_publish_rates(site: Site, wrong: PublishRate):
    """They are refused, and nothing is stored."""
    with pytest.raises(InvalidConfiguration):
        site.topics.set_publish_rate("orders", wrong)
    assert site.topics.get_publish_rate("orders") is None


@pytest.mark.parametrize(
    "wrong",
    [
        DispatchRate(-2),
        DispatchRate(1, rate_period_in_second=0),
        DispatchRate(1, relative_to_publish_rate=1),  # type: ignore[arg-type]
    ],
)
def test_wrong_dispatch_rates(site: Site, wrong: DispatchRate):
    """As well."""
    for setter in (site.topics.set_dispatch_rate, site.topics.set_subscription_dispatch_rate):
        with pytest.raises(InvalidConfiguration):
            setter("orders", wrong)


def test_a_damaged_document(site: Site):
    """A rate that is none is damage, and names the kind."""
    from embeddedpulsar._engine.store.policies.admitting import PUBLISH_RATE

    with pytest.raises(CorruptionError, match="PublishRate"):
        PUBLISH_RATE.unpack({"publishThrottlingRateInMsg": "x"})
