"""Reporting damage: each stretch once, and never under a lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from embeddedpulsar.damage import Damage, DamageHook
from embeddedpulsar.platform import package_log

_REMEMBERED: Final = 4096


class DamageLog:
    """Collects the damage reports of one topic in this process and hands them on.

    Role: a reader that meets damage calls `report`, with or without the topic lock; the hook runs without it.
    Invariants: one stretch is handed on and counted once, however many cursors meet it.
    Callers: any thread.
    """

    def __init__(
        self,
        name: str,
        is_locked: Callable[[], bool],
        call_later: Callable[[float, Callable[[], object]], object],
        hook: DamageHook | None,
    ) -> None:
        self.hook = hook
        self.count = 0
        self._name: Final = name
        self._is_locked: Final = is_locked
        self._call_later: Final = call_later
        self._seen: dict[tuple[str, int, int], None] = {}
        self._pending: list[Damage] = []

    def report(self, damage: Damage) -> None:
        """Hand `damage` on: now, or from the timer thread if the caller is inside the topic lock."""
        damage = damage._replace(topic=self._name)
        key = (damage.kind, damage.ledger_id, damage.offset)
        is_locked = self._is_locked()
        if key not in self._seen:
            if len(self._seen) >= _REMEMBERED:
                self._seen.clear()
            self._seen[key] = None
            self.count += 1
            self._pending.append(damage)
            if is_locked:
                self._call_later(0.0, self.deliver)
        if not is_locked:
            self.deliver()

    def deliver(self) -> None:
        """Hand on what is pending."""
        while self._pending:
            damage = self._pending.pop(0)
            (self.hook or package_log.damage)(damage)
