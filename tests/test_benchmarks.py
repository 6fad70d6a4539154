"""The benchmark frame: fair rounds, honest verdicts, and a smoke run of the command."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import document, picture, report, run  # noqa: E402
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
from benchmarks.jobs import Get, JobQueue, Put  # noqa: E402
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


class Shelf(JobQueue):
    """A queue in memory that notes what is done with it."""

    key = name = "shelf"

    def __init__(self, log: list[str]) -> None:
        self.log = log
        self.jobs: list[Any] = []

    def open(self, place: Path) -> None:
        assert list(place.iterdir()) == []
        (place / "file").touch()
        self.log.append("open")
        self.jobs = []

    def putter(self) -> Callable[[Any], object]:
        return self.jobs.append

    def getter(self) -> Callable[[], object]:
        return lambda: self.jobs.pop(0)

    def close(self) -> None:
        self.log.append(f"close {len(self.jobs)}")


def test_each_round_of_jobs_has_a_new_queue(tmp_path: Path) -> None:
    """What was put is put into an empty queue; what is got was put before, and nothing of it is left."""
    for contestant, left in ((Put, 5), (Get, 0)):
        log: list[str] = []
        contest = Contest("title", MESSAGES_PER_SECOND, [contestant(Shelf(log))], [], fixed=5)
        hold(contest, Settings(seconds=1, rounds=2), tmp_path, lambda text: None)
        assert log == ["open", f"close {left}", "open", f"close {left}", "open", "close 0"]
    assert list(tmp_path.iterdir()) == []


def test_the_page_and_its_picture_say_what_the_newest_results_say() -> None:
    """`make bench ARGS=--publish` writes both; nothing is written there by hand."""
    facts = json.loads(max(document.RESULTS.glob("*.json")).read_text("utf-8"))
    text = document.PAGE.read_text("utf-8")
    assert document.page_with(text, facts) == text
    assert document.PICTURE.read_text("utf-8") == picture.draw(facts["tables"])


def test_what_is_published_stays_beside_the_tables_of_other_workloads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One workload is measured again: its table is the new one, and the others are those of the newest
    results."""
    newest = max(document.RESULTS.glob("*.json"))
    results = tmp_path / "results"
    results.mkdir()
    shutil.copy(newest, results / "2000-01-01-host.json")
    for name, path in (("PAGE", "performance.md"), ("PICTURE", "performance.svg")):
        shutil.copy(getattr(document, name), tmp_path / path)
        monkeypatch.setattr(document, name, tmp_path / path)
    monkeypatch.setattr(document, "RESULTS", results)
    assert run.main(["import_time", "--smoke", "--publish", "--dir", str(tmp_path)]) == 0
    was, now = (json.loads(path.read_text("utf-8")) for path in (newest, max(results.glob("*.json"))))
    before, after = was["tables"], now["tables"]
    assert set(was["host"]["versions"]) <= set(now["host"]["versions"])
    assert [table["title"] for table in after] == [table["title"] for table in before]
    assert [table for table in after if table["workload"] != "import_time"] == [
        table for table in before if table["workload"] != "import_time"
    ]
    assert after[-1]["date"] in (tmp_path / "performance.md").read_text("utf-8")


def test_a_page_without_a_block_is_refused() -> None:
    """A mark that was removed by hand is named, and the page is left as it is."""
    facts = json.loads(max(document.RESULTS.glob("*.json")).read_text("utf-8"))
    with pytest.raises(ValueError, match="has no block 'answers'"):
        document.page_with("# Performance\n", facts)
