"""Codecs of entry columns. Owns the imports of lz4, zlib's inflate and cramjam.

The size of the result is always known (it is in the entry's metadata, under the body checksum), so no codec
gets to choose how much is allocated: the claim is compared with what the codec could reach at best, and a
result of another size is damage. Unpacking takes the promised size twice, and for ZSTD a window of at most
that size or 8 MiB.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

from embeddedpulsar._engine.format.frame import (
    CODEC_ENCRYPTED,
    CODEC_LZ4,
    CODEC_NONE,
    CODEC_SNAPPY,
    CODEC_SNAPPY_RAW,
    CODEC_ZLIB,
    CODEC_ZSTD,
    MAX_FRAME_SIZE,
)
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Any, Final

_SMALL: Final = 256
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_SINGLE_SEGMENT: Final = 1 << 5
_LARGEST_WINDOW: Final = 8 << 20
"""Of a ZSTD frame that holds less: what its highest ordinary level asks for."""

Buffer = bytes | memoryview


class Codec(NamedTuple):
    """One codec.

    Attributes:
        name: for error texts.
        ratio: the most bytes one stored byte can stand for.
        compress: what makes bytes smaller.
        decompress: called with the data and the size to expect; an error of any class is damage, except
            `ImportError`.
        require: raises `ImportError`, with the command to install what is missing.
    """

    name: str
    ratio: int
    compress: Callable[[Buffer], bytes]
    decompress: Callable[[Buffer, int], bytes]
    require: Callable[[], object] = int


CODECS: Final[dict[int, Codec]] = {}
"""The codecs by the number in the frame header; `register` adds one."""


def register(number: int, codec: Codec) -> None:
    """Add a codec. Its number is stored in every entry that it compressed.

    Raises:
        ValueError: the number is taken, is not 1 to 127, or stands for "not compressed".
    """
    if not CODEC_NONE < number < CODEC_ENCRYPTED or number in CODECS:
        raise ValueError(f"{number} is not the number of a new codec")
    CODECS[number] = codec


def require_codec(codec: int) -> None:
    """Make sure that a codec can be used here.

    Raises:
        ImportError: ZSTD or SNAPPY without the extra "compression"; the text has the command.

    Example:
        >>> require_codec(1)
    """
    if codec in CODECS:
        CODECS[codec].require()


def compress(codec: int, data: Buffer) -> bytes:
    """Compress with a registered codec; 0 copies.

    Raises:
        ImportError: ZSTD or SNAPPY without the extra "compression".
        ValueError: no such codec.

    Example:
        >>> decompress(1, compress(1, b"a" * 100), 100) == b"a" * 100
        True
    """
    # First what is registered, then 0: `register` refuses 0, so no codec can hide "not compressed".
    registered = CODECS.get(codec)
    if registered is not None:
        return registered.compress(data)
    if codec == CODEC_NONE:
        return bytes(data)
    known = ", ".join(f"{number} ({each.name})" for number, each in CODECS.items())
    raise ValueError(f"no codec {codec}; use 0 (none), {known}")


def decompress(codec: int, data: Buffer, size: int, most: int = MAX_FRAME_SIZE) -> bytes:
    """Decompress to exactly `size` bytes, at most `most`. Check the checksum of `data` first.

    Raises:
        CorruptionError: unknown codec, malformed data, or another size.
        ImportError: ZSTD or SNAPPY without the extra "compression".
    """
    known = CODECS.get(codec)
    if known is None:
        raise CorruptionError(reason=f"unknown codec {codec}")
    # Both bounds come before the call. The second refuses a claim that no input of this length could
    # fulfil, by which a damaged size of 2 GiB would be allocated.
    if size > most or size > len(data) * known.ratio + _SMALL:
        raise CorruptionError(reason=f"{len(data)} bytes of {known.name} cannot hold {size} bytes")
    try:
        # A missing package is no damage of the entry: the message is readable elsewhere.
        plain = known.decompress(data, size)
    except ImportError:
        raise
    except Exception as e:  # lz4, zlib and cramjam share no error class
        raise CorruptionError(reason=f"{known.name}: {e}") from e
    if len(plain) != size:
        raise CorruptionError(reason=f"{known.name} gave {len(plain)} bytes instead of {size}")
    return plain


def _lz4(data: Buffer) -> bytes:
    import lz4.block  # type: ignore[import-untyped,unused-ignore]

    packed: bytes = lz4.block.compress(data, store_size=False)
    return packed


def _unpack_lz4(data: Buffer, size: int) -> bytes:
    import lz4.block  # type: ignore[import-untyped,unused-ignore]

    plain: bytes = lz4.block.decompress(data, uncompressed_size=size)
    return plain


def _unpack_zlib(data: Buffer, size: int) -> bytes:
    stream = zlib.decompressobj()
    # One byte more than expected is asked for, so that a stream that holds more is seen without
    # unpacking all of it.
    plain = stream.decompress(data, size + 1)
    if len(plain) <= size and not stream.eof:
        raise zlib.error("incomplete stream")
    return plain


def _cramjam(name: str) -> Any:
    try:
        import cramjam
    except ImportError as e:
        raise ImportError(
            f'{name} compression needs cramjam: pip install "embeddedpulsar[compression]"'
        ) from e
    return getattr(cramjam, name.lower())


def _unpack_by_cramjam(name: str, data: Buffer, size: int) -> bytes:
    # Into a buffer of exactly the right size: output beyond it is an error, not an allocation.
    out = bytearray(size)
    written = _cramjam(name).decompress_into(data, out)
    return bytes(out) if written == size else bytes(out[:written])


def _unpack_zstd(data: Buffer, size: int) -> bytes:
    window = _zstd_window(bytes(data[:6]))
    if window > max(size, _LARGEST_WINDOW):
        raise CorruptionError(reason=f"a window of {window} bytes for {size}")
    return _unpack_by_cramjam("ZSTD", data, size)


def _zstd_window(front: bytes) -> int:
    """How far back a ZSTD frame refers; the decoder allocates that before it sees any content.

    >>> _zstd_window(bytes.fromhex("28b52ffd8058"))
    2097152
    """
    if len(front) < 6 or front[:4] != _ZSTD_MAGIC or front[4] & _ZSTD_SINGLE_SEGMENT:
        return 0  # no frame, which the decoder notices; or the content is the window
    # The window descriptor of RFC 8878: a power of two from 1 KiB on, and eighths of it.
    base = 1 << 10 + (front[5] >> 3)
    return base + base // 8 * (front[5] & 7)


def _snappy_block(data: Buffer) -> bytes:
    return bytes(_cramjam("SNAPPY").compress_raw(data))


def _unpack_snappy_block(data: Buffer, size: int) -> bytes:
    out = bytearray(size)
    written = _cramjam("SNAPPY").decompress_raw_into(data, out)
    return bytes(out) if written == size else bytes(out[:written])


register(CODEC_LZ4, Codec("LZ4", 256, _lz4, _unpack_lz4))
register(CODEC_ZLIB, Codec("ZLIB", 1100, zlib.compress, _unpack_zlib))
register(
    CODEC_ZSTD,
    Codec(
        "ZSTD",
        1 << 17,  # ZSTD itself has no such bound
        lambda data: bytes(_cramjam("ZSTD").compress(data)),
        _unpack_zstd,
        lambda: _cramjam("ZSTD"),
    ),
)
register(
    CODEC_SNAPPY,
    Codec(
        "SNAPPY",
        64,
        lambda data: bytes(_cramjam("SNAPPY").compress(data)),
        lambda data, size: _unpack_by_cramjam("SNAPPY", data, size),
        lambda: _cramjam("SNAPPY"),
    ),
)
register(
    CODEC_SNAPPY_RAW,
    Codec("SNAPPY_RAW", 64, _snappy_block, _unpack_snappy_block, lambda: _cramjam("SNAPPY")),
)
