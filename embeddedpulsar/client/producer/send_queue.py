"""The messages that one producer has accepted and not stored yet, and how they are stored, in order."""

from __future__ import annotations

from embeddedpulsar._engine.platform import threads, timing
from embeddedpulsar.client.arguments import DELIVER_AT, SEQUENCE_ID
from embeddedpulsar.client.producer.log_writer import CALLBACK_BACKLOG, Completions, LogWriter, SequenceIds
from embeddedpulsar.client.producer.pending_entry import (
    PATHS,
    SHUT,
    TRANSITIONS,
    BatchContainer,
    DeferredBatch,
    Event,
    PendingEntry,
    PlainWaiter,
    SendDeadline,
    State,
    fate_of,
    item_of,
    payload_of,
    unanswered,
)
from embeddedpulsar.exceptions import AlreadyClosed, LockTimeout, ProducerQueueIsFull, Timeout
from embeddedpulsar.records import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Final

    from embeddedpulsar._engine.platform.threads import RLock
    from embeddedpulsar._engine.store.producers import ProducerRegistration
    from embeddedpulsar.client.arguments import Options
    from embeddedpulsar.client.producer.entry_encoder import EntryEncoder
    from embeddedpulsar.client.producer.pending_entry import Item, SendCallback
    from embeddedpulsar.client.producer.producer_session import ProducerConfig, ProducerMeter, ProducerSession
    from embeddedpulsar.client.transaction import TopicPart

TURN_S: Final = 0.001
"""Seconds to wait for another thread that stores messages of this producer. That takes microseconds, unless
the other thread waits for the topic, or for the interpreter."""
_LAST_TURN_S: Final = 0.02
"""Seconds to wait for the topic if the queue is full: enough time for a thread of this producer that the
interpreter has suspended."""
_OWN_THREADS_S: Final = 0.5
"""Seconds to wait for threads of this process that have the topic's lock if the queue is full. They keep it
for microseconds, but a busy machine may give them no processor for tens of milliseconds."""
NO_BATCHES: Final = 1 << 62
"""A number of messages that no batch reaches."""
_TRY_EVERY: Final = 32
"""While the flusher retries for a producer, its senders retry too, once per so many messages."""
_FOR_EVER_S: Final = 1e9


