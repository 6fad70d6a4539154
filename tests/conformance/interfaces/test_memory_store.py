"""``memory://``: a store in a directory that ends with the last process that uses it."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import Admin, Client, ConsumerType, MessageId, NotAllowedError, arrow
from embeddedpulsar._engine.log.log_opening import LedgerOptions
from embeddedpulsar._engine.log.managed_ledger import ManagedLedger
from embeddedpulsar._engine.platform import disk, nofollow
from embeddedpulsar._engine.platform.filesystem import DirectoryLease
from embeddedpulsar._engine.store import store_root
from embeddedpulsar._engine.store.store import REGISTRY, Store
from embeddedpulsar.exceptions import (
    AlreadyClosed,
    ForeignFileError,
    StorageOSError,
    StoreGoneError,
    TopicNotFound,
)
from embeddedpulsar.message_id import Position
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


def log_of(client: Client, topic: str = "topic") -> ManagedLedger:
    """The log of a topic."""
    log = client._core.store.use_topic(topic).topic.ledger
    assert isinstance(log, ManagedLedger)
    return log


def size_of(root: str) -> int:
    """Bytes of memory that a directory takes."""
    return sum(
        os.stat(os.path.join(directory, name)).st_blocks * 512
        for directory, _, names in os.walk(root)
        for name in names
    )


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
    with client.create_producer("topic") as producer:
        for _ in range(100):
            producer.send(bytes(10_000))
    root = client._core.store.root
    assert size_of(root) > 1_000_000
    with Admin(URL) as admin:
        admin.topics().delete("topic", force=True)
        assert size_of(root) < 100_000
        with pytest.raises(TopicNotFound):
            admin.topics().delete("topic")
    assert payloads(client) == []
    assert publish(client, 1)[0].entry_id() == 0


def test_what_is_acknowledged_gives_its_memory_back():
    """While messages are sent: a topic that holds little never takes much."""
    client = Client(f"{URL}?managedLedgerMaxSizePerLedgerMbytes=2")
    root = client._core.store.root
    consumer = client.subscribe("topic", "sub")
    producer = client.create_producer("topic")
    for _ in range(40):
        for _ in range(20):
            producer.send(bytes(50_000))
        for _ in range(20):
            consumer.acknowledge(consumer.receive(1000))
        deadline = time.monotonic() + 10
        with Admin(URL) as admin:
            while size_of(root) > 4 << 20:
                assert time.monotonic() < deadline, "the memory is not given back"
                admin.topics().trim_topic("topic")
    with Admin(URL) as admin:
        assert admin.check().is_clean
    client.close()


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


def test_a_forked_child_shares_the_store(client: Client):
    """With what it inherited, with new clients of the name, and with the parent at the same time."""
    producer = client.create_producer("topic")
    consumer = client.subscribe("topic", "sub", ConsumerType.Shared)
    producer.send(b"parent")

    def child() -> str:
        producer.send(b"child")
        with Client(URL) as own, own.create_producer("topic") as again:
            again.send(b"child again")
            texts = payloads(own)
        client.close()
        return b" ".join(texts).decode()

    assert in_child(child) == "parent child child again"
    producer.send(b"parent again")
    assert [message.data() for message in receive_all(consumer)] == [
        b"parent",
        b"child",
        b"child again",
        b"parent again",
    ]


def test_a_forked_child_has_private_and_other_stores_of_its_own(client: Client):
    """A name that the parent did not have open is another store, also if the parent opens it later."""

    def child() -> str:
        with Client("memory://later") as later, Client("memory://") as private:
            publish(later, 1)
            return f"{len(payloads(later))} {len(payloads(private))}"

    publish(client, 2)
    assert in_child(child) == "1 0"
    with Client("memory://later") as later:
        assert payloads(later) == []


class Child:
    """A forked child that calls one function at once, and another one when it is told to.

    Attributes:
        ready: what the first returned.
    """

    def __init__(self, before: Callable[[], str], after: Callable[[], str]) -> None:
        self._answers, answers = os.pipe()
        orders, self._orders = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._orders)
            try:
                for action in (before, after):
                    try:
                        answer = action()
                    except Exception as e:
                        answer = f"{type(e).__name__}: {e}"
                    os.write(answers, answer.encode())
                    os.read(orders, 1)
            finally:
                os._exit(0)
        os.close(answers)
        os.close(orders)
        self.ready = os.read(self._answers, 1 << 12).decode()

    def finish(self) -> str:
        """What the second function returns."""
        os.write(self._orders, b"x")
        answer = os.read(self._answers, 1 << 12).decode()
        os.close(self._orders)
        os.waitpid(self._pid, 0)
        os.close(self._answers)
        return answer


def test_a_store_ends_with_the_last_process_that_uses_it():
    """Here a child that goes on when its parent has closed it."""
    client = Client(URL)
    root = client._core.store.root
    producer = client.create_producer("topic")

    def after() -> str:
        producer.send(b"after")
        text = b" ".join(payloads(client)).decode()
        client.close()
        return text

    child = Child(lambda: str(producer.send(b"before").entry_id()), after)
    assert child.ready == "0"
    client.close()
    assert os.path.isdir(root)
    assert child.finish() == "before after"
    assert not os.path.exists(root)


def test_a_child_that_did_not_use_the_store_finds_it_gone():
    """When its parent has closed it; the name is that of a new store then."""
    client = Client(URL)
    root = client._core.store.root
    producer = client.create_producer("topic")
    producer.send(b"x")

    def after() -> str:
        with pytest.raises(StoreGoneError, match="was a store in memory"):
            producer.send(b"y")
        with Client(URL) as own:
            return f"{len(payloads(own))} {own._core.store.root != root}"

    child = Child(lambda: "forked", after)
    assert child.ready == "forked"
    client.close()
    assert not os.path.exists(root)
    assert child.finish() == "0 True"


def test_its_files_are_read_as_those_of_a_directory(client: Client):
    """By the URL, where a client of it is open, and by the path; also by another process."""
    publish(client, 3)
    root = client._core.store.root
    for place in (URL, root):
        assert arrow.read_topic(place, "topic").num_rows == 3
    with client.create_reader("topic", MessageId.earliest) as reader:
        assert reader.to_arrow().num_rows == 3
    with Client(root) as by_path:
        assert payloads(by_path) == [b"0", b"1", b"2"]
    for url in ("memory://", "memory://unknown"):
        with pytest.raises(NotAllowedError, match="memory://"):
            arrow.read_topic(url, "topic")


def test_a_directory_that_is_gone_is_not_made_again(client: Client):
    """A worker that comes late does not begin an empty store in its place."""
    root = client._core.store.root
    client.close()
    with pytest.raises(StoreGoneError, match="was a store in memory"):
        Client(root)
    assert not os.path.exists(root)


def test_a_backup_of_it_is_a_store(client: Client, tmp_path: Path):
    """In a directory, which stays."""
    publish(client, 3)
    with Admin(URL) as admin:
        admin.backup(tmp_path / "backup")
    client.close()
    Admin.restore(tmp_path / "backup", tmp_path / "restored")
    with Client(tmp_path / "restored") as restored:
        assert payloads(restored) == [b"0", b"1", b"2"]


def test_settings_in_the_url():
    """They are the `broker.conf` of the new store; who leaves them out shares it."""
    url = "memory://settings"
    with Client(f"{url}?maxMessageSize=1000&managedLedgerMaxEntriesPerLedger=2") as client:
        assert len({id.ledger_id() for id in publish(client, 6)}) == 3
        with Client(url) as other, Client(f"{url}?managedLedgerMaxEntriesPerLedger=2&maxMessageSize=1000"):
            assert len(payloads(other)) == 6
        with pytest.raises(ValueError, match="other settings"):
            Client(f"{url}?maxMessageSize=2000")
    for wrong in ("memory://x?maxMessageSize", "memory://x?=", "memory://x?maxMessageSize=no"):
        with pytest.raises(Exception, match=r"maxMessageSize|settings|name=value"):
            Client(wrong)
    assert store_root.ROOTS == {} and not REGISTRY.in_memory


def test_what_takes_its_place_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Where the place is not sticky, another user may replace the directory between making and opening it."""
    monkeypatch.setattr(store_root, "SHARED_MEMORY", str(tmp_path))
    mkdir = disk.DISK.mkdir

    def replaced(path: str, mode: int | None = None) -> None:
        mkdir(path, mode)
        if os.path.basename(path).startswith("embeddedpulsar-memory-"):
            os.rename(path, f"{tmp_path}/moved")
            os.mkdir(path, 0o777)
            os.chmod(path, 0o777)

    monkeypatch.setattr(type(disk.DISK), "mkdir", lambda self, *rest: replaced(*rest))
    with pytest.raises(ForeignFileError, match="replaced meanwhile"):
        Client("memory://")
    monkeypatch.undo()
    monkeypatch.setattr(store_root, "SHARED_MEMORY", str(tmp_path))

    def linked(path: str, mode: int | None = None) -> None:
        mkdir(path, mode)
        if os.path.basename(path).startswith("embeddedpulsar-memory-"):
            os.rename(path, f"{tmp_path}/moved-too")
            os.symlink(f"{tmp_path}/moved-too", path)

    monkeypatch.setattr(type(disk.DISK), "mkdir", lambda self, *rest: linked(*rest))
    with pytest.raises(OSError, match="symbolic link"):
        Client("memory://")


