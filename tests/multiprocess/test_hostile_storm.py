"""A hostile day in short: ``storms hostile``, and the judge of stores that are removed."""

from __future__ import annotations

import re
import struct

import pytest

from tests.children import run_python
from tests.storms.hostile import hostile_stores

STORM = """
import sys
from tests.storms import commands as storms
sys.exit(storms.main(["hostile", *sys.argv[1:]]))
"""


@pytest.mark.parametrize(
    ("minutes", "seconds"),
    [(0, 8), pytest.param(10, 60, marks=[pytest.mark.slow, pytest.mark.timeout(1500)])],
)
def test_a_hostile_day_loses_and_repeats_nothing(minutes: int, seconds: int, tmp_path):
    """Kills, stops, freezes, interrupts, handlers that send, removed FIFOs and stores, closed streams,
    daemons, interrupted calls of a notebook, hung workers."""
    options = ("--minutes", str(minutes), "--round", str(seconds), "--folder", str(tmp_path))
    output = run_python(STORM, *options, timeout_s=1400)
    assert "  clean" in output
    for kind in ("daemons", "hung workers"):
        assert re.search(rf"^  {kind}: [1-9]", output, re.MULTILINE), output
    assert re.search(r"^  interrupted \w+: [1-9]", output, re.MULTILINE), output


def judge(
    folder, sent: list[tuple[int, int, int]], removals: list[tuple[int, int, int, list[int]]]
) -> list[str]:
    """The verdict on what process 5 sent, and on removals: three times, and what had been there."""
    with open(hostile_stores.sent_path(str(folder), 5), "wb") as file:
        file.write(b"".join(struct.pack("<QQQ", *one) for one in sent))
    with open(f"{folder}/removals", "wb") as file:
        for began, removing, removed, numbers in removals:
            file.write(struct.pack("<QQQQ", began, removing, removed, len(numbers)))
            file.write(b"".join(struct.pack("<IQ", 5, number) for number in numbers))
    return hostile_stores.judge(str(folder), [5])[1]


FIRST = (20, 21, 22, [0])


@pytest.mark.parametrize(
    ("sent", "removals"),
    [
        ([(0, 10, 11), (1, 30, 31)], [FIRST, (40, 41, 42, [1])]),
        ([(0, 10, 11), (1, 20, 21)], [FIRST, (40, 41, 42, [])]),  # while the store was being removed
        ([(0, 10, 11), (1, 39, 41)], [FIRST, (40, 41, 42, [])]),  # not answered when it was read
    ],
)
def test_good_removals(sent, removals, tmp_path):
    """What a removed store may take with it."""
    assert judge(tmp_path, sent, removals) == []


@pytest.mark.parametrize(
    ("sent", "removals", "problem"),
    [
        ([(0, 10, 11), (1, 30, 31)], [FIRST, (40, 41, 42, [])], "1 stored messages are not there"),
        ([(0, 10, 11)], [FIRST, (40, 41, 42, [0])], "1 messages are of an earlier store"),
        ([(0, 10, 11)], [(20, 21, 22, [0, 0])], "stand there twice"),
    ],
)
def test_bad_removals(sent, removals, problem: str, tmp_path):
    """Stored into a removed store; out of an earlier one; twice."""
    assert any(problem in found for found in judge(tmp_path, sent, removals))
