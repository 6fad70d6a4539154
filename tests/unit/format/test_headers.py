"""Headers of files: they round-trip, damage is told from foreign files and from newer versions."""

from __future__ import annotations

import struct
import sys
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embeddedpulsar._engine.format import control, document, frame, journal_record
from embeddedpulsar.exceptions import (
    CorruptionError,
    ForeignFileError,
    StorageError,
    UnsupportedFormatVersion,
)

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
ids = st.binary(min_size=16, max_size=16)

SEGMENT = frame.SegmentHeader(
    7, 1_000, 2_000, b"b" * 16, b"s" * 16, 3, 0xC0FFEE, 1 << 20, 1024, 5, 8192, 9, 0xDEAD, 20
)
REVISED = SEGMENT._replace(version=frame.REVISED_VERSION)
CONTROL = control.ControlHeader(control.KIND_TOPIC, b"b" * 16, 1, 2, 3)
INDEX = frame.IndexHeader(7, 4096, 1_000)
JOURNAL = journal_record.JournalHeader(3, 0xC0FFEE, 0xFACE, 2)

KINDS = {
    "segment": (frame.pack_segment_header(SEGMENT), frame.parse_segment_header, SEGMENT),
    "revised segment": (
        frame.pack_segment_header(REVISED),
        frame.parse_segment_header,
        REVISED,
    ),
    "control": (control.pack_control_header(CONTROL), control.parse_control_header, CONTROL),
    "index": (frame.pack_index_header(INDEX), frame.parse_index_header, INDEX),
    "journal": (journal_record.pack_journal_header(JOURNAL), journal_record.parse_journal_header, JOURNAL),
}


@pytest.mark.parametrize("kind", KINDS)
def test_headers_round_trip(kind: str):
    """What is packed is what is parsed."""
    data, parse, header = KINDS[kind]
    assert parse(data) == header
    assert parse(memoryview(data)) == header


@given(u64, u64, u64, ids, ids, u64, u32, st.integers(0, 1 << 35), u32, st.integers(-1, 2**63 - 1), u32, u64)
def test_segment_headers_round_trip(
    ledger, created, base, boot, store, incarnation, seed, size, cap, last, crc, n
):
    """Any values of the fields."""
    header = frame.SegmentHeader(
        ledger, created, base, boot, store, incarnation, seed, size, cap, ledger, 4096, last, crc, n
    )
    data = frame.pack_segment_header(header)
    assert len(data) == 4096
    assert frame.parse_segment_header(data) == header


@pytest.mark.parametrize("kind", KINDS)
def test_every_flipped_bit_of_a_header_is_noticed(kind: str):
    """A flipped bit gives an error of the storage family, or (two copies) the right header all the same."""
    data, parse, header = KINDS[kind]
    is_segment = kind.endswith("segment")
    for bit in range(136 * 8 if is_segment else min(len(data), 64) * 8):
        damaged = bytearray(data)
        damaged[bit >> 3] ^= 1 << (bit & 7)
        try:
            assert parse(damaged) == header
        except StorageError:
            assert not is_segment, "one copy was intact"


def test_one_copy_of_a_segment_header_is_enough():
    """Either copy may be destroyed, not both."""
    data = KINDS["segment"][0]
    assert frame.parse_segment_header(bytes(512) + data[512:]) == SEGMENT
    assert frame.parse_segment_header(data[:512] + bytes(4096 - 512)) == SEGMENT
    with pytest.raises(CorruptionError):
        frame.parse_segment_header(bytes(4096))


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.binary(max_size=600))
def test_random_bytes_are_no_header(kind: str, data: bytes):
    """Errors of the storage family only."""
    with pytest.raises(StorageError):
        KINDS[kind][1](data)
    with pytest.raises(StorageError):
        KINDS[kind][1](data.ljust(4096, b"\0"))


@pytest.mark.parametrize("kind", KINDS)
def test_three_ways_to_be_refused(kind: str):
    """Something else, a newer version, the other byte order; the last two only under a right checksum."""
    data, parse, _ = KINDS[kind]
    with pytest.raises(CorruptionError, match="put back the right file"):
        parse(b"PK\x03\x04".ljust(4096, b"x"))
    size = {"control": 56, "index": 32, "journal": 60}.get(kind, 132)
    later = 3 if size == 132 else 2
    newer, other, damaged = bytearray(data), bytearray(data), bytearray(data)
    for copy in (0, 512) if size == 132 else (0,):
        damaged[copy + 4] = later
        newer[copy + 4] = later
        struct.pack_into("<I", newer, copy + size, zlib.crc32(newer[copy : copy + size]))
        other[copy + 4 : copy + 8] = bytes([0, 1, 1, 2])
        struct.pack_into(">I", other, copy + size, zlib.crc32(other[copy : copy + size]))
    with pytest.raises(UnsupportedFormatVersion, match="upgrade"):
        parse(newer)
    with pytest.raises(UnsupportedFormatVersion, match="byte order"):
        parse(other)
    with pytest.raises(CorruptionError):
        parse(damaged)


def test_big_endian_machines_are_refused(monkeypatch: pytest.MonkeyPatch):
    """Maps are cast in native order, so only little-endian machines can take part."""
    frame.require_little_endian()
    monkeypatch.setattr(sys, "byteorder", "big")
    with pytest.raises(UnsupportedFormatVersion):
        frame.require_little_endian()


def test_a_control_file_has_one_kind():
    """The ctl of a subscription is not that of a topic."""
    data = KINDS["control"][0]
    assert control.parse_control_header(data, control.KIND_TOPIC) == CONTROL
    with pytest.raises(CorruptionError, match="kind 2 where kind 3"):
        control.parse_control_header(data, control.KIND_SUBSCRIPTION)


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_tail_and_journal_words_round_trip(high: int, offset: int):
    """Ledger and offset, generation and offset, in one word of 64 bits."""
    word = control.tail_word(high, offset << 3)
    assert word < 2**64
    assert control.split_tail(word) == (high, offset << 3)
    assert control.split_journal(control.journal_word(high, offset << 3)) == (high, offset << 3)


