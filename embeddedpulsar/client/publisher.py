"""The working half of a producer: from messages to entries in the topic, whole and in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar.client.batch_container import BatchContainer, Item
from embeddedpulsar.client.completions import Completions
from embeddedpulsar.client.log_writer import LogWriter
from embeddedpulsar.client.message_options import SEQUENCE_ID, Options
from embeddedpulsar.client.outgoing import Outgoing, PlainWaiter, SendCallback, interrupted
from embeddedpulsar.client.producer_config import DEFAULT_SEND_TIMEOUT_MS
from embeddedpulsar.client.sealing_encoder import make_encoder
from embeddedpulsar.exceptions import AlreadyClosed, ProducerQueueIsFull, PulsarException
from embeddedpulsar.format.control import TopicWord
from embeddedpulsar.format.entry import ProducerPrefix, encode_single
from embeddedpulsar.platform import fork, threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from embeddedpulsar.client.producer_config import ProducerConfig
    from embeddedpulsar.client.producer_session import ProducerSession


JOURNAL: Final = TopicWord.JOURNAL


class Publisher:
    """Everything of one producer that happens under its lock.

    Role: keeps order. Entries reach the managed ledger in the order of their sequence ids, because whoever
    publishes holds `lock`; callbacks are handed to the callback thread under it too, so they run in that
    order.

    Invariants: a batch leaves the container only when its fate is known. An interrupt (Ctrl-C) may stop a
    publish at any instruction; the batch then stays at the front of the container and the next flush looks
    into the topic whether it was stored. So no message that `send_async` took is lost or doubled by it.

    After a fork the child's copy is empty and stale; its first use attaches a producer under a fresh name.

    Attributes:
        words: of the topic; one of them changes when producers come or go.
        checked: what that word was when this producer was last found connected.
        single_max: largest payload the fast path of an unbatched send may take; -1 to come to the slow path.
        completions: what follows an append.
    """

    def __init__(self, session: ProducerSession, config: ProducerConfig) -> None:
        self.config = config
        self._renew_lock()
        self.last_sequence_id = -1
        self.single_max = -1
        self.is_closed = False
        self._session = session
        self.completions = Completions(session)
        self._stale = False
        self._flushed_at = 0.0
        limit = config.max_pending_messages
        most = config.batching_max_messages
        self.box = BatchContainer(max(1, min(most, limit)) if limit else most, config.batching_max_bytes)
        self._attach(config.name, config.initial_sequence_id)
        fork.register(self)

    def _renew_lock(self) -> None:
        self.lock = threads.RLock()
        # The bare release, for the last line of a hot section, where the lock is held for sure: 0.1 us less.
        self.unlock: Callable[[], None] = self.lock.acquire.__self__.release  # type: ignore[attr-defined]

    def _attach(self, name: str | None, initial_sequence_id: int | None) -> None:
        session = self._session
        registration = session.attach(name)
        self.name: str = registration.name
        try:
            self.prefix = ProducerPrefix(registration.name, registration.epoch)
            self._encoder = make_encoder(self.prefix, self.config, session)
        except BaseException:
            session.detach()  # a name that is too long, a key that is not to be had
            raise
        self.append_nowait = session.ledger.append_nowait
        self.words = session.ledger.words
        self.checked = -1
        self.durability = session.durability
        self.last_sequence_id = registration.last_sequence_id
        first = initial_sequence_id if initial_sequence_id is not None else self.last_sequence_id
        self.next_sequence_id = first + 1
        self.max_size = session.max_message_size
        self._log = LogWriter(session, registration.name)
        config = self.config
        plain = session.takes_bytes and not config.batching and not config.compression
        plain = plain and config.encryption is None
        plain = plain and config.send_timeout_ms == DEFAULT_SEND_TIMEOUT_MS
        if plain and self.durability == "process":
            self.single_max = self.max_size - self.prefix.metadata_length - 16
        if self.completions.waits_for_disk or not config.batching or not config.batching_max_delay_ms:
            self.box.slow_only()

    # -- one message at a time ---------------------------------------------------------------------------

    def publish_plain(self, value: bytes, callback: SendCallback | None) -> tuple[int, int]:
        """Append one unbatched message that has nothing but a payload, and return its ledger and entry.

        Up to `single_max` only; errors are raised. `Producer.send` has the same lines: a call costs 0.1 us.
        """
        lock = self.lock
        try:
            lock.acquire()
            # The id is taken first: after an interrupt it must not serve a second, different message.
            following = self.next_sequence_id
            self.next_sequence_id = following + 1
            ledger, entry, _, _ = self.append_nowait(encode_single(value, following, self.prefix), self)
            self.last_sequence_id = following
            if callback is not None:
                self.completions.hand_over_one(callback, ledger, entry)
            self.unlock()
        except BaseException as error:
            lock.release()
            if isinstance(error, KeyboardInterrupt):
                raise interrupted() from error
            raise
        return ledger, entry

    def publish_one(
        self,
        value: bytes,
        options: Options | None,
        callback: SendCallback | None,
        hand_over: bool = True,
    ) -> Outgoing:
        """Encode and append one unbatched message; a failure is in ``error`` of what is returned. Without
        ``hand_over`` the caller sees to what comes after the append.
        """
        try:
            self.lock.acquire()
            self.check_open()
            self._wait_for_room()
            out = self._encode_one(value, options)
            out.callbacks = [callback] if callback is not None else None
            self._append(out)
            if hand_over:
                self.completions.hand_over(out)
        finally:
            self.lock.release()
        return out

    def _encode_one(self, value: bytes, options: Options | None) -> Outgoing:
        sequence_id = options[SEQUENCE_ID] if options is not None else 0
        if not sequence_id:
            sequence_id = self.next_sequence_id
            self.next_sequence_id = sequence_id + 1
        return self._encoder.encode_one(value, options, sequence_id)

    # -- batches -----------------------------------------------------------------------------------------

    def add(self, item: bytes | Item, size: int) -> None:
        """Add a message to the batch, flushing what does not fit with it."""
        try:
            self.lock.acquire()
            self._add(item, size)
        finally:
            self.lock.release()
        self.after_send()

    def _add(self, item: bytes | Item, size: int) -> None:
        box = self.box
        self.check_open()
        self._wait_for_room()
        if not box.has_room(size):
            self._flush_batches(1)
        if box.add(item, size) or not self.config.batching_max_delay_ms:
            self._flush_batches(1)

    def publish_now(self, value: bytes, options: Options | None) -> PlainWaiter:
        """Send a message with the batch it joins, at once, and return where it went."""
        waiter = PlainWaiter()
        try:
            self.lock.acquire()
            self._add((value, waiter, *(options or ())), len(value))
            self._flush_batches(1)
        finally:
            self.lock.release()
        return waiter

    def flush_full(self) -> None:
        """Flush full batches; called by the sender whose message filled one."""
        try:
            self.lock.acquire()
            self._flush_batches(self.box.trigger)
        finally:
            self.lock.release()
        self.completions.catch_up()

    def flush_all(self) -> None:
        """Flush everything that waits."""
        try:
            self.lock.acquire()
            self.check_open()
            self._flush_batches(1)
        finally:
            self.lock.release()

    def after_send(self) -> None:
        """Start the delay timer for what waits, and let callbacks catch up. Not under the lock."""
        box = self.box
        if box.items and not box.armed:
            self.arm()
        self.completions.catch_up()

    def _flush_batches(self, least: int) -> None:
        """Publish batches while ``least`` messages wait. Under the lock."""
        try:
            self._publish_batches(least)
        except BaseException:
            if self.box.items and not self.box.armed and not self.is_closed:
                self.arm()  # interrupted: what is left goes with the timer, if nothing comes first
            raise

    def _publish_batches(self, least: int) -> None:
        box = self.box
        items = box.items
        while len(items) >= least and items:
            if items[0].__class__ is not list:
                batch = items[: box.trigger]
                mixed, box.mixed = box.mixed, False
                entries, self.next_sequence_id = self._encoder.encode(batch, mixed, self.next_sequence_id)
                items[: len(batch)] = [
                    entries
                ]  # one step: from here on the batch is settled, not encoded again
            self._publish_all(items[0])
            del items[0]
        box.settle()
        self._flushed_at = self._session.monotonic()

    def _publish_all(self, entries: list[Outgoing]) -> None:
        while entries:
            out = entries[0]
            if self._log.was_stored(out):
                self.last_sequence_id = out.last
            else:
                self._append(out)
            self.completions.hand_over(out)
            del entries[0]

    def _append(self, out: Outgoing) -> None:
        """Append one entry. Under the lock."""
        if out.error is not None:
            return
        try:
            self._log.append(out, self)
            self.last_sequence_id = out.last
        except Exception as error:  # noqa: BLE001 - told to whoever sent the messages
            out.error = error

    # -- limits and time ---------------------------------------------------------------------------------

    def _wait_for_room(self) -> None:
        """Keep ``max_pending_messages``. Only level "flush" leaves messages pending outside the lock."""
        limit = self.config.max_pending_messages
        completions = self.completions
        if not limit or not completions.waits_for_disk or not completions.can_wait:
            return
        while completions.pending + len(self.box.items) >= limit:
            self._flush_batches(1)
            if completions.pending < limit:
                return
            if not self.config.block_if_queue_full:
                raise ProducerQueueIsFull(
                    f"{completions.pending} messages of {self.name} are not on disk yet and "
                    f"max_pending_messages is {limit}; wait for callbacks, or set block_if_queue_full"
                )
            # Without the lock. Only a signal handler could hold it twice, and wait for itself.
            self.lock.release()
            try:
                completions.wait()
            finally:
                self.lock.acquire()
            self.check_open()

    def arm(self) -> None:
        """Start the publish-delay timer."""
        box = self.box
        try:
            box.armed = True
            self._session.call_later(self.config.batching_max_delay_ms / 1000, self._on_timer)
        except BaseException:
            box.armed = False
            raise

    def _on_timer(self) -> None:
        box = self.box
        box.armed = False  # first: a sender who appends from here on arms again
        if not box.items or self.is_closed:
            return
        # What waits is younger than the last flush, so it may wait until that is one delay ago.
        left = self._flushed_at + self.config.batching_max_delay_ms / 1000 - self._session.monotonic()
        if left > 0:
            box.armed = True
            self._session.call_later(left, self._on_timer)
            return
        try:
            self.lock.acquire()
            if not self.is_closed:
                self._flush_batches(1)
        finally:
            self.lock.release()

    # -- life --------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Refuse a closed producer; attach anew in a forked child."""
        if self.is_closed:
            raise AlreadyClosed(f"the producer {self.name} is closed; create a new one")
        if self._stale:
            self._session.revive()
            self._attach(None, None)
            self._stale = False

    def check_connected(self) -> None:
        """Producers came or went since the last look: make sure that this one was not fenced out. Under the
        topic lock; see `AppendGuard`."""
        word = self.words[JOURNAL]
        self._session.check_connected()
        self.checked = word

    def close(self) -> None:
        """Fail what waits with AlreadyClosed and leave the topic. What was published stays."""
        try:
            self.lock.acquire()
            if self.is_closed:
                raise AlreadyClosed(f"the producer {self.name} was closed before")
            self.is_closed = True
            self.single_max = -1
            error = AlreadyClosed(f"the producer {self.name} was closed before the message was published")
            for item in self.box.close():
                self._fail(item, error)
        finally:
            self.lock.release()
        if not self._stale:
            self._session.detach()
        for item in self.box.close():  # what other threads appended while we closed
            self._fail(item, error)

    def _fail(self, item: Any, error: PulsarException) -> None:
        if item.__class__ is list:
            for out in item:
                out.error = error
                self.completions.hand_over(out)
        elif item.__class__ is tuple and item[1] is not None:
            self.completions.hand_over(Outgoing(None, 1, -1, -1, [item[1]], False, error))

    def fail_later(self, callback: SendCallback, error: BaseException) -> None:
        """Tell a callback of a failure that came before publishing, in its turn."""
        try:
            self.lock.acquire()
            self.completions.hand_over(Outgoing(None, 1, -1, -1, [callback], False, error))
        finally:
            self.lock.release()

    def after_fork_in_child(self) -> None:
        """The parent's producer, and what waits in its container, stay the parent's."""
        self._renew_lock()
        self.box.items.clear()
        self.box.armed = False
        self.box.share = self.single_max = -1
        self.completions.reset()
        self._stale = not self.is_closed
