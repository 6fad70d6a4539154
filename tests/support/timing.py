"""Verdicts on times of which some may be late, because the machine is busy with something else."""

from __future__ import annotations

from collections.abc import Callable


def best_within(limit_s: float, measure: Callable[[], float], *, of: int = 3) -> None:
    """Fail if the best of some measurements is over a limit. What cannot change that is not measured.

    Args:
        limit_s: In seconds.
        measure: Does what is measured, and returns the seconds that it took.
        of: How many measurements there may be.
    """
    _enough_within(limit_s, measure, of, 1)


def median_within(limit_s: float, measure: Callable[[], float], *, of: int = 3) -> None:
    """Fail if the median of an odd number of measurements is over a limit, like `best_within`."""
    _enough_within(limit_s, measure, of, of // 2 + 1)


def _enough_within(limit_s: float, measure: Callable[[], float], of: int, needed: int) -> None:
    taken_s: list[float] = []
    within = 0
    while within < needed:
        # Those that are left cannot make up for it.
        assert of - len(taken_s) >= needed - within, f"the limit is {limit_s} s: {taken_s}"
        taken_s.append(measure())
        within += taken_s[-1] < limit_s
