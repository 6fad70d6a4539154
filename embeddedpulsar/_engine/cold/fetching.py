"""Bringing the log of an offloaded ledger back: fetched, put together, verified, and given its name again.

Objects of topics that were deleted: removed by the call that deletes, or by a process that offloads later.

A deletion moves the notes of the topic's ledgers into ``offloaded/`` of the store, which needs no location.
What a location refuses stays there, and is tried again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator

from embeddedpulsar._engine.cold.cold_ledger import (
    OFFLOADED,
    ColdLedger,
    cold_ledgers,
    offloaded_ledger,
    parse_cold_ledger,
)
from embeddedpulsar._engine.cold.location import LocationError, hadoop_uri, is_own, location_of
from embeddedpulsar._engine.filenames import COLD_SUFFIX, fetch_lock_path, log_path
from embeddedpulsar._engine.format.frame import FIRST_FRAME_OFFSET
from embeddedpulsar._engine.platform import descriptors, disk, failpoints, nofollow, package_log, timing
from embeddedpulsar._engine.platform.access import FULL
from embeddedpulsar._engine.platform.disk import rights_in
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar.exceptions import (
    ColdReadError,
    CorruptionError,
    InvalidConfiguration,
    LockTimeout,
    PulsarException,
    StorageFullError,
)
from embeddedpulsar.records import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any, Final

    from embeddedpulsar._engine.cold.location import Location


MOST_FETCHED: Final = 4
"""So many logs of a topic that were fetched back stay here, the last ones; each is as large as its ledger."""
FRAMES: Final = ".frames.parquet"
MESSAGES: Final = ".messages.parquet"
MANIFEST: Final = ".manifest.json"
ENDINGS: Final = (MANIFEST, MESSAGES, FRAMES)
"""What the names of the objects of a ledger end with, in the order in which they are removed."""
_FETCHED: Final = ".fetched.tmp"
_TOGETHER: Final = 512
_LARGE: Final = 1 << 20
_LOCK_S: Final = 600.0
_SHOWN_S: Final = 1.0
"""How long a fetch takes before the log says how far it is; then twice as long, and so on."""
REMEDY: Final = (
    "nothing is lost or skipped: make the location readable and call again; if its files are damaged, put "
    "back a copy of them"
)

failpoints.declare("fetch:written", "fetch:renamed")


def fetch(directory: str, note: ColdLedger) -> str:
    """See `_engine.log.chain_scan.fetch`. One process and thread at a time fetches for a topic; the
    others find the log when it is there. A process that may not write there gets a copy of its own."""
    path = log_path(directory, note.ledger_id)
    try:
        # One fetch at a time for each topic: it may be gigabytes, and those that wait find the log
        # when it is there.
        lock = FileLock(fetch_lock_path(directory))
    except FileNotFoundError:
        raise FileNotFoundError(path) from None  # the topic was deleted
    except PermissionError:
        return _fetch_beside(note)
    try:
        lock.acquire(_LOCK_S)
        # Work that must not wait, on a timer or an event loop, does not begin what may take minutes.
        if not timing.left(_LOCK_S):
            raise LockTimeout(
                f"ledger {note.ledger_id} of {note.topic} is fetched back by a call that may wait"
            )
        # Looked at again under the lock: another process may have fetched it, or the ledger was
        # trimmed.
        if os.path.exists(path):
            return path
        current = offloaded_ledger(directory, note.ledger_id)
        if current is None:
            raise FileNotFoundError(path)
        # What a killed fetch left goes first; room is made before, so the limit holds while the new
        # log is written.
        _remove_unfinished(directory)
        _make_room(directory, current)
        _fetch_to(current, f"{path}{_FETCHED}", path)
    finally:
        lock.release()
        lock.close()
    text = "%s: ledger %d was fetched back from %s"
    package_log.info(text, note.topic, note.ledger_id, note.location, topic=note.topic)
    return path


def _fetch_to(note: ColdLedger, building: str, path: str) -> None:
    fd = disk.DISK.create_exclusive(building)
    shown_s, pause_s = timing.CLOCK.monotonic(), _SHOWN_S
    text = "%s: fetching ledger %d back from %s"
    package_log.info(text, note.topic, note.ledger_id, note.location, topic=note.topic)
    try:
        try:
            # Frames are small, so some hundred are written by one call; a large one goes at once.
            offset, pieces = 0, list[bytes]()
            for piece in log_of(note):
                pieces.append(piece)
                if len(pieces) == _TOGETHER or len(piece) >= _LARGE:
                    offset += disk.DISK.pwrite_all(fd, pieces, offset)
                    pieces = []
                    if timing.CLOCK.monotonic() - shown_s >= pause_s:
                        _show(note, offset)
                        shown_s, pause_s = timing.CLOCK.monotonic(), 2 * pause_s
            disk.DISK.pwrite_all(fd, pieces, offset)
        except StorageFullError as error:
            raise refusal(note, str(error), "make room on the disk of the store, and call again") from error
        # Flushed before it has the name, or a power loss would leave a damaged log of that name.
        disk.DISK.fsync(fd, building)
        failpoints.hit("fetch:written")
        disk.DISK.replace(building, path)
        failpoints.hit("fetch:renamed")
    # Also a Ctrl-C: what was written so far is not whole, and under its own name it would never be
    # used.
    except BaseException:
        with contextlib.suppress(OSError):
            disk.DISK.unlink(building)
        raise
    finally:
        os.close(fd)


def _show(note: ColdLedger, offset: int) -> None:
    package_log.info(
        "%s: fetching ledger %d back: %d of %d MiB",
        *(note.topic, note.ledger_id, offset >> 20, note.end_offset >> 20),
        topic=note.topic,
    )


def _fetch_beside(note: ColdLedger) -> str:
    """A copy of the log in the directory for temporary files; it goes when the caller has opened it."""
    # This process may not write to the store, so it has a copy, which has no name once the caller has
    # opened it.
    fd, path = tempfile.mkstemp(".log", "embeddedpulsar-", nofollow.canonical(tempfile.gettempdir()))
    try:
        with os.fdopen(fd, "wb") as out:
            out.writelines(log_of(note))
    except BaseException as error:
        disk.DISK.unlink(path)
        if isinstance(error, OSError) and error.errno in FULL:
            raise refusal(
                note, str(error), f"make room in {os.path.dirname(path)}, and call again"
            ) from error
        raise
    return path


def log_of(note: ColdLedger) -> Iterator[bytes]:
    """The bytes of the log of an offloaded ledger, verified as a whole when the last one was given.

    Raises:
        ColdReadError: they cannot be had.
    """
    # Without a table of messages (encrypted topics) the frames are whole.
    frames, messages = note.object_named(FRAMES), note.object_named(MESSAGES)
    if frames is None:
        raise refusal(note, "the note of it names no frames")
    digest, size = hashlib.sha256(), FIRST_FRAME_OFFSET
    from embeddedpulsar._engine.cold.frames import read_frames

    # The header page stands in the note, frames come from the location. The digest of all decides at
    # the end, so a caller that writes must not use what it got before.
    yield note.page()
    try:
        location = location_of(note.location)
        with contextlib.ExitStack() as opened:
            table = None if messages is None else opened.enter_context(location.verified(messages))
            for frame in read_frames(opened.enter_context(location.verified(frames)), table):
                digest.update(frame)
                size += len(frame)
                yield frame
    # Everything that may come of damaged or foreign bytes in pyarrow. The reader gets one error that
    # names the location.
    except (LocationError, CorruptionError, OSError, ValueError, LookupError, TypeError) as error:
        reason = error.reason if isinstance(error, CorruptionError) else text_of(error)
        raise refusal(note, reason) from error
    if (size, digest.hexdigest()) != (note.end_offset, note.log_digest):
        raise refusal(note, "what is there is not what was stored")


def verify(note: ColdLedger, location: Location) -> None:
    """Compare the files of a ledger in its location with the note, by reading them.

    Raises:
        LocationError: one is missing, or has other bytes.
    """
    # The note has size and digest of each object, of the moment when it was written.
    for stored in note.objects:
        digest = location.digest(stored.name)
        if digest != (stored.size, stored.digest):
            raise LocationError(
                f"{location.path(stored.name)} has {digest[0]} bytes with SHA-256 {digest[1][:16]}..., where "
                f"{stored.size} bytes with {stored.digest[:16]}... were stored"
            )


def problem_of(note: ColdLedger) -> str:
    """What is wrong with the objects of an offloaded ledger, by their sizes; "" for nothing."""
    try:
        location = location_of(note.location)
        for stored in note.objects:
            size = location.size(stored.name)
            if size != stored.size:
                text = "is missing" if size is None else f"has {size} bytes, not {stored.size}"
                return f"{location.path(stored.name)} {text}"
    except (LocationError, InvalidConfiguration, ImportError) as error:
        return f"the location {note.location} cannot be looked at: {str(error).strip()}"
    return ""


def text_of(error: BaseException) -> str:
    """What an error says, or which it is."""
    return str(error).strip() or type(error).__name__


def refusal(note: ColdLedger, reason: str, remedy: str = REMEDY) -> ColdReadError:
    """The error for a ledger that cannot be read."""
    return ColdReadError(
        f"{note.topic}: entries {note.ledger_id}:0 to {note.ledger_id}:{note.entries - 1} were offloaded to "
        f"{note.location} and cannot be read back: {reason}; {remedy}"
    )


class MessageTable:
    """The table of messages of an offloaded ledger, which is read without fetching the log.

    Args:
        note: of the ledger, which has such a table.

    Attributes:
        entries: of the ledger.
        uri: of the table, as Hadoop and Spark write it.
    """

    def __init__(self, note: ColdLedger) -> None:
        stored = note.object_named(MESSAGES)
        # A note has the number of rows together with the name of their table.
        assert stored is not None
        self._note: Final = note
        self._stored: Final = stored
        self.entries: Final = note.entries
        self.uri: Final = hadoop_uri(note.location, stored.name)

    @contextlib.contextmanager
    def opened(self, failure: type[Exception]) -> Iterator[Any]:
        """Its bytes for reading at any place, compared as a whole with what was stored.

        Args:
            failure: what the library that reads them raises for bytes that it does not understand, besides
                ValueError and LookupError.

        Raises:
            ColdReadError: the location, its library or the body of the ``with`` failed.
        """
        try:
            with location_of(self._note.location).verified(self._stored) as file:
                yield file
        # Whatever a location, a library below it or foreign bytes raise becomes one refusal that names the
        # ledger. LookupError: the table lacks a column.
        except (LocationError, InvalidConfiguration, OSError, ValueError, LookupError, failure) as error:
            raise refusal(self._note, text_of(error)) from error


def message_table(directory: str, ledger_id: int) -> MessageTable | None:
    """The table of messages of a ledger of a topic; None if it is not offloaded, or has none: its messages
    are encrypted, and the offload had no key.

    Raises:
        ForeignFileError: as of `offloaded_ledger`.
    """
    note = offloaded_ledger(directory, ledger_id)
    return MessageTable(note) if note is not None and note.rows >= 0 else None


def message_tables(directory: str) -> dict[int, MessageTable]:
    """All of a topic, by ledger; without those whose notes cannot be read."""
    return {
        note.ledger_id: MessageTable(note)
        for note in cold_ledgers(directory)
        if note.state == OFFLOADED and note.rows >= 0
    }


def _remove_unfinished(directory: str) -> None:
    for name in descriptors.names_in(directory):
        if name.endswith(_FETCHED):
            with contextlib.suppress(FileNotFoundError):
                disk.DISK.unlink(os.path.join(directory, name))


def _make_room(directory: str, note: ColdLedger) -> None:
    """Remove logs that were fetched back before, but for the last ones. Processes that read them read on."""
    # Only logs that were removed here before and came back. One that was never removed is kept on
    # purpose.
    fetched = []
    for each in cold_ledgers(directory):
        path = log_path(directory, each.ledger_id)
        # By the time of the file: the last ones that were fetched stay.
        if each.released_ms:
            with contextlib.suppress(FileNotFoundError):
                fetched.append((os.stat(path).st_mtime_ns, path))
    for _, path in sorted(fetched)[: max(0, len(fetched) - MOST_FETCHED + 1)]:
        with contextlib.suppress(FileNotFoundError):
            disk.DISK.unlink(path)


def has_leftovers(directory: str) -> bool:
    """Whether there are notes of deleted topics."""
    try:
        return any(name.endswith(COLD_SUFFIX) for name in descriptors.names_in(directory))
    except FileNotFoundError:
        return False


def remove_leftovers(directory: str) -> list[str]:
    """Remove the objects that notes in ``offloaded/`` name, and then the notes. Objects of another store
    stay.

    Returns:
        What was refused, as texts.
    """
    refused = []
    names = []
    with contextlib.suppress(FileNotFoundError):
        names = descriptors.names_in(directory)
    # One after the other; what a location refuses keeps its note, and the next call tries again.
    for name in sorted(name for name in names if name.endswith(COLD_SUFFIX)):
        path = os.path.join(directory, name)
        try:
            note = parse_cold_ledger(disk.DISK.read_file(path))
            # Objects first, then the note: a crash between leaves a note whose objects are gone, and
            # deleting them again does nothing. The other way round they would stay for ever.
            if is_own(note, directory):
                location, rights = location_of(note.location), rights_in(os.path.dirname(directory))
                for ending in ENDINGS:
                    location.delete(note.prefix + ending, rights)
            disk.DISK.unlink(path)
        except FileNotFoundError:
            continue  # another process removes them too
        except (LocationError, PulsarException, ImportError, OSError) as error:
            refused.append(f"objects of the deleted topic {name}: {str(error).strip()}")
    for text in refused:
        package_log.info("%s; it is tried again", text)
    return refused
