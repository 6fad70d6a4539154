"""Codecs: they round-trip, and what they are told about sizes is never believed."""

from __future__ import annotations

import sys
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embeddedpulsar._engine.format.compression import compress, decompress
from embeddedpulsar.exceptions import CorruptionError

CODECS = [1, 2, 3, 4, 5]


@pytest.mark.parametrize("codec", CODECS)
@given(data=st.binary(max_size=2000) | st.binary(max_size=20).map(lambda part: part * 100))
def test_codecs_round_trip(codec: int, data: bytes):
    """From bytes and from a view."""
    packed = compress(codec, data)
    assert decompress(codec, packed, len(data)) == data
    assert decompress(codec, memoryview(packed), len(data)) == data


@pytest.mark.parametrize("codec", CODECS)
def test_highly_compressible_data_is_within_the_bound(codec: int):
    """A megabyte of zeros is honest data."""
    assert decompress(codec, compress(codec, bytes(1 << 20)), 1 << 20) == bytes(1 << 20)


@pytest.mark.parametrize("codec", CODECS)
def test_another_size_is_damage(codec: int):
    """One byte more or less than promised."""
    packed = compress(codec, b"abcd" * 50)
    for size in (0, 199, 201):
        with pytest.raises(CorruptionError):
            decompress(codec, packed, size)


@pytest.mark.parametrize("codec", [0, *CODECS, 6, 255])
@given(data=st.binary(max_size=100), size=st.integers(0, 2**32 - 1))
def test_random_bytes_are_damage_and_cost_little(codec: int, data: bytes, size: int):
    """Whatever size is claimed, CorruptionError, or by chance data of that size."""
    try:
        assert len(decompress(codec, data, size)) == size
    except CorruptionError:
        return


def test_hostile_sizes_allocate_little():
    """Nine bytes that claim gigabytes are refused before anything is allocated for them."""
    tracemalloc.start()
    for codec in CODECS:
        for size in (2**32 - 1, 2**31, 10**9):
            with pytest.raises(CorruptionError):
                decompress(codec, b"\xff" * 9, size)
    assert tracemalloc.get_traced_memory()[1] < 200_000
    tracemalloc.stop()


def test_a_bomb_stops_at_its_promised_size():
    """zlib data that would inflate to far more than promised is not inflated."""
    bomb = zlib.compress(bytes(10 << 20))
    tracemalloc.start()
    with pytest.raises(CorruptionError):
        decompress(2, bomb, 1000)
    assert tracemalloc.get_traced_memory()[1] < 200_000
    tracemalloc.stop()


def test_unknown_codecs():
    """Unknown to write is the caller's mistake, unknown to read is damage."""
    assert compress(0, b"x") == b"x"
    with pytest.raises(ValueError, match="no codec 9"):
        compress(9, b"x")
    with pytest.raises(CorruptionError, match="unknown codec 9"):
        decompress(9, b"x", 1)


@pytest.mark.parametrize("codec", [3, 4])
def test_missing_extra_names_the_command(codec: int, monkeypatch: pytest.MonkeyPatch):
    """ZSTD and SNAPPY come with an extra; without it the error says how to get it."""
    monkeypatch.setitem(sys.modules, "cramjam", None)
    with pytest.raises(ImportError, match=r'pip install "embeddedpulsar\[compression\]"'):
        compress(codec, b"x")
    with pytest.raises(ImportError, match="compression"):
        decompress(codec, b"x", 1)
