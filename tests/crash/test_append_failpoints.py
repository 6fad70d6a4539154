"""A process that dies at any step of an append, a roll, a sync or a trim, and what is left of it.

The child appends, acknowledges on its standard output, and is killed at one failpoint. Then the topic is
opened again, by a process that has it open already and by a new one.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from embeddedpulsar._engine.filenames import ledgers_of, log_path
from embeddedpulsar._engine.format.columns import EntryContent
from embeddedpulsar._engine.format.control import TopicWord, split_tail, tail_word
from embeddedpulsar._engine.format.entry import encode, encode_single
from embeddedpulsar._engine.log.log_check import check_topic
from embeddedpulsar._engine.log.managed_ledger import ManagedLedger
from embeddedpulsar._engine.log.topic_control import TopicControl
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar.exceptions import StorageError
from embeddedpulsar.message_id import Position
from tests.ledger_site import PREFIX, START, LedgerSite, drain, send, values
from tests.multiprocess.children import Child

APPEND = [
    "append:owner_set",
    "append:body_part",
    "append:body_done",
    "append:index_done",
    "append:tail_stored",
    "append:owner_cleared",
    "append:unlocked",
]
RESERVED = "append:index_reserved"
IN_TRANSACTIONS = "append:first_open_stored"
ROLL = ["roll:file_created", "roll:header_written", "roll:synced", "roll:tail_switched"]
SYNC = ["sync:before", "sync:alone", "sync:after"]
TRIM = ["trim:point_stored", "trim:unlinked"]
VISIBLE_AT = ("append:tail_stored", "append:owner_cleared", "append:unlocked")


def append_until_killed(root: str, level: str, max_entries: int = 5) -> None:
    """The child: say every value once its append returned."""
    with LedgerSite(root) as site:
        ledger = site.open(segment_size=64 << 10, max_entries=int(max_entries), durability=level)
        for n in range(1000):
            send(ledger, b"child %d" % n, level)
            print(n, flush=True)
            if n % 7 == 6:
                ledger.trim_before(max(1, ledger.segments()[-1].ledger_id - 3))


def run_child(
    root: Path, level: str, point: str, nth: int, monkeypatch: pytest.MonkeyPatch, max_entries: int = 5
) -> list[bytes]:
    """Run the child until it dies at the `nth` hit of `point`; the values it acknowledged."""
    monkeypatch.setenv(failpoints.ENVIRONMENT, f"{point}=kill,nth={nth}")
    acknowledged = []
    with Child(append_until_killed, root, level, max_entries) as child:
        assert child.process.stdout is not None
        for line in child.process.stdout:
            acknowledged.append(b"child %d" % int(line))
        assert child.join() == -9, f"never reached {point}"
    monkeypatch.delenv(failpoints.ENVIRONMENT)
    return acknowledged


def append_transactions_until_killed(root: str, in_runs: int) -> None:
    """The child: entries of a transaction that stays open, one by one or in runs of three."""
    with LedgerSite(root) as site:
        ledger = site.open(max_entries=5)
        for n in range(0, 900, 3):
            entries = [
                encode(EntryContent([b"child %d" % k], batched=False, transaction=(0, 1)), PREFIX)
                for k in range(n, n + 3)
            ]
            hold = ledger.hold()
            try:
                ledger.lock.acquire(1.0)
                for some in [entries] if int(in_runs) else [[entry] for entry in entries]:
                    ledger.append_run(some, hold, [], int)
            finally:
                ledger.lock.release()
                hold.ring_all()
            print(n, flush=True)
            ledger.words[TopicWord.FIRST_OPEN_TXN] = 0  # as if it had ended: the next entry stores it again


@pytest.mark.parametrize("in_runs", [0, 1])
@pytest.mark.parametrize("nth", [1, 4])
@pytest.mark.parametrize("point", [IN_TRANSACTIONS, "append:index_done", "append:tail_stored"])
def test_killed_in_a_transaction(
    tmp_path: Path, point: str, nth: int, in_runs: int, monkeypatch: pytest.MonkeyPatch
):
    """An entry that is visible is at or behind the word; a word without its entry stays a lower limit."""
    monkeypatch.setenv(failpoints.ENVIRONMENT, f"{point}=kill,nth={nth}")
    with LedgerSite(tmp_path) as site:
        open_before = site.open()
        with Child(append_transactions_until_killed, tmp_path, in_runs) as child:
            assert child.process.stdout is not None
            runs = [int(line) for line in child.process.stdout]
            assert child.join() == -9, f"never reached {point}"
        monkeypatch.delenv(failpoints.ENVIRONMENT)
        words = open_before.words
        first = words[TopicWord.FIRST_OPEN_TXN]
        found = drain(open_before.cursor(START, inclusive=True))
        assert len(found) >= 3 * len(runs)
        for entry in found[3 * len(runs) :]:
            segment_place = open_before.view.offset_of(entry.ledger_id, entry.entry_id)
            assert 0 < first <= tail_word(entry.ledger_id, segment_place)
        send(open_before, b"plain")
        assert values(open_before) == [value for entry in found for value in entry.values()] + [b"plain"]
        report = check_topic(open_before.directory)
        assert report.is_clean, report.problems


def audit(ledger: ManagedLedger, acknowledged: list[bytes], later: list[bytes], unknown: bytes) -> None:
    """All that was acknowledged is there, in order; at most the one unknown value between them."""
    found = values(ledger)
    trimmed = ledger.first_position().ledger_id
    assert found[len(found) - len(later) :] == later
    before = found[: len(found) - len(later)]
    expected = [*acknowledged, unknown] if before and before[-1] == unknown else acknowledged
    assert before == expected[len(expected) - len(before) :]
    if trimmed == 1:
        assert len(before) == len(expected)
    report = check_topic(ledger.directory)
    assert report.is_clean, report.problems


@pytest.mark.parametrize("nth", [1, 3, 13])
@pytest.mark.parametrize("point", APPEND + ROLL + TRIM)
def test_killed_anywhere(tmp_path: Path, point: str, nth: int, monkeypatch: pytest.MonkeyPatch):
    """After SIGKILL at any step everything acknowledged is there, and appending goes on, for everybody."""
    with LedgerSite(tmp_path) as site:
        open_before = site.open()
        acknowledged = run_child(tmp_path, "process", point, nth, monkeypatch)
        unknown = b"child %d" % len(acknowledged)
        audit(open_before, acknowledged, [], unknown)
        later = [b"first", b"second", b"third"]
        send(open_before, later[0])
        opened_after = site.open()
        send(opened_after, later[1])
        send(open_before, later[2])
        for ledger in (open_before, opened_after):
            audit(ledger, acknowledged, later, unknown)
        if point in VISIBLE_AT and point != "append:unlocked":
            assert unknown in values(opened_after)
        if point in APPEND[:4]:
            assert unknown not in values(opened_after)
        died_inside = point in (*APPEND[:5], *ROLL)
        assert open_before.statistics().recoveries == died_inside


@pytest.mark.parametrize("nth", [1, 2])
def test_killed_when_more_slots_were_reserved(tmp_path: Path, nth: int, monkeypatch: pytest.MonkeyPatch):
    """The control words do not say so yet: the next writer reserves them again."""
    with LedgerSite(tmp_path) as site:
        open_before = site.open()
        acknowledged = run_child(tmp_path, "process", RESERVED, nth, monkeypatch, max_entries=5000)
        assert len(acknowledged) == 170 * nth + nth // 2
        later = [b"%d" % number for number in range(200)]
        opened_after = site.open()
        for number, value in enumerate(later):
            send(open_before if number % 2 else opened_after, value)
        audit(open_before, acknowledged, later, b"")


@pytest.mark.parametrize("point", SYNC + APPEND + ROLL)
def test_killed_at_level_flush(tmp_path: Path, point: str, monkeypatch: pytest.MonkeyPatch):
    """The same where every append waits for a flush; the next one flushes what the dead process did not."""
    with LedgerSite(tmp_path) as site:
        acknowledged = run_child(tmp_path, "flush", point, 4, monkeypatch)
        ledger = site.open(durability="flush")
        send(ledger, b"first")
        assert ledger.statistics().is_synced
        audit(ledger, acknowledged, [b"first"], b"child %d" % len(acknowledged))


@pytest.mark.parametrize("rolls_first", [False, True])
@pytest.mark.parametrize("point", ["append:body_done", "append:index_done"])
def test_a_whole_unpublished_frame_stays_invisible(
    tmp_path: Path, point: str, rolls_first: bool, monkeypatch: pytest.MonkeyPatch
):
    """A frame that verifies and chains, above the tail: nobody sees it before or after a roll, nor on disk.

    This is the ghost: a crashed append that comes back when somebody looks at frames instead of the tail.
    """
    with LedgerSite(tmp_path) as site:
        acknowledged = run_child(tmp_path, "process", point, 3, monkeypatch)
        control = TopicControl.open(site.directory)
        ledger_id, end = split_tail(control.tail)
        control.close()
        ghost = b"child %d" % len(acknowledged)
        log = Path(site.directory, f"{ledger_id:020d}.log")
        assert ghost in log.read_bytes()[end : end + 200]
        ledger = site.open()
        cursor = ledger.cursor(START, inclusive=True)
        assert [entry.value(0) for entry in drain(cursor)] == acknowledged
        if rolls_first:
            ledger.roll()
        send(ledger, b"x")
        assert [entry.value(0) for entry in drain(cursor)] == [b"x"]
        assert values(ledger) == [*acknowledged, b"x"]
        # A shorter or a longer frame over the ghost: its rest never chains either.
        send(ledger, b"y" * 300)
        assert values(ledger)[-1] == b"y" * 300
        assert check_topic(site.directory).is_clean


def test_a_stray_segment_is_nobodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A complete new segment whose ledger never became the tail is not read, and goes with an append."""
    with LedgerSite(tmp_path) as site:
        acknowledged = run_child(tmp_path, "process", "roll:synced", 3, monkeypatch)
        ledger = site.open()
        tail_ledger = ledger.tail >> 32
        above = [ledger_id for ledger_id in ledgers_of(os.listdir(site.directory)) if ledger_id > tail_ledger]
        stray = Path(log_path(site.directory, above[0]))
        left_by_the_dead = stray.stat().st_ino
        assert values(ledger) == acknowledged
        send(ledger, b"x")
        assert not stray.exists() or stray.stat().st_ino != left_by_the_dead
        assert values(ledger) == [*acknowledged, b"x"]


