"""Acknowledgements that are not written yet: the file `acks.<consumer id>` (docs/format/control.md).

A header like that of a control file, and words. One process writes them, one aligned 8-byte store at a time;
others read them when its consumer leaves. A word that is 0 says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from embeddedpulsar.format.acknowledgement import MAX_BATCH_SIZE, MAX_ENTRY_ID
from embeddedpulsar.format.control import CONTROL_HEADER_SIZE, KIND_ACKS, ControlHeader, parse_control_header
from embeddedpulsar.records import NamedTuple

RING_SIZE: Final = 16384
_LEAST: Final = 256  # bytes: all words before ENTRIES are always among those that are read
_LOW: Final = 0xFFFFFFFF


class RingWord:
    """Word indexes (byte offset / 8)."""

    EPOCH: Final = 16  # of the consumer when it acknowledged; stored last, cleared first; 0: nothing counts
    CUMULATIVE: Final = 20  # two pairs, used in turn
    ENTRIES: Final = 24  # single words, used in turn
    PARTS: Final = 1280  # pairs, to the end


class Unwritten(NamedTuple):
    """What a consumer acknowledged, as far as its process came to say so; some of it may be written.

    Attributes:
        consumer_id, epoch: of the consumer.
        entries: whole entries, as (ledger, entry).
        parts: (ledger, entry) -> (bit set of acknowledged batch indexes, messages in the batch).
        cumulative: (ledger, entry, batch index or -1, messages in the batch or 0).
    """

    consumer_id: int
    epoch: int
    entries: list[tuple[int, int]]
    parts: dict[tuple[int, int], tuple[int, int]]
    cumulative: list[tuple[int, int, int, int]]


def place_word(ledger_id: int, entry_id: int) -> int:
    """The word for an entry, never 0; of entry -1 of ledger 0, where nothing is, it is.

    Example:
        >>> place_word(7, 3) == 7 << 32 | 4
        True
    """
    return (ledger_id << 32) + entry_id + 1


def index_word(index: int, size: int) -> int:
    """The word behind that of the entry: a message of a batch of ``size``; index -1 for the whole entry."""
    return (index & _LOW) << 32 | size


def parse_ring(data: bytes) -> tuple[ControlHeader, Unwritten]:
    """Decode a whole file. Words that cannot be are left out.

    Raises:
        CorruptionError: it is no such file, or was never completed.
        UnsupportedFormatVersion: a newer release, or the other byte order, wrote it.
    """
    header = parse_control_header(data[:CONTROL_HEADER_SIZE], KIND_ACKS)
    words = _words_in_use(data[:RING_SIZE].ljust(RING_SIZE, b"\0"))
    entries = set(map(_place, filter(None, words[RingWord.ENTRIES : RingWord.PARTS])))
    parts: dict[tuple[int, int], tuple[int, int]] = {}
    if len(words) > RingWord.PARTS:
        for place, index, size in _pairs(words, RingWord.PARTS, RING_SIZE // 8):
            if 0 <= index < size and place[1] >= 0:
                bits, most = parts.get(place, (0, size))
                parts[place] = (bits | 1 << index, max(most, size))
    cumulative = []
    if any(words[RingWord.CUMULATIVE : RingWord.ENTRIES]):
        for place, index, size in _pairs(words, RingWord.CUMULATIVE, RingWord.ENTRIES):
            index, size = (index, size) if index < size else (-1, 0)
            cumulative.append((*place, index, size))
    real = sorted(place for place in entries if 0 <= place[1] <= MAX_ENTRY_ID)
    return header, Unwritten(header.incarnation, words[RingWord.EPOCH], real, parts, sorted(cumulative))


def _words_in_use(data: bytes) -> list[int]:
    """The words up to the last one in use, and some zeros: most consumers leave little behind, and the next
    one waits meanwhile."""
    end = RING_SIZE
    while end > _LEAST and data.startswith(bytes(end // 2), end // 2):
        end //= 2
    return memoryview(data)[:end].cast("Q").tolist()


def _pairs(words: list[int], first: int, end: int) -> Iterator[tuple[tuple[int, int], int, int]]:
    for at in range(first, min(end, len(words)), 2):
        if words[at]:
            place, size = _place(words[at]), words[at + 1] & _LOW
            if place[1] <= MAX_ENTRY_ID and size <= MAX_BATCH_SIZE:
                yield place, words[at + 1] >> 32, size


def _place(word: int) -> tuple[int, int]:
    return word >> 32, (word & _LOW) - 1
