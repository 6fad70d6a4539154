"""How many messages of a subscription expired, and when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from embeddedpulsar.records import NamedTuple

_WINDOW_MS: Final = 60_000
_MOST_LATELY: Final = 60
"""Expiries that have a time of their own; what comes beyond counts with the last of them."""


class ExpiredCounts(NamedTuple):
    """The counts of all expiries so far, and of those of the last minute singly.

    Attributes:
        total: messages since the subscription was made.
        last_ms: when messages expired last; 0 for never.
        lately: time and messages of the expiries in the minute before that.
    """

    total: int = 0
    last_ms: int = 0
    lately: tuple[tuple[int, int], ...] = ()

    def plus(self, messages: int, time_ms: int) -> ExpiredCounts:
        """The counts with one more expiry."""
        lately = [one for one in self.lately if one[0] > time_ms - _WINDOW_MS]
        if len(lately) >= _MOST_LATELY:
            at_ms, before = lately.pop()
            lately.append((at_ms, before + messages))
        else:
            lately.append((time_ms, messages))
        return ExpiredCounts(self.total + messages, time_ms, tuple(lately))

    def a_second(self, now_ms: int) -> float:
        """Messages a second, of the last minute.

        >>> ExpiredCounts().plus(120, 1_000).a_second(60_999)
        2.0
        """
        found = sum(messages for at_ms, messages in self.lately if at_ms > now_ms - _WINDOW_MS)
        return found * 1000 / _WINDOW_MS

    def pack(self) -> list[Any]:
        return [self.total, self.last_ms, [list(one) for one in self.lately]]

    @classmethod
    def unpack(cls, packed: Sequence[Any]) -> ExpiredCounts:
        """What `pack` packed.

        Raises:
            TypeError, ValueError: it is something else.
        """
        total, last_ms, lately = packed
        found = cls(total, last_ms, tuple((at_ms, messages) for at_ms, messages in lately))
        numbers = [total, last_ms, *(number for one in found.lately for number in one)]
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise ValueError(f"counts of expired messages {packed!r}")
        return found


NOTHING_EXPIRED: Final = ExpiredCounts()
