"""The log of the layers below the client, which have no client and no logger of one; and the way of damage to
the application, or to that log.
"""

from __future__ import annotations

import sys
from collections import deque

from embeddedpulsar.damage import Damage, DamageHook
from embeddedpulsar.records import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Final


NAME: Final = "embeddedpulsar"


def is_heard() -> bool:
    """Whether anything may come of `info`: for a caller that would have to make the values.

    >>> import logging
    >>> is_heard()
    False
    """
    if "logging" not in sys.modules:
        return False
    import logging  # as in `info`

    return logging.getLogger(NAME).isEnabledFor(logging.INFO)


def info(text: str, *values: object) -> None:
    """Log a normal event. Never under a lock that other processes wait for.

    A program that has not imported ``logging`` cannot have asked for it; importing it here takes 5 ms.

    >>> import logging
    >>> info("%d ledgers of %s were trimmed", 3, "persistent://public/default/orders")
    """
    if "logging" in sys.modules:
        import logging  # it may be half done by another thread, for which this one waits here

        logging.getLogger(NAME).info(text, *values)


def damage(report: object) -> None:
    """Log damage that was found. Not under a lock that other processes wait for.

    >>> damage("t/7.log: hole")
    """
    import logging  # 5 ms, and only where something is broken

    logging.getLogger(NAME).warning("%s", report)


_REMEMBERED: Final = 4096


class DamageChannel:
    """Hands damage to the listeners of a store, or to the log if there are none.

    Role: one per store and process. Every layer that finds or repairs damage reports it here.
    Invariants: each place is handed on once. A listener may be called under any lock: it only passes the
    damage to a thread of its own, which calls the application with `tell`.
    Callers: any thread.
    """

    def __init__(self) -> None:
        self._listeners: list[DamageHook] = []
        self._seen: dict[tuple[object, ...], None] = {}
        self._pending: deque[Damage] = deque()

    def add(self, listener: DamageHook) -> None:
        """Hand on to this listener what is found from now on."""
        self._listeners.append(listener)

    def remove(self, listener: DamageHook) -> None:
        """Undo one `add`. Does nothing if there is none to undo."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def report(self, damage: Damage) -> None:
        """Hand damage on. Without a lock that other processes wait for."""
        self.enqueue(damage)
        self.hand_on()

    def enqueue(self, damage: Damage) -> None:
        """As `report`, under any lock; without listeners the log has it after the next `hand_on`."""
        if self._is_news(damage):
            self._pending.append(damage)
            if self._listeners:
                self.hand_on()

    def hand_on(self) -> None:
        """Hand on what is pending. Without a lock that other processes wait for."""
        while self._pending:
            report = self._pending.popleft()
            for listener in tuple(self._listeners) or (damage,):
                listener(report)

    def _is_news(self, damage: Damage) -> bool:
        # Readers of one stretch of a log may give different reasons.
        reason = "" if damage.ledger_id else damage.reason
        key = (damage.path, damage.kind, damage.offset, damage.first_entry, reason)
        if key in self._seen:
            return False
        if len(self._seen) >= _REMEMBERED:
            self._seen.clear()
        self._seen[key] = None
        return True


def tell(on_damage: DamageHook, report: Damage) -> None:
    """Call the function of the application; what it raises is logged."""
    try:
        on_damage(report)
    except Exception:  # the caller is a thread of the package
        import logging

        logging.getLogger(NAME).exception("on_damage failed for: %s", report)
