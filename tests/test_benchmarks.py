"""The benchmark frame: fair rounds, honest verdicts, and a smoke run of the command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import report  # noqa: E402
from benchmarks.contest import (  # noqa: E402
    MESSAGES_PER_SECOND,
    MILLISECONDS,
    Budget,
    Contest,
    Contestant,
    Settings,
    Unavailable,
)
from benchmarks.harness import hold  # noqa: E402
from benchmarks.realistic.cell import SEND, Cell  # noqa: E402
from benchmarks.realistic.contestant import CONSUMERS, CPU_MICROSECONDS, PRODUCER  # noqa: E402
from benchmarks.realistic.embedded import Embedded  # noqa: E402


class Paced(Contestant):
    """Takes a fixed time per operation, without waiting for it."""

    def __init__(self, key: str, seconds: float, log: list[str]) -> None:
        super().__init__()
        self.key = self.name = key
        self._seconds, self._log = seconds, log
        self.stopped = False

    def run(self, operations: int) -> float:
        self._log.append(self.key)
        return operations * self._seconds

    def stop(self) -> None:
        self.stopped = True


class Absent(Paced):
    """Cannot start here."""

    def start(self, place: Path) -> None:
        raise Unavailable("no such server (install it)")


def _contest(log: list[str], budgets: list[Budget]) -> Contest:
    rows = [Paced("ours", 0.001, log), Paced("peer", 0.01, log), Absent("absent", 1, log)]
    return Contest("title", MESSAGES_PER_SECOND, rows, budgets)


def test_rounds_are_interleaved_and_the_order_turns(tmp_path: Path) -> None:
    """Each round plays every contestant once, and not always in the same order."""
    log: list[str] = []
    contest = _contest(log, [])
    contest.fixed = 10
    hold(contest, Settings(seconds=1, rounds=2), tmp_path, lambda text: None)
    assert log == ["ours", "peer", "peer", "ours"]


def test_a_round_takes_its_share_of_the_time(tmp_path: Path) -> None:
    """Two contestants and four rounds of ten seconds: one second for each, whatever the speed."""
    table = hold(_contest([], []), Settings(seconds=10, rounds=4), tmp_path, lambda text: None)
    ours, peer, _absent = table.rows
    assert ours.operations == pytest.approx(1000, rel=0.01)
    assert peer.operations == pytest.approx(100, rel=0.01)


def test_verdicts_say_met_short_and_not_measured(tmp_path: Path) -> None:
    """A ratio that holds, one that does not, and one against a peer that could not run."""
    budgets = [
        Budget("nine times", "ours", 9, peer="peer"),
        Budget("twenty times", "ours", 20, peer="peer"),
        Budget("any", "ours", 1, peer="absent"),
    ]
    table = hold(_contest([], budgets), Settings(seconds=1, rounds=2), tmp_path, lambda text: None)
    text = "\n".join(report.lines(table))
    assert [verdict.met for verdict in table.verdicts] == [True, False, False]
    assert "nine times: measured 10.0 x, met" in text
    assert "twenty times: measured 10.0 x, SHORT by a factor of 2.00" in text
    assert "any: not measured" in text
    assert "not run: no such server (install it)" in text


def test_less_is_better_turns_the_comparison(tmp_path: Path) -> None:
    """The comparison column says how many times better the first row is, also for times."""
    contest = _contest([], [])
    contest.measure, contest.fixed = MILLISECONDS, 1
    table = hold(contest, Settings(seconds=1, rounds=2), tmp_path, lambda text: None)
    assert report.advantage(table, table.rows[1]) == pytest.approx(10)


def test_everything_is_stopped_and_nothing_is_left(tmp_path: Path) -> None:
    """Contestants are stopped, also the one that failed to start, and their directories are removed."""
    contest = _contest([], [])
    hold(contest, Settings(seconds=1, rounds=1), tmp_path, lambda text: None)
    assert all(contestant.stopped for contestant in contest.contestants if isinstance(contestant, Paced))
    assert list(tmp_path.iterdir()) == []


def test_a_realistic_cell_counts_the_processor_time_of_both_sides(tmp_path: Path) -> None:
    """Two Key_Shared consumers get everything, live and as a backlog; the figure is the sum of its parts."""
    rows = [Embedded(Cell("KeyShared", SEND, 2, 20, is_backlog)) for is_backlog in (False, True)]
    contest = Contest("title", CPU_MICROSECONDS, rows, [], fixed=60)
    table = hold(contest, Settings(seconds=1, rounds=1), tmp_path, lambda text: None)
    for row in table.rows:
        assert not row.missing
        parts = row.notes[PRODUCER] + row.notes[CONSUMERS]
        assert row.figures == [pytest.approx(parts)]
        assert row.notes["msg/s"] > 0 and row.notes["MiB"] > 1


def test_the_command_prints_tables_and_writes_json(tmp_path: Path) -> None:
    """`run.py NAME --smoke --json FILE` ends well, names durability and keeps every round."""
    out = tmp_path / "out.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "run.py"), "publish_sync", "--smoke"]
    done = subprocess.run(
        [*command, "--json", str(out), "--dir", str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "survives" in done.stdout and "budget" in done.stdout
    facts = json.loads(out.read_text())
    assert facts["settings"]["smoke"] is True
    rows = facts["tables"][0]["rows"]
    assert {"embeddedpulsar", "sqlite", "queue"} <= {row["key"] for row in rows}
    assert all(len(row["rounds"]) == 2 for row in rows if "missing" not in row)


def test_an_unknown_workload_is_an_error() -> None:
    """A mistyped name is answered with the list of names."""
    command = [sys.executable, str(ROOT / "benchmarks" / "run.py"), "publish_snyc"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "publish_sync" in done.stderr
