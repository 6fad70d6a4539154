"""The loop of `Consumer.batch_receive`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from embeddedpulsar.client.consumer.delivery import REAL_TIME
from embeddedpulsar.exceptions import LockTimeout, Timeout
from embeddedpulsar.platform.deadline import LONGEST_S, TURN_S, within

if TYPE_CHECKING:
    from embeddedpulsar.client.consumer.delivery import Source
    from embeddedpulsar.message import Message
    from embeddedpulsar.policies import BatchReceivePolicy


class BatchReceiver:
    """Collects messages until the policy is met.

    A batch is complete at ``max_num_message`` messages, at ``max_num_bytes`` bytes of payload, or when
    ``timeout_ms`` has passed. It never exceeds either limit, except that the first message is always taken. A
    message that does not fit stays first in the queue for the next call.
    """

    def __init__(
        self,
        delivery: Source,
        take: Callable[[], Message[Any]],
        put_back: Callable[[Message[Any]], None],
        policy: BatchReceivePolicy,
        queue_size: int,
        voided: Callable[[], int],
    ) -> None:
        self._delivery = delivery
        self._take = take
        self._put_back = put_back
        limit = policy.getMaxNumMessages()
        self._max_messages = min(limit, queue_size) if limit > 0 and queue_size > 0 else limit
        self._max_bytes = policy.getMaxNumBytes()
        self._timeout_ms = policy.getTimeoutMs()
        self._voided = voided

    def receive(self) -> list[Message[Any]]:
        deadline = REAL_TIME() + self._timeout_ms / 1000 if self._timeout_ms > 0 else None
        while True:
            batch: list[Message[Any]] = []
            try:
                voided = within(self._timeout_ms / 1000 if deadline is not None else LONGEST_S, self._voided)
                batch = self._collect(deadline)
                if not batch or within(TURN_S, self._voided) == voided:
                    return batch
            except LockTimeout:  # validity cannot be checked without the lock
                while batch:
                    self._put_back(batch.pop())
                return batch

    def _collect(self, deadline: float | None) -> list[Message[Any]]:
        """Return a batch; its messages may have become void meanwhile."""
        batch: list[Message[Any]] = []
        size = 0
        try:
            while not self._is_full(len(batch), size):
                left = None if deadline is None else max(0, round((deadline - REAL_TIME()) * 1000))
                message = self._delivery.wait(self._take, left)
                length = len(message.data())
                if batch and 0 < self._max_bytes < size + length:
                    self._put_back(message)
                    break
                batch.append(message)
                size += length
        except Timeout:
            return batch
        except BaseException:
            while batch:
                self._put_back(batch.pop())  # interrupted or closed: the caller does not get this list
            raise
        return batch

    def _is_full(self, count: int, size: int) -> bool:
        return 0 < self._max_messages <= count or 0 < self._max_bytes <= size
