"""Power loss: what was durable survives, nothing else appears, in images drawn from runs of the real code.

The long version is `python -m tests.storms power-loss --images 10000`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from embeddedpulsar._engine.format.control import TopicWord, split_tail
from embeddedpulsar._engine.log import recovery, segment_writer
from embeddedpulsar._engine.log.group_commit import GroupCommit
from embeddedpulsar._engine.log.topic_control import TopicControl
from tests.storms.power_loss import storm
from tests.support.disks.fake_disk import FakeDisk


def test_nothing_durable_is_lost_and_nothing_else_appears(workspace: Path):
    """Several hundred images of scripts with rolls, trims, deaths, failed flushes and lost control files."""
    found = storm(400, 1, str(workspace))
    assert not found.violations
    assert found.images >= 400
    assert found.entries_lost > 100, "the images are too kind"
    assert found.chains > 2
    assert not list(workspace.iterdir()), "images were left behind"


@pytest.mark.slow
def test_ten_thousand_images(workspace: Path):
    """The release figure."""
    assert not storm(10_000, 100_000, str(workspace)).violations


def no_flush_of_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Group commit says it flushed."""
    monkeypatch.setattr(GroupCommit, "_flush_segment", lambda self, ledger_id: None)


def flush_of_the_newest_segment_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Group commit forgets the segments that were rolled since the last flush."""
    real = GroupCommit._ledgers
    monkeypatch.setattr(GroupCommit, "_ledgers", lambda self, synced, target: real(self, synced, target)[-1:])


def no_flush_of_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Directories are never flushed."""
    monkeypatch.setattr(FakeDisk, "fsync_dir", lambda self, path: None)


def no_flush_in_recovery(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was accepted is served before it is durable."""
    monkeypatch.setattr(recovery, "_flush", lambda path: None)


def no_new_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recovery goes on in the old ledger."""
    monkeypatch.setattr(recovery, "MUST_ROLL", 0)


def believe_the_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tail word of before the power loss is taken for true."""
    real = recovery.recover_topic

    def recover(directory: str, control: TopicControl, **options: object) -> object:
        tail = control.words[TopicWord.TAIL]
        found = real(directory, control, **options)  # type: ignore[arg-type]
        if split_tail(tail)[0] == found.ledger_id:
            control.words[TopicWord.TAIL] = tail
        return found

    monkeypatch.setattr(recovery, "recover_topic", recover)


def ghosts_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead writer's whole frame is not cleared."""
    monkeypatch.setattr(segment_writer, "clear_unpublished", lambda *_: False)


def poison_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed flush is not remembered."""
    monkeypatch.setattr(GroupCommit, "_poison", lambda self, synced: None)


MUTANTS: list[tuple[Callable[[pytest.MonkeyPatch], None], int, int]] = [
    (no_flush_of_segments, 1, 60),
    (flush_of_the_newest_segment_alone, 1, 60),
    (no_flush_of_names, 1, 60),
    (no_flush_in_recovery, 1, 300),
    (no_new_ledger, 1, 60),
    (believe_the_tail, 1, 100),
    (ghosts_stay, 1, 1500),
    (poison_is_forgotten, 1, 1500),
]


@pytest.mark.parametrize(
    ("mutant", "seed", "images"),
    [
        pytest.param(*case, marks=pytest.mark.slow if case[2] > 500 else (), id=case[0].__name__)
        for case in MUTANTS
    ],
)
def test_the_storm_has_teeth(
    mutant: Callable[[pytest.MonkeyPatch], None],
    seed: int,
    images: int,
    workspace: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """Each of these mistakes is found, so the silence above means something."""
    mutant(monkeypatch)
    assert storm(images, seed, str(workspace), stops_at_violation=True).violations
