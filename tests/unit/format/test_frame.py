"""Frames: every flipped bit is noticed, nothing is read beyond its bounds, the next frame is found again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embeddedpulsar._engine.format import frame
from embeddedpulsar._engine.format.entry import EntryContent, ProducerPrefix, encode, encode_single
from embeddedpulsar.exceptions import CorruptionError
from tests.frames import contents, framed

PREFIX = ProducerPrefix("p")


def chain(count: int, start: int = 0) -> tuple[bytes, list[int]]:
    """`count` chained frames behind `start` bytes of zeros, and their offsets."""
    data, offsets, crc = bytearray(start), [], 0
    for entry_id in range(count):
        one, crc = framed(
            encode_single(b"payload %d" % entry_id, entry_id, PREFIX), entry_id=entry_id, prev_crc=crc
        )
        offsets.append(len(data))
        data += one
    return bytes(data), offsets


def verify(data: bytes | bytearray) -> frame.FrameHeader:
    """Check one frame in every way."""
    header = frame.read_header(data, 0, len(data))
    frame.verify_body(data, 0, header)
    frame.verify_trailer(data, 0, header)
    return header


def test_header_size_is_the_sum_of_its_fields():
    """The constant, the struct and the sealed part agree."""
    assert frame.HEADER.size == frame.HEADER_SIZE == 48
    assert frame.TRAILER.size == frame.TRAILER_SIZE == 8


@given(
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
)
def test_header_fields_round_trip(prev_crc: int, flags: int, entry_id: int, publish_ms: int):
    """What is sealed is what is read."""
    header_bytes, crc = frame.seal(96, prev_crc, 5, 1, 0, flags, entry_id, publish_ms, 1, 32)
    data = header_bytes + bytes(40) + frame.pack_trailer(96)
    header = frame.read_header(data, 0, 96)
    assert header == (96, crc, prev_crc, 5, frame.MAGIC, 1, 0, flags, entry_id, publish_ms, 1, 32, 0)
    assert header.batched == bool(flags & frame.FLAG_BATCHED)


@given(contents(max_messages=4), st.integers(0, 4))
def test_every_flipped_bit_is_noticed(content: EntryContent, codec: int):
    """Whichever bit of a frame is flipped, header, body or trailer no longer verifies."""
    data, _ = framed(encode(content, PREFIX, codec))
    verify(data)
    for bit in range(0, len(data) * 8, 1 if len(data) < 200 else 7):
        damaged = bytearray(data)
        damaged[bit >> 3] ^= 1 << (bit & 7)
        with pytest.raises(CorruptionError):
            verify(damaged)


@given(st.binary(max_size=300), st.integers(-10, 310), st.integers(-10, 310))
def test_random_bytes_are_corrupt(data: bytes, pos: int, end: int):
    """Reading at any place of any bytes raises CorruptionError only."""
    with pytest.raises(CorruptionError):
        frame.read_header(data, pos, end)
    assert frame.next_frame(data, pos, end) == -1
    try:
        assert pos <= frame.last_frame_start(data, max(pos, 0), end) < end
    except CorruptionError:
        return


@given(st.integers(0, 2**32 - 1))
def test_a_length_nobody_wrote_is_refused(length: int):
    """The length is bound to the header's checksum."""
    data, _ = framed(encode_single(b"abc", 0, PREFIX))
    if length == len(data):
        return
    damaged = length.to_bytes(4, "little") + data[4:] + bytes(200)
    with pytest.raises(CorruptionError):
        frame.read_header(damaged, 0, len(damaged))


def test_a_frame_must_end_before_the_end():
    """A frame that reaches over the end, and an offset that is no multiple of 8, are refused."""
    data, _ = framed(encode_single(b"abc", 0, PREFIX))
    with pytest.raises(CorruptionError, match="does not fit"):
        frame.read_header(data + bytes(8), 0, len(data) - 8)
    with pytest.raises(CorruptionError):
        frame.read_header(data, 4, len(data))
    with pytest.raises(CorruptionError):
        frame.read_header(data, 0, len(data) + 8)


@given(st.integers(1, 6))
def test_the_last_frame_is_found_from_its_end(count: int):
    """The trailer leads back to the start, and not below the floor."""
    data, offsets = chain(count)
    assert frame.last_frame_start(data, 0, len(data)) == offsets[-1]
    with pytest.raises(CorruptionError):
        frame.last_frame_start(data, offsets[-1] + 8, len(data))
    with pytest.raises(CorruptionError):
        frame.last_frame_start(data[:-8], 0, len(data) - 8)


def test_frames_walks_the_whole_chain():
    """Offsets and headers in order, and an error at the first place without a frame."""
    data, offsets = chain(5)
    found = list(frame.frames(data, 0, len(data)))
    assert [pos for pos, _ in found] == offsets
    assert [header.entry_id for _, header in found] == [0, 1, 2, 3, 4]
    with pytest.raises(CorruptionError):
        list(frame.frames(data + bytes(64), 0, len(data) + 64))


@given(st.integers(0, 4), st.integers(0, 127), st.integers(1, 255))
def test_resync_finds_the_frame_behind_the_damage(which: int, at: int, change: int):
    """Whatever byte of a frame's header is hit, the scan finds the next frame."""
    data, offsets = chain(6)
    damaged = bytearray(data)
    damaged[offsets[which] + at % 48] ^= change
    assert frame.next_frame(damaged, offsets[which], len(damaged)) == offsets[which + 1]


@pytest.mark.parametrize("gap", [0, 8, (1 << 16) - 24, (1 << 16) - 16, (1 << 16) - 8, 1 << 16, (1 << 17) + 8])
def test_resync_over_windows_of_the_search(gap: int):
    """Headers at and across the borders of the pieces that are searched are found."""
    data, offsets = chain(1, start=gap)
    assert frame.next_frame(data, 0, len(data)) == offsets[0] == gap
    assert frame.next_frame(memoryview(data), 0, len(data)) == gap
    assert frame.next_frame(data, gap + 8, len(data)) == -1


def test_resync_in_a_window_of_the_file():
    """With a limit beyond the buffer, a header counts even though its frame ends outside."""
    data, _ = framed(encode_single(bytes(500), 0, PREFIX))
    assert frame.next_frame(data[:100], 0, 100) == -1
    assert frame.next_frame(data[:100], 0, 100, limit=len(data)) == 0
    assert frame.next_frame(data[:100], 0, 100, limit=len(data) - 8) == -1
