"""The producer of one topic behind its interface.

Hot: benchmarks measure `Publisher.send_alone`.
"""

from __future__ import annotations

from embeddedpulsar._engine.format.entry import (
    NO_EXTRAS,
    Extras,
    ProducerPrefix,
    fields_with_extras,
    pack_extras,
    single_fields,
)
from embeddedpulsar._engine.format.frame import FLAG_BATCHED, FLAG_TRANSACTION, FLAG_TXN
from embeddedpulsar._engine.platform import failpoints, fork, timing
from embeddedpulsar._engine.platform.access import named
from embeddedpulsar.client.arguments import DELIVER_AT, NO_OPTIONS, SEQUENCE_ID
from embeddedpulsar.client.producer.entry_encoder import make_encoder, part_limit
from embeddedpulsar.client.producer.log_writer import CALLBACK_BACKLOG, DeduplicationSwitched
from embeddedpulsar.client.producer.pending_entry import (
    PATHS,
    SHUT,
    DeferredBatch,
    Event,
    SendCallback,
    State,
    callback_of,
    item_of,
    payload_of,
    tell_sender,
)
from embeddedpulsar.client.producer.producer_session import (
    BURST,
    DEFAULT_SEND_TIMEOUT_MS,
    ONE,
    ProducerMeter,
    ProducerSession,
    snapshot_of,
)
from embeddedpulsar.client.producer.send_queue import NO_BATCHES, TURN_S, SendQueue
from embeddedpulsar.exceptions import AlreadyClosed, InvalidTxnStatusError, LockTimeout, ProducerFenced
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.policies import TopicHeld
from embeddedpulsar.records import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Final

    from embeddedpulsar.client.arguments import Options
    from embeddedpulsar.client.client_context import ClientContext
    from embeddedpulsar.client.producer.pending_entry import PendingEntry
    from embeddedpulsar.client.producer.producer_session import PartitionMembership, ProducerConfig
    from embeddedpulsar.client.statistics import ProducerStats
    from embeddedpulsar.client.transaction import TopicPart, Transaction


failpoints.declare("client_txn:deferred_encoded")

_new: Final = object.__new__
_TXN_FLAGS: Final = FLAG_TRANSACTION | FLAG_TXN


