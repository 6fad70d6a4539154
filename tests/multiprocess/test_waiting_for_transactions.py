"""What consumers and readers get of topics with transactions: what committed, in order, as soon as it did."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from embeddedpulsar import ConsumerType, MessageId
from embeddedpulsar._engine.format.control import TopicWord
from embeddedpulsar._engine.txn.transaction import Transaction
from embeddedpulsar._engine.txn.transaction_state import Outcome
from embeddedpulsar.message_id import Isolation
from embeddedpulsar.testing import assert_clean
from tests.transactional_site import ALL_TYPES, SHARING, Site, received


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A store, which is audited at the end."""
    made = Site(tmp_path / "store")
    try:
        yield made
    finally:
        made.client.close()
    assert_clean(tmp_path / "store")


@pytest.mark.parametrize("kind", ALL_TYPES)
def test_nothing_comes_before_its_transaction_committed(site: Site, kind: ConsumerType):
    """Nor what was sent behind it; then all of it, in order."""
    producer, consumer = site.producer(), site.subscribe(kind)
    producer.send(b"a")
    transaction = site.begin()
    site.send(transaction, b"b", keys=["k"])
    producer.send(b"c")
    site.send(transaction, b"d", b"e")
    assert received(consumer) == [b"a"]
    transaction.commit()
    assert received(consumer) == [b"b", b"c", b"d", b"e"]
    assert received(consumer) == []


@pytest.mark.parametrize("kind", ALL_TYPES)
@pytest.mark.parametrize("entries", [1, 40])
def test_what_was_aborted_never_comes(site: Site, kind: ConsumerType, entries: int):
    """And holds back neither the mark-delete position nor the backlog."""
    producer, consumer = site.producer(), site.subscribe(kind)
    bad, good = site.begin(), site.begin()
    expected = []
    for number in range(entries):
        site.send(bad, b"x")
        site.send(good, b"good %d" % number)
        producer.send(b"plain %d" % number)
        expected += [b"good %d" % number, b"plain %d" % number]
    bad.abort()
    assert received(consumer) == []
    good.commit()
    assert received(consumer) == expected
    consumer.close()
    consumer = site.subscribe(kind)
    assert received(consumer) == []
    attachment = consumer._core.session.attachment
    assert attachment.backlog() == 0


@pytest.mark.parametrize("kind", ALL_TYPES)
def test_a_sleeper_wakes_when_the_transaction_ends(site: Site, kind: ConsumerType):
    """At once, whatever the type; also for what stands behind an abort."""
    producer, consumer = site.producer(), site.subscribe(kind)
    for end in (Transaction.commit, Transaction.abort):
        transaction = site.begin()
        site.send(transaction, b"mine")
        producer.send(b"behind")
        timer = threading.Timer(0.15, end, [transaction])
        timer.start()
        begun = time.monotonic()
        message = consumer.receive(10_000)
        timer.join()
        assert time.monotonic() - begun < 2.0
        consumer.acknowledge(message)
        expected = [b"mine", b"behind"] if end is Transaction.commit else [b"behind"]
        assert [message.data(), *received(consumer)] == expected


@pytest.mark.parametrize("kind", ALL_TYPES)
def test_a_deadline_is_kept_by_who_waits(site: Site, kind: ConsumerType):
    """The owner does nothing about it."""
    producer, consumer = site.producer(), site.subscribe(kind)
    transaction = site.begin(timeout_ms=300)
    site.send(transaction, b"x")
    producer.send(b"behind")
    begun = time.monotonic()
    assert consumer.receive(10_000).data() == b"behind"
    assert time.monotonic() - begun < 5.0
    assert site.client._core.store.transactions.outcome(transaction.id) is Outcome.ABORTED


def test_a_deadline_is_kept_for_those_that_only_poll(site: Site):
    """Though none of them sleeps."""
    consumer = site.subscribe()
    producer, transaction = site.producer(), site.begin(timeout_ms=300)
    site.send(transaction, b"x")
    producer.send(b"behind")
    until = time.monotonic() + 5
    while (message := consumer.receive_nowait()) is None and time.monotonic() < until:
        time.sleep(0.01)
    assert message is not None
    assert message.data() == b"behind"


def test_readers_and_what_they_say_is_there(site: Site):
    """`has_message_available` and the last id count what can be read."""
    producer = site.producer()
    reader = site.client.create_reader("topic", MessageId.earliest)
    consumer = site.subscribe()
    assert not reader.has_message_available()
    transaction = site.begin()
    site.send(transaction, b"b")
    producer.send(b"c")
    assert not reader.has_message_available()
    assert consumer.get_last_message_id().entry_id() == -1
    transaction.commit()
    assert reader.has_message_available()
    assert [reader.read_next().data() for _ in range(2)] == [b"b", b"c"]
    last = consumer.get_last_message_id()
    aborted = site.begin()
    site.send(aborted, b"d")
    aborted.abort()
    assert not reader.has_message_available()
    assert consumer.get_last_message_id() == last


