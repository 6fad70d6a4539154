"""The producer of one topic behind its interface, and how it publishes: alone, in batches, and within limits.

Hot: benchmarks measure `SingleSender.send_alone`. Batches go by paths that take the producer's lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar._engine.format.entry import (
    NO_EXTRAS,
    Extras,
    ProducerPrefix,
    fields_with_extras,
    pack_extras,
    single_fields,
)
from embeddedpulsar._engine.platform import deadline, fork, interrupts
from embeddedpulsar._engine.platform.access import named
from embeddedpulsar.backlog_quota import TopicHeld
from embeddedpulsar.client.arguments import DELIVER_AT, NO_OPTIONS, SEQUENCE_ID, Options
from embeddedpulsar.client.producer.completions import Completions
from embeddedpulsar.client.producer.entry_encoder import make_encoder, part_limit
from embeddedpulsar.client.producer.log_writer import TURN_S, LogWriter, QueueDrain
from embeddedpulsar.client.producer.pending_entry import PlainWaiter, SendCallback, tell_sender, unanswered
from embeddedpulsar.client.producer.producer_config import DEFAULT_SEND_TIMEOUT_MS
from embeddedpulsar.client.producer.producer_meter import BURST, ONE, ProducerMeter, snapshot_of
from embeddedpulsar.client.producer.producer_session import ProducerSession
from embeddedpulsar.client.producer.send_queue import NO_BATCHES, BatchContainer, Event, SendQueue, SendState
from embeddedpulsar.client.producer.sequence_ids import DeduplicationSwitched, SequenceIds
from embeddedpulsar.exceptions import AlreadyClosed, LockTimeout, ProducerFenced, ProducerQueueIsFull
from embeddedpulsar.message_id import MessageId, make

if TYPE_CHECKING:
    from collections.abc import Callable

    from embeddedpulsar._engine.platform.threads import RLock
    from embeddedpulsar.client.client_context import ClientContext
    from embeddedpulsar.client.producer.pending_entry import Item, PendingEntry
    from embeddedpulsar.client.producer.producer_config import ProducerConfig
    from embeddedpulsar.client.producer.producer_session import PartitionMembership
    from embeddedpulsar.client.statistics import ProducerStats


_LAST_TURN_S: Final = 0.02
"""Seconds to wait for another thread of this producer if the queue is full: enough time for a thread that the
interpreter has suspended."""


class Admission:
    """Accepts the messages of one producer, or waits for room, or refuses.

    Role: ``max_pending_messages`` of the producer, of which a large message takes one for each of its chunks,
    and ``memory_limit_bytes`` of the client. Not called under the producer's lock.

    Attributes:
        check_open: refuses a closed producer, and attaches it again in a forked child. Under its lock.
        chunk_from: most bytes of payload in one chunk.
    """

    def __init__(
        self,
        session: ProducerSession,
        config: ProducerConfig,
        drain: QueueDrain,
        completions: Completions,
        check_open: Callable[[], object],
    ) -> None:
        self._session = session
        self._drain = drain
        self._completions = completions
        self.check_open = check_open
        self._limit = config.max_pending_messages
        self._blocks = config.block_if_queue_full
        self.chunk_from = 1 << 62

    def admit(self, size: int) -> None:
        """Accept a message of ``size`` bytes.

        Raises:
            AlreadyClosed, ProducerQueueIsFull, MemoryBufferIsFull: it is not accepted.
        """
        drain = self._drain
        if drain.state.is_closed or drain.is_stale:
            self._enter_open()
        if self._limit and (drain.is_held_up or self._completions.waits_for_disk):
            count = 1 if size <= self.chunk_from else -(-size // self.chunk_from)
            if not self._has_room(count):
                self._wait_for_room(count)
        memory = self._session.memory
        if memory is not None:
            memory.reserve(size, self._blocks and self._completions.can_wait)

    def give_back(self, size: int) -> None:
        if self._session.memory is not None:
            self._session.memory.give_back(size)

    @property
    def pending(self) -> int:
        return len(self._drain.queue) + self._completions.pending

    def _wait_for_room(self, count: int) -> None:
        drain = self._drain
        drain.advance(1, _LAST_TURN_S)  # messages of the batch first
        if not drain.queue.is_empty and drain.log.let_threads_pass(_LAST_TURN_S):
            drain.advance(1, _LAST_TURN_S)
        while not self._has_room(count):
            if not self._blocks:
                raise ProducerQueueIsFull(
                    f"{self.pending} messages of {drain.name} are not stored yet and max_pending_messages is "
                    f"{self._limit}; wait for callbacks, or set block_if_queue_full"
                )
            if not self._completions.can_wait:
                return  # a callback must not wait for itself
            if drain.queue.is_empty:
                self._completions.wait()  # for the disk
            else:
                drain.hold_up()
                self._completions.waiters.wait(lambda: drain.state.is_closed or self._has_room(count))
            self._enter_open()

    def _enter_open(self) -> None:
        try:
            self._drain.lock.acquire()
            self.check_open()
        finally:
            self._drain.lock.release()

    def _has_room(self, count: int) -> bool:
        return self.pending + min(count, self._limit) <= self._limit


class BatchSender:
    """Adds messages to the open batch of a producer, and ends the batch. Thread-safe."""

    def __init__(self, config: ProducerConfig, drain: QueueDrain, admission: Admission) -> None:
        self._has_delay = bool(config.batching_max_delay_ms)
        self._drain = drain
        self._admission = admission
        self._batch = drain.queue.box

    def add(self, item: bytes | Item, size: int) -> None:
        """Add a message to the batch, after flushing one that it does not fit into.

        Raises:
            AlreadyClosed, ProducerQueueIsFull, MemoryBufferIsFull: it was not accepted.
        """
        self._admission.admit(size)
        batch, drain, is_full, is_in = self._batch, self._drain, False, False
        try:
            if self._drain.lock.acquire(False):
                if not batch.has_room(size) and not drain.is_held_up and not drain.publish(0.0, 1):
                    drain.hold_up()
                is_in, is_full = True, batch.add(item, size)
                if is_full and drain.is_held_up:
                    batch.left()  # with several partitions, the next message goes to another one
            else:
                is_in = True
                batch.add_unlocked(item, size)
        finally:
            self._drain.lock.release()
            if not is_in:
                self._admission.give_back(size)
        if is_full or drain.is_held_up or not self._has_delay:
            drain.advance_soon(1)
        elif not batch.armed:
            batch.arm()

    def is_full(self) -> bool:
        """Whether the batch must be ended, because it reached its trigger. Waits for other senders only."""
        batch, drain = self._batch, self._drain
        if len(batch.items) >= batch.max_messages:
            return True
        try:
            return not drain.lock.acquire(True, TURN_S) or batch.is_full()
        finally:
            drain.lock.release()

    def finish_batch(self, size: int) -> bool:
        """End the current batch if a message of ``size`` bytes does not fit. Does not wait for the topic.

        Returns:
            Whether a batch was ended.
        """
        drain = self._drain
        if drain.is_held_up:
            self._batch.left()  # one message per turn: another process may hold the lock of this topic only
            return False
        try:
            if self._drain.state.is_closed or not self._drain.lock.acquire(True, TURN_S):
                return False
            if self._batch.has_room(size):
                return False
            if not drain.publish(0.0, 1):
                drain.hold_up()
            return True
        finally:
            self._drain.lock.release()

    def publish_now(self, value: bytes, options: Options | None) -> PlainWaiter:
        """Store a message with its batch at once, and return its position. Waits for the topic."""
        waiter = PlainWaiter()
        self._admission.admit(len(value))
        batch, is_in = self._batch, False
        try:
            self._drain.lock.acquire()
            if self._drain.state.is_closed or self._drain.is_stale:
                self._admission.check_open()
            if not batch.has_room(len(value)):
                self._drain.store_waiting(1)
            is_in = True
            batch.add((value, waiter, *(options or ())), len(value))
            self._drain.store_waiting(1)
        finally:
            self._drain.lock.release()
            if not is_in:
                self._admission.give_back(len(value))
        return waiter


class SingleSender:
    """Publishes messages that do not join a batch: at once if nothing must be stored before them.

    Thread-safe.

    Attributes:
        prefix, append_nowait: of the present attachment.
        lock, unlock: those of the drain.
        tally: counts messages stored by the hot paths; see `producer_meter.ONE`.
    """

    prefix: ProducerPrefix
    append_nowait: Callable[..., tuple[int, int, int, int]]
    lock: RLock
    unlock: Callable[[], None]

    def __init__(
        self,
        session: ProducerSession,
        drain: QueueDrain,
        admission: Admission,
        completions: Completions,
        meter: ProducerMeter,
    ) -> None:
        self._session = session
        self._drain = drain
        self._admission = admission
        self._completions = completions
        self._meter = meter
        self._partition = session.partition
        self._queue = drain.queue
        self._ids = drain.ids
        self._state = drain.state
        self.begin()

    def begin(self) -> None:
        self.lock, self.unlock = self._drain.lock, self._drain.unlock
        self.tally = 0

    def send_alone(
        self,
        value: bytes,
        properties: dict[str, str] | None,
        key: str | None,
        ordering_key: str | None = None,
        event_time: int | None = None,
    ) -> MessageId | None:
        """Store a message of at most `SendState.alone_max` bytes, with these options at most.

        Returns:
            Its id; None if it must take the slow path.
        """
        state = self._state
        extras: Extras | None = NO_EXTRAS
        if key is not None or properties is not None or ordering_key is not None or event_time is not None:
            extras = pack_extras(properties, key, state.alone_max - len(value), ordering_key, event_time)
        if extras is None or self._queue.singles:  # the state may not be updated yet
            return None
        ids = self._ids
        try:
            self.lock.acquire()
            append, leave = self.append_nowait, self.unlock
            # The id is taken first: after an interrupt, no second message may get the same id.
            following = ids.following
            ids.following = following + 1
            if extras is NO_EXTRAS:
                encoded = single_fields(value, following, self.prefix)
            else:
                encoded = fields_with_extras(value, extras, following, self.prefix)
            ledger, entry, _, _ = append(encoded, state)
            ids.last = following
            self.tally += ONE + len(value)
            leave()
        except (DeduplicationSwitched, TopicHeld):
            ids.following = following
            self.lock.release()
            return None
        except BaseException as error:  # noqa: BLE001 - raised again
            self.lock.release()
            self._meter.failed(1)
            tell_sender(error)
        return make(ledger, entry, -1, self._partition, 0)

    def store_alone(self, value: bytes, extras: Extras, callback: SendCallback | None) -> bool:
        """`send_alone` without waiting. Returns False if the message must take the slow path."""
        lock, ids = self.lock, self._ids
        try:
            if lock.acquire(False) or lock.acquire(True, TURN_S):
                if not self._queue.singles:
                    following = ids.following
                    ids.following = following + 1
                    if extras is NO_EXTRAS:
                        encoded = single_fields(value, following, self.prefix)
                    else:
                        encoded = fields_with_extras(value, extras, following, self.prefix)
                    try:
                        ledger, entry, _, _ = self.append_nowait(encoded, self._state, 0.0)
                    except (LockTimeout, DeduplicationSwitched):
                        ids.following = following  # nothing was appended
                    else:
                        ids.last = following
                        self.tally += ONE + len(value)
                        if callback is not None:
                            self._completions.hand_over_one(callback, ledger, entry)
                        self.unlock()
                        return True
                self.unlock()
        except BaseException as error:  # noqa: BLE001 - raised again
            lock.release()
            tell_sender(error)
        return False

    def publish_one(self, value: bytes, options: Options | None) -> PendingEntry:
        """Encode and append one unbatched message, waiting for the topic.

        A failure is in ``error`` of the result. The caller performs the steps after the append.
        """
        self._admission.admit(len(value))
        error = None
        try:
            self.lock.acquire()
            if self._state.is_closed or self._drain.is_stale:
                self._admission.check_open()
            if not self._queue.is_empty:
                # Batched messages are stored later, unless the application set the sequence id of this one.
                is_given = options is not None and options[SEQUENCE_ID]
                error = self._drain.store_waiting(1 if is_given else NO_BATCHES)
            out = self._encode_one(value, options)
            out.error = out.error or error
            self.append_one(out)
        finally:
            self.lock.release()
            if self._session.memory is not None:
                self._admission.give_back(len(value))
        return out

    def _encode_one(self, value: bytes, options: Options | None) -> PendingEntry:
        drain, ids = self._drain, self._ids
        if drain.log.keeper is not None:
            drain.log.keeper.resolve()
        sequence_id = options[SEQUENCE_ID] if options is not None else 0
        if not sequence_id:
            sequence_id = ids.following
            ids.following = sequence_id + 1
        if self._meter.burst:
            self._meter.burst -= 1
            drain.reopen()
        out = drain.encoder.encode_one(value, options, sequence_id)
        out.began = self._session.monotonic()
        return out

    def append_one(self, out: PendingEntry) -> None:
        """Append an entry after all queued messages that must precede it; a failure is in its ``error``.

        Waits for the topic. Called under the lock.
        """
        try:
            self._drain.log.append([out], self._drain.patience_s)
        except Exception as error:  # noqa: BLE001 - passed to the sender of the message
            out.error = error
        if out.entry >= 0 or out.is_duplicate:
            self._ids.last = out.last
        self._drain.follow_keeper()
        if self._state.alone_max != self._state.alone_most:
            self._drain.reopen()

    def submit(self, item: bytes | Item, size: int, options: Options | None) -> None:
        """Publish a message as an entry of its own, ahead of the batches. Does not wait for the topic.

        Raises:
            AlreadyClosed, ProducerQueueIsFull, MemoryBufferIsFull: it was not accepted.
        """
        self._admission.admit(size)
        if options is not None and options[SEQUENCE_ID] and self._queue.box.items:
            assert item.__class__ is tuple
            self._queue.box.add_unbatchable(item)
            self._drain.advance_soon(1)
            return
        self._queue.singles.append(item)
        self._state.to(Event.QUEUE)
        self._drain.advance_soon(NO_BATCHES)


class Publisher:
    """The operations of one attached producer.

    Role: each part does one job: `Admission` enforces the limits, `BatchContainer` holds the open batch and
    its triggers, `SendQueue` the order of all waiting messages, `EntryEncoder` makes entries of them,
    `LogWriter` appends these, `QueueDrain` takes messages through the three last ones while the topic is
    free, and `Completions` performs the steps after an append. `SendState` opens the hot paths, which lead
    past all of them, while nothing must be stored first.

    Invariants: entries reach the managed ledger in the order of their sequence ids, because the lock of the
    drain is held while publishing. Callbacks are passed to the callback thread under this lock, too, so they
    run in that order. Thread-safe. After a fork the child's copy is empty and stale; its first use attaches a
    producer under a new name.

    Attributes:
        routing: of whole columns; None, because there is one partition.
    """

    routing = None
    is_ready = False
    max_size = 0

    def __init__(self, session: ProducerSession, config: ProducerConfig) -> None:
        self.config = config
        self.session = session
        self.partition, self.topic_name = session.partition, session.topic_name
        self.wall_ms: Callable[[], int] = session.wall_ms
        self.meter = ProducerMeter(session)
        limit, most = config.max_pending_messages, config.batching_max_messages
        self.batch = BatchContainer(max(1, min(most, limit)) if limit else most, config.batching_max_bytes)
        self.batch.on_full = self.on_full
        self.state: SendState = SendState(self.batch)
        self.ids = SequenceIds()
        self.queue = SendQueue(self.batch, self.state, self.ids, session.memory is not None)
        self.completions = Completions(session, self.meter)
        self.drain = QueueDrain(
            session, config, self.state, self.queue, self.ids, self.completions, self.meter
        )
        self.admission = Admission(session, config, self.drain, self.completions, self.check_open)
        self.singles: SingleSender = SingleSender(
            session, self.drain, self.admission, self.completions, self.meter
        )
        self.batches = BatchSender(config, self.drain, self.admission)
        self.meter.publisher = self
        session.on_limiter = self._follow_limiter
        try:
            self._attach(config.name, config.initial_sequence_id)
            fork.register(self)
        except BaseException:
            self.meter.close()
            raise

    def _attach(self, name: str | None, initial_sequence_id: int | None) -> None:
        session, drain = self.session, self.drain
        registration = session.attach(name)
        try:
            self.meter.start()
            version = session.config.schema_version
            self.prefix = prefix = ProducerPrefix(registration.name, registration.epoch, version)
            drain.encoder = make_encoder(prefix, self.config, session)
        except BaseException:
            session.detach()  # after an error: a name that is too long, or a key that cannot be read
            raise
        drain.name = registration.name
        self.singles.prefix = prefix
        self.ids.begin(registration.last_sequence_id, initial_sequence_id)
        drain.log = LogWriter(session, registration.name, self.ids, drain.lock, self.meter)
        self._choose_paths(max(session.max_message_size - self.prefix.metadata_length, 1))
        self.is_ready = True
        self._follow_size()
        drain.log.keep(registration.last_sequence_id if registration.deduplicates else None)
        drain.follow_keeper()

    def _choose_paths(self, most: int) -> None:
        """Open the hot paths that the options allow, for entries with room for ``most`` bytes of payload."""
        config, ledger = self.config, self.session.ledger
        is_counted = self.session.memory is not None
        is_plain = not config.batching and not config.compression and config.encryption is None
        waits = self.completions.waits_for_disk
        if is_plain and not waits and not is_counted and config.send_timeout_ms == DEFAULT_SEND_TIMEOUT_MS:
            self.state.alone_most = min(most - 16, part_limit(config))
        self.singles.append_nowait = append = ledger.append_nowait
        if self.session.durability == "interval":

            def append_and_note(*arguments: Any) -> tuple[int, int, int, int]:
                found = append(*arguments)
                ledger.note_dirty()
                return found

            self.singles.append_nowait = append_and_note
        if waits or is_counted or not config.batching or not config.batching_max_delay_ms:
            self.state.narrow(alone=False)
        self.state.to(Event.SETTLE)

    def _follow_size(self) -> None:
        self.max_size = most = self.session.max_message_size
        self.drain.encoder.limit_to(most)
        if self.config.chunking:
            room = max(most - self.prefix.metadata_length, 1)
            self.admission.chunk_from = min(room, part_limit(self.config))

    def _follow_limiter(self) -> None:
        """The publish rate of the topic, or the size of its messages, may have changed. Called in any thread;
        takes no lock."""
        self.state.limit(self.session.is_limited)
        if self.is_ready and self.max_size != self.session.max_message_size:
            self._follow_size()
        if not self.drain.queue.is_empty:
            self.session.flusher.kick(self.drain)  # it may have waited for the old rate

    def send(self, value: bytes, options: Options | None) -> MessageId:
        """Publish a message and wait until it is stored. Raises the errors of `Producer.send`."""
        if options == NO_OPTIONS:
            options = None
        try:
            if len(value) <= self.state.alone_max:
                properties, key, ordering_key, sequence_id, event_time, deliver_at, is_null = (
                    options or NO_OPTIONS
                )
                if not (sequence_id or deliver_at or is_null):
                    found = self.singles.send_alone(value, properties, key, ordering_key, event_time or None)
                    if found is not None:
                        return found
            index = -1
            if self.config.batching and not (options is not None and options[DELIVER_AT]):
                waiter = self.batches.publish_now(value, options)
                out, index = waiter.pending_entry, waiter.index
                if out is None:
                    raise unanswered(self.is_closed)
            else:
                out = self.singles.publish_one(value, options)
                if out.error is not None:
                    self.meter.failed(1)
            if out.error is not None:
                raise out.error
            if out.end_word:
                self.session.ledger.wait_durable(out.end_word)
                self.meter.durable(out)
            return out.message_id(index, self.partition)
        except BaseException as error:
            interrupts.translate(error)
            raise

    def enqueue(self, value: bytes, callback: SendCallback | None, options: Options | None) -> None:
        """Publish a message without waiting. The callback, or the next flush, gets the errors."""
        batch = self.batch
        is_delayed = options is not None and options[DELIVER_AT]
        if len(value) <= batch.share and not is_delayed:
            items = batch.items
            if callback is None and options is None:
                items.append(value)
            else:
                batch.mixed = True
                items.append((value, callback) if options is None else (value, callback, *options))
            if len(items) >= batch.trigger:
                self.on_full()
            elif not batch.armed:
                batch.arm()
            return
        try:
            extras: Extras | None = None
            alone_max = self.state.alone_max
            if len(value) <= alone_max:
                if options is None:
                    extras = NO_EXTRAS
                else:
                    properties, key, ordering_key, sequence_id, event_time, deliver_at, is_null = options
                    if not sequence_id:
                        room = alone_max - len(value)
                        extras = pack_extras(
                            properties, key, room, ordering_key, event_time, deliver_at, is_null
                        )
            if extras is None or not self.singles.store_alone(value, extras, callback):
                item = value if callback is None and options is None else (value, callback, *(options or ()))
                if self.config.batching and not is_delayed:
                    self.batches.add(item, len(value))
                else:
                    self.singles.submit(item, len(value), options)
            self.completions.catch_up()
        except Exception as error:  # noqa: BLE001 - passed to the callback or to the next flush
            self.tell_later(callback, named(error))
        except BaseException as error:
            interrupts.translate(error)
            raise

    def tell_later(self, callback: SendCallback | None, error: BaseException) -> None:
        """Pass an error to the callback, in its turn, or to the next flush; raise an interrupt."""
        completions = self.completions
        if isinstance(error, KeyboardInterrupt) or not completions.can_tell:
            raise error
        if callback is not None:
            if isinstance(error, AlreadyClosed) and not self.drain.queue.is_empty:
                self.drain.fail_late()  # a sender that had looked at the batch before
            completions.fail_now(callback, error)
        elif isinstance(error, AlreadyClosed):
            raise error
        else:
            completions.note_failure(error)

    def on_full(self) -> None:
        """The batch has reached its trigger: flush it if it is full."""
        batch = self.batch
        if self.batches.is_full():
            self.flush_full(batch.max_messages if len(batch.items) >= batch.max_messages else 1)

    def flush_full(self, least: int) -> None:
        """Flush batches of ``least`` messages or more. Does not wait for the topic."""
        try:
            self.drain.advance_soon(least)
            self.completions.catch_up()
        except BaseException as error:
            interrupts.translate(error)
            raise

    def store_soon(self) -> None:
        if not self.queue.is_empty:
            self.flush_full(1)

    def flush_all(self) -> None:
        try:
            self.drain.lock.acquire()
            if self.state.is_closed or self.drain.is_stale:
                self.check_open()
            self.drain.store_waiting(1)
        finally:
            self.drain.lock.release()

    def flush(self) -> None:
        """Flush all queued messages, wait for their callbacks, and raise what no callback got."""
        self.flush_all()
        self.completions.wait()
        error = self.completions.taken_failure()
        if error is not None:
            raise error

    def save(self) -> None:
        """Store everything at the end of the program, and raise failures that `flush` would have raised."""
        if self.queue.is_empty or self.is_closed:
            return
        try:
            deadline.enter(self.drain.lock, f"the producer {self.name}")
            error = self.drain.store_waiting(1)
        finally:
            self.drain.lock.release()
        if error is not None:
            raise error

    @property
    def lane(self) -> Publisher:
        return self

    @property
    def tally(self) -> int:
        return self.singles.tally

    @property
    def name(self) -> str:
        return self.drain.name

    @property
    def is_closed(self) -> bool:
        return self.state.is_closed

    @property
    def pending(self) -> int:
        return self.admission.pending

    @property
    def last_sequence_id(self) -> int:
        return self.ids.shown

    def is_connected(self) -> bool:
        if self.is_closed:
            return False
        try:
            self.session.check_connected()
        except (ProducerFenced, AlreadyClosed):
            return False
        except LockTimeout:
            return True  # the topic cannot be checked now
        return True

    def stats(self) -> ProducerStats:
        """Return the statistics, and measure the next messages that are sent one by one."""
        found = snapshot_of([self.meter])
        self.sample(BURST)
        return found

    def sample(self, messages: int) -> None:
        """Send the next messages sent one by one to the slow path, which measures their time."""
        if self.state.alone_most >= 0:
            self.meter.burst = messages
            self.state.to(Event.SAMPLE)

    def of_partition(self, partition: int) -> Publisher:
        """Return the publisher of a partition: this one, because there is no other."""
        return self

    def of_message(self, value: bytes, options: Options) -> Publisher:
        """Return the publisher of the partition to which a message goes."""
        return self

    def check_open(self) -> None:
        """Refuse a closed producer; attach again in a forked child. Called under the lock."""
        if self.is_closed:
            raise AlreadyClosed(f"the producer {self.name} is closed; create a new one")
        if self.drain.is_stale:
            self.meter.reset()
            self.session.revive()
            self._attach(None, None)
            self.drain.is_stale = False

    def end(self) -> None:
        """Close within the operation timeout, wait for the callbacks, and unregister."""
        self.session.end(self, self._close_and_wait, self.name)

    def _close_and_wait(self) -> None:
        self.close()
        self.completions.wait()

    def close(self) -> None:
        """Fail queued messages with AlreadyClosed and detach. Stored messages stay."""
        drain, session = self.drain, self.session
        try:
            deadline.enter(drain.lock, f"the producer {drain.name}")
            if self.state.is_closed and (drain.is_stale or not session.is_attached):  # else interrupted
                raise AlreadyClosed(f"the producer {drain.name} was closed before")
            self.state.close()
            if drain.keeper is not None:
                drain.keeper.is_over = True
            dropped = drain.fail_unsent()
            if not drain.is_stale:  # under the lock: the last stored id must not change any more
                self.meter.close()
                session.detach(None if drain.keeper is None else drain.keeper.final())
        finally:
            drain.lock.release()
        self.completions.note_dropped(dropped, drain.name)
        if not drain.queue.is_empty:
            drain.fail_late()  # messages that other threads sent during the close

    def abandon(self) -> None:
        self.session.abandon(self)

    def after_fork_in_child(self) -> None:
        self.drain.after_fork_in_child()
        self.singles.begin()
        self.completions.reset()
        self.drain.is_stale = not self.is_closed


def attach_publisher(
    core: ClientContext, config: ProducerConfig, membership: PartitionMembership | None = None
) -> Publisher:
    """Attach a producer to one topic. After a Ctrl-C, nothing stays attached.

    Args:
        core: the client.
        config: names the topic.
        membership: common to all partitions, if the topic is one of them.

    Raises:
        ProducerBusy, ProducerFenced, TopicTerminated: see `Topic.attach_producer`.
        AlreadyClosed: the client was closed meanwhile.
    """
    session = ProducerSession(core, config, membership)
    publisher = None
    try:
        publisher = Publisher(session, config)
        core.add_publisher(publisher)
        core.check_open()  # a `close` of the client meanwhile may have missed this producer
    except BaseException:
        if publisher is not None:
            core.forget_publisher(publisher)
            publisher.meter.close()
        session.detach()
        raise
    core.log.info("Created producer %s on %s", publisher.name, session.topic_name)
    return publisher
