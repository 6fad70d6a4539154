"""What is known of the compactions of a topic: which compacted ledger holds, and how the last one ended."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Final

from embeddedpulsar._engine.format.document import KIND_COMPACTION, decode_document, encode_document
from embeddedpulsar._engine.platform import descriptors, disk, failpoints
from embeddedpulsar.damage import COMPACT_AGAIN, HOLE, TOPIC_FILES, Damage, DamageHook
from embeddedpulsar.exceptions import CorruptionError, ForeignFileError, UnsupportedFormatVersion
from embeddedpulsar.managed_ledger.compaction.compacted_ledger import CompactedLedger
from embeddedpulsar.managed_ledger.position import BEFORE_FIRST, Position
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.storage.filenames import compacted_in, compacted_path, compaction_path

failpoints.declare("compaction:published", "compaction:unlinked")

_ATTEMPTS: Final = 10


class CompactionRecord(NamedTuple):
    """The document about the compactions of a topic. Times in ms since the epoch, 0 for never.

    Attributes:
        file: number of the compacted ledger that holds; 0 before the first compaction.
        ledger, entry: its horizon.
        messages, size: what it holds.
        removed: messages that the last compaction left out.
        succeeded_ms: end of the last one that succeeded.
        failed_ms: end of the last one that failed.
        duration_ms: how long the last one took that succeeded.
        error: why the last one failed; empty if it succeeded.
    """

    file: int = 0
    ledger: int = 0
    entry: int = -1
    messages: int = 0
    size: int = 0
    removed: int = 0
    succeeded_ms: int = 0
    failed_ms: int = 0
    duration_ms: int = 0
    error: str = ""

    @property
    def horizon(self) -> Position:
        """The last entry that was compacted."""
        return Position(self.ledger, self.entry)

    def write(self, directory: str) -> None:
        """Replace the document of a topic: the commit of a compaction."""
        data = encode_document(KIND_COMPACTION, self._asdict())
        disk.DISK.atomic_write(compaction_path(directory), data, True)


def read_record(
    directory: str, incarnation: int | None, report: DamageHook | None = None
) -> CompactionRecord:
    """The record of a topic; one of zeros before the first compaction.

    Where the document is damaged, the newest compacted ledger holds: it had its name before the document did.

    Args:
        directory: of the topic.
        incarnation: which life of the topic the compacted ledger must be of; None for any.
        report: called with a document that is damaged.
    """
    try:
        data = disk.DISK.read_file(compaction_path(directory))
    except FileNotFoundError:
        return CompactionRecord()
    try:
        return _record_of(decode_document(data, KIND_COMPACTION))
    except (CorruptionError, ForeignFileError) as e:
        path = compaction_path(directory)
        if report is not None:
            report(
                Damage(
                    path,
                    offset=e.offset or 0,
                    reason=e.reason,
                    kind=TOPIC_FILES,
                    done="the newest compacted ledger holds",
                    remedy="nothing needs to be done: the next compaction writes it again",
                )
            )
        return _derived(directory, incarnation, f"{path}: {e.reason}")
    except UnsupportedFormatVersion as e:
        raise e.at(compaction_path(directory)) from None


def _record_of(fields: dict[str, Any]) -> CompactionRecord:
    known = {name: fields[name] for name in CompactionRecord._fields if name in fields}
    defaults = CompactionRecord._field_defaults
    if any(type(value) is not type(defaults[name]) for name, value in known.items()):
        raise CorruptionError(reason="a document about a compaction with wrong values")
    return CompactionRecord(**known)


def _derived(directory: str, incarnation: int | None, error: str) -> CompactionRecord:
    numbers = compacted_in(descriptors.names_in(directory)).values()
    for number in sorted((one for one in numbers if one > 0), reverse=True):
        try:
            found = CompactedLedger(compacted_path(directory, number), incarnation)
        except (CorruptionError, FileNotFoundError):
            continue
        try:
            return CompactionRecord(number, *found.horizon, found.messages, found.size, error=error)
        finally:
            found.close()
    return CompactionRecord(error=error)


def remove_others(directory: str, record: CompactionRecord) -> int:
    """Remove the compacted ledgers that do not hold: replaced ones, and what a crash left. Readers that have
    them mapped read on. Under the compaction lock; returns how many went."""
    removed = 0
    for name, number in sorted(compacted_in(descriptors.names_in(directory)).items()):
        if number != record.file or not number:
            with contextlib.suppress(FileNotFoundError):
                disk.DISK.unlink(os.path.join(directory, name))
                removed += 1
            failpoints.hit("compaction:unlinked")
    return removed


class CompactedLedgers:
    """The compacted ledger of one topic, as its readers find it.

    Role: made by the `Topic`, for those that read it compacted. Takes no lock: a compaction publishes by one
    rename, and the file that is replaced goes afterwards. Callers: any thread.

    Attributes:
        directory: of the topic.
        incarnation: which life of the topic this is.
        report: called with damage.
    """

    def __init__(self, directory: str, incarnation: int, report: DamageHook) -> None:
        self.directory: Final = directory
        self.incarnation: Final = incarnation
        self.report: Final = report

    def record(self) -> CompactionRecord:
        """See `read_record`."""
        return read_record(self.directory, self.incarnation, self.report)

    @property
    def horizon(self) -> Position:
        """The last entry that was compacted."""
        record = self.record()
        return record.horizon if record.file else BEFORE_FIRST

    def open(self) -> CompactedLedger | None:
        """Map the compacted ledger; None before the first compaction.

        Raises:
            CorruptionError: header or index are damaged.
        """
        for _ in range(_ATTEMPTS):
            record = self.record()
            if not record.file:
                return None
            with contextlib.suppress(FileNotFoundError):  # replaced since the record was read
                return CompactedLedger(compacted_path(self.directory, record.file), self.incarnation)
        path = compacted_path(self.directory, record.file)
        raise CorruptionError(path=path, reason="the compacted ledger is missing", remedy=COMPACT_AGAIN)

    def find_by_publish_time(self, publish_ms: int) -> Position | None:
        """The first entry that is left and was published at ``publish_ms`` or later; None if there is none
        before the horizon."""
        ledger = self.open()
        if ledger is None:
            return None
        try:
            return ledger.find_by_publish_time(publish_ms)
        finally:
            ledger.close()

    def report_block(self, error: CorruptionError, first: Position, horizon: Position) -> None:
        """Report a block that is stepped over."""
        offset = error.offset or 0
        path = error.path or self.directory
        reason = f"messages of the compacted ledger from {first} on, up to {horizon} at most: {error.reason}"
        place = Damage(path, first.ledger_id, first.entry_id, first.entry_id, offset, offset, reason, HOLE)
        self.report(place._replace(remedy=COMPACT_AGAIN))
