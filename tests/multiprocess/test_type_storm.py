"""Consumers of one subscription killed at any moment: the short form of ``storms types``, and its judge."""

from __future__ import annotations

import pytest

from embeddedpulsar.enums import ConsumerType
from tests.children import run_python
from tests.storms import storm_diary
from tests.storms.storm_diary import Diary, Line, read_diary
from tests.storms.type_verdict import TypeVerdict

STORM = """
import sys
from tests.storms import commands as storms
sys.exit(storms.main(["types", *sys.argv[1:]]))
"""


@pytest.mark.parametrize("kills", [6, pytest.param(250, marks=[pytest.mark.slow, pytest.mark.timeout(1500)])])
@pytest.mark.parametrize("name", ["exclusive", "failover", "shared", "keyshared"])
def test_consumers_that_are_killed_lose_and_repeat_nothing(name: str, kills: int, tmp_path):
    """Two producers and four consumers, killed, leaving, and stopped until they are taken for dead."""
    output = run_python(
        STORM, "--type", name, "--kills", str(kills), "--folder", str(tmp_path), timeout_s=1400
    )
    assert "clean" in output


# -- the judge -------------------------------------------------------------------------------------

KINDS = {
    "A": storm_diary.ATTACHED,
    "r": storm_diary.RECEIVED,
    "k": storm_diary.ACKNOWLEDGING,
    "w": storm_diary.ACKNOWLEDGED,
    "n": storm_diary.GIVEN_BACK,
    "c": storm_diary.CLOSING,
    "C": storm_diary.CLOSED,
    "K": storm_diary.KILLED,
    "S": storm_diary.STOPPED,
    "R": storm_diary.RESUMED,
    "I": storm_diary.INTERRUPTED,
}
PLACES = [(7, 0, -1), (7, 1, 0), (7, 1, 1), (7, 2, -1)]


def problems(consumer_type: ConsumerType, text: str, keys: tuple[int, ...] = (1, 1, 1, 1)) -> list[str]:
    """The verdict on ``"1A 1r0 1k0 1w0"``: consumer 1 attaches, receives message 0, acknowledges it."""
    verdict = TypeVerdict(consumer_type, PLACES, keys, 2)
    lines = []
    for word in text.split():
        place = PLACES[int(word[2:])] if word[2:] else (0, 0, -1)
        lines.append(Line(KINDS[word[1]], int(word[0]), 1, *place))
    verdict.judge(lines)
    return verdict.problems


ALL = "1r0 1k0 1w0 1r1 1k1 1w1 1r2 1k2 1w2 1r3 1k3 1w3"


