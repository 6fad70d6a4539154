"""The hashes of message keys, beside slow forms that follow their descriptions to the letter."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embeddedpulsar._engine.format.entry import boost_hash, java_string_hash, partition_hash
from embeddedpulsar.enums import HashingScheme

# Lengths around the block sizes of the hashes, and all there is in Unicode.
keys = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
    st.text("abcdefghijklmnopqrstuvwxyz0123456789-", max_size=40),
)


def java_by_definition(key: str) -> int:
    """s[0]*31^(n-1) + s[1]*31^(n-2) + ... + s[n-1] of the UTF-16 code units, in 32 bits, without the sign."""
    packed = key.encode("utf-16-be")
    units = struct.unpack(f">{len(packed) // 2}H", packed)
    total = sum(unit * 31 ** (len(units) - 1 - i) for i, unit in enumerate(units))
    return total % 2**32 % 2**31


def murmur_by_definition(key: str) -> int:
    """MurmurHash3 x86_32, seed 0, without the sign."""
    data = key.encode()
    h = 0

    def mixed(k: int) -> int:
        k = k * 0xCC9E2D51 % 2**32
        k = (k << 15 | k >> 17) % 2**32
        return k * 0x1B873593 % 2**32

    whole = len(data) // 4 * 4
    for (k,) in struct.iter_unpack("<I", data[:whole]):
        h ^= mixed(k)
        h = (h << 13 | h >> 19) % 2**32
        h = (h * 5 + 0xE6546B64) % 2**32
    if data[whole:]:
        h ^= mixed(int.from_bytes(data[whole:], "little"))
    h ^= len(data)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        h = (h ^ h >> shift) * factor % 2**32
    return h % 2**31


def boost_by_definition(key: str) -> int:
    """The string hash of Boost 1.81, written as its steps: 64-bit words, then a tail that always counts."""
    data = key.encode()
    q, k, mask = 0x9E3779B97F4A7C15, 0xDF442D22CE4859B9, 2**64 - 1

    def mulx(a: int, b: int) -> int:
        return (a * b & mask) ^ (a * b >> 64)

    w = mulx(q, k)
    h = w ^ len(data)
    while len(data) >= 8:
        (v,) = struct.unpack("<Q", data[:8])
        w = w + q & mask
        h ^= mulx(v + w & mask, k)
        data = data[8:]
    v = 0
    if len(data) >= 4:
        v = struct.unpack("<I", data[:4])[0] | struct.unpack("<I", data[-4:])[0] << 8 * (len(data) - 4)
    elif data:
        for at in (0, (len(data) - 1) & 2, len(data) >> 1):
            v |= data[at] << 8 * at
    w = w + q & mask
    h ^= mulx(v + w & mask, k)
    return mulx(h + w & mask, k) % 2**31


@given(keys)
def test_java_string_hash(key):
    """Equal to the sum that defines ``String.hashCode``, also outside ASCII and the basic plane."""
    assert java_string_hash(key) == java_by_definition(key)


@given(keys)
def test_murmur(key):
    """Equal to MurmurHash3 x86_32 step by step."""
    assert partition_hash(HashingScheme.Murmur3_32Hash)(key) == murmur_by_definition(key)


@given(keys)
def test_boost_hash(key):
    """Equal to Boost's description step by step."""
    assert boost_hash(key) == boost_by_definition(key)


@pytest.mark.parametrize("scheme", list(HashingScheme))
@given(key=keys)
def test_every_hash_has_31_bits(scheme, key):
    """No sign, so the remainder is the partition."""
    assert 0 <= partition_hash(scheme)(key) < 2**31


def test_surrogate_pairs_are_two_units():
    """A character beyond 16 bits counts as Java has it: as two."""
    assert java_string_hash("\U0001f355") == (31 * 0xD83C + 0xDF55) % 2**31
