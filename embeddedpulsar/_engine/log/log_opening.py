"""What a topic is opened with: its lock, its control words, and the log of the damage that is met.

Options of a managed ledger.

A topic of which nothing may be written: its control words, and the read side of its log.

Where the control words are not true (after a reboot, in a copied directory, or where they are damaged), those
that a recovery would store are derived from the segments, into the memory of this process. No file is
changed: the first process that may write recovers the topic.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from functools import lru_cache

from embeddedpulsar import damage
from embeddedpulsar._engine.filenames import control_path, index_path, ledgers_of, lock_path
from embeddedpulsar._engine.format.control import CONTROL_SIZE
from embeddedpulsar._engine.format.frame import SLOT_SIZE, SLOTS_OFFSET
from embeddedpulsar._engine.log.log_view import LogView
from embeddedpulsar._engine.log.segment_index import index_in_memory
from embeddedpulsar._engine.log.segments import SEGMENTS
from embeddedpulsar._engine.log.topic_control import TopicControl
from embeddedpulsar._engine.log.trimming import WriterOptions
from embeddedpulsar._engine.platform import descriptors, disk, package_log, threads, timing
from embeddedpulsar._engine.platform.access import Refusal
from embeddedpulsar._engine.platform.descriptors import late_imports
from embeddedpulsar._engine.platform.file_lock import FileLock, RefusedLock
from embeddedpulsar._engine.platform.mapped_file import NO_FILE, MemoryFile
from embeddedpulsar._engine.platform.timing import SchedulerLike
from embeddedpulsar.damage import CONTROL, Damage, DamageHook
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple
from embeddedpulsar.settings import BrokerSettings
from embeddedpulsar.topic_name import NON_PERSISTENT

if TYPE_CHECKING:
    from typing import Final

PROCESS: Final = "process"
INTERVAL: Final = "interval"
FLUSH: Final = "flush"
DURABILITIES: Final = (PROCESS, INTERVAL, FLUSH)
_REMEMBERED_OPTIONS: Final = 16
"""Options as they were made: each opening of a topic asks for them."""


class _Fields(NamedTuple):
    segment_size: int
    first_allocation: int
    allocation_step: int
    max_entries: int
    max_age_ms: int
    max_open_segments: int
    lock_timeout_s: float
    max_message_size: int
    durability: str
    interval_ms: int
    boot: bytes
    refusal: Refusal | None
    is_temporary: bool


class LedgerOptions(_Fields):
    """How a managed ledger lays out its files and when it makes them durable. Immutable.

    Processes may open one topic with different options: what a segment was created with stands in its header.

    Args:
        segment_size: bytes of a segment file; an entry that is larger gets a segment of its own size.
        first_allocation: bytes of disk taken by a new segment; it grows from there, doubling.
        allocation_step: bytes, the largest step of that growth.
        max_entries: entries per ledger.
        max_age_ms: milliseconds after which the next append starts a new ledger.
        max_open_segments: this topic's share of the segments a process keeps mapped. All topics together use
            at most a quarter of the descriptors the process may have open.
        lock_timeout_s: seconds to wait for a file lock before `LockTimeout`.
        max_message_size: bytes of an entry's body, at most; beyond is the topic's error, not the disk's.
        durability: "process" (survives the death of processes), "interval" (and power loss, but for the last
            `interval_ms`) or "flush" (power loss, once `append` returned).
        interval_ms: milliseconds between syncs at level "interval".
        boot: identity of the boot in which the control words of the store are true; empty for the machine's.
        refusal: why nothing is written to the topic; None if it may be.
        is_temporary: whether the files go with the processes that use them: nothing is flushed at any level.

    Raises:
        ValueError: a value makes no sense; the text says which.

    Example:
        >>> LedgerOptions(segment_size=1 << 20).max_entries
        250000
    """

    __slots__ = ()

    def __new__(
        cls,
        *,
        segment_size: int = 64 << 20,
        first_allocation: int = 8 << 10,
        allocation_step: int = 4 << 20,
        max_entries: int = 250_000,
        max_age_ms: int = 240 * 60_000,
        max_open_segments: int = 32,
        lock_timeout_s: float = 30.0,
        max_message_size: int = 5 << 20,
        durability: str = PROCESS,
        interval_ms: int = 1_000,
        boot: bytes = b"",
        refusal: Refusal | None = None,
        is_temporary: bool = False,
    ) -> LedgerOptions:
        if durability not in DURABILITIES:
            raise ValueError(f"durability must be one of {', '.join(DURABILITIES)}, not {durability!r}")
        values = (
            segment_size,
            first_allocation,
            allocation_step,
            max_entries,
            max_age_ms,
            max_open_segments,
            lock_timeout_s,
            max_message_size,
            durability,
            interval_ms,
            boot,
            refusal,
            is_temporary,
        )
        # A bool is an int, and False is right for this one field.
        for name, value in zip(cls._fields, values, strict=True):
            if isinstance(value, (int, float)) and value <= 0 and name != "is_temporary":
                raise ValueError(f"{name} must be positive, not {value}")
        if not _SMALLEST_SEGMENT <= segment_size <= _LARGEST_SEGMENT:
            raise ValueError(
                f"segment_size must be {_SMALLEST_SEGMENT} to {_LARGEST_SEGMENT}, not {segment_size}"
            )
        if max_entries > _MOST_ENTRIES:
            raise ValueError(f"max_entries must be at most {_MOST_ENTRIES}, not {max_entries}")
        return super().__new__(cls, *values)

    @property
    def boot_id(self) -> bytes:
        """16 bytes: control words that carry others are derived again before they are believed."""
        return self.boot or timing.boot_id()


_PAGE: Final = 4096
_SMALLEST_SEGMENT: Final = 8 << 10
_LARGEST_SEGMENT: Final = 1 << 30
_MOST_ENTRIES: Final = 896 * 1024
"""The index header has room for the checksums of that many slots."""


_TEMPORARY_SEGMENTS: Final = (1 << 20, 32 << 20)
_TEMPORARY_SHARE: Final = 64
_TEMPORARY_STEP: Final = 1 << 20
_DEFAULT_SEGMENT: Final = BrokerSettings().managedLedgerMaxSizePerLedgerMbytes << 20


@lru_cache(_REMEMBERED_OPTIONS)
def temporary_options(options: LedgerOptions, room: int) -> LedgerOptions:
    """The options of a log in memory.

    The ``/dev/shm`` of a container often has 64 MiB for all topics, and the open ledger cannot be trimmed. So
    ledgers grow in small steps, and a full one takes a small part of the room, unless the settings give it a
    size.

    Args:
        options: those of a log in a directory.
        room: bytes of the file system.

    Example:
        >>> temporary_options(LedgerOptions(durability="flush"), 64 << 20)[:3]
        (1048576, 8192, 1048576)
    """
    size = options.segment_size
    if size == _DEFAULT_SEGMENT:
        # A size that the application set is kept. The default is replaced, because 64 MiB may be all
        # of ``/dev/shm``.
        smallest, largest = _TEMPORARY_SEGMENTS
        size = max(smallest, min(room // _TEMPORARY_SHARE // _PAGE * _PAGE, largest))
    return options._replace(
        segment_size=size,
        allocation_step=min(options.allocation_step, size, _TEMPORARY_STEP),
        durability=PROCESS,
        is_temporary=True,
    )


@lru_cache(_REMEMBERED_OPTIONS)
def ledger_options(
    settings: BrokerSettings, durability: str, interval_ms: int, boot: bytes = b""
) -> LedgerOptions:
    """The options of every log of a store, by its settings.

    Example:
        >>> ledger_options(BrokerSettings(), "process", 1000).segment_size >> 20
        64
    """
    return LedgerOptions(
        segment_size=min(settings.managedLedgerMaxSizePerLedgerMbytes << 20, _LARGEST_SEGMENT),
        max_entries=min(settings.managedLedgerMaxEntriesPerLedger, _MOST_ENTRIES),
        max_age_ms=settings.managedLedgerMaxLedgerRolloverTimeMinutes * 60_000,
        max_message_size=settings.maxMessageSize,
        durability=durability,
        interval_ms=interval_ms,
        boot=boot,
    )


_REMEMBERED_TOPICS: Final = 4096
_NO_BOOT = bytes(16)


class DamageLog:
    """Collects the damage reports of one topic in this process and hands them on.

    Role: a reader that meets damage calls `report`, with or without the topic lock; the hook runs without it.
    Invariants: one stretch is handed on and counted once, however many cursors meet it.
    Callers: any thread.
    """

    def __init__(
        self,
        name: str,
        is_locked: Callable[[], bool],
        call_later: Callable[[float, Callable[[], object]], object],
        hook: DamageHook | None,
    ) -> None:
        self.hook = hook
        self.count = 0
        self._name: Final = name
        self._is_locked: Final = is_locked
        self._call_later: Final = call_later
        self._seen: dict[tuple[str, int, int], None] = {}
        self._pending: list[Damage] = []

    def report(self, damage: Damage) -> None:
        """Hand `damage` on: now, or from the timer thread if the caller is inside the topic lock."""
        # Known stretches are dropped here and not at the reader: several cursors of a process meet
        # the same damage.
        damage = damage._replace(topic=self._name)
        key = (damage.kind, damage.ledger_id, damage.offset)
        is_locked = self._is_locked()
        if key not in self._seen:
            # Bounded: a stretch that is reported again costs a line in a log.
            if len(self._seen) >= _REMEMBERED_TOPICS:
                self._seen.clear()
            self._seen[key] = None
            self.count += 1
            self._pending.append(damage)
            # The hook is code of the application, which must not run under a lock that other
            # processes wait for.
            if is_locked:
                self._call_later(0.0, self.deliver)
        if not is_locked:
            self.deliver()

    def deliver(self) -> None:
        """Hand on what is pending."""
        # Taken out one by one, so that two threads that deliver at once hand each stretch on once.
        while self._pending:
            damage = self._pending.pop(0)
            (self.hook or package_log.damage)(damage)


def writer_options(options: LedgerOptions, store_id: bytes, incarnation: int) -> WriterOptions:
    """What the writer needs of the options, and of the topic."""
    return WriterOptions(
        options.segment_size,
        options.first_allocation,
        options.allocation_step,
        options.max_entries,
        options.max_age_ms,
        options.lock_timeout_s,
        options.durability != PROCESS,
        options.boot_id,
        store_id,
        incarnation,
        options.is_temporary,
        options.durability == FLUSH and not options.is_temporary,
    )


class OpenedTopic(NamedTuple):
    """What every kind of log needs of its topic's directory."""

    control: TopicControl
    lock: FileLock
    damage: DamageLog

    def close(self) -> None:
        self.lock.close()
        self.control.close()


