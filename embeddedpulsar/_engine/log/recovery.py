"""Finding the end of a topic's log when its control words cannot be believed (docs/recovery.md).

That is so after a reboot (the boot id in the ctl differs), in a copied directory (the ctl's device and inode
differ), and where the ctl is damaged or gone. Then the tail word may point before or behind what the disk
has, so it is derived again, from the frames:

1. Walk the segment headers back from the newest ledger. What is not on the way is a stray.
2. Follow the chain of frame checksums of the last ledger, and of those before it that may not have been on
   disk yet. Accept every frame that chains. Behind damage continue with the next frame that plausibly
   follows; the gap is reported, nothing is cut or deleted for it. The end of the last accepted frame is the
   cut.
3. Derive again what is derivable and does not fit: indexes, and the end marks of accepted frames.
4. Flush what was accepted, logs, indexes and names, before any reader gets it: a message that was
   seen once must survive the next power loss too.
5. Store the words, the tail last, and demand that the next append starts a new ledger: cursors may have
   been behind the cut, so its ids are not given out again. Nothing is taken over from the old words (a
   terminated topic is terminated again by its journal).
6. Adopt the control file for this boot and inode. Until here everything can be repeated from step 1.

The tail ledger after an accident: what is known of it where it is damaged, what a dead writer left.
"""

from __future__ import annotations

import os

from embeddedpulsar import damage
from embeddedpulsar._engine.cold.cold_ledger import is_away
from embeddedpulsar._engine.filenames import index_path, log_path
from embeddedpulsar._engine.format.control import KIND_TOPIC, TopicWord, journal_word, split_tail, tail_word
from embeddedpulsar._engine.format.frame import (
    FIRST_FRAME_OFFSET,
    pack_trailer,
)
from embeddedpulsar._engine.log.chain_scan import ChainScan, scan_log
from embeddedpulsar._engine.log.journal_file import choose
from embeddedpulsar._engine.log.segment import Ending, Segment
from embeddedpulsar._engine.log.segment_index import SegmentIndex, index_fits, visible_slots, write_index
from embeddedpulsar._engine.log.segments import Link, SegmentChain, walk_segments
from embeddedpulsar._engine.log.topic_control import (
    ATTENTION,
    DIRTY_SINCE_MS,
    MUST_ROLL,
    POISON_FROM,
    POISON_TO,
    TOUCHED,
    TopicControl,
)
from embeddedpulsar._engine.platform import disk, failpoints
from embeddedpulsar.damage import Damage, DamageHook
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Final

failpoints.declare(
    "recover:scanned",
    "recover:index_written",
    "recover:strays_removed",
    "recover:synced",
    "recover:words_stored",
    "recover:adopted",
)

WRITE_BACK_MS: Final = 120_000
"""Ledgers that ended this long before the newest were written back by the kernel long ago (it takes 30 s)."""
MAX_SCANNED: Final = 64
"""Ledgers scanned at most. Damage in older ones is found, skipped and reported when they are read."""


class RecoveredTail(NamedTuple):
    """Where the log ends. `ledger_id` is 0 if the topic has no ledger; the next append starts a new one."""

    ledger_id: int
    end_offset: int
    last_entry_id: int
    last_crc: int
    messages: int
    damaged: list[Damage]
    last_publish_ms: int = 0
    first_ledger_id: int = 0
    highest_ledger_id: int = 0


class _Believed(NamedTuple):
    """What may still be taken from the old words; 0 where they may not be believed."""

    tail: int
    synced: int
    trim: int
    recoveries: int


def recover_topic(
    directory: str,
    control: TopicControl,
    *,
    incarnation: int,
    boot_id: bytes,
    report: DamageHook | None = None,
) -> RecoveredTail:
    """Derive a topic's tail from its segments, store the words, adopt the control file.

    The caller holds the topic lock and found `ControlFile.is_trusted` false. May be repeated after a
    crash at any point. Costs a read of the ledgers of the last two minutes, with their checksums.

    Args:
        directory: the topic's.
        control: its mapped ctl; a new one if there was none.
        incarnation: of the topic, from its meta.
        boot_id: of the machine now.
        report: called with everything that is not as it was written, at the end, outside of any scan.

    Raises:
        OSError: a file cannot be read, written or flushed; nothing was adopted.
        StorageError: the segments contradict each other.
    """
    # Everything up to step 5 may be repeated after a crash: files are only completed, and the words
    # are not believed until the last step.
    believed = _believed(control)
    # 1. and 2.
    chain, scans, tail = _found(directory, believed)
    failpoints.hit("recover:scanned")
    reports = tail.damaged
    # 3.
    for link in chain.links:
        reports += _renew_index(directory, link, scans)
    failpoints.hit("recover:index_written")
    for ledger, scan in scans.items():
        _renew_trailers(log_path(directory, ledger), scan)
    # Strays go, or a later recovery might take one for the newest ledger.
    for ledger in chain.strays:
        _remove_stray(directory, ledger)
    failpoints.hit("recover:strays_removed")
    # 4.
    # What was accepted may never have reached the disk. A consumer that gets it now must get it after
    # the next power loss.
    for ledger in scans:
        _flush(log_path(directory, ledger))
    disk.DISK.fsync_dir(directory)
    failpoints.hit("recover:synced")
    # 5.
    _store_words(control, believed, chain, tail)
    failpoints.hit("recover:words_stored")
    # 6.
    control.adopt(incarnation, boot_id)
    failpoints.hit("recover:adopted")
    # Reported when all is stored: a hook of the application that raises cannot leave a recovery half
    # done.
    if report is not None:
        for item in tail.damaged:
            report(item)
    return tail


