"""The reader: messages of a topic without a subscription. Hot: benchmarks measure `Reader.read_next`.

The state of a reader of one topic behind its interface: its position, and what was fetched from there.
"""

from __future__ import annotations

from embeddedpulsar._engine.log.log_positions import has_chunks
from embeddedpulsar._engine.platform import fork, timing
from embeddedpulsar._engine.store.policies.policy_documents import check_subscription_type
from embeddedpulsar.client.arguments import check_type, checked_seek_target
from embeddedpulsar.client.client_context import CloseGuard, ProcessBound
from embeddedpulsar.client.client_threads import OPENED
from embeddedpulsar.client.consumer.consumer_session import Decryption, last_or_start, rate_follower, resolve
from embeddedpulsar.client.consumer.delivery import Delivery, ReceiverQueue
from embeddedpulsar.client.consumer.message_receiver import MessageReceiver
from embeddedpulsar.enums import ConsumerCryptoFailureAction, ConsumerType
from embeddedpulsar.exceptions import AlreadyClosed, NotAllowedError
from embeddedpulsar.message import T
from embeddedpulsar.message_id import BEFORE_FIRST, LARGEST_ID, Isolation, MessageId, Position, make
from embeddedpulsar.records import TYPE_CHECKING, Generic
from embeddedpulsar.schema.schema import origin_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any, Final, Self

    import pyarrow as pa

    from embeddedpulsar._engine.format.compacted import Block
    from embeddedpulsar._engine.format.entry import EntryView
    from embeddedpulsar._engine.store.topic import Topic
    from embeddedpulsar.client.client_context import ClientContext
    from embeddedpulsar.client.consumer.consumer_config import ReaderConfig
    from embeddedpulsar.client.consumer.topic_group import ReaderGroup
    from embeddedpulsar.client.interceptors import InterceptorChain
    from embeddedpulsar.message import Message