def test_a_start_at_the_end_is_before_what_waits(site: Site):
    """What commits later comes later, for readers, subscriptions and seeks."""
    producer = site.producer()
    producer.send(b"a")
    transaction = site.begin()
    site.send(transaction, b"b")
    producer.send(b"c")
    reader = site.client.create_reader("topic", MessageId.latest)
    new = site.client.subscribe("topic", "new")
    old = site.subscribe()
    old.seek(MessageId.latest)
    transaction.commit()
    assert [reader.read_next(10_000).data() for _ in range(2)] == [b"b", b"c"]
    assert received(new) == received(old) == [b"b", b"c"]


def test_a_table_view_ends_its_load_before_what_waits(site: Site):
    """It does not wait for the transaction, and has its values once it commits."""
    site.subscribe().close()  # keeps the messages
    transaction = site.begin()
    site.producer().send(b"1", partition_key="a")
    site.send(transaction, b"2", keys=["b"])
    site.producer().send(b"3", partition_key="c")
    view = site.client.create_table_view("topic")
    assert dict(view.items()) == {"a": b"1"}
    transaction.commit()
    until = time.monotonic() + 10
    while len(view) < 3 and time.monotonic() < until:
        time.sleep(0.01)
    assert dict(view.items()) == {"a": b"1", "b": b"2", "c": b"3"}
    view.close()


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared])
def test_a_consumer_of_several_topics_wakes(site: Site, kind: ConsumerType):
    """No word of the topic changes when a transaction ends."""
    for name in ("one", "two", "three"):
        site.producer(name).close()
    consumer = site.client.subscribe(["one", "two", "three"], "sub", consumer_type=kind)
    transaction = site.begin()
    site.send(transaction, b"a", topic="two")
    assert consumer.receive_nowait() is None
    timer = threading.Timer(0.2, transaction.commit)
    timer.start()
    begun = time.monotonic()
    assert consumer.receive(10_000).data() == b"a"
    assert time.monotonic() - begun < 3.0
    timer.join()


def test_coroutines_and_listeners_wake(site: Site):
    """As threads do."""
    from embeddedpulsar import asyncio as pulsar_asyncio

    heard: list[bytes] = []
    transaction = site.begin()
    site.producer().close()
    listener = site.client.subscribe(
        "topic", "heard", message_listener=lambda consumer, message: heard.append(message.data())
    )

    async def wait() -> bytes:
        async with pulsar_asyncio.Client(str(site.root)) as client:
            consumer = await client.subscribe("topic", "awaited")
            site.send(transaction, b"a")
            asyncio.get_running_loop().call_later(0.2, transaction.commit)
            message = await asyncio.wait_for(consumer.receive(), 10)
            await consumer.acknowledge(message)
            return bytes(message.data())

    assert asyncio.run(wait()) == b"a"
    until = time.monotonic() + 10
    while not heard and time.monotonic() < until:
        time.sleep(0.01)
    assert heard == [b"a"]
    listener.close()


@pytest.mark.parametrize("kind", SHARING)
def test_consumers_that_share_wake_each_other(site: Site, kind: ConsumerType):
    """The one that waited for the transaction may leave; the others get the messages."""
    first, second = site.subscribe(kind), site.subscribe(kind)
    transaction = site.begin()
    for number in range(20):
        site.send(transaction, b"%d" % number, keys=[str(number)])
    assert first.receive_nowait() is None
    assert second.receive_nowait() is None
    first.close()
    transaction.commit()
    found = [second.receive(10_000).data() for _ in range(20)]
    assert sorted(found) == sorted(b"%d" % number for number in range(20))


def test_delayed_messages_are_due_after_their_commit(site: Site):
    """The time counts from the send, and nothing comes before the commit."""
    consumer = site.subscribe(ConsumerType.Shared)
    site.producer().close()
    transaction = site.begin()
    wall_ms = int(time.time() * 1000)
    site.send(transaction, b"late", deliver_at=[wall_ms + 1500])
    site.send(transaction, b"soon", deliver_at=[wall_ms + 1])
    assert received(consumer) == []
    transaction.commit()
    assert consumer.receive(10_000).data() == b"soon"
    assert consumer.receive(10_000).data() == b"late"
    assert int(time.time() * 1000) >= wall_ms + 1500


def test_the_word_returns_to_zero(site: Site):
    """So that a topic costs what it cost before its transactions."""
    consumer = site.subscribe()
    transaction = site.begin()
    site.send(transaction, b"a")
    ledger = consumer._core.session.ledger
    assert ledger.words[TopicWord.FIRST_OPEN_TXN]
    transaction.commit()
    assert ledger.words[TopicWord.FIRST_OPEN_TXN] == 0
    assert received(consumer) == [b"a"]


def test_a_reader_that_takes_what_is_not_committed(site: Site):
    """The switch is one of the cursor."""
    transaction = site.begin()
    site.send(transaction, b"a")
    use = site.client._core.store.use_topic("persistent://public/default/topic")
    start = use.topic.ledger.first_position()
    cursor = use.topic.ledger.cursor(start, inclusive=True, isolation=Isolation.UNCOMMITTED)
    assert [view.payload for view in cursor.read(10, 10, 1 << 20)] != []
    use.release()
    transaction.abort()
