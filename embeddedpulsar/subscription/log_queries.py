"""What the state machine needs to know about the topic's log: commands carry it, and it is read here.

Everything here reads the log and is called without the subscription's lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from embeddedpulsar._engine.format.acknowledgement import FORM_RANGE, MAX_ENTRY_ID, AckGroup
from embeddedpulsar._engine.format.entry import EntryView
from embeddedpulsar._engine.format.subscription_record import Command, Ledgers, Seek
from embeddedpulsar._engine.log.log import LedgerCounts, Log
from embeddedpulsar._engine.log.position import BEFORE_FIRST, Position
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.subscription.state.ledger_acks import OPEN
from embeddedpulsar.subscription.state.state_machine import SubscriptionState

if TYPE_CHECKING:
    from embeddedpulsar.subscription.dispatch.assignment import FreshEntry


def ledgers_of(log: Log) -> Ledgers:
    """All ledgers there are; the last one may still grow."""
    try:
        ledgers = log.ledgers()
    except CorruptionError:
        ledgers = []  # it is too damaged, which it reports itself
    return Ledgers(tuple([(ledger_id, OPEN if entries < 0 else entries) for ledger_id, entries in ledgers]))


def _segments(log: Log) -> Sequence[LedgerCounts]:
    """All segments; none if the log is too damaged, which it reports itself."""
    try:
        return log.segments()
    except CorruptionError:
        return []


def news_for(state: SubscriptionState, facts: Ledgers) -> list[Command]:
    """The command with the facts that the state lacks; none if it lacks nothing."""
    listed, first = facts.listed, state.mark_delete.ledger_id
    if not listed or (listed[-1][0] <= state.acks.newest_ledger and listed[0][0] <= first):
        return []
    return [Ledgers(tuple(ledger for ledger in listed if ledger[0] >= first))]


def existing(log: Log, positions: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The entries that are not beyond the log's end: made-up ids must not acknowledge entries to come."""
    last = log.last_position() or BEFORE_FIRST
    return [one for one in positions if (0, 0) <= one <= last and 0 <= one[1] <= MAX_ENTRY_ID]


def skipped_entries(
    log: Log, expected: tuple[int, int], views: Sequence[EntryView | FreshEntry]
) -> list[AckGroup]:
    """The entries that were stepped over because they are damaged, from ``expected`` through ``views``.

    Ledgers that were trimmed are not listed any more, and so not in the result.
    """
    first = views[0]
    gaps = []
    for segment in _segments(log):
        ledger_id = segment.ledger_id
        if expected[0] <= ledger_id <= first.ledger_id:
            start = expected[1] if ledger_id == expected[0] else 0
            end = first.entry_id if ledger_id == first.ledger_id else segment.entries
            gaps.append((ledger_id, start, end - 1))
    gaps += [(one.ledger_id, one.entry_id + 1, other.entry_id - 1) for one, other in pairwise(views)]
    return [
        AckGroup(ledger_id, start, end, FORM_RANGE, b"") for ledger_id, start, end in gaps if start <= end
    ]


def seek_commands(log: Log, position: Position, inclusive: bool) -> list[Command]:
    """The commands that make ``position``, or the entry behind it, the next one; within the log."""
    target = _target_of(log, position, inclusive)
    listed = tuple(ledger for ledger in ledgers_of(log).listed if ledger[0] >= target.ledger_id)
    return [Seek(*target), Ledgers(listed)]


def _target_of(log: Log, position: Position, inclusive: bool) -> Position:
    """The mark-delete position that makes ``position`` (or the entry behind it) the next, within the log."""
    last = log.last_position() or BEFORE_FIRST
    first = log.first_position()
    if not inclusive and position >= last:
        return last
    if position < first:
        return first.previous()
    if position > last:
        return last
    return position.previous() if inclusive else position
