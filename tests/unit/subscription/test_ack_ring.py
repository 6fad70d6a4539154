"""Acknowledgements in shared memory: what others find there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from embeddedpulsar._engine.filenames import acks_path, consumers_in
from embeddedpulsar._engine.format.control import RING_SIZE, RingWord, Unwritten, parse_ring, place_word
from embeddedpulsar._engine.format.subscription_record import DETACH_CLOSED, DETACH_DEAD, Create, Detach
from embeddedpulsar._engine.subscription.ack_ring import MOST_ENTRIES, AckRing, RingSweep
from embeddedpulsar._engine.subscription.state.replica import SubscriptionState
from embeddedpulsar.exceptions import CorruptionError

BOOT = b"b" * 16


def ring_in(directory: Path) -> AckRing:
    return AckRing.make(str(directory), 3, 7, BOOT)


def read(directory: Path) -> Unwritten:
    return parse_ring(Path(acks_path(str(directory), 3)).read_bytes())[1]


def test_what_is_stored_is_found(tmp_path: Path):
    """Entries, parts of batches and cumulative acknowledgements."""
    ring = ring_in(tmp_path)
    ring.store(4, 0)
    ring.store(4, 5)
    ring.store(0, 0)
    assert ring.note_part(9, 2, 0, 10)
    assert ring.note_part(9, 2, 3, 10)
    ring.note_cumulative(3, 8, -1, 0)
    ring.note_cumulative(5, -1, -1, 0)
    ring.note_cumulative(5, 1, 2, 6)
    found = read(tmp_path)
    assert found[:2] == (3, 7)
    assert found.entries == [(0, 0), (4, 0), (4, 5)]
    assert found.parts == {(9, 2): (0b1001, 10)}
    assert found.cumulative == [(5, -1, -1, 0), (5, 1, 2, 6)]


def test_the_newest_entries_are_there(tmp_path: Path):
    """The ring is used in turn: as many as it has words are never lost."""
    ring = ring_in(tmp_path)
    for entry in range(3 * MOST_ENTRIES // 2):
        ring.store(1, entry)
    expected = range(MOST_ENTRIES // 2, 3 * MOST_ENTRIES // 2)
    assert read(tmp_path).entries == [(1, entry) for entry in expected]


def test_a_new_epoch_voids_everything(tmp_path: Path):
    """Nothing of the old one is taken for new."""
    ring = ring_in(tmp_path)
    ring.store(4, 0)
    ring.note_part(4, 1, 0, 2)
    ring.note_cumulative(4, 2, -1, 0)
    ring.begin(8)
    assert read(tmp_path) == Unwritten(3, 8, [], {}, [])


def test_parts_have_room_again_once_they_are_written(tmp_path: Path):
    """Those noted while others are written are not overwritten; without room the caller is told."""
    ring = ring_in(tmp_path)
    half = 0
    while ring.note_part(1, half, 0, 2):
        half += 1
    ring.begin_writing()
    assert ring.note_part(2, 0, 0, 2)
    ring.end_writing()
    ring.begin_writing()  # and the first half again
    assert ring.note_part(3, 0, 0, 2)
    assert {(2, 0), (3, 0)} <= set(read(tmp_path).parts)
    for _ in range(
        3
    ):  # each time the writing before failed: parts go on in this half, and none is overwritten
        ring.begin_writing()
        assert ring.note_part(4, 0, 0, 2)
    assert {(2, 0), (3, 0), (4, 0)} <= set(read(tmp_path).parts)
    assert sum(ring.note_part(5, entry, 0, 2) for entry in range(half + 1)) == half - 4
    ring.end_writing()
    assert not ring.note_part(6, 0, 0, 2)  # what was noted while it was written is not written
    ring.begin_writing()
    assert sum(ring.note_part(7, entry, 0, 2) for entry in range(half + 1)) == half
    assert {(5, entry) for entry in range(half - 4)} <= set(read(tmp_path).parts)


def test_half_a_pair_is_none(tmp_path: Path):
    """A pair whose first word is 0 says nothing, nor does one that makes no sense."""
    ring = ring_in(tmp_path)
    ring.words[RingWord.PARTS + 1] = 5 << 32 | 10
    ring.words[RingWord.PARTS + 2] = place_word(1, 1)  # index 0 of 0
    ring.words[RingWord.PARTS + 4] = place_word(1, 1)
    ring.words[RingWord.PARTS + 5] = 10 << 32 | 10
    ring.words[RingWord.ENTRIES] = place_word(1, 1 << 31)
    assert read(tmp_path)[2:] == ([], {}, [])


def test_files(tmp_path: Path):
    """A file of an earlier boot is replaced; it goes when all is written; elsewhere it is no such file."""
    path = Path(acks_path(str(tmp_path), 3))
    path.write_bytes(b"\xff" * RING_SIZE)
    ring = ring_in(tmp_path)
    assert read(tmp_path).entries == []
    assert consumers_in(os.listdir(tmp_path)) == [3]
    ring.remove()
    ring.remove()
    ring.store(1, 1)  # somebody was late
    assert os.listdir(tmp_path) == []
    for data in (b"", b"\0" * RING_SIZE, b"x" * 200):
        with pytest.raises(CorruptionError):
            parse_ring(data)


def test_a_directory_that_is_gone(tmp_path: Path):
    """A deleted topic: what is acknowledged means nothing, and nothing is made anew."""
    ring = ring_in(tmp_path / "gone")
    ring.store(1, 1)
    ring.begin(9)
    ring.remove()
    assert os.listdir(tmp_path) == []


def test_files_of_consumers_that_left_are_removed(tmp_path: Path):
    """That of a dead one with the next commit; those that others left when a consumer closes, now and after a
    death."""

    def left() -> list[int]:
        return sorted(consumers_in(os.listdir(tmp_path)))

    def leave(consumer_id: int, reason: int) -> None:
        sweep.begin()
        sweep.record_leaver(Detach(consumer_id, reason, 0))
        if reason == DETACH_DEAD:
            assert not sweep.has_leavers
            sweep.begin()
        assert sweep.has_leavers
        sweep.sweep(state)
        assert not sweep.has_leavers

    state, sweep = SubscriptionState(), RingSweep(str(tmp_path))
    state.apply(Create("work", 5, 0, -1))
    for consumer_id in (1, 2, 3, 9):
        Path(acks_path(str(tmp_path), consumer_id)).touch()
    leave(2, DETACH_DEAD)
    assert left() == [1, 3, 9]
    leave(4, DETACH_CLOSED)
    assert left() == [9]  # the state has not heard of it yet
    for consumer_id in (1, 3):
        Path(acks_path(str(tmp_path), consumer_id)).touch()
    leave(3, DETACH_CLOSED)
    assert left() == [1, 9]
    leave(4, DETACH_DEAD)
    leave(5, DETACH_CLOSED)
    assert left() == [9]
