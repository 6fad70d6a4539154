"""Files of a newer release: refused by name and version, shown by a check, and left alone by everything."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import pytest

from embeddedpulsar import Admin, Client, MessageId
from embeddedpulsar._engine.format.control import CONTROL_HEADER
from embeddedpulsar._engine.format.document import document_crc
from embeddedpulsar._engine.format.frame import COPY_OFFSETS, INDEX_HEADER, SEGMENT_HEADER
from embeddedpulsar._engine.format.journal_record import (
    FIRST_RECORD_OFFSET,
    pack_record,
    parse_journal_header,
    valid_end,
)
from embeddedpulsar._engine.store.care.store_check import check_store
from embeddedpulsar._engine.store.care.store_repair import repair_store
from embeddedpulsar.cli.check import main as check_command
from embeddedpulsar.exceptions import PulsarException, UnsupportedFormatVersion

UNKNOWN = 60_000
"""The type of no command."""


def sealed(covered: int, version: int = 2) -> Callable[[bytearray], None]:
    """Raises the version in a header whose checksum stands behind its first ``covered`` bytes."""

    def raise_version(data: bytearray) -> None:
        struct.pack_into("<H", data, 4, version)
        struct.pack_into("<I", data, covered, crc32(data[:covered]))

    return raise_version


def document(data: bytearray) -> None:
    """The same for a document."""
    struct.pack_into("<H", data, 4, 2)
    struct.pack_into("<I", data, 12, document_crc(bytes(data)))


def both_copies(data: bytearray) -> None:
    """The same for the two copies of a segment's header, of which versions 1 and 2 are known."""
    covered = SEGMENT_HEADER.size - 4
    for start in COPY_OFFSETS:
        header = data[start : start + covered + 4]
        sealed(covered, 3)(header)
        data[start : start + covered + 4] = header


def command(data: bytearray) -> None:
    """A command of an unknown type behind the others."""
    seed = parse_journal_header(data).chain_seed
    end, crc = valid_end(data, FIRST_RECORD_OFFSET, len(data), seed)
    record, _ = pack_record(UNKNOWN, b"of a newer release", crc, 0)
    data[end:] = record + bytes(8)


control = sealed(CONTROL_HEADER.size - 4)
index = sealed(INDEX_HEADER.size - 4)
journal = sealed(60)
KINDS: dict[str, tuple[str, Callable[[bytearray], None]]] = {
    "segment": ("topics/*/*1.log", both_copies),
    "tail segment": ("topics/*/*3.log", both_copies),
    "index": ("topics/*/*3.idx", index),
    "topic ctl": ("topics/*/ctl", control),
    "store.ctl": ("store.ctl", control),
    "subscription ctl": ("topics/*/subscriptions/*/ctl", control),
    "topic journal": ("topics/*/journal.1", journal),
    "subscription journal": ("topics/*/subscriptions/*/journal.1", journal),
    "catalog": ("catalog", journal),
    "producer command": ("topics/*/journal.1", command),
    "subscription command": ("topics/*/subscriptions/*/journal.1", command),
    "catalog command": ("catalog", command),
    "topic.meta": ("topics/*/topic.meta", document),
    "policies": ("topics/*/policies", document),
    "store.meta": ("store.meta", document),
}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store with every kind of file."""
    root = tmp_path_factory.mktemp("original") / "store"
    root.mkdir()
    (root / "broker.conf").write_text("managedLedgerMaxEntriesPerLedger=5\n")
    with Client(root) as client, Admin(root) as admin:
        client.subscribe("orders", "billing").close()
        producer = client.create_producer("orders")
        for number in range(12):
            producer.send(b"order %d" % number)
        admin.topics().set_retention("orders", 10, 10)
    return root


def later(root: Path, kind: str) -> Path:
    """Raise the version of a file of that kind, with a right checksum."""
    pattern, change = KINDS[kind]
    (path,) = root.glob(pattern)
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)
    return path


def use(root: Path) -> None:
    with Client(root) as client:
        client.create_producer("orders").send(b"more")
        consumer = client.subscribe("orders", "billing")
        while consumer.receive_nowait() is not None:
            pass
        with client.create_reader("orders", MessageId.earliest) as reader:
            list(reader)


def trim(root: Path) -> None:
    with Admin(root) as admin:
        admin.topics().trim_topic("orders")
        admin.topics().get_retention("orders")


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_refused_and_left_alone(root: Path, kind: str):
    """Use, trimming and repair raise an error with name, version and remedy, and leave file and messages."""
    path = later(root, kind)
    before = path.read_bytes()
    texts = []
    for call in (use, trim, lambda root: repair_store(str(root))):
        try:
            call(root)
        except UnsupportedFormatVersion as e:
            texts.append(str(e))
        except PulsarException as e:  # of a batch or a callback
            texts.append(str(e))
    assert texts, "nothing refused it"
    for text in texts:
        assert path.name in text and "upgrade" in text and "this release" in text
    assert path.read_bytes() == before
    assert len(list(root.glob("topics/*/*.log"))) >= 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_check_shows_it(root: Path, kind: str):
    """It is no damage, and no repair is advised."""
    path = later(root, kind)
    report = check_store(root, is_closed=False)
    assert [problem.kind for problem in report.unverified if problem.path == str(path)] == ["newer release"]
    assert not report.damage
    assert {problem.remedy for problem in report.unverified} == {"upgrade embeddedpulsar"}


def test_the_version_of_a_store(root: Path, capsys: pytest.CaptureFixture[str]):
    """A check and an Admin show it."""
    with contextlib.closing(Admin(root)) as admin:
        assert admin.format_version() == admin.check().format_version == 1
    assert check_command([str(root)]) == 0
    assert "format version 1" in capsys.readouterr().out
    assert check_store(root).json()["format_version"] == 1