class Reader(ProcessBound, Generic[T]):
    """Reads a topic from a given position. Made by `Client.create_reader`.

    A reader has no subscription: it acknowledges nothing, and does not prevent the removal of messages. Any
    number of readers may read one topic. Its position is not stored.

    Thread-safe. In a forked child every method raises `AlreadyClosed`; make a reader in the child. A ``with``
    block closes the reader at the end. ``for`` returns the messages that are there, one after the other, and
    ends at the end of the topic, without waiting, or when the reader is closed; the next ``for`` continues
    there. ``async for`` of the reader of `embeddedpulsar.asyncio` does the same. To wait for messages, call
    `read_next`.

    A reader of a partitioned topic reads all partitions. Each partition keeps its order; there is no order
    between partitions, which take turns. Partitions added later join, from their first message on. With an id
    as its start, the partition of that message is read from there and the others from their beginning, so
    that no message is missed. `seek` to an id moves one partition, to a time or an end all of them.

    Example:
        >>> from embeddedpulsar import Client, MessageId
        >>> with Client("memory://") as client:
        ...     producer = client.create_producer("log")
        ...     ids = [producer.send(b"line %d" % i) for i in range(3)]
        ...     [message.data() for message in client.create_reader("log", ids[0])]
        [b'line 1', b'line 2']
        >>> with Client("memory://") as client:
        ...     reader = client.create_reader("log", MessageId.earliest)
        ...     reader.topic(), reader.is_connected()
        ...     reader.close()
        ...     reader.is_connected()
        ('persistent://public/default/log', True)
        False
    """

    _client: Any = None  # keeps the client alive

    def __init__(self, core: ReaderCore | ReaderGroup, chain: InterceptorChain | None = None) -> None:
        self._core = core
        self._receiver = core.receiver
        self._take = core.pop_message if core.receiver.has_fast_path else _nothing_to_take
        self._chain = chain
        if chain is not None:
            chain.bind(core.client, self)
            chain.begin()

    def _start(self) -> None:
        """Start timers and the listener: the reader is complete and registered with its client."""
        self._core.start()
        self._receiver.start(self)

    def topic(self) -> str:
        """Return the full name of the topic."""
        return self._core.topic_name

    def is_connected(self) -> bool:
        """Return whether the reader may read: True until it is closed."""
        return not self._core.delivery.closed_text

    def read_next(self, timeout_millis: int | None = None) -> Message[T]:
        """Return the next message, waiting for it.

        Args:
            timeout_millis: longest wait; None waits without limit, 0 does not wait.

        Raises:
            Timeout: no message came in time. Also a ``TimeoutError``.
            AlreadyClosed: the reader is closed, now or while waiting.
            InvalidConfiguration: the reader has a listener, or a timeout is given with a queue of size 0.
            Interrupted: Ctrl-C; also a ``KeyboardInterrupt``.

        Example:
            >>> from embeddedpulsar import Client, MessageId
            >>> with Client("memory://") as client:
            ...     message_id = client.create_producer("log").send(b"line")
            ...     client.create_reader("log", MessageId.earliest).read_next(timeout_millis=1000).data()
            b'line'
        """
        if timeout_millis is not None:
            check_type(int, timeout_millis, "timeout_millis")
        try:
            return self._take()
        except IndexError:
            return self._receiver.wait(timeout_millis)

    async def read_next_async(self) -> Message[T]:
        """Return the next message, awaiting it in an asyncio loop. Not in ``pulsar-client``.

        Coroutines of one loop are served in the order of their calls. A cancelled coroutine has taken no
        message.

        Raises:
            AlreadyClosed: the reader is closed, now or while waiting.
            InvalidConfiguration: the reader has a listener.

        Example:
            >>> import asyncio
            >>> from embeddedpulsar import Client, MessageId
            >>> async def main(client):
            ...     reader = client.create_reader("log", MessageId.earliest)
            ...     waiting = asyncio.create_task(reader.read_next_async())
            ...     message_id = client.create_producer("log").send(b"line")
            ...     return (await asyncio.wait_for(waiting, timeout=10)).data()
            >>> with Client("memory://") as client:
            ...     asyncio.run(main(client))
            b'line'
        """
        return self._receiver.passed(await self._receiver.awaited().receive())

    def read_nowait(self) -> Message[T] | None:
        """Return the next message if there is one, else None. Not in ``pulsar-client``.

        Example:
            >>> from embeddedpulsar import Client, MessageId
            >>> with Client("memory://") as client:
            ...     print(client.create_reader("log", MessageId.earliest).read_nowait())
            None
        """
        return self._receiver.poll()

    def has_message_available(self) -> bool:
        """Return whether `read_next` would return a message without waiting.

        Example:
            >>> from embeddedpulsar import Client, MessageId
            >>> with Client("memory://") as client:
            ...     reader = client.create_reader("log", MessageId.latest)
            ...     before = reader.has_message_available()
            ...     message_id = client.create_producer("log").send(b"line")
            ...     before, reader.has_message_available()
            (False, True)
        """
        return self._core.has_message_available()

    def seek(self, messageid: MessageId | int) -> None:
        """Continue reading at another position.

        Args:
            messageid: an id: reading continues after that message, or with it if the reader was made with
                ``start_message_id_inclusive``. Or an int: with the first message published at that time or
                later, in ms since 1970.

        Raises:
            ValueError: another type.
            OperationNotSupported: no partition has a message of that id.
            AlreadyClosed: the reader is closed.

        Example:
            >>> from embeddedpulsar import Client, MessageId
            >>> with Client("memory://") as client:
            ...     producer = client.create_producer("log")
            ...     ids = [producer.send(b"line %d" % i) for i in range(3)]
            ...     reader = client.create_reader("log", MessageId.latest)
            ...     reader.seek(ids[1])
            ...     reader.read_next().data()
            b'line 2'
        """
        with timing.translated:
            self._core.seek(checked_seek_target(messageid))

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return all messages from here to the end of the topic as a ``pyarrow.Table``, and move to the end.

        Whole columns are read from the mapped segments, many times faster than single messages; those of
        several partitions in sequence. Not in ``pulsar-client``.

        Args:
            columns: names from ``embeddedpulsar.arrow.ALL_COLUMNS``; default is all.

        Raises:
            ImportError: pyarrow is missing; the text says how to install it.
            CryptoError: messages are encrypted and the reader has no key for them. With the failure action
                DISCARD they are skipped.
            ForeignFileError: the store is in memory, so there are no segments to read.
            AlreadyClosed: the reader is closed.

        Example:
            >>> from embeddedpulsar import Client, MessageId
            >>> with Client("./data") as client:
            ...     message_ids = client.create_producer("sales").send_many([b"tea", b"cake"])
            ...     reader = client.create_reader("sales", MessageId.earliest)
            ...     reader.to_arrow(["value"])["value"].to_pylist()
            [b'tea', b'cake']
        """
        self._receiver.check()
        return self._core.to_arrow(columns)

    def close(self) -> None:
        """Close the reader.

        Raises:
            AlreadyClosed: it was closed before.
        """
        with timing.translated:
            self._core.close()
        self._core.client.forget_consumer(self)
        if self._chain is not None:
            self._chain.close()

    def _save(self) -> None:
        """Does nothing at the end of the program: a reader stores nothing."""

    def __iter__(self) -> Iterator[Message[T]]:
        while True:
            try:
                message = self.read_nowait()
            except AlreadyClosed:
                return
            if message is None:
                return
            yield message

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_connected():
            self.close()

    def __repr__(self) -> str:
        state = "open" if self.is_connected() else "closed"
        return f"<Reader {self._core.config.name} on {self.topic()} {state}>"


def _nothing_to_take() -> Any:
    """The fast path of a reader whose messages take the slow path."""
    raise IndexError


_MANY: Final = 1 << 30
_DISCARD, _FAIL = ConsumerCryptoFailureAction.DISCARD, ConsumerCryptoFailureAction.FAIL


class ReaderCore:
    """The operations of the reader of one topic.

    Role: reads on from its position in the log, which is kept in memory only. After a fork the child's copy
    is closed, because the fetched messages and the position belong to the parent.
    """

    def __init__(self, client: ClientContext, config: ReaderConfig) -> None:
        self.client = client
        self.config = config
        self._close_guard = CloseGuard(client)
        self._use = client.use_topic(config.topic, to_look=client.store.is_read_only)
        try:
            opened = OPENED.get()
            if opened is not None:
                opened.append(self._close_opened)
            self._begin(self._use.topic)
        except BaseException:
            self._use.release()
            raise
        fork.register(self)

    def _close_opened(self) -> None:
        """Close the reader of an interrupted call, if it had begun."""
        if getattr(self, "receiver", None) is not None:
            self.close()

    def _begin(self, topic: Topic) -> None:
        client, config = self.client, self.config
        check_subscription_type(topic, ConsumerType.Exclusive)
        self.topic_name = topic.name
        self.ledger = topic.ledger
        self._source = topic.compaction if config.is_read_compacted else topic.ledger
        first = self._stand_at(config.start)
        decryption = Decryption(
            client,
            topic.name,
            config.key_reader,
            config.crypto_failure_action,
            f"The reader {config.name}",
            self._fetch,
        )
        self._chunks = topic.ledger.chunks()
        self._chunks.reader.opened = decryption.open
        origin = origin_of(lambda: client.store, topic.name, config.schema)
        self.writers = origin.writers
        self._queue = ReceiverQueue(
            decryption.fetch,
            config.receiver_queue_size,
            origin,
        )
        self._queue.start_within(*first)
        self.delivery = Delivery(self._queue, topic.ledger, client.store.mailbox, client.store.clock)
        clock, call_later = client.store.clock, client.scheduler.call_later
        self._follows = rate_follower(topic, clock, None, self._queue, self.delivery, call_later)
        self.pop_message = self._queue.pop_message
        self.receiver = MessageReceiver(client, config, self.delivery, self.pop_message)

    @property
    def readers(self) -> list[ReaderCore]:
        """The readers of the single topics, as those of a `ReaderGroup`."""
        return [self]

    def start(self) -> None:
        """Do nothing: the partitions of a topic are watched by `ReaderGroup`."""

    def _stand_at(self, target: MessageId | int) -> tuple[int, int, int]:
        """Continue at an id or a time. Returns the entry and its first message to deliver."""
        ledger = self.ledger
        if ledger.is_volatile:  # whatever is asked for: only what is sent from now on
            target = MessageId.latest
        if isinstance(target, int):
            position, inclusive, first = self._source.find_by_publish_time(target), True, 0
        else:
            position, inclusive, first = resolve(ledger, target, self.config.start_inclusive)
        if self.config.reads_uncommitted:
            self._cursor = ledger.cursor(position, inclusive=inclusive, isolation=Isolation.UNCOMMITTED)
        else:
            self._cursor = self._source.cursor(position, inclusive=inclusive)
        self._floor = None
        if isinstance(target, int) or 0 <= target._ledger < LARGEST_ID:
            # The reader waits for an id that does not exist yet.
            last = last_or_start(ledger)
            if position.ledger_id == last.ledger_id and position > last:
                self._floor = Position(position.ledger_id, position.entry_id + (not inclusive))
        return position.ledger_id, position.entry_id, first

    def _fetch(self, most: int, most_bytes: int) -> list[EntryView]:
        views = self._read(most, most_bytes)
        while (floor := self._floor) is not None and views:
            wanted = [view for view in views if (view.ledger_id, view.entry_id) >= floor]
            if wanted:
                self._floor = None
                return wanted
            views = self._read(most, most_bytes)
        return views

    def _read(self, most: int, most_bytes: int) -> list[EntryView]:
        while has_chunks(views := self._cursor.read(_MANY, most, most_bytes)):
            views, rest = self._chunks.complete(views, most_bytes)
            if rest is not None:
                self._cursor.seek(Position(rest.ledger_id, rest.entry_id))
            if views:
                break
        return views

    def compacted_columns(self) -> Iterator[tuple[Sequence[str | None], bytes, Sequence[int]]]:
        """The keys, payloads and offsets of whole blocks that compaction left, as long as such come next. For
        a reader that nothing was read from yet. Encrypted entries are left out."""
        take: Callable[[], Block | None] | None = getattr(self._cursor, "take_block", None)
        while take is not None and (block := take()) is not None:
            content = block.content
            keys = None if block.is_sealed else content.keys()
            if keys is not None:
                yield keys, content.payload, content.offsets

    def has_message_available(self) -> bool:
        queue = self._queue
        self.delivery.check_open()
        if queue.messages:
            return True
        try:
            queue.lock.acquire()
            return queue.fill() or (queue.is_throttled and not self._cursor.is_at(self.ledger.tail))
        finally:
            queue.lock.release()

    def seek(self, target: MessageId | int) -> None:
        queue = self._queue
        try:
            queue.lock.acquire()
            self.delivery.check_open()
            first = self._stand_at(target)
            queue.clear()
            queue.start_within(*first)
        finally:
            queue.lock.release()
        self.delivery.renew()

    def to_arrow(self, columns: Sequence[str] | None) -> pa.Table:
        if self.config.is_read_compacted:
            raise NotAllowedError("to_arrow() reads the log; make a reader without is_read_compacted")
        if self.config.reads_uncommitted:
            raise NotAllowedError("to_arrow() reads what is committed; make a reader without isolation")
        from embeddedpulsar import arrow  # pyarrow is large, and rarely needed

        queue, store = self._queue, self.client.store
        try:
            queue.lock.acquire()
            if not queue.is_dry and queue.fill():
                start = queue.messages[0].message_id()
            else:
                ledger, entry = max(self._cursor.position, self._floor or BEFORE_FIRST)
                start = make(ledger, entry, queue.first_within(ledger, entry) or -1, -1, 0)
            last = last_or_start(self.ledger)
            end = make(last.ledger_id, last.entry_id + 1, -1, -1, 0)
            table = arrow.read_topic(
                store.root,
                self.topic_name,
                columns,
                start=min(start, end),
                end=end,
                crypto_key_reader=self.config.key_reader,
                crypto_failure_action=_DISCARD if self.config.crypto_failure_action == _DISCARD else _FAIL,
            )
            self._cursor = self.ledger.cursor(last, inclusive=False)
            queue.clear()
        finally:
            queue.lock.release()
        return table

    def close(self) -> None:
        """Close the reader.

        Raises:
            AlreadyClosed: it was closed before.
        """
        if not self._close_guard.begin(self.delivery.closed_text):
            return
        self.delivery.close("the reader is closed; make a new one")
        self.receiver.stop()
        self.client.wake()
        self._use.topic.policies.unlisten(self._follows)
        self._use.release()

    def after_fork_in_child(self) -> None:
        self._queue.after_fork_in_child()
        self._close_guard.after_fork_in_child()
        self.delivery.close_in_child(f"the reader {self.config.name}", self.config.words.again)
