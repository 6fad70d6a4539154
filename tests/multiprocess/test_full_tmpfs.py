"""A tmpfs that is full, whose files one process has mapped while another gives them back."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from embeddedpulsar import Admin, Client, InitialPosition
from embeddedpulsar.testing import assert_clean

_SIZE = 12 << 20

_PRODUCER = """
import sys, embeddedpulsar as pulsar
client = pulsar.Client(sys.argv[1])
producer = client.create_producer("topic")
for line in sys.stdin:
    count = 0
    try:
        while count < int(line):
            producer.send(bytes(50_000))
            count += 1
    except pulsar.StorageFullError:
        pass
    print(count, flush=True)
client.close()
"""


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 12 MiB; skipped for those who may not mount one."""
    path = tmp_path / "small"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={_SIZE}", "tmpfs", str(path)]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=30)
    except (OSError, subprocess.CalledProcessError) as e:
        pytest.skip(f"no tmpfs can be mounted here: {e}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True, timeout=30)


def used(path: Path) -> int:
    """Bytes that are taken."""
    status = os.statvfs(path)
    return (status.f_blocks - status.f_bfree) * status.f_frsize


def test_emptied_by_another_process(tmpfs: Path):
    """The producer that filled the disk has mapped what goes, and goes on with the space of it."""
    root = tmpfs / "store"
    with Client(root) as client, Admin(root) as admin:
        consumer = client.subscribe("topic", "s", initial_position=InitialPosition.Earliest)
        with subprocess.Popen(
            [sys.executable, "-c", _PRODUCER, str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as producer:
            assert producer.stdin is not None and producer.stdout is not None

            def sent(most: int) -> int:
                assert producer.stdin is not None and producer.stdout is not None
                print(most, file=producer.stdin, flush=True)
                return int(producer.stdout.readline())

            for _ in range(3):
                count = sent(10_000)
                assert count > 100
                for _ in range(count):
                    consumer.acknowledge(consumer.receive(5000))
                assert used(tmpfs) > _SIZE // 2
                admin.topics().skip_all_messages("topic", "s")
                admin.topics().trim_topic(
                    "topic"
                )  # or housekeeping of either process, which the full disk woke
                until = time.monotonic() + 10  # it looks for trimmed ledgers at most every 10 ms
                while True:
                    assert sent(1) == 1
                    consumer.acknowledge(consumer.receive(5000))
                    if used(tmpfs) < _SIZE // 4:
                        break
                    assert time.monotonic() < until, "the space is not given back"
            producer.stdin.close()
            assert producer.wait(30) == 0
    assert_clean(root)


_OTHER = """
import sys, embeddedpulsar as pulsar
admin = pulsar.Admin(sys.argv[1])
for line in sys.stdin:
    print(getattr(admin.topics(), line.strip())("topic"), flush=True)
admin.close()
"""


def deleted_maps(root: Path) -> list[str]:
    """The files of ledgers of a store that this process has mapped and that have no name any more."""
    with open("/proc/self/maps") as maps:
        files = [line for line in maps if str(root) in line and "(deleted)" in line]
    return [line for line in files if ".log" in line or ".idx" in line]


@pytest.mark.parametrize("is_removed_elsewhere", [False, True], ids=["here", "elsewhere"])
def test_an_idle_producer_lets_go(tmp_path: Path, is_removed_elsewhere: bool):
    """A process that sends no more unmaps the ledger when it trims, whoever closed or removed that."""
    root = tmp_path / "store"
    with Client(root) as client, Admin(root) as admin:
        producer = client.create_producer("topic")
        consumer = client.subscribe("topic", "s", initial_position=InitialPosition.Earliest)
        for _ in range(3):
            producer.send(bytes(50_000))
            consumer.acknowledge(consumer.receive(5000))
        consumer.close()
        with subprocess.Popen(
            [sys.executable, "-c", _OTHER, str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as other:
            assert other.stdin is not None and other.stdout is not None
            print("roll_ledger", file=other.stdin, flush=True)
            assert other.stdout.readline()
            if is_removed_elsewhere:
                print("trim_topic", file=other.stdin, flush=True)
                assert other.stdout.readline() == "1\n"
            assert admin.topics().trim_topic("topic") == (not is_removed_elsewhere)
            assert deleted_maps(root) == []
            producer.send(b"goes on")
            other.stdin.close()
            assert other.wait(30) == 0
    assert_clean(root)
