"""Payloads of a subscription's journal records (docs/format/subscription.md).

Each command is an immutable tuple that carries every fact the state machine needs; it looks nothing up,
not even the time. The record around it (journal_record.py) carries the checksum, so decoding here checks
shape and bounds only.

Payloads of the commands by which consumers come and go (docs/format/subscription.md).

Payloads of the commands of Shared and Key_Shared subscriptions (docs/format/subscription.md): which
consumer gets which entries, and which entries come back.

The process that commits an assignment has read the log; the command carries what others need to know of it.

Payloads of the commands of transactions: what an open one acknowledged, and how it ended.
"""

from __future__ import annotations

import re
import struct
import sys
from array import array
from collections.abc import Iterable, Iterator

from embeddedpulsar._engine.format.acknowledgement import (
    ACK,
    ACK_GROUP,
    ACK_HEADER,
    MAX_BATCH_SIZE,
    MAX_ENTRY_ID,
    Ack,
    AckGroup,
    Buffer,
    decode_ack,
    encode_ack,
    pack_groups,
    read_groups,
)
from embeddedpulsar._engine.format.journal_record import RecordTypes, unpack
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Any, Final, TypeAlias

# Record types. Persistent values, never renumber.
ATTACH: Final = 2
DETACH: Final = 3
LIMITS: Final = 13

DETACH_CLOSED: Final = 0
DETACH_DEAD: Final = 1
DETACH_SILENT: Final = 2

ATTACH_HEADER: Final = struct.Struct(
    "<"
    "Q"  # 0  consumer_id: the epoch it attaches with, and so unique
    "Q"  # 8  attached_ms, time of attachment
    "16s"  # 16 client_uuid: the lease that proves the consumer alive
    "i"  # 32 priority_level, 0 is best
    "I"  # 36 name_length; the UTF-8 name of the consumer follows the header
    "B"  # 40 consumer_type: 0 Exclusive, 1 Shared, 2 Failover, 3 Key_Shared
    "B"  # 41 selector: 0 none, 1 hash range, 2 consistent hashing, 3 sticky
    "H"  # 42 points of a consumer on the ring of consistent hashing
    "I"  # 44 flags: 1 several topics, 2 out of order, 4 classic, 8 ring
    "i"  # 48 partition of the topic, -1 for none
    "I"  # 52 topic_hash: 31-bit hash of the full name of the topic
    "I"  # 56 max_unacked messages of this consumer, 0 for no limit
    "I"  # 60 max_unacked messages of all consumers, 0 for no limit
    "I"  # 64 ranges that follow the name
    "I"  # 68 reserved, 0
)
STICKY_RANGE: Final = struct.Struct(
    "<"
    "I"  # 0  first slot
    "I"  # 4  last slot
)
DETACH_BODY: Final = struct.Struct(
    "<"
    "Q"  # 0  consumer_id
    "I"  # 8  reason: 0 closed, 1 found dead, 2 silent for too long
    "I"  # 12 reserved, 0
    "Q"  # 16 handed: entries its application was given since it attached
)
LIMITS_BODY: Final = struct.Struct(
    "<"
    "I"  # 0  max_unacked messages of each consumer, 0 for no limit
    "I"  # 4  max_unacked messages of all consumers, 0 for no limit
)
FLAG_SEVERAL_TOPICS: Final = 1
FLAG_OUT_OF_ORDER: Final = 2
FLAG_CLASSIC: Final = 4
FLAG_RING: Final = 8
MAX_NAME_BYTES: Final = 4096
LAST_SELECTOR: Final = 3
SLOTS: Final = 65536
CONSUMER_TYPES: Final[dict[int, bool]] = {0: False, 1: True, 2: False, 3: True}
"""The subscription types by number, and whether their consumers claim entries."""


