"""What the adapters of frameworks share: queues, and tables of values."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from embeddedpulsar import Client, CorruptionError, MessageId
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar._engine.store.root_layout import is_ours
from embeddedpulsar.frameworks.job_store import JobStore, JobTable
from embeddedpulsar.testing.manual_clock import ManualClock
from tests.children import in_child


def table_of(root: str, closing: ExitStack, retention_ms: int | None = None) -> JobTable:
    """A table with a store of its own, as another process has."""
    store = JobStore(root)
    closing.callback(store.close)
    return closing.enter_context(JobTable(store, "table", retention_ms=retention_ms))


def test_tables_of_a_store_agree(root: str, closing: ExitStack):
    """What one writes the other reads, at once."""
    mine, other = table_of(root, closing), table_of(root, closing)
    mine.put("a", b"1")
    assert other.get("a") == b"1"
    other.put("a", b"")
    assert mine.get("a") == b""
    other.remove("a")
    assert mine.get("a") is None and mine.items() == {} and len(other) == 0


def test_values_expire(root: str, closing: ExitStack):
    """Each value at its own end, in each table; a later value of a key outlives the earlier one."""
    with ManualClock() as clock:
        mine, other = table_of(root, closing, 10_000), table_of(root, closing, 10_000)
        mine.put("short", b"1", ttl_ms=1000)
        mine.put("again", b"1", ttl_ms=1000)
        mine.put("again", b"2")
        assert other.items() == {"short": b"1", "again": b"2"}
        clock.advance(1.0)
        assert mine.items() == other.items() == {"again": b"2"}
        clock.advance(9.0)
        assert other.items() == {}


def test_what_expired_is_removed_from_a_compacted_topic(root: str, closing: ExitStack):
    """By the next step of any process, once; not if the key has a value again."""
    with ManualClock() as clock:
        mine, other = table_of(root, closing), table_of(root, closing)
        for key in ("gone", "again"):
            mine.put_alone(key, b"1", ttl_ms=1000)
        assert len(other) == 2
        clock.advance(1.0)
        assert mine.put_if_absent("again", b"2") and len(other) == 1
        for table in (other, mine):
            table.put_alone("next", b"3")
        with Client(root) as client, client.create_reader("table", MessageId.earliest) as reader:
            messages = [(message.partition_key(), len(message.data())) for message in reader]
    assert messages.count(("gone", 0)) == 1 and messages.count(("again", 0)) == 0
    assert mine.items() == {"again": b"2", "next": b"3"}


def test_steps_of_several_threads_and_tables(root: str, closing: ExitStack):
    """Of all callers one gets a value, one sets it, and no sum is lost."""
    tables = [table_of(root, closing) for _ in range(3)]
    tables[0].put("job", b"x")
    with ThreadPoolExecutor(6) as pool:
        calls = [tables[number % 3] for number in range(30)]
        assert sorted(pool.map(lambda table: table.put_if_absent("lock", b"1"), calls))[-2:] == [False, True]
        assert [value for value in pool.map(lambda table: table.pop("job"), calls) if value] == [b"x"]
        assert sorted(pool.map(lambda table: table.add("count", 1), calls)) == list(range(1, 31))


def test_locks_with_the_name_of_before(root: str, closing: ExitStack):
    """A new table has a lock of its own name; one whose lock had a name of outboxes keeps that."""
    mine = table_of(root, closing)
    assert mine.put_if_absent("job", b"x")
    (lock,) = Path(root).glob("values.*.lock")
    mine.close()
    earlier = lock.with_name(f"outbox.table-{lock.name.split('.')[1]}.lock")
    lock.rename(earlier)
    other = table_of(root, closing)
    holder = FileLock(str(earlier))
    closing.callback(holder.close)
    with ThreadPoolExecutor(1) as pool:
        try:
            holder.acquire()
            waiting = pool.submit(other.add, "sum", 1)
            with pytest.raises(TimeoutError):
                waiting.result(0.05)
        finally:
            holder.release()
        assert waiting.result(10) == 1
    assert not lock.exists() and is_ours(lock.name) and is_ours(earlier.name)


def test_waiting_for_a_value(root: str, closing: ExitStack):
    """A waiter gets the value that another thread puts, and None when the time is over."""
    mine, other = table_of(root, closing), table_of(root, closing)
    assert mine.wait("never", 0) is None
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(table.wait, key, 30) for table, key in ((mine, "a"), (mine, "b"))]
        other.put("b", b"2")
        other.put("a", b"1")
        assert [call.result() for call in waiting] == [b"1", b"2"]


def test_readers_of_waits_are_kept(root: str, closing: ExitStack):
    """A wait attaches once and the next one uses the same reader, which has seen what was put in between."""
    table = table_of(root, closing)
    for number in range(3):
        assert table.wait(f"{number}", 0) is None
        table.put(f"{number}", b"x")
    (kept,) = table._idle
    assert table.wait("0", 0) == b"x" and table.wait("no", 0) is None and table._idle == [kept]
    table.close()
    assert table._idle == [] and not kept.is_connected()


def test_values_of_keys_that_nobody_else_sets(root: str, closing: ExitStack):
    """They need no lock, unless keys have a value or too much has expired, which is removed then."""
    mine, other = table_of(root, closing, None), table_of(root, closing, None)

    def put_and_pop() -> tuple[bytes | None, ...]:
        mine.put_unshared("a", b"1")
        return other.pop("b"), mine.get("a")

    with ManualClock() as clock, ThreadPoolExecutor(1) as pool:
        # Another thread, while this one has the lock.
        assert other.alone(lambda: pool.submit(put_and_pop).result(20)) == (None, b"1")
        mine.put_unshared("a", b"2")
        assert other.pop("a") == b"2"
        for number in range(1000):
            mine.put_unshared(f"{number}", b"x", 1000)
        clock.advance(1.0)
        assert len(mine) == 0 and len(mine._expired) == 1000
        mine.put_unshared("b", b"3")
        assert mine._expired == {} and other.items() == {"b": b"3"}


def test_a_forked_child_goes_on(root: str, closing: ExitStack):
    """Child and parent use the table that was open before the fork, and agree."""
    table = table_of(root, closing)
    table.put("a", b"1")
    assert table.get("a") == b"1"

    def in_the_child() -> object:
        table.put("b", table.get("a") or b"")
        total = table.add("count", 1)
        closing.close()
        return total

    assert in_child(in_the_child) == "1"
    assert table.items() == {"a": b"1", "b": b"1", "count": b"1"}
    assert table.add("count", 1) == 2


def test_what_is_no_value(root: str, closing: ExitStack):
    """A message of another program in the topic of a table is an error that names it."""
    table = table_of(root, closing)
    table.prepare_topic()
    with Client(root) as client:
        client.create_producer("table").send(b"text", partition_key="k")
    with pytest.raises(CorruptionError, match="no value: 'k'; another program"):
        table.get("a")


def test_clearing(root: str, closing: ExitStack):
    """`clear` removes keys with a prefix and returns their values, in order."""
    table = table_of(root, closing)
    for key in ("s/2", "s/1", "r/1"):
        table.put(key, key.encode())
    assert table.clear("s/") == [b"s/2", b"s/1"]
    assert table.items() == {"r/1": b"r/1"}


def test_the_policies_of_the_topic(root: str, closing: ExitStack):
    """Results live as long as the topic keeps messages; other tables are compacted."""
    store = JobStore(root)
    closing.callback(store.close)
    for topic, retention_ms in (("results", 90_000), ("locks", None)):
        JobTable(store, topic, retention_ms=retention_ms).prepare_topic()
        JobTable(store, topic, retention_ms=retention_ms).prepare_topic()
    topics = store.admin.topics()
    assert topics.get_retention("results") == (2, -1) and topics.get_compaction_threshold("results") is None
    assert topics.get_retention("locks") is None and topics.get_compaction_threshold("locks") == 16 << 20


def test_queues_keep_what_is_sent_before_the_first_worker(root: str, closing: ExitStack):
    """The subscription of the workers is there before the first of them."""
    store = JobStore(root)
    closing.callback(store.close)
    store.create_queue("jobs")
    store.create_queue("jobs")
    store.client.create_producer("jobs").send(b"1")
    assert store.backlog("jobs") == 1


def test_a_private_store_in_memory_is_refused():
    """Each client of it would have a store of its own."""
    with pytest.raises(ValueError, match="memory://name"):
        JobStore("memory://").create_queue("jobs")
