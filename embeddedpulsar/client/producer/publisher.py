"""The state of a producer behind its interface, from `send` to the callback."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embeddedpulsar.client.common.message_options import SEQUENCE_ID, Options
from embeddedpulsar.client.producer.batch_container import Item
from embeddedpulsar.client.producer.chunker import part_limit
from embeddedpulsar.client.producer.log_writer import LogWriter
from embeddedpulsar.client.producer.pending_entry import PendingEntry, PlainWaiter, SendCallback, tell_sender
from embeddedpulsar.client.producer.pipeline import TURN_S, Pipeline
from embeddedpulsar.client.producer.producer_config import DEFAULT_SEND_TIMEOUT_MS
from embeddedpulsar.client.producer.producer_meter import ONE
from embeddedpulsar.client.producer.sealing_encoder import make_encoder
from embeddedpulsar.client.producer.send_queue import NO_BATCHES
from embeddedpulsar.client.producer.sequence_keeper import DeduplicationSwitched
from embeddedpulsar.exceptions import AlreadyClosed, LockTimeout, ProducerQueueIsFull
from embeddedpulsar.format.entry import ProducerPrefix, single_fields
from embeddedpulsar.platform import deadline, fork, threads

if TYPE_CHECKING:
    from embeddedpulsar.client.producer.producer_config import ProducerConfig
    from embeddedpulsar.client.producer.producer_session import ProducerSession


_LAST_TURN_S = 0.02
"""The same if the queue is full: enough time for a thread that the interpreter has suspended."""


class Publisher(Pipeline):
    """The operations of one producer under its lock.

    Role: accepting messages, the limits, attach and close; `Pipeline` stores the messages in the log. Entries
    reach the managed ledger in the order of their sequence ids, because `lock` is held while publishing.
    Callbacks are passed to the callback thread under `lock` too, so they run in that order.

    After a fork the child's copy is empty and stale; its first use attaches a producer under a new name.

    Attributes:
        words: of the topic; one of them changes when producers attach or leave.
    """

    def __init__(self, session: ProducerSession, config: ProducerConfig) -> None:
        super().__init__(session, config)
        self._stale = False
        self.meter.publisher = self
        self._attach(config.name, config.initial_sequence_id)
        fork.register(self)

    def _attach(self, name: str | None, initial_sequence_id: int | None) -> None:
        session = self._session
        registration = session.attach(name)
        self.name: str = registration.name
        try:
            self.prefix = ProducerPrefix(registration.name, registration.epoch)
            self._encoder = make_encoder(self.prefix, self.config, session)
        except BaseException:
            session.detach()  # after an error: a name that is too long, or a key that cannot be read
            raise
        self.append_nowait = session.ledger.append_nowait
        self.words = session.ledger.words
        self.checked = self._verified = -1
        self.last_sequence_id = self.found_sequence_id = registration.last_sequence_id
        first = initial_sequence_id if initial_sequence_id is not None else self.last_sequence_id
        self.initial_sequence_id, self.next_sequence_id = first, first + 1
        self.max_size = session.max_message_size
        self._log = LogWriter(session, registration.name)
        config = self.config
        most = max(self.max_size - self.prefix.metadata_length, 1)
        self._chunk_from = min(most, part_limit(config)) if config.chunking else 1 << 62
        is_counted = session.memory is not None
        plain = session.takes_bytes and not config.batching and not config.compression and not is_counted
        plain = plain and config.encryption is None and config.send_timeout_ms == DEFAULT_SEND_TIMEOUT_MS
        if plain and session.durability == "process":
            self.single_max = self._single_most = min(most - 16, part_limit(config))
        waits = self.completions.waits_for_disk
        if waits or is_counted or not config.batching or not config.batching_max_delay_ms:
            self.box.slow_only()
        self._keep(registration.last_sequence_id if registration.deduplicates else None)

    # -- one message at a time ---------------------------------------------------------------------------

    def publish_plain(self, value: bytes, callback: SendCallback | None) -> None:
        """Publish one unbatched message with nothing but a payload of at most `single_max` bytes.

        Stores it if that needs no waiting. Errors are raised.
        """
        lock = self.lock
        try:
            if lock.acquire(False) or lock.acquire(True, TURN_S):
                if not self.queue.singles:
                    # The id is taken first: after an interrupt, no second message may get the same id.
                    following = self.next_sequence_id
                    self.next_sequence_id = following + 1
                    encoded = single_fields(value, following, self.prefix)
                    try:
                        ledger, entry, _, _ = self.append_nowait(encoded, self, 0.0)
                    except (LockTimeout, DeduplicationSwitched):
                        self.next_sequence_id = following  # nothing was appended
                    else:
                        self.last_sequence_id = following
                        self.tally += ONE + len(value)
                        if callback is not None:
                            self.completions.hand_over_one(callback, ledger, entry)
                        self.unlock()
                        return
                self.unlock()
        except BaseException as error:  # noqa: BLE001 - raised again
            lock.release()
            tell_sender(error)
        self.submit(value, callback, None)

    def publish_one(self, value: bytes, options: Options | None) -> PendingEntry:
        """Encode and append one unbatched message, waiting for the topic.

        A failure is in ``error`` of the result. The caller performs the steps after the append.
        """
        self.admit(self._permits(len(value)), len(value))
        try:
            self.lock.acquire()
            self.check_open()
            # Batched messages are stored later, unless the application set the sequence id of this one.
            is_given = options is not None and options[SEQUENCE_ID]
            error = self._store_waiting(1 if is_given else NO_BATCHES)
            out = self._encode_one(value, options)
            out.error = out.error or error
            self._append_one(out, self._patience_s)
        finally:
            self.lock.release()
            self._give_back(len(value))
        return out

    @property
    def chunked_messages(self) -> int:
        """Messages that were stored as several entries."""
        return self._log.chunked

    def _permits(self, size: int) -> int:
        """Return how many messages one of ``size`` bytes counts for: as many as it has chunks."""
        return 1 if size <= self._chunk_from else -(-size // self._chunk_from)

    def _encode_one(self, value: bytes, options: Options | None) -> PendingEntry:
        if self.keeper is not None:
            self.keeper.settle()
        sequence_id = options[SEQUENCE_ID] if options is not None else 0
        if not sequence_id:
            sequence_id = self.next_sequence_id
            self.next_sequence_id = sequence_id + 1
        meter = self.meter
        if meter.burst:
            meter.burst -= 1
            self._open_to_hot_path()
        out = self._encoder.encode_one(value, options, sequence_id)
        meter.begin(out)
        return out

    def _append_one(self, out: PendingEntry, timeout_s: float) -> None:
        """Append an entry after all queued messages that must precede it; a failure is in its ``error``."""
        try:
            self._log.append_one(out, self, timeout_s)
        except Exception as error:  # noqa: BLE001 - passed to the sender of the message
            out.error = error
        if out.is_stored:
            self.last_sequence_id = out.last
        self._open_to_hot_path()

    def submit(self, value: bytes, callback: SendCallback | None, options: Options | None) -> None:
        """Publish a message as an entry of its own, ahead of the batches. Does not wait for the topic.

        Raises:
            AlreadyClosed, ProducerQueueIsFull, MemoryBufferIsFull: it was not accepted.
        """
        self.admit(self._permits(len(value)), len(value))
        if options is not None and options[SEQUENCE_ID] and self.box.items:
            self.box.add_unbatchable((value, callback, *options))
            self._advance_soon(1)
            self.completions.catch_up()
            return
        is_large = len(value) > self._chunk_from  # a large message interrupted between chunks stays queued
        if self._is_held_up or is_large or not self._submit_at_once(value, callback, options):
            plain = callback is None and options is None
            self.queue.singles.append(value if plain else (value, callback, *(options or ())))
            self.single_max = -1
            self._advance_soon(NO_BATCHES)
        self.completions.catch_up()

    def _submit_at_once(self, value: bytes, callback: SendCallback | None, options: Options | None) -> bool:
        """Store one message if no queued message must precede it, and the necessary locks are free."""
        try:
            if not self.lock.acquire(False) or self._is_publishing or self._session.memory is not None:
                return False
            if self.queue.singles or self.queue.group() is not None:
                return False
            following = self.next_sequence_id
            out = self._encode_one(value, options)
            try:
                self._log.append_one(out, self, 0.0)
            except LockTimeout:
                self.next_sequence_id = following  # nothing was appended
                return False
            if out.is_stored:
                self.last_sequence_id = out.last
            if callback is not None:
                out.callbacks = [callback]
            self.completions.hand_over(out)
            return True
        finally:
            self.lock.release()

    # -- batches -----------------------------------------------------------------------------------------

    def add(self, item: bytes | Item, size: int) -> None:
        """Add a message to the batch, after flushing one that it does not fit into. Raises as `submit`."""
        self.admit(1, size)
        box, is_full, is_in = self.box, False, False
        try:
            if self.lock.acquire(False):
                if not box.has_room(size) and not self._is_held_up and not self._publish(0.0, 1):
                    self._hold_up()
                is_in, is_full = True, box.add(item, size)
                if is_full and self._is_held_up:
                    box.left()  # with several partitions, the next message goes to another one
            else:
                is_in = True
                box.add_unlocked(item, size)
        finally:
            self.lock.release()
            if not is_in:
                self._give_back(size)
        if is_full or self._is_held_up or not self.config.batching_max_delay_ms:
            self._advance_soon(1)
        elif not box.armed:
            self.arm()
        self.completions.catch_up()

    def finish_batch(self, size: int) -> bool:
        """End the current batch if a message of ``size`` bytes does not fit. Does not wait for the topic.

        Returns:
            Whether a batch was ended.
        """
        if self._is_held_up:
            self.box.left()  # one message per turn: another process may hold the lock of this topic only
            return False
        try:
            if self.is_closed or not self.lock.acquire(True, TURN_S):
                return False
            if self.box.has_room(size):
                return False
            if not self._publish(0.0, 1):
                self._hold_up()
            return True
        finally:
            self.lock.release()

    def publish_now(self, value: bytes, options: Options | None) -> PlainWaiter:
        """Store a message with its batch at once, and return its position. Waits for the topic."""
        waiter = PlainWaiter()
        self.admit(1, len(value))
        box, is_in = self.box, False
        try:
            self.lock.acquire()
            self.check_open()
            if not box.has_room(len(value)):
                self._store_waiting(1)
            is_in = True
            box.add((value, waiter, *(options or ())), len(value))
            self._store_waiting(1)
        finally:
            self.lock.release()
            if not is_in:
                self._give_back(len(value))
        return waiter

    def flush_full(self, least: int = 0) -> None:
        """Flush batches of ``least`` messages, by default full ones. Does not wait for the topic."""
        self._advance_soon(least or self.box.trigger)
        self.completions.catch_up()

    def flush_all(self) -> None:
        """Flush all queued messages, waiting for the topic."""
        try:
            self.lock.acquire()
            self.check_open()
            self._store_waiting(1)
        finally:
            self.lock.release()

    # -- limits ------------------------------------------------------------------------------------------

    def admit(self, count: int, size: int) -> None:
        """Accept ``count`` messages (or chunks) of ``size`` bytes, or wait, or refuse. Not under the lock.

        Raises:
            AlreadyClosed, ProducerQueueIsFull, MemoryBufferIsFull: they are not accepted.
        """
        if self.is_closed or self._stale:
            try:
                self.lock.acquire()
                self.check_open()
            finally:
                self.lock.release()
        if (
            (self._is_held_up or self.completions.waits_for_disk)
            and self.config.max_pending_messages
            and not self._has_room(count)
        ):
            self._wait_for_room(count)
        memory = self._session.memory
        if memory is not None:
            memory.take(size, self.config.block_if_queue_full and self.completions.can_wait)

    def _give_back(self, size: int) -> None:
        """Subtract accepted bytes of a message that is not published after all."""
        if self._session.memory is not None:
            self._session.memory.give_back(size)

    def _wait_for_room(self, count: int) -> None:
        self.advance(1, _LAST_TURN_S)  # messages of the batch first
        if not self.queue.is_empty and self._log.let_threads_pass(_LAST_TURN_S):
            self.advance(1, _LAST_TURN_S)
        while not self._has_room(count):
            self._refuse_if_full(count)
            if not self.completions.can_wait:
                return  # a callback must not wait for itself
            if self.queue.is_empty:
                self.completions.wait()  # for the disk
            else:
                self._hold_up()
                self.completions.waiters.wait(lambda: self.is_closed or self._has_room(count))
            self.check_open()

    def sample(self, messages: int) -> None:
        """Send the next messages sent one by one to the slow path, which measures their time."""
        if self._single_most >= 0:
            self.meter.burst = messages
            self.single_max = -1

    @property
    def pending(self) -> int:
        """Messages that are not stored yet, or not yet on disk if the level requires it."""
        return len(self.queue) + self.completions.pending

    def _has_room(self, count: int) -> bool:
        limit = self.config.max_pending_messages
        return self.pending + min(count, limit) <= limit

    def _refuse_if_full(self, count: int) -> None:
        if not self.config.block_if_queue_full and not self._has_room(count):
            raise ProducerQueueIsFull(
                f"{self.pending} messages of {self.name} are not stored yet and max_pending_messages is "
                f"{self.config.max_pending_messages}; wait for callbacks, or set block_if_queue_full"
            )

    # -- life --------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Refuse a closed producer; attach again in a forked child."""
        if self.is_closed:
            raise AlreadyClosed(f"the producer {self.name} is closed; create a new one")
        if self._stale:
            self._session.revive()
            self._attach(None, None)
            self._stale = False

    def close(self) -> None:
        """Fail queued messages with AlreadyClosed and detach. Stored messages stay."""
        try:
            deadline.enter(self.lock, f"the producer {self.name}")
            if self.is_closed and (self._stale or not self._session.is_attached):  # else it was interrupted
                raise AlreadyClosed(f"the producer {self.name} was closed before")
            self.is_closed = True
            self.single_max = self._single_most = self.checked = self._verified = -1
            self.box.slow_only()
            dropped = self._fail_unsent()
            if not self._stale:  # under the lock: the last stored id must not change any more
                self._session.detach(None if self.keeper is None else self.keeper.final())
        finally:
            self.lock.release()
        self.completions.note_dropped(dropped, self.name)
        self._fail_late()  # messages that other threads sent during the close

    def after_fork_in_child(self) -> None:
        """Become stale and empty: the producer and its queue belong to the parent."""
        self._use_lock(threads.renewed(self.lock))
        self.queue.take_all()
        self._deadline.clear()
        self._is_publishing = self._is_held_up = self._is_timed = self.box.armed = False
        self.box.hold_up()
        self.single_max = self.checked = -1
        self.completions.reset()
        self.tally = 0
        self._stale = not self.is_closed
