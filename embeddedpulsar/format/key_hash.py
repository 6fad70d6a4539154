"""The 31-bit hash of a sticky key, as Pulsar's Key_Shared dispatch uses it. Owns the mmh3 import."""

from __future__ import annotations


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
