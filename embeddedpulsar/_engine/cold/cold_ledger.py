"""A ledger whose log is in an offload location: the note of it that stays, `<ledger>.cold`."""

from __future__ import annotations

import contextlib
import os

from embeddedpulsar._engine.filenames import (
    COLD_SUFFIX,
    OFFLOAD,
    cold_path,
    ledgers_of,
    log_path,
)
from embeddedpulsar._engine.format.document import KIND_COLD_LEDGER, decode_document, encode_document
from embeddedpulsar._engine.format.frame import (
    SEGMENT_HEADER_SIZE,
    SegmentHeader,
    parse_segment_header,
)
from embeddedpulsar._engine.platform import descriptors, disk
from embeddedpulsar.exceptions import CorruptionError, ForeignFileError, StorageError
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Any, Final

_REMEDY: Final = "restore it from a backup; or, if the log is here, move it away and offload again"
UPLOADING: Final = "uploading"
"""Objects of this ledger may be in the location, of an attempt that goes on or died. The log is here."""
OFFLOADED: Final = "offloaded"
"""The location has all of it, verified. The log may be here too."""
REMOVING: Final = "removing"
"""The ledger was trimmed: the objects are to go."""


class ColdObject(NamedTuple):
    """A file in the location.

    Attributes:
        name: below the location.
        size: bytes.
        digest: SHA-256, in hexadecimal digits.
    """

    name: str
    size: int
    digest: str


class ColdLedger(NamedTuple):
    """What the note says. Times in ms since the epoch.

    Attributes:
        ledger_id: the ledger.
        state: `UPLOADING`, `OFFLOADED` or `REMOVING`.
        topic: full name, for messages.
        location: URI.
        prefix: what the names of its objects begin with; another one for each attempt.
        noted_ms: when the state was noted.
        released_ms: when the log was removed here first; 0 while it is kept. A log that is there all the same
            was fetched back.
        is_shared: whether another store uses the objects too, so that this one must not remove them.
        header: the first page of the log, without the zeros at its end.
        end_offset, entries, last_crc, messages: how far the ledger goes.
        log_digest: SHA-256 of the frames.
        index_crc: crc32 of the slots of its index.
        rows: of the table of messages; -1 if there is none, because they cannot be read without a key.
        objects: all files of it.
        owner: identity of the store that made the objects (`_engine.cold.location`), which alone may
        remove them; empty in notes of releases that had none: no store may.
        aborted: runs of entries of aborted transactions: the first of each, and the one behind its last. All
            transactions of the ledger are decided.
    """

    ledger_id: int
    state: str
    topic: str = ""
    location: str = ""
    prefix: str = ""
    noted_ms: int = 0
    released_ms: int = 0
    is_shared: bool = False
    header: bytes = b""
    end_offset: int = 0
    entries: int = 0
    last_crc: int = 0
    messages: int = 0
    log_digest: str = ""
    index_crc: int = 0
    rows: int = -1
    objects: tuple[ColdObject, ...] = ()
    owner: str = ""
    aborted: tuple[tuple[int, int], ...] = ()

    def page(self) -> bytes:
        """The first page of the log."""
        return self.header.ljust(SEGMENT_HEADER_SIZE, b"\0")

    def segment_header(self) -> SegmentHeader:
        """The header of the segment."""
        return parse_segment_header(self.page())

    def object_named(self, ending: str) -> ColdObject | None:
        """The object whose name ends so; None if there is none."""
        return next((each for each in self.objects if each.name.endswith(ending)), None)

    def fields(self) -> dict[str, Any]:
        """The form in a document."""
        fields = self._asdict() | {"objects": [list(each) for each in self.objects]}
        # Without transactions a note stays as earlier releases write it.
        aborted = fields.pop("aborted")
        return fields | ({"aborted": [list(run) for run in aborted]} if aborted else {})

    def packed(self) -> bytes:
        """The note as it is stored."""
        return encode_document(KIND_COLD_LEDGER, self.fields())

    def write(self, directory: str) -> None:
        """Replace the note in the directory of the topic, durably."""
        disk.DISK.atomic_write(cold_path(directory, self.ledger_id), self.packed(), True)


