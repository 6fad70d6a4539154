"""The committed segments of a topic directory, read without a lock and without the right to write.

Where the log ends is said by the control words, as long as they were written in this boot and on this very
file. Otherwise (after a reboot, or in a copied directory) the end of the last ledger is found by following
its frames; nothing is repaired, that is for the next process that opens the topic for writing.
"""

from __future__ import annotations

import os
from contextlib import closing

from embeddedpulsar._engine import filenames
from embeddedpulsar._engine.format.control import (
    CONTROL_SIZE,
    KIND_TOPIC,
    TopicWord,
    parse_control_header,
    split_tail,
)
from embeddedpulsar._engine.format.segment_header import SegmentHeader
from embeddedpulsar._engine.log.chain_scan import scan_log
from embeddedpulsar._engine.log.segment import (
    Segment,
    find_segment_header,
    is_never_written,
    ledgers_with_cold,
)
from embeddedpulsar._engine.log.topic_control import is_of_this_boot
from embeddedpulsar._engine.platform import descriptors
from embeddedpulsar._engine.platform.mapped_file import MappedFile
from embeddedpulsar.damage import MISSING_SEGMENT, SEGMENT_HEADER, Damage, DamageHook
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.records import NamedTuple


class SegmentInfo(NamedTuple):
    """One committed segment. Bytes and entries below its ends never change any more.

    Attributes:
        ledger_id: the ledger it holds.
        path, index_path: its two files.
        end_offset: first byte behind the last committed frame; `FIRST_FRAME_OFFSET` while there is none.
        entries: committed entries; their ids are 0 to entries - 1.
        messages: messages in them.
        base_publish_ms: what the publish times of its index slots count from.
        last_publish_ms: no entry was published later; publish times never go back within a topic.
    """

    ledger_id: int
    path: str
    index_path: str
    end_offset: int
    entries: int
    messages: int
    base_publish_ms: int
    last_publish_ms: int


class _End(NamedTuple):
    """Where a ledger ends; numbers are -1 where they are still to be looked up."""

    offset: int
    entries: int = -1
    messages: int = -1
    last_publish_ms: int = -1


def committed_segments(
    directory: str, on_lost: DamageHook | None = None, since: int = 0
) -> list[SegmentInfo]:
    """The segments of a topic, oldest first; empty when nothing was ever published.

    Costs some 0.1 ms per segment. A segment that is trimmed meanwhile is either listed or not.

    Args:
        directory: of the topic.
        on_lost: called with segments that should be there and cannot be read, which are left out; may raise.
        since: the oldest ledger that is wanted.

    Raises:
        FileNotFoundError: there is no such directory.
        CorruptionError: a segment is missing or has no readable header, and there is no ``on_lost``.
    """
    # Without words (another boot, a copy) the end is derived from the frames of the newest ledger.
    words = _control_words(directory)
    lost = on_lost or _refuse
    if words is None:
        ledger, end = _derived_end(directory, 1 << 32, lost)
        trim = 0
    else:
        tail, trim = words
        ledger, offset = split_tail(tail)
        end = _End(offset)
    infos: list[SegmentInfo] = []
    latest = 1 << 63  # no entry of the segment at hand was published later
    # From the newest to the oldest along the links. Where a header is lost, the listing takes its
    # place, as in readers.
    while ledger and ledger >= max(trim, since):
        try:
            header, info = _describe(directory, ledger, end, latest)
        except FileNotFoundError:
            # The trim point is read again: what it says now decides between trimmed and lost.
            now = _control_words(directory)
            if now is None or ledger < now[1]:
                break  # trimmed since we began
            reason = f"the segment of ledger {ledger} is gone, although it was not trimmed; restore the file"
            lost(_lost(directory, ledger, end, reason, MISSING_SEGMENT))
            ledger, end = _derived_end(directory, ledger, lost)
            continue
        except CorruptionError as e:
            lost(_lost(directory, ledger, end, f"{e.reason}; {e.remedy}", SEGMENT_HEADER))
            ledger, end = _derived_end(directory, ledger, lost)
            continue
        infos.append(info)
        latest = header.base_publish_ms
        end = _End(header.prev_end_offset, header.prev_last_entry_id + 1, header.prev_messages)
        ledger = header.prev_ledger_id
    infos.reverse()
    return infos


def is_trimmed(directory: str, ledger_id: int) -> bool:
    """Whether a ledger that was there once was trimmed, or went with its topic; if not, its file is lost."""
    try:
        tail_and_trim = _control_words(directory)
    except FileNotFoundError:
        return True
    return tail_and_trim is not None and ledger_id < tail_and_trim[1]


