"""What a recovery counts: committed transactions of which a power loss took a part."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from embeddedpulsar import Admin, Client
from embeddedpulsar._engine import filenames
from embeddedpulsar._engine.format.control import TransactionWord
from embeddedpulsar._engine.format.frame import FIRST_FRAME_OFFSET
from embeddedpulsar._engine.platform import failpoints, timing
from embeddedpulsar._engine.store.store import Store
from embeddedpulsar._engine.store.store_transactions import StoreTransactions
from embeddedpulsar._engine.store.topic_lookup import compare_commits
from embeddedpulsar.admin.topic_stats import TransactionCoordinatorStats
from embeddedpulsar.damage import LOST_TAIL, Damage
from embeddedpulsar.testing import assert_clean


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with two committed transactions in two topics, and one in the second alone."""
    root = tmp_path / "store"
    with Client(root) as client:
        send(client, "a", "b")
        send(client, "a", "b", count=3)
        send(client, "b", count=1)
        with client.transaction() as txn:
            client.create_producer("a").send(b"aborted", txn=txn)
            txn.abort()
    return root


def send(client: Client, *topics: str, count: int = 2) -> None:
    """Messages of one transaction that commits."""
    with client.transaction() as txn:
        for topic in topics:
            with client.create_producer(topic) as producer:
                for number in range(count):
                    producer.send(b"%d" % number, txn=txn)


def lose_entries(root: Path, topic: str, count: int = 1) -> None:
    """The last frames of a topic were not on the disk yet."""
    (directory,) = root.glob(f"topics/*-{topic}")
    log = max(directory.glob(f"*{filenames.LOG_SUFFIX}"))
    data, starts = bytearray(log.read_bytes()), [FIRST_FRAME_OFFSET]
    while length := int.from_bytes(data[starts[-1] : starts[-1] + 4], "little"):
        starts.append(starts[-1] + length)
    data[starts[-1 - count] : starts[-1]] = bytes(starts[-1] - starts[-1 - count])
    log.write_bytes(data)


@pytest.fixture
def reboot(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Lets the next process find another boot."""
    boots = iter(range(1, 100))

    def begin() -> None:
        monkeypatch.setattr(timing, "_boot_id", bytes([next(boots)]) * 16)

    return begin


def after_housekeeping(root: Path) -> tuple[TransactionCoordinatorStats, list[Damage]]:
    """What is counted when the chores of transactions were done, and what was reported on the way."""
    found: list[Damage] = []
    do_chores = StoreTransactions.do_chores
    with pytest.MonkeyPatch.context() as patched:
        # Housekeeping of the store would be in the middle of them when these here return.
        patched.setattr(StoreTransactions, "do_chores", lambda self, done: False)
        store = Store.open(root)
        store.damage.add(found.append)
        store.transactions.log()
        while do_chores(store.transactions, []):
            pass
        with Admin(root) as admin:
            stats = admin.transactions().get_coordinator_stats_by_id(0)
        store.release()
    return stats, [each for each in found if each.kind == LOST_TAIL and "transaction" in each.reason]


def test_each_is_counted_once(root: Path, reboot: Callable[[], None]) -> None:
    """However many recoveries follow, and however many topics it is torn in."""
    lose_entries(root, "a", 3)  # the aborted one, and two of the second transaction
    lose_entries(root, "b", 2)  # the third one, and one of the second
    reboot()
    stats, found = after_housekeeping(root)
    assert stats.torn_txn_count == 2 and stats.json()["tornTxnCount"] == 2
    texts = {each.topic.rpartition("/")[2]: each.reason for each in found}
    assert texts == {
        "a": "2 of 3 entries are missing of the transaction (0,2), which had committed",
        "b": "1 of 3 entries are missing of the transaction (0,2), which had committed, and entries of 1 "
        "more",
    }
    assert after_housekeeping(root) == (stats, [])
    reboot()
    assert after_housekeeping(root)[0].torn_txn_count == 2


def test_what_is_whole_is_not_counted(root: Path, reboot: Callable[[], None]) -> None:
    """A reboot without a loss; what was trimmed or deleted since; the aborted ones."""
    with Admin(root) as admin:
        admin.topics().truncate("b")
    reboot()
    assert after_housekeeping(root)[0].torn_txn_count == 0
    with Client(root) as client:
        send(client, "a", "b", "c")
    with Admin(root) as admin:
        admin.topics().delete("c")
        admin.topics().create_non_partitioned_topic("c")
    reboot()
    assert after_housekeeping(root)[0].torn_txn_count == 0
    assert_clean(root)
    lose_entries(root, "a")
    assert after_housekeeping(root)[0].torn_txn_count == 0  # no recovery


def test_a_process_that_dies_before_the_count_leaves_it_to_the_next(
    root: Path, reboot: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The word says that it is owed; what commits meanwhile is not compared."""
    lose_entries(root, "a", 2)
    reboot()
    with monkeypatch.context() as patched:
        patched.setattr(StoreTransactions, "do_chores", lambda self, done: False)  # by housekeeping
        store = Store.open(root)
        log = store.transactions.log()
        assert log.recovered() > 0
        steps = compare_commits(str(root), log.recovered())
        next(steps)
        steps.close()
        store.release()
    with Client(root) as client:
        send(client, "a")
    assert after_housekeeping(root)[0].torn_txn_count == 1


def test_a_death_inside_the_count_loses_it_and_counts_nothing_twice(
    root: Path, reboot: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The word is cleared before the count is raised."""
    lose_entries(root, "a", 2)
    reboot()
    monkeypatch.setattr(StoreTransactions, "do_chores", lambda self, done: False)  # by housekeeping
    store = Store.open(root)
    log = store.transactions.log()
    failpoints.set("txn:compared", "raise")
    with pytest.raises(failpoints.InjectedFailure):
        log.note_compared(log.recovered(), 1)
    words = log.control.words
    assert words[TransactionWord.TEARS] == words[TransactionWord.RECOVERED] == 0
    log.note_compared(7, 1)  # of a recovery that another process has compared
    assert words[TransactionWord.TEARS] == 0
    store.release()


def test_a_log_that_is_not_here_is_not_missing(root: Path, reboot: Callable[[], None]) -> None:
    """Its directory is gone, as a repair leaves it."""
    shutil.rmtree(next(root.glob("topics/*-b")))
    reboot()
    steps, torn = compare_commits(str(root), 1 << 31), None
    while torn is None:
        try:
            next(steps)
        except StopIteration as end:
            torn = end.value
    assert torn == []
