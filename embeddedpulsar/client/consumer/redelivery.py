"""Entries of a consumer that are delivered again, or moved to the dead letter topic instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embeddedpulsar._engine.platform import deadline
from embeddedpulsar._engine.platform.descriptors import late_import
from embeddedpulsar.client.consumer.due_entries import DueEntries, negative_acks, unacked_messages
from embeddedpulsar.exceptions import AlreadyClosed, PulsarException
from embeddedpulsar.message_id import LARGEST_ID

if TYPE_CHECKING:
    from collections.abc import Callable

    from embeddedpulsar.client.consumer.consumer_core import ConsumerCore
    from embeddedpulsar.client.consumer.dead_letter.dead_letter import DeadLetters
    from embeddedpulsar.client.consumer.dead_letter.retry_letter import RetryLetters

Position = tuple[int, int]


class Redelivery:
    """Has entries of one consumer delivered again: after a delay, after a timeout, or at once.

    Role: keeps the queue, the acknowledgements and the timers of `core` in step with the subscription. An
    entry that was redelivered too often goes to `dead_letters` instead. Acknowledgements reach the
    subscription before any redelivery. Any thread may call the methods.

    Attributes:
        nacks: negatively acknowledged entries.
        unacked: received entries, if there is an acknowledgement timeout.
        dead_letters, retries: the letters of the consumer, if its options have them.
    """

    def __init__(self, core: ConsumerCore) -> None:
        session, config = core.session, core.config
        self._core = core
        self.dead_letters: DeadLetters | None = None
        self.retries: RetryLetters | None = None
        if config.dead_letter is not None:
            late = late_import("embeddedpulsar.client.consumer.dead_letter.retry_letter")
            self.dead_letters, self.retries = late.letters_of(
                session, core.acks, self.later, self._forget_moving, lambda: core.delivery.renew()
            )
        timers = (session.call_later, session.monotonic)
        self.nacks = negative_acks(
            config.nack_delay_ms, config.nack_backoff, self._after_hook("on_negative_acks_send"), *timers
        )
        self.unacked: DueEntries | None = None
        if config.ack_timeout_ms:
            self.unacked = unacked_messages(
                config.ack_timeout_ms,
                config.ack_timeout_tick_ms,
                config.ack_timeout_backoff,
                self._after_hook("on_ack_timeout_send"),
                *timers,
            )

    def _after_hook(self, hook: str) -> Callable[[list[Position]], object]:
        """Return `due`, with a call of the interceptors before it."""
        core = self._core
        chain = core.config.chain
        return self.due if chain is None else chain.telling(hook, self.due, core.session.origin.partition)

    def discard(self, position: Position) -> None:
        """Stop the timeouts of an acknowledged entry."""
        self.nacks.discard(position)
        if self.unacked is not None:
            self.unacked.discard(position)
        if self.dead_letters is not None:
            self.dead_letters.discard(position)

    def clear(self) -> None:
        self.nacks.clear()
        if self.dead_letters is not None:
            self.dead_letters.clear()
        if self.unacked is not None:
            self.unacked.clear()

    def close(self) -> None:
        for letters in (self.retries, self.dead_letters):
            if letters is not None:
                letters.close()

    def later(self, ledger: int, entry: int, redelivery_count: int = 0) -> None:
        """Have an entry delivered again after the delay. Ids without a message are ignored."""
        if ledger < 0 or entry < 0 or ledger == LARGEST_ID:
            return
        if self.unacked is not None:
            self.unacked.discard((ledger, entry))
        if not self._core.session.attachment.delivers_singly:
            # An acknowledgement cancels the redelivery, so each takes the slow path.
            self._core.acks.quick = False
        self.nacks.schedule((ledger, entry), redelivery_count)

    def due(self, positions: list[Position]) -> None:
        core = self._core
        if core.delivery.closed_text:
            return
        if self.dead_letters is not None and self.dead_letters.has_any(positions):
            core.client.workers.start(lambda: self._move_due(positions))
            return
        try:
            self._redeliver(positions)
        except AlreadyClosed:
            return  # closed meanwhile: unacknowledged messages are delivered to the next consumer

    def _move_due(self, positions: list[Position]) -> None:
        """Redeliver entries whose delay is over, or move them to the dead letter topic, waiting for locks."""
        if self.dead_letters is None or self._core.delivery.closed_text:
            return
        others = self.dead_letters.take_due(positions)
        try:
            if others:
                self._redeliver(others)
        except AlreadyClosed:
            return
        except PulsarException:
            for position in others:
                self.nacks.add(position, 0)
            raise  # to the log

    def _redeliver(self, positions: list[Position]) -> None:
        """Have some entries delivered again, or everything if the type has no individual redelivery."""
        core = self._core

        def redeliver() -> None:
            if core.session.attachment.redeliver_entries(positions):
                core.start_over()
            else:
                self._drop(positions)

        batches = core.acks.give_back(positions) if core.session.attachment.delivers_singly else {}
        try:
            core.acks.flush()
            self._while_active(redeliver)
        except BaseException:
            core.acks.keep(batches)
            raise

    def _while_active(self, redeliver: Callable[[], object]) -> None:
        """Call ``redeliver`` under the queue's lock, unless another consumer has the subscription."""
        core = self._core
        lock = core.queue.lock
        try:
            deadline.enter(lock, "the queue of this consumer")
            core.delivery.check_open()
            if not core.session.attachment.is_active():
                return
            redeliver()
        finally:
            lock.release()
        core.delivery.renew()

    def _drop(self, positions: list[Position]) -> None:
        """Drop entries that will be fetched again, by this consumer or another. Under the queue's lock."""
        self._core.drop_fetched(set(positions))
        for position in positions:
            self._core.acks.forget(position)
            self.nacks.discard(position)
            if self.unacked is not None:
                self.unacked.discard(position)

    def _forget_moving(self, positions: list[Position]) -> None:
        queue = self._core.queue
        try:
            deadline.enter(queue.lock, "the queue of this consumer")
            self._drop(positions)
        finally:
            queue.lock.release()

    def everything(self) -> None:
        """Have all unacknowledged messages delivered again, including those fetched ahead."""
        core = self._core
        singly = core.session.attachment.delivers_singly
        batches = core.acks.give_back(list(core.acks.open)) if singly else {}
        try:
            self._give_all_back()
        except BaseException:
            core.acks.keep(batches)
            raise

    def _give_all_back(self) -> None:
        core = self._core
        core.acks.flush()
        if self.dead_letters is not None and not core.delivery.closed_text:
            self.dead_letters.take_all()

        def redeliver() -> None:
            core.session.attachment.redeliver()
            core.start_over()

        self._while_active(redeliver)
