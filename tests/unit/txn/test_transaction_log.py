"""Transactions of several processes on one directory."""

from __future__ import annotations

import os
import threading
from functools import partial
from pathlib import Path

import pytest

from embeddedpulsar._engine.filenames import outcome_path, sync_lock_path
from embeddedpulsar._engine.format.control import TXN_SLOTS, TransactionWord
from embeddedpulsar._engine.format.transaction_record import ParticipantFacts
from embeddedpulsar._engine.platform import disk
from embeddedpulsar._engine.txn.transaction import (
    JoinedTransaction,
    Participant,
    Transaction,
    TransactionState,
)
from embeddedpulsar._engine.txn.transaction_log import TransactionLog
from embeddedpulsar._engine.txn.transaction_state import Outcome, SlotState
from embeddedpulsar.exceptions import (
    AlreadyClosed,
    CorruptionError,
    InvalidTxnStatusError,
    LockTimeout,
    NotAllowedError,
    PulsarException,
    StorageError,
    TransactionHasOperationFailed,
    TransactionNotFound,
    TransactionTimeout,
)
from embeddedpulsar.testing import ManualClock
from tests.support.disks.faulty_disk import FaultyDisk
from tests.support.held_elsewhere import held_elsewhere
from tests.transaction_site import BOOT, Process, RecordingTopic, assert_whole, topic

NEXT_BOOT = b"C" * 16


def test_a_commit_is_seen_by_every_process(tmp_path: Path) -> None:
    """One byte makes it visible; the slot is free again."""
    with Process(tmp_path) as one, Process(tmp_path) as other:
        transaction = one.begun(label="invoice")
        assert other.log.outcome(transaction.id) is Outcome.UNDECIDED
        (slot,) = other.log.open_transactions()
        assert (slot.txn_id, slot.label, slot.pid) == (transaction.id, "invoice", os.getpid())
        assert slot.owner == one.mailbox.uuid and slot.state is SlotState.OPEN
        transaction.commit()
        assert transaction.state is TransactionState.COMMITTED
        assert other.log.outcome(transaction.id) is Outcome.COMMITTED
        transaction.commit()
        with pytest.raises(InvalidTxnStatusError, match="committed"):
            transaction.abort()
        assert_whole(other.log)


def test_an_abort_is_seen_by_every_process(tmp_path: Path) -> None:
    """Without a record in the journal."""
    with Process(tmp_path) as one, Process(tmp_path) as other:
        transaction = one.begun()
        end = one.log.control.words[TransactionWord.JOURNAL]
        transaction.abort()
        transaction.abort()
        assert one.log.control.words[TransactionWord.JOURNAL] == end
        assert other.log.outcome(transaction.id) is Outcome.ABORTED
        with pytest.raises(InvalidTxnStatusError, match="was aborted"):
            transaction.commit()
        with pytest.raises(InvalidTxnStatusError, match="was aborted"):
            transaction.check_open()
        assert_whole(one.log)


def test_an_empty_transaction_stores_nothing(tmp_path: Path) -> None:
    """Begin and commit of nothing: no call of the disk, no word, no id."""
    with Process(tmp_path) as process:
        before = bytes(process.log.control.view)
        with disk.use(FaultyDisk()) as used:
            transaction = process.begin()
            transaction.commit()
            process.begin().abort()
        assert isinstance(used, FaultyDisk) and used.count == 0
        assert bytes(process.log.control.view) == before
        assert transaction.state is TransactionState.COMMITTED and str(transaction) == "(not begun)"


def test_a_store_without_transactions_has_no_files(tmp_path: Path) -> None:
    """The directory is made with the first slot's log."""
    with Process(tmp_path):
        assert not TransactionLog.exists_in(str(tmp_path))
        assert not (tmp_path / "txn").exists()


