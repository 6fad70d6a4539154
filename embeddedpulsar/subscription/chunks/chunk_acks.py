"""A cumulative acknowledgement that spares parts of chunked messages which end behind it."""

from __future__ import annotations

from collections.abc import Sequence

from embeddedpulsar.format.acknowledgement import FORM_RANGE, Ack, AckBatch, AckGroup
from embeddedpulsar.format.subscription_record import AckCumulative, Command, Ledgers
from embeddedpulsar.managed_ledger.position import Position

Entry = tuple[int, int]


def around_parts(command: AckCumulative, spared: Sequence[Entry], facts: Ledgers) -> list[Command]:
    """The commands that acknowledge what ``command`` does, but for some entries.

    Args:
        command: a cumulative acknowledgement.
        spared: entries at or before its position, ascending; one at least.
        facts: the ledgers there are.

    Example:
        >>> plain = AckCumulative(1, 1, 7, 9, -1, 0)
        >>> before, rest = around_parts(plain, [(7, 4), (7, 6)], Ledgers(((7, -1),)))
        >>> before.entry_id, [(group.first, group.last) for group in rest.groups]
        (3, [(5, 5), (7, 9)])
    """
    consumer_id, epoch, ledger_id, entry_id, index, size = command
    is_partial = 0 <= index < size - 1
    end = entry_id - 1 if is_partial else entry_id
    before = Position(*spared[0]).previous()
    groups: list[AckGroup] = []
    for ledger, entries in facts.listed:
        if not before.ledger_id <= ledger <= ledger_id:
            continue
        first = before.entry_id + 1 if ledger == before.ledger_id else 0
        last = end if ledger == ledger_id else entries - 1
        for part_ledger, part in [*spared, (ledger, last + 1)]:
            if part_ledger == ledger and first <= part <= last + 1:
                if first < part:
                    groups.append(AckGroup(ledger, first, part - 1, FORM_RANGE, b""))
                first = part + 1
    batches = (AckBatch(ledger_id, entry_id, size, (2 << index) - 1),) if is_partial else ()
    commands: list[Command] = [AckCumulative(consumer_id, epoch, *before, -1, 0)]
    if groups or batches:
        commands.append(Ack(consumer_id, epoch, tuple(groups), batches))
    return commands
