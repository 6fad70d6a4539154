"""Counts the users of opened things: which have none any more, the longest idle first."""

from __future__ import annotations


class Usage:
    """How many users each of a number of opened things has.

    Role: decides what may be closed to keep file descriptors within bounds; opens and closes nothing itself.
    Invariants: a name is idle exactly if it had users and has none.
    Callers: the holder of the lock that guards the things.

    Args:
        most_idle: how many idle things may stay open for their next user.
    """

    __slots__ = ("_idle", "_kept", "_most_idle", "_users")

    def __init__(self, most_idle: int) -> None:
        self._most_idle = most_idle
        self._users: dict[str, int] = {}
        self._idle: dict[str, None] = {}  # in the order in which they became idle
        self._kept: set[str] = set()

    def begin(self, name: str) -> None:
        """Count one more user."""
        self._users[name] = self._users.get(name, 0) + 1
        self._idle.pop(name, None)

    def keep(self, name: str) -> None:
        """Count a user that never ends its use: the thing stays open."""
        if name not in self._kept:
            self._kept.add(name)
            self.begin(name)

    def end(self, name: str) -> bool:
        """Count one user less; returns whether it was the last."""
        users = self._users.get(name, 0) - 1
        if users > 0:
            self._users[name] = users
            return False
        self._users.pop(name, None)
        self._idle[name] = None
        return True

    def count(self, name: str) -> int:
        """How many users it has."""
        return self._users.get(name, 0)

    def forget(self, name: str) -> None:
        """Forget a thing that is closed."""
        self._users.pop(name, None)
        self._idle.pop(name, None)
        self._kept.discard(name)

    def surplus(self) -> list[str]:
        """The idle names above the budget, the longest idle first."""
        return list(self._idle)[: max(0, len(self._idle) - self._most_idle)]

    def idle(self) -> list[str]:
        """All idle names, the longest idle first."""
        return list(self._idle)
