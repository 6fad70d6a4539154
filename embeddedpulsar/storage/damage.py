"""Damage that was met while reading: reported and stepped over, never cut away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

# Kinds of damage, also the words users read in logs and in the output of a check.
HOLE: Final = "hole"
"""Entries between readable ones are damaged, or were never written before a power loss."""
LOST_TAIL: Final = "lost tail"
"""The last entries of a ledger did not survive a power loss, or the file was cut."""
MISSING_SEGMENT: Final = "missing segment"
"""A ledger that others refer to has no file."""
SEGMENT_HEADER: Final = "segment header"
"""Both copies of a segment's header are damaged. It was derived, or else the segment is skipped."""
INDEX: Final = "index"
"""An index did not fit its segment; it was derived again, nothing is lost."""


class DamageReport(NamedTuple):
    """One stretch of a topic that could not be read. The bytes stay where they are.

    `first_entry` to `last_entry` are the entries lost with it, both included; -1 where unknown, 0 to -1 where
    none are. `end_offset` is where reading continues; 0 if it continues in another file.

    Example:
        >>> print(DamageReport("t/7.log", 7, 3, 3, 4096, 4192, "body checksum mismatch"))
        t/7.log: hole, entries 3 to 3 of ledger 7 at offset 4096: body checksum mismatch
    """

    path: str
    ledger_id: int
    first_entry: int
    last_entry: int
    offset: int
    end_offset: int
    reason: str
    kind: str = HOLE

    def __str__(self) -> str:
        entries = "unknown entries"
        if self.last_entry >= 0:
            entries = f"entries {self.first_entry} to {self.last_entry}"
        elif self.kind == INDEX or self.first_entry > self.last_entry:
            entries = "no entries"
        place = f"{entries} of ledger {self.ledger_id} at offset {self.offset}"
        return f"{self.path}: {self.kind}, {place}: {self.reason}"


DamageHook = Callable[[DamageReport], None]
