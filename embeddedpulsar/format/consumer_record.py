"""Payloads of the commands by which consumers come and go (docs/format/subscription.md)."""

from __future__ import annotations

import struct
from typing import Final

from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.format.acknowledgement import Buffer
from embeddedpulsar.records import NamedTuple

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
        selector: kind of its sticky key selector (`subscription.state.sticky_key_selector`), 0 for none.
        points: points of a consumer on the ring of consistent hashing.
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
    return head + name + b"".join(STICKY_RANGE.pack(*one) for one in rules.ranges)


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
