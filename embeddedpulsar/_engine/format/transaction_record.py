"""Payloads of the records of the transaction journal (docs/format/transactions.md), and the token of a
transaction.

A COMMIT carries what was committed, so that it can be compared with the logs after a power loss: for each
topic the first and the last entry, their number and a checksum of their checksums; for each subscription the
number of acknowledgements. A process that joined a transaction says which topics and subscriptions it uses
with JOIN, before it uses them.
"""

from __future__ import annotations

import struct

from embeddedpulsar._engine.format.journal_record import RecordTypes, unpack
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Final

Buffer = bytes | bytearray | memoryview

# Record types. Persistent values, never renumber; 0 belongs to the journal itself.
RESERVE: Final = 1
COMMIT: Final = 2
PREPARE: Final = 3
ABORT: Final = 4
JOIN: Final = 5
RAISE_LOWEST: Final = 6

# Kinds of participants. Persistent values, never renumber.
TOPIC: Final = 1
SUBSCRIPTION: Final = 2

FIRST_TXN_ID: Final = 1
MAX_TXN_ID: Final = (1 << 60) - 1
"""An id shares its word with four bits of state."""
MAX_LABEL_BYTES: Final = 4096
MAX_PARTICIPANTS: Final = 65_535

ID_BODY: Final = struct.Struct(
    "<Q"  # 0  txn_id
)
PREPARE_BODY: Final = struct.Struct(
    "<"
    "Q"  # 0  txn_id
    "Q"  # 8  deadline_ms since the epoch; 0 for never
    "H"  # 16 label: bytes of it
    "6x"  # 18 zero
)
PARTICIPANT_BODY: Final = struct.Struct(
    "<"
    "B"  # 0  kind: 1 topic, 2 subscription
    "1x"  # 1  zero
    "H"  # 2  name: bytes of it, behind these
    "I"  # 4  operations: entries of a topic, acknowledgements of a subscription; 0 for unknown
    "Q"  # 8  incarnation of the topic
    "Q"  # 16 first: ledger << 32 | entry
    "Q"  # 24 last: ledger << 32 | entry
    "I"  # 32 crc: crc32 of the checksums of the frames, in their order, as u32 each
    "4x"  # 36 zero
)
TOKEN_BODY: Final = struct.Struct(
    "<"
    "4s"  # 0  magic
    "H"  # 4  version
    "H"  # 6  slot of the transaction
    "16s"  # 8  store_id
    "Q"  # 24 txn_id
    "Q"  # 32 secret
)
TOKEN_MAGIC: Final = b"EPTX"
TOKEN_VERSION: Final = 1


class ParticipantFacts(NamedTuple):
    """What a transaction did in one topic or subscription.

    Attributes:
        kind: `TOPIC` or `SUBSCRIPTION`.
        incarnation: of the topic.
        name: the directory, relative to that of all topics.
        operations: entries of a topic, acknowledgements of a subscription; 0 if it is not known.
        first, last: of a topic, ledger << 32 | entry.
        crc: crc32 of the checksums of the entries' frames, in their order; 0 if it is not known, as always.
    """

    kind: int
    incarnation: int
    name: str
    operations: int = 0
    first: int = 0
    last: int = 0
    crc: int = 0

    @property
    def key(self) -> tuple[int, int, str]:
        """Which topic or subscription it is, without what was done there."""
        return self.kind, self.incarnation, self.name


class Reserve(NamedTuple):
    """No id below `txn_id` is given out after a reboot. Flushed before an id below it is used."""

    txn_id: int


class Commit(NamedTuple):
    """The decision: the transaction is committed, in all topics and subscriptions at once."""

    txn_id: int
    participants: tuple[ParticipantFacts, ...] = ()


class Prepare(NamedTuple):
    """The transaction waits for `Commit` or `Abort`, also when its process and the boot have ended."""

    txn_id: int
    deadline_ms: int = 0
    label: str = ""
    participants: tuple[ParticipantFacts, ...] = ()


class Abort(NamedTuple):
    """The end of a transaction that has a `Prepare` or a `Join`. The others are aborted without a record."""

    txn_id: int


class Join(NamedTuple):
    """A process other than the beginner uses that topic or subscription in the transaction."""

    txn_id: int
    participant: ParticipantFacts


class RaiseLowest(NamedTuple):
    """Nothing asks any more what became of transactions below `txn_id`."""

    txn_id: int


Decision = Reserve | Commit | Prepare | Abort | Join | RaiseLowest
RECORDS: Final = RecordTypes("transaction")


def pack_participants(participants: tuple[ParticipantFacts, ...]) -> bytes:
    """Participants one behind the other, to the end of a payload.

    Raises:
        ValueError: too many, or a field is out of its range.

    Example:
        >>> topic = ParticipantFacts(TOPIC, 7, "t", 1, 5 << 32, 5 << 32, 99)
        >>> parse_participants(pack_participants((topic,)), 0) == (topic,)
        True
    """
    if len(participants) > MAX_PARTICIPANTS:
        raise ValueError(f"{len(participants)} topics and subscriptions in one transaction")
    parts = []
    for kind, incarnation, name, operations, first, last, crc in participants:
        encoded = name.encode()
        try:
            parts.append(PARTICIPANT_BODY.pack(kind, len(encoded), operations, incarnation, first, last, crc))
        except struct.error as e:
            raise ValueError(f"{name}: {e}") from e
        parts.append(encoded)
    return b"".join(parts)


