"""Access modes of producers: who shares a topic with whom, and what happens to those who may not."""

from __future__ import annotations

import threading

import pytest

from embeddedpulsar import (
    AlreadyClosed,
    Client,
    Interrupted,
    MessageId,
    ProducerAccessMode,
    ProducerBusy,
    ProducerFenced,
)
from embeddedpulsar._engine.format.entry import encode_single
from embeddedpulsar._engine.store.store import REGISTRY
from tests.support.clients import wait_until

Shared = ProducerAccessMode.Shared
Exclusive = ProducerAccessMode.Exclusive
Waiting = ProducerAccessMode.WaitForExclusive
Fencing = ProducerAccessMode.ExclusiveWithFencing


@pytest.fixture
def other(store_url, client):
    """A client of the same store that knows nothing of the first: as another process sees it."""
    REGISTRY.stores.clear()
    made = Client(store_url)
    yield made
    made.shutdown()


def in_background(create):
    """Run ``create`` in a thread; gives the thread and where its result or error goes."""
    outcome = []

    def run() -> None:
        try:
            outcome.append(create())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


def waiting_producers(client: Client) -> list[str]:
    """Names of those who stand in the queue of the topic."""
    producers = client._core.store.use_topic("topic").topic._producers.get()
    producers.names()
    return [one.name for one in producers._table.waiting.values()]


# What is there, what is asked for, what comes of it. None: let in.
TABLE = [
    ((), Shared, None),
    ((), Exclusive, None),
    ((), Waiting, None),
    ((), Fencing, None),
    ((Shared,), Shared, None),
    ((Shared,), Exclusive, ProducerFenced),
    ((Shared,), Waiting, "waits"),
    ((Shared,), Fencing, "fences"),
    ((Exclusive,), Shared, ProducerBusy),
    ((Exclusive,), Exclusive, ProducerFenced),
    ((Exclusive,), Waiting, "waits"),
    ((Exclusive,), Fencing, "fences"),
    ((Shared, Waiting), Shared, ProducerBusy),
    ((Shared, Waiting), Exclusive, ProducerFenced),
    ((Shared, Waiting), Waiting, "waits"),
    ((Shared, Waiting), Fencing, "fences"),
    ((Fencing,), Shared, ProducerBusy),
    ((Fencing,), Exclusive, ProducerFenced),
    ((Fencing,), Waiting, "waits"),
    ((Fencing,), Fencing, "fences"),
]


@pytest.mark.parametrize(("there", "asked", "expected"), TABLE)
def test_the_table_of_access_modes(topic, other, there, asked, expected):
    """Every mode against every state of the topic, between two processes."""
    present, threads = [], []
    for mode in there:
        if mode == Waiting:
            threads.append(in_background(lambda: topic.producer(producer_name="w", access_mode=Waiting)))
            wait_until(lambda: waiting_producers(topic.client) == ["w"])
        else:
            present.append(topic.producer(access_mode=mode))

    def ask():
        return other.create_producer("topic", "new", access_mode=asked)

    if expected is None:
        ask().send(b"in")
    elif expected == "waits":
        thread, outcome = in_background(ask)
        wait_until(lambda: "new" in waiting_producers(other))
        assert not outcome
        for one in present:
            one.send(b"still there")
            one.close()
        for waiter, granted in threads:
            waiter.join(10)
            granted[0].send(b"first in the queue")
            granted[0].close()
        thread.join(10)
        outcome[0].send(b"granted")
    elif expected == "fences":
        fencing = ask()  # kept: one that is dropped is closed, and those it fenced out work again
        fencing.send(b"mine")
        for one in present:
            with pytest.raises((ProducerFenced, AlreadyClosed)):
                one.send(b"too late")
        for waiter, refused in threads:
            waiter.join(10)
            assert isinstance(refused[0], ProducerFenced)
    else:
        with pytest.raises(expected):
            ask()
        for one in present:
            one.send(b"nothing happened to me")
        for one in present:
            one.close()
        for waiter, granted in threads:
            waiter.join(10)
            granted[0].close()
    for one in present:
        if one.is_connected():
            one.close()


