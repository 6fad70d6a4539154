"""Interleaved rounds: every contestant in turn, again and again, so that a noisy minute hurts all alike."""

from __future__ import annotations

import gc
import re
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.contest import Budget, Contest, Contestant, Settings, Unavailable

# Calibration ends when a run takes this part of a round: shorter ones measure what every run costs once.
CALIBRATED_SHARE = 0.25


@dataclass
class Row:
    """The figures of one contestant, one per round; `missing` says why there are none."""

    key: str
    name: str
    survives: str
    figures: list[float] = field(default_factory=list)
    noted: dict[str, list[float]] = field(default_factory=dict)
    operations: int = 0
    missing: str = ""

    @property
    def notes(self) -> dict[str, float]:
        """The medians over the rounds of what the contestant noted."""
        return {name: median(values) for name, values in self.noted.items()}


@dataclass(frozen=True)
class Verdict:
    """One budget and what this run says about it; `got` is None when a side could not take part."""

    budget: Budget
    got: float | None
    met: bool


@dataclass
class Table:
    """A finished contest."""

    title: str
    unit: str
    higher_is_better: bool
    rows: list[Row]
    verdicts: list[Verdict]


def hold(contest: Contest, settings: Settings, place: Path, say: Callable[[str], None]) -> Table:
    """Run one contest in a directory of its own below `place`, remove it, and return the table."""
    rows = {c.key: Row(c.key, c.name, c.survives) for c in contest.contestants}
    with ExitStack() as stack:
        here = Path(tempfile.mkdtemp(prefix="bench-", dir=place))
        stack.callback(shutil.rmtree, here, ignore_errors=True)
        ready: list[Contestant] = []
        for contestant in contest.contestants:
            stack.callback(contestant.stop)
            say(f"{contest.title}: opening {contestant.name}")
            try:
                # Letters only: Pulsar takes a comma in a directory for the end of its name.
                directory = here / re.sub(r"\W+", "-", contestant.key)
                directory.mkdir()
                contestant.start(directory)
            except (Unavailable, ImportError) as error:
                rows[contestant.key].missing = str(error).splitlines()[0]
            else:
                ready.append(contestant)
        _play(contest, settings, ready, rows, say)
    ordered = list(rows.values())
    verdicts = [_judge(budget, rows) for budget in contest.budgets]
    return Table(contest.title, contest.measure.unit, contest.measure.higher_is_better, ordered, verdicts)


def _play(
    contest: Contest,
    settings: Settings,
    ready: list[Contestant],
    rows: dict[str, Row],
    say: Callable[[str], None],
) -> None:
    if not ready:
        return
    share = settings.seconds / (len(ready) * (settings.rounds + 1))
    for contestant in ready:
        say(f"{contest.title}: warming up {contestant.name}")
        operations = contest.fixed or _calibrate(contest, contestant, share)
        rows[contestant.key].operations = min(operations, contestant.operation_limit or operations)
    for turn in range(settings.rounds):
        # The order turns with the rounds: whoever runs after the disk-heavy one is not always the same.
        offset = turn % len(ready)
        for contestant in ready[offset:] + ready[:offset]:
            row = rows[contestant.key]
            say(f"{contest.title}: round {turn + 1} of {settings.rounds}, {contestant.name}")
            gc.collect()
            seconds = contestant.run(row.operations)
            row.figures.append(contest.measure.figure(row.operations, seconds))
            for name, value in contestant.notes.items():
                row.noted.setdefault(name, []).append(value)


def _calibrate(contest: Contest, contestant: Contestant, share: float) -> int:
    """How many operations fill about `share` seconds, found by growing runs (which also warm up)."""
    operations = contest.step
    enough = share * CALIBRATED_SHARE
    while True:
        seconds = max(contestant.run(operations), 1e-9)
        if seconds >= enough or operations >= contest.operation_limit:
            break
        operations = min(contest.operation_limit, operations * max(2, min(10, int(enough / seconds))))
    wanted = int(operations * share / seconds)
    return max(contest.step, min(contest.operation_limit, wanted // contest.step * contest.step))


def ratio(ours: Row, peer: Row) -> float | None:
    """Median over the rounds of ours / theirs; None when either did not run."""
    pairs = [mine / theirs for mine, theirs in zip(ours.figures, peer.figures, strict=False) if theirs]
    return median(pairs) if pairs else None


def _judge(budget: Budget, rows: dict[str, Row]) -> Verdict:
    ours = rows[budget.ours]
    got: float | None
    if budget.note is not None:
        got = ours.notes.get(budget.note)
        if budget.peer is not None:
            theirs = rows[budget.peer].notes.get(budget.note)
            got = got / theirs if got is not None and theirs else None
    elif budget.peer is not None:
        got = ratio(ours, rows[budget.peer])
    else:
        got = median(ours.figures) if ours.figures else None
    met = got is not None and (got >= budget.limit if budget.at_least else got <= budget.limit)
    return Verdict(budget, got, met)
