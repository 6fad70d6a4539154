"""Threads for the work that timers may not wait for."""

from __future__ import annotations

import threading

import pytest

from embeddedpulsar._engine.platform import threads
from embeddedpulsar.client.client_threads import ClientLog, Workers

WAIT_S = 10.0


@pytest.fixture
def workers() -> Workers:
    """Those of a client."""
    return Workers(ClientLog())


def test_close_waits_for_a_job_whose_thread_does_not_run_yet(workers: Workers, monkeypatch):
    """However late it begins."""
    is_closing, done = threading.Event(), []
    start = threads._start_from_inside

    def start_late(thread: threads.Daemon) -> None:
        assert is_closing.wait(WAIT_S)
        start(thread)

    monkeypatch.setattr(threads, "_start_from_inside", start_late)
    workers.start(lambda: done.append(1))
    releasing = threading.Timer(0.05, is_closing.set)
    releasing.start()
    workers.close()
    assert done == [1]
    releasing.join()


def test_close_waits_for_a_job_whose_thread_does_not_count_as_started(workers: Workers, monkeypatch):
    """`threading` gives a thread its id a moment before, and lets nobody join it until then."""
    has_id, is_closing, done = threading.Event(), threading.Event(), []
    set_ident = threading.Thread._set_ident

    def set_it(thread: threading.Thread) -> None:
        set_ident(thread)
        if thread.name == "embeddedpulsar-worker":
            has_id.set()
            assert is_closing.wait(WAIT_S)

    monkeypatch.setattr(threading.Thread, "_set_ident", set_it)
    starting = threading.Thread(target=workers.start, args=(lambda: done.append(1),))
    starting.start()
    assert has_id.wait(WAIT_S)
    releasing = threading.Timer(0.05, is_closing.set)
    releasing.start()
    workers.close()
    assert done == [1]
    for thread in (starting, releasing):
        thread.join()


def test_a_job_that_closes(workers: Workers):
    """It does not wait for itself."""
    done = threads.Event()
    workers.start(lambda: (workers.close(), done.set()))
    assert done.wait(WAIT_S)
    workers.close()


def test_a_thread_that_cannot_start(workers: Workers, monkeypatch):
    """Nothing is waited for."""

    def refuse(thread: threads.Daemon) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threads, "_start", refuse)
    with pytest.raises(RuntimeError, match="can't start"):
        workers.start(lambda: None)
    workers.close()
