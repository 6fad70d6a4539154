"""Errors that the operating system raises, as the caller of a public method gets them."""

from __future__ import annotations

import errno
import os
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from embeddedpulsar import Admin, Client, ConsumerType, MessageId, Timeout
from embeddedpulsar._engine.platform import disk
from embeddedpulsar._engine.platform.access import named
from embeddedpulsar.exceptions import (
    AccessDeniedError,
    AlreadyClosed,
    BrokerMetadataError,
    PulsarException,
    StorageFullError,
    StorageOSError,
    TopicNotFound,
)
from tests.children import ForkedChild, run_python
from tests.support.disks.faulty_disk import FaultyDisk

SECONDS = 1.5


def again_and_again(root: Path, step: Callable[[Client], object]) -> Callable[[], str]:
    """Do something for a while; the names of the errors it met, and how often it worked."""

    def run() -> str:
        client = Client(root)
        seen: Counter[str] = Counter()
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            try:
                step(client)
                seen["fine"] += 1
            except Exception as error:
                seen[f"{type(error).__name__}: {error}"] += 1
        client.close()
        return repr(dict(seen))

    return run


def unsubscribe(client: Client) -> None:
    consumer = client.subscribe("shared", "s", ConsumerType.Shared)
    try:
        consumer.unsubscribe()
    except BrokerMetadataError:
        consumer.close()  # another one is there
    except AlreadyClosed:
        return  # another one was faster


def delete(root: Path) -> Callable[[], str]:
    def run() -> str:
        admin = Admin(root)
        count, end = 0, time.monotonic() + SECONDS
        while time.monotonic() < end:
            try:
                admin.topics().delete("t", force=True)
                count += 1
            except TopicNotFound:
                time.sleep(0.001)
        admin.close()
        return str(count)

    return run


def test_what_is_opened_while_it_is_deleted_is_made_anew(tmp_path: Path):
    """Creating producers and readers, and subscribing, beside deletions and unsubscribes: nothing
    raises."""
    steps: list[Callable[[Client], object]] = [
        lambda client: client.create_producer("t").close(),
        lambda client: client.subscribe("t", "s", ConsumerType.Shared).close(),
        lambda client: client.create_reader("t", MessageId.earliest).close(),
        unsubscribe,
        unsubscribe,
    ]
    children = [ForkedChild(delete(tmp_path))]
    children += [ForkedChild(again_and_again(tmp_path, step)) for step in steps]
    try:
        deleted, *answers = [child.ready() for child in children]
    finally:
        for child in children:
            child.end()
    assert int(deleted) > 3
    for answer in answers:
        assert set(eval(answer)) == {"fine"}


_DIES_IN_A_WRITE = """
import os, sys
os.getpid = lambda: 1
from embeddedpulsar._engine.platform import disk
if sys.argv[2] == "dies":
    disk.DISK.replace = lambda source, target: os._exit(0)
disk.DISK.atomic_write(sys.argv[1], sys.argv[2].encode(), durable=False)
"""


def test_a_document_is_written_after_a_death_under_the_same_pid(tmp_path: Path):
    """In a container the pid is always 1: what a dead process left has another name."""
    path = tmp_path / "topic.meta"
    for word in ("dies", "dies", "lives"):
        run_python(_DIES_IN_A_WRITE, str(path), word)
    assert path.read_bytes() == b"lives"
    assert len(list(tmp_path.iterdir())) == 3


def text_of(call: Callable[[], object]) -> list[str]:
    """What an uncaught exception of a call prints."""
    try:
        call()
    except Exception as error:
        return "".join(traceback.format_exception(error)).splitlines()
    raise AssertionError("nothing was raised")


def test_a_timeout_prints_itself_alone(tmp_path: Path):
    """Not the empty queue that it began with."""
    with Client(tmp_path) as client:
        consumer = client.subscribe("t", "s")
        reader = client.create_reader("t", MessageId.earliest)
        for call in (lambda: consumer.receive(1), lambda: reader.read_next(1)):
            lines = text_of(call)
            assert not any(line.startswith("During handling") for line in lines)
            assert lines[-1].startswith("embeddedpulsar.exceptions.Timeout")
        consumer.close()
        assert not any(line.startswith("During handling") for line in text_of(lambda: consumer.receive()))
        with pytest.raises(Timeout):
            reader.read_next(1)


@pytest.mark.parametrize(
    "call", ["create_exclusive", "open_file", "replace", "mkdir", "pwrite_all", "fallocate"]
)
def test_an_error_of_the_disk_names_the_file_the_reason_and_the_remedy(tmp_path: Path, call: str):
    """Whatever public call meets it raises a `PulsarException` that is an ``OSError`` too."""
    with Client(tmp_path / "store") as client:
        client.create_producer("there").send(b"x")
        met: list[OSError] = []
        for nth in range(1, 6):
            with disk.use(FaultyDisk()) as faulty:
                faulty.fail(call, nth=nth, errno=errno.EIO)
                try:
                    client.create_producer(f"t-{nth}").send(b"x" * 100_000)
                    client.subscribe(f"t-{nth}", "s").close()
                except OSError as error:
                    met.append(error)
        assert met
        assert all(isinstance(error, PulsarException) for error in met)
        assert all(os.strerror(errno.EIO) in str(error) and ";" in str(error) for error in met)


def test_what_becomes_of_an_os_error():
    """By its number; what has none, or is named already, stays."""
    full = named(OSError(errno.ENOSPC, "x", "/store/ctl"))
    assert isinstance(full, StorageFullError) and "/store/ctl" in str(full)
    denied = named(PermissionError(errno.EACCES, "x", "/"))
    assert isinstance(denied, AccessDeniedError) and "belongs to user id 0" in str(denied)
    other = named(FileNotFoundError(errno.ENOENT, "x", "/store/ctl"))
    assert isinstance(other, StorageOSError) and other.errno == errno.ENOENT and other.remedy
    for error in (ValueError("x"), OSError("x"), full):
        assert named(error) is error
