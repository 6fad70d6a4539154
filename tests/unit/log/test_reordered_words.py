"""Control words of a log that are seen in another order than they were stored, and stores that are late.

Each test is named in a row of the table in docs/concurrency.md, "Machines that reorder".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from embeddedpulsar._engine.filenames import control_path, journal_path
from embeddedpulsar._engine.format import control
from embeddedpulsar._engine.format.control import KIND_TOPIC, TopicWord
from embeddedpulsar._engine.format.entry import encode_single
from embeddedpulsar._engine.log.journal_file import JournalPlace, JournalView
from embeddedpulsar._engine.log.log_view import LogView
from embeddedpulsar._engine.log.topic_control import TopicControl
from embeddedpulsar._engine.platform import failpoints, threads, timing
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar.exceptions import LockTimeout
from tests.ledger_site import PREFIX, LedgerSite, send, values
from tests.support.journal_replica import Recorder, control_words, open_journal
from tests.support.weak_memory import WORD, Processor, Stores, reordering, samples, subsets
from tests.unit.log.test_reordered_stores import SMALL

ORDERED = (TopicWord.TAIL, TopicWord.SYNCED, TopicWord.TRIM)


@pytest.fixture(autouse=True)
def clear_failpoints() -> Iterator[None]:
    """None is set for the next test."""
    yield
    failpoints.clear()


def test_every_word_is_aligned(site: LedgerSite):
    """So a store of one is seen as a whole or not at all: words, slots and tables begin at multiples of 8."""
    ledger = site.open(**SMALL)
    offsets = [value for name, value in vars(control).items() if name.endswith("_OFFSET")]
    sizes = [value for name, value in vars(control).items() if name.endswith("_SIZE")]
    assert len(offsets) >= 7 and len(sizes) >= 9
    assert not [value for value in (*offsets, *sizes) if value % WORD]
    # And a map begins with a page: the address of its first word.
    words = ledger.view.words
    assert words.itemsize == WORD and words.format == "Q" and words.c_contiguous
    send(ledger, b"x")
    segment = ledger.view.segment(ledger.view.tail >> 32)
    assert segment.index.file.words.itemsize == WORD


class Flushers:
    """Two that flush, each on a processor of its own: ``run`` has both, one inside of the other.

    Attributes:
        inside: which of them are in a flush now; two at a time is what must not be.
    """

    def __init__(self, site: LedgerSite) -> None:
        self.ledgers = [site.open(durability="flush", **SMALL) for _ in range(2)]
        self.words = self.ledgers[0].view.words
        send(self.ledgers[1], b"warm")
        send(self.ledgers[0], b"warm")  # the first one had the lock last
        self.most = self.inside = 0


def both(
    site: LedgerSite, monkeypatch: pytest.MonkeyPatch, is_fenced: bool, inner: Callable[[Flushers], bool]
) -> int:
    """Let the first flush alone, and where it has passed its fence, or before, the other one get the lock.

    Returns:
        How many flushes were under way at a time.
    """
    flushers = Flushers(site)
    processors = [Processor(flushers.words) for _ in range(2)]
    commits = [ledger._commit for ledger in flushers.ledgers]
    for commit, processor in zip(commits, processors, strict=True):
        monkeypatch.setattr(commit, "_words", processor)
    running = [0]
    is_begun = [False]

    def fence() -> None:
        own = running[0]
        is_early = inner(flushers)
        if own == 0 and not is_begun[0] and is_early:
            other_takes_over()
        if is_fenced:
            processors[own].drain()
        if own == 0 and not is_begun[0] and not is_early:
            other_takes_over()

    def other_takes_over() -> None:
        is_begun[0], running[0] = True, 1
        lock = flushers.ledgers[1]._commit.lock
        try:
            lock.acquire(1.0)
            timing.within(0.02, commits[1]._become_flusher)
            flushers.inside += 1  # it got through, and would flush now
        except LockTimeout:
            pass  # it waits for the first
        finally:
            lock.release()
            running[0] = 0

    def alone() -> None:
        flushers.inside += 1
        flushers.most = max(flushers.most, flushers.inside)

    monkeypatch.setattr(threads, "fence", fence)
    failpoints.set("sync:alone", alone)
    end = flushers.ledgers[0].append_nowait(encode_single(b"x", 0, PREFIX))[3]
    commits[0]._flush_alone(end)
    assert is_begun[0]
    for processor in processors:
        processor.drain()
    monkeypatch.undo()
    return flushers.most


@pytest.mark.parametrize("is_early", [True, False], ids=["before the fence", "behind the fence"])
def test_one_flush_at_a_time(site: LedgerSite, monkeypatch: pytest.MonkeyPatch, is_early: bool):
    """FLUSHING is stored, then FLUSHER loaded, and the other way round by another one: with a fence between
    the two, one of them sees the other, wherever the stores of either are late."""
    assert both(site, monkeypatch, True, lambda _: is_early) <= 1


def test_two_flushes_without_fences(site: LedgerSite, monkeypatch: pytest.MonkeyPatch):
    """What the fences are for: where the stores of both are late, neither sees the other."""
    assert both(site, monkeypatch, False, lambda _: True) == 2


def test_words_that_look_impossible(site: LedgerSite):
    """Of two words with an order between them the later one is seen first: the trim point lies behind the
    tail, or more is durable than there is. They are looked at again before they count as damaged."""
    writer = site.open(**SMALL)
    for number in range(3):
        send(writer, b"%d" % number)
        writer.roll()
    send(writer, b"last")
    stores = Stores(control_path(site.directory))
    writer.roll()
    send(writer, b"new")
    writer.sync()
    assert writer.trimming.give_up(writer.view.tail >> 32, writer.trimming.rewind_count())
    stores.end()
    words = [[change] for change in stores.changes if change.offset // WORD in ORDERED]
    assert len(words) == len(ORDERED)
    rest = [change for change in stores.changes if [change] not in words]
    suspicious = 0
    with reordering(stores.deliver) as passed:
        for seen in subsets(words):
            passed.clear()
            stores.show([*seen, *rest])
            assert writer.view.control.is_possible()
            suspicious += bool(passed)
            stores.show([*seen, *rest])
            assert writer.view.control.trim_point() in (0, writer.view.tail >> 32)
    assert suspicious >= 2


def test_a_header_before_its_words(tmp_path: Path):
    """Who sees that control words are to be believed sees the words: a fence stands between their stores."""
    fenced: list[Stores] = []
    path = control_path(tmp_path)
    made = TopicControl.create(str(tmp_path), 1, b"", {})
    with reordering():
        threads.fence = lambda: fenced.append(Stores(path))
        made.words[TopicWord.TAIL] = 5 << 32 | 512
        made.adopt(1, b"b" * 16)
        last = fenced[-2]  # the last but the one of the reader that `adopt` is, too
        last.end()
        # Behind the fence nothing but the header is stored, so every order shows the words before it.
        assert last.changes and all(change.offset < control.CONTROL_HEADER_SIZE for change in last.changes)
        for seen in samples(last.changes, 60, seed=6):
            last.show(seen)
            onlooker = TopicControl.open(str(tmp_path), writable=False)
            if onlooker.is_trusted(b"b" * 16):
                assert onlooker.tail == 5 << 32 | 512
            onlooker.close()
    made.close()


def test_trimming_by_words_of_two_moments(site: LedgerSite):
    """A reader sees the trim point and an older tail, or the other way round: it goes on where the log begins
    now, misses nothing that was retained, and reports no loss."""
    writer, damage = site.open(**SMALL), []
    for number in range(4):
        send(writer, b"%d" % number)
        writer.roll()
    position = send(writer, b"4")
    stores = Stores(control_path(site.directory))
    writer.roll()
    send(writer, b"5")
    assert writer.trimming.give_up(position.ledger_id, writer.trimming.rewind_count())
    stores.end()
    words = [[change] for change in stores.changes]
    with reordering(stores.deliver):
        for seen in subsets([*words[:7], [change for unit in words[7:] for change in unit]]):
            stores.show(seen)
            view = LogView(site.directory, writer.view.control, writer.view.lock, 1.0, damage.append)
            chain = view.chain()
            assert chain.tail_ledger in (position.ledger_id, writer.view.tail >> 32, position.ledger_id + 1)
            assert not view.is_trimmed(position.ledger_id)
            stores.deliver()
            assert view.chain().closed[-1].ledger_id == position.ledger_id
            read = values(writer, position)
            assert read == [b"4", b"5"]
    assert damage == []


# -- journals ------------------------------------------------------------------------------------------------


def test_a_commit_word_before_its_records(tmp_path: Path):
    """Who follows a journal without its lock sees the word, of the records behind the last one any part: it
    follows what was committed up to the word, whole, and reports no damage."""
    words, seen_words = control_words(), control_words()
    journal, _ = open_journal(tmp_path, words)
    journal.create([(1, b"first")], 0)
    path = journal_path(str(tmp_path), 1)
    stores, commits = Stores(path), [words[TopicWord.JOURNAL]]
    for number in range(4):
        journal.append([(1, b"%d" % number * 40)], 0)
        commits.append(words[TopicWord.JOURNAL])
    stores.end()
    payloads = [b"first", *(b"%d" % number * 40 for number in range(4))]
    looked_again = 0
    with reordering(stores.deliver) as passed:
        for number, seen in enumerate(samples(stores.changes, 150, seed=3)):
            known = number % len(commits)
            recorder = Recorder()
            view = JournalView(
                JournalPlace(str(tmp_path), seen_words, TopicWord.JOURNAL, KIND_TOPIC), recorder
            )
            seen_words[TopicWord.JOURNAL] = commits[0]
            stores.show([])
            assert view.refresh(is_trusted=True)
            seen_words[TopicWord.JOURNAL] = commits[known]
            passed.clear()
            stores.show(seen)
            assert view.refresh(is_trusted=True)
            assert recorder.payloads == payloads[: known + 1]
            assert view.damage == []
            looked_again += "pause" in passed
    assert looked_again > 30
    journal.close()


def test_a_replica_behind_the_lock(tmp_path: Path):
    """Who decides has the lock, behind which word and records are seen: the replica is of all commits."""
    words = control_words()
    seen_words = Processor(words)
    journal, _ = open_journal(tmp_path, words)
    journal.create([(1, b"first")], 0)
    other, recorder = open_journal(tmp_path, seen_words)  # type: ignore[arg-type]
    lock = FileLock(str(tmp_path / "lock"))
    path = journal_path(str(tmp_path), 1)
    for number in range(40):
        older, stores = words[TopicWord.JOURNAL], Stores(path)
        journal.append([(1, b"%d" % number)], 0)
        stores.end()
        seen_words.stored[TopicWord.JOURNAL] = older
        *_, seen = samples(stores.changes, 1 + number % 3, seed=number)

        def deliver(stores: Stores = stores) -> None:
            seen_words.stored.clear()
            stores.deliver()

        with reordering(deliver):
            stores.show(seen)
            try:
                lock.acquire(1.0)
                other.catch_up()
            finally:
                lock.release()
        assert recorder.payloads == [b"first", *(b"%d" % each for each in range(number + 1))]
        assert not other.damage
    for each in (journal, other, lock):
        each.close()


# -- waiting -------------------------------------------------------------------------------------------------


def test_a_waiter_that_sees_its_bit_still(site: LedgerSite, tmp_path: Path):
    """A reader finds without the lock that the tail is where it was, and its wait still announced, though an
    append took its bit: that one rings it, and behind the ring it sees the tail. No back-stop is needed."""
    reader = site.open(**SMALL)
    with LedgerSite(tmp_path, clock=site.clock) as elsewhere:
        writer = elsewhere.open(**SMALL)
        idle: list[int] = []
        reader.waits._on_idle = lambda: idle.append(1)
        bell = site.mailbox._doorbell
        wait = bell.wait
        slept_on = 0
        for seed in range(60):
            site.mailbox.glance()
            tail = reader.tail
            assert reader.request_ring(tail)
            stores = Stores(control_path(site.directory))
            send(writer, b"x")
            stores.end()
            *_, seen = samples(stores.changes, 1 + seed % 3, seed=seed)

            def ring_is_seen(timeout_s: float | None, stores: Stores = stores) -> bool:
                is_rung = wait(timeout_s)
                if is_rung:  # who has read the byte sees what was stored before it
                    stores.deliver()
                return is_rung

            bell.wait = ring_is_seen  # type: ignore[method-assign]
            with reordering(stores.deliver) as passed:
                stores.show(seen)
                reader.waits._moved_at = -1.0
                assert reader.wait(tail, 30.0)
                slept_on += not passed
            stores.deliver()
            assert reader.tail != tail
        bell.wait = wait  # type: ignore[method-assign]
        assert idle == []
        assert slept_on > 10
