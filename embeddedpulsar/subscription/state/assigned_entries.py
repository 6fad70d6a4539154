"""What one consumer of a Shared or Key_Shared subscription was assigned, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

Range = tuple[int, int, int]
_NO_LEDGER: Final = -1


class AssignedEntries:
    """The entries assigned to a consumer that its application may not have been given yet.

    Role: part of the replicated state; pure. Entries are numbered in the order of assignment, from 0. The
    consumer fetches them in that order, and says now and then how many its application was given: those
    before are forgotten here. What is left are, when the consumer dies, the entries that were not delivered.

    Attributes:
        code: of the consumer, in `EntryStates`.
        start: number of the first entry in `ranges`.
        end: number the next assigned entry gets.
        messages: messages ever assigned; compared with what the consumer is ready to take.
        is_blocked: it holds too many unacknowledged messages.

    >>> assigned = AssignedEntries(4)
    >>> assigned.assign(7, 0, 9, messages=10)
    >>> assigned.forget(4)
    >>> assigned.behind(6), assigned.end
    ([(7, 6, 9)], 10)
    """

    __slots__ = ("code", "end", "is_blocked", "messages", "ranges", "start")

    def __init__(self, code: int) -> None:
        self.code = code
        self.start = 0
        self.end = 0
        self.messages = 0
        self.is_blocked = False
        self.ranges: deque[Range] = deque()

    def assign(self, ledger_id: int, first: int, last: int, messages: int) -> None:
        ranges = self.ranges
        if ranges and ranges[-1][0] == ledger_id and ranges[-1][2] + 1 == first:
            ranges[-1] = (ledger_id, ranges[-1][1], last)
        else:
            ranges.append((ledger_id, first, last))
        self.end += last - first + 1
        self.messages += messages

    def forget(self, handed: int) -> None:
        """Forget everything before number ``handed``: the application was given it."""
        ranges = self.ranges
        while ranges and self.start < handed:
            ledger_id, first, last = ranges[0]
            number = last - first + 1
            if self.start + number > handed:
                ranges[0] = (ledger_id, first + handed - self.start, last)
                self.start = handed
                return
            ranges.popleft()
            self.start += number

    def drop(self, ledger_id: int, entries: Sequence[int]) -> None:
        """Take entries from the consumer, if they are among these ranges. Numbers stay as they are:
        in place of what is dropped stand ranges of a ledger that is none."""
        if not entries:
            return
        first, last = min(entries), max(entries)
        if not any(one == ledger_id and a <= last and b >= first for one, a, b in self.ranges):
            return  # as ever: it was given them before it gave them back
        dropped, kept = frozenset(entries), deque[Range]()
        for one, a, b in self.ranges:
            if one != ledger_id or a > last or b < first:
                kept.append((one, a, b))
                continue
            for entry in range(a, b + 1):
                owner = _NO_LEDGER if entry in dropped else ledger_id
                if kept and kept[-1][0] == owner and kept[-1][2] + 1 == entry:
                    kept[-1] = (owner, kept[-1][1], entry)
                else:
                    kept.append((owner, entry, entry))
        self.ranges = kept

    def behind(self, number: int) -> list[Range]:
        """The ranges from that entry on."""
        found, at = [], self.start
        for ledger_id, first, last in self.ranges:
            skip = max(number - at, 0)
            if first + skip <= last:
                found.append((ledger_id, first + skip, last))
            at += last - first + 1
        return found

    def clear(self) -> None:
        self.ranges.clear()
        self.start = self.end

    def pack(self) -> list[Any]:
        ranges = [list(one) for one in self.ranges]
        return [self.code, self.start, self.end, self.messages, self.is_blocked, ranges]

    @classmethod
    def unpack(cls, packed: Sequence[Any]) -> AssignedEntries:
        code, start, end, messages, is_blocked, ranges = packed
        assigned = cls(code)
        assigned.start, assigned.end, assigned.messages, assigned.is_blocked = (
            start,
            end,
            messages,
            is_blocked,
        )
        assigned.ranges = deque((ledger_id, first, last) for ledger_id, first, last in ranges)
        if start + sum(last - first + 1 for _, first, last in assigned.ranges) != end:
            raise ValueError(f"assigned entries from {start} to {end} that do not add up")
        return assigned
