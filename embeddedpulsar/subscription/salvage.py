"""What is still known of a subscription of which no file leads to the state any more.

A damaged subscription is kept. It holds the log back from a position behind which everything that was
acknowledged is known to be, and delivers again from there: some messages come again, and none is lost.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from embeddedpulsar._engine.format import subscription_record as record
from embeddedpulsar._engine.format.control import SubscriptionWord, split_journal
from embeddedpulsar._engine.format.document import KIND_SUBSCRIPTION_SNAPSHOT, decode_document
from embeddedpulsar._engine.format.journal_record import RECORD_SIZE, JournalRecord
from embeddedpulsar._engine.log.filenames import journal_path, snapshot_path
from embeddedpulsar._engine.log.journal.journal_file import JournalFile, generations
from embeddedpulsar._engine.log.position import BEFORE_FIRST, Position
from embeddedpulsar._engine.platform import disk
from embeddedpulsar.exceptions import CorruptionError, ForeignFileError
from embeddedpulsar.subscription.control import SubscriptionControl
from embeddedpulsar.subscription.state.replica import SubscriptionReplica
from embeddedpulsar.topic_name import subscription_directory_name

_SEEK_SIZE: Final = RECORD_SIZE + record.POSITION_BODY.size
_LONGEST_NAME: Final = 512
_BEFORE_SLUG: Final = len("s-" + 26 * "x" + "-")


def name_in(directory: str) -> str:
    """The name of a durable subscription, of which the name of its directory holds a digest.

    Returns:
        The name that has this digest, found in the name of the directory itself or in what is left of its
        files; "" if none is found.
    """
    base = os.path.basename(directory)
    for candidate in _names(directory, base):
        if subscription_directory_name(candidate) == base:
            return candidate
    return ""


def _names(directory: str, base: str) -> Iterator[str]:
    yield base[_BEFORE_SLUG:]
    journals, snapshots = generations(directory)
    for generation in reversed(snapshots):
        path = snapshot_path(directory, generation)
        try:
            name = decode_document(disk.DISK.read_file(path), KIND_SUBSCRIPTION_SNAPSHOT).get("name")
        except (CorruptionError, ForeignFileError, FileNotFoundError):
            continue
        if isinstance(name, str):
            yield name
    for generation in journals:
        yield from _names_left(disk.DISK.read_file(journal_path(directory, generation), 1 << 12))


def _names_left(data: bytes) -> Iterator[str]:
    """The name in the first record of a journal, whatever else of the record is damaged: where the length of
    the name is, every length is tried."""
    start = 64 + RECORD_SIZE + record.CREATE_HEADER.size
    for length in range(1, min(_LONGEST_NAME, len(data) - start) + 1):
        try:
            yield data[start : start + length].decode()
        except UnicodeDecodeError:
            continue


def words_position(control: SubscriptionControl, word: int) -> Position | None:
    """The mark-delete position in control words whose header is intact; None if they say of no subscription.

    Words of zeros, which a power loss may leave, name no position: ledger 0 is the place before all entries.

    Args:
        control: the words.
        word: what the commit word was before a recovery.
    """
    if control.header is None or not split_journal(word)[1] or not control.is_possible():
        return None
    position = control.mark_delete
    return position if position.ledger_id or position == BEFORE_FIRST else None


def rewound_position(directory: str, reached: Position) -> Position:
    """The lowest position that a lost command may have put a subscription back to.

    Args:
        directory: of the subscription.
        reached: the mark-delete position by the commands that can be read.

    Returns:
        ``reached``, or the position of a command behind the damage that can be read; before the first entry
        if one of the lost commands may have been a seek.
    """
    lowest = reached
    for generation in generations(directory)[0]:
        try:
            journal = JournalFile(directory, generation)
        except FileNotFoundError:
            continue
        for _, found in journal.records(strict=False):
            if journal.damage:
                lowest = min(lowest, _position_of(found) or lowest)
        if journal.is_empty or any(
            may_hold(journal.data, lost.offset, lost.end_offset, _SEEK_SIZE) for lost in journal.damage
        ):
            return BEFORE_FIRST
    return lowest


def _position_of(found: JournalRecord) -> Position | None:
    if found.type != record.SEEK:
        return None
    command = record.decode(found.type, found.payload)
    return Position(command.ledger_id, command.entry_id)


def may_hold(data: bytes, start: int, stop: int, size: int) -> bool:
    """Whether a record of that size may have been among the bytes that do not verify.

    Not if they are too few; nor if they are one record of another size, by its own length and by where the
    next record begins.
    """
    if start < 64:
        return False  # the header; the records behind it are verified by themselves
    lost = (stop or len(data)) - start
    if lost < size:
        return False
    length = int.from_bytes(data[start : start + 4], "little")
    is_single = length == lost or (stop >= len(data) and not any(data[start + length :]))
    return not is_single or length == size


def from_where(position: Position) -> str:
    """From where a subscription with that mark-delete position delivers, in words."""
    if position <= BEFORE_FIRST:
        return "from the first message that is stored"
    return f"from behind {position.ledger_id}:{position.entry_id}"


def complete(
    replica: SubscriptionReplica, directory: str, name: str, known: Position | None, time_ms: int
) -> bool:
    """Give a replica that was built from damaged files the state that loses nothing.

    Args:
        replica: as the readable commands left it.
        directory: of the subscription.
        name: of the subscription; empty if it is not known.
        known: its mark-delete position by its control words, None if they say none.
        time_ms: when; a subscription that is made again counts as active then.

    Returns:
        False if nothing says which subscription it is; then the replica is as it was.
    """
    state = replica.state
    if state.exists:
        lowest = rewound_position(directory, state.mark_delete) if known is None else known
        if lowest < state.mark_delete:
            replica.apply(record.Seek(*lowest))
        return True
    name = name or name_in(directory)
    if name:
        replica.apply(record.Create(name, state.epoch + 1, *(known or BEFORE_FIRST)))
        replica.state.last_active_ms = time_ms
    return bool(name)


def position_at_rest(directory: str) -> Position | None:
    """What `words_position` says of the control file of a directory that no process uses."""
    try:
        control = SubscriptionControl.open(directory)
    except (FileNotFoundError, CorruptionError):
        return None
    try:
        return words_position(control, control.words[SubscriptionWord.JOURNAL])
    finally:
        control.close()