def open_topic(
    directory: str,
    name: str,
    incarnation: int,
    options: LedgerOptions,
    scheduler: SchedulerLike,
    hook: DamageHook | None,
) -> OpenedTopic:
    """Open a topic's directory; recover it first if its control words are of another boot or damaged.

    Raises:
        FileNotFoundError: the directory is gone.
        StorageError: it belongs to another incarnation of the topic, or cannot be recovered.
    """
    # A process that may not write makes no lock file either.
    if options.refusal is not None:
        return _open_to_look(directory, name, incarnation, options, scheduler, hook)
    lock = FileLock(lock_path(directory))
    damage = DamageLog(name, lambda: lock.held, scheduler.call_later, hook)
    try:
        # The control words are opened before the lock is given its texts and checks: until then only
        # `_control_of` uses it.
        control = _control_of(directory, lock, incarnation, options, damage.report)
    except BaseException:
        lock.close()
        raise
    lock.describe, lock.check_reopened = control.describe_owner, control.check_in_place
    # What was found under the lock is handed on here: behind a timer, the client might be closed by then.
    damage.deliver()
    return OpenedTopic(control, lock, damage)


def _open_to_look(
    directory: str,
    name: str,
    incarnation: int,
    options: LedgerOptions,
    scheduler: SchedulerLike,
    hook: DamageHook | None,
) -> OpenedTopic:
    """As `open_topic`, without a lock, and nothing is written."""
    assert options.refusal is not None
    damage = DamageLog(name, lambda: False, scheduler.call_later, hook)
    control = read_control(
        directory,
        incarnation,
        options.boot_id,
        damage.report,
        is_kept=not name.startswith(NON_PERSISTENT),
    )
    return OpenedTopic(control, RefusedLock(lock_path(directory), options.refusal.error), damage)


