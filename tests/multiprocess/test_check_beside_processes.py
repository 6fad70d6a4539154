"""The check program beside processes that write, acknowledge, trim, delete and die."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from embeddedpulsar.testing.trial_store import assert_clean
from tests.children import ROOT, start_python

BUSY = """
import sys
import embeddedpulsar as pulsar
root, number = sys.argv[1:]
client, admin = pulsar.Client(root), pulsar.Admin(root)
consumer = client.subscribe("shared", "sub", pulsar.ConsumerType.Shared, ack_group_time_ms=5)
producer = client.create_producer("shared", batching_enabled=True)
print("ready", flush=True)
for turn in range(1_000_000):
    producer.send_many([bytes(2000)] * 50)
    for _ in range(50):
        message = consumer.receive_nowait()
        if message is not None:
            consumer.acknowledge(message)
    short = f"short-{number}-{turn}"
    with client.create_producer(short) as other:
        other.send(b"x")
    admin.topics().delete(short)
"""


def check(root: Path) -> subprocess.CompletedProcess[str]:
    """Run the program."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "embeddedpulsar.cli.check", str(root)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )


def warnings_of(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The error stream without the progress, which is shown when a check takes longer than a second."""
    return [line for line in done.stderr.splitlines() if not line.startswith("checking topic ")]


def test_a_store_in_use_is_whole(tmp_path: Path):
    """Ledgers that are trimmed, topics that come and go and appends under way are no damage."""
    (tmp_path / "broker.conf").write_text("managedLedgerMaxEntriesPerLedger=8\n")
    busy = [start_python(BUSY, str(tmp_path), str(number)) for number in range(2)]
    try:
        for one in busy:
            assert one.stdout is not None
            assert one.stdout.readline() == "ready\n"
        for _ in range(5):
            done = check(tmp_path)
            assert (done.returncode, warnings_of(done)) == (0, []), done.stdout + done.stderr
            assert "2 processes had it open meanwhile" in done.stdout
            assert done.stdout.endswith("Everything is whole.\n")
    finally:
        for one in busy:
            one.kill()
            one.communicate()
    done = check(tmp_path)  # and what the dead left is no damage either
    assert (done.returncode, warnings_of(done)) == (0, []), done.stdout
    assert "the lease of a process that is gone" in done.stdout


def test_damage_is_found_beside_a_client(tmp_path: Path):
    """What is damaged stays so however often it is looked at; the exit status says it."""
    code = """
import sys
import embeddedpulsar as pulsar
client = pulsar.Client(sys.argv[1])
producer = client.create_producer("topic")
for number in range(20):
    producer.send(bytes(100))
print("ready", flush=True)
sys.stdin.read()
"""
    living = start_python(code, str(tmp_path))
    try:
        assert living.stdout is not None
        assert living.stdout.readline() == "ready\n"
        (log,) = tmp_path.glob("topics/*/*.log")
        with log.open("r+b") as file:
            file.seek(4096 + 200)
            file.write(b"damaged")
        done = check(tmp_path)
        assert done.returncode == 1, done.stdout
        assert "hole: entries " in done.stdout
        assert not warnings_of(done)
    finally:
        living.communicate()
    assert check(tmp_path).returncode == 1


def test_a_closed_pipe_is_no_error(tmp_path: Path):
    """`... | head -1` ends without a traceback."""
    start_python(
        "import sys, embeddedpulsar as p; p.Client(sys.argv[1]).close()", str(tmp_path)
    ).communicate()
    assert_clean(tmp_path)
    command = f"{sys.executable} -W error -m embeddedpulsar.cli.check {tmp_path} | true"
    done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert not warnings_of(done)
