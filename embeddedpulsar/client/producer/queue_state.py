"""The states of a producer's queue, and the ages of the messages in it. Pure.

A state says which hot paths are open, the table of `TRANSITIONS` what an event makes of it, and
`SendDeadline` when the oldest message fails.
"""

from __future__ import annotations

from enum import IntEnum, auto
from typing import Final

_MARKS = 100
"""Fractions of the timeout to which the age is known."""


class State(IntEnum):
    """What the next message of a producer has to observe."""

    OPEN = auto()
    """Nothing."""
    SAMPLED = auto()
    """The time of the next messages that are sent one by one is measured."""
    QUEUED = auto()
    """Messages or encoded entries are queued, which must be stored first."""
    COUNTING = auto()
    """The batch has large messages, so the bytes of each further one count."""
    HELD_UP = auto()
    """The topic is locked, or belongs to the parent of a forked child: everything is queued."""
    CLOSED = auto()
    """The producer is closed."""


class Event(IntEnum):
    """What changes the state."""

    SAMPLE = auto()
    QUEUE = auto()
    COUNT = auto()
    HOLD_UP = auto()
    STORED = auto()
    """Nothing is queued that must be stored first. The caller checks the queue again afterwards."""
    CLOSE = auto()


def _row(sample: State, queue: State, count: State, hold_up: State, stored: State) -> dict[Event, State]:
    return dict(zip(Event, (sample, queue, count, hold_up, stored, State.CLOSED), strict=True))


_S: Final = State
TRANSITIONS: Final = {
    #                    SAMPLE       QUEUE        COUNT        HOLD_UP     STORED
    _S.OPEN: _row(_S.SAMPLED, _S.QUEUED, _S.COUNTING, _S.HELD_UP, _S.OPEN),
    _S.SAMPLED: _row(_S.SAMPLED, _S.QUEUED, _S.COUNTING, _S.HELD_UP, _S.OPEN),
    _S.QUEUED: _row(_S.QUEUED, _S.QUEUED, _S.COUNTING, _S.HELD_UP, _S.OPEN),
    _S.COUNTING: _row(_S.COUNTING, _S.COUNTING, _S.COUNTING, _S.HELD_UP, _S.OPEN),
    _S.HELD_UP: _row(_S.HELD_UP, _S.HELD_UP, _S.HELD_UP, _S.HELD_UP, _S.OPEN),
    _S.CLOSED: _row(_S.CLOSED, _S.CLOSED, _S.CLOSED, _S.CLOSED, _S.CLOSED),
}
"""The state after each event. A state that closes more stays until `Event.STORED`."""

PATHS: Final = {
    _S.OPEN: (True, True),
    _S.SAMPLED: (False, True),
    _S.QUEUED: (False, True),
    _S.COUNTING: (False, False),
    _S.HELD_UP: (False, False),
    _S.CLOSED: (False, False),
}
"""Whether a message may be appended at once, and whether it may join the batch without the lock."""


class SendDeadline:
    """The ages of queued messages, kept as marks: a mark is a number of messages and a time.

    Determines when the send timeout of the oldest message is over, without a time in every message.
    Times are those of the caller's clock, in seconds. Empty while no message is queued, which is usual.
    A message between two marks counts as old as the later mark, so no message fails too early, and each
    fails at most a hundredth of the timeout too late.

    >>> deadline = SendDeadline(30.0)
    >>> deadline.note(2, 100.0); deadline.note(3, 110.0)
    >>> deadline.at
    130.0
    >>> deadline.passed(2); deadline.at
    140.0
    >>> deadline.clear(); deadline.at is None
    True
    """

    __slots__ = ("_grain", "_out", "_timeout_s", "marks")

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._grain = timeout_s / _MARKS
        self.marks: list[tuple[int, float]] = []  # few; a deque would take 0.7 KiB when empty
        self._out = 0

    def note(self, waiting: int, now: float) -> None:
        """Record that ``waiting`` messages are queued, the last of them since ``now``."""
        marks = self.marks
        if not self._timeout_s:
            return
        if not marks:
            marks.append((self._out, now))
        elif now - marks[-1][1] >= self._grain:
            marks.append((self._out + waiting - 1, now))

    def passed(self, count: int) -> None:
        """Record that the oldest ``count`` messages have left the queue."""
        self._out += count
        marks = self.marks
        while len(marks) > 1 and marks[1][0] <= self._out:
            del marks[0]

    def clear(self) -> None:
        """Record that the queue is empty."""
        self.marks.clear()

    @property
    def at(self) -> float | None:
        """The time at which the oldest message fails; None for never."""
        marks = self.marks
        if not marks:
            return None
        exact = marks[0][0] >= self._out
        return marks[0][1] + self._timeout_s + (0.0 if exact else self._grain)
