"""Giving up the oldest ledgers of a topic."""

from __future__ import annotations

import contextlib
from typing import Final

from embeddedpulsar.format.control import TopicWord, split_tail
from embeddedpulsar.platform import descriptors, disk, failpoints
from embeddedpulsar.platform.file_lock import FileLock
from embeddedpulsar.storage.filenames import INDEX_SUFFIX, LOG_SUFFIX, index_path, ledgers_of, log_path
from embeddedpulsar.storage.segment_cache import SEGMENTS
from embeddedpulsar.storage.topic_control import TopicControl

failpoints.declare("trim:point_stored", "trim:unlinked")

_TRIM: Final = TopicWord.TRIM


def trim_before(
    directory: str, control: TopicControl, lock: FileLock, ledger_id: int, lock_timeout_s: float
) -> int:
    """Remove the ledgers before `ledger_id`, never the tail's; return how many segments went.

    Readers that have a segment mapped read it to its end; others jump to the first retained ledger.
    May be repeated: what a crash left is removed by the next call.
    """
    words = control.words
    try:
        lock.acquire(lock_timeout_s)
        # 1. The trim point. Whoever misses a file below it knows that it was trimmed, not lost.
        tail_ledger, _ = split_tail(words[TopicWord.TAIL])
        point = min(ledger_id, tail_ledger)
        if point > words[_TRIM]:
            words[_TRIM] = point
        point = words[_TRIM]
        if failpoints.ACTIVE:
            failpoints.hit("trim:point_stored")
    finally:
        lock.release()
    names = descriptors.names_in(directory)
    doomed = [log_path(directory, ledger) for ledger in ledgers_of(names, LOG_SUFFIX) if ledger < point]
    if doomed:
        # 2. Durably, or after a power loss a file might be gone and the trim point not yet there.
        control.flush()
    count = len(doomed)
    doomed += [index_path(directory, ledger) for ledger in ledgers_of(names, INDEX_SUFFIX) if ledger < point]
    SEGMENTS.forget_below(directory, point)
    # 3. The files, oldest first. A crash leaves some of them: strays below the trim point.
    for path in doomed:
        with contextlib.suppress(FileNotFoundError):  # another process trims too
            disk.DISK.unlink(path)
        if failpoints.ACTIVE:
            failpoints.hit("trim:unlinked")
    return count