def parse_cold_ledger(data: bytes) -> ColdLedger:
    """The note in a document.

    Raises:
        CorruptionError: it is damaged, or something else.
    """
    fields = decode_document(data, KIND_COLD_LEDGER)
    try:
        # Fields of a newer release are left out; fields that an older release did not know have their
        # defaults.
        known = {name: fields[name] for name in ColdLedger._fields if name in fields}
        known["objects"] = tuple(ColdObject(*each) for each in known.get("objects", ()))
        known["aborted"] = tuple((int(first), int(end)) for first, end in known.get("aborted", ()))
        return ColdLedger(**known)
    except (TypeError, ValueError) as e:
        raise CorruptionError(reason=f"a note of an offloaded ledger with wrong values: {e}") from None


def read_cold_ledger(directory: str, ledger_id: int) -> ColdLedger | None:
    """The note of a ledger, in whatever state; None if there is none.

    Raises:
        CorruptionError: it is damaged.
    """
    path = cold_path(directory, ledger_id)
    try:
        data = disk.DISK.read_file(path)
    except FileNotFoundError:
        return None
    # Those that look after notes get a `CorruptionError`; readers get, by `offloaded_ledger`, an
    # error that they do not step over.
    try:
        return parse_cold_ledger(data)
    except (CorruptionError, ForeignFileError) as e:
        # Under this name it can only be a note, so what is not one is a damaged one.
        raise CorruptionError(path=path, reason=e.reason, offset=e.offset, remedy=_REMEDY) from None
    except StorageError as e:
        raise e.at(path) from None


def offloaded_ledger(directory: str, ledger_id: int) -> ColdLedger | None:
    """The note of a ledger that can be read back; None for any other.

    Raises:
        ForeignFileError: it is damaged. This is no `CorruptionError`, which readers step over as they step
            over damaged frames: the location has the messages, and they are read once the note is restored.
    """
    try:
        note = read_cold_ledger(directory, ledger_id)
    except CorruptionError as e:
        raise ForeignFileError(path=e.path, reason=e.reason, offset=e.offset, remedy=e.remedy) from None
    return note if note is not None and note.state == OFFLOADED else None


def cold_ledgers(directory: str) -> list[ColdLedger]:
    """All notes of a topic that can be read, the oldest ledger first; none if there is no such directory."""
    notes = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for ledger_id in ledgers_of(descriptors.names_in(directory), COLD_SUFFIX):
            with contextlib.suppress(CorruptionError):
                note = read_cold_ledger(directory, ledger_id)
                if note is not None:
                    notes.append(note)
    return notes


def damaged_notes(directory: str) -> dict[int, StorageError]:
    """The notes of a topic that are damaged, by their ledgers, each with the error that says what to do.

    Such a note is neither replaced nor removed: it is all that says which objects belong to the ledger, and
    whether its log may go.
    """
    errors: dict[int, StorageError] = {}
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for ledger_id in ledgers_of(descriptors.names_in(directory), COLD_SUFFIX):
            try:
                read_cold_ledger(directory, ledger_id)
            except CorruptionError as e:
                errors[ledger_id] = e
    return errors


def is_away(directory: str, ledger_id: int) -> bool:
    """Whether the log of a ledger is in a location and not here."""
    # The log first: while a ledger is offloaded both are there, and then the log is read.
    if os.path.exists(log_path(directory, ledger_id)):
        return False
    return offloaded_ledger(directory, ledger_id) is not None


def remove_unfinished_notes(directory: str) -> None:
    """Remove what processes left that died while they wrote a note. Under the offload lock."""
    for name in descriptors.names_in(directory):
        if name.endswith(".tmp") and (f"{COLD_SUFFIX}." in name or name.startswith(f"{OFFLOAD}.")):
            with contextlib.suppress(FileNotFoundError):
                disk.DISK.unlink(os.path.join(directory, name))
