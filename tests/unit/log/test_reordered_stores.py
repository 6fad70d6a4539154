"""What a reader of a log makes of words that it sees in another order than they were stored.

Each test is named in a row of the table in docs/concurrency.md, "Machines that reorder".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from embeddedpulsar._engine.filenames import control_path, index_path, log_path
from embeddedpulsar._engine.format.columns import EntryContent
from embeddedpulsar._engine.format.control import TopicWord
from embeddedpulsar._engine.format.entry import encode, encode_single
from embeddedpulsar._engine.format.frame import SLOT_SIZE, slot_offset
from embeddedpulsar._engine.log.log_view import LogView
from embeddedpulsar._engine.log.managed_ledger import ManagedLedger
from embeddedpulsar._engine.log.segment_snapshot import committed_segments
from embeddedpulsar._engine.log.segments import SEGMENTS
from embeddedpulsar._engine.platform import threads
from embeddedpulsar.message_id import Position
from tests.ledger_site import PREFIX, LedgerSite, drain, send
from tests.support.weak_memory import WORD, Change, Stores, reordering, samples, subsets

TAIL = 8 * TopicWord.TAIL
SMALL = {"segment_size": 64 << 10, "first_allocation": 8 << 10, "allocation_step": 16 << 10}
KEYED = 3
"""Entries of a `Scene`, after the one that is there before."""


class Scene:
    """A log with one entry, then some more, and a reader that sees as much of these as the test says."""

    def __init__(self, site: LedgerSite) -> None:
        self.writer: ManagedLedger = site.open(**SMALL)
        self.damage: list[object] = []
        send(self.writer, b"old")
        self.ledger = self.writer.view.tail >> 32
        self.end = (self.writer.view.tail & 0xFFFFFFFF) << 3
        self.ctl = control_path(site.directory)
        self.log, self.index = log_path(site.directory, self.ledger), index_path(site.directory, self.ledger)
        self.stores = Stores(self.ctl, self.log, self.index)

    def publish(self, count: int = KEYED) -> None:
        """The entries that a reader sees in part."""
        for number in range(count):
            content = EntryContent(
                [b"%d" % number * 9], batched=False, keys=[f"k{number}"], deliver_at=[number]
            )
            self.writer.append(encode(content, PREFIX))
        self.stores.end()
        self.tail = self.stores.of(self.ctl, TAIL, TAIL + WORD)

    def others(self) -> list[Change]:
        """All words but that of the tail."""
        return [change for change in self.stores.changes if change not in self.tail]

    def reader(self) -> LogView:
        """The log as a process has it that has read nothing yet."""
        view = self.writer.view
        return LogView(view.directory, view.control, view.lock, view.timeout_s, self.damage.append)


@pytest.fixture
def scene(site: LedgerSite) -> Scene:
    """See `Scene`."""
    return Scene(site)


def states(scene: Scene, units: Sequence[Sequence[Change]], count: int = 150) -> Iterator[list[Change]]:
    """With the tail: each choice of the units, and choices of single words."""
    for seen in (*subsets(units), *samples(scene.others(), count, seed=7)):
        yield [*scene.tail, *seen]


def payloads(scene: Scene, inclusive: Position) -> list[bytes]:
    """What a cursor gives out that stood there before."""
    return [
        value for view in drain(scene.writer.cursor(inclusive, inclusive=True)) for value in view.values()
    ]


def test_a_tail_before_its_bodies(scene: Scene):
    """The tail word is seen, of frames and slots any part: every entry is given out, and is what was sent."""
    scene.publish(1)
    header = scene.stores.of(scene.log, scene.end, scene.end + 8)
    body = scene.stores.of(scene.log, scene.end + 8, scene.end + 88)
    rest = scene.stores.of(scene.log, scene.end + 88)
    slot = [[change] for change in scene.stores.of(scene.index)]
    assert header and body and rest and len(slot) == SLOT_SIZE // WORD
    is_behind_lock = 0
    with reordering(scene.stores.deliver) as passed:
        for seen in states(scene, [header, body, rest, *slot]):
            for is_attached in (True, False):  # a cursor that stood at the end, or comes there now
                SEGMENTS.drop(scene.writer.view.control.home)
                scene.writer.view._tail_extent = (0, -1)
                cursor = scene.writer.cursor(Position(scene.ledger, 1), inclusive=True)
                scene.stores.show([])
                assert not is_attached or cursor.read(1, 1, 1) == []
                passed.clear()
                scene.stores.show(seen)
                assert [value for view in drain(cursor) for value in view.values()] == [b"0" * 9]
                is_behind_lock += "lock" in passed
    assert is_behind_lock > 100
    assert scene.damage == []


def test_bodies_before_their_tail(scene: Scene):
    """Without the tail word nothing is given out, whatever else is seen; with it, everything is."""
    scene.publish()
    cursor = scene.writer.cursor(Position(scene.ledger, 1), inclusive=True)
    with reordering(scene.stores.deliver):
        for seen in samples(scene.others(), 60, seed=1):
            scene.stores.show(seen)
            assert cursor.read(9, 9, 1 << 20) == []
        scene.stores.deliver()
        assert len(drain(cursor)) == KEYED


def test_entries_of_a_run_in_any_state(scene: Scene):
    """Several entries behind a new tail, of which some words are not seen: all come, once, in order."""
    scene.publish()
    with reordering(scene.stores.deliver):
        for seen in samples(scene.others(), 240, seed=2):
            scene.stores.show([*scene.tail, *seen])
            assert payloads(scene, Position(scene.ledger, 1)) == [
                b"%d" % number * 9 for number in range(KEYED)
            ]
    assert scene.damage == []


def test_an_older_tail_than_the_last(scene: Scene):
    """Of several values of the tail word an older one is seen: a prefix is given out, the rest later."""
    before = scene.stores
    scene.publish(1)
    later = Stores(scene.ctl, scene.log, scene.index)
    scene.writer.append(encode_single(b"next", 1, PREFIX))
    later.end()
    with reordering(later.deliver):
        later.show([change for change in later.changes if change.path == scene.index])
        cursor = scene.writer.cursor(Position(scene.ledger, 1), inclusive=True)
        assert [view.entry_id for view in drain(cursor)] == [1]
        later.deliver()
        assert [view.entry_id for view in drain(cursor)] == [2]
    assert before.changes


def test_the_end_before_its_trailer(scene: Scene):
    """Where the log ends is known by the tail word, and which entry is the last by a frame that is not seen
    yet: a reader that stands at the end then misses nothing of what comes next."""
    scene.publish()
    trailer = scene.stores.of(scene.log, scene.stores.of(scene.log)[-1].offset)
    last = KEYED
    with reordering(scene.stores.deliver):
        for seen in states(scene, [trailer, scene.stores.of(scene.index)], 90):
            scene.stores.show(seen)
            view = scene.reader()
            assert view.extent(scene.ledger)[0] == last
    # What a cursor makes of it that is at the end, when the next entry comes.
    for number in range(4):
        scene.stores = Stores(scene.ctl, scene.log, scene.index)
        position = Position(*scene.writer.append(encode_single(b"x", 9, PREFIX))[:2])
        scene.stores.end()
        with reordering(scene.stores.deliver):
            scene.stores.show(scene.stores.of(scene.ctl))
            cursor = scene.writer.cursor(position, inclusive=False)
            scene.writer.view._tail_extent = (0, -1)
            assert cursor.read(1, 1, 1) == []
            scene.stores.deliver()
            scene.writer.append(encode_single(b"%d" % number, 9, PREFIX))
            assert [value for view in drain(cursor) for value in view.values()] == [b"%d" % number]


def test_slots_that_are_not_seen_yet(scene: Scene):
    """The index is a hint that frames verify, or sums: no count, flag or key of an entry is ever wrong."""
    scene.publish()
    expected = scene.reader().slots(scene.ledger, 0, KEYED + 1)
    flags = scene.reader().flags(scene.ledger, 0, KEYED + 1)
    assert len(set(flags)) == 2  # one that is not delayed, and those that are
    words = [[change] for change in scene.stores.of(scene.index)]
    assert len(words) == KEYED * SLOT_SIZE // WORD
    assert len(set(expected.key_hashes)) == KEYED + 1
    with reordering(scene.stores.deliver):
        for hidden in subsets(words):
            scene.stores.show([change for change in scene.stores.changes if change not in hidden])
            # The places are a hint alone, by which nothing is read.
            assert scene.reader().slots(scene.ledger, 0, KEYED + 1)[1:] == expected[1:]
            scene.stores.show([change for change in scene.stores.changes if change not in hidden])
            assert scene.reader().flags(scene.ledger, 0, KEYED + 1) == flags
            scene.stores.show([change for change in scene.stores.changes if change not in hidden])
            for entry_id in range(KEYED + 1):
                assert scene.reader().slot(scene.ledger, entry_id).messages == entry_id + 1
    assert scene.damage == []


def test_a_frame_of_a_dead_writer(scene: Scene):
    """One that is whole, and verifies in the place of the next: it is cleared, and that is seen before what
    is stored there later. So of frame and slot a reader sees zeros or what was sent."""
    scene.publish(1)
    # The dead writer's: whole, without the tail word.
    scene.stores.show(scene.others())
    scene.writer.view.words[TopicWord.OWNER] = 7 << 32
    fenced: list[Stores] = []
    with reordering():
        threads.fence = lambda: fenced.append(Stores(scene.ctl, scene.log, scene.index))
        scene.writer.append(encode_single(b"sent", 1, PREFIX))
    # One behind the zeros of the frame, and one behind those of the slot.
    assert len(fenced) >= 2 and not any(fenced[0].before[scene.log][scene.end : scene.end + 400])
    # From the last fence on any order is possible; what was stored before it is seen.
    stores = fenced[-1]
    stores.end()
    tail = stores.of(scene.ctl, TAIL, TAIL + WORD)
    assert tail and stores.of(scene.log) and stores.of(scene.index)
    assert all(not any(change.old) for path in (scene.log, scene.index) for change in stores.of(path))
    with reordering(stores.deliver):
        for seen in samples([change for change in stores.changes if change not in tail], 90, seed=4):
            stores.show([*tail, *seen])
            scene.writer.view._tail_extent = (0, -1)
            assert payloads(scene, Position(scene.ledger, 1)) == [b"sent"]


def test_a_roll_in_any_state(scene: Scene):
    """The file of the new ledger is whole before the tail word leads to it; the totals beside that word are
    figures. Entries of both ledgers come in order, once."""
    scene.writer.roll()
    new = scene.writer.view.tail >> 32
    position = Position(*scene.writer.append(encode_single(b"new", 1, PREFIX))[:2])
    paths = log_path(scene.writer.view.directory, new), index_path(scene.writer.view.directory, new)
    scene.stores.end()
    stores = scene.stores
    later = Stores(scene.ctl, *paths)
    scene.writer.append(encode_single(b"newer", 2, PREFIX))
    later.end()
    assert position.ledger_id == new
    with reordering(lambda: (stores.deliver(), later.deliver())):
        for number, seen in enumerate(samples([*stores.changes, *later.changes], 120, seed=5)):
            stores.show(seen)
            later.show([] if number % 3 else later.changes)
            cursor = scene.writer.cursor(Position(scene.ledger, 0), inclusive=True)
            read = [value for view in drain(cursor) for value in view.values()]
            assert read == [b"old", b"new", b"newer"][: len(read)]
            stores.deliver()
            later.deliver()
            read += [value for view in drain(cursor) for value in view.values()]
            assert read == [b"old", b"new", b"newer"]
    assert scene.damage == []


def test_a_plan_of_whole_logs(scene: Scene):
    """Arrow and Spark load the tail word once, and read up to it without any lock: behind a pause, so that
    what they map is whole."""
    scene.publish()
    directory = scene.writer.view.directory
    expected, whole = committed_segments(directory), Path(scene.log).read_bytes()
    with reordering(scene.stores.deliver) as passed:
        for seen in samples(scene.others(), 60, seed=11):
            passed.clear()
            scene.stores.show([*scene.tail, *seen])
            assert committed_segments(directory) == expected
            assert passed == ["pause"]
            assert Path(scene.log).read_bytes() == whole
    assert expected[-1].entries == KEYED + 1


def test_these_states_need_their_cures(scene: Scene):
    """On a machine that is taken for one that does not reorder, the same states give wrong keys, and an end
    with too low an entry: the tests above look at something."""
    scene.publish()
    assert not threads.REORDERS or scene.stores.changes
    start = slot_offset(2) + WORD
    scene.stores.show(
        [
            change
            for change in scene.stores.changes
            if change not in scene.stores.of(scene.index, start, start + WORD)
        ]
    )
    reader, was = scene.reader(), threads.REORDERS
    try:
        threads.REORDERS = False
        assert reader.slots(scene.ledger, 0, KEYED + 1).key_hashes[2] == 0
        scene.stores.show(scene.tail)
        assert scene.reader().extent(scene.ledger)[0] == 0
    finally:
        threads.REORDERS = was
    scene.stores.deliver()
