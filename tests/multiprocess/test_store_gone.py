"""A store that is removed, moved or replaced while clients have it open."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from embeddedpulsar import Client, ConsumerType, InitialPosition, MessageId, Result
from embeddedpulsar._engine.platform import descriptors
from embeddedpulsar.exceptions import PulsarException, StoreGoneError, Timeout
from embeddedpulsar.testing.trial_store import assert_clean
from tests.children import in_child

Change = Callable[[Path], object]


def topic_directory(root: Path) -> Path:
    """The directory of the topic."""
    (found,) = (root / "topics").iterdir()
    return found


def removed(root: Path) -> None:
    shutil.rmtree(root)


def made_again(root: Path) -> None:
    shutil.rmtree(root)
    fill(root, b"new")


def moved(root: Path) -> None:
    root.rename(root.parent / "elsewhere")


def replaced(root: Path) -> None:
    moved(root)
    fill(root, b"new")


def replaced_by_a_copy(root: Path) -> None:
    root.rename(root.parent / "elsewhere")
    shutil.copytree(root.parent / "elsewhere", root, ignore=shutil.ignore_patterns("clients"))
    (root / "clients").mkdir()


def emptied(root: Path) -> None:
    for path in root.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def emptied_and_filled(root: Path) -> None:
    emptied(root)
    fill(root, b"new")


def topic_removed(root: Path) -> None:
    shutil.rmtree(topic_directory(root))


def topic_moved(root: Path) -> None:
    topic_directory(root).rename(root.parent / "elsewhere")


def topic_replaced(root: Path) -> None:
    directory = topic_directory(root)
    directory.rename(root.parent / "elsewhere")
    shutil.copytree(root.parent / "elsewhere", directory)


CHANGES = [
    removed,
    made_again,
    moved,
    replaced,
    replaced_by_a_copy,
    emptied,
    emptied_and_filled,
    topic_removed,
    topic_moved,
    topic_replaced,
]


def fill(root: Path, text: bytes) -> None:
    """Make a store with one topic, one subscription and five messages, in this process."""
    with Client(root) as client:
        client.subscribe("t", "s", initial_position=InitialPosition.Earliest).close()
        with client.create_producer("t", "p") as producer:
            for _ in range(5):
                producer.send(text)


def contents(root: Path) -> dict[str, bytes | None]:
    """Everything in a directory but the doorbells of clients."""
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in root.rglob("*")
        if path.parent.name != "clients"
    }


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    """The directory of the store."""
    return tmp_path / "store"


@pytest.fixture
def old(store_path: Path) -> Iterator[Client]:
    """A client of a filled store."""
    fill(store_path, b"old")
    made = Client(store_path)
    yield made
    made.shutdown()


@pytest.fixture(params=CHANGES, ids=lambda change: change.__name__)
def change(request: pytest.FixtureRequest) -> Change:
    """What happens to the store."""
    return request.param


@pytest.mark.parametrize("durability", ["process", "interval", "flush"])
def test_no_send_is_acknowledged(store_path: Path, old: Client, change: Change, durability: str):
    """Each send raises an error that says what happened and what to do, and nothing is written."""
    producer = old.create_producer("t", durability=durability)
    producer.send(b"before")
    change(store_path)
    before = contents(store_path) if store_path.exists() else None
    if change in (moved, replaced, replaced_by_a_copy, topic_moved, topic_replaced):
        time.sleep(0.02)  # what is moved is noticed within 10 ms
    for _ in range(3):
        with pytest.raises(StoreGoneError, match=r"removed, moved or replaced.*open a new one"):
            producer.send(b"after")
    old.close()
    assert before == (contents(store_path) if store_path.exists() else None)


def test_no_batch_and_no_asynchronous_send_is_acknowledged(store_path: Path, old: Client, change: Change):
    """Their callbacks get the error."""
    results: list[Result] = []
    producers = [
        old.create_producer("t"),
        old.create_producer("t", batching_enabled=True),
        old.create_producer("t", chunking_enabled=True, chunk_max_message_size=10),
    ]
    for producer in producers:
        producer.send(b"before" * 10)
    change(store_path)
    time.sleep(0.02)
    for producer in producers:
        for _ in range(3):
            producer.send_async(b"after" * 10, lambda result, _: results.append(result))
        producer.flush()
        with pytest.raises(StoreGoneError):
            producer.send_many([b"a", b"b"])
    assert len(results) == 9
    assert set(results) == {Result.BrokerPersistenceError}
    old.close()


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared])
def test_a_receive_that_waits_ends(tmp_path: Path, kind: ConsumerType):
    """So does one that begins later, and one with a timeout raises the error of the store.

    It is noticed within seconds of real time, so each change has a store, and all of them wait at once.
    """
    waits = {change.__name__: Waiting(tmp_path / change.__name__, kind) for change in CHANGES}
    time.sleep(0.1)
    for change in CHANGES:
        change(waits[change.__name__].root)
    assert {name: waiting.ends_with() for name, waiting in waits.items()} == {
        change.__name__: [StoreGoneError] * 4 for change in CHANGES
    }


class Waiting:
    """A client whose consumer and reader wait, each on a thread."""

    def __init__(self, folder: Path, kind: ConsumerType) -> None:
        folder.mkdir()
        self.root = folder / "store"
        fill(self.root, b"old")
        self.client = Client(self.root)
        self.consumer = self.client.subscribe("t", "waits", kind)
        self.reader = self.client.create_reader("t", MessageId.latest)
        self.errors: list[type[BaseException]] = []
        self.threads = [
            threading.Thread(target=self.note, args=[self.consumer.receive]),
            threading.Thread(target=self.note, args=[lambda: self.reader.read_next(20_000)]),
        ]
        for thread in self.threads:
            thread.start()

    def note(self, receive: Callable[[], object]) -> None:
        """Receive, and note the error."""
        try:
            receive()
        except PulsarException as error:
            self.errors.append(type(error))

    def ends_with(self) -> list[type[BaseException]]:
        """The errors of the calls that waited, and of two later ones; closes the client."""
        for thread in self.threads:
            thread.join(10)
        self.note(lambda: self.consumer.receive(1000))
        self.note(lambda: self.reader.read_next(1000))
        self.client.close()
        return self.errors


def test_what_is_open_can_be_closed(store_path: Path, old: Client, change: Change):
    """Closing producers, consumers and clients raises nothing, writes nothing, and gives everything back."""
    before = len(os.listdir("/proc/self/fd"))
    client = Client(store_path)
    producer = old.create_producer("t")
    consumers = [
        old.subscribe("t", f"s-{kind.name}", kind, initial_position=InitialPosition.Earliest)
        for kind in (ConsumerType.Exclusive, ConsumerType.Shared, ConsumerType.KeyShared)
    ]
    for consumer in consumers:
        consumer.acknowledge(consumer.receive(1000))
    change(store_path)
    seen = contents(store_path) if store_path.exists() else None
    consumers[0].close()
    producer.close()
    old.close()
    client.close()
    assert seen == (contents(store_path) if store_path.exists() else None)
    assert len(os.listdir("/proc/self/fd")) < before


@pytest.mark.parametrize("change", [removed, made_again, topic_removed])
def test_what_is_at_rest_can_be_closed(store_path: Path, old: Client, change: Change):
    """Locks that gave their descriptors back, as they do where few are allowed, find their files gone."""
    consumer = old.subscribe("t", "another")
    with pytest.raises(Timeout):
        consumer.receive(10)
    descriptors.SLEEPERS.make_room()
    change(store_path)
    old.close()


def test_a_new_client_of_the_process_has_the_new_store(store_path: Path, old: Client, change: Change):
    """It neither gets content of the old one nor loses what it sends, while the old client lives or after."""
    producer = old.create_producer("t")
    producer.send(b"old")
    consumer = old.subscribe("t", "another", initial_position=InitialPosition.Earliest)
    consumer.receive(1000)
    change(store_path)
    kept = change in (replaced_by_a_copy, topic_replaced)
    new = Client(store_path)
    receiving = new.subscribe("t", "s", initial_position=InitialPosition.Earliest)
    new.create_producer("t").send(b"newest")
    time.sleep(0.02)
    calls = [lambda: producer.send(b"lost"), consumer.unsubscribe]
    if not change.__name__.startswith("topic"):
        calls.append(lambda: old.create_producer("u"))
    for call in calls:
        with pytest.raises(StoreGoneError):
            call()
    got = [receiving.receive(2000).data()]
    while got[-1] != b"newest":
        got.append(receiving.receive(2000).data())
    assert (b"old" in got) == kept
    assert b"lost" not in got
    old.close()
    new.create_producer("t").send(b"after")
    assert receiving.receive(2000).data() == b"after"
    new.close()
    assert_clean(store_path)


def test_a_forked_child_does_not_take_another_store_for_its_parents(store_path: Path, old: Client):
    """A client that it inherited raises."""
    producer = old.create_producer("t")
    producer.send(b"old")

    def use() -> str:
        made_again(store_path)
        time.sleep(0.02)
        for call in (lambda: producer.send(b"lost"), lambda: old.create_producer("t")):
            with pytest.raises(StoreGoneError):
                call()
        return "refused"

    assert in_child(use) == "refused"
    with pytest.raises(StoreGoneError):
        producer.send(b"lost")
    old.close()
    with Client(store_path) as client:
        consumer = client.subscribe("t", "s")
        assert [consumer.receive(1000).data() for _ in range(5)] == [b"new"] * 5
        assert consumer.receive_nowait() is None
