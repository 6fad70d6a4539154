"""Damage to the files of transactions: what was decided is kept as far as any file has it, and reported."""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path
from zlib import crc32

import pytest

from embeddedpulsar import Client
from embeddedpulsar._engine.filenames import generations_among
from embeddedpulsar._engine.format.control import TransactionWord
from embeddedpulsar._engine.platform import timing
from embeddedpulsar._engine.txn.transaction_state import Outcome
from embeddedpulsar.exceptions import InvalidTxnStatusError, StorageError, UnsupportedFormatVersion
from embeddedpulsar.testing import check_store
from tests.transaction_site import BOOT, Process, assert_whole

NEXT_BOOT = b"C" * 16


def decide_some(root: Path, compact_bytes: int = 1 << 20) -> dict[int, Outcome]:
    """Commits and aborts, of a process that has left."""
    outcomes = {}
    with Process(root, compact_bytes=compact_bytes) as process:
        for number in range(12):
            transaction = process.begun()
            if number % 3:
                transaction.commit()
            else:
                transaction.abort()
            outcomes[transaction.id] = process.log.outcome(transaction.id)
    return outcomes


def newest_journal(root: Path) -> Path:
    journals, _ = generations_among(os.listdir(root / "txn"))
    return root / "txn" / f"journal.{journals[-1]}"


def flip(path: Path, offset: int) -> None:
    """Damage one byte."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize("boot", [BOOT, NEXT_BOOT])
def test_a_damaged_record(tmp_path: Path, boot: bytes) -> None:
    """The tables of outcomes know it; new files have it; it is reported once."""
    expected = decide_some(tmp_path)
    flip(newest_journal(tmp_path), 64 + 5 * 32 + 26)
    with Process(tmp_path, boot=boot) as process:
        assert {txn_id: process.log.outcome(txn_id) for txn_id in expected} == expected
        process.begun().commit()
        assert {damage.kind for damage in process.damage} == {"journal"}
    with Process(tmp_path, boot=b"D" * 16) as after:
        assert {txn_id: after.log.outcome(txn_id) for txn_id in expected} == expected
        assert_whole(after.log)
        assert after.damage == []


def test_a_journal_that_is_gone(tmp_path: Path) -> None:
    """In the same boot: as above."""
    expected = decide_some(tmp_path)
    newest_journal(tmp_path).unlink()
    with Process(tmp_path) as process:
        process.begun().commit()
        assert process.damage
        assert {txn_id: process.log.outcome(txn_id) for txn_id in expected} == expected
    with Process(tmp_path, boot=NEXT_BOOT) as after:
        assert {txn_id: after.log.outcome(txn_id) for txn_id in expected} == expected


@pytest.mark.parametrize("boot", [BOOT, NEXT_BOOT])
def test_a_damaged_snapshot(tmp_path: Path, boot: bytes) -> None:
    """The generation before leads to the same state."""
    expected = decide_some(tmp_path, compact_bytes=300)
    _, snapshots = generations_among(os.listdir(tmp_path / "txn"))
    flip(tmp_path / "txn" / f"snapshot.{snapshots[-1]}", 40)
    with Process(tmp_path, boot=boot) as process:
        assert {txn_id: process.log.outcome(txn_id) for txn_id in expected} == expected
        process.begun().commit()
        assert len(process.damage) == 1 and "exactly as it was" in process.damage[0].done


@pytest.mark.parametrize("how", ["noise", "header", "short", "gone"])
def test_a_damaged_control_file(tmp_path: Path, how: str) -> None:
    """It is derived from the journal; what was open is aborted, and its owner is told."""
    expected = decide_some(tmp_path)
    path = tmp_path / "txn" / "ctl"
    with Process(tmp_path) as owner:
        is_open = owner.begun()
        prepared = owner.begun()
        prepared.prepare("x")
        if how == "noise":
            owner.log.control.words[TransactionWord.COMMITS] = 7 << 60
        elif how == "header":
            flip(path, 20)
        elif how == "short":
            os.truncate(shutil.copy(path, tmp_path / "copy"), 4096)
            os.replace(tmp_path / "copy", path)
        else:
            path.unlink()
        with Process(tmp_path) as process:
            log = process.log
            assert {txn_id: log.outcome(txn_id) for txn_id in expected} == expected
            assert log.announce(is_open.id).outcome is Outcome.ABORTED
            assert [each.txn_id for each in log.prepared()] == [prepared.id]
            assert process.begun().id > prepared.id
            if how in ("noise", "header"):
                assert [damage.kind for damage in process.damage] == ["control file"]
                with pytest.raises(InvalidTxnStatusError):
                    is_open.commit()


def test_a_copied_store_is_recovered(tmp_path: Path) -> None:
    """In the same boot, by the inodes: words and bytes of a copy are not believed."""
    root, copy = tmp_path / "root", tmp_path / "copy"
    root.mkdir()
    with Process(root) as owner:
        is_open = owner.begun()
        expected = decide_some(root)
        shutil.copytree(root, copy, ignore=shutil.ignore_patterns("clients"))
        with Process(copy) as process:
            assert {txn_id: process.log.outcome(txn_id) for txn_id in expected} == expected
            assert process.log.outcome(is_open.id) is Outcome.ABORTED
            assert process.damage == []
        assert owner.log.outcome(is_open.id) is Outcome.UNDECIDED
        is_open.commit()


@pytest.mark.parametrize("name", ["ctl", "outcome.0"])
def test_files_of_a_newer_release_are_refused(tmp_path: Path, name: str) -> None:
    """With their path; nothing is changed."""
    decide_some(tmp_path)
    path = tmp_path / "txn" / name
    data = bytearray(path.read_bytes())
    data[4:6] = b"\x09\x00"
    data[56:60] = struct.pack("<I", crc32(data[:56]))
    path.write_bytes(data)
    with Process(tmp_path) as process:
        with pytest.raises(UnsupportedFormatVersion, match=name):
            process.log.outcome(1)
        assert path.read_bytes() == data
        if name == "ctl":
            with pytest.raises(StorageError):
                process.begun()


@pytest.mark.parametrize("boot", [timing.boot_id(), NEXT_BOOT])
def test_a_check_of_the_store_reads_the_journal(tmp_path: Path, boot: bytes) -> None:
    """In the boot of the words, and in a later one; a store with transactions is clean, and one that lost a
    decision is not."""
    root = tmp_path / "store"
    with Client(str(root)) as client:
        client.create_producer("t").send(b"x")
    with Process(root, boot=boot, compact_bytes=300) as process:
        for _ in range(9):
            process.begun().commit()
        process.begun().prepare("x")
        process.begun().abort()
        left_open = process.begun()
    assert left_open.id and check_store(str(root)).is_clean
    flip(newest_journal(root), 64 + 48 + 26)
    report = check_store(str(root))
    assert [(problem.kind, problem.path) for problem in report.damage] == [
        ("journal", str(newest_journal(root)))
    ]
