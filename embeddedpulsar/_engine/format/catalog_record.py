"""Payloads of the catalog's records: which namespaces and topics a store has (docs/format/catalog.md).

The catalog is a journal file (journal_record.py) of owner kind 1. The record around a payload carries the
time and the checksum, so decoding here checks shape and bounds only.

The sorted index of the catalog: where in the log the record of each topic is (docs/format/catalog.md).

index := header, u64 slot[topics], u64 slot[ended], u32 lives[ended], msgpack map of names
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from zlib import crc32

from embeddedpulsar._engine.format.frame import BYTE_ORDER_MARK, FORMAT_VERSION, is_header, refuse
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple
from embeddedpulsar.topic_name import LIFE_SEPARATOR, is_directory_of, spread_directory_name

if TYPE_CHECKING:
    from typing import Final

# Record types. Persistent values, never renumber.
NAMESPACE: Final = 1
TOPIC: Final = 2
TOPIC_DELETED: Final = 3
NAMESPACE_DELETED: Final = 4
TENANT: Final = 5
TENANT_DELETED: Final = 6
TOPICS: Final = 7
TOPIC_MADE: Final = 8

NO_DIRECTORY: Final = 1 << 31
"""In the number of partitions, of a topic that gets its directory when it is first opened."""

TOPIC_HEADER: Final = struct.Struct(
    "<"
    "Q"  # 0  incarnation of the topic
    "I"  # 8  partitions; 0 for a topic that is not partitioned; NO_DIRECTORY is added
    "H"  # 12 name_length; the UTF-8 full name follows
    "H"  # 14 directory_length; the ASCII directory name follows the full name; 0: that of a store with many
)
TOPIC_DELETED_HEADER: Final = struct.Struct(
    "<"
    "Q"  # 0  incarnation of the topic that is gone
    "H"  # 8  name_length; the UTF-8 full name follows
    "6x"  # 10 zero
)
NAMESPACE_HEADER: Final = struct.Struct(
    "<"
    "H"  # 0  name_length; the UTF-8 name `tenant/namespace`, or that of the tenant, follows
    "6x"  # 2  zero
)

Buffer = bytes | bytearray | memoryview


class TopicEntry(NamedTuple):
    """One topic of the store: its full name, directory under ``topics/``, incarnation and partitions.

    A topic that is not made has no directory yet; it gets it when it is first opened. Paths are made of
    `below_topics`, not of ``directory``, which is what the record says."""

    name: str
    directory: str
    incarnation: int
    partitions: int = 0
    is_made: bool = True

    def below_topics(self) -> str:
        """The directory under ``topics/``, which follows from the name.

        Raises:
            CorruptionError: the record names another one, inside or outside of the store.

        Example:
            >>> TopicEntry("persistent://a/b/c", "../../etc", 7).below_topics()
            Traceback (most recent call last):
            embeddedpulsar.exceptions.CorruptionError: ... names the directory '../../etc', ...
        """
        if not is_directory_of(self.directory, self.name):
            raise CorruptionError(
                reason=f"the record of the topic {self.name} in the catalog names the directory "
                f"{self.directory!r}, which is not one of that name; nothing is read or written there",
                remedy="repair the store: embeddedpulsar repair",
            )
        return self.directory


def encode_topic(entry: TopicEntry) -> bytes:
    """The payload that says "this topic exists".

    Example:
        >>> decode_topic(encode_topic(TopicEntry("persistent://a/b/c", "t-x", 7))).directory
        't-x'
    """
    name, directory = entry.name.encode(), entry.directory.encode("ascii")
    if _is_derived(entry.directory):
        directory = b""
    partitions = entry.partitions if entry.is_made else entry.partitions | NO_DIRECTORY
    head = TOPIC_HEADER.pack(entry.incarnation, partitions, len(name), len(directory))
    return head + name + directory


def decode_topic(payload: Buffer) -> TopicEntry:
    """The topic of such a payload."""
    incarnation, partitions, name_length, directory_length = _head(TOPIC_HEADER, payload)
    end = TOPIC_HEADER.size + name_length
    name = _text(payload, TOPIC_HEADER.size, name_length)
    directory = _text(payload, end, directory_length) or spread_directory_name(name)
    return TopicEntry(name, directory, incarnation, partitions & ~NO_DIRECTORY, not partitions & NO_DIRECTORY)


def _is_derived(directory: str) -> bool:
    """Whether it is the directory of the first life of a name in a store with many topics."""
    return directory[2:3] == "/" and LIFE_SEPARATOR not in directory and directory[:2] == directory[5:7]


def name_of(packed: bytes) -> bytes:
    """The name in the entry of a topic; it is not checked that it fits."""
    return packed[TOPIC_HEADER.size : TOPIC_HEADER.size + int.from_bytes(packed[12:14], "little")]


def partitions_of(packed: bytes) -> int:
    """The number of partitions in the entry of a topic."""
    return int.from_bytes(packed[8:12], "little") & ~NO_DIRECTORY


def encode_topics(entries: Iterable[TopicEntry]) -> bytes:
    """The payload that says "these topics exist"; each begins at a multiple of 8.

    Example:
        >>> payload = encode_topics([TopicEntry("persistent://a/b/c", "t-x", 7)] * 2)
        >>> [(at, decode_topic(entry).name) for at, entry in entries_of(payload)]
        [(0, 'persistent://a/b/c'), (40, 'persistent://a/b/c')]
    """
    parts: list[bytes] = []
    for entry in entries:
        packed = encode_topic(entry)
        parts += (packed, bytes(-len(packed) & 7))
    return b"".join(parts)


def entries_of(payload: bytes) -> Iterator[tuple[int, bytes]]:
    """Where each entry of such a payload begins, and its bytes."""
    at = 0
    while at < len(payload):
        size = entry_size(payload[at : at + TOPIC_HEADER.size])
        if at + size > len(payload):
            raise CorruptionError(reason=f"an entry of {size} bytes does not fit its catalog record")
        yield at, payload[at : at + size]
        at += size + (-size & 7)


def entry_size(payload: Buffer) -> int:
    """The number of bytes of the entry of a topic that such a payload begins with.

    Example:
        >>> entry_size(encode_topic(TopicEntry("persistent://a/b/c", "t-x", 7)) + b"more")
        37
    """
    _, _, name_length, directory_length = _head(TOPIC_HEADER, payload)
    return TOPIC_HEADER.size + name_length + directory_length


def encode_topic_deleted(name: str, incarnation: int) -> bytes:
    """The payload that says "this incarnation of the topic is gone".

    Example:
        >>> decode_topic_deleted(encode_topic_deleted("persistent://a/b/c", 7))
        ('persistent://a/b/c', 7)
    """
    text = name.encode()
    return TOPIC_DELETED_HEADER.pack(incarnation, len(text)) + text


def decode_topic_deleted(payload: Buffer) -> tuple[str, int]:
    """(full name, incarnation) of such a payload."""
    incarnation, length = _head(TOPIC_DELETED_HEADER, payload)
    return _text(payload, TOPIC_DELETED_HEADER.size, length), incarnation


def encode_namespace(name: str) -> bytes:
    """The payload with the name of a namespace, or of a tenant, that exists or is gone.

    Example:
        >>> decode_namespace(encode_namespace("public/default"))
        'public/default'
    """
    text = name.encode()
    return NAMESPACE_HEADER.pack(len(text)) + text


def decode_namespace(payload: Buffer) -> str:
    """The name in such a payload."""
    (length,) = _head(NAMESPACE_HEADER, payload)
    return _text(payload, NAMESPACE_HEADER.size, length)


def _head(layout: struct.Struct, payload: Buffer) -> tuple[int, ...]:
    if len(payload) < layout.size:
        raise CorruptionError(reason=f"a catalog record of {len(payload)} bytes, {layout.size} expected")
    return layout.unpack_from(payload, 0)


def _text(payload: Buffer, start: int, length: int) -> str:
    if start + length > len(payload):
        raise CorruptionError(reason=f"a name of {length} bytes does not fit its catalog record")
    try:
        return bytes(payload[start : start + length]).decode()
    except UnicodeDecodeError as e:
        raise CorruptionError(reason="a name in the catalog is not UTF-8") from e


INDEX_HEADER: Final = struct.Struct(
    "<"
    "4s"  # 0  magic
    "H"  # 4  version
    "H"  # 6  byte order mark
    "I"  # 8  chain_seed of the catalog
    "I"  # 12 chain_crc: crc of the last record that the index covers
    "Q"  # 16 last: where in the catalog that record begins
    "Q"  # 24 end: where it ends
    "Q"  # 32 topics: number of slots
    "Q"  # 40 ended: number of slots of deleted topics
    "I"  # 48 names_length: bytes of the map of names
    "I"  # 52 body_crc: crc32 of everything behind the header
    "4x"  # 56 zero
    "I"  # 60 crc: crc32 of bytes [0,60)
)
INDEX_HEADER_SIZE: Final = 64
MAGIC: Final = b"EPCI"
_COVERED: Final = INDEX_HEADER_SIZE - 4
_MOST_OFFSET: Final = 1 << 35
_LOW: Final = (1 << 32) - 1


class IndexHeader(NamedTuple):
    """The decoded header of an index."""

    chain_seed: int
    chain_crc: int
    last: int
    end: int
    topics: int
    ended: int
    names_length: int
    body_crc: int

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return INDEX_HEADER_SIZE + 8 * self.topics + 12 * self.ended + self.names_length


def pack_index_header(header: IndexHeader) -> bytes:
    """The 64-byte header of an index."""
    covered = INDEX_HEADER.pack(MAGIC, FORMAT_VERSION, BYTE_ORDER_MARK, *header, 0)[:_COVERED]
    return covered + struct.pack("<I", crc32(covered))


def parse_index_header(buf: Buffer) -> IndexHeader:
    """Check and decode the header of an index.

    Raises:
        CorruptionError: damaged, cut short, or something else.
        UnsupportedFormatVersion: a newer release, or the other byte order, wrote it.
    """
    if len(buf) < INDEX_HEADER_SIZE:
        raise CorruptionError(reason=f"catalog index of {len(buf)} bytes has no header", offset=0)
    _, _, _, *fields, crc = INDEX_HEADER.unpack_from(buf, 0)
    if not is_header(buf[:_COVERED], MAGIC, crc):
        refuse(buf[:_COVERED], MAGIC, crc, "catalog index")
    return IndexHeader(*fields)


def pack_slot(offset: int, entry: Buffer) -> int:
    """The slot of an entry, which begins at ``offset`` in the catalog.

    Raises:
        ValueError: the offset is no multiple of 8 below 32 GiB.

    Example:
        >>> slot = pack_slot(64, b"entry")
        >>> slot_offset(slot), is_entry_of(slot, b"entry"), is_entry_of(slot, b"other")
        (64, True, False)
    """
    if offset & 7 or not 0 < offset < _MOST_OFFSET:
        raise ValueError(f"no entry of the catalog begins at {offset}")
    return offset >> 3 | crc32(entry) << 32


def slot_offset(slot: int) -> int:
    """Where the entry of a slot begins in the catalog."""
    return (slot & _LOW) << 3


def is_entry_of(slot: int, entry: Buffer) -> bool:
    """Whether these are the bytes for which the slot was made."""
    return crc32(entry) == slot >> 32
