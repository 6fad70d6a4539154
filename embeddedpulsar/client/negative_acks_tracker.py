"""Messages the application gave back, until their delay has passed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

Position = tuple[int, int]
RETRY_S: Final = 1.0


class NegativeAcksTracker:
    """Remembers entries that were negatively acknowledged and asks for them again when the delay has passed.

    Role: one timer for the earliest of them. An entry is never redelivered early, and repeated negative
    acknowledgements of one entry do not postpone it. Entries acknowledged meanwhile are taken out.

    Called by any thread; every operation on the dict is one step. ``redeliver`` gets the due positions and
    runs without a lock. It returns True when it asked for everything unacknowledged (as on an Exclusive
    subscription): the rest of the entries is then on its way too, and is forgotten here.
    """

    __slots__ = ("_armed", "_call_later", "_delay_s", "_due", "_monotonic", "_redeliver")

    def __init__(
        self,
        delay_ms: int,
        redeliver: Callable[[list[Position]], bool],
        call_later: Callable[[float, Callable[[], object]], object],
        monotonic: Callable[[], float],
    ) -> None:
        self._due: dict[Position, float] = {}
        self._delay_s = delay_ms / 1000
        self._redeliver = redeliver
        self._call_later = call_later
        self._monotonic = monotonic
        self._armed = False

    def __len__(self) -> int:
        return len(self._due)

    def add(self, position: Position) -> None:
        """Ask for an entry again after the delay."""
        self._due.setdefault(position, self._monotonic() + self._delay_s)
        if not self._armed:
            self._arm(self._delay_s)

    def discard(self, position: Position) -> None:
        """The entry was acknowledged after all."""
        self._due.pop(position, None)

    def clear(self) -> None:
        """Everything is fetched anew, or the consumer closes."""
        self._due.clear()

    def _arm(self, delay_s: float) -> None:
        try:
            self._armed = True
            self._call_later(delay_s, self._on_timer)
        except BaseException:
            self._armed = False
            raise

    def _on_timer(self) -> None:
        self._armed = False
        now = self._monotonic()
        due = [position for position, at in list(self._due.items()) if at <= now]
        if due:
            for position in due:
                self._due.pop(position, None)
            try:
                if self._redeliver(sorted(due)):
                    self._due.clear()
            except Exception:
                for position in due:
                    self._due.setdefault(position, now + RETRY_S)
                self._arm(RETRY_S)
                raise  # to the log
        waiting = list(self._due.values())
        if waiting and not self._armed:
            self._arm(max(min(waiting) - now, 0.0))
