"""Codecs of entry columns. Owns the imports of lz4, zlib's inflate and cramjam.

The size of the result is always known (it is in the entry's metadata, under the body checksum), so no codec
gets to choose how much is allocated: the claim is compared with what the codec could reach at best, and a
result of another size is damage. Unpacking takes the promised size twice, and for ZSTD a window of at most
that size or 8 MiB.
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
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_SINGLE_SEGMENT: Final = 1 << 5
_LARGEST_WINDOW: Final = 8 << 20
"""Of a ZSTD frame that holds less: what its highest ordinary level asks for."""


def require_codec(codec: int) -> None:
    """Make sure that a codec of frame.py can be used here.

    Raises:
        ImportError: ZSTD or SNAPPY without the extra "compression"; the text has the command.

    Example:
        >>> require_codec(1)
    """
    if codec in (CODEC_ZSTD, CODEC_SNAPPY):
        _cramjam(codec)


def compress(codec: int, data: bytes | memoryview) -> bytes:
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
        return bytes(data)
    raise ValueError(f"no codec {codec}; use 0 (none), 1 (LZ4), 2 (ZLIB), 3 (ZSTD) or 4 (SNAPPY)")


def decompress(codec: int, data: bytes | memoryview, size: int, most: int = MAX_FRAME_SIZE) -> bytes:
    """Decompress to exactly `size` bytes, at most `most`. Check the checksum of `data` first.

    Raises:
        CorruptionError: unknown codec, malformed data, or another size.
        ImportError: ZSTD or SNAPPY without the extra "compression".
    """
    ratio = _RATIO.get(codec)
    if ratio is None:
        raise CorruptionError(reason=f"unknown codec {codec}")
    if size > most or size > len(data) * ratio + _SMALL:
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
        return bytes(out) if written == size else bytes(out[:written])

    return run


def _zstd(data: bytes | memoryview, size: int) -> bytes:
    window = _zstd_window(bytes(data[:6]))
    if window > max(size, _LARGEST_WINDOW):
        raise CorruptionError(reason=f"a window of {window} bytes for {size}")
    found: bytes = _unpack_zstd(data, size)
    return found


def _zstd_window(front: bytes) -> int:
    """How far back a ZSTD frame refers; the decoder allocates that before it sees any content.

    >>> _zstd_window(bytes.fromhex("28b52ffd8058"))
    2097152
    """
    if len(front) < 6 or front[:4] != _ZSTD_MAGIC or front[4] & _ZSTD_SINGLE_SEGMENT:
        return 0  # no frame, which the decoder notices; or the content is the window
    base = 1 << 10 + (front[5] >> 3)
    return base + base // 8 * (front[5] & 7)


_unpack_zstd: Final = _by_cramjam(CODEC_ZSTD)
_DECODERS: Final[dict[int, Any]] = {
    CODEC_LZ4: _lz4,
    CODEC_ZLIB: _zlib,
    CODEC_ZSTD: _zstd,
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
