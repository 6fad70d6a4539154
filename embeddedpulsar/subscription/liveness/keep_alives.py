"""Which consumers have been silent for too long, as seen by one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from embeddedpulsar.exceptions import ConsumerAssignError, ConsumerBusy
from embeddedpulsar.format.control import ConsumerSlotWord
from embeddedpulsar.platform import deadline, threads
from embeddedpulsar.platform.clock import Clock
from embeddedpulsar.subscription.control import SubscriptionControl
from embeddedpulsar.subscription.state.state_machine import SubscriptionState

BEATS: Final = 3
"""How often a process shows itself in each keep-alive interval."""
_NAPS: Final = 8
_ROUNDING_S: Final = 1e-3
_ALIVE: Final = ConsumerSlotWord.ALIVE_MS

R = TypeVar("R")


class _Seen(NamedTuple):
    """The word of a consumer, and for how long it has not changed."""

    word: int
    stands_s: float


class KeepAlives:
    """Measures, on the clock of this process, for how long the words of others have not changed.

    Role: a process shows that it runs by changing a word in the slot of each of its consumers, three times
    in each keep-alive interval; this finds consumers that did not for a whole one. Invariants: no decision
    compares the clocks of two processes: they may be of different time namespaces. Time counts only while
    this process looks: of the time between two looks a beat at most, and after two beats without a look all
    begins anew. A process that was stopped itself, alone or with all the others, cannot know how long they
    were silent. Callers: any thread.
    """

    def __init__(self, keep_alive_s: float, clock: Clock) -> None:
        self.beat_s: Final = keep_alive_s / BEATS
        self._keep_alive_s: Final = keep_alive_s
        self._clock: Final = clock
        self._lock: Final = threads.RLock()  # guards everything below
        self._looked_at = -1.0
        self._seen: dict[int, _Seen] = {}  # by consumer id

    def look(self, state: SubscriptionState, control: SubscriptionControl) -> set[int]:
        """Ids of the consumers that were silent for a whole interval. Without the lock of the subscription
        they are those of the last transaction."""
        if self._keep_alive_s <= 0:
            return set()
        try:
            self._lock.acquire()
            now = self._clock.monotonic()
            gap = now - self._looked_at
            is_new = self._looked_at < 0 or gap > 2 * self.beat_s
            before: dict[int, _Seen] = {} if is_new else self._seen
            found: dict[int, _Seen] = {}
            for one in state.consumers.all():
                word = control.slot_word(one.code, one.consumer_id, _ALIVE)
                last = before.get(one.consumer_id)
                stands_s = last.stands_s + min(gap, self.beat_s) if last and last.word == word else 0.0
                found[one.consumer_id] = _Seen(word, stands_s)
            self._seen, self._looked_at = found, now
        finally:
            self._lock.release()
        enough_s = self._keep_alive_s - _ROUNDING_S
        return {who for who, seen in found.items() if seen.word and seen.stands_s >= enough_s}

    def _suspects(self) -> set[int]:
        """Consumers that may have been silent before this process looked: their word would be old, or in the
        future, on our clock. That is only a hint."""
        now_ms = self._clock.monotonic() * 1000
        oldest, latest = now_ms - self._keep_alive_s * 1000, now_ms + self.beat_s * 1000
        return {one for one, seen in self._seen.items() if seen.word and not oldest <= seen.word <= latest}

    def patiently(self, attempt: Callable[[], R], look: Callable[[], object]) -> R:
        """Attach a consumer; if it is refused because of silent ones, once more.

        Args:
            attempt: attaches it.
            look: calls `look` inside a transaction.
        """
        try:
            return attempt()
        except (ConsumerBusy, ConsumerAssignError):
            if not self._watch(look):
                raise
        return attempt()

    def _watch(self, look: Callable[[], object]) -> bool:
        """Find out whether consumers are silent, by watching those that are suspect: for up to two beats, and
        no longer than the present call has. Returns: whether some are; the next `look` names them."""
        suspects = self._suspects() if self._keep_alive_s > 0 else set()
        words = {one: self._seen[one].word for one in suspects}
        naps = 0
        while words and naps < 2 * _NAPS and deadline.left(self._keep_alive_s) > 0:
            began = self._clock.monotonic()
            self._clock.sleep(self.beat_s / _NAPS)
            look()
            was_late = self._clock.monotonic() - began > self.beat_s
            naps = 0 if was_late else naps + 1
            seen = self._seen
            words = {one: word for one, word in words.items() if one in seen and seen[one].word == word}
        if naps < 2 * _NAPS:
            return False
        for one in words:
            self._seen[one] = self._seen[one]._replace(stands_s=self._keep_alive_s)
        return True
