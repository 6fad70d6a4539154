"""Which of several consumers sees to what is appended while messages come fast."""

from __future__ import annotations

from collections.abc import Callable

from embeddedpulsar._engine.format.control import CONSUMER_SLOT_SIZE, ConsumerSlotWord, SubscriptionWord
from embeddedpulsar._engine.subscription.state.entry_states import FIRST_OWNER
from embeddedpulsar._engine.subscription.subscription_files import SubscriptionControl, slot_of
from embeddedpulsar.records import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Final

    from embeddedpulsar._engine.subscription.dispatch.look_ahead import LogEnd

STAND_BY_S: Final = 8e-3
"""How long a consumer sleeps while another one sees to what is appended."""
WINDOW_S: Final = 3e-3
"""Time over which the rate is measured, at least."""
LED_PER_MS: Final = 2.0
"""Entries in a millisecond from which on one consumer sees to what is appended."""
_LATE_MS: Final = 4.0
"""A consumer is late if more entries lie there than are claimed in so many ms."""
_READ_LEDGER: Final = SubscriptionWord.READ_LEDGER
_READ_ENTRY: Final = SubscriptionWord.READ_ENTRY
_FIRST_GRANTED: Final = slot_of(FIRST_OWNER) + ConsumerSlotWord.GRANTED
_SLOT_WORDS: Final = CONSUMER_SLOT_SIZE // 8


class Traffic:
    """How fast the entries of a subscription are claimed, and by whom.

    Role: an append rings one consumer that sleeps. Where messages come fast, the next append rings the next
    one before the first has looked, until all are awake, each for a few entries. So there is a *leader* then:
    of the consumers that claim, the first by its code. It alone is rung by appends; it wakes others if it
    leaves entries behind, or deals some to them. The others stand by: they sleep for some milliseconds at a
    time, and claim when the leader is late or claims no more. Invariants: nobody depends on a leader that is
    slow, stopped or dead for longer than that; all of it is a hint, of words that others publish without a
    lock, and decides who wakes when, never who gets what. Callers: the threads of one consumer.
    """

    __slots__ = (
        "_claimed",
        "_control",
        "_end",
        "_is_led",
        "_monotonic",
        "_per_ms",
        "_read",
        "_since",
    )

    def __init__(self, control: SubscriptionControl, end: LogEnd, monotonic: Callable[[], float]) -> None:
        self._control: Final = control
        self._end: Final = end
        self._monotonic: Final = monotonic
        self._since = float("-inf")
        self._read = (0, 0)
        self._claimed = b""
        self._per_ms = 0.0
        self._is_led = False

    def is_led(self, code: int) -> bool:
        """Whether messages come fast, and a consumer with a lower code than ``code`` claims them in time."""
        self._measure(code)
        return self._is_led and self._per_ms >= LED_PER_MS and not self._is_late()

    def _measure(self, code: int) -> None:
        """Compare the words with what they were some milliseconds ago; sooner than that, what was measured
        then holds."""
        now = self._monotonic()
        elapsed = now - self._since
        if elapsed < WINDOW_S:
            return
        words = self._control.words
        read = words[_READ_LEDGER], words[_READ_ENTRY]
        # The word of each consumer with a lower code: it stores there, with every claim, how much it can take
        # beyond all it ever was assigned.
        claimed = words[_FIRST_GRANTED : slot_of(code) : _SLOT_WORDS].tobytes()
        entries = read[1] - self._read[1] if read[0] == self._read[0] else 0
        self._per_ms = entries / (elapsed * 1000)
        self._is_led = claimed != self._claimed
        self._since, self._read, self._claimed = now, read, claimed

    def _is_late(self) -> bool:
        """Whether more entries lie there than are claimed in some milliseconds."""
        last, read = self._end.last_position(), self._control.read_position
        if last is None or last < read:
            return False
        return last.ledger_id != read.ledger_id or last.entry_id - read.entry_id >= self._per_ms * _LATE_MS
