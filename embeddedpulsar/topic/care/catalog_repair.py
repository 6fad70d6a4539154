"""Repairs of the files in the root of a store: what it is, and which topics it has."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from embeddedpulsar._engine.format import catalog_record
from embeddedpulsar._engine.format.catalog_record import TopicEntry
from embeddedpulsar._engine.format.control import KIND_STORE
from embeddedpulsar._engine.format.journal_record import (
    FIRST_RECORD_OFFSET,
    RECORD_SIZE,
    JournalHeader,
    JournalRecord,
    pack_journal_header,
    pack_record,
    read_record,
)
from embeddedpulsar._engine.log import filenames
from embeddedpulsar._engine.log.segment import read_segment_header
from embeddedpulsar._engine.platform import descriptors, disk, failpoints, nofollow
from embeddedpulsar.exceptions import CorruptionError, ForeignFileError, StorageError
from embeddedpulsar.topic import store_root
from embeddedpulsar.topic.catalog import root_layout
from embeddedpulsar.topic.catalog.catalog import Catalog
from embeddedpulsar.topic.catalog.topic_places import find_directory, read_meta
from embeddedpulsar.topic_name import TopicName, directory_name, is_directory_of

if TYPE_CHECKING:
    from embeddedpulsar.topic.care.quarantine import Quarantine
    from embeddedpulsar.topic.store_session import StoreSession

_PREV_CRC: Final = struct.Struct("<I")
_RESCUED: Final = "persistent://public/default/rescued-"

failpoints.declare("repair:meta_written", "repair:catalog_written", "repair:rescued")


def store_id_of(root: str) -> bytes:
    """The identity of the store, by ``store.meta`` or the first segment that can be read; zeros if none."""
    with contextlib.suppress(CorruptionError, ForeignFileError):
        meta = store_root.read_meta(root)
        if meta is not None:
            return meta.store_id
    topics = root_layout.in_root(root, root_layout.TOPICS)
    for listing in nofollow.tree(topics):
        for ledger in filenames.ledgers_of(listing.files):
            with contextlib.suppress(CorruptionError, FileNotFoundError):
                return read_segment_header(listing.path, ledger).store_id
    return bytes(16)


def rewrite_meta(root: str, now_ms: int, quarantine: Quarantine) -> None:
    """Write ``store.meta`` again, with the identity that the segments name."""
    store_id = store_id_of(root)
    quarantine.copy(root_layout.in_root(root, root_layout.META))
    store_root.write_meta(root, now_ms, store_id if any(store_id) else None)
    failpoints.hit("repair:meta_written")


def rewrite_catalog(root: str, now_ms: int, quarantine: Quarantine) -> None:
    """Write the catalog again, from all records that can be read, also behind damaged ones."""
    path = root_layout.in_root(root, root_layout.CATALOG)
    try:
        data = disk.DISK.read_file(path)
    except FileNotFoundError:
        data = b""
    quarantine.copy(path)
    crc = int.from_bytes(os.urandom(4), "little")
    header = JournalHeader(generation=1, chain_seed=crc, snapshot_crc=0, owner_kind=KIND_STORE)
    parts = [pack_journal_header(header)]
    for found in _salvaged(data):
        payload = _with_own_directories(found, root_layout.in_root(root, root_layout.TOPICS))
        record, crc = pack_record(found.type, payload, crc, found.time_ms or now_ms)
        parts.append(record)
    Catalog.remove_index(path)
    disk.DISK.atomic_write(path, b"".join(parts), durable=True)
    failpoints.hit("repair:catalog_written")


def _with_own_directories(record: JournalRecord, topics: str) -> bytes:
    """The payload of a record, in which each topic has a directory of its own name: that which is there."""
    if record.type not in (catalog_record.TOPIC, catalog_record.TOPICS, catalog_record.TOPIC_MADE):
        return record.payload
    packed = [record.payload]
    try:
        if record.type != catalog_record.TOPIC:
            packed = [entry for _, entry in catalog_record.entries_of(record.payload)]
        entries = [catalog_record.decode_topic(entry) for entry in packed]
    except CorruptionError:
        return record.payload  # its checksum is right: a newer release wrote it, which reads it
    if all(is_directory_of(entry.directory, entry.name) for entry in entries):
        return record.payload
    for number, entry in enumerate(entries):
        if not is_directory_of(entry.directory, entry.name):
            entries[number] = _believed(entry, topics)
    if record.type == catalog_record.TOPIC:
        return catalog_record.encode_topic(entries[0])
    return catalog_record.encode_topics(entries)


def _believed(entry: TopicEntry, topics: str) -> TopicEntry:
    """The topic of a record that names a wrong directory: as the directory of its name says, if there is one;
    nothing else of the record need be true either."""
    place = find_directory(topics, entry.name)
    if place is None:
        return entry._replace(directory=directory_name(entry.name))
    relative = os.path.relpath(place, topics)
    with contextlib.suppress(StorageError):
        described = read_meta(place, relative)
        if described is not None and described.name == entry.name:
            return described
    return entry._replace(directory=relative)


def _salvaged(data: bytes) -> Iterator[JournalRecord]:
    at = FIRST_RECORD_OFFSET
    while at + RECORD_SIZE <= len(data):
        try:
            record = read_record(data, at, len(data), _PREV_CRC.unpack_from(data, at + 8)[0])
        except CorruptionError:
            at += 8
            continue
        yield record
        at += record.length


def catalogue(session: StoreSession, directories: list[str], now_ms: int, quarantine: Quarantine) -> None:
    """Bring the catalog and the descriptions of topics in step with each other.

    A directory that the catalog names is described again. One of which nothing says what it is becomes the
    topic ``rescued-…``, if there are messages in it. Under the catalog lock.
    """
    catalog, topics = session.catalog, session.directories
    topics.heal(now_ms)
    known = {entry.directory: entry for entry in catalog.topics()}
    parent = root_layout.in_root(session.root, root_layout.TOPICS)
    for directory in directories:
        entry = known.get(os.path.relpath(directory, parent))
        if entry is not None:
            if _is_undescribed(directory):
                quarantine.copy(filenames.topic_meta_path(directory))
            with contextlib.suppress(CorruptionError):  # it describes another topic: the check names it
                topics.ensure(entry)
        elif os.path.isdir(directory) and _is_undescribed(directory):
            if filenames.ledgers_of(descriptors.names_in(directory)):
                name = f"{_RESCUED}{os.urandom(4).hex()}"
                quarantine.copy(filenames.topic_meta_path(directory))
                disk.DISK.replace(directory, os.path.join(parent, directory_name(name)))
                disk.DISK.fsync_dir(parent)
                failpoints.hit("repair:rescued")
                topics.create(name, now_ms, durable=True)
            else:
                quarantine.move(directory)
    for entry in catalog.topics():
        namespace = TopicName.parse(entry.name).namespace_name
        if not catalog.has_namespace(namespace):
            catalog.append_namespace(namespace, now_ms, durable=True)


def _is_undescribed(directory: str) -> bool:
    try:
        return read_meta(directory) is None
    except (CorruptionError, ForeignFileError):
        return True
