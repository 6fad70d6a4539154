"""When a summary is written into the journal of a subscription, and where it can be found."""

from __future__ import annotations

from typing import Final

from embeddedpulsar.format import subscription_record as record
from embeddedpulsar.format.control import SubscriptionWord, split_journal
from embeddedpulsar.platform import failpoints
from embeddedpulsar.platform.clock import Clock
from embeddedpulsar.storage.journal.journal import Journal
from embeddedpulsar.subscription.control import SubscriptionControl
from embeddedpulsar.subscription.state import summary
from embeddedpulsar.subscription.state.replica import SubscriptionReplica

EVERY_BYTES: Final = 2048
"""Bytes of commands between two summaries, some 20 commands: applying them costs as much as a summary."""

failpoints.declare("summary:committed")


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
        if not summary.is_worth_it(self._replica.state):
            return
        words, here = self._control.words, self._journal.seen
        generation, end = split_journal(here)
        named, last = split_journal(words[SubscriptionWord.SUMMARY])
        if named == generation and end - last < self._bytes + EVERY_BYTES:
            return
        command = record.Summary(summary.pack_summary(self._replica.state))
        self._journal.append(
            [record.encode(command)], self._clock.wall_ms(), apply=lambda: self._replica.apply(command)
        )
        if failpoints.ACTIVE:
            failpoints.hit("summary:committed")
        self._control.note_published()  # what was published before it holds after it
        if self._journal.generation == generation:  # it may have been the last of its generation
            words[SubscriptionWord.SUMMARY] = here
        self._bytes = len(command.content)