def derive_words(directory: str, control: TopicControl, report: DamageHook) -> None:
    """Derive a topic's tail from its segments, and store the words into a ``control`` that is in the memory
    of this process: steps 1, 2 and 5. No file is changed.

    Raises:
        OSError: a file cannot be read.
        StorageError: the segments contradict each other.
    """
    believed = _believed(control)
    chain, _, tail = _found(directory, believed)
    _store_words(control, believed, chain, tail)
    for item in tail.damaged:
        report(item)


def _found(directory: str, believed: _Believed) -> tuple[SegmentChain, dict[int, ChainScan], RecoveredTail]:
    """What the segments say, and where the log ends by them."""
    # No file is changed here, so an onlooker may come this way, too.
    chain, scans = _scan_chain(directory, believed)
    reports = list(chain.damaged)
    for link in chain.links:
        reports += _compare(directory, link, scans.get(link.header.ledger_id))
    tail = _tail(chain, scans, reports)
    reports += _lost_by_word(directory, believed, tail)
    return chain, scans, tail


def _is_same_file(control: TopicControl) -> bool:
    header = control.header
    if header is None:
        return False
    status = os.stat(control.path)
    return (header.device, header.inode) == (status.st_dev, status.st_ino)


def _believed(control: TopicControl) -> _Believed:
    """The synced word never ran ahead of the disk, so on the same inode it is a lower bound.

    Not so in a copy, whose log may be older than its ctl. Tail and trim point are used for reports alone:
    words have no checksum, and a wrong trim point would give away ledgers that are there.
    """
    # A damaged control file, or words that no writer could have stored: nothing of it is used.
    if control.header is None or not control.is_possible():
        return _Believed(0, 0, 0, 0)
    words = control.words
    same = _is_same_file(control)
    synced = words[TopicWord.SYNCED]
    if words[POISON_TO]:  # a flush failed: what lies between was lost, whatever later flushes say
        synced = min(synced, words[POISON_FROM])
    return _Believed(
        words[TopicWord.TAIL],
        synced if same else 0,
        words[TopicWord.TRIM],
        words[TopicWord.RECOVERIES],
    )


def _scan_chain(directory: str, believed: _Believed) -> tuple[SegmentChain, dict[int, ChainScan]]:
    """Link the segments and scan those that need it; ledgers without any entry are left out."""
    without: frozenset[int] = frozenset()
    # A newest ledger without frames that was never switched to is a stray: without it the one before
    # is the newest.
    while True:
        chain = walk_segments(directory, believed.trim, without=without)
        scans: dict[int, ChainScan] = {}
        if not chain.links:
            return chain, scans
        newest = chain.links[-1].header
        scans[newest.ledger_id] = _scan(directory, chain.links[-1])
        if scans[newest.ledger_id].frames or not _is_unswitched(directory, chain):
            break
        without |= {newest.ledger_id}
    # Backwards from the newest, as far as pages may not have been on the disk: up to the ledger of
    # the synced word, or to ledgers that ended two minutes before.
    synced_ledger, _ = split_tail(believed.synced)
    horizon = scans[newest.ledger_id].last_publish_ms - WRITE_BACK_MS
    after = newest
    for link in reversed(chain.links[:-1]):
        # A ledger ended when the next one was created.
        if after.ledger_id <= synced_ledger or after.created_ms < horizon or len(scans) >= MAX_SCANNED:
            break
        if is_away(directory, link.header.ledger_id):
            break  # what was offloaded was on the disk, and all before it
        scans[link.header.ledger_id] = _scan(directory, link)
        after = link.header
    # Older ledgers are scanned only if their index does not fit, because it has to be derived.
    for link in chain.links[:-1]:
        ledger = link.header.ledger_id
        if ledger not in scans and not (link.is_closed and index_fits(directory, link)):
            scans[ledger] = _scan(directory, link)
    return chain, scans


