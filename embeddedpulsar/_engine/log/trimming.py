"""Which ledgers of a topic are not needed any more, and giving them up.

A process that trims looks at the subscriptions first, without a lock, and publishes the trim point
afterwards. One word makes that safe, RETREATS: a process that has put a subscription further back than it
was, or has made one, raises it under the topic lock before it reports that. So a trim point counts only if
the word is what it was before the subscriptions were looked at: until then they can only have moved forward.

Pins: files that keep ledgers of a topic from being trimmed, for users that are no subscription.

``pins/<ledger>`` in a topic's directory keeps that ledger and all behind it, for readers: while a process has
it locked, and for `LEASE_S` after it was made or used last. All who begin with one ledger share the file.
``pins/<ledger>.<key>`` keeps them while the sink of that key has a commit that is not finished.

When a ledger is full, and starting the next one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterator, Sequence

from embeddedpulsar._engine.filenames import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    NEW_SUFFIX,
    control_path,
    index_path,
    ledgers_of,
    lock_path,
    log_path,
    pending_commit_path,
    pin_path,
    pins_path,
    under_construction,
)
from embeddedpulsar._engine.format.control import TopicWord, split_tail, tail_word
from embeddedpulsar._engine.format.frame import (
    FIRST_FRAME_OFFSET,
    FORMAT_VERSION,
    SLOTS_PER_BLOCK,
    SegmentHeader,
)
from embeddedpulsar._engine.log.log_view import LogView
from embeddedpulsar._engine.log.segment import (
    Ending,
    Segment,
    clear_unpublished,
    is_never_written,
    read_segment_header,
)
from embeddedpulsar._engine.log.segment_index import SegmentIndex
from embeddedpulsar._engine.log.segments import SEGMENTS, ClosedLedger, LedgerChain
from embeddedpulsar._engine.log.topic_control import (
    MUST_ROLL,
    POISON_FROM,
    POISON_TO,
    TOUCHED,
    TopicControl,
    has_frame,
    overwritten,
)
from embeddedpulsar._engine.platform import descriptors, disk, failpoints, file_lock, nofollow, timing
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar._engine.platform.mapped_file import HeldFile, is_held, remove_if_free
from embeddedpulsar._engine.platform.timing import CLOCK
from embeddedpulsar.exceptions import CorruptionError, DescriptorLimitError, LockTimeout, StorageError
from embeddedpulsar.message_id import Position
from embeddedpulsar.policies import Retention
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Final


LEASE_S: Final = 600
"""A plan of Spark is made by one process and read by others: so long may pass between, and after."""
_NS: Final = 10**6
_PATIENCE_S: Final = 0.2
"""A trimming that holds the lock for longer is not waited for, and the read reports what it misses."""


def pin_for_reading(directory: str, ledger_id: int, now_ms: int | None = None) -> HeldFile | None:
    """Keep a ledger and all behind it, while the result is open and for `LEASE_S` from now on.

    Args:
        directory: of the topic.
        ledger_id: the ledger.
        now_ms: the time of day; None to ask the clock.

    Returns:
        None where the process may not write: a reader without that right reads unpinned.
    """
    path = pin_path(directory, ledger_id)
    try:
        _make_directory(directory)
        held = HeldFile.open(path)
    except OSError:
        return None
    now_ns = CLOCK.wall_ms() * _NS if now_ms is None else now_ms * _NS
    nofollow.utime(path, (now_ns, now_ns))
    # A trimming that looked before this looks again: see `pinned_word`.
    word = CLOCK.wall_ns()  # finer than the time that the system would take
    nofollow.utime(pins_path(directory), (word, word))
    return held


def pin_for_plan(directory: str, ledger_id: int) -> HeldFile | None:
    """As `pin_for_reading`, for a reader that looks next at what there is: waits for a trimming that has
    decided already, so that what is there afterwards stays. None also for a topic that was deleted."""
    if not os.path.isdir(directory):
        return None
    held = pin_for_reading(directory, ledger_id)
    if held is not None:
        # Taking the lock of the topic once waits for a trimming that looked at the pins before this one was
        # there (decision 0281). Without the lock, the read goes on: it reports what is missing.
        with contextlib.suppress(LockTimeout, OSError):
            lock = FileLock(lock_path(directory))
            try:
                lock.acquire(_PATIENCE_S)
            finally:
                lock.release()
                lock.close()
    return held


def pin_for_commit(directory: str, ledger_id: int, key: str, pending: str, now_ms: int) -> None:
    """Keep a ledger and all behind it for `LEASE_S`, and then as long as the file ``pending`` is there.

    Args:
        directory: of the topic.
        ledger_id: the ledger.
        key: of the sink.
        pending: the path of the document that says that its commit is not finished.
        now_ms: the time of day.
    """
    _make_directory(directory)
    path, content = commit_pin(directory, ledger_id, key, pending)
    try:
        fd = disk.DISK.create_exclusive(path)
    except FileExistsError:  # of a process that was killed here
        fd = disk.DISK.open_file(path, os.O_RDWR)
    try:
        disk.DISK.pwrite_all(fd, [content], 0)
    finally:
        os.close(fd)
    nofollow.utime(path, (now_ms * _NS, now_ms * _NS))


def commit_pin(directory: str, ledger_id: int, key: str, pending: str) -> tuple[str, bytes]:
    """The path and the content of the pin of a commit."""
    return pin_path(directory, ledger_id, key), os.fsencode(os.path.relpath(pending, directory))


def unpin(directory: str, key: str) -> None:
    """Remove the pins of a sink."""
    place = pins_path(directory)
    for name in descriptors.names_in(place) if os.path.isdir(place) else ():
        if name.endswith(f".{key}"):
            with contextlib.suppress(FileNotFoundError):
                disk.DISK.unlink(os.path.join(place, name))


def pinned_word(directory: str) -> int:
    """Changes whenever a reader pins; to be compared under the topic lock with what it was before the pins
    were looked at. 0 without any pin."""
    try:
        return os.stat(pins_path(directory)).st_mtime_ns
    except FileNotFoundError:
        return 0


def pinned_from(directory: str, now_ms: int, *, removes: bool, with_readers: bool = True) -> Position | None:
    """The position behind which pins keep everything; None if there is no pin that counts.

    Args:
        directory: of the topic.
        now_ms: the time of day.
        removes: whether pins that count no more are removed.
        with_readers: whether pins of readers count, too.
    """
    place = pins_path(directory)
    ledgers = []
    try:
        names = descriptors.names_in(place)
    except FileNotFoundError:
        return None
    for name in names:
        digits, _, key = name.partition(".")
        path = os.path.join(place, name)
        with contextlib.suppress(FileNotFoundError):
            age_ms = now_ms - os.stat(path).st_mtime_ns // _NS
            # Young pins count without a look at their holder: a reader may die and another go on with
            # its plan.
            if not key and not with_readers:
                continue
            is_young = abs(age_ms) <= LEASE_S * 1000
            if is_young or (_is_pending(directory, path, key) if key else is_held(path)):
                ledgers.append(int(digits))
                # The lease of readers that died begins when their death is noticed, so the time of
                # the pin is set anew while one lives.
                if removes and not is_young and not key:  # the lease begins when its reader dies, or nearly
                    nofollow.utime(path, (now_ms * _NS, now_ms * _NS))
            elif removes and key:
                disk.DISK.unlink(path)
            elif removes and not remove_if_free(path):
                ledgers.append(int(digits))  # of a reader that came meanwhile
    return Position(min(ledgers), -1) if ledgers else None


def _is_pending(directory: str, path: str, key: str) -> bool:
    """Whether the commit is not finished. What names anything but a file of its sink, as a damaged pin does,
    is not followed: the sink of the pin's key is asked."""
    pending = os.path.normpath(os.path.join(directory, os.fsdecode(disk.DISK.read_file(path))))
    if os.path.basename(os.path.dirname(pending)) == key and os.path.isfile(pending):
        return True
    return os.path.isfile(pending_commit_path(directory, key))


