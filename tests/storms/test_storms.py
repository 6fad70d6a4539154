"""The command line of the storms."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from embeddedpulsar._engine.store.care import backup_target
from embeddedpulsar._engine.store.care.backup_target import BackupTarget
from embeddedpulsar._engine.store.care.store_cut import TopicCut
from tests.source_tree import ROOT
from tests.storms import (
    all_storms,
    backup_storm,
    commands,
    kill_storm,
    power_loss,
    producer_storm,
    type_storm,
)
from tests.storms.storm_report import StormReport
from tests.storms.thread_storm import out_of_order


@pytest.mark.parametrize("arguments", [["power-loss", "--images", "20"], ["corruption", "--cases", "4"]])
def test_storms_run_and_clean_up(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """A report, status 0, an empty workspace."""
    assert commands.main(["--workspace", str(tmp_path), "--quiet", *arguments]) == 0
    assert "0 violations" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_backups_of_random_flows(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Restored stores of all parts; nothing is left."""
    assert commands.main(["--workspace", str(tmp_path), "--quiet", "backups", "--stores", "24"]) == 0
    text = capsys.readouterr().out
    assert "stores restored: 24" in text and "clean" in text
    assert not list(tmp_path.iterdir())


def test_threads_that_change_every_microsecond(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Sixteen: each message arrives once at each subscription, and the workspace is empty."""
    interval = sys.getswitchinterval()
    assert commands.main(["--workspace", str(tmp_path), "threads", "--messages", "200"]) == 0
    text = capsys.readouterr().out
    assert text.count(": 1600\n") == 6 and "clean" in text
    assert sys.getswitchinterval() == interval
    assert not list(tmp_path.iterdir())


def test_messages_out_of_order_are_told():
    """The verdict on order: the first place of each thread."""
    payloads = [b"0 0", b"1 0", b"0 2", b"0 1", b"1 1"]
    assert out_of_order(payloads) == ["message 2 of thread 0 after 0"]
    assert out_of_order(payloads[:2]) == []


def test_all_storms_are_those_of_the_page():
    """`make storm` runs what docs/contributing.md shows, and each storm there is."""
    page = (ROOT / "docs" / "contributing.md").read_text("utf-8")
    shown = re.findall(r"-m tests\.storms ([a-z-]+ --[^#\n]*)", page)
    assert [" ".join(line.split()) for line in shown] == list(all_storms.SIZES)
    parser = commands._parser()
    (storms,) = (action for action in parser._actions if action.dest == "storm")
    assert {parser.parse_args(size.split()).storm for size in all_storms.SIZES} == set(storms.choices or ())


def test_storms_by_name(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Each in a process; the status says whether one found something, and one without Java is told."""
    run: list[str] = []

    def call(command: list[str], check: bool) -> subprocess.CompletedProcess[str]:
        assert not check
        run.append(" ".join(command[3:]))
        return subprocess.CompletedProcess(command, 1 if "client" in command else 0)

    monkeypatch.setattr(subprocess, "run", call)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert all_storms.main(["backups", "spark"]) == 0
    assert run == ["backups --stores 10000"]
    assert "no java" in capsys.readouterr().out
    assert all_storms.main(["kill"]) == 1
    assert run[1:] == ["kill --cycles 1000", "kill --cycles 1000 --level client"]
    assert capsys.readouterr().out.count("found something") == 1
    with pytest.raises(SystemExit):
        all_storms.main(["rain"])
    assert "there is no storm rain" in capsys.readouterr().err


def _with_positions_after_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    take_log = TopicCut.take_log

    def take(one: TopicCut) -> bool:
        done = take_log(one)
        for directory in (*one._subscriptions(), one.directory):
            one._take_journal(directory, None)
        return done

    monkeypatch.setattr(TopicCut, "take_log", take)


def _with_documents_before_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    positions, documents = TopicCut.take_positions, TopicCut.take_documents
    monkeypatch.setattr(TopicCut, "take_positions", lambda one: (positions(one), documents(one)))
    monkeypatch.setattr(TopicCut, "take_documents", lambda _: None)


def _with_states_after_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    take_log = TopicCut.take_log

    def take(one: TopicCut) -> bool:
        if one.is_of_function:
            one.cut()
        return take_log(one)

    monkeypatch.setattr(TopicCut, "take_log", take)


def _with_compactions_after_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    take_log = TopicCut.take_log

    def take(one: TopicCut) -> bool:
        one._take_compaction_record()
        return take_log(one)

    monkeypatch.setattr(TopicCut, "take_log", take)


def _with_the_same_digest_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup_target, "_digest", lambda *_: 1 << 63)
    monkeypatch.setattr(BackupTarget, "_ends_alike", lambda *_: True)


