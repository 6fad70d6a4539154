"""The table of states of a producer, walked."""

from __future__ import annotations

from itertools import product

import pytest

from embeddedpulsar.client.producer.send_queue import (
    PATHS,
    SHUT,
    TRANSITIONS,
    BatchContainer,
    Event,
    SendState,
    State,
)

CLOSING = [Event.SAMPLE, Event.QUEUE, Event.COUNT, Event.HOLD_UP, Event.CLOSE]
LIMIT = 100
MOST = 5000
WORD = 7


def made() -> tuple[SendState, BatchContainer]:
    """The state of a producer whose options allow both hot paths."""
    batch = BatchContainer(10, 10 * LIMIT)
    state = SendState(batch)
    state.alone_most = MOST
    state.to(Event.SETTLE)
    state.verified(WORD)
    return state, batch


def limits(state: SendState, batch: BatchContainer) -> tuple[int, int, int]:
    """What the hot paths compare."""
    return state.alone_max, state.checked, batch.share


def reached() -> dict[State, list[Event]]:
    """The shortest way to every state."""
    ways: dict[State, list[Event]] = {State.OPEN: []}
    queue = [State.OPEN]
    for state in queue:
        for event in Event:
            following = TRANSITIONS[state][event]
            if following not in ways:
                ways[following] = [*ways[state], event]
                queue.append(following)
    return ways


def test_the_table_is_complete():
    """Every state knows every event, has its paths, and is reached from the first."""
    assert set(TRANSITIONS) == set(PATHS) == set(State) == set(reached())
    assert all(set(row) == set(Event) for row in TRANSITIONS.values())


@pytest.mark.parametrize(("start", "event"), list(product(State, Event)))
def test_every_transition_sets_the_limits_of_its_state(start: State, event: Event):
    """Whatever came before: the limits that the hot paths read are those of the new state."""
    state, batch = made()
    for before in reached()[start]:
        state.to(before)
    assert state.now is start
    state.to(event)
    alone, batched = PATHS[state.now]
    assert state.now is TRANSITIONS[start][event]
    assert limits(state, batch) == (
        MOST if alone else SHUT,
        WORD if alone else SHUT,
        LIMIT if batched else SHUT,
    )


@pytest.mark.parametrize(("start", "event"), list(product(State, CLOSING)))
def test_only_settling_opens_a_path(start: State, event: Event):
    """Until then, a state that closes more stays, so the order of two events of two threads is no matter."""
    before, after = PATHS[start], PATHS[TRANSITIONS[start][event]]
    assert all(was or not is_open for was, is_open in zip(before, after, strict=True))
    for other in CLOSING:
        assert TRANSITIONS[TRANSITIONS[start][event]][other] == TRANSITIONS[TRANSITIONS[start][other]][event]


def test_settling_opens_every_state_but_the_last():
    """There is no way back from closed."""
    assert {state: TRANSITIONS[state][Event.SETTLE] for state in State} == {
        state: State.CLOSED if state is State.CLOSED else State.OPEN for state in State
    }


@pytest.mark.parametrize("event", list(Event))
def test_a_closed_producer_stays_closed_in_any_state(event: Event):
    """Another thread may have read the state before, and writes the next one afterwards."""
    state, batch = made()
    state.close()
    state.now = State.OPEN
    state.to(event)
    state.verified(SHUT)
    assert state.is_closed
    assert limits(state, batch) == (SHUT, SHUT, SHUT)


def test_a_verified_word_counts_while_nothing_has_to_be_stored_first():
    """A group with sequence ids is stored by the check that the word calls for."""
    state, _ = made()
    state.to(Event.QUEUE)
    state.verified(WORD + 1)
    assert state.checked == SHUT
    state.to(Event.SETTLE)
    assert state.checked == WORD + 1
    state.verified(WORD + 2)
    assert state.checked == WORD + 2


@pytest.mark.parametrize("path", ["alone", "batch"])
def test_a_narrowed_path_is_closed_in_every_state(path: str):
    """The other one is not."""
    state, batch = made()
    state.narrow(alone=path == "alone", batch=path == "batch")
    state.to(Event.SETTLE)
    assert limits(state, batch) == ((SHUT, WORD, LIMIT) if path == "alone" else (MOST, WORD, SHUT))


def test_a_limit_that_comes_while_a_path_is_opened_closes_it():
    """`limit` is called in any thread: here between the look whether there is a limit and the opening."""

    class Interrupted(SendState):
        word = SHUT

        @property
        def _verified(self) -> int:
            if self.word != SHUT:
                self.limit(True)
            return self.word

        @_verified.setter
        def _verified(self, word: int) -> None:
            self.word = word

    state = Interrupted(BatchContainer(10, 10 * LIMIT))
    state.alone_most = MOST
    state.word = WORD
    state.to(Event.SETTLE)
    assert (state.checked, state.alone_max) == (SHUT, SHUT)
