"""Payloads of a subscription's journal records (docs/format/subscription.md).

Each command is an immutable tuple that carries every fact the state machine needs; it looks nothing up,
not even the time. The record around it (journal_record.py) carries the checksum, so decoding here checks
shape and bounds only.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from embeddedpulsar.format.acknowledgement import ACK, Ack, Buffer, decode_ack, encode_ack
from embeddedpulsar.format.consumer_record import ATTACH as ATTACH
from embeddedpulsar.format.consumer_record import DETACH as DETACH
from embeddedpulsar.format.consumer_record import DETACH_CLOSED as DETACH_CLOSED
from embeddedpulsar.format.consumer_record import DETACH_DEAD as DETACH_DEAD
from embeddedpulsar.format.consumer_record import DETACH_SILENT as DETACH_SILENT
from embeddedpulsar.format.consumer_record import LIMITS as LIMITS
from embeddedpulsar.format.consumer_record import LIMITS_BODY as LIMITS_BODY
from embeddedpulsar.format.consumer_record import NO_RULES as NO_RULES
from embeddedpulsar.format.consumer_record import Attach as Attach
from embeddedpulsar.format.consumer_record import ConsumerRules as ConsumerRules
from embeddedpulsar.format.consumer_record import Detach as Detach
from embeddedpulsar.format.consumer_record import Limits as Limits
from embeddedpulsar.format.consumer_record import (
    decode_attach,
    decode_detach,
    encode_attach,
    encode_detach,
    name_bytes,
    read_name,
    require,
)
from embeddedpulsar.format.dispatch_record import ASSIGN as ASSIGN
from embeddedpulsar.format.dispatch_record import REDELIVER as REDELIVER
from embeddedpulsar.format.dispatch_record import Assign as Assign
from embeddedpulsar.format.dispatch_record import Redeliver as Redeliver
from embeddedpulsar.format.dispatch_record import (
    decode_assign,
    decode_redeliver,
    encode_assign,
    encode_redeliver,
)
from embeddedpulsar.format.record_types import RecordTypes, unpack
from embeddedpulsar.records import NamedTuple

# Record types. Persistent values, never renumber; 0 belongs to the journal itself.
CREATE: Final = 1
LEDGERS: Final = 4
ACK_CUMULATIVE: Final = 6
SEEK: Final = 7
CLAMP: Final = 8
CHECKPOINT: Final = 9
SUMMARY: Final = 12
EXPIRED: Final = 14

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


class Checkpoint(NamedTuple):
    """What the writer's replica looks like; the others compare."""

    commands: int
    digest: int
    checksum: int


class Summary(NamedTuple):
    """The state of the writer's replica before this command, but for its consumers
    (`subscription.state.replica`).

    To apply it changes nothing: it is for replicas that have not applied what stands before it.
    """

    content: bytes


Command = tuple[Any, ...]
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


RECORDS.add(CREATE, Create, _encode_create, _decode_create)
RECORDS.add(ATTACH, Attach, encode_attach, decode_attach)
RECORDS.add(DETACH, Detach, encode_detach, decode_detach)
RECORDS.add(LEDGERS, Ledgers, _encode_ledgers, _decode_ledgers)
RECORDS.add(ACK, Ack, encode_ack, decode_ack)
RECORDS.add(ASSIGN, Assign, encode_assign, decode_assign)
RECORDS.add(REDELIVER, Redeliver, encode_redeliver, decode_redeliver)
RECORDS.add(SUMMARY, Summary, lambda command: command.content, lambda payload: Summary(bytes(payload)))
RECORDS.add_fixed(ACK_CUMULATIVE, AckCumulative, CUMULATIVE_BODY)
RECORDS.add_fixed(SEEK, Seek, POSITION_BODY)
RECORDS.add_fixed(CLAMP, Clamp, POSITION_BODY)
RECORDS.add_fixed(CHECKPOINT, Checkpoint, CHECKPOINT_BODY)
RECORDS.add_fixed(LIMITS, Limits, LIMITS_BODY)
RECORDS.add_fixed(EXPIRED, Expired, EXPIRED_BODY)

encode: Final = RECORDS.encode
decode: Final = RECORDS.decode
