"""The result back end of Celery: results, groups and chords."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("celery", reason="the extra is not installed")

from celery import Celery, chord, group, signals
from celery.contrib.testing.worker import start_worker
from celery.exceptions import TimeoutError
from kombu import pools

from embeddedpulsar import Admin
from embeddedpulsar.frameworks.celery import ResultBackend
from embeddedpulsar.testing.trial_store import assert_clean


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Celery]:
    """An application whose store is whole in the end, and which has no thread then."""
    threads = set(threading.enumerate())
    url = f"embeddedpulsar://{tmp_path / 'store'}"
    app = Celery("shop", broker=url, backend=url, set_as_current=False)
    yield app
    app.backend.close()
    app.pool.force_close_all()
    pools.reset()
    app.close()
    assert not {thread for thread in set(threading.enumerate()) - threads if not thread.daemon}
    assert_clean(tmp_path / "store")


def other(app: Celery) -> ResultBackend:
    """The back end of another process."""
    return ResultBackend(app=app, url=app.conf.result_backend)


def test_a_result_is_kept_for_all_processes(app: Celery):
    """State, value and error come back, until they are forgotten."""
    backend, reader = app.backend, other(app)
    assert isinstance(backend, ResultBackend)
    backend.store_result("1", {"total": 42}, "SUCCESS")
    backend.store_result("2", KeyError("soup"), "FAILURE")
    backend.store_result("3", {"done": 7}, "PROGRESS")
    assert (reader.get_state("1"), reader.get_result("1")) == ("SUCCESS", {"total": 42})
    assert isinstance(reader.get_result("2"), KeyError)
    assert reader.get_task_meta("3")["result"] == {"done": 7}
    assert reader.get_state("4") == "PENDING"
    backend.forget("1")
    reader.reload_task_result("1")
    assert reader.get_state("1") == "PENDING" and reader.task_result_exists("2")
    reader.close()


def test_a_success_stays(app: Celery):
    """A task whose worker was killed is run again; what it says then does not replace the result."""
    backend, reader = app.backend, other(app)
    backend.store_result("1", 42, "SUCCESS")
    backend.store_result("1", None, "STARTED")
    backend.store_result("1", KeyError("soup"), "FAILURE")
    assert reader.get_task_meta("1")["result"] == 42
    reader.close()


def test_a_thread_that_waits_is_woken(app: Celery):
    """Results of other processes end a wait; one that does not come ends it by its time limit."""
    writer = other(app)
    results = [app.AsyncResult(name) for name in ("1", "2")]
    answers: list[Any] = []
    waiting = [
        threading.Thread(target=lambda one=one: answers.append(one.get(timeout=20))) for one in results
    ]
    for thread in waiting:
        thread.start()
    writer.store_result("2", "b", "SUCCESS")
    writer.store_result("0", "c", "SUCCESS")
    writer.store_result("1", "a", "SUCCESS")
    for thread in waiting:
        thread.join(30)
    assert sorted(answers) == ["a", "b"]
    with pytest.raises(TimeoutError):
        app.AsyncResult("3").get(timeout=0.01)
    writer.close()


def test_results_expire(app: Celery, monkeypatch: pytest.MonkeyPatch):
    """After ``result_expires``, and the retention of their topic says so."""
    app.conf.result_expires = 3600
    backend = app.backend
    backend.store_result("1", 42, "SUCCESS")
    assert backend.get_state("1") == "SUCCESS"
    now_ms = backend._table._now_ms()
    monkeypatch.setattr(type(backend._table), "_now_ms", lambda self: now_ms + 3_700_000)
    backend.reload_task_result("1")
    assert backend._get_task_meta_for("1")["status"] == "PENDING"
    topics = backend._jobs.admin.topics()
    assert topics.get_retention("public/celery/results").time_minutes == 60


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("embeddedpulsar://", "names no directory"),
        ("embeddedpulsar:///srv/queue?colour=red", "unknown options of an embeddedpulsar URL: colour"),
    ],
)
def test_urls_that_are_refused(url: str, words: str):
    """An error says what is wrong."""
    with pytest.raises(ValueError, match=words):
        ResultBackend(app=Celery("shop", set_as_current=False), url=url)


def test_a_namespace_of_its_own(app: Celery, tmp_path: Path):
    """Two applications may share a store."""
    backend = ResultBackend(app=app, url=f"{app.conf.result_backend}?namespace=acme/jobs&durability=flush")
    backend.store_result("1", 42, "SUCCESS")
    backend.close()
    with Admin(tmp_path / "store") as admin:
        assert admin.topics().get_list("acme/jobs") == ["persistent://acme/jobs/results"]


def test_a_back_end_is_pickled(app: Celery):
    """As its URL."""
    app.set_current()
    copy = pickle.loads(pickle.dumps(app.backend))
    app.backend.store_result("1", 42, "SUCCESS")
    assert copy.get_result("1") == 42
    copy.close()


def test_a_fork_reads_anew(app: Celery):
    """A child has the results of its parent, and what it stores is seen there."""
    app.backend.store_result("1", 42, "SUCCESS")
    assert app.AsyncResult("1").get(timeout=10) == 42
    child = os.fork()
    if not child:
        status = 1
        try:
            app.backend.result_consumer._after_fork()
            if app.AsyncResult("1").get(timeout=10) == 42:
                app.backend.store_result("2", 43, "SUCCESS")
                app.backend.close()
                status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert app.AsyncResult("2").get(timeout=10) == 43


def request_of(app: Celery, body: Any, number: int) -> Any:
    """What a worker passes on with the result of a task of a chord."""
    return SimpleNamespace(
        id=f"part-{number}", group="chord-1", group_index=number, chord=body, errbacks=None, task="add"
    )


def test_parts_of_a_chord_in_any_order(app: Celery):
    """The last one sends the body with the results in the order of the header; repeated ones count once."""
    sent: list[Any] = []

    @app.task(name="total", shared=False)
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    body = total.s()
    total.delay = lambda numbers: sent.append(numbers)
    body.delay = total.delay
    first, second = app.backend, other(app)
    first.on_chord_part_return(request_of(app, body, 2), "SUCCESS", 12)
    second.on_chord_part_return(request_of(app, body, 0), "SUCCESS", 10)
    first.on_chord_part_return(request_of(app, body, 2), "SUCCESS", 12)
    first.set_chord_size("chord-1", 2)
    first.add_to_chord("chord-1", None)
    assert sent == []
    second.on_chord_part_return(request_of(app, body, 1), "SUCCESS", 11)
    assert sent == [[10, 11, 12]]
    first.on_chord_part_return(request_of(app, body, 1), "SUCCESS", 11)
    assert sent == [[10, 11, 12]]
    second.close()


def test_a_worker_that_died_before_the_body_was_sent(app: Celery):
    """The last task of a chord is run again, and sends it."""
    sent: list[Any] = []

    @app.task(name="total", shared=False)
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    class Death(BaseException):
        """Instead of a kill."""

    body = total.s()

    def die(numbers: list[int]) -> None:
        raise Death

    body.delay = die
    app.backend.set_chord_size("chord-1", 2)
    app.backend.on_chord_part_return(request_of(app, body, 0), "SUCCESS", 10)
    with pytest.raises(Death):
        app.backend.on_chord_part_return(request_of(app, body, 1), "SUCCESS", 11)
    body.delay = sent.append
    again = other(app)
    again.on_chord_part_return(request_of(app, body, 1), "SUCCESS", 11)
    assert sent == [[10, 11]]
    assert again._jobs.admin.topics().get_list("public/celery-chords") == []
    again.close()


def test_groups_and_chords_of_a_worker(app: Celery, monkeypatch: pytest.MonkeyPatch):
    """As a worker of Celery runs them: chains, groups, chords with groups in them, and with errors."""

    @app.task(name="add", shared=False)
    def add(a: int, b: int) -> int:
        return a + b

    @app.task(name="total", shared=False)
    def total(numbers: list[Any]) -> int:
        return sum(sum(one) if isinstance(one, list) else one for one in numbers)

    @app.task(name="fail", shared=False)
    def fail() -> None:
        raise KeyError("soup")

    monkeypatch.setattr(signals.setup_logging, "receivers", [])
    signals.setup_logging.connect(lambda **_: None, weak=False)  # so it leaves the levels of loggers alone
    with start_worker(app, perform_ping_check=False, shutdown_timeout=30):
        assert (add.s(1, 2) | add.s(3)).delay().get(timeout=30) == 6
        assert sorted(group(add.s(n, n) for n in range(20))().get(timeout=30)) == list(range(0, 40, 2))
        assert chord([add.s(n, n) for n in range(20)], total.s())().get(timeout=30) == 380
        nested = chord([group(add.s(1, 1), add.s(2, 2)), add.s(3, 3)], total.s())
        assert nested().get(timeout=30) == 12
        with pytest.raises(KeyError):
            chord([add.s(1, 1), fail.s()], total.s())().get(timeout=30)
    assert app.backend._jobs.admin.topics().get_list("public/celery-chords") == []