def test_ids_are_never_given_twice(tmp_path: Path) -> None:
    """Not to two processes, and not after a reboot in which nothing survived but what was flushed."""
    seen = set[int]()
    for boot in (BOOT, NEXT_BOOT, b"D" * 16):
        with Process(tmp_path, boot=boot) as one, Process(tmp_path, boot=boot) as other:
            for process in (one, other, one):
                transaction = process.begun()
                assert transaction.id not in seen
                seen.add(transaction.id)
                transaction.commit()


def test_what_has_no_record_is_aborted_after_a_reboot(tmp_path: Path) -> None:
    """Presumed abort; what is committed or prepared stays."""
    one = Process(tmp_path)
    committed, aborted, is_open, prepared = one.begun(), one.begun(), one.begun(), one.begun()
    committed.commit()
    aborted.abort()
    prepared.prepare("invoice-42")
    one.die()
    with Process(tmp_path, boot=NEXT_BOOT) as after:
        log = after.log
        assert log.outcome(committed.id) is Outcome.COMMITTED
        assert log.outcome(aborted.id) is Outcome.ABORTED
        assert log.outcome(is_open.id) is Outcome.ABORTED
        assert log.outcome(prepared.id) is Outcome.PREPARED
        (waiting,) = log.prepared()
        assert waiting.label == "invoice-42"
        assert after.begun().id > prepared.id
        Transaction.resume(log, waiting).commit()
        assert log.outcome(prepared.id) is Outcome.COMMITTED
        assert log.prepared() == [] and after.damage == []


def test_a_timeout_aborts(tmp_path: Path) -> None:
    """Whoever meets it; its owner learns why."""
    clock = ManualClock()
    with Process(tmp_path, clock) as one, Process(tmp_path, clock) as other:
        transaction, unused = one.begun(1000), one.begin(1000)
        clock.advance(0.999)
        assert other.log.tend() == 0
        transaction.check_open()
        clock.advance(0.001)
        assert transaction.state is TransactionState.TIME_OUT
        assert other.log.tend() == 1
        assert one.log.outcome(transaction.id) is Outcome.ABORTED
        with pytest.raises(TransactionTimeout, match="timeout"):
            transaction.check_open()
        with pytest.raises(TransactionTimeout, match="timeout"):
            transaction.commit()
        for _ in range(2):
            with pytest.raises(TransactionTimeout, match="timeout"):
                unused.commit()
        assert transaction.state is unused.state is TransactionState.TIME_OUT
        transaction.abort()
        assert_whole(other.log)


def test_a_late_commit_is_refused_though_nobody_met_the_transaction(tmp_path: Path) -> None:
    """The deadline counts under the lock."""
    clock = ManualClock()
    with Process(tmp_path, clock) as one:
        transaction = one.begun(1000)
        clock.advance(1)
        with pytest.raises(TransactionTimeout):
            transaction.commit()
        assert one.log.outcome(transaction.id) is Outcome.ABORTED


def test_what_a_dead_process_left_is_aborted(tmp_path: Path) -> None:
    """By a look, and by a reader that waits for it."""
    with Process(tmp_path) as other:
        for end in ("tend", "wait", "death", "question"):
            one = Process(tmp_path)
            transaction, label = one.begun(), one.mailbox.uuid
            assert not other.log.end_if_abandoned(transaction.id)
            one.die()
            if end == "tend":
                assert other.log.tend() == 1
            elif end == "wait":
                assert other.log.wait_for_outcome(transaction.id, 0.0) is Outcome.UNDECIDED
                assert other.log.wait_for_outcome(transaction.id, 5.0) is Outcome.ABORTED
            elif end == "death":
                assert other.log.end_those_of(label) == 1
            assert other.log.end_if_abandoned(transaction.id)
            assert other.log.outcome(transaction.id) is Outcome.ABORTED
        assert_whole(other.log)


