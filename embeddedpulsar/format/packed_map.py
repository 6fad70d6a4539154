"""msgpack maps, bounded: properties, chunk fields and the bodies of documents. Owns the msgpack import.

Input is capped, nesting is capped by msgpack itself, extension types are refused, and lengths claimed by the
data are compared with the bytes there are before anything is allocated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from embeddedpulsar.exceptions import CorruptionError

MAX_MAP_BYTES: Final = 5 << 20
"""Largest packed map a message may carry: Pulsar's default maximum message size."""

Buffer = bytes | bytearray | memoryview


def pack_map(fields: dict[str, Any]) -> bytes:
    """Pack a map. Values: str, bytes, int (64 bits), float, bool, None, and lists and maps of those.

    Raises:
        ValueError: a value msgpack cannot express (an integer of more than 64 bits, too deep a nesting).
        TypeError: a value of another type.

    Example:
        >>> unpack_map(pack_map({"a": "b"}))
        {'a': 'b'}
    """
    try:
        pack = _PACKERS.pop()
    except IndexError:
        pack = _new_packer()
    try:
        packed = pack(fields)
    except OverflowError as e:
        raise ValueError(str(e)) from e
    _PACKERS.append(pack)
    return packed


_PACKERS: Final[list[Callable[[Any], bytes]]] = []
"""Idle packers: making one takes as long as packing. Not reentrant, so each is taken out for
its use by a thread, signal handler or finalizer; one that failed is not put back."""


def _new_packer() -> Callable[[Any], bytes]:
    import msgpack  # type: ignore[import-untyped,unused-ignore]

    pack: Callable[[Any], bytes] = msgpack.Packer(use_bin_type=True).pack
    return pack


def unpack_map(data: Buffer, max_bytes: int = MAX_MAP_BYTES) -> dict[str, Any]:
    """Unpack a map with string keys; nothing but exactly one map may be there.

    Raises:
        CorruptionError: not one map, larger than `max_bytes`, or malformed in any way.
    """
    import msgpack  # type: ignore[import-untyped,unused-ignore]

    if len(data) > max_bytes:
        raise CorruptionError(reason=f"packed map of {len(data)} bytes (at most {max_bytes})")
    try:
        # timestamp=1: the one extension type msgpack knows itself becomes a float, no object of its own.
        fields = msgpack.unpackb(
            data, raw=False, strict_map_key=True, ext_hook=_refuse_extension, timestamp=1
        )
    except (ValueError, TypeError, OverflowError, RecursionError) as e:
        raise CorruptionError(reason=f"malformed msgpack: {e or type(e).__name__}") from e
    if type(fields) is not dict or not all(type(key) is str for key in fields):
        raise CorruptionError(reason="packed data is not a map with string keys")
    return fields


def unpack_text_map(data: Buffer) -> dict[str, str]:
    """Unpack a map of str to str, the form of message properties.

    Raises:
        CorruptionError: anything else.
    """
    fields = unpack_map(data)
    if not all(type(value) is str for value in fields.values()):
        raise CorruptionError(reason="properties hold a value that is not a string")
    return fields


def _refuse_extension(code: int, _data: bytes) -> Any:
    raise ValueError(f"extension type {code}")
