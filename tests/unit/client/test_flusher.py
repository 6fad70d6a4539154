"""The thread that stores what producers could not store at once."""

from __future__ import annotations

import threading

import pytest

from embeddedpulsar._engine.platform import threads
from embeddedpulsar.client import client_threads as module
from embeddedpulsar.client.client_threads import ClientLog, Flusher

WAIT_S = 10.0


class Publisher:
    """Fails some times, then stores."""

    def __init__(self, failures: list[BaseException]) -> None:
        self.failures = failures
        self.is_stored = threading.Event()

    def retry(self) -> bool:
        if self.failures:
            raise self.failures.pop(0)
        self.is_stored.set()
        return True


@pytest.fixture
def flusher(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_AFTER_FAILURE_S", 0.05)
    made = Flusher(ClientLog())
    yield made
    made.close()


def test_what_fails_is_tried_again(flusher: Flusher, caplog: pytest.LogCaptureFixture):
    """Whatever it was: it is logged, the others have their turn, and the messages are stored later."""
    failing = Publisher([OSError(5, "planned"), SystemExit("planned too")])
    other = Publisher([])
    flusher.kick(failing)
    flusher.kick(other)
    assert other.is_stored.wait(WAIT_S)
    assert failing.is_stored.wait(WAIT_S)
    assert "planned too" in caplog.text


def test_a_thread_that_cannot_be_started(flusher: Flusher, monkeypatch: pytest.MonkeyPatch, caplog):
    """Too many threads: it is logged, and the next who comes starts it, for all."""

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    one, other = Publisher([]), Publisher([])
    with monkeypatch.context() as patch:
        patch.setattr(threads.system, "start_new_thread", refuse)
        flusher.kick(one)
    assert "can't start" in caplog.text
    flusher.kick(other)
    assert one.is_stored.wait(WAIT_S)
    assert other.is_stored.wait(WAIT_S)
