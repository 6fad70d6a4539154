"""How a consumer of Shared or Key_Shared sleeps among many of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from embeddedpulsar._engine.format.control import ConsumerSlotWord, SubscriptionWord
from embeddedpulsar._engine.log.log import Log
from embeddedpulsar._engine.log.position import Position
from embeddedpulsar._engine.platform import deadline
from embeddedpulsar.exceptions import PulsarException
from embeddedpulsar.subscription.attachment.membership import Membership
from embeddedpulsar.subscription.control import SubscriptionControl, slot_of
from embeddedpulsar.subscription.dispatch.wakeups import STRANGER, WaitingConsumers
from embeddedpulsar.subscription.shared_state import SharedState
from embeddedpulsar.subscription.state.assigned_entries import AssignedEntries
from embeddedpulsar.subscription.state.state_machine import SubscriptionState

_GRANTED: Final = ConsumerSlotWord.GRANTED
_LEAVE_S: Final = 2e-3
"""How long a consumer that waits no more waits for the lock, to say so."""
_SUSPICION_S: Final = 0.02
_FIRST_BACK_STOP_S: Final = 0.5
_LONGEST_BACK_STOP_S: Final = 10.0
_GRACE_MS: Final = 50
_MOST_GRACE_MS: Final = 2000
_NEXT_DUE_MS: Final = SubscriptionWord.NEXT_DUE_MS
_WAITING: Final = SubscriptionWord.WAITING
_READ_LEDGER: Final = SubscriptionWord.READ_LEDGER
_READ_ENTRY: Final = SubscriptionWord.READ_ENTRY
_CLAIMS: Final = SubscriptionWord.CLAIMS
_JOURNAL_END: Final = 0xFFFFFFFF


class WorkHint:
    """Tells whether there may be something for a consumer, from words that others publish.

    Role: keeps consumers that have nothing to do out of the subscription's lock and of its journal, however
    many there are. A moment behind the truth, and then on the side of looking. Callers: the consumer's
    threads.
    """

    def __init__(
        self,
        log: Log,
        control: SubscriptionControl,
        waiting: WaitingConsumers,
        cutoff_ms: Callable[[], int],
    ) -> None:
        self._log: Final = log
        self._control: Final = control
        self._words: Final = control.words
        self._waiting: Final = waiting
        self._cutoff_ms: Final = cutoff_ms
        self._tail: Any = None
        self._last: Position | None = None
        self._suspect: tuple[int, int, int] | None = None
        self._futile: Any = None

    def has_any(self, code: int, consumer_id: int) -> bool:
        """Whether there may be entries, so that taking the lock to look is worth its cost."""
        words = self._words
        return bool(
            words[_WAITING]
            or self._waiting.has_assigned(code)
            or not self._control.is_published
            or self._is_due()
            or self._has_unread()
            or self._is_lost(code, consumer_id)
        )

    def _is_due(self) -> bool:
        due_ms = self._words[_NEXT_DUE_MS]
        return bool(due_ms and due_ms <= self._cutoff_ms())

    def _has_unread(self) -> bool:
        tail = self._log.tail
        if tail != self._tail:
            self._last = self._log.last_position()
            self._tail = tail
        return self._last is not None and self._last >= self._control.read_position

    def _is_lost(self, code: int, consumer_id: int) -> bool:
        """Whether the consumer was detached, or its subscription deleted."""
        is_deleted = not self._words[SubscriptionWord.JOURNAL] & _JOURNAL_END
        return is_deleted or self._waiting.code_of(code, consumer_id) == STRANGER

    # -- the back-stop -----------------------------------------------------------------------------

    @property
    def is_suspicious(self) -> bool:
        """Whether entries lay there at the last `has_lain`: if they still do soon after, a wake-up
        was lost."""
        return self._suspect is not None

    def note_futile(self) -> None:
        """Note that the consumer looked and could have nothing: it need not look again before a change."""
        self._futile = self._fact(), self._log.tail
        self._suspect = None

    def has_lain(self, code: int, consumer_id: int) -> bool:
        """Whether a wake-up was lost: a consumer was woken for these entries, or should have been, and does
        not come for them. True only if they lay there at the last call already."""
        if self._waiting.has_assigned(code) or self._is_due() or self._is_lost(code, consumer_id):
            return True
        fact, before = self._fact(), self._suspect
        is_something = self._words[_WAITING] or not self._control.is_published or self._has_unread()
        self._suspect = fact if is_something and (fact, self._log.tail) != self._futile else None
        return self._suspect is not None and self._suspect == before

    def _fact(self) -> tuple[int, int, int]:
        words = self._words
        return words[_READ_LEDGER], words[_READ_ENTRY], words[_CLAIMS]


class SharedSleep:
    """One consumer's part in the waiting of its subscription (decision 0115).

    Role: of all consumers that sleep, one is woken for entries that any of them may have. So each of them
    notes under the lock that it sleeps, and later that it does not; one that was woken and leaves without
    having looked wakes another. A killed or stopped process cannot do so: the others look in turns
    whether entries lie there, the first of them soon, the hundredth seldom. Callers: the threads of
    the consumer.

    Attributes:
        room: messages the consumer is ready for when it goes to sleep.
        is_apart: it consumes several topics, and does not leave one because it was served by another: it is
            woken beside the one that is chosen, and waits for delayed entries by itself.
    """

    def __init__(self, log: Log, shared: SharedState, membership: Membership, is_apart: bool) -> None:
        self.is_apart: Final = is_apart
        self._shared: Final = shared
        self._words: Final = shared.control.words
        self._waiting: Final = shared.wakeups.waiting
        self._work_hint: Final = WorkHint(log, shared.control, self._waiting, membership.cutoff_ms)
        self._has_announced = False
        self._was_armed = False  # when it last looked: a wake-up since was not for what it got then
        self._own_code = self._consumer_id = 0
        self.room = 1

    def is_of(self, code: int, consumer_id: int) -> None:
        """Set the consumer that sleeps; it gets another id when it joins again."""
        self._own_code, self._consumer_id = code, consumer_id

    @property
    def _code(self) -> int:
        """`STRANGER` once the consumer was taken for dead: then its own code may be another's."""
        return self._waiting.code_of(self._own_code, self._consumer_id)

    def begin_look(self, room: int) -> bool:
        """Note that the consumer looks for entries; False if it need not take the lock for
        that."""
        self.room = room
        self._was_armed = self._waiting.is_armed(self._code)
        return self._work_hint.has_any(self._own_code, self._consumer_id)

    def assigned(self) -> AssignedEntries | None:
        return self._shared.state.dispatch.assigned_by_consumer.get(self._consumer_id)

    # -- falling asleep and leaving ----------------------------------------------------------------

    def is_announced(self) -> bool:
        """Whether its sleep is announced to others, and a consumer waits for the next delayed entry."""
        code = self._code
        is_watched = self.is_apart or code == STRANGER or self._waiting.is_watched(code)
        return is_watched and self._waiting.is_armed(code)

    def can_announce(self) -> bool:
        """Whether no entries were assigned to it since it looked. Under the lock."""
        return not self._waiting.has_assigned(self._code)

    def announced(self) -> None:
        """Note under the lock that it sleeps until it is rung for entries that it can have."""
        code, self._has_announced, self._was_armed = self._code, True, True
        if code != STRANGER:
            assigned = self.assigned()
            if assigned is not None:
                self._words[slot_of(code) + _GRANTED] = assigned.messages + self.room
            if not self.is_apart and not self._waiting.is_watched(code):
                self._waiting.watch(code)
        self._work_hint.note_futile()

    def leave(self, is_served: bool) -> None:
        has_announced, self._has_announced = self._has_announced, False
        waiting, shared = self._waiting, self._shared
        try:
            code = self._code
            if not has_announced or code == STRANGER:
                return
            is_watcher, is_armed = waiting.watcher == code, waiting.is_armed(code)
            if not is_watcher:
                if not is_armed and is_served and not self._was_armed:
                    return
                if is_armed and deadline.within(_LEAVE_S, shared.in_lock, lambda: waiting.disarm(self._code)):
                    return
            deadline.within(_LEAVE_S, shared.transact, lambda state: self._withdraw(state, is_served))
        except (PulsarException, ValueError):
            return  # closed, or its lock is held for long: the back-stop of the others finds what is left

    def _withdraw(self, state: SubscriptionState, is_served: bool) -> None:
        wakeups, code = self._shared.wakeups, self._code
        if code == STRANGER:
            return
        if self._waiting.watcher == code:
            self._waiting.watch(0)
            if not self._waiting.is_watched(0):
                wakeups.hand_watch_on(state, self._consumer_id)
        was_taken = not self._waiting.disarm(code)
        if was_taken and (self._was_armed or not is_served):
            wakeups.one(state, self._consumer_id)

    # -- the back-stop -----------------------------------------------------------------------------

    def has_news(self) -> bool:
        """Whether a wake-up was lost. Other events do not count: other consumers handle them. Lock-free."""
        try:
            return self._work_hint.has_lain(self._own_code, self._consumer_id)
        except ValueError:
            return True  # closed

    def back_stop(self, seconds: float) -> float:
        """How long it sleeps at most: longer, the more consumers look before this one."""
        if self._work_hint.is_suspicious:
            return _SUSPICION_S
        try:
            rank = self._waiting.rank(self._code)
        except ValueError:
            return seconds
        # However long this one has been idle: entries of a consumer that was rung and stopped wait for it.
        seconds = min(seconds, _FIRST_BACK_STOP_S)
        return min(seconds * (1 + rank), _LONGEST_BACK_STOP_S)

    def due_ms(self) -> int:
        """When the next delayed entry is due, and a little later if another consumer waits for it; 0 for
        none."""
        try:
            due_ms = int(self._words[SubscriptionWord.NEXT_DUE_MS])
            if not due_ms or self.is_apart or self._waiting.watcher in (0, self._code):
                return due_ms
            return due_ms + min(_GRACE_MS * (1 + self._waiting.rank(self._code)), _MOST_GRACE_MS)
        except ValueError:
            return 0
