"""A piece of one segment to be read: what a plan consists of. Numbers and strings only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EntryRange:
    """Entries `first_entry` up to, not including, `end_entry` of one segment; half-open like all ranges here.

    Attributes:
        topic: full name of the topic, or of its partition.
        partition: index of the partition, -1 for none.
        ledger_id: the ledger.
        path, index_path: the files of the segment.
        first_entry, end_entry: ids of the entries.
        first_offset, end_offset: bytes of the segment they lie in.
        skip: messages at the start of the first entry that are left out.
        keep: messages of the last entry (end_entry - 1) that are read; 0 for all of them.
        log_start: the oldest ledger of the log when this was planned; what lay before it was trimmed by then.
    """

    topic: str
    partition: int
    ledger_id: int
    path: str
    index_path: str
    first_entry: int
    end_entry: int
    first_offset: int
    end_offset: int
    skip: int = 0
    keep: int = 0
    log_start: int = 0

    @property
    def size(self) -> int:
        """Bytes of the segment the range covers."""
        return self.end_offset - self.first_offset
