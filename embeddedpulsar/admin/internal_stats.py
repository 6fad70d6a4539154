"""What `Topics.get_internal_stats` returns: ledgers and cursors. The names are Pulsar's, in snake case."""

from __future__ import annotations

from typing import Any

from embeddedpulsar.admin.json_form import json_form
from embeddedpulsar.records import NamedTuple


class LedgerInfo(NamedTuple):
    """A ledger of a topic.

    Attributes:
        ledger_id: its id.
        entries: entries it holds.
        size: bytes of storage of them.
        offloaded: whether an offload location has it.
    """

    ledger_id: int
    entries: int
    size: int
    offloaded: bool = False

    def json(self) -> dict[str, Any]:
        """Return the fields by their names in Pulsar."""
        return dict(json_form(self))


class CursorStats(NamedTuple):
    """How far a durable subscription has come. Positions are written ``ledger:entry``.

    Attributes:
        mark_delete_position: everything up to here is acknowledged.
        read_position: the entry that is read next; None on Exclusive and Failover, where the consumer keeps
            that to itself.
        individually_deleted_messages: the entries beyond ``mark_delete_position`` that are acknowledged, as
            intervals without their beginning and with their end: ``[(3:4..3:6],(3:9..3:10]]``.
        number_of_entries_since_first_not_acked_message: entries behind ``mark_delete_position``.
        total_non_contiguous_deleted_messages_range: the number of those intervals.
        state: always ``Open``.
    """

    mark_delete_position: str
    read_position: str | None
    individually_deleted_messages: str
    number_of_entries_since_first_not_acked_message: int
    total_non_contiguous_deleted_messages_range: int
    state: str = "Open"

    def json(self) -> dict[str, Any]:
        """Return the fields by their names in Pulsar, without those that are None."""
        return dict(json_form(self))


class TopicInternalStats(NamedTuple):
    """The log of a topic that is not partitioned, or of a partition, and the cursors on it.

    Attributes:
        entries_added_counter: entries appended since the topic was made; begins anew as
            `TopicStats.msg_in_counter` does.
        number_of_entries: entries that are retained.
        total_size: bytes of storage of them.
        current_ledger_entries: entries of the ledger that is written to.
        current_ledger_size: bytes of storage of them.
        last_confirmed_entry: the last entry, ``ledger:entry``, or ``-1:-1``.
        state: ``LedgerOpened``; ``Terminated`` if nothing can be published any more.
        ledgers: the retained ledgers, the oldest first.
        cursors: the durable subscriptions by name, sorted.
    """

    entries_added_counter: int
    number_of_entries: int
    total_size: int
    current_ledger_entries: int
    current_ledger_size: int
    last_confirmed_entry: str
    state: str
    ledgers: tuple[LedgerInfo, ...]
    cursors: dict[str, CursorStats]

    def json(self) -> dict[str, Any]:
        """Return the fields by their names in Pulsar, without those that are None."""
        return dict(json_form(self))


class AnalyzeSubscriptionBacklogResult(NamedTuple):
    """The backlog of a subscription, counted.

    Attributes:
        entries: entries that are not acknowledged as a whole; each part of a chunked message is one.
        messages: messages that are not acknowledged.
        aborted: always False: all of the backlog is counted.
    """

    entries: int
    messages: int
    aborted: bool = False

    def json(self) -> dict[str, Any]:
        """Return the fields by their names in Pulsar."""
        return dict(json_form(self))
