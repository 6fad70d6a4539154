"""The storage of huey, and the `Huey` that acknowledges late."""

from __future__ import annotations

import datetime
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

pytest.importorskip("huey", reason="the extra is not installed")

from huey import Huey, crontab
from huey.api import chord
from huey.constants import EmptyData
from huey.exceptions import TaskException

from embeddedpulsar import Admin, AlreadyClosed
from embeddedpulsar.frameworks.huey import EmbeddedPulsarHuey, EmbeddedPulsarStorage
from tests.children import in_child

QUEUE = "persistent://public/huey/mails"
NOON = datetime.datetime(2027, 1, 1, 12)
HOUR = datetime.timedelta(hours=1)


def storage_of(
    root: str, closing: ExitStack, late: bool = False, wait_s: float = 20
) -> EmbeddedPulsarStorage:
    """A storage with a store of its own, as another process has."""
    storage = EmbeddedPulsarStorage("mails", service_url=root, acknowledge_late=late, read_timeout=wait_s)
    closing.callback(storage.close)
    return storage


def huey_of(root: str, closing: ExitStack, wait_s: float = 0.05) -> EmbeddedPulsarHuey:
    """A `Huey` in UTC."""
    huey = EmbeddedPulsarHuey("mails", service_url=root, read_timeout=wait_s)
    closing.callback(lambda: huey.storage.close())
    return huey


def test_priorities_of_two_processes(root: str, closing: ExitStack):
    """A priority that another process begins to use is seen by a worker that is attached."""
    sender, worker = storage_of(root, closing), storage_of(root, closing)
    sender.enqueue(b"a")
    assert worker.dequeue() == b"a"
    for data, priority in ((b"b", None), (b"c", 2), (b"d", 10), (b"e", -1), (b"f", 2.5), (b"g", 0)):
        sender.enqueue(data, priority)
    assert worker.queue_size() == 6
    assert worker.enqueued_items(2) == [b"d", b"f"]
    assert worker.enqueued_items() == [b"d", b"f", b"c", b"b", b"g", b"e"]
    assert [worker.dequeue() for _ in range(6)] == [b"d", b"f", b"c", b"b", b"g", b"e"]
    assert worker.queue_size() == 0


def test_threads_that_wait(root: str, closing: ExitStack):
    """Each task goes to one thread, with one priority and with several."""
    storage = storage_of(root, closing)
    for priorities in ((0,), (0, 5, 9)):
        with ThreadPoolExecutor(4) as pool:
            waiting = [pool.submit(storage.dequeue) for _ in range(8)]
            for number in range(8):
                storage.enqueue(b"%d" % number, priorities[number % len(priorities)])
            assert sorted(call.result() or b"" for call in waiting) == [b"%d" % number for number in range(8)]


def test_no_task(root: str, closing: ExitStack):
    """None after the timeout, with one priority and with several."""
    storage = storage_of(root, closing, wait_s=0.01)
    assert storage.dequeue() is None
    storage.enqueue(b"x", 1)
    assert storage.dequeue() == b"x" and storage.dequeue() is None


def test_tasks_that_are_not_acknowledged(root: str, closing: ExitStack):
    """With late acknowledgement they go to another worker when theirs closes; otherwise they are gone."""
    for late, rest in ((False, 0), (True, 1)):
        worker = storage_of(root, closing, late)
        for data in (b"a", b"b"):
            worker.enqueue(data)
        assert worker.dequeue() == b"a"
        worker.acknowledge()
        assert worker.dequeue() == b"b"
        assert worker.queue_size() == 0 and worker.enqueued_items() == []
        worker.close()
        assert worker.queue_size() == rest and worker.enqueued_items() == [b"b"][:rest]
        worker.flush_queue()
        assert worker.queue_size() == 0


def test_scheduled_tasks(root: str, closing: ExitStack):
    """One reader gets each, the soonest first; a claimed one stays until it is removed."""
    mine, other = storage_of(root, closing), storage_of(root, closing)
    for data, hours in ((b"b", 2), (b"a", 1), (b"c", 3)):
        mine.add_to_schedule(data, NOON + hours * HOUR)
    assert other.scheduled_items() == [b"a", b"b", b"c"] and other.scheduled_items(1) == [b"a"]
    assert other.read_schedule(NOON) == []
    assert other.read_schedule(NOON + HOUR) == [b"a"] and mine.read_schedule(NOON + HOUR) == []
    ((key, data),) = mine.claim_schedule(NOON + 2 * HOUR)
    assert data == b"b" and other.claim_schedule(NOON + 2 * HOUR) == [] and other.schedule_size() == 2
    mine.remove_scheduled(key)
    assert other.scheduled_items() == [b"c"]
    mine.flush_schedule()
    assert other.schedule_size() == 0


def test_data_counters_and_locks(root: str, closing: ExitStack):
    """Keys are text or bytes, and one caller gets or sets each."""
    mine, other = storage_of(root, closing), storage_of(root, closing)
    mine.put_data(b"key", b"", is_result=True)
    assert other.peek_data("key") == b"" and other.has_data_for_key(b"key") and other.result_store_size() == 1
    assert other.pop_data("key") == b"" and mine.pop_data("key") is EmptyData
    assert mine.peek_data("key") is EmptyData and not mine.delete_data("key")
    assert mine.put_if_empty("lock", b"1") and not other.put_if_empty("lock", b"2")
    assert other.delete_data("lock") and other.put_if_empty("lock", b"2")
    assert mine.result_items() == {"lock": b"2"} and mine.peek_many(["lock", "x"]) == {"lock": b"2"}
    assert (mine.incr("lock"), other.incr("lock", 4), mine.incr("other", 0)) == (1, 5, 0)
    mine.delete_counter("lock")
    assert other.incr("lock") == 1
    mine.flush_all()
    assert other.result_items() == {} and other.incr("lock") == 1