@pytest.mark.parametrize("point", [*APPEND, "append:woken", *ROLL])
@pytest.mark.parametrize("kind", ["KeyboardInterrupt", "MemoryError"])
def test_interrupted_anywhere(tmp_path: Path, point: str, kind: str):
    """An exception at any step is like a death at it: the lock is free, the entry is there or it is not."""
    with LedgerSite(tmp_path) as site:
        ledger = site.open(max_entries=2)
        other = site.open()
        send(ledger, b"0")
        send(ledger, b"1")
        if point == "append:woken":
            assert other.request_ring(other.tail)
        failpoints.set(point, f"raise:{kind}")
        try:
            with pytest.raises((KeyboardInterrupt, MemoryError)):
                send(ledger, b"2")
        finally:
            failpoints.clear()
        send(other, b"3")
        send(ledger, b"4")
        found = values(ledger)
        assert found in ([b"0", b"1", b"2", b"3", b"4"], [b"0", b"1", b"3", b"4"])
        assert (b"2" in found) == (point in (*APPEND[4:], "append:woken"))
        assert check_topic(site.directory).is_clean


def test_a_signal_handler_may_append_in_the_middle_of_an_append(tmp_path: Path):
    """Re-entered where Python runs signal handlers, the outer append starts again behind the inner one."""
    with LedgerSite(tmp_path) as site:
        ledger = site.open(max_entries=2)
        inner: list[Position] = []
        expected = []
        for n in range(6):  # before, at and behind a roll
            failpoints.set("append:owner_set", lambda: inner.append(send(ledger, b"inner")))
            try:
                outer = send(ledger, b"outer %d" % n)
            finally:
                failpoints.clear()
            assert inner[-1] < outer
            expected += [b"inner", b"outer %d" % n]
            assert values(ledger) == expected
        assert check_topic(site.directory).is_clean


