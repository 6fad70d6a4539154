"""The records a journal writes for itself (docs/format/journal.md).

BASE is the first record of every generation that starts from a snapshot. It tells recovery whether the
generation before went on after the snapshot was taken (then this one was never switched to), and how far
to replay that one when the snapshot is damaged. END is the last record of a journal whose owner was
removed.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from embeddedpulsar.exceptions import CorruptionError

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
    """The base of a payload.

    Raises:
        CorruptionError: it does not have the size of one.
    """
    if len(payload) != BASE_BODY.size:
        raise CorruptionError(reason=f"a base record of {len(payload)} bytes instead of {BASE_BODY.size}")
    return JournalBase(*BASE_BODY.unpack(payload))
