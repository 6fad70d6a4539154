"""What one consumer of a Shared or Key_Shared subscription was assigned, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final

from embeddedpulsar.subscription.state.entry_states import runs_of

Range = tuple[int, int, int]
Scattered = tuple[int, int, bytes, int]
"""Entries between those of other consumers: (ledger, first, the code of the consumer of each from there on,
how many are this one's)."""
_NO_LEDGER: Final = -1


class AssignedEntries:
    """The entries assigned to a consumer that its application may not have been given yet.

    Role: part of the replicated state; pure. Entries are numbered in the order of assignment, from 0. The
    consumer fetches them in that order, and says now and then how many its application was given: those
    before are forgotten here. What is left are, when the consumer dies, the entries that were not delivered.

    Attributes:
        code: of the consumer, in `EntryStates`.
        start: number of the first entry that is left.
        end: number the next assigned entry gets.
        messages: messages ever assigned; compared with what the consumer is ready to take.
        is_blocked: it holds too many unacknowledged messages.

    >>> assigned = AssignedEntries(4)
    >>> assigned.assign(7, 0, 9, messages=10)
    >>> assigned.forget(4)
    >>> assigned.behind(6), assigned.end
    ([(7, 6, 9)], 10)
    """

    __slots__ = ("_pieces", "_skip", "code", "end", "is_blocked", "messages", "start")

    def __init__(self, code: int) -> None:
        self.code = code
        self.start = 0
        self.end = 0
        self.messages = 0
        self.is_blocked = False
        self._pieces: deque[Range | Scattered] = deque()
        self._skip = 0  # entries of the first piece that are forgotten, if it is scattered

    @property
    def ranges(self) -> list[Range]:
        """What is left, as few ranges as possible."""
        return self.behind(self.start)

    def hold(self, ranges: Iterable[Range]) -> None:
        """Take over what `ranges` returned."""
        self._pieces = deque(ranges)
        self._skip = 0

    def assign(self, ledger_id: int, first: int, last: int, messages: int) -> None:
        pieces = self._pieces
        before = pieces[-1] if pieces else None
        if before and len(before) == 3 and before[0] == ledger_id and before[2] + 1 == first:
            pieces[-1] = (ledger_id, before[1], last)
        else:
            pieces.append((ledger_id, first, last))
        self.end += last - first + 1
        self.messages += messages

    def share(self, ledger_id: int, first: int, codes: bytes, messages: int) -> None:
        """Note that the consumer got the entries from ``first`` on that have its code in ``codes``."""
        number = codes.count(self.code)
        self._pieces.append((ledger_id, first, codes, number))
        self.end += number
        self.messages += messages

    def forget(self, handed: int) -> None:
        """Forget everything before number ``handed``: the application was given it."""
        pieces = self._pieces
        while pieces and self.start < handed:
            piece = pieces[0]
            number = piece[3] - self._skip if len(piece) == 4 else piece[2] - piece[1] + 1
            if self.start + number > handed:
                if len(piece) == 4:
                    self._skip += handed - self.start
                else:
                    pieces[0] = (piece[0], piece[1] + handed - self.start, piece[2])
                self.start = handed
                return
            pieces.popleft()
            self._skip = 0
            self.start += number

    def drop(self, ledger_id: int, entries: Sequence[int]) -> None:
        """Take entries from the consumer, if they are among these ranges. Numbers stay as they are:
        in place of what is dropped stand ranges of a ledger that is none."""
        if not entries:
            return
        first, last = min(entries), max(entries)
        if not any(piece[0] == ledger_id and _meets(piece, first, last) for piece in self._pieces):
            return  # as ever: it was given them before it gave them back
        dropped, kept = frozenset(entries), deque[Range | Scattered]()
        for one, a, b in self.ranges:
            if one != ledger_id or a > last or b < first:
                kept.append((one, a, b))
                continue
            for entry in range(a, b + 1):
                owner = _NO_LEDGER if entry in dropped else ledger_id
                before = kept[-1] if kept else None
                if before and len(before) == 3 and before[0] == owner and before[2] + 1 == entry:
                    kept[-1] = (owner, before[1], entry)
                else:
                    kept.append((owner, entry, entry))
        self._pieces = kept
        self._skip = 0

    def behind(self, number: int) -> list[Range]:
        """The ranges from that entry on, as few as possible."""
        found: list[Range] = []
        at, skipped = self.start, self._skip
        for piece in self._pieces:
            if len(piece) == 3:
                ledger_id, first, last = piece
                skip = max(number - at, 0)
                at += last - first + 1
                runs = [(ledger_id, first + skip, last)] if first + skip <= last else []
            else:
                end = at + piece[3] - skipped
                runs = _runs_behind(piece, self.code, skipped + max(number - at, 0)) if number < end else []
                at, skipped = end, 0
            if found and runs and found[-1][0] == runs[0][0] and found[-1][2] + 1 == runs[0][1]:
                runs[0] = (runs[0][0], found.pop()[1], runs[0][2])
            found += runs
        return found

    def clear(self) -> None:
        self._pieces.clear()
        self._skip = 0
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
        assigned.hold((ledger_id, first, last) for ledger_id, first, last in ranges)
        if start + sum(last - first + 1 for _, first, last in ranges) != end:
            raise ValueError(f"assigned entries from {start} to {end} that do not add up")
        return assigned


def _meets(piece: Range | Scattered, first: int, last: int) -> bool:
    """Whether entries of the piece may lie within ``first..last``."""
    end = piece[2] if len(piece) == 3 else piece[1] + len(piece[2]) - 1
    return piece[1] <= last and end >= first


def _runs_behind(piece: Scattered, code: int, skip: int) -> list[Range]:
    """The runs of a consumer's entries in a piece, without the first ``skip`` entries. Hot."""
    ledger_id, base, codes, _ = piece
    spans = [found.span() for found in runs_of(code).finditer(codes)]
    at = 0
    while skip and at < len(spans):
        first, end = spans[at]
        if skip < end - first:
            spans[at] = (first + skip, end)
            break
        skip -= end - first
        at += 1
    return [(ledger_id, base + first, base + end - 1) for first, end in (spans[at:] if at else spans)]
