"""Payloads of the catalog's records: which namespaces and topics a store has (docs/format/catalog.md).

The catalog is a journal file (journal_record.py) of owner kind 1. The record around a payload carries the
time and the checksum, so decoding here checks shape and bounds only.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final

from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.topic_name import LIFE_SEPARATOR, is_directory_of, spread_directory_name

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
