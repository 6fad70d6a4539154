"""Payloads of a subscription's journal records (docs/format/subscription.md).

Each command is an immutable tuple that carries every fact the state machine needs; it looks nothing up,
not even the time. The record around it (journal_record.py) carries the checksum, so decoding here checks
shape and bounds only.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.format.acknowledgement import ACK, Ack, decode_ack, encode_ack
from embeddedpulsar.format.consumer_record import ATTACH as ATTACH
from embeddedpulsar.format.consumer_record import DETACH as DETACH
from embeddedpulsar.format.consumer_record import DETACH_CLOSED as DETACH_CLOSED
from embeddedpulsar.format.consumer_record import DETACH_DEAD as DETACH_DEAD
from embeddedpulsar.format.consumer_record import DETACH_SILENT as DETACH_SILENT
from embeddedpulsar.format.consumer_record import NO_RULES as NO_RULES
from embeddedpulsar.format.consumer_record import Attach as Attach
from embeddedpulsar.format.consumer_record import ConsumerRules as ConsumerRules
from embeddedpulsar.format.consumer_record import Detach as Detach
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

# Record types. Persistent values, never renumber; 0 belongs to the journal itself.
CREATE: Final = 1
LEDGERS: Final = 4
ACK_CUMULATIVE: Final = 6
SEEK: Final = 7
CLAMP: Final = 8
CHECKPOINT: Final = 9
SUMMARY: Final = 12

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
CHECKPOINT_BODY: Final = struct.Struct(
    "<"
    "Q"  # 0  commands applied so far
    "I"  # 8  digest after them
    "I"  # 12 checksum of an outline of the state after them
)

Buffer = bytes | bytearray | memoryview


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


class Checkpoint(NamedTuple):
    """What the writer's replica looks like; the others compare."""

    commands: int
    digest: int
    checksum: int


class Summary(NamedTuple):
    """The state of the writer's replica before this command, but for its consumers
    (`subscription.state.summary`).

    To apply it changes nothing: it is for replicas that have not applied what stands before it.
    """

    content: bytes


Command = (
    Create
    | Attach
    | Detach
    | Ledgers
    | Ack
    | AckCumulative
    | Seek
    | Clamp
    | Checkpoint
    | Assign
    | Redeliver
    | Summary
)


def encode(command: Command) -> tuple[int, bytes]:
    """Record type and payload of a command.

    Raises:
        ValueError, struct.error: a field is out of its range.

    Example:
        >>> decode(*encode(Seek(7, -1)))
        Seek(ledger_id=7, entry_id=-1)
    """
    encoder: Callable[[Any], tuple[int, bytes]] = _ENCODERS[type(command)]
    return encoder(command)


def decode(kind: int, payload: Buffer) -> Command:
    """The command of a record.

    Raises:
        CorruptionError: no command of this release, or its fields do not fit the payload.
    """
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise CorruptionError(reason=f"unknown subscription command {kind}", remedy="upgrade embeddedpulsar")
    return decoder(payload)


def _encode_create(command: Create) -> tuple[int, bytes]:
    name = name_bytes(command.name)
    return CREATE, CREATE_HEADER.pack(command.epoch, command.ledger_id, command.entry_id, len(name), 0) + name


def _decode_create(payload: Buffer) -> Create:
    epoch, ledger_id, entry_id, length, _ = _unpack(CREATE_HEADER, payload)
    return Create(read_name(payload, CREATE_HEADER.size, length), epoch, ledger_id, entry_id)


def _encode_ledgers(command: Ledgers) -> tuple[int, bytes]:
    parts = [LEDGERS_HEADER.pack(len(command.listed), 0)]
    parts.extend(LEDGER.pack(ledger_id, entries) for ledger_id, entries in command.listed)
    return LEDGERS, b"".join(parts)


def _decode_ledgers(payload: Buffer) -> Ledgers:
    count, _ = _unpack(LEDGERS_HEADER, payload)
    start = LEDGERS_HEADER.size
    require(count * LEDGER.size == len(payload) - start, f"{count} ledgers in {len(payload)} bytes")
    listed = tuple(LEDGER.iter_unpack(payload[start:]))
    ids = [ledger_id for ledger_id, _ in listed]
    require(ids == sorted(set(ids)), "ledgers out of order")
    return Ledgers(listed)


def _fixed(kind: int, body: struct.Struct) -> Callable[[Sequence[int]], tuple[int, bytes]]:
    """Encoder of a command that is nothing but the fields of ``body``, in that order."""
    return lambda command: (kind, body.pack(*command))


def _unpack(body: struct.Struct, payload: Buffer) -> tuple[Any, ...]:
    require(len(payload) >= body.size, f"command of {len(payload)} bytes, at least {body.size} expected")
    return body.unpack_from(payload, 0)


_ENCODERS: Final[dict[type, Callable[[Any], tuple[int, bytes]]]] = {
    Create: _encode_create,
    Attach: encode_attach,
    Detach: encode_detach,
    Ledgers: _encode_ledgers,
    Ack: lambda command: (ACK, encode_ack(command)),
    AckCumulative: _fixed(ACK_CUMULATIVE, CUMULATIVE_BODY),
    Seek: _fixed(SEEK, POSITION_BODY),
    Clamp: _fixed(CLAMP, POSITION_BODY),
    Checkpoint: _fixed(CHECKPOINT, CHECKPOINT_BODY),
    Assign: encode_assign,
    Redeliver: encode_redeliver,
    Summary: lambda command: (SUMMARY, command.content),
}
_DECODERS: Final[dict[int, Callable[[Buffer], Command]]] = {
    CREATE: _decode_create,
    ATTACH: decode_attach,
    DETACH: decode_detach,
    LEDGERS: _decode_ledgers,
    ACK: decode_ack,
    ACK_CUMULATIVE: lambda payload: AckCumulative(*_unpack(CUMULATIVE_BODY, payload)),
    SEEK: lambda payload: Seek(*_unpack(POSITION_BODY, payload)),
    CLAMP: lambda payload: Clamp(*_unpack(POSITION_BODY, payload)),
    CHECKPOINT: lambda payload: Checkpoint(*_unpack(CHECKPOINT_BODY, payload)),
    ASSIGN: decode_assign,
    REDELIVER: decode_redeliver,
    SUMMARY: lambda payload: Summary(bytes(payload)),
}
