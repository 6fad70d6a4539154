"""`python -m embeddedpulsar.cli.check` says what is in a store and what is damaged."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from embeddedpulsar import Admin, Client, StringSchema, damage
from embeddedpulsar._engine.log import log_check
from embeddedpulsar._engine.store.care import store_check
from embeddedpulsar._engine.store.care.store_check import ProgressMeter
from embeddedpulsar.cli import check as program
from embeddedpulsar.cli import terminal
from embeddedpulsar.cli.check import main
from embeddedpulsar.cli.terminal import ProgressLine
from embeddedpulsar.testing import assert_clean
from tests.support.damaged_files import flip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with two topics, a subscription and policies, closed."""
    path = tmp_path / "store"
    with Client(path) as client:
        consumer = client.subscribe("one", "sub")
        for topic in ("one", "two"):
            producer = client.create_producer(topic)
            for number in range(20):
                producer.send(b"%d" % number)
        consumer.acknowledge(consumer.receive(1000))
    with Admin(path) as admin:
        admin.topics().set_retention("one", 5, 5)
        admin.schemas().create_schema("one", StringSchema())
        admin.namespaces().set_retention("public/default", 6, 6)
    return path


def snapshot(root: Path) -> dict[Path, tuple[bytes, int]]:
    """Content and time of every file."""
    files = [path for path in root.rglob("*") if path.is_file()]
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def only(root: Path, pattern: str) -> Path:
    """The first file of that pattern."""
    return sorted(root.glob(pattern))[0]


def test_a_whole_store(root: Path, capsys: pytest.CaptureFixture[str]):
    """Exit status 0 and a picture: what there is, topic by topic, and that it is whole."""
    before = snapshot(root)
    assert main([str(root)]) == 0
    assert snapshot(root) == before
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == str(root)
    assert lines[1].startswith("  2 topics, 1 subscription, 2 ledgers, 40 entries, 40 messages, read in ")
    assert lines[4].split() == ["public/default/one", "1", "1", "20", "whole"]
    assert lines[5].split() == ["public/default/two", "0", "1", "20", "whole"]
    assert lines[-1] == "Everything is whole."


SPOILS = {
    "message": ("topics/*/*.log", 4096 + 100, damage.HOLE),
    "index": ("topics/*/*.idx", 4096 + 10, damage.INDEX),
    "journal": ("topics/*/subscriptions/*/journal.*", 80, log_check.JOURNAL),
    "topic.meta": ("topics/*/topic.meta", 20, store_check.META),
    "store.meta": ("store.meta", 20, store_check.META),
    "store.ctl": ("store.ctl", 20, log_check.CONTROL),
    "catalog": ("catalog", 80, store_check.META),
    "policies of a topic": ("topics/*/policies", 20, store_check.POLICIES),
    "schemas of a topic": ("topics/*/schemas", 20, store_check.SCHEMAS),
    "policies of a namespace": ("tenants/*", 20, store_check.POLICIES),
}


