"""Consumers of one subscription that do everything in every order: seeded schedules over the real thing.

One seed is one schedule: some hundred steps of a few virtual processes with two to six consumers, in which
processes die, also in the middle of a call, are stopped and go on, and clocks jump. After each step the
replicated state is held against a simple model, and at the end everything must have been delivered.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import NamedTuple

from tests.storms.dispatch.dispatch_schedule import DispatchSchedule

_MOST_KEPT = 50


class Summary(NamedTuple):
    """What a storm tried and found."""

    seeds: int
    steps: int
    entries: int
    deliveries: int
    deaths: int
    violations: list[str]


def run_seed(seed: int, directory: str) -> DispatchSchedule:
    """One schedule, from the first step to the last; its `violations` say what was wrong."""
    schedule = DispatchSchedule(seed, directory)
    try:
        schedule.run()
    finally:
        schedule.close()
        shutil.rmtree(directory, ignore_errors=True)
    return schedule


def storm(
    seeds: int, first: int, workspace: str, *, progress: Callable[[int, int], object] | None = None
) -> Summary:
    """Run ``seeds`` schedules from seed ``first`` on."""
    violations: list[str] = []
    steps = entries = deliveries = deaths = 0
    for number, seed in enumerate(range(first, first + seeds)):
        found = run_seed(seed, os.path.join(workspace, f"dispatch-{seed}"))
        steps += found.steps
        entries += len(found.scene.log.entries)
        deliveries += found.scene.deliveries
        deaths += found.scene.deaths
        violations += [f"seed {seed} ({found.setup}): {one}" for one in found.violations]
        if progress is not None and number % 20 == 19:
            progress(number + 1, len(violations))
        if len(violations) >= _MOST_KEPT:
            return Summary(number + 1, steps, entries, deliveries, deaths, violations)
    return Summary(seeds, steps, entries, deliveries, deaths, violations)
