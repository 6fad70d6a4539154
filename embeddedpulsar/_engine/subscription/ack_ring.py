"""Acknowledgements of one consumer that are not in the journal yet, kept in a file in case its process dies.

Hot: `Consumer.acknowledge` stores into `AckRing.words` itself.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from embeddedpulsar._engine.filenames import acks_path, consumers_in
from embeddedpulsar._engine.format.acknowledgement import Ack, group_batches, group_entries
from embeddedpulsar._engine.format.control import (
    CONTROL_HEADER_SIZE,
    KIND_ACKS,
    RING_SIZE,
    ControlHeader,
    RingWord,
    Unwritten,
    index_word,
    pack_control_header,
    parse_ring,
    place_word,
)
from embeddedpulsar._engine.format.subscription_record import (
    DETACH_CLOSED,
    AckCumulative,
    Command,
    Detach,
    Ledgers,
)
from embeddedpulsar._engine.platform import descriptors, disk, failpoints, nofollow, threads
from embeddedpulsar._engine.platform.mapped_file import MappedFile
from embeddedpulsar._engine.subscription.log_queries import news_for
from embeddedpulsar._engine.subscription.state.replica import SubscriptionState
from embeddedpulsar.exceptions import CorruptionError, UnsupportedFormatVersion
from embeddedpulsar.message_id import Position
from embeddedpulsar.records import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Final

MOST_ENTRIES: Final = RingWord.PARTS - RingWord.ENTRIES
"""Whole entries that fit. The caller writes before there are as many, so that none is overwritten."""
_HALF: Final = (RING_SIZE // 8 - RingWord.PARTS) // 2
_MOST_LEDGERS: Final = 64
_CLEARED: Final = bytes(RING_SIZE - 8 * RingWord.CUMULATIVE)
NOWHERE: Final = memoryview(bytearray(RING_SIZE)).cast("Q")
"""Words that are never read, for a thread that acknowledges while its consumer is being closed."""

failpoints.declare("acks:cleared", "acks:pair_data", "subscription:left")


class AckRing:
    """A mapped file with one writer, this process, and no reader while the consumer is attached.

    Role: an acknowledgement is stored here, without a system call, before `acknowledge` returns; so it is
    known however the process ends, until the next boot. The process that journals the departure of the
    consumer reads it (`with_unwritten_acks`). What was written to the journal meanwhile may stand here as
    well: it is applied twice, to no effect. Invariants: a whole entry is one word. The second word of a pair
    is stored while the first one is 0. Nothing counts unless EPOCH is the epoch of the consumer.

    Durable: nothing. Callers: any thread of the process that made it.

    Attributes:
        consumer_id: of the consumer.
        words, slots: to acknowledge an entry, store `place_word` at the next of the slots. The caller sees to
            it that not more than `MOST_ENTRIES` are unwritten.
        firsts: `place_word` of entry 0 of ledgers that `store` met: adding to it takes half the time.
    """

    def __init__(self, view: memoryview, consumer_id: int, file: MappedFile | None = None) -> None:
        self.consumer_id: Final = consumer_id
        self.words = view.cast("Q")
        self._view = view
        self.slots: Iterator[int] = itertools.cycle(range(RingWord.ENTRIES, RingWord.PARTS))
        self.firsts: dict[int, int] = {}
        self._file = file
        self._lock = threads.RLock()  # guards everything below, and the pairs
        self._turn = 0
        self._half = 0
        self._has_other = True
        self._free_parts = _slots_of(0)

    @classmethod
    def make(cls, directory: str, consumer_id: int, epoch: int, boot: bytes) -> AckRing:
        return nofollow.within(directory, cls._make, directory, consumer_id, epoch, boot)

    @classmethod
    def _make(cls, directory: str, consumer_id: int, epoch: int, boot: bytes) -> AckRing:
        path = acks_path(directory, consumer_id)
        try:
            if os.path.lexists(path):  # seldom: of an earlier boot, after which ids were given again
                with contextlib.suppress(FileNotFoundError):
                    disk.DISK.unlink(path)
            file = MappedFile.open(path, writable=True, size=RING_SIZE, create=True, lean=True)
        except FileNotFoundError:  # deleted with its topic: acknowledgements have no effect
            return cls(memoryview(bytearray(RING_SIZE)), consumer_id)
        header = ControlHeader(KIND_ACKS, boot, file.device, file.inode, consumer_id)
        file.view[:CONTROL_HEADER_SIZE] = pack_control_header(header)
        file.words[RingWord.EPOCH] = epoch
        return cls(file.view[:], consumer_id, file)

    def begin(self, epoch: int) -> None:
        """Start a new epoch: what was acknowledged before is void."""
        # EPOCH is 0 while the rest is cleared: a kill between the stores leaves a ring of which
        # nothing counts, and no old acknowledgements under the new epoch.
        words = self.words
        words[RingWord.EPOCH] = 0
        failpoints.hit("acks:cleared")
        self._view[8 * RingWord.CUMULATIVE :] = _CLEARED
        words[RingWord.EPOCH] = epoch

    def store(self, ledger_id: int, entry_id: int) -> None:
        self.words[next(self.slots)] = place_word(ledger_id, entry_id)
        if ledger_id not in self.firsts:
            # Bounded, as a topic may have any number of ledgers; a consumer acknowledges in a few at
            # a time.
            if len(self.firsts) >= _MOST_LEDGERS:
                self.firsts.clear()
            self.firsts[ledger_id] = place_word(ledger_id, 0)

    def note_part(self, ledger_id: int, entry_id: int, index: int, size: int) -> bool:
        """Note that a message of a batch is acknowledged.

        Returns:
            False if there is no room before parts are written.
        """
        try:
            self._lock.acquire()
            slot = next(self._free_parts, 0)
            if slot:
                self._store_pair(slot, place_word(ledger_id, entry_id), index_word(index, size))
            return slot > 0
        finally:
            self._lock.release()

    def begin_writing(self) -> None:
        """Begin to write all parts noted so far. Parts noted from here on go to the other half, as a half is
        free again when all in it is written. If the last writing failed, the other half is not free: parts go
        on behind those of this half, and it is the other half that this writing frees."""
        try:
            self._lock.acquire()
            if self._has_other:
                self._has_other = False
                self._half ^= 1
                self._free_parts = _slots_of(self._half)
        finally:
            self._lock.release()

    def end_writing(self) -> None:
        """Note that those parts are written."""
        try:
            self._lock.acquire()
            self._has_other = True
        finally:
            self._lock.release()

    def note_cumulative(self, ledger_id: int, entry_id: int, index: int, size: int) -> None:
        """Note that everything up to a message is acknowledged. The old note stays until this is stored."""
        try:
            self._lock.acquire()
            # Two pairs of words in turn: the old note counts until the new one is complete.
            self._turn ^= 1
            slot = RingWord.CUMULATIVE + 2 * self._turn
            self._store_pair(slot, place_word(ledger_id, entry_id), index_word(index, size))
        finally:
            self._lock.release()

    def _store_pair(self, slot: int, place: int, index: int) -> None:
        # The place is 0 while the index changes: a kill between leaves a pair without effect, and
        # never a place with the index of another.
        words = self.words
        words[slot] = 0
        words[slot + 1] = index
        if failpoints.ACTIVE:
            failpoints.hit("acks:pair_data")
        words[slot] = place

    def remove(self) -> None:
        """Remove the file when all is written. The map goes with the last reference to `words`."""
        if self._file is not None:
            with contextlib.suppress(FileNotFoundError):
                disk.DISK.unlink(self._file.path)
            self._file.close()


def _slots_of(half: int) -> Iterator[int]:
    """The pairs of words in one half of the slots for parts."""
    first = RingWord.PARTS + half * _HALF
    return iter(range(first, first + _HALF, 2))


def with_unwritten_acks(
    state: SubscriptionState,
    directory: str,
    boot: bytes,
    leaving: Iterable[Detach],
    facts: Callable[[], Ledgers],
) -> list[Command]:
    """Detach commands, each behind what the consumer acknowledged. Inside a transaction.

    Args:
        state: caught up.
        directory: of the subscription.
        boot: that of its control words: nothing of another one is believed.
        leaving: the consumers that leave.
        facts: the ledgers there are; asked for if the state does not know one that counts.
    """
    commands: list[Command] = []
    for leaver in leaving:
        # A file that names another consumer in its header says nothing about this one.
        unwritten = _read(acks_path(directory, leaver.consumer_id), boot)
        if unwritten is not None and unwritten.consumer_id == leaver.consumer_id:
            commands += _commands_of(state, unwritten, facts)
        commands.append(leaver)
    return commands


def _read(path: str, boot: bytes) -> Unwritten | None:
    if not os.path.lexists(path):
        return None  # it has no acknowledgements: a fifth of the time that a failed opening takes
    try:
        status, data = disk.DISK.read_start(path, RING_SIZE)
        if threads.await_stores():
            data = _unchanged(data, disk.DISK.read_start(path, RING_SIZE)[1])
        header, unwritten = parse_ring(data)
    except FileNotFoundError:
        return None  # it has no acknowledgements
    except CorruptionError:
        return None  # it died before it was made
    except UnsupportedFormatVersion as e:
        raise e.at(path) from None
    is_trusted = (header.boot_id, header.device, header.inode) == (boot, status.st_dev, status.st_ino)
    return unwritten if is_trusted else None


def _unchanged(before: bytes, data: bytes) -> bytes:
    """A ring that was read twice, without the words that changed meanwhile; a pair goes as a whole.

    Its process may live, and store at this moment: it was silent for long, so it is taken for dead. Where
    processors reorder, one reading may have the second word of an old pair with the first of a new one, or
    old words under a new epoch. By the second reading all stores have arrived that came before the first,
    so such words differ. What is left out is delivered again.
    """
    first, second = (memoryview(ring.ljust(RING_SIZE, b"\0")).cast("Q") for ring in (before, data))
    words = [new if old == new else 0 for old, new in zip(first, second, strict=True)]
    for start, stop in ((RingWord.CUMULATIVE, RingWord.ENTRIES), (RingWord.PARTS, RING_SIZE // 8)):
        for place in range(start, stop, 2):
            if first[place + 1] != second[place + 1]:
                words[place] = 0
    return array("Q", words).tobytes()


def _commands_of(
    state: SubscriptionState, unwritten: Unwritten, facts: Callable[[], Ledgers]
) -> list[Command]:
    """The acknowledgements in the ring that count and are not in the state already."""
    if not state.consumers.is_current(unwritten.consumer_id, unwritten.epoch):
        return []  # void: the subscription was moved since
    acks = state.acks
    known = acks.mark_delete  # of a consumer that died long after it acknowledged, that is all of them
    entries = [entry for entry in unwritten.entries if entry > known and not acks.is_acked(Position(*entry))]
    parts, cumulative = unwritten.parts, unwritten.cumulative
    if parts:
        parts = {entry: bits for entry, bits in parts.items() if not acks.is_acked(Position(*entry))}
    if cumulative:
        # One within a batch is kept in any case: to apply it twice has no effect.
        cumulative = [entry for entry in cumulative if Position(entry[0], entry[1]) > known or entry[2] >= 0]
    if not (entries or parts or cumulative):
        return []
    commands: list[Command] = []
    if entries or parts:
        commands.append(
            Ack(unwritten.consumer_id, unwritten.epoch, group_entries(entries), group_batches(parts))
        )
    commands += [AckCumulative(unwritten.consumer_id, unwritten.epoch, *entry) for entry in cumulative]
    # Acknowledgements of a ledger that the state does not know have no effect, so the ledgers come
    # first.
    newest = max(place[0] for place in (*entries, *parts, *cumulative))
    if newest > acks.newest_ledger:
        commands = [*news_for(state, facts()), *commands]
    return commands


class RingSweep:
    """Removes the files of consumers that left a subscription.

    Role: a consumer that acknowledged nothing has none, and closing takes half the time if none is sought.
    So the file of a consumer that leaves is removed if it is there. All are looked for when the first
    consumer closes here, unless this process made the subscription, and the first after one that did not
    close in good order: a process may have been killed before it removed a file. Not when that one leaves:
    another consumer waits for its messages then, and its file goes with the next commit.
    Callers: of `begin` and `record_leaver` the holder of the subscription's lock, of `sweep` a thread
    without it.

    Attributes:
        has_leavers: consumers left since the last `sweep`, whose files are to be removed now.
    """

    __slots__ = ("_directory", "_is_due", "_left", "_was_due", "has_leavers")

    def __init__(self, directory: str) -> None:
        self._directory: Final = directory
        self._left: deque[int] = deque()
        self._is_due = self._was_due = self.has_leavers = False

    def note_made(self) -> None:
        """Note that the subscription is made: there is no file of a consumer, and none to be sought."""
        self._was_due = True

    def begin(self) -> None:
        """Note that a commit begins."""
        self.has_leavers = bool(self._left)

    def record_leaver(self, command: Detach) -> None:
        """Note that the commit says that a consumer leaves."""
        self._left.append(command.consumer_id)
        if command.reason != DETACH_CLOSED:
            self._was_due = False
            return
        if not self._was_due:
            self._is_due = self._was_due = True
        self.has_leavers = True  # last: a thread that sweeps meanwhile sets it back before it looks

    def sweep(self, state: SubscriptionState) -> None:
        """Remove the files of consumers that left. Those of consumers ``state`` has not heard of yet stay."""
        if failpoints.ACTIVE:
            failpoints.hit("subscription:left")
        # Set back before it looks: a consumer that leaves meanwhile sets it again.
        self.has_leavers = False
        is_due, self._is_due = self._is_due, False
        leavers = []
        with contextlib.suppress(IndexError):
            while True:
                leavers.append(self._left.popleft())
        if is_due:
            try:
                leavers = consumers_in(descriptors.names_in(self._directory))
            except FileNotFoundError:
                return  # the directory was removed with its topic
        for consumer_id in leavers:
            path = acks_path(self._directory, consumer_id)
            # An id above the epoch is that of a consumer that attached after ``state`` was read.
            is_gone = consumer_id <= state.epoch and state.consumers.get(consumer_id) is None
            if is_gone and (is_due or os.path.lexists(path)):
                with contextlib.suppress(FileNotFoundError):  # another process removes it too
                    disk.DISK.unlink(path)
