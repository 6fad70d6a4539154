"""The reader: messages of a topic without a subscription. Hot: benchmarks measure `Reader.read_next`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Generic

from embeddedpulsar.client.common.arguments import check_type, checked_seek_target
from embeddedpulsar.client.common.close_guard import CloseGuard
from embeddedpulsar.client.common.value_type import T
from embeddedpulsar.client.consumer.async_receiver import AsyncReceiver
from embeddedpulsar.client.consumer.consumer_session import MessageOrigin, last_or_start, resolve
from embeddedpulsar.client.consumer.decryption import Decryption
from embeddedpulsar.client.consumer.delivery import Delivery
from embeddedpulsar.client.consumer.listener import ListenerTarget
from embeddedpulsar.client.consumer.receiver_queue import ReceiverQueue
from embeddedpulsar.enums import ConsumerCryptoFailureAction
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.managed_ledger.chunk_assembler import has_chunks
from embeddedpulsar.managed_ledger.position import BEFORE_FIRST, Position
from embeddedpulsar.message_id import MessageId, make
from embeddedpulsar.platform import fork, interrupts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType

    import pyarrow as pa

    from embeddedpulsar.client.common.client_context import ClientContext
    from embeddedpulsar.client.consumer.consumer_config import ReaderConfig
    from embeddedpulsar.format.entry import EntryView
    from embeddedpulsar.message import Message
    from embeddedpulsar.topic.topic import Topic

_MANY = 1 << 30
_DISCARD, _FAIL = ConsumerCryptoFailureAction.DISCARD, ConsumerCryptoFailureAction.FAIL


class Reader(Generic[T]):
    """Reads a topic from a given position. Made by `Client.create_reader`.

    A reader has no subscription: it acknowledges nothing, and does not prevent the removal of messages. Any
    number of readers may read one topic. Its position is not stored.

    Thread-safe. In a forked child every method raises `AlreadyClosed`; make a reader in the child. A ``with``
    block closes the reader at the end. As an iterator it returns the existing messages, and ends at the end
    of the topic.

    Example:
        >>> from embeddedpulsar import Client
        >>> with Client("memory://") as client:
        ...     producer = client.create_producer("log")
        ...     ids = [producer.send(b"line %d" % i) for i in range(3)]
        ...     [message.data() for message in client.create_reader("log", ids[0])]
        [b'line 1', b'line 2']
    """

    _client: Any = None  # keeps the client alive
    _waits_for_ever = False  # whether time limits are refused

    def __init__(self, core: ClientContext, config: ReaderConfig) -> None:
        self._use = core.use_topic(config.topic)
        try:
            self._begin(core, config, self._use.topic)
        except BaseException:
            self._use.release()
            raise
        self._in_child = fork.InChild(self._after_fork_in_child)

    def _begin(self, core: ClientContext, config: ReaderConfig, topic: Topic) -> None:
        prefix = f"{config.role_prefix}-" if config.role_prefix else ""
        self._name = config.name or f"{prefix}reader-{os.urandom(5).hex()}"
        self._core = core
        self._close_guard = CloseGuard(core)
        self._config = config
        self._topic_name = topic.name
        self._ledger = topic.ledger
        first = self._stand_at(config.start)
        decryption = Decryption(
            core,
            topic.name,
            config.key_reader,
            config.crypto_failure_action,
            f"The reader {self._name}",
            self._fetch,
        )
        self._waits_for_ever = config.receiver_queue_size == 0
        self._chunks = topic.ledger.chunks()
        self._chunks.opened = decryption.open
        self._queue = ReceiverQueue(
            decryption.fetch, config.receiver_queue_size, MessageOrigin(topic.name, config.schema)
        )
        self._queue.start_within(*first)
        self._delivery = Delivery(self._queue, topic.ledger, core.store.mailbox, core.store.clock)
        self._take = self._taken = self._queue.take
        self._awaited: AsyncReceiver | None = None
        self._listener: ListenerTarget | None = None
        if config.listener is not None:
            self._take = nothing_to_take
            self._listener = ListenerTarget(self, config.listener, self._delivery, self._queue.take, core.log)

    def _start(self) -> None:
        """Start the listener: the reader is complete and registered with its client."""
        if self._listener is not None:
            self._core.listeners.add(self._listener)

    def _stand_at(self, target: MessageId | int) -> tuple[int, int, int]:
        """Continue at an id or a time. Returns the entry and its first message to deliver."""
        ledger = self._ledger
        if isinstance(target, int):
            position, inclusive, first = ledger.find_by_publish_time(target), True, 0
        else:
            position, inclusive, first = resolve(ledger, target, self._config.start_inclusive)
        self._cursor = ledger.cursor(position, inclusive=inclusive)
        # The reader waits for an id that does not exist yet.
        last = last_or_start(ledger)
        is_beyond = position.ledger_id == last.ledger_id and position > last
        self._floor = Position(position.ledger_id, position.entry_id + (not inclusive)) if is_beyond else None
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

    def topic(self) -> str:
        """Return the full name of the topic."""
        return self._topic_name

    def is_connected(self) -> bool:
        """Return whether the reader may read: True until it is closed."""
        return not self._delivery.closed_text

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
            >>> from embeddedpulsar import Client
            >>> with Client("memory://") as client:
            ...     message_id = client.create_producer("log").send(b"line")
            ...     client.create_reader("log", MessageId.earliest).read_next(timeout_millis=1000).data()
            b'line'
        """
        if timeout_millis is not None:
            check_type(int, timeout_millis, "timeout_millis")
            if self._waits_for_ever:
                self._check_can_read()
                raise InvalidConfiguration("read_next() takes no timeout with receiver_queue_size=0")
        try:
            return self._take()
        except IndexError:
            self._check_can_read()
        with interrupts.translated:
            return self._delivery.wait(self._taken, timeout_millis)

    async def read_next_async(self) -> Message[T]:
        """Return the next message, awaiting it in an asyncio loop. Not in ``pulsar-client``.

        Coroutines of one loop are served in the order of their calls. A cancelled coroutine has taken no
        message.

        Raises:
            AlreadyClosed: the reader is closed, now or while waiting.
            InvalidConfiguration: the reader has a listener.
        """
        self._check_can_read()
        if self._awaited is None:
            self._awaited = AsyncReceiver(self._delivery, self._taken, self._core.store.mailbox)
        return await self._awaited.receive()

    def read_nowait(self) -> Message[T] | None:
        """Return the next message if there is one, else None. Not in ``pulsar-client``."""
        self._check_can_read()
        return self._delivery.poll_once(self._taken)

    def has_message_available(self) -> bool:
        """Return whether `read_next` would return a message without waiting.

        Example:
            >>> from embeddedpulsar import Client
            >>> with Client("memory://") as client:
            ...     reader = client.create_reader("log", MessageId.latest)
            ...     before = reader.has_message_available()
            ...     message_id = client.create_producer("log").send(b"line")
            ...     before, reader.has_message_available()
            (False, True)
        """
        queue = self._queue
        self._delivery.check_open()
        if queue.messages:
            return True
        try:
            queue.lock.acquire()
            return queue.fill()
        finally:
            queue.lock.release()

    def seek(self, messageid: MessageId | int) -> None:
        """Continue reading at another position.

        Args:
            messageid: an id: reading continues after that message, or with it if the reader was made with
                ``start_message_id_inclusive``. Or an int: with the first message published at that time or
                later, in ms since 1970.

        Raises:
            ValueError: another type.
            AlreadyClosed: the reader is closed.

        Example:
            >>> from embeddedpulsar import Client
            >>> with Client("memory://") as client:
            ...     producer = client.create_producer("log")
            ...     ids = [producer.send(b"line %d" % i) for i in range(3)]
            ...     reader = client.create_reader("log", MessageId.latest)
            ...     reader.seek(ids[1])
            ...     reader.read_next().data()
            b'line 2'
        """
        target = checked_seek_target(messageid)
        queue = self._queue
        with interrupts.translated:
            try:
                queue.lock.acquire()
                self._delivery.check_open()
                first = self._stand_at(target)
                queue.clear()
                queue.start_within(*first)
            finally:
                queue.lock.release()
        self._delivery.renew()

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return all messages from here to the end of the topic as a ``pyarrow.Table``, and move to the end.

        Whole columns are read from the mapped segments, many times faster than single messages. Not in
        ``pulsar-client``.

        Args:
            columns: names from ``embeddedpulsar.arrow.ALL_COLUMNS``; default is all.

        Raises:
            ImportError: pyarrow is missing; the text says how to install it.
            CryptoError: messages are encrypted and the reader has no key for them. With the failure action
                DISCARD they are skipped.
            AlreadyClosed: the reader is closed.
        """
        self._check_can_read()
        from embeddedpulsar import arrow  # pyarrow is large, and rarely needed

        queue = self._queue
        try:
            queue.lock.acquire()
            if queue.messages:
                start = queue.messages[0].message_id()
            else:
                ledger, entry = max(self._cursor.position, self._floor or BEFORE_FIRST)
                start = make(ledger, entry, queue.first_within(ledger, entry) or -1, -1, 0)
            last = last_or_start(self._ledger)
            end = make(last.ledger_id, last.entry_id + 1, -1, -1, 0)
            table = arrow.read_topic(
                self._core.store.root,
                self._topic_name,
                columns,
                start=min(start, end),
                end=end,
                crypto_key_reader=self._config.key_reader,
                crypto_failure_action=_DISCARD if self._config.crypto_failure_action == _DISCARD else _FAIL,
            )
            self._cursor = self._ledger.cursor(last, inclusive=False)
            queue.clear()
        finally:
            queue.lock.release()
        return table

    def close(self) -> None:
        """Close the reader.

        Raises:
            AlreadyClosed: it was closed before.
        """
        if not self._close_guard.begin(self._delivery.closed_text):
            return
        self._delivery.close("the reader is closed; make a new one")
        if self._listener is not None:
            self._core.listeners.remove(self._listener)
        self._core.wake()
        self._use.release()
        self._core.forget_consumer(self)

    def _save(self) -> None:
        """Does nothing at the end of the program: a reader stores nothing."""

    def _check_can_read(self) -> None:
        self._delivery.check_open()
        if self._listener is not None:
            raise InvalidConfiguration("this reader has a listener, which gets the messages")

    def _after_fork_in_child(self) -> None:
        """Close the child's copy: the fetched messages and the position belong to the parent."""
        self._queue.after_fork_in_child()
        self._close_guard.after_fork_in_child()
        if not self._delivery.closed_text:
            self._delivery.closed_text = (
                f"the reader {self._name} belongs to the parent of this forked process; make one in the child"
            )

    def __iter__(self) -> Iterator[Message[T]]:
        while (message := self.read_nowait()) is not None:
            yield message

    def __enter__(self) -> Reader[T]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.is_connected():
            self.close()

    def __repr__(self) -> str:
        return f"<Reader {self._name} on {self._topic_name} {'open' if self.is_connected() else 'closed'}>"


def nothing_to_take() -> Any:
    """The fast path of a reader with a listener, which gets the messages instead."""
    raise IndexError
