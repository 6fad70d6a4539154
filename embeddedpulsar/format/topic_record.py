"""Payloads of a topic's journal records: its producers, and what they stored (docs/format/topic.md).

Each command is an immutable tuple that carries every fact `topic.producers.producer_table` needs. The record
around it (journal_record.py) carries the time and the checksum, so decoding here checks shape and bounds
only.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from embeddedpulsar.exceptions import CorruptionError

# Record types. Persistent values, never renumber; 0 belongs to the journal itself.
ATTACH_PRODUCER: Final = 1
DETACH_PRODUCER: Final = 2
ENQUEUE_PRODUCER: Final = 3
REMEMBER_PRODUCER: Final = 4
FORGET_PRODUCER: Final = 5
SET_DEDUPLICATION: Final = 6

REASON_CLOSED: Final = 0
REASON_DEAD: Final = 1
REASON_FENCED: Final = 2

PRODUCER_HEADER: Final = struct.Struct(
    "<"
    "Q"  # 0  producer_id, unique for the life of the topic
    "Q"  # 8  epoch of the topic it was granted; 0 for a shared producer and for one that waits
    "16s"  # 16 client_uuid: the lease that proves the producer alive
    "B"  # 32 access_mode: 0 Shared, 1 Exclusive, 2 WaitForExclusive, 3 ExclusiveWithFencing
    "B"  # 33 named: 1 if the application chose the name
    "H"  # 34 name_length; the UTF-8 name follows
    "4x"  # 36 zero
)
DETACH_BODY: Final = struct.Struct(
    "<"
    "Q"  # 0  producer_id
    "I"  # 8  reason: 0 closed, 1 found dead, 2 fenced by another producer
    "4x"  # 12 zero
)

REMEMBER_HEADER: Final = struct.Struct(
    "<"
    "q"  # 0  highest: sequence id of what is stored under the name; -1 for nothing
    "Q"  # 8  word: a tail word; whatever of this name lies before it is accounted for
    "B"  # 16 final: 1 if nothing of this name follows until a producer takes the name again
    "B"  # 17 reserved, 0
    "H"  # 18 name_length; the UTF-8 name follows
    "4x"  # 20 zero
)
FORGET_HEADER: Final = struct.Struct(
    "<"
    "H"  # 0  name_length; the UTF-8 name follows
    "6x"  # 2  zero
)
DEDUPLICATION_BODY: Final = struct.Struct(
    "<"
    "Q"  # 0  base: a tail word; every name with an entry before it is remembered
    "16s"  # 8  boot_id in which this was found out; what came after it may be lost in another
    "B"  # 24 on: 1 if duplicates are dropped from here on
    "7x"  # 25 zero
)

_SEQUENCE_COMMANDS: Final = (REMEMBER_PRODUCER, FORGET_PRODUCER, SET_DEDUPLICATION)

Buffer = bytes | bytearray | memoryview


class AttachProducer(NamedTuple):
    """A producer is connected; it leaves the waiting queue if it stood there."""

    producer_id: int
    epoch: int
    client_uuid: bytes
    access_mode: int
    named: bool
    name: str


class EnqueueProducer(NamedTuple):
    """A producer waits until it can have the topic for itself."""

    producer_id: int
    epoch: int
    client_uuid: bytes
    access_mode: int
    named: bool
    name: str


class DetachProducer(NamedTuple):
    """A producer is gone, connected or waiting."""

    producer_id: int
    reason: int


class RememberProducer(NamedTuple):
    """What is known of the sequence ids stored under a name; never takes back what was known before."""

    highest: int
    word: int
    final: bool
    name: str


class ForgetProducer(NamedTuple):
    """Nothing is known of a name any more."""

    name: str


class SetDeduplication(NamedTuple):
    """Duplicates are dropped from now on, or no longer; and how much of the log the names cover."""

    base: int
    boot: bytes
    on: bool


SequenceCommand = RememberProducer | ForgetProducer | SetDeduplication
TopicCommand = AttachProducer | EnqueueProducer | DetachProducer | SequenceCommand


def encode_command(command: TopicCommand) -> tuple[int, bytes]:
    """Record type and payload of a command.

    Example:
        >>> decode_command(*encode_command(DetachProducer(7, REASON_CLOSED)))
        DetachProducer(producer_id=7, reason=0)
        >>> decode_command(*encode_command(RememberProducer(41, 1 << 32, True, "till-1"))).highest
        41
    """
    if isinstance(command, DetachProducer):
        return DETACH_PRODUCER, DETACH_BODY.pack(command.producer_id, command.reason)
    if isinstance(command, SetDeduplication):
        return SET_DEDUPLICATION, DEDUPLICATION_BODY.pack(*command)
    name = command.name.encode()
    if isinstance(command, RememberProducer):
        head = REMEMBER_HEADER.pack(command.highest, command.word, command.final, 0, len(name))
        return REMEMBER_PRODUCER, head + name
    if isinstance(command, ForgetProducer):
        return FORGET_PRODUCER, FORGET_HEADER.pack(len(name)) + name
    kind = ATTACH_PRODUCER if isinstance(command, AttachProducer) else ENQUEUE_PRODUCER
    head = PRODUCER_HEADER.pack(
        command.producer_id, command.epoch, command.client_uuid, command.access_mode, command.named, len(name)
    )
    return kind, head + name


def decode_command(kind: int, payload: Buffer) -> TopicCommand:
    """The command of a record.

    Raises:
        CorruptionError: the payload is none, or of a type this release does not know.
    """
    if kind == DETACH_PRODUCER:
        _require(payload, DETACH_BODY.size)
        return DetachProducer(*DETACH_BODY.unpack_from(payload, 0))
    if kind in _SEQUENCE_COMMANDS:
        return _decode_sequences(kind, payload)
    if kind not in (ATTACH_PRODUCER, ENQUEUE_PRODUCER):
        raise CorruptionError(reason=f"a topic command of type {kind}, unknown to this release")
    _require(payload, PRODUCER_HEADER.size)
    producer_id, epoch, uuid, mode, named, length = PRODUCER_HEADER.unpack_from(payload, 0)
    name = _name(payload, PRODUCER_HEADER.size, length)
    make = AttachProducer if kind == ATTACH_PRODUCER else EnqueueProducer
    return make(producer_id, epoch, uuid, mode, bool(named), name)


def _decode_sequences(kind: int, payload: Buffer) -> SequenceCommand:
    if kind == SET_DEDUPLICATION:
        _require(payload, DEDUPLICATION_BODY.size)
        base, boot, on = DEDUPLICATION_BODY.unpack_from(payload, 0)
        return SetDeduplication(base, boot, bool(on))
    if kind == FORGET_PRODUCER:
        _require(payload, FORGET_HEADER.size)
        return ForgetProducer(_name(payload, FORGET_HEADER.size, *FORGET_HEADER.unpack_from(payload, 0)))
    _require(payload, REMEMBER_HEADER.size)
    highest, word, final, _, length = REMEMBER_HEADER.unpack_from(payload, 0)
    return RememberProducer(highest, word, bool(final), _name(payload, REMEMBER_HEADER.size, length))


def _name(payload: Buffer, at: int, length: int) -> str:
    _require(payload, at + length)
    try:
        return bytes(payload[at : at + length]).decode()
    except UnicodeDecodeError as e:
        raise CorruptionError(reason="a producer name is not UTF-8") from e


def _require(payload: Buffer, size: int) -> None:
    if len(payload) < size:
        raise CorruptionError(reason=f"a topic command of {len(payload)} bytes, {size} expected")