@pytest.mark.parametrize(
    ("part", "mistake", "seed"),
    [
        (backup_storm.Relay, _with_positions_after_the_log, 8),
        (backup_storm.Letters, _with_positions_after_the_log, 4),
        (backup_storm.Sequences, _with_positions_after_the_log, 1),
        (backup_storm.Partitions, _with_positions_after_the_log, 4),
        (backup_storm.Counting, _with_states_after_the_log, 17),
        (backup_storm.Schemas, _with_documents_before_the_log, 3),
        (backup_storm.Lives, _with_the_same_digest_for_all, 3),
    ],
)
def test_random_flows_find_mistakes(
    part: type[backup_storm.Part],
    mistake: Callable[[pytest.MonkeyPatch], object],
    seed: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """A flow fails if a backup takes things in a wrong order, or the wrong things."""
    monkeypatch.setattr(backup_storm, "PARTS", (part,))
    monkeypatch.setattr(backup_storm, "_MOST_PARTS", 1)
    mistake(monkeypatch)
    assert backup_storm.Flow(tmp_path, seed).run(2)[1]


def test_violations_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """Each line, and status 1."""
    found = power_loss.Summary(1, 2, 3, 4, ["seed 7, crash 1: something is wrong"])
    monkeypatch.setattr(power_loss, "storm", lambda *_, **__: found)
    assert commands.main(["--workspace", str(tmp_path), "power-loss"]) == 1
    assert "seed 7" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words", ["{common} {storm} {own}", "{storm} {common} {own}", "{storm} {own} {common}"]
)
@pytest.mark.parametrize(
    ("storm", "own"), [("kill", "--cycles 5"), ("types", "--kills 5"), ("producers", "--kills 5")]
)
def test_options_stand_before_a_storm_or_behind_it(
    storm: str, own: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """What all storms have in common may be told in either place, to those that kill as well."""
    told: list[argparse.Namespace] = []

    def one(options: argparse.Namespace) -> StormReport:
        told.append(options)
        return StormReport("nothing")

    monkeypatch.setattr(kill_storm, "run", one)
    monkeypatch.setattr(type_storm, "run", lambda options, _: [one(options)])
    monkeypatch.setattr(producer_storm, "run", lambda options, _: [one(options)])
    line = words.format(common=f"--seed 7 --quiet --workspace {tmp_path}", storm=storm, own=own)
    assert commands.main(line.split()) == 0
    (options,) = told
    assert (options.seed, options.quiet, options.workspace) == (7, True, str(tmp_path))
    assert getattr(options, own.split()[0].strip("-")) == 5


def test_what_stands_behind_a_storm_wins(monkeypatch: pytest.MonkeyPatch):
    """And what stands nowhere has its default, what is a storm's own too."""
    told: list[tuple[int, int, str | None]] = []
    monkeypatch.setattr(
        kill_storm,
        "run",
        lambda options: told.append((options.seed, options.cycles, options.folder)) or StormReport("nothing"),
    )
    commands.main(["--seed", "7", "kill", "--seed", "8"])
    commands.main(["kill"])
    assert told == [(8, 1000, None), (1, 1000, None)]
