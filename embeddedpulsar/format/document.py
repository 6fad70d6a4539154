"""Documents: small files that are replaced as a whole (docs/format/document.md).

`store.meta`, `topic.meta`, snapshots: a 16-byte header and one msgpack map.
"""

from __future__ import annotations

import struct
from typing import Any, Final
from zlib import crc32

from embeddedpulsar.exceptions import CorruptionError, ForeignFileError, UnsupportedFormatVersion
from embeddedpulsar.format.headers import FORMAT_VERSION
from embeddedpulsar.format.packed_map import pack_map, unpack_map

DOCUMENT_HEADER: Final = struct.Struct(
    "<"
    "4s"  # 0  magic
    "H"  # 4  version
    "H"  # 6  kind
    "I"  # 8  length: whole document
    "I"  # 12 crc: crc32 of bytes [16,length), seeded with the crc32 of bytes [0,12)
)
DOCUMENT_HEADER_SIZE: Final = 4 + 2 + 2 + 4 + 4
MAGIC: Final = b"EPDC"
MAX_DOCUMENT_SIZE: Final = 64 << 20
_FRONT: Final = struct.Struct("<4sHHI")

# Persistent values, never renumber.
KIND_STORE_META: Final = 1
KIND_TOPIC_META: Final = 2
KIND_SUBSCRIPTION_SNAPSHOT: Final = 3
KIND_TOPIC_SNAPSHOT: Final = 4
KIND_POLICIES: Final = 5
KIND_COMPACTION: Final = 6
KIND_COMPACTED_START: Final = 7
KIND_SINK_COMMIT: Final = 8
KIND_SCHEMAS: Final = 9
KIND_COLD_LEDGER: Final = 14
KIND_OFFLOAD: Final = 15
KIND_OBJECT_OWNER: Final = 16

Buffer = bytes | bytearray | memoryview


def encode_document(kind: int, fields: dict[str, Any]) -> bytes:
    """A whole document.

    Raises:
        ValueError: larger than 64 MiB, or a value a document cannot hold.

    Example:
        >>> decode_document(encode_document(1, {"a": 1}), 1)
        {'a': 1}
    """
    body = pack_map(fields)
    length = DOCUMENT_HEADER_SIZE + len(body)
    if length > MAX_DOCUMENT_SIZE:
        raise ValueError(f"a document of {length} bytes; at most {MAX_DOCUMENT_SIZE}")
    front = _FRONT.pack(MAGIC, FORMAT_VERSION, kind, length)
    return front + struct.pack("<I", crc32(body, crc32(front))) + body


def decode_document(data: Buffer, kind: int) -> dict[str, Any]:
    """The map of a document of `kind`.

    Raises:
        CorruptionError: damaged, cut short, or of another kind.
        ForeignFileError: not a document.
        UnsupportedFormatVersion: a newer release wrote it.
    """
    if not DOCUMENT_HEADER_SIZE <= len(data) <= MAX_DOCUMENT_SIZE:
        raise CorruptionError(reason=f"a document of {len(data)} bytes", offset=0)
    magic, version, found, length, crc = DOCUMENT_HEADER.unpack_from(data, 0)
    intact = length == len(data) and crc == document_crc(data)
    if magic != MAGIC and any(magic) and length != len(data):
        raise ForeignFileError(
            reason=f"this is no document: it starts with {magic!r}",
            remedy="put back the right file, or move this one away",
        )
    if not intact:
        raise CorruptionError(reason="the document is damaged", offset=0)
    if version != FORMAT_VERSION:
        raise UnsupportedFormatVersion(
            reason=f"a document of format version {version}; this release reads {FORMAT_VERSION}",
            remedy="upgrade embeddedpulsar",
        )
    if found != kind:
        raise CorruptionError(reason=f"a document of kind {found} where kind {kind} belongs", offset=6)
    return unpack_map(data[DOCUMENT_HEADER_SIZE:], MAX_DOCUMENT_SIZE)


def document_crc(data: Buffer) -> int:
    """Checksum of a whole document as stored; what a journal names as the snapshot it starts from."""
    return crc32(data[DOCUMENT_HEADER_SIZE:], crc32(data[:12]))
