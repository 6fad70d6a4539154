"""A producer that is dropped without being closed: the next call that opens a topic finds it closed."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from embeddedpulsar import Client


def test_a_close_that_another_thread_has_begun(client: Client):
    """The next opening waits for it: otherwise the name of the producer would still be taken."""
    core: Any = client._core
    begun, may_end = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    def close() -> None:
        threads.append(threading.current_thread())
        if threading.current_thread() is not threading.main_thread():
            begun.set()
            assert may_end.wait(60)

    core.abandon(close)
    assert begun.wait(60)
    try:
        client.create_producer("topic").close()
        assert threading.main_thread() in threads
    finally:
        may_end.set()
    assert not core.abandoned


def test_a_close_that_opens_a_topic(client: Client):
    """It is not begun again from inside."""
    core: Any = client._core
    calls: list[int] = []

    def close() -> None:
        calls.append(len(calls))
        core.use_topic("other").release()

    core.abandoned.append(close)
    client.create_producer("topic").close()
    assert calls == [0]
    assert not core.abandoned


def test_a_close_that_fails_is_tried_again(client: Client):
    """The caller gets the error, and the next opening closes the producer."""
    core: Any = client._core
    calls: list[int] = []

    def close() -> None:
        calls.append(len(calls))
        if len(calls) == 1:
            raise OSError("the disk is full")

    core.abandoned.append(close)
    with pytest.raises(OSError, match="the disk is full"):
        core.use_topic("topic").release()
    assert list(core.abandoned) == [close]
    core.use_topic("topic").release()
    assert calls == [0, 1]
    assert not core.abandoned
