"""SIGKILL at any moment: the short form of `python -m tests.storms kill`."""

from __future__ import annotations

import pytest

from tests.children import run_python
from tests.storms.storm_pages import (
    ACKNOWLEDGED,
    ACKNOWLEDGED_UP_TO,
    ATTACHED,
    RECEIVED,
    Receipt,
)
from tests.storms.storm_payload import Mark, make_payload, read_payload
from tests.storms.storm_verdict import ConsumerVerdict, LogVerdict
from tests.storms.storm_workload import Stored

STORM = """
import sys
from tests.storms import commands as storms
sys.exit(storms.main(["kill", *sys.argv[1:]]))
"""

# The same storm, but producers say that a message is stored before it is.
LIAR = """
import sys
from tests.storms import kill_storm, storm_workload, commands as storms
from tests.storms.storm_pages import Page

class Liar(storm_workload.LedgerWorkload):
    def produce(self, role):
        stored = Page.stored
        Page.stored = lambda page, member: stored(page, member) + (member == role.member)
        super().produce(role)

kill_storm.WORKLOADS["ledger"] = Liar
sys.exit(storms.main(["kill", *sys.argv[1:]]) != 1)
"""


@pytest.mark.parametrize(
    "cycles", [12, pytest.param(1000, marks=[pytest.mark.slow, pytest.mark.timeout(1500)])]
)
@pytest.mark.parametrize("level", ["ledger", "client"])
def test_nothing_promised_is_lost(level: str, cycles: int, tmp_path):
    """Two producers and two consumers, killed and started again: everything acknowledged is there, once, in
    order."""
    output = run_python(
        STORM, "--level", level, "--cycles", str(cycles), "--folder", str(tmp_path), timeout_s=1400
    )
    assert "clean" in output


def test_the_storm_finds_a_lie(tmp_path):
    """A producer that skips a number after each death is found out."""
    output = run_python(LIAR, "--level", "ledger", "--cycles", "20", "--folder", str(tmp_path), timeout_s=250)
    assert "PROBLEM" in output
    assert "only" in output


# -- the judges
# ------------------------------------------------------------------------------------------------


def log(*marks: tuple[int, int, int]) -> list[Stored]:
    """A log with one message per entry."""
    return [Stored(1, entry, -1, make_payload(Mark(*mark), 50)) for entry, mark in enumerate(marks)]


def test_a_payload_recognises_itself():
    """Whole or not at all, at any size."""
    for size in (0, 24, 100, 70_000):
        data = make_payload(Mark(1, 2, 3), size)
        assert read_payload(data) == (1, 2, 3)
        for torn in (data[:-1], data + b"x", data[:10], bytes(len(data)), b"\7" + data[1:]):
            assert read_payload(torn) is None


def test_a_good_log():
    """Retries of the next life and unacknowledged rests are allowed."""
    verdict = LogVerdict(log((0, 1, 0), (1, 1, 0), (0, 1, 1), (0, 2, 1), (0, 2, 2), (0, 4, 2)), {0: 2, 1: 1})
    assert verdict.problems == []
    assert (verdict.duplicates, verdict.in_flight) == (2, 1)


@pytest.mark.parametrize(
    ("marks", "stored", "problem"),
    [
        ([(0, 1, 0), (0, 1, 2)], 3, "of the same life"),
        ([(0, 1, 0), (0, 1, 0)], 1, "of the same life"),
        ([(0, 1, 0), (0, 2, 2)], 3, "only 1 messages"),
        ([(0, 1, 1)], 2, "only 0 messages"),
        ([(0, 2, 0), (0, 1, 1)], 2, "earlier life"),
        ([(0, 1, 0)], 2, "the log ends at 1"),
    ],
)
def test_a_bad_log(marks, stored: int, problem: str):
    """Lost, doubled, out of order."""
    assert any(problem in found for found in LogVerdict(log(*marks), {0: stored}).problems)


def test_a_torn_message():
    """Is named by its place."""
    (message,) = log((0, 1, 0))
    verdict = LogVerdict([message._replace(payload=message.payload[:-1])], {0: 0})
    assert "torn" in verdict.problems[0]


def diary(text: str) -> list[Receipt]:
    """``"A r0 a0 R"``: attach, receive entry 0, acknowledge it; ``u`` acknowledges up to."""
    kinds = {"r": RECEIVED, "a": ACKNOWLEDGED, "u": ACKNOWLEDGED_UP_TO}
    lines = []
    for word in text.split():
        if word == "A":
            lines.append(Receipt(ATTACHED, 1, 0, 0, -1))
        else:
            lines.append(Receipt(kinds[word[0]], 1, 1, int(word[1:]), -1))
    return lines


PLACES = [(1, entry, -1) for entry in range(4)]


@pytest.mark.parametrize(
    "text",
    [
        "A r0 a0 r1 a1 r2 a2 r3 a3",
        "A r0 A r0 a0 r1 A r1 r2 r3",  # not acknowledged, so it comes again
        "A r0 A r1 r2 r3",  # acknowledged, but killed before it was written down
        "A r0 r1 r2 u1 A r2 r3",
        "A r0 r1 r2 A r2 r3 u3",  # a cumulative one was under way
        "A r0 a0 r1 r2 a2 A r1 r3",  # holes
    ],
)
def test_a_good_diary(text: str):
    """What an honest consumer may write."""
    assert ConsumerVerdict("c", PLACES, diary(text)).problems == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("A r0 r1 r2", "never received 1"),
        ("A r0 r2 r3", "skipped (1, 1, -1)"),
        ("A r0 r0 r1 r2 r3", "in one life"),
        ("A r0 r2 r1 r3", "in one life"),
        ("A r0 a0 r1 r2 r3 A r0", "after it was acknowledged"),
        ("A r0 r1 r2 r3 u3 A r2", "after it was acknowledged"),
        ("A r0 r1 A r2 r3", "without an acknowledgement"),  # two at once cannot have been under way
        ("A r0 r1 r2 r3 r9", "not in the log"),
    ],
)
def test_a_bad_diary(text: str, problem: str):
    """Missed, doubled, out of order, back again."""
    assert any(problem in found for found in ConsumerVerdict("c", PLACES, diary(text)).problems)