def test_results_that_expire(root: str, closing: ExitStack):
    """Only results of tasks do."""
    storage = EmbeddedPulsarStorage("mails", service_url=root, expire_time=0.001)
    closing.callback(storage.close)
    storage.put_data("result", b"1", is_result=True)
    storage.put_data("other", b"1")
    threading.Event().wait(0.002)
    assert storage.result_items() == {"other": b"1"}


def test_a_forked_child_goes_on(root: str, closing: ExitStack):
    """As worker processes of huey do."""
    storage = storage_of(root, closing)
    for data in (b"a", b"b"):
        storage.enqueue(data, 1)
    assert storage.dequeue() == b"a"

    def in_the_child() -> object:
        data = storage.dequeue()
        closing.close()
        return data

    assert in_child(in_the_child) == "b'b'"
    storage.enqueue(b"c")
    assert storage.dequeue() == b"c"


def test_a_huey_with_its_consumer(root: str, closing: ExitStack):
    """Results, errors, retries, chords, locks and revocations, by workers of huey."""
    huey = huey_of(root, closing)
    attempts = []

    @huey.task()
    def add(a: int, b: int) -> int:
        return a + b

    @huey.task()
    def total(values: list[int]) -> int:
        return sum(values)

    @huey.task(retries=1)
    def fail() -> None:
        attempts.append(1)
        raise ValueError("no")

    @huey.task(priority=5)
    def locked() -> str:
        with huey.lock_task("till"):
            return "open"

    @huey.periodic_task(crontab(minute="0"))
    def hourly() -> None: ...

    assert [task.name for task in huey.read_periodic(NOON)] == ["hourly"]
    consumer = huey.create_consumer(workers=2, periodic=False)
    consumer.start()
    try:
        results = [add(1, 2), locked(), huey.enqueue(chord([add.s(1, 1), add.s(2, 2)], total))]
        assert [result.get(blocking=True, timeout=20) for result in results] == [3, "open", 6]
        failed = fail()
        with pytest.raises(TaskException, match="no"):
            failed.get(blocking=True, timeout=20)
    finally:
        consumer.stop(graceful=True)
    revoked = add(1, 2)
    revoked.revoke()
    assert huey.execute(huey.dequeue()) is None and len(attempts) >= 1


def test_a_task_is_acknowledged_when_it_ran(root: str, closing: ExitStack):
    """Also if it failed; not if it was interrupted."""
    huey = huey_of(root, closing)

    @huey.task()
    def end(error: str) -> None:
        if error:
            raise {"ValueError": ValueError, "SystemExit": SystemExit}[error]

    for error in ("", "ValueError", "SystemExit"):
        end(error)
        try:
            huey.execute(huey.dequeue())
        except SystemExit:
            assert error == "SystemExit"
    huey.storage.close()
    assert [task.args for task in huey.pending()] == [("SystemExit",)]


def test_scheduled_tasks_leave_the_schedule_when_they_are_queued(root: str, closing: ExitStack):
    """A scheduler that dies in between leaves them there."""
    huey, other = huey_of(root, closing), huey_of(root, closing)

    @huey.task()
    def mail(number: int) -> None: ...

    mail.schedule((1,), eta=NOON)
    huey.execute(huey.dequeue(), NOON - HOUR)
    (task,) = huey.read_schedule(NOON)
    assert other.read_schedule(NOON) == [] and huey.scheduled_count() == 1
    huey.enqueue(task)
    assert huey.scheduled_count() == 0 and huey.pending_count() == 1


def test_immediate_mode(root: str, closing: ExitStack):
    """The storage of huey's own in memory is used, and ours again afterwards."""
    huey = huey_of(root, closing)

    @huey.task()
    def add(a: int, b: int) -> int:
        return a + b

    huey.immediate = True
    assert add(1, 2).get() == 3 and huey.read_schedule() == []
    huey.immediate = False
    add(1, 2)
    assert huey.pending_count() == 1


def test_the_storage_alone(root: str, closing: ExitStack):
    """A plain `Huey` takes it, too."""
    huey = Huey("mails", storage_class=EmbeddedPulsarStorage, service_url=root)
    closing.callback(lambda: huey.storage.close())

    @huey.task()
    def add(a: int, b: int) -> int:
        return a + b

    result = add(1, 2)
    huey.execute(huey.dequeue())
    assert result.get() == 3
    huey.storage.close()
    with Admin(root) as admin:
        assert admin.topics().get_stats(QUEUE).subscriptions["workers"].msg_backlog == 0


def test_wrong_arguments():
    """Errors of the constructor name the argument."""
    for name in ("read_timeout", "expire_time"):
        with pytest.raises(ValueError, match=name):
            EmbeddedPulsarStorage("x", service_url="memory://x", **{name: 0})


def test_closing_while_a_thread_waits(root: str, closing: ExitStack):
    """The thread ends with an error of the closed consumer, and the storage can be used again."""
    storage = storage_of(root, closing)
    storage.enqueue(b"first")
    assert storage.dequeue() == b"first"
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(storage.dequeue)
        while not storage._queue._turn.locked():
            storage.queue_size()
        storage.close()
        with pytest.raises(AlreadyClosed):
            waiting.result(20)
    storage.enqueue(b"second")
    assert storage.dequeue() == b"second"
