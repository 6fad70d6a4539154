"""The broker, the result back end and the schedule source of taskiq."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("taskiq", reason="the extra is not installed")

from taskiq import ScheduledTask, TaskiqResult, TaskiqScheduler
from taskiq.api import run_receiver_task
from taskiq.depends.progress_tracker import TaskProgress
from taskiq.exceptions import ResultGetError
from taskiq.serializers import PickleSerializer

from embeddedpulsar import Admin, AlreadyClosed
from embeddedpulsar.frameworks.taskiq import (
    EmbeddedPulsarBroker,
    EmbeddedPulsarResultBackend,
    EmbeddedPulsarScheduleSource,
    ResultMissingError,
)
from embeddedpulsar.testing.trial_store import assert_clean


@pytest.fixture
def root(tmp_path: Path) -> Iterator[str]:
    """A store that is whole in the end."""
    yield str(tmp_path / "store")
    assert_clean(tmp_path / "store")


def with_broker(broker: EmbeddedPulsarBroker, program: Callable[[], Awaitable[Any]]) -> Any:
    """Run a coroutine between the start and the end of a broker."""

    async def main() -> Any:
        await broker.startup()
        try:
            async with asyncio.timeout(30):
                return await program()
        finally:
            await broker.shutdown()

    return asyncio.run(main())


async def working(broker: EmbeddedPulsarBroker, program: Awaitable[Any]) -> Any:
    """The result of a coroutine beside a worker of taskiq."""
    worker = asyncio.create_task(run_receiver_task(broker))
    try:
        return await program
    finally:
        worker.cancel()
        with suppress(asyncio.CancelledError):
            await worker


def test_results_come_back(root: str):
    """Values and exceptions of tasks, of coroutines and of functions."""
    broker = EmbeddedPulsarBroker(root).with_result_backend(EmbeddedPulsarResultBackend(root))

    @broker.task
    async def divide(a: int, b: int) -> float:
        return a / b

    @broker.task
    def shout(text: str) -> str:
        return text.upper()

    async def program() -> list[TaskiqResult[Any]]:
        tasks = [await divide.kiq(6, 3), await divide.kiq(1, 0), await shout.kiq("tea")]
        assert not await tasks[0].is_ready()

        async def results() -> list[TaskiqResult[Any]]:
            return [await task.wait_result(check_interval=0.01) for task in tasks]

        return await working(broker, results())

    quotient, error, text = with_broker(broker, program)
    assert (quotient.return_value, text.return_value) == (2.0, "TEA")
    assert error.is_err and isinstance(error.error, ZeroDivisionError)
    with pytest.raises(ZeroDivisionError):
        error.raise_for_error()


async def taken(broker: EmbeddedPulsarBroker, count: int, acknowledged: bool = True) -> list[Any]:
    """The arguments of the next tasks, as a worker gets them."""
    arguments: list[Any] = []
    listening = broker.listen()
    while len(arguments) < count:
        message = await anext(listening)
        arguments += broker.formatter.loads(message.data).args  # type: ignore[union-attr]
        if acknowledged:
            await message.ack()  # type: ignore[union-attr, misc]
    await listening.aclose()
    return arguments


def test_priorities(root: str):
    """The highest comes first, also among those that arrive while the worker waits."""
    broker = EmbeddedPulsarBroker(root, max_priority=3)

    @broker.task
    def job(name: str) -> None: ...

    async def program() -> list[list[str]]:
        for name, priority in (("a", 0), ("b", 1), ("c", 3), ("d", 1)):
            await job.kicker().with_labels(priority=priority).kiq(name)
        waiting = [await taken(broker, 4)]
        later = asyncio.create_task(taken(broker, 2))
        for name, priority in (("e", 2), ("f", 0)):
            await job.kicker().with_labels(priority=priority).kiq(name)
        return [*waiting, await later]

    assert with_broker(broker, program) == [["c", "b", "d", "a"], ["e", "f"]]


def test_delays(root: str):
    """A delayed task comes when it is due, and does not hold up others."""
    broker = EmbeddedPulsarBroker(root)

    @broker.task
    def job(name: str) -> None: ...

    async def program() -> list[str]:
        await job.kicker().with_labels(delay=0.2).kiq("later")
        await job.kiq("now")
        return await taken(broker, 2)

    assert with_broker(broker, program) == ["now", "later"]


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        ({"priority": 1}, "the priority of job is 1, and this broker has 0 to 0"),
        ({"priority": "high"}, "the label priority of job is a whole number, not 'high'"),
        ({"delay": "soon"}, "the label delay of job is a number of seconds, not 'soon'"),
    ],
)
def test_wrong_labels(root: str, labels: dict[str, Any], text: str):
    """An error of the sender, not of the worker; nothing is sent."""
    broker = EmbeddedPulsarBroker(root)

    @broker.task(task_name="job")
    def job() -> None: ...

    async def program() -> int:
        with pytest.raises(Exception, match="Cannot send task") as raised:
            await job.kicker().with_labels(**labels).kiq()
        assert text in str(raised.value.__cause__)
        with Admin(root) as admin:
            return admin.topics().get_stats("taskiq").subscriptions["workers"].msg_backlog

    assert with_broker(broker, program) == 0


def test_another_queue_and_the_properties(root: str):
    """The label ``queue_name`` names the topic. Other programs see id, name and labels."""
    broker = EmbeddedPulsarBroker(root)

    @broker.task(task_name="job", queue_name="slow", retries=3)
    def job() -> None: ...

    async def program() -> str:
        return (await job.kiq()).task_id

    task_id = with_broker(broker, program)
    with Admin(root) as admin:
        (message,) = admin.topics().peek_messages("slow", "workers", 1)
    expected = {"task_id": task_id, "task_name": "job", "queue_name": "slow", "retries": "3"}
    assert message.properties() == expected


def test_what_is_not_acknowledged_comes_again(root: str):
    """A task that a worker took with it goes to the next one; what it acknowledged does not."""
    broker, other = EmbeddedPulsarBroker(root), EmbeddedPulsarBroker(root)

    @broker.task
    def job(name: str) -> None: ...

    async def first() -> list[str]:
        for name in ("a", "b"):
            await job.kiq(name)
        return [*await taken(broker, 1), *await taken(broker, 1, acknowledged=False)]

    assert with_broker(broker, first) == ["a", "b"]
    assert with_broker(other, lambda: taken(other, 1)) == ["b"]


def test_tasks_are_acknowledged_after_the_generator_is_closed(root: str):
    """taskiq ends tasks in progress after it stopped listening."""
    broker = EmbeddedPulsarBroker(root)

    @broker.task
    def job(name: str) -> None: ...

    async def program() -> None:
        await job.kiq("a")
        listening = broker.listen()
        message = await anext(listening)
        await listening.aclose()
        await message.ack()  # type: ignore[union-attr, misc]

    with_broker(broker, program)
    with Admin(root) as admin:
        assert admin.topics().get_stats("taskiq").subscriptions["workers"].msg_backlog == 0


def test_a_broker_may_start_again(root: str):
    """In another loop, too. In between, tasks cannot be acknowledged."""
    broker = EmbeddedPulsarBroker(root)

    @broker.task
    def job(name: str) -> None: ...

    async def first() -> Any:
        await job.kiq("a")
        return await anext(broker.listen())

    message = with_broker(broker, first)
    with pytest.raises(AlreadyClosed):
        asyncio.run(message.ack())
    assert with_broker(broker, lambda: taken(broker, 1)) == ["a"]


def result_of(value: Any) -> TaskiqResult[Any]:
    """A result, with a log."""
    return TaskiqResult(is_err=False, log="began", return_value=value, execution_time=0.25, labels={"a": "b"})


def test_the_result_back_end(root: str):
    """Results, logs and progress, in this process and in others; also after a restart."""
    writer, reader = EmbeddedPulsarResultBackend(root), EmbeddedPulsarResultBackend(root)

    async def program() -> None:
        await writer.startup()
        when = datetime.datetime(2027, 1, 1, tzinfo=datetime.UTC)
        await writer.set_result("1", result_of({"when": when}))
        await writer.set_progress("1", TaskProgress(state="HALF", meta={"percent": 50}))
        await writer.shutdown()
        assert await reader.is_result_ready("1") and not await reader.is_result_ready("2")
        result = await reader.get_result("1")
        assert result == result_of({"when": "2027-01-01T00:00:00Z"}).model_copy(update={"log": None})
        assert (await reader.get_result("1", with_logs=True)).log == "began"
        assert await reader.get_progress("1") == TaskProgress(state="HALF", meta={"percent": 50})
        assert await reader.get_progress("2") is None
        with pytest.raises(ResultMissingError, match="no result of task 2"):
            await reader.get_result("2")
        await writer.set_result("2", result_of(2))
        assert (await reader.get_result("2")).return_value == 2
        for backend in (writer, reader):
            await backend.shutdown()

    asyncio.run(program())


def test_other_serializers_and_results_that_are_read_once(root: str):
    """A serializer of the user gets Python values. Without ``keep_results`` a result is read once."""
    results = EmbeddedPulsarResultBackend(root, serializer=PickleSerializer(), keep_results=False)

    async def program() -> None:
        value = (1, {2}, datetime.date(2027, 1, 1))
        await results.set_result("1", result_of(value))
        assert (await results.get_result("1")).return_value == value
        assert not await results.is_result_ready("1")
        await results.shutdown()

    asyncio.run(program())


def test_wrong_arguments():
    """Errors of the constructors name the argument."""
    with pytest.raises(ValueError, match="max_priority"):
        EmbeddedPulsarBroker("memory://x", max_priority=-1)
    with pytest.raises(ValueError, match="result_ttl_s"):
        EmbeddedPulsarResultBackend("memory://x", result_ttl_s=0)


def test_a_missing_result_in_the_words_of_taskiq(root: str):
    """taskiq wraps the error."""
    broker = EmbeddedPulsarBroker(root).with_result_backend(EmbeddedPulsarResultBackend(root))

    @broker.task
    def job() -> None: ...

    async def program() -> None:
        task = await job.kiq()
        with pytest.raises(ResultGetError):
            await task.get_result()

    with_broker(broker, program)


def test_schedules(root: str):
    """They stay until they are deleted; one for a single moment goes when its task was sent."""
    broker, source = EmbeddedPulsarBroker(root), EmbeddedPulsarScheduleSource(root)

    @broker.task(task_name="job")
    def job(name: str) -> None: ...

    def schedule(name: str, **when: Any) -> ScheduledTask:
        return ScheduledTask(task_name="job", labels={}, args=[name], kwargs={}, schedule_id=name, **when)

    async def program() -> list[str]:
        scheduler = TaskiqScheduler(broker, [source])
        once = schedule("once", time=datetime.datetime(2027, 1, 1, tzinfo=datetime.UTC))
        for added in (schedule("nightly", cron="0 2 * * *"), once, schedule("often", interval=60)):
            await source.add_schedule(added)
        other = EmbeddedPulsarScheduleSource(root)
        assert [task.schedule_id for task in await other.get_schedules()] == ["nightly", "once", "often"]
        for task in await source.get_schedules():
            await scheduler.on_ready(source, task)
        assert [task.schedule_id for task in await other.get_schedules()] == ["nightly", "often"]
        await source.delete_schedule("nightly")
        assert [task.schedule_id for task in await other.get_schedules()] == ["often"]
        await other.shutdown()
        await source.shutdown()
        return await taken(broker, 3)

    assert with_broker(broker, program) == ["nightly", "once", "often"]