def test_a_question_ends_what_cannot_go_on(tmp_path: Path) -> None:
    """Overdue, in a slot that was used again, or unknown; and not what is prepared."""
    clock = ManualClock()
    with Process(tmp_path, clock) as one, Process(tmp_path, clock) as other:
        late, prepared = one.begun(500), one.begun()
        assert not other.log.end_if_abandoned(late.id)
        prepared.prepare("label")
        assert not other.log.end_if_abandoned(prepared.id)
        clock.advance(0.6)
        assert other.log.end_if_abandoned(late.id)
        assert late.state is TransactionState.TIME_OUT
        assert not other.log.end_if_abandoned(prepared.id)
        again = one.begun()
        assert not other.log.end_if_abandoned(again.id)
        again.commit()
        assert other.log.end_if_abandoned(again.id)
        assert other.log.outcome(again.id) is Outcome.COMMITTED
        assert other.log.end_if_abandoned(again.id + 1)  # of a log that is newer than these files
        assert other.log.outcome(again.id + 1) is Outcome.ABORTED
        prepared.abort()


def test_a_question_finishes_a_commit_that_was_not_flushed(tmp_path: Path) -> None:
    """Its process could not flush it, and died."""
    with disk.use(FaultyDisk()) as faulty, Process(tmp_path, durability="flush") as other:
        assert isinstance(faulty, FaultyDisk)
        one = Process(tmp_path, durability="flush")
        transaction = one.begun()
        faulty.fail("fdatasync", path="journal", times=9)
        faulty.fail("fsync", path="snapshot", times=9)
        with pytest.raises(StorageError):
            transaction.commit()
        faulty.heal()
        assert not other.log.end_if_abandoned(transaction.id)
        one.die()
        assert other.log.end_if_abandoned(transaction.id)
        assert other.log.outcome(transaction.id) is Outcome.COMMITTED
        assert_whole(other.log)


def test_a_reader_is_woken_by_the_end(tmp_path: Path) -> None:
    """It sleeps on its doorbell; the end of another transaction does not wake it."""
    with Process(tmp_path) as one, Process(tmp_path) as other:
        waited_for, unrelated = one.begun(), one.begun()
        generation = other.mailbox.generation
        wait = other.log.announce(waited_for.id)
        assert wait.outcome is Outcome.UNDECIDED and wait.look_again_s == 1.0
        assert wait.transaction is not None and wait.transaction.owner == one.mailbox.uuid
        unrelated.commit()
        assert other.mailbox.wait(generation, 0.0) == generation
        waited_for.commit()
        assert other.mailbox.wait(generation, 5.0) != generation
        other.log.end_wait(waited_for.id)
        assert one.log.control.words[TransactionWord.WAITERS] == 0
        assert other.log.wait_for_outcome(waited_for.id) is Outcome.COMMITTED


