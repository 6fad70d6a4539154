"""Journals `journal.<generation>`: a header and chained command records (docs/format/journal.md).

Records start at multiples of 8. Each repeats the checksum of the one before, so bytes a dead writer left
behind the end never continue the chain. The header names the checksum of the snapshot the generation
starts from: a journal cannot be replayed onto the wrong one.

Record types: those a journal writes for itself, and those of its owner (docs/format/journal.md).

BASE is the first record of every generation that starts from a snapshot. It tells recovery whether the
generation before went on after the snapshot was taken (then this one was never switched to), and how far
to replay that one when the snapshot is damaged. END is the last record of a journal whose owner was
removed. The owner's record types are added to its `RecordTypes`, each by the module that defines it.

Payloads of the records of a topic: its producers, and what they stored (docs/format/topic.md). Each is an
immutable tuple that carries every fact `_engine.store.topic_journal` needs; the record around it carries the
time and the checksum, so decoding them checks shape and bounds only.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator
from zlib import crc32

from embeddedpulsar._engine.format.frame import BYTE_ORDER_MARK, FORMAT_VERSION, is_header, refuse
from embeddedpulsar.exceptions import CorruptionError, UnsupportedFormatVersion
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Any, Final, TypeAlias

JOURNAL_HEADER: Final = struct.Struct(
    "<"
    "4s"  # 0  magic
    "H"  # 4  version
    "H"  # 6  byte order mark
    "I"  # 8  generation
    "I"  # 12 chain_seed: prev_crc of the first record
    "I"  # 16 snapshot_crc of the snapshot this generation starts from; 0 for none
    "B"  # 20 owner_kind: 1 store, 2 topic, 3 subscription, 5 transactions (as in control.py)
    "39x"  # 21 zero
    "I"  # 60 crc: crc32 of bytes [0,60)
)
JOURNAL_HEADER_SIZE: Final = 4 + 2 + 2 + 4 + 4 + 4 + 1 + 39 + 4
MAGIC: Final = b"EPJR"
FIRST_RECORD_OFFSET: Final = JOURNAL_HEADER_SIZE
_HEADER_COVERED: Final = JOURNAL_HEADER_SIZE - 4

RECORD: Final = struct.Struct(
    "<"
    "I"  # 0  length: whole record, padding included, a multiple of 8
    "I"  # 4  crc: crc32 of bytes [8,length), seeded with length
    "I"  # 8  prev_crc: crc of the record before; the chain seed for the first
    "H"  # 12 type of command
    "H"  # 14 padding: zero bytes behind the payload, 0 to 7
    "Q"  # 16 time, ms since the epoch
)
RECORD_SIZE: Final = 4 + 4 + 4 + 2 + 2 + 8
MAX_RECORD_SIZE: Final = 16 << 20
_COVERED: Final = struct.Struct("<IHHQ")
_FRONT: Final = struct.Struct("<II")
_PADDING: Final = tuple(bytes(n) for n in range(8))
_SECTOR: Final = 512  # what a disk writes as a whole

Buffer = bytes | bytearray | memoryview


class JournalHeader(NamedTuple):
    """The decoded header of a journal."""

    generation: int
    chain_seed: int
    snapshot_crc: int
    owner_kind: int


class JournalRecord(NamedTuple):
    """One checked record; `length` is what it takes in the file."""

    length: int
    crc: int
    prev_crc: int
    type: int
    time_ms: int
    payload: bytes


def pack_journal_header(header: JournalHeader) -> bytes:
    """The 64-byte header of a journal."""
    covered = JOURNAL_HEADER.pack(
        MAGIC,
        FORMAT_VERSION,
        BYTE_ORDER_MARK,
        header.generation,
        header.chain_seed,
        header.snapshot_crc,
        header.owner_kind,
        0,
    )[:_HEADER_COVERED]
    return covered + struct.pack("<I", crc32(covered))


def parse_journal_header(buf: Buffer) -> JournalHeader:
    """Check and decode the header of a journal.

    Raises:
        CorruptionError: damaged, cut short, or something else.
        UnsupportedFormatVersion: a newer release, or the other byte order, wrote it.
    """
    if len(buf) < JOURNAL_HEADER_SIZE:
        raise CorruptionError(reason=f"journal of {len(buf)} bytes has no header", offset=0)
    _, _, _, generation, seed, snapshot_crc, owner, crc = JOURNAL_HEADER.unpack_from(buf, 0)
    if not is_header(buf[:_HEADER_COVERED], MAGIC, crc):
        refuse(buf[:_HEADER_COVERED], MAGIC, crc, "journal")
    return JournalHeader(generation, seed, snapshot_crc, owner)


def pack_record(type: int, payload: bytes, prev_crc: int, time_ms: int) -> tuple[bytes, int]:
    """One record and its crc, the next record's `prev_crc`.

    Raises:
        ValueError: the payload is too large for a record.

    Example:
        >>> record, crc = pack_record(1, b"abc", prev_crc=7, time_ms=0)
        >>> len(record), read_record(record, 0, len(record), 7).payload
        (32, b'abc')
    """
    padding = -len(payload) & 7
    length = RECORD_SIZE + len(payload) + padding
    if length > MAX_RECORD_SIZE:
        raise ValueError(f"a record of {length} bytes; at most {MAX_RECORD_SIZE}")
    covered = b"".join((_COVERED.pack(prev_crc, type, padding, time_ms), payload, _PADDING[padding]))
    crc = crc32(covered, length)
    return _FRONT.pack(length, crc) + covered, crc


def read_record(buf: Buffer, pos: int, end: int, prev_crc: int) -> JournalRecord:
    """Read and check the record at `pos`, which must continue the chain from `prev_crc` and end by `end`.

    Raises:
        CorruptionError: no record there, a wrong checksum, or a record of another chain.
    """
    if pos < 0 or pos & 7 or pos + RECORD_SIZE > end or end > len(buf):
        raise CorruptionError(reason=f"no room for a record before {end}", offset=pos)
    length, crc, prev, kind, padding, time_ms = RECORD.unpack_from(buf, pos)
    if length & 7 or not RECORD_SIZE <= length <= MAX_RECORD_SIZE or pos + length > end:
        raise CorruptionError(reason=f"record length {length} does not fit before {end}", offset=pos)
    if crc32(buf[pos + 8 : pos + length], length) != crc:
        raise CorruptionError(reason="record checksum mismatch", offset=pos)
    if prev != prev_crc:
        raise CorruptionError(reason=f"record follows {prev:#010x}, not {prev_crc:#010x}", offset=pos)
    if padding > 7 or RECORD_SIZE + padding > length:
        raise CorruptionError(reason=f"record padding {padding} does not fit", offset=pos)
    payload = bytes(buf[pos + RECORD_SIZE : pos + length - padding])
    return JournalRecord(length, crc, prev, kind, time_ms, payload)


def record_at(buf: Buffer) -> JournalRecord:
    """The record a buffer begins with, whatever it continues.

    Raises:
        CorruptionError: no record there, or a wrong checksum.
    """
    if len(buf) < RECORD_SIZE:
        raise CorruptionError(reason=f"no record in {len(buf)} bytes")
    return read_record(buf, 0, len(buf), RECORD.unpack_from(buf, 0)[2])


def records(buf: Buffer, pos: int, end: int, prev_crc: int) -> Iterator[tuple[int, JournalRecord]]:
    """Every record from `pos` to `end` as (offset, record).

    Raises:
        CorruptionError: at the first place where the chain does not continue.
    """
    while pos < end:
        record = read_record(buf, pos, end, prev_crc)
        yield pos, record
        pos += record.length
        prev_crc = record.crc


def surviving_records(
    buf: Buffer, prev_crc: int, time_ms: int, *, is_searched: bool = False
) -> Iterator[tuple[int, JournalRecord, str]]:
    """The records of a journal that no commit word bounds, also behind damage: (offset, record, reason).

    Behind a break of the chain, a record is believed if its own checksum is right, and it continues the last
    record before the break (its writer knew of the damage) or is not older than that one. An older one is
    what another writer, which took the break for the end, has left behind its record.

    Args:
        buf: from the record that continues ``prev_crc`` on.
        prev_crc: of the record before, or the chain seed.
        time_ms: of the record before; 0 if there is none.
        is_searched: stop at the first break.

    Returns:
        An iterator; ``reason`` is "" for a record that continues the one before, else why the chain is
        broken before it.

    Example:
        >>> first, crc = pack_record(1, b"first", 7, 1)
        >>> second, _ = pack_record(1, b"second", crc, 2)
        >>> damaged = b"\\0" + first[1:]
        >>> [(record.payload, reason) for _, record, reason in surviving_records(damaged + second, 7, 0)]
        [(b'second', 'record length 0 does not fit before 64')]
    """
    pos, reason = 0, ""
    while True:
        try:
            for at, record in records(buf, pos, len(buf), prev_crc):
                yield at, record, reason
                pos, prev_crc, time_ms, reason = at + record.length, record.crc, record.time_ms, ""
            return
        except CorruptionError as e:
            reason = e.reason  # given with the next record, if there is one
        # The chain is broken, or the bytes are at their end: look at each record further on that verifies,
        # until one may follow.
        at = len(buf) if is_searched else next_intact(buf, pos, len(buf))
        while at < len(buf):
            record = record_at(memoryview(buf)[at:])
            if record.prev_crc == prev_crc or record.time_ms >= time_ms:
                break
            at = next_intact(buf, at + record.length, len(buf))
        else:
            return
        pos, prev_crc = at, record.prev_crc


def next_intact(buf: Buffer, pos: int, end: int) -> int:
    """Offset of the first record from `pos` on that verifies by itself, whatever it continues; else `end`."""
    for at in range(pos, end - RECORD_SIZE + 1, 8):
        # Most places are none by their first word, which is cheaper to see than by an exception.
        length = int.from_bytes(buf[at : at + 4], "little")
        if not length & 7 and RECORD_SIZE <= length <= min(MAX_RECORD_SIZE, end - at):
            with contextlib.suppress(CorruptionError):
                read_record(buf, at, end, int.from_bytes(buf[at + 8 : at + 12], "little"))
                return at
    return end


def damage_behind(buf: Buffer, pos: int, offset: int = 0) -> str:
    """What stands behind the unbroken chain, if it is neither nothing nor what a power loss leaves.

    A power loss, or a writer that died, leaves zeros; or the beginning of a record, up to the end of the
    file or of a sector that was written, and zeros from there on.

    Args:
        buf: of a journal, up to its end.
        pos: where in it the chain ends.
        offset: where in the file ``buf`` begins.

    Returns:
        Why it is damage; "" if it is none.
    """
    # Zeros: nothing was written behind the chain, or a power loss kept the size of the file and not the
    # bytes.
    if len(buf) < pos + RECORD_SIZE or not any(buf[pos : pos + 8]):
        return ""
    length = int.from_bytes(buf[pos : pos + 4], "little")
    # A record that would end beyond the file: its writer was killed half way.
    if len(buf) < pos + length <= pos + MAX_RECORD_SIZE:
        return ""
    # A sector is written as a whole or not at all, so a torn record ends at a multiple of 512 and zeros
    # follow.
    for sector in range(pos + _SECTOR - (offset + pos) % _SECTOR, pos + length, _SECTOR):
        if not any(buf[sector:]):
            return ""
    try:
        read_record(buf, pos, len(buf), int.from_bytes(buf[pos + 8 : pos + 12], "little"))
    except CorruptionError as e:
        return e.reason
    return "the chain is broken"


def valid_end(buf: Buffer, pos: int, end: int, prev_crc: int) -> tuple[int, int]:
    """(offset, crc) behind the last record of the unbroken chain from `pos`: where a torn journal is cut."""
    try:
        for at, record in records(buf, pos, end, prev_crc):
            pos, prev_crc = at + record.length, record.crc
    except CorruptionError:
        return pos, prev_crc
    return pos, prev_crc


# Record types; the owner of a journal numbers its own from 1. Persistent values, never renumber.
BASE: Final = 0
END: Final = 0xFFFF


BASE_BODY: Final = struct.Struct(
    "<"
    "I"  # 0  generation that is continued
    "I"  # 4  crc of its last record, or its chain seed
    "Q"  # 8  end offset of it when the snapshot was taken
)


class JournalBase(NamedTuple):
    """Where in the generation before the snapshot was taken."""

    generation: int
    crc: int
    end: int


def encode_base(base: JournalBase) -> bytes:
    """Payload of the record.

    Example:
        >>> decode_base(encode_base(JournalBase(3, 7, 64)))
        JournalBase(generation=3, crc=7, end=64)
    """
    return BASE_BODY.pack(*base)


def decode_base(payload: bytes) -> JournalBase:
    """The base of a payload."""
    if len(payload) != BASE_BODY.size:
        raise CorruptionError(reason=f"a base record of {len(payload)} bytes instead of {BASE_BODY.size}")
    return JournalBase(*BASE_BODY.unpack(payload))


class RecordTypes:
    """A registry. Filled while modules are imported, only read afterwards.

    Args:
        owner: what has such a journal, for error texts.

    Attributes:
        handlers: how the state machine of the owner follows a command, by the class of the command.

    >>> from typing import NamedTuple
    >>> Turn = NamedTuple("Turn", [("degrees", int)])
    >>> records = RecordTypes("table")
    >>> records.add_fixed(1, Turn, struct.Struct("<q"))
    >>> records.decode(*records.encode(Turn(-90)))
    Turn(degrees=-90)
    """

    __slots__ = ("_decoders", "_encoders", "_owner", "handlers")

    def __init__(self, owner: str) -> None:
        self._owner: Final = owner
        self._encoders: Final[dict[type, tuple[int, Callable[[Any], bytes]]]] = {}
        self._decoders: Final[dict[int, Callable[[Buffer], Any]]] = {}
        self.handlers: Final[dict[type, Callable[..., Any]]] = {}

    def add(
        self,
        kind: int,
        command: type,
        encode: Callable[[Any], bytes],
        decode: Callable[[Buffer], Any],
        handler: Callable[..., Any] | None = None,
    ) -> None:
        """Add a record type.

        Args:
            kind: its number, stored in every record.
            command: the class of its commands.
            encode: the payload of a command; `ValueError` for a field out of range.
            decode: the command of a payload; `CorruptionError` for a payload that is none.
            handler: follows a command; may also be put into `handlers` later, by a higher layer.

        Raises:
            ValueError: the number is taken, or belongs to the journal itself.
        """
        if kind in (BASE, END) or kind in self._decoders:
            raise ValueError(f"{kind} is not the number of a new command of a {self._owner}")
        self._encoders[command] = (kind, encode)
        self._decoders[kind] = decode
        if handler is not None:
            self.handlers[command] = handler

    def add_fixed(self, kind: int, command: type, body: struct.Struct) -> None:
        """Add a record type whose payload has the fields of the command in their order, and no others."""

        def decode(payload: Buffer) -> Any:
            return command(*unpack(body, payload, self._owner))

        self.add(kind, command, lambda fields: body.pack(*fields), decode)

    def remove(self, command: type) -> None:
        """Take a record type away, for tests that added one."""
        kind, _ = self._encoders.pop(command)
        del self._decoders[kind]
        self.handlers.pop(command, None)

    def encode(self, command: Any) -> tuple[int, bytes]:
        """Record type and payload of a command.

        Raises:
            ValueError, struct.error: a field is out of its range.
        """
        kind, encode = self._encoders[type(command)]
        return kind, encode(command)

    def decode(self, kind: int, payload: Buffer) -> Any:
        """The command of a record.

        Raises:
            UnsupportedFormatVersion: a command of a newer release: the record itself is intact.
            CorruptionError: its fields do not fit the payload.
        """
        decoder = self._decoders.get(kind)
        if decoder is None:
            self.require_known(kind)
            raise CorruptionError(reason=f"record {kind} of the journal itself in the place of a command")
        return decoder(payload)

    def require_known(self, kind: int) -> None:
        """Raise if a record is of no type of this release.

        Raises:
            UnsupportedFormatVersion: a newer release wrote it.
        """
        if kind not in self._decoders and kind not in (BASE, END):
            known = f"this release reads types up to {max(self._decoders, default=0)}"
            raise UnsupportedFormatVersion(
                reason=f"it has a {self._owner} command of type {kind}; {known}",
                remedy="upgrade embeddedpulsar",
            )


def unpack(body: struct.Struct, payload: Buffer, owner: str) -> tuple[Any, ...]:
    """The fields that a payload begins with."""
    if len(payload) < body.size:
        reason = f"{owner} command of {len(payload)} bytes, at least {body.size} expected"
        raise CorruptionError(reason=reason)
    return body.unpack_from(payload, 0)


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
TopicCommand: TypeAlias = "tuple[Any, ...]"
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
