"""How much of what is there a batch of a stream takes: limits of messages and bytes, over several logs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from embeddedpulsar.arrow.plan import EntryRange
from embeddedpulsar.arrow.range_head import first_publish_ms, head, messages_in
from embeddedpulsar.spark.stream_offsets import LogOffset, Offsets


@dataclass(frozen=True, slots=True)
class Backlog:
    """What a log has behind the offset at which the batch begins.

    Attributes:
        topic: its full name.
        begin, end: offsets around it.
        ranges: its entries, at least one.
    """

    topic: str
    begin: LogOffset
    end: LogOffset
    ranges: list[EntryRange]


@dataclass(frozen=True, slots=True)
class _Taken:
    end: LogOffset
    messages: int = 0
    size: int = 0


def admit(backlogs: Sequence[Backlog], messages: int, size: int) -> Offsets:
    """Where the batch ends in each log, if it may have so many messages and bytes of log.

    Each log gets a share in proportion to its backlog, so that logs advance together. What the shares leave,
    as no entry fits into it, goes to the log whose next message is the oldest, then to the next: no log
    starves. If no entry fits at all, the oldest is taken nevertheless.
    """
    messages_of = [sum(map(messages_in, one.ranges)) for one in backlogs]
    size_of = [sum(piece.size for piece in one.ranges) for one in backlogs]
    if sum(messages_of) <= messages and sum(size_of) <= size:
        return {one.topic: one.end for one in backlogs}
    most = [
        (_share(messages, own, sum(messages_of)), _share(size, own_size, sum(size_of)))
        for own, own_size in zip(messages_of, size_of, strict=True)
    ]
    taken = [_take(one, *share) for one, share in zip(backlogs, most, strict=True)]
    left = messages - sum(one.messages for one in taken), size - sum(one.size for one in taken)
    takes_one = all(one.end == log.begin for one, log in zip(taken, backlogs, strict=True))
    for i in sorted(range(len(backlogs)), key=lambda at: first_publish_ms(backlogs[at].ranges[0])):
        if left[0] <= 0 or left[1] <= 0:
            break
        before = taken[i]
        after = _take(backlogs[i], before.messages + left[0], before.size + left[1], takes_one)
        taken[i], takes_one = after, False
        left = left[0] - after.messages + before.messages, left[1] - after.size + before.size
    return {one.topic: found.end for one, found in zip(backlogs, taken, strict=True)}


def _share(limit: int, own: int, total: int) -> int:
    """In proportion, rounded down; everything if there is enough for all."""
    return limit if total <= limit else limit * own // total


def _take(log: Backlog, messages: int, size: int, takes_one: bool = False) -> _Taken:
    found = _Taken(log.begin)
    for piece in log.ranges:
        part = head(piece, messages - found.messages, size - found.size, takes_one=takes_one)
        takes_one = False
        if part is None:
            break
        end = LogOffset(log.begin.incarnation, part.ledger_id, part.end_entry - bool(part.keep), part.keep)
        found = _Taken(end, found.messages + messages_in(part), found.size + part.size)
        if part is not piece:
            break
    return found
