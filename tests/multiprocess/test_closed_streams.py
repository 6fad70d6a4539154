"""Processes whose standard streams are closed: no file of a store gets the number of one of them."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from embeddedpulsar import Client
from embeddedpulsar.testing.trial_store import assert_clean
from tests.children import ROOT

# Closes some streams, uses everything that opens files, prints on all numbers, and reports what the low
# numbers are, by a descriptor that is out of the way.
_PROGRAM = """
import os, sys
root, closed, report = sys.argv[1], [int(c) for c in sys.argv[2]], int(sys.argv[3])
if sys.argv[4] == "before":
    for fd in closed: os.close(fd)
import embeddedpulsar
from embeddedpulsar import Client, InitialPosition, ConsumerType

seen = set()
def look():
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink("/proc/self/fd/" + fd)
        except OSError:
            continue
        if int(fd) < 3 and (root in target or "epoll" in target or "inotify" in target):
            seen.add((fd, target))
    for fd in closed:
        try:
            os.write(fd, b"text that belongs to no file of the store\\n")
        except OSError:
            pass

def use(number):
    client = Client(root)
    look()
    producer = client.create_producer("t")
    for kind in (ConsumerType.Exclusive, ConsumerType.Shared):
        consumer = client.subscribe("t", "s-%d-%s" % (number, kind.name), kind,
                                    initial_position=InitialPosition.Earliest)
        producer.send(b"x" * 10)
        look()
        consumer.acknowledge_cumulative(consumer.receive(5000)) if kind is ConsumerType.Exclusive else (
            consumer.acknowledge(consumer.receive(5000)))
        look()
    for i in range(3):
        client.create_producer("many-%d" % i).send(b"x")
    look()
    client.close()
    look()

if sys.argv[4] != "before":
    first = Client(root)
    for fd in closed: os.close(fd)
use(0)
pid = os.fork()
if pid == 0:
    use(1)
    os.write(report, repr(sorted(seen)).encode())
    os._exit(0)
status = os.waitpid(pid, 0)[1]
if sys.argv[4] != "before":
    first.close()
os.write(report, repr(sorted(seen)).encode())
os._exit(status)
"""


CLOSED = ["".join(some) for n in (1, 2, 3) for some in itertools.combinations("012", n)]


@pytest.mark.parametrize(("closed", "when"), [*((one, "before") for one in CLOSED), ("012", "after")])
def test_no_file_of_a_store_is_a_standard_stream(tmp_path: Path, closed: str, when: str):
    """Whichever streams are closed, before or after the store is opened, in a forked child too: what is
    written to their numbers does not reach the store."""
    root = tmp_path / "store"
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(root), closed, str(writer), when],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        pass_fds=(writer,),
    )
    os.close(writer)
    with os.fdopen(reader) as report:
        assert report.read() == "[][]"
    assert process.wait(60) == 0
    for file in root.rglob("*"):
        if file.is_file():
            assert b"text that belongs" not in file.read_bytes(), file
    assert_clean(root)
    with Client(root) as client:
        assert client.get_topic_partitions("t")
