"""The table of states of a producer, walked."""

from __future__ import annotations

from itertools import product

import pytest

from embeddedpulsar.client.producer.pending_entry import PATHS, SHUT, TRANSITIONS, Event, State
from embeddedpulsar.client.producer.send_queue import SendQueue
from tests.unit.client.fakes import make_producer

CLOSING = [Event.SAMPLE, Event.QUEUE, Event.COUNT, Event.HOLD_UP, Event.CLOSE]
LIMIT = 100
MOST = 5000
WORD = 7


@pytest.fixture
def queue() -> SendQueue:
    """The queue of a producer whose options allow both hot paths."""
    producer, _, _ = make_producer(batching=True, batching_max_messages=10, batching_max_bytes=10 * LIMIT)
    queue = producer._publisher.queue
    assert isinstance(queue, SendQueue)
    queue.alone_limit = MOST
    queue.to(Event.STORED)
    queue.verified(WORD)
    return queue


def limits(queue: SendQueue) -> tuple[int, int, int]:
    """What the hot paths compare."""
    return queue.alone_max, queue.checked, queue.batch.share


def reached() -> dict[State, list[Event]]:
    """The shortest way to every state."""
    ways: dict[State, list[Event]] = {State.OPEN: []}
    ahead = [State.OPEN]
    for state in ahead:
        for event in Event:
            following = TRANSITIONS[state][event]
            if following not in ways:
                ways[following] = [*ways[state], event]
                ahead.append(following)
    return ways


def test_the_table_is_complete():
    """Every state knows every event, has its paths, and is reached from the first."""
    assert set(TRANSITIONS) == set(PATHS) == set(State) == set(reached())
    assert all(set(row) == set(Event) for row in TRANSITIONS.values())


@pytest.mark.parametrize(("start", "event"), list(product(State, Event)))
def test_every_transition_sets_the_limits_of_its_state(queue: SendQueue, start: State, event: Event):
    """Whatever came before: the limits that the hot paths read are those of the new state."""
    for before in reached()[start]:
        queue.to(before)
    assert queue.state is start
    queue.to(event)
    alone, batched = PATHS[queue.state]
    assert queue.state is TRANSITIONS[start][event]
    assert limits(queue) == (
        MOST if alone else SHUT,
        WORD if alone else SHUT,
        LIMIT if batched else SHUT,
    )


@pytest.mark.parametrize(("start", "event"), list(product(State, CLOSING)))
def test_only_what_is_stored_opens_a_path(start: State, event: Event):
    """Until then, a state that closes more stays, so the order of two events of two threads is no matter."""
    before, after = PATHS[start], PATHS[TRANSITIONS[start][event]]
    assert all(was or not is_open for was, is_open in zip(before, after, strict=True))
    for other in CLOSING:
        assert TRANSITIONS[TRANSITIONS[start][event]][other] == TRANSITIONS[TRANSITIONS[start][other]][event]


def test_what_is_stored_opens_every_state_but_the_last():
    """There is no way back from closed."""
    assert {state: TRANSITIONS[state][Event.STORED] for state in State} == {
        state: State.CLOSED if state is State.CLOSED else State.OPEN for state in State
    }


@pytest.mark.parametrize("event", list(Event))
def test_a_closed_producer_stays_closed_in_any_state(queue: SendQueue, event: Event):
    """Another thread may have read the state before, and writes the next one afterwards."""
    queue.close()
    queue.state = State.OPEN
    queue.to(event)
    queue.verified(SHUT)
    assert queue.is_closed
    assert limits(queue) == (SHUT, SHUT, SHUT)


def test_a_verified_word_counts_while_nothing_has_to_be_stored_first(queue: SendQueue):
    """A group with sequence ids is stored by the check that the word calls for."""
    queue.to(Event.QUEUE)
    queue.verified(WORD + 1)
    assert queue.checked == SHUT
    queue.to(Event.STORED)
    assert queue.checked == WORD + 1
    queue.verified(WORD + 2)
    assert queue.checked == WORD + 2


@pytest.mark.parametrize("path", ["alone", "batch"])
def test_a_narrowed_path_is_closed_in_every_state(queue: SendQueue, path: str):
    """The other one is not."""
    queue.narrow(alone=path == "alone", batch=path == "batch")
    queue.to(Event.STORED)
    assert limits(queue) == ((SHUT, WORD, LIMIT) if path == "alone" else (MOST, WORD, SHUT))


def test_a_limit_that_comes_while_a_path_is_opened_closes_it(queue: SendQueue):
    """`limit` is called in any thread: here between the look whether there is a limit and the opening."""
    word = SendQueue.__dict__["_verified"]

    class Interrupted(SendQueue):
        __slots__ = ()

        @property
        def _verified(self) -> int:
            self.limit(True)
            return int(word.__get__(self))

    queue.__class__ = Interrupted
    queue.to(Event.STORED)
    assert (queue.checked, queue.alone_max) == (SHUT, SHUT)
