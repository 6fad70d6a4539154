"""Something else in the place of a file: calls raise errors of the package that name it."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from embeddedpulsar import Admin, Client, ConsumerType, MessageId
from embeddedpulsar._engine.store.care.store_check import check_store
from embeddedpulsar._engine.store.care.store_repair import repair_store
from embeddedpulsar.exceptions import PulsarException, StorageOSError
from tests.support.store_copies import copy_store

NAMESPACE = "public/default"


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        here = os.open(path.parent, os.O_DIRECTORY)
        try:
            one.bind(f"/proc/self/fd/{here}/{path.name}")  # the whole path may be too long for a socket
        finally:
            os.close(here)


def _link(path: Path) -> None:
    elsewhere = path.with_name(f"{path.name}.elsewhere")
    elsewhere.write_bytes(b"of another program")
    path.symlink_to(elsewhere)


KINDS: dict[str, Callable[[Path], object]] = {
    "directory": Path.mkdir,
    "socket": _socket,
    "FIFO": lambda path: os.mkfifo(path),
    "link": _link,
    "dangling link": lambda path: path.symlink_to("nowhere"),
    "empty": Path.touch,
}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store with documents of every kind."""
    root = tmp_path_factory.mktemp("original") / "store"
    root.mkdir()
    (root / "broker.conf").write_text("managedLedgerMaxEntriesPerLedger=5\n")
    with Client(root) as client, Admin(root) as admin:
        consumer = client.subscribe("orders", "billing", ConsumerType.Shared)
        producer = client.create_producer("orders")
        for number in range(7):
            producer.send(b"order %d" % number)
        consumer.acknowledge(consumer.receive(1000))
        admin.topics().set_retention("orders", 10, 10)
        admin.namespaces().set_retention(NAMESPACE, 20, 20)
        admin.topics().create_partitioned_topic("parts", 2)
        admin.topics().compact("orders")
    return root


def files_of(root: Path) -> list[str]:
    """The files of a store, without those that belong to processes, by their path."""
    found = (str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
    return sorted(name for name in found if not name.startswith("clients"))


def admin_calls(admin: Admin) -> Iterator[Callable[[], object]]:
    """Every call of the topics, namespaces and the like that takes a name, or nothing."""
    for part, name in ((admin.topics(), "orders"), (admin.namespaces(), NAMESPACE)):
        for method in dir(part):
            call = getattr(part, method)
            if method.startswith(("get_", "remove_", "compaction_", "offload_")) and callable(call):
                yield lambda call=call, name=name: call(name)
    topics = admin.topics()
    yield lambda: topics.trim_topic("orders")
    yield lambda: topics.set_retention("orders", 30, 30)
    yield lambda: topics.analyze_subscription_backlog("orders", "billing")
    yield lambda: topics.peek_messages("orders", "billing", 3)
    yield lambda: topics.skip_messages("orders", "billing", 1)
    yield lambda: topics.reset_cursor("orders", "billing", MessageId.earliest)
    yield lambda: topics.create_subscription("orders", "another")
    yield lambda: topics.delete_subscription("orders", "another")
    yield lambda: topics.create_non_partitioned_topic("more")
    yield lambda: topics.unload("orders")
    yield lambda: admin.why_kept("orders")
    yield lambda: admin.check()
    yield lambda: admin.activity().look()
    yield lambda: admin.tenants().get_tenants()
    yield lambda: admin.brokers().get_all_dynamic_configurations()
    yield lambda: admin.schemas().get_schema_info("orders")
    yield lambda: admin.repair(dry_run=True)


def client_calls(client: Client) -> Iterator[Callable[[], object]]:
    """What an application does."""
    yield lambda: client.create_producer("orders").send(b"more")
    yield lambda: client.subscribe("orders", "billing", ConsumerType.Shared).receive_nowait()
    yield lambda: list(client.create_reader("orders", MessageId.earliest))
    yield lambda: client.get_topic_partitions("parts")
    yield lambda: client.create_producer("parts").send(b"more")


def refusals(root: Path) -> list[str]:
    """Make all calls; returns the texts of errors. Errors that are not of the package fail the test."""
    texts = []

    def make(call: Callable[[], object]) -> None:
        try:
            call()
        except PulsarException as e:
            texts.append(str(e))
        except TypeError:
            return  # it needs more arguments

    for calls, kind in ((admin_calls, Admin), (client_calls, Client)):
        try:
            one = kind(root, on_damage=lambda _: None)
        except PulsarException as e:
            texts.append(str(e))
            continue
        try:
            for call in calls(one):
                make(call)
        finally:
            make(one.close)
    return texts


def replace(root: Path, name: str, kind: str) -> Path:
    """Put something else in the place of a file."""
    path = root / name
    path.unlink()
    KINDS[kind](path)
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_every_call_with_something_else_in_the_place_of_a_file(original: Path, tmp_path: Path, kind: str):
    """The errors are of the package; every file with one of the kinds."""
    names = files_of(original)[list(KINDS).index(kind) :: len(KINDS)]
    for name in names:
        root = copy_store(original, tmp_path / "store")
        path = replace(root, name, kind)
        texts = refusals(root)
        assert all(text.startswith("Pulsar error") for text in texts)
        if path.name.endswith(".log") and kind not in ("empty", "dangling link"):
            assert any(path.name in text for text in texts), name
        shutil.rmtree(root)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_file(original: Path, tmp_path: Path, kind: str):
    """All of them."""
    for name in files_of(original):
        root = copy_store(original, tmp_path / "store")
        replace(root, name, kind)
        assert all(text.startswith("Pulsar error") for text in refusals(root)), name
        shutil.rmtree(root)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "empty"])
def test_a_check_and_a_repair(original: Path, tmp_path: Path, kind: str):
    """The check names it as unreadable, and no advice is to repair; a repair refuses, and changes nothing."""
    for name in [one for one in files_of(original) if one.endswith((".log", "journal.1"))]:
        root = copy_store(original, tmp_path / "store")
        path = replace(root, name, kind)
        report = check_store(root, is_closed=False)
        assert str(path) in {problem.path for problem in report.unverified}, (name, report.problems)
        assert not [one for one in report.unverified if "repair" in one.remedy]
        with pytest.raises(StorageOSError, match="nothing was repaired"):
            repair_store(str(root))
        assert path.lstat()
        shutil.rmtree(root)


def test_a_place_where_nothing_can_be_made():
    """A file system of the kernel takes no directories: choose another path."""
    with pytest.raises(StorageOSError, match=r"/proc takes no directories; choose a path on a disk"):
        Client("/proc/embeddedpulsar")