def _make_directory(directory: str) -> None:
    with contextlib.suppress(FileExistsError):
        disk.DISK.mkdir(pins_path(directory))


failpoints.declare("trim:point_stored", "trim:unlinked")

_TRIM: Final = TopicWord.TRIM
_RETREATS: Final = TopicWord.RETREATS
EVERYTHING: Final = 1 << 62

Seen = tuple[int, int]
"""What changes when a subscription is made or put back, and when a reader pins."""


class LedgerNeed(NamedTuple):
    """Why a closed ledger is to stay; it may go once neither holds, and those before it went.

    Attributes:
        ledger: the ledger.
        is_unacked: it holds an entry that is not acknowledged.
        is_retained: it is acknowledged, and the retention keeps it all the same.
        is_undecided: it, or one before it, holds an entry that waits for a transaction.
    """

    ledger: ClosedLedger
    is_unacked: bool
    is_retained: bool
    is_undecided: bool = False


class Trimming:
    """The trim point of one topic.

    Role: decides what may go; the layers above decide when it is trimmed.
    Invariants: only whole closed ledgers go, from the oldest on, and none that holds an entry which is not
    acknowledged. A trim point that was chosen before a subscription was made or put back is not published.
    Callers: any thread.
    """

    def __init__(
        self,
        control: TopicControl,
        lock: FileLock,
        view: LogView,
        lock_timeout_s: float,
        remove: Callable[[int, float], int],
    ) -> None:
        self.remove: Final = remove
        """Removes what is stored of ledgers that were given up, at most so many, for about so many seconds;
        returns how many went."""
        self._directory: Final = control.home.directory  # where its pins are
        self._control: Final = control
        self._lock: Final = lock
        self._view: Final = view
        self._timeout_s: Final = lock_timeout_s
        self.suggest: Callable[[], object] = int
        """Called when there may be something to trim, possibly under the topic lock: must not wait."""
        self.relieve: Callable[[], object] = int
        """Called when an append found no room on the disk, under the topic lock: must not wait."""
        self.snapshot_before: Callable[[int, float | None], int] = lambda first, _: first
        """Saves what must be remembered of the ledgers before the one given, and returns up to which it did;
        to be called before `give_up`, without locks, with the time it may wait for one."""

    def rewind_count(self, lock_timeout_s: float | None = None) -> Seen:
        """To be read before the subscriptions and pins are looked at, and given to `give_up`."""
        try:
            self._lock.acquire(lock_timeout_s or self._timeout_s)
            return self._seen()
        finally:
            self._lock.release()

    def _seen(self) -> Seen:
        return int(self._control.words[_RETREATS]), pinned_word(self._directory)

    def pinned(self, now_ms: int, *, removes: bool, with_readers: bool = True) -> list[Position]:
        """The positions behind which pins keep everything: one, or none.

        Args:
            now_ms: the time of day.
            removes: whether pins that count no more are removed. Under the housekeeping lock.
            with_readers: whether pins of readers count, too.
        """
        pin = pinned_from(self._directory, now_ms, removes=removes, with_readers=with_readers)
        return [] if pin is None else [pin]

    def note_retreat(self) -> None:
        """Void trim points that were chosen before: a subscription was made, or put back.

        Called after it was, and before that is reported. A process that dies in between has reported nothing.
        """
        # The number alone matters, not the process that raised it: `give_up` compares it for
        # equality.
        words = self._control.words
        try:
            self._lock.acquire(self._timeout_s)
            words[_RETREATS] += 1
        finally:
            self._lock.release()

    @property
    def has_closed_ledgers(self) -> bool:
        """Whether there may be something to trim. Reads three words."""
        words = self._control.words
        return bool(words[TopicWord.TOTAL_ENTRIES]) and self.first_retained < words[TopicWord.TAIL] >> 32

    @property
    def first_retained(self) -> int:
        """Ledgers before this one were given up."""
        return int(self._control.words[TopicWord.TRIM])

    def is_given_up(self, ledger_id: int) -> bool:
        """Whether what is stored of a ledger may be removed.

        Raises:
            CorruptionError: the control file was overwritten while it was in use.
        """
        return ledger_id < self.first_retained and ledger_id < self._control.trim_point()

    def first_needed(self, marks: Sequence[Position], retention: Retention, now_ms: int) -> int:
        """The first ledger that is to stay.

        Args:
            marks: the mark-delete positions of all that hold entries back.
            retention: how much of what is acknowledged stays all the same.
            now_ms: the time of day.
        """
        tail = self._view.chain().tail_ledger
        for need in self.needs(marks, retention, now_ms):
            if need.is_unacked or need.is_retained or need.is_undecided:
                return need.ledger.ledger_id
        return tail

    @property
    def first_undecided(self) -> int:
        """The first ledger with an entry that waits for a transaction; 0 if there is none."""
        horizon = None if self._view.max_read is None else self._view.max_read.horizon()
        return 0 if horizon is None else horizon.position.ledger_id

    def needs(self, marks: Collection[Position], retention: Retention, now_ms: int) -> Iterator[LedgerNeed]:
        """What holds each closed ledger, the oldest first; see `first_needed`."""
        chain = self._view.chain()
        # One pass from the oldest ledger on. ``remaining`` is the size of what would stay if this
        # ledger went as well.
        slowest = min(marks, default=None)
        remaining = sum(map(_size, chain.closed)) + self._tail_size(chain)
        for number, ledger in enumerate(chain.closed):
            last = ledger.last_entry_id
            # A ledger may go when its last entry is acknowledged by all, because only whole ledgers
            # go.
            is_unacked = slowest is not None and last >= 0 and (ledger.ledger_id, last) > slowest
            remaining -= _size(ledger)
            is_old = retention.is_none or retention.is_over_size(remaining)
            is_retained = (
                not is_unacked and not is_old and not self._is_over_time(chain, number, retention, now_ms)
            )
            # After the look at the ledgers: what stands in one of them is found.
            undecided = self.first_undecided
            yield LedgerNeed(
                ledger, is_unacked, is_retained, bool(undecided and ledger.ledger_id >= undecided)
            )

    def _tail_size(self, chain: LedgerChain) -> int:
        end = self._view.end_of(chain.tail_ledger) if chain.tail_ledger else 0
        return max(0, end - FIRST_FRAME_OFFSET)

    def _is_over_time(self, chain: LedgerChain, number: int, retention: Retention, now_ms: int) -> bool:
        """Whether the last entry of a closed ledger was published long enough ago."""
        ledger = chain.closed[number]
        # Bounds first: nothing was published after the next ledger began, nothing before this one
        # did. Only between the two the time of the last entry is looked up.
        following = chain.closed[number + 1] if number + 1 < len(chain.closed) else None
        latest = following.base_publish_ms if following is not None else chain.tail_base_publish_ms
        if retention.is_over_time(now_ms - latest):
            return True
        if not retention.is_over_time(now_ms - ledger.base_publish_ms):
            return False
        if ledger.last_entry_id < 0:
            return True
        try:
            slot = self._view.slot(ledger.ledger_id, ledger.last_entry_id)
        except (FileNotFoundError, CorruptionError):
            return False  # lost or damaged; until the ledger behind it is old enough
        return retention.is_over_time(now_ms - ledger.base_publish_ms - slot.publish_delta_ms)

    def give_up(self, ledger_id: int, seen: Seen, lock_timeout_s: float | None = None) -> bool:
        """Give up the ledgers before `ledger_id`, never the tail's; their entries stay until `remove`.

        Returns:
            False, and nothing done, if a subscription was made or put back, or a reader pinned, since
            `rewind_count`.
        """
        words = self._control.words
        try:
            self._lock.acquire(lock_timeout_s or self._timeout_s)
            # Under the lock under which a subscription raises the count, so either this sees it, or
            # the subscription finds the point.
            if self._seen() != seen:
                return False
            # 1. The trim point. A process that misses a file below it knows that it was trimmed, not lost.
            # The tail's ledger is never given up: it is being written.
            # Neither is one with an entry that waits for a transaction, nor any behind it.
            tail_ledger, _ = split_tail(words[TopicWord.TAIL])
            point = min(ledger_id, tail_ledger, self.first_undecided or tail_ledger)
            if point > words[_TRIM]:
                words[_TRIM] = point
            failpoints.hit("trim:point_stored")
        finally:
            self._lock.release()
        return True


