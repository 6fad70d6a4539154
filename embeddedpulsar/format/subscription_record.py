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

# Record types. Persistent values, never renumber; 0 belongs to the journal itself.
CREATE: Final = 1
ATTACH: Final = 2
DETACH: Final = 3
LEDGERS: Final = 4
ACK_CUMULATIVE: Final = 6
SEEK: Final = 7
CLAMP: Final = 8
CHECKPOINT: Final = 9

DETACH_CLOSED: Final = 0
DETACH_DEAD: Final = 1

CREATE_HEADER: Final = struct.Struct(
    "<"
    "Q"  # 0  epoch the subscription starts with
    "Q"  # 8  ledger_id of the mark-delete position
    "q"  # 16 entry_id of the mark-delete position
    "I"  # 24 name_length; the UTF-8 name of the subscription follows
    "I"  # 28 reserved, 0
)
ATTACH_HEADER: Final = struct.Struct(
    "<"
    "Q"  # 0  consumer_id: the epoch it attaches with, and so unique
    "Q"  # 8  attached_ms, time of attachment
    "16s"  # 16 client_uuid: the lease that proves the consumer alive
    "i"  # 32 priority_level, 0 is best
    "I"  # 36 name_length; the UTF-8 name of the consumer follows
    "B"  # 40 consumer_type: 0 Exclusive, 1 Shared, 2 Failover, 3 Key_Shared
    "7x"  # 41 zero
)
DETACH_BODY: Final = struct.Struct(
    "<"
    "Q"  # 0  consumer_id
    "I"  # 8  reason: 0 closed, 1 found dead
    "I"  # 12 reserved, 0
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
    "I"  # 12 checksum of the whole state after them
)
MAX_NAME_BYTES: Final = 4096
LAST_CONSUMER_TYPE: Final = 3

Buffer = bytes | bytearray | memoryview


class Create(NamedTuple):
    """The subscription comes to be; everything after the mark-delete position is to be delivered."""

    name: str
    epoch: int
    ledger_id: int
    entry_id: int


class Attach(NamedTuple):
    """A consumer joins. Whether it may was decided before this was written."""

    consumer_id: int
    name: str
    consumer_type: int
    priority_level: int
    client_uuid: bytes
    attached_ms: int


class Detach(NamedTuple):
    """A consumer leaves, or was found dead."""

    consumer_id: int
    reason: int


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


Command = Create | Attach | Detach | Ledgers | Ack | AckCumulative | Seek | Clamp | Checkpoint


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
    name = _name_bytes(command.name)
    return CREATE, CREATE_HEADER.pack(command.epoch, command.ledger_id, command.entry_id, len(name), 0) + name


def _decode_create(payload: Buffer) -> Create:
    epoch, ledger_id, entry_id, length, _ = _unpack(CREATE_HEADER, payload)
    return Create(_read_name(payload, CREATE_HEADER.size, length), epoch, ledger_id, entry_id)


def _encode_attach(command: Attach) -> tuple[int, bytes]:
    consumer_id, text, consumer_type, priority, uuid, attached_ms = command
    name = _name_bytes(text)
    if len(uuid) != 16:
        raise ValueError(f"a client uuid has 16 bytes, not {len(uuid)}")
    front = ATTACH_HEADER.pack(consumer_id, attached_ms, uuid, priority, len(name), consumer_type)
    return ATTACH, front + name


def _decode_attach(payload: Buffer) -> Attach:
    consumer_id, attached_ms, uuid, priority, length, consumer_type = _unpack(ATTACH_HEADER, payload)
    name = _read_name(payload, ATTACH_HEADER.size, length)
    _require(consumer_type <= LAST_CONSUMER_TYPE, f"consumer type {consumer_type}")
    return Attach(consumer_id, name, consumer_type, priority, uuid, attached_ms)


def _encode_ledgers(command: Ledgers) -> tuple[int, bytes]:
    parts = [LEDGERS_HEADER.pack(len(command.listed), 0)]
    parts.extend(LEDGER.pack(ledger_id, entries) for ledger_id, entries in command.listed)
    return LEDGERS, b"".join(parts)


def _decode_ledgers(payload: Buffer) -> Ledgers:
    count, _ = _unpack(LEDGERS_HEADER, payload)
    start = LEDGERS_HEADER.size
    _require(count * LEDGER.size == len(payload) - start, f"{count} ledgers in {len(payload)} bytes")
    listed = tuple(LEDGER.iter_unpack(payload[start:]))
    ids = [ledger_id for ledger_id, _ in listed]
    _require(ids == sorted(set(ids)), "ledgers out of order")
    return Ledgers(listed)


def _fixed(kind: int, body: struct.Struct) -> Callable[[Sequence[int]], tuple[int, bytes]]:
    """Encoder of a command that is nothing but the fields of ``body``, in that order."""
    return lambda command: (kind, body.pack(*command))


def _encode_detach(command: Detach) -> tuple[int, bytes]:
    return DETACH, DETACH_BODY.pack(command.consumer_id, command.reason, 0)


def _name_bytes(name: str) -> bytes:
    encoded = name.encode()
    if not 0 < len(encoded) <= MAX_NAME_BYTES:
        raise ValueError(f"a name has 1 to {MAX_NAME_BYTES} bytes, not {len(encoded)}")
    return encoded


def _read_name(payload: Buffer, start: int, length: int) -> str:
    _require(0 < length <= MAX_NAME_BYTES and start + length == len(payload), f"name of {length} bytes")
    try:
        return bytes(payload[start:]).decode()
    except UnicodeDecodeError as e:
        raise CorruptionError(reason="a name is not UTF-8") from e


def _unpack(body: struct.Struct, payload: Buffer) -> tuple[Any, ...]:
    _require(len(payload) >= body.size, f"command of {len(payload)} bytes, at least {body.size} expected")
    return body.unpack_from(payload, 0)


_ENCODERS: Final[dict[type, Callable[[Any], tuple[int, bytes]]]] = {
    Create: _encode_create,
    Attach: _encode_attach,
    Detach: _encode_detach,
    Ledgers: _encode_ledgers,
    Ack: lambda command: (ACK, encode_ack(command)),
    AckCumulative: _fixed(ACK_CUMULATIVE, CUMULATIVE_BODY),
    Seek: _fixed(SEEK, POSITION_BODY),
    Clamp: _fixed(CLAMP, POSITION_BODY),
    Checkpoint: _fixed(CHECKPOINT, CHECKPOINT_BODY),
}
_DECODERS: Final[dict[int, Callable[[Buffer], Command]]] = {
    CREATE: _decode_create,
    ATTACH: _decode_attach,
    DETACH: lambda payload: Detach(*_unpack(DETACH_BODY, payload)[:2]),
    LEDGERS: _decode_ledgers,
    ACK: decode_ack,
    ACK_CUMULATIVE: lambda payload: AckCumulative(*_unpack(CUMULATIVE_BODY, payload)),
    SEEK: lambda payload: Seek(*_unpack(POSITION_BODY, payload)),
    CLAMP: lambda payload: Clamp(*_unpack(POSITION_BODY, payload)),
    CHECKPOINT: lambda payload: Checkpoint(*_unpack(CHECKPOINT_BODY, payload)),
}


def _require(fits: bool, otherwise: str) -> None:
    if not fits:
        raise CorruptionError(reason=otherwise)
