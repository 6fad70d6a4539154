"""Checksums, key hashes and packed maps."""

from __future__ import annotations

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embeddedpulsar._engine.format.document import pack_map, unpack_map, unpack_text_map
from embeddedpulsar._engine.format.entry import sticky_key_hash
from embeddedpulsar.exceptions import CorruptionError


@given(st.binary(min_size=1, max_size=50), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_the_seed_is_bound(data: bytes, one: int, other: int):
    """Two lengths over the same bytes never have the same checksum."""
    assert (crc32(data, one) == crc32(data, other)) == (one == other)


def test_key_hashes_are_pulsars():
    """Murmur3 x86 32, seed 0, without the sign: known vectors of the algorithm."""
    assert sticky_key_hash("") == 0
    assert sticky_key_hash("hello") == 0x248BFA47
    assert sticky_key_hash(b"hello, world") == 0x149BBB7F
    assert sticky_key_hash("The quick brown fox jumps over the lazy dog") == 0x2E4FF723


@given(st.binary(max_size=60))
def test_random_bytes_are_no_map(data: bytes):
    """CorruptionError, or by chance a map with string keys."""
    for unpack in (unpack_map, unpack_text_map):
        try:
            fields = unpack(data)
        except CorruptionError:
            continue
        assert all(type(key) is str for key in fields)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xdd\xff\xff\xff\xff",  # four billion elements in five bytes
        b"\xdf\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\x91" * 100_000,  # nested a hundred thousand deep
        b"\x81\x01\x01",  # integer key
        b"\x80\x80",  # two maps
        b"\x81\xa1a\xc7\x01\x05x",  # extension type
        b"\x81\xa1\xff\x01",  # key is not UTF-8
        b"\x01",
    ],
)
def test_hostile_maps(data: bytes):
    """Bombs, extensions, other shapes."""
    with pytest.raises(CorruptionError):
        unpack_map(data)


def test_no_object_but_plain_ones():
    """The extension type that msgpack knows itself, a timestamp, is read as a number."""
    assert unpack_map(b"\x81\xa1a\xd6\xff\0\0\0\5") == {"a": 5.0}


def test_maps_are_bounded():
    """More bytes than allowed are not looked at; property values are strings."""
    with pytest.raises(CorruptionError, match="at most 10"):
        unpack_map(pack_map({"key": "a long value"}), 10)
    with pytest.raises(CorruptionError, match="not a string"):
        unpack_text_map(pack_map({"key": 1}))
