"""What is measured: contestants, the measure they share, and the budgets their figures must meet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

# What survives what, in words a reader can act on. Every row of every table prints one of them.
MEMORY = "nothing: memory only"
TRANSIT = "nothing: bytes in transit, no acknowledgement"
PROCESS = "kill -9 of any process"
SECOND = "kill -9; power loss but for the last second"
MINUTES = "kill -9; power loss but for the last 2 minutes"
POWER = "power loss"
READ_ONLY = "(reads only)"


class Unavailable(Exception):
    """A contestant cannot take part on this machine; the text says what is missing and how to get it."""


class Contestant:
    """One row of a table: opened once, then run in interleaved rounds with the others.

    `run` does exactly the work that is measured and times it itself, so that opening, checking and
    cleaning between rounds stay outside.
    """

    key = ""
    name = ""
    survives = PROCESS
    operation_limit: int | None = None
    """Operations of a round at most, for a peer that would take minutes for what the contest fixes."""

    def __init__(self) -> None:
        self.notes: dict[str, float] = {}

    def start(self, place: Path) -> None:
        """Open what the work needs inside the empty directory `place`; raises Unavailable."""

    def run(self, operations: int) -> float:
        """Do the work `operations` times and return the seconds it took."""
        raise NotImplementedError

    def stop(self) -> None:
        """Close everything `start` opened, also after a failure half way through it."""


def _per_second(operations: int, seconds: float) -> float:
    return operations / seconds


def _microseconds(operations: int, seconds: float) -> float:
    return seconds * 1e6


def _milliseconds(operations: int, seconds: float) -> float:
    return seconds * 1e3


@dataclass(frozen=True)
class Measure:
    """How (operations, seconds) becomes the figure of a table."""

    unit: str
    figure: Callable[[int, float], float]
    higher_is_better: bool = True


MESSAGES_PER_SECOND = Measure("msg/s", _per_second)
MICROSECONDS = Measure("us", _microseconds, higher_is_better=False)
MILLISECONDS = Measure("ms", _milliseconds, higher_is_better=False)


def megabytes_per_second(bytes_per_operation: int) -> Measure:
    """A measure of payload bytes; 1 MB is 1,000,000 bytes."""
    return Measure("MB/s", lambda operations, seconds: operations * bytes_per_operation / seconds / 1e6)


@dataclass(frozen=True)
class Budget:
    """One promise of the design, checked against the figures of the same run.

    Args:
        text: The promise as the table prints it.
        ours: Key of the contestant that must keep it.
        limit: The bound itself.
        peer: Key of the contestant it is a ratio to (figure of ours / figure of the peer); none for a bound
            on the figure of ours.
        note: Name of the note that is bounded, or compared, instead of the figure.
        at_least: Whether the limit is a floor; else it is a ceiling.
    """

    text: str
    ours: str
    limit: float
    peer: str | None = None
    note: str | None = None
    at_least: bool = True


@dataclass
class Contest:
    """One table: contestants that do the same work.

    `fixed` fixes the number of operations of a round, for work whose size is its point; otherwise the harness
    chooses it so that a round takes its share of the time.
    """

    title: str
    measure: Measure
    contestants: Sequence[Contestant]
    budgets: Sequence[Budget] = field(default_factory=tuple)
    fixed: int | None = None
    operation_limit: int = 10_000_000
    step: int = 1


@dataclass(frozen=True)
class Settings:
    """What the command line asked for."""

    seconds: float = 20.0
    smoke: bool = False
    rounds: int = 5
    message_size: int = 100

    def scale(self, full: int, smoke: int) -> int:
        """The size of a prepared data set: `full`, or `smoke` when only the machinery is tried."""
        return smoke if self.smoke else full
