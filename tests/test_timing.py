"""`tests.support.timing` measures no more than the verdict needs, and never gives another one."""

from __future__ import annotations

import itertools
import statistics

import pytest

from tests.support import timing


@pytest.mark.parametrize("verdict", [timing.best_within, timing.median_within])
@pytest.mark.parametrize("of", [1, 3, 5])
def test_verdicts_are_those_of_all_measurements(verdict, of: int) -> None:
    """Of every series of quick and late ones."""
    for series in itertools.product((0.1, 2.0), repeat=of):
        left = list(series)
        summary = min(series) if verdict is timing.best_within else statistics.median(series)
        if summary < 1:
            verdict(1.0, lambda: left.pop(0), of=of)  # noqa: B023
        else:
            with pytest.raises(AssertionError, match=r"2\.0"):
                verdict(1.0, lambda: left.pop(0), of=of)  # noqa: B023


def test_no_more_than_needed() -> None:
    """The first that is quick settles the best of three, the first two the median."""
    left = [0.1] * 6
    timing.best_within(1.0, left.pop)
    assert len(left) == 5
    timing.median_within(1.0, left.pop)
    assert len(left) == 3
