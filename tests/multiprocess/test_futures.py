"""`embeddedpulsar.futures`: calls in worker processes, which are killed, as submitters are; cancelling."""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import Admin, Client, MultiplierRedeliveryBackoff
from embeddedpulsar.futures import (
    Executor,
    ExecutorClosed,
    RemoteTraceback,
    TaskError,
    WorkerLost,
)
from embeddedpulsar.futures.workers import _READY, DeadlineFile, WorkerGroup, WorkerOptions
from embeddedpulsar.testing import assert_clean
from tests.multiprocess import pool_functions as functions

SOON = MultiplierRedeliveryBackoff(10, 100, 2)


def wait_until(is_so: Callable[[], object], timeout_s: float = 60.0) -> None:
    """Wait until something is so."""
    end_s = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def assert_clean_after_kills(root: Path) -> None:
    """The next program that uses the store removes what a dead process has left."""
    Client(root).close()
    assert_clean(root)


def lines(path: Path) -> list[str]:
    """The lines of a file that may not exist."""
    return path.read_text().split() if path.exists() else []


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    """An executor with two workers, for tests that leave both alive."""
    root = tmp_path_factory.mktemp("shared") / "store"
    with Executor(root, max_workers=2, timeout=120) as executor:
        yield executor
    assert_clean(root)


def test_results_come_back(shared: Executor):
    """Of functions with any arguments, in the functions of ``concurrent.futures``, and in a loop."""
    future = shared.submit(functions.same, 1, (2, {3}), key=b"x")
    assert future.result(60) == [1, (2, {3}), {"key": b"x"}]
    assert (future.done(), future.running(), future.cancel(), future.cancelled()) == (
        True,
        False,
        False,
        False,
    )
    futures = [shared.submit(functions.double, number) for number in range(50)]
    values = [future.result() for future in concurrent.futures.as_completed(futures, timeout=60)]
    assert sorted(values) == [2 * number for number in range(50)]
    assert concurrent.futures.wait(futures, 60).not_done == set()
    calls: list[int] = []
    futures[3].add_done_callback(lambda future: calls.append(future.result()))
    assert calls == [6]

    async def in_loop() -> Any:
        return await asyncio.get_running_loop().run_in_executor(shared, functions.double, 4)

    assert asyncio.run(in_loop()) == 8


def test_exceptions_come_back(shared: Executor):
    """With the traceback of the worker as their cause, whatever is raised; the workers stay."""
    pids = shared.worker_pids()
    with pytest.raises(ValueError, match="no tea") as caught:
        shared.submit(functions.fail, "value").result(60)
    assert isinstance(caught.value.__cause__, RemoteTraceback)
    assert "pool_functions.py" in str(caught.value.__cause__)
    assert "workers.py" not in str(caught.value.__cause__)
    with pytest.raises(SystemExit):
        shared.submit(functions.fail, "exit").result(60)
    with pytest.raises(TaskError, match="Refused: 1 and 2"):
        shared.submit(functions.fail, "other").result(60)
    with pytest.raises(TypeError, match=r"msgpack cannot hold the result of .*unplain.*NotPlain"):
        shared.submit(functions.unplain, 1).result(60)
    with pytest.raises(TypeError, match=r"msgpack cannot hold the arguments of .*double"):
        shared.submit(functions.double, functions.NotPlain(1))
    with pytest.raises(TypeError, match="inside of a function"):
        shared.submit(lambda: 1)
    assert shared.worker_pids() == pids


def test_pickle_on_request(shared: Executor):
    """Objects and exceptions of any class."""
    pickling = shared.options(serializer="pickle")
    assert pickling.submit(functions.number_of, functions.NotPlain(4)).result(60) == 4
    assert pickling.submit(functions.unplain, 5).result(60).number == 5
    with pytest.raises(TaskError, match="Refused"):  # its own pickle cannot be loaded
        pickling.submit(functions.fail, "other").result(60)


def test_map_is_lazy_and_ordered(shared: Executor):
    """It takes as many items ahead as it is told, and goes on when a result is taken."""
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in itertools.count():
            taken.append(number)
            yield number

    results = shared.map(functions.double, items(), chunksize=2, buffersize=3, timeout=60)
    assert len(taken) == 6
    assert [next(results) for _ in range(4)] == [0, 2, 4, 6]
    assert len(taken) == 10
    results.close()  # type: ignore[attr-defined]
    assert list(shared.map(pow, [2, 3, 4], [5, 2], timeout=60)) == [32, 9]
    assert list(shared.map(functions.double, [])) == []
    with pytest.raises(ValueError, match="at least 1"):
        shared.map(functions.double, [1], chunksize=0)


