"""Stores in memory and the end of processes: a full file system, kills, and children."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from embeddedpulsar import Client
from embeddedpulsar._engine.store import store_root

_SIZE = 8 << 20

_PREAMBLE = """
import os, sys, threading
import embeddedpulsar as pulsar
from embeddedpulsar import Admin, Client, ConsumerType, InitialPosition, MessageId
from embeddedpulsar.exceptions import StorageFullError
from embeddedpulsar._engine.store import store_root
store_root.SHARED_MEMORY = sys.argv[1]

def fill(action):
    count = 0
    try:
        while True:
            action()
            count += 1
    except StorageFullError as e:
        assert "nothing was published" in str(e) or "cannot" in str(e), e
    return count

def fill_to_the_last_page():
    fd = os.open(sys.argv[1] + "/filling", os.O_RDWR | os.O_CREAT, 0o600)
    size = 1 << 20
    while size >= 4096:
        try:
            os.posix_fallocate(fd, os.fstat(fd).st_size, size)
        except OSError:
            size //= 2
    os.close(fd)

client = Client("memory://full")
assert client._core.store.root.startswith(sys.argv[1])
"""


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 8 MiB; skipped for those who may not mount one."""
    path = tmp_path / "shm"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={_SIZE}", "tmpfs", str(path)]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=30)
    except (OSError, subprocess.CalledProcessError) as e:
        pytest.skip(f"no tmpfs can be mounted here: {e}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True, timeout=30)


def run(script: str, place: Path) -> str:
    """What a program prints whose stores in memory are there; it must end by itself."""
    program = subprocess.run(
        [sys.executable, "-c", _PREAMBLE + script, str(place)], capture_output=True, text=True, timeout=120
    )
    assert program.returncode == 0, f"{program.returncode}: {program.stderr}"
    return program.stdout


def left_in(place: Path) -> list[str]:
    """What stores in memory left there."""
    return [name for name in os.listdir(place) if name.startswith("embeddedpulsar-memory-")]


_SENDERS = {
    "small": "send = lambda: producer.send(b'x')",
    "pages": "send = lambda: producer.send(bytes(5_000))",
    "large": "send = lambda: producer.send(bytes(300_000))",
    "keyed": "send = lambda: producer.send(bytes(100), partition_key=str(count()), properties={'a': 'b'})",
    "columns": "send = lambda: producer.send_many([bytes(1000)] * 100)",
    "chunks": "producer = client.create_producer("
    "'topic', chunking_enabled=True, chunk_max_message_size=100_000)\n"
    "send = lambda: producer.send(bytes(1_000_000))",
    "batches": "producer = client.create_producer('topic', batching_enabled=True)\n"
    "def send():\n    for _ in range(100): producer.send_async(bytes(1000), None)\n    producer.flush()",
}


@pytest.mark.parametrize("kind", _SENDERS)
def test_a_full_file_system_is_an_error(tmpfs: Path, kind: str):
    """No signal ends the process; what was stored is received, and its memory is used again."""
    script = f"""
import itertools
count = itertools.count().__next__
consumer = client.subscribe("topic", "s", ConsumerType.Exclusive, receiver_queue_size=10)
producer = client.create_producer("topic")
{_SENDERS[kind]}
rounds = []
for _ in range(3):
    rounds.append(fill(send))
    stored = 0
    while True:
        try:
            message = consumer.receive(300)
        except pulsar.Timeout:
            break
        consumer.acknowledge(message)
        stored += 1
    assert stored >= rounds[-1] * {{"columns": 100, "batches": 100}}.get({kind!r}, 1), (stored, rounds)
    with Admin("memory://full") as admin:
        admin.topics().trim_topic("topic")
        assert admin.check().is_clean
# The parts of a message that was not stored to its end stay until they expire.
assert min(rounds) > 0 if {kind!r} == "chunks" else min(rounds) >= max(rounds) // 3 > 0, rounds
client.close()
print(os.listdir(sys.argv[1]))
"""
    assert run(script, tmpfs) == "[]\n"


def test_a_file_system_full_of_topics_is_an_error(tmpfs: Path):
    """Also of subscriptions, and of all kinds of consumers; what is there can be used and deleted."""
    script = """
import itertools
number = itertools.count().__next__
first = client.create_producer("first")
first.send(b"x")
consumers = []
topics = fill(lambda: client.create_producer(f"topic-{number()}").send(b"x"))
kinds = itertools.cycle([ConsumerType.Exclusive, ConsumerType.Shared, ConsumerType.KeyShared])
fill(lambda: consumers.append(client.subscribe("first", f"s-{number()}", next(kinds))))
assert topics > 20, topics
with Admin("memory://full") as admin:
    for number in range(10):
        admin.topics().delete(f"topic-{number}", force=True)
again = client.subscribe("first", "again", initial_position=InitialPosition.Earliest)
again.acknowledge(again.receive(1000))
client.close()
print(os.listdir(sys.argv[1]))
"""
    assert run(script, tmpfs) == "[]\n"


@pytest.mark.linux("posix_fallocate, by which the test fills a disk")
def test_filled_by_others_to_the_last_page(tmpfs: Path):
    """What keeps no space for itself is refused with errors; everything goes on when there is room again."""
    script = """
producer = client.create_producer("topic")
consumers = [client.subscribe("topic", f"{kind}", kind) for kind in
             (ConsumerType.Exclusive, ConsumerType.Shared, ConsumerType.KeyShared, ConsumerType.Failover)]
for number in range(2000):
    producer.send(b"%d" % number)
fill_to_the_last_page()
refused = 0
def attempt(action):
    global refused
    try:
        return action()
    except (pulsar.PulsarException, OSError) as e:
        refused += 1
for consumer in consumers:
    for number in range(2000):
        message = attempt(lambda: consumer.receive(1000))
        if message is None:
            break
        attempt(lambda: consumer.acknowledge(message))
fill_to_the_last_page()
attempt(lambda: client.create_producer("other").send(b"x"))
attempt(lambda: client.subscribe("topic", "other", ConsumerType.Shared))
attempt(lambda: client.subscribe("other", "other", ConsumerType.KeyShared))
for _ in range(2000):
    attempt(lambda: producer.send(bytes(100)))
for number in range(200):
    attempt(lambda: client.create_reader("topic", MessageId.earliest).read_next(100))
with Admin("memory://full") as admin:
    attempt(lambda: admin.topics().set_max_message_size("topic", 1000))
    attempt(lambda: admin.topics().trim_topic("topic"))
assert refused
os.unlink(sys.argv[1] + "/filling")
other = Client("memory://full")
producer = other.create_producer("topic")
late = other.subscribe("topic", "late", ConsumerType.Shared)
producer.send(b"again")
assert late.receive(5000).data() == b"again"
other.close()
client.close()
print(os.listdir(sys.argv[1]))
"""
    assert run(script, tmpfs) == "[]\n"


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path):
    """With its messages, and also if it was killed while it made the store; a living one keeps its own."""
    script = """
client.create_producer("topic").send(b"x")
print("ready", flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", _PREAMBLE + script, str(tmp_path)]
    programs = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    try:
        for program in programs:
            assert program.stdout is not None and program.stdout.readline() == "ready\n"
        os.mkdir(tmp_path / f"embeddedpulsar-memory-{'ab' * 12}", 0o700)
        assert len(left_in(tmp_path)) == 3
        programs[0].kill()
        programs[0].wait(30)
        assert run("print(len(os.listdir(sys.argv[1])))\nclient.close()", tmp_path) == "2\n"
        assert len(left_in(tmp_path)) == 1
    finally:
        for program in programs:
            program.kill()
            program.wait(30)
            for pipe in (program.stdin, program.stdout):
                assert pipe is not None
                pipe.close()


@pytest.mark.parametrize(
    "end", ["", "sys.exit(3)", "raise KeyError", "os.kill(os.getpid(), 2)", "client2 = Client('memory://')"]
)
def test_a_process_that_ends_normally_leaves_nothing(tmp_path: Path, end: str):
    """Though it closes no client."""
    script = f"client.create_producer('topic').send(b'x')\nprint('ready', flush=True)\n{end}"
    program = subprocess.run(
        [sys.executable, "-c", _PREAMBLE + script, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert program.stdout == "ready\n"
    assert left_in(tmp_path) == []


def test_children_of_multiprocessing(tmp_path: Path):
    """They share the store, and the last process removes it, whichever that is."""
    script = """
