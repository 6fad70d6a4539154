"""Programs that fork and close every descriptor, as daemons do: a number that a child inherits is void."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import embeddedpulsar as pulsar
from embeddedpulsar import Admin, Client, ConsumerType, InitialPosition
from embeddedpulsar._engine.platform.mapped_file import HeldFile, is_held
from embeddedpulsar.schema import BytesSchema
from embeddedpulsar.testing.trial_store import assert_clean
from tests.children import ROOT, ForkedChild, in_child

# Opens everything that keeps files, becomes a daemon in the way argv[3] says, opens 60 files of its own, and
# writes a line into each by a buffer. Then it uses, closes or drops what it inherited, and ends in the usual
# way: the buffers are written when the interpreter ends. (Its listener is no function of the module: what a
# thread refers to that is gone after a fork is never freed, and keeps the buffers.)
_PROGRAM = """
import gc, os, sys
root, out, way, then = sys.argv[1:5]
import embeddedpulsar as pulsar
from embeddedpulsar import Admin, Client, ConsumerType, InitialPosition
from embeddedpulsar.schema import BytesSchema

EARLIEST = dict(initial_position=InitialPosition.Earliest)
client = Client(root)
producer = client.create_producer("t")
other = client.create_producer("u")
for number in range(5):
    producer.send(b"before")
    other.send(b"before")
producer.send(bytes(300_000))
held = [client.subscribe("t", f"s-{kind.name}", kind, **EARLIEST) for kind in ConsumerType]
for consumer in held:
    consumer.acknowledge(consumer.receive(5000))
held.append(client.subscribe("t", "listener", ConsumerType.Shared,
                             message_listener=pulsar.Consumer.acknowledge, **EARLIEST))
reader = client.create_reader("t", pulsar.MessageId.earliest)
reader.read_next(5000)
view = client.create_table_view("u", schema=BytesSchema())
admin = Admin(root)
admin.topics().get_stats("t")

def closed(keep=()):
    for fd in range(os.sysconf("SC_OPEN_MAX") if way == "loop" else 4096):
        if fd not in keep:
            try:
                os.close(fd)
            except OSError:
                pass
    for _ in range(3):
        os.open(os.devnull, os.O_RDWR)

def opened(first):
    return [open(f"{out}/app{number}", "w", buffering=1 << 16) for number in range(first, first + 30)]

def forked():
    pid = os.fork()
    if pid:
        os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

forked()
if way == "double":
    os.setsid()
    forked()
files = opened(0) if way == "preserve" else []
closed({file.fileno() for file in files})
files += opened(len(files))
if way == "twice":
    forked()
files += opened(len(files))
for number, file in enumerate(files):
    file.write(f"line of {number}\\n")
    if number % 2:
        file.flush()

def used():
    for size in (10, 70_000, 300_000, 3_000_000):
        producer.send(bytes(size))
        other.send(bytes(size))
    for _ in range(40):
        producer.send(bytes(200_000))
    producer.send_async(b"late", lambda *answer: None)
    producer.flush()
    for kind in ConsumerType:
        consumer = client.subscribe("u", f"new-{kind.name}", kind, **EARLIEST)
        for _ in range(9):
            consumer.acknowledge(consumer.receive(5000))
    client.create_producer("new").send(b"x")
    with client.create_reader("t", pulsar.MessageId.earliest) as late:
        late.read_next(5000)
    with Admin(root) as own:
        own.topics().get_stats("t")
        assert own.check().is_clean

if then == "use":
    used()
if then in ("use", "close"):
    client.close()
    admin.close()
if then == "drop":
    del client, producer, other, held, reader, view, admin
    gc.collect()
for number, file in enumerate(files):
    target = os.readlink(f"/proc/self/fd/{file.fileno()}")
    assert target == f"{out}/app{number}", (number, target)