def test_map_ends_with_the_first_failure(shared: Executor, tmp_path: Path):
    """And with its timeout, which counts from the call."""
    results = shared.map(functions.fail, ["value", "value"], timeout=60)
    with pytest.raises(ValueError, match="no tea"):
        next(results)
    release = tmp_path / "release"
    slow = shared.map(functions.wait_for, [str(release)] * 2, timeout=0.2)
    with pytest.raises(TimeoutError):
        next(slow)
    release.touch()


def test_progress(shared: Executor, tmp_path: Path):
    """What a function reports is seen while it runs."""
    release = tmp_path / "release"
    future = shared.submit(functions.count_to, 3, str(release))
    wait_until(lambda: future.progress() == {"step": 3})
    assert future.running()
    steps: list[Any] = []
    more = shared.submit(functions.count_to, 40)
    more.add_progress_callback(lambda future: steps.append(future.progress()["step"]))
    assert more.result(60) == 40
    assert steps == sorted(steps)
    assert more.progress() == {"step": 40}
    release.touch()
    assert future.result(60) == 3


def test_failures_are_retried(shared: Executor, tmp_path: Path):
    """After their delays, as often as was asked for; the attempts are counted."""
    retrying = shared.options(retries=2, retry_backoff=SOON)
    future = retrying.submit(functions.fail_until, str(tmp_path / "third"), 3)
    assert future.result(60) == 3
    assert future.attempt == 3
    future = retrying.submit(functions.fail_until, str(tmp_path / "fourth"), 4)
    with pytest.raises(OSError, match="the till is not there"):
        future.result(60)
    assert lines(tmp_path / "fourth") == ["1", "2", "3"]


def test_a_delay(shared: Executor):
    """A task begins after it, and can be cancelled until then."""
    begun_s = time.monotonic()
    assert shared.options(delay=0.3).submit(functions.double, 1).result(60) == 2
    assert time.monotonic() - begun_s >= 0.3
    later = shared.options(delay=3600).submit(functions.double, 1)
    assert later.cancel()


def test_a_task_is_cancelled_or_begun(shared: Executor, tmp_path: Path):
    """Each is one of the two, while workers are fast: what is cancelled is never called, the rest is done."""
    called = tmp_path / "called"
    cancelled, done = set(), []
    for number in range(150):
        future = shared.submit(functions.record, str(called), str(number))
        if number % 3:
            (cancelled.add(number) if future.cancel() else done.append(future))
        else:
            done.append(future)
    concurrent.futures.wait(done, 60)
    assert all(future.result() is not None for future in done)
    assert not {int(line) for line in lines(called)} & cancelled
    assert len(lines(called)) == 150 - len(cancelled)


def test_cancelling_what_waits(tmp_path: Path):
    """Without a worker every task can be; `wait` and callbacks see it; workers that come later skip it."""
    root, called = tmp_path / "store", tmp_path / "called"
    with Executor(root, max_workers=0) as executor:
        futures = [executor.submit(functions.record, str(called), str(number)) for number in range(20)]
        seen: list[bool] = []
        futures[0].add_done_callback(lambda future: seen.append(future.cancelled()))
        assert futures[0].cancel()
        assert futures[0].cancel()  # it is
        assert seen == [True]
        with pytest.raises(concurrent.futures.CancelledError):
            futures[0].result()
        # Within a callback, too.
        futures[1].add_done_callback(lambda _: futures[2].cancel())
        assert futures[1].cancel()
        wait_until(futures[2].cancelled)
        executor.shutdown(cancel_futures=True)
        assert all(future.cancelled() for future in futures)
        with pytest.raises(RuntimeError, match="was shut down"):
            executor.submit(functions.double, 1)
    with Admin(root) as admin:
        stats = admin.topics().get_stats("pool-default-tasks").subscriptions["workers"]
        assert stats.msg_backlog == 0
    with Executor(root, max_workers=1) as executor:
        assert executor.submit(functions.double, 1).result(60) == 2
    assert lines(called) == []
    assert_clean(root)


def test_a_killed_worker(tmp_path: Path):
    """Its task is done again at once, by another one; a task that always kills its worker fails."""
    root, counted, begun = tmp_path / "store", tmp_path / "counted", tmp_path / "begun"
    with Executor(root, max_workers=2) as executor:
        future = executor.submit(functions.die, str(counted), 2)
        assert future.result(60) == 3
        assert future.attempt == 1
        fatal = executor.options(max_worker_deaths=1).submit(functions.die, str(tmp_path / "all"), 99)
        with pytest.raises(WorkerLost, match="die was begun 2 times"):
            fatal.result(60)
        # In the middle, from outside.
        waiting = executor.submit(functions.wait_for, str(tmp_path / "release"), str(begun))
        wait_until(lambda: lines(begun))
        os.kill(int(lines(begun)[0]), signal.SIGKILL)
        wait_until(lambda: len(lines(begun)) == 2)
        (tmp_path / "release").touch()
        assert waiting.result(60) == "waited"
    assert_clean_after_kills(root)


