"""The producer. Hot: benchmarks measure `Producer.send_async` and `Producer.send`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from embeddedpulsar.client.common.arguments import check_type
from embeddedpulsar.client.common.message_options import DELIVER_AT, NULL_VALUE, Options, check_options
from embeddedpulsar.client.common.value_type import T
from embeddedpulsar.client.producer.bulk.bulk_producer import BulkProducer
from embeddedpulsar.client.producer.pending_entry import tell_sender, unanswered
from embeddedpulsar.client.producer.producer_facts import ProducerFacts
from embeddedpulsar.client.producer.producer_meter import ONE
from embeddedpulsar.client.producer.sequence_keeper import DeduplicationSwitched
from embeddedpulsar.exceptions import AlreadyClosed, PulsarException
from embeddedpulsar.format.entry import single_fields
from embeddedpulsar.format.message_extras import NO_EXTRAS, fields_with_extras, pack_extras
from embeddedpulsar.message_id import MessageId, make
from embeddedpulsar.platform import interrupts

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta
    from types import TracebackType

    from embeddedpulsar.client.producer.pending_entry import SendCallback
    from embeddedpulsar.client.producer.producer_session import ProducerSession
    from embeddedpulsar.client.producer.publisher import Publisher
    from embeddedpulsar.format.message_extras import Extras


class Producer(ProducerFacts[T], BulkProducer[T]):
    """Publishes messages to one topic; made by `Client.create_producer`.

    Thread-safe: any number of threads may send. Messages of one producer are stored in the order of their
    sends, which is the order of their sequence ids; those of several producers interleave by entry. In a
    forked child the producer goes on under a fresh name, and what waits in a batch stays with the parent.

    Durability is the client's level, or the producer's own: a message whose send returned, or whose callback
    got `Result.Ok`, survives the death of every process; at level ``flush`` a power failure too.

    Used with ``with``, the producer is flushed and closed at the end; after an exception it is closed alone.
    """

    def __init__(self, session: ProducerSession, publisher: Publisher) -> None:
        self._publisher = publisher
        self._box = publisher.box
        self._session = session
        self._partition = session.partition
        # The class of values that need no encoding; with a schema, a class that no value has.
        self._encode: Callable[[T], bytes] = session.schema.encode
        self._raw: type[Any] = bytes if session.takes_bytes else Producer

    def send(
        self,
        content: T | None,
        properties: dict[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool = False,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
    ) -> MessageId:
        """Publish a message and wait until it is stored.

        A producer that batches sends the batch the message joins at once, as Pulsar's Java client does;
        ``pulsar-client`` would wait for ``batching_max_publish_delay_ms``.

        Args:
            content: the value, encoded by the schema; None publishes a null value, which is not ``b""``.
            properties: str to str, copied. ``bytes`` are text, too.
            partition_key: key of the message; decides its consumer on Key_Shared subscriptions.
            ordering_key: takes the place of the partition key there.
            sequence_id: id to use instead of the next automatic one; 0 counts as not set.
            replication_clusters: not built; only None or an empty list.
            disable_replication: accepted; a store is not replicated.
            event_timestamp: when the event happened, in ms since 1970; 0 counts as not set.
            deliver_at: earliest delivery on Shared subscriptions, in ms since 1970. Others deliver at once.
            deliver_after: the same, counted from now.

        Returns:
            The id of the message, equal to the one consumers will see.

        Raises:
            TypeError: the schema does not take ``content``, or there is no room for an option's value.
            ValueError: an option has a wrong type or value.
            MessageTooBig: larger than ``maxMessageSize`` (5 MiB) with its metadata.
            Timeout: another process held the topic too long.
            ProducerQueueIsFull: ``max_pending_messages`` are not stored, and the producer does not block.
            MemoryBufferIsFull: likewise for ``memory_limit_bytes`` of the client.
            StorageFullError: the disk is full; nothing was stored.
            AlreadyClosed: the producer or its client is closed.
            Interrupted: Ctrl-C; whether the message was stored is not known.

        Example:
            >>> from embeddedpulsar import Client
            >>> with Client("memory://") as client:
            ...     producer = client.create_producer("orders")
            ...     producer.send(b"one", partition_key="customer-7", properties={"kind": "new"}).entry_id()
            0
        """
        publisher = self._publisher
        if (
            content.__class__ is bytes
            and len(content) <= publisher.single_max
            and ordering_key is None
            and sequence_id is None
            and replication_clusters is None
            and event_timestamp is None
            and deliver_at is None
            and deliver_after is None
            and disable_replication is False
        ):
            extras: Extras | None = NO_EXTRAS
            if properties is not None or partition_key is not None:
                extras = pack_extras(properties, partition_key, publisher.single_max - len(content))
            if extras is not None and not publisher.queue.singles:  # which `single_max` may not show yet
                lock, enter = publisher.lock, publisher.lock.acquire
                try:
                    enter()
                    append, leave = publisher.append_nowait, publisher.unlock
                    # The id is taken first: after an interrupt it must not serve a second, different message.
                    following = publisher.next_sequence_id
                    publisher.next_sequence_id = following + 1
                    if extras is NO_EXTRAS:
                        encoded = single_fields(content, following, publisher.prefix)
                    else:
                        encoded = fields_with_extras(content, extras, following, publisher.prefix)
                    ledger, entry, _, _ = append(encoded, publisher)
                    publisher.last_sequence_id = following
                    publisher.tally += ONE + len(content)
                    leave()
                except DeduplicationSwitched:
                    publisher.next_sequence_id = following
                    lock.release()
                except BaseException as error:  # noqa: BLE001 - raised again
                    lock.release()
                    publisher.meter.failed(1)
                    tell_sender(error)
                else:
                    return make(ledger, entry, -1, self._partition, 0)
        value: Any = content if content.__class__ is self._raw else self._encoded(content)
        options = check_options(
            content is None,
            properties,
            partition_key,
            ordering_key,
            sequence_id,
            replication_clusters,
            disable_replication,
            event_timestamp,
            deliver_at,
            deliver_after,
            self._session.wall_ms,
        )
        with interrupts.translated:
            return self._send_slowly(value, options)

    def send_async(
        self,
        content: T | None,
        callback: SendCallback | None,
        properties: dict[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool = False,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
    ) -> None:
        """Publish a message without waiting for it.

        With batching the message joins a batch, which is stored when it is full or when
        ``batching_max_publish_delay_ms`` has passed; without, it is stored at once. Never waits for a topic
        that others have locked: what cannot be stored is queued, until the send timeout.

        Args:
            content: as for `send`, and so are the other options.
            callback: called as ``callback(result, message_id)`` on the client's callback thread, in the order
                of the sends; None for nobody. An exception it raises is logged. Without one, the first
                failure is raised by the next `flush`.

        Raises:
            TypeError: the schema does not take ``content``, or there is no room for an option's value.
            ValueError: an option has a wrong type or value. Everything else goes to the callback.
            AlreadyClosed: the producer is closed and there is no callback to tell, or the client is closed.

        Example:
            >>> from embeddedpulsar import Client
            >>> with Client("memory://") as client:
            ...     producer = client.create_producer("clicks", batching_enabled=True)
            ...     for i in range(3):
            ...         producer.send_async(b"%d" % i, lambda result, sent: print(result, sent.batch_index()))
            ...     producer.flush()
            Result.Ok 0
            Result.Ok 1
            Result.Ok 2
        """
        # Hot: 0.2 us, besides encoding. No lock: appending to the list is one step, and whoever flushes takes
        # from its front. Asking whether the timer runs comes after the append, and the timer says that it
        # stopped before it looks at the list, so one of the two sees the other.
        if (
            properties is None
            and partition_key is None
            and ordering_key is None
            and sequence_id is None
            and replication_clusters is None
            and event_timestamp is None
            and deliver_at is None
            and deliver_after is None
            and disable_replication is False
        ):
            if content.__class__ is self._raw:
                box = self._box
                if len(content) <= box.share:  # type: ignore[arg-type]
                    items = box.items
                    if callback is None:
                        items.append(content)
                    else:
                        box.mixed = True
                        items.append((content, callback))
                    if len(items) < box.trigger:
                        if not box.armed:
                            self._publisher.arm()
                    else:
                        self._flush_full()
                    return
                if len(content) <= self._publisher.single_max:  # type: ignore[arg-type]
                    self._publish_plain(content, callback)  # type: ignore[arg-type]
                    return
            self._enqueue(self._encoded(content), callback, NULL_VALUE if content is None else None)
            return
        value: Any = content if content.__class__ is self._raw else self._encoded(content)
        options = check_options(
            content is None,
            properties,
            partition_key,
            ordering_key,
            sequence_id,
            replication_clusters,
            disable_replication,
            event_timestamp,
            deliver_at,
            deliver_after,
            self._session.wall_ms,
        )
        self._enqueue(value, callback, options)

    def flush(self) -> None:
        """Store everything sent so far and wait for its callbacks.

        Raises:
            AlreadyClosed: the producer is closed.
            PulsarException: a message without a callback failed since the last flush; this is its error.
            Interrupted: Ctrl-C; what was sent is still on its way.
        """
        completions = self._publisher.completions
        with interrupts.translated:
            self._publisher.flush_all()
            completions.wait()
        error, completions.error = completions.error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Leave the topic. Does **not** flush: what waits in a batch fails with `Result.AlreadyClosed`.

        Raises:
            AlreadyClosed: it was closed before.
            LockTimeout: another process stayed in a lock; the text says what is not known to be stored.
        """
        with interrupts.translated:
            self._session.close(self._publisher)
        self._session.forget(self._publisher)

    def __enter__(self) -> Producer[T]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._is_closed:
            return
        try:
            if kind is None:
                self.flush()
        finally:
            self.close()

    def __del__(self) -> None:
        session = getattr(self, "_session", None)
        if session is not None:
            session.abandon(self._publisher)

    # -- slow paths --------------------------------------------------------------------------------------

    def _route(self, value: bytes, options: Options | None) -> int:
        """The partition a message goes to, of which `_target` tells more; 0 where there is one log."""
        return 0

    def _encoded(self, content: T | None) -> bytes:
        if content is None:
            return b""
        data = self._encode(content)
        if data.__class__ is not bytes:
            check_type(bytes, data, "data")
        return data

    def _send_slowly(self, value: bytes, options: Options | None) -> MessageId:
        publisher = self._publisher
        index = -1
        if publisher.config.batching and not (options is not None and options[DELIVER_AT]):
            waiter = publisher.publish_now(value, options)
            out, index = waiter.pending_entry, waiter.index
            if out is None:
                raise unanswered(publisher.is_closed)
        else:
            out = publisher.publish_one(value, options)
            publisher.meter.failed(out.error is not None)
        if out.error is not None:
            raise out.error
        if out.end_word:
            self._session.ledger.wait_durable(out.end_word)
            publisher.meter.durable(out)
        return out.message_id(index, self._partition)

    def _publish_plain(self, content: bytes, callback: SendCallback | None) -> None:
        publisher = self._publisher
        try:
            publisher.publish_plain(content, callback)
        except Exception as error:  # noqa: BLE001 - told to whoever asked
            self._tell_later(callback, error)
        publisher.completions.catch_up()

    def _tell_later(self, callback: SendCallback | None, error: Exception) -> None:
        """Give an error to the callback, in its turn, or to the next flush; what ends all to the caller."""
        completions = self._publisher.completions
        if isinstance(error, KeyboardInterrupt) or not completions.can_tell:
            raise error
        if callback is not None:
            completions.fail_now(callback, error)
        elif isinstance(error, AlreadyClosed):
            raise error
        else:
            completions.note_failure(error)

    def _enqueue(self, value: bytes, callback: SendCallback | None, options: Options | None) -> None:
        """As the fast path of `send_async`, for whatever does not take that."""
        box = self._box
        if len(value) > box.share or (options is not None and options[DELIVER_AT]):
            with interrupts.translated:
                self._send_async_slowly(value, callback, options)
            return
        items = box.items
        if callback is None and options is None:
            items.append(value)
        else:
            box.mixed = True
            items.append((value, callback) if options is None else (value, callback, *options))
        if len(items) >= box.trigger:
            self._flush_full()
        elif not box.armed:
            self._publisher.arm()

    def _store_soon(self) -> None:
        """Store what waits in the batch, or have that done as soon as others leave the topic."""
        publisher = self._publisher
        if not publisher.queue.is_empty:
            with interrupts.translated:
                publisher.flush_full(1)

    def _flush_full(self) -> None:
        with interrupts.translated:
            self._publisher.flush_full()

    def _send_async_slowly(
        self, value: bytes, callback: SendCallback | None, options: Options | None
    ) -> None:
        publisher = self._publisher
        try:
            if publisher.config.batching and not (options is not None and options[DELIVER_AT]):
                plain = callback is None and options is None
                publisher.add(value if plain else (value, callback, *(options or ())), len(value))
            else:
                publisher.submit(value, callback, options)
        except PulsarException as error:
            self._tell_later(callback, error)
