"""What was sent and acknowledged, and not flushed: at close(), and at the end of the program."""

from __future__ import annotations

import os
import signal
import textwrap
import time
from pathlib import Path

import pytest

import embeddedpulsar as pulsar
from tests.children import start_python
from tests.multiprocess.children import say

PRELUDE = """
import sys, os, threading, asyncio, multiprocessing
import embeddedpulsar as pulsar
client = pulsar.Client(sys.argv[1])
producer = client.create_producer("topic", batching_enabled=True, batching_max_publish_delay_ms=60_000)
def send(first):
    for number in range(first, first + 10):
        producer.send_async(b"%d" % number, None)
"""


def stored(root: Path) -> list[int]:
    with pulsar.Client(root) as client:
        return [int(one.data()) for one in client.create_reader("topic", pulsar.MessageId.earliest)]


def run_program(root: Path, body: str) -> int:
    """Run a program that has a client and a producer; its exit status."""
    process = start_python(PRELUDE + textwrap.dedent(body), str(root))
    process.communicate(timeout=60)
    return process.returncode


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("send(0)", 0),
        ("send(0); sys.exit(3)", 3),
        ("send(0); raise SystemExit", 0),
        ("send(0); threading.Thread(target=send, args=(10,)).start()", 0),
        ("async def main(): send(0)\nasyncio.run(main())", 0),
    ],
)
def test_a_normal_end_stores_what_was_sent(tmp_path: Path, body: str, status: int):
    """Batches of clients that nobody closed are stored, in order."""
    assert run_program(tmp_path, body) == status
    found = stored(tmp_path)
    assert found == list(range(len(found)))
    assert len(found) == (20 if "Thread" in body else 10)


def test_an_exception_that_nothing_catches_stores_it_too(tmp_path: Path):
    """The program ends with status 1, and what it sent is there."""
    assert (
        run_program(tmp_path, "sys.stderr = open(os.devnull, 'w'); send(0); raise ValueError('planned')") == 1
    )
    assert stored(tmp_path) == list(range(10))


def test_a_child_of_multiprocessing(tmp_path: Path):
    """It ends with os._exit, but normally: what it sent is stored once; and what the parent sent, too."""
    body = """
    send(0)
    def work():
        producer.send_async(b"100", None)
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join()
    assert child.exitcode == 0
    """
    assert run_program(tmp_path, body) == 0
    assert sorted(stored(tmp_path)) == [*range(10), 100]


def test_os_exit_stores_nothing(tmp_path: Path):
    """As with Pulsar, and as with files."""
    assert run_program(tmp_path, "send(0); os._exit(0)") == 0
    assert stored(tmp_path) == []


def test_acknowledgements_are_written_at_the_end(tmp_path: Path):
    """Those of the last moments before the end of the program do not come again."""
    body = """
    consumer = client.subscribe("topic", "sub", ack_group_time_ms=60_000)
    several = client.subscribe(["topic", "other"], "both", ack_group_time_ms=60_000)
    producer.send(b"1")
    for one in (consumer, several):
        one.acknowledge(one.receive(10_000))
    """
    assert run_program(tmp_path, body) == 0
    with pulsar.Client(tmp_path) as client:
        for name in ("sub", "both"):
            assert client.subscribe("topic", name).receive_nowait() is None


def hold(root: str) -> None:
    """Stay in the lock of the topic until the parent is done."""
    with pulsar.Client(root) as client:
        lock = client._core.store.use_topic("topic").topic.ledger.lock
        try:
            lock.acquire()
            say("held")
            time.sleep(60)
        finally:
            lock.release()


def test_the_end_does_not_wait_for_others_for_ever(tmp_path: Path):
    """Another process stays in the lock of the topic: the program ends, and says what it lost."""
    root, log = tmp_path / "store", tmp_path / "log"
    body = f"""
    import logging, subprocess
    from embeddedpulsar.client import client_core
    client_core.LONGEST_S = 0.5
    logging.basicConfig(filename={str(log)!r})
    producer.send(b"0")
    send(1)
    code = "from tests.multiprocess import test_unflushed as this; this.hold({str(root)!r})"
    command = [sys.executable, "-c", code]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert holder.stdout.readline().strip() == b"held"
    with open({str(tmp_path / "pid")!r}, "w") as file:
        file.write(str(holder.pid))
    sys.stderr = open(os.devnull, "w")
    holder.returncode = 0
    """
    begun = time.monotonic()
    try:
        assert run_program(root, body) == 0
        assert time.monotonic() - begun < 20
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert "could not store" in log.read_text()
    assert stored(root) == [0]
