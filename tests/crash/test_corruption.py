"""Corruption: what was not hit is still there, what was hit is skipped and never made up.

The long version is `python -m tests.storms corruption --cases 2000`.
"""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from embeddedpulsar._engine.log import segment_reader
from tests.storms import store_corruption
from tests.storms.corruption import storm


def test_every_kind_of_file_in_every_way(workspace: Path):
    """Forty damages of each kind of file, half of them met by a recovery, half by readers."""
    found = storm(40, 1, str(workspace))
    assert not found.violations
    assert found.entries > 0.95 * found.cases * 150
    assert found.lost > 100, "the damage is too kind"


def test_whole_stores(workspace: Path, caplog: pytest.LogCaptureFixture):
    """Names, ids, journals and control words, through the public client: nothing unacknowledged is lost."""
    caplog.set_level(logging.CRITICAL)
    found = store_corruption.storm(8, 1, str(workspace))
    assert not found.violations
    assert found.refused < found.cases // 3


@pytest.mark.slow
def test_two_thousand_of_every_kind(workspace: Path):
    """The release figure."""
    assert not storm(2_000, 100, str(workspace)).violations


@pytest.mark.slow
def test_whole_stores_five_hundred_times(workspace: Path, caplog: pytest.LogCaptureFixture):
    """The same for everything that is no segment."""
    caplog.set_level(logging.CRITICAL)
    assert not store_corruption.storm(500, 100, str(workspace)).violations


def test_the_storm_has_teeth(workspace: Path, monkeypatch: pytest.MonkeyPatch):
    """A reader that does not compare body checksums hands out payloads nobody sent."""
    monkeypatch.setattr(segment_reader, "crc32", lambda body: _Anything())
    assert any("holds" in line for line in storm(40, 1, str(workspace)).violations)


class _Anything(int):
    """A checksum that always fits."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__