def test_words_lie_apart_and_inside():
    """Hot words have cache lines of their own, and none overlaps a table."""
    for group in (control.TopicWord, control.SubscriptionWord, control.StoreWord):
        words = [value for name, value in vars(group).items() if name.isupper()]
        assert len(set(words)) == len(words)
        assert all(control.CONTROL_HEADER_SIZE <= 8 * word < control.UUID_TABLE_OFFSET for word in words)
    assert control.UUID_TABLE_OFFSET + control.UUID_SIZE * control.UUID_SLOTS <= control.GROUP_TABLE_OFFSET
    assert control.GROUP_SIZE == 8 + control.UUID_SLOTS // 8
    assert control.GROUP_TABLE_OFFSET + control.GROUP_SIZE * control.GROUPS <= control.CONTROL_SIZE
    end = control.CONSUMER_TABLE_OFFSET + control.CONSUMER_SLOT_SIZE * control.CONSUMER_SLOTS
    assert end <= control.SUBSCRIPTION_CONTROL_SIZE


@given(
    st.integers(0, 2**32 - 1).map(lambda n: n << 3),
    u32,
    u32,
    u32,
    u32,
    st.integers(1, 100_000),
    u32,
    st.integers(0, 3),
)
def test_index_slots_round_trip(offset, delta, messages, key_hash, flags, count, crc, at):
    """A slot reads as it was packed; flags are the upper half, counts saturate."""
    packed = frame.pack_slot(offset, delta, messages, key_hash, flags, count, crc)
    assert len(packed) == frame.SLOT_SIZE
    page = bytes(4096 + 24 * at) + packed
    assert frame.slot_offset(at) == 4096 + 24 * at
    assert frame.read_slot(page, at) == (
        offset,
        delta,
        messages,
        key_hash,
        flags >> 16,
        min(count, 65535),
        crc,
    )
    for missing in (-1, at + 1):
        with pytest.raises(CorruptionError):
            frame.read_slot(page, missing)


def test_sealed_blocks():
    """A block counts as intact from its sealing until one of its bytes changes."""
    header = frame.IndexHeader(1, 2048, 0)
    data = bytearray(frame.pack_index_header(header).ljust(frame.index_file_size(2048), b"\1"))
    assert not frame.is_block_sealed_and_intact(data, 1)
    start, end = frame.block_range(1)
    at = frame.block_crc_offset(1)
    data[at : at + 4] = struct.pack("<I", frame.block_crc(data[start:end]))
    assert frame.is_block_sealed_and_intact(data, 1)
    assert not frame.is_block_sealed_and_intact(data, 0)
    data[end - 1] ^= 1
    assert not frame.is_block_sealed_and_intact(data, 1)
    assert not frame.is_block_sealed_and_intact(data, 2), "beyond the file"
    assert not frame.is_block_sealed_and_intact(data, 100_000), "beyond the array"


def test_index_capacity_is_bounded():
    """The header page has room for so many block checksums."""
    for capacity in (0, frame.MAX_CAPACITY + 1):
        with pytest.raises(ValueError, match="slots"):
            frame.pack_index_header(frame.IndexHeader(1, capacity, 0))
    assert frame.MAX_CAPACITY >= 250_000


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=8), values, max_size=5), st.integers(1, 2**16 - 1))
def test_documents_round_trip(fields: dict[str, object], kind: int):
    """A map of anything msgpack knows."""
    data = document.encode_document(kind, fields)
    assert document.decode_document(data, kind) == fields
    with pytest.raises(CorruptionError):
        document.decode_document(data, kind ^ 1)


def test_documents_notice_damage():
    """Every flipped bit, every cut, every byte too many."""
    data = document.encode_document(2, {"name": "persistent://public/default/t", "partitions": 4})
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit >> 3] ^= 1 << (bit & 7)
        with pytest.raises((CorruptionError, ForeignFileError)):
            document.decode_document(bytes(damaged), 2)
    with pytest.raises(ForeignFileError, match="put back"):
        document.decode_document(b"#!/usr/bin/env python3", 2)
    for wrong in (data[:-1], data + b"\0", b"", data[:15]):
        with pytest.raises(CorruptionError):
            document.decode_document(wrong, 2)


@given(st.binary(max_size=100))
def test_documents_of_random_bytes(data: bytes):
    """Errors of the storage family only, even where the checksum is right."""
    with pytest.raises(StorageError):
        document.decode_document(data, 1)
    front = struct.pack("<4sHHI", b"EPDC", 1, 1, 16 + len(data))
    forged = bytearray(front + bytes(4) + data)
    struct.pack_into("<I", forged, 12, document.document_crc(forged))
    try:
        assert isinstance(document.decode_document(bytes(forged), 1), dict)
    except CorruptionError:
        return


def test_documents_of_another_version():
    """Checksum right, version unknown: upgrade, do not repair."""
    front = struct.pack("<4sHHI", b"EPDC", 9, 1, 17)
    forged = bytearray(front + bytes(4) + b"\x80")
    struct.pack_into("<I", forged, 12, document.document_crc(forged))
    with pytest.raises(UnsupportedFormatVersion, match="upgrade"):
        document.decode_document(bytes(forged), 1)


def test_documents_hold_what_msgpack_holds():
    """Integers beyond 64 bits are refused when written."""
    with pytest.raises(ValueError):
        document.encode_document(1, {"n": 1 << 70})
