"""The producer of one topic behind its interface. Hot: benchmarks measure `Publisher.send_alone`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from embeddedpulsar._engine.format.entry import NO_EXTRAS, Extras, ProducerPrefix, pack_extras
from embeddedpulsar._engine.platform import deadline, fork, interrupts
from embeddedpulsar._engine.platform.access import named
from embeddedpulsar.client.common.message_options import (
    DELIVER_AT,
    NO_OPTIONS,
    Options,
)
from embeddedpulsar.client.producer.admission import Admission
from embeddedpulsar.client.producer.batch_container import BatchContainer
from embeddedpulsar.client.producer.batch_sender import BatchSender
from embeddedpulsar.client.producer.bulk.bulk_publisher import Target
from embeddedpulsar.client.producer.chunker import part_limit
from embeddedpulsar.client.producer.completions import Completions
from embeddedpulsar.client.producer.entry_encoder import make_encoder
from embeddedpulsar.client.producer.log_writer import LogWriter
from embeddedpulsar.client.producer.pending_entry import (
    SendCallback,
    unanswered,
)
from embeddedpulsar.client.producer.producer_config import DEFAULT_SEND_TIMEOUT_MS
from embeddedpulsar.client.producer.producer_meter import BURST, snapshot_of
from embeddedpulsar.client.producer.queue_drain import QueueDrain
from embeddedpulsar.client.producer.send_queue import SendQueue
from embeddedpulsar.client.producer.send_state import Event, SendState
from embeddedpulsar.client.producer.sequence_keeper import SequenceIds
from embeddedpulsar.client.producer.single_sender import SingleSender
from embeddedpulsar.exceptions import AlreadyClosed, LockTimeout, ProducerFenced
from embeddedpulsar.message_id import MessageId

if TYPE_CHECKING:
    from collections.abc import Callable

    from embeddedpulsar.client.common.statistics import ProducerStats
    from embeddedpulsar.client.producer.producer_config import ProducerConfig
    from embeddedpulsar.client.producer.producer_session import ProducerSession


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
        self.meter = session.meter
        limit, most = config.max_pending_messages, config.batching_max_messages
        self.batch = BatchContainer(max(1, min(most, limit)) if limit else most, config.batching_max_bytes)
        self.batch.on_full = self.on_full
        self.state: SendState = SendState(self.batch)
        self.ids = SequenceIds()
        self.queue = SendQueue(self.batch, self.state, self.ids, session.memory is not None)
        self.completions = Completions(session)
        self.drain = QueueDrain(session, config, self.state, self.queue, self.ids, self.completions)
        self.admission = Admission(session, config, self.drain, self.completions, self.check_open)
        self.singles: SingleSender = SingleSender(session, self.drain, self.admission, self.completions)
        self.batches = BatchSender(config, self.drain, self.admission)
        self.meter.publisher = self
        session.on_limiter = self._follow_limiter
        self._attach(config.name, config.initial_sequence_id)
        fork.register(self)

    def _attach(self, name: str | None, initial_sequence_id: int | None) -> None:
        session, drain = self.session, self.drain
        registration = session.attach(name)
        try:
            version = session.config.schema_version
            self.prefix = prefix = ProducerPrefix(registration.name, registration.epoch, version)
            drain.encoder = make_encoder(prefix, self.config, session)
        except BaseException:
            session.detach()  # after an error: a name that is too long, or a key that cannot be read
            raise
        drain.name = registration.name
        self.singles.prefix = prefix
        self.ids.begin(registration.last_sequence_id, initial_sequence_id)
        drain.log = LogWriter(session, registration.name, drain)
        self._choose_paths(max(session.max_message_size - self.prefix.metadata_length, 1))
        self.is_ready = True
        self._follow_size()
        drain.log.keep(registration.last_sequence_id if registration.deduplicates else None)

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

    def target(self, partition: int) -> Target:
        return Target(self, self.session.ledger, self.partition)

    def target_of(self, value: bytes, options: Options) -> Target:
        return self.target(0)

    def check_open(self) -> None:
        """Refuse a closed producer; attach again in a forked child. Called under the lock."""
        if self.is_closed:
            raise AlreadyClosed(f"the producer {self.name} is closed; create a new one")
        if self.drain.is_stale:
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
            dropped = drain.fail_unsent()
            if not drain.is_stale:  # under the lock: the last stored id must not change any more
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
