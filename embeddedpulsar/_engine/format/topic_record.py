"""Payloads of a topic's journal records: its producers, and what they stored (docs/format/topic.md).

Each command is an immutable tuple that carries every fact `_engine.store.topic_journal` needs.
The record
around it (journal_record.py) carries the time and the checksum, so decoding here checks shape and bounds
only.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from embeddedpulsar._engine.format.journal_record import RecordTypes, unpack
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.records import NamedTuple

# Record types. Persistent values, never renumber; 0 belongs to the journal itself.
ATTACH_PRODUCER: Final = 1
DETACH_PRODUCER: Final = 2
ENQUEUE_PRODUCER: Final = 3
REMEMBER_PRODUCER: Final = 4
FORGET_PRODUCER: Final = 5
SET_DEDUPLICATION: Final = 6
TERMINATE: Final = 7

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

TERMINATE_BODY: Final = struct.Struct(
    "<"
    "Q"  # 0  ledger_id of the last entry
    "q"  # 8  entry_id of the last entry; -1 for none
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


class Terminate(NamedTuple):
    """Nothing is appended any more, behind the last entry."""

    ledger_id: int
    entry_id: int


ProducerCommand = AttachProducer | EnqueueProducer
TopicCommand = tuple[Any, ...]
"""Any of the commands that are added to `RECORDS`."""

RECORDS: Final = RecordTypes("topic")


def _encode_producer(command: ProducerCommand) -> bytes:
    *fields, text = command
    name = text.encode()
    return PRODUCER_HEADER.pack(*fields, len(name)) + name


def _decode_producer(make: type[ProducerCommand]) -> Callable[[Buffer], ProducerCommand]:
    def decode(payload: Buffer) -> ProducerCommand:
        producer_id, epoch, uuid, mode, named, length = unpack(PRODUCER_HEADER, payload, "topic")
        name = _name(payload, PRODUCER_HEADER.size, length)
        return make(producer_id, epoch, uuid, mode, bool(named), name)

    return decode


def _encode_remember(command: RememberProducer) -> bytes:
    name = command.name.encode()
    return REMEMBER_HEADER.pack(command.highest, command.word, command.final, 0, len(name)) + name


def _decode_remember(payload: Buffer) -> RememberProducer:
    highest, word, final, _, length = unpack(REMEMBER_HEADER, payload, "topic")
    return RememberProducer(highest, word, bool(final), _name(payload, REMEMBER_HEADER.size, length))


def _encode_forget(command: ForgetProducer) -> bytes:
    name = command.name.encode()
    return FORGET_HEADER.pack(len(name)) + name


def _decode_forget(payload: Buffer) -> ForgetProducer:
    return ForgetProducer(_name(payload, FORGET_HEADER.size, *unpack(FORGET_HEADER, payload, "topic")))


def _decode_deduplication(payload: Buffer) -> SetDeduplication:
    base, boot, on = unpack(DEDUPLICATION_BODY, payload, "topic")
    return SetDeduplication(base, boot, bool(on))


def _name(payload: Buffer, at: int, length: int) -> str:
    if len(payload) < at + length:
        raise CorruptionError(reason=f"topic command of {len(payload)} bytes, {at + length} expected")
    try:
        return bytes(payload[at : at + length]).decode()
    except UnicodeDecodeError as e:
        raise CorruptionError(reason="a producer name is not UTF-8") from e


RECORDS.add(ATTACH_PRODUCER, AttachProducer, _encode_producer, _decode_producer(AttachProducer))
RECORDS.add(ENQUEUE_PRODUCER, EnqueueProducer, _encode_producer, _decode_producer(EnqueueProducer))
RECORDS.add_fixed(DETACH_PRODUCER, DetachProducer, DETACH_BODY)
RECORDS.add_fixed(TERMINATE, Terminate, TERMINATE_BODY)
RECORDS.add(REMEMBER_PRODUCER, RememberProducer, _encode_remember, _decode_remember)
RECORDS.add(FORGET_PRODUCER, ForgetProducer, _encode_forget, _decode_forget)
RECORDS.add(
    SET_DEDUPLICATION,
    SetDeduplication,
    lambda command: DEDUPLICATION_BODY.pack(*command),
    _decode_deduplication,
)

encode_command: Final = RECORDS.encode
decode_command: Final = RECORDS.decode
