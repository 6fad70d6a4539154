"""Which lock files a process holds right now, from /proc/locks (Linux)."""

from __future__ import annotations

import os

_LOCKS = "/proc/locks"


class LockFiles:
    """The lock files below a directory, by inode. New ones are found by `refresh`."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._names: dict[int, str] = {}

    def refresh(self) -> None:
        """Look for lock files that were made since."""
        for directory, _, files in os.walk(self._root):
            for name in files:
                if name == "lock" or name.endswith(".lock"):
                    path = os.path.join(directory, name)
                    try:
                        self._names[os.stat(path).st_ino] = self._kind(path)
                    except FileNotFoundError:
                        continue

    @staticmethod
    def _kind(path: str) -> str:
        name = os.path.basename(path)
        if name != "lock":
            return name.removesuffix(".lock")
        return "subscription" if "/subscriptions/" in path else "topic"

    def held_by(self, pid: int) -> list[str]:
        """The kinds of lock the process holds: topic, subscription, sync, store, catalog, housekeeping."""
        held = []
        with open(_LOCKS, encoding="ascii") as file:
            for line in file:
                fields = line.split()
                if len(fields) >= 6 and fields[1:2] == ["FLOCK"] and fields[4] == str(pid):
                    kind = self._names.get(int(fields[5].rpartition(":")[2]))
                    if kind is not None:
                        held.append(kind)
        return held
