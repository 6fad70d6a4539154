"""The state of a subscription as one process has opened it, also after it was deleted and made again."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Final

from embeddedpulsar._engine.log.position import Position
from embeddedpulsar._engine.platform import deadline, disk, threads
from embeddedpulsar.exceptions import CorruptionError, SubscriptionNotFound
from embeddedpulsar.subscription.shared_state import SharedState
from embeddedpulsar.subscription.subscription_files import StateOptions


class SubscriptionLives:
    """Opens the state in a directory, and another when a subscription of that name has a new directory.

    Role: a subscription that ended takes its directory along; consumers that were attached to it keep its
    state, which says so. Invariants: `current` is never a state whose directory was removed.
    Callers: any thread.

    Attributes:
        name: of the subscription; empty to take the one that is stored.
        topic_directory: two above its own.
    """

    def __init__(
        self,
        directory: str,
        options: StateOptions,
        log_end: Callable[[], Position | None],
        prepare: Callable[[SharedState], object],
    ) -> None:
        self.name = options.name
        self.topic_directory: Final = os.path.dirname(os.path.dirname(directory))
        self._directory: Final = directory
        self._options: Final = options
        self._log_end: Final = log_end
        self._prepare: Final = prepare
        self._lock: Final = threads.RLock()  # guards everything below
        self._current: SharedState | None = None
        self._ended: list[SharedState] = []

    @property
    def current(self) -> SharedState | None:
        shared = self._current
        if shared is None or not shared.is_removed:
            return shared
        try:
            self._lock.acquire()
            if self._current is shared:
                self._current = None
                self._ended.append(shared)
            return self._current
        finally:
            self._lock.release()

    def find(self) -> SharedState | None:
        """The state, opened if there is a directory. The subscription may be deleted nevertheless."""
        shared = self.current
        if shared is None and os.path.isdir(self._directory):
            with contextlib.suppress(FileNotFoundError):  # not any more
                shared = self._open()
        return shared

    def existing(self) -> SharedState:
        """The state, opened if need be."""
        shared = self.find()
        if shared is None:
            raise SubscriptionNotFound(f"there is no subscription {self.name!r}; create it by subscribing")
        return shared

    def make(self) -> SharedState:
        """The state, in a directory that is made if need be."""
        above = os.path.dirname(self._directory)
        while (shared := self.find()) is None:
            try:
                for path in (above, self._directory):
                    with contextlib.suppress(FileExistsError):
                        disk.DISK.mkdir(path)
            except FileNotFoundError:
                if not os.path.isdir(above):
                    raise  # the topic is gone, too
                # Another process that deletes a subscription of this name took the new directory for it.
        return shared

    def _open(self) -> SharedState:
        try:
            deadline.enter(self._lock, f"the opening of subscription {self.name!r}")
            if self._current is None:
                shared = SharedState.open(self._directory, self._options, self._log_end)
                self._prepare(shared)
                try:
                    self._check_name(shared.transact(lambda state: state.name if state.exists else ""))
                except BaseException:
                    shared.close()
                    raise
                self._current = shared
            return self._current
        finally:
            self._lock.release()

    def _check_name(self, stored: str) -> None:
        """Check the name: two names may have the same directory."""
        if stored and self.name not in ("", stored):
            raise CorruptionError(
                path=self._directory,
                reason=f"this directory belongs to subscription {stored!r}, not {self.name!r}",
                remedy="use another name for the new subscription",
            )
        self.name = self.name or stored

    def take(self) -> SharedState | None:
        """Return what is open, for the caller to close; close all that ended before."""
        shared, self._current = self._current, None
        ended, self._ended = self._ended, []
        for one in ended:
            one.close()
        return shared
