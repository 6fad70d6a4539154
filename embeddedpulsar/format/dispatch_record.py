"""Payloads of the commands of Shared and Key_Shared subscriptions (docs/format/subscription.md): which
consumer gets which entries, and which entries come back.

The process that commits an assignment has read the log; the command carries what others need to know of it.
"""

from __future__ import annotations

import re
import struct
import sys
from array import array
from collections.abc import Iterable, Iterator
from typing import Final

from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.format.acknowledgement import MAX_ENTRY_ID, AckGroup, Buffer, pack_groups, read_groups
from embeddedpulsar.records import NamedTuple

# Record types. Persistent values, never renumber.
ASSIGN: Final = 10
REDELIVER: Final = 11

ASSIGN_HEADER: Final = struct.Struct(
    "<"
    "Q"  # 0  ledger_id of the read position: the entry that is read next
    "q"  # 8  entry_id of the read position; the whole field pair 0, -1 leaves it where it is
    "Q"  # 16 due_ms: delayed entries due by then, the first 10,000, wait no longer; 0 for none
    "I"  # 24 runs of fresh entries that follow
    "I"  # 28 delayed entries that follow the runs
    "I"  # 32 ranges that follow the delayed entries
    "I"  # 36 counts that follow the ranges
)
FRESH_RUN: Final = struct.Struct(
    "<"
    "Q"  # 0  ledger_id
    "I"  # 8  first entry
    "I"  # 12 last entry
    "I"  # 16 columns: 1 messages, 2 key hashes; u32 for each entry, in this order, padded with zeros to 8
    "I"  # 20 reserved, 0
)
DELAYED_ENTRY: Final = struct.Struct(
    "<"
    "Q"  # 0  deliver_at_ms
    "Q"  # 8  ledger_id
    "I"  # 16 entry_id
    "I"  # 20 reserved, 0
)
ASSIGNED_RANGE: Final = struct.Struct(
    "<"
    "Q"  # 0  consumer_id
    "Q"  # 8  ledger_id
    "I"  # 16 first entry
    "I"  # 20 last entry
)
HANDED_COUNT: Final = struct.Struct(
    "<"
    "Q"  # 0  consumer_id
    "Q"  # 8  handed: entries its application was given since it attached
)
SHARE_HEADER: Final = struct.Struct(
    "<"
    "Q"  # 0  ledger_id
    "I"  # 8  first entry
    "I"  # 12 entries from there on, of which each has a byte behind the owners
    "I"  # 16 owners: consumer ids (u64) that follow
    "I"  # 20 reserved, 0
)
REDELIVER_HEADER: Final = struct.Struct(
    "<"
    "Q"  # 0  consumer_id
    "Q"  # 8  epoch of that consumer
    "Q"  # 16 handed: entries its application was given since it attached
    "I"  # 24 groups that follow, as in ACK; 0 for everything the consumer holds
    "I"  # 28 reserved, 0
)
COLUMN_MESSAGES: Final = 1
COLUMN_HASHES: Final = 2
MAX_OWNERS: Final = 255
STAY: Final = (0, -1)
"""The read position of an assignment that does not move it."""


class FreshRun(NamedTuple):
    """Entries of one ledger that the read position passes.

    ``messages`` is None where every entry holds one; ``hashes`` is None where keys do not matter.
    """

    ledger_id: int
    first: int
    last: int
    messages: array[int] | None
    hashes: array[int] | None


class Share(NamedTuple):
    """Waiting entries of one ledger that go to several consumers, which keys scatter among each other.

    ``picks`` has a byte for each entry from ``first`` on: 0 for one that stays, 1 for the first of
    ``owners``, and so on.
    """

    ledger_id: int
    first: int
    owners: tuple[int, ...]
    picks: bytes

    def ranges(self) -> Iterator[tuple[int, int, int, int]]:
        """The same as (consumer_id, ledger, first, last)."""
        for number, consumer_id in enumerate(self.owners, 1):
            for found in re.finditer(re.escape(bytes((number,))) + b"+", self.picks):
                yield consumer_id, self.ledger_id, self.first + found.start(), self.first + found.end() - 1


