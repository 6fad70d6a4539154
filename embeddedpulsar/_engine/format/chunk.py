"""The chunk column: what a part of a message over ``maxMessageSize`` says of it (docs/format/frame.md).

Every part is an entry. All but the last hold no message (their frame says 0) and bytes of the payload; the
last one holds the message, the rest of the payload, and where the others are.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

from embeddedpulsar._engine.format.entry_decoder import EntryView
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.records import NamedTuple

RUN: Final = struct.Struct(
    "<"
    "Q"  # 0  ledger_id
    "I"  # 8  first entry
    "I"  # 12 how many entries follow each other
)
LARGEST_MESSAGE: Final = 0x7E00_0000
"""Bytes of a chunked payload: what LZ4 takes, and what fits into an Arrow column. Just below 2 GiB."""

MOST_CHUNKS: Final = 1 << 20

Entry = tuple[int, int]


class Chunk(NamedTuple):
    """One part of a chunked message.

    Attributes:
        uuid: of the message, ``<producer>-<sequence id>``.
        number: of this part, from 0.
        total: parts of the message.
        size: bytes of all parts together, as they are stored.
        earlier: the entries of the parts before, in order; only in the last part.
        codec: how the payload was packed before it was cut; only in the last part.
        length: bytes of the payload; only in the last part.
    """

    uuid: str
    number: int
    total: int
    size: int
    earlier: tuple[Entry, ...] = ()
    codec: int = 0
    length: int = 0

    @property
    def is_last(self) -> bool:
        """Whether this part holds the message."""
        return self.number == self.total - 1

    def fields(self) -> dict[str, Any]:
        """The map that is stored."""
        fields: dict[str, Any] = {
            "uuid": self.uuid,
            "chunk": self.number,
            "chunks": self.total,
            "size": self.size,
        }
        if self.is_last:
            fields |= {"earlier": pack_runs(self.earlier), "codec": self.codec, "length": self.length}
        return fields


def read_chunk(fields: dict[str, Any]) -> Chunk:
    """The part that a stored map describes.

    Raises:
        CorruptionError: something is missing, or does not fit together.

    Example:
        >>> read_chunk(Chunk("p-7", 1, 2, 30, ((5, 0),), 0, 30).fields()).earlier
        ((5, 0),)
    """
    uuid, numbers = fields.get("uuid"), [fields.get(name) for name in ("chunk", "chunks", "size")]
    # The map is msgpack of any writer, so the types are looked at before anything is counted with.
    # `type` and not `isinstance`, because a bool is an int for Python and is no number here.
    if type(uuid) is not str or not all(type(value) is int for value in numbers):
        raise CorruptionError(reason="a chunk without its fields")
    number, total, size = (int(value or 0) for value in numbers)
    # Bounds before `unpack_runs` makes a tuple of that many places: a damaged count allocates
    # nothing.
    if not 0 <= number < total <= MOST_CHUNKS or not 0 <= size <= LARGEST_MESSAGE:
        raise CorruptionError(reason=f"chunk {number} of {total}, {size} bytes")
    # Every part but the last: where all of them are is known only when the last one is stored.
    if number < total - 1:
        return Chunk(uuid, number, total, size)
    packed, codec, length = (fields.get(name) for name in ("earlier", "codec", "length"))
    if type(packed) is not bytes or type(codec) is not int or type(length) is not int:
        raise CorruptionError(reason="a last chunk without its fields")
    earlier = tuple(unpack_runs(packed, total - 1))
    # The last part. Without a codec the payload is what was stored, so the two sizes are one.
    if not 0 <= length <= LARGEST_MESSAGE or (not codec and length != size):
        raise CorruptionError(reason=f"a chunked message of {length} bytes in {size}")
    return Chunk(uuid, number, total, size, earlier, codec, length)


def pack_runs(entries: Sequence[Entry]) -> bytes:
    """Entries in order as runs; entries that follow each other take 16 bytes together.

    Example:
        >>> len(pack_runs([(5, 0), (5, 1), (5, 3), (6, 0)]))
        48
    """
    if not entries:
        return b""
    breaks = [0]
    breaks += [
        at
        for at, ((ledger, entry), following) in enumerate(pairwise(entries), 1)
        if following != (ledger, entry + 1)
    ]
    breaks.append(len(entries))
    return b"".join(RUN.pack(*entries[start], end - start) for start, end in pairwise(breaks))


def unpack_runs(packed: bytes, chunks: int) -> Iterator[Entry]:
    """What `pack_runs` packed, which must be ``chunks`` entries."""
    if len(packed) % RUN.size or sum(count for _, _, count in RUN.iter_unpack(packed)) != chunks:
        raise CorruptionError(reason=f"places of {chunks} chunks in {len(packed)} bytes")
    before = (-1, -1)
    for ledger, first, count in RUN.iter_unpack(packed):
        if (ledger, first) <= before:
            raise CorruptionError(reason="chunks that are not in order")
        yield from ((ledger, first + at) for at in range(count))
        before = (ledger, first + count - 1)


class WholeEntryView(EntryView):
    """The last part of a chunked message with the payload of all.

    Attributes:
        earlier: the entries of the parts before it, in order.
    """

    __slots__ = ("earlier",)

    earlier: tuple[tuple[int, int], ...]

    @property
    def first_chunk(self) -> tuple[int, int] | None:
        """The entry of the first part; None for the only one."""
        return self.earlier[0] if self.earlier else None


def whole_entry(last: EntryView, payload: bytes, earlier: tuple[tuple[int, int], ...]) -> WholeEntryView:
    """A chunked message, of its last part and all that belongs to it."""
    view = WholeEntryView()
    for name in EntryView.__slots__:
        if hasattr(last, name):  # not all entries have an encryption context
            setattr(view, name, getattr(last, name))
    view.payload = payload
    view.offsets = [0, len(payload)]
    view.earlier = earlier
    return view
