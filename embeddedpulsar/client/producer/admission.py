"""The limits of a producer: how many messages, and how many bytes, may wait to be stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from embeddedpulsar.exceptions import ProducerQueueIsFull

if TYPE_CHECKING:
    from collections.abc import Callable

    from embeddedpulsar.client.producer.completions import Completions
    from embeddedpulsar.client.producer.producer_config import ProducerConfig
    from embeddedpulsar.client.producer.producer_session import ProducerSession
    from embeddedpulsar.client.producer.queue_drain import QueueDrain

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
            memory.take(size, self._blocks and self._completions.can_wait)

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
