"""Choosing among runs of frames behind damage."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from embeddedpulsar._engine.log import chain_scan
from embeddedpulsar._engine.log.chain_scan import Run, best_runs

BEHIND = Run(0, 4096, 0, 9, 0, 100)


def run(start: int, first: int, last: int, *, ms: int = 200, indexed: int = 0) -> Run:
    """A run of frames of 100 bytes each."""
    return Run(start, start + 100 * (last - first + 1), first, last, ms, ms, indexed)


def test_nothing_found():
    """No run, or none that fits."""
    assert best_runs(BEHIND, []) == []
    assert best_runs(BEHIND, [run(5000, 3, 8)]) == [], "these entries are there already"
    assert best_runs(BEHIND, [run(5000, 10, 20)]) == [], "no entry is missing, so there would be no gap"
    assert best_runs(BEHIND, [run(4200, 30, 40)]) == [], "twenty entries in a hundred bytes"
    assert best_runs(BEHIND, [run(9000, 12, 20, ms=50)]) == [], "time runs backwards"


def test_the_heavier_sequence_wins():
    """A page with later frames that moved forward must not hide all that lies between."""
    moved, real, rest = run(5000, 20, 25), run(6000, 12, 19), run(8000, 26, 90)
    assert best_runs(BEHIND, [moved, real, rest]) == [real, rest]


def test_the_index_is_a_better_witness_than_numbers():
    """One frame where the index has it outweighs a hundred that only chain."""
    copy, known = run(5200, 20, 120), run(20_000, 19, 19, indexed=1)
    assert best_runs(BEHIND, [copy, known]) == [known]


def test_very_many_runs_are_taken_as_they_come(monkeypatch):
    """Beyond a limit the choice is linear."""
    monkeypatch.setattr(chain_scan, "_MOST_COMPARED", 2)
    runs = [run(5000 + 1000 * i, 20 + 3 * i, 20 + 3 * i) for i in range(5)]
    assert best_runs(BEHIND, [*runs, run(20_000, 5, 6)]) == runs


@given(
    st.lists(
        st.tuples(st.integers(50, 900), st.integers(0, 60), st.integers(1, 9), st.booleans()), max_size=9
    )
)
def test_what_is_chosen_fits_and_is_heaviest(steps: list[tuple[int, int, int, bool]]):
    """Compared with all subsets."""
    runs, pos = [], BEHIND.end
    for gap, first, count, known in steps:
        runs.append(run(pos + gap, first, first + count - 1, indexed=int(known)))
        pos = runs[-1].end
    chosen = best_runs(BEHIND, runs)

    def weight(subset: list[Run]) -> int:
        before = [BEHIND, *subset]
        fits = all(b.may_follow(a) for a, b in zip(before, subset, strict=False))
        return sum(r.weight for r in subset) if fits else -1

    best = max(weight([r for i, r in enumerate(runs) if bits >> i & 1]) for bits in range(1 << len(runs)))
    assert weight(chosen) == best