def _control_of(
    directory: str, lock: FileLock, incarnation: int, options: LedgerOptions, report: DamageHook
) -> TopicControl:
    """The control words of a topic, true for this boot: mapped, made, or recovered under the topic lock."""
    # Trusted words are the usual case, and take no lock. Each other case is looked at again under the
    # lock, where another process may have solved it. Where the lock was not there, the words are not
    # either: they are made after it.
    control = None
    if not lock.is_new:
        with contextlib.suppress(FileNotFoundError, CorruptionError):
            control = TopicControl.open(directory)
    if control is None:
        control = _create(directory, lock, incarnation, options, report)
    try:
        if not control.is_trusted(options.boot_id) or not _is_possible(control):
            _recover(directory, control, lock, incarnation, options, report)
        control.check_incarnation(incarnation)
    except BaseException:
        control.close()
        raise
    return control


def _create(
    directory: str, lock: FileLock, incarnation: int, options: LedgerOptions, report: DamageHook
) -> TopicControl:
    try:
        lock.acquire(options.lock_timeout_s)
        if not lock.is_new or os.path.lexists(control_path(directory)):
            with contextlib.suppress(FileNotFoundError, CorruptionError):
                return TopicControl.open(directory)  # another process was faster
        # Segments without control words: they were lost, and recovery has to find the tail.
        is_new = not ledgers_of(descriptors.names_in(directory))
        # A new topic is true from its first moment. With segments the new words are not believed
        # (boot of zeros), and the recovery that follows derives them.
        boot = options.boot_id if is_new else _NO_BOOT
        if not is_new:
            reason = "it is missing, or too short"
            report(Damage(control_path(directory), reason=reason, kind=CONTROL))
        return TopicControl.create(directory, incarnation, boot)
    finally:
        lock.release()