def test_a_name_that_is_taken_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Were the random name known, what another user made there would be an error, not the store."""
    monkeypatch.setattr(store_root, "SHARED_MEMORY", str(tmp_path))
    monkeypatch.setattr(os, "urandom", lambda size: bytes(size))
    (tmp_path / f"embeddedpulsar-memory-{'00' * 12}").symlink_to(tmp_path)
    with pytest.raises(StorageOSError, match="File exists"):
        Client("memory://")


def test_the_directory_is_for_its_owner_alone(client: Client):
    """Whatever the umask is."""
    before = os.umask(0)
    try:
        with Client("memory://") as private:
            mode = os.stat(private._core.store.root).st_mode
    finally:
        os.umask(before)
    assert stat.S_IMODE(mode) == 0o700


def test_a_place_that_is_nearly_full_or_missing_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The temporary directory is."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(store_root, "LEAST_FREE", 1 << 60)
    with Client("memory://") as client:
        assert os.path.dirname(client._core.store.root) == nofollow.canonical(str(tmp_path))
        assert client._core.store.is_temporary
        publish(client, 1)
    assert os.listdir(tmp_path) == []
    monkeypatch.undo()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(store_root, "SHARED_MEMORY", str(tmp_path / "missing"))
    with Client("memory://") as client:
        assert os.path.dirname(client._core.store.root) == nofollow.canonical(str(tmp_path))
    assert os.listdir(tmp_path) == []


def test_no_place_at_all(monkeypatch: pytest.MonkeyPatch):
    """The error says where was looked, and what to set."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(StorageOSError, match=r"/dev/shm.*working directory.*set TMPDIR"):
        Client("memory://")