@pytest.mark.parametrize(
    ("tasks", "kills"),
    [(300, 3), pytest.param(10_000, 60, marks=[pytest.mark.slow, pytest.mark.timeout(900)])],
)
def test_nothing_is_lost_by_kills(tasks: int, kills: int, tmp_path: Path):
    """Every result comes while workers are killed again and again, within tasks and between them."""
    root, chance = tmp_path / "store", random.Random(tasks)
    with Executor(root, max_workers=2, max_worker_deaths=kills) as executor:
        futures = [executor.submit(functions.slow_double, number) for number in range(tasks)]
        pause_s = 0.3 if kills < 10 else 1.0
        for _ in range(kills):
            time.sleep(pause_s * chance.random())
            for pid in executor.worker_pids()[:1]:
                os.kill(pid, signal.SIGKILL)
        assert [future.result(600) for future in futures] == [2 * number for number in range(tasks)]
    assert_clean_after_kills(root)


def test_a_task_over_its_time(tmp_path: Path):
    """Its worker is killed, and it failed, or is done again if that was asked for."""
    root = tmp_path / "store"
    with Executor(root, max_workers=1) as executor:
        limited = executor.options(timeout=0.3)
        (pid,) = {limited.submit(functions.pid).result(60)}
        future = limited.submit(functions.wait_for, str(tmp_path / "never"))
        with pytest.raises(TimeoutError, match=r"wait_for ran longer than 0.3 s"):
            future.result(60)
        again = limited.options(retries=1, retry_backoff=SOON)
        assert again.submit(functions.hang_in_first, str(tmp_path / "attempts")).result(60) == "in time"
        assert lines(tmp_path / "attempts") == ["1", "2"]
        assert executor.submit(functions.pid).result(60) != pid
    assert_clean_after_kills(root)


