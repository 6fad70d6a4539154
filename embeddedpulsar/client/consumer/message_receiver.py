"""The ways in which an application gets messages: by a call that waits, in a coroutine, or by a listener."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from embeddedpulsar._engine.platform import timing
from embeddedpulsar._engine.platform.descriptors import late_imports
from embeddedpulsar._engine.platform.timing import LONGEST_S, TURN_S, Backoff, within
from embeddedpulsar.client.consumer.delivery import NEVER_S, REAL_TIME
from embeddedpulsar.exceptions import AlreadyClosed, InvalidConfiguration, LockTimeout, Timeout
from embeddedpulsar.records import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any, Final

    from embeddedpulsar._engine.platform.mailbox import Mailbox
    from embeddedpulsar.client.client_context import ClientContext
    from embeddedpulsar.client.consumer.consumer_config import ConsumerConfig, ReaderConfig
    from embeddedpulsar.client.consumer.delivery import Source
    from embeddedpulsar.client.consumer.listener import ListenerTarget
    from embeddedpulsar.message import Message
    from embeddedpulsar.policies import BatchReceivePolicy


_IN_A_ROW: Final = 64


class MessageReceiver:
    """Receives for one consumer or reader, of one topic or of several.

    Role: everything but the fast path of `Consumer.receive` and `Reader.read_next`. It refuses calls that
    ``pulsar-client`` refuses, takes messages of ``source`` by ``take``, and passes them to the interceptors,
    with no lock held. Any thread may call the methods. ``on_failure`` is called with what a listener raises.
    """

    __slots__ = ("_awaited", "_client", "_config", "_listener", "_on_failure", "_source", "_take")

    def __init__(
        self,
        client: ClientContext,
        config: ConsumerConfig | ReaderConfig,
        source: Source,
        take: Callable[[], Message[Any]],
        on_failure: Callable[[Message[Any], BaseException], object] | None = None,
    ) -> None:
        self._client = client
        self._on_failure = on_failure
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
        try:
            self.check(timeout_ms)
            message = self._source.wait(self._take, timeout_ms)
        except BaseException as error:
            timing.translate(error)
            raise
        return message if self._config.chain is None else self.passed(message)

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
            self._listener = self.target(owner, listener)
            self._client.listeners.add(self._listener)

    @property
    def mailbox(self) -> Mailbox:
        """The doorbell of this process, which rings when messages may be there."""
        return self._client.store.mailbox

    def target(self, owner: object, listener: Callable[[Any, Any], object]) -> ListenerTarget:
        """Return what calls ``listener`` with the messages, by turns that its user gives it."""
        with late_imports():  # few consumers have one
            from embeddedpulsar.client.consumer.listener import ListenerTarget
        return ListenerTarget(owner, listener, self._source, self._take, self._client.log, self._on_failure)

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


class AsyncReceiver:
    """Lets coroutines await the messages of one consumer.

    Role: the waiting coroutines of one loop form a queue. They are served in order, and only the head of the
    queue looks for messages and requests wake-ups. A message is taken and returned in one step without an
    await, so a cancelled coroutine has taken no message. A coroutine that leaves the queue, cancelled or
    served, wakes the next. The loop waits for no lock: a lock that is held is tried again after 1 to 50 ms.

    Called in the threads of the loops. Several loops may use one consumer.
    """

    __slots__ = ("_in_a_row", "_lines", "_mailbox", "_source", "_take")

    def __init__(self, source: Source, take: Callable[[], Message[Any]], mailbox: Mailbox) -> None:
        self._source = source
        self._take = take
        self._mailbox = mailbox
        self._lines: dict[Any, _Line] = {}
        self._in_a_row = 0

    async def receive(self) -> Message[Any]:
        """Return the next message, waiting for it.

        Raises:
            AlreadyClosed: the consumer is closed, now or while waiting.
        """
        import asyncio

        self._in_a_row += 1
        if self._in_a_row >= _IN_A_ROW:
            self._in_a_row = 0
            await asyncio.sleep(0)  # a queue of available messages must not starve other tasks of the loop
        loop = asyncio.get_running_loop()
        line = self._lines.get(loop)
        if line is None:
            try:
                return self._take()
            except IndexError:
                message = self._poll()
            if message is not None:
                return message
            line = self._lines[loop] = _Line(loop)
        return await self._wait(line)

    def _poll(self) -> Message[Any] | None:
        try:
            return timing.try_now(self._source.poll, self._take)
        except LockTimeout:
            return None

    async def _wait(self, line: _Line) -> Message[Any]:
        source, mailbox = self._source, self._mailbox
        place = _Place()
        begun = line.loop.time()
        seen: Any = None
        message: Message[Any] | None = None
        line.places.append(place)
        try:
            if not line.is_rung:
                line.is_rung = True
                mailbox.add_loop(line.loop, line.wake)
            while True:
                # The receivers of one event loop stand in a line: the first polls, the others sleep. One
                # that leaves it, with a message or by a cancellation, wakes the next one below.
                if line.places[0] is place:
                    if seen is None or line.has_news or line.backoff.pause_s or source.has_news(seen):
                        line.has_news = False
                        seen = source.tail
                        try:
                            message = timing.try_now(source.poll, self._take)
                            if message is not None:
                                return message
                            if not timing.try_now(source.request_wakeup, seen, place):
                                line.has_news = True
                                continue
                            line.backoff.reset()
                        except LockTimeout:
                            line.backoff.next()
                    pause_s = line.backoff.pause_s or NEVER_S
                    nap_s = source.back_stop(line.loop.time() - begun)
                    line.wake_within(min(nap_s, source.due_in_s(), pause_s))
                mailbox.tend()
                place.future = line.loop.create_future()
                await place.future
        finally:
            line.places.remove(place)
            line.wake_within(None)
            if line.places:
                line.wake()
            else:
                self._lines.pop(line.loop, None)
                mailbox.remove_loop(line.loop, line.wake)
            if seen is not None:
                source.end_wait(seen, place, message is not None)


class _Place:
    """One coroutine in the queue."""

    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: Any = None


class _Line:
    """The coroutines of one loop that wait for a message."""

    __slots__ = ("_timer", "backoff", "has_news", "is_rung", "loop", "places")

    def __init__(self, loop: Any) -> None:
        self.loop = loop
        self.places: deque[_Place] = deque()
        self.is_rung = self.has_news = False
        self.backoff = Backoff()
        self._timer: Any = None

    def wake(self) -> None:
        self.has_news = True
        self._go_on()

    def _go_on(self) -> None:
        future = self.places[0].future if self.places else None
        if future is not None and not future.done():
            future.set_result(None)

    def wake_within(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self._go_on)


class BatchReceiver:
    """Collects messages until the policy is met.

    A batch is complete at ``max_num_message`` messages, at ``max_num_bytes`` bytes of payload, or when
    ``timeout_ms`` has passed. It never exceeds either limit, except that the first message is always taken. A
    message that does not fit stays first in the queue for the next call.
    """

    def __init__(
        self,
        delivery: Source,
        take: Callable[[], Message[Any]],
        put_back: Callable[[Message[Any]], None],
        policy: BatchReceivePolicy,
        queue_size: int,
        voided: Callable[[], int],
    ) -> None:
        self._delivery = delivery
        self._take = take
        self._put_back = put_back
        limit = policy.getMaxNumMessages()
        self._max_messages = min(limit, queue_size) if limit > 0 and queue_size > 0 else limit
        self._max_bytes = policy.getMaxNumBytes()
        self._timeout_ms = policy.getTimeoutMs()
        self._voided = voided

    def receive(self) -> list[Message[Any]]:
        deadline = REAL_TIME() + self._timeout_ms / 1000 if self._timeout_ms > 0 else None
        while True:
            batch: list[Message[Any]] = []
            try:
                voided = within(self._timeout_ms / 1000 if deadline is not None else LONGEST_S, self._voided)
                batch = self._collect(deadline)
                if not batch or within(TURN_S, self._voided) == voided:
                    return batch
            except LockTimeout:  # validity cannot be checked without the lock
                while batch:
                    self._put_back(batch.pop())
                return batch

    def _collect(self, deadline: float | None) -> list[Message[Any]]:
        """Return a batch; its messages may have become void meanwhile."""
        batch: list[Message[Any]] = []
        size = 0
        try:
            while not self._is_full(len(batch), size):
                remaining_ms = None if deadline is None else max(0, round((deadline - REAL_TIME()) * 1000))
                message = self._delivery.wait(self._take, remaining_ms)
                length = len(message.data())
                if batch and 0 < self._max_bytes < size + length:
                    self._put_back(message)
                    break
                batch.append(message)
                size += length
        except Timeout:
            return batch
        except BaseException:
            while batch:
                self._put_back(batch.pop())  # interrupted or closed: the caller does not get this list
            raise
        return batch

    def _is_full(self, count: int, size: int) -> bool:
        return 0 < self._max_messages <= count or 0 < self._max_bytes <= size
