"""The memory of a client with many producers, measured in a process of its own."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest

from embeddedpulsar import Client
from tests.multiprocess.children import Child, say

PRODUCERS = 300
MOST_KIB = 42


def resident_kib() -> int:
    """The resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return 4 * pages


def hold_producers(path: str) -> None:
    """Say how much the memory grows per idle producer, each of a topic of its own."""
    with Client(path) as client:
        producers = [client.create_producer(f"first-{number}") for number in range(20)]
        gc.collect()
        before = resident_kib()
        producers += [client.create_producer(f"topic-{number}") for number in range(PRODUCERS)]
        gc.collect()
        say((resident_kib() - before) / PRODUCERS)
        del producers


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_an_idle_producer_takes_little_memory(tmp_path: Path):
    """At most 42 KiB with its topic, of which 4 are the page of the control words."""
    with Child(hold_producers, tmp_path / "store", is_fresh=True) as child:
        taken = float(child.read())
        assert child.join() == 0
    assert 5 < taken <= MOST_KIB
