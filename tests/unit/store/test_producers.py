"""Registration of producers over the topic's journal."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest

from embeddedpulsar._engine.format.control import TopicWord
from embeddedpulsar._engine.platform import failpoints, timing
from embeddedpulsar._engine.store.store import REGISTRY, Store
from embeddedpulsar._engine.store.topic import Topic
from embeddedpulsar._engine.store.topic_journal import JOURNAL_CHECKED
from embeddedpulsar.enums import ProducerAccessMode as Mode
from embeddedpulsar.exceptions import AlreadyClosed, ProducerBusy, ProducerFenced, Timeout, TopicTerminated
from tests.support.clients import wait_until


@pytest.fixture
def topic(store: Store) -> Topic:
    """A topic in it."""
    return store.use_topic("orders").topic


@pytest.fixture
def other(root: Path, store: Store):
    """The same topic as another process sees it: a second session of the store in this process."""
    REGISTRY.stores.clear()
    second = Store.open(root)
    yield second.use_topic("orders").topic
    second.release()


def test_names_are_given_or_made(topic: Topic, other: Topic):
    """Made names differ over processes; given ones are kept. Ids are unique in the topic."""
    made = [one.attach_producer() for one in (topic, topic, other)]
    assert [one.name for one in made] == ["standalone-0-0", "standalone-0-1", "standalone-1-0"]
    given = other.attach_producer("bob")
    assert given.name == "bob" and given.last_sequence_id == -1 and given.epoch == 0
    assert given.producer_id == 4
    assert topic.producers() == other.producers() == [*(one.name for one in made), "bob"]
    assert topic.attach_producer("").name == "standalone-0-2"


def test_a_name_is_taken_while_its_producer_lives(topic: Topic, other: Topic):
    """In the same process and in another one; free when given back."""
    bob = topic.attach_producer("bob")
    for one in (topic, other):
        with pytest.raises(ProducerBusy, match="'bob' is connected"):
            one.attach_producer("bob")
    topic.check_producer(bob)
    topic.detach_producer(bob)
    topic.detach_producer(bob)
    again = other.attach_producer("bob")
    with pytest.raises(AlreadyClosed, match="not registered"):
        topic.check_producer(bob)
    other.check_producer(again)


def test_the_dead_are_taken_out_by_whoever_comes(topic: Topic, other: Topic, monkeypatch):
    """The name of a producer whose lease is free is free, though it never closed."""
    other.attach_producer("bob")
    other._session.mailbox.close()  # as the kernel does it with a killed process
    assert topic.producers() == []
    assert topic.attach_producer("bob").producer_id == 2


def test_nobody_is_declared_dead_without_an_answer(topic: Topic, other: Topic, monkeypatch):
    """A lease that cannot be examined is taken as held."""
    other.attach_producer("bob")

    def fail(uuid: bytes) -> bool:
        raise OSError(24, "too many open files")

    monkeypatch.setattr(topic._session.peers, "is_alive", fail)
    with pytest.raises(ProducerBusy):
        topic.attach_producer("bob")


def test_access_modes(topic: Topic, other: Topic):
    """Exclusive refuses and is refused; fencing puts the holder out, whose next check says so."""
    holder = topic.attach_producer(access_mode=Mode.Exclusive)
    assert holder.epoch == 1
    with pytest.raises(ProducerBusy):
        other.attach_producer()
    with pytest.raises(ProducerFenced):
        other.attach_producer(access_mode=Mode.Exclusive)
    topic.check_producer(holder)
    usurper = other.attach_producer(access_mode=Mode.ExclusiveWithFencing)
    assert usurper.epoch == 2
    with pytest.raises(ProducerFenced, match="fenced out"):
        topic.check_producer(holder)
    other.check_producer(usurper)
    topic.detach_producer(holder)
    other.detach_producer(usurper)
    assert topic.attach_producer(access_mode=Mode.Exclusive).epoch == 3


def test_waiting_for_exclusive_access(topic: Topic, other: Topic):
    """The waiter gets the topic when the holder leaves, however long that takes."""
    holder = topic.attach_producer()
    granted = []
    waiter = threading.Thread(
        target=lambda: granted.append(other.attach_producer("w", access_mode=Mode.WaitForExclusive))
    )
    waiter.start()
    wait_until(lambda: other._session.mailbox._is_led())
    assert not granted
    topic.detach_producer(holder)
    waiter.join(10)
    assert granted[0].name == "w" and granted[0].epoch == 1
    assert topic.producers() == ["w"]


def test_waiting_ends_when_the_holder_dies(topic: Topic, other: Topic):
    """Death of those ahead is noticed; the queue moves on."""
    other.attach_producer(access_mode=Mode.Exclusive)
    granted = []
    waiter = threading.Thread(
        target=lambda: granted.append(topic.attach_producer(access_mode=Mode.WaitForExclusive))
    )
    waiter.start()
    wait_until(lambda: topic._session.mailbox._is_led())
    other._session.mailbox.close()
    waiter.join(10)
    assert granted[0].epoch == 2


def test_waiting_ends_by_time_out_and_by_fencing(topic: Topic, other: Topic):
    """Whoever gives up leaves the queue; whoever is fenced while waiting is told."""
    holder = topic.attach_producer()
    with pytest.raises(Timeout, match="'w'"):
        other.attach_producer("w", access_mode=Mode.WaitForExclusive, timeout_s=0.02)
    assert not topic._producers.get()._table.waiting
    errors = []

    def wait() -> None:
        try:
            other.attach_producer("w", access_mode=Mode.WaitForExclusive)
        except ProducerFenced as e:
            errors.append(e)

    waiter = threading.Thread(target=wait)
    waiter.start()
    wait_until(lambda: other._session.mailbox._is_led())
    topic.attach_producer("f", access_mode=Mode.ExclusiveWithFencing)
    waiter.join(10)
    assert len(errors) == 1
    with pytest.raises(ProducerFenced):
        topic.check_producer(holder)


@pytest.mark.parametrize("point", ["journal:body_done", "journal:word_stored"])
def test_an_interrupted_registration_is_given_back(topic: Topic, other: Topic, point: str):
    """Ctrl-C in the middle of it does not leave the name taken for the life of the process."""
    topic.attach_producer()
    failpoints.set(point, "raise:KeyboardInterrupt")
    try:
        with pytest.raises(KeyboardInterrupt):
            topic.attach_producer("bob")
    finally:
        failpoints.clear()
    assert other.producers() == ["standalone-0-0"]
    assert topic.attach_producer("bob").name == "bob"


def test_a_terminated_topic_takes_no_producer(topic: Topic):
    """TopicTerminated at registration already."""
    topic.ledger.terminate()
    with pytest.raises(TopicTerminated):
        topic.attach_producer()


def test_the_limit_of_producers(root: Path):
    """maxProducersPerTopic counts the living."""
    root.mkdir()
    (root / "broker.conf").write_text("maxProducersPerTopic=1")
    store = Store.open(root)
    topic = store.use_topic("orders").topic
    first = topic.attach_producer()
    with pytest.raises(ProducerBusy, match="maxProducersPerTopic"):
        topic.attach_producer()
    topic.detach_producer(first)
    topic.attach_producer()
    store.release()


def test_a_new_boot_starts_without_producers(root: Path, monkeypatch):
    """The journal word is not believed after a reboot: the journal is recovered, its producers are dead."""
    store = Store.open(root)
    store.use_topic("orders").topic.attach_producer("bob")
    store.release()
    monkeypatch.setattr(timing, "_boot_id", os.urandom(16))
    store = Store.open(root)
    topic = store.use_topic("orders").topic
    topic.ledger.words[TopicWord.JOURNAL] = 7 << 32 | 12345  # what a power loss may leave of it
    assert topic.producers() == []
    assert topic.attach_producer("bob").producer_id == 2, "ids go on where the journal ended"
    store.release()


def test_the_journal_is_compacted(topic: Topic, other: Topic):
    """Thousands of comings and goings do not grow the directory; ids and epochs survive."""
    journal = topic._producers.get().journal
    journal.place = journal._at.place = journal.place._replace(compact_bytes=4096)
    for _ in range(200):
        topic.detach_producer(topic.attach_producer())
    stays = topic.attach_producer("bob")
    assert journal.generation > 3
    assert other.producers() == ["bob"]
    other.check_producer(stays)
    journals = [name for name in os.listdir(topic.directory) if name.startswith("journal.")]
    assert len(journals) <= 2


def test_checking_is_one_read_of_a_word(topic: Topic):
    """A check takes no lock as long as the journal stands still."""
    bob = topic.attach_producer("bob")
    topic.check_producer(bob)
    topic.ledger.lock.acquire()
    done = threading.Thread(target=lambda: topic.check_producer(bob))
    done.start()
    done.join(5)
    assert not done.is_alive()
    topic.ledger.lock.release()


def test_the_parents_registration_means_nothing_in_a_forked_child(topic: Topic):
    """There it can neither be used nor given back."""
    bob = topic.attach_producer("bob")
    foreign = bob._replace(generation=bob.generation + 1)
    topic.detach_producer(foreign)
    with pytest.raises(AlreadyClosed, match="parent"):
        topic.check_producer(foreign)
    assert topic.producers() == ["bob"]


def test_producers_are_made_once(topic: Topic):
    """By whichever of the threads that ask for them at once, and with nothing before that."""
    late = topic._producers
    assert not late._made and not late.existed
    start, made = threading.Barrier(4), []

    def ask() -> None:
        start.wait()
        made.append(late.get())

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(one) for one in made}) == 1 and not late.existed
    topic.attach_producer("a")
    assert late.existed


def test_the_journal_rests_with_the_lock(topic: Topic, monkeypatch: pytest.MonkeyPatch):
    """Both give their descriptor back when the process has used up its share."""
    topic.attach_producer("a")
    journal, rested = topic._producers.get().journal, []
    monkeypatch.setattr(type(journal), "close_descriptor", lambda self: rested.append(self))
    assert topic.ledger.lock.close_descriptor()
    assert rested == [journal]


def test_leaving_a_topic_that_was_removed(topic: Topic, root: Path):
    """Another process deleted it, and one that was killed in its lock left the journal to be recovered."""
    bob = topic.attach_producer("bob")
    topic.ledger.words[JOURNAL_CHECKED] = 0
    (directory,) = root.glob("topics/*-orders")
    shutil.rmtree(directory)
    topic.detach_producer(bob)
