"""Topics and subscriptions that nobody uses are closed, and opened again when they are asked for."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from embeddedpulsar import Client, InitialPosition, MessageId
from embeddedpulsar._engine.format.catalog_record import TopicEntry
from embeddedpulsar._engine.platform import timing
from embeddedpulsar._engine.store.open_topics import MOST_IDLE
from embeddedpulsar._engine.store.topic import Topic
from embeddedpulsar.exceptions import AlreadyClosed, ConsumerBusy, LockTimeout, ProducerBusy
from tests.support.process_state import open_descriptors


def touch_many(client: Client, count: int = MOST_IDLE + 1) -> None:
    """Use other topics, so that whatever was idle before is closed."""
    for number in range(count):
        client.create_producer(f"other-{number}").close()


def test_an_idle_topic_stays_until_there_are_too_many(store):
    """The same instance for the next user; closed once so many others became idle after it."""
    use = store.use_topic("a")
    use.release()
    again = store.use_topic("a")
    assert again.topic is use.topic
    again.release()
    for number in range(MOST_IDLE):
        store.use_topic(f"t{number}").release()
    assert use.topic.closed
    last = store.use_topic("a")
    assert last.topic is not use.topic
    assert not last.topic.closed
    use.release()  # says nothing about the new instance
    store._topics.close_idle()
    assert not last.topic.closed
    last.release()


def test_few_locks_of_openings_are_kept(store):
    """Those that no thread wants are dropped; the same one is found as long as a thread has it."""
    held = store._topics._opening("a")
    for number in range(100):
        store._topics._opening(f"t{number}")
    assert len(store._topics._openings) <= 33 and store._topics._opening("a") is held


def test_topics_in_use_and_kept_topics_are_not_closed(store):
    """Whoever holds a topic, or asked for it without saying until when, keeps it open."""
    kept = store.use_topic("kept").topic
    use = store.use_topic("used")
    for name in ("kept", "used"):
        store.use_topic(name).release()
    for number in range(2 * MOST_IDLE):
        store.use_topic(f"t{number}").release()
    store._topics.close_idle()
    assert not kept.closed
    assert not use.topic.closed
    use.release()
    use.release()
    store._topics.close_idle()
    assert use.topic.closed


def test_threads_may_ask_for_a_topic_while_it_is_closed(store):
    """Eight threads use and release one topic while another closes everything idle: never a closed one."""
    failures: list[BaseException] = []
    going = threading.Event()

    def use_it() -> None:
        try:
            for _ in range(60):
                use = store.use_topic("a")
                assert use.topic.ledger.last_position() is None
                use.release()
        except BaseException as e:
            failures.append(e)

    def close_it() -> None:
        while not going.is_set():
            store._topics.close_idle()

    closer = threading.Thread(target=close_it)
    users = [threading.Thread(target=use_it) for _ in range(8)]
    for thread in (closer, *users):
        thread.start()
    for thread in users:
        thread.join()
    going.set()
    closer.join()
    assert not failures


def test_a_failure_to_close_an_idle_topic_is_logged(store, monkeypatch, caplog):
    """It is not the failure of whoever comes next."""
    use = store.use_topic("a")
    use.release()
    real = type(use.topic).close

    def fail(topic) -> None:
        real(topic)
        raise OSError("no")

    monkeypatch.setattr(type(use.topic), "close", fail)
    store._topics.close_idle()
    monkeypatch.undo()
    assert "topic failed: no" in caplog.text
    assert store.use_topic("a").topic is not use.topic


@pytest.mark.parametrize("durability", ["process", "interval", "flush"])
def test_a_closed_topic_is_opened_again_with_everything(tmp_path, durability):
    """Producer, consumer and reader find what was sent before; messages received before stay readable."""
    with Client(str(tmp_path / "store"), durability=durability) as client:
        with client.create_producer("a", "me") as producer:
            producer.send(b"one")
            producer.send_async(b"two", None)
        with client.subscribe("a", "s", initial_position=InitialPosition.Earliest) as consumer:
            first = consumer.receive(1000)
            consumer.acknowledge(first)
        touch_many(client)
        assert first.data() == b"one"
        producer = client.create_producer("a", "me")
        producer.send(b"three")
        consumer = client.subscribe("a", "s")
        reader = client.create_reader("a", MessageId.earliest)
        touch_many(client)
        assert [consumer.receive(1000).data() for _ in range(2)] == [b"two", b"three"]
        assert [message.data() for message in reader] == [b"one", b"two", b"three"]
        for closed in (producer, consumer, reader):
            closed.close()
            with pytest.raises(AlreadyClosed):
                closed.close()


def test_who_is_refused_holds_nothing(tmp_path):
    """A name that is taken, a subscription that is held: the topic is idle again afterwards."""
    with Client(str(tmp_path / "store")) as client:
        producer, consumer = client.create_producer("a", "me"), client.subscribe("a", "s")
        with pytest.raises(ProducerBusy):
            client.create_producer("a", "me")
        with pytest.raises(ConsumerBusy):
            client.subscribe("a", "s")
        topic = client._core.store.use_topic("a").topic
        topics = client._core.store._topics
        assert topics._usage._users[topic.name] == 3
        producer.close()
        consumer.close()
        assert topics._usage._users[topic.name] == 1


def test_a_listener_goes_on_when_topics_of_others_are_closed(tmp_path):
    """One thread serves several listeners: one whose topic is closed does not end it."""
    with Client(str(tmp_path / "store")) as client:
        got = threading.Event()
        leaving = client.subscribe("a", "s", message_listener=lambda consumer, _: consumer.close())
        client.subscribe("b", "s", message_listener=lambda *_: got.set())
        client.create_producer("a").send(b"go")
        while leaving.is_connected():
            client._core.wake()
        touch_many(client)
        client.create_producer("b").send(b"still there?")
        assert got.wait(10)


def test_deleted_subscriptions_keep_no_descriptors(tmp_path):
    """Subscribing and unsubscribing under ever new names; idle ones are bounded too."""
    with Client(str(tmp_path / "store")) as client:
        client.create_producer("a")
        client.subscribe("a", "first").unsubscribe()
        before = open_descriptors()
        for number in range(300):
            client.subscribe("a", f"temporary-{number}").unsubscribe()
        assert open_descriptors() <= before
        for number in range(40):
            client.subscribe("a", f"lasting-{number}").close()
        assert open_descriptors() <= before + 8 * 3
        client.subscribe("a", "lasting-0").close()


def test_a_subscription_in_use_outlives_the_deletion_by_another(tmp_path):
    """Deleted by force while a consumer is attached: released with that consumer, and it can be made anew."""
    with Client(str(tmp_path / "store")) as client:
        producer = client.create_producer("a")
        consumer = client.subscribe("a", "s")
        topic = client._core.store.use_topic("a").topic
        consumer._core.session.subscription.delete(force=True)
        assert [one.name for one in topic._subscriptions] == ["s"]
        consumer.close()
        assert not topic._subscriptions
        with client.subscribe("a", "s") as consumer:
            producer.send(b"x")
            assert consumer.receive(1000).data() == b"x"


def test_a_topic_whose_opening_waits_holds_up_no_other(store, monkeypatch):
    """Its files may be locked by a process that is stopped. Threads that want the same topic wait for it, and
    share it; others get theirs."""
    opening, go_on, ready = Topic.open, threading.Event(), threading.Event()
    opened: list[str] = []

    def open_slowly(directory: str, entry: TopicEntry, **options: Any) -> Topic:
        opened.append(entry.name)
        if entry.name.endswith("stuck"):
            ready.set()
            assert go_on.wait(60)
        return opening(directory, entry, **options)

    monkeypatch.setattr(Topic, "open", open_slowly)
    found: list[Topic] = []
    threads = [
        threading.Thread(target=lambda: found.append(store.use_topic("stuck").topic)) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    assert ready.wait(60)
    try:
        assert timing.within(5.0, store.use_topic, "other").topic.name.endswith("other")
        for _ in range(2):  # the first does not let the second open it beside the thread that does
            with pytest.raises(LockTimeout, match=r"the opening of .*stuck"):
                timing.within(0.01, store.use_topic, "stuck")
    finally:
        go_on.set()
        for thread in threads:
            thread.join()
    assert found == [store.use_topic("stuck").topic] * 3
    assert len(opened) == 2
