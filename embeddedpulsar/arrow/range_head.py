"""The head of a range of entries: as many messages and bytes of it as a limit allows."""

from __future__ import annotations

from dataclasses import replace

from embeddedpulsar.arrow.plan import EntryLookup, EntryRange


def messages_in(planned: EntryRange) -> int:
    """How many messages a range has; every part of a chunked message counts as the index counts it."""
    lookup = EntryLookup.of(planned)
    last = lookup.messages_before(planned.end_entry)
    if planned.keep:
        last = lookup.messages_before(planned.end_entry - 1) + planned.keep
    return max(0, last - lookup.messages_before(planned.first_entry) - planned.skip)


def first_publish_ms(planned: EntryRange) -> int:
    """When the first entry of a range was published."""
    return EntryLookup.of(planned).publish_ms(planned.first_entry)


def head(planned: EntryRange, messages: int, size: int, *, takes_one: bool = False) -> EntryRange | None:
    """The first messages of a range: at most so many, in whole entries of at most `size` bytes together.

    The last entry may be read in part, if the number of messages ends in it.

    Args:
        takes_one: whether the first entry is taken even if it alone is larger than `size`.

    Returns:
        The range itself if all of it fits; None if nothing does.
    """
    lookup, first = EntryLookup.of(planned), planned.first_entry
    if takes_one:
        size = max(size, lookup.offset_of(first + 1) - planned.first_offset)
    if messages <= 0 or size <= 0:
        return None
    if planned.size <= size and messages_in(planned) <= messages:
        return planned
    limit = lookup.messages_before(first) + planned.skip + messages
    low, high = first, planned.end_entry - 1 if planned.keep else planned.end_entry
    while low < high:  # the last entry boundary within both limits
        middle = (low + high + 1) // 2
        if (
            lookup.messages_before(middle) <= limit
            and lookup.offset_of(middle) - planned.first_offset <= size
        ):
            low = middle
        else:
            high = middle - 1
    end, keep = low, 0
    if low < planned.end_entry and lookup.offset_of(low + 1) - planned.first_offset <= size:
        part = limit - lookup.messages_before(low)
        if planned.keep and low == planned.end_entry - 1:
            part = min(part, planned.keep)
        if part > (planned.skip if low == first else 0):
            end, keep = low + 1, part
    if end == first:
        return None
    return replace(planned, end_entry=end, end_offset=lookup.offset_of(end), keep=keep)
