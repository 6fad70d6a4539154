"""Whoever says that there is nothing first ends the transaction of a dead process that holds it back.

No call here waits: nobody asks for a ring, and no time passes between the death and the question.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import Admin, Client, ConsumerType, InitialPosition, MessageId
from embeddedpulsar.testing import assert_clean
from tests.multiprocess.children import Child, say
from tests.transactional_site import ALL_TYPES, SHARING

LONG = "600000"


def hold(root: str, timeout_ms: str) -> None:
    """Send and acknowledge in a transaction, say so, and stay."""
    with Client(root) as client:
        txn = client.new_transaction(int(timeout_ms))
        client.create_producer("topic").send(b"lost", txn=txn)
        consumer = client.subscribe("in", "work", ConsumerType.Shared)
        consumer.acknowledge(consumer.receive(10_000), txn=txn)
        say("sent")
        sys.stdin.readline()


def prepare(root: str) -> None:
    """Send in a transaction, prepare it, and stay."""
    with Client(root) as client:
        txn = client.new_transaction()
        client.create_producer("topic").send(b"prepared", txn=txn)
        txn.prepare("for the database")
        say("sent")
        sys.stdin.readline()


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A store with a message to be worked on; it is whole at the end."""
    root = tmp_path / "store"
    with Client(root) as client:
        client.subscribe("in", "work", ConsumerType.Shared).close()
        client.create_producer("in").send(b"input")
        client.subscribe("topic", "keeps").close()  # what nobody subscribes to is trimmed
        client.create_producer("topic").send(b"before")
    yield root
    Client(root).close()  # removes the leases of the processes that were killed
    assert_clean(root)


def kill(child: Child) -> None:
    """As a crash, and have it gone."""
    child.process.send_signal(signal.SIGKILL)
    child.join()


def leave_behind(root: Path, client: Client) -> None:
    """A transaction of a dead process at the end of the log, and a plain message behind it."""
    with Child(hold, root, LONG) as child:
        assert child.read() == "sent"
        client.create_producer("topic").send(b"behind")
        kill(child)


def polled(consumer: Any) -> list[bytes]:
    """What a consumer gets without waiting, acknowledged."""
    payloads = []
    while (message := consumer.receive_nowait()) is not None:
        payloads.append(message.data())
        consumer.acknowledge(message)
    return payloads


def read_nowait(client: Client) -> list[bytes]:
    reader = client.create_reader("topic", MessageId.earliest)
    payloads = []
    while (message := reader.read_nowait()) is not None:
        payloads.append(message.data())
    return payloads


def iterate_available(client: Client) -> list[bytes]:
    reader = client.create_reader("topic", MessageId.earliest)
    payloads = []
    while reader.has_message_available():
        payloads.append(reader.read_next(10_000).data())
    return payloads


def last_id(client: Client) -> list[bytes]:
    """The message of the last id."""
    consumer = client.subscribe("topic", "sub", initial_position=InitialPosition.Earliest)
    last = consumer.get_last_message_id()
    reader = client.create_reader("topic", last, start_message_id_inclusive=True)
    return [b"before", reader.read_next(10_000).data()]


@pytest.mark.parametrize("ask", [read_nowait, iterate_available, last_id])
@pytest.mark.parametrize("is_new", [True, False])
def test_readers_and_last_ids(root: Path, ask: Callable[[Client], list[bytes]], is_new: bool):
    """In a client that was there, and in one that is opened when the other process is long dead."""
    with Client(root) as client:
        leave_behind(root, client)
        if not is_new:
            assert ask(client) == [b"before", b"behind"]
    if is_new:
        with Client(root) as client:
            assert ask(client) == [b"before", b"behind"]


def test_a_reader_that_stopped_before_the_death(root: Path):
    """It asks again, and has no notice of the death."""
    with Client(root) as client, Child(hold, root, LONG) as child:
        assert child.read() == "sent"
        client.create_producer("topic").send(b"behind")
        reader = client.create_reader("topic", MessageId.earliest)
        assert reader.read_nowait().data() == b"before"
        assert not reader.has_message_available()
        kill(child)
        assert reader.has_message_available()
        assert reader.read_nowait().data() == b"behind"


@pytest.mark.parametrize("kind", ALL_TYPES)
@pytest.mark.parametrize("is_stopped_before", [True, False])
def test_consumers_that_poll(root: Path, kind: ConsumerType, is_stopped_before: bool):
    """Of all types: that came when the process was dead, and that stopped at its transaction before."""
    with Client(root) as client, Child(hold, root, LONG) as child:
        assert child.read() == "sent"
        client.create_producer("topic").send(b"behind")
        options = {"consumer_type": kind, "initial_position": InitialPosition.Earliest}
        if is_stopped_before:
            consumer = client.subscribe("topic", "sub", **options)
            assert polled(consumer) == [b"before"]
            kill(child)
            assert polled(consumer) == [b"behind"]
        else:
            kill(child)
            assert polled(client.subscribe("topic", "sub", **options)) == [b"before", b"behind"]


