"""The acknowledgement command: entries of any number of ledgers in the form that is smallest (docs/format/
subscription.md). Hot: one per group of acknowledgements.

In-order acknowledgement is one range of 24 bytes whatever its length; a scattered group is a bitmap when
that is smaller than four bytes an entry, and a list otherwise.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress

from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Final

ACK: Final = 5
"""Record type. Persistent value, never renumber."""

ACK_HEADER: Final = struct.Struct(
    "<"
    "Q"  # 0  consumer_id
    "Q"  # 8  epoch of that consumer
    "I"  # 16 groups that follow
    "I"  # 20 batches that follow the groups
)
ACK_GROUP: Final = struct.Struct(
    "<"
    "Q"  # 0  ledger_id
    "I"  # 8  first entry
    "I"  # 12 last entry
    "I"  # 16 data_length; the data follows, padded with zeros to 8
    "H"  # 20 form: 0 range, 1 bitmap, 2 list
    "H"  # 22 reserved, 0
)
ACK_BATCH: Final = struct.Struct(
    "<"
    "Q"  # 0  ledger_id
    "I"  # 8  entry_id
    "I"  # 12 batch_size; a bitmap of the acknowledged indexes follows, padded with zeros to 8
)
FORM_RANGE: Final = 0  # first to last, no data
FORM_BITMAP: Final = 1  # bit i of the data is entry first + i, lowest bit of a byte first
FORM_LIST: Final = 2  # u32 entries in any order
MAX_ENTRY_ID: Final = (1 << 29) - 1  # a segment of 32 GiB holds no more frames
MAX_BATCH_SIZE: Final = 1 << 20
_MASK: Final = bytes(255 if code == ord("1") else 0 for code in range(256))
_new: Final = tuple.__new__  # as a call of the class, without another one
_PADDING: Final = tuple(bytes(n) for n in range(8))

Buffer = bytes | bytearray | memoryview


class AckGroup(NamedTuple):
    """Entries of one ledger, all within ``first..last``."""

    ledger_id: int
    first: int
    last: int
    form: int
    data: bytes

    def entries(self) -> tuple[int, ...]:
        return struct.unpack(f"<{len(self.data) // 4}I", self.data)

    def expanded(self) -> Sequence[int]:
        """The entries, whatever the form."""
        if self.form == FORM_RANGE:
            return range(self.first, self.last + 1)
        if self.form == FORM_LIST:
            return self.entries()
        return list(compress(range(self.first, self.last + 1), self.mask()))

    def mask(self) -> bytes:
        """Of a bitmap: a byte for each entry from `first` on, 255 if it is in the group, else 0."""
        digits = f"{int.from_bytes(self.data, 'little'):b}"
        return digits.encode()[::-1].translate(_MASK)


class AckBatch(NamedTuple):
    """Acknowledged indexes, a bit set, of an entry of ``size`` messages."""

    ledger_id: int
    entry_id: int
    size: int
    indexes: int


class Ack(NamedTuple):
    """Single entries and parts of batches."""

    consumer_id: int
    epoch: int
    groups: tuple[AckGroup, ...]
    batches: tuple[AckBatch, ...]


def group_entries(entries: Iterable[tuple[int, int]]) -> tuple[AckGroup, ...]:
    """Groups for (ledger, entry) pairs, one per ledger, ascending. Order and repetition do not matter.

    Raises:
        ValueError: an entry id no ledger can have.

    Example:
        >>> [(group.first, group.last, group.form) for group in group_entries([(5, 3), (5, 1), (5, 2)])]
        [(1, 3, 0)]
    """
    pairs = list(entries)
    if not pairs:
        return ()
    if len(pairs) == 1:
        ((ledger_id, entry_id),) = pairs
        if 0 <= entry_id <= MAX_ENTRY_ID:  # else the error says so
            return (_new(AckGroup, (ledger_id, entry_id, entry_id, FORM_RANGE, b"")),)
    common = pairs[0][0]
    of_common = [entry_id for ledger_id, entry_id in pairs if ledger_id == common]
    if len(of_common) == len(pairs):  # almost always; half the time of what follows
        return (_group(common, of_common),)
    by_ledger: dict[int, list[int]] = {}
    for ledger_id, entry_id in pairs:
        if ledger_id in by_ledger:
            by_ledger[ledger_id].append(entry_id)
        else:
            by_ledger[ledger_id] = [entry_id]
    return tuple(_group(ledger_id, by_ledger[ledger_id]) for ledger_id in sorted(by_ledger))


def group_batches(partial: Mapping[tuple[int, int], tuple[int, int]]) -> tuple[AckBatch, ...]:
    """Batches for ``{(ledger, entry): (bit set of acknowledged indexes, batch size)}``, ascending.

    Raises:
        ValueError: an entry id, size or index no batch can have.
    """
    for (_, entry_id), (indexes, size) in partial.items():
        if not (0 <= entry_id <= MAX_ENTRY_ID and 0 < size <= MAX_BATCH_SIZE and 0 <= indexes < 1 << size):
            raise ValueError(f"no batch of {size} messages in entry {entry_id} has the indexes {indexes:b}")
    return tuple(
        AckBatch(ledger_id, entry_id, size, indexes)
        for (ledger_id, entry_id), (indexes, size) in sorted(partial.items())
    )


def _group(ledger_id: int, entries: list[int]) -> AckGroup:
    first, last = entries[0], entries[-1]
    is_run = last - first + 1 == len(entries) and entries == list(range(first, last + 1))
    if not is_run:
        first, last = min(entries), max(entries)
    if first < 0 or last > MAX_ENTRY_ID:
        raise ValueError(f"no ledger has entry {first if first < 0 else last}")
    if is_run:
        return AckGroup(ledger_id, first, last, FORM_RANGE, b"")
    span = last - first + 1
    if span > 32 * len(entries):
        return AckGroup(ledger_id, first, last, FORM_LIST, struct.pack(f"<{len(entries)}I", *entries))
    digits = bytearray(b"0") * span  # the bitmap in binary digits: a third of the cost of setting bits
    for entry in entries:
        digits[last - entry] = 49
    bitmap = int(digits, 2)
    if bitmap.bit_count() == span:
        return AckGroup(ledger_id, first, last, FORM_RANGE, b"")
    return AckGroup(ledger_id, first, last, FORM_BITMAP, bitmap.to_bytes((span + 7) >> 3, "little"))


def encode_ack(command: Ack) -> bytes:
    """Payload of an acknowledgement."""
    consumer_id, epoch, groups, batches = command
    parts = [ACK_HEADER.pack(consumer_id, epoch, len(groups), len(batches)), pack_groups(groups)]
    for ledger_id, entry_id, size, indexes in batches:
        bitmap = indexes.to_bytes((size + 7) >> 3, "little")
        parts += (ACK_BATCH.pack(ledger_id, entry_id, size), bitmap, _PADDING[-len(bitmap) & 7])
    return b"".join(parts)


def pack_groups(groups: Sequence[AckGroup]) -> bytes:
    """Groups, one behind the other."""
    parts: list[bytes] = []
    for ledger_id, first, last, form, data in groups:
        parts += (ACK_GROUP.pack(ledger_id, first, last, len(data), form, 0), data, _PADDING[-len(data) & 7])
    return b"".join(parts)


def decode_ack(payload: Buffer) -> Ack:
    """The acknowledgement of a payload."""
    end = len(payload)
    if end < ACK_HEADER.size:
        raise CorruptionError(reason=f"acknowledgement of {end} bytes")
    consumer_id, epoch, group_count, batch_count = ACK_HEADER.unpack_from(payload, 0)
    at = ACK_HEADER.size
    if group_count * ACK_GROUP.size + batch_count * ACK_BATCH.size > end - at:
        raise CorruptionError(reason=f"{group_count} groups and {batch_count} batches in {end} bytes")
    groups, at = read_groups(payload, at, end, group_count)
    batches = []
    for _ in range(batch_count):
        batch, at = _read_batch(payload, at, end)
        batches.append(batch)
    if at != end:
        raise CorruptionError(reason=f"{end - at} bytes behind the acknowledgement")
    return Ack(consumer_id, epoch, groups, tuple(batches))


def read_groups(payload: Buffer, at: int, end: int, count: int) -> tuple[tuple[AckGroup, ...], int]:
    """``count`` groups that begin at byte ``at``, and where they end."""
    if count * ACK_GROUP.size > end - at:
        raise CorruptionError(reason=f"{count} groups in {end - at} bytes")
    groups = []
    for _ in range(count):
        group, at = _read_group(payload, at, end)
        groups.append(group)
    return tuple(groups), at


def _read_group(payload: Buffer, at: int, end: int) -> tuple[AckGroup, int]:
    start = at + ACK_GROUP.size
    if start > end:
        raise CorruptionError(reason="acknowledgement cut short")
    ledger_id, first, last, length, form, _ = ACK_GROUP.unpack_from(payload, at)
    if not first <= last <= MAX_ENTRY_ID or length > end - start:
        raise CorruptionError(reason=f"entries {first} to {last} in {length} bytes do not fit")
    group = AckGroup(ledger_id, first, last, form, bytes(payload[start : start + length]))
    if form == FORM_LIST:
        entries = group.entries() if length and length % 4 == 0 else ()
        fits = len(entries) > 0 and first <= min(entries) and max(entries) <= last
    elif form == FORM_BITMAP:
        fits = int.from_bytes(group.data, "little").bit_length() == last - first + 1
    else:
        fits = form == FORM_RANGE and not length
    if not fits:
        raise CorruptionError(reason=f"data of form {form} is not that of entries {first} to {last}")
    return group, start + length + (-length & 7)


def _read_batch(payload: Buffer, at: int, end: int) -> tuple[AckBatch, int]:
    start = at + ACK_BATCH.size
    if start > end:
        raise CorruptionError(reason="acknowledgement cut short")
    ledger_id, entry_id, size = ACK_BATCH.unpack_from(payload, at)
    length = (size + 7) >> 3
    if entry_id > MAX_ENTRY_ID or not 0 < size <= MAX_BATCH_SIZE or length > end - start:
        raise CorruptionError(reason=f"a batch of {size} messages in entry {entry_id} does not fit")
    indexes = int.from_bytes(payload[start : start + length], "little")
    if indexes >> size:
        raise CorruptionError(reason=f"an index beyond a batch of {size} messages")
    return AckBatch(ledger_id, entry_id, size, indexes), start + length + (-length & 7)


def bitsets_of(partial: Mapping[tuple[int, int], bytes]) -> dict[tuple[int, int], tuple[int, int]]:
    """Return one bit per message, the first one lowest, and the number of messages.

    >>> bitsets_of({(7, 0): bytes([1, 0, 1])})
    {(7, 0): (5, 3)}
    """
    sets = {}
    for position, flags in partial.items():
        bits = 0
        for index, flag in enumerate(flags):
            bits |= flag << index
        sets[position] = (bits, len(flags))
    return sets
