"""Messages that can be recognised: who sent them, in which life, the how-manieth, and whether they are
whole."""

from __future__ import annotations

import random
import struct
import zlib
from typing import Final, NamedTuple

_HEAD: Final = struct.Struct("<IQQI")
_CRC: Final = struct.Struct("<I")
_FILLER: Final = random.Random(20240229).randbytes(1 << 17)
_LARGEST: Final = 1 << 16


class Mark(NamedTuple):
    """What a payload says of itself: ``run`` counts the lives of the producer."""

    producer: int
    run: int
    sequence: int


def make_payload(mark: Mark, size: int) -> bytes:
    """About ``size`` bytes (28 to 64 Ki) that carry ``mark`` and a checksum over everything."""
    length = min(max(0, size - _HEAD.size - _CRC.size), _LARGEST)
    start = (mark.sequence * 7919 + mark.producer * 104729) % (len(_FILLER) - length)
    body = _HEAD.pack(*mark, length) + _FILLER[start : start + length]
    return body + _CRC.pack(zlib.crc32(body))


def read_payload(data: bytes) -> Mark | None:
    """The mark of a payload; None when it is not, byte for byte, what was sent."""
    if len(data) < _HEAD.size + _CRC.size:
        return None
    producer, run, sequence, length = _HEAD.unpack_from(data)
    if len(data) != _HEAD.size + length + _CRC.size:
        return None
    if zlib.crc32(data[: -_CRC.size]) != _CRC.unpack_from(data, len(data) - _CRC.size)[0]:
        return None
    return Mark(producer, run, sequence)
