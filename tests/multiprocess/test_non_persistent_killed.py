"""Non-persistent topics across processes: kills at any moment and at each step, reboots, copies."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from embeddedpulsar import Admin, Client, ConsumerType, Timeout
from embeddedpulsar._engine.platform import timing
from tests.children import ForkedChild, die_at, in_child, run_python
from tests.storms.volatile_storm import TOPIC

STORM = """
import sys
from tests.storms import commands as storms
sys.exit(storms.main(["volatile", *sys.argv[1:]]))
"""
LARGE = bytes(400 << 10)
"""More than a ledger of the smallest ring holds: each message begins another ledger."""


@pytest.mark.parametrize(
    "kills", [40, pytest.param(400, marks=[pytest.mark.slow, pytest.mark.timeout(1500)])]
)
def test_killed_at_any_moment(kills: int, tmp_path: Path):
    """Producers and consumers of all types: nothing twice, nothing torn, in order, and every drop counted."""
    output = run_python(STORM, "--kills", str(kills), "--workspace", str(tmp_path), timeout_s=1400)
    assert "clean" in output
    assert not list(tmp_path.iterdir())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with the smallest ring."""
    made = tmp_path / "store"
    made.mkdir()
    (made / "broker.conf").write_text("nonPersistentTopicRingSizeInMB=1\n")
    return made


def send(root: Path, count: int = 1, body: bytes = b"hello") -> None:
    """Send messages from a process that ends."""
    with Client(root) as client, client.create_producer(TOPIC) as producer:
        for _ in range(count):
            producer.send(body)


def ledgers(root: Path) -> list[str]:
    """The files of the ring."""
    return sorted(path.name for path in root.glob("topics/*/*.log"))


def test_another_process(root: Path):
    """What one process sends, another receives; what it sends while none is attached, none does."""
    in_child(lambda: send(root))
    with Client(root) as client:
        consumer = client.subscribe(TOPIC, "sub")
        in_child(lambda: send(root, 3))
        assert [consumer.receive(5000).data() for _ in range(3)] == [b"hello"] * 3
        with pytest.raises(Timeout):
            consumer.receive(50)


@pytest.mark.parametrize("kind", list(ConsumerType))
def test_a_dead_consumer_leaves_its_place(root: Path, kind: ConsumerType):
    """Another consumer of the type gets what is sent after the death."""

    with Client(root) as client:
        attached = ForkedChild(lambda: Client(root).subscribe(TOPIC, "sub", kind).consumer_name())
        attached.ready()
        attached.end()
        consumer = client.subscribe(TOPIC, "sub", kind)
        client.create_producer(TOPIC).send(b"hello")
        assert consumer.receive(5000).data() == b"hello"


@pytest.mark.parametrize("step", ["ring:point_stored", "ring:turned", "trim:unlinked", "roll:tail_switched"])
def test_killed_while_the_ring_turns(root: Path, step: str):
    """The next producer goes on, and removes what was left; consumers do not notice."""
    with Client(root) as client:
        consumer = client.subscribe(TOPIC, "sub")
        assert die_at(step, lambda: send(root, 9, LARGE), nth=2 if step == "roll:tail_switched" else 1)
        in_child(lambda: send(root, 6, LARGE))
        received = 0
        while consumer.receive_nowait() is not None:
            received += 1
        assert 0 < received < 4
        assert len(ledgers(root)) < 4
        in_child(lambda: send(root))
        assert consumer.receive(5000).data() == b"hello"


@pytest.mark.parametrize("step", ["", "ring:emptied"])
def test_a_reboot_begins_anew(root: Path, step: str, monkeypatch: pytest.MonkeyPatch):
    """Messages, subscriptions and producers of another boot are gone, and so are their files; also if the
    first process of the new boot dies over it."""
    with Client(root) as client:
        consumer = client.subscribe(TOPIC, "sub")
        client.create_producer(TOPIC).send(LARGE)
        consumer.close()
    before = ledgers(root)
    monkeypatch.setattr(timing, "_boot_id", os.urandom(16))
    if step:
        assert die_at(step, lambda: send(root))
    with Client(root) as client, Admin(root) as admin:
        consumer = client.subscribe(TOPIC, "new")
        assert admin.topics().get_subscriptions(TOPIC) == ["new"]
        assert admin.topics().get_stats(TOPIC).msg_in_counter == 0
        identity = client.create_producer(TOPIC).send(b"hello")
        assert consumer.receive(5000).message_id() == identity
        assert not set(before) & set(ledgers(root))


def test_a_copy_begins_anew(root: Path, tmp_path: Path):
    """A copied store has the topic, without its messages."""
    send(root, 3)
    shutil.copytree(root, tmp_path / "copy", ignore=shutil.ignore_patterns("clients"))
    with Client(tmp_path / "copy") as client, Admin(tmp_path / "copy") as admin:
        assert admin.topics().get_list() == [TOPIC]
        client.create_producer(TOPIC).send(b"hello")
        assert admin.topics().get_stats(TOPIC).msg_in_counter == 1


def test_nothing_is_left_of_a_deleted_topic(root: Path):
    """All its files are in the store, and go with the topic."""
    send(root, 3, LARGE)
    assert ledgers(root)
    with Admin(root) as admin:
        admin.topics().delete(TOPIC)
    assert not list(root.glob("topics/*"))


@pytest.mark.parametrize("topic", [TOPIC, "persistent"])
def test_nothing_is_flushed(root: Path, topic: str):
    """Whatever the level of durability, sending and receiving flushes no file of the topic."""
    code = """
import sys
from embeddedpulsar import Client
from embeddedpulsar._engine.platform import disk
flushed = []
class Watched(type(disk.DISK)):
    def fsync(self, fd, path): flushed.append(path); super().fsync(fd, path)
    def fsync_dir(self, path): flushed.append(path); super().fsync_dir(path)
with Client(sys.argv[1], durability="flush") as client:
    consumer = client.subscribe(sys.argv[2], "sub")
    producer = client.create_producer(sys.argv[2])
    disk.DISK = Watched()
    for _ in range(20):
        producer.send(bytes(400 << 10))
        consumer.receive(5000)
print(*flushed)
"""
    assert (run_python(code, str(root), topic).strip() == "") == (topic == TOPIC)
