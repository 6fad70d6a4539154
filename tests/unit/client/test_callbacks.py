"""The callback thread of a client."""

from __future__ import annotations

import logging
import threading

import pytest

from embeddedpulsar.client.client_threads import CallbackThread, ClientLog


@pytest.fixture
def callbacks():
    """A callback thread that is closed at the end."""
    made = CallbackThread(ClientLog())
    yield made
    made.close()


def test_no_thread_before_the_first_job(callbacks):
    """A client that needs no callbacks has no thread for them."""
    before = threading.active_count()
    assert callbacks.wait_done()
    assert threading.active_count() == before


def test_jobs_run_in_order_on_one_thread(callbacks):
    """Jobs run in the order they were handed in, never in the caller's thread."""
    seen: list[tuple[int, int]] = []
    for i in range(1000):
        callbacks.put(lambda i=i: seen.append((i, threading.get_ident())))
    assert callbacks.wait_done(10)
    assert [i for i, _ in seen] == list(range(1000))
    assert {thread for _, thread in seen} == {seen[0][1]}
    assert seen[0][1] != threading.get_ident()


def test_a_failing_job_is_logged_and_the_next_runs(callbacks, caplog):
    """An exception, SystemExit included, ends nothing."""
    done = threading.Event()

    def leave() -> None:
        raise SystemExit(3)

    with caplog.at_level(logging.ERROR, "embeddedpulsar"):
        callbacks.put(lambda: 1 / 0)
        callbacks.put(leave)
        callbacks.put(done.set)
        assert done.wait(10)
    assert "ZeroDivisionError" in caplog.text
    assert "SystemExit" in caplog.text


def test_waiting_in_the_callback_thread_does_not_wait_for_itself(callbacks):
    """A callback may flush its producer."""
    answers: list[bool] = []
    callbacks.put(lambda: answers.append(callbacks.wait_done()))
    assert callbacks.wait_done(10)
    assert answers == [True]


def test_waiting_ends_after_its_time(callbacks):
    """A callback that hangs does not hang whoever waits with a limit."""
    release = threading.Event()
    callbacks.put(release.wait)
    assert not callbacks.wait_done(0.01)
    release.set()
    assert callbacks.wait_done(10)


def test_closing_runs_what_was_handed_in():
    """close() is the end, after everything before it."""
    callbacks = CallbackThread(ClientLog())
    seen: list[int] = []
    for i in range(100):
        callbacks.put(lambda i=i: seen.append(i))
    callbacks.close()
    assert seen == list(range(100))


def test_many_threads_hand_in(callbacks):
    """No job is lost when several threads hand in and the thread falls asleep between."""
    seen: list[int] = []

    def hand_in() -> None:
        for i in range(500):
            callbacks.put(lambda i=i: seen.append(i))
            if i % 50 == 0:
                callbacks.wait_done(10)

    threads = [threading.Thread(target=hand_in) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert callbacks.wait_done(10)
    assert len(seen) == 2000