import multiprocessing
context = multiprocessing.get_context("fork")
consumer = client.subscribe("topic", "s", ConsumerType.Shared)
go = context.Event()
def work(number):
    if number == 3:
        client.create_producer("topic").send(b"3")
        go.wait(30)
    client.create_producer("topic").send(b"%d" % number)
workers = [context.Process(target=work, args=(number,)) for number in range(4)]
for worker in workers:
    worker.start()
for worker in workers[:3]:
    worker.join(30)
messages = sorted(consumer.receive(5000).data() for _ in range(4))
assert messages == [b"0", b"1", b"2", b"3"], messages
client.close()
assert os.listdir(sys.argv[1])
go.set()
workers[3].join(30)
assert [worker.exitcode for worker in workers] == [0] * 4
print(os.listdir(sys.argv[1]))
"""
    assert run(script, tmp_path) == "[]\n"


def test_a_descendant_reads_the_store_of_its_ancestor(tmp_path: Path):
    """As the workers of Spark do, which the process with the store starts by way of others."""
    reader = (
        "import sys; from embeddedpulsar import arrow; from embeddedpulsar._engine.store import store_root; "
        f"store_root.SHARED_MEMORY = {str(tmp_path)!r}; "
        "print(arrow.read_topic(sys.argv[1], 'topic').num_rows)"
    )
    script = f"""
