"""Documents: small files that are replaced as a whole (docs/format/document.md).

`store.meta`, `topic.meta`, snapshots: a 16-byte header and one msgpack map.

msgpack maps, bounded: properties, chunk fields and the bodies of documents. Owns the msgpack import.

Input is capped, nesting is capped by msgpack itself, extension types are refused, and lengths claimed by the
data are compared with the bytes there are before anything is allocated.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from zlib import crc32

from embeddedpulsar._engine.format.frame import FORMAT_VERSION
from embeddedpulsar.exceptions import CorruptionError, ForeignFileError, UnsupportedFormatVersion
from embeddedpulsar.records import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any, Final

MAX_MAP_BYTES: Final = 5 << 20
"""Largest packed map a message may carry: Pulsar's default maximum message size."""

Buffer = bytes | bytearray | memoryview


def pack_map(fields: dict[str, Any]) -> bytes:
    """Pack a map. Values: str, bytes, int (64 bits), float, bool, None, and lists and maps of those.

    Raises:
        ValueError: a value msgpack cannot express (an integer of more than 64 bits, too deep a nesting).
        TypeError: a value of another type.

    Example:
        >>> unpack_map(pack_map({"a": "b"}))
        {'a': 'b'}
    """
    try:
        pack = _PACKERS.pop()
    except IndexError:
        pack = _new_packer()
    try:
        packed = pack(fields)
    except OverflowError as e:
        raise ValueError(str(e)) from e
    _PACKERS.append(pack)
    return packed


def pack_text_map(fields: dict[Any, Any]) -> bytes | None:
    """Pack a map of str to str, and check that it is one. Hot: 0.3 us for three texts with names.

    Args:
        fields: a dict, no subclass.

    Returns:
        The same as `pack_map`; None if a name or value is not a str, exactly: a subclass may have other text.

    Raises:
        UnicodeEncodeError: a text has no UTF-8.

    Example:
        >>> pack_text_map({"a": "b"}) == pack_map({"a": "b"}), pack_text_map({"a": 1})
        (True, None)
    """
    # The pool of packers is that of `pack_map`, without a second call. A local is read in half the time of a
    # builtin.
    text = str
    for name in fields:
        if name.__class__ is not text or fields[name].__class__ is not text:
            return None
    try:
        pack = _PACKERS.pop()
    except IndexError:
        pack = _new_packer()
    packed = pack(fields)
    _PACKERS.append(pack)
    return packed


_PACKERS: Final[list[Callable[[Any], bytes]]] = []
"""Idle packers: making one takes as long as packing. Not reentrant, so each is taken out for
its use by a thread, signal handler or finalizer; one that failed is not put back."""


def _new_packer() -> Callable[[Any], bytes]:
    import msgpack  # type: ignore[import-untyped,unused-ignore]

    pack: Callable[[Any], bytes] = msgpack.Packer(use_bin_type=True).pack
    return pack


def unpack_map(data: Buffer, max_bytes: int = MAX_MAP_BYTES) -> dict[str, Any]:
    """Unpack a map with string keys; nothing but exactly one map may be there.

    Raises:
        CorruptionError: not one map, larger than `max_bytes`, or malformed in any way.
    """
    import msgpack  # type: ignore[import-untyped,unused-ignore]

    if len(data) > max_bytes:
        raise CorruptionError(reason=f"packed map of {len(data)} bytes (at most {max_bytes})")
    try:
        # timestamp=1: the one extension type msgpack knows itself becomes a float, no object of its own.
        fields = msgpack.unpackb(
            data, raw=False, strict_map_key=True, ext_hook=_refuse_extension, timestamp=1
        )
    except (ValueError, TypeError, OverflowError, RecursionError) as e:
        raise CorruptionError(reason=f"malformed msgpack: {e or type(e).__name__}") from e
    if type(fields) is not dict or not all(type(key) is str for key in fields):
        raise CorruptionError(reason="packed data is not a map with string keys")
    return fields


def unpack_text_map(data: Buffer) -> dict[str, str]:
    """Unpack a map of str to str, the form of message properties.

    Raises:
        CorruptionError: anything else.
    """
    fields = unpack_map(data)
    if not all(type(value) is str for value in fields.values()):
        raise CorruptionError(reason="properties hold a value that is not a string")
    return fields


def _refuse_extension(code: int, _data: bytes) -> Any:
    raise ValueError(f"extension type {code}")


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
KIND_TRANSACTION_SNAPSHOT: Final = 17
KIND_FOLDED_TRANSACTIONS: Final = 18


def encode_document(kind: int, fields: dict[str, Any], version: int = FORMAT_VERSION) -> bytes:
    """A whole document.

    Args:
        kind: of the document.
        fields: its map.
        version: a later one for a document that earlier releases must not read.

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
    front = _FRONT.pack(MAGIC, version, kind, length)
    return front + struct.pack("<I", crc32(body, crc32(front))) + body


def document_version(data: Buffer) -> int:
    """The version in the header of a document, which is not verified.

    Example:
        >>> document_version(encode_document(KIND_POLICIES, {}))
        1
    """
    return int.from_bytes(data[4:6], "little")


def decode_document(data: Buffer, kind: int, newest: int = FORMAT_VERSION) -> dict[str, Any]:
    """The map of a document of `kind`, of any version up to ``newest``.

    Raises:
        CorruptionError: damaged, cut short, or of another kind.
        ForeignFileError: not a document.
        UnsupportedFormatVersion: a newer release wrote it.
    """
    if not DOCUMENT_HEADER_SIZE <= len(data) <= MAX_DOCUMENT_SIZE:
        raise CorruptionError(reason=f"a document of {len(data)} bytes", offset=0)
    magic, version, own_kind, length, crc = DOCUMENT_HEADER.unpack_from(data, 0)
    intact = length == len(data) and crc == document_crc(data)
    if magic != MAGIC and any(magic) and length != len(data):
        raise ForeignFileError(
            reason=f"this is no document: it starts with {magic!r}",
            remedy="put back the right file, or move this one away",
        )
    if not intact:
        raise CorruptionError(reason="the document is damaged", offset=0)
    if not FORMAT_VERSION <= version <= newest:
        raise UnsupportedFormatVersion(
            reason=f"a document of format version {version}; this release reads {newest}",
            remedy="upgrade embeddedpulsar",
        )
    if own_kind != kind:
        raise CorruptionError(reason=f"a document of kind {own_kind} where kind {kind} belongs", offset=6)
    return unpack_map(data[DOCUMENT_HEADER_SIZE:], MAX_DOCUMENT_SIZE)


def document_crc(data: Buffer) -> int:
    """Checksum of a whole document as stored; what a journal names as the snapshot it starts from."""
    return crc32(data[DOCUMENT_HEADER_SIZE:], crc32(data[:12]))
