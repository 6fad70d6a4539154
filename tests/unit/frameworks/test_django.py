"""The task back end of Django, and its worker."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("django", reason="the extra is not installed")
try:
    import embeddedpulsar.frameworks.django as ours
except ImportError as error:
    pytest.skip(str(error), allow_module_level=True)

from django.core.exceptions import ImproperlyConfigured
from django.db import connection, transaction
from django.test.utils import override_settings

from embeddedpulsar.frameworks.django import TaskBackend, TaskResultDoesNotExist, Worker
from embeddedpulsar.testing.trial_store import assert_clean
from tests.unit.frameworks import django_tasks_of_a_shop as shop


def backend_of(options: dict[str, Any], **params: Any) -> Iterator[TaskBackend]:
    """The back end of the settings."""
    setting = {"BACKEND": "embeddedpulsar.frameworks.django.TaskBackend", "OPTIONS": options} | params
    with override_settings(TASKS={"default": setting}):
        backend = shop.show.get_backend()
        assert isinstance(backend, TaskBackend)
        yield backend
        backend.close()


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[TaskBackend]:
    """A back end whose store is whole in the end."""
    shop.ran.clear()
    yield from backend_of({"path": tmp_path / "store"}, QUEUES=[])
    assert_clean(tmp_path / "store")


def test_a_task_is_run_and_its_result_comes_back(backend: TaskBackend):
    """A result says what became of a task, in every process."""
    result = shop.show.enqueue("soup")
    assert result.status == "READY" and not result.is_finished
    assert backend.get_result(result.id).enqueued_at == result.enqueued_at
    assert Worker(backend).run(is_burst=True) == 1
    result.refresh()
    assert (result.status, result.return_value, result.attempts) == ("SUCCESSFUL", "SOUP", 1)
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert shop.show.get_result(result.id).return_value == "SOUP"
    with pytest.raises(TaskResultDoesNotExist, match="there is no result 'nothing'"):
        backend.get_result("nothing")


def test_tasks_of_all_kinds(backend: TaskBackend):
    """Coroutines, tasks with a context, and from a coroutine."""

    async def enqueue() -> list[Any]:
        return [await shop.wait.aenqueue("tea"), await shop.attempts.aenqueue()]

    results = asyncio.run(enqueue())
    assert Worker(backend).run(is_burst=True) == 2
    assert [backend.get_result(result.id).return_value for result in results] == ["tea", 1]


def test_a_task_that_fails(backend: TaskBackend):
    """The error is in the result, also that of a task that ends the interpreter, and the worker goes on."""
    results = [shop.fail.enqueue(), shop.leave.enqueue(), shop.show.enqueue("soup")]
    assert Worker(backend).run(is_burst=True) == 3
    failed, left, shown = [backend.get_result(result.id) for result in results]
    assert failed.status == "FAILED" and failed.errors[0].exception_class is KeyError
    assert "raise KeyError" in failed.errors[0].traceback
    assert left.errors[0].exception_class is SystemExit
    assert shown.return_value == "SOUP"


def test_a_task_that_is_gone(backend: TaskBackend, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    """A worker without the function has the task fail, and says so."""
    result = shop.show.enqueue("soup")
    with monkeypatch.context() as patch:
        patch.delattr(shop, "show")
        assert Worker(backend).run(is_burst=True) == 1
    assert "cannot be run" in capsys.readouterr().err
    result.refresh()
    assert result.status == "FAILED" and result.errors[0].exception_class is ImportError


def test_priorities(backend: TaskBackend):
    """All of Django's priorities are kept apart, highest first, each in its order."""
    for priority in (0, -100, 7, 100, 0, 8):
        shop.show.using(priority=priority).enqueue(f"{priority}")
    Worker(backend).run(is_burst=True)
    assert shop.ran == ["100", "8", "7", "0", "0", "-100"]


def test_a_priority_that_is_new(backend: TaskBackend):
    """A worker that runs finds it within a second."""
    shop.show.enqueue("first")
    worker = Worker(backend)
    thread = threading.Thread(target=worker.run)
    thread.start()
    end = time.monotonic() + 20
    while shop.ran != ["first"] and time.monotonic() < end:
        os.sched_yield()
    shop.show.using(priority=5).enqueue("second")
    while len(shop.ran) < 2 and time.monotonic() < end:
        os.sched_yield()
    worker.stop()
    thread.join(20)
    assert shop.ran == ["first", "second"]


def test_run_after(backend: TaskBackend):
    """A task that is not due is in the store, and no worker waits for it."""
    later = shop.show.using(run_after=datetime.now(UTC) + timedelta(hours=1)).enqueue("later")
    shop.show.using(run_after=datetime.now(UTC) - timedelta(hours=1)).enqueue("due")
    assert Worker(backend).run(is_burst=True) == 1
    assert shop.ran == ["due"]
    assert backend.get_result(later.id).status == "READY"


def test_queues(backend: TaskBackend):
    """A worker serves all queues in turn, or those that it is given."""
    for queue in ("mails", "mails", "default"):
        shop.show.using(queue_name=queue).enqueue(queue)
    assert Worker(backend, ["mails"]).run(max_tasks=1) == 1
    assert Worker(backend, ["default", "mails"]).run(is_burst=True) == 2
    assert shop.ran == ["mails", "default", "mails"]


def test_enqueue_on_commit(tmp_path: Path):
    """Nothing is sent by a transaction that is rolled back."""
    shop.ran.clear()
    for backend in backend_of({"path": tmp_path / "store", "enqueue_on_commit": True}):
        with transaction.atomic():
            result = shop.show.enqueue("kept")
            assert result.enqueued_at is None
            with pytest.raises(TaskResultDoesNotExist):
                backend.get_result(result.id)
        with transaction.atomic():
            shop.show.enqueue("dropped")
            transaction.set_rollback(True)
        assert Worker(backend).run(is_burst=True) == 1
        assert shop.ran == ["kept"]
        result.refresh()
        assert result.return_value == "KEPT"
    connection.close()
    assert_clean(tmp_path / "store")


@pytest.mark.parametrize(
    ("options", "words"),
    [({}, "no option 'path'"), ({"path": "./data", "colour": "red"}, r"unknown options \['colour'\]")],
)
def test_options_that_are_refused(options: dict[str, Any], words: str):
    """An error says what is wrong."""
    with pytest.raises(ImproperlyConfigured, match=words):
        TaskBackend("default", {"OPTIONS": options})


def killed_worker(backend: TaskBackend) -> None:
    """Run a worker in a process that its task kills."""
    child = os.fork()
    if not child:
        try:
            Worker(backend).run(max_tasks=1)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -9


@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_task_that_kills_its_workers(tmp_path: Path):
    """Others try it, so often and no more; what a worker had finished is not run again."""
    for backend in backend_of({"path": tmp_path / "store", "max_attempts": 2}):
        result = shop.die.enqueue()
        killed_worker(backend)
        assert backend.get_result(result.id).status == "RUNNING"
        killed_worker(backend)
        assert Worker(backend).run(is_burst=True) == 1
        result.refresh()
        assert (result.status, result.attempts) == ("FAILED", 2)
        assert result.errors[0].exception_class is ours.WorkerDiedError
    with backend.jobs.admin:
        pass  # who opens the store clears away what the killed ones left
    backend.close()
    assert_clean(tmp_path / "store")