def is_trimmed_behind(place: tuple[int, int], oldest: SegmentInfo) -> bool:
    """Whether entries at or behind a place were trimmed; the oldest segment tells."""
    # Ledger 0 is before everything, and no ledger that was trimmed.
    if not 0 < place[0] < oldest.ledger_id:
        return False
    try:
        # The oldest ledger says what was before it: the id of the last ledger and its last entry. If the
        # place is behind those, it was at the very end and nothing behind it went.
        segment = Segment.open(os.path.dirname(oldest.path), oldest.ledger_id)
    except (FileNotFoundError, CorruptionError):
        # It cannot tell any more, and the ledger of the place is gone: that counts as loss.
        return True
    last = segment.header.prev_ledger_id, segment.header.prev_last_entry_id
    segment.close()
    return last >= place


def topic_incarnation(directory: str) -> int:
    """Which life of the topic this directory holds; 0 when its control file cannot tell.

    A topic that was deleted and made again under the same name has another one.
    """
    try:
        with closing(_open_control(directory)) as control:
            return parse_control_header(control.view, KIND_TOPIC).incarnation
    except (FileNotFoundError, CorruptionError):
        return 0


def _lost(directory: str, ledger: int, end: _End, reason: str, kind: str) -> Damage:
    first = 0 if end.entries >= 0 else -1
    last = end.entries - 1 if end.entries >= 0 else -1
    return Damage(filenames.log_path(directory, ledger), ledger, first, last, 0, 0, reason, kind)


def _refuse(report: Damage) -> None:
    raise CorruptionError(path=report.path, offset=report.offset, reason=report.reason)


def _open_control(directory: str) -> MappedFile:
    return MappedFile.open(filenames.control_path(directory), writable=False, size=CONTROL_SIZE)


def _control_words(directory: str) -> tuple[int, int] | None:
    """(tail word, first retained ledger id), or None where the words may not be believed."""
    if not os.path.isdir(directory):
        raise FileNotFoundError(directory)
    try:
        with closing(_open_control(directory)) as control:
            # Both conditions of trust: this very file, and this boot.
            header = parse_control_header(control.view, KIND_TOPIC)
            here = (control.device, control.inode)
            if (header.device, header.inode) != here or not is_of_this_boot(header, directory):
                return None
            return control.words[TopicWord.TAIL], control.words[TopicWord.TRIM]
    except (FileNotFoundError, CorruptionError):
        return None


def _describe(directory: str, ledger: int, end: _End, latest: int) -> tuple[SegmentHeader, SegmentInfo]:
    segment = Segment.open(directory, ledger)
    header = segment.header
    # The next header does not say when the last entry was published, so its frame does.
    if end.last_publish_ms < 0:
        end = _completed(segment, end, latest)
    info = SegmentInfo(
        ledger,
        segment.path,
        filenames.index_path(directory, ledger),
        end.offset,
        end.entries,
        end.messages,
        header.base_publish_ms,
        end.last_publish_ms,
    )
    segment.close()
    return header, info


def _completed(segment: Segment, end: _End, latest: int) -> _End:
    """`end` with its numbers: from the last frame and its slot, else from all frames."""
    try:
        ending = segment.ending(end.offset)
    # With the numbers of the next header only the time is missing, and the base of the next ledger
    # bounds it.
    except (CorruptionError, FileNotFoundError):
        if end.entries >= 0:
            return end._replace(last_publish_ms=latest)
        header = segment.header
        scan = scan_log(
            segment.path,
            chain_seed=header.chain_seed,
            base_publish_ms=header.base_publish_ms,
            end=end.offset,
        )
        return _End(end.offset, scan.last_entry_id + 1, scan.messages, scan.last_publish_ms)
    return _End(end.offset, ending.last_entry_id + 1, ending.messages, ending.last_publish_ms)


def _derived_end(directory: str, below: int, lost: DamageHook) -> tuple[int, _End]:
    """The last ledger below an id that has any entries, and where its frames end; ledger 0 without one."""
    # A ledger without frames counts only if it is the first of the topic; any other is one that was
    # never switched to.
    for ledger in reversed(ledgers_with_cold(directory, descriptors.names_in(directory))):
        if ledger >= below:
            continue
        path = filenames.log_path(directory, ledger)
        try:
            header = find_segment_header(directory, ledger).header
            scan = scan_log(path, chain_seed=header.chain_seed, base_publish_ms=header.base_publish_ms)
        except FileNotFoundError:
            continue  # removed meanwhile
        except CorruptionError as e:
            if not is_never_written(path):  # else its creator died before the header was written
                lost(_lost(directory, ledger, _End(0), f"{e.reason}; {e.remedy}", SEGMENT_HEADER))
            continue
        if scan.frames or not header.prev_ledger_id:
            return ledger, _End(scan.end_offset, scan.last_entry_id + 1, scan.messages, scan.last_publish_ms)
    return 0, _End(0)
