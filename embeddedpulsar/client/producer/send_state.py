"""The hot paths of a producer: one state, which opens and closes them, and its transitions."""

from __future__ import annotations

from enum import IntEnum, auto
from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from embeddedpulsar.client.producer.batch_container import BatchContainer

SHUT: Final = -1
"""In place of a limit, which no payload is within, or of a journal word, which no topic has."""


class State(IntEnum):
    """What the next message of a producer has to observe."""

    OPEN = auto()
    """Nothing."""
    SAMPLED = auto()
    """The time of the next messages that are sent one by one is measured."""
    QUEUED = auto()
    """Messages or encoded entries are queued, which must be stored first."""
    COUNTING = auto()
    """The batch has large messages, so the bytes of each further one count."""
    HELD_UP = auto()
    """The topic is locked, or belongs to the parent of a forked child: everything is queued."""
    CLOSED = auto()
    """The producer is closed."""


class Event(IntEnum):
    """What changes the state."""

    SAMPLE = auto()
    QUEUE = auto()
    COUNT = auto()
    HOLD_UP = auto()
    SETTLE = auto()
    """Nothing is queued that must be stored first. The caller looks again afterwards."""
    CLOSE = auto()


def _row(sample: State, queue: State, count: State, hold_up: State, settle: State) -> dict[Event, State]:
    return dict(zip(Event, (sample, queue, count, hold_up, settle, State.CLOSED), strict=True))


_S: Final = State
TRANSITIONS: Final = {
    #                    SAMPLE       QUEUE        COUNT        HOLD_UP     SETTLE
    _S.OPEN: _row(_S.SAMPLED, _S.QUEUED, _S.COUNTING, _S.HELD_UP, _S.OPEN),
    _S.SAMPLED: _row(_S.SAMPLED, _S.QUEUED, _S.COUNTING, _S.HELD_UP, _S.OPEN),
    _S.QUEUED: _row(_S.QUEUED, _S.QUEUED, _S.COUNTING, _S.HELD_UP, _S.OPEN),
    _S.COUNTING: _row(_S.COUNTING, _S.COUNTING, _S.COUNTING, _S.HELD_UP, _S.OPEN),
    _S.HELD_UP: _row(_S.HELD_UP, _S.HELD_UP, _S.HELD_UP, _S.HELD_UP, _S.OPEN),
    _S.CLOSED: _row(_S.CLOSED, _S.CLOSED, _S.CLOSED, _S.CLOSED, _S.CLOSED),
}
"""The state after each event. A state that closes more stays until `Event.SETTLE`."""

PATHS: Final = {
    _S.OPEN: (True, True),
    _S.SAMPLED: (False, True),
    _S.QUEUED: (False, True),
    _S.COUNTING: (False, False),
    _S.HELD_UP: (False, False),
    _S.CLOSED: (False, False),
}
"""Whether a message may be appended at once, and whether it may join the batch without the lock."""


class SendState:
    """The state of one producer, in the form in which the hot paths read it.

    Role: a hot path compares one limit, or one word, and finds it `SHUT` if the message has to take the slow
    path. So a state costs the hot paths no test of its own. It is the guard of their appends, too
    (`AppendGuard`).

    Invariants: any thread may call `to`, without a lock. Two threads may overwrite the state of each other;
    this can leave a path closed until the next `SETTLE`, which is harmless. It cannot leave a path open: the
    thread that queues a message appends it before its event, and the thread that settles looks at the queue
    after its event. A closed producer has no limits, so every state keeps its paths closed.

    Attributes:
        now: the state.
        alone_max: largest payload that may be appended at once.
        alone_most: its value while the path is open; `SHUT` if the options need the slow path.
        checked: the journal word of the topic with which a message may be appended at once.
        check_connected: called under the topic's lock if the journal word is another one.
        is_closed: whether the producer is closed; never reset.
    """

    __slots__ = (
        "_batch",
        "_is_limited",
        "_verified",
        "alone_max",
        "alone_most",
        "check_connected",
        "checked",
        "is_closed",
        "now",
    )

    check_connected: Callable[[], None]

    def __init__(self, batch: BatchContainer) -> None:
        self._batch = batch
        self._verified = self.checked = self.alone_max = self.alone_most = SHUT
        self.is_closed = self._is_limited = False
        self.now = State.OPEN
        batch.on_large = partial(self.to, Event.COUNT)

    def to(self, event: Event) -> None:
        now = TRANSITIONS[self.now][event]
        alone, batch = PATHS[now]
        alone = alone and not self._is_limited
        self.checked = self._verified if alone else SHUT
        self.alone_max = self.alone_most if alone else SHUT
        self._batch.share = self._batch.limit if batch else SHUT
        self.now = now
        # Last, behind the opening: `limit`, in another thread, notes the limit before it closes the path.
        if self._is_limited:
            self.checked = self.alone_max = SHUT

    def verified(self, word: int) -> None:
        """Note the journal word with which this producer was found connected. Under the producer's lock."""
        self._verified = word
        if PATHS[self.now][0]:
            self.checked = word
            if self._is_limited:  # behind the opening, as in `to`
                self.checked = SHUT

    def limit(self, is_limited: bool) -> None:
        """Keep messages from being appended at once while the topic has a publish rate. Any thread.

        When the topic has none any more, the path opens with the next `SETTLE`."""
        self._is_limited = is_limited
        if is_limited:
            self.checked = self.alone_max = SHUT

    def narrow(self, *, alone: bool = True, batch: bool = True) -> None:
        """Close paths for ever, because their messages need further checks."""
        if alone:
            self.alone_max = self.alone_most = SHUT
        if batch:
            self._batch.share = self._batch.limit = SHUT

    def close(self) -> None:
        """Close all paths for ever. Under the producer's lock."""
        self.is_closed = True
        self._verified = SHUT
        self.narrow()
        self.to(Event.CLOSE)
