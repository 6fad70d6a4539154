"""Which consumers of a subscription sleep, and which of them others assigned entries to: two bitmaps."""

from __future__ import annotations

from typing import Final

from embeddedpulsar.format.control import ConsumerSlotWord, SubscriptionWord
from embeddedpulsar.subscription.control import BITMAP_WORDS, SubscriptionControl, slot_of
from embeddedpulsar.subscription.state.entry_states import FIRST_OWNER

STRANGER: Final = FIRST_OWNER + 255
"""Stands for consumers that are not attached any more, and wait until they may join again."""
_BITS: Final = 64
_WAITERS: Final = SubscriptionWord.WAITERS
_ASSIGNED: Final = SubscriptionWord.ASSIGNED
_DUE_WATCH: Final = SubscriptionWord.DUE_WATCH
_NEXT_DUE_MS: Final = SubscriptionWord.NEXT_DUE_MS
_CODE_BITS: Final = 10
_CODE_MASK: Final = (1 << _CODE_BITS) - 1


class WaitingConsumers:
    """The bits in the ctl of one subscription, by the codes of its consumers.

    Role: a consumer sets its bit under the subscription's lock after it has looked once more; a process that
    has entries for it clears the bit under the lock and rings its process afterwards. Callers: of methods
    that change something, the holder of the lock; of those that ask, any thread.
    """

    __slots__ = ("_words",)

    def __init__(self, control: SubscriptionControl) -> None:
        self._words: Final = control.words

    def code_of(self, code: int, consumer_id: int) -> int:
        """The code of a consumer if it is attached, else `STRANGER`."""
        is_attached = self._words[slot_of(code) + ConsumerSlotWord.CONSUMER_ID] == consumer_id
        return code if is_attached else STRANGER

    def is_armed(self, code: int) -> bool:
        """Whether the consumer sleeps and no process has woken it."""
        return self._has(_WAITERS, code)

    @property
    def has_any(self) -> bool:
        """Whether any consumer sleeps."""
        return any(self._words[_WAITERS : _WAITERS + BITMAP_WORDS])

    def arm(self, code: int) -> None:
        """The consumer goes to sleep."""
        self._set(_WAITERS, code)

    def disarm(self, code: int) -> bool:
        """Note that the consumer is to be woken or does not sleep. True if it slept."""
        return self._clear(_WAITERS, code)

    def rank(self, code: int) -> int:
        """How many sleep that have a lower code. By it they take turns looking whether something was lost."""
        number, bit = divmod(code - FIRST_OWNER, _BITS)
        below = sum(self._words[_WAITERS + one].bit_count() for one in range(number))
        return int(below + (self._words[_WAITERS + number] & (1 << bit) - 1).bit_count())

    def note_assigned(self, code: int) -> None:
        """Note that another process assigns entries to the consumer."""
        self._set(_ASSIGNED, code)

    def has_assigned(self, code: int) -> bool:
        """Whether others assigned entries to the consumer since it looked."""
        return self._has(_ASSIGNED, code)

    def clear_assigned(self, code: int) -> None:
        """Note that the consumer looked."""
        self._clear(_ASSIGNED, code)

    def forget(self, code: int) -> None:
        """Clear the bits of a code that another consumer gets."""
        self._clear(_WAITERS, code)
        self._clear(_ASSIGNED, code)
        if self.watcher == code:
            self.watch(0)

    # -- delayed entries ---------------------------------------------------------------------------

    @property
    def watcher(self) -> int:
        """Code of the consumer that wakes when the next delayed entry is due, or sees to it that another
        does; 0 for none."""
        return int(self._words[_DUE_WATCH] & _CODE_MASK)

    def is_watched(self, code: int) -> bool:
        """Whether another consumer waits for the next delayed entry, so that ``code`` need not."""
        due_ms, word = self._words[_NEXT_DUE_MS], self._words[_DUE_WATCH]
        if code and word & _CODE_MASK == code:
            return bool(due_ms and word >> _CODE_BITS == due_ms)
        return bool(not due_ms or (word and word >> _CODE_BITS <= due_ms))

    def watch(self, code: int) -> None:
        """The consumer ``code`` goes to sleep until the next entry is due; 0 for no consumer."""
        due_ms = self._words[_NEXT_DUE_MS]
        self._words[_DUE_WATCH] = due_ms << _CODE_BITS | code if due_ms and code else 0

    # -- bits --------------------------------------------------------------------------------------

    def _has(self, bitmap: int, code: int) -> bool:
        number, bit = divmod(code - FIRST_OWNER, _BITS)
        return bool(self._words[bitmap + number] >> bit & 1)

    def _set(self, bitmap: int, code: int) -> None:
        number, bit = divmod(code - FIRST_OWNER, _BITS)
        self._words[bitmap + number] |= 1 << bit

    def _clear(self, bitmap: int, code: int) -> bool:
        if not self._has(bitmap, code):
            return False
        number, bit = divmod(code - FIRST_OWNER, _BITS)
        self._words[bitmap + number] &= ~(1 << bit)
        return True


assert BITMAP_WORDS * _BITS > STRANGER - FIRST_OWNER
