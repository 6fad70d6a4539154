"""The steps after the append of an entry: the flush to disk, where required, and the callbacks."""

from __future__ import annotations

import math

from embeddedpulsar._engine.platform import timing
from embeddedpulsar.client.client_threads import CallbackThread, WaiterSet
from embeddedpulsar.client.producer.pending_entry import PendingEntry, PlainWaiter, SendCallback
from embeddedpulsar.exceptions import LockTimeout
from embeddedpulsar.message_id import make
from embeddedpulsar.records import TYPE_CHECKING
from embeddedpulsar.results import Result

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final

    from embeddedpulsar.client.producer.producer_session import ProducerMeter, ProducerSession

# Callbacks that may be pending before a sender waits for them. The number is large enough that the two
# threads switch only once in thousands of messages, and small enough to bound memory.
CALLBACK_BACKLOG: Final = 8192
_PATIENCE_S: Final = 0.2
"""Seconds for which the callbacks of other topics wait for a process that is flushing this one."""


class Completions:
    """The entries of one producer that are appended and whose callbacks have not run.

    The publisher adds entries in the order of publishing, under its lock; the callback thread finishes
    them in that order. Each counter has one writer; the limits apply to the differences of the counters.
    While another process stays in its flush of the topic, a separate thread waits for the disk, so that the
    callback thread can serve other topics.

    Attributes:
        error: the first failure that no callback received; `Producer.flush` raises it.
        waits_for_disk: whether a message counts as sent only once it is on disk.
        waiters: threads that wait until fewer messages are pending.
    """

    __slots__ = (
        "_apart",
        "_callbacks",
        "_durable",
        "_meter",
        "_session",
        "_stored",
        "_waiting",
        "error",
        "handed",
        "told",
        "waiters",
        "waits_for_disk",
    )

    def __init__(self, session: ProducerSession, meter: ProducerMeter) -> None:
        self.error: BaseException | None = None
        self.waits_for_disk = session.durability == "flush"
        self._session = session
        self._meter = meter
        self._callbacks = session.callbacks
        self.reset()
        session.run_after_all = self.run_after_all  # last: an interrupted one must still detach

    def reset(self) -> None:
        self.handed = self.told = 0  # messages whose callbacks were added, and messages whose callbacks ran
        self._stored = self._durable = 0  # messages appended, and messages on disk
        self._apart: CallbackThread | None = None  # the thread that waits for the disk while that takes long
        self._waiting = 0  # entries of that thread; the callback thread counts them
        self.waiters = WaiterSet()

    @property
    def pending(self) -> int:
        """Messages that are appended and not yet on disk; always 0 if sends do not wait for the disk."""
        return self._stored - self._durable if self.waits_for_disk else 0

    def hand_over(self, out: PendingEntry) -> None:
        """Add an entry that was appended or has failed. Under the publisher's lock."""
        if out.error is not None:
            self._meter.failed(out.count)
            if out.part is not None:
                out.part.fail(out.error)
        callbacks = out.callbacks
        if callbacks is None:
            if out.error is not None and out.part is None:  # of a transaction, its commit tells
                self.note_failure(out.error)
            if not self.waits_for_disk:
                if out.reserved:
                    self.give_back(out)
                return
        else:
            for index, callback in enumerate(callbacks):
                if isinstance(callback, PlainWaiter):
                    callback.pending_entry, callback.index = out, index
                    callbacks[index] = None
            self.handed += out.count
        if out.reserved and not (self.waits_for_disk and out.error is None):
            self.give_back(out)
        self._stored += out.count
        was_awaited = callbacks is not None
        self._callbacks.put(lambda: self._finish(out, was_awaited))

    def hand_over_one(self, callback: SendCallback, ledger: int, entry: int) -> None:
        """Add the callback of one unbatched message that is stored. Under the publisher's lock."""
        self.handed += 1
        self._callbacks.put(lambda: self._tell(callback, ledger, entry))

    def _tell(self, callback: SendCallback, ledger: int, entry: int) -> None:
        try:
            callback(Result.Ok, make(ledger, entry, -1, self._session.partition, 0))
        except BaseException:
            self._session.log.exception("A send callback failed: %r", callback)
        self.told += 1

    def _finish(self, out: PendingEntry, was_awaited: bool) -> None:
        if self._apart is None:
            if self._is_in_time(out, was_awaited):
                self._end(out, was_awaited)
                return
            self._apart = CallbackThread(self._session.log)
        self._waiting += 1
        self._apart.put(lambda: self._finish_apart(out, was_awaited))

    def _is_in_time(self, out: PendingEntry, was_awaited: bool) -> bool:
        try:
            timing.within(_PATIENCE_S, self._wait_for_disk, out, was_awaited, False)
        except LockTimeout:
            return False
        return True

    def _wait_for_disk(self, out: PendingEntry, was_awaited: bool, is_last: bool) -> None:
        if not out.end_word or out.error is not None:
            return
        try:
            self._session.ledger.wait_durable(out.end_word)
            self._meter.durable(out)
        except Exception as error:  # passed to the senders of the messages
            if isinstance(error, LockTimeout) and not is_last:
                raise
            self._meter.failed(out.count)
            out.error = error
            if not was_awaited:
                self.note_failure(error)

    def _finish_apart(self, out: PendingEntry, was_awaited: bool) -> None:
        self._wait_for_disk(out, was_awaited, True)
        if self._callbacks.is_open:
            self._callbacks.put(lambda: self._end_apart(out, was_awaited))
        else:
            self._end_apart(out, was_awaited)

    def _end_apart(self, out: PendingEntry, was_awaited: bool) -> None:
        self._waiting -= 1
        apart = self._apart
        if not self._waiting and apart is not None:
            self._apart = None
            apart.close()
        self._end(out, was_awaited)

    def _end(self, out: PendingEntry, was_awaited: bool) -> None:
        self._durable += out.count
        self.waiters.wake()
        if out.reserved:
            self.give_back(out)
        if was_awaited:
            out.call_back(self._session.partition, self._session.log)
            self.told += out.count

    def give_back(self, out: PendingEntry) -> None:
        size, out.reserved = out.reserved, 0
        memory = self._session.memory
        if memory is not None:
            memory.give_back(size)

    def fail_now(self, callback: SendCallback, error: BaseException) -> None:
        """Call back for a message that was not accepted. Without a lock, before pending callbacks."""
        out = PendingEntry(None, 1, -1, -1, [callback], False, error)
        self._callbacks.put(lambda: out.call_back(self._session.partition, self._session.log))

    def note_failure(self, error: BaseException) -> None:
        """Keep a failure that no callback received, for the next flush."""
        if self.error is None:
            self.error = error

    def pop_failure(self) -> BaseException | None:
        """Return a failure that no callback received, once."""
        error, self.error = self.error, None
        return error

    def log_dropped(self, count: int, name: str) -> None:
        """Log that messages of a closed producer were not stored."""
        if count:
            self._session.log.warning(
                "%d messages of the producer %s on %s were not stored: it was closed before; flush it first",
                count,
                name,
                self._session.topic_name,
            )

    def wait(self) -> None:
        """Wait until everything added is finished; in the callback thread itself, return at once.

        Raises:
            LockTimeout: the deadline of the call is over; the entries are still finished later.
        """
        stored = self._stored
        is_over = self._callbacks.is_idle or self.wait_for_callbacks()
        if is_over and self.waits_for_disk and self._durable < stored and self.can_wait:
            self.waiters.wait(lambda: self._durable >= stored or timing.left(math.inf) <= 0)
            is_over = self._durable >= stored and self.wait_for_callbacks()
        if not is_over:
            raise LockTimeout(
                f"{self.pending} messages to {self._session.topic_name} are stored, perhaps not on the "
                "disk: another process stays in its flush, or a callback does not return"
            )

    def wait_for_callbacks(self) -> bool:
        left = timing.left(math.inf)
        return self._callbacks.wait_done(None if left == math.inf else left)

    def run_after_all(self, job: Callable[[], object]) -> None:
        """Run a job behind everything added before: here, at once, if nothing is."""
        callbacks = self._callbacks
        if self._apart is not None:
            callbacks.put(lambda: self._run_behind(job))
        elif callbacks.is_idle:
            job()
        else:
            callbacks.run_after_all(lambda: self._run_behind(job))

    def _run_behind(self, job: Callable[[], object]) -> None:
        """Run a job in the callback thread, or here if that thread has no jobs."""
        apart = self._apart
        if apart is None:
            job()
        else:
            apart.put(lambda: self._callbacks.put(job) if self._callbacks.is_open else job())

    @property
    def can_tell(self) -> bool:
        return self._callbacks.is_open

    @property
    def can_wait(self) -> bool:
        """Whether the caller is another thread than the one it would wait for."""
        return not self._callbacks.is_current
