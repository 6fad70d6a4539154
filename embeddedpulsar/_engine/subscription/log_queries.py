"""What the state machine needs to know about the topic's log: commands carry it, and it is read here.

Everything here reads the log and is called without the subscription's lock.

The figures of a subscription, and how much of the topic it still has to acknowledge.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from operator import itemgetter

from embeddedpulsar._engine.format.acknowledgement import FORM_RANGE, MAX_ENTRY_ID, AckGroup
from embeddedpulsar._engine.format.entry import EntryView
from embeddedpulsar._engine.format.subscription_record import AckedThrough, Command, Ledgers, Seek
from embeddedpulsar._engine.subscription.state.dispatch_state import Consumer
from embeddedpulsar._engine.subscription.state.ledger_acks import OPEN
from embeddedpulsar._engine.subscription.state.replica import SubscriptionState
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.message_id import BEFORE_FIRST, Position
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from embeddedpulsar._engine.log.log import Log
    from embeddedpulsar._engine.subscription.dispatch.dispatch_rules import FreshEntry


def ledgers_of(log: Log) -> Ledgers:
    """All ledgers there are; the last one may still grow."""
    try:
        ledgers = log.ledgers()
    except CorruptionError:
        ledgers = []  # it is too damaged, which it reports itself
    return Ledgers(tuple([(ledger_id, OPEN if entries < 0 else entries) for ledger_id, entries in ledgers]))


def news_for(state: SubscriptionState, facts: Ledgers) -> list[Command]:
    """The command with the facts that the state lacks; none if it lacks nothing."""
    return news_since(state.mark_delete.ledger_id, state.acks.newest_ledger, facts)


def news_since(first: int, newest: int, facts: Ledgers) -> list[Command]:
    """As `news_for`, of a state whose mark-delete position is in the ledger ``first``, and that knows no
    ledger behind ``newest``."""
    listed = facts.listed
    # The state lacks something if there are newer ledgers, or if those where it stands are gone: then
    # it moves over them.
    if not listed or (listed[-1][0] <= newest and listed[0][0] <= first):
        return []
    return [Ledgers(tuple(ledger for ledger in listed if ledger[0] >= first))]


def unacked(state: SubscriptionState, views: list[EntryView]) -> list[EntryView]:
    """The entries that are not acknowledged; if one is in part, its ``skip`` is set."""
    acks = state.acks
    remaining = []
    for view in views:
        position = Position(view.ledger_id, view.entry_id)
        if not acks.is_acked(position):
            view.skip = acks.indexes(position) or None
            remaining.append(view)
    return remaining


def deliverable(state: SubscriptionState, views: list[EntryView]) -> list[EntryView]:
    """The entries that may go to a consumer: those that are not acknowledged, and not held by an open
    transaction; if one is in part, its ``skip`` is set."""
    remaining, pending = unacked(state, views), state.pending_acks
    if not pending.transactions:
        return remaining
    free = []
    for view in remaining:
        position = Position(view.ledger_id, view.entry_id)
        if pending.holds(position, state.acks):
            continue
        view.skip = pending.skip(position, state.acks.indexes(position)) or None
        free.append(view)
    return free


def existing(log: Log, positions: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The entries that are not beyond what can be read: made-up ids must not acknowledge entries to come, nor
    those that wait for a transaction."""
    last = log.max_read_position() or BEFORE_FIRST
    return [
        position for position in positions if (0, 0) <= position <= last and 0 <= position[1] <= MAX_ENTRY_ID
    ]


def skipped_entries(
    log: Log, expected: tuple[int, int], views: Sequence[EntryView | FreshEntry]
) -> list[AckGroup]:
    """The entries that were stepped over because they are damaged, from ``expected`` through ``views``.

    Ledgers that were trimmed are not listed any more, and so not in the result.
    """
    first = views[0]
    gaps = []
    try:
        ledgers = log.ledgers()
    except CorruptionError:
        ledgers = []  # it is too damaged, which it reports itself
    # From the entry that was expected to the first that came: the rest of its ledger, all ledgers
    # between, and the beginning of the last.
    for ledger_id, entries in ledgers:
        if expected[0] <= ledger_id <= first.ledger_id:
            start = expected[1] if ledger_id == expected[0] else 0
            # The last ledger has no number of entries: the first view stands in it, if none was begun since.
            end = first.entry_id if ledger_id == first.ledger_id else entries
            gaps.append((ledger_id, start, end - 1))
    # Then what is missing between those that came.
    gaps += [(before.ledger_id, before.entry_id + 1, after.entry_id - 1) for before, after in pairwise(views)]
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
    # However far behind the last entry, it is the end of the log; what waits for a transaction comes later.
    if position > last:
        return log.max_read_position() or BEFORE_FIRST
    if not inclusive and position == last:
        return last
    # Trimmed: the first entry there is comes next, whether the position is included or not.
    if position < first:
        return first.previous()
    return position.previous() if inclusive else position


class Acknowledged(NamedTuple):
    """A copy of what a state says about entries beyond its mark-delete position."""

    mark_delete: Position
    runs: list[tuple[int, int, int]]
    indexes: int