def _size(ledger: ClosedLedger) -> int:
    return max(0, ledger.end_offset - FIRST_FRAME_OFFSET)


def remove_trimmed(
    directory: str, control: TopicControl, max_ledgers: int, within_s: float, *, is_durable: bool = True
) -> int:
    """Remove the files of ledgers that were given up, at most `max_ledgers` of them, and begin none after
    `within_s` seconds; return how many ledgers lost files, 0 when no such file is left.

    Readers that have a segment mapped read it to its end; others jump to the first retained ledger. May be
    repeated: what a crash left is removed by the next call.
    Needs no lock: no process makes a file below the trim point.

    Raises:
        CorruptionError: the control file was overwritten while it was in use; nothing is removed.
    """
    point = control.trim_point()
    # By the listing and not from a count: what earlier calls left is removed as well. An index may be
    # left without its log.
    names = descriptors.names_in(directory)
    ledgers = {ledger for suffix in (LOG_SUFFIX, INDEX_SUFFIX) for ledger in ledgers_of(names, suffix)}
    expired = sorted(ledger for ledger in ledgers if ledger < point)[:max_ledgers]
    if expired:
        control.check_in_place()
        # 2. Durably, or after a power loss a file might be gone and the trim point not yet there.
        if is_durable:
            control.flush()
    removed = 0
    until = timing.perf_counter() + within_s
    try:
        # 3. The files, oldest first. A crash leaves some of them: strays below the trim point.
        for ledger in expired:
            for path in (log_path(directory, ledger), index_path(directory, ledger)):
                with contextlib.suppress(FileNotFoundError):  # another process trims too
                    disk.DISK.unlink(path)
                failpoints.hit("trim:unlinked")
            removed += 1  # also if only its index was left, or the caller would take the rest for removed
            if timing.perf_counter() > until:
                break
    finally:
        # 4. The maps of this process, also of what another has removed: as long as a process has one, the
        # disk space is not given back.
        SEGMENTS.drop_below(control.home, point)
    return removed


