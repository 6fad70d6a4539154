"""The reader: messages of a topic without a subscription. Hot: benchmarks measure `Reader.read_next`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Self

from embeddedpulsar._engine.platform import interrupts
from embeddedpulsar.client.common.arguments import check_type, checked_seek_target
from embeddedpulsar.client.common.process_bound import ProcessBound
from embeddedpulsar.exceptions import AlreadyClosed
from embeddedpulsar.message import T

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from embeddedpulsar.client.common.interceptor_chain import InterceptorChain
    from embeddedpulsar.client.consumer.reader_core import ReaderCore
    from embeddedpulsar.client.consumer.topic_group.topic_group import ReaderGroup
    from embeddedpulsar.message import Message
    from embeddedpulsar.message_id import MessageId


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
        self._take = core.take if core.receiver.has_fast_path else _nothing_to_take
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
        with interrupts.translated:
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
        with interrupts.translated:
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
