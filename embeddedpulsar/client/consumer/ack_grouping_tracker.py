"""Acknowledgements that are collected and written to the subscription in groups.

Hot: `Consumer.acknowledge` works on the fields of the tracker.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import or_

from embeddedpulsar._engine.format.acknowledgement import bitsets_of
from embeddedpulsar._engine.format.entry_decoder import RawPosition
from embeddedpulsar._engine.platform import failpoints, threads, timing
from embeddedpulsar._engine.platform.timing import Backoff
from embeddedpulsar._engine.subscription.ack_ring import MOST_ENTRIES, NOWHERE
from embeddedpulsar._engine.subscription.state.pending_acks import PartlyPending
from embeddedpulsar.exceptions import (
    AlreadyClosed,
    CumulativeAcknowledgementNotAllowedError,
    LockTimeout,
    NotAllowedError,
    NotConnected,
    TransactionConflict,
)
from embeddedpulsar.message import NO_ORIGIN, is_skipped
from embeddedpulsar.message_id import LARGEST_ID
from embeddedpulsar.records import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any, Final

    from embeddedpulsar._engine.format.entry import EntryView
    from embeddedpulsar._engine.subscription.ack_ring import AckRing
    from embeddedpulsar.client.client_threads import ClientLog
    from embeddedpulsar.message import Message

GROUP_SIZE: Final = 1000
_MOST_QUICK: Final = GROUP_SIZE - 1
_STRIDE: Final = 100
"""So many more are collected, where a lock is held, before it is tried again."""
_RETRY_S: Final = 1.0
_PATIENCE_S: Final = 0.1
"""Seconds that a call waits for a lock to write acknowledgements that are lost if this process dies."""
_MOST_GIVEN_BACK: Final = 10_000
_TURN_S: Final = 0.02
"""Seconds that the timer waits for a lock that passes from one to the next; not for one that is stuck."""

_NOWHERE: Final = (-1, -1, -1)
_MOVED: Final = (
    "the message was not acknowledged, and the transaction can only be aborted: the subscription was moved "
    "since the message was received, or this process was suspended for so long that it was considered dead"
)

failpoints.declare("ack:noted")


def _nobody() -> None:
    return None


class AckGroupingTracker:
    """Collects acknowledgements and writes them every ``group_time_ms`` or 1,000 entries.

    With ``receipts``, or a group time of 0, each is written when its call returns; threads share a write.

    Role: an entry is acknowledged when all its messages are. Each batch has one byte per message, shared by
    its `EntryView`, so that a message finds it without a search, and by `open`, so that an id finds it.
    Setting a byte is one atomic step. The thread that sets the last byte removes the batch from `open`, which
    succeeds in one thread only.

    Invariants: all collected acknowledgements belong to one epoch of the subscription, which is written with
    them. If the subscription was moved meanwhile, it ignores them. `done` is the same list throughout.
    Acknowledging appends to it without a lock, and `flush` removes from its front once the subscription has
    the acknowledgements, so a failure loses none. Collected acknowledgements are first recorded in the ring
    (`_engine.subscription.ack_ring`), where other processes find them if this process dies. Those that the
    ring cannot hold are written before the call returns. The timer, and the call that fills a group, only try
    the locks.

    Attributes:
        quick: whether `Consumer.acknowledge` may take its fast path, for messages of the `origin`.
        origin: of the messages that the consumer received since the subscription was moved.
        quick_origin: that, or `NO_ORIGIN`.
        ready: whether the ring exists and the flush timer runs.
        words, slots, firsts: of the ring.
        armed: whether the flush timer runs.
        consumer: returns the consumer that acknowledges with it, or None if that is gone; the inbox asks.
        log_names: returns what log records of it are about, as `log_fields` of the client takes it.
        most_quick: length of `done` at which the fast path ends.
        sent: number of written acknowledgements of entries and of partly acknowledged batches, and of
            cumulative ones.
    """

    __slots__ = (  # and not a dict: one of more than 30 attributes is slower
        "__weakref__",
        "_arm",
        "_attachment",
        "_backoff",
        "_cumulative",
        "_epoch",
        "_given_back",
        "_group_time_s",
        "_has_ended",
        "_helpers",
        "_in_transactions",
        "_index_acks",
        "_is_by_index",
        "_is_immediate",
        "_left_out",
        "_log",
        "_partial",
        "_receipts",
        "_recent",
        "_removal",
        "_ring",
        "_through",
        "armed",
        "consumer",
        "done",
        "firsts",
        "lock",
        "log_names",
        "most_quick",
        "on_done",
        "open",
        "origin",
        "quick_origin",
        "ready",
        "sent",
        "slots",
        "words",
    )

    def __init__(
        self,
        attachment: Any,
        group_time_ms: int,
        index_acks: bool,
        call_later: Callable[[float, Callable[[], object]], object],
        log: ClientLog,
        receipts: bool = False,
        origin: object = None,
    ) -> None:
        self.lock = threads.RLock()
        self.done: list[RawPosition] = []
        self.open: dict[RawPosition, bytearray] = {}
        self.armed = False
        self.consumer: Callable[[], Any] = _nobody
        self.log_names: Callable[[], dict[str, str]] = dict
        self.origin = origin
        is_quick = not index_acks and group_time_ms > 0 and not receipts
        self.quick_origin: object = origin if is_quick else NO_ORIGIN
        self.sent = 0
        self._has_ended = False
        self.on_done: Callable[[RawPosition], object] | None = None
        self._attachment = attachment
        self._epoch = attachment.epoch
        self._group_time_s = group_time_ms / 1000
        self._index_acks = index_acks
        self._receipts = receipts
        self._is_immediate = receipts or not group_time_ms
        self._ring: AckRing | None = None
        self.ready = False
        self.most_quick = _MOST_QUICK
        self.words: Any = None
        self.slots: Iterator[int] = iter(())
        self.firsts: dict[int, int] = {}
        self._partial: dict[RawPosition, bytearray] = {}
        # By entry, which messages of batches transactions acknowledged.
        self._in_transactions: dict[RawPosition, bytearray] = {}
        # By entry, which messages of batches this consumer was not given, and does not acknowledge with the
        # others: a transaction has some of them, and may give them back.
        self._left_out: dict[RawPosition, bytes] = {}
        self._is_by_index = False
        self._cumulative: tuple[int, int, int, int] | None = None
        self._through = _NOWHERE  # all up to this message is acknowledged, as (ledger, entry, index)
        self._given_back: dict[RawPosition, None] = {}  # the last ones: other consumers may have them
        self._helpers: set[weakref.ref[AckGroupingTracker]] = set()
        self._removal = threads.RLock()  # held while items leave `done`
        self._recent: RecentAcks | None = None  # while fetched entries may have been delivered before
        self._arm = call_later
        self._log = log
        self._backoff: Final = Backoff()

    @property
    def quick(self) -> bool:
        return self.quick_origin is not NO_ORIGIN

    @quick.setter
    def quick(self, value: bool) -> None:
        self.quick_origin = self.origin if value and not self._is_by_index else NO_ORIGIN

    def track(self, view: EntryView) -> None:
        """Prepare a fetched entry. An entry of one message needs no preparation."""
        count = view.count
        if count < 2:
            return
        flags = bytearray(count)
        skip = view.skip
        position = view.ledger_id, view.entry_id
        if skip is not None:
            flags[:] = [is_skipped(skip, index) for index in range(count)]
        is_partly_pending = isinstance(skip, PartlyPending)
        if is_partly_pending:
            removed: int = getattr(view, "removed", 0)  # by compaction: acknowledged with the others
            self._left_out[position] = bytes(flag and not removed >> i & 1 for i, flag in enumerate(flags))
        elif self._left_out:
            self._left_out.pop(position, None)
        unwritten = self._partial.get(position)
        if unwritten is not None and len(unwritten) == count:
            flags[:] = map(or_, flags, unwritten)
        view.acked = flags
        if is_partly_pending:  # then `complete` is asked when the last message is acknowledged
            self.open.pop(position, None)
        else:
            self.open[position] = flags

    def acknowledge(self, ledger: int, entry: int, index: int, size: int) -> None:
        """Acknowledge one message by its id. Ids without a message (earliest, latest) are ignored."""
        if ledger < 0 or ledger == LARGEST_ID or entry < 0:
            return
        position = (ledger, entry)
        flags = self.open.get(position)
        if index < 0 or size == 1:
            self.discard(position)
            self.complete(position)
        elif flags is not None:
            if index < len(flags):
                self._acknowledge_index(position, flags, index)
        elif size > index:
            self._acknowledge_part(position, index, size)

    # -- in transactions -----------------------------------------------------------------------------------

    def acknowledge_in(
        self,
        transaction: tuple[int, int],
        messages: Sequence[tuple[int, int, int, int]],
        owners: Sequence[AckGroupingTracker | None],
    ) -> None:
        """Acknowledge messages in a transaction, in one command: all or none. Ids without a message are
        ignored.

        Written behind all that was collected. Messages of batches are acknowledged one by one: the batch is
        not tracked any more, and what was collected of it is written.

        Args:
            transaction: its id.
            messages: parts of ids; see `acknowledge`.
            owners: for each the tracker of the consumer that received it, if that is another one.

        Raises:
            TransactionConflict: one of them is acknowledged, or pending in a transaction.
            NotConnected: the subscription was moved since they were received.
        """
        entries: list[RawPosition] = []
        bits: dict[RawPosition, tuple[int, int]] = {}
        for (ledger, entry, index, size), owner in zip(messages, owners, strict=True):
            if ledger < 0 or ledger == LARGEST_ID or entry < 0:
                continue
            position = (ledger, entry)
            if index < 0 or size == 1:
                entries.append(position)
            elif index < size:
                before = bits.get(position, (0, size))[0]
                if before >> index & 1:
                    raise TransactionConflict(f"message {index} of the batch at {position} is given twice")
                bits[position] = before | 1 << index, size
                # What was collected of this batch is written below. It is not acknowledged as a whole any
                # more: what the transaction has of it may count, and the rest not.
                self._untrack(position)
                if owner is not None:
                    owner._untrack(position)
        # An id that is given twice would conflict with itself, of which the subscription could not tell why.
        if len(messages) > 1 and (len(set(entries)) < len(entries) or not bits.keys().isdisjoint(entries)):
            raise TransactionConflict("a message is given twice")
        # First what was collected before, here and by the consumers that received the messages: what is
        # acknowledged already must be known where conflicts are looked for.
        if self.done or self._partial or self._cumulative is not None:
            self.flush()
        for owner in owners:
            if owner is not None and owner.unwritten:
                owner.flush()
        if not self._attachment.acknowledge(entries, bits, epoch=self._epoch, transaction=transaction):
            raise NotConnected(_MOVED)
        self.sent += len(entries) + len(bits)
        for position in entries:
            self._note_whole(position)
        for position, (mask, size) in bits.items():
            flags = self._in_transactions.setdefault(position, bytearray(size))
            for index in range(size):
                flags[index] |= mask >> index & 1
            if 0 not in flags:
                del self._in_transactions[position]
                self._note_whole(position)

    def acknowledge_cumulative_in(
        self, transaction: tuple[int, int], ledger: int, entry: int, index: int, size: int
    ) -> None:
        """`acknowledge_cumulative` in a transaction, written at once. Errors as of `acknowledge_in`."""
        if ledger < 0 or ledger == LARGEST_ID or entry < 0:
            return
        if self.unwritten:
            self.flush()
        is_whole = index < 0 or index + 1 >= size
        part = (-1, 0) if is_whole else (index, size)
        if not is_whole:
            self._untrack((ledger, entry))
        attachment = self._attachment
        if not attachment.acknowledge_cumulative(
            ledger, entry, *part, epoch=self._epoch, transaction=transaction
        ):
            raise NotConnected(_MOVED)
        self.sent += 1
        self._close_up_to((ledger, entry), whole=is_whole)

    def _untrack(self, position: RawPosition) -> None:
        """Have the messages of a batch acknowledged one by one from here on: what one transaction has of it
        may count, and the rest not."""
        # The fast path of `Consumer.acknowledge` sets flags that say nothing any more.
        self._is_by_index = True
        self.close()
        flags = self.open.pop(position, None)
        if flags is not None and any(flags):
            unwritten = self._partial.get(position)
            if unwritten is None or len(unwritten) != len(flags):
                self._partial[position] = flags
            else:
                unwritten[:] = map(or_, unwritten, flags)

    def _note_whole(self, position: RawPosition) -> None:
        """Nothing is left of an entry to be acknowledged, unless its transaction is aborted."""
        self.open.pop(position, None)
        if self.on_done is not None:
            self.on_done(position)

    def _acknowledge_part(self, position: RawPosition, index: int, size: int) -> None:
        # Of a batch that this consumer did not fetch, or gave back: another consumer may hold its other
        # messages, so no number of acknowledgements here would complete it.
        flags = self._partial.setdefault(position, bytearray(size))
        flags[index] = 1
        left_out = self._left_out.get(position) if self._left_out else None
        if left_out is not None and len(left_out) == size and all(map(or_, flags, left_out)):
            self._complete_rest(position, left_out)
        else:
            self._after_part(position, index, size)

    def _complete_rest(self, position: RawPosition, left_out: bytes) -> None:
        """Acknowledge all of a batch that this consumer was given, message by message."""
        self._left_out.pop(position, None)
        flags = self._partial.setdefault(position, bytearray(len(left_out)))
        flags[:] = [before or not other for before, other in zip(flags, left_out, strict=True)]
        if self.on_done is not None:
            self.on_done(position)
        self.after_ack(False)

    def acknowledge_for(self, owner: AckGroupingTracker, flags: bytearray | None, *parts: int) -> None:
        """Acknowledge a message that another consumer of the subscription received in this process.

        Its batch counts as acknowledged when all its messages are, by whichever consumer. What it collects
        here `owner` writes before it gives entries back, because another consumer may get them then.

        Args:
            owner: of the other consumer; see `owner_of`.
            flags: of the message's batch; None if it is alone in its entry.
            parts: as for `acknowledge`.
        """
        ledger, entry, index, size = parts
        position = (ledger, entry)
        is_whole = index < 0 or size == 1
        if flags is None or owner.open.get(position) is not flags:
            self.acknowledge(*parts)
        elif 0 <= index < len(flags):
            flags[index] = 1
            if 0 not in flags:
                is_whole = owner.open.pop(position, None) is not None
                if is_whole:
                    self.complete(position)
            elif self._index_acks or owner._index_acks:
                self._acknowledge_part(position, index, len(flags))
        if is_whole and owner.on_done is not None:
            owner.on_done(position)
        owner._helpers.add(weakref.ref(self))
        if position in owner._given_back:
            self._flush_now()

    def owner_of(self, message: Message[Any]) -> AckGroupingTracker | None:
        """That of the other consumer of this subscription which received a message; None if there is none, or
        if the subscription was moved since. Then the message is acknowledged by its id."""
        if message._origin is self.origin:
            return None
        owner: Any = getattr(message._origin, "acks", int)()
        if (
            owner is None
            or owner is self
            or not isinstance(owner, AckGroupingTracker)
            or owner._has_ended
            or not self._attachment.counts_for(owner._attachment, owner._epoch)
        ):
            return None
        return owner

    def _acknowledge_index(self, position: RawPosition, flags: bytearray, index: int) -> None:
        flags[index] = 1
        if 0 not in flags:
            if self.open.pop(position, None) is not None:
                self.complete(position)
        elif self._index_acks:
            self._partial[position] = flags
            self._after_part(position, index, len(flags))

    def complete(self, position: RawPosition, *, is_whole: bool = False) -> None:
        """Acknowledge a whole entry; ``is_whole`` if it was received, and is not a chunked message."""
        left_out = self._left_out.get(position) if self._left_out else None
        if left_out is not None:
            self._complete_rest(position, left_out)
            return
        is_known = False
        ring = (self._ring if is_whole else None) or self._ring_for(position)
        if ring is not None and len(self.done) < MOST_ENTRIES:
            ring.store(*position)
            is_known = True
            if failpoints.ACTIVE:
                failpoints.hit("ack:noted")
        # In this order: an interrupt between the two steps leaves both records, which is harmless. In the
        # other order it would lose the acknowledgements of the earlier messages of the batch.
        self.done.append(position)
        self._partial.pop(position, None)
        if self.on_done is not None:
            self.on_done(position)
        self.after_ack(is_known and position not in self._given_back)

    def _after_part(self, position: RawPosition, index: int, size: int) -> None:
        """Record that a message of a batch was acknowledged."""
        ring = self._ring_for(position)
        is_known = ring is not None and ring.note_part(*position, index, size)
        self.after_ack(is_known and position not in self._given_back)

    def _ring_for(self, position: RawPosition, *, is_cumulative: bool = False) -> AckRing | None:
        """Return the ring if it can hold an acknowledgement; None if it must be written at once."""
        if self._is_immediate or not self._attachment.is_plain(*position, is_cumulative):
            return None
        if self._ring is not None or self._has_ended:
            return self._ring
        try:
            self.lock.acquire()
            if self._ring is None:
                ring = self._ring = self._attachment.make_ring(self._epoch)
                if ring is not None:
                    self.words, self.slots, self.firsts = ring.words, ring.slots, ring.firsts
            return self._ring
        finally:
            self.lock.release()

    def acknowledge_cumulative(self, ledger: int, entry: int, index: int, size: int) -> None:
        """Acknowledge everything up to and including a message.

        In the middle of a batch, without acknowledgement of batch indexes, this covers everything before the
        batch; the messages of the batch up to this one count as acknowledged in this consumer.

        Raises:
            CumulativeAcknowledgementNotAllowedError: the subscription is Shared or Key_Shared.
        """
        if self._attachment.delivers_singly:
            raise CumulativeAcknowledgementNotAllowedError(
                "on a Shared or Key_Shared subscription messages are acknowledged one by one"
            )
        if ledger < 0 or ledger == LARGEST_ID or entry < 0:
            return
        position = (ledger, entry)
        flags = self.open.get(position)
        if flags is not None and 0 <= index < len(flags):
            flags[: index + 1] = b"\x01" * (index + 1)
            size = len(flags)
        if index < 0 or index + 1 >= size > 0 or (flags is not None and 0 not in flags):
            index = size = -1
        elif not self._index_acks:
            entry, index, size = entry - 1, -1, -1
        pending = self._cumulative
        end = (ledger, entry, index if index >= 0 else LARGEST_ID)
        self._through = max(self._through, end)
        if pending is None or end >= _order_of(pending):
            self._cumulative = (ledger, entry, index, max(size, 0))
            ring = self._ring_for((ledger, entry), is_cumulative=True)
            if ring is not None:
                ring.note_cumulative(ledger, entry, index, max(size, 0))
        else:
            ring = self._ring  # the ring holds the acknowledgement that covers it
        self._close_up_to((ledger, entry), whole=index < 0)
        self.after_ack(ring is not None)

    def _close_up_to(self, position: RawPosition, whole: bool) -> None:
        """Drop batches that a cumulative acknowledgement covers."""
        covered = [batch for batch in list(self.open) if batch < position or (whole and batch == position)]
        for batch in covered:
            self.open.pop(batch, None)
            self._partial.pop(batch, None)
        if self.on_done is not None:
            for batch in covered:
                self.on_done(batch)

    def after_ack(self, is_known: bool) -> None:
        """Write a full group, or acknowledgements outside the ring, now; start the timer for others.

        Raises:
            AlreadyClosed: the consumer is being closed, and this acknowledgement may have come too late.
        """
        if self._has_ended:
            raise AlreadyClosed("the consumer is being closed; the message may be delivered again")
        if self._is_immediate or not is_known:
            self._flush_now()
        elif len(self.done) >= GROUP_SIZE:
            self.flush_full()
        elif not self.ready:
            if not self.armed:
                self.set_timer()
            self.ready = self._ring is not None
            if not self.armed:
                self.ready = False  # the timer ran in between

    def _flush_now(self) -> None:
        try:
            if self._is_immediate:
                self.flush()
            else:
                self.flush_full(_PATIENCE_S)
        except BaseException:  # of the subscription, the system, or an interrupt: it stays collected
            if not self.armed:
                self.set_timer(_RETRY_S)
            raise

    def flush_full(self, patience_s: float = 0.0) -> None:
        """Write a full group, unless a lock is held; then the timer writes it as soon as the lock is free."""
        if self._is_interrupted:
            if not self.armed:
                self.set_timer()
        elif not (self.armed and self._backoff.pause_s):
            self._try_to_flush(patience_s)

    @property
    def _is_interrupted(self) -> bool:
        """Whether this is called by a signal handler or finalizer in the middle of a writing of this thread.

        That one has counted the acknowledgements which it removes at its end. If another one within it wrote
        and removed them first, it would remove those that handlers add later.
        """
        return self.lock.held

    def _try_to_flush(self, patience_s: float = 0.0) -> None:
        try:
            timing.within(patience_s, self.flush)
            self._backoff.reset()
        except LockTimeout as error:
            self.most_quick = min(max(len(self.done) + _STRIDE, _MOST_QUICK), MOST_ENTRIES - 1)
            pause_s = self._backoff.next()
            if not self.armed:
                self.set_timer(pause_s)
            if self._backoff.is_long(self._attachment.progress()):
                self._warn(error)

    @property
    def unwritten(self) -> int:
        """Number of collected acknowledgements that are not written: entries, and cumulative ones."""
        return len(self.done) + len(self._partial) + (self._cumulative is not None)

    def set_timer(self, delay_s: float = 0.0) -> None:
        try:
            self.armed = True
            self._arm(delay_s or self._group_time_s, self._on_timer)
        except BaseException:
            self.armed = False
            raise

    def _on_timer(self) -> None:
        self.armed = self.ready = False  # first: the next acknowledgement starts the timer again
        try:
            self._try_to_flush(_TURN_S * self._backoff.is_busy(self._attachment.progress()))
        except AlreadyClosed:
            return  # the consumer is closed, and later acknowledgements have no effect
        except Exception as error:  # noqa: BLE001 - a raw OSError, too: it is still owed
            self.set_timer(_RETRY_S)
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        text = "Acknowledgements could not be written, and will be tried again: %s"
        self._log.warning(text, error, **self.log_names())

    def flush(self) -> None:
        """Write the collected acknowledgements.

        Raises:
            PulsarException: they could not be written; they stay collected.
            NotAllowedError: called by a signal handler in the middle of a writing of this thread.
            NotConnected: with ``receipts``: they have no effect, because the subscription was moved, or its
                messages went to other consumers.
        """
        while self._helpers:
            self._flush_helper()
        self._write()

    def _flush_helper(self) -> None:
        """Write what one other consumer acknowledged of the entries of this one."""
        helper: AckGroupingTracker | None = None
        with contextlib.suppress(KeyError):  # another thread has just taken the last one
            helper = self._helpers.pop()()
        if helper is None:
            return
        try:
            helper._write()
        except (AlreadyClosed, NotConnected):
            return  # it says so where they were collected
        except BaseException:
            self._helpers.add(weakref.ref(helper))
            raise

    def _write(self) -> None:
        if self._is_interrupted:
            raise NotAllowedError(
                "a signal handler (or finalizer) interrupted the writing of acknowledgements, and cannot "
                "write others; they are kept, and written later"
            )
        is_valid = True
        try:
            timing.enter(self.lock, "the writing of acknowledgements")
            ring = self._ring
            if ring is not None:
                ring.begin_writing()
            pending = self._cumulative
            if pending is not None:
                is_valid = self._attachment.acknowledge_cumulative(*pending, epoch=self._epoch)
                self.sent += 1
                if self._cumulative is pending:
                    self._cumulative = None
            # The cumulative one first. A signal handler may acknowledge in the midst of this: what it adds to
            # `done` comes behind `count`, and stays for the next writing.
            count = len(self.done)
            partial = {position: bytes(flags) for position, flags in self._partial.copy().items()}
            if count or partial:
                bitsets = bitsets_of(partial)
                is_valid &= self._attachment.acknowledge(self.done[:count], bitsets, epoch=self._epoch)
                self.sent += count + len(partial)
                self._remove_written(count, partial)
                self.most_quick = _MOST_QUICK
                for position, flags in partial.items():
                    if bytes(self._partial.get(position, b"")) == flags:
                        self._partial.pop(position, None)
            if ring is not None:
                ring.end_writing()
        finally:
            self.lock.release()
        if self._receipts and not is_valid:
            raise NotConnected(
                "the message will be redelivered: before it was acknowledged the subscription was moved, or "
                "this process was suspended for so long that it was considered dead"
            )

    def _remove_written(self, count: int, partial: dict[RawPosition, bytes]) -> None:
        try:
            self._removal.acquire()
            recent = self._recent
            if recent is not None:
                recent.note_written(count, partial)
            del self.done[:count]
        finally:
            self._removal.release()

    # -- entries that are delivered again ------------------------------------------------------------------

    def begin_fetch(self) -> None:
        """Remember what is acknowledged from here on, also when it is written: what is fetched is without
        what was written before."""
        self._recent = RecentAcks(self.done, self._removal)

    def end_fetch(self) -> None:
        """Remember no more of them: no fetched entry was delivered before."""
        self._recent = None

    def has_acknowledged(self, view: EntryView, index: int) -> bool:
        """Whether a message of an entry was acknowledged since `begin_fetch`."""
        flags = view.acked
        if flags is not None and flags[index]:
            return True
        if (view.ledger_id, view.entry_id, index) <= self._through:
            return True
        recent = self._recent
        return recent is not None and recent.has((view.ledger_id, view.entry_id), index)

    def leaves_any(self, view: EntryView) -> bool:
        """Whether some messages of an entry are not acknowledged; those that are get into its ``skip``."""
        skip = view.skip
        flags = bytearray(
            is_skipped(skip, index) or self.has_acknowledged(view, index) for index in range(view.count)
        )
        if any(flags):
            view.skip = flags
        return 0 in flags

    def give_back(self, positions: Iterable[RawPosition]) -> dict[RawPosition, bytearray]:
        """Prepare for entries that will be given back, on a subscription whose consumers get single entries.

        Another consumer may get them at once, with all that is not acknowledged in writing. So this comes
        first: what is acknowledged of them from here on is written before its call returns. Then `flush`
        writes what was acknowledged before. Then they may be given back.

        Returns:
            The batches among them, for `keep` if they cannot be given back.
        """
        given_back, batches = self._given_back, {}
        for position in positions:
            given_back[position] = None
            self._left_out.pop(position, None)
            flags = self.open.pop(position, None)
            if flags is not None:
                batches[position] = flags
        if len(given_back) > _MOST_GIVEN_BACK:  # then many of them go, for this copies all
            for position in list(given_back)[: len(given_back) - _MOST_GIVEN_BACK * 9 // 10]:
                given_back.pop(position, None)
        return batches

    def take_back(self, views: Iterable[EntryView]) -> None:
        """Note that entries which may have been given back are here again: no other consumer has them."""
        given_back = self._given_back
        if given_back:
            for view in views:
                given_back.pop((view.ledger_id, view.entry_id), None)

    def keep(self, batches: Mapping[RawPosition, bytearray]) -> None:
        """Have batches open again that were not given back."""
        for position, flags in batches.items():
            if 0 in flags:  # otherwise it was acknowledged meanwhile
                self.open.setdefault(position, flags)

    def discard(self, position: RawPosition) -> None:
        """Drop a delivered batch that will be fetched again, or was acknowledged in another way."""
        self.open.pop(position, None)
        self._left_out.pop(position, None)

    def reset(self) -> None:
        self.open.clear()
        self._left_out.clear()
        self._partial.clear()
        self._in_transactions.clear()

    def begin_epoch(self) -> None:
        """Drop collected acknowledgements, which have no effect after the subscription was moved."""
        try:
            self.lock.acquire()
            self.reset()
            self._given_back.clear()
            self._remove_written(len(self.done), {})
            self._recent = None
            self._cumulative = None
            self._through = _NOWHERE
            self._epoch = self._attachment.epoch
            ring = self._ring
            if ring is not None and ring.consumer_id == self._attachment.consumer_id:
                ring.begin(self._epoch)
            elif ring is not None:  # the consumer attached again
                self._ring = None
                self.ready = False
                ring.remove()
        finally:
            self.lock.release()

    def close(self) -> None:
        """Send every later acknowledgement to the slow path."""
        self.quick_origin = NO_ORIGIN
        self.ready = False

    def refuse(self) -> None:
        """Refuse every later acknowledgement. The next `flush` writes all that were not refused.

        Each is collected before it looks at `_has_ended`, which the fast path does when it finds `ready`
        cleared: so one that another thread makes meanwhile is written, or refused, or both.
        """
        self._has_ended = True
        self.close()

    def end(self) -> None:
        """Release the ring, once everything is written and no acknowledgement can follow."""
        ring, self._ring = self._ring, None
        self.words = NOWHERE  # the map has a descriptor, which a closed consumer must release
        if ring is not None and not (self.done or self._partial or self._cumulative):
            ring.remove()


def _order_of(cumulative: tuple[int, int, int, int]) -> tuple[int, int, int]:
    """The end of a cumulative acknowledgement, for comparison."""
    ledger, entry, index, _ = cumulative
    return (ledger, entry, index if index >= 0 else LARGEST_ID)


class RecentAcks:
    """The acknowledgements of a consumer since its last fetch, to be asked for single messages.

    Role: those that are not written yet are in ``done``, and those that were written since are noted. What
    was written before the fetch the fetch leaves out. Each item of ``done`` is looked at once.
    Callers: any thread, under `lock`, which is held during no call that waits.

    Args:
        done: entries whose acknowledgement is not written. It grows without a lock, at its end, and loses
            items from its front under `lock`, after `note_written`.
    """

    __slots__ = ("_done", "_entries", "_parts", "_seen", "lock")

    def __init__(self, done: list[RawPosition], lock: threads.RLock) -> None:
        self.lock = lock
        self._done = done
        self._seen = 0
        self._entries: set[RawPosition] = set()
        self._parts: dict[RawPosition, bytes] = {}

    def note_written(self, count: int, parts: Mapping[RawPosition, bytes]) -> None:
        """Note that the first ``count`` items of ``done`` are written, and these parts of batches."""
        self._entries.update(self._done[self._seen : count])
        self._seen = max(0, self._seen - count)
        self._parts.update(parts)

    def has(self, position: RawPosition, index: int) -> bool:
        """Whether an entry, or this message of it, was acknowledged."""
        try:
            self.lock.acquire()
            added = self._done[self._seen :]
            self._entries.update(added)
            self._seen += len(added)
            flags = self._parts.get(position)
            return position in self._entries or (
                flags is not None and index < len(flags) and flags[index] > 0
            )
        finally:
            self.lock.release()