def _scan(directory: str, link: Link) -> ChainScan:
    header = link.header
    return scan_log(
        log_path(directory, header.ledger_id),
        chain_seed=header.chain_seed,
        base_publish_ms=header.base_publish_ms,
        end=link.end_offset if link.is_closed else None,
        last_entry_id=link.last_entry_id,
    )


def _is_unswitched(directory: str, chain: SegmentChain) -> bool:
    """Whether the newest ledger, which has no frames, was never the tail: the one before it went on.

    Its creator died between writing the header and switching the tail, and the next append still found room
    in the old ledger. No writer's unpublished frame can be taken for that: a process that finds the mark of a
    dead writer clears its frame, durably, before it continues.
    """
    # The ledger before went on behind the end that the newest header claims for it: so that header
    # was never the truth.
    if len(chain.links) < 2:
        return False
    newest, before = chain.links[-1].header, chain.links[-2]
    if newest.prev_ledger_id != before.header.ledger_id:
        return False
    beyond = scan_log(
        log_path(directory, before.header.ledger_id),
        chain_seed=newest.prev_last_crc,
        base_publish_ms=before.header.base_publish_ms,
        start=newest.prev_end_offset,
        first_entry_id=newest.prev_last_entry_id + 1,
        is_chain_only=True,
    )
    return beyond.frames > 0


def _compare(directory: str, link: Link, scan: ChainScan | None) -> list[Damage]:
    """Reports of the holes a scan crossed."""
    if scan is None:
        return []
    ledger = link.header.ledger_id
    path = log_path(directory, ledger)
    return [
        Damage(
            path, ledger, hole.first_entry_id, hole.last_entry_id, hole.offset, hole.end_offset, hole.reason
        )
        for hole in scan.holes
    ]


def _tail(chain: SegmentChain, scans: dict[int, ChainScan], reports: list[Damage]) -> RecoveredTail:
    if not chain.links:
        return RecoveredTail(0, 0, -1, 0, 0, reports, highest_ledger_id=chain.highest_ledger_id)
    newest = chain.links[-1].header.ledger_id
    scan = scans[newest]
    return RecoveredTail(
        newest,
        scan.end_offset,
        scan.last_entry_id,
        scan.last_crc,
        scan.messages,
        reports,
        scan.last_publish_ms,
        chain.links[0].header.ledger_id,
        chain.highest_ledger_id,
    )


def _lost_by_word(directory: str, believed: _Believed, tail: RecoveredTail) -> list[Damage]:
    """What the old tail word says was there, and is not."""
    ledger, end = split_tail(believed.tail)
    # Only what lies behind the end that was found. The bytes are counted, the entries are unknown.
    if ledger < tail.ledger_id or (ledger == tail.ledger_id and end <= tail.end_offset):
        return []
    path = log_path(directory, ledger)
    start = tail.end_offset if ledger == tail.ledger_id else FIRST_FRAME_OFFSET
    if end <= start:
        return []
    reason = "published, but not on the disk"
    return [Damage(path, ledger, -1, -1, start, end, reason, damage.LOST_TAIL)]


def _renew_index(directory: str, link: Link, scans: dict[int, ChainScan]) -> list[Damage]:
    ledger = link.header.ledger_id
    # Ledgers that were not scanned have an index that fits, or were not looked at.
    scan = scans.get(ledger)
    if scan is None or index_fits(directory, link, bytes(scan.slots)):
        return []
    path = index_path(directory, ledger)
    write_index(directory, link.header, bytes(scan.slots))
    return [Damage(path, ledger, -1, -1, 0, 0, "it was derived from the log again", damage.INDEX)]


def _renew_trailers(path: str, scan: ChainScan) -> None:
    """The only bytes of a log that recovery writes: they repeat the length of a frame that verified."""
    if not scan.bad_trailers:
        return
    fd = disk.DISK.open_file(path, os.O_RDWR)
    try:
        for offset, length in scan.bad_trailers:
            disk.DISK.pwrite_all(fd, [pack_trailer(length)], offset)
    finally:
        os.close(fd)


def _remove_stray(directory: str, ledger: int) -> None:
    for path in (log_path(directory, ledger), index_path(directory, ledger)):
        if os.path.lexists(path):
            disk.DISK.unlink(path)


def _flush(path: str) -> None:
    fd = disk.DISK.open_file(path, os.O_RDWR)
    try:
        disk.DISK.fsync(fd, path)
    finally:
        os.close(fd)


