"""Words of a subscription that are seen in another order than they were stored, and stores that are late.

Each test is named in a row of the table in docs/concurrency.md, "Machines that reorder".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from embeddedpulsar._engine.filenames import acks_path, control_path
from embeddedpulsar._engine.format.control import RingWord, SubscriptionWord, Unwritten
from embeddedpulsar._engine.platform import threads
from embeddedpulsar._engine.subscription import ack_ring
from embeddedpulsar._engine.subscription.ack_ring import AckRing
from embeddedpulsar._engine.subscription.subscription_view import SubscriptionView
from embeddedpulsar.enums import ConsumerType
from embeddedpulsar.message_id import Position
from tests.support.weak_memory import Change, Processor, Stores, reordering, samples, subsets
from tests.unit.subscription.virtual_site import VirtualSite, position, read

BOOT = b"b" * 16
OWNER = SubscriptionWord.RANGE_OWNER


@pytest.fixture
def site(tmp_path: Path) -> Iterator[VirtualSite]:
    """A subscription of virtual processes."""
    with VirtualSite(tmp_path) as made:
        yield made


class LateOwner(Processor):
    """The words of a consumer that reads on without claims. It passes its fence where it stores what it took.

    Args:
        meanwhile: what happens on another processor at the fence, before or behind it.
        is_fenced: False if there were no fence: then its load of the owner ran ahead of its store.
    """

    def __init__(
        self, words: memoryview, meanwhile: Callable[[], object], is_early: bool, is_fenced: bool
    ) -> None:
        super().__init__(words)
        self._meanwhile, self._is_early, self._is_fenced = meanwhile, is_early, is_fenced

    def acquire(self, _blocking: bool) -> bool:
        """First half of the fence."""
        return True

    def release(self) -> None:
        """Second half."""
        if not self._is_fenced:
            owner = self.words[OWNER]
            self._meanwhile()
            self.drain()
            self.stored[OWNER] = owner  # as it was loaded before
            return
        if self._is_early:
            self._meanwhile()
        self.drain()
        if not self._is_early:
            self._meanwhile()


def shared_out(site: VirtualSite, *, is_early: bool, is_fenced: bool) -> tuple[list[int], list[int]]:
    """What two consumers get of eight entries, if one comes in the moment in which the other reads on."""
    process = site.world.start()
    consumer = site.attach(ConsumerType.Shared)
    for number in range(2):
        site.publish(1)
        assert read(consumer) == [number]
    site.publish(8)
    others, theirs = [], []

    def join() -> None:
        others.append(site.attach(ConsumerType.Shared, process=process, name="other"))
        theirs.extend(read(others[0]))

    owner = LateOwner(consumer.words, join, is_early, is_fenced)
    consumer.words, consumer._fence = owner, owner  # type: ignore[attr-defined]
    range_ = process.shared.open_range
    closer = Processor(range_._words)
    range_._words = closer  # type: ignore[misc]
    saved = threads.fence
    threads.fence = closer.drain
    try:
        mine = read(consumer)
    finally:
        threads.fence = saved
        closer.drain()
        consumer.words, range_._words = owner.words, closer.words  # type: ignore[attr-defined,misc]
    for _ in range(3):
        mine += read(consumer)
        theirs += read(others[0])
    return mine, theirs


@pytest.mark.parametrize("is_early", [True, False], ids=["before the fence", "behind the fence"])
def test_an_open_range_that_is_closed(site: VirtualSite, is_early: bool):
    """RANGE_TAKEN is stored, then RANGE_OWNER loaded, and the other way round by who closes the range. Each
    entry comes to one of the two, wherever the stores of either are late."""
    mine, theirs = shared_out(site, is_early=is_early, is_fenced=True)
    assert sorted(mine + theirs) == list(range(2, 10))


def test_an_open_range_without_fences(site: VirtualSite):
    """What the fence is for: with a load ahead of the store, both would have the same entries."""
    mine, theirs = shared_out(site, is_early=True, is_fenced=False)
    assert set(mine) & set(theirs)


def control_stores(site: VirtualSite) -> Stores:
    """What is stored from here on into the words of the subscription."""
    return Stores(control_path(site.process.shared.directory))


def test_words_of_a_seek_in_any_state(site: VirtualSite):
    """Another process puts the subscription back. Whatever a consumer sees of that, it gets the entries
    again, at the latest when it has passed a lock; and goes on behind them."""
    process = site.world.start()
    consumer = site.attach(ConsumerType.Shared)
    for number in range(2):
        site.publish(1)
        assert read(consumer) == [number]
    other = process.subscription
    site.publish(3)
    seen_words = set()
    for seed in range(90):
        read(consumer)
        stores = control_stores(site)
        other.seek(position(3), inclusive=True)
        stores.end()
        seen_words |= {change.offset // 8 for change in stores.changes}
        *_, seen = samples(stores.changes, 1 + seed % 3, seed=seed)
        with reordering(stores.deliver):
            stores.show(seen)
            again = read(consumer)
        stores.deliver()
        again += read(consumer)
        assert again == [3, 4]
    assert {SubscriptionWord.EPOCH, SubscriptionWord.JOURNAL, SubscriptionWord.VERSION} <= seen_words


def test_a_position_of_two_moments(site: VirtualSite):
    """Ledger and entry of the mark-delete position are two words: seen out of order they may be ahead of it,
    which the journal is asked about before anything is trimmed."""
    consumer = site.attach(ConsumerType.Exclusive)
    site.publish(6)
    assert len(read(consumer)) == 6
    consumer.acknowledge([position(number) for number in range(6)])
    before = site.process.subscription.mark_delete
    stores, control = control_stores(site), site.process.shared.control
    site.log.roll(1)
    site.publish(3)
    read(consumer)
    after = Position(site.log.last_readable().ledger_id, 0)
    assert after.ledger_id > before.ledger_id
    consumer.acknowledge([after])
    stores.end()
    assert control.mark_delete == after
    pair = (SubscriptionWord.MARK_DELETE_LEDGER, SubscriptionWord.MARK_DELETE_ENTRY)
    changed = [[change] for change in stores.changes if change.offset // 8 in pair]
    rest = [change for change in stores.changes if change.offset // 8 not in pair]
    ahead = 0
    for seen in subsets(changed):
        stores.show([*seen, *rest])
        ahead += control.mark_delete > after
        log = SimpleNamespace(options=SimpleNamespace(boot_id=site.process.shared._options.boot))
        view = SubscriptionView(site.process.shared.directory, log, print)  # type: ignore[arg-type]
        assert view.read_state(lambda state: state.mark_delete) == after
        view.close()
    assert ahead == 1, "without the journal it would be believed"
    stores.deliver()


# -- acknowledgements in shared memory -----------------------------------------------------------------------


def read_twice(path: Path, stores: Stores, seen: list[Change]) -> Unwritten:
    """What the process that writes a DETACH finds, while stores of a process that it takes for dead arrive
    between its two readings."""
    with reordering(stores.deliver):
        stores.show(seen)
        unwritten = ack_ring._read(str(path), BOOT)
    stores.deliver()
    assert unwritten is not None
    return unwritten


def test_a_pair_of_words_in_the_ring(tmp_path: Path):
    """An entry and the index within it are two words. Of a process that is taken for dead and stores on, the
    index of another entry is never taken: what is not whole is delivered again."""
    ring = AckRing.make(str(tmp_path), 3, 7, BOOT)
    path = Path(acks_path(str(tmp_path), 3))
    true_parts, true_ends = set(), set()
    for number in range(8):
        ring.begin_writing()
        ring.end_writing()  # parts are used again, so each place had another pair before
        stores = Stores(str(path))
        assert ring.note_part(9, number, number, 10)
        ring.note_cumulative(5, number, number, 8)
        stores.end()
        true_parts.add((9, number, number))
        true_ends.add((5, number, number, 8))
        assert len(stores.changes) == 4
        for seen in subsets([[change] for change in stores.changes]):
            unwritten = read_twice(path, stores, seen)
            for (ledger, entry), (bits, size) in unwritten.parts.items():
                assert size == 10 and ledger == 9
                assert all((9, entry, index) in true_parts for index in range(10) if bits >> index & 1)
            assert set(unwritten.cumulative) <= true_ends


def test_a_ring_that_begins_again(tmp_path: Path):
    """Acknowledgements of before a seek do not count under the epoch that follows it."""
    ring = AckRing.make(str(tmp_path), 3, 7, BOOT)
    path = Path(acks_path(str(tmp_path), 3))
    for number in range(4):
        ring.store(4, number)
    stores = Stores(str(path))
    ring.begin(8)
    ring.store(4, 9)
    stores.end()
    assert len(stores.changes) == 6
    for seen in subsets([[change] for change in stores.changes]):
        unwritten = read_twice(path, stores, seen)
        assert unwritten.epoch in (0, 7, 8)
        if unwritten.epoch == 8:
            assert unwritten.entries in ([], [(4, 9)])
    assert read_twice(path, stores, stores.changes).entries == [(4, 9)]


def test_these_states_need_two_readings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With one reading they give an index that was never acknowledged."""
    ring = AckRing.make(str(tmp_path), 3, 7, BOOT)
    path = Path(acks_path(str(tmp_path), 3))
    ring.note_cumulative(5, 1, 1, 8)
    ring.note_cumulative(5, 2, 2, 8)
    stores = Stores(str(path))
    ring.note_cumulative(5, 3, 3, 8)
    stores.end()
    torn = [change for change in stores.changes if change.offset == 8 * (RingWord.CUMULATIVE + 2)]
    assert torn
    stores.show(torn)
    monkeypatch.setattr(threads, "REORDERS", False)
    unwritten = ack_ring._read(str(path), BOOT)
    assert unwritten is not None and (5, 3, 1, 8) in unwritten.cumulative


# -- waiting -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared], ids=["Exclusive", "Shared"])
def test_a_sleeper_that_sees_its_bit_still(site: VirtualSite, kind: ConsumerType):
    """A consumer finds without the lock that its sleep is still announced, though another process took its
    bit for a change that is not seen yet: that one rings it, so it does not sleep on."""
    process = site.world.start()
    consumer = site.attach(kind)
    site.publish(3)
    assert read(consumer) == [0, 1, 2]
    slept_on = 0
    for seed in range(60):
        assert read(consumer) == []
        assert consumer.request_wakeup(consumer.version)
        rings, version = site.process.rings, consumer.version
        stores = control_stores(site)
        process.subscription.seek(position(1), inclusive=True)
        stores.end()
        *_, seen = samples(stores.changes, 1 + seed % 3, seed=seed)
        with reordering(stores.deliver):
            stores.show(seen)
            if consumer.version == version and consumer.request_wakeup(version):
                slept_on += 1
                assert site.process.rings > rings, "it would sleep, and nobody wakes it"
        stores.deliver()
        assert read(consumer) == [1, 2]
    assert slept_on > 10
