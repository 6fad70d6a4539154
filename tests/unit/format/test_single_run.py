"""Runs of entries of one message: the same entries as one by one, and nothing that does not verify."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embeddedpulsar._engine.format import frame
from embeddedpulsar._engine.format.entry import (
    EntryContent,
    EntryView,
    ProducerPrefix,
    decode,
    encode,
    encode_single,
)
from embeddedpulsar._engine.format.entry_decoder import decode_singles
from embeddedpulsar.exceptions import CorruptionError
from tests.frames import contents, framed

PREFIX = ProducerPrefix("producer", 3)
PLENTY = 1 << 30


def _joined(entries: list[EntryContent]) -> tuple[bytes, list[int]]:
    """A stretch of a segment, and the crc of each frame."""
    data, crcs = b"", [77]
    for number, content in enumerate(entries):
        one, crc = framed(encode(content, PREFIX), entry_id=number, prev_crc=crcs[-1])
        data, crcs = data + one, [*crcs, crc]
    return data, crcs


def _told(view: EntryView) -> list[object]:
    """Everything an entry tells."""
    return [
        (view.ledger_id, view.entry_id, view.publish_time, view.count, view.flags, view.codec, view.batched),
        (view.values(), view.value(0), view.keys(), view.ordering_keys(), view.properties(0)),
        (view.event_times(), view.deliver_at(), list(view.sequence_ids()), view.null(0)),
        (view.producer_name, view.producer_epoch, view.schema_version, view.key_hash, view.transaction()),
        (view.first_sequence_id, view.redelivery_count, view.acked, view.number, view.skip),
        (view.key(0), view.ordering_key(0), view.is_key_null(0), view.entry_fields()),
    ]


def _one_by_one(data: bytes, first_crc: int) -> list[EntryView]:
    """The entries before the first frame that does not verify."""
    found: list[EntryView] = []
    at, crc = 0, first_crc
    try:
        while at < len(data):
            header = frame.read_header(data, at, len(data))
            frame.verify_body(data, at, header)
            if (header.entry_id, header.prev_crc) != (len(found), crc):
                break
            found.append(decode(header, data[at + 48 : at + header.length - 8], 9))
            at, crc = at + header.length, header.crc
    except CorruptionError:
        pass
    return found


@given(st.lists(contents(max_messages=2), min_size=1, max_size=5))
def test_the_same_entries_as_one_by_one(entries: list[EntryContent]):
    """Up to the first batch of several or chunk; what follows is told as it is."""
    data, crcs = _joined(entries)
    found: list[EntryView] = []
    at, entry_id, crc, length = decode_singles(found, data, 0, PLENTY, PLENTY, 9, 0, 77)
    plain = [len(one.values) == 1 and not any(one.chunks or ()) for one in entries]
    taken = plain.index(False) if False in plain else len(plain)
    expected = _one_by_one(data, 77)[:taken]
    assert [_told(view) for view in found] == [_told(view) for view in expected]
    assert (entry_id, crc) == (taken, crcs[taken])
    rest = frame.read_header(data, at, len(data)).length if at < len(data) else frame.MIN_FRAME_SIZE
    assert length == rest


@pytest.mark.parametrize("step", [1, 255])
def test_no_changed_byte_is_passed_over(step: int):
    """Whatever byte of a frame is another, the run ends before it, but for the trailer."""
    data, _ = _joined([EntryContent([b"one"], 5, False, keys=["k"]), EntryContent([b"two!"], 6, False)])
    second = frame.read_header(data, 0, len(data)).length
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] = (changed[at] + step) & 0xFF
        found: list[EntryView] = []
        place = decode_singles(found, bytes(changed), 0, PLENTY, PLENTY, 9, 0, 77)[0]
        in_trailer = second - 8 <= at < second or at >= len(data) - 8
        assert place == (len(data) if in_trailer else 0 if at < second else second)
        assert len(found) == (2 if in_trailer else int(at >= second))


def test_cut_short():
    """A frame that is not all there is left, and its length told where its header is there."""
    one, crc = framed(encode_single(b"x" * 100, 0, PREFIX))
    two, _ = framed(encode_single(b"y" * 300, 1, PREFIX), entry_id=1, prev_crc=crc)
    for cut in range(len(two)):
        found: list[EntryView] = []
        got = decode_singles(found, one + two[:cut], 0, PLENTY, PLENTY, 9, 0, 0)
        assert len(found) == 1
        claimed = len(two) if cut >= frame.MIN_FRAME_SIZE else frame.MIN_FRAME_SIZE
        assert got == (len(one), 1, crc, claimed)


def test_maxima():
    """At most so many entries; and once so many bytes were taken, no more."""
    data, crcs = _joined([EntryContent([b"v%d" % n], n, False) for n in range(9)])
    length = len(data) // 9
    for most, max_bytes, expected in [
        (4, PLENTY, 4),
        (9, 1, 1),
        (9, length, 1),
        (9, length + 1, 2),
        (0, 9, 0),
    ]:
        found: list[EntryView] = []
        at, entry_id, crc, _ = decode_singles(found, data, 0, most, max_bytes, 9, 0, 77)
        assert (len(found), at, entry_id, crc) == (expected, expected * length, expected, crcs[expected])


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.sampled_from([b"", b"abcdefgh"]))
def test_a_body_that_its_checksums_vouch_for_is_still_looked_at(zero: int, end: int, value: bytes):
    """A hostile writer: where the value runs from and to is checked."""
    encoded = encode_single(value, 0, PREFIX)
    body = bytearray(encoded.parts[0])
    at = encoded.metadata_length
    body[at : at + 8] = zero.to_bytes(4, "little") + end.to_bytes(4, "little")
    data, _ = framed(encoded._replace(parts=[bytes(body)], body_crc=zlib.crc32(body)), prev_crc=77)
    found: list[EntryView] = []
    decode_singles(found, data, 0, PLENTY, PLENTY, 9, 0, 77)
    assert [_told(view) for view in found] == [_told(view) for view in _one_by_one(data, 77)]
