"""Producers of one topic killed at any moment: the short form of ``storms producers``, and its judge."""

from __future__ import annotations

import pytest

from tests.children import run_python
from tests.storms.producer_verdict import ProducerVerdict
from tests.storms.producer_workload import StoredEntry
from tests.storms.storm_payload import Mark, make_payload

STORM = """
import sys
from tests.storms import commands as storms
sys.exit(storms.main(["producers", *sys.argv[1:]]))
"""


@pytest.mark.parametrize("kills", [6, pytest.param(250, marks=[pytest.mark.slow, pytest.mark.timeout(1500)])])
@pytest.mark.parametrize("name", ["shared", "exclusive", "waitforexclusive", "exclusivewithfencing"])
def test_producers_that_are_killed_lose_and_double_nothing(name: str, kills: int, tmp_path):
    """Three producers, killed, stopped, leaving and throwing each other out, with deduplication."""
    output = run_python(
        STORM,
        *("--mode", name, "--kills", str(kills), "--deduplication", "on", "--folder", str(tmp_path)),
        timeout_s=1400,
    )
    assert "clean" in output


# -- the judge -------------------------------------------------------------------------------------


def problems(text: str, *, deduplicates: bool = True, is_exclusive: bool = True) -> list[str]:
    """The verdict on ``"a1:0 b2:0"``: in epoch 1 producer a stores its number 0, in epoch 2 b does."""
    entries = []
    for word in text.split():
        number = int(word[3:])
        payload = make_payload(Mark(ord(word[0]), 1, number), 30)
        entries.append(StoredEntry(word[0], int(word[1]), [number], [payload]))
    verdict = ProducerVerdict(deduplicates=deduplicates, is_exclusive=is_exclusive)
    verdict.judge(entries, {"a": 1})
    return verdict.problems


@pytest.mark.parametrize("text", ["a1:0", "a1:0 a1:1 b2:0", "a1:0 b2:0 a3:1 a3:2"])
def test_good_logs(text: str):
    """Numbers that follow each other, epochs that rise."""
    assert problems(text) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("b1:0", "1 messages were answered, the log ends at 0"),
        ("a1:0 a1:2", "2 follows 0"),
        ("a1:0 a1:1 a1:0", "0 is there twice"),
        ("a2:0 b1:0", "epoch 1 writes after epoch 2"),
        ("a1:0 b1:0", "writes in epoch 1 of"),
    ],
)
def test_bad_logs(text: str, problem: str):
    """Lost, doubled, two writers at once."""
    assert any(problem in found for found in problems(text))


def test_what_is_not_promised_is_not_asked_for():
    """Without deduplication a message may be there twice; shared producers write side by side."""
    assert problems("a1:0 a1:0", deduplicates=False) == []
    assert problems("a0:0 b0:0 a0:1", is_exclusive=False) == []


def test_torn_and_misnumbered_entries():
    """A payload that is not whole, and one under the wrong sequence id."""
    verdict = ProducerVerdict(deduplicates=True, is_exclusive=False)
    verdict.judge([StoredEntry("a", 0, [1], [make_payload(Mark(1, 1, 0), 30)])], {})
    verdict.judge([StoredEntry("a", 0, [1], [b"torn"])], {})
    assert "sequence id 1" in verdict.problems[0]
    assert "torn" in verdict.problems[1]