@pytest.mark.parametrize("kind", ALL_TYPES)
def test_a_consumer_of_several_topics(root: Path, kind: ConsumerType):
    """Neither of its topics changes a word."""
    with Client(root) as client, Child(hold, root, LONG) as child:
        assert child.read() == "sent"
        client.create_producer("topic").send(b"behind")
        client.create_producer("other").send(b"other")
        consumer = client.subscribe(
            ["topic", "other"], "sub", consumer_type=kind, initial_position=InitialPosition.Earliest
        )
        assert sorted(polled(consumer)) == [b"before", b"other"]
        kill(child)
        assert polled(consumer) == [b"behind"]


@pytest.mark.parametrize("kind", SHARING)
@pytest.mark.parametrize("is_there_before", [True, False])
def test_what_it_acknowledged_comes_again(root: Path, kind: ConsumerType, is_there_before: bool):
    """Also to a consumer that asked before, and was told that there is nothing."""
    with Client(root) as client:
        client.create_producer("both").send(b"input")
        name = "both"
        if kind is ConsumerType.Shared:
            name = "in"
        with Child(hold if name == "in" else hold_shared_keys, root, LONG) as child:
            assert child.read() == "sent"
            consumer = client.subscribe(name, "work", kind) if is_there_before else None
            assert consumer is None or consumer.receive_nowait() is None
            kill(child)
            consumer = consumer or client.subscribe(name, "work", kind)
            assert polled(consumer) == [b"input"]


def hold_shared_keys(root: str, timeout_ms: str) -> None:
    """As `hold`, of a Key_Shared subscription."""
    with Client(root) as client:
        txn = client.new_transaction(int(timeout_ms))
        consumer = client.subscribe(
            "both", "work", ConsumerType.KeyShared, initial_position=InitialPosition.Earliest
        )
        consumer.acknowledge(consumer.receive(10_000), txn=txn)
        say("sent")
        sys.stdin.readline()


def test_figures(root: Path):
    """They count what stands behind it."""
    with Client(root) as client:
        with Child(hold, root, LONG) as child:
            assert child.read() == "sent"
            sent = client.create_producer("topic").send(b"behind")
            client.subscribe("topic", "sub", initial_position=InitialPosition.Earliest).close()
            kill(child)
        with Admin(root) as admin:
            topics = admin.topics()
            assert topics.get_stats("topic").subscriptions["sub"].msg_backlog == 2
            assert topics.get_last_message_id("topic") == sent
            assert topics.get_stats("in").subscriptions["work"].msg_backlog == 1


def test_a_table_view(root: Path):
    """It has what stands behind it when it is made."""
    with Client(root) as client:
        with Child(hold, root, LONG) as child:
            assert child.read() == "sent"
            client.create_producer("topic").send(b"behind", partition_key="key")
            kill(child)
        assert client.create_table_view("topic")["key"] == b"behind"


def test_a_reader_of_a_store_that_it_may_not_write(root: Path):
    """It ends nothing, and knows as well that the process is dead."""
    with Client(root) as client:
        leave_behind(root, client)
        with Client(root, read_only=True) as looking:
            assert read_nowait(looking) == [b"before", b"behind"]


def test_a_deadline_that_has_passed(root: Path):
    """The process lives, and is stopped; the first question behind the deadline ends its transaction."""
    with Client(root) as client, Child(hold, root, "400") as child:
        assert child.read() == "sent"
        child.process.send_signal(signal.SIGSTOP)
        client.create_producer("topic").send(b"behind")
        log = client._core.store.transactions.log()
        (transaction,) = log.open_transactions()
        while log.now_ms() < transaction.deadline_ms:
            pass
        assert iterate_available(client) == [b"before", b"behind"]


def test_one_that_is_prepared_waits(root: Path):
    """Its process may be dead: it has no owner."""
    with Client(root) as client:
        with Child(prepare, root) as child:
            assert child.read() == "sent"
            kill(child)
        assert read_nowait(client) == [b"before"]
        (prepared,) = client.prepared_transactions()
        client.resume_transaction(prepared).commit()
        assert read_nowait(client) == [b"before", b"prepared"]


def test_one_that_goes_on_is_left_alone(root: Path):
    """And no lock is taken for it."""
    with Client(root) as client, Child(hold, root, LONG) as child:
        assert child.read() == "sent"
        reader = client.create_reader("topic", MessageId.earliest)
        assert reader.read_nowait().data() == b"before"
        transactions = client._core.store.transactions
        (transaction,) = transactions.log().open_transactions()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(transactions.log()._shared), "section", None)
            assert not transactions.end_if_abandoned(transaction.txn_id)
        assert not reader.has_message_available()
        kill(child)
