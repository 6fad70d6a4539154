"""Checking an index against what is known of its segment, and writing it anew."""

from __future__ import annotations

import os

from embeddedpulsar.exceptions import StorageError
from embeddedpulsar.format.index_header import (
    INDEX_HEADER_SIZE,
    SLOTS_PER_BLOCK,
    index_file_size,
    is_block_sealed_and_intact,
    parse_index_header,
)
from embeddedpulsar.format.index_slot import SLOT, SLOT_SIZE, SLOTS_OFFSET
from embeddedpulsar.format.segment_header import FIRST_FRAME_OFFSET, SegmentHeader
from embeddedpulsar.platform import disk
from embeddedpulsar.storage.filenames import index_path, under_construction
from embeddedpulsar.storage.segment_chain import Link
from embeddedpulsar.storage.segment_index import SegmentIndex


def index_fits(directory: str, link: Link, slots: bytes | None = None) -> bool:
    """Whether the index of a ledger can be used as it is.

    Args:
        directory: the topic's.
        link: the ledger.
        slots: what its slots must be, byte for byte. Without, the ledger must be closed: its full blocks must
            have their checksums, its slots must rise, and the last must be that of the last entry.
    """
    header = link.header
    count = link.last_entry_id + 1 if slots is None else len(slots) // SLOT_SIZE
    try:
        path = index_path(directory, header.ledger_id)
        data = disk.DISK.read_file(path, max(SLOTS_OFFSET + count * SLOT_SIZE, INDEX_HEADER_SIZE))
        found = parse_index_header(data)
    except (FileNotFoundError, StorageError):
        return False
    size = os.path.getsize(path)
    if (
        found.ledger_id != header.ledger_id
        or found.capacity < count
        or size < index_file_size(found.capacity)
    ):
        return False
    if len(data) < SLOTS_OFFSET + count * SLOT_SIZE:
        return False
    if slots is not None:
        return data[SLOTS_OFFSET : SLOTS_OFFSET + len(slots)] == slots
    sealed = count // SLOTS_PER_BLOCK
    return all(is_block_sealed_and_intact(data, block) for block in range(sealed)) and _rises(
        data, sealed * SLOTS_PER_BLOCK, count, link
    )


def _rises(data: bytes, first: int, count: int, link: Link) -> bool:
    """Whether slots [first, count) are in order and end with the last entry of the ledger."""
    if not count:
        return True
    offset, delta, messages = FIRST_FRAME_OFFSET - 8, 0, 0
    crc = -1
    for entry in range(max(first - 1, 0), count):
        at, slot_delta, slot_messages, _, _, _, crc = SLOT.unpack_from(data, SLOTS_OFFSET + SLOT_SIZE * entry)
        at <<= 3
        if at <= offset or slot_delta < delta or slot_messages <= messages:
            return False
        offset, delta, messages = at, slot_delta, slot_messages
    return crc == link.last_crc and offset < link.end_offset


def write_index(directory: str, header: SegmentHeader, slots: bytes) -> None:
    """Write the whole index of a ledger beside the old one and put it in its place, durably.

    A process that has the old one mapped keeps it; its slots are checked against the frames on every use.
    """
    path = index_path(directory, header.ledger_id)
    building = under_construction(path)
    if os.path.lexists(building):
        disk.DISK.unlink(building)
    count = len(slots) // SLOT_SIZE
    index = SegmentIndex.create(
        building, header.ledger_id, max(header.index_capacity, count), header.created_ms, entries=count
    )
    try:
        index.data[SLOTS_OFFSET : SLOTS_OFFSET + len(slots)] = slots
        for block in range(count // SLOTS_PER_BLOCK):
            index.seal(block)
        disk.DISK.fsync(index.fd, building)
        disk.DISK.replace(building, path)
    finally:
        index.close()
    disk.DISK.fsync_dir(directory)
