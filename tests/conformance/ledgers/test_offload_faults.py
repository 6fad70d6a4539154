"""A location that fails, is slow, or lies: nothing is lost, and the errors say where and what to do."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import ArrowInvalid

from embeddedpulsar import ConsumerType, InitialPosition, MessageId, offload
from embeddedpulsar._engine.cold import cold_ledger, fetching, location
from embeddedpulsar._engine.filenames import log_path
from embeddedpulsar._engine.log import chain_scan
from embeddedpulsar._engine.log.chain_scan import LogWindow
from embeddedpulsar._engine.log.managed_ledger import ManagedLedger
from embeddedpulsar._engine.platform import disk, timing
from embeddedpulsar._engine.platform.disk import Rights
from embeddedpulsar.arrow import read_topic
from embeddedpulsar.exceptions import ColdReadError, LockTimeout, StorageFullError
from embeddedpulsar.offload import TopicOffload
from embeddedpulsar.testing import assert_clean
from tests.conformance.ledgers.faulty_location import Faulty, faulty
from tests.conformance.offloading import TOPIC, Site

assert faulty  # the fixture


@pytest.fixture
def site(tmp_path: Path, faulty: Faulty) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    faulty.fails = lambda operation, path: None
    made.close()
    assert_clean(made.root)


def failing(operation: str, part: str = "") -> Callable[[str, str], None]:
    """Raises for an operation on paths with a part."""

    def fails(found: str, path: str) -> None:
        if found == operation and part in path:
            raise OSError(f"no route to {operation} {Path(path).suffixes}")

    return fails


@pytest.mark.parametrize("part", ["frames", "messages", "manifest"])
@pytest.mark.parametrize("operation", ["write", "read"])
def test_an_upload_that_fails(site: Site, faulty: Faulty, operation: str, part: str) -> None:
    """The log stays, and the status says which entries; it succeeds when the location is back."""
    ids = site.publish(25)
    faulty.fails = failing(operation, part)
    error = site.offload()
    assert f"topic: entries {ids[0].ledger_id()}:0 to {ids[0].ledger_id()}:9" in error
    assert f"no route to {operation}" in error and str(site.cold) in error and "it is tried again" in error
    assert len(site.logs()) == 3 and not site.notes()
    assert site.admin.topics().offload_status(TOPIC).status == "ERROR"
    assert site.admin.topics().get_stats(TOPIC).last_offload_failure_time_stamp
    faulty.fails = lambda operation, path: None
    assert site.offload() == ""
    assert len(site.logs()) == 1 and len(site.objects()) == 6
    assert [found for found, _ in site.read_all()] == ids


def test_a_location_that_stores_something_else(site: Site, faulty: Faulty) -> None:
    """It is found out before the log goes, and the next attempt has other names."""
    ids = site.publish(15)
    original = location.Location.write

    def write(self: location.Location, name: str, source: Any, rights: Rights) -> None:
        original(self, name, source, rights)
        path = Path(self.path(name))
        if lies:
            path.write_bytes(path.read_bytes()[:-1] + b"?")

    lies = True
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(location.Location, "write", write)
        assert "were stored" in site.offload()
        assert len(site.logs()) == 2 and not site.notes() and not site.objects()
        lies = False
        assert site.offload() == ""
    assert len(site.logs()) == 1
    assert [found for found, _ in site.read_all()] == ids


def test_objects_that_change_during_the_lag(tmp_path: Path, faulty: Faulty) -> None:
    """The log is offloaded again; it was not removed."""
    site = Site(tmp_path, lag_ms=3_600_000)
    ids = site.publish(15)
    assert site.offload() == "" and len(site.logs()) == 2
    frames = next(path for path in site.objects() if "frames" in path.name)
    frames.write_bytes(bytes(len(frames.read_bytes())))
    site.admin.namespaces().remove_offload_policies("public/default")
    site.admin.namespaces().set_offload_policies("public/default", site.policies(0))
    # A round in the background may have come first, and may have met the error in place of the first call.
    error = site.offload()
    assert not error or "were stored" in error
    assert site.offload() == "" and len(site.logs()) == 1
    assert frames not in site.objects() and len(site.objects()) == 3
    assert [found for found, _ in site.read_all()] == ids
    site.close()


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared, ConsumerType.KeyShared])
def test_reading_while_the_location_is_away(site: Site, faulty: Faulty, kind: ConsumerType) -> None:
    """The call raises an error that says what to do; later calls continue, without loss or repetition."""
    ids = site.publish(25)
    assert site.offload() == ""
    faulty.fails = failing("read")
    consumer = site.client.subscribe(
        TOPIC, "s", consumer_type=kind, initial_position=InitialPosition.Earliest
    )
    with pytest.raises(ColdReadError) as raised:
        consumer.receive(1000)
    text = str(raised.value)
    assert f"persistent://public/default/{TOPIC}: entries {ids[0].ledger_id()}:0 to" in text
    assert "cannot be read back" in text and "no route" in text and "nothing is lost" in text
    faulty.fails = lambda operation, path: None
    found = []
    for number in range(len(ids)):
        if number == 7:  # in the middle of a ledger, and with the next one away
            faulty.fails = failing("read")
        if number == 10:
            with pytest.raises(ColdReadError):
                consumer.receive(1000)
            faulty.fails = lambda operation, path: None
        message = consumer.receive(1000)
        found.append(message.message_id())
        consumer.acknowledge(message)
    assert found == ids
    consumer.close()


def test_whole_topic_reads_while_the_location_is_away(site: Site, faulty: Faulty) -> None:
    """Likewise."""
    site.publish(25)
    assert site.offload() == ""
    faulty.fails = failing("read")
    with pytest.raises(ColdReadError, match="cannot be read back"):
        read_topic(site.root, TOPIC)
    faulty.fails = lambda operation, path: None
    assert len(read_topic(site.root, TOPIC)) == 25


def test_a_copy_that_was_changed_is_never_delivered(site: Site) -> None:
    """Whatever byte of an object is changed, the log comes back as it was, or an error does."""
    ids = site.publish(15)
    assert site.offload() == ""
    note = cold_ledger.offloaded_ledger(str(site.directory()), ids[0].ledger_id())
    assert note is not None
    log, refused = b"".join(fetching.log_of(note)), 0
    for path in (one for one in site.objects() if "manifest" not in one.name):
        whole = path.read_bytes()
        for at in range(3, len(whole), 101):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
            try:
                assert b"".join(fetching.log_of(note)) == log
            except ColdReadError:
                refused += 1
        path.write_bytes(whole)
    assert refused > 5
    assert [found for found, _ in site.read_all()] == ids


def test_a_deletion_whose_objects_cannot_be_removed(site: Site, faulty: Faulty) -> None:
    """The topic is gone; the objects go later, when any topic is offloaded."""
    site.publish(15)
    assert site.offload() == ""
    faulty.fails = failing("delete")
    site.admin.topics().delete(TOPIC, force=True)
    assert len(site.objects()) == 3 and len(list((site.root / "offloaded").glob("*.cold"))) == 1
    faulty.fails = lambda operation, path: None
    site.publish(15)
    assert site.offload() == ""
    assert len(site.objects()) == 3 and not list((site.root / "offloaded").glob("*.cold"))


def test_trimmed_ledgers_whose_objects_cannot_be_removed(site: Site, faulty: Faulty) -> None:
    """Their messages are gone, their notes stay until the objects go."""
    ids = site.publish(25)
    assert site.offload() == ""
    site.admin.topics().create_subscription(TOPIC, "s", MessageId.latest)
    site.admin.topics().set_retention(TOPIC, 0, 0)
    faulty.fails = failing("delete")
    site.admin.topics().trim_topic(TOPIC)
    assert [found for found, _ in site.read_all()] == ids[20:]
    assert "no route to delete" in site.offload()
    assert len(site.notes()) == 2
    faulty.fails = lambda operation, path: None
    assert site.offload() == ""
    assert not site.notes() and not site.objects()


def test_a_fetch_that_finds_no_room(site: Site) -> None:
    """The error says so, and nothing half is left."""
    ids = site.publish(15)
    assert site.offload() == ""
    with pytest.MonkeyPatch.context() as patch:

        def full(*_: object) -> int:
            raise StorageFullError("cannot write: no space is left")

        patch.setattr(type(disk.DISK), "pwrite_all", full)
        with pytest.raises(ColdReadError, match="make room on the disk"):
            chain_scan.fetch(log_path(str(site.directory()), ids[0].ledger_id()))
    assert not list(site.directory().glob("*.tmp"))
    assert [found for found, _ in site.read_all()] == ids


def test_a_directory_that_may_not_be_written(site: Site) -> None:
    """Reading needs no right to write: the log is fetched beside the store."""
    ids = site.publish(25)
    log = (site.directory() / f"{ids[0].ledger_id():020d}.log").read_bytes()
    assert site.offload() == ""

    def refuse(path: str) -> Any:
        raise PermissionError(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetching, "FileLock", refuse)
        copy = Path(chain_scan.fetch(log_path(str(site.directory()), ids[0].ledger_id())))
        found = copy.read_bytes()
        copy.unlink()
        assert log[: len(found)] == found and len(found) > 4096
        mapped = chain_scan.map_log(log_path(str(site.directory()), ids[0].ledger_id()))
        assert bytes(mapped.view) == found
        mapped.close()
        patch.setattr(tempfile, "tempdir", str(site.cold))
        before = site.objects()
        window = LogWindow(log_path(str(site.directory()), ids[0].ledger_id()))
        assert window.size == len(found) and site.objects() == before  # the copy has no name any more
        window.close()
    assert len(site.logs()) == 1


def test_a_client_of_a_loop_is_not_held_up(site: Site, faulty: Faulty) -> None:
    """A call that must not wait does not fetch; another thread does."""
    ids = site.publish(15)
    assert site.offload() == ""
    path = log_path(str(site.directory()), ids[0].ledger_id())
    with pytest.raises(LockTimeout, match="fetched back by a call that may wait"):
        timing.try_now(chain_scan.fetch, path)
    assert chain_scan.fetch(path) == path


def test_the_status_after_there_was_nothing_to_move(site: Site) -> None:
    """It ran, and succeeded."""
    site.publish(5)
    assert site.admin.topics().offload_status(TOPIC).status == "NOT_RUN"
    assert site.offload() == "" and not site.notes()
    assert site.admin.topics().offload_status(TOPIC).status == "SUCCESS"
    assert site.admin.topics().get_stats(TOPIC).last_offload_success_time_stamp == 0


def test_an_error_of_any_kind_is_in_the_status(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Arrow refuses, and a lock that another process stays in; the log stays."""
    site.publish(15)

    def refuses(*_: object) -> int:
        raise ArrowInvalid("no such table")

    def stays(*_: object) -> None:
        raise LockTimeout("another process stays in it")

    with monkeypatch.context() as patch:
        patch.setattr(offload, "write_messages", refuses)
        assert "no such table" in site.offload()
        assert not site.notes() and not site.objects()
        patch.setattr(ManagedLedger, "sync", stays)
        assert "another process stays in it" in site.offload()
        assert site.admin.topics().offload_status(TOPIC).status == "ERROR"
    assert site.offload() == "" and len(site.logs()) == 1


