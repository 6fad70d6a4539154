"""The simulator of subscriptions: seeds, and that it notices what is wrong."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from embeddedpulsar._engine.subscription.attachment.chunk_keeper import ChunkKeeper
from embeddedpulsar._engine.subscription.dispatch.wakeups import Wakeups
from embeddedpulsar._engine.subscription.state.dispatch_state import DispatchState
from embeddedpulsar._engine.subscription.state.entry_states import KeyHolds
from embeddedpulsar._engine.subscription.state.pending_acks import PendingAcks
from embeddedpulsar._engine.subscription.state.pending_entries import PendingEntries
from tests.storms import commands
from tests.storms.dispatch import dispatch_storm

SEEDS = 500
MEMORY = "/dev/shm"


@pytest.fixture
def workspace() -> Iterator[str]:
    """In memory where there is some: a compaction flushes files."""
    place = MEMORY if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="dispatch-", dir=place) as found:
        yield found


def test_seeds_are_clean(workspace: str):
    """Consumers of every type do everything in every order."""
    found = dispatch_storm.storm(SEEDS, 1, workspace)
    assert not found.violations, found.violations[0]
    assert found.seeds == SEEDS
    assert min(found.entries, found.deliveries, 4 * found.deaths) > SEEDS


def test_a_seed_decides_all(workspace: str):
    """The same seed is the same schedule."""
    histories = [dispatch_storm.run_seed(7, os.path.join(workspace, "s")).history for _ in range(2)]
    assert histories[0] == histories[1]


@pytest.mark.parametrize(
    ("owner", "name", "instead", "first"),
    [
        (Wakeups, "after", lambda *_: None, 1),  # nobody is woken for what changed
        (DispatchState, "check_limits", lambda *_: False, 1),  # nobody is blocked
        (KeyHolds, "holder", lambda *_: 0, 1),  # keys in flight go to others
        (DispatchState, "advance", lambda *_: False, 1),  # what is acknowledged stays
        (ChunkKeeper, "with_parts", lambda _, entries: list(entries), 1),  # parts stay behind
        (PendingEntries, "hold", lambda *_: False, 1),  # what a transaction has goes to others
        (PendingAcks, "refusal", lambda *_: "", 1),  # two transactions have the same
    ],
)
def test_faults_are_found(
    workspace: str, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, instead, first: int
):
    """A subscription that does something wrong does not pass. Some faults show in few schedules:
    ``first`` is the first of 200 seeds that have one."""
    monkeypatch.setattr(owner, name, instead)
    assert dispatch_storm.storm(200, first, workspace).violations


def test_the_command_line_runs_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """With a report, status 0, and an empty workspace."""
    assert commands.main(["--workspace", str(tmp_path), "--quiet", "dispatch", "--seeds", "3"]) == 0
    assert "3 seeds of shared, key-shared" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
