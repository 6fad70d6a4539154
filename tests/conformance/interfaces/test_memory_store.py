"""``memory://``: a store in the memory of one process, and what it cannot do."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from embeddedpulsar import Admin, Client, ConsumerType, MessageId, arrow
from embeddedpulsar.exceptions import AlreadyClosed, ForeignFileError, TopicNotFound
from embeddedpulsar.managed_ledger.memory_log import MemoryLog
from embeddedpulsar.managed_ledger.options import LedgerOptions
from embeddedpulsar.managed_ledger.position import Position
from embeddedpulsar.topic.store import Store
from embeddedpulsar.topic.store_registry import REGISTRY
from tests.conformance.conftest import receive_all

URL = "memory://tests"
PER_LEDGER = 10


@pytest.fixture
def client() -> Iterator[Client]:
    """A client of the store `URL`; afterwards nothing of that is left."""
    before = len(REGISTRY.stores)
    made = Client(URL)
    root = made._core.store.root
    yield made
    made.shutdown()
    assert len(REGISTRY.stores) == before and URL not in REGISTRY.in_memory
    assert not os.path.exists(root)


def payloads(client: Client, topic: str = "topic") -> list[bytes]:
    """What is in a topic."""
    with client.create_reader(topic, MessageId.earliest) as reader:
        return [message.data() for message in reader]


def publish(client: Client, count: int, topic: str = "topic") -> list[Any]:
    """Send ``0``, ``1`` and so on, and return their ids."""
    with client.create_producer(topic) as producer:
        return [producer.send(b"%d" % number) for number in range(count)]


def log_of(client: Client, topic: str = "topic") -> MemoryLog:
    """The log of a topic."""
    log = client._core.store.use_topic(topic).topic.ledger
    assert isinstance(log, MemoryLog)
    return log


def in_child(action: Callable[[], str]) -> str:
    """What a function returns in a forked child, or the error it raises."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            try:
                answer = action()
            except BaseException as e:
                answer = f"{type(e).__name__}: {e}"
            os.write(write, answer.encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    with os.fdopen(read, "rb") as pipe:
        return pipe.read().decode()


def test_clients_of_one_name_share_a_store(client: Client):
    """Until the last of them is closed; one of the same name that comes later is new."""
    publish(client, 2)
    with Client(URL) as other, Client("memory://other") as stranger, Client("memory://") as private:
        assert payloads(other) == [b"0", b"1"]
        client.close()
        assert payloads(other) == [b"0", b"1"]
        assert payloads(stranger) == payloads(private) == []
    with Client(URL) as later:
        assert payloads(later) == []


def test_no_file_holds_messages(client: Client):
    """What the temporary directory holds are control words, journals and locks."""
    publish(client, 3)
    topics = os.path.join(client._core.store.root, "topics")
    (topic,) = os.listdir(topics)
    assert not [name for name in os.listdir(os.path.join(topics, topic)) if name.endswith((".log", ".idx"))]


def test_a_topic_that_was_closed_meanwhile_keeps_its_messages(client: Client):
    """A process closes idle topics, and opens them again."""
    publish(client, 2)
    log = log_of(client)
    client._core.store._topics.take_all()[0].close()
    with pytest.raises(AlreadyClosed):
        log.cursor(Position(0, 0), inclusive=True)
    publish(client, 1)
    assert payloads(client) == [b"0", b"1", b"0"]
    assert log_of(client) is not log


def test_a_deleted_topic_gives_its_memory_back(client: Client):
    """And its name may be used again."""
    publish(client, 2)
    kept = client._core.store._present().memory_logs
    assert len(kept) == 1
    with Admin(URL) as admin:
        admin.topics().delete("topic", force=True)
        assert kept == {}
        with pytest.raises(TopicNotFound):
            admin.topics().delete("topic")
    assert payloads(client) == []
    assert publish(client, 1)[0].entry_id() == 0


def test_an_admin_of_the_same_name(client: Client):
    """It sees the topics of the client."""
    with Admin(URL) as admin:
        admin.topics().create_partitioned_topic("flights", 2)
        assert client.get_topic_partitions("flights") == [
            f"persistent://public/default/flights-partition-{number}" for number in range(2)
        ]


def test_what_is_acknowledged_is_trimmed():
    """Ledger by ledger; a reader goes on at the first that is left, and a seek stops there."""
    store = Store.open(URL, options=LedgerOptions(max_entries=PER_LEDGER))
    with Client(URL) as client:
        store.release()
        client.subscribe("topic", "sub").close()  # without a subscription nothing is kept
        sent = publish(client, 5 * PER_LEDGER)
        with client.create_reader("topic", MessageId.earliest) as reader:
            assert reader.read_next(1000).message_id() == sent[0]
            consumer = client.subscribe("topic", "sub")
            messages = [consumer.receive(1000) for _ in range(25)]
            consumer.acknowledge_cumulative(messages[-1])
            consumer.close()
            with Admin(URL) as admin:
                admin.topics().trim_topic("topic")
            assert [one.entries for one in log_of(client).segments()] == [PER_LEDGER] * 3
            assert [message.message_id() for message in reader][-1] == sent[-1]
        assert payloads(client) == [b"%d" % number for number in range(20, 50)]
        with client.subscribe("topic", "sub") as consumer:
            consumer.seek(MessageId.earliest)
            assert consumer.receive(1000).message_id() == sent[20]
        assert log_of(client).last_position() == (sent[-1].ledger_id(), sent[-1].entry_id())


@pytest.mark.parametrize("level", ["process", "interval", "flush"])
def test_levels_of_durability_are_accepted(level: str):
    """So that the same code runs on a directory; nothing survives the process."""
    with Client(URL, durability=level) as client:
        with client.create_producer("topic", durability=level) as producer:
            producer.send(b"x")
        assert payloads(client) == [b"x"]


def test_a_forked_child_cannot_use_it(client: Client):
    """It says why and what to do; a client of its own has a store of its own; the parent goes on."""
    producer = client.create_producer("topic")
    consumer = client.subscribe("topic", "sub", ConsumerType.Shared)
    producer.send(b"parent")

    def use(action: Callable[[], object]) -> str:
        with pytest.raises(AlreadyClosed) as caught:
            action()
        return str(caught.value)

    def child() -> str:
        texts = [
            use(lambda: producer.send(b"child")),
            use(lambda: client.subscribe("topic", "other")),
            use(lambda: client.create_reader("topic", MessageId.earliest)),
        ]
        for text in texts:
            assert URL in text and "forked" in text and "use a directory" in text, text
        use(lambda: consumer.receive(10))
        with Client(URL) as own:
            assert payloads(own) == []
        client.close()
        return "all as it should be"

    assert in_child(child) == "all as it should be"
    producer.send(b"parent again")
    assert [message.data() for message in receive_all(consumer)] == [b"parent", b"parent again"]


def test_its_directory_is_no_store(client: Client, tmp_path):
    """Another process that finds it is told so, and so is what reads segments."""
    publish(client, 1)
    root = client._core.store.root
    for action in (
        lambda: Client(root),
        lambda: arrow.read_topic(root, "topic"),
        lambda: arrow.read_topic(URL, "topic"),
        lambda: client.create_reader("topic", MessageId.earliest).to_arrow(),
    ):
        with pytest.raises(ForeignFileError, match="in the memory of one process"):
            action()
    assert payloads(client) == [b"0"]