def _is_possible(control: TopicControl) -> bool:
    return control.is_possible() and not control.has_lost_tail()


def _recover(
    directory: str,
    control: TopicControl,
    lock: FileLock,
    incarnation: int,
    options: LedgerOptions,
    report: DamageHook,
) -> None:
    with descriptors.late_imports():
        from embeddedpulsar._engine.log.recovery import recover_topic
    try:
        lock.acquire(options.lock_timeout_s)
        # The header that was read before may be old: another process recovered the topic while this
        # one waited for the lock.
        control.reload()
        control.check_incarnation(incarnation)
        is_possible = _is_possible(control)
        if not control.is_trusted(options.boot_id) or not is_possible:
            # A reboot or a copy is no damage and is not reported.
            if control.is_damaged:
                report(Damage(control.path, reason="its header is damaged", kind=CONTROL))
            elif control.is_trusted(options.boot_id):
                report(Damage(control.path, reason="its words are damaged", kind=CONTROL))
            recover_topic(directory, control, incarnation=incarnation, boot_id=options.boot_id, report=report)
    finally:
        lock.release()


class DerivedControl(TopicControl):
    """Control words in the memory of this process, in the place of words in the file that are not true.

    Invariants: they do not follow the file. Once that changes, because a process recovered the topic,
    `is_outdated` says so, and the topic is to be opened anew.
    """

    __slots__ = ("_read",)

    def __init__(self, directory: str) -> None:
        # Read, not mapped: mapped words would change under the derived ones once a process recovers
        # the topic.
        path = control_path(directory)
        status, data = _read(path)
        self._read: Final = data
        super().__init__(MemoryFile(path, data, CONTROL_SIZE, status))

    @property
    def is_outdated(self) -> bool:
        """Whether the file is another one by now, or has other contents."""
        # All bytes are compared, because recovery writes into the same file.
        status, data = _read(self.path)
        return (data, status.st_dev, status.st_ino) != (self._read, self.home.device, self.home.inode)

    @property
    def is_derived(self) -> bool:
        """True."""
        return True

    @property
    def place_check(self) -> Callable[[], bool]:
        """As of `TopicControl`."""
        return lambda: not self.is_outdated

    def check_in_place(self) -> None:
        """Do nothing: what is read is read by names."""