def test_the_queue_is_served_in_order(topic, other):
    """First come, first served, whatever process they are in."""
    holder = topic.producer(access_mode=Exclusive)
    order, waiters = [], []

    def wait_for(client, name):
        producer = client.create_producer("topic", name, access_mode=Waiting)
        order.append(name)
        producer.close()

    for number, client in enumerate((other, topic.client, other)):
        waiters.append(in_background(lambda c=client, n=f"w{number}": wait_for(c, n))[0])
        wait_until(lambda n=number: len(waiting_producers(topic.client)) == n + 1)
    holder.close()
    for waiter in waiters:
        waiter.join(10)
    assert order == ["w0", "w1", "w2"]


@pytest.mark.in_memory
def test_every_grant_raises_the_epoch(topic):
    """Entries carry the epoch of the grant they were written under: two writers at once would show."""
    for mode in (Exclusive, Waiting, Fencing):
        with topic.producer(access_mode=mode) as producer:
            producer.send(b"")
    with topic.producer() as producer:
        producer.send(b"")
    ledger = topic.client._core.store.use_topic("topic").topic.ledger
    views = ledger.cursor(ledger.first_position(), inclusive=True).read(10, 10, 1 << 20)
    assert [view.producer_epoch for view in views] == [1, 2, 3, 0]


def test_who_was_fenced_out_stays_out(topic, other):
    """Every later send fails, batches and callbacks included; closing works."""
    plain = topic.producer()
    batching = topic.producer(batching_enabled=True, batching_max_publish_delay_ms=60_000)
    plain.send(b"before")
    batching.send_async(b"waits", None)
    told = []
    batching.send_async(b"waits too", lambda result, _: told.append(result.name))
    usurper = other.create_producer("topic", access_mode=Fencing)
    for _ in range(2):
        with pytest.raises(ProducerFenced, match="fenced out"):
            plain.send(b"late")
        with pytest.raises(ProducerFenced):
            plain.send(b"late", properties={"a": "b"})
    batching.flush()  # told by the callback
    assert told == ["ProducerFenced"]
    usurper.send(b"after")
    plain.close()
    batching.close()
    reader = topic.client.create_reader("topic", MessageId.earliest)
    assert [reader.read_next(1000).data() for _ in range(2)] == [b"before", b"after"]
    assert not reader.has_message_available()


def test_no_moment_between_looking_and_writing(topic, other):
    """A producer that was stopped just before its append, and fenced out meanwhile, does not write."""
    producer = topic.producer(access_mode=Exclusive)
    producer.send(b"mine")
    publisher = producer._publisher
    entry = encode_single(b"stopped here", 1, publisher.prefix)
    append = publisher.append_nowait
    with other.create_producer("topic", access_mode=Fencing) as usurper:
        for attempt in (b"before anything was sent", b"after"):
            with pytest.raises(ProducerFenced):
                append(entry, publisher.queue)
            usurper.send(attempt)
        with pytest.raises(ProducerFenced):
            append(entry, publisher.queue)
    with pytest.raises(ProducerFenced):
        append(entry, publisher.queue)


def test_interrupted_while_waiting(topic, other, monkeypatch):
    """Ctrl-C ends the wait and leaves the queue: the next in it does not wait for a ghost."""
    holder = topic.producer()
    mailbox = other._core.store.mailbox

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(mailbox, "wait", interrupt)
    with pytest.raises(Interrupted):
        other.create_producer("topic", "gone", access_mode=Waiting)
    assert waiting_producers(topic.client) == []
    monkeypatch.undo()
    topic.producer().close()  # a shared one is let in again: nobody waits
    holder.close()


def test_who_wants_a_topic_alone_is_not_alone_with_a_namesake(topic):
    """Exclusive is asked before the name is: what is in the way is somebody, whatever he is called."""
    with topic.producer(producer_name="till"):
        with pytest.raises(ProducerFenced):
            topic.producer(producer_name="till", access_mode=Exclusive)
        with pytest.raises(ProducerBusy):
            topic.producer(producer_name="till")
