"""`embeddedpulsar doctor` and `init`: what they see, say and make, and their exit status."""

from __future__ import annotations

import json
import os
import resource
import time
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import Admin, Client, MessageId
from embeddedpulsar.cli import doctor_commands
from embeddedpulsar.cli.doctor_commands import CRITICAL, OK, WARNING, commented_settings
from embeddedpulsar.cli.main import main
from embeddedpulsar.settings import BrokerSettings
from embeddedpulsar.testing import ManualClock
from embeddedpulsar.testing.trial_store import assert_clean
from tests.support.damaged_files import flip


@pytest.fixture(autouse=True)
def on_a_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store lies on a disk with room, wherever the tests run."""
    monkeypatch.setattr(doctor_commands, "filesystem_type", lambda root: "ext4")
    monkeypatch.setattr(doctor_commands, "_FREE_WARNING", 1)
    monkeypatch.setattr(doctor_commands, "_SHARE_FREE", 0.0)
    monkeypatch.setattr(doctor_commands, "_FREE_CRITICAL", 0)
    monkeypatch.setattr(doctor_commands, "_LEAST_FILES", 1)
    monkeypatch.setattr(doctor_commands, "_SLOW_FLUSH_MS", 1e9)
    monkeypatch.setattr(doctor_commands, "_TRIAL_MESSAGES", 20)


@pytest.fixture
def store(tmp_path: Path):
    """A store with ten orders that wait for a subscription."""
    root = tmp_path / "store"
    with Client(root) as client, Admin(root) as admin:
        admin.topics().create_subscription("orders", "work", MessageId.earliest)
        producer = client.create_producer("orders")
        for number in range(10):
            producer.send(b"%d" % number)
    yield root
    assert_clean(root)


def examined(call, *options: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit status, and the findings by check."""
    status, out, _ = call("doctor", "--json", "--interval", "0.01", *options)
    return status, {finding["check"]: finding for finding in json.loads(out)["findings"]}


def test_a_store_that_is_well(call, store: Path):
    """Status 0, figures of all that was measured, and nothing is left behind or changed."""
    before = {
        path: path.stat().st_mtime_ns for path in store.rglob("*") if path.is_file() and "topics" in str(path)
    }
    status, findings = examined(call)
    assert status == 0 and {finding["status"] for finding in findings.values()} == {OK}
    assert " ".join(findings) == (
        "versions file system space limits settings clock flush backlog size damage"
    )
    assert findings["flush"]["figures"]["publishRate"] > 0
    assert findings["damage"]["figures"]["messages"] == findings["backlog"]["figures"]["backlog"] == 10
    assert findings["size"]["figures"]["topics"] == 1 and "cluster is not needed" in findings["size"]["text"]
    assert sorted(os.listdir(store.parent)) == ["store"]
    assert before == {path: path.stat().st_mtime_ns for path in before}
    status, out, _ = call("doctor", "--interval", "0.01", "--no-measure", "--no-check")
    assert status == 0 and out.splitlines()[-1] == "OK: 0 critical, 0 warnings"
    assert "not checked" in out and "flush" not in out


def test_without_a_store(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    """Status 3, which is unknown to monitors."""
    assert main(["--store", str(tmp_path / "none"), "doctor"]) == 3
    assert "does not exist" in capfd.readouterr().err
    assert main(["--store", str(tmp_path / "none"), "doctor", "--json"]) == 3
    assert json.loads(capfd.readouterr().out)["status"] == "unknown"
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("nfs4", CRITICAL), ("fuse.sshfs", CRITICAL), ("tmpfs", WARNING), ("overlay", WARNING), ("xfs", OK)],
)
def test_file_systems(call, monkeypatch: pytest.MonkeyPatch, kind: str, expected: str):
    """Those of several machines are critical, those that end with this one a warning."""
    monkeypatch.setattr(doctor_commands, "filesystem_type", lambda root: kind)
    status, findings = examined(call, "--no-measure", "--no-check")
    assert findings["file system"]["status"] == expected
    assert status == {OK: 0, WARNING: 1, CRITICAL: 2}[expected]


def test_space_and_limits(call, monkeypatch: pytest.MonkeyPatch):
    """Little room is a warning, hardly any is critical; so are limits that the store reaches."""
    monkeypatch.setattr(doctor_commands, "_SHARE_FREE", 1.1)
    assert examined(call, "--no-measure", "--no-check")[0] == 1
    monkeypatch.setattr(doctor_commands, "_FREE_CRITICAL", 1 << 62)
    status, findings = examined(call, "--no-measure", "--no-check")
    assert status == 2 and "why-kept" in findings["space"]["remedy"]
    monkeypatch.setattr(doctor_commands, "_LEAST_FILES", 1 << 40)
    limits = {resource.RLIMIT_NOFILE: (256, 4096), resource.RLIMIT_FSIZE: (-1, -1)}
    monkeypatch.setattr(doctor_commands.resource, "getrlimit", limits.__getitem__)
    assert examined(call, "--no-measure", "--no-check")[1]["limits"]["status"] == WARNING
    monkeypatch.setattr(doctor_commands, "_LEAST_FILES", 1)
    limits[resource.RLIMIT_FSIZE] = (1 << 20, 1 << 20)
    assert examined(call, "--no-measure", "--no-check")[1]["limits"]["status"] == CRITICAL


