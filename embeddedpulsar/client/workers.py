"""Threads for work that may have to wait for locks, away from timers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from embeddedpulsar._engine.platform import deadline, fork, threads
from embeddedpulsar.exceptions import AlreadyClosed

if TYPE_CHECKING:
    from embeddedpulsar._engine.platform.clock import ThreadLike
    from embeddedpulsar.client.common.client_log import ClientLog


class Workers:
    """Runs each job on a short-lived daemon thread of its own.

    Role: moving dead letters and following the partitions of a topic take locks of other topics. On the timer
    thread they would delay all other timers of the client, and on one common thread a job would delay the
    next. Jobs are rare. Thread-safe. After a fork the child has no jobs.
    """

    def __init__(
        self, log: ClientLog, make_thread: Callable[[Callable[[], object], str], ThreadLike] = threads.Thread
    ) -> None:
        self._log = log
        self._make_thread = make_thread
        self._running: dict[object, ThreadLike] = {}
        fork.register(self)

    def start(self, job: Callable[[], object]) -> None:
        """Run ``job()`` soon. An exception that it raises is logged."""
        key = object()

        def run() -> None:
            try:
                job()
            except AlreadyClosed:
                return  # the consumer or the client was closed meanwhile
            except Exception:  # noqa: BLE001 - there is no caller to raise it to
                self._log.exception("Background work failed: %r", job)
            finally:
                self._running.pop(key, None)

        thread = self._make_thread(run, "worker")
        try:
            self._running[key] = thread
            thread.start()
        except BaseException:
            self._running.pop(key, None)
            raise

    def close(self) -> None:
        """Wait for the running jobs, within the deadline of the call."""
        for thread in list(self._running.values()):
            if not thread.is_current:
                thread.join(deadline.left(deadline.LONGEST_S))

    def after_fork_in_child(self) -> None:
        self._running = {}