def acknowledged_in(state: SubscriptionState, through: Position | None = None) -> Acknowledged:
    """Taken under the lock, so that the counting can be done without it; of what is behind ``through``,
    nothing."""
    runs, partials = state.acks.runs(), state.acks.partials()
    if through is None:
        return Acknowledged(state.mark_delete, list(runs), sum(acked.bit_count() for *_, acked in partials))
    # The runs end at ``through``, as they are subtracted from the messages up to there.
    last = through.entry_id
    clipped = [
        (ledger_id, first, min(end, last) if ledger_id == through.ledger_id else end)
        for ledger_id, first, end in runs
        if (ledger_id, first) <= through
    ]
    indexes = sum(acked.bit_count() for ledger, entry, _, acked in partials if (ledger, entry) <= through)
    return Acknowledged(state.mark_delete, clipped, indexes)


def messages_left(log: Log, acknowledged: Acknowledged, through: Position | None = None) -> int:
    """Messages that are stored, up to ``through`` if it is given, and not acknowledged: exact, from the
    index, without reading entries.

    Costs 0.1 us per entry between the first and the last that is acknowledged out of order, or 20 us per run
    of them, whichever is less; and nothing in ledgers whose entries hold one message each.
    """
    begin = acknowledged.mark_delete
    stored = log.messages_after(begin) if through is None else log.messages_between(begin, through)
    return left_of(log, acknowledged, stored, through)


def left_of(log: Log, acknowledged: Acknowledged, stored: int, through: Position | None = None) -> int:
    """Of ``stored`` messages behind the mark-delete position, those that are not acknowledged one by one, nor
    of aborted transactions."""
    stored -= log.aborted_behind(acknowledged.mark_delete, through, acknowledged.runs)[1]
    if not acknowledged.runs:
        return max(0, stored - acknowledged.indexes)
    # In a ledger whose entries have one message each, so many acknowledged entries are so many
    # messages: no look at the index.
    plain = {segment.ledger_id for segment in log.segments() if segment.entries == segment.messages}
    plain.intersection_update(ledger_id for ledger_id, *_ in acknowledged.runs)
    if plain:  # unless batches make up for entries without messages
        chunks = log.chunks()
        plain = {ledger_id for ledger_id in plain if not chunks.are_in(ledger_id)}
    remaining = stored - acknowledged.indexes
    survey = log.survey()
    for ledger_id, runs in groupby(acknowledged.runs, key=itemgetter(0)):
        entries = [(first, last) for _, first, last in runs]
        if ledger_id in plain:
            remaining -= sum(last - first + 1 for first, last in entries)
            continue
        acked_messages = survey.messages_in(ledger_id, entries)
        # The runs lie so far apart that asking for each of them costs less than going over all
        # entries between.
        if acked_messages is None:
            ends = [(Position(ledger_id, first - 1), Position(ledger_id, last)) for first, last in entries]
            acked_messages = sum(log.messages_between(after, through) for after, through in ends)
        remaining -= acked_messages
    # The log may have been trimmed since the acknowledgements were copied.
    return max(0, remaining)


class PendingTransaction(NamedTuple):
    """What an open transaction acknowledged in a subscription.

    Attributes:
        transaction: its id, the most significant half first.
        entries: whole entries.
        batches: entries of which it acknowledged single messages.
        through: the last message of its cumulative acknowledgement; None without one.
    """

    transaction: tuple[int, int]
    entries: int
    batches: int
    through: AckedThrough | None


def pending_transactions(state: SubscriptionState) -> tuple[PendingTransaction, ...]:
    """The open transactions that acknowledged something here, the first to do so first."""
    return tuple(
        [
            PendingTransaction(transaction, pending.entry_count, pending.batch_count, pending.through)
            for transaction, pending in state.pending_acks.transactions.items()
        ]
    )


class SubscriptionStatistics(NamedTuple):
    """A snapshot of a subscription.

    Attributes:
        name: of the subscription.
        consumer_type: that of the attached consumers; None without any.
        consumers: the attached consumers, the longest attached first.
        mark_delete: everything up to here is acknowledged.
        epoch: how often consumers came, left or were moved.
        backlog: messages stored and not acknowledged.
        commands: commands applied since the subscription was made.
        stale: acknowledgements that came too late to count.
        divergences: how often this process's replica disagreed with another's.
        transactions: the open ones that acknowledged something.
    """

    name: str
    consumer_type: int | None
    consumers: tuple[Consumer, ...]
    mark_delete: Position
    epoch: int
    backlog: int
    commands: int
    stale: int
    divergences: int
    transactions: tuple[PendingTransaction, ...] = ()


def statistics_of(state: SubscriptionState, divergences: int) -> SubscriptionStatistics:
    """All figures except the backlog, which is counted without the lock. Inside a transaction."""
    consumers = state.consumers
    return SubscriptionStatistics(
        name=state.name,
        consumer_type=consumers.consumer_type,
        consumers=tuple(consumers.all()),
        mark_delete=state.mark_delete,
        epoch=state.epoch,
        backlog=0,
        commands=state.commands,
        stale=state.stale,
        divergences=divergences,
        transactions=pending_transactions(state),
    )