class ConsumerRules(NamedTuple):
    """What a consumer asks of dispatch, and the settings that hold for it. `Limits` alone changes them.

    Attributes:
        selector: kind of its sticky key selector (`_engine.subscription.state.sticky_key_selector`), 0 for
        none. points: points of a consumer on the ring of consistent hashing.
        flags: FLAG_SEVERAL_TOPICS, FLAG_OUT_OF_ORDER, FLAG_CLASSIC, FLAG_RING.
        partition: of the topic, -1 for none.
        topic_hash: 31-bit hash of the full name of the topic.
        max_unacked: messages it may hold unacknowledged, 0 for any number.
        max_unacked_in_all: the same for all consumers of the subscription.
        ranges: (first, last) slots of a sticky consumer.
    """

    selector: int = 0
    points: int = 0
    flags: int = 0
    partition: int = -1
    topic_hash: int = 0
    max_unacked: int = 0
    max_unacked_in_all: int = 0
    ranges: tuple[tuple[int, int], ...] = ()


NO_RULES: Final = ConsumerRules()


class Attach(NamedTuple):
    """A consumer joins. Whether it may was decided before this was written."""

    consumer_id: int
    name: str
    consumer_type: int
    priority_level: int
    client_uuid: bytes
    attached_ms: int
    rules: ConsumerRules = NO_RULES


class Detach(NamedTuple):
    """A consumer leaves, or was found dead, or silent."""

    consumer_id: int
    reason: int
    handed: int = 0


class Limits(NamedTuple):
    """From now on the consumers there are may hold so many messages unacknowledged; 0 for any number."""

    max_unacked: int
    max_unacked_in_all: int


def encode_attach(command: Attach) -> bytes:
    """The payload of a command."""
    consumer_id, text, consumer_type, priority, uuid, attached_ms, rules = command
    name = name_bytes(text)
    if len(uuid) != 16:
        raise ValueError(f"a client uuid has 16 bytes, not {len(uuid)}")
    head = ATTACH_HEADER.pack(
        consumer_id,
        attached_ms,
        uuid,
        priority,
        len(name),
        consumer_type,
        rules.selector,
        rules.points,
        rules.flags,
        rules.partition,
        rules.topic_hash,
        rules.max_unacked,
        rules.max_unacked_in_all,
        len(rules.ranges),
        0,
    )
    return head + name + b"".join(STICKY_RANGE.pack(*sticky_range) for sticky_range in rules.ranges)


def decode_attach(payload: Buffer) -> Attach:
    """The command of a payload."""
    require(len(payload) >= ATTACH_HEADER.size, f"attachment of {len(payload)} bytes")
    fields = ATTACH_HEADER.unpack_from(payload, 0)
    consumer_id, attached_ms, uuid, priority, length, kind = fields[:6]
    selector, points, flags, partition, topic_hash, each, in_all, count, _ = fields[6:]
    start = ATTACH_HEADER.size + length
    require(start + count * STICKY_RANGE.size == len(payload), f"{count} ranges in {len(payload)} bytes")
    name = read_name(payload[:start], ATTACH_HEADER.size, length)
    require(kind in CONSUMER_TYPES, f"consumer type {kind}")
    require(selector <= LAST_SELECTOR, f"sticky key selector {selector}")
    ranges = tuple(STICKY_RANGE.iter_unpack(payload[start:]))
    require(all(first <= last < SLOTS for first, last in ranges), "a sticky range that is none")
    rules = ConsumerRules(selector, points, flags, partition, topic_hash, each, in_all, ranges)
    return Attach(consumer_id, name, kind, priority, uuid, attached_ms, rules)


def encode_detach(command: Detach) -> bytes:
    """The payload of a command."""
    return DETACH_BODY.pack(command.consumer_id, command.reason, 0, command.handed)


def decode_detach(payload: Buffer) -> Detach:
    """The command of a payload."""
    require(len(payload) >= DETACH_BODY.size, f"departure of {len(payload)} bytes")
    consumer_id, reason, _, handed = DETACH_BODY.unpack_from(payload, 0)
    return Detach(consumer_id, reason, handed)


