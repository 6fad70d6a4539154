"""A codec is one module and one call of `register`."""

from __future__ import annotations

import bz2
from collections.abc import Iterator

import pytest

from embeddedpulsar._engine.format.compression import CODECS, Codec, decompress, register, require_codec
from embeddedpulsar._engine.format.entry import EntryContent, ProducerPrefix, encode
from embeddedpulsar.exceptions import CorruptionError
from tests.frames import framed, unframed

BZIP2 = 100


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    try:
        register(BZIP2, Codec("BZIP2", 1 << 17, bz2.compress, lambda data, size: bz2.decompress(bytes(data))))
        yield
    finally:
        del CODECS[BZIP2]


def test_entries_are_compressed_by_a_codec_that_was_registered():
    """From the content to the bytes of a frame, and back."""
    require_codec(BZIP2)
    content = EntryContent([b"abc" * 500, b"def" * 500], 7, True)
    data, _ = framed(encode(content, ProducerPrefix("p"), BZIP2))
    assert len(data) < 300
    view = unframed(data)
    assert (view.codec, view.values()) == (BZIP2, content.values)


def test_damage_under_it_is_damage_like_any_other():
    """An error of the codec itself becomes the error that all readers of entries know."""
    with pytest.raises(CorruptionError, match="BZIP2"):
        decompress(BZIP2, b"no such data", 100)


@pytest.mark.parametrize("number", [0, 1, BZIP2, 128, 255])
def test_a_number_is_used_once(number: int):
    """Numbers are stored: none may have two meanings."""
    with pytest.raises(ValueError, match="not the number"):
        register(number, CODECS[1])
