"""`embeddedpulsar top` and `who`: what goes on in a store, and who is attached."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import pytest
from rich.console import Console

from embeddedpulsar import Admin, Client, ConsumerType, MessageId
from embeddedpulsar._engine.platform import peers
from embeddedpulsar.cli.look_commands import TopicRow, picture
from embeddedpulsar.cli.main import main
from embeddedpulsar.testing.trial_store import assert_clean

ON_LINUX = pytest.mark.skipif(not Path("/proc/locks").exists(), reason="the system does not tell")


@pytest.fixture
def store(tmp_path: Path):
    """A store with twenty orders and a subscription without consumers."""
    root = tmp_path / "store"
    with Client(root) as client, Admin(root) as admin:
        admin.topics().create_subscription("orders", "nightly", MessageId.earliest)
        producer = client.create_producer("orders", "shop")
        for number in range(20):
            producer.send(b"order %d" % number)
        admin.topics().create_partitioned_topic("flights", 2)
    yield root
    assert_clean(root)


@pytest.fixture
def call(store: Path, capfd, monkeypatch):
    """Runs a command on the store; returns the status, the output and the error output."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
        status = main(["--store", str(store), *arguments])
        out, err = capfd.readouterr()
        return status, out, err

    return run


def test_top_once(call):
    """A line for each topic: rates, backlog, age, and why it does not go on."""
    status, out, _ = call("top", "--once", "--interval", "0.1")
    assert status == 0
    head, _, columns, line = out.splitlines()
    assert "1 topic, 1 process, 20 messages of backlog" in head
    assert columns.split() == ["topic", "in/s", "out/s", "backlog", "oldest", "size", "why", "attached"]
    assert line.split()[:4] == ["orders", "0", "0", "20"]
    assert "nightly: no consumer" in line


@ON_LINUX
def test_who_is_attached(call, store: Path):
    """Each producer and consumer with its process and program."""
    with Client(store) as client:
        held = [
            client.create_producer("orders", "press"),
            client.subscribe("orders", "nightly", ConsumerType.Shared, consumer_name="w1"),
        ]
        status, out, _ = call("who", "--json")
        assert status == 0
        found = {(one["kind"], one["name"]): one for one in json.loads(out)}
        assert found["producer", "press"]["pid"] == os.getpid()
        assert found["consumer", "w1"]["subscription"] == "nightly"
        assert "python" in found["consumer", "w1"]["program"]
        assert "w1" in call("who")[1]
        shown = json.loads(call("top", "--json", "--interval", "0.1")[1])
        assert shown["topics"][0]["attached"][0]["pid"] == os.getpid()
        assert shown["topics"][0]["msgRateOut"] == 0
        assert f"nightly: {os.getpid()} " in call("top", "--once", "--interval", "0.1")[1]
        held.clear()


def test_rates_and_order(store: Path):
    """They are those between two looks; a topic at rest is not opened again."""
    from embeddedpulsar.cli.look_commands import _rows

    with Client(store) as client, Admin(store) as admin:
        watch = admin.activity()
        before = watch.look()
        client.create_producer("orders").send(b"more")
        admin.topics().skip_messages("orders", "nightly", 5)
        now = watch.look()._replace(time_ms=before.time_ms + 2000)
        (row,) = _rows(before, now)
        assert (row.rate_in, row.rate_out) == (0.5, 2.5)
        assert row.topic.msg_backlog == 16
        client.close()
        first, second = watch.look(), watch.look()
        assert first.topics[0].subscriptions is second.topics[0].subscriptions


def test_the_table_fits_a_terminal(store: Path, monkeypatch):
    """Numbers are never shortened: what is attached gives way."""
    with Client(store) as client, Admin(store) as admin:
        held = []
        for number in range(5):
            held.append(client.subscribe("orders", f"sub-{number}"))
        now = admin.activity().look()
        rows = [TopicRow(one, 123_456, 78, 3 * 86_400_000) for one in now.topics]
        console = Console(file=io.StringIO(), width=100)
        console.print(picture("store", now, rows, 100))
        lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
        assert all(len(line) <= 100 for line in lines)
        assert "123,456" in lines[-1]
        assert "3 d" in lines[-1]


def test_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """The name of a program, without the options of the interpreter; nothing where it cannot be read."""
    assert peers._program(0) == ""
    assert "python" in peers._program(os.getpid()) if Path("/proc/self").exists() else True
    assert peers.lease_holders(str(tmp_path / "none"), lambda _: True) == {}


@ON_LINUX
def test_a_process_that_was_killed_is_not_counted(store: Path):
    """Its lease stays until another process removes it."""
    with Client(store), Admin(store) as admin:
        there = admin.activity().look().processes
        left = store / "clients" / ("ab" * 16)
        os.mkfifo(left)
        try:
            assert admin.activity().look().processes == there
        finally:
            left.unlink()


def test_the_holder_of_a_lock_is_found_by_device_and_inode(tmp_path: Path):
    """Another file system may have a lock on the same inode. Where the devices of ``/proc/locks`` are others
    than those of files, the inode alone counts, if it is the only one."""
    status = (tmp_path / "lease").touch() or (tmp_path / "lease").stat()
    device, inode = status.st_dev, status.st_ino
    assert peers._holder_of(status, {(device + 1, inode): 1, (device, inode): 2}) == 2
    assert peers._holder_of(status, {(device + 1, inode): 1, (device, inode + 1): 2}) == 0
    assert peers._holder_of(status, {(device + 1, inode): 1}) == 1
    assert peers._holder_of(status, {(device + 1, inode): 1, (device + 2, inode): 2}) == 0