def parse_participants(payload: Buffer, at: int) -> tuple[ParticipantFacts, ...]:
    """The participants from an offset of a payload to its end.

    Raises:
        CorruptionError: they do not fit.
    """
    participants = []
    while at < len(payload):
        if at + PARTICIPANT_BODY.size > len(payload):
            raise CorruptionError(reason=f"a participant is cut short at {at}", offset=at)
        kind, length, operations, incarnation, first, last, crc = PARTICIPANT_BODY.unpack_from(payload, at)
        at += PARTICIPANT_BODY.size
        if at + length > len(payload):
            raise CorruptionError(reason=f"the name of a participant is cut short at {at}", offset=at)
        try:
            name = bytes(payload[at : at + length]).decode()
        except UnicodeDecodeError as e:
            raise CorruptionError(reason="the name of a participant is not UTF-8", offset=at) from e
        at += length
        participants.append(ParticipantFacts(kind, incarnation, name, operations, first, last, crc))
    return tuple(participants)


def _encode_commit(command: Commit) -> bytes:
    return ID_BODY.pack(command.txn_id) + pack_participants(command.participants)


def _decode_commit(payload: Buffer) -> Commit:
    return Commit(txn_id_of(payload), parse_participants(payload, ID_BODY.size))


def _encode_prepare(command: Prepare) -> bytes:
    label = command.label.encode()
    if len(label) > MAX_LABEL_BYTES:
        raise ValueError(f"a label of {len(label)} bytes; at most {MAX_LABEL_BYTES}")
    body = PREPARE_BODY.pack(command.txn_id, command.deadline_ms, len(label))
    return body + label + pack_participants(command.participants)


def _decode_prepare(payload: Buffer) -> Prepare:
    txn_id, deadline_ms, length = unpack(PREPARE_BODY, payload, "transaction")
    end = PREPARE_BODY.size + length
    if end > len(payload):
        raise CorruptionError(reason="the label is cut short", offset=PREPARE_BODY.size)
    try:
        label = bytes(payload[PREPARE_BODY.size : end]).decode()
    except UnicodeDecodeError as e:
        raise CorruptionError(reason="the label is not UTF-8", offset=PREPARE_BODY.size) from e
    return Prepare(txn_id, deadline_ms, label, parse_participants(payload, end))


def _encode_join(command: Join) -> bytes:
    return ID_BODY.pack(command.txn_id) + pack_participants((command.participant,))


def _decode_join(payload: Buffer) -> Join:
    participants = parse_participants(payload, ID_BODY.size)
    if len(participants) != 1:
        raise CorruptionError(reason=f"a join with {len(participants)} participants", offset=ID_BODY.size)
    return Join(txn_id_of(payload), participants[0])


def txn_id_of(payload: Buffer) -> int:
    """The transaction that a record is about: every payload begins with it.

    Raises:
        CorruptionError: it is too short.
    """
    (txn_id,) = unpack(ID_BODY, payload, "transaction")
    return int(txn_id)


RECORDS.add_fixed(RESERVE, Reserve, ID_BODY)
RECORDS.add(COMMIT, Commit, _encode_commit, _decode_commit)
RECORDS.add(PREPARE, Prepare, _encode_prepare, _decode_prepare)
RECORDS.add_fixed(ABORT, Abort, ID_BODY)
RECORDS.add(JOIN, Join, _encode_join, _decode_join)
RECORDS.add_fixed(RAISE_LOWEST, RaiseLowest, ID_BODY)


class Token(NamedTuple):
    """What another process needs to join a transaction.

    Attributes:
        store_id: of the store it is in.
        txn_id: the transaction.
        slot: where it is in the control file.
        secret: a random number in that slot: ids alone could be guessed.
    """

    store_id: bytes
    txn_id: int
    slot: int
    secret: int


def pack_token(token: Token) -> bytes:
    """The token as bytes.

    Example:
        >>> token = Token(bytes(16), 17, 3, 99)
        >>> parse_token(pack_token(token)) == token
        True
    """
    store_id, txn_id, slot, secret = token
    return TOKEN_BODY.pack(TOKEN_MAGIC, TOKEN_VERSION, slot, store_id, txn_id, secret)


def parse_token(data: Buffer) -> Token | None:
    """The token that bytes are; None if they are none, or of another release."""
    if len(data) != TOKEN_BODY.size:
        return None
    magic, version, slot, store_id, txn_id, secret = TOKEN_BODY.unpack(data)
    if magic != TOKEN_MAGIC or version != TOKEN_VERSION:
        return None
    return Token(store_id, txn_id, slot, secret)
