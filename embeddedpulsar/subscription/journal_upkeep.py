"""What follows a commit to the journal of a subscription: flushing it, and summaries."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from embeddedpulsar._engine.format import subscription_record as record
from embeddedpulsar._engine.format.control import SubscriptionWord, split_journal
from embeddedpulsar._engine.log.journal.journal import Journal
from embeddedpulsar._engine.log.log_opening import FLUSH, INTERVAL
from embeddedpulsar._engine.platform import disk, failpoints
from embeddedpulsar._engine.platform.clock import Clock
from embeddedpulsar._engine.platform.scheduler import Timer, is_idle
from embeddedpulsar.exceptions import StorageError
from embeddedpulsar.subscription.control import SubscriptionControl
from embeddedpulsar.subscription.state import replica
from embeddedpulsar.subscription.state.replica import SubscriptionReplica
from embeddedpulsar.subscription.subscription_files import StateOptions

EVERY_BYTES: Final = 2048
"""Bytes of commands between two summaries, some 20 commands: applying them costs as much as a summary."""

failpoints.declare("summary:committed")


class StateFlusher:
    """Role: flushes the journal of one directory: at once, or by a timer. Callers: any thread; without
    the subscription's lock, but for `note_dirty`.

    Args:
        directory: of the subscription.
        journal: in it.
        options: the level, and timers.
        is_removed: tells whether the directory was taken away: then nothing is left to flush.
    """

    def __init__(
        self, directory: str, journal: Journal, options: StateOptions, is_removed: Callable[[], bool]
    ) -> None:
        self.is_immediate: Final = options.durability == FLUSH
        self._is_timed: Final = options.durability == INTERVAL
        self._directory: Final = directory
        self._journal: Final = journal
        self._options: Final = options
        self._is_removed: Final = is_removed
        self._timer: Timer | None = None
        self._names_are_durable = False

    def note_dirty(self) -> None:
        """Note that something was committed. Under the lock."""
        if self._is_timed and is_idle(self._timer):
            self._timer = self._options.scheduler.call_later(self._options.interval_s, self._sync_in_time)

    def _sync_in_time(self) -> None:
        self._timer = None  # first: what is committed from here on asks again
        self.sync()

    def sync(self) -> None:
        """Make everything committed so far survive a power loss; once per process, also the files' names.

        Raises:
            StorageError: the flush failed. What the disk has is unknown; the next change writes all anew.
        """
        if self._is_removed():
            return
        try:
            self._journal.sync()
            if not self._names_are_durable:
                subscriptions = os.path.dirname(self._directory)
                for path in (self._directory, subscriptions, os.path.dirname(subscriptions)):
                    disk.DISK.fsync_dir(path)
                self._names_are_durable = True
        except OSError as e:
            if self._is_removed():
                return  # in the middle of it
            raise StorageError(
                path=self._directory,
                reason=f"a flush failed ({e}), so the last changes may not survive a power loss",
                remedy="check the disk; the next change is written to new files",
            ) from e

    def close(self) -> None:
        """Flush what the timer still owes."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
            self.sync()


class Summaries:
    """Writes the summaries of one subscription, from this process.

    Role: called after each commit; the word SUMMARY says where the last one stands, whichever process wrote
    it. Crash order: the command is committed and published before the word names it. Callers:
    the holder of the subscription's lock, on the published state.
    """

    def __init__(
        self, control: SubscriptionControl, journal: Journal, replica: SubscriptionReplica, clock: Clock
    ) -> None:
        self._control: Final = control
        self._journal: Final = journal
        self._replica: Final = replica
        self._clock: Final = clock
        self._bytes = 0  # of the last one that this process wrote

    def follow(self) -> None:
        """Write a summary after a commit if the last one is far behind."""
        if not replica.is_worth_it(self._replica.state):
            return
        words, here = self._control.words, self._journal.seen
        generation, end = split_journal(here)
        named, last = split_journal(words[SubscriptionWord.SUMMARY])
        if named == generation and end - last < self._bytes + EVERY_BYTES:
            return
        command = record.Summary(replica.pack_summary(self._replica.state))
        self._journal.append(
            [record.encode(command)], self._clock.wall_ms(), apply=lambda: self._replica.apply(command)
        )
        if failpoints.ACTIVE:
            failpoints.hit("summary:committed")
        self._control.note_published()  # what was published before it holds after it
        if self._journal.generation == generation:  # it may have been the last of its generation
            words[SubscriptionWord.SUMMARY] = here
        self._bytes = len(command.content)
