"""What the objects of a cluster share: that of ``pulsar-client``, its topic, and the end. Its messages,
and how coroutines wait for them while ``pulsar-client`` fetches.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any, Final, cast

from embeddedpulsar._engine.platform import threads
from embeddedpulsar.cluster.translation import failure, from_message_id, library, not_supported, translated
from embeddedpulsar.encryption import EncryptedKey, EncryptionContext, EncryptionFacts
from embeddedpulsar.exceptions import AlreadyClosed
from embeddedpulsar.message import Message, T
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.schema import SchemaInfo


class ClusterMessage(Message[T]):
    """`Message` over the message of ``pulsar-client``."""

    __slots__ = ("theirs",)

    def __init__(self, theirs: Any) -> None:
        self.theirs = theirs

    def data(self) -> bytes:
        return cast("bytes", self.theirs.data())

    def value(self) -> T:
        # By the schema of this package, which `pulsar-client` got inside of an adapter
        # (`translation._adapter`).
        return cast("T", self.theirs._schema.ours.decode_message(self))

    def writer_schema(self) -> SchemaInfo | None:
        schema: SchemaInfo | None = self.theirs._schema.writer_of(self.theirs._message)
        return schema

    def message_id(self) -> MessageId:
        return from_message_id(self.theirs.message_id(), self.topic_name())

    def topic_name(self) -> str:
        return str(self.theirs.topic_name())

    def properties(self) -> dict[str, str]:
        return dict(self.theirs.properties())

    def partition_key(self) -> str:
        return str(self.theirs.partition_key())

    def ordering_key(self) -> str:
        return str(self.theirs.ordering_key())

    def publish_timestamp(self) -> int:
        return int(self.theirs.publish_timestamp())

    def event_timestamp(self) -> int:
        return int(self.theirs.event_timestamp())

    def redelivery_count(self) -> int:
        return int(self.theirs.redelivery_count())

    def schema_version(self) -> str:
        return str(self.theirs.schema_version())

    def producer_name(self) -> str:
        return str(self.theirs.producer_name())

    def sequence_id(self) -> int:
        raise not_supported("Message.sequence_id()", "put the number into a property")

    def has_null_value(self) -> bool:
        return bool(self.theirs.has_null_value())

    def encryption_context(self) -> EncryptionContext | None:
        theirs = self.theirs.encryption_context()
        if theirs is None:
            return None
        # The empty text is the initialization vector, which `pulsar-client` does not give out.
        return EncryptionContext(
            EncryptionFacts(
                tuple(EncryptedKey(key.key, key.value, key.metadata) for key in theirs.keys()),
                theirs.param(),
                int(theirs.compression_type()),
                theirs.uncompressed_message_size(),
                theirs.batch_size(),
                b"",
                theirs.is_decryption_failed(),
            )
        )

    def replace(self, *, data: bytes | None = None, properties: dict[str, str] | None = None) -> Message[T]:
        raise not_supported("Message.replace()", "there are no interceptors")


class AwaitedMessages:
    """Gives the messages of one consumer or reader to coroutines, in the order in which they asked.

    Role: a request to ``pulsar-client`` cannot be taken back, and a coroutine that is cancelled has taken no
    message. So requests belong to no coroutine. A message is put into a queue, and a coroutine is woken,
    which takes the first message when it runs; if it is cancelled before, the next one is woken. Messages
    that no coroutine waits for are kept for the next call. There is one request at a time:
    ``pulsar-client`` may answer several of them in another order. A blocking call beside a request may get
    the message behind that of the request. Any thread may call the methods.

    Args:
        request: asks for one message, as ``request(callback)``; the callback gets a result and the message.
        wrap: makes the message of this package.
    """

    def __init__(self, request: Callable[[Any], object], wrap: Callable[[Any], Any]) -> None:
        self._request: Final = request
        self._wrap: Final = wrap
        self._lock = threads.RLock()  # guards all that follows
        self._kept: deque[Any] = deque()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._woken = 0  # coroutines that will take a message when they run
        self._is_requested = False
        self._is_asking = False  # a thread is in the loop of `_ask`

    def take_kept(self) -> Any:
        """Return a message that a cancelled coroutine left; None if there is none."""
        try:
            self._lock.acquire()
            # Messages that woken coroutines are about to take are not free: a call that took one would leave
            # a coroutine without.
            return self._kept.popleft() if len(self._kept) > self._woken else None
        finally:
            self._lock.release()

    async def next(self) -> Any:
        """Return the next message, awaited."""
        kept = self.take_kept()
        if kept is not None:
            return kept
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            self._lock.acquire()
            self._waiting.append(future)
        finally:
            self._lock.release()
        self._ask()
        try:
            await future
        except asyncio.CancelledError:
            # Woken and cancelled in the same turn of the loop: its message goes to the next one.
            if future.done() and not future.cancelled() and future.exception() is None:
                self._pass_on()
            raise
        try:
            self._lock.acquire()
            self._woken -= 1
            return self._kept.popleft()
        finally:
            self._lock.release()

    def _ask(self) -> None:
        """Request messages as long as there are fewer than coroutines."""
        # A loop and no recursion: an answer that comes within `_request` only ends the request, and the loop
        # asks for the next.
        while self._may_ask():
            self._request(self._on_message)  # which may call back at once, in this thread
            self._is_asking = False

    def _may_ask(self) -> bool:
        try:
            self._lock.acquire()
            # Every coroutine that waits or is about to take needs a message, of those that are kept or
            # requested.
            waiting = self._woken + sum(not future.done() for future in self._waiting)
            if self._is_requested or self._is_asking or len(self._kept) >= waiting:
                return False
            self._is_requested = self._is_asking = True
            return True
        finally:
            self._lock.release()

    def _on_message(self, result: Any, theirs: Any) -> None:
        """Called on a thread of ``pulsar-client``, once for each request."""
        is_message = result.name == "Ok"
        message = self._wrap(theirs) if is_message else None
        try:
            self._lock.acquire()
            self._is_requested = False
            if is_message:
                self._kept.append(message)
        finally:
            self._lock.release()
        # After the lock: waking runs code of a loop.
        self._wake(None if is_message else failure(result))
        self._ask()

    def _pass_on(self) -> None:
        """A coroutine that was woken takes no message: wake another one."""
        try:
            self._lock.acquire()
            self._woken -= 1
        finally:
            self._lock.release()
        self._wake(None)

    def _wake(self, error: Exception | None) -> None:
        """Let the coroutine that has waited longest take a message, or raise the error."""
        try:
            self._lock.acquire()
            future = None
            while self._waiting and future is None:
                # Cancelled coroutines, and those of a loop that was closed, are passed over.
                first = self._waiting.popleft()
                future = None if first.done() or first.get_loop().is_closed() else first
            if future is None:
                return
            self._woken += error is None
        finally:
            self._lock.release()
        chosen = future

        def complete() -> None:
            if chosen.done():  # cancelled meanwhile
                if error is None:
                    self._pass_on()
            elif error is None:
                chosen.set_result(None)
            else:
                chosen.set_exception(error)

        try:
            # A future belongs to its loop, and is completed in its thread.
            chosen.get_loop().call_soon_threadsafe(complete)
        except RuntimeError:  # the loop was closed meanwhile
            if error is None:
                self._pass_on()


class ClusterHandle:
    """An object over one of ``pulsar-client``, which is closed once."""

    def __init__(self, theirs: Any) -> None:
        self.theirs = theirs
        self._is_closed = False

    def close(self) -> None:
        if self._is_closed:
            raise AlreadyClosed  # pulsar-client raises a ValueError of a list
        self._is_closed = True
        with translated:
            self.theirs.close()

    def __exit__(self, *_: object) -> None:
        if not self._is_closed:
            with contextlib.suppress(AlreadyClosed):  # with its client, or by unsubscribe
                self.close()


class ClusterSource(ClusterHandle):
    """A consumer or reader, with the messages that coroutines wait for.

    Args:
        theirs: that of ``pulsar-client``.
        request: asks it for one message, as `AwaitedMessages` does.
    """

    def __init__(self, theirs: Any, request: Callable[[Any], object]) -> None:
        super().__init__(theirs)
        self._awaited = AwaitedMessages(request, self._wrapped)

    def _wrapped(self, raw: Any) -> ClusterMessage[Any]:
        message = library().Message()
        # As `pulsar-client` makes its own messages: its Python class around the raw one, with the schema of
        # the consumer.
        message._message, message._schema = raw, self.theirs._schema
        return ClusterMessage(message)

    def topic(self) -> str:
        return str(self.theirs.topic())

    def is_connected(self) -> bool:
        return bool(self.theirs.is_connected())
