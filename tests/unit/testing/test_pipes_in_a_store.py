"""A FIFO in the place of a file of the store: nothing waits for a writer that never comes."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

import pytest

from embeddedpulsar import InitialPosition, PulsarException
from embeddedpulsar.client.client import Client
from embeddedpulsar.testing.trial_store import assert_clean, check_store

pytestmark = pytest.mark.timeout(120)


def use(root: Path) -> None:
    """Read, acknowledge and send; whatever cannot be done raises an error."""
    with Client(str(root)) as client:
        with contextlib.suppress(PulsarException):
            consumer = client.subscribe("one", "sub", initial_position=InitialPosition.Earliest)
            consumer.acknowledge(consumer.receive(100))
        with contextlib.suppress(PulsarException):
            client.create_producer("one").send(b"more")


def test_no_file_is_waited_for(tmp_path: Path):
    """Each file in turn is replaced; the store is checked and used, or refuses at once."""
    root = tmp_path / "store"
    root.mkdir()
    (root / "broker.conf").write_text("managedLedgerMaxEntriesPerLedger=2\n")
    for _ in range(3):  # two ledgers, so that one is closed
        use(root)
    assert_clean(root)
    files = sorted(path.relative_to(root) for path in root.rglob("*") if path.is_file())
    assert len(files) > 8
    for name in files:
        copy = tmp_path / "copy"
        shutil.copytree(root, copy)
        os.unlink(copy / name)
        os.mkfifo(copy / name)
        is_clean = check_store(copy).is_clean
        assert not (is_clean and name.suffix == ".log"), name
        with contextlib.suppress(PulsarException, OSError):
            use(copy)
        shutil.rmtree(copy)
