"""Publishing of messages as entries of their own. Hot: benchmarks measure `SingleSender.send_alone`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embeddedpulsar._engine.format.entry import (
    NO_EXTRAS,
    Extras,
    fields_with_extras,
    pack_extras,
    single_fields,
)
from embeddedpulsar.backlog_quota import TopicHeld
from embeddedpulsar.client.common.message_options import SEQUENCE_ID
from embeddedpulsar.client.producer.pending_entry import tell_sender
from embeddedpulsar.client.producer.producer_meter import ONE
from embeddedpulsar.client.producer.queue_drain import TURN_S
from embeddedpulsar.client.producer.send_queue import NO_BATCHES
from embeddedpulsar.client.producer.send_state import Event
from embeddedpulsar.client.producer.sequence_keeper import DeduplicationSwitched
from embeddedpulsar.exceptions import LockTimeout
from embeddedpulsar.message_id import MessageId, make

if TYPE_CHECKING:
    from collections.abc import Callable

    from embeddedpulsar._engine.format.entry import ProducerPrefix
    from embeddedpulsar._engine.platform.threads import RLock
    from embeddedpulsar.client.common.message_options import Options
    from embeddedpulsar.client.producer.admission import Admission
    from embeddedpulsar.client.producer.batch_container import Item
    from embeddedpulsar.client.producer.completions import Completions
    from embeddedpulsar.client.producer.pending_entry import PendingEntry, SendCallback
    from embeddedpulsar.client.producer.producer_session import ProducerSession
    from embeddedpulsar.client.producer.queue_drain import QueueDrain


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
        self, session: ProducerSession, drain: QueueDrain, admission: Admission, completions: Completions
    ) -> None:
        self._session = session
        self._drain = drain
        self._admission = admission
        self._completions = completions
        self._meter = session.meter
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
            drain.log.keeper.settle()
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
