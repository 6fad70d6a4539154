"""Codecs of entry columns. Owns the imports of lz4, zlib's inflate and cramjam.

The size of the result is always known (it is in the entry's metadata, under the body checksum), so no codec
gets to choose how much is allocated: the claim is compared with what the codec could reach at best, and a
result of another size is damage.
"""

from __future__ import annotations

import zlib
from typing import Any, Final

from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.format.frame import (
    CODEC_LZ4,
    CODEC_NONE,
    CODEC_SNAPPY,
    CODEC_ZLIB,
    CODEC_ZSTD,
    MAX_FRAME_SIZE,
)

# The most bytes one stored byte can stand for. ZSTD has no such bound; it is held to something generous.
_RATIO: Final = {CODEC_LZ4: 256, CODEC_ZLIB: 1100, CODEC_ZSTD: 1 << 17, CODEC_SNAPPY: 64}
_NAMES: Final = {CODEC_LZ4: "LZ4", CODEC_ZLIB: "ZLIB", CODEC_ZSTD: "ZSTD", CODEC_SNAPPY: "SNAPPY"}
_SMALL: Final = 256


def compress(codec: int, data: bytes) -> bytes:
    """Compress with a codec of frame.py.

    Raises:
        ImportError: ZSTD or SNAPPY without the extra "compression".
        ValueError: no such codec.

    Example:
        >>> decompress(1, compress(1, b"a" * 100), 100) == b"a" * 100
        True
    """
    if codec == CODEC_LZ4:
        import lz4.block  # type: ignore[import-untyped,unused-ignore]

        packed: bytes = lz4.block.compress(data, store_size=False)
        return packed
    if codec == CODEC_ZLIB:
        return zlib.compress(data)
    if codec in (CODEC_ZSTD, CODEC_SNAPPY):
        return bytes(_cramjam(codec).compress(data))
    if codec == CODEC_NONE:
        return data
    raise ValueError(f"no codec {codec}; use 0 (none), 1 (LZ4), 2 (ZLIB), 3 (ZSTD) or 4 (SNAPPY)")


def decompress(codec: int, data: bytes | memoryview, size: int) -> bytes:
    """Decompress to exactly `size` bytes. Check the checksum of `data` first.

    Raises:
        CorruptionError: unknown codec, malformed data, or another size.
        ImportError: ZSTD or SNAPPY without the extra "compression".
    """
    ratio = _RATIO.get(codec)
    if ratio is None:
        raise CorruptionError(reason=f"unknown codec {codec}")
    if size > MAX_FRAME_SIZE or size > len(data) * ratio + _SMALL:
        raise CorruptionError(reason=f"{len(data)} bytes of {_NAMES[codec]} cannot hold {size} bytes")
    try:
        found: bytes = _DECODERS[codec](data, size)
    except ImportError:
        raise
    except Exception as e:  # lz4, zlib and cramjam share no error class
        raise CorruptionError(reason=f"{_NAMES[codec]}: {e}") from e
    if len(found) != size:
        raise CorruptionError(reason=f"{_NAMES[codec]} gave {len(found)} bytes instead of {size}")
    return found


def _lz4(data: bytes | memoryview, size: int) -> bytes:
    import lz4.block  # type: ignore[import-untyped,unused-ignore]

    found: bytes = lz4.block.decompress(data, uncompressed_size=size)
    return found


def _zlib(data: bytes | memoryview, size: int) -> bytes:
    stream = zlib.decompressobj()
    found = stream.decompress(data, size + 1)
    if len(found) <= size and not stream.eof:
        raise zlib.error("incomplete stream")
    return found


def _by_cramjam(codec: int) -> Any:
    def run(data: bytes | memoryview, size: int) -> bytes:
        # Into a buffer of exactly the right size: output beyond it is an error, not an allocation.
        out = bytearray(size)
        written = _cramjam(codec).decompress_into(data, out)
        return bytes(out[:written])

    return run


_DECODERS: Final[dict[int, Any]] = {
    CODEC_LZ4: _lz4,
    CODEC_ZLIB: _zlib,
    CODEC_ZSTD: _by_cramjam(CODEC_ZSTD),
    CODEC_SNAPPY: _by_cramjam(CODEC_SNAPPY),
}


def _cramjam(codec: int) -> Any:
    try:
        import cramjam
    except ImportError as e:
        raise ImportError(
            f'{_NAMES[codec]} compression needs cramjam: pip install "embeddedpulsar[compression]"'
        ) from e
    return cramjam.zstd if codec == CODEC_ZSTD else cramjam.snappy
