"""The mark-delete positions of a topic's subscriptions, read without opening them, for trimming."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from contextlib import closing

from embeddedpulsar.exceptions import CorruptionError, StorageError
from embeddedpulsar.format.control import KIND_SUBSCRIPTION, SubscriptionWord, split_journal
from embeddedpulsar.managed_ledger.position import Position
from embeddedpulsar.platform import descriptors
from embeddedpulsar.storage.journal.journal_recovery import choose, note_if_lost, replay
from embeddedpulsar.subscription.control import SubscriptionControl
from embeddedpulsar.subscription.state.replica import SubscriptionReplica


def mark_deletes(directories: Sequence[str], boot: bytes) -> list[Position]:
    """The mark-delete positions of the subscriptions in ``directories`` that exist. Takes no lock.

    Some 50 us each, and one descriptor at a time. If no process has opened a subscription since the last
    boot, its journal is read. A returned position is where the subscription is, or one before that.

    Raises:
        StorageError: the position of one of them is unknown: nothing may be trimmed.
        DescriptorLimitError: no descriptor was to be had.
    """
    found = [_mark_delete(directory, boot) for directory in directories]
    return [position for position in found if position is not None]


def _mark_delete(directory: str, boot: bytes) -> Position | None:
    word = 0
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, CorruptionError):
        control = descriptors.opening(f"cannot look at {directory}", SubscriptionControl.open, directory)
        with closing(control):
            word = control.words[SubscriptionWord.JOURNAL]
            if control.is_trusted(boot) and split_journal(word)[1]:
                return control.mark_delete
    return _from_files(directory, word)


def _from_files(directory: str, word: int) -> Position | None:
    """What snapshot and journal say. Also used if the words say that there is nothing, as they do when all is
    damaged and no process that knows the name has started the subscription anew yet."""
    damage: list[StorageError] = []
    try:
        journal = choose(directory, KIND_SUBSCRIPTION, damage).journal
    except (FileNotFoundError, NotADirectoryError):
        if os.path.isdir(directory):
            raise
        return None  # it ended
    replica = SubscriptionReplica()
    if journal is None:
        note_if_lost(directory, *split_journal(word), damage)
    else:
        replay(journal, replica, damage)
    if damage:
        raise damage[0]
    return replica.state.mark_delete if replica.state.exists else None
