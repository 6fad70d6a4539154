"""A tmpfs that is full, whose files one process has mapped while another gives them back."""

from __future__ import annotations

import os
import subprocess
import sys
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
                assert admin.topics().trim_topic("topic") == 1
                assert sent(1) == 1
                consumer.acknowledge(consumer.receive(5000))
                assert used(tmpfs) < _SIZE // 4
            producer.stdin.close()
            assert producer.wait(30) == 0
    assert_clean(root)
