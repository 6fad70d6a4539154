"""The time since which the oldest message of a producer waits to be stored."""

from __future__ import annotations

from collections import deque

_MARKS = 100
"""Fractions of the timeout to which the age is known."""


class SendDeadline:
    """The ages of queued messages, kept as marks: a mark is a number of messages and a time.

    Role: determines when the send timeout of the oldest message is over, without a time in every message.
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
        self.marks: deque[tuple[int, float]] = deque()
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
            marks.popleft()

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
