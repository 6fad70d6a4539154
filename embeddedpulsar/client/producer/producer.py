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
    """Publishes messages to one topic. Made by `Client.create_producer`.

    Thread-safe: any number of threads may send. Messages of one producer are stored in the order of their
    sends, which is the order of their sequence ids; those of several producers interleave by entry. In a
    forked child the producer continues under a new name; messages in its batch stay with the parent.

    Durability is that of the client, unless the producer sets its own level: a message whose send returned,
    or whose callback got `Result.Ok`, survives the death of every process; at level ``flush`` also a power
    failure.

    At the end of a ``with`` block the producer is flushed and closed; after an exception it is only closed.
    """

    def __init__(self, session: ProducerSession, publisher: Publisher) -> None:
        self._publisher = publisher
        self._box = publisher.box
        self._session = session
        self._partition = session.partition
        # The class of values that need no encoding; with a schema, a class without instances.
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

        A batching producer stores the batch of the message at once, as Pulsar's Java client does;
        ``pulsar-client`` waits for ``batching_max_publish_delay_ms``.

        Args:
            content: the value, encoded by the schema; None publishes a null value, which is not ``b""``.
            properties: str to str, copied. ``bytes`` are decoded as UTF-8.
            partition_key: key of the message; decides its consumer on Key_Shared subscriptions.
            ordering_key: replaces the partition key there.
            sequence_id: id to use instead of the next automatic one; 0 counts as not set.
            replication_clusters: not built; only None or an empty list.
            disable_replication: accepted and ignored; a store is not replicated.
            event_timestamp: when the event happened, in ms since 1970; 0 counts as not set.
            deliver_at: earliest delivery on Shared subscriptions, in ms since 1970. Others deliver at once.
            deliver_after: the same, counted from now.

        Returns:
            The id of the message, equal to the one consumers will see.

        Raises:
            TypeError: the schema rejects ``content``, or an option's value is out of range.
            ValueError: an option has a wrong type or value.
            MessageTooBig: larger than ``maxMessageSize`` (5 MiB) with its metadata.
            Timeout: another process held the topic longer than the send timeout.
            ProducerQueueIsFull: ``max_pending_messages`` are not stored, and the producer does not block.
            MemoryBufferIsFull: likewise for ``memory_limit_bytes`` of the client.
            StorageFullError: the disk is full; nothing was stored.
            AlreadyClosed: the producer or its client is closed.
            Interrupted: Ctrl-C; the message may have been stored.

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
            if extras is not None and not publisher.queue.singles:  # `single_max` may not be updated yet
                lock, enter = publisher.lock, publisher.lock.acquire
                try:
                    enter()
                    append, leave = publisher.append_nowait, publisher.unlock
                    # The id is taken first: after an interrupt, no second message may get the same id.
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

        A batching producer adds the message to a batch, which is stored when it is full or when
        ``batching_max_publish_delay_ms`` has passed. Otherwise it is stored at once. The call never waits for
        a topic that other processes have locked: messages are queued until the send timeout.

        Args:
            content: as for `send`, and so are the other options.
            callback: called as ``callback(result, message_id)`` on the client's callback thread, in the order
                of the sends. An exception that it raises is logged. Without a callback, the next `flush`
                raises the first failure.

        Raises:
            TypeError: the schema rejects ``content``, or an option's value is out of range.
            ValueError: an option has a wrong type or value. The callback gets all other errors.
            AlreadyClosed: the producer is closed and there is no callback, or the client is closed.

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
        # Hot: 0.2 us, besides encoding. No lock: appending to the list is one step, and a flush takes from
        # its front. This thread checks the timer after the append, and the timer clears `armed` before it
        # looks at the list, so one of the two sees the other.
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
        """Store everything sent so far and wait for the callbacks.

        Raises:
            AlreadyClosed: the producer is closed.
            PulsarException: a message without a callback failed since the last flush; this is its error.
            Interrupted: Ctrl-C; the messages are still being stored.
        """
        completions = self._publisher.completions
        with interrupts.translated:
            self._publisher.flush_all()
            completions.wait()
        error, completions.error = completions.error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Detach from the topic. Does **not** flush: unsent batches fail with `Result.AlreadyClosed`.

        Raises:
            AlreadyClosed: it was closed before.
            LockTimeout: another process held a lock; the text names the messages that may not be stored.
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
        """Return the partition of a message, which selects its `_target`; 0 without partitions."""
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
        except Exception as error:  # noqa: BLE001 - passed to the callback or to the next flush
            self._tell_later(callback, error)
        publisher.completions.catch_up()

    def _tell_later(self, callback: SendCallback | None, error: Exception) -> None:
        """Pass an error to the callback, in its turn, or to the next flush; raise an interrupt."""
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
        """The path of `send_async` for messages that the fast path does not accept."""
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
        """Store the batch, or have the flusher store it once the topic is free."""
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
