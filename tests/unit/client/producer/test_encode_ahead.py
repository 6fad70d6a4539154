"""Encoding on two threads: in order, without waiting for each other, and gone with the call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from embeddedpulsar._engine.platform import threads
from embeddedpulsar.client.producer.pending_entry import EncodeAhead

PATIENCE_S = 30


@pytest.fixture
def ahead() -> Iterator[EncodeAhead[int]]:
    """Closed at the end."""
    made: EncodeAhead[int] = EncodeAhead()
    yield made
    made.close()


def test_taken_in_order_whoever_encodes(ahead: EncodeAhead[int]):
    """Some on the one thread, some on the other, some only when they are taken."""
    for number in range(40):
        ahead.add(partial(int, number), is_large=number % 5 != 0)
    assert [ahead.pop() for _ in range(40)] == list(range(40))


def test_small_ones_wait_for_whoever_takes_them(ahead: EncodeAhead[int]):
    """No thread is started for them."""
    encoded: list[int] = []

    def encode() -> int:
        encoded.append(threading.get_ident())
        return 7

    for _ in range(3):
        ahead.add(encode, is_large=False)
    assert not encoded
    assert ahead.pop() == 7
    assert encoded == [threading.get_ident()]
    assert not ahead._has_queue


def test_whoever_waits_encodes_what_is_behind(ahead: EncodeAhead[int]):
    """The second thread is at the first entry until the second is done: it can only be done here."""
    begun, is_second_done = threading.Event(), threading.Event()

    def first() -> int:
        begun.set()
        assert is_second_done.wait(PATIENCE_S)
        return 1

    def second() -> int:
        is_second_done.set()
        return threading.get_ident()

    ahead.add(first, is_large=True)
    assert begun.wait(PATIENCE_S)
    ahead.add(second, is_large=True)
    assert ahead.pop() == 1
    assert ahead.pop() == threading.get_ident()


def test_an_interrupt_ends_the_call_at_once(ahead: EncodeAhead[int]):
    """Ctrl-C strikes while the caller encodes an entry whose turn has not come."""
    begun, is_interrupted = threading.Event(), threading.Event()

    def first() -> int:
        begun.set()
        assert is_interrupted.wait(PATIENCE_S)
        return 1

    def second() -> int:
        is_interrupted.set()
        raise KeyboardInterrupt

    ahead.add(first, is_large=True)
    assert begun.wait(PATIENCE_S)
    ahead.add(second, is_large=True)
    with pytest.raises(KeyboardInterrupt):
        ahead.pop()


@pytest.mark.parametrize("is_large", [False, True])
def test_an_error_is_raised_in_its_turn(ahead: EncodeAhead[int], is_large: bool):
    """What came before it is taken first, and what comes behind it can be."""
    for text in ("1", "two", "3"):
        ahead.add(partial(int, text), is_large=is_large)
    assert ahead.pop() == 1
    with pytest.raises(ValueError, match="two"):
        ahead.pop()
    assert ahead.pop() == 3


def test_where_no_thread_is_to_be_had(ahead: EncodeAhead[int], monkeypatch: pytest.MonkeyPatch):
    """The system's limit is reached, or the interpreter ends: one thread does it all."""

    def refuse(target: object, name: str) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threads, "start_daemon", refuse)
    for number in range(3):
        ahead.add(partial(int, number), is_large=True)
    assert [ahead.pop() for _ in range(3)] == [0, 1, 2]


def test_closing_ends_the_thread_and_drops_the_rest():
    """It finishes the entry it is at, and no other."""
    ahead: EncodeAhead[int] = EncodeAhead()
    begun, go_on = threading.Event(), threading.Event()
    encoded: list[int] = []

    def slow() -> int:
        begun.set()
        assert go_on.wait(PATIENCE_S)
        return 0

    ahead.add(slow, is_large=True)
    assert begun.wait(PATIENCE_S)
    ahead.add(lambda: len(encoded.append(1) or encoded), is_large=True)  # type: ignore[func-returns-value]
    ahead.close()
    go_on.set()
    thread = [one for one in threading.enumerate() if one.name == "embeddedpulsar-encode"][-1]
    assert isinstance(thread, threading.Thread)
    thread.join(PATIENCE_S)
    assert not thread.is_alive() and not encoded


def test_an_interrupt_while_the_thread_starts_leaves_none(monkeypatch):
    """Ctrl-C strikes where the starter waits for the thread, which runs by then: `close` ends it."""
    started = []
    start_daemon = threads.start_daemon

    def struck(target: Callable[[], object], name: str) -> None:
        started.append(start_daemon(target, name))
        raise KeyboardInterrupt

    monkeypatch.setattr(threads, "start_daemon", struck)
    ahead: EncodeAhead[int] = EncodeAhead()
    with pytest.raises(KeyboardInterrupt):
        ahead.add(lambda: 1, is_large=True)
    ahead.close()
    started[0].join(5)
    assert not started[0].is_alive()
