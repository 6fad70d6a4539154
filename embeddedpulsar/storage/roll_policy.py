"""When a ledger is full. Pure: the writer asks, this answers, roll.py acts."""

from __future__ import annotations

from typing import Final

MAX_TIME_DELTA_MS: Final = 1 << 31
"""Publish times in index slots are 32-bit offsets from the segment's base; half of that is the limit."""
MAX_MESSAGES: Final = 1 << 31
"""Message counts in index slots are 32 bits; checked once per block of slots, hence the distance to 2**32."""


class RollPolicy:
    """Limits of one ledger. An empty ledger is never full: it takes any entry its file can hold.

    Args:
        max_entries: entries per ledger, at most.
        max_age_ms: milliseconds between a ledger's creation and its last entry, at most.

    Example:
        >>> policy = RollPolicy(max_entries=2, max_age_ms=1_000)
        >>> policy.entry_limit(capacity=1024), policy.time_limit(5_000, 5_000)
        (2, 6000)
        >>> fresh = dict(now_ms=5_000, base_ms=5_000, created_ms=5_000, capacity=1024, end=0, log_size=1)
        >>> policy.reason(entries=1, messages=1, **fresh), policy.reason(entries=2, messages=2, **fresh)
        (None, 'entries')
    """

    __slots__ = ("max_age_ms", "max_entries")

    def __init__(self, max_entries: int, max_age_ms: int) -> None:
        self.max_entries = max_entries
        self.max_age_ms = max_age_ms

    def entry_limit(self, capacity: int) -> int:
        """The first entry id the ledger does not take."""
        return min(self.max_entries, capacity)

    def time_limit(self, base_ms: int, created_ms: int) -> int:
        """The first publish time the ledger does not take."""
        return min(base_ms + MAX_TIME_DELTA_MS, created_ms + self.max_age_ms)

    def reason(
        self,
        *,
        entries: int,
        capacity: int,
        now_ms: int,
        base_ms: int,
        created_ms: int,
        end: int,
        log_size: int,
        messages: int,
    ) -> str | None:
        """Why a ledger of `entries` entries may not take one more, ending at byte `end`; None if it may.

        An empty ledger is full only where the formats would not hold: size, or a time delta out of range.
        """
        if end > log_size:
            return "size"
        if now_ms - base_ms >= MAX_TIME_DELTA_MS:
            return "time delta"
        if not entries:
            return None
        if entries >= self.entry_limit(capacity):
            return "entries"
        if messages >= MAX_MESSAGES:
            return "messages"
        if now_ms - created_ms >= self.max_age_ms:
            return "age"
        return None
