"""Making a mailbox while others sweep away what looks like an orphan."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from embeddedpulsar._engine.platform import lease, nofollow
from embeddedpulsar._engine.platform.mailbox import Mailbox


def test_a_sweeper_between_the_steps_of_a_creation(tmp_path: Path):
    """A new FIFO is an orphan until its creator has locked it: creation starts again, and both sides
    survive."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def sweep() -> None:
        while not stop.is_set():
            for name in os.listdir(tmp_path):
                try:
                    lease.remove_if_orphan(f"{tmp_path}/{name}")
                except OSError as e:
                    failures.append(e)

    sweepers = [threading.Thread(target=sweep) for _ in range(2)]
    for sweeper in sweepers:
        sweeper.start()
    try:
        for _ in range(200):
            Mailbox.create(tmp_path).close()
    finally:
        stop.set()
        for sweeper in sweepers:
            sweeper.join()
    assert failures == []
    assert os.listdir(tmp_path) == []


def test_an_owner_that_is_dead_stays_dead_while_its_lease_is_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Who asks in the moment in which another process removes the lease hears that the owner is gone, or the
    name of a killed producer would be refused as one that is connected."""
    path = lease.lease_path(str(tmp_path), os.urandom(16))
    os.mkfifo(path)
    answers: list[bool] = []
    unlink = nofollow.unlink

    def ask_first(name: str) -> None:
        answers.append(lease.is_held(path))
        unlink(name)

    monkeypatch.setattr(nofollow, "unlink", ask_first)
    assert lease.remove_if_orphan(path)
    assert answers == [False]
    assert os.listdir(tmp_path) == []