def test_the_library_is_enough(root: Path):
    """The packages of the command line need not be installed."""
    text = (
        "import sys; sys.modules['click'] = sys.modules['rich'] = None\n"
        "from embeddedpulsar.cli.check import main; sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run([sys.executable, "-c", text, str(root)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Everything is whole." in done.stdout


@pytest.mark.parametrize(
    ("name", "copied"),
    [*((name, False) for name in SPOILS), ("message", True), ("journal", True), ("catalog", True)],
)
def test_damage(root: Path, tmp_path: Path, name: str, copied: bool, capsys: pytest.CaptureFixture[str]):
    """Exit status 1 for a damaged byte in any file; the file, the kind and what it means are named.

    In a copy, too, where no control word may be believed.
    """
    pattern, at, kind = SPOILS[name]
    if copied:
        shutil.copytree(root, tmp_path / "copy")
        root = tmp_path / "copy"
    spoilt = only(root, pattern)
    flip(spoilt, at)
    before = snapshot(root)
    assert main([str(root)]) == 1
    assert snapshot(root) == before
    output = capsys.readouterr().out
    assert f"    {kind}: " in output
    if name != "catalog":  # there it is the topic that the catalog does not know any more
        assert f"  {spoilt.relative_to(root)}" in output
    assert output.splitlines()[-1].endswith("Nothing was changed.")

    assert main([str(root), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["is_whole"] is False
    assert kind in [problem["kind"] for problem in found["problems"] if problem["is_damage"]]


def test_settings(root: Path, capsys: pytest.CaptureFixture[str]):
    """A `broker.conf` with which no client could open the store counts as damage; the line is quoted."""
    (root / "broker.conf").write_text("maxMessageSize=large\n")
    assert main([str(root)]) == 1
    assert "broker.conf line 1: maxMessageSize is a number, not 'large'" in capsys.readouterr().out


def test_leftovers_are_notes(root: Path, capsys: pytest.CaptureFixture[str]):
    """What a killed process left, and what does not belong here, is said and harms nothing."""
    os.mkfifo(root / "clients" / ("0" * 32))
    (root / "holiday.jpg").touch()
    (root / "store.meta.1-0.tmp").touch()
    assert main([str(root)]) == 0
    output = capsys.readouterr().out
    assert "Notes:" in output
    assert "holiday.jpg" in output
    assert "store.meta.1-0.tmp" in output
    assert output.endswith("Everything is whole.\n")


def test_beside_a_client(root: Path, capsys: pytest.CaptureFixture[str]):
    """A store in use is checked as it stands, and who uses it is counted."""
    with Client(root) as client:
        producer = client.create_producer("one")
        producer.send(b"more")
        assert main([str(root)]) == 0
        assert "1 process had it open meanwhile" in capsys.readouterr().out
        assert producer.send(b"and more")
    assert_clean(root)


def test_what_goes_away_meanwhile_is_no_damage(root: Path, monkeypatch: pytest.MonkeyPatch):
    """Beside others, what is amiss counts only if it stays: a deleted topic, a file that was replaced."""
    looks = []

    def look(directory: str, watch: object = None) -> log_check.CheckReport:
        looks.append(directory)
        if len(looks) % 2:  # the first look meets a change, the second does not
            return log_check.CheckReport([log_check.Problem(damage.HOLE, directory, 0, "in between")])
        return log_check.CheckReport([])

    monkeypatch.setattr(store_check, "check_topic", look)
    with Client(root):
        assert store_check.check_store(root, is_closed=False).is_clean
        assert len(looks) == 4
    assert not store_check.check_store(root).is_clean


def test_read_only_files(root: Path, capsys: pytest.CaptureFixture[str]):
    """Nothing is opened for writing, so a store may be checked that may not be written."""
    opened = []
    real = os.open

    def watched(path: str, flags: int, *rest: object, **more: object) -> int:
        opened.append((path, flags))
        return real(path, flags, *rest, **more)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", watched)
        assert main([str(root)]) == 0
    assert opened
    assert not [path for path, flags in opened if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)]


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("missing", "does not exist"),
        ("file", "is a file"),
        ("empty", "is not a store: it holds no store.meta"),
        ("foreign", "is not a store: the directory is not a store and not empty: it holds holiday.jpg"),
        ("store/topics/one", "is a directory of one topic"),
    ],
)
def test_no_store(root: Path, place: str, text: str, capsys: pytest.CaptureFixture[str]):
    """Exit status 2 and the reason for a path that is no store; nothing is made there."""
    (root.parent / "file").touch()
    (root.parent / "empty").mkdir()
    (root.parent / "foreign").mkdir()
    (root.parent / "foreign" / "holiday.jpg").touch()
    path = only(root, "topics/*one") if place.endswith("one") else root.parent / place
    before = sorted(root.parent.rglob("*"))
    assert main([str(path)]) == 2
    captured = capsys.readouterr()
    assert text in captured.err
    assert not captured.out
    assert sorted(root.parent.rglob("*")) == before


def test_a_wrong_command_line(capsys: pytest.CaptureFixture[str]):
    """Exit status 2 and the usage."""
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 2
    assert "usage: python -m embeddedpulsar.cli.check" in capsys.readouterr().err


def test_a_file_that_may_not_be_read(root: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    """Exit status 2 and the file: a check that did not see everything says nothing about the store."""

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "ctl")

    monkeypatch.setattr(program, "check_store", refused)
    assert main([str(root)]) == 2
    assert "ctl cannot be read: Permission denied; a check needs to read all" in capsys.readouterr().err


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_progress_is_for_long_checks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Nothing in the first second; then a line, once a second, which the end takes away."""
    now = [100.0]

    class Clock:
        def monotonic(self) -> float:
            return now[0]

    monkeypatch.setattr(terminal, "SYSTEM_CLOCK", Clock())
    monkeypatch.setattr(store_check, "SYSTEM_CLOCK", Clock())
    stream = Terminal()
    progress = ProgressLine(stream)
    meter = ProgressMeter("checking", progress.show_if_due)
    meter.topic(1, 3)
    progress.end()
    assert stream.getvalue() == ""
    now[0] += 1.5
    meter.topic(2, 3)
    meter.topic(3, 3)
    assert stream.getvalue() == "\rchecking topic 2 of 3, 0 MiB read"
    progress.end()
    assert stream.getvalue().endswith("\r")