failpoints.declare("roll:file_created", "roll:header_written", "roll:synced", "roll:tail_switched")

MAX_LEDGER_ID: Final = (1 << 32) - 1
"""The tail word has 32 bits for it."""
MAX_TIME_DELTA_MS: Final = 1 << 31
"""Publish times in index slots are 32-bit offsets from the segment's base; half of that is the limit."""
MAX_MESSAGES: Final = 1 << 31
"""Message counts in index slots are 32 bits; checked once per block of slots, hence the distance to 2**32."""


class RollPolicy:
    """Limits of one ledger. An empty ledger is never full: it takes any entry its file can hold.

    Example:
        >>> policy = RollPolicy(max_entries=2, max_age_ms=1_000)
        >>> policy.entry_limit(capacity=1024), policy.time_limit(5_000, 5_000)
        (2, 6000)
        >>> fresh = dict(now_ms=5_000, base_ms=5_000, created_ms=5_000, capacity=1024, end=0, log_size=1)
        >>> policy.reason(entries=1, messages=1, **fresh), policy.reason(entries=2, messages=2, **fresh)
        (None, 'entries')
    """

    __slots__ = ("max_age_ms", "max_entries")

    def __init__(self, max_entries: int, max_age_ms: int) -> None:
        self.max_entries = max_entries
        self.max_age_ms = max_age_ms

    def entry_limit(self, capacity: int) -> int:
        """The first entry id the ledger does not take."""
        return min(self.max_entries, capacity)

    def time_limit(self, base_ms: int, created_ms: int) -> int:
        """The first publish time the ledger does not take."""
        return min(base_ms + MAX_TIME_DELTA_MS, created_ms + self.max_age_ms)

    def reason(
        self,
        *,
        entries: int,
        capacity: int,
        now_ms: int,
        base_ms: int,
        created_ms: int,
        end: int,
        log_size: int,
        messages: int,
    ) -> str | None:
        """Why a ledger of `entries` entries may not take one more, ending at byte `end`; None if it may.

        An empty ledger is full only where the formats would not hold: size, or a time delta out of range.
        """
        # First what the formats cannot hold, then, for a ledger with entries, what the options want.
        if end > log_size:
            return "size"
        if now_ms - base_ms >= MAX_TIME_DELTA_MS:
            return "time delta"
        if not entries:
            return None
        if entries >= self.entry_limit(capacity):
            return "entries"
        if messages >= MAX_MESSAGES:
            return "messages"
        if now_ms - created_ms >= self.max_age_ms:
            return "age"
        return None


