"""A subscription's state as a document (docs/format/subscription.md): what a new generation of the
journal starts from. The same state always gives the same bytes, which makes their checksum a test of
replicas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeVar
from zlib import crc32

from embeddedpulsar._engine.format.acknowledgement import MAX_BATCH_SIZE, MAX_ENTRY_ID
from embeddedpulsar._engine.format.document import (
    KIND_SUBSCRIPTION_SNAPSHOT,
    decode_document,
    encode_document,
)
from embeddedpulsar._engine.format.subscription_record import CONSUMER_TYPES, Checkpoint, ConsumerRules
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.subscription.state.ack_bitmaps import AckBitmaps
from embeddedpulsar.subscription.state.consumer_registry import Consumer
from embeddedpulsar.subscription.state.expired_counts import NOTHING_EXPIRED, ExpiredCounts
from embeddedpulsar.subscription.state.ledger_acks import OPEN, LedgerAcks
from embeddedpulsar.subscription.state.resting_counts import RestingCounts
from embeddedpulsar.subscription.state.state_machine import SubscriptionState

T = TypeVar("T")
DISTORTIONS: Final = (KeyError, TypeError, ValueError, IndexError, OverflowError)
"""The errors that reading a state from a malformed document may raise."""


def encode_snapshot(state: SubscriptionState) -> bytes:
    """The whole state.

    Raises:
        ValueError: larger than a document may be (64 MiB, some hundred thousand partly acknowledged ledgers).
    """
    dispatch = state.dispatch
    counts = dispatch.counts.pack() if dispatch.counts else None
    packed = dispatch.pack(state.acks) if dispatch.assigned_by_consumer else None
    expired = state.expired.pack() if state.expired.total else None
    return _document(state, packed, counts, state.last_active_ms, expired)


def _document(
    state: SubscriptionState,
    dispatch: list[Any] | None,
    counts: Any,
    last_active_ms: int = 0,
    expired: list[Any] | None = None,
) -> bytes:
    optional = {} if counts is None else {"counts": counts}
    if expired is not None:
        optional["expired"] = expired
    if last_active_ms:
        optional["last_active_ms"] = last_active_ms
    return encode_document(
        KIND_SUBSCRIPTION_SNAPSHOT,
        {
            "exists": state.exists,
            "name": state.name,
            "epoch": state.epoch,
            "commands": state.commands,
            "digest": state.digest,
            "stale": state.stale,
            "consumers": [_pack_consumer(consumer) for consumer in state.consumers.all()],
            "dispatch": dispatch,
            "ledgers": pack_ledgers(state.acks),
            **optional,
        },
    )


def decode_snapshot(data: bytes) -> SubscriptionState:
    """The state `encode_snapshot` wrote.

    Raises:
        CorruptionError, ForeignFileError, UnsupportedFormatVersion: this is no such document.
    """
    fields = decode_document(data, KIND_SUBSCRIPTION_SNAPSHOT)
    state = SubscriptionState()
    try:
        state.exists = _typed(bool, fields["exists"])
        state.name = _typed(str, fields["name"])
        state.epoch = _typed(int, fields["epoch"])
        state.commands = _typed(int, fields["commands"])
        state.digest = _typed(int, fields["digest"])
        state.stale = _typed(int, fields["stale"])
        for consumer in fields["consumers"]:
            state.consumers.add(_consumer(*consumer))
        state.acks = unpack_ledgers(fields["ledgers"])
        if fields["dispatch"] is not None:
            state.dispatch.unpack(fields["dispatch"])
        state.dispatch.counts = RestingCounts.unpack(fields.get("counts", ()))
        state.last_active_ms = _typed(int, fields.get("last_active_ms", 0))
        state.expired = ExpiredCounts.unpack(fields.get("expired", NOTHING_EXPIRED))
    except DISTORTIONS as e:
        raise CorruptionError(reason=f"the snapshot lacks or distorts {e or type(e).__name__}") from e
    return state


def _typed(kind: type[T], value: object) -> T:
    if type(value) is not kind:
        raise TypeError(f"{value!r} where {kind.__name__} belongs")
    return value


def checkpoint_of(state: SubscriptionState) -> Checkpoint:
    """A checksum that all replicas must agree on after the same commands.

    Taken under the lock, so it does not read the single entries: `digest` stands for them, which every
    change of an entry is mixed into.
    """
    dispatch = state.dispatch
    outline = dispatch.outline() if dispatch.assigned_by_consumer else None
    counts = len(dispatch.counts) or None
    return Checkpoint(state.commands, state.digest, crc32(_document(state, outline, counts)))


def pack_ledgers(acks: AckBitmaps) -> list[Any]:
    """All acknowledgements, packed."""
    return [_pack_ledger(ledger_id, one) for ledger_id, one in acks.ledgers()]


def unpack_ledgers(packed: Sequence[Sequence[Any]], before: AckBitmaps | None = None) -> AckBitmaps:
    """The acknowledgements that `pack_ledgers` packed.

    Args:
        packed: the result of `pack_ledgers`.
        before: the same subscription at an earlier time, which is used up: bitmaps are long.
    """
    ledgers = []
    for ledger_id, *fields in packed:
        acks = None if before is None else before.ledger(ledger_id)
        ledgers.append(_unpack_ledger(acks or LedgerAcks(), ledger_id, *fields))
    return AckBitmaps.of(ledgers)


def _pack_ledger(ledger_id: int, acks: LedgerAcks) -> list[Any]:
    partial = [
        [entry, whole.bit_length() - 1, acks.indexes(entry).to_bytes((whole.bit_length() + 6) >> 3, "little")]
        for entry, whole in sorted(acks.partial.items())
    ]
    return [ledger_id, acks.entries, acks.floor, acks.window(), partial]


def _unpack_ledger(
    acks: LedgerAcks,
    ledger_id: int,
    entries: int,
    floor: int,
    window: bytes,
    partial: list[tuple[int, int, bytes]],
) -> tuple[int, LedgerAcks]:
    if not (0 <= floor <= MAX_ENTRY_ID + 1 and OPEN <= entries <= MAX_ENTRY_ID + 1 and ledger_id >= 0):
        raise ValueError(f"ledger {ledger_id} with {entries} entries acknowledged below {floor}")
    acks.entries = entries
    acks.restore(floor, window)
    acks.partial.clear()
    for entry, size, indexes in partial:
        if not (0 <= entry <= MAX_ENTRY_ID and 0 < size <= MAX_BATCH_SIZE):
            raise ValueError(f"batch {entry} of {size} messages")
        acks.add_indexes(entry, size, int.from_bytes(indexes, "little"))
    return ledger_id, acks


def _pack_consumer(consumer: Consumer) -> list[Any]:
    *fields, rules = consumer
    return [*fields, [*rules[:-1], [list(one) for one in rules.ranges]]]


def _consumer(
    consumer_id: int,
    name: str,
    consumer_type: int,
    priority: int,
    uuid: bytes,
    attached_ms: int,
    epoch: int,
    code: int,
    rules: list[Any],
) -> Consumer:
    if len(_typed(bytes, uuid)) != 16:
        raise ValueError(f"the uuid of consumer {name!r}")
    _typed(str, name)
    if consumer_type not in CONSUMER_TYPES:
        raise ValueError(f"the type {consumer_type!r} of consumer {name!r}")
    *numbers, ranges = rules
    for number in (consumer_id, consumer_type, priority, attached_ms, epoch, code, *numbers):
        _typed(int, number)
    asked = ConsumerRules._make([*numbers, tuple((_typed(int, a), _typed(int, b)) for a, b in ranges)])
    return Consumer(consumer_id, name, consumer_type, priority, uuid, attached_ms, epoch, code, asked)
