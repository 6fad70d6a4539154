"""Collected acknowledgements in the form that the subscription accepts."""

from __future__ import annotations

from typing import Final

LARGEST_ID: Final = 0x7FFFFFFFFFFFFFFF

Position = tuple[int, int]


def order_of(cumulative: tuple[int, int, int, int]) -> tuple[int, int, int]:
    """The end of a cumulative acknowledgement, for comparison."""
    ledger, entry, index, _ = cumulative
    return (ledger, entry, index if index >= 0 else LARGEST_ID)


def bitsets_of(partial: dict[Position, bytes]) -> dict[Position, tuple[int, int]]:
    """Return one bit per message, the first one lowest, and the number of messages.

    >>> bitsets_of({(7, 0): bytes([1, 0, 1])})
    {(7, 0): (5, 3)}
    """
    sets = {}
    for position, flags in partial.items():
        bits = 0
        for index, flag in enumerate(flags):
            bits |= flag << index
        sets[position] = (bits, len(flags))
    return sets