def test_threads_wait_for_the_same_transaction(tmp_path: Path) -> None:
    """One ring wakes them all."""
    with Process(tmp_path) as one, Process(tmp_path) as other:
        transaction = one.begun()
        found: list[Outcome] = []
        threads = [
            threading.Thread(target=lambda: found.append(other.log.wait_for_outcome(transaction.id, 30)))
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        while not one.log.control.words[TransactionWord.WAITERS]:
            threading.Event().wait(0.001)
        transaction.commit()
        for thread in threads:
            thread.join(30)
        assert found == [Outcome.COMMITTED] * 3


def test_too_many_are_refused_with_a_text(tmp_path: Path) -> None:
    """It names the oldest; those of dead processes make room."""
    with Process(tmp_path, most_open=2) as one:
        first, _ = one.begun(), one.begun()
        with pytest.raises(NotAllowedError, match=rf"2 transactions are open.*oldest is \(0,{first.id}\)"):
            one.begun()
        first.commit()
        assert one.begun().id
    with Process(tmp_path, most_open=2) as other:
        assert other.begun().id


def test_all_slots_can_be_used(tmp_path: Path) -> None:
    """1,024 at once, and no more."""
    with Process(tmp_path) as one:
        transactions = [one.begun() for _ in range(TXN_SLOTS)]
        with pytest.raises(NotAllowedError, match="1024 transactions are open"):
            one.begun()
        assert len(one.log.open_transactions()) == TXN_SLOTS
        for transaction in transactions:
            transaction.abort()
        assert_whole(one.log)


def test_a_range_of_ids_ends(tmp_path: Path) -> None:
    """Ids go on in the next table, which is reserved durably before."""
    with Process(tmp_path) as one, Process(tmp_path) as other:
        first = one.begun()
        words = one.log.control.words
        words[TransactionWord.NEXT_ID] = 65_535
        last, following = one.begun(), one.begun()
        assert (last.id, following.id) == (65_535, 65_536)
        assert words[TransactionWord.RESERVED] == 2 * 65_536
        for transaction in (first, last, following):
            transaction.commit()
            assert other.log.outcome(transaction.id) is Outcome.COMMITTED
        assert sorted(p.name for p in (tmp_path / "txn").glob("outcome.*")) == ["outcome.0", "outcome.1"]


def test_participants_are_flushed_before_the_decision(tmp_path: Path) -> None:
    """At level "flush"; what they raise aborts."""
    with Process(tmp_path, durability="flush") as one:
        good, bad = RecordingTopic(1), RecordingTopic(2)
        transaction = one.begun()
        transaction.enlist(good.participant())
        transaction.enlist(good.participant())
        transaction.commit()
        assert good.calls == ["flush", "COMMITTED"]
        words = one.log.control.words
        assert words[TransactionWord.SYNCED] == words[TransactionWord.JOURNAL]
        failing = one.begun()
        failing.enlist(bad.participant())
        bad.flush_error = StorageError("the disk is gone")
        with pytest.raises(TransactionHasOperationFailed, match="the disk is gone"):
            failing.commit()
        assert bad.calls == ["flush", "ABORTED"]
        assert failing.state is TransactionState.ABORTED
        assert_whole(one.log)


def test_participants_are_flushed_side_by_side(tmp_path: Path) -> None:
    """All are asked, whatever one of them raises; what was not flushed counts before a lock that was held,
    and an interrupt before both. After a lock that was held the commit is repeated, and flushes all again."""
    held, gone = LockTimeout("held"), StorageError("the disk is gone")
    for errors, kind, calls in (
        ((None, held, None, None), LockTimeout, ["flush", "flush", "COMMITTED"]),
        ((None, held, gone, None), TransactionHasOperationFailed, ["flush", "ABORTED"]),
        ((gone, held, None, KeyboardInterrupt()), KeyboardInterrupt, ["flush", "flush", "COMMITTED"]),
    ):
        with Process(tmp_path, durability="flush") as one:
            topics = [RecordingTopic(number) for number in range(4)]
            meeting = threading.Barrier(4)
            transaction = one.begun()
            for part, error in zip(topics, errors, strict=True):
                part.flush_error, part.meet = error, partial(meeting.wait, 60)
                transaction.enlist(part.participant())
            with pytest.raises(kind):
                transaction.commit()
            for part in topics:
                part.flush_error = None
            if kind is not TransactionHasOperationFailed:
                assert one.log.outcome(transaction.id) is Outcome.UNDECIDED
                transaction.commit()
            assert [part.calls for part in topics] == [calls] * 4
            assert_whole(one.log)


def test_a_failed_operation_aborts(tmp_path: Path) -> None:
    """The commit names it."""
    with Process(tmp_path) as one:
        transaction = one.begun()
        transaction.fail(PulsarException("the queue is full"))
        transaction.fail(PulsarException("another"))
        with pytest.raises(TransactionHasOperationFailed, match="queue is full"):
            transaction.commit()
        assert one.log.outcome(transaction.id) is Outcome.ABORTED


def test_a_failed_flush_is_made_good_by_new_files(tmp_path: Path) -> None:
    """The kernel would report success the second time: what is known is written again."""
    with disk.use(FaultyDisk()) as faulty, Process(tmp_path, durability="flush") as one:
        assert isinstance(faulty, FaultyDisk)
        one.begun().commit()
        generation = one.log.control.words[TransactionWord.JOURNAL] >> 32
        transaction = one.begun()
        faulty.fail("fdatasync", path="journal")
        transaction.commit()
        assert one.log.control.words[TransactionWord.JOURNAL] >> 32 == generation + 1
        faulty.heal()
        # Neither can be written: the decision is not shown, and can be asked for again.
        second = one.begun()
        faulty.fail("fdatasync", path="journal", times=9)
        faulty.fail("fsync", path="snapshot", times=9)
        with pytest.raises(StorageError):
            second.commit()
        assert second.state is TransactionState.COMMITTING
        assert one.log.outcome(second.id) is Outcome.UNDECIDED
        faulty.heal()
        second.commit()
        assert one.log.outcome(second.id) is Outcome.COMMITTED
        assert_whole(one.log)


def test_a_worker_joins_by_its_token(tmp_path: Path) -> None:
    """The process that began it hears what the worker used, waits for it, and commits."""
    with Process(tmp_path) as one, Process(tmp_path) as worker:
        used = RecordingTopic(3)
        named: list[ParticipantFacts] = []

        def resolve(facts: ParticipantFacts) -> Participant:
            named.append(facts)
            return used.participant()

        transaction = one.begin(resolve=resolve)
        joined = JoinedTransaction(worker.log, transaction.token)
        assert joined.id == transaction.id
        joined.enlist(RecordingTopic(3).participant())
        joined.enlist(RecordingTopic(3).participant())
        assert joined.is_enlisted(topic(3).key)
        joined.check_open()
        with pytest.raises(NotAllowedError, match="only that one"):
            joined.commit()
        transaction.commit()
        assert [facts.key for facts in named] == [topic(3).key]
        assert used.calls == ["drain", "COMMITTED"]
        with pytest.raises(InvalidTxnStatusError, match="ended"):
            joined.check_open()
        with pytest.raises(InvalidTxnStatusError):
            joined.enlist(RecordingTopic(4).participant())
        with pytest.raises(InvalidTxnStatusError, match="cannot be joined: it is committed"):
            JoinedTransaction(worker.log, pack_again(transaction, worker))
        assert_whole(worker.log)


def pack_again(transaction: Transaction, process: Process) -> bytes:
    """A token of a transaction that has ended."""
    from embeddedpulsar._engine.format import transaction_record

    return transaction_record.pack_token(
        transaction_record.Token(process.options.store_id, transaction.id, 0, 5)
    )


def test_what_joined_is_forgotten_at_an_abort(tmp_path: Path) -> None:
    """By a worker, too; the owner cannot commit then."""
    with Process(tmp_path) as one, Process(tmp_path) as worker:
        transaction = one.begun()
        joined = JoinedTransaction(worker.log, transaction.token)
        joined.enlist(RecordingTopic(3).participant())
        joined.fail(PulsarException("no"))
        assert one.log.joined(transaction.id) == ()
        with pytest.raises(InvalidTxnStatusError, match="aborted"):
            transaction.commit()
        with pytest.raises(InvalidTxnStatusError):
            str(transaction.token)
        assert_whole(one.log)


def test_a_token_of_elsewhere_is_refused(tmp_path: Path) -> None:
    """Another store, an id that never was, a guess, noise."""
    from embeddedpulsar._engine.format import transaction_record

    with Process(tmp_path) as one:
        transaction = one.begun()
        token = transaction_record.parse_token(transaction.token)
        assert token is not None
        wrong = [
            token._replace(store_id=bytes(16)),
            token._replace(txn_id=99),
            token._replace(secret=token.secret ^ 2),
            token._replace(slot=TXN_SLOTS),
        ]
        for each in wrong:
            with pytest.raises(TransactionNotFound):
                JoinedTransaction(one.log, transaction_record.pack_token(each))
        with pytest.raises(ValueError, match="no token"):
            JoinedTransaction(one.log, b"noise")


def test_prepared_transactions_are_ended_by_anyone(tmp_path: Path) -> None:
    """Both ends, once each; a deadline ends them too."""
    clock = ManualClock(wall_ms=10_000)
    one, other = Process(tmp_path, clock), Process(tmp_path, clock)
    with other:
        first, second, third = one.begun(), one.begun(), one.begun()
        first.enlist(Participant(topic(1).key, lambda: topic(1)))
        assert first.prepare("a").participants == (topic(1),)
        second.prepare("b")
        third.prepare("c", deadline_ms=20_000)
        with pytest.raises(InvalidTxnStatusError):
            first.check_open()
        one.die()
        assert other.log.tend() == 0
        a, b, _ = other.log.prepared()
        assert [each.owner for each in other.log.open_transactions()] == [bytes(16)] * 3
        Transaction.resume(other.log, a).commit()
        Transaction.resume(other.log, a).commit()
        with pytest.raises(InvalidTxnStatusError, match="committed"):
            Transaction.resume(other.log, a).abort()
        Transaction.resume(other.log, b).abort()
        with pytest.raises(InvalidTxnStatusError, match="aborted"):
            Transaction.resume(other.log, b).commit()
        clock.advance(10)
        assert other.log.tend() == 1
        assert other.outcomes(first.id, third.id + 1) == [
            Outcome.COMMITTED,
            Outcome.ABORTED,
            Outcome.ABORTED,
        ]
        assert other.log.prepared() == []
        assert_whole(other.log)


def test_outcomes_are_forgotten_when_nothing_asks(tmp_path: Path) -> None:
    """Files of outcomes go; an open or prepared one keeps its own."""
    with Process(tmp_path) as one, Process(tmp_path) as other:
        first = one.begun()
        first.commit()
        assert other.log.outcome(first.id) is Outcome.COMMITTED
        words = one.log.control.words
        words[TransactionWord.NEXT_ID] = words[TransactionWord.RESERVED]
        kept = one.begun()
        assert one.log.raise_lowest(1 << 40) == kept.id == 65_536
        assert not (tmp_path / "txn" / "outcome.0").exists()
        assert one.log.outcome(first.id) is Outcome.FOLDED
        assert one.log.range_of(first.id) is None
        first_id, outcomes = one.log.range_of(kept.id) or (0, b"")
        assert first_id == 65_536 and len(outcomes) == 65_536 and not any(outcomes)
        with Process(tmp_path) as third:
            assert third.log.outcome(first.id) is Outcome.FOLDED
            assert third.log.announce(first.id).outcome is Outcome.FOLDED
            with pytest.raises(TransactionNotFound):
                third.log.abort(first.id)
        kept.commit()
        one.log.raise_lowest(kept.id + 1)
    with Process(tmp_path, boot=NEXT_BOOT) as after:
        assert after.log.outcome(first.id) is Outcome.FOLDED
        assert after.log.outcome(kept.id) is Outcome.FOLDED
        assert after.damage == []


def test_compactions_keep_what_is_committed(tmp_path: Path) -> None:
    """Generations follow each other; a process that comes later knows all."""
    with Process(tmp_path, compact_bytes=400) as one, Process(tmp_path, compact_bytes=400) as other:
        ids = []
        for number in range(60):
            process = (one, other)[number % 2]
            transaction = process.begun()
            transaction.enlist(Participant(topic(number).key, lambda: topic(1)))
            if number % 3:
                transaction.commit()
                ids.append(transaction.id)
            else:
                transaction.abort()
        assert one.log.control.words[TransactionWord.JOURNAL] >> 32 > 5
        last = transaction.id
    for path in (tmp_path / "txn").glob("outcome.*"):
        path.unlink()
    with Process(tmp_path) as after:
        committed = [n for n in range(1, last + 1) if after.log.outcome(n) is Outcome.COMMITTED]
        assert committed == ids
        assert after.damage == []


def test_a_table_that_is_gone_is_derived(tmp_path: Path) -> None:
    """In the same boot, with one transaction open."""
    with Process(tmp_path) as one:
        committed, is_open = one.begun(), one.begun()
        committed.commit()
        os.unlink(outcome_path(str(tmp_path / "txn"), 0))
        with Process(tmp_path) as other:
            assert other.outcomes(1, 4) == [Outcome.COMMITTED, Outcome.UNDECIDED, Outcome.UNDECIDED]
            is_open.commit()
            assert other.log.wait_for_outcome(is_open.id, 5) is Outcome.COMMITTED


def test_a_log_that_is_newer_than_the_transactions(tmp_path: Path) -> None:
    """An id that was never given out, as in a store put together from two backups: it counts as aborted, is
    reported, and is not given out."""
    with Process(tmp_path) as one, Process(tmp_path) as other:
        first = one.begun()
        for unknown in (first.id + 50, 3 << 16 | 7):
            assert other.log.announce(unknown).outcome is Outcome.ABORTED
            assert other.log.outcome(unknown) is Outcome.ABORTED
            assert one.begun().id > unknown
        assert other.log.outcome(5 << 16) is Outcome.ABORTED
        assert [damage.kind for damage in other.damage] == ["journal"] * 3
        first.commit()
        assert other.log.outcome(first.id) is Outcome.COMMITTED


def test_noise_in_a_table_is_refused(tmp_path: Path) -> None:
    """With the file and a remedy."""
    with Process(tmp_path) as one:
        transaction = one.begun()
        path = tmp_path / "txn" / "outcome.0"
        data = bytearray(path.read_bytes())
        data[128 + transaction.id] = 77
        path.write_bytes(data)
        with pytest.raises(CorruptionError, match=r"outcome\.0"):
            one.log.outcome(transaction.id)


def test_links_and_strangers_are_refused(tmp_path: Path) -> None:
    """Nothing is followed out of the store."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    root = tmp_path / "store"
    root.mkdir()
    with Process(root) as one:
        (root / "txn").symlink_to(elsewhere)
        with pytest.raises(StorageError):
            one.begun()
        assert os.listdir(elsewhere) == []
        (root / "txn").unlink()
        (root / "txn").write_bytes(b"mine")
        with pytest.raises((StorageError, NotADirectoryError)):
            one.begun()
        assert (root / "txn").read_bytes() == b"mine"


def test_a_forked_child_has_dead_copies(tmp_path: Path) -> None:
    """Its parent goes on."""
    with Process(tmp_path) as one:
        transaction = one.begun()
        pid = os.fork()
        if pid == 0:
            refused = 0
            try:
                for call in (
                    transaction.check_open,
                    transaction.commit,
                    transaction.abort,
                    lambda: transaction.token,
                    lambda: one.begin().id,
                ):
                    try:
                        call()
                    except AlreadyClosed:
                        refused += 1
            finally:
                os._exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
        transaction.commit()
        assert_whole(one.log)


def test_a_closed_log_says_so(tmp_path: Path) -> None:
    """Whatever is asked."""
    one = Process(tmp_path)
    transaction, log = one.begun(), one.log
    one.close()
    log.close()
    for call in (transaction.check_open, transaction.commit, lambda: log.outcome(1), log.tend):
        with pytest.raises(AlreadyClosed):
            call()


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_timeouts_have_a_range(tmp_path: Path, timeout_ms: int) -> None:
    """Up to 15 minutes."""
    with Process(tmp_path) as one, pytest.raises(ValueError, match="900000"):
        one.begin(timeout_ms)


def test_the_timer_of_level_interval_flushes(tmp_path: Path) -> None:
    """One for all decisions until then."""
    with Process(tmp_path, durability="interval", interval_s=2.0) as one:
        one.begun().commit()
        words = one.log.control.words
        ((delay_s, flush), *_) = one.later
        assert delay_s == 2.0 and words[TransactionWord.SYNCED] < words[TransactionWord.JOURNAL]
        with held_elsewhere(sync_lock_path(str(tmp_path / "txn"))):
            flush()
        assert words[TransactionWord.SYNCED] < words[TransactionWord.JOURNAL]
        assert one.later[-1][0] == 2.0 and len(one.later) > 1
        flush()
        assert words[TransactionWord.SYNCED] == words[TransactionWord.JOURNAL]