class SendQueue:
    """The messages of a producer between its interface and the log: `put` accepts them, `store` stores them,
    and `wait` waits until their callbacks have run.

    Messages are stored in this order. The *group*: entries that are encoded and have sequence ids, as many as
    one hold of the topic lock stores. The *singles*: messages that become entries of their own (all of an
    unbatched producer, and those with a delivery time, which precede the batch), or a `DeferredBatch`. The
    *batch*: messages that become batches, and those with a delivery time and an explicit sequence id, which
    must not precede lower ids.

    Senders append to singles and batch without a lock; everything else needs the producer's lock. The group
    is a list that replaces its messages at the front of their list. One slice assignment replaces them, so an
    interrupt leaves either the messages or their entries, never both. A message leaves the queue only when it
    is stored or has failed. After an interrupt in the middle of a group, it stays at the front of the queue,
    and the next caller searches the log for the entries that were stored.

    A hot path compares one limit, or one word, and finds it `SHUT` if the message has to be queued. Any
    thread may call `to`, without a lock. Two threads may overwrite the state of each other; this can leave a
    path closed until the next `Event.STORED`, but not open: who queues a message appends it before its event,
    and who has stored everything checks the queue after its event. A closed producer has no limits.

    Callers that may wait (`send`, `flush`) wait for the topic. Others (`send_async`, timers) try once, and
    leave messages to the next sender, the client's flusher or a waiting caller.

    Invariants: entries reach the log in the order of their sequence ids, because the lock is held while
    storing. Callbacks are passed to the callback thread under this lock, too, so they run in that order.
    After a fork the child's copy is empty and stale, until the publisher attaches it again.

    Attributes:
        alone_max: largest payload that may be appended at once.
        alone_limit: its value while the path is open; `SHUT` if the options need the queue.
        batch: the open batch; its list of messages is `items`, too.
        checked: the journal word of the topic with which a message may be appended at once (`AppendGuard`).
        chunk_from: bytes of payload from which on a message has several chunks.
        encoder, log: of the present attachment.
        ids: the sequence ids.
        is_closed: whether the producer is closed; never reset.
        is_stale: whether the producer belongs to the parent of this process.
        is_storing: whether a thread stores a group.
        lock: held while storing; acquired before the topic's lock.
        name: of the producer.
        on_left: called when a batch leaves; None without partitions.
        singles: the messages that become entries of their own.
        state: opens the hot paths while nothing must be stored first.
        unlock: the plain release, for the end of a hot section, where the lock is certainly held.
    """

    __slots__ = (
        "_blocks",
        "_config",
        "_deadline",
        "_flushed_at",
        "_is_limited",
        "_is_throttled",
        "_is_timed",
        "_limit",
        "_meter",
        "_patience_s",
        "_session",
        "_verified",
        "alone_limit",
        "alone_max",
        "batch",
        "checked",
        "chunk_from",
        "completions",
        "encoder",
        "ids",
        "is_closed",
        "is_stale",
        "is_storing",
        "items",
        "lock",
        "log",
        "name",
        "on_left",
        "singles",
        "state",
        "unlock",
    )

    name: str
    encoder: EntryEncoder
    log: LogWriter
    lock: RLock
    unlock: Callable[[], None]

    def __init__(self, session: ProducerSession, config: ProducerConfig, meter: ProducerMeter) -> None:
        self._session = session
        self._config = config
        self._meter = meter
        self._limit = limit = config.max_pending_messages
        self._blocks = config.block_if_queue_full
        timeout_s = config.send_timeout_ms / 1000
        self._patience_s = timeout_s or _FOR_EVER_S
        self._deadline = SendDeadline(timeout_s)
        self.chunk_from = 1 << 62
        max_messages = config.batching_max_messages
        if limit:
            max_messages = max(1, min(max_messages, limit))
        self.batch = BatchContainer(max_messages, config.batching_max_bytes)
        self.batch.start_timer, self.batch.on_full = self.start_timer, self.on_full
        self.items = self.batch.items
        self.singles: list[Any] = []
        self.on_left: Callable[[], object] | None = None
        self.ids = SequenceIds()
        self.completions = Completions(session, meter)
        self.state = State.OPEN
        self._verified = self.checked = self.alone_max = self.alone_limit = SHUT
        self.is_closed = self.is_stale = self.is_storing = False
        self._is_limited = self._is_timed = self._is_throttled = False
        self._flushed_at = 0.0
        self._use_lock(threads.RLock())

    def _use_lock(self, lock: RLock) -> None:
        self.lock = lock
        self.unlock = lock.lock.release  # saves 0.1 us

    def begin(
        self, registration: ProducerRegistration, encoder: EntryEncoder, initial_sequence_id: int | None
    ) -> None:
        """Begin with an attachment to the topic."""
        self.name, self.encoder = registration.name, encoder
        self.ids.begin(registration.last_sequence_id, initial_sequence_id)
        self.log = LogWriter(self._session, registration.name, self.ids, self.lock, self._meter)

    def after_fork_in_child(self) -> None:
        """Leave what is queued to the parent."""
        self._use_lock(threads.renewed(self.lock))
        self._clear()
        self._deadline.clear()
        self.is_storing = self._is_timed = self._is_throttled = self.batch.armed = False
        self.to(Event.HOLD_UP)
        self.completions.reset()
        if self.log.keeper is not None:
            self.log.keeper.is_over = True  # its name is the parent's
        self.is_stale = not self.is_closed

    # -- the state ---------------------------------------------------------------------------------------

    def to(self, event: Event) -> None:
        """Change the state, and open or close the hot paths."""
        self.state = state = TRANSITIONS[self.state][event]
        alone, batch = PATHS[state]
        alone = alone and not self._is_limited
        self.checked = self._verified if alone else SHUT
        self.alone_max = self.alone_limit if alone else SHUT
        self.batch.share = self.batch.limit if batch else SHUT
        # Last, behind the opening: `limit`, in another thread, notes the limit before it closes the path.
        if self._is_limited:
            self.checked = self.alone_max = SHUT

    def verified(self, word: int) -> None:
        """Note the journal word with which this producer was found connected. Under the producer's lock."""
        self._verified = word
        if PATHS[self.state][0]:
            self.checked = word
            if self._is_limited:  # behind the opening, as in `to`
                self.checked = SHUT

    def limit(self, is_limited: bool) -> None:
        """Keep messages from being appended at once while the topic has a publish rate. Any thread."""
        self._is_limited = is_limited
        if is_limited:
            self.checked = self.alone_max = SHUT

    def narrow(self, *, alone: bool = True, batch: bool = True) -> None:
        """Close paths for ever, because their messages need further checks."""
        if alone:
            self.alone_max = self.alone_limit = SHUT
        if batch:
            self.batch.share = self.batch.limit = SHUT

    def close_path_if_all_checked(self) -> None:
        """Close the way of single messages for ever if each has to be compared with what is stored."""
        keeper = self.log.keeper
        if keeper is not None and keeper.checks_all:
            self.narrow(batch=False)

    def reopen(self) -> None:
        """Open the hot paths, then check whether they have to be closed again."""
        self.to(Event.STORED)
        if self.singles:
            self.to(Event.QUEUE)
        elif self._meter.burst:
            self.to(Event.SAMPLE)

    def check_connected(self) -> None:
        """Check that a message may be appended at once, and store a queued group first. See `AppendGuard`.

        Called under the topic's lock and the producer's lock.

        Raises:
            AlreadyClosed, ProducerFenced: it may not append.
            DeduplicationSwitched: the topic switched deduplication; the message must be queued.
        """
        self.check_open()
        _, _, group = self.counts()
        if group is not None and not self.is_storing:
            try:
                self.is_storing = True
                if self._store_group(group, 0.0):
                    self._drop_group(group)
            finally:
                self.is_storing = False
        try:
            self.log.check_connected()
        finally:
            self.close_path_if_all_checked()
        self.verified(self.log.checked)

    def check_open(self) -> None:
        """Refuse a closed producer. Under the lock."""
        if self.is_closed:
            raise AlreadyClosed(f"the producer {self.name} is closed; create a new one")

    def _check_open_in_turn(self) -> None:
        """`check_open` with the lock: a `close` in another thread first answers the messages sent before."""
        try:
            self.lock.acquire()
            self.check_open()
        finally:
            self.lock.release()

    # -- what is queued ----------------------------------------------------------------------------------

    def __len__(self) -> int:
        singles, batched, _ = self.counts()
        return singles + batched

    @property
    def pending(self) -> int:
        """Messages that are not stored, or not as durable as the producer requires."""
        return len(self) + self.completions.pending

    def counts(self) -> tuple[int, int, list[PendingEntry] | None]:
        """How many messages wait to become entries of their own, how many are in the batch, and the group.

        The messages of the group, which is None if there is none, count where it is.
        """
        singles, batched, group = len(self.singles), len(self.items), None
        # One step each, because other threads may be removing from the list.
        for first in self.singles[:1]:
            if first.__class__ is list:
                group = first
                singles += sum([out.count for out in tuple(first)]) - 1
            elif first.__class__ is DeferredBatch:
                singles += len(first.items) - 1
        for first in self.items[:1]:
            if first.__class__ is list:
                group = group or first
                batched += sum([out.count for out in tuple(first)]) - 1
        return singles, batched, group

    @property
    def is_empty(self) -> bool:
        return not self.singles and not self.items

    def _drop_group(self, group: list[PendingEntry]) -> bool:
        """Remove the group, whose entries are stored or failed. Returns whether it was among the singles."""
        if self.singles and self.singles[0] is group:
            del self.singles[0]
            return True
        if self.items and self.items[0] is group:
            del self.items[0]
        return False

    def _clear(self) -> list[Any]:
        """Empty the queue, and return messages and groups, in order."""
        singles, items = self.singles[:], self.items[:]
        del self.singles[: len(singles)], self.items[: len(items)]
        if singles and singles[0].__class__ is DeferredBatch:
            singles[:1] = singles[0].drain()
        group_first = items and items[0].__class__ is list
        return [items[0], *singles, *items[1:]] if group_first else singles + items

    # -- 2. through the queue: put -----------------------------------------------------------------------

    def put(
        self,
        value: bytes,
        callback: SendCallback | None,
        options: Options | None,
        part: TopicPart | None = None,
    ) -> None:
        """Accept a message, and store it when the topic is free. Does not wait for the topic.

        Raises: AlreadyClosed, ProducerQueueIsFull, MemoryBufferIsFull: it was not accepted."""
        if self._config.batching and not (options is not None and options[DELIVER_AT]):
            self._put_in_batch(item_of(value, callback, options, part), len(value))
            return
        item: Any = value if callback is None and options is None else (value, callback, *(options or ()))
        self._put_single(item_of(value, callback, options, part) if part else item, len(value), options)

    def _put_in_batch(self, item: bytes | Item, size: int) -> None:
        """Add a message to the batch, after storing one that it does not fit into."""
        self._admit(size)
        batch, is_full, is_in = self.batch, False, False
        try:
            if self.lock.acquire(False):
                if (
                    not batch.has_room(size)
                    and self.state is not State.HELD_UP
                    and not self._store_groups(0.0, 1)
                ):
                    self.hold_up()
                is_in, is_full = True, batch.add(item, size)
                if is_full and self.state is State.HELD_UP and self.on_left is not None:
                    self.on_left()  # with several partitions, the next message goes to another one
            else:
                is_in = True
                if item.__class__ is tuple:
                    batch.mixed = True
                self.items.append(item)
                if size > batch.limit and batch.share != SHUT:
                    self.to(Event.COUNT)  # after the append: who opens the path checks the items afterwards
        finally:
            self.lock.release()
            if not is_in:
                self._give_back(size)
        if is_full or self.state is State.HELD_UP or not self._config.batching_max_delay_ms:
            self.store_soon(1)
        elif not batch.armed:
            self.start_timer()

    def _put_single(self, item: bytes | Item, size: int, options: Options | None) -> None:
        """Queue a message as an entry of its own, ahead of the batches."""
        self._admit(size)
        if options is not None and options[SEQUENCE_ID] and self.items:
            assert item.__class__ is tuple
            self.batch.add_unbatchable(item)
            self.store_soon(1)
            return
        self.singles.append(item)
        self.to(Event.QUEUE)
        self.store_soon(NO_BATCHES)

    def _admit(self, size: int) -> None:
        """Accept a message of ``size`` bytes, or wait for room. Not under the producer's lock.

        A large message counts for each of its chunks.

        Raises:
            AlreadyClosed, ProducerQueueIsFull, MemoryBufferIsFull: it is not accepted.
        """
        if self.is_closed:
            self._check_open_in_turn()
        if self._limit and (self.state is State.HELD_UP or self.completions.waits_for_disk):
            count = 1 if size <= self.chunk_from else -(-size // self.chunk_from)
            if not self._has_room(count):
                self._wait_for_room(count)
        memory = self._session.memory
        if memory is not None:
            memory.reserve(size, self._blocks and self.completions.can_wait)

    def _give_back(self, size: int) -> None:
        if self._session.memory is not None:
            self._session.memory.give_back(size)

    def _has_room(self, count: int) -> bool:
        return self.pending + min(count, self._limit) <= self._limit

    def _wait_for_room(self, count: int) -> None:
        self._try_to_store(1, _LAST_TURN_S)  # messages of the batch first
        if not self.is_empty and self.log.let_threads_pass(_OWN_THREADS_S):
            self._try_to_store(1, _LAST_TURN_S)
        while not self._has_room(count):
            if not self._blocks:
                raise ProducerQueueIsFull(
                    f"{self.pending} messages of {self.name} are not stored yet and max_pending_messages is "
                    f"{self._limit}; wait for callbacks, or set block_if_queue_full"
                )
            if not self.completions.can_wait:
                return  # a callback must not wait for itself
            if self.is_empty:
                self.completions.wait()  # for the disk
            else:
                self.hold_up()
                self.completions.waiters.wait(lambda: self.is_closed or self._has_room(count))
            self._check_open_in_turn()

    def on_full(self) -> None:
        """The batch has reached its trigger: store it if it is full, or allot the room that is left."""
        batch = self.batch
        least = batch.max_messages
        if len(self.items) < least:
            least = 1
            try:  # waits for other senders only
                if self.lock.acquire(True, TURN_S) and not batch.is_full():
                    return
            finally:
                self.lock.release()
        self.flush_soon(least)

    def flush_soon(self, least: int) -> None:
        """`store_soon` for a sender, which then waits until few callbacks are pending."""
        completions = self.completions
        try:
            self.store_soon(least)
            if completions.handed - completions.told > CALLBACK_BACKLOG:
                completions.wait_for_callbacks()
        except BaseException as error:
            timing.translate(error)
            raise

    def finish_batch(self, size: int) -> bool:
        """End the current batch if a message of ``size`` bytes does not fit, and return whether that was so.
        Does not wait for the topic."""
        if self.state is State.HELD_UP:
            # One message per turn: another process may hold the lock of this topic only.
            if self.on_left is not None:
                self.on_left()
            return False
        try:
            if self.is_closed or not self.lock.acquire(True, TURN_S) or self.batch.has_room(size):
                return False
            if not self._store_groups(0.0, 1):
                self.hold_up()
            return True
        finally:
            self.lock.release()

    def start_timer(self) -> None:
        """Start the publish-delay timer."""
        batch = self.batch
        try:
            batch.armed = True
            self._session.call_later(self._config.batching_max_delay_ms / 1000, self._on_delay_over)
        except BaseException:
            batch.armed = False
            raise

    def _on_delay_over(self) -> None:
        batch = self.batch
        batch.armed = False  # first: a sender that appends from here on starts the timer again
        if self.is_empty:
            return
        # The queued messages are younger than the last flush, so they may wait until one delay after it.
        delay_s = self._config.batching_max_delay_ms / 1000
        remaining_s = self._flushed_at + delay_s - self._session.monotonic()
        if remaining_s > 0 and not self.is_closed:
            batch.armed = True
            self._session.call_later(remaining_s, self._on_delay_over)
            return
        self.store_soon(1)

    # -- 2. through the queue: store ---------------------------------------------------------------------

    def _try_to_store(self, least: int = 1, turn_s: float = 0.0) -> bool:
        """Store queued messages if the necessary locks are free.

        Batches are stored while ``least`` of their messages are queued. Waits ``turn_s`` seconds for another
        thread of this producer. Returns whether the locks were free.
        """
        try:
            return self.lock.acquire(True, turn_s) and self._store_groups(0.0, least)
        finally:
            self.lock.release()

    def store_soon(self, least: int) -> None:
        """Store queued messages now, or have the flusher do it. Without the lock."""
        if self.state is State.HELD_UP:
            if len(self) % _TRY_EVERY or not self._try_to_store(least):
                self.hold_up()
        elif not self._try_to_store(least, TURN_S):
            self.hold_up()
        if self.is_closed:
            self.fail_late()

    def retry(self) -> bool:
        """`_try_to_store` for the flusher; messages that cannot be stored stay queued."""
        if self.is_closed:
            self.fail_late()
            return True
        if self._try_to_store():
            return True
        self._note_waiting()
        return self._wait_for_rate()

    def hold_up(self) -> None:
        """Queue everything until the topic is free, and have the flusher retry."""
        self._note_waiting()
        if not self._wait_for_rate():
            self._session.flusher.kick(self)

    def _wait_for_rate(self) -> bool:
        """If the topic's publish rate is reached, have the flusher retry when there is room again."""
        seconds = self.log.throttle.due_in_s()
        if not seconds:
            return False
        if not self._is_throttled:
            try:
                self._is_throttled = True
                self._session.call_later(seconds, self._on_room)
            except BaseException:
                self._is_throttled = False
                raise
        return True

    def _on_room(self) -> None:
        self._is_throttled = False
        if not self.is_empty and not self._try_to_store():
            self.hold_up()

    def _note_waiting(self) -> None:
        """Note the time since which messages wait for the topic."""
        self.to(Event.HOLD_UP)
        self._deadline.record(len(self), self._session.monotonic())
        if not self._is_timed and self._deadline.at is not None:
            self._time_out_after(self._config.send_timeout_ms / 1000)

    def store(self, least: int) -> LockTimeout | None:
        """Store queued messages, waiting for the topic; ``least`` as for `_try_to_store`. Under the lock.

        Returns:
            The error if the send timeout is over.
        """
        if not (self.singles or self.items) or self._store_groups(0.0, least):
            return None
        at = self._deadline.at
        remaining_s = self._patience_s if at is None else at - self._session.monotonic()
        try:
            seconds = max(remaining_s, TURN_S)
            timing.within(seconds, self._store_groups, seconds, least)
        except LockTimeout as error:
            self._fail_queued(error)
            return error
        return None

    def _store_groups(self, timeout_s: float, least: int) -> bool:
        """Store queued messages, group by group, while the topic is available. Under the lock.

        Returns:
            Whether everything was stored.

        Raises:
            LockTimeout: the topic was not available within ``timeout_s``, which is not 0.
        """
        if self.is_storing:
            return False  # called by a signal handler, while its own thread stores a group
        # Counted by part: singles that other threads add are stored first, and do not belong to the batch.
        singles, batched, group = self.counts()
        try:
            self.is_storing = True
            while singles > 0 or batched > 0:
                if group is not None and not group:
                    self._drop_group(group)  # it was finished before an interrupt
                    group = None
                if group is None:
                    first: Any = self.singles[0] if singles > 0 else None
                    if first.__class__ is DeferredBatch and not first.begin(timeout_s):
                        return False
                    group = self._encode_group(least)
                if group is None:
                    break
                count = 0
                for out in group:
                    count += out.count
                if not self._store_group(group, timeout_s):
                    return False
                if self._drop_group(group):
                    singles -= count
                else:
                    batched -= count
                group = None
        except BaseException:
            self.hold_up()  # the storing was interrupted
            raise
        finally:
            self.is_storing = False
        self._all_stored()
        return True

    def _store_group(self, group: list[PendingEntry], timeout_s: float) -> bool:
        """Append the entries of a group, and remove each from it. Returns whether the topic was available."""
        log = self.log
        while group:
            out = group[0]
            if out.error is None and out.entry < 0 and not out.is_duplicate:
                if not (out.attempted and log.was_stored(out)) and not log.append(group, timeout_s):
                    return False
                continue
            if out.error is None:
                self.ids.last = out.last
            if (
                out.callbacks is not None
                or out.error is not None
                or out.reserved
                or self.completions.waits_for_disk
            ):
                self.completions.hand_over(out)
            del group[0]
            if self.state is State.HELD_UP:
                self._deadline.passed(out.count)
        return True

    def store_first(self) -> None:
        """Try to store the group among the singles, without what is behind it. Under the lock."""
        try:
            self.is_storing = True
            group = self.singles[0]
            self._flushed_at = group[0].began = self._session.monotonic()
            if self._store_group(group, 0.0):
                del self.singles[0]
            else:
                self.hold_up()
        except BaseException:
            self.hold_up()
            raise
        finally:
            self.is_storing = False

    def _all_stored(self) -> None:
        """Open the hot paths, because no message is left that must be stored first."""
        batch = self.batch
        was_shut = batch.share != batch.limit
        if self._deadline.marks:
            self._deadline.clear()
        if self.log.keeper is not None:
            self.close_path_if_all_checked()
        self.to(Event.STORED)
        if was_shut or batch.counted or batch.trigger != batch.max_messages:
            batch.begin_next()
        if self.singles or self._meter.burst:
            self.reopen()
        if self.completions.waiters.waiting:
            self.completions.waiters.wake()
        if self.items and not batch.armed and not self.is_closed:
            self.start_timer()

    def _encode_group(self, least: int) -> list[PendingEntry] | None:
        """Encode the next messages, and replace them by their entries, the next group, which it
        returns; None if there is nothing to encode."""
        if self.log.keeper is not None:
            self.log.keeper.resolve()
        batch = self.batch
        if self.singles:
            part = self.singles
            count, entries, following = self.encoder.encode_singles(part, self.ids.following)
        else:
            part = self.items
            count, entries, following = self.encoder.encode_batches(batch, self.ids.following, least)
            if batch.share != batch.limit:
                self.to(Event.COUNT)  # a large message was added without the lock
        if not count:
            return None
        if part is self.items and self.on_left is not None:
            self.on_left()
        self.to(Event.QUEUE)
        self.ids.following = following
        part[:count] = [entries]  # one step: the messages now have ids, and are not encoded again
        now = self._session.monotonic()
        if part is self.items:
            self._flushed_at = now
        for out in entries:
            out.began = now
        return entries

    # -- 2. through the queue: send, which puts, stores and waits ----------------------------------------

    def store_now(
        self, value: bytes, options: Options | None, part: TopicPart | None = None
    ) -> tuple[PendingEntry, int]:
        """Store a message behind those that are queued before it. Waits for the topic. Returns its
        entry, with a failure in ``error``, and its index in that; -1 if it is no batch."""
        if self._config.batching and not (options is not None and options[DELIVER_AT]):
            waiter = PlainWaiter()
            item = (value, waiter, *(options or ()), *((part,) if part else ()))
            return self._store_in_batch(item, waiter, len(value))
        return self.store_one(value, options, part), -1

    def _store_in_batch(self, item: Item, waiter: PlainWaiter, size: int) -> tuple[PendingEntry, int]:
        self._admit(size)
        batch, is_in = self.batch, False
        try:
            self.lock.acquire()
            self.check_open()
            if not batch.has_room(size):
                self.store(1)
            is_in = True
            batch.add(item, size)
            self.store(1)
            self._measure_one()
        finally:
            self.lock.release()
            if not is_in:
                self._give_back(size)
        if waiter.pending_entry is None:
            raise unanswered(self.is_closed)
        return waiter.pending_entry, waiter.index

    def store_one(self, value: bytes, options: Options | None, part: TopicPart | None = None) -> PendingEntry:
        """Store a message as an entry of its own. Waits for the topic; a failure is in ``error``."""
        self._admit(len(value))
        error = None
        try:
            self.lock.acquire()
            self.check_open()
            sequence_id = options[SEQUENCE_ID] if options is not None else 0
            if not self.is_empty:
                # Batched messages are stored later, unless the application set the sequence id of this one.
                error = self.store(1 if sequence_id else NO_BATCHES)
            if self.log.keeper is not None:
                self.log.keeper.resolve()
            if not sequence_id:
                sequence_id = self.ids.following
                self.ids.following = sequence_id + 1
            self._measure_one()
            encoder = self.encoder if part is None else self.encoder.of(part)
            out = encoder.encode_one(value, options, sequence_id)
            out.part = part
            out.began = self._session.monotonic()
            out.error = out.error or error
            self.append_entry(out)
        finally:
            self.lock.release()
            self._give_back(len(value))
        if out.error is not None:
            self._meter.failed(1)
        return out

    def _measure_one(self) -> None:
        """Count a message that is measured, and open the hot path behind the last of them."""
        if self._meter.burst and not self.is_storing:  # otherwise in a signal handler
            self._meter.burst -= 1
            self.reopen()

    # -- 3. as a whole entry -----------------------------------------------------------------------------

    def make_way(self) -> None:
        """Store what is queued and has lower ids than an entry of the caller. Under the lock.

        Raises:
            LockTimeout: the send timeout of what was queued is over.
        """
        late = self.store(NO_BATCHES)
        if late is not None:
            raise late
        if self.log.keeper is not None:
            self.log.keeper.resolve()

    def append_entry(self, out: PendingEntry) -> None:
        """Append an entry behind all that must precede it; a failure is in its ``error``. Waits for the
        topic. Under the lock."""
        try:
            self.log.append([out], self._patience_s)
        except Exception as error:  # passed to the sender of the message
            if timing.is_raised_by_handler(error):
                raise
            out.error = error
        if out.entry >= 0 or out.is_duplicate:
            self.ids.last = out.last
        if self.log.keeper is not None:
            self.close_path_if_all_checked()
        if self.alone_max != self.alone_limit:
            self.reopen()

    # -- what became of the messages ---------------------------------------------------------------------

    def wait(self) -> None:
        """Wait until the callbacks of everything stored have run. Raises a failure that no callback got."""
        self.completions.wait()
        error = self.completions.pop_failure()
        if error is not None:
            raise error

    def close(self) -> int:
        """Close all paths for ever, and fail what is queued. Under the lock. Returns how many failed."""
        self.is_closed = True
        # First the limits: another thread may be opening a path, and reads them behind the state.
        self._verified = self.alone_limit = self.batch.limit = SHUT
        self.to(Event.CLOSE)
        if self.log.keeper is not None:
            self.log.keeper.is_over = True
        if self.singles or self.items:
            return self._fail_unsent()
        if self.completions.waiters.waiting:
            self.completions.waiters.wake()
        return 0

    def fail_late(self) -> None:
        """Fail a message that was queued while the producer was closing. Without the lock."""
        try:
            self.lock.acquire()
            dropped = self._fail_unsent()
        finally:
            self.lock.release()
        self.completions.log_dropped(dropped, self.name)

    def _fail_unsent(self) -> int:
        """Fail all queued messages of a closed producer. Returns their number."""
        if self.is_empty:
            return 0
        error = f"the producer {self.name} was closed before the message was published"
        return self._fail_queued(AlreadyClosed(error))

    def _fail_queued(self, error: BaseException) -> int:
        """Fail all queued messages, which are not appended later. Under the lock. Returns their number."""
        count = 0
        for item in self._clear():
            if item.__class__ is not list:
                out = fate_of(item, error)
                if self._session.memory is not None:
                    out.reserved = len(payload_of(item))
                self.completions.hand_over(out)
                count += 1
                continue
            for out in item:  # an interrupt may have left its outcome open
                if out.error is None and not self.log.was_stored(out):
                    out.error = error
                    count += out.count
                self.completions.hand_over(out)
        self._all_stored()
        return count

    def _time_out_after(self, seconds: float) -> None:
        try:
            self._is_timed = True
            self._session.call_later(seconds, self._on_send_timeout)
        except BaseException:
            self._is_timed = False
            raise

    def _on_send_timeout(self) -> None:
        """If the oldest message has waited longer than the send timeout, fail all queued messages."""
        self._is_timed = False
        at = self._deadline.at
        if at is None:
            return
        remaining_s = at - self._session.monotonic()
        try:
            if remaining_s <= 0 and self.lock.acquire(False):
                if not self._store_groups(0.0, 1):
                    self._fail_queued(self._timeout())
                return
        finally:
            self.lock.release()
        # Retried later: the thread that holds the lock waits for the topic, and not longer than this.
        self._time_out_after(max(remaining_s, TURN_S))

    def _timeout(self) -> Timeout:
        return Timeout(
            f"{len(self)} messages of {self.name} were not stored within send_timeout_millis="
            f"{self._config.send_timeout_ms} and will not be: {self.log.hindrance()}, and send them again"
        )
