"""Repairs of the files of one topic or subscription, by what its other files say.

Each may be interrupted and made again. Only files that are derived are replaced; of a log, only the header
and end marks are written.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final

from embeddedpulsar._engine.format.control import (
    CONTROL_HEADER_SIZE,
    KIND_SUBSCRIPTION,
    KIND_TOPIC,
    SubscriptionWord,
    TopicWord,
    pack_control_header,
    parse_control_header,
    split_journal,
)
from embeddedpulsar._engine.format.frame import pack_trailer
from embeddedpulsar._engine.format.journal_record import JournalBase
from embeddedpulsar._engine.format.segment_header import (
    COPY_OFFSETS,
    SEGMENT_HEADER_SIZE,
    pack_segment_header,
)
from embeddedpulsar._engine.log import filenames
from embeddedpulsar._engine.log.filenames import log_path
from embeddedpulsar._engine.log.journal.journal_file import (
    JournalFile,
    Replica,
    choose,
    generations,
    replay,
    write_generation,
)
from embeddedpulsar._engine.log.log_check import trusted_words
from embeddedpulsar._engine.log.recovery.chain_scan import scan_log
from embeddedpulsar._engine.log.segment import find_segment_header
from embeddedpulsar._engine.log.segment_index import write_index
from embeddedpulsar._engine.log.segments import Link, walk_segments
from embeddedpulsar._engine.log.topic_control import TERMINATED
from embeddedpulsar._engine.platform import disk, failpoints
from embeddedpulsar._engine.subscription import subscription_files
from embeddedpulsar._engine.subscription.state.replica import SubscriptionReplica
from embeddedpulsar._engine.subscription.subscription_files import complete, position_at_rest
from embeddedpulsar.exceptions import CorruptionError, ForeignFileError
from embeddedpulsar.topic.catalog.topic_places import read_meta
from embeddedpulsar.topic.producers.topic_journal import TopicReplica

if TYPE_CHECKING:
    from embeddedpulsar.damage import Damage
    from embeddedpulsar.topic.care.quarantine import Quarantine

_NO_BOOT: Final = bytes(16)
_SECOND_COPY: Final = COPY_OFFSETS[1]

failpoints.declare(
    "repair:header_half", "repair:index_written", "repair:journal_written", "repair:distrusted"
)


def distrust(directory: str, quarantine: Quarantine) -> None:
    """Have the next process that opens a topic or subscription derive its control words from its files."""
    path = filenames.control_path(directory)
    try:
        header = parse_control_header(disk.DISK.read_file(path, CONTROL_HEADER_SIZE))
    except FileNotFoundError:
        return
    except CorruptionError:
        quarantine.move(path)
        return
    quarantine.copy(path)
    _overwrite(path, pack_control_header(header._replace(boot_id=_NO_BOOT)), 0)
    failpoints.hit("repair:distrusted")


def rewrite_header(directory: str, ledger_id: int, store_id: bytes, quarantine: Quarantine) -> None:
    """Write the header of a segment as it can be derived. Without effect if it cannot."""
    path = log_path(directory, ledger_id)
    with contextlib.suppress(CorruptionError, FileNotFoundError):
        found = find_segment_header(directory, ledger_id)
        if not found.damage:
            return
        quarantine.keep(path, disk.DISK.read_file(path, SEGMENT_HEADER_SIZE))
        header = found.header._replace(store_id=store_id, topic_incarnation=_incarnation_of(directory))
        page = pack_segment_header(header)
        # One copy after the other, so that one is whole when the process dies in between.
        _overwrite(path, page[:_SECOND_COPY], 0)
        failpoints.hit("repair:header_half")
        _overwrite(path, page[_SECOND_COPY:], _SECOND_COPY)


def _incarnation_of(directory: str) -> int:
    with contextlib.suppress(CorruptionError, ForeignFileError):
        entry = read_meta(directory)
        return 0 if entry is None else entry.incarnation
    return 0


def rewrite_index(directory: str, ledger_id: int) -> None:
    """Write the index and the end marks of a ledger as its frames say."""
    link = _link_of(directory, ledger_id)
    if link is None:
        return
    header, path = link.header, log_path(directory, ledger_id)
    scan = scan_log(
        path,
        chain_seed=header.chain_seed,
        base_publish_ms=header.base_publish_ms,
        end=link.end_offset if link.is_closed else None,
        last_entry_id=link.last_entry_id,
    )
    for offset, length in scan.bad_trailers:
        _overwrite(path, pack_trailer(length), offset)
    write_index(directory, header, bytes(scan.slots))
    failpoints.hit("repair:index_written")


def _link_of(directory: str, ledger_id: int) -> Link | None:
    words = trusted_words(directory, KIND_TOPIC)
    chain = walk_segments(directory, words[TopicWord.TRIM] if words else 0)
    return next((link for link in chain.links if link.header.ledger_id == ledger_id), None)


def rewrite_journal(directory: str, is_topic: bool, now_ms: int, quarantine: Quarantine) -> bool:
    """Start a new generation of a journal from all commands that can be read, also behind damaged ones.

    A subscription delivers again from the last position that is known; see
    `_engine.subscription.subscription_files`.

    Returns:
        False, and nothing was changed, if no command of a terminated topic can be read, or nothing says which
        subscription it is.
    """
    kind = KIND_TOPIC if is_topic else KIND_SUBSCRIPTION
    if is_topic:
        topic = TopicReplica()
        base = _replay_best(directory, kind, topic)
        if base is None:
            words = trusted_words(directory, kind)
            if words and words[TopicWord.STATE] & TERMINATED:
                return False  # only the words say so, and a new generation has them derived from the journal
            topic, base = TopicReplica(), JournalBase(0, 0, 0)  # sequence ids are found in the log again
        snapshot = topic.snapshot()
    else:
        subscription = SubscriptionReplica()
        base = _replay_best(directory, kind, subscription) or JournalBase(0, 0, 0)
        if not complete(subscription, directory, "", position_at_rest(directory), now_ms):
            return False
        snapshot = subscription.snapshot()
    journals, snapshots = generations(directory)
    for generation in journals:
        quarantine.copy(filenames.journal_path(directory, generation))
    for generation in snapshots:
        quarantine.copy(filenames.snapshot_path(directory, generation))
    newest = max([*journals, *snapshots, 0]) + 1
    fd, _, _ = write_generation(directory, newest, kind, snapshot, base, now_ms)
    os.close(fd)
    failpoints.hit("repair:journal_written")
    distrust(directory, quarantine)
    return True


def redelivery(directory: str) -> str:
    """From where a damaged subscription delivers again when its journal is written again, in words."""
    replica = SubscriptionReplica()
    _replay_best(directory, KIND_SUBSCRIPTION, replica)
    if not complete(replica, directory, "", position_at_rest(directory), 0):
        return "when a consumer subscribes by its name, which nothing here says"
    return subscription_files.from_where(replica.state.mark_delete)


def _replay_best(directory: str, kind: int, replica: Replica) -> JournalBase | None:
    """Give a replica all commands that can be read; None if there are none, and something is damaged."""
    journal = _best_journal(directory, kind)
    if journal is None:
        return None
    damage: list[Damage] = []
    replayed = replay(journal, replica, damage)
    if not replayed.commands and not journal.snapshot_size and damage:
        return None
    return JournalBase(journal.generation, replayed.crc, len(journal.data))


def _best_journal(directory: str, kind: int) -> JournalFile | None:
    """The journal that the commit word names; where it is not to be believed, the one a recovery takes."""
    words = trusted_words(directory, kind)
    if words:
        word = words[TopicWord.JOURNAL if kind == KIND_TOPIC else SubscriptionWord.JOURNAL]
        with contextlib.suppress(CorruptionError, FileNotFoundError):
            generation, end = split_journal(word)
            return JournalFile(directory, generation, end)
    found = choose(directory, kind, [])
    if found.journal is None:
        return None
    return JournalFile(directory, found.journal.generation)  # with what stands behind a break


def _overwrite(path: str, data: bytes, offset: int) -> None:
    fd = disk.DISK.open_file(path, os.O_RDWR)
    try:
        disk.DISK.pwrite_all(fd, [data], offset)
        disk.DISK.fdatasync(fd, path)
    finally:
        os.close(fd)
