"""A control file that is overwritten: its words are derived again, and none of it is believed."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from embeddedpulsar import (
    Admin,
    Client,
    ConsumerType,
    Damage,
    InitialPosition,
    MessageId,
    PulsarException,
    Timeout,
)
from embeddedpulsar._engine.format.control import (
    CONTROL_HEADER_SIZE,
    KIND_STORE,
    KIND_SUBSCRIPTION,
    KIND_TOPIC,
    pack_control_header,
    parse_control_header,
)
from embeddedpulsar.testing.trial_store import assert_clean

EARLIEST = {"initial_position": InitialPosition.Earliest}
FILES = {
    "topic": (KIND_TOPIC, "topics/t-*-t/ctl"),
    "shared": (KIND_SUBSCRIPTION, "topics/t-*-t/subscriptions/*-shared/ctl"),
    "exclusive": (KIND_SUBSCRIPTION, "topics/t-*-t/subscriptions/*-exclusive/ctl"),
    "store": (KIND_STORE, "store.ctl"),
}
FILLS: dict[str, Callable[[int], bytes]] = {
    "ff": lambda size: b"\xff" * size,
    "7f": lambda size: b"\x7f" * size,
    "zeros": bytes,
    "random": lambda size: random.Random(size).randbytes(size),
}
KEPT: dict[str, Callable[[bytes, int], bytes]] = {
    "nothing": lambda old, kind: b"",
    "magic": lambda old, kind: old[:16],
    "header": lambda old, kind: old[:CONTROL_HEADER_SIZE],
    "header of another boot": lambda old, kind: pack_control_header(
        parse_control_header(old[:CONTROL_HEADER_SIZE], kind)._replace(boot_id=b"another boot, 16")
    ),
    "first page": lambda old, kind: old[:4096],
}


def received(client: Client, name: str, kind: ConsumerType) -> list[int]:
    """The messages a subscription gives, without doubles."""
    found = set()
    with client.subscribe("t", name, kind, **EARLIEST) as consumer:
        while True:
            try:
                found.add(int(consumer.receive(20).data()))
            except Timeout:
                return sorted(found)


def use(root: str) -> None:
    """Publish and receive: everything that was not acknowledged is there, and new topics can be made."""
    with Client(root) as client:
        producer = client.create_producer("t")
        producer.send(b"10")
        client.create_producer("new").send(b"x")
        for name, kind in (("shared", ConsumerType.Shared), ("exclusive", ConsumerType.Exclusive)):
            assert received(client, name, kind)[-9:] == list(range(2, 11)), name
        with client.create_reader("t", MessageId.earliest) as reader:
            assert reader.read_next(1000).data() == b"0"


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A closed store: ten messages, two subscriptions that acknowledged two of them."""
    root = str(tmp_path / "store")
    with Client(root) as client:
        consumers = [
            client.subscribe("t", "shared", ConsumerType.Shared, **EARLIEST),
            client.subscribe("t", "exclusive", **EARLIEST),
        ]
        producer = client.create_producer("t")
        for number in range(10):
            producer.send(b"%d" % number)
        for consumer in consumers:
            for _ in range(2):
                consumer.acknowledge(consumer.receive(1000))
    return root


def overwrite(root: str, what: str, fill: str, kept: str) -> bool:
    """Write noise over one control file; False if it is as it was."""
    kind, pattern = FILES[what]
    (path,) = Path(root).glob(pattern)
    old = path.read_bytes()
    start = KEPT[kept](old, kind)
    new = start + FILLS[fill](len(old))[len(start) :]
    with path.open("r+b") as file:  # the same inode
        file.write(new)
    return new != old


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("what", FILES)
def test_it_is_derived_again(root: str, what: str, kept: str, fill: str):
    """Opening recovers it, whatever is left of it; nothing is lost, and the store is whole afterwards."""
    overwrite(root, what, fill, kept)
    use(root)
    assert_clean(root)


@pytest.mark.parametrize("fill", ["ff", "random"])
@pytest.mark.parametrize("kept", ["nothing", "magic", "header"])
@pytest.mark.parametrize("what", FILES)
def test_check_finds_it_and_repair_cures_it(root: str, what: str, kept: str, fill: str):
    """Before anything else opens the store."""
    overwrite(root, what, fill, kept)
    with Admin(root) as admin:
        problems = admin.check().problems
        steps = admin.repair().steps
    if what == "store":  # opening the store has derived it again
        assert not problems
    else:
        _, pattern = FILES[what]
        assert [str(problem.path) for problem in problems] == [str(*Path(root).glob(pattern))]
        assert steps
    use(root)
    assert_clean(root)


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("kept", ["nothing", "magic", "header"])
def test_nothing_is_removed_by_words_that_were_overwritten_in_use(tmp_path: Path, kept: str, fill: str):
    """The process that has the topic open goes on by noise. Every message that was not acknowledged is there
    when the words have been derived again."""
    root = str(tmp_path / "store")
    Client(root).close()
    (Path(root) / "broker.conf").write_text("managedLedgerMaxEntriesPerLedger=5\n")
    damages: list[Damage] = []
    acknowledged: set[int] = set()
    with Client(root, on_damage=damages.append) as client, Admin(root, on_damage=damages.append) as admin:
        consumer = client.subscribe("t", "shared", ConsumerType.Shared, **EARLIEST)
        producer = client.create_producer("t")
        for number in range(20):
            producer.send(b"%d" % number)
        for _ in range(3):
            message = consumer.receive(1000)
            consumer.acknowledge(message)
            acknowledged.add(int(message.data()))
        assert overwrite(root, "topic", fill, kept)
        for step in (
            lambda: admin.topics().trim_topic("t"),
            lambda: producer.send(b"20"),
            lambda: admin.topics().trim_topic("t"),
            lambda: acknowledged.add(int(consumer.receive(100).data())),
        ):
            with contextlib.suppress(PulsarException, IndexError):
                step()
    with Client(root, on_damage=damages.append) as client:
        assert {*received(client, "shared", ConsumerType.Shared)} >= {*range(20)} - acknowledged
    assert not any("remove it" in damage.remedy for damage in damages)
    assert_clean(root)