import subprocess
client.create_producer("topic").send(b"x")
others = [Client("memory://full-2"), Client("memory://")]
command = ["sh", "-c", '"$@"; true', "sh", sys.executable, "-c", {reader!r}]
for url in ("memory://full", "memory://full-2"):
    program = subprocess.run([*command, url], capture_output=True, text=True)
    print(program.stdout.strip() or program.stderr.strip().splitlines()[-1])
program = subprocess.run([*command, "memory://none"], capture_output=True, text=True)
print(program.stderr.strip().splitlines()[-1])
for one in (client, *others):
    one.close()
"""
    first, second, third = run(script, tmp_path).splitlines()
    assert first == "1"
    assert "TopicNotFound" in second
    assert "neither this process nor one that started it has memory://none open" in third
    assert left_in(tmp_path) == []


def test_a_stopped_process_keeps_its_store(tmp_path: Path):
    """It is not taken for one that was killed."""
    script = "print('ready', flush=True)\nsys.stdin.read()\nclient.create_producer('topic').send(b'x')"
    command = [sys.executable, "-c", _PREAMBLE + script, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdin is not None and program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        program.send_signal(signal.SIGSTOP)
        run("client.close()", tmp_path)
        program.send_signal(signal.SIGCONT)
        program.stdin.close()
        assert program.wait(30) == 0
    assert left_in(tmp_path) == []


def test_the_first_process_sweeps_the_temporary_directory_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It may have very many files; ``/dev/shm`` has few."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(store_root, "_swept", set())
    names = [tmp_path / f"embeddedpulsar-memory-{byte * 12}" for byte in ("01", "02")]
    for name in names:
        name.mkdir(0o700)
        with Client("memory://"):
            pass
    assert [name.exists() for name in names] == [False, True]
