"""Payloads of a topic's journal records: its producers (docs/format/topic.md).

Each command is an immutable tuple that carries every fact `topic.producer_table` needs. The record around it
(journal_record.py) carries the time and the checksum, so decoding here checks shape and bounds only.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from embeddedpulsar.exceptions import CorruptionError

# Record types. Persistent values, never renumber; 0 belongs to the journal itself.
ATTACH_PRODUCER: Final = 1
DETACH_PRODUCER: Final = 2
ENQUEUE_PRODUCER: Final = 3

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


TopicCommand = AttachProducer | EnqueueProducer | DetachProducer


def encode_command(command: TopicCommand) -> tuple[int, bytes]:
    """Record type and payload of a command.

    Example:
        >>> decode_command(*encode_command(DetachProducer(7, REASON_CLOSED)))
        DetachProducer(producer_id=7, reason=0)
    """
    if isinstance(command, DetachProducer):
        return DETACH_PRODUCER, DETACH_BODY.pack(command.producer_id, command.reason)
    kind = ATTACH_PRODUCER if isinstance(command, AttachProducer) else ENQUEUE_PRODUCER
    name = command.name.encode()
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
    if kind not in (ATTACH_PRODUCER, ENQUEUE_PRODUCER):
        raise CorruptionError(reason=f"a topic command of type {kind}, unknown to this release")
    _require(payload, PRODUCER_HEADER.size)
    producer_id, epoch, uuid, mode, named, length = PRODUCER_HEADER.unpack_from(payload, 0)
    _require(payload, PRODUCER_HEADER.size + length)
    try:
        name = bytes(payload[PRODUCER_HEADER.size : PRODUCER_HEADER.size + length]).decode()
    except UnicodeDecodeError as e:
        raise CorruptionError(reason="a producer name is not UTF-8") from e
    make = AttachProducer if kind == ATTACH_PRODUCER else EnqueueProducer
    return make(producer_id, epoch, uuid, mode, bool(named), name)


def _require(payload: Buffer, size: int) -> None:
    if len(payload) < size:
        raise CorruptionError(reason=f"a topic command of {len(payload)} bytes, {size} expected")
