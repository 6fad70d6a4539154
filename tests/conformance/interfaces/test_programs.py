"""Programs written for `pulsar-client`, for a broker at localhost, run as they are on a store."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from embeddedpulsar.testing import patched_pulsar, trial_store

PROGRAMS = sorted(Path(__file__).with_name("programs").glob("*.py"))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
@pytest.mark.parametrize("kind", ["directory", "memory"])
def test_a_program_runs_unchanged(program: Path, kind: str, tmp_path: Path):
    """It ends without an error, has all its messages, and leaves nothing behind."""
    with trial_store(tmp_path / "store" if kind == "directory" else None) as store, patched_pulsar(store):
        runpy.run_path(str(program), run_name="__main__")