class Assign(NamedTuple):
    """Entries go to consumers.

    Attributes:
        read: the entry that is read next, or `STAY`.
        due_ms: delayed entries due by then, the first 10,000 of them, wait no longer.
        fresh: entries that the read position passes, ascending.
        delayed: those of them that are to wait, as (deliver_at_ms, ledger, entry).
        ranges: (consumer_id, ledger, first, last): waiting entries that consumer gets, in this order.
        handed: (consumer_id, entries its application has been given).
        shares: waiting entries that go to consumers, each to its own in ascending order, after `ranges`.
    """

    read: tuple[int, int]
    due_ms: int
    fresh: tuple[FreshRun, ...]
    delayed: tuple[tuple[int, int, int], ...]
    ranges: tuple[tuple[int, int, int, int], ...]
    handed: tuple[tuple[int, int], ...]
    shares: tuple[Share, ...] = ()

    @property
    def consumers(self) -> set[int]:
        """The ids of those that get something."""
        return {one for one, *_ in self.ranges}.union(*(share.owners for share in self.shares))


class Redeliver(NamedTuple):
    """A consumer gives entries back, or, without groups, everything it holds."""

    consumer_id: int
    epoch: int
    handed: int
    groups: tuple[AckGroup, ...]


def encode_assign(command: Assign) -> bytes:
    """The payload of a command."""
    (ledger_id, entry_id), due_ms, fresh, delayed, ranges, handed, shares = command
    parts = [
        ASSIGN_HEADER.pack(ledger_id, entry_id, due_ms, len(fresh), len(delayed), len(ranges), len(handed))
    ]
    for run in fresh:
        columns = (run.messages is not None) + 2 * (run.hashes is not None)
        parts.append(FRESH_RUN.pack(run.ledger_id, run.first, run.last, columns, 0))
        numbers = b"".join(
            column_bytes(column) for column in (run.messages, run.hashes) if column is not None
        )
        parts += (numbers, bytes(-len(numbers) & 7))
    parts += [DELAYED_ENTRY.pack(*entry, 0) for entry in delayed]
    parts += [ASSIGNED_RANGE.pack(*one) for one in ranges]
    parts += [HANDED_COUNT.pack(*one) for one in handed]
    for ledger_id, first, owners, picks in shares:
        parts.append(SHARE_HEADER.pack(ledger_id, first, len(picks), len(owners), 0))
        parts += (struct.pack(f"<{len(owners)}Q", *owners), picks, bytes(-len(picks) & 7))
    return b"".join(parts)


def decode_assign(payload: Buffer) -> Assign:
    """The assignment of a payload."""
    end = len(payload)
    if end < ASSIGN_HEADER.size:
        raise CorruptionError(reason=f"assignment of {end} bytes")
    ledger_id, entry_id, due_ms, runs, delayed, ranges, handed = ASSIGN_HEADER.unpack_from(payload, 0)
    at = ASSIGN_HEADER.size
    if runs * FRESH_RUN.size > end - at:
        raise CorruptionError(reason=f"{runs} runs in {end} bytes")
    fresh = []
    for _ in range(runs):
        run, at = _read_run(payload, at, end)
        fresh.append(run)
    ranges_at = at + delayed * DELAYED_ENTRY.size
    counts_at = ranges_at + ranges * ASSIGNED_RANGE.size
    shares_at = counts_at + handed * HANDED_COUNT.size
    if shares_at > end:
        raise CorruptionError(reason=f"an assignment of {runs} runs and {ranges} ranges in {end} bytes")
    waiting: tuple[tuple[int, int, int], ...] = ()
    if delayed:
        waiting = tuple([one[:3] for one in DELAYED_ENTRY.iter_unpack(payload[at:ranges_at])])
        if any(entry > MAX_ENTRY_ID for *_, entry in waiting):
            raise CorruptionError(reason="a delayed entry no ledger has")
    assigned = tuple(ASSIGNED_RANGE.iter_unpack(payload[ranges_at:counts_at]))
    for _, _, first, last in assigned:
        if not first <= last <= MAX_ENTRY_ID:
            raise CorruptionError(reason="a range runs backwards")
    counts = tuple(HANDED_COUNT.iter_unpack(payload[counts_at:shares_at]))
    shares = tuple(_read_shares(payload, shares_at, end)) if shares_at < end else ()
    return Assign((ledger_id, entry_id), due_ms, tuple(fresh), waiting, assigned, counts, shares)


