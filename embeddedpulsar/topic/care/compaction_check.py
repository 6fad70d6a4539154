"""The check of what compaction left of a topic."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from embeddedpulsar._engine.format.document import KIND_COMPACTION, decode_document
from embeddedpulsar._engine.log.compaction.compacted_ledger import (
    CompactedLedger,
    CompactionRecord,
    read_record,
    rows_of,
)
from embeddedpulsar._engine.log.filenames import (
    compacted_in,
    compacted_path,
    compaction_lock_path,
    compaction_path,
)
from embeddedpulsar._engine.log.log_check import Problem, unverified
from embeddedpulsar._engine.log.position import BEFORE_FIRST, Position
from embeddedpulsar._engine.platform import descriptors, disk
from embeddedpulsar.exceptions import StorageError
from embeddedpulsar.topic.care.store_report import COMPACTED, LEFTOVER


def check_compaction(
    directory: str, is_locked: Callable[[str], bool], watch: Callable[[str], object]
) -> Iterator[Problem]:
    """Verify every block of the compacted ledger of a topic, and that it is the one that is named.

    Args:
        directory: of the topic.
        is_locked: whether a process holds a lock.
        watch: called with the path of the compacted ledger before it is read.
    """
    path = compaction_path(directory)
    try:
        decode_document(disk.DISK.read_file(path), KIND_COMPACTION)
    except FileNotFoundError:
        return  # never compacted; what the first compaction leaves when it dies is found as unfinished
    except (OSError, StorageError) as e:
        found = unverified(COMPACTED, path, e)
        yield found
        if found.kind != COMPACTED:
            return
    record = read_record(directory, None)
    if record.file:
        path = compacted_path(directory, record.file)
        watch(path)
        try:
            yield from _check_ledger(CompactedLedger(path, None), record)
        except FileNotFoundError:
            if read_record(directory, None).file == record.file:  # else it was replaced meanwhile
                yield Problem(COMPACTED, path, 0, "the file is missing")
        except (OSError, StorageError) as e:
            yield unverified(COMPACTED, path, e)
    lock = compaction_lock_path(directory)
    if not (os.path.exists(lock) and is_locked(lock)):
        for name, number in compacted_in(descriptors.names_in(directory)).items():
            if 0 < number != record.file:
                text = "a compacted ledger that does not hold"
                yield Problem(LEFTOVER, os.path.join(directory, name), 0, text)


def _check_ledger(ledger: CompactedLedger, record: CompactionRecord) -> Iterator[Problem]:
    try:
        if (ledger.horizon, ledger.messages) != (record.horizon, record.messages):
            text = f"it has {ledger.messages} messages up to {ledger.horizon}, and another number is noted"
            yield Problem(COMPACTED, ledger.path, 0, text)
        last, messages = (BEFORE_FIRST, -1), 0
        for block, place in zip(rows_of(ledger), ledger.places, strict=True):
            ids = block.ids
            messages += block.rows
            for row in range(block.rows):
                at = (Position(ids.ledgers[row], ids.entries[row]), ids.indexes[row])
                if at <= last or at[0] > ledger.horizon:
                    text = f"{at[0]} stands behind {last[0]}, and the horizon is {ledger.horizon}"
                    yield Problem(COMPACTED, ledger.path, place.offset, text)
                    break
                last = at
        if messages != ledger.messages:
            text = f"{messages} messages where the header says {ledger.messages}"
            yield Problem(COMPACTED, ledger.path, 0, text)
    finally:
        ledger.close()