def test_a_topic_that_is_deleted_during_an_upload(site: Site, faulty: Faulty) -> None:
    """What was uploaded after its notes were removed goes as well."""
    site.publish(15)
    deleted = []

    def deletes(operation: str, path: str) -> None:
        if operation == "write" and not deleted:
            deleted.append(path)
            site.admin.topics().delete(TOPIC, force=True)

    faulty.fails = deletes
    use = site.client._core.store.use_topic(TOPIC)
    use.topic.offload.get()._work(1 << 60)
    use.release()
    assert deleted and not site.objects() and not list((site.root / "offloaded").glob("*.cold"))


def test_a_ledger_that_is_trimmed_during_an_upload(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """That is no failure."""
    site.publish(25)
    site.admin.topics().create_subscription(TOPIC, "s", MessageId.latest)
    site.admin.topics().set_retention(TOPIC, 0, 0)
    original = TopicOffload._upload

    def trims(self: TopicOffload, *arguments: Any) -> None:
        site.admin.topics().trim_topic(TOPIC)
        original(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(TopicOffload, "_upload", trims)
        assert site.offload() == ""
    assert not site.notes() and not site.objects()
    assert site.admin.topics().offload_status(TOPIC).status == "SUCCESS"


def test_no_room_beside_the_store(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says where room is needed, and nothing is left there."""
    ids = site.publish(15)
    assert site.offload() == ""

    def refuse(path: str) -> Any:
        raise PermissionError(path)

    def full(note: Any) -> Iterator[bytes]:
        raise OSError(errno.ENOSPC, "no space is left")
        yield b""

    with monkeypatch.context() as patch:
        patch.setattr(fetching, "FileLock", refuse)
        patch.setattr(fetching, "log_of", full)
        patch.setattr(tempfile, "tempdir", str(site.cold))
        before = site.objects()
        with pytest.raises(ColdReadError, match="make room in"):
            chain_scan.fetch(log_path(str(site.directory()), ids[0].ledger_id()))
        assert site.objects() == before


def test_a_note_that_cannot_be_read(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The objects of a deleted topic stay, the status says why, and other work is done."""
    site.publish(15)
    assert site.offload() == ""
    with monkeypatch.context() as patch:
        patch.setattr(fetching, "parse_cold_ledger", failing_to_read)
        site.admin.topics().delete(TOPIC, force=True)
        site.publish(15)
        assert "cannot be opened" in site.offload()
        assert len(site.logs()) == 1 and len(site.objects()) == 6
    assert site.offload() == "" and len(site.objects()) == 3


def failing_to_read(data: bytes) -> Any:
    """As of a file of another user."""
    raise PermissionError("cannot be opened")