def test_work_survives_the_submitter(tmp_path: Path):
    """A process that is killed leaves its tasks to other workers, and its results to whoever has the ids."""
    root = tmp_path / "store"
    program = (
        "import os, signal\n"
        "from embeddedpulsar.futures import Executor\n"
        "from tests.multiprocess import pool_functions as functions\n"
        f"executor = Executor({str(root)!r}, max_workers=1, grace_s=0.5)\n"
        "done = executor.submit(functions.double, 21)\n"
        "done.result(60)\n"
        f"release, begun = {str(tmp_path / 'release')!r}, {str(tmp_path / 'begun')!r}\n"
        "stuck = executor.submit(functions.wait_for, release, begun)\n"
        "waiting = executor.options(retries=1).submit(functions.fail, 'value')\n"
        "print(done.task_id, stuck.task_id, waiting.task_id, flush=True)\n"
        "while not os.path.exists(begun): pass\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    ).stdout
    done_id, stuck_id, waiting_id = output.split()
    with Executor(root, max_workers=1, retry_backoff=SOON) as executor:
        assert executor.future(done_id).result(0) == 42
        stuck = executor.future(stuck_id)
        assert executor.future(stuck_id) is stuck
        assert not stuck.done()
        (tmp_path / "release").touch()
        assert stuck.result(60) == "waited"
        with pytest.raises(ValueError, match="no tea"):
            executor.future(waiting_id).result(60)
        for wrong in ("", "tea", "1-2", "a-b-c"):
            with pytest.raises(ValueError, match="no id of a task"):
                executor.future(wrong)
    with Executor(root, max_workers=0) as executor:
        assert executor.future(stuck_id).result(0) == "waited"
        ledger, entry, _ = done_id.split("-")
        with pytest.raises(LookupError, match="there is no result of the task"):
            executor.future(f"{ledger}-{entry}-{2**42}")  # what was stored before that is not its result
    assert_clean_after_kills(root)


def test_closing_leaves_tasks_in_the_store(tmp_path: Path):
    """Futures say so; an executor at a pool of another name does not see them."""
    root = tmp_path / "store"
    executor = Executor(root, "jobs", max_workers=0, result_ttl=timedelta(hours=1))
    future = executor.submit(functions.double, 4)
    executor.close()
    executor.close()
    with pytest.raises(ExecutorClosed, match=f"{future.task_id} is not done"):
        future.result(60)
    assert not future.cancel()
    with Client(root) as client, Executor(client, "acme", max_workers=0) as other:
        assert repr(other) == f"<Executor of the pool 'acme' in {root}>"
        with Executor(client, "jobs", max_workers=1) as later:
            assert later.future(future.task_id).result(60) == 8
    with Admin(root) as admin:
        assert admin.topics().get_retention("pool-jobs-results").time_minutes == 60
    assert_clean(root)


def test_workers_of_a_pool(tmp_path: Path):
    """They call an initializer, are replaced after a number of tasks, and finish what they do at the end."""
    root, release, begun = tmp_path / "store", tmp_path / "release", tmp_path / "begun"
    with Executor(
        root, max_workers=1, initializer=functions.begin, initargs=("tea",), max_tasks_per_child=2
    ) as executor:
        assert executor.submit(functions.begun).result(60) == "tea"
        pids = [executor.submit(functions.pid).result(60) for _ in range(3)]
        assert len(set(pids)) == 2
        future = executor.submit(functions.wait_for, str(release), str(begun))
        wait_until(lambda: lines(begun))
        executor.shutdown(wait=False)
        release.touch()
        assert future.result(60) == "waited"
    assert_clean(root)


def test_the_program_workers(tmp_path: Path):
    """``embeddedpulsar workers`` does the tasks of executors without workers; SIGTERM drains it."""
    root, release, begun = tmp_path / "store", tmp_path / "release", tmp_path / "begun"
    with Executor(root, max_workers=0) as executor:
        command = [sys.executable, "-m", "embeddedpulsar", "--store", str(root), "workers", "-n", "1"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE)
        future = executor.submit(functions.wait_for, str(release), str(begun))
        wait_until(lambda: lines(begun))
        after = executor.submit(functions.double, 2)
        process.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        release.touch()
        assert process.wait(60) == 0
        assert future.result(60) == "waited"
        assert not after.done()
        assert after.cancel()
        process.communicate()
    assert_clean(root)


class EndedProcess:
    """A worker that was killed, before it took tasks or after."""

    pid = 1

    def __init__(self, order: Any, was_ready: bool) -> None:
        if was_ready:
            file = DeadlineFile(order["deadlines"])
            file.write(_READY)
            file.close()

    def status(self) -> int:
        """As `ChildProcess.status`."""
        return -9

    def wait(self, timeout_s: float) -> bool:
        """As `ChildProcess.wait`."""
        return True

    def terminate(self) -> None:
        """It has ended."""


@pytest.mark.parametrize("was_ready", [True, False])
def test_workers_are_started_again(was_ready: bool, tmp_path: Path):
    """At once, however often they are killed; after delays that double if they do not come to take tasks."""
    count = 0

    def start(order: Any) -> Any:
        nonlocal count
        count += 1
        return EndedProcess(order, was_ready)

    with Client(tmp_path / "store") as client:
        group = WorkerGroup(client, str(tmp_path / "store"), "default", WorkerOptions(1), start)
        for _ in range(20):
            group.supervise()
        group.close()
    # The first failure has no delay; after the second it is 100 ms.
    assert count == 20 if was_ready else 2 <= count < 20


MAIN = """
import multiprocessing
import sys
from embeddedpulsar.futures import Executor

class Own:
    def __init__(self, number):
        self.number = number

def add(own, number):
    return Own(own.number + number)

def submit(root, answers):
    with Executor(root, max_workers=1, serializer="pickle") as executor:
        answers.put(executor.submit(add, Own(2), 3).result(60).number)

if __name__ == "__main__":
    for method in sys.argv[2:]:
        context = multiprocessing.get_context(method)
        answers = context.Queue()
        process = context.Process(target=submit, args=(sys.argv[1], answers))
        process.start()
        print(answers.get(timeout=60), flush=True)
        process.join()
    with Executor(sys.argv[1], max_workers=1) as executor:
        print(executor.submit(len, [1, 2]).result(60))
"""


def test_functions_of_the_main_program(tmp_path: Path):
    """In processes of each start method, with objects of classes of the script."""
    script = tmp_path / "script.py"
    script.write_text(MAIN)
    command = [sys.executable, str(script), str(tmp_path / "store"), "fork", "spawn", "forkserver"]
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert run.stdout.split() == ["5", "5", "5", "2"], run.stderr


def test_an_executor_after_a_fork(shared: Executor):
    """The child is told to make its own; the parent goes on."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            shared.submit(functions.double, 1)
        except RuntimeError as error:
            status = 0 if "make one after the fork" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    assert shared.submit(functions.double, 1).result(60) == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_workers": -1},
        {"max_workers": True},
        {"retries": -1},
        {"timeout": -1},
        {"timeout": float("inf")},
        {"serializer": "yaml"},
        {"pool": ""},
        {"pool": "a/b"},
        {"result_ttl": timedelta(seconds=5)},
        {"grace_s": -1},
        {"prefetch": 0},
        {"max_tasks_per_child": -1},
        {"retry_backoff": 7},
        {"max_worker_deaths": 1.5},
    ],
    ids=repr,
)
def test_wrong_options_are_refused(wrong: dict[str, Any], tmp_path: Path):
    """Before anything is made."""
    with pytest.raises(ValueError):
        Executor(tmp_path / "store", **wrong)
    assert not (tmp_path / "store").exists()
