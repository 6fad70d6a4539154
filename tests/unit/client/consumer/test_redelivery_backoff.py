"""Backoff of redeliveries: the tables of Pulsar's documentation."""

from __future__ import annotations

import pytest

from embeddedpulsar import MultiplierRedeliveryBackoff


def test_the_worked_table_of_negative_acknowledgements():
    """From one second to sixty, doubled: 1, 2, 4 ... 32, 60, 60 s."""
    backoff = MultiplierRedeliveryBackoff(min_delay_ms=1000, max_delay_ms=60_000, multiplier=2)
    assert [backoff.next(count) for count in range(9)] == [
        *(1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000, 60_000),
    ]


def test_the_worked_table_of_the_acknowledgement_timeout():
    """Added to a timeout of 10 s it is 11, 12, 14, 18, 26, 42, 70, 70 s."""
    backoff = MultiplierRedeliveryBackoff(1000, 60_000, 2.0)
    assert [10 + backoff.next(count) // 1000 for count in range(8)] == [11, 12, 14, 18, 26, 42, 70, 70]


def test_the_defaults_are_those_of_the_java_client():
    """10, 20, 40 ... 320, 600 s."""
    backoff = MultiplierRedeliveryBackoff()
    assert [backoff.next(count) // 1000 for count in range(8)] == [10, 20, 40, 80, 160, 320, 600, 600]
    assert (backoff.min_delay_ms, backoff.max_delay_ms, backoff.multiplier) == (10_000, 600_000, 2.0)


@pytest.mark.parametrize("count", [-5, 0, 1, 7, 1_000, 1 << 62])
@pytest.mark.parametrize("options", [(10, 10, 1.001), (1, 1 << 40, 1e300), (3, 1000, 1.5), (100, 60_000, 7)])
def test_any_count_is_answered_within_the_limits(options, count):
    """However often a message came, the delay lies between the limits."""
    backoff = MultiplierRedeliveryBackoff(*options)
    assert options[0] <= backoff.next(count) <= options[1]
    assert backoff.next(count) <= backoff.next(count + 1)


def test_no_delay_stays_none():
    """Nothing times anything is nothing."""
    assert [MultiplierRedeliveryBackoff(0, 1000).next(count) for count in (0, 1, 50)] == [0, 0, 0]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"min_delay_ms": -1}, "min_delay_ms must be >= 0"),
        ({"max_delay_ms": 5}, "max_delay_ms must be >= min_delay_ms"),
        ({"multiplier": 1.0}, "multiplier must be > 1"),
        ({"multiplier": float("nan")}, "multiplier must be > 1"),
        ({"min_delay_ms": 1.5}, "min_delay_ms is expected to be of type 'int'"),
        ({"max_delay_ms": None}, "max_delay_ms is expected to be of type 'int'"),
        ({"multiplier": "2"}, "multiplier is expected to be of type 'float'"),
    ],
)
def test_what_makes_no_sense_is_refused(options, text):
    """Wrong types and values are refused when the object is made."""
    with pytest.raises(ValueError, match=text):
        MultiplierRedeliveryBackoff(**options)


def test_its_text_says_all():
    """The repr can be pasted."""
    backoff = MultiplierRedeliveryBackoff(1, 2, 3)
    assert repr(backoff) == "MultiplierRedeliveryBackoff(min_delay_ms=1, max_delay_ms=2, multiplier=3)"
