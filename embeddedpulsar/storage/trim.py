"""Giving up the oldest ledgers of a topic.

A process that trims looks at the subscriptions first, without a lock, and publishes the trim point
afterwards. One word makes that safe, RETREATS: a process that has put a subscription further back than it
was, or has made one, raises it under the topic lock before it reports that. So a trim point counts only if
the word is what it was before the subscriptions were looked at: until then they can only have moved forward.
"""

from __future__ import annotations

import contextlib
import math
from typing import Final

from embeddedpulsar.format.control import TopicWord, split_tail
from embeddedpulsar.platform import clock, descriptors, disk, failpoints
from embeddedpulsar.platform.file_lock import FileLock
from embeddedpulsar.storage.filenames import INDEX_SUFFIX, LOG_SUFFIX, index_path, ledgers_of, log_path
from embeddedpulsar.storage.segment_cache import SEGMENTS
from embeddedpulsar.storage.topic_control import TopicControl

failpoints.declare("trim:point_stored", "trim:unlinked")

_TRIM: Final = TopicWord.TRIM
_RETREATS: Final = TopicWord.RETREATS
EVERYTHING: Final = 1 << 62


def trim_before(
    directory: str, control: TopicControl, lock: FileLock, ledger_id: int, lock_timeout_s: float
) -> int:
    """Remove the ledgers before `ledger_id`, never the tail's; return how many segments went.

    Readers that have a segment mapped read it to its end; others jump to the first retained ledger.
    May be repeated: what a crash left is removed by the next call.
    """
    publish_trim_point(control, lock, ledger_id, lock_timeout_s)
    return remove_trimmed(directory, control)


def rewind_count(control: TopicControl, lock: FileLock, lock_timeout_s: float) -> int:
    """The count that `publish_trim_point` compares. To be read before the subscriptions are looked at."""
    try:
        lock.acquire(lock_timeout_s)
        return int(control.words[_RETREATS])
    finally:
        lock.release()


def note_retreat(control: TopicControl, lock: FileLock, lock_timeout_s: float) -> None:
    """Void trim points that were chosen before: a subscription was made, or put back.

    Called after it was, and before that is reported. A process that dies in between has reported nothing.
    """
    words = control.words
    try:
        lock.acquire(lock_timeout_s)
        words[_RETREATS] += 1
    finally:
        lock.release()


def publish_trim_point(
    control: TopicControl,
    lock: FileLock,
    ledger_id: int,
    lock_timeout_s: float,
    seen_retreats: int | None = None,
) -> bool:
    """Give up the ledgers before `ledger_id`, never the tail's; their files stay for the moment.

    Returns:
        False, and nothing done, if a subscription was made or put back since `seen_retreats` was read.
    """
    words = control.words
    try:
        lock.acquire(lock_timeout_s)
        if seen_retreats is not None and words[_RETREATS] != seen_retreats:
            return False
        # 1. The trim point. A process that misses a file below it knows that it was trimmed, not lost.
        tail_ledger, _ = split_tail(words[TopicWord.TAIL])
        point = min(ledger_id, tail_ledger)
        if point > words[_TRIM]:
            words[_TRIM] = point
        failpoints.hit("trim:point_stored")
    finally:
        lock.release()
    return True


def remove_trimmed(
    directory: str, control: TopicControl, most: int = EVERYTHING, within_s: float = math.inf
) -> int:
    """Remove the files of ledgers that were given up, at most `most` of them, and begin none after `within_s`
    seconds; return how many segments went, 0 when none is left.

    Needs no lock: no process makes a file below the trim point.
    """
    point = int(control.words[_TRIM])
    names = descriptors.names_in(directory)
    logs = {ledger for ledger in ledgers_of(names, LOG_SUFFIX) if ledger < point}
    indexes = {ledger for ledger in ledgers_of(names, INDEX_SUFFIX) if ledger < point}
    expired = sorted(logs | indexes)[:most]
    if expired:
        control.check_in_place()
        # 2. Durably, or after a power loss a file might be gone and the trim point not yet there.
        control.flush()
    removed = 0
    until = clock.perf_counter() + within_s
    try:
        # 3. The files, oldest first. A crash leaves some of them: strays below the trim point.
        for ledger in expired:
            for path in (log_path(directory, ledger), index_path(directory, ledger)):
                with contextlib.suppress(FileNotFoundError):  # another process trims too
                    disk.DISK.unlink(path)
                failpoints.hit("trim:unlinked")
            removed += ledger in logs
            if clock.perf_counter() > until:
                break
    finally:
        # 4. The maps of this process: as long as a process has one, the disk space is not given back.
        if expired:
            SEGMENTS.forget_below(control.home, expired[-1] + 1)
    return removed
