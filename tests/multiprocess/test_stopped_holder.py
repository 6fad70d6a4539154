"""A process that is stopped inside the lock of a topic, and producers of another that must not hang on it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from embeddedpulsar import Client, Result
from embeddedpulsar._engine.log.log_check import check_topic
from embeddedpulsar._engine.platform.failpoints import ENVIRONMENT
from embeddedpulsar.client.producer.producer import Producer
from tests.conformance.held import Answers, held, payloads
from tests.multiprocess.children import Child, say

BATCHED = {"batching_enabled": True, "batching_max_messages": 10}


def hold(path: str) -> None:
    """Stay in the lock of the topic until the end of standard input."""
    with Client(path) as client:
        client.create_producer("topic").send(b"first")
        lock = client._core.store.use_topic("topic").topic.ledger.lock
        try:
            lock.acquire()
            say("inside")
            input()
        finally:
            lock.release()
        say("outside")
        input()


def publish_and_say(path: str, batching: str) -> None:
    """Send for ever; say every number that was stored."""
    with Client(path) as client:
        producer = client.create_producer(
            "topic",
            batching_enabled=batching == "True",
            batching_max_messages=10,
            max_pending_messages=50,
            block_if_queue_full=True,
        )
        number = 0
        while True:
            producer.send_async(
                b"%d %d" % (os.getpid(), number),
                lambda result, _, number=number: say(os.getpid(), number, result.name),
            )
            number += 1


@contextmanager
def stopped(path: Path) -> Iterator[Child]:
    """Another process, stopped by SIGSTOP inside the lock of the topic."""
    with Child(hold, path) as child:
        assert child.read() == "inside"
        os.kill(child.process.pid, signal.SIGSTOP)
        yield child


def go_on(child: Child) -> None:
    """Let a stopped process leave the lock."""
    os.kill(child.process.pid, signal.SIGCONT)
    child.tell("leave")
    assert child.read() == "outside"


def attached(client: Client, **options: object) -> Producer:
    """A producer that was there before the other process stopped."""
    producer = client.create_producer("topic", **options)
    producer.send(b"before")
    return producer


@pytest.mark.parametrize("batching", [{}, BATCHED], ids=["single", "batched"])
def test_send_async_returns_at_once_and_is_stored_when_the_other_goes_on(tmp_path, batching):
    """A hundred sends take no time; after SIGCONT all are stored, in order, and each has its callback."""
    answers = Answers()
    with Client(tmp_path) as client:
        producer = attached(client, **batching)
        with stopped(tmp_path) as child:
            begun = time.monotonic()
            for number in range(100):
                producer.send_async(b"%d" % number, answers.of(number))
            assert time.monotonic() - begun < 1
            time.sleep(0.1)
            assert answers == []
            go_on(child)
            producer.flush()
        assert answers.results == [(number, Result.Ok) for number in range(100)]
        assert payloads(client)[2:] == [b"%d" % number for number in range(100)]


@pytest.mark.parametrize("batching", [{}, BATCHED], ids=["single", "batched"])
def test_callbacks_come_with_timeout(tmp_path, batching):
    """After the send timeout all callbacks come with Timeout, and nothing of them is stored later."""
    answers = Answers()
    with Client(tmp_path) as client:
        producer = attached(client, send_timeout_millis=300, **batching)
        with stopped(tmp_path) as child:
            begun = time.monotonic()
            for number in range(30):
                producer.send_async(b"%d" % number, answers.of(number))
            while len(answers) < 30 and time.monotonic() - begun < 20:
                time.sleep(0.01)
            assert answers.results == [(number, Result.Timeout) for number in range(30)]
            assert time.monotonic() - begun >= 0.3
            go_on(child)
        producer.send(b"after")
        assert payloads(client) == [b"before", b"first", b"after"]


def test_an_event_loop_goes_on(tmp_path):
    """A loop that sends behind a stopped process serves its other tasks."""

    async def run() -> int:
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        with Client(tmp_path) as client:
            producer = attached(client)
            with stopped(tmp_path) as child:
                producer.send_async(b"x", lambda *_: loop.call_soon_threadsafe(done.set))
                turns = 0
                for _ in range(20):
                    await asyncio.sleep(0.005)
                    turns += 1
                assert not done.is_set()
                go_on(child)
            await asyncio.wait_for(done.wait(), 20)
            return turns

    assert asyncio.run(run()) == 20


def test_other_topics_are_not_held_up(tmp_path):
    """One flusher serves all topics; a locked one does not keep it from the others."""
    with Client(tmp_path) as client:
        producer, other = attached(client), client.create_producer("other", batching_enabled=True)
        answers = Answers()
        with stopped(tmp_path) as child:
            producer.send_async(b"waits", answers.of("waits"))
            for number in range(20):
                other.send_async(b"x", answers.of(number))
                other.flush()
            assert answers.results == [(number, Result.Ok) for number in range(20)]
            go_on(child)
            producer.flush()
        assert answers.results[-1] == ("waits", Result.Ok)


def test_closing_behind_a_stopped_process(tmp_path):
    """Client.close() takes seconds, not the lock's time; every callback gets AlreadyClosed."""
    answers = Answers()
    client = Client(tmp_path)
    producer = attached(client)
    with stopped(tmp_path) as child:
        for number in range(20):
            producer.send_async(b"%d" % number, answers.of(number))
        begun = time.monotonic()
        client.close()
        assert time.monotonic() - begun < 10
        assert answers.results == [(number, Result.AlreadyClosed) for number in range(20)]
        go_on(child)
    with Client(tmp_path) as again:
        assert again.create_producer("topic", producer.producer_name()).is_connected()
        assert payloads(again) == [b"before", b"first"]


