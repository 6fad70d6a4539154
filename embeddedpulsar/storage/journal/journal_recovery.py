"""Which generation of a journal is the state, and how to read it when part of it is damaged.

What a crash can leave:

* a torn command behind the end: the chain of checksums ends before it;
* a compaction cut short before its snapshot had a name: a journal without commands and without snapshot;
* one cut short later: two whole generations that say the same. If the older one went on, the newer was never
  switched to; its base record tells;
* a removal cut short: a journal whose last record is an END.

A bad sector can leave a snapshot that does not verify. The generation before is still there and leads
to the same state.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple, Protocol

from embeddedpulsar.damage import JOURNAL, Damage
from embeddedpulsar.exceptions import (
    CorruptionError,
    ForeignFileError,
    UnsupportedFormatVersion,
)
from embeddedpulsar.format.document import document_crc
from embeddedpulsar.format.record_types import BASE, END
from embeddedpulsar.storage.journal.journal_file import JournalFile, generations


class Replica(Protocol):
    """One process's copy of a replicated state. Called under the lock of the directory.

    The same commands in the same order must give the same state in every process.
    """

    def reset(self, snapshot: bytes | None) -> None:
        """Take over a snapshot; with None, start from nothing."""

    def replay(self, kind: int, payload: bytes, time_ms: int) -> None:
        """Apply one committed command."""

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


class Choice(NamedTuple):
    """The journal recovery continues from, cut where its chain ends; None if there is no state.

    `newest` is the highest generation number any file has.
    """

    journal: JournalFile | None
    newest: int


class Replayed(NamedTuple):
    """What `replay` found: the checksum the next record continues, whether the owner was removed, and how
    many commands there were."""

    crc: int
    removed: bool
    commands: int


def choose(directory: str, owner_kind: int, damage: list[Damage]) -> Choice:
    """Pick the generation that holds the state, from the files alone.

    Raises:
        UnsupportedFormatVersion: the newest journal is not one this release may touch.
        CorruptionError: a journal of another kind of owner.
    """
    journals, snapshots = generations(directory)
    newest = max([*journals, *snapshots, 0])
    unreadable: list[Damage] = []
    for generation in reversed(journals):
        journal = JournalFile(directory, generation)
        if journal.header is not None and journal.header.owner_kind != owner_kind:
            raise CorruptionError(
                path=journal.path, reason="this journal belongs to something else", offset=20
            )
        cut, commands, removed = journal.cut_at_break()
        if removed:
            return Choice(None, newest)
        if commands or (_is_whole(cut) and not _went_on(cut)):
            return Choice(cut, newest)
        if journal.header is None and journal.data.strip(b"\0"):
            unreadable.extend(journal.damage)
    damage.extend(unreadable)
    return Choice(None, newest)


def note_if_lost(directory: str, generation: int, end: int, damage: list[Damage]) -> None:
    """Note damage if commands were committed to a journal from which none can be read.

    Where there was nothing, there is no commit word (`end` is 0); where it was removed, no file, or one that
    says so.
    """
    if not end or damage:
        return
    with contextlib.suppress(FileNotFoundError):
        journal = JournalFile(directory, generation)
        if not journal.cut_at_break()[2]:
            reason = f"none of the commands in its {end} bytes can be read"
            damage.append(Damage(journal.path, reason=reason, kind=JOURNAL))


def _is_whole(journal: JournalFile) -> bool:
    """Whether a generation without commands ever was one: it names its snapshot, and that is there."""
    if journal.header is None:
        return False
    try:
        return journal.read_snapshot() is not None
    except CorruptionError:
        return False


def _went_on(journal: JournalFile) -> bool:
    """Whether the generation before has commands that this one lacks."""
    base = journal.base()
    if base is None:
        return False
    try:
        before = JournalFile(journal.directory, base.generation)
    except FileNotFoundError:
        return False
    return len(before.cut_at_break()[0].data) > base.end


def replay(journal: JournalFile, replica: Replica, damage: list[Damage]) -> Replayed:
    """Build the replica from a generation, stepping over what is damaged.

    Raises:
        CorruptionError: a command is intact and yet not one of this release.
    """
    _restore(journal, replica, damage)
    crc = 0 if journal.header is None else journal.header.chain_seed
    removed, commands = False, 0
    for _, record in journal.records(strict=False):
        crc = record.crc
        removed = record.type == END
        if record.type not in (BASE, END):
            commands += 1
            try:
                replica.replay(record.type, record.payload, record.time_ms)
            except CorruptionError as e:
                raise e.at(journal.path) from None
    damage.extend(journal.damage)
    journal.damage.clear()
    return Replayed(crc, removed, commands)


def _restore(journal: JournalFile, replica: Replica, damage: list[Damage]) -> None:
    """Put the replica where the generation starts: its snapshot, else the generation before, else nothing."""
    try:
        replica.reset(journal.read_snapshot())
    except UnsupportedFormatVersion as e:
        raise e.at(journal.snapshot_path) from None
    except (CorruptionError, ForeignFileError) as e:
        outcome = _restore_from_older(journal, replica, damage)
        damage.append(Damage(journal.snapshot_path, reason=e.reason, kind=JOURNAL, done=outcome))


def _restore_from_older(journal: JournalFile, replica: Replica, damage: list[Damage]) -> str:
    base = journal.base()
    try:
        before = None if base is None else JournalFile(journal.directory, base.generation, base.end)
    except FileNotFoundError:
        before = None
    if before is None:
        replica.reset(None)
        return "the generation before is gone: the state starts anew, what is stored is delivered again"
    replay(before, replica, damage)
    if journal.header is not None and document_crc(replica.snapshot()) == journal.header.snapshot_crc:
        return "it was made anew from the generation before, exactly as it was"
    return "it was made anew from the generation before"