@pytest.mark.parametrize(
    ("text", "expected", "said"),
    [
        ("maxMesageSize=1\n", WARNING, "did you mean maxMessageSize"),
        (
            "defaultRetentionTimeInMinutes=-1\ndefaultRetentionSizeInMB=-1\n",
            WARNING,
            "nothing is ever removed",
        ),
        ("ttlDurationDefaultInSeconds=5\n", WARNING, "expire within a minute"),
        ("keepAliveIntervalSeconds=3\n", WARNING, "stopped for a few seconds"),
        ("maxMessageSize=1000000\n", OK, "maxMessageSize=1000000"),
    ],
)
def test_settings(call, store: Path, text: str, expected: str, said: str):
    """Unknown names and values that hurt are warnings; others are listed."""
    (store / "broker.conf").write_text(text)
    _, findings = examined(call, "--no-measure", "--no-check")
    assert findings["settings"]["status"] == expected and said in findings["settings"]["text"]
    (store / "broker.conf").unlink()


def test_a_store_that_cannot_be_opened(call, store: Path):
    """Each check says why, and the others go on."""
    (store / "broker.conf").write_text("maxMessageSize\n")
    status, findings = examined(call, "--no-measure")
    assert status == 2 and "line 1" in findings["settings"]["text"]
    assert findings["damage"]["status"] == CRITICAL and findings["file system"]["status"] == OK
    (store / "broker.conf").unlink()


def test_old_backlogs_and_the_clock(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    """A message that waits for eight days is a warning, one of the future as well."""
    day_ms = 86_400_000
    for days, check in ((-8, "backlog"), (1, "clock")):
        root = tmp_path / check
        clock = ManualClock(wall_ms=time.time_ns() // 1_000_000 + days * day_ms)
        with clock, Client(root) as client, Admin(root) as admin:
            admin.topics().create_subscription("orders", "work", MessageId.earliest)
            client.create_producer("orders").send(b"x")
        given = ["--store", str(root), "doctor", "--json", "--no-measure", "--interval", "0.01"]
        assert main(given) == 1
        findings = {each["check"]: each for each in json.loads(capfd.readouterr().out)["findings"]}
        assert findings[check]["status"] == WARNING
        assert_clean(root)


def test_damage(call, store: Path):
    """A byte that is not the one that was written is critical; `check` describes it."""
    (path,) = store.glob("topics/*/*.log")
    whole = path.read_bytes()
    flip(path, 4096 + 100)
    status, findings = examined(call, "--no-measure")
    assert status == 2 and findings["damage"]["status"] == CRITICAL
    assert "embeddedpulsar check" in findings["damage"]["remedy"]
    path.write_bytes(whole)


def test_when_a_cluster_is_the_better_place(call, monkeypatch: pytest.MonkeyPatch):
    """By size, by processes, and by a rate near to what was measured."""
    monkeypatch.setattr(doctor_commands, "_LARGE_BYTES", 0)
    monkeypatch.setattr(doctor_commands, "_MANY_PROCESSES", 0)
    status, findings = examined(call, "--no-check")
    assert status == 1 and "embeddedpulsar migrate" in findings["size"]["remedy"]
    monkeypatch.setattr(doctor_commands, "_SLOW_FLUSH_MS", -1.0)
    assert examined(call, "--no-check")[1]["flush"]["status"] == WARNING


def test_init(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    """A store with all settings as comments, a topic and a subscription; a second run changes nothing."""
    root = tmp_path / "new"
    assert main(["init", str(root), "-p", "3"]) == 0
    out = capfd.readouterr().out
    assert "created the topic orders with 3 partitions" in out and f"EMBEDDEDPULSAR_URL={root}" in out
    with Admin(root) as admin:
        assert admin.topics().get_partitioned_topic_metadata("orders").partitions == 3
        assert admin.topics().get_subscriptions("orders") == ["work"]
    text = (root / "broker.conf").read_text("utf-8")
    (root / "broker.conf").write_text(text + "maxMessageSize=1000\n")
    assert main(["--store", str(root), "init"]) == 0
    out = capfd.readouterr().out
    assert "broker.conf is there" in out and "orders is there" in out
    assert (root / "broker.conf").read_text("utf-8").endswith("maxMessageSize=1000\n")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("mine")
    assert main(["init", str(tmp_path / "other")]) == 1
    assert "is no store" in capfd.readouterr().err
    assert os.listdir(tmp_path / "other") == ["letter.txt"]
    assert main(["--read-only", "init", str(root)]) == 2
    assert_clean(root)


def test_the_commented_settings_are_all_and_the_defaults():
    """Each is named once; without the comment signs the file says what holds without it."""
    text = commented_settings()
    assert BrokerSettings.parse(text) == BrokerSettings()
    lines = [line[1:] for line in text.splitlines() if line.startswith("#") and line[1:2] not in (" ", "")]
    assert sorted(line.partition("=")[0] for line in lines) == sorted(
        set(BrokerSettings._fields) - {"unknown"}
    )
    assert BrokerSettings.parse("\n".join(lines)) == BrokerSettings()