class NewLedger(NamedTuple):
    """The parameters of a new ledger, besides those the ledger before gives."""

    ledger_id: int
    created_ms: int
    base_publish_ms: int
    boot_id: bytes
    store_id: bytes
    incarnation: int
    log_size: int
    index_capacity: int
    first_allocation: int
    is_synced: bool
    """Flush files and directory before the ledger becomes the tail."""
    version: int = FORMAT_VERSION
    """Of the segment: 1, or `REVISED_VERSION`."""


class WriterOptions(NamedTuple):
    """The writer's view of the topic and its options."""

    segment_size: int
    first_allocation: int
    allocation_step: int
    max_entries: int
    max_age_ms: int
    lock_timeout_s: float
    is_rolled_synced: bool
    boot_id: bytes
    store_id: bytes
    incarnation: int
    is_temporary: bool = False
    is_flushed: bool = False

    def new_ledger(
        self,
        ledger_id: int,
        now_ms: int,
        length: int,
        first_allocation: int,
        is_synced: bool,
        version: int,
    ) -> NewLedger:
        """The next ledger of the topic, which begins with an entry of `length` bytes."""
        return NewLedger(
            ledger_id=ledger_id,
            created_ms=now_ms,
            base_publish_ms=now_ms,
            boot_id=self.boot_id,
            store_id=self.store_id,
            incarnation=self.incarnation,
            log_size=max(self.segment_size, -(-(FIRST_FRAME_OFFSET + length) // 4096) * 4096),
            index_capacity=-(-self.max_entries // SLOTS_PER_BLOCK) * SLOTS_PER_BLOCK,
            first_allocation=first_allocation,
            is_synced=is_synced,
            version=version,
        )


def start_ledger(
    directory: str,
    words: memoryview,
    new: NewLedger,
    previous: Ending | None,
    *,
    lean: bool = False,
) -> Segment:
    """Create a segment and make it the tail. Under the topic lock.

    Args:
        directory: the topic's.
        words: its control words.
        new: the ledger to start; its id is above the tail's.
        previous: where the present tail ledger ends; None if there is none.
        lean: as of `MappedFile.open`.

    Raises:
        StorageFullError: no room; the old ledger is still the tail, and no file is left.
        StorageError: the new id is out of range.
    """
    return nofollow.within(directory, _start_within, directory, words, new, previous, lean)


def _start_within(
    directory: str, words: memoryview, new: NewLedger, previous: Ending | None, lean: bool
) -> Segment:
    # Ids are reserved durably in blocks and rise. A lower one could give a message id a second time.
    tail_ledger = previous.ledger_id if previous else 0
    if not tail_ledger < new.ledger_id <= MAX_LEDGER_ID:
        raise StorageError(
            path=directory, reason=f"ledger id {new.ledger_id} after {tail_ledger}; ids rise and have 32 bits"
        )
    # 1. Strays of a roll that died here. Ids above the tail's are unused.
    remove_strays(directory, tail_ledger)
    header = _header(new, previous)
    segment: Segment | None = None
    try:
        # 2. The files, with disk space. A crash leaves strays.
        segment = Segment.create(directory, header, new.first_allocation, lean=lean)
        index = SegmentIndex.create(
            index_path(directory, new.ledger_id),
            new.ledger_id,
            new.index_capacity,
            new.created_ms,
            lean=lean,
        )
        segment.use_index(index)
        if failpoints.ACTIVE:
            failpoints.hit("roll:file_created")
        # 3. The header: among the rest, where the ledger before ends. A crash leaves a stray that looks fine.
        touched = segment.write_header()
        if failpoints.ACTIVE:
            failpoints.hit("roll:header_written")
        # 4. Content and names survive a power loss before anything refers to them.
        if new.is_synced:
            disk.DISK.fsync(index.file.fd, index.path)
            disk.DISK.fsync(segment.file.fd, segment.path)
            disk.DISK.fsync_dir(directory)
        if failpoints.ACTIVE:
            failpoints.hit("roll:synced")
        index.file.close_descriptor()
        segment.file.close_descriptor_if_lean()
    # The old ledger is still the tail. Files that were made so far are removed here, or by the next
    # roll.
    except OSError:
        if segment is not None:
            segment.close()
        # Under the same lock, so no other process can have taken a file of this id.
        _discard(directory, new.ledger_id)
        raise
    # 5. What the words say about the tail's files. Too small is harmless for the old ledger.
    words[TopicWord.ALLOCATED] = segment.file.allocated
    words[TopicWord.INDEX_ALLOCATED] = index.file.allocated
    words[TOUCHED] = touched
    # 6. The switch: one store. The old ledger is closed, its end is in the new header. No interrupt may come
    # between it and the totals: the roll would be repeated, and count the old ledger twice.
    switch: dict[int, int] = {}
    if previous is not None:
        switch = {
            TopicWord.TOTAL_MESSAGES: words[TopicWord.TOTAL_MESSAGES] + previous.messages,
            TopicWord.TOTAL_BYTES: words[TopicWord.TOTAL_BYTES] + previous.end_offset - FIRST_FRAME_OFFSET,
            TopicWord.TOTAL_ENTRIES: words[TopicWord.TOTAL_ENTRIES] + previous.last_entry_id + 1,
        }
    switch[TopicWord.TAIL] = tail_word(new.ledger_id, FIRST_FRAME_OFFSET)
    file_lock.store(words, switch)
    words[TopicWord.STATE] &= ~MUST_ROLL
    if failpoints.ACTIVE:
        failpoints.hit("roll:tail_switched")
    return segment


def _header(new: NewLedger, previous: Ending | None) -> SegmentHeader:
    # The header of the new ledger is the only place that says where the old one ends.
    header = SegmentHeader(
        ledger_id=new.ledger_id,
        created_ms=new.created_ms,
        base_publish_ms=new.base_publish_ms,
        boot_id=new.boot_id,
        store_id=new.store_id,
        topic_incarnation=new.incarnation,
        chain_seed=int.from_bytes(os.urandom(4), "little"),  # so that bytes of another file never chain
        log_size=new.log_size,
        index_capacity=new.index_capacity,
        version=new.version,
    )
    if previous is None:
        return header
    return header._replace(
        prev_ledger_id=previous.ledger_id,
        prev_end_offset=previous.end_offset,
        prev_last_entry_id=previous.last_entry_id,
        prev_last_crc=previous.last_crc,
        prev_messages=previous.messages,
    )


def undo_unpublished(control: TopicControl, by_map: int) -> None:
    """Remove what a holder of the lock left that died inside, or was interrupted: it must not come back.

    Otherwise a recovery after a power loss might take its frame, or its half-made ledger, for published.

    Args:
        control: of the topic, under its lock.
        by_map: frames up to this length were stored through the map.
    """
    words = control.words
    # The epoch makes void what other processes have read of words that the dead holder may have
    # changed half.
    words[TopicWord.RECOVERIES] += 1
    words[TopicWord.EPOCH] += 1
    ledger_id, end = split_tail(words[TopicWord.TAIL])
    try:
        control.check_in_place()
        remove_strays(control.home.directory, ledger_id)
        if ledger_id:
            segment = SEGMENTS.get(control.home, ledger_id, writable=True)
            clear_unpublished(segment, end, words[TopicWord.ALLOCATED], by_map)
    except (FileNotFoundError, CorruptionError):
        return  # the refresh that follows meets it too, and deals with it
    except DescriptorLimitError:
        raise  # nothing was tried; the owner word still says that it is to be done
    except OSError:
        # A failed flush loses everything that was not flushed before, and a later flush that succeeds
        # would not report that. The next ledger's header records the end instead.
        # The range grows: everything since the last successful flush counts as lost.
        if not words[POISON_TO]:
            words[POISON_FROM] = words[TopicWord.SYNCED]
        words[POISON_TO] = words[TopicWord.TAIL]
        words[TopicWord.STATE] |= MUST_ROLL


def remove_strays(directory: str, tail_ledger: int) -> int:
    """Unlink segments and indexes above the tail's ledger, and all unfinished indexes; return how many files.
    Under the topic lock, as every index is built.

    Not one that was written and cannot be read: it may be the tail that a recovery could not find.
    Durably: a stray that came back after a power loss, when the old ledger had gone on, would claim its end.

    Raises:
        CorruptionError: one has a message. A ledger is the tail before its first message is written, so the
            tail is another one than the words say. Nothing was removed.
    """
    # Indexes go with their logs, and also those whose log is gone already: a removal may have died
    # between the two.
    names = descriptors.names_in(directory)
    logs = [ledger for ledger in ledgers_of(names, LOG_SUFFIX) if ledger > tail_ledger]
    kept = {ledger for ledger in logs if _is_damaged(directory, ledger)}
    strays = [log_path(directory, ledger) for ledger in logs if ledger not in kept]
    for path in strays:
        if has_frame(path):
            reason = f"they say that ledger {tail_ledger} is the last one, and {path} has messages"
            raise overwritten(control_path(directory), reason)
    strays += [
        index_path(directory, ledger)
        for ledger in ledgers_of(names, INDEX_SUFFIX)
        if ledger > tail_ledger and ledger not in kept
    ]
    strays += [
        under_construction(index_path(directory, ledger))
        for ledger in ledgers_of(names, INDEX_SUFFIX + NEW_SUFFIX)
    ]
    for path in strays:
        disk.DISK.unlink(path)
    if strays:
        disk.DISK.fsync_dir(directory)
    return len(strays)


def _is_damaged(directory: str, ledger: int) -> bool:
    try:
        read_segment_header(directory, ledger)
    except CorruptionError:
        return not is_never_written(log_path(directory, ledger))
    return False


def _discard(directory: str, ledger_id: int) -> None:
    with contextlib.suppress(OSError):  # the error that brought us here is the one to report
        remove_strays(directory, ledger_id - 1)