def name_bytes(name: str) -> bytes:
    """A name as it is stored.

    Raises:
        ValueError: empty, or too long.
    """
    encoded = name.encode()
    if not 0 < len(encoded) <= MAX_NAME_BYTES:
        raise ValueError(f"a name has 1 to {MAX_NAME_BYTES} bytes, not {len(encoded)}")
    return encoded


def read_name(payload: Buffer, start: int, length: int) -> str:
    """The name at the end of a payload."""
    require(0 < length <= MAX_NAME_BYTES and start + length == len(payload), f"name of {length} bytes")
    try:
        return bytes(payload[start:]).decode()
    except UnicodeDecodeError as e:
        raise CorruptionError(reason="a name is not UTF-8") from e


def require(fits: bool, otherwise: str) -> None:
    """Refuse a payload that does not fit."""
    if not fits:
        raise CorruptionError(reason=otherwise)


# Record types. Persistent values, never renumber.
ASSIGN: Final = 10
REDELIVER: Final = 11
OPEN_RANGE: Final = 15

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
OPEN_RANGE_BODY: Final = struct.Struct(
    "<Q"  # 0  consumer_id
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
            for run in re.finditer(re.escape(bytes((number,))) + b"+", self.picks):
                yield consumer_id, self.ledger_id, self.first + run.start(), self.first + run.end() - 1


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
        return {consumer_id for consumer_id, *_ in self.ranges}.union(
            *(share.owners for share in self.shares)
        )


class Redeliver(NamedTuple):
    """A consumer gives entries back, or, without groups, everything it holds."""

    consumer_id: int
    epoch: int
    handed: int
    groups: tuple[AckGroup, ...]


class OpenRange(NamedTuple):
    """The only consumer takes entries without a claim from here on: see `_engine.subscription.shared_state`.

    Changes no state. It is in each generation of the journal in which a range is open, so that a process of
    a release that does not look at the words of the range refuses the journal, rather than claims entries
    that the consumer has.
    """

    consumer_id: int


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
    parts += [ASSIGNED_RANGE.pack(*each) for each in ranges]
    parts += [HANDED_COUNT.pack(*each) for each in handed]
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
    # The number of runs is checked before the loop: a damaged count must not start a loop of four
    # milliards of turns.
    if runs * FRESH_RUN.size > end - at:
        raise CorruptionError(reason=f"{runs} runs in {end} bytes")
    fresh = []
    for _ in range(runs):
        run, at = _read_run(payload, at, end)
        fresh.append(run)
    # The three tables behind the runs have fixed rows, so their borders follow from the counts of the
    # header. The shares have no count: they take what is left of the payload.
    ranges_at = at + delayed * DELAYED_ENTRY.size
    counts_at = ranges_at + ranges * ASSIGNED_RANGE.size
    shares_at = counts_at + handed * HANDED_COUNT.size
    if shares_at > end:
        raise CorruptionError(reason=f"an assignment of {runs} runs and {ranges} ranges in {end} bytes")
    waiting: tuple[tuple[int, int, int], ...] = ()
    if delayed:
        waiting = tuple([fields[:3] for fields in DELAYED_ENTRY.iter_unpack(payload[at:ranges_at])])
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


SNAPSHOT_VERSION: Final = 2
"""Version of the document of a snapshot in which acknowledgements of open transactions are pending."""

# Record types. Persistent values, never renumber; 0 belongs to the journal itself.
CREATE: Final = 1
LEDGERS: Final = 4
ACK_CUMULATIVE: Final = 6
SEEK: Final = 7
CLAMP: Final = 8
CHECKPOINT: Final = 9
SUMMARY: Final = 12
EXPIRED: Final = 14
TRANSACTION_ACK: Final = 16
TRANSACTION_END: Final = 17
TRANSACTION_COMMITS: Final = 18

UNDECIDED: Final = 0
COMMITTED: Final = 1
ABORTED: Final = 2
"""Outcomes of a transaction. The first is that of an open one, and stands in no record."""

CREATE_HEADER: Final = struct.Struct(
    "<"
    "Q"  # 0  epoch the subscription starts with
    "Q"  # 8  ledger_id of the mark-delete position
    "q"  # 16 entry_id of the mark-delete position
    "I"  # 24 name_length; the UTF-8 name of the subscription follows
    "I"  # 28 reserved, 0
)
LEDGERS_HEADER: Final = struct.Struct(
    "<"
    "I"  # 0  count of ledgers that follow
    "I"  # 4  reserved, 0
)
LEDGER: Final = struct.Struct(
    "<"
    "Q"  # 0  ledger_id
    "q"  # 8  entries of the closed ledger, -1 while it is open
)
CUMULATIVE_BODY: Final = struct.Struct(
    "<"
    "Q"  # 0  consumer_id
    "Q"  # 8  epoch of that consumer
    "Q"  # 16 ledger_id
    "q"  # 24 entry_id; -1 acknowledges all ledgers before
    "i"  # 32 batch_index, -1 for the whole entry
    "I"  # 36 batch_size, 0 if batch_index is -1
)
POSITION_BODY: Final = struct.Struct(
    "<"
    "Q"  # 0  ledger_id
    "q"  # 8  entry_id
)
EXPIRED_BODY: Final = struct.Struct(
    "<"
    "Q"  # 0  messages
    "Q"  # 8  time_ms: when, since the epoch
)
TRANSACTION_ACK_HEADER: Final = struct.Struct(
    "<"
    "Q"  # 0  most significant half of the transaction's id
    "Q"  # 8  least significant half
    "Q"  # 16 ledger_id of the last message of a cumulative acknowledgement, else 0
    "q"  # 24 entry_id of it, else -1
    "i"  # 32 batch_index, -1 for the whole entry
    "I"  # 36 batch_size, 0 if batch_index is -1
    "I"  # 40 kind: 0 individual, 1 cumulative
    "I"  # 44 reserved, 0; what an ACK has in its payload follows
)
INDIVIDUAL: Final = 0
CUMULATIVE: Final = 1
TRANSACTION_END_BODY: Final = struct.Struct(
    "<"
    "Q"  # 0  most significant half of the transaction's id
    "Q"  # 8  least significant half
    "Q"  # 16 time_ms: when it ended, since the epoch
    "I"  # 24 outcome: 1 committed, 2 aborted
    "I"  # 28 reserved, 0
)
TRANSACTION_COMMITS_HEADER: Final = struct.Struct(
    "<"
    "Q"  # 0  time_ms: when this was found out, since the epoch
    "I"  # 8  count of transactions that follow
    "I"  # 12 reserved, 0
)
COMMITTED_ID: Final = struct.Struct(
    "<"
    "Q"  # 0  most significant half of the transaction's id
    "Q"  # 8  least significant half
)
CHECKPOINT_BODY: Final = struct.Struct(
    "<"
    "Q"  # 0  commands applied so far
    "I"  # 8  digest after them
    "I"  # 12 checksum of an outline of the state after them
)


class Create(NamedTuple):
    """The subscription is created; everything after the mark-delete position is to be delivered."""

    name: str
    epoch: int
    ledger_id: int
    entry_id: int


class Ledgers(NamedTuple):
    """All ledgers that exist from the mark-delete position on: (id, number of entries or -1), ascending."""

    listed: tuple[tuple[int, int], ...]


class AckCumulative(NamedTuple):
    """Everything up to a position; with a batch index, that entry only up to the index."""

    consumer_id: int
    epoch: int
    ledger_id: int
    entry_id: int
    batch_index: int
    batch_size: int


class Seek(NamedTuple):
    """The mark-delete position is put here and every acknowledgement after it forgotten."""

    ledger_id: int
    entry_id: int


class Clamp(NamedTuple):
    """The log ends here: acknowledgements beyond are of entries that a power loss took."""

    ledger_id: int
    entry_id: int


class Expired(NamedTuple):
    """Messages that are acknowledged in the same commit were not by consumers: they expired."""

    messages: int
    time_ms: int


TransactionId = tuple[int, int]
"""The most and the least significant half of the id of a transaction."""


class AckedThrough(NamedTuple):
    """The last message of a cumulative acknowledgement; with a batch index, the entry only up to it."""

    ledger_id: int
    entry_id: int
    batch_index: int = -1
    batch_size: int = 0

    @property
    def is_partial(self) -> bool:
        """Whether messages of the entry are left."""
        return 0 <= self.batch_index < self.batch_size - 1

    @property
    def rank(self) -> tuple[int, int, int]:
        """Compares what is acknowledged: an entry as a whole comes behind all indexes of it."""
        return self.ledger_id, self.entry_id, self.batch_index if self.is_partial else MAX_BATCH_SIZE


class TransactionAck(NamedTuple):
    """An open transaction acknowledges: it counts when that commits; no consumer gets the messages before.

    Whether it may was decided before this was written (`_engine.subscription.state.pending_acks`).

    Attributes:
        transaction: the id.
        ack: the consumer, and what it acknowledges, as without a transaction.
        through: of a cumulative acknowledgement the last message, else None. If ``ack`` has entries then, the
            commit acknowledges these alone: there are entries before the message that stay unacknowledged.
    """

    transaction: TransactionId
    ack: Ack
    through: AckedThrough | None


class TransactionEnd(NamedTuple):
    """A transaction committed or aborted; what is pending of it is acknowledged, or comes back."""

    transaction: TransactionId
    outcome: int
    time_ms: int


class TransactionCommits(NamedTuple):
    """Several transactions committed; what is pending of them is acknowledged."""

    transactions: tuple[TransactionId, ...]
    time_ms: int


class Checkpoint(NamedTuple):
    """What the writer's replica looks like; the others compare."""

    commands: int
    digest: int
    checksum: int


class Summary(NamedTuple):
    """The state of the writer's replica before this command, but for its consumers
    (`_engine.subscription.state.replica`).

    To apply it changes nothing: it is for replicas that have not applied what stands before it.
    """

    content: bytes


Command: TypeAlias = "tuple[Any, ...]"
"""Any of the commands that are added to `RECORDS`."""

RECORDS: Final = RecordTypes("subscription")


def _encode_create(command: Create) -> bytes:
    name = name_bytes(command.name)
    return CREATE_HEADER.pack(command.epoch, command.ledger_id, command.entry_id, len(name), 0) + name


def _decode_create(payload: Buffer) -> Create:
    epoch, ledger_id, entry_id, length, _ = unpack(CREATE_HEADER, payload, "subscription")
    return Create(read_name(payload, CREATE_HEADER.size, length), epoch, ledger_id, entry_id)


def _encode_ledgers(command: Ledgers) -> bytes:
    parts = [LEDGERS_HEADER.pack(len(command.listed), 0)]
    parts.extend(LEDGER.pack(ledger_id, entries) for ledger_id, entries in command.listed)
    return b"".join(parts)


def _decode_ledgers(payload: Buffer) -> Ledgers:
    count, _ = unpack(LEDGERS_HEADER, payload, "subscription")
    start = LEDGERS_HEADER.size
    require(count * LEDGER.size == len(payload) - start, f"{count} ledgers in {len(payload)} bytes")
    listed = tuple(LEDGER.iter_unpack(payload[start:]))
    ids = [ledger_id for ledger_id, _ in listed]
    require(ids == sorted(set(ids)), "ledgers out of order")
    return Ledgers(listed)


_NOT_THROUGH: Final = AckedThrough(0, -1)
_TRANSACTION_ACK_OF_RUN: Final = struct.Struct(
    TRANSACTION_ACK_HEADER.format + ACK_HEADER.format[1:] + ACK_GROUP.format[1:]
)


def _encode_transaction_ack(command: TransactionAck) -> bytes:
    kind, through = INDIVIDUAL, _NOT_THROUGH
    transaction, ack, _ = command
    if command.through is None and len(ack.groups) == 1 and not ack.batches:
        ledger_id, first, last, form, data = ack.groups[0]
        if not data:  # one entry or a run, as nearly all have
            return _TRANSACTION_ACK_OF_RUN.pack(
                *transaction,
                *through,
                kind,
                0,
                ack.consumer_id,
                ack.epoch,
                1,
                0,
                ledger_id,
                first,
                last,
                0,
                form,
                0,
            )
    if command.through is not None:
        kind, through = CUMULATIVE, command.through
    head = TRANSACTION_ACK_HEADER.pack(*command.transaction, *through, kind, 0)
    return head + encode_ack(command.ack)


def _decode_transaction_ack(payload: Buffer) -> TransactionAck:
    most, least, *place, kind, _ = unpack(TRANSACTION_ACK_HEADER, payload, "subscription")
    require(kind in (INDIVIDUAL, CUMULATIVE), f"an acknowledgement of kind {kind}")
    through = AckedThrough(*place) if kind == CUMULATIVE else None
    ack = decode_ack(payload[TRANSACTION_ACK_HEADER.size :])
    return TransactionAck((most, least), ack, through)


def _encode_transaction_end(command: TransactionEnd) -> bytes:
    return TRANSACTION_END_BODY.pack(*command.transaction, command.time_ms, command.outcome, 0)


def _decode_transaction_end(payload: Buffer) -> TransactionEnd:
    most, least, time_ms, outcome, _ = unpack(TRANSACTION_END_BODY, payload, "subscription")
    require(outcome in (COMMITTED, ABORTED), f"outcome {outcome} of a transaction")
    return TransactionEnd((most, least), outcome, time_ms)


def _encode_transaction_commits(command: TransactionCommits) -> bytes:
    parts = [TRANSACTION_COMMITS_HEADER.pack(command.time_ms, len(command.transactions), 0)]
    parts += [COMMITTED_ID.pack(*transaction) for transaction in command.transactions]
    return b"".join(parts)


def _decode_transaction_commits(payload: Buffer) -> TransactionCommits:
    time_ms, count, _ = unpack(TRANSACTION_COMMITS_HEADER, payload, "subscription")
    start = TRANSACTION_COMMITS_HEADER.size
    size = len(payload) - start
    require(count * COMMITTED_ID.size == size, f"{count} transactions in {len(payload)} bytes")
    return TransactionCommits(tuple(COMMITTED_ID.iter_unpack(payload[start:])), time_ms)


RECORDS.add(CREATE, Create, _encode_create, _decode_create)
RECORDS.add(ATTACH, Attach, encode_attach, decode_attach)
RECORDS.add(DETACH, Detach, encode_detach, decode_detach)
RECORDS.add(LEDGERS, Ledgers, _encode_ledgers, _decode_ledgers)
RECORDS.add(ACK, Ack, encode_ack, decode_ack)
RECORDS.add(ASSIGN, Assign, encode_assign, decode_assign)
RECORDS.add(REDELIVER, Redeliver, encode_redeliver, decode_redeliver)
RECORDS.add(SUMMARY, Summary, lambda command: command.content, lambda payload: Summary(bytes(payload)))
RECORDS.add(TRANSACTION_ACK, TransactionAck, _encode_transaction_ack, _decode_transaction_ack)
RECORDS.add(TRANSACTION_END, TransactionEnd, _encode_transaction_end, _decode_transaction_end)
RECORDS.add(TRANSACTION_COMMITS, TransactionCommits, _encode_transaction_commits, _decode_transaction_commits)
RECORDS.add_fixed(ACK_CUMULATIVE, AckCumulative, CUMULATIVE_BODY)
RECORDS.add_fixed(SEEK, Seek, POSITION_BODY)
RECORDS.add_fixed(CLAMP, Clamp, POSITION_BODY)
RECORDS.add_fixed(CHECKPOINT, Checkpoint, CHECKPOINT_BODY)
RECORDS.add_fixed(LIMITS, Limits, LIMITS_BODY)
RECORDS.add_fixed(EXPIRED, Expired, EXPIRED_BODY)
RECORDS.add_fixed(OPEN_RANGE, OpenRange, OPEN_RANGE_BODY)

encode: Final = RECORDS.encode
decode: Final = RECORDS.decode
