"""Chains of C calls."""

from __future__ import annotations

import threading
from itertools import repeat

import pytest

from embeddedpulsar._engine.platform import file_lock


def test_steps_run_in_order_every_time():
    """A chain can be called any number of times."""
    done: list[int] = []
    chain = file_lock.in_order(map(done.append, repeat(1)), map(done.append, repeat(2)))
    chain()
    chain()
    assert done == [1, 2, 1, 2]


def test_a_failing_step_ends_the_chain_once():
    """The exception comes out, later steps do not run, and the next call starts afresh."""
    stack: list[int] = []
    done: list[int] = []
    chain = file_lock.in_order(stack.pop, map(done.append, repeat(1)))
    with pytest.raises(IndexError):
        chain()
    assert done == []
    stack.append(5)
    chain()
    assert done == [1]


def test_choice_by_a_live_value():
    """The selector is asked at each call."""
    items: list[int] = []
    chain = file_lock.choose([repeat(False), file_lock.results(items.pop)], items.__len__)
    assert chain() is False
    items.append(7)
    assert chain() == 7
    assert chain() is False


@pytest.mark.parametrize("count_of", [file_lock.count_of, file_lock._CountByProbing])
def test_count_of_a_lock(count_of):
    """The holds of this thread are counted, those of others are not."""
    lock = threading.RLock()
    count = count_of(lock)
    assert count() == 0
    with lock:
        with lock:
            assert count() == 2
        seen: list[int] = []
        thread = threading.Thread(target=lambda: seen.append(count()))
        thread.start()
        thread.join()
        assert seen == [0]
        assert count() == 1
    assert count() == 0


def test_chains_are_shared_between_threads():
    """Concurrent calls lose nothing."""
    done: list[int] = []
    chain = file_lock.in_order(map(done.append, repeat(1)), map(done.append, repeat(1)))
    threads = [threading.Thread(target=lambda: [chain() for _ in range(1000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 8000
