"""Whoever makes, grows or deletes a partitioned topic dies at any step: all of it is done, or nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from embeddedpulsar import Admin, AlreadyClosed, Client, InitialPosition, MessageId, TopicNotFound
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar._engine.store import topic_deletion, topic_directories, topic_list
from tests.children import die_at, run_python

BASE = "persistent://public/default/orders"
MODULES = (topic_deletion, topic_directories, topic_list)  # they declare the steps when imported


def steps(*prefixes: str) -> list[str]:
    """The failpoints with one of these prefixes."""
    return [name for name in failpoints.names() if name.startswith(prefixes)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store."""
    Admin(tmp_path / "store").close()
    return tmp_path / "store"


def publish(root: Path, partitions: range, text: bytes = b"old") -> None:
    """One message to each partition."""
    with Client(root) as client:
        for index in partitions:
            client.create_producer(f"orders-partition-{index}").send(text)


def read(root: Path) -> list[bytes]:
    """All that is in the topic."""
    with Client(root) as client:
        return [message.data() for message in client.create_reader("orders", MessageId.earliest)]


@pytest.mark.parametrize("step", steps("topic:", "catalog:"))
def test_making(root: Path, step: str):
    """Then there is a topic with three partitions, or none; and it can be made."""

    def make() -> None:
        with Admin(root) as admin:
            admin.topics().create_partitioned_topic("orders", 3)

    assert die_at(step, make)
    with Admin(root) as admin:
        if admin.topics().get_partitioned_topic_list() == []:
            assert admin.topics().get_list() == []
            admin.topics().create_partitioned_topic("orders", 3)
        assert admin.topics().get_partitioned_topic_metadata("orders").partitions == 3
    publish(root, range(3))
    assert len(read(root)) == 3


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("step", steps("partitions:", "catalog:", "topic:"))
def test_growing(root: Path, step: str, nth: int):
    """Then there are two partitions or four; growing again completes it, and no subscription misses any."""
    with Admin(root) as admin:
        admin.topics().create_partitioned_topic("orders", 2)
    with Client(root) as client:
        client.subscribe("orders", "sub").close()

    def grow() -> None:
        with Admin(root) as admin:
            admin.topics().update_partitioned_topic("orders", 4)

    die_at(step, grow, nth)
    with Admin(root) as admin:
        found = admin.topics().get_partitioned_topic_metadata("orders").partitions
        assert found in (2, 4) and len(admin.topics().get_list()) == found
        with Client(root) as client:
            if found == 2:
                with pytest.raises(TopicNotFound):
                    client.create_producer("orders-partition-2")
        admin.topics().update_partitioned_topic("orders", 4)
    publish(root, range(4))
    with Client(root) as client:
        consumer = client.subscribe("orders", "sub", initial_position=InitialPosition.Latest)
        assert len({consumer.receive(5000).topic_name() for _ in range(4)}) == 4


@pytest.mark.parametrize("step", [*steps("deletion:", "catalog:")])
def test_what_a_killed_deletion_left_goes_with_the_next_opening(root: Path, step: str):
    """Also while others have the store open all the time, and no topic of that name is made again."""
    with Admin(root) as admin:
        admin.topics().create_partitioned_topic("orders", 3)
    publish(root, range(2))
    with Client(root):
        assert die_at(step, lambda: Admin(root).topics().delete_partitioned_topic("orders"))
        run_python("import sys, embeddedpulsar; embeddedpulsar.Admin(sys.argv[1]).close()", str(root))
        with Admin(root) as admin:
            is_there = bool(admin.topics().get_partitioned_topic_list())
        assert bool(list((root / "topics").iterdir())) == is_there
        assert list((root / "staging").iterdir()) == []


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("step", [*steps("deletion:", "catalog:")])
def test_deleting(root: Path, step: str, force: bool):
    """Then all is there as before, or nothing; a topic made anew is empty, and the old files go."""
    with Admin(root) as admin:
        admin.topics().create_partitioned_topic("orders", 3)
    publish(root, range(2))

    def delete() -> None:
        with Admin(root) as admin:
            admin.topics().delete_partitioned_topic("orders", force=force)

    with Client(root) as client:
        reader = client.create_reader("orders-partition-0", MessageId.earliest)
        assert die_at(step, delete)
        with Admin(root) as admin:
            if admin.topics().get_partitioned_topic_list():
                assert step in ("deletion:noted", "deletion:checked", "deletion:marked")
                assert len(admin.topics().get_list()) == 3 and read(root) == [b"old"] * 2
                publish(root, range(3), b"goes on")
                assert len(read(root)) == 5
                admin.topics().delete_partitioned_topic("orders")
            assert admin.topics().get_list() == []
            admin.topics().create_partitioned_topic("orders", 3)
        assert read(root) == []
        publish(root, range(3), b"new")
        assert read(root) == [b"new"] * 3
        with pytest.raises(AlreadyClosed, match="was deleted"):
            reader.read_next(1000)
    assert len(list((root / "topics").iterdir())) == 4
