"""Publishing of messages in batches, by the paths that take the producer's lock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embeddedpulsar.client.producer.pending_entry import PlainWaiter
from embeddedpulsar.client.producer.queue_drain import TURN_S

if TYPE_CHECKING:
    from embeddedpulsar.client.common.message_options import Options
    from embeddedpulsar.client.producer.admission import Admission
    from embeddedpulsar.client.producer.batch_container import Item
    from embeddedpulsar.client.producer.producer_config import ProducerConfig
    from embeddedpulsar.client.producer.queue_drain import QueueDrain


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
