"""The hashes of a message key: 31-bit numbers, the same as in Pulsar. Owns the mmh3 import."""

from __future__ import annotations

from array import array

from embeddedpulsar.enums import HashingScheme
from embeddedpulsar.records import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final

_31_BITS: Final = 0x7FFFFFFF
_32_BITS: Final = 0xFFFFFFFF
_64_BITS: Final = 0xFFFFFFFFFFFFFFFF

# The two constants of Boost's string hash.
_Q: Final = 0x9E3779B97F4A7C15
_K: Final = 0xDF442D22CE4859B9


def sticky_key_hash(key: str | bytes) -> int:
    """Murmur3 x86 32-bit, seed 0, of the key's UTF-8 bytes, without the sign bit.

    Example:
        >>> sticky_key_hash("key1") == sticky_key_hash(b"key1")
        True
        >>> 0 <= sticky_key_hash("") < 2**31
        True
    """
    import mmh3

    return mmh3.hash(key, 0, signed=False) & 0x7FFFFFFF


def java_string_hash(key: str) -> int:
    """``String.hashCode()`` of Java without its sign bit: of the key's UTF-16 code units.

    The C++ client has a hash of the same name that works on signed UTF-8 bytes. The two agree on ASCII and on
    nothing else; this one is Java's.

    >>> java_string_hash("keykeykey2"), java_string_hash("ключ")
    (42978643, 33309882)
    """
    # Plain bytes are their own code units; "utf-16" in the byte order of the machine, which array reads.
    units = key.encode() if key.isascii() else array("H", key.encode("utf-16", "surrogatepass")[2:])
    h = 0
    for unit in units:
        h = (31 * h + unit) & _32_BITS
    return h & _31_BITS


def boost_hash(key: str) -> int:
    """``boost::hash<std::string>`` of Boost 1.81 and later on 64-bit machines, the low 31 bits.

    This is what ``pulsar-client`` for Python uses. Wheels built with an older Boost hashed differently.

    >>> boost_hash("key-1"), boost_hash("")
    (1703803929, 2133126054)
    """
    # Boost 1.81 mixes 8 bytes at a time with a counter `w` that begins with a folded constant; the
    # rest goes last.
    data = key.encode()
    size = len(data)
    rest = size & 7
    w = _folded(_Q, _K)
    h = w ^ size
    for at in range(0, size - rest, 8):
        w = (w + _Q) & _64_BITS
        h ^= _folded((int.from_bytes(data[at : at + 8], "little") + w) & _64_BITS, _K)
    w = (w + _Q) & _64_BITS
    h ^= _folded((_tail(data[size - rest :]) + w) & _64_BITS, _K)
    return _folded((h + w) & _64_BITS, _K) & _31_BITS


def _folded(a: int, b: int) -> int:
    """Both halves of a 128-bit product, mixed."""
    product = a * b
    return (product & _64_BITS) ^ (product >> 64)


def _tail(rest: bytes) -> int:
    """What Boost makes of the last 0 to 7 bytes: two overlapping words, or up to three single bytes."""
    size = len(rest)
    # Four to seven bytes: two words of 4 bytes that overlap, so there is one formula for each length.
    if size >= 4:
        first = int.from_bytes(rest[:4], "little")
        return first | int.from_bytes(rest[-4:], "little") << 8 * (size - 4)
    if not size:
        return 0
    # One to three bytes: first, middle and last, some of them the same byte. As in Boost, not
    # simplified.
    middle = (size - 1) & 2
    half = size >> 1
    return rest[0] | rest[middle] << 8 * middle | rest[half] << 8 * half


def partition_hash(scheme: HashingScheme) -> Callable[[str], int]:
    """The function of a scheme: from a key to a number of 31 bits.

    >>> hashes = [partition_hash(scheme) for scheme in HashingScheme]
    >>> [of("order-12345") % 10 for of in hashes]
    [8, 0, 4]
    """
    return _HASHES[scheme]


_HASHES: Final[dict[HashingScheme, Callable[[str], int]]] = {
    HashingScheme.Murmur3_32Hash: sticky_key_hash,
    HashingScheme.BoostHash: boost_hash,
    HashingScheme.JavaStringHash: java_string_hash,
}