"""

EARLIEST = {"initial_position": InitialPosition.Earliest}


@pytest.mark.parametrize(
    ("way", "then"),
    [
        ("fork", "use"),
        ("fork", "exit"),
        ("double", "use"),
        ("loop", "close"),
        ("preserve", "drop"),
        ("twice", "use"),
        ("twice", "exit"),
    ],
)
def test_a_daemon_leaves_files_of_the_application_alone(tmp_path: Path, way: str, then: str):
    """None of its files is closed or written to; what it sends afterwards is stored."""
    root, out = tmp_path / "store", tmp_path / "out"
    out.mkdir()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _PROGRAM, str(root), str(out), way, then],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    files = sorted(out.iterdir())
    assert len(files) >= 60
    for file in files:
        assert file.read_text() == f"line of {file.name.removeprefix('app')}\n"
    with Client(str(root)) as client:
        with client.create_reader("t", pulsar.MessageId.earliest) as reader:
            sizes = []
            while reader.has_message_available():
                sizes.append(len(reader.read_next(5000).data()))
        expected = [6] * 5 + [300_000]
        if then == "use":
            expected += [10, 70_000, 300_000, 3_000_000] + [200_000] * 40 + [4]
        assert sizes == expected
    assert_clean(str(root))
    shutil.rmtree(root)


def _producer(client: Client, root: str) -> object:
    producer = client.create_producer("p")
    producer.send(b"x")
    producer.send(bytes(100_000))
    producer.send_async(b"y", lambda *_: None)
    producer.flush()
    return producer


def _consumer(kind: ConsumerType) -> Callable[[Client, str], object]:
    def make(client: Client, root: str) -> object:
        consumer = client.subscribe("t", f"s-{kind.name}", kind, **EARLIEST)
        consumer.acknowledge(consumer.receive(5000))
        consumer.negative_acknowledge(consumer.receive(5000))
        return consumer

    return make


def _pattern(client: Client, root: str) -> object:
    import re

    return client.subscribe(re.compile("persistent://public/default/.*"), "pattern", **EARLIEST)


def _listener(client: Client, root: str) -> object:
    return client.subscribe(
        "t", "listener", ConsumerType.Shared, message_listener=lambda consumer, m: consumer.acknowledge(m)
    )


def _reader(client: Client, root: str) -> object:
    reader = client.create_reader("t", pulsar.MessageId.earliest)
    reader.read_next(5000)
    return reader


def _admin(client: Client, root: str) -> object:
    admin = Admin(root)
    admin.topics().get_stats("t")
    admin.topics().create_partitioned_topic("parts", 3)
    admin.check()
    admin.close()
    return admin


def _columns(client: Client, root: str) -> object:
    pytest.importorskip("pyarrow")
    from embeddedpulsar import arrow

    batches = iter(arrow.scan_topic(root, "t"))
    next(batches)
    return batches


def _pin(client: Client, root: str) -> object:
    return HeldFile.open(root + "-pin")


OPENED: dict[str, Callable[[Client, str], object]] = {
    "client": lambda client, root: client,
    "producer": _producer,
    "partitions": lambda client, root: [client.create_producer(f"p{n}").send(b"x") for n in range(4)],
    **{f"consumer {kind.name}": _consumer(kind) for kind in ConsumerType},
    "pattern": _pattern,
    "listener": _listener,
    "reader": _reader,
    "table view": lambda client, root: client.create_table_view("t", schema=BytesSchema()),
    "admin": _admin,
    "columns": _columns,
    "pin": _pin,
}


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[tuple[Client, str]]:
    """A client of a store with messages in two ledgers."""
    root = str(tmp_path / "store")
    client = Client(root)
    producer = client.create_producer("t")
    for number in range(6):
        producer.send(b"%d" % number, partition_key=str(number))
    yield client, root
    client.close()
    assert_clean(root)


def _open_in(root: str) -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if target.startswith(root) or "eventpoll" in target:
            found.append(target)
    return sorted(found)


@pytest.mark.parametrize("what", OPENED)
def test_a_child_has_no_descriptor_of_the_store(filled: tuple[Client, str], what: str):
    """So whatever the child closes and opens, no number of ours is another's. The parent keeps its own."""
    client, root = filled
    held = OPENED[what](client, root)
    before = _open_in(root)
    assert before
    own = {name for name in before if "eventpoll" in name}
    left = in_child(lambda: [name for name in _open_in(root) if name not in own or len(own) == 0])
    assert left == "[]"
    assert set(_open_in(root)) >= set(before)
    assert held is not False


def test_a_pin_stays_the_parents(tmp_path: Path):
    """A child that outlives its parent keeps nothing from being removed."""
    path = str(tmp_path / "pin")
    held = HeldFile.open(path)
    assert in_child(lambda: is_held(path)) == "True"
    child = ForkedChild(lambda: "forked")
    try:
        assert child.ready() == "forked"
        held.close()
        assert not is_held(path)
    finally:
        child.end()


# Closes everything in the process that opened it, without a fork, and opens files of its own.
_SAME = """
import os, sys
root, out = sys.argv[1:3]
from embeddedpulsar import Client
from embeddedpulsar.exceptions import PulsarException
client = Client(root)
producer = client.create_producer("t")
producer.send(b"before")
os.closerange(3, 4096)
files = [open(f"{out}/app{number}", "wb", buffering=0) for number in range(int(sys.argv[3]))]
try:
    for _ in range(30):
        producer.send(bytes(300_000))
        producer.send(b"small")
except PulsarException as error:
    print(error)
else:
    print("no error")
for number, file in enumerate(files):
    assert not os.path.getsize(f"{out}/app{number}"), number
os._exit(0)
"""


@pytest.mark.parametrize("files", [0, 3, 60])
def test_descriptors_closed_in_the_same_process(tmp_path: Path, files: int):
    """A producer says so, and writes into no file of the application, whoever has the numbers."""
    out = tmp_path / "out"
    out.mkdir()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _SAME, str(tmp_path / "store"), str(out), str(files)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "other code of this process closed its descriptor" in done.stdout
    Client(str(tmp_path / "store")).close()  # removes what the program left by its abrupt end
    assert_clean(str(tmp_path / "store"))
