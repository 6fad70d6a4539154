"""Bombs: packed data that would unpack to more than the entry says are refused, and memory stays bounded.

The stored size lies under the entry's checksum; whoever unpacks allocates that, and finds out the rest.
"""

from __future__ import annotations

import functools
import resource
import struct
import tracemalloc
import zlib

import pytest

from embeddedpulsar import CompressionType, MessageTooBig
from embeddedpulsar._engine.format.compression import compress, decompress
from embeddedpulsar.exceptions import CorruptionError
from tests.conformance.conftest import receive_all

pytest.importorskip("cramjam", reason="the extra `compression` is not installed")

PACKING = [codec for codec in CompressionType if codec is not CompressionType.NONE]
INSIDE = 32 << 20
ALLOWED = 4 << 20


@functools.cache
def bomb_of(codec: CompressionType) -> bytes:
    """Zeros, packed."""
    return compress(int(codec), bytes(INSIDE))


def peak_kib() -> int:
    """The most memory this process ever had, which counts what codecs allocate for themselves."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.parametrize("codec", PACKING)
def test_a_bomb_in_a_topic_is_skipped(topic, monkeypatch, codec):
    """32 MiB packed into an entry that says 5 KB: the entry is damage, and nobody unpacks 32 MiB."""
    bomb = bomb_of(codec)
    consumer = topic.consumer()
    with topic.producer(compression_type=codec) as producer:
        producer.send(b"before")
        with monkeypatch.context() as hostile:
            # What is stored must look worth while, so the frame claims as much as it may.
            hostile.setattr("embeddedpulsar._engine.format.entry.compress", lambda codec, data: bomb[:4000])
            producer.send(b"claimed" * 800)
        producer.send(b"behind")
    before = peak_kib()
    tracemalloc.start()
    messages = receive_all(consumer)
    traced = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [message.data() for message in messages] == [b"before", b"behind"]
    assert traced < ALLOWED
    assert (peak_kib() - before) * 1024 < 2 * ALLOWED


@pytest.mark.parametrize("codec", PACKING)
@pytest.mark.parametrize("claimed", [0, 1, 1000, 100_000])
def test_the_promised_size_bounds_the_memory(codec, claimed):
    """Whatever is inside, about twice the promised size is allocated, and the bomb is damage."""
    bomb = bomb_of(codec)
    before = peak_kib()
    tracemalloc.start()
    with pytest.raises(CorruptionError):
        decompress(int(codec), bomb, claimed)
    traced = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert traced < 2 * claimed + 300_000
    assert (peak_kib() - before) * 1024 < ALLOWED


def test_a_zstd_window_is_memory_too():
    """A frame may ask for a window of 128 MiB to unpack ten bytes: it is not given one."""
    frame = struct.pack("<IBB", 0xFD2FB528, 0, 17 << 3) + bytes([1 | 10 << 3, 0, 0]) + bytes(10)
    before = peak_kib()
    with pytest.raises(CorruptionError, match="window of 134217728 bytes for 10"):
        decompress(3, frame, 10)
    assert (peak_kib() - before) * 1024 < ALLOWED


def test_nested_streams_are_damage():
    """A second stream behind the first is not unpacked after it."""
    twice = zlib.compress(bytes(100)) + bomb_of(CompressionType.ZLib)
    for size in (101, INSIDE):
        with pytest.raises(CorruptionError):
            decompress(2, twice, size)


@pytest.mark.parametrize("codec", PACKING)
def test_nobody_writes_what_nobody_would_unpack(topic, monkeypatch, codec):
    """However well it packs: a message beyond what consumers unpack is too big, not lost."""
    monkeypatch.setattr("embeddedpulsar._engine.format.entry.MAX_FRAME_SIZE", 6 << 20)
    with topic.producer(compression_type=codec) as producer:
        producer.send(bytes(5 << 20))
        with pytest.raises(MessageTooBig):
            producer.send(bytes(7 << 20))