class Publisher:
    """The operations of one attached producer.

    A message takes one of three ways into the log:

    1. *At once*: the sender encodes it and appends it, because nothing has to be stored first (`send_alone`).
    2. *Through the queue*, which stores messages in order when the topic is free (`SendQueue.put`, `store`).
    3. *As a whole entry* that the caller has laid out: bulk and staged entries (`SendQueue.append_entry`).

    Whether the first way is open, `SendQueue.alone_max` says, and `extras_of` whether a message may take it.

    Thread-safe. After a fork the child's copy is empty and stale; its first use attaches a producer under a
    new name.

    Attributes:
        append_nowait: of the topic's log, in the present attachment.
        lane: what has the batch that messages without a key join: the queue.
        max_size: most bytes of an entry.
        prefix: what all entries of the present attachment have in common.
        queue: everything that is accepted and not stored.
        routing: of whole columns; None, because there is one partition.
        tally: counts messages stored at once; see `producer_session.ONE`.
    """

    routing = None
    is_ready = False
    max_size = 0
    append_nowait: Callable[..., tuple[int, int, int, int]]

    def __init__(self, session: ProducerSession, config: ProducerConfig) -> None:
        self.config = config
        self.session = session
        self.partition, self.topic_name = session.partition, session.topic_name
        self.wall_ms: Callable[[], int] = session.wall_ms
        self.meter = ProducerMeter(session)
        self.queue = self.lane = SendQueue(session, config, self.meter)
        self.tally = 0
        # A message of a batching producer that is stored at once is a batch of one.
        self._alone_flags = FLAG_BATCHED if config.batching else 0
        self._txn_limit = SHUT  # as `SendQueue.alone_limit`; in a transaction no send waits for the disk
        self._alone_index, self._alone_count = (0, 1) if config.batching else (-1, 0)
        self.meter.publisher = self
        session.on_limiter = self._apply_limits
        try:
            self._attach(config.name, config.initial_sequence_id)
            fork.register(self)
        except BaseException:
            self.meter.close()
            raise

    def _attach(self, name: str | None, initial_sequence_id: int | None) -> None:
        session, queue = self.session, self.queue
        registration = session.attach(name)
        try:
            self.meter.start()
            version = session.config.schema_version
            self.max_size = session.max_message_size
            self.prefix = ProducerPrefix(registration.name, registration.epoch, version)
            encoder = make_encoder(self.prefix, self.config, session)
        except BaseException:
            session.detach()  # after an error: a name that is too long, or a key that cannot be read
            raise
        queue.begin(registration, encoder, initial_sequence_id)
        self._open_paths()
        self.is_ready = True
        if self.config.chunking or self.max_size != session.max_message_size:
            self._apply_size()
        if registration.deduplicates:
            queue.log.keep(registration.last_sequence_id)
            queue.close_path_if_all_checked()

    def _open_paths(self) -> None:
        """Open the hot paths that the options allow."""
        config, log, queue = self.config, self.session.ledger, self.queue
        is_counted = self.session.memory is not None
        is_plain = not config.compression and config.encryption is None
        waits = queue.completions.waits_for_disk
        self._txn_limit = SHUT
        if is_plain and not is_counted and config.send_timeout_ms == DEFAULT_SEND_TIMEOUT_MS:
            largest = max(self.session.max_message_size - self.prefix.metadata_length, 1)
            self._txn_limit = limit = min(largest - 16, part_limit(config))
            if not waits:
                queue.alone_limit = limit
        self.append_nowait = append = log.append_nowait
        if self.session.durability == "interval":

            def append_and_note(*arguments: Any) -> tuple[int, int, int, int]:
                place = append(*arguments)
                log.note_dirty()
                return place

            self.append_nowait = append_and_note
        if waits or is_counted or not config.batching or not config.batching_max_delay_ms:
            queue.narrow(alone=False)
        queue.to(Event.STORED)

    def _apply_size(self) -> None:
        self.max_size = size = self.session.max_message_size
        self.queue.encoder.limit_to(size)
        if self.config.chunking:
            room = max(size - self.prefix.metadata_length, 1)
            self.queue.chunk_from = min(room, part_limit(self.config))

    def _apply_limits(self) -> None:
        """The publish rate of the topic, or the size of its messages, may have changed. Called in any thread;
        acquires no lock."""
        queue = self.queue
        queue.limit(self.session.is_limited)
        if self.is_ready and self.max_size != self.session.max_message_size:
            self._apply_size()
        if queue.singles or queue.items:
            self.session.flusher.kick(queue)  # it may have waited for the old rate

    # -- sending -----------------------------------------------------------------------------------------

    def send(self, value: bytes, options: Options | None, txn: Transaction | None = None) -> MessageId:
        """Publish a message and wait until it is stored. Raises the errors of `Producer.send`."""
        if txn is not None:
            return self._send_in(txn, value, options)
        queue = self.queue
        try:
            if queue.is_stale:
                self._attach_again()
            extras = self.extras_of(queue.alone_max - len(value), options)
            if extras is not None:
                sent = self.send_alone(value, extras=extras)
                if sent is not None:
                    if self._alone_flags and queue.on_left is not None:
                        queue.on_left()
                    return sent
            out, index = queue.store_now(value, options)
            if out.error is not None:
                raise out.error
            if out.end_word:
                self.session.ledger.wait_durable(out.end_word)
                self.meter.durable(out)
            return out.message_id(index, self.partition)
        except BaseException as error:
            timing.translate(error)
            raise

    def _send_in(self, txn: Transaction, value: bytes, options: Options | None) -> MessageId:
        """`send` in a transaction. Its commit waits for the disk."""
        part: TopicPart | None = None
        try:
            if self.queue.is_stale:
                self._attach_again()
            part, queue = txn._part_of(self), self.queue
            queue.batch.has_parts = True  # before a message of one is in it
            room = self._txn_limit - len(value) - len(part.id_column)
            # As `SendQueue.alone_max` says for others; but at level "flush" this does not wait for the disk.
            is_open = PATHS[queue.state][0] and not self.session.is_limited and queue.log.keeper is None
            if is_open:
                extras = self.extras_of(room, options)
                if extras is not None:
                    columns, flags, key_hash = extras
                    extras = columns + part.id_column, flags | _TXN_FLAGS | self._alone_flags, key_hash
                    sent = self._send_alone_in(part, value, extras)
                    if sent is not None:
                        return sent
            out, index = queue.store_now(value, None if options == NO_OPTIONS else options, part)
            if out.error is not None:
                raise out.error
            return out.message_id(index, self.partition)
        except BaseException as error:
            if part is not None:
                part.fail(error)
            timing.translate(error)
            raise

    def send_part(self, part: TopicPart, value: bytes) -> MessageId | None:
        """Store a message without options in a transaction in which this producer has its part. Hot.

        Returns:
            Its id; None if it must be queued.
        """
        queue, session = self.queue, self.session
        if (
            len(value) > self._txn_limit - len(part.id_column)
            or queue.state is not State.OPEN
            or queue.log.keeper is not None
            or session.is_limited
            or part.ledger is not session.ledger
        ):
            return None
        try:
            # The same for each message: made once.
            extras = part.extras
            if extras is None:
                extras = part.extras = (part.id_column, _TXN_FLAGS | self._alone_flags, 0)
            return self._send_alone_in(part, value, extras)
        except BaseException as error:
            part.fail(error)
            timing.translate(error)
            raise

    def _send_alone_in(self, part: TopicPart, value: bytes, extras: Extras) -> MessageId | None:
        """`send_alone` in a transaction, which has no end while this thread is here."""
        queue = self.queue
        if queue.singles or queue.items:
            return None
        ids, lock = queue.ids, queue.lock.acquire
        try:
            lock()
            following = ids.following
            ids.following = following + 1
            encoded = fields_with_extras(value, extras, following, self.prefix)
            ledger, entry, _, end_word = self.append_nowait(encoded, queue, None, None, part.check_open)
            ids.last = following
            # As `TopicPart.note_stored`, without its call.
            part.last = position = ledger << 32 | entry
            if not part.entries:
                part.first = position
            part.entries += 1
            part.end_word = end_word  # under this lock entries have rising places
            self.tally += ONE + len(value)
            if self._alone_flags and queue.on_left is not None:
                queue.on_left()
            queue.unlock()
        except (DeduplicationSwitched, TopicHeld):
            ids.following = following
            queue.lock.release()
            return None
        except BaseException:
            queue.lock.release()
            self.meter.failed(1)
            raise
        # `message_id.make`, without its call.
        sent = _new(MessageId)
        sent._ledger = ledger
        sent._entry = entry
        sent._batch_index = self._alone_index
        sent._partition = self.partition
        sent._batch_size = self._alone_count
        return sent

    def enqueue_in(
        self, txn: Transaction, value: bytes, callback: SendCallback | None, options: Options | None
    ) -> None:
        """`enqueue` in a transaction; what fails makes of its commit an abort, too."""
        queue, part = self.queue, None
        try:
            if queue.is_stale:
                self._attach_again()
            if self._defer(txn, value, callback, options):
                return
            part = txn._part_of(self)
            batch = queue.batch
            batch.has_parts = True
            if len(value) <= batch.share and not (options is not None and options[DELIVER_AT]):
                batch.mixed = True
                batch.items.append(item_of(value, callback, options, part))
                if len(batch.items) >= batch.trigger:
                    batch.on_full()
                elif not batch.armed:
                    batch.start_timer()
                return
            queue.put(value, callback, options, part)
            completions = queue.completions
            if completions.handed - completions.told > CALLBACK_BACKLOG:
                completions.wait_for_callbacks()
        except Exception as error:  # passed to the callback or to the next flush
            if isinstance(error, ValueError) or timing.is_raised_by_handler(error):
                raise
            if part is not None:
                part.fail(error)
            self.tell_later(callback, named(error))
        except BaseException as error:
            timing.translate(error)
            raise

    def _defer(
        self, txn: Transaction, value: bytes, callback: SendCallback | None, options: Options | None
    ) -> bool:
        """Accept a message of a transaction that has stored nothing, and may end as one append.

        Returns:
            Whether it did; if not, the transaction is to begin.
        """
        deferred, queue = txn._deferred, self.queue
        if options is not None and (options[DELIVER_AT] or options[SEQUENCE_ID]):
            return False
        if deferred is None:
            return self.defer_first(txn, value, callback, options)
        if deferred.publisher is not self:
            return False
        size = len(value)
        try:
            queue.lock.acquire()
            # Not behind an end of the transaction, nor behind an entry of it.
            if not deferred.trigger or not deferred.has_room(size):
                return False
            if len(deferred.items) >= deferred.max_messages:
                return False
            deferred.has_callbacks = deferred.has_callbacks or callback is not None
            is_full = deferred.add(item_of(value, callback, options), size)
        finally:
            queue.lock.release()
        if is_full:
            self.fill_deferred(deferred)
        return True

    def defer_first(
        self, txn: Transaction, value: bytes, callback: SendCallback | None, options: Options | None = None
    ) -> bool:
        """`_defer` of the first message of a transaction."""
        queue = self.queue
        batch = queue.batch
        if batch.limit == SHUT or self.config.key_based or not txn._may_defer(self.session):
            return False
        deferred = DeferredBatch(txn, self, batch)
        if callback is None and options is None and len(value) <= deferred.share:
            deferred.items.append(value)
        else:
            deferred.has_callbacks = callback is not None
            deferred.add(item_of(value, callback, options), len(value))
        try:
            queue.lock.acquire()
            if queue.singles or queue.items or queue.is_storing or not PATHS[queue.state][1]:
                return False  # something is to be stored before it, or the producer is closed
            queue.singles[:0] = [deferred]  # other threads may add singles, which are stored behind it
            txn._deferred = deferred
        finally:
            queue.lock.release()
        if not batch.armed:
            queue.start_timer()
        if deferred.trigger <= 1:
            self.fill_deferred(deferred)
        return True

    def fill_deferred(self, deferred: DeferredBatch) -> None:
        """A sender found what is deferred full: keep it, or store it if a thread may wait for that. Or the
        sender came too late for it: send what it added once more."""
        queue, txn = self.queue, deferred.transaction
        is_kept = not deferred.has_callbacks and not txn._is_known
        if is_kept and len(deferred.items) >= deferred.max_messages and deferred.trigger:
            deferred.share = SHUT  # until the commit, the next message, or the publish delay
            return
        late: list[Any] = []
        try:
            queue.lock.acquire()
            if queue.singles and queue.singles[0] is deferred:
                if deferred.trigger and not deferred.is_full():
                    return
                if deferred.trigger and is_kept:
                    deferred.share = SHUT
                    return
            else:
                late, deferred.taken = deferred.items[deferred.taken :], len(deferred.items)
        finally:
            queue.lock.release()
        for item in late:
            self.enqueue_in(txn, payload_of(item), callback_of(item), None)
        if not late:
            queue.flush_soon(1)

    def commit_deferred(self, deferred: DeferredBatch, *, waits: bool) -> bool:
        """Commit a transaction by the append of all that it has.

        Args:
            deferred: what it has.
            waits: whether to wait for locks.

        Returns:
            Whether it is committed; if not, that takes more than one append, or something else began it; or
            the topic was not free, and this is to be called again.

        Raises:
            Exception: any exception that `Transaction.commit` raises.
        """
        queue = self.queue
        try:
            if not queue.lock.acquire(waits) or queue.is_stale or queue.is_storing or queue.is_closed:
                return False
            append = self._append_deferred if waits else self._append_deferred_nowait
            committed: bool = deferred.transaction._engine.commit_by_append(append, deferred)
            return committed
        finally:
            queue.lock.release()

    def _append_deferred_nowait(self, deferred: DeferredBatch) -> bool | BaseException:
        """Append it as one entry: True, or why not; False if it is no entry. See `commit_by_append`."""
        queue, out = self.queue, deferred.out
        if out is not None or not queue.singles or queue.singles[0] is not deferred:
            return False
        deferred.share, deferred.trigger = SHUT, 0
        items = deferred.items[:]
        entries, following = queue.encoder.encode(items, deferred.mixed, queue.ids.following)
        out = entries[0]
        if len(items) > deferred.max_messages or len(entries) > 1 or out.error is not None:
            return False
        # From here on a commit that is interrupted leaves an entry in the queue, which is stored unless
        # something else ends the transaction before.
        deferred.out, deferred.taken = out, len(items)
        out.part = deferred
        queue.ids.following = following
        queue.singles[0] = [out]
        if failpoints.ACTIVE:
            failpoints.hit("client_txn:deferred_encoded")
        queue.store_first()
        return out.error or out.is_stored

    def _append_deferred(self, deferred: DeferredBatch) -> bool | BaseException:
        answer = self._append_deferred_nowait(deferred)
        out = deferred.out
        if answer is False and out is not None:
            self.queue.store(NO_BATCHES)
            late = "the messages of the transaction are not stored yet; commit it again"
            return out.error or out.is_stored or LockTimeout(late)
        return answer

    def drop_deferred(self, deferred: DeferredBatch) -> bool:
        """Abort a transaction that has stored nothing.

        Returns:
            Whether it is aborted; if not, a callback is to be called, or something began it.
        """
        queue, out, engine = self.queue, deferred.out, deferred.transaction._engine
        try:
            queue.lock.acquire()
            if queue.is_stale or queue.is_storing or queue.is_closed:
                return False
            if out is None:
                is_dropped = queue.singles and queue.singles[0] is deferred and not deferred.has_callbacks
                if not is_dropped or queue.log.keeper is not None or not engine.abort_unbegun():
                    return False
                deferred.drain()
                del queue.singles[0]
                return True
            # The append of a commit was interrupted, and may be done.
            if out.error is None and not out.is_stored and not queue.log.was_stored(out):
                out.error = InvalidTxnStatusError("the transaction was aborted")
                engine.abort_unbegun()
                queue.store(NO_BATCHES)
            return False
        finally:
            queue.lock.release()

    def enqueue(
        self,
        value: bytes,
        callback: SendCallback | None,
        options: Options | None,
        txn: Transaction | None = None,
    ) -> None:
        """Publish a message without waiting. The callback, or the next flush, gets the errors."""
        if txn is not None:
            self.enqueue_in(txn, value, callback, options)
            return
        queue = self.queue
        batch = queue.batch
        if len(value) <= batch.share and not (options is not None and options[DELIVER_AT]):
            # As in `Producer.send_async`, where the options are not checked yet.
            if callback is None and options is None:
                batch.items.append(value)
            else:
                batch.mixed = True
                batch.items.append(item_of(value, callback, options))
            if len(batch.items) >= batch.trigger:
                batch.on_full()
            elif not batch.armed:
                batch.start_timer()
            return
        try:
            if queue.is_stale:
                self._attach_again()
            extras = None
            if not self._alone_flags:
                extras = self.extras_of(queue.alone_max - len(value), options)
            if extras is None or not self._put_alone(value, extras, callback):
                queue.put(value, callback, options)
            completions = queue.completions
            if completions.handed - completions.told > CALLBACK_BACKLOG:
                completions.wait_for_callbacks()
        except Exception as error:  # passed to the callback or to the next flush
            if timing.is_raised_by_handler(error):
                raise
            self.tell_later(callback, named(error))
        except BaseException as error:
            timing.translate(error)
            raise

    def tell_later(self, callback: SendCallback | None, error: BaseException) -> None:
        """Pass an error to the callback, in its turn, or to the next flush; raise an interrupt."""
        queue, completions = self.queue, self.queue.completions
        if isinstance(error, KeyboardInterrupt) or not completions.can_tell:
            raise error
        if callback is not None:
            if isinstance(error, AlreadyClosed) and not queue.is_empty:
                queue.fail_late()  # a sender that had passed the test of the batch before
            completions.fail_now(callback, error)
        elif isinstance(error, AlreadyClosed):
            raise error
        else:
            completions.note_failure(error)

    def store_one(self, value: bytes, options: Options | None) -> PendingEntry:
        """Store a message as an entry of its own, not yet flushed; a failure is in its ``error``."""
        if self.queue.is_stale:
            self._attach_again()
        return self.queue.store_one(value, options)

    def extras_of(self, room: int, options: Options | None) -> Extras | None:
        """Return the columns of a message that may be appended at once; None if it must be queued.

        `Producer.send` has the same test inline, for options that are not checked yet.

        Args:
            room: bytes that the columns may have; less than 0 if there is none for the payload either.
            options: of the message, checked.
        """
        if room < 0:
            return None
        if options is None or options is NO_OPTIONS:
            return NO_EXTRAS
        properties, key, ordering_key, sequence_id, event_time, deliver_at, is_null = options
        if sequence_id or (deliver_at and self._alone_flags):
            return None  # an id may be a duplicate, and a message with a delivery time is not a batch
        return pack_extras(properties, key, room, ordering_key, event_time, deliver_at, is_null)

    def send_alone(
        self,
        value: bytes,
        properties: dict[str, str] | None = None,
        key: str | None = None,
        ordering_key: str | None = None,
        event_time: int | None = None,
        extras: Extras | None = NO_EXTRAS,
    ) -> MessageId | None:
        """Store a message of at most `SendQueue.alone_max` bytes, with these options at most. Hot.

        Args:
            value: the payload.
            properties, key, ordering_key, event_time: as the application passed them.
            extras: in their place, options that are packed already.

        Returns:
            Its id; None if it must be queued.
        """
        queue = self.queue
        if key is not None or properties is not None or ordering_key is not None or event_time is not None:
            extras = pack_extras(properties, key, queue.alone_max - len(value), ordering_key, event_time)
        # What this thread has queued must be stored first, and the state may not say so yet.
        if extras is None or queue.singles or queue.items:
            return None
        ids, lock = queue.ids, queue.lock.acquire
        try:
            lock()
            append, unlock = self.append_nowait, queue.unlock
            # The id is assigned first: after an interrupt, no second message may get the same id.
            following = ids.following
            ids.following = following + 1
            if self._alone_flags:
                columns, flags, key_hash = extras
                extras = columns, flags | self._alone_flags, key_hash
            if extras is NO_EXTRAS:
                encoded = single_fields(value, following, self.prefix)
            else:
                encoded = fields_with_extras(value, extras, following, self.prefix)
            ledger, entry, _, _ = append(encoded, queue)
            ids.last = following
            self.tally += ONE + len(value)
            unlock()
        except (DeduplicationSwitched, TopicHeld):
            ids.following = following
            queue.lock.release()
            return None
        except BaseException as error:  # noqa: BLE001 - raised again
            queue.lock.release()
            self.meter.failed(1)
            tell_sender(error)
        # `message_id.make`, without its call.
        sent = _new(MessageId)
        sent._ledger = ledger
        sent._entry = entry
        sent._batch_index = self._alone_index
        sent._partition = self.partition
        sent._batch_size = self._alone_count
        return sent

    def _put_alone(self, value: bytes, extras: Extras, callback: SendCallback | None) -> bool:
        """`send_alone` without waiting for the topic. Returns False if the message must be queued."""
        queue = self.queue
        lock, ids = queue.lock, queue.ids
        try:
            if lock.acquire(False) or lock.acquire(True, TURN_S):
                if not queue.singles:
                    following = ids.following
                    ids.following = following + 1
                    if extras is NO_EXTRAS:
                        encoded = single_fields(value, following, self.prefix)
                    else:
                        encoded = fields_with_extras(value, extras, following, self.prefix)
                    try:
                        ledger, entry, _, _ = self.append_nowait(encoded, queue, 0.0)
                    except (LockTimeout, DeduplicationSwitched):
                        ids.following = following  # nothing was appended
                    else:
                        ids.last = following
                        self.tally += ONE + len(value)
                        if callback is not None:
                            queue.completions.hand_over_one(callback, ledger, entry)
                        queue.unlock()
                        return True
                queue.unlock()
        except BaseException as error:  # noqa: BLE001 - raised again
            lock.release()
            tell_sender(error)
        return False

    # -- flushing ----------------------------------------------------------------------------------------

    def store_soon(self) -> None:
        """Store what is queued if the topic is free."""
        if not self.queue.is_empty:
            self.queue.flush_soon(1)

    def flush_all(self) -> None:
        """Store everything queued, waiting for the topic."""
        queue = self.queue
        try:
            queue.lock.acquire()
            self.check_open()
            queue.store(1)
        finally:
            queue.lock.release()

    def flush(self) -> None:
        """Store all queued messages, wait for their callbacks, and raise what no callback got."""
        self.flush_all()
        self.queue.wait()

    def save(self) -> None:
        """Store everything at the end of the program, and raise failures that `flush` would have raised."""
        queue = self.queue
        if queue.is_empty or queue.is_closed:
            return
        try:
            timing.enter(queue.lock, f"the producer {self.name}")
            error = queue.store(1)
        finally:
            queue.lock.release()
        if error is not None:
            raise error

    # -- for the interface, the client and bulk publishes ------------------------------------------------

    @property
    def name(self) -> str:
        return self.queue.name

    @property
    def is_closed(self) -> bool:
        return self.queue.is_closed

    @property
    def pending(self) -> int:
        return self.queue.pending

    @property
    def last_sequence_id(self) -> int:
        return self.queue.ids.shown

    def is_connected(self) -> bool:
        if self.queue.is_closed:
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
        snapshot = snapshot_of([self.meter])
        self.sample(BURST)
        return snapshot

    def sample(self, messages: int) -> None:
        """Have the next messages that are sent one by one queued, where their time is measured."""
        if self.queue.alone_limit >= 0:
            self.meter.burst = messages
            self.queue.to(Event.SAMPLE)

    def of_partition(self, partition: int) -> Publisher:
        """Return the publisher of a partition: this one, because there is no other."""
        return self

    def of_message(self, value: bytes, options: Options) -> Publisher:
        """Return the publisher of the partition to which a message goes."""
        return self

    def check_open(self) -> None:
        """Refuse a closed producer; attach again in a forked child. Under the lock."""
        queue = self.queue
        if queue.is_closed:
            queue.check_open()
        if queue.is_stale:
            self.meter.reset()
            self.session.revive()
            self._attach(None, None)
            queue.is_stale = False

    def _attach_again(self) -> None:
        """`check_open` with the lock, for the first message of a forked child."""
        lock = self.queue.lock
        try:
            lock.acquire()
            self.check_open()
        finally:
            lock.release()

    # -- the end -----------------------------------------------------------------------------------------

    def end(self) -> None:
        """Close within the operation timeout, wait for the callbacks, and unregister."""
        self.session.end(self, self._close_and_wait, self.queue.name)

    def _close_and_wait(self) -> None:
        self.close()
        self.queue.completions.wait()

    def close(self) -> None:
        """Fail queued messages with AlreadyClosed and detach. Stored messages stay."""
        queue, session = self.queue, self.session
        try:
            timing.enter(queue.lock, f"the producer {queue.name}")
            if queue.is_closed and (queue.is_stale or not session.is_attached):  # else interrupted
                raise AlreadyClosed(f"the producer {queue.name} was closed before")
            dropped = queue.close()
            if not queue.is_stale:  # under the lock: the last stored id must not change any more
                self.meter.close()
                session.detach(None if queue.log.keeper is None else queue.log.keeper.final())
        finally:
            queue.lock.release()
        if dropped:
            queue.completions.log_dropped(dropped, queue.name)
        if queue.singles or queue.items:
            queue.fail_late()  # messages that other threads sent during the close

    def abandon(self) -> None:
        self.session.abandon(self)

    def after_fork_in_child(self) -> None:
        self.queue.after_fork_in_child()
        self.tally = 0


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
    name, topic = publisher.queue.name, session.topic_name
    core.log.info("Created producer %s on %s", name, topic, producer=name, topic=topic)
    return publisher
