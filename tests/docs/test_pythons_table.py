"""The table of the README that says what passed on which version of Python."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pythons import runs
from tests.pythons.runs import Run, add_run, read_runs, table, write_table


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Records and a README of their own."""
    monkeypatch.setattr(runs, "RUNS", tmp_path / "runs.csv")
    monkeypatch.setattr(runs, "README", tmp_path / "README.md")
    monkeypatch.setattr(runs, "STORMS", ("kill", "types"))
    runs.RUNS.write_text(",".join(Run._fields) + "\n")
    runs.README.write_text(f"before\n{runs.BEGIN}\n{runs.END}\nafter\n")
    return tmp_path


def test_the_table_is_that_of_the_records():
    """`python -m tests.pythons --table` writes it."""
    assert f"{runs.BEGIN}\n{table()}\n{runs.END}" in runs.README.read_text()
    assert all(one.failing <= one.failed for one in read_runs())


def test_a_run_takes_the_place_of_the_one_before(place: Path):
    """Of the same version and part; what failed and passes afterwards is told."""
    add_run(Run("3.9.1", "unit", "2030-01-01", 5, 2, 0))
    add_run(Run("3.14.2", "unit", "2030-01-02", 1_234, 2, 1))
    add_run(Run("3.14.2", "unit", "2030-01-03", 1, 1, 0), is_again=True)
    add_run(Run("3.14.2", "storms", "2030-01-03", 3, 0, 0))
    add_run(Run("3.9.1", "unit", "2030-01-04", 7, 0, 0))
    write_table()
    assert runs.README.read_text().splitlines() == [
        "before",
        runs.BEGIN,
        "| Python | unit | conformance, properties | processes, crashes | storms: `kill`, `types` |",
        "|---|---|---|---|---|",
        "| 3.9.1 | 7 passed, 2030-01-04 | not run | not run | not run |",
        "| 3.14.2 | 1,234 passed, 2 failed, 2030-01-02; 1 of these still do | not run | not run "
        "| 3 passed, 2030-01-03 |",
        runs.END,
        "after",
    ]
    add_run(Run("3.14.2", "unit", "2030-01-03", 1, 0, 0), is_again=True)
    assert "1,234 passed, 2 failed, 2030-01-02; these pass since" in table()