@pytest.mark.parametrize("consumer_type", ConsumerType)
@pytest.mark.parametrize(
    "text",
    [
        f"1A {ALL}",
        f"1A 1r0 1K 2A {ALL.replace('1r', '2r')}",  # killed before it was acknowledged
        "1A 1r0 1k0 1r1 1k1 1c 1C 2A 2r2 2k2 2r3 2k3",  # in a group, written when it closed
        "1A 1r0 1k0 1r1 1k1 1K 2A 2r0 2r1 2k0 2k1 2r2 2k2 2r3 2k3",  # in a group that was not written
        "1A 1r0 1S 2A 2r0 2k0 2w0 2r1 2k1 2w1 1R 1r1 1k1 1w1 2r2 2k2 2r3 2k3",  # forgiven
        "1A 1r0 1S 1R 1k0 1w0 2A 2r0 2k0 2r1 2k1 2r2 2k2 2r3 2k3",  # in vain: it was taken for dead
        f"1A 1r0 1I {ALL}",  # interrupted, and given back
    ],
)
def test_good_diaries(consumer_type: ConsumerType, text: str):
    """What honest consumers may write, whatever the type."""
    assert problems(consumer_type, text) == []


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("Shared", "1A 1r0 1k0 1r1 1k1 1r2 1k2", "1 messages were never received"),
        ("Shared", "1A 1r0 1r1 1k1 1r2 1k2 1r3 1k3", "1 messages were never acknowledged"),
        ("Shared", f"1A {ALL} 1K 2A 2r0", "after its acknowledgement was written"),
        (
            "Shared",
            "1A 1r0 1k0 1c 1C 2A 2r0 2r1 2k1 2r2 2k2 2r3 2k3",
            "after its acknowledgement was written",
        ),
        ("Shared", f"1A {ALL} 1S 2A 1R 1r0 1r1 1r2", "after its acknowledgement was written"),  # one too many
        ("Shared", f"1A {ALL} 1I 1r0", "after its acknowledgement was written"),
        ("Exclusive", "1A 1r0 1k0 1r1 1r0 1k1 1r2 1k2 1r3 1k3", "(1, 1) received (7, 0, -1) after"),
        ("Exclusive", "1A 1r0 1k0 2A 2r1 2k1 2r2 2k2 2r3 2k3", "while (1, 1) is active"),
        ("Failover", "1A 1r0 1k0 1K 2r1 2k1 2r2 2k2 3r3 3k3", "while (2, 1) is active"),
        ("Failover", "1A 1r0 1k0 1r2 1k2 1r1 1k1 1r3 1k3", "which nobody received yet"),
        ("Failover", "1A 1r0 1r1 1r0 1k0 1k1 1r2 1k2 1r3 1k3", "(1, 1) received (7, 0, -1) after"),
        ("KeyShared", "1A 2A 1r0 1k0 2r3 2k3 1r1 1k1 1r2 1k2", "of key 1 before (7, 1)"),
    ],
)
def test_bad_diaries(name: str, text: str, problem: str):
    """Lost, back again, two at once, out of order."""
    assert any(problem in found for found in problems(ConsumerType[name], text))


def test_order_matters_within_a_key_only():
    """Other keys may be ahead or behind."""
    text = "1A 2A 2r3 2k3 1r0 1k0 1r1 1k1 1r2 1k2"
    assert problems(ConsumerType.KeyShared, text, keys=(1, 1, 1, 2)) == []
    assert problems(ConsumerType.KeyShared, text, keys=(1, 1, 1, 1)) != []


def test_a_message_out_of_nowhere():
    """What is not in the log cannot be received."""
    verdict = TypeVerdict(ConsumerType.Shared, [], [], 0)
    verdict.judge([Line(storm_diary.RECEIVED, 1, 1, 7, 9, -1)])
    assert "of no message in the log" in verdict.problems[0]


def test_a_batch_that_was_given_back():
    """Its other messages may come again although they were acknowledged: the two crossed."""
    crossed = "1A 1r0 1k0 1w0 1r1 1n1 1r2 1k2 1w2 2r1 2r2 2k1 2k2 1r3 1k3"
    assert problems(ConsumerType.Shared, crossed) == []
    assert problems(ConsumerType.Shared, crossed.replace("1r1 1n1 1r2 1k2 1w2", "1r2 1k2 1w2 1r1 1n1")) != []


def test_a_diary_is_read_as_it_was_written(tmp_path):
    """Lines of several pens, in the order of writing."""
    path = str(tmp_path / "diary")
    first, second = Diary(path, 1, 3), Diary(path, 2, 1)
    first.write(storm_diary.ATTACHED)
    second.write(storm_diary.RECEIVED, 1 << 40, 9, 4)
    first.write(storm_diary.RECEIVED, 5, 6)
    for pen in (first, second):
        pen.close()
    assert [line._replace(at_ms=0) for line in read_diary(path)] == [
        Line(storm_diary.ATTACHED, 1, 3, 0, 0, -1),
        Line(storm_diary.RECEIVED, 2, 1, 1 << 40, 9, 4),
        Line(storm_diary.RECEIVED, 1, 3, 5, 6, -1),
    ]
    assert list(read_diary(str(tmp_path / "none"))) == []
