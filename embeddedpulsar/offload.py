"""Moving closed ledgers to a location outside of the store, as Parquet: which ledgers of a topic are due,
moving them in the background, and how it went last.

Each step of `upload` is followed by a failpoint. Whatever dies between two of them leaves the log here, and a
note that says which objects may be in the location; the next attempt removes these and begins again, under
other names. The log goes only after all objects were read back and compared, in `release`.

The messages of a ledger are a file of Parquet, with the columns of a batch read and the place of each.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, starmap
from typing import TYPE_CHECKING, Any, BinaryIO, Final
from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq

from embeddedpulsar._engine.cold.cold_ledger import (
    OFFLOADED,
    REMOVING,
    UPLOADING,
    ColdLedger,
    ColdObject,
    cold_ledgers,
    damaged_notes,
    remove_unfinished_notes,
)
from embeddedpulsar._engine.cold.fetching import (
    ENDINGS,
    FRAMES,
    MANIFEST,
    MESSAGES,
    has_leftovers,
    problem_of,
    refusal,
    remove_leftovers,
    verify,
)
from embeddedpulsar._engine.cold.frames import read_frames, write_frames
from embeddedpulsar._engine.cold.location import (
    Location,
    LocationError,
    check_location,
    is_own,
    location_of,
    make_owner,
)
from embeddedpulsar._engine.filenames import (
    COLD_SUFFIX,
    cold_path,
    index_path,
    ledgers_of,
    log_path,
    offload_lock_path,
)
from embeddedpulsar._engine.format.frame import (
    FIRST_FRAME_OFFSET,
    SEGMENT_HEADER_SIZE,
    SLOT_SIZE,
    SLOTS_OFFSET,
)
from embeddedpulsar._engine.log.entry_range import EntryRange
from embeddedpulsar._engine.log.segment_snapshot import LogTransactions, Runs, SegmentInfo
from embeddedpulsar._engine.log.segments import SEGMENTS, ClosedLedger
from embeddedpulsar._engine.log.topic_control import is_deleted
from embeddedpulsar._engine.platform import descriptors, disk, failpoints, package_log
from embeddedpulsar._engine.platform.disk import Rights, rights_in
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar._engine.platform.mapped_file import MappedFile
from embeddedpulsar._engine.platform.timing import Clock
from embeddedpulsar._engine.store.topic import OffloadRecord, read_offload_record
from embeddedpulsar._engine.store.topic_compaction import (
    ExclusiveWork,
    LongRunningProcessStatus,
    status_of,
)
from embeddedpulsar._engine.store.topic_lookup import transaction_fates
from embeddedpulsar.arrow import schema as names
from embeddedpulsar.arrow.columns import record_batches
from embeddedpulsar.arrow.mapped_segment import open_ahead, raise_damage, raise_gone
from embeddedpulsar.arrow.schema import ALL_COLUMNS, PLACE_COLUMNS, UnreadableMessage, arrow_schema
from embeddedpulsar.damage import TOPIC_FILES, Damage, DamageHook
from embeddedpulsar.exceptions import (
    CorruptionError,
    CryptoError,
    InvalidConfiguration,
    NotAllowedError,
    PulsarException,
    StorageError,
)
from embeddedpulsar.records import NamedTuple

if TYPE_CHECKING:
    from embeddedpulsar._engine.log.managed_ledger import ManagedLedger
    from embeddedpulsar._engine.store.policies.keeping import OffloadRules
    from embeddedpulsar.arrow.mapped_segment import DamageHandler, Source


COLUMNS: Final = (*ALL_COLUMNS, *PLACE_COLUMNS)
_ROWS: Final = 16_384
_LARGE: Final = 65_536
# A row group is what a reader decodes at once, and what statistics keep out: large enough for zstd and few
# statistics, small enough for the memory of a reader.
_GROUP_ROWS: Final = 1 << 17
_GROUP_BYTES: Final = 32 << 20
# Few values in a ledger, so a dictionary is smaller; payloads and keys would only fill one.
_REPEATED: Final = [names.TOPIC, names.PARTITION, names.PRODUCER_NAME, names.LEDGER_ID]
# What queries filter by. Statistics of payloads would store the largest and the smallest of them in the
# footer.
_WITH_STATISTICS: Final = [
    *(names.KEY, names.TOPIC, names.PUBLISH_TIME, names.EVENT_TIME, names.PARTITION, names.SEQUENCE_ID),
    *(names.LEDGER_ID, names.ENTRY_ID),
]


def write_messages(opened: Iterable[tuple[EntryRange, Source]], out: Any, on_damage: DamageHandler) -> int:
    """Write the messages of a ledger; returns how many there are.

    Raises:
        CorruptionError, CryptoError: see `record_batches`.
    """
    rows = 0
    with pq.ParquetWriter(
        out,
        arrow_schema(COLUMNS),
        compression="zstd",
        use_dictionary=_REPEATED,
        write_statistics=_WITH_STATISTICS,
        write_page_checksum=True,
    ) as writer:
        # Batches are gathered, since a Parquet file is small and quick to read only with few row groups.
        group: list[Any] = []
        size = 0
        for batch in record_batches(opened, COLUMNS, rows=_ROWS, large=_LARGE, on_damage=on_damage):
            rows += batch.num_rows
            group.append(batch)
            size += batch.nbytes
            if (
                size >= _GROUP_BYTES
                or sum(batch_of_group.num_rows for batch_of_group in group) >= _GROUP_ROWS
            ):
                _write(writer, group)
                group, size = [], 0
        if group:
            _write(writer, group)
    return rows


def _write(writer: Any, group: list[Any]) -> None:
    table = pa.Table.from_batches(group)
    writer.write_table(table, row_group_size=max(1, table.num_rows))


failpoints.declare(
    "offload:noted",
    "offload:encoded",
    "offload:object_written",
    "offload:verified",
    "offload:manifest_written",
    "offload:published",
    "offload:release_noted",
    "offload:log_unlinked",
    "offload:removal_noted",
    "offload:object_removed",
    "offload:note_unlinked",
)

VERSION: Final = 1


class LedgerSource(NamedTuple):
    """The topic whose ledgers are offloaded.

    Attributes:
        directory: of the topic.
        topic: full name.
        partition: -1 for none.
        folder: where its objects lie in a location.
        wall_ms: the time.
        check: raises if the work is to end: the topic is deleted or closed.
        leftovers: the directory ``offloaded`` of the store.
        report: called with damage.
    """

    directory: str
    topic: str
    partition: int
    folder: str
    wall_ms: Callable[[], int]
    check: Callable[[], object]
    leftovers: str
    report: DamageHook

    def rights(self) -> Rights:
        """Owner, group and mode of objects: those of the store."""
        return rights_in(os.path.dirname(self.leftovers))


class _Table(NamedTuple):
    """A file that is to be an object, in a file without a name."""

    ending: str
    file: BinaryIO


def upload(
    source: LedgerSource, location: Location, ledger: ClosedLedger, log_start: int, aborted: Runs = ()
) -> ColdLedger:
    """Copy a closed ledger to the location; returns the note, of which the log is still here.

    Args:
        source: the topic.
        location: takes the objects.
        ledger: all transactions of which are decided.
        log_start: the first ledger of the log.
        aborted: entries of those that were aborted: they are no messages.

    Raises:
        LocationError: the location failed, or gives back something else. Nothing has changed.
        StorageError: the ledger is damaged, or the disk is full. Nothing has changed.
    """
    # A random part: objects of an attempt that died are never those of a later one, so they can be removed at
    # any time.
    prefix = f"{source.folder}/{ledger.ledger_id:020d}-{os.urandom(6).hex()}"
    owner, rights = make_owner(source.leftovers, source.report), source.rights()
    noted_ms = source.wall_ms()
    note = ColdLedger(ledger.ledger_id, UPLOADING, source.topic, location.uri, prefix, noted_ms, owner=owner)
    # The note before the first object: what a kill leaves in the location is named here, and the next attempt
    # removes it.
    note.write(source.directory)
    failpoints.hit("offload:noted")
    try:
        with contextlib.ExitStack() as opened:
            note, tables = _encoded(source, ledger, log_start, note._replace(aborted=aborted), opened)
            failpoints.hit("offload:encoded")
            for cold_object, table in zip(note.objects, tables, strict=True):
                # Between two objects: the topic may be deleted or closed meanwhile, and an upload takes
                # minutes.
                source.check()
                location.write(cold_object.name, table.file, rights)
                failpoints.hit("offload:object_written")
        # All objects are read back before anything counts on them: a location may lose or change what it
        # acknowledged.
        verify(note, location)
        failpoints.hit("offload:verified")
        source.check()
        # The manifest is the last: what has one is whole.
        manifest = _manifest(note)
        with tempfile.TemporaryFile() as file:
            file.write(manifest)
            location.write(prefix + MANIFEST, file, rights)
        # One byte more than it has: a longer object is another one.
        if location.read(prefix + MANIFEST, len(manifest) + 1) != manifest:
            raise LocationError(f"{location.path(prefix + MANIFEST)} is not what was stored")
        failpoints.hit("offload:manifest_written")
        source.check()
        # From here on the ledger is in the location. Until here the log counts, whatever is there.
        note = note._replace(state=OFFLOADED, noted_ms=source.wall_ms())
        note.write(source.directory)
    except Exception:
        # The next attempt removes what is left, unless the topic was deleted, and the note with it.
        with contextlib.suppress(LocationError, StorageError, OSError):
            discard(source, note, location)
        raise
    failpoints.hit("offload:published")
    return note


def _encoded(
    source: LedgerSource, ledger: ClosedLedger, log_start: int, note: ColdLedger, opened: contextlib.ExitStack
) -> tuple[ColdLedger, list[_Table]]:
    """The tables of a ledger, from which its log was put together again as it is; and the note of them."""
    path, end = log_path(source.directory, ledger.ledger_id), ledger.end_offset
    # The log is read through a map of its own: it is closed, so nothing is appended.
    mapped = MappedFile.open(path, writable=False)
    opened.callback(mapped.close)
    if mapped.size < end:
        raise CorruptionError(
            path=path, reason=f"the segment has {mapped.size} bytes, and {end} were committed"
        )
    # Beside the log and not in /tmp: a ledger may be a gigabyte, and the disk of the store has room for it.
    messages: BinaryIO | None = opened.enter_context(tempfile.TemporaryFile(dir=source.directory))
    frames = opened.enter_context(tempfile.TemporaryFile(dir=source.directory))
    planned = EntryRange(
        *(
            source.topic,
            source.partition,
            ledger.ledger_id,
            path,
            index_path(source.directory, ledger.ledger_id),
        ),
        *(0, ledger.last_entry_id + 1, FIRST_FRAME_OFFSET, end),
        log_start=log_start,
        aborted=note.aborted,
    )
    rowless = frozenset(chain.from_iterable(starmap(range, note.aborted)))
    # Messages that need a key, or a consumer, are in no table: they are offloaded as frames alone.
    try:
        rows = write_messages(open_ahead([planned], None, raise_gone), messages, raise_damage)
    except (CryptoError, ImportError, UnreadableMessage):  # only a consumer can read it
        messages, rows = None, -1
    with mapped.view[:end] as view:
        digest = write_frames(view, FIRST_FRAME_OFFSET, end, messages is not None, frames, rowless)
        header = bytes(view[:SEGMENT_HEADER_SIZE])
    # The frames are put together again from both tables and compared with the log, byte by byte: a table that
    # does not give back the log must not take its place.
    if _digest_of(frames, messages) != digest:
        # Values that a table cannot hold, say of null messages with a payload: then the frames are whole.
        messages, rows = None, -1
        frames = opened.enter_context(tempfile.TemporaryFile(dir=source.directory))
        with mapped.view[:end] as view:
            write_frames(view, FIRST_FRAME_OFFSET, end, False, frames)
        if _digest_of(frames, None) != digest:
            raise CorruptionError(
                path=path, reason="the frames read back from a table are not those of the log"
            )
    tables = [_Table(FRAMES, frames), *([_Table(MESSAGES, messages)] if messages is not None else [])]
    objects = tuple(_object(note.prefix, table) for table in tables)
    note = note._replace(
        header=header.rstrip(b"\0"),
        end_offset=end,
        entries=ledger.last_entry_id + 1,
        last_crc=ledger.last_crc,
        messages=ledger.messages,
        log_digest=digest,
        index_crc=_flushed_index_crc(planned),
        rows=rows,
        objects=objects,
    )
    return note, tables


def _digest_of(frames: BinaryIO, messages: BinaryIO | None) -> str:
    digest = hashlib.sha256()
    try:
        for frame in read_frames(frames, messages):
            digest.update(frame)
    except CorruptionError as error:
        return error.reason
    return digest.hexdigest()


def _object(prefix: str, table: _Table) -> ColdObject:
    digest, size = hashlib.sha256(), 0
    table.file.seek(0)
    while chunk := table.file.read(1 << 20):
        digest.update(chunk)
        size += len(chunk)
    return ColdObject(prefix + table.ending, size, digest.hexdigest())


def _flushed_index_crc(planned: EntryRange) -> int:
    """The checksum of the slots of the index, which the disk has when this returns: without the log, nothing
    could derive them."""
    fd = disk.DISK.open_file(planned.index_path, os.O_RDWR)
    try:
        disk.DISK.fsync(fd, planned.index_path)
        data = disk.DISK.pread(fd, SLOT_SIZE * planned.end_entry, SLOTS_OFFSET)
    finally:
        os.close(fd)
    return crc32(data)


def _manifest(note: ColdLedger) -> bytes:
    fields: dict[str, Any] = note.fields() | {"version": VERSION, "header": note.header.hex()}
    # What concerns this store alone, and changes later.
    for name in ("state", "released_ms", "is_shared", "index_crc"):
        del fields[name]
    return json.dumps(fields, indent=1).encode()


def release(directory: str, note: ColdLedger, location: Location, now_ms: int, *, is_verified: bool) -> None:
    """Remove the log of an offloaded ledger here, unless its objects are not what was stored.

    Args:
        is_verified: whether they were read a moment ago.

    Raises:
        LocationError: they cannot be read, or are damaged. The log stays.
    """
    # Verified again, unless that was a moment ago: between upload and release there may be days.
    if not is_verified:
        verify(note, location)
    # Noted before the log goes: a log that is back later was fetched, and has a time of its own.
    if not note.released_ms:
        note._replace(released_ms=now_ms).write(directory)
        failpoints.hit("offload:release_noted")
    # The last step; a kill before it leaves a log that the next round removes.
    with contextlib.suppress(FileNotFoundError):
        disk.DISK.unlink(log_path(directory, note.ledger_id))
    failpoints.hit("offload:log_unlinked")


def discard(source: LedgerSource, note: ColdLedger, location: Location | None) -> None:
    """Remove the objects of a ledger from its location, and then the note of it. May be repeated.

    Args:
        source: the topic.
        note: of the ledger.
        location: None if the objects are to stay, because another store made them or counts on them.

    Raises:
        LocationError: the location failed. The note stays.
    """
    # The state first: a kill between two objects leaves a note that says what is to be done, and no reader
    # takes the ledger for offloaded.
    if note.state == OFFLOADED:
        note = note._replace(state=REMOVING)
        note.write(source.directory)
        failpoints.hit("offload:removal_noted")
    # None where another store made the objects or counts on them.
    if location is not None:
        for ending in ENDINGS:
            location.delete(note.prefix + ending, source.rights())
            failpoints.hit("offload:object_removed")
    # The note last, for it names the objects.
    with contextlib.suppress(FileNotFoundError):
        disk.DISK.unlink(cold_path(source.directory, note.ledger_id))
    failpoints.hit("offload:note_unlinked")


_FETCHED_MS: Final = 600_000
"""How long a log that was fetched back stays at least, unless the topic is offloaded by a call."""


class _Ended(Exception):
    """The topic is being closed, or was deleted: the work ends where it is."""


class TopicOffload:
    """Offloads the ledgers of one topic, in whatever process finds it due or is asked, one process at a
    time. Invariants: a ledger is offloaded when it is closed and on the disk; its log stays at least as long
    as the policy says, and until the objects were read back. What fails is noted and tried again.
    Callers: any thread.

    Args:
        directory: of the topic.
        partition: index of the partition; -1 for none.
        folder: of its objects in a location.
        leftovers: where the store keeps notes of topics that were deleted.
        log: of the topic.
        rules: reads the policies.
        clock: makes the thread.
    """

    def __init__(
        self,
        directory: str,
        partition: int,
        folder: str,
        leftovers: str,
        log: ManagedLedger,
        rules: Callable[[], OffloadRules],
        clock: Clock,
    ) -> None:
        self._directory: Final = directory
        self._leftovers: Final = leftovers
        self._root: Final = os.path.dirname(leftovers)
        self._log: Final = log
        self._rules: Final = rules
        self._clock: Final = clock
        self._source: Final = LedgerSource(
            directory, log.name, partition, folder, clock.wall_ms, self._check, leftovers, self._report
        )
        self.work: Final = ExclusiveWork(log.name, "offload", offload_lock_path(directory), clock)
        self.close: Final = self.work.close
        self.abandon: Final = self.work.abandon

    # -- looking -------------------------------------------------------------------------------------------

    def status(self) -> LongRunningProcessStatus:
        """How it stands."""
        is_running, record = self.work.is_running(), self._record()
        return status_of(is_running, record.error, bool(record.succeeded_ms or record.ended_ms))

    def has_work(self) -> bool:
        """Whether a policy or an earlier attempt asks for something now."""
        notes = cold_ledgers(self._directory)
        # Read without the lock of the offload: what is found here is looked at again under it.
        return has_leftovers(self._leftovers) or (
            any(self._is_over(note) for note in notes)
            or next(self._due(notes), None) is not None
            or next(self._releasable(notes), None) is not None
        )

    def _record(self) -> OffloadRecord:
        return read_offload_record(self._directory, self._report)

    def _report(self, damage: Damage) -> None:
        (self._log.damage or package_log.damage)(damage._replace(topic=self._log.name))

    # -- what is due ---------------------------------------------------------------------------------------

    def _due(self, notes: list[ColdLedger], before: int | None = None) -> Iterator[ClosedLedger]:
        """The closed ledgers to be offloaded, oldest first: those the policy says, or all before one."""
        rules = self._rules()
        # A location without a policy is for calls alone.
        if not rules.location or (before is None and not rules.is_automatic):
            return
        survey = self._log.survey()
        closed, ledgers = survey.closed(), survey.ledgers()
        # Ledgers whose note is damaged count as away: uploading one again would write over the note that is
        # kept.
        away = {note.ledger_id for note in notes if self._is_away(note)}
        noted = ledgers_of(descriptors.names_in(self._directory), COLD_SUFFIX)
        away |= set(noted).difference(note.ledger_id for note in notes)  # damaged notes are kept
        sizes = [0 if ledger.ledger_id in away else _size(ledger) for ledger in closed]
        # Bytes that are here: of the closed ledgers that are not away, and of the one that is written.
        bytes_here = sum(sizes) + (ledgers[-1].size if ledgers else 0)
        now_ms = self._clock.wall_ms()
        for number, (ledger, size) in enumerate(zip(closed, sizes, strict=True)):
            # A ledger without entries has nothing to be offloaded.
            if ledger.ledger_id in away or ledger.last_entry_id < 0:
                continue
            if before is not None:
                is_due = ledger.ledger_id < before
            else:
                # Nothing in a ledger was published after the next one began.
                is_last = number + 1 == len(closed)
                ended_ms = ledgers[-1].base_publish_ms if is_last else closed[number + 1].base_publish_ms
                # By size: as long as what is here exceeds the limit; by age: since its last entry.
                is_due = 0 <= rules.most_bytes < bytes_here or (
                    rules.most_seconds >= 0 and now_ms - ended_ms >= rules.most_seconds * 1000
                )
            # Oldest first: once a ledger is not due, no younger one is, since they are offloaded in order.
            if not is_due:
                return
            bytes_here -= size
            yield ledger

    def due_before(self, ledger_id: int) -> int:
        """How many ledgers before one are not offloaded yet."""
        return sum(1 for _ in self._due(cold_ledgers(self._directory), ledger_id))

    def _is_away(self, note: ColdLedger) -> bool:
        """Whether the location has a ledger. While the log is here still, objects of another store do not
        count: that one may remove them at any time."""
        if note.state != OFFLOADED:
            return False
        is_lent = not note.released_ms and not is_own(note, self._leftovers)
        return not (is_lent and os.path.exists(log_path(self._directory, note.ledger_id)))

    def _is_over(self, note: ColdLedger) -> bool:
        """Whether its objects are to go: the ledger was trimmed, or an attempt to offload it died."""
        return note.state != OFFLOADED or self._log.trimming.is_given_up(note.ledger_id)

    def _releasable(self, notes: list[ColdLedger], is_asked: bool = False) -> Iterator[ColdLedger]:
        """Offloaded ledgers whose log has been here long enough, since it was fetched back if it was."""
        lag_ms, now_ms = self._rules().lag_ms, self._clock.wall_ms()
        # A log that was fetched back is in use, so it stays for a while; a call that asks for the offload
        # ends that.
        again_ms = lag_ms if is_asked else max(lag_ms, _FETCHED_MS)
        for note in notes:
            if not self._is_away(note):
                continue
            with contextlib.suppress(FileNotFoundError):
                since_ms = os.stat(log_path(self._directory, note.ledger_id)).st_mtime_ns // 1_000_000
                # By the time of the file if it was fetched back, by that of the note otherwise.
                if now_ms - since_ms >= again_ms if note.released_ms else now_ms - note.noted_ms >= lag_ms:
                    yield note

    # -- the work ------------------------------------------------------------------------------------------

    def start(self, before: int, on_end: Callable[[], object] = int) -> None:
        """Offload all closed ledgers before one in the background; closing the topic waits for it.

        Raises:
            NotAllowedError: ledgers of the topic are being offloaded already, in whatever process.
            InvalidConfiguration: no location is set, or there is no such file system.
        """
        location = self._rules().location
        if not location:
            raise InvalidConfiguration(
                f"no location is set for {self._log.name}: call set_offload_policies for the topic or its "
                "namespace, or set managedLedgerOffloadLocation in broker.conf"
            )
        # Checked here, where the caller waits, and not in the background.
        check_location(location, self._root)
        location_of(location)
        work = partial(self._work, before)
        # One at a time, in whatever process: the lock of the work sees to that.
        if self.work.is_running_elsewhere() or not self.work.begin(work, on_end, is_wanted=True):
            raise NotAllowedError(f"{self._log.name} is being offloaded already; see offload_status")

    def adopt(self, moved: Mapping[str, str]) -> int:
        """Let the objects of this topic belong to this store, which removes them from now on; see
        `Topics.adopt_offloaded`.

        Returns:
            How many notes were changed.

        Raises:
            NotAllowedError: a process offloads ledgers of the topic.
            ColdReadError: objects are not where they are said to be. What was changed before stays so.
        """
        lock, count = FileLock(offload_lock_path(self._directory)), 0
        try:
            # With the lock no ledger is being uploaded or released.
            if not lock.try_acquire():
                raise NotAllowedError(f"{self._log.name} is being offloaded; wait for its end")
            owner = make_owner(self._leftovers, self._report)
            for note in cold_ledgers(self._directory):
                location = moved.get(note.location, note.location)
                changed = note._replace(owner=owner, is_shared=False, location=location)
                if changed == note or note.state == UPLOADING:
                    continue  # an attempt, of this store or of another one: what it wrote is not needed
                # Looked at before the note says so: it is the last thing that knows where the objects are.
                problem = problem_of(changed) if note.state == OFFLOADED else ""
                if problem:
                    raise refusal(changed, problem, "name the location where they are")
                changed.write(self._directory)
                count += 1
        finally:
            lock.release()
            lock.close()
        return count

    def start_if_due(self) -> None:
        """Do in the background what policies and earlier attempts ask for."""
        # Cheapest first: most topics have nothing to do.
        if self.work.progress is None and self.has_work() and not self.work.is_running():
            self.work.begin(partial(self._work, None), int, is_wanted=False)

    def _work(self, before: int | None) -> None:
        """Clear away what is to go, offload what is due, and remove the logs that were here long enough.

        Call under the offload lock. Failures are noted, and all else is done.

        Args:
            before: offload all ledgers before this one; None for those that the policy says.
        """
        errors: list[str] = []
        try:
            self._do(before, errors)
        except _Ended:
            return
        except Exception as error:  # noqa: BLE001 - the status says what it was
            # Errors of a topic that is deleted mean nothing any more.
            if is_deleted(self._log.words):
                return
            errors.append(f"{self._log.name}: {_text(error)}; nothing is lost, it is tried again")
        if errors:
            package_log.info("%s", errors[0], topic=self._log.name)
        try:
            record = self._record()
        except StorageError as error:  # it cannot be read, so it is not replaced; `status` raises the same
            package_log.info("%s: %s", self._log.name, error, topic=self._log.name)
            return
        # Three cases: something failed, a call has ended, or an error of before is over.
        if errors:
            self._store_record(record._replace(failed_ms=self._clock.wall_ms(), error=errors[0]))
        elif before is not None:
            self._store_record(record._replace(ended_ms=self._clock.wall_ms(), error=""))
        elif record.error:
            self._store_record(record._replace(error=""))

    def _do(self, before: int | None, errors: list[str]) -> None:
        # Notes that were not finished, and what topics have left that were deleted.
        remove_unfinished_notes(self._directory)
        errors += remove_leftovers(self._leftovers)
        # First what is to go, which makes room in the location; then what is due; then the logs here.
        for note in cold_ledgers(self._directory):
            if self._is_over(note):
                self._try(errors, note, self._discard, note)
        fresh = self._upload_due(before, errors)
        for note in list(self._releasable(cold_ledgers(self._directory), before is not None)):
            # What was uploaded just now was verified a moment ago.
            self._try(errors, note, self._release, note, note.ledger_id in fresh)

    def _upload_due(self, before: int | None, errors: list[str]) -> set[int]:
        # A call says which ledgers it cannot offload.
        if before is not None:
            errors += self._damaged_notes(before)
        due = list(self._due(cold_ledgers(self._directory), before))
        fresh: set[int] = set()
        if due:
            self._log.sync()  # what is offloaded must not be newer than what a power loss leaves of the log
        for number, ledger in enumerate(due):
            self.work.progress = (number, len(due))
            # Trimming goes on meanwhile; a ledger that went needs no copy.
            first = self._log.trimming.first_retained
            if ledger.ledger_id < first:
                continue
            # Ledgers go in their order, so those behind it wait as well.
            aborted = self._aborted_in(ledger)
            if aborted is None:
                if before is not None:
                    errors.append(
                        f"{self._log.name}: ledger {ledger.ledger_id} has messages of a transaction that is "
                        "open or prepared; end it, and offload again"
                    )
                break
            name = self._rules().location
            what = ColdLedger(
                ledger.ledger_id, UPLOADING, self._log.name, name, entries=ledger.last_entry_id + 1
            )
            failed: list[str] = []
            if self._try(failed, what, self._upload, name, ledger, first, aborted):
                # The record after each ledger: the status shows how far it came, and a kill loses nothing of
                # it.
                fresh.add(ledger.ledger_id)
                record = self._record()
                self._store_record(
                    record._replace(ledger_id=ledger.ledger_id, succeeded_ms=self._clock.wall_ms())
                )
                topic = self._log.name
                text = "%s: ledger %d was offloaded to %s"
                package_log.info(text, topic, ledger.ledger_id, name, topic=topic)
            elif ledger.ledger_id >= self._log.trimming.first_retained:  # not trimmed meanwhile
                errors += failed
        return fresh

    def _aborted_in(self, ledger: ClosedLedger) -> Runs | None:
        """The entries of aborted transactions in a ledger; None if one in it is undecided."""
        path, index = (
            log_path(self._directory, ledger.ledger_id),
            index_path(self._directory, ledger.ledger_id),
        )
        count = ledger.last_entry_id + 1
        info = SegmentInfo(ledger.ledger_id, path, index, ledger.end_offset, count, ledger.messages, 0, 0)
        with transaction_fates(self._root) as fate:
            log = LogTransactions([info], fate)
        return None if log.is_cut else log.visible()[0].aborted

    def _damaged_notes(self, before: int) -> list[str]:
        """Report the damaged notes of the ledgers before one; return what is wrong with each."""
        damaged = [error for ledger, error in damaged_notes(self._directory).items() if ledger < before]
        for error in damaged:
            damage = Damage(error.path or "", offset=error.offset or 0, reason=error.reason, kind=TOPIC_FILES)
            self._report(damage._replace(remedy=error.remedy))
        return [f"{self._log.name}: {error}" for error in damaged]

    def _release(self, note: ColdLedger, is_verified: bool) -> None:
        try:
            now_ms = self._clock.wall_ms()
            release(self._directory, note, location_of(note.location), now_ms, is_verified=is_verified)
        except LocationError:
            # The objects are not what was stored, and the log is still here: back to the state before, so
            # that it is offloaded again.
            if not note.released_ms:  # the log is whole: offload it again, under other names
                note._replace(state=UPLOADING).write(self._directory)
            raise
        # Mapped segments of the ledger keep the blocks of the disk until they are closed.
        SEGMENTS.drop(self._log.view.control.home, note.ledger_id)

    def _upload(self, name: str, ledger: ClosedLedger, first: int, aborted: Runs) -> None:
        check_location(name, self._root)
        upload(self._source, location_of(name), ledger, first, aborted)

    def _discard(self, note: ColdLedger) -> None:
        own = is_own(note, self._leftovers)
        discard(self._source, note, location_of(note.location) if own else None)

    def _try(
        self,
        errors: list[str],
        note: ColdLedger,
        action: Callable[..., object],
        *arguments: object,
    ) -> bool:
        self._check()
        # One ledger that fails does not keep others from being done.
        try:
            action(*arguments)
        except _Ended:
            raise
        except Exception as error:
            if is_deleted(self._log.words):
                raise _Ended from error
            errors.append(
                f"{self._log.name}: entries {note.ledger_id}:0 to {note.ledger_id}:{note.entries - 1} and "
                f"their location {note.location}: {_text(error)}; nothing is lost, it is tried again"
            )
            return False
        return True

    def _check(self) -> None:
        if is_deleted(self._log.words) or self.work.is_to_end:
            raise _Ended

    def _store_record(self, record: OffloadRecord) -> None:
        # Without the record the work is done all the same; only the status does not know.
        with contextlib.suppress(PulsarException, OSError):
            record.write(self._directory)


def _text(error: Exception) -> str:
    return str(error).strip() or repr(error)


def _size(ledger: ClosedLedger) -> int:
    return max(0, ledger.end_offset - FIRST_FRAME_OFFSET)