@pytest.mark.parametrize("point", ROLL)
def test_a_signal_handler_may_not_append_while_room_is_made(tmp_path: Path, point: str):
    """There the inner append is refused, in words; the outer one is not disturbed."""
    with LedgerSite(tmp_path) as site:
        ledger = site.open(max_entries=1)
        send(ledger, b"0")
        refused = []

        def handler() -> None:
            with pytest.raises(StorageError, match="while its own thread was making room") as caught:
                send(ledger, b"inner")
            refused.append(caught.value)

        failpoints.set(point, handler)
        try:
            send(ledger, b"outer")
        finally:
            failpoints.clear()
        send(ledger, b"next")
        assert refused and values(ledger) == [b"0", b"outer", b"next"]
        assert check_topic(site.directory).is_clean


def test_every_failpoint_of_the_engine_is_covered():
    """A new step of a write order gets its crash test here."""
    mine = {name for name in failpoints.names() if name.split(":")[0] in ("append", "roll", "sync", "trim")}
    assert mine == {*APPEND, RESERVED, IN_TRANSACTIONS, "append:woken", *ROLL, *SYNC, *TRIM}


def test_the_owner_word_tells_who_is_inside(tmp_path: Path):
    """While an append is going on its process is named; a waiter that gives up says who held the lock."""
    with LedgerSite(tmp_path) as site:
        ledger = site.open()
        seen = []
        control = TopicControl.open(site.directory)
        failpoints.set("append:body_done", lambda: seen.append(control.describe_owner()))
        try:
            ledger.append(encode_single(b"x", 0, PREFIX))
        finally:
            failpoints.clear()
        assert seen == [f"process {os.getpid()}"]
        assert control.describe_owner() == "" and control.words[TopicWord.OWNER] == 0
        control.close()
