"""The transport of kombu: exchanges, queues, acknowledgements, priorities, delays and event loops."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kombu", reason="the extra is not installed")

from kombu import Connection, Consumer, Exchange, Queue
from kombu.asynchronous import Hub

import embeddedpulsar.frameworks.kombu as ours
from embeddedpulsar import Admin
from embeddedpulsar.testing.trial_store import assert_clean


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """The URL of a store that is whole in the end, with no thread left."""
    threads = set(threading.enumerate())
    yield f"embeddedpulsar://{tmp_path / 'store'}"
    assert not set(threading.enumerate()) - threads
    if (tmp_path / "store").exists():
        assert_clean(tmp_path / "store")


def drain(connection: Connection, count: int, timeout_s: float = 10) -> None:
    """Have so many messages delivered."""
    for _ in range(count):
        connection.drain_events(timeout=timeout_s)


def is_empty(connection: Connection) -> bool:
    """Whether nothing is there to be delivered."""
    try:
        connection.drain_events(timeout=0)
    except TimeoutError:
        return True
    return False


@contextlib.contextmanager
def consuming(connection: Connection, queue: Queue, **options: Any) -> Iterator[list[Any]]:
    """A consumer in a channel of its own, and the messages that it was given."""
    channel = connection.channel()
    messages: list[Any] = []
    prefetch = options.pop("prefetch", 0)
    consumer = Consumer(channel, [queue], on_message=messages.append, **options)
    consumer.qos(prefetch_count=prefetch)
    with consumer:
        yield messages
    channel.close()


def payloads(messages: list[Any]) -> list[Any]:
    """What was published."""
    return [message.payload for message in messages]


def test_a_message_goes_through_a_queue(url: str):
    """The first steps with kombu, in two connections."""
    with Connection(url) as sending, Connection(url) as receiving:
        jobs = sending.SimpleQueue("jobs")
        jobs.put({"file": "holiday.jpg"})
        jobs.put(b"\xff\x00")
        waiting = receiving.SimpleQueue("jobs")
        assert waiting.qsize() == 2
        for expected in ({"file": "holiday.jpg"}, b"\xff\x00"):
            message = waiting.get(timeout=10)
            assert message.payload == expected
            message.ack()
        with pytest.raises(waiting.Empty):
            waiting.get_nowait()
        jobs.close()
        waiting.close()


def test_the_class_is_found_without_an_import(url: str):
    """``broker_transport`` names it; the URL is passed on as it is."""
    with Connection(url, transport="embeddedpulsar.frameworks.kombu:Transport") as connection:
        assert isinstance(connection.transport, ours.Transport)
        assert connection.as_uri() == url
        assert connection.default_channel is not None and connection.connected


def test_a_list_of_urls(url: str, tmp_path: Path):
    """The next store is taken by ``switch``, as kombu does when one cannot be opened."""
    with Connection([url, f"embeddedpulsar://{tmp_path}/other"]) as connection:
        connection.switch(f"embeddedpulsar://{tmp_path}/other")
        connection.SimpleQueue("jobs").close()
        assert (tmp_path / "other").is_dir()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("embeddedpulsar://", "names no directory"),
        ("embeddedpulsar:///srv/queue?colour=red", "unknown options of an embeddedpulsar URL: colour"),
        ("embeddedpulsar:///srv/queue?namespace", "bad query field"),
    ],
)
def test_urls_that_are_refused(text: str, words: str):
    """An error says what is wrong with a URL."""
    with pytest.raises(ValueError, match=words), Connection(text) as connection:
        connection.connect()


def test_options(tmp_path: Path):
    """Namespace, durability and priorities, in the URL and as options."""
    url = f"embeddedpulsar://{tmp_path}/store?namespace=acme/jobs&durability=flush"
    with Connection(url, transport_options={"priority_steps": [0, 5]}) as connection:
        connection.SimpleQueue("mails").close()
    with Admin(tmp_path / "store") as admin:
        names = [name.rpartition("/")[2] for name in admin.topics().get_list("acme/jobs")]
        assert names == ["exchange;mails", "mails", "mails;priority-5"]
    with (
        pytest.raises(ValueError, match="priorities are from 0 to 9"),
        Connection(url, transport_options={"priority_steps": [0, 10]}) as connection,
    ):
        connection.connect()


def test_a_direct_exchange(url: str):
    """A message goes to the queues that are bound with its key, whichever connection bound them."""
    exchange = Exchange("mails", "direct")
    with Connection(url) as workers, Connection(url) as sender:
        bills = Queue("bills", exchange, "bill")(workers.channel())
        copies = Queue("copies", exchange, "bill")(workers.channel())
        news = Queue("news", exchange, "news")(workers.channel())
        for queue in (bills, copies, news):
            queue.declare()
        producer = sender.Producer()
        producer.publish("1", exchange=exchange, routing_key="bill", declare=[exchange])
        producer.publish("2", exchange=exchange, routing_key="nobody")
        assert [queue.get(no_ack=True).payload for queue in (bills, copies)] == ["1", "1"]
        assert news.get() is None
        copies.unbind_from(exchange, "bill")
        producer.publish("3", exchange=exchange, routing_key="bill")
        assert (bills.get(no_ack=True).payload, copies.get()) == ("3", None)


def test_a_topic_exchange(url: str):
    """Keys are matched word by word."""
    exchange = Exchange("events", "topic")
    with Connection(url) as workers, Connection(url) as sender:
        eu = Queue("eu", exchange, "orders.eu.*")(workers.channel())
        everything = Queue("all", exchange, "#")(workers.channel())
        eu.declare()
        everything.declare()
        producer = sender.Producer()
        for key in ("orders.eu.paid", "orders.us.paid"):
            producer.publish(key, exchange=exchange, routing_key=key, declare=[exchange])
        assert eu.get(no_ack=True).payload == "orders.eu.paid" and eu.get() is None
        assert {everything.get(no_ack=True).payload for _ in range(2)} == {"orders.eu.paid", "orders.us.paid"}


def test_a_fanout_exchange(url: str):
    """Each queue gets each message, also one that ends with its connection."""
    exchange = Exchange("news", "fanout")
    with Connection(url) as first, Connection(url) as second, Connection(url) as sender:
        kept = Queue("kept", exchange)(first.channel())
        passing = Queue("passing", exchange, auto_delete=True)(second.channel())
        kept.declare()
        passing.declare()
        sender.Producer().publish("1", exchange=exchange, declare=[exchange])
        assert [queue.get(no_ack=True).payload for queue in (kept, passing)] == ["1", "1"]
        second.close()
        sender.Producer().publish("2", exchange=exchange)
        assert kept.get(no_ack=True).payload == "2"
        channel = sender.default_channel
        assert [queue for _, _, queue in channel.get_table("news")] == ["kept"]
        assert not channel._has_queue("passing")


def test_an_exclusive_queue_ends_with_its_connection(url: str):
    """Its topic and its bindings are gone."""
    with Connection(url) as connection:
        Queue("reply", Exchange("replies"), "id", exclusive=True)(connection.channel()).declare()
    with Connection(url) as connection:
        admin = connection.default_channel.connection.admin
        assert admin.topics().get_list("public/kombu-transient") == []
        assert connection.default_channel.get_table("replies") == []


def test_acknowledged_messages_are_gone_and_others_come_again(url: str):
    """A channel that closes returns what it holds, marked as redelivered."""
    queue = Queue("jobs")
    with Connection(url) as connection:
        producer = connection.Producer()
        for number in range(3):
            producer.publish(number, routing_key="jobs", declare=[queue])
        with consuming(connection, queue) as messages:
            drain(connection, 3)
            messages[1].ack()
        assert queue(connection.channel()).queue_declare().message_count == 2
        with consuming(connection, queue) as messages:
            drain(connection, 2)
            assert sorted(payloads(messages)) == [0, 2]
            assert all(message.delivery_info["redelivered"] for message in messages)
            for message in messages:
                message.ack()
        with consuming(connection, queue):
            assert is_empty(connection)


def test_reject_and_requeue(url: str):
    """A rejected message is gone; a requeued one comes again, marked."""
    queue = Queue("jobs")
    with Connection(url) as connection:
        for number in range(2):
            connection.Producer().publish(number, routing_key="jobs", declare=[queue])
        with consuming(connection, queue) as messages:
            drain(connection, 2)
            messages[0].reject()
            messages[1].requeue()
            drain(connection, 1)
            assert payloads(messages) == [0, 1, 1]
            assert messages[2].headers["redelivered"] is True and "redelivered" not in messages[1].headers
            messages[2].ack()
            assert is_empty(connection)


def test_recover(url: str):
    """All that a channel holds comes again, and an acknowledgement of the first delivery does nothing."""
    queue = Queue("jobs")
    with Connection(url) as connection:
        connection.Producer().publish("1", routing_key="jobs", declare=[queue])
        with consuming(connection, queue) as messages:
            drain(connection, 1)
            messages[0].channel.basic_recover(requeue=True)
            messages[0].ack()
            drain(connection, 1)
            assert payloads(messages) == ["1", "1"]
            messages[1].ack()
            with pytest.raises(NotImplementedError, match="returns what it holds"):
                messages[0].channel.basic_recover()


def test_prefetch(url: str):
    """A channel holds as many messages as it may, the others are there for other channels."""
    queue = Queue("jobs")
    with Connection(url) as connection, Connection(url) as other:
        for number in range(5):
            connection.Producer().publish(number, routing_key="jobs", declare=[queue])
        with consuming(connection, queue, prefetch=2) as messages, consuming(other, queue) as others:
            drain(connection, 2)
            assert is_empty(connection)
            drain(other, 3)
            assert sorted(payloads(messages + others)) == [0, 1, 2, 3, 4]
            connection.Producer().publish(5, routing_key="jobs")
            assert is_empty(connection)
            messages[0].ack()
            drain(connection, 1)
            assert payloads(messages)[-1] == 5


def test_priorities(url: str):
    """Higher priorities come first, in steps, and each in its order."""
    queue = Queue("jobs", max_priority=9)
    with Connection(url) as connection:
        for priority in (0, 9, 4, None, 3, 7):
            connection.Producer().publish(priority, routing_key="jobs", priority=priority, declare=[queue])
        bound = queue(connection.channel())
        assert bound.channel._size("jobs") == 6
        assert [bound.get(no_ack=True).payload for _ in range(6)] == [9, 7, 4, 3, 0, None]


def test_transient_queues_come_first(url: str):
    """What a worker is told comes before the tasks that wait, and tasks come however much it is told."""
    orders = []
    with Connection(url) as connection, Connection(url) as sender:
        for name, is_exclusive in (("jobs", False), ("controls", True)):
            queue = Queue(name, exclusive=is_exclusive, durable=not is_exclusive)
            consumer = connection.Consumer(
                queue, channel=connection.channel(), callbacks=[lambda body, message: orders.append(body)]
            )
            consumer.consume(no_ack=True)
        for _ in range(3):
            sender.Producer().publish("job", routing_key="jobs")
        for number in range(15):
            sender.Producer().publish(number, routing_key="controls")
        for _ in range(18):
            connection.drain_events(timeout=20)
    assert orders == [*range(10), "job", *range(10, 15), "job", "job"]


def test_priorities_of_a_queue_that_is_deleted_automatically(url: str):
    """If it is declared with some."""
    queue = Queue("jobs", max_priority=9, auto_delete=True)
    with Connection(url) as connection, Connection(url) as sender:
        bound = queue(connection.channel())
        bound.declare()
        for priority in (0, 9, 4):
            sender.Producer().publish(priority, routing_key="jobs", priority=priority)
        assert bound.channel._size("jobs") == 3
        assert [bound.get(no_ack=True).payload for _ in range(2)] == [9, 4]
        assert bound.purge() == 1


def test_a_requeued_message_is_there_again(url: str):
    """For the next call of the same channel."""
    with Connection(url) as connection:
        jobs = connection.SimpleQueue("jobs")
        jobs.put("tea")
        for _ in range(3):
            message = jobs.get_nowait()
            message.requeue()
        jobs.get_nowait().ack()
        with pytest.raises(jobs.Empty):
            jobs.get_nowait()
        jobs.close()


def test_queues_of_a_consumer_take_turns(url: str):
    """A long queue does not keep others of the channel waiting."""
    queues = [Queue("long"), Queue("short")]
    with Connection(url) as connection:
        for name in ("long", "long", "long", "short"):
            connection.Producer().publish(name, routing_key=name, declare=queues)
        order: list[str] = []
        with connection.Consumer(
            queues, on_message=lambda message: order.append(message.payload), no_ack=True
        ):
            drain(connection, 4)
        assert order.index("short") <= 2


def test_eta_is_a_delay_in_the_store(url: str):
    """A message with the header of Celery is delivered when it is due, and held by nobody before."""
    queue = Queue("jobs")
    now = datetime.now(UTC)
    with Connection(url) as connection:
        for eta in ((now - timedelta(hours=1)).isoformat(), now + timedelta(hours=1), "no time", None):
            connection.Producer().publish(str(eta), routing_key="jobs", headers={"eta": eta}, declare=[queue])
        with consuming(connection, queue) as messages:
            drain(connection, 3)
            assert is_empty(connection)
            assert payloads(messages) == [str(now - timedelta(hours=1)).replace(" ", "T"), "no time", "None"]
            channel = messages[0].channel
            assert channel._size("jobs") == 1
            for message in messages:
                message.ack()
            assert channel.queue_purge("jobs") == 1 and channel._size("jobs") == 0


def test_purge_leaves_what_consumers_hold(url: str):
    """Messages that wait are removed and counted."""
    queue = Queue("jobs")
    with Connection(url) as connection:
        for number in range(4):
            connection.Producer().publish(number, routing_key="jobs", priority=3 * number, declare=[queue])
        with consuming(connection, queue, prefetch=1) as messages:
            drain(connection, 1)
            assert queue(connection.channel()).purge() == 3
            messages[0].requeue()
            drain(connection, 1)
            assert payloads(messages) == [3, 3]
            messages[1].ack()


def test_expired_messages_are_dropped(url: str, monkeypatch: pytest.MonkeyPatch):
    """By the time to live of the message, and by that of the queue."""
    with Connection(url) as connection:
        short, plain = Queue("short", message_ttl=20), Queue("plain")
        connection.Producer().publish("1", routing_key="short", declare=[short])
        connection.Producer().publish("2", routing_key="plain", expiration=10, declare=[plain])
        connection.Producer().publish("3", routing_key="plain", expiration=40)
        transport = connection.default_channel.connection
        assert transport.admin.topics().get_message_ttl("public/kombu/short") == 20
        now_ms = transport.now_ms()
        monkeypatch.setattr(ours.Transport, "now_ms", lambda self: now_ms + 30_000)
        assert short(connection.channel()).get() is None
        assert plain(connection.channel()).get(no_ack=True).payload == "3"


def test_arguments_of_queues(url: str):
    """What is not kept is refused; a queue that expires is deleted by a policy."""
    with Connection(url) as connection:
        with pytest.raises(NotImplementedError, match="x-max-length: queues of embeddedpulsar have no limit"):
            Queue("short", max_length=10)(connection.channel()).declare()
        Queue("hour", expires=3600)(connection.channel()).declare()
        topics = connection.default_channel.connection.admin.topics()
        policies = topics.get_inactive_topic_policies("public/kombu/hour")
        assert policies is not None and policies.max_inactive_duration_seconds == 3600
        with pytest.raises(connection.channel_errors, match="choose a shorter one"):
            Queue("x" * 200)(connection.channel()).declare()


def test_a_queue_is_deleted_with_its_bindings(url: str):
    """Also those to exchanges that this connection did not declare; a queue with messages may stay."""
    exchange = Exchange("mails", "topic")
    with Connection(url) as connection, Connection(url) as other:
        queue = Queue("bills", exchange, "#")(connection.channel())
        queue.declare()
        connection.Producer().publish("1", exchange=exchange, routing_key="bill")
        channel = other.channel()
        channel.queue_delete("bills", if_empty=True)
        assert channel._has_queue("bills")
        channel.queue_delete("bills")
        assert not channel._has_queue("bills")
        assert channel.connection.admin.topics().get_list("public/kombu") == [
            "persistent://public/kombu/exchange;mails"
        ]
        channel.exchange_delete("mails")
        assert channel.connection.admin.topics().get_list("public/kombu") == []
        with pytest.raises(other.channel_errors, match="no queue 'bills'"):
            channel.queue_declare("bills", passive=True)


def test_a_queue_that_was_deleted_meanwhile(url: str):
    """A consumer gets an error of the connection, so that Celery declares the queue again; a producer
    makes it."""
    queue = Queue("jobs")
    with Connection(url) as connection, Connection(url) as other:
        producer = connection.Producer()
        producer.publish("1", routing_key="jobs", declare=[queue])
        with consuming(other, queue):
            drain(other, 1)
            connection.default_channel.queue_delete("jobs")
            with pytest.raises(connection.connection_errors):
                drain(other, 1)
        producer.publish("2", routing_key="jobs")
        assert queue(connection.channel()).get(no_ack=True).payload == "2"


def run_until(hub: Hub, is_done: Callable[[], bool]) -> None:
    """Run an event loop of kombu."""
    timer = hub.call_later(20, lambda: pytest.fail("nothing came for 20 s"))
    while not is_done():
        hub.run_once()
    timer.cancel()


def test_an_event_loop_delivers_what_comes(url: str):
    """Messages of other threads wake the loop; prefetch holds; the loop is left as it was."""
    queue, messages = Queue("jobs"), []
    hub = Hub()
    with Connection(url) as connection, Connection(url) as other:
        connection.register_with_event_loop(hub)
        channel = connection.channel()
        consumer = Consumer(channel, [queue], on_message=messages.append)
        consumer.qos(prefetch_count=2)
        consumer.consume()
        hub.run_once()

        def send() -> None:
            for number in range(5):
                other.Producer().publish(number, routing_key="jobs", declare=[queue])

        sender = threading.Thread(target=send)
        sender.start()
        run_until(hub, lambda: len(messages) == 2)
        sender.join()
        hub.run_once()
        assert len(messages) == 2
        acknowledging = threading.Thread(target=lambda: [message.ack() for message in messages[:2]])
        acknowledging.start()
        run_until(hub, lambda: len(messages) == 4)
        acknowledging.join()
        messages[2].ack()
        messages[3].ack()
        run_until(hub, lambda: len(messages) == 5)
        messages[4].ack()
        consumer.cancel()
        connection.transport.unregister_from_event_loop(connection.connection, hub)
        assert not hub.readers
    hub.close()
    assert sorted(payloads(messages)) == [0, 1, 2, 3, 4]


def test_a_thread_that_rings_while_the_loop_empties_its_socket(url: str):
    """The next ring wakes the loop nevertheless."""

    class Ringing:
        """A socket that another thread writes to just before it is read."""

        def __init__(self, watch: Any) -> None:
            self.watch, self.socket = watch, watch._own

        def recv(self, size: int) -> bytes:
            self.watch.look_again()
            return bytes(self.socket.recv(size))

        def __getattr__(self, name: str) -> Any:
            return getattr(self.socket, name)

    queue, messages = Queue("jobs"), []
    hub = Hub()
    with Connection(url) as connection, Connection(url) as other:
        connection.register_with_event_loop(hub)
        watch = connection.transport._watch
        watch._own = Ringing(watch)
        with Consumer(connection.channel(), [queue], on_message=messages.append, no_ack=True):
            for number in range(3):
                hub.run_once()
                other.Producer().publish(number, routing_key="jobs", declare=[queue])
                run_until(hub, lambda: len(messages) == number + 1)  # noqa: B023 - called in this turn
        connection.transport.unregister_from_event_loop(connection.connection, hub)
    hub.close()
    assert payloads(messages) == [0, 1, 2]


def test_a_fork_leaves_the_connection_to_its_parent(url: str):
    """A child that closes its copy takes nothing from its parent."""
    queue = Queue("jobs")
    with Connection(url) as connection:
        with consuming(connection, queue) as messages:
            connection.Producer().publish("1", routing_key="jobs", declare=[queue])
            drain(connection, 1)
            child = os.fork()
            if not child:
                status = 1
                try:
                    connection.collect()
                    with Connection(url) as own:
                        own.Producer().publish("2", routing_key="jobs")
                    status = 0
                finally:
                    os._exit(status)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            drain(connection, 1)
            assert payloads(messages) == ["1", "2"]
            for message in messages:
                message.ack()
        assert queue(connection.channel()).get() is None
