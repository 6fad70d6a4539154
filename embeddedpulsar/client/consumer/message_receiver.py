"""The ways in which an application gets messages: by a call that waits, in a coroutine, or by a listener."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from embeddedpulsar.client.consumer.async_receiver import AsyncReceiver
from embeddedpulsar.client.consumer.listener import ListenerTarget
from embeddedpulsar.exceptions import AlreadyClosed, InvalidConfiguration
from embeddedpulsar.platform import interrupts

if TYPE_CHECKING:
    from collections.abc import Callable

    from embeddedpulsar.client.common.client_context import ClientContext
    from embeddedpulsar.client.consumer.consumer_config import ConsumerConfig, ReaderConfig
    from embeddedpulsar.client.consumer.delivery import Source
    from embeddedpulsar.message import Message


class MessageReceiver:
    """Receives for one consumer or reader, of one topic or of several.

    Role: everything but the fast path of `Consumer.receive` and `Reader.read_next`. It refuses calls that
    ``pulsar-client`` refuses, takes messages of ``source`` by ``take``, and passes them to the interceptors,
    with no lock held. Any thread may call the methods.
    """

    __slots__ = ("_awaited", "_client", "_config", "_listener", "_source", "_take")

    def __init__(
        self,
        client: ClientContext,
        config: ConsumerConfig | ReaderConfig,
        source: Source,
        take: Callable[[], Message[Any]],
    ) -> None:
        self._client = client
        self._config = config
        self._source = source
        self._take = take
        self._awaited: AsyncReceiver | None = None
        self._listener: ListenerTarget | None = None

    @property
    def has_fast_path(self) -> bool:
        """Whether a fetched message may go to the application without `check` and `passed`."""
        config = self._config
        return config.listener is None and config.chain is None and config.receiver_queue_size > 0

    def check(self, timeout_ms: int | None = None) -> None:
        """Refuse to receive for a closed consumer, one with a listener, or with a time limit and no queue."""
        if self._source.closed_text:
            raise AlreadyClosed(self._source.closed_text)
        config = self._config
        if config.listener is not None:
            raise InvalidConfiguration(f"this {config.words.noun} has a listener, which gets the messages")
        if timeout_ms is not None and config.receiver_queue_size == 0:
            raise InvalidConfiguration(
                f"{config.words.receiving} takes no timeout with receiver_queue_size=0"
            )

    def wait(self, timeout_ms: int | None) -> Message[Any]:
        with interrupts.translated:
            self.check(timeout_ms)
            message = self._source.wait(self._take, timeout_ms)
        return self.passed(message)

    def poll(self) -> Message[Any] | None:
        self.check()
        message = self._source.poll_once(self._take)
        return None if message is None else self.passed(message)

    def awaited(self) -> AsyncReceiver:
        """Return the receiver of coroutines, whose messages are not `passed` yet."""
        self.check()
        awaited = self._awaited
        if awaited is None:
            mailbox = self._client.store.mailbox
            awaited = self._awaited = AsyncReceiver(self._source, self._take, mailbox)
        return awaited

    def passed(self, message: Message[Any]) -> Message[Any]:
        """Return a message as the interceptors want the application to see it."""
        chain = self._config.chain
        return message if chain is None else chain.before_delivery(message, self._config.words.hook)

    # -- listener ----------------------------------------------------------------------------------------

    def start(self, owner: object) -> None:
        """Start calling the listener, if there is one, with ``owner`` as its first argument."""
        listener = self._config.listener
        if listener is not None:
            target = ListenerTarget(owner, listener, self._source, self._take, self._client.log)
            self._listener = target
            self._client.listeners.add(target)

    def stop(self) -> None:
        if self._listener is not None:
            self._client.listeners.remove(self._listener)

    def set_paused(self, is_paused: bool) -> None:
        """Stop calling the listener, or continue.

        Raises:
            InvalidConfiguration: there is no listener.
        """
        if self._listener is None:
            raise InvalidConfiguration(f"this {self._config.words.noun} has no listener to pause or resume")
        self._listener.is_paused = is_paused
        if not self._source.closed_text:  # a closed client has no thread left to wake
            self._client.wake()
