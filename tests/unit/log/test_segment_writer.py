"""What an append leaves in the files, and the slow paths beside it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from embeddedpulsar._engine.filenames import log_path
from embeddedpulsar._engine.format.control import TopicWord
from embeddedpulsar._engine.format.entry import EncodedEntry, encode_single
from embeddedpulsar._engine.format.frame import (
    FIRST_FRAME_OFFSET,
    IndexSlot,
    is_block_sealed_and_intact,
    pack_slot,
    seal,
    slot_offset,
)
from embeddedpulsar._engine.log.log_check import check_topic
from embeddedpulsar._engine.log.segment import Segment
from embeddedpulsar._engine.log.segment_writer import AppendPoint
from embeddedpulsar._engine.log.topic_control import TOUCHED, TopicControl
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar.exceptions import ProducerFenced
from embeddedpulsar.testing.manual_clock import ManualClock
from tests.ledger_site import PREFIX, LedgerSite, send, send_batch, values
from tests.strikes import strike


@pytest.fixture
def site(tmp_path: Path) -> Iterator[LedgerSite]:
    """A place for ledgers, with a clock that stands still."""
    with LedgerSite(tmp_path, clock=ManualClock(wall_ms=1_000_000)) as made:
        yield made


def test_bytes_of_an_append(site: LedgerSite):
    """Frame and slot are what `frame.seal` and `pack_slot` build; the tail points behind the frame."""
    ledger = site.open()
    entry = encode_single(b"value", 7, PREFIX)._replace(key_hash=99)
    ledger_id, entry_id, published, end_word = ledger.append_nowait(entry)
    segment = Segment.open(site.directory, ledger_id)
    length = entry.size + 56
    header, crc = seal(
        length, segment.header.chain_seed, entry.body_crc, 1, 0, 0, 0, published, 1, entry.metadata_length
    )
    end = FIRST_FRAME_OFFSET + length
    frame = header + b"".join(entry.parts) + bytes(4) + length.to_bytes(4, "little")
    assert segment.data[FIRST_FRAME_OFFSET:end] == frame
    slot = pack_slot(FIRST_FRAME_OFFSET, 0, 1, 99, 0, 1, crc)
    assert segment.index.data[4096 : 4096 + 24] == slot
    assert end_word == ledger.tail == ledger_id << 32 | end >> 3
    assert (entry_id, published) == (0, 1_000_000)


def test_publish_times_follow_each_millisecond(tmp_path: Path):
    """The clock is divided into milliseconds now and then only, and each new one is seen at once; one that is
    set back changes nothing, and none is taken from the time before."""
    clock = ManualClock(wall_ms=1_000_000)
    with LedgerSite(tmp_path, clock=clock) as site:
        ledger = site.open()

        def published_after(seconds: float) -> int:
            clock.advance(seconds)
            return ledger.append_nowait(encode_single(b"value", 0, PREFIX))[2]

        assert published_after(0) == 1_000_000
        assert published_after(0.00098) == 1_000_000
        assert published_after(0.00001) == 1_000_000
        assert published_after(0.00001) == 1_000_001
        assert published_after(0.00002) == 1_000_001
        assert published_after(5) == 1_005_001
        clock.set_wall_ms(1_000_500)
        assert published_after(0) == 1_005_001
        assert published_after(4.6) == 1_005_100
        with LedgerSite(tmp_path, clock=clock) as other:
            clock.advance(1)
            assert send(other.open(), b"another process").entry_id == 8
        assert published_after(0) == 1_006_100


def test_counts_beyond_the_slot_are_capped(site: LedgerSite):
    """A slot says "65535 or more"; messages so far are exact all the same."""
    ledger = site.open()
    position = send_batch(ledger, [b""] * 70_000)
    segment = Segment.open(site.directory, position.ledger_id)
    slot: IndexSlot = segment.index.slot(0)
    assert (slot.count, slot.messages) == (65535, 70_000)


@pytest.mark.parametrize("entries", [1023, 1024, 1025, 2048])
def test_full_blocks_of_slots_are_sealed(site: LedgerSite, entries: int):
    """Every full block of a closed ledger has its checksum, also one that is full exactly at its end."""
    ledger = site.open(max_entries=entries)
    for n in range(entries + 1):
        position = send(ledger, b"%d" % n)
    assert position.entry_id == 0
    closed = Segment.open(site.directory, position.ledger_id - 1)
    assert [is_block_sealed_and_intact(closed.index.data, block) for block in range(3)] == [
        entries >= 1024 * (block + 1) for block in range(3)
    ]


def test_disk_is_taken_in_growing_steps(site: LedgerSite):
    """A small topic takes 8 KiB, then 64; a growing one doubles; pages are touched ahead but never beyond."""
    ledger = site.open(segment_size=16 << 20, allocation_step=1 << 20)
    control = TopicControl.open(site.directory)
    words, steps = control.words, []
    send(ledger, b"x" * 1000)
    assert (words[TopicWord.ALLOCATED], words[TOUCHED]) == (8 << 10, 8 << 10)
    blocks = (Path(site.directory) / f"{1:020d}.log").stat().st_blocks
    assert blocks * 512 <= 16 << 10
    while len(steps) < 9:
        send(ledger, b"x" * 30_000)
        end = (ledger.tail & 0xFFFFFFFF) << 3
        allocated = words[TopicWord.ALLOCATED]
        assert end <= words[TOUCHED] <= allocated
        if not steps or steps[-1] != allocated:
            steps.append(allocated)
    kib = [step >> 10 for step in steps]
    assert kib == [64, 128, 256, 512, 1024, 2048, 3072, 4096, 5120]
    control.close()


def test_slots_are_reserved_in_growing_steps(site: LedgerSite):
    """A page of them, then twice as many up to a block, then whole blocks; another process that appends next
    knows how far. A topic with one message takes two pages of each file."""
    ledger, other = site.open(), site.open()
    control = TopicControl.open(site.directory)
    words, steps = control.words, []
    send(ledger, b"0")
    for suffix in ("log", "idx"):
        status = (Path(site.directory) / f"{1:020d}.{suffix}").stat()
        assert status.st_blocks * 512 <= 8 << 10 < status.st_size
    for number in range(1, 2100):
        send(ledger if number % 3 else other, b"%d" % number)
        assert slot_offset(number + 1) <= words[TopicWord.INDEX_ALLOCATED]
        if not steps or steps[-1] != words[TopicWord.INDEX_ALLOCATED]:
            steps.append(words[TopicWord.INDEX_ALLOCATED])
    block = 24 << 10
    assert [step - 4096 for step in steps] == [4096, 8192, 16384, block, 3 * block]
    assert check_topic(site.directory).is_clean and values(ledger) == [b"%d" % n for n in range(2100)]
    control.close()


def test_a_writer_that_dies_after_it_reserved_slots(site: LedgerSite):
    """The next one reserves them again; slots before them stay."""
    ledger, other = site.open(), site.open()
    for number in range(170):
        send(ledger, b"%d" % number)
    try:
        failpoints.set("append:index_reserved", "raise")
        with pytest.raises(failpoints.InjectedFailure):
            send(ledger, b"lost")
    finally:
        failpoints.clear()
    for number in range(170, 400):
        send(other, b"%d" % number)
    assert values(other) == [b"%d" % number for number in range(400)]
    assert check_topic(site.directory).is_clean


def test_an_entry_larger_than_a_segment(site: LedgerSite):
    """It gets a segment of its own size; the next entry starts an ordinary one."""
    ledger = site.open(segment_size=64 << 10)
    first = send(ledger, b"small")
    big = send(ledger, b"b" * 500_000)
    last = send(ledger, b"not so small" * 500)
    assert first.ledger_id < big.ledger_id < last.ledger_id
    assert Segment.open(site.directory, big.ledger_id).file.size >= 500_000
    assert Segment.open(site.directory, last.ledger_id).file.size == 64 << 10
    assert values(ledger) == [b"small", b"b" * 500_000, b"not so small" * 500]


def test_openings_share_one_end(site: LedgerSite):
    """An opening that others overtook finds the end again, over rolls, and loses nothing."""
    ledgers = [site.open(max_entries=5) for _ in range(3)]
    for n in range(60):
        send(ledgers[n * 7 % 3], b"%d" % n)
    assert values(ledgers[0]) == [b"%d" % n for n in range(60)]
    assert ledgers[0].statistics().recoveries == 0


@pytest.mark.parametrize("entry_id", [2**63, 2**64 - 1, 2**40])
def test_an_end_whose_number_is_damaged(site: LedgerSite, entry_id: int):
    """Whoever finds the end anew is not misled by a number no index can have: the next ledger begins."""
    one, other = site.open(), site.open()
    send(other, b"first")
    place = send(one, b"second")
    start, _ = Segment.open(site.directory, place.ledger_id).frame_of(place.entry_id, 1 << 30)
    with open(log_path(site.directory, place.ledger_id), "r+b") as file:
        file.seek(start + 24)
        file.write(entry_id.to_bytes(8, "little"))
    behind = send(other, b"third")
    assert behind.ledger_id > place.ledger_id
    assert values(other)[-1] == b"third"


def test_compressed_and_odd_entries_pass_through(site: LedgerSite):
    """The writer does not look into an entry: codec, flags and parts are kept as they are."""
    ledger = site.open()
    parts = [bytes(40), b"12345678", bytes(16)]
    entry = EncodedEntry(parts, 64, 0, 3, 40, 1, 1 << 16 | 5, 77)
    ledger_id, entry_id, _, _ = ledger.append_nowait(entry)
    segment = Segment.open(site.directory, ledger_id)
    offset, header = segment.frame_of(entry_id, 1 << 30)
    assert (header.codec, header.flags, header.message_count) == (1, 1 << 16 | 5, 3)
    assert segment.data[offset + 48 : offset + 112] == b"".join(parts)


class Gatekeeper:
    """A guard that admits until it is told not to."""

    def __init__(self, ledger) -> None:
        self.words, self.lock = ledger.words, ledger.lock
        self.checked = -1
        self.looks = 0
        self.is_out = False

    def check_connected(self) -> None:
        assert self.lock.held, "what is found holds until the entry is there"
        self.looks += 1
        if self.is_out:
            raise ProducerFenced("out")
        self.checked = self.words[TopicWord.JOURNAL]


def test_a_guard_is_asked_under_the_lock_when_producers_came_or_went(site: LedgerSite):
    """Once per change; who is refused has appended nothing, and has left nothing behind."""
    ledger = site.open()
    guard = Gatekeeper(ledger)
    entry = encode_single(b"x", 0, PREFIX)
    for _ in range(3):
        ledger.append_nowait(entry, guard)
    assert guard.looks == 1
    ledger.words[TopicWord.JOURNAL] += 1
    guard.is_out = True
    with pytest.raises(ProducerFenced):
        ledger.append_nowait(entry, guard)
    assert ledger.last_position().entry_id == 2 and not ledger.words[TopicWord.OWNER]
    ledger.append_nowait(entry)
    assert ledger.last_position().entry_id == 3


def test_an_interrupt_between_two_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Ctrl-C at every instruction while the writer takes up the segment of a new ledger: what comes next
    has the place and the time of that ledger, in the log and in the index."""
    use = AppendPoint._use
    index, is_struck = 0, True

    def interrupt() -> None:
        raise KeyboardInterrupt

    def use_under_fire(self: AppendPoint, segment: Segment) -> None:
        nonlocal is_struck
        is_struck = True
        is_struck = strike(lambda: use(self, segment), interrupt, index, "_engine/log/segment_writer.py")

    clock = ManualClock()
    with LedgerSite(tmp_path, clock=clock) as site:
        ledger = site.open(segment_size=64 << 10)
        send(ledger, b"first")
        while is_struck:
            clock.advance(1.0)
            with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
                patch.setattr(AppendPoint, "_use", use_under_fire)
                ledger.roll()
            clock.advance(1.0)
            send(ledger, b"%d" % index)
            index += 1
        assert index > 50
        assert values(ledger) == [b"first", *(b"%d" % number for number in range(index))]
        assert check_topic(ledger.directory).is_clean