def _store_words(
    control: TopicControl, believed: _Believed, chain: SegmentChain, tail: RecoveredTail
) -> None:
    """Store what was derived, and zeros elsewhere.

    Waiters too: a process that waits on this very file looks again after its back-stop.
    """
    words = control.words
    closed = chain.links[:-1]
    # What is open, or prepared, is not known here; where it may begin the versions of segments say.
    revised = (link.header.ledger_id for link in chain.links if link.header.may_have_transactions)
    first_revised = next(revised, 0)
    # The word of the journal survives where it can be believed; else the files say how far it goes.
    if control.header is None or not control.is_possible():
        words[TopicWord.JOURNAL] = _journal_word(control.home.directory)
    # Other processes that have this file mapped hold state of the words before; the epoch makes that
    # void.
    control.raise_epoch(TopicWord.EPOCH)
    control.clear(
        *(TopicWord.EPOCH, TopicWord.TAIL, TopicWord.SYNCED, TopicWord.TRIM, TopicWord.OWNER),
        *(TopicWord.JOURNAL, TopicWord.FIRST_OPEN_TXN),
    )
    # A ledger that cannot be read now was not trimmed: its file stays, to be repaired or replaced.
    unread = [
        damaged.ledger_id
        for damaged in chain.damaged
        if believed.trim <= damaged.ledger_id < tail.first_ledger_id
    ]
    # The tail last but for the owner word, which makes every process look at the state word before it
    # appends.
    for index, value in (
        (TopicWord.FIRST_OPEN_TXN, tail_word(first_revised, FIRST_FRAME_OFFSET) if first_revised else 0),
        (TopicWord.ALLOCATED, tail.end_offset),
        (TopicWord.INDEX_ALLOCATED, 0),
        (TOUCHED, tail.end_offset),
        (TopicWord.TRIM, min([tail.first_ledger_id, *unread])),
        (TopicWord.TOTAL_MESSAGES, sum(max(link.messages, 0) for link in closed)),
        (TopicWord.TOTAL_BYTES, sum(max(link.end_offset - FIRST_FRAME_OFFSET, 0) for link in closed)),
        (TopicWord.TOTAL_ENTRIES, sum(link.last_entry_id + 1 for link in closed)),
        (TopicWord.LAST_PUBLISH_MS, tail.last_publish_ms),
        (TopicWord.RECOVERIES, believed.recoveries + 1 & _MASK),
        (DIRTY_SINCE_MS, 0),
        (POISON_FROM, 0),
        (POISON_TO, 0),
        (TopicWord.STATE, MUST_ROLL if tail.ledger_id else 0),
        (TopicWord.SYNCED, tail_word(tail.ledger_id, tail.end_offset)),
        (TopicWord.TAIL, tail_word(tail.ledger_id, tail.end_offset)),
        (TopicWord.OWNER, ATTENTION),
    ):
        words[index] = value


def _journal_word(directory: str) -> int:
    """The end of the journal as its files say, until its first use verifies it; 0 if there is none."""
    journal = choose(directory, KIND_TOPIC, []).journal
    return 0 if journal is None else journal_word(journal.generation, len(journal.data))


_MASK: Final = (1 << 64) - 1


def salvaged_ending(directory: str, ledger_id: int, end: int, error: Exception) -> tuple[Ending, Damage]:
    """The best account of a ledger that ends at `end` (the tail word is true). Under the topic lock.

    The caller starts a new ledger from it: nothing is ever appended behind damage. Frames first (an index
    alone may be lost), then the index (a last frame alone may be), then only the end offset.
    """
    # Each source gives less: frames give everything, the index no publish time, the word only where
    # it ends.
    ending, first_lost = _from_frames(directory, ledger_id, end), 0
    if ending is None:
        ending, first_lost = _from_index(directory, ledger_id, end), -1
    if ending is None:
        ending = Ending(ledger_id, end, -1, 0, 0, 0)
    offset = getattr(error, "offset", None)
    damage = Damage(
        log_path(directory, ledger_id),
        ledger_id,
        first_lost,
        -1,
        offset or 0,
        end,
        f"damage at the tail: {getattr(error, 'reason', '') or error}; the next entry starts a new ledger",
    )
    return ending, damage


def _from_frames(directory: str, ledger_id: int, end: int) -> Ending | None:
    try:
        segment = Segment.open(directory, ledger_id)
        if end == FIRST_FRAME_OFFSET:
            return segment.ending(end)
        # By headers alone: a body that is damaged does not hide how many messages there were.
        messages, offset = 0, FIRST_FRAME_OFFSET
        while True:
            frame = segment.frame_header(offset, end)
            messages += frame.message_count
            offset += frame.length
            if offset == end:
                return Ending(ledger_id, end, frame.entry_id, frame.crc, messages, frame.publish_time)
    except (CorruptionError, FileNotFoundError):
        return None


def _from_index(directory: str, ledger_id: int, end: int) -> Ending | None:
    try:
        index = SegmentIndex.open(directory, ledger_id, writable=False)
        entries = visible_slots(index, end)
        if not entries:
            return None
        slot = index.slot(entries - 1)
    except (CorruptionError, FileNotFoundError):
        return None
    return Ending(ledger_id, end, entries - 1, slot.crc, slot.messages, 0)
