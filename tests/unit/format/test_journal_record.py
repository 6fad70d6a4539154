"""Journal records: chained, checked, cut at the first that does not belong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embeddedpulsar._engine.format import journal_record as journal
from embeddedpulsar.exceptions import CorruptionError

payloads = st.lists(st.binary(max_size=30), max_size=8)


def build(items: list[bytes], seed: int = 7) -> tuple[bytes, list[int], int]:
    """Records of `items`, where each starts, and the crc of the last."""
    data, offsets, crc = bytearray(), [], seed
    for number, payload in enumerate(items):
        record, crc = journal.pack_record(number, payload, crc, 1_000 + number)
        offsets.append(len(data))
        data += record
    return bytes(data), offsets, crc


@given(payloads)
def test_records_round_trip(items: list[bytes]):
    """Type, time and payload come back in order."""
    data, offsets, crc = build(items)
    found = list(journal.records(data, 0, len(data), 7))
    assert [at for at, _ in found] == offsets
    assert [record.payload for _, record in found] == items
    assert [(record.type, record.time_ms) for _, record in found] == [
        (i, 1_000 + i) for i in range(len(items))
    ]
    assert journal.valid_end(data, 0, len(data), 7) == (len(data), crc)


@given(payloads, st.data())
def test_a_torn_journal_is_cut_at_the_last_whole_record(items: list[bytes], data: st.DataObject):
    """Cut anywhere, followed by anything: what is accepted is exactly the whole records before."""
    whole, offsets, _ = build(items)
    cut = data.draw(st.integers(0, len(whole)))
    torn = whole[:cut] + data.draw(st.binary(max_size=40))
    end, _ = journal.valid_end(torn, 0, len(torn), 7)
    if torn[: len(whole)] != whole:
        assert end == max(at for at in [*offsets, len(whole)] if torn[:at] == whole[:at])


def test_every_flipped_bit_is_noticed():
    """Header, payload, padding and length are all covered."""
    data, offsets, _ = build([b"first", b"second", b"third"])
    for bit in range(offsets[1] * 8, offsets[2] * 8):
        damaged = bytearray(data)
        damaged[bit >> 3] ^= 1 << (bit & 7)
        assert journal.valid_end(damaged, 0, len(data), 7)[0] == offsets[1]


def test_records_of_another_chain_do_not_follow():
    """What a dead writer left behind the end is not replayed after other records took its place."""
    ours, _, crc = build([b"a"])
    ghost, _ = journal.pack_record(5, b"ghost", crc ^ 1, 0)
    assert journal.valid_end(ours + ghost, 0, len(ours + ghost), 7)[0] == len(ours)


@given(st.binary(max_size=80), st.integers(-5, 90), st.integers(-5, 90))
def test_random_bytes_are_no_record(data: bytes, pos: int, end: int):
    """CorruptionError only."""
    with pytest.raises(CorruptionError):
        journal.read_record(data, pos, end, 0)


def test_records_are_bounded():
    """A payload that no reader would accept is refused when written."""
    with pytest.raises(ValueError, match="at most"):
        journal.pack_record(1, bytes(journal.MAX_RECORD_SIZE), 0, 0)


def survivors(data: bytes, seed: int = 7) -> list[bytes]:
    """What a reader of a journal without a commit word gets."""
    return [record.payload for _, record, _ in journal.surviving_records(data, seed, 0)]


PAYLOADS = [b"a" * 3, b"", b"c" * 20, b"d" * 8, b"e" * 9]


def test_any_damaged_byte_takes_its_record_alone():
    """Wherever it is; the reason comes with the record that follows."""
    data, begins, _ = build(PAYLOADS)
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        hit = sum(begin <= at for begin in begins) - 1
        found = list(journal.surviving_records(bytes(damaged), 7, 0))
        assert [record.payload for _, record, _ in found] == PAYLOADS[:hit] + PAYLOADS[hit + 1 :]
        reasons = [reason for _, _, reason in found]
        assert [number for number, reason in enumerate(reasons) if reason] == [hit] * (hit < len(found))
        if hit == len(found):
            assert journal.damage_behind(bytes(damaged), begins[-1]) or at - begins[-1] < 4


def test_a_cut_or_zeroed_end_is_no_damage():
    """At any byte: the writer died, or the power failed. Behind it nothing is read."""
    data, begins, _ = build(PAYLOADS)
    for at in range(begins[-1], len(data)):
        assert survivors(data[:at]) == PAYLOADS[:-1]
        assert journal.damage_behind(data[:at], begins[-1]) == ""
    assert journal.damage_behind(data + bytes(100), len(data)) == ""
    torn, _ = journal.pack_record(1, b"x" * 2000, 7, 9)
    for sectors in (1, 2, 3):  # the file begins before, so the first sector is not a whole one
        written = torn[: 512 * sectors - 64]
        assert journal.damage_behind(written + bytes(len(torn) - len(written)), 0, 64) == ""
        assert journal.damage_behind(written + b"!" * (len(torn) - len(written)), 0, 64)


def test_older_records_behind_a_break_are_believed_only_if_they_continue_the_chain():
    """They were cut off by a writer that took the break for the end."""
    data, begins, _ = build(PAYLOADS)
    crc = int.from_bytes(data[begins[1] + 4 : begins[1] + 8], "little")
    new, new_crc = journal.pack_record(1, b"new" * 5, crc, 2_000)
    mixed = data[: begins[2]] + new + data[begins[2] + len(new) :]
    assert survivors(mixed) == [*PAYLOADS[:2], b"new" * 5]
    next_one, _ = journal.pack_record(1, b"next", new_crc, 3)  # of a clock that was set back
    assert survivors(mixed + next_one) == [*PAYLOADS[:2], b"new" * 5, b"next"]