@pytest.mark.parametrize("batching", [False, True])
def test_killed_while_others_write(tmp_path, batching):
    """Two processes write groups behind each other and are killed: what was promised is stored, in order."""
    path = tmp_path / "store"
    with Child(publish_and_say, path, batching) as one, Child(publish_and_say, path, batching) as two:
        said: dict[str, list[str]] = {}
        for child in (one, two) * 200:
            pid, number, result = child.read().split()
            assert result == "Ok"
            said.setdefault(pid, []).append(number)
        one.kill()
        two.kill()
    with Client(path) as client:
        stored = [one.decode().split() for one in payloads(client)]
        for pid, numbers in said.items():
            mine = [number for who, number in stored if who == pid]
            assert mine == [str(number) for number in range(len(mine))]
            assert numbers == mine[: len(numbers)]


_HALF_A_RUN = 40_000


def append_a_group(path: str) -> None:
    """Append five entries: the first alone, as it is encoded at once, the others in one hold of the lock."""
    with Client(path) as client:
        producer = client.create_producer("topic")
        producer.send(b"first")
        with held(client):
            for number in range(5):
                producer.send_async(b"%d" % number * _HALF_A_RUN, None)
        producer.flush()
        say("done")


@pytest.mark.parametrize("count", [1, 2, 4])
def test_killed_between_two_entries_of_a_group(tmp_path, monkeypatch, count):
    """Entries of a group that do not fit together are committed one by one: a kill leaves those before."""
    path = tmp_path / "store"
    monkeypatch.setenv(ENVIRONMENT, f"group:entry_stored=kill,nth={count}")
    with Child(append_a_group, path) as child:
        assert child.join() == -signal.SIGKILL
    monkeypatch.delenv(ENVIRONMENT)
    with Client(path) as client:
        assert payloads(client) == [
            b"first",
            *(b"%d" % number * _HALF_A_RUN for number in range(count + 1)),
        ]
        client.create_producer("topic").send(b"after")
        ledger = client._core.store.use_topic("topic").topic.ledger
        assert not check_topic(ledger.directory).problems
