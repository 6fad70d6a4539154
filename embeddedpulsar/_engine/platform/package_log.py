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


class Note(str):
    """A text that is logged later, or elsewhere, with what it is about.

    >>> note = Note("3 ledgers were trimmed", topic="persistent://public/default/orders")
    >>> print(note, note.about)
    3 ledgers were trimmed {'ep_topic': 'persistent://public/default/orders'}
    """

    __slots__ = ("about",)
    about: dict[str, str]

    def __new__(cls, text: str, *, topic: str = "", subscription: str = "") -> Note:
        note = super().__new__(cls, text)
        note.about = _about(topic, subscription)
        return note


def _about(topic: str, subscription: str) -> dict[str, str]:
    """The attributes of a log record; those of the client's log have the same names."""
    fields = {"ep_topic": topic, "ep_subscription": subscription}
    return {name: value for name, value in fields.items() if value}


def info(text: str, *values: object, topic: str = "", subscription: str = "") -> None:
    """Log a normal event. Never under a lock that other processes wait for.

    A program that has not imported ``logging`` cannot have asked for it; importing it here takes 5 ms.

    Args:
        text: of the record, with a place for each of ``values``; alone, it is taken as it is.
        topic, subscription: what the record is about, in its attributes ``ep_topic`` and ``ep_subscription``.
            A `Note` says it itself.

    >>> import logging
    >>> info("%d ledgers were trimmed", 3, topic="persistent://public/default/orders")
    """
    if "logging" in sys.modules:
        import logging  # it may be half done by another thread, for which this one waits here

        about = text.about if isinstance(text, Note) else _about(topic, subscription)
        text, values = (text, values) if values else ("%s", (text,))
        logging.getLogger(NAME).info(text, *values, extra=about)


def warning(note: str) -> None:
    """Log that something does not work. Never under a lock that other processes wait for.

    >>> warning(Note("nothing is trimmed", topic="persistent://public/default/orders"))
    """
    import logging  # 5 ms, and seldom needed

    about = note.about if isinstance(note, Note) else None
    logging.getLogger(NAME).warning("%s", note, extra=about)


def damage(report: Damage) -> None:
    """Log damage that was found. Not under a lock that other processes wait for.

    >>> damage(Damage("t/7.log", 7, 3, 3, 4096, 4192, "body checksum mismatch"))
    """
    warning(Note(str(report), topic=report.topic, subscription=report.subscription))


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