def _read(path: str) -> tuple[os.stat_result, bytes]:
    with contextlib.suppress(FileNotFoundError):
        return disk.DISK.read_start(path, CONTROL_SIZE)
    return NO_FILE, b""


def read_control(
    directory: str, incarnation: int, boot: bytes, report: DamageHook, *, is_kept: bool = True
) -> TopicControl:
    """The control words of a topic: mapped for reading where they are true, else derived.

    Args:
        directory: of the topic.
        incarnation: which life of the topic is meant.
        boot: in which control words are believed.
        report: called with what the segments lack.
        is_kept: whether the log outlives a boot; else it is empty after one.

    Raises:
        FileNotFoundError: the directory is gone.
        StorageError: it belongs to another incarnation of the topic, or the segments contradict each other.
    """
    # First the file itself: if its words are true, they are mapped and followed like a writer's. A
    # file that is gone or damaged is the case of `DerivedControl`.
    with contextlib.suppress(FileNotFoundError, CorruptionError):
        control = TopicControl.open(directory, writable=False)
        try:
            control.check_incarnation(incarnation)
            if control.is_trusted(boot) and control.is_possible() and not control.has_lost_tail():
                return control
        except BaseException:
            control.close()
            raise
        control.close()
    derived = DerivedControl(directory)
    derived.check_incarnation(incarnation)
    # The log of a non-persistent topic ends with its boot. The first process that may write empties
    # it; for this one it is empty already.
    if not is_kept:
        derived.clear()
        return derived
    with late_imports():
        from embeddedpulsar._engine.log.recovery import derive_words
    derive_words(directory, derived, report)
    return derived


class ReadOnlyLogView(LogView):
    """`LogView` for a process that may not write: an index that does not fit is derived into its memory."""

    def barrier(self) -> None:
        """Wait, where processors reorder, until what was stored is seen: the lock, which would order it,
        cannot be taken."""
        threads.await_stores()

    def _repair_index(self, ledger_id: int, entry_id: int) -> bytes:
        """Derive the index of a ledger from its frames, use it in this process, and return its slots."""
        # Mapped anew, then compared again; only if it still does not fit are all frames read.
        SEGMENTS.drop(self.control.home, ledger_id)  # its owner may have repaired it
        segment = self.segment(ledger_id)
        last, _ = self.extent(ledger_id)
        if entry_id <= last and self._fits(segment, entry_id):
            index = segment.index.data
            return bytes(index[SLOTS_OFFSET : SLOTS_OFFSET + SLOT_SIZE * (last + 1)])
        slots = self._derived_slots(segment)
        path = index_path(self.directory, ledger_id)
        segment.use_index(index_in_memory(path, segment.header, slots))
        reason = "it does not fit its segment and is derived from the log in memory: the store is read-only"
        self.report(Damage(path, ledger_id, -1, -1, 0, 0, reason, damage.INDEX))
        return slots