def test_what_nobody_has_open_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """By the next store, whole or half made; not what a process holds, and not what is no directory."""
    monkeypatch.setattr(store_root, "SHARED_MEMORY", str(tmp_path))
    names = [f"embeddedpulsar-memory-{name}" for name in ("whole", "begun", "held", "link", "file")]
    whole, begun, held, link, file = (tmp_path / name for name in names)
    for path in (whole, begun, held):
        path.mkdir(0o700)
    (whole / "store.meta").write_bytes(b"x")
    (whole / "topics" / "t-one-t").mkdir(parents=True)
    link.symlink_to(held)
    file.write_text("x")
    lease = DirectoryLease.open(str(held))
    assert lease.try_shared()
    with Client("memory://"):
        assert not whole.exists() and not begun.exists()
        assert held.is_dir() and link.is_symlink() and file.is_file()
    lease.close()
    with Client("memory://"):
        assert not held.exists()


def test_a_directory_that_is_swept_as_it_is_made_is_made_again(monkeypatch: pytest.MonkeyPatch):
    """Before it has a hold it looks as one that was left."""
    sweeps = [1, 2, 3]
    mkdir = disk.DISK.mkdir

    def swept(self: Any, path: str, mode: int | None = None) -> None:
        mkdir(path, mode)
        if os.path.basename(path).startswith("embeddedpulsar-memory-") and sweeps:
            sweeps.pop()
            os.rmdir(path)

    monkeypatch.setattr(type(disk.DISK), "mkdir", swept)
    with Client("memory://") as client:
        publish(client, 1)
    assert not sweeps


def test_it_is_not_repaired(client: Client):
    """The `Admin` would have to give it up first, and be its last user."""
    publish(client, 1)
    with Admin(URL) as admin:
        assert admin.repair(dry_run=True).left == ()
        with pytest.raises(NotAllowedError, match="store in memory"):
            admin.repair()
        assert payloads(client) == [b"0"]
