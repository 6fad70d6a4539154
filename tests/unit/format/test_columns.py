"""Columns: where they lie, and that nothing outside is ever read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embeddedpulsar._engine.format import columns
from embeddedpulsar.exceptions import CorruptionError
from tests.frames import i64, read_var, texts


@given(st.lists(st.binary(max_size=20), min_size=1))
def test_variable_columns_round_trip(values: list[bytes]):
    """Offsets, padding and bytes lead back to the values; the column is a multiple of 8."""
    data = columns.encode_var(values)
    assert not len(data) & 7
    at = columns.locate(0, len(values), data, 0, len(data))
    assert read_var(data, at.value_offsets, at.value_data) == values


@given(st.lists(texts, min_size=1))
def test_texts_round_trip(values: list[str]):
    """ASCII goes the short way, everything else the long one."""
    data = columns.encode_texts(values)
    assert data == columns.encode_var([value.encode() for value in values])
    at = columns.locate(0, len(values), data, 0, len(data))
    assert columns.read_texts(data, at.value_offsets, at.value_data) == values


def test_texts_that_are_none():
    """Bytes that are not UTF-8 where text belongs are damage."""
    data = columns.encode_var([b"\xff"])
    at = columns.locate(0, 1, data, 0, len(data))
    with pytest.raises(CorruptionError, match="UTF-8"):
        columns.read_texts(data, at.value_offsets, at.value_data)


@given(st.lists(i64, min_size=1))
def test_fixed_columns_round_trip(values: list[int]):
    """Eight bytes each."""
    data = columns.encode_fixed(values)
    assert columns.read_fixed(data, (0, len(data))) == values


@given(st.lists(st.booleans(), min_size=1, max_size=200))
def test_bitmaps_round_trip(bits: list[bool]):
    """One bit each, least significant first, padded to 8 bytes."""
    data = columns.encode_bitmap(bits)
    assert not len(data) & 7
    assert [columns.read_bit(data, (0, len(data)), i) for i in range(len(bits))] == bits


@given(st.integers(0, 2**15 - 1), st.integers(0, 2**32 - 1), st.binary(max_size=200), st.integers(0, 200))
def test_locating_in_random_bytes(flags: int, count: int, data: bytes, pos: int):
    """Everything found lies inside, or it is CorruptionError."""
    try:
        at = columns.locate(flags, count % 40, data, pos, len(data))
    except CorruptionError:
        return
    for part in at[1:]:
        assert part is None or 0 <= part[0] <= part[0] + part[1] <= len(data)


def test_a_column_of_two_gigabytes_is_refused():
    """Offsets are 32 bits; the error is the caller's, before anything is joined."""

    class Huge(bytes):
        def __len__(self) -> int:
            return 1 << 30

    with pytest.raises(ValueError, match="2 GiB"):
        columns.offsets_of([Huge(), Huge()])
