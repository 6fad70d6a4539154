"""Interleaved timing: every contender runs a short burst per round, so that noise hits all alike."""

from __future__ import annotations

import time
from collections.abc import Callable

Work = Callable[[int], object]
"""Does the operation that many times."""


def measure(contenders: dict[str, Work], *, rounds: int, calls: int) -> dict[str, list[float]]:
    """Microseconds per call of every burst, sorted."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    clock = time.perf_counter
    for _ in range(rounds):
        for name, work in contenders.items():
            begun = clock()
            work(calls)
            times[name].append((clock() - begun) / calls * 1e6)
    return {name: sorted(bursts) for name, bursts in times.items()}


def show(title: str, times: dict[str, list[float]], reference: str) -> None:
    """A table: best burst, median, and the median as a multiple of the reference's."""
    print(f"\n{title}\n{'':38} {'best us':>9} {'median us':>10} {'x ' + reference:>24}")
    base = times[reference][len(times[reference]) // 2]
    for name, bursts in times.items():
        median = bursts[len(bursts) // 2]
        print(f"{name:38} {bursts[0]:9.2f} {median:10.2f} {median / base:24.2f}")
