"""The state that a journal keeps in step."""

from __future__ import annotations

from typing import Protocol


class Replica(Protocol):
    """One process's copy of a replicated state. Called under the lock of the directory.

    The same commands in the same order must give the same state in every process.
    """

    def reset(self, snapshot: bytes | None) -> None:
        """Take over a snapshot; with None, start from nothing.

        Raises:
            CorruptionError: this is no snapshot.
        """

    def replay(self, kind: int, payload: bytes, time_ms: int) -> None:
        """Apply one committed command.

        Raises:
            CorruptionError: this is no command.
        """

    def leap(self, kind: int, payload: bytes) -> bool:
        """Take over the state that a committed command holds, from an earlier state.

        Returns:
            False, and nothing is changed, if that cannot be done: the command holds no state, or
            something happened in between that it does not cover.

        Raises:
            CorruptionError: this is no command. The state may be distorted then.
        """

    def snapshot(self) -> bytes:
        """The state as a document (format/document.py); equal states give equal bytes."""
