"""What a consumer of Shared or Key_Shared can see of its subscription without the lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from embeddedpulsar.format.control import SubscriptionWord
from embeddedpulsar.managed_ledger.log import Log
from embeddedpulsar.managed_ledger.position import Position
from embeddedpulsar.subscription.control import SubscriptionControl
from embeddedpulsar.subscription.dispatch.waiting_consumers import STRANGER, WaitingConsumers

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