def _read_shares(payload: Buffer, at: int, end: int) -> Iterator[Share]:
    while at < end:
        owners_at = at + SHARE_HEADER.size
        if owners_at > end:
            raise CorruptionError(reason="assignment cut short")
        ledger_id, first, number, count, _ = SHARE_HEADER.unpack_from(payload, at)
        picks_at = owners_at + 8 * count
        at = picks_at + number + (-number & 7)
        if at > end or not number or count > MAX_OWNERS or first + number - 1 > MAX_ENTRY_ID:
            raise CorruptionError(reason=f"a share of {number} entries for {count} consumers")
        owners = struct.unpack_from(f"<{count}Q", payload, owners_at)
        picks = bytes(payload[picks_at : picks_at + number])
        if picks.translate(None, bytes(range(count + 1))):
            raise CorruptionError(reason="a share for a consumer that it does not name")
        yield Share(ledger_id, first, owners, picks)


def _read_run(payload: Buffer, at: int, end: int) -> tuple[FreshRun, int]:
    start = at + FRESH_RUN.size
    if start > end:
        raise CorruptionError(reason="assignment cut short")
    ledger_id, first, last, columns, _ = FRESH_RUN.unpack_from(payload, at)
    if not first <= last <= MAX_ENTRY_ID or columns > COLUMN_MESSAGES | COLUMN_HASHES:
        raise CorruptionError(reason=f"a run from {first} to {last}")
    size = 4 * (last - first + 1)
    if start + size * columns.bit_count() > end:
        raise CorruptionError(reason="assignment cut short")
    messages = hashes = None
    if columns & COLUMN_MESSAGES:
        messages = column_of(payload[start : start + size])
        start += size
    if columns & COLUMN_HASHES:
        hashes = column_of(payload[start : start + size])
        start += size
    return FreshRun(ledger_id, first, last, messages, hashes), start + (at - start & 7)


def encode_redeliver(command: Redeliver) -> bytes:
    """The payload of a command."""
    consumer_id, epoch, handed, groups = command
    head = REDELIVER_HEADER.pack(consumer_id, epoch, handed, len(groups), 0)
    return head + pack_groups(groups)


def decode_redeliver(payload: Buffer) -> Redeliver:
    """The command of a payload."""
    end = len(payload)
    if end < REDELIVER_HEADER.size:
        raise CorruptionError(reason=f"redelivery of {end} bytes")
    consumer_id, epoch, handed, count, _ = REDELIVER_HEADER.unpack_from(payload, 0)
    groups, at = read_groups(payload, REDELIVER_HEADER.size, end, count)
    if at != end:
        raise CorruptionError(reason=f"{end - at} bytes behind the redelivery")
    return Redeliver(consumer_id, epoch, handed, groups)


def column_bytes(numbers: Iterable[int]) -> bytes:
    """Numbers as they are stored: u32, little-endian."""
    column = array("I", numbers)
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()


def column_of(data: Buffer) -> array[int]:
    """What `column_bytes` stored.

    Raises:
        ValueError: not a multiple of four bytes.
    """
    column = array("I")
    column.frombytes(data)
    if sys.byteorder == "big":
        column.byteswap()
    return column
