"""Transactions of clients in several processes: deaths and stops of those that began them."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest

from embeddedpulsar import Client, ConsumerType, MessageId
from embeddedpulsar.exceptions import InvalidTxnStatusError
from embeddedpulsar.testing.trial_store import assert_clean
from tests.multiprocess.children import Child, say


def hold(root: str, timeout_ms: str) -> None:
    """Acknowledge and send in a transaction, say so, and try to commit it when told to."""
    with Client(root) as client:
        consumer = client.subscribe("in", "work", ConsumerType.Shared)
        txn = client.new_transaction(int(timeout_ms))
        client.create_producer("out").send(b"of the transaction", txn=txn)
        consumer.acknowledge(consumer.receive(10_000), txn=txn)
        say("pending")
        sys.stdin.readline()
        try:
            txn.commit()
            say("committed")
        except InvalidTxnStatusError as e:
            say(type(e).__name__)


def take_part(root: str, token: str) -> None:
    """Send and acknowledge in a transaction of another process, and stay."""
    with Client(root) as client:
        consumer = client.subscribe("in", "work", ConsumerType.Shared)
        with client.join_transaction(bytes.fromhex(token)) as joined:
            client.create_producer("out").send(b"of the transaction", txn=joined)
            consumer.acknowledge(consumer.receive(10_000), txn=joined)
        say("done")
        sys.stdin.readline()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with one message to be worked on."""
    with Client(tmp_path) as client:
        client.subscribe("in", "work", ConsumerType.Shared).close()
        client.create_producer("in").send(b"input")
    return tmp_path


@pytest.mark.parametrize("is_stopped", [False, True])
def test_the_others_go_on(root: Path, is_stopped: bool) -> None:
    """When the process that began it dies, at once; when it is stopped, at the timeout. What it acknowledged
    comes again, and what was sent behind its messages is read."""
    with Child(hold, root, 2000 if is_stopped else 60_000) as child, Client(root) as client:
        assert child.read() == "pending"
        consumer = client.subscribe("in", "work", ConsumerType.Shared)
        client.create_producer("out").send(b"behind")
        assert consumer.receive_nowait() is None
        child.process.send_signal(signal.SIGSTOP if is_stopped else signal.SIGKILL)
        begun = time.monotonic()
        message = consumer.receive(20_000)
        assert message.data() == b"input" and message.redelivery_count() == 1
        assert client.create_reader("out", MessageId.earliest).read_next(20_000).data() == b"behind"
        assert time.monotonic() - begun < (8 if is_stopped else 3)
        consumer.acknowledge(message)
        if is_stopped:
            child.process.send_signal(signal.SIGCONT)
            child.tell("commit")
            assert child.read() == "TransactionTimeout"
    Client(root).close()  # removes the lease of the process that was killed
    assert_clean(root)


@pytest.mark.parametrize("is_committed", [False, True])
def test_a_process_takes_part(root: Path, is_committed: bool) -> None:
    """Its work counts as that of the process that began the transaction."""
    with Client(root) as client:
        txn = client.new_transaction()
        with Child(take_part, root, txn.token.hex()) as child:
            assert child.read() == "done"
            consumer = client.subscribe("in", "work", ConsumerType.Shared)
            reader = client.create_reader("out", MessageId.earliest)
            assert reader.read_nowait() is None and consumer.receive_nowait() is None
            if is_committed:
                txn.commit()
                assert reader.read_next(10_000).data() == b"of the transaction"
            else:
                txn.abort()
                # Of the two consumers either may get it.
                child.tell("leave")
                child.join()
                assert consumer.receive(10_000).data() == b"input"
                assert reader.read_nowait() is None
    Client(root).close()  # removes the lease of the process that was killed
    assert_clean(root)
