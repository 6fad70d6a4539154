"""What the headers of all files share: marks, versions, the checksum, and how a file is refused.

Why CRC-32: it is in the standard library, costs about 0.2 us on a small frame and 0.23 us per KiB beyond,
takes any buffer (a memory map too), releases the GIL above 5 KiB, finds every burst of damage of up to 32
bits, and lets 1 of 2**32 random damages through. A faster hash would be a dependency for a gain that only
payloads above 64 KiB could show; segment headers name the checksum type, so one may be added later.

Why seeded: a record's own length has to be read before anything can be checked. Feeding it to the CRC as
the start value binds it without spending bytes or time: two different lengths over the same bytes always
give two different checksums.
"""

from __future__ import annotations

import sys
from typing import Final, NoReturn
from zlib import crc32

from embeddedpulsar.exceptions import CorruptionError, UnsupportedFormatVersion

BYTE_ORDER_MARK: Final = 0x0102
"""Written little-endian; read as 0x0201 where a file came from, or came to, a big-endian machine."""
FORMAT_VERSION: Final = 1
"""Version of every binary file kind. Raised when an old reader would misread a new file."""

Buffer = bytes | bytearray | memoryview
CHECKSUM_CRC32 = 1
"""`checksum_type` of segment headers. Persistent value, never renumber."""


def require_little_endian() -> None:
    """Refuse machines whose mapped words would not be little-endian.

    Raises:
        UnsupportedFormatVersion: this is a big-endian machine.
    """
    if sys.byteorder != "little":
        raise UnsupportedFormatVersion(
            reason="files are little-endian and mapped as they are",
            remedy="use a little-endian machine, or export the data there",
        )


def is_header(covered: Buffer, magic: bytes, crc: int) -> bool:
    """Whether a header, up to its checksum, is intact, of this kind, version and byte order.

    Magic, version and mark are the first 8 bytes of every header.
    """
    return (
        covered[:4] == magic
        and int.from_bytes(covered[4:6], "little") == FORMAT_VERSION
        and int.from_bytes(covered[6:8], "little") == BYTE_ORDER_MARK
        and crc32(covered) == crc
    )


def refuse(covered: Buffer, magic: bytes, crc: int, kind: str) -> NoReturn:
    """Raise the error that fits a header for which `is_header` is false.

    A version or byte order is believed only under a right checksum (which has its place in every version and
    is stored in the order of its machine): everything else is damage, and there are ways to live with that.

    Args:
        covered: the header up to its checksum.
        magic: what its first bytes should be.
        crc: the checksum stored behind it.
        kind: what the file should be, for the message.
    """
    found = crc32(covered)
    if covered[:4] == magic:
        version = int.from_bytes(covered[4:6], "little")
        if found == crc and version > FORMAT_VERSION:
            raise UnsupportedFormatVersion(
                reason=f"this {kind} has format version {version}; this release reads up to {FORMAT_VERSION}",
                remedy="upgrade embeddedpulsar",
            )
        if found == int.from_bytes(crc.to_bytes(4, "little"), "big") and covered[6:8] == b"\x01\x02":
            raise UnsupportedFormatVersion(
                reason=f"this {kind} was written on a machine of the other byte order",
                remedy="export it there",
            )
    elif any(covered[:4]):
        raise CorruptionError(
            reason=f"this is no {kind}, or a damaged one: it starts with {bytes(covered[:4])!r}",
            offset=0,
            remedy="put back the right file if this one is something else",
        )
    raise CorruptionError(reason=f"the header of this {kind} is damaged", offset=0)
