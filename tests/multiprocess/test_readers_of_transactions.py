"""Consumers whose transactions are those of other processes, which commit, die, or are stopped."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from embeddedpulsar import ConsumerType
from embeddedpulsar.testing import assert_clean
from tests.multiprocess.children import Child
from tests.transactional_site import Site, received


def hold(root: str, timeout_ms: str) -> None:
    """Send in a transaction, say so, and end it as told."""
    site = Site(Path(root))
    for line in iter(sys.stdin.readline, ""):
        transaction = site.begin(int(timeout_ms))
        site.send(transaction, line.encode().strip())
        print("sent", flush=True)
        word = sys.stdin.readline().strip()
        print(time.monotonic_ns(), flush=True)
        if word:
            getattr(transaction, word)()
    site.client.close()


def audit(root: Path) -> None:
    """The store is in order, once the next process has swept what the dead ones left."""
    Site(root).client.close()
    assert_clean(root)


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared])
def test_the_end_in_another_process_wakes(tmp_path: Path, kind: ConsumerType):
    """Sooner than any back-stop, of 100 ms and more: commits, and aborts for what stands behind them."""
    root = tmp_path / "store"
    site = Site(root)
    consumer, producer = site.subscribe(kind), site.producer()
    waits = []
    with Child(hold, root, 60_000) as child:
        for number in range(8):
            child.tell("mine")
            assert child.read() == "sent"
            producer.send(b"behind")
            assert consumer.receive_nowait() is None
            end = "commit" if number % 2 else "abort"
            child.tell(end)
            first = consumer.receive(20_000)
            now = time.monotonic_ns()
            waits.append((now - int(child.read())) / 1e6)
            consumer.acknowledge(first)
            expected = [b"mine", b"behind"] if number % 2 else [b"behind"]
            assert [first.data(), *received(consumer)] == expected
    print(waits)
    assert min(waits) < 50, waits
    site.client.close()
    audit(root)


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.KeyShared])
@pytest.mark.parametrize("is_sleeping", [False, True])
def test_the_death_of_the_owner_ends_it(tmp_path: Path, kind: ConsumerType, is_sleeping: bool):
    """A consumer that waits hears of it, and one that comes later finds it."""
    root = tmp_path / "store"
    site = Site(root)
    consumer, producer = site.subscribe(kind), site.producer()
    waits = []
    for _ in range(3):
        with Child(hold, root, 600_000) as child:
            child.tell("lost")
            assert child.read() == "sent"
            producer.send(b"behind")
            if is_sleeping:
                assert consumer.receive_nowait() is None
                with pytest.raises(Exception, match="no message"):
                    consumer.receive(50)
            os.kill(child.process.pid, signal.SIGKILL)
            begun = time.monotonic()
            message = consumer.receive(20_000)
            waits.append(time.monotonic() - begun)
            consumer.acknowledge(message)
            assert message.data() == b"behind"
    print(waits)
    assert min(waits) < 0.5, waits
    site.client.close()
    audit(root)


def test_a_stopped_owner_delays_until_its_timeout(tmp_path: Path):
    """It lives, so only its deadline ends the transaction; its commit is refused afterwards."""
    root = tmp_path / "store"
    site = Site(root)
    consumer, producer = site.subscribe(), site.producer()
    with Child(hold, root, 700) as child:
        asked = time.monotonic()  # before the transaction begins
        child.tell("late")
        assert child.read() == "sent"
        os.kill(child.process.pid, signal.SIGSTOP)
        producer.send(b"behind")
        message = consumer.receive(20_000)
        waited = time.monotonic() - asked
        os.kill(child.process.pid, signal.SIGCONT)
        child.tell("commit")
        child.read()
        assert child.join() != 0
    assert message.data() == b"behind"
    assert 0.69 < waited < 10, waited
    consumer.acknowledge(message)
    site.client.close()
    audit(root)
