"""The consumer. Hot: benchmarks measure `Consumer.receive` and `Consumer.acknowledge`."""

from __future__ import annotations

import sys
from collections import deque
from functools import partial

from embeddedpulsar._engine.platform import timing
from embeddedpulsar.client.arguments import (
    UINT32_MAX,
    check_range,
    check_transaction,
    check_type,
    checked_seek_target,
    id_parts,
)
from embeddedpulsar.client.client_context import ProcessBound
from embeddedpulsar.exceptions import AlreadyClosed
from embeddedpulsar.message import NO_ORIGIN, Message, T
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.records import TYPE_CHECKING, Generic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any, Self

    from embeddedpulsar.client.consumer.consumer_core import ConsumerCore
    from embeddedpulsar.client.consumer.topic_group import ConsumerGroup
    from embeddedpulsar.client.interceptors import InterceptorChain
    from embeddedpulsar.client.statistics import ConsumerStats
    from embeddedpulsar.client.transaction import Transaction


class Consumer(ProcessBound, Generic[T]):
    """Receives the messages of one subscription. Made by `Client.subscribe`.

    Thread-safe: any number of threads may receive and acknowledge. Delivery is at least once: until a message
    is acknowledged, it is delivered again after the consumer closes, dies, or returns it. In a forked child
    every method raises `AlreadyClosed`; subscribe in the child.

    A ``with`` block closes the consumer at the end. As an iterator it receives until it is closed.

    A consumer may have several topics: a list of them, a pattern, a partitioned topic, or ``enable_retry``.
    Partitions count as topics, and partitions added later join, from their first message on. Each topic keeps
    its order; there is no order between topics, which take turns. Messages and ids are acknowledged on their
    topic; those of other topics raise `OperationNotSupported`.

    Example:
        >>> from embeddedpulsar import Client
        >>> with Client("memory://") as client, client.subscribe("orders", "billing") as consumer:
        ...     message_id = client.create_producer("orders").send(b"order 1")
        ...     message = consumer.receive()
        ...     consumer.acknowledge(message)
        ...     message.data(), message.message_id() == message_id
        (b'order 1', True)
        >>> with Client("memory://") as client:
        ...     consumer = client.subscribe("orders", "billing", consumer_name="till-1")
        ...     consumer.topic(), consumer.subscription_name(), consumer.consumer_name()
        ...     consumer.is_connected(), consumer.stats().messages_received
        ...     consumer.close()
        ...     consumer.is_connected()
        ('persistent://public/default/orders', 'billing', 'till-1')
        (True, 0)
        False
    """

    _client: Any = None  # keeps the client alive

    def __init__(self, core: ConsumerCore | ConsumerGroup, chain: InterceptorChain | None = None) -> None:
        self._core = core
        self._receiver = core.receiver
        self._acks = core.acks
        # On the slow path the fast path never finds a message.
        self._fetched: deque[Message[T]] = core.fetched if core.receiver.has_fast_path else deque()
        self._epoch = core.fresh.epoch
        self._mark = core.fresh.mark
        self._chain = chain
        self._acknowledge_slowly: Callable[[Message[T] | MessageId], None] = core.acknowledge
        if chain is not None:
            chain.bind(core.client, self)
            chain.begin()
            self._acknowledge_slowly = chain.reporting("on_acknowledge", core.acknowledge)

    def _start(self) -> None:
        """Start timers and the listener: the consumer is complete and registered with its client."""
        self._core.start()
        self._receiver.start(self)

    def topic(self) -> str:
        """Return the full name of the topic."""
        return self._core.topic_name

    def subscription_name(self) -> str:
        """Return the name of the subscription."""
        return self._core.config.subscription_name

    def consumer_name(self) -> str:
        """Return the name of the consumer: the one requested, or ten random hexadecimal digits."""
        return self._core.consumer_name

    def is_connected(self) -> bool:
        """Return whether the consumer may receive: True until it is closed."""
        return not self._core.delivery.closed_text

    def stats(self) -> ConsumerStats:
        """Return the statistics of the consumer. Not in ``pulsar-client``."""
        return self._core.stats()

    # -- receiving ---------------------------------------------------------------------------------------

    def receive(self, timeout_millis: int | None = None) -> Message[T]:
        """Return the next message, waiting for it.

        Args:
            timeout_millis: longest wait; None waits without limit, 0 does not wait.

        Raises:
            Timeout: no message came in time. Also a ``TimeoutError``.
            AlreadyClosed: the consumer is closed, now or while waiting.
            InvalidConfiguration: the consumer has a listener, or a timeout is given with a queue of size 0.
            Interrupted: Ctrl-C; also a ``KeyboardInterrupt``.

        Example:
            >>> from embeddedpulsar import Client
            >>> with Client("memory://") as client:
            ...     client.subscribe("empty", "s").receive(timeout_millis=1)
            Traceback (most recent call last):
            embeddedpulsar.exceptions.Timeout: Pulsar error: TimeOut: no message within 1 ms
        """
        if timeout_millis is not None:
            check_type(int, timeout_millis, "timeout_millis")
        try:
            if self._epoch == self._mark:  # otherwise the fetched messages may be void, or all is closed
                return self._fetched.popleft()
        except IndexError:  # the queue is empty
            return self._receiver.wait(timeout_millis)
        return self._receiver.wait(timeout_millis)

    async def receive_async(self) -> Message[T]:
        """Return the next message, awaiting it in an asyncio loop. Not in ``pulsar-client``.

        Coroutines of one loop are served in the order of their calls. A coroutine that is cancelled, for
        example by a timeout, has taken no message.

        Raises:
            AlreadyClosed: the consumer is closed, now or while waiting.
            InvalidConfiguration: the consumer has a listener.

        Example:
            >>> import asyncio
            >>> from embeddedpulsar import Client
            >>> async def main(client):
            ...     consumer = client.subscribe("orders", "billing")
            ...     waiting = asyncio.create_task(consumer.receive_async())
            ...     message_id = client.create_producer("orders").send(b"order 1")
            ...     return (await asyncio.wait_for(waiting, timeout=10)).data()
            >>> with Client("memory://") as client:
            ...     asyncio.run(main(client))
            b'order 1'
        """
        return self._receiver.passed(await self._receiver.awaited().receive())

    def receive_nowait(self) -> Message[T] | None:
        """Return the next message if there is one, else None. Not in ``pulsar-client``.

        Raises:
            AlreadyClosed: the consumer is closed.
            InvalidConfiguration: the consumer has a listener.

        Example:
            >>> from embeddedpulsar import Client
            >>> with Client("memory://") as client:
            ...     print(client.subscribe("orders", "billing").receive_nowait())
            None
        """
        return self._receiver.poll()

    def batch_receive(self) -> list[Message[T]]:
        """Return several messages, up to the number, size or time of the `ConsumerBatchReceivePolicy`.

        Returns:
            The messages; ``[]`` if none came in time.

        Raises:
            AlreadyClosed, InvalidConfiguration, Interrupted: see `receive`. Collected messages are not lost.

        Example:
            >>> from embeddedpulsar import Client, ConsumerBatchReceivePolicy
            >>> policy = ConsumerBatchReceivePolicy(max_num_message=2, max_num_bytes=-1, timeout_ms=1000)
            >>> with Client("memory://") as client:
            ...     consumer = client.subscribe("orders", "billing", batch_receive_policy=policy)
            ...     producer = client.create_producer("orders")
            ...     ids = [producer.send(b"order %d" % i) for i in range(3)]
            ...     [message.data() for message in consumer.batch_receive()]
            [b'order 0', b'order 1']
        """
        receiver = self._receiver
        receiver.check()
        with timing.translated:
            return list(map(receiver.passed, self._core.batches.receive()))

    def __iter__(self) -> Iterator[Message[T]]:
        while True:
            try:
                yield self.receive()
            except AlreadyClosed:
                return

    # -- acknowledging -----------------------------------------------------------------------------------

    def acknowledge(
        self,
        message: Message[T] | MessageId | Sequence[Message[T] | MessageId],
        *,
        txn: Transaction | None = None,
    ) -> None:
        """Acknowledge one message, so that it is not delivered again.

        Once the call has returned, the message is not delivered again, even if the process is killed. It may
        be delivered again after a reboot: acknowledgements are collected, and written to the store after 100
        ms, at 1,000 entries, and when the consumer is closed. With ``ack_receipt_enabled`` they are written
        before the call returns. If more than 64 topics of a consumer have acknowledgements to write, some are
        written later: after about 1 s with 1,000 such topics. A batch is one entry: without
        ``batch_index_ack_enabled`` it is acknowledged when all its messages are.

        In a transaction it is written at once, each message of a batch for itself, and counts when that
        commits. Until the transaction ends no consumer gets the message; if it is aborted, it is delivered
        again, with a higher `Message.redelivery_count` where there is one.

        Args:
            message: a message, or its id; with ``txn`` also a list of them, which is acknowledged in one
                step, all or none. Ids without a message are ignored, and so are repeated acknowledgements
                without ``txn``.
            txn: the transaction that acknowledges. Not in ``pulsar-client``.

        Raises:
            AlreadyClosed: the consumer is closed.
            TypeError: neither a message nor an id.
            TransactionConflict: it is acknowledged already, or pending in a transaction. That transaction,
                and this one, which can only be aborted, are as before otherwise.
            InvalidTxnStatusError: the transaction has ended.
            NotConnected: in a transaction: the subscription was moved since the message was received.

        Example:
            >>> from embeddedpulsar import Client
            >>> with Client("memory://") as client, client.subscribe("orders", "billing") as consumer:
            ...     message_id = client.create_producer("orders").send(b"order 1")
            ...     consumer.acknowledge(message_id)
        """
        if txn is not None:
            self._acknowledge_in(txn, message)
            return
        acks = self._acks
        try:
            origin: Any = message._origin  # type: ignore[union-attr]
        except AttributeError:
            origin = message  # neither a message nor an id
        if origin is acks.quick_origin:
            # Hot: 0.2 us. On return the entry is recorded in shared memory. Every step is atomic; the thread
            # that removes the batch from `open` acknowledges the entry. That the message has this origin says
            # that it is no id, that this consumer received it, and that the subscription was not moved since.
            entry: Any = message._entry  # type: ignore[union-attr]
            flags = entry.acked
            if flags is not None:
                flags[message._index] = 1  # type: ignore[union-attr]
                if not flags[-1] or 0 in flags:
                    return
                position = ledger, number = entry.ledger_id, entry.entry_id
                if acks.open.pop(position, None) is None:
                    acks.complete(position)  # it was given back, or is acknowledged again
                    return
            elif entry.count == 1:
                position = ledger, number = entry.ledger_id, entry.entry_id
            else:
                self._acknowledge_slowly(message)  # type: ignore[arg-type]  # nothing tracks it
                return
            done = acks.done
            if not acks.ready or len(done) >= acks.most_quick:
                acks.complete(position, is_whole=True)  # the first of a group, or the last
                return
            try:
                acks.words[next(acks.slots)] = acks.firsts[ledger] + number  # `place_word`, in half the time
            except KeyError:
                acks.complete(position, is_whole=True)  # the first of its ledger
                return
            done.append(position)
            if not acks.ready:
                acks.after_ack(True)  # the timer has stopped without this one
            return
        if origin is None and acks.quick_origin is not NO_ORIGIN:  # the id of a message of a batch, mostly
            flags = acks.open.get((message._ledger, message._entry))  # type: ignore[union-attr, arg-type]
            index = message._batch_index  # type: ignore[union-attr]
            if flags is not None and 0 <= index < len(flags):
                flags[index] = 1
                if not flags[-1] or 0 in flags:
                    return
        self._acknowledge_slowly(message)  # type: ignore[arg-type]

    def _acknowledge_in(self, txn: Transaction, message: Any, *, is_cumulative: bool = False) -> None:
        check_transaction(txn)
        is_single = type(message) is Message or isinstance(message, MessageId)
        messages = [message] if is_single or isinstance(message, Message) else message
        if not is_single and not isinstance(messages, list | tuple):
            id_parts(messages)  # refuses it
        if self._chain is None:
            self._core.acknowledge_in(txn, messages, is_cumulative=is_cumulative)
            return
        acknowledge: Callable[[Any], object] = partial(
            self._core.acknowledge_in, txn, is_cumulative=is_cumulative
        )
        hook = "on_acknowledge_cumulative" if is_cumulative else "on_acknowledge"
        for each in messages:
            self._chain.reporting(hook, lambda single: acknowledge([single]))(each)

    def acknowledge_cumulative(
        self, message: Message[T] | MessageId, *, txn: Transaction | None = None
    ) -> None:
        """Acknowledge this message and everything before it.

        In the middle of a batch, without ``batch_index_ack_enabled``, it covers everything before the batch;
        the batch is acknowledged once its other messages are.

        In a transaction, see `acknowledge`, it covers the messages of a batch up to this one. If the
        transaction is aborted, the messages come again after `redeliver_unacknowledged_messages`, or to the
        next consumer.

        Args:
            message: a message, or its id.
            txn: the transaction that acknowledges. Not in ``pulsar-client``.

        Raises:
            AlreadyClosed: the consumer is closed.
            CumulativeAcknowledgementNotAllowedError: the subscription is Shared or Key_Shared.
            TypeError: neither a message nor an id.
            TransactionConflict: all up to there is acknowledged, or another transaction acknowledges
                cumulatively.
            InvalidTxnStatusError, NotConnected: as for `acknowledge`.

        Example:
            >>> from embeddedpulsar import Client
            >>> with Client("memory://") as client, client.subscribe("orders", "billing") as consumer:
            ...     ids = [client.create_producer("orders").send(b"order %d" % i) for i in range(3)]
            ...     consumer.acknowledge_cumulative(ids[1])
            ...     consumer.redeliver_unacknowledged_messages()
            ...     consumer.receive().data()
            b'order 2'
        """
        if txn is not None:
            id_parts(message)  # refuses a list: there is one place up to which all are acknowledged
            self._acknowledge_in(txn, message, is_cumulative=True)
            return
        acknowledge: Callable[[Message[T] | MessageId], None] = self._core.acknowledge_cumulative
        if self._chain is not None:
            acknowledge = self._chain.reporting("on_acknowledge_cumulative", acknowledge)
        acknowledge(message)

    def transactions(
        self, max_messages: int = 100, *, timeout_ms: int = 60_000, label: str = ""
    ) -> Iterator[tuple[list[Message[T]], Transaction]]:
        """Consume, transform, produce: receive messages, and acknowledge them in a transaction of their own.

        Each pass of the loop has the messages that are there, at least one, and the transaction that has
        acknowledged them, for what is sent in return. It commits at the end of the pass. An exception in it,
        or a ``break``, aborts the transaction, and the messages are delivered again; to leave the loop and
        keep what the pass did, call `Transaction.commit` before the ``break``. The loop ends when the
        consumer is closed. Not in ``pulsar-client``.

        Args:
            max_messages: most messages of a transaction.
            timeout_ms: of each transaction, see `Client.transaction`.
            label: of each, likewise.

        Raises:
            ValueError: an argument of a wrong type or value.
            Exception: any exception that `receive`, `acknowledge` or `Transaction.commit` raises.

        Example:
            >>> from embeddedpulsar import Client
            >>> with Client("memory://") as client:
            ...     consumer, bills = client.subscribe("orders", "billing"), client.create_producer("bills")
            ...     ids = [client.create_producer("orders").send(b"%d" % i) for i in range(3)]
            ...     for messages, txn in consumer.transactions():
            ...         total = sum(int(message.data()) for message in messages)
            ...         message_id = bills.send(b"%d" % total, txn=txn)
            ...         txn.commit()
            ...         break
            ...     len(messages), txn.state.name
            (3, 'COMMITTED')
        """
        check_type(int, max_messages, "max_messages")
        check_range(max_messages, "max_messages", 1, UINT32_MAX)
        return self._transactions(max_messages, timeout_ms, label)

    def _transactions(
        self, max_messages: int, timeout_ms: int, label: str
    ) -> Iterator[tuple[list[Message[T]], Transaction]]:
        from embeddedpulsar.client.transaction import begin

        while True:
            try:
                messages = [self.receive()]
            except AlreadyClosed:
                return
            while len(messages) < max_messages:
                message = self.receive_nowait()
                if message is None:
                    break
                messages.append(message)
            with begin(self._core.client, timeout_ms, label) as txn:
                self.acknowledge(messages, txn=txn)
                yield messages, txn

    def negative_acknowledge(
        self, message: Message[T] | MessageId, *, reason: str | BaseException | None = None
    ) -> None:
        """Have a message delivered again after ``negative_ack_redelivery_delay_ms``.

        With ``negative_ack_redelivery_backoff`` the delay depends on the message's `Message.redelivery_count`
        (0 for an id). Redelivery is by entry: all messages of a batch are delivered again, except those
        acknowledged with ``batch_index_ack_enabled``. On Shared and Key_Shared subscriptions only this entry
        is redelivered, to any consumer, and its redelivery count increases. On the other types all
        unacknowledged messages are redelivered, to keep their order. Acknowledging the message before the
        redelivery cancels it. Ignored on a closed consumer.

        Args:
            message: as received, or its id.
            reason: why it failed, an exception or a text. If the message becomes a dead letter by this, it
                has the reason among its properties, as ``DEAD_LETTER_REASON``: class and message, at most
                1,000 characters. Default is the exception that is being handled: within ``except`` nothing
                needs to be said. Not in ``pulsar-client``.

        Raises:
            TypeError: neither a message nor an id; the reason is something else.

        Example:
            >>> from embeddedpulsar import Client, ConsumerType
            >>> with Client("memory://") as client:
            ...     options = {"consumer_type": ConsumerType.Shared, "negative_ack_redelivery_delay_ms": 100}
            ...     consumer = client.subscribe("orders", "billing", **options)
            ...     message_id = client.create_producer("orders").send(b"order 1")
            ...     consumer.negative_acknowledge(consumer.receive())
            ...     consumer.receive(timeout_millis=10000).redelivery_count()
            1
        """
        self._core.negative_acknowledge(message, _known(reason))

    def redeliver_unacknowledged_messages(self) -> None:
        """Have all unacknowledged messages delivered again at once.

        On Shared and Key_Shared subscriptions these are the messages of this consumer, including those
        fetched ahead, and any consumer may get them. On the other types they are delivered in order. On
        Failover the call is ignored unless this consumer is active. Ignored on a closed consumer, whose
        messages are redelivered already.

        Example:
            >>> from embeddedpulsar import Client
            >>> with Client("memory://") as client, client.subscribe("orders", "billing") as consumer:
            ...     message_id = client.create_producer("orders").send(b"order 1")
            ...     message = consumer.receive()
            ...     consumer.redeliver_unacknowledged_messages()
            ...     consumer.receive() is message, consumer.receive_nowait()
            (False, None)
        """
        if not self._core.delivery.closed_text:
            with timing.translated:
                self._core.redeliver()

    def reconsume_later(
        self,
        message: Message[T],
        delay_ms: int,
        properties: dict[str, str] | None = None,
        *,
        reason: str | BaseException | None = None,
    ) -> None:
        """Have a message delivered again later, through the retry topic, and acknowledge it.

        A copy is stored in the retry topic, then the message is acknowledged: a process that dies in between
        leaves both. The copy has the same payload, keys and event time, its own properties and
        ``properties``, and also ``RECONSUMETIMES``, the number of retries; ``DELAY_TIME``; and, from the
        first retry on, ``REAL_TOPIC``, ``ORIGIN_MESSAGE_ID`` and ``ORIGIN_MESSAGE_IDY_TIME`` of the original.
        After ``max_redeliver_count`` retries (16 without a ``dead_letter_policy``) the message goes to the
        dead letter topic instead. Not in ``pulsar-client`` for Python.

        Args:
            message: as received by this consumer.
            delay_ms: delay of the delivery; less than 0 counts as 0. Shared and Key_Shared subscriptions
                apply the delay, others deliver at once.
            properties: added to the copy, replacing those of the same names. Not one of the names above.
            reason: of the copy, as ``DEAD_LETTER_REASON``; see `negative_acknowledge`.

        Raises:
            InvalidConfiguration: the consumer was made without ``enable_retry``.
            TypeError: not a message; the reason is neither an exception nor a text.
            ValueError: another argument has a wrong type.
            AlreadyClosed: the consumer is closed.
            PulsarException: the copy could not be stored (see `Producer.send`); the message is redelivered
                after a delay.

        Example:
            >>> from embeddedpulsar import Client
            >>> with Client("memory://") as client:
            ...     consumer = client.subscribe("orders", "billing", enable_retry=True)
            ...     message_id = client.create_producer("orders").send(b"order 1")
            ...     consumer.reconsume_later(consumer.receive(), 0, {"reason": "no paper"})
            ...     again = consumer.receive()
            ...     again.topic_name(), again.properties()["reason"], again.properties()["RECONSUMETIMES"]
            ('persistent://public/default/orders-billing-RETRY', 'no paper', '1')
        """
        with timing.translated:
            self._core.reconsume_later(message, delay_ms, properties, _known(reason), cumulative=False)
        self.acknowledge(message)

    def reconsume_later_cumulative(
        self,
        message: Message[T],
        delay_ms: int,
        properties: dict[str, str] | None = None,
        *,
        reason: str | BaseException | None = None,
    ) -> None:
        """`reconsume_later`, which also acknowledges everything before the message.

        Raises:
            CumulativeAcknowledgementNotAllowedError: the subscription is Shared or Key_Shared.

        Example:
            >>> from embeddedpulsar import Client
            >>> with Client("memory://") as client:
            ...     consumer = client.subscribe("orders", "billing", enable_retry=True)
            ...     producer = client.create_producer("orders")
            ...     ids = [producer.send(b"order %d" % i) for i in range(2)]
            ...     messages = [consumer.receive() for _ in ids]
            ...     consumer.reconsume_later_cumulative(messages[1], 0)
            ...     consumer.receive().data()
            b'order 1'
        """
        with timing.translated:
            self._core.reconsume_later(message, delay_ms, properties, _known(reason), cumulative=True)
        self.acknowledge_cumulative(message)

    # -- listener ----------------------------------------------------------------------------------------

    def pause_message_listener(self) -> None:
        """Stop calling the listener. A running call continues.

        Raises:
            InvalidConfiguration: there is no listener.

        Example:
            >>> import queue
            >>> from embeddedpulsar import Client
            >>> orders = queue.Queue()
            >>> with Client("memory://") as client:
            ...     listener = lambda consumer, message: orders.put(message.data())
            ...     consumer = client.subscribe("orders", "billing", message_listener=listener)
            ...     consumer.pause_message_listener()
            ...     message_id = client.create_producer("orders").send(b"order 1")
            ...     before = orders.qsize()
            ...     consumer.resume_message_listener()
            ...     before, orders.get(timeout=10)
            (0, b'order 1')
        """
        self._receiver.set_paused(True)

    def resume_message_listener(self) -> None:
        """Call the listener again, starting with messages that came meanwhile; see the example of
        `pause_message_listener`.

        Raises:
            InvalidConfiguration: there is no listener.
        """
        self._receiver.set_paused(False)

    # -- moving and leaving ------------------------------------------------------------------------------

    def seek(self, messageid: MessageId | int) -> None:
        """Move the subscription, for this and all later consumers.

        Args:
            messageid: an id: delivery continues after that message, or with it if the consumer was made with
                ``start_message_id_inclusive``; `MessageId.earliest` and `MessageId.latest` are the ends. Or
                an int: delivery continues with the first message published at that time or later, in ms since
                1970.

        Raises:
            ValueError: another type.
            AlreadyClosed: the consumer is closed.

        Example:
            >>> from embeddedpulsar import Client
            >>> with Client("memory://") as client, client.subscribe("events", "s") as consumer:
            ...     producer = client.create_producer("events")
            ...     ids = [producer.send(b"%d" % i) for i in range(3)]
            ...     consumer.seek(ids[0])
            ...     consumer.receive().data()
            b'1'
        """
        with timing.translated:
            self._core.seek(checked_seek_target(messageid))

    def get_last_message_id(self) -> MessageId:
        """Return the id of the last message of the topic; for an empty topic, an id with entry -1.

        Raises:
            OperationNotSupported: the consumer has several topics.

        Example:
            >>> from embeddedpulsar import Client
            >>> with Client("memory://") as client, client.subscribe("orders", "billing") as consumer:
            ...     before = consumer.get_last_message_id().entry_id()
            ...     message_id = client.create_producer("orders").send(b"order 1")
            ...     before, consumer.get_last_message_id() == message_id
            (-1, True)
        """
        self._core.delivery.check_open()
        return self._core.last_message_id()

    def unsubscribe(self) -> None:
        """Delete the subscription and close the consumer.

        Raises:
            BrokerMetadataError: other consumers are attached.
            AlreadyClosed: the consumer is closed.

        Example:
            >>> from embeddedpulsar import Client
            >>> with Client("memory://") as client:
            ...     consumer = client.subscribe("orders", "billing")
            ...     message_id = client.create_producer("orders").send(b"order 1")
            ...     consumer.unsubscribe()
            ...     print(client.subscribe("orders", "billing").receive_nowait())
            None
        """
        with timing.translated:
            self._core.unsubscribe()
        self._left()

    def close(self) -> None:
        """Write the acknowledgements and detach. Other messages are delivered to the next consumer.

        Does nothing after `unsubscribe`, or if the client was closed or the topic deleted.

        Raises:
            AlreadyClosed: it was closed before.
        """
        with timing.translated:
            self._core.close()
        self._left()

    def _left(self) -> None:
        self._core.client.forget_consumer(self)
        if self._chain is not None:
            self._chain.close()

    def _save(self) -> None:
        """Write the acknowledgements at the end of the program."""
        self._core.save()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_connected():
            self.close()

    def __repr__(self) -> str:
        state = "open" if self.is_connected() else "closed"
        return f"<Consumer {self.consumer_name()} of {self.subscription_name()!r} on {self.topic()} {state}>"


def _known(reason: str | BaseException | None) -> str | BaseException | None:
    """Why a message failed: what the application says, or the exception that it is handling."""
    if reason is None:
        return sys.exc_info()[1]
    if not isinstance(reason, str | BaseException):
        raise TypeError(f"a reason is an exception or a text, not {type(reason).__name__}")
    return reason
