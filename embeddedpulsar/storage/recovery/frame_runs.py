"""Which of the frames behind damage belong to the log: the choice among runs that chain in themselves."""

from __future__ import annotations

from typing import Final, NamedTuple

from embeddedpulsar.format.frame import MIN_FRAME_SIZE

_MOST_COMPARED: Final = 2_000
"""Beyond so many runs each is taken if it fits behind the one before: comparing all pairs takes too long."""
_BY_INDEX: Final = 1 << 32
"""A frame that the index has at this very place, with this checksum, outweighs any number it has not."""


class Run(NamedTuple):
    """Frames [start, end) that verify and chain, entries `first` to `last`.

    `indexed` counts those that the index knows at their place. A run alone does not show whether it is
    where it was written: pages may have changed places, and payloads may hold copies of segments. `proof` is
    1 where the bytes around it say so (run_search.py), as good as one frame that the index knows.
    """

    start: int
    end: int
    first: int
    last: int
    first_ms: int
    last_ms: int
    indexed: int = 0
    proof: int = 0

    @property
    def weight(self) -> int:
        """How much evidence there is for it."""
        return (self.indexed + self.proof) * _BY_INDEX + self.last - self.first + 1

    def may_follow(self, before: Run) -> bool:
        """Whether this run can lie behind `before`, with a hole between that holds the missing entries."""
        lost = self.first - before.last - 1
        return (
            lost >= 1 and self.start - before.end >= lost * MIN_FRAME_SIZE and self.first_ms >= before.last_ms
        )


def best_runs(behind: Run, found: list[Run]) -> list[Run]:
    """The heaviest sequence of runs that can follow each other behind `behind`; `found` is in order of place.

    Example:
        >>> start = Run(0, 4096, -1, -1, 0, 0)
        >>> moved, real = Run(8192, 9000, 50, 54, 5, 5), Run(9000, 20000, 20, 60, 5, 9)
        >>> best_runs(start, [moved, real]) == [real]
        True
    """
    if len(found) > _MOST_COMPARED:
        return _fitting(behind, found)
    weights = [0] * len(found)
    previous = [-1] * len(found)
    best = -1
    for i, run in enumerate(found):
        if run.may_follow(behind):
            weights[i] = run.weight
        for j in range(i):
            if weights[j] and weights[j] + run.weight > weights[i] and run.may_follow(found[j]):
                weights[i] = weights[j] + run.weight
                previous[i] = j
        if weights[i] and (best < 0 or weights[i] > weights[best]):
            best = i
    chosen: list[Run] = []
    while best >= 0:
        chosen.append(found[best])
        best = previous[best]
    chosen.reverse()
    return chosen


def _fitting(behind: Run, found: list[Run]) -> list[Run]:
    chosen: list[Run] = []
    for run in found:
        if run.may_follow(behind):
            chosen.append(run)
            behind = run
    return chosen
