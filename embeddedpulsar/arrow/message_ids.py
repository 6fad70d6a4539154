"""`MessageId.serialize()` for whole batches, without a Python step per message.

Within a batch only the batch index differs, so its ids are one `join` of the 1- and 2-byte index texts with
what stands between them, and their offsets are an arithmetic progression per index length:

    08 <ledger> 10 <entry> [18 <partition>] 20 | <index> | 30 <size>
"""

from __future__ import annotations

from array import array
from itertools import accumulate, chain, repeat
from typing import Any, Final

import pyarrow as pa

from embeddedpulsar.format.chunk import Entry
from embeddedpulsar.message_id import make

_CACHED_OFFSETS: Final = 64


def varint(value: int) -> bytes:
    """A non-negative number as protobuf writes it.

    Example:
        >>> varint(5).hex(), varint(300).hex()
        ('05', 'ac02')
    """
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class MessageIds:
    """Builds the ids of the messages of one ledger. Holds caches; one thread at a time.

    Args:
        ledger_id: the ledger.
        partition: index of the partition, or -1.
    """

    def __init__(self, ledger_id: int, partition: int) -> None:
        self._ledger_id = ledger_id
        self._partition = partition
        self._front = b"\x08" + varint(ledger_id) + b"\x10"
        self._back = b"" if partition < 0 else b"\x18" + varint(partition)
        self._indexes: list[bytes] = []
        self._offsets: dict[int, Any] = {}
        self._high: dict[int, bytes] = {}

    def batch(self, entry_id: int, count: int) -> Any:
        """Ids of messages 0 to count - 1 of a batch, as a binary array."""
        before = self._front + varint(entry_id) + self._back + b"\x20"
        after = b"\x30" + varint(count)
        indexes = self._indexes
        if len(indexes) < count:
            indexes.extend(map(varint, range(len(indexes), count)))
        data = b"".join((before, (after + before).join(indexes[:count]), after))
        offsets = self._batch_offsets(len(before) + len(after), count)
        return pa.Array.from_buffers(pa.binary(), count, [None, offsets, pa.py_buffer(data)], null_count=0)

    def singles(self, entry_ids: list[int], *, batched: bool) -> list[bytes]:
        """Ids of entries that hold one message each; `batched` for a batch of one."""
        front, back, high = self._front, self._back, self._high
        if batched:
            back += b"\x20\x00\x30\x01"
        for upper in {entry_id >> 7 for entry_id in entry_ids} - high.keys():
            high[upper] = varint(upper)
        return [
            front + bytes((e,)) + back
            if e < 0x80
            else b"%b%c%b%b" % (front, e & 0x7F | 0x80, high[e >> 7], back)
            for e in entry_ids
        ]

    def chunked(self, entry_id: int, earlier: tuple[Entry, ...]) -> bytes:
        """The id of a chunked message, which remembers its first part."""
        found = make(self._ledger_id, entry_id, -1, self._partition, 0)
        if earlier:
            found._first_chunk = make(*earlier[0], -1, self._partition, 0)
        return found.serialize()

    def _batch_offsets(self, fixed: int, count: int) -> Any:
        """Offsets of `count` ids that are `fixed` bytes long without their index."""
        have = self._offsets.get(fixed)
        if have is None or have.size < 4 * count + 4:
            if len(self._offsets) > _CACHED_OFFSETS:
                self._offsets.clear()
            lengths = chain.from_iterable(
                repeat(fixed + size, (1 << 7 * size) - (1 << 7 * (size - 1) if size > 1 else 0))
                for size in range(1, 6)
            )
            room = max(count, 1024)
            limited = (length for length, _ in zip(lengths, range(room), strict=False))
            have = pa.py_buffer(array("i", accumulate(limited, initial=0)))
            self._offsets[fixed] = have
        return have.slice(0, 4 * count + 4)
