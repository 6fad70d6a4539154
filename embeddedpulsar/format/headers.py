"""What the headers of all files share: marks, versions, and the three ways in which a file can be refused."""

from __future__ import annotations

import sys
from typing import Final, NoReturn

from embeddedpulsar.exceptions import CorruptionError, ForeignFileError, UnsupportedFormatVersion

BYTE_ORDER_MARK: Final = 0x0102
"""Written little-endian; read as 0x0201 where a file came from, or came to, a big-endian machine."""
FORMAT_VERSION: Final = 1
"""Version of every binary file kind. Raised when an old reader would misread a new file."""


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


def refuse(found: bytes, magic: bytes, version: int, mark: int, kind: str) -> NoReturn:
    """Raise the error that fits a header that did not verify.

    Args:
        found: its first bytes, as many as `magic` has.
        magic: what they should be.
        version: the version it claims.
        mark: the byte order mark it carries.
        kind: what the file should be, for the message.
    """
    if found == magic and mark == 0x0201:
        raise UnsupportedFormatVersion(
            reason=f"this {kind} was written on a machine of the other byte order",
            remedy="export it there",
        )
    if found == magic and mark == BYTE_ORDER_MARK and version > FORMAT_VERSION:
        raise UnsupportedFormatVersion(
            reason=f"this {kind} has format version {version}; this release reads up to {FORMAT_VERSION}",
            remedy="upgrade embeddedpulsar",
        )
    if found != magic and any(found):
        raise ForeignFileError(
            reason=f"this is no {kind}: it starts with {bytes(found)!r} instead of {magic!r}",
            remedy="put back the right file, or move this one away",
        )
    raise CorruptionError(reason=f"the header of this {kind} is damaged", offset=0)
