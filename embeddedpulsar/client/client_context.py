"""The protocol of the client that producers, consumers and readers use.

Objects that belong to the process that made them: they are neither copied nor pickled.

Closing of a consumer or reader once, and the error for acknowledgements that could not be written.
"""

from __future__ import annotations

from embeddedpulsar.exceptions import AlreadyClosed, LockTimeout
from embeddedpulsar.records import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, NoReturn, SupportsIndex

    from embeddedpulsar._engine.platform.timing import SchedulerLike
    from embeddedpulsar._engine.store.open_topics import TopicUse
    from embeddedpulsar._engine.store.store import Store
    from embeddedpulsar.client.client_config import ClientConfig
    from embeddedpulsar.client.client_threads import (
        CallbackThread,
        ClientLog,
        Flusher,
        MemoryLimit,
        WaitingThreads,
        Workers,
    )
    from embeddedpulsar.client.partition_watch import PartitionWatch


R = TypeVar("R")


class Closable(Protocol):
    """An object that is closed with its client."""

    def close(self) -> None: ...


class Receiver(Closable, Protocol):
    """A consumer or a reader."""

    _client: Any

    def _start(self) -> None: ...
    def _save(self) -> None: ...


class PublisherLike(Closable, Protocol):
    """The publisher of a producer."""

    @property
    def is_closed(self) -> bool: ...
    def flush_all(self) -> None: ...
    def save(self) -> None: ...


class OpenTransaction(Protocol):
    """A transaction that this process began."""

    @property
    def _is_over(self) -> bool: ...
    def _end_with_client(self) -> None: ...


class Listeners(Protocol):
    """The threads that run message listeners."""

    def add(self, target: Any, /) -> None: ...
    def remove(self, target: Any, /) -> None: ...


class ClientContext(Protocol):
    """The store, the threads and the options of one client. `ClientCore` is its only implementation.

    Modules below `client_core` are typed with this protocol, so that none of them imports another for types.
    """

    config: ClientConfig
    log: ClientLog
    is_closed: bool
    at_close: dict[int, Callable[[], object]]
    store: Store
    scheduler: SchedulerLike
    workers: Workers
    callbacks: CallbackThread
    flusher: Flusher
    memory: MemoryLimit | None
    partition_watch: PartitionWatch
    waiting: WaitingThreads

    @property
    def listeners(self) -> Listeners: ...
    def use_topic(self, name: str, create: bool = True, *, to_look: bool = False) -> TopicUse: ...
    def abandon(self, close: Callable[[], object]) -> None: ...
    def when_dropped(self, close: Callable[[], object]) -> Callable[[], object]: ...
    def check_open(self) -> None: ...
    def begin_operation(self) -> None: ...
    def in_time(self, function: Callable[..., R], *arguments: object) -> R: ...
    def wake(self) -> None: ...
    def add_publisher(self, publisher: PublisherLike) -> None: ...
    def forget_publisher(self, publisher: PublisherLike) -> None: ...
    def add_consumer(self, consumer: Receiver) -> None: ...
    def know(self, consumer: Receiver) -> None: ...
    def forget_consumer(self, consumer: Receiver) -> None: ...
    def close_dropped(self, consumer: Closable) -> None: ...
    def know_transaction(self, transaction: OpenTransaction) -> None: ...
    def forget_transaction(self, transaction: OpenTransaction) -> None: ...


class ProcessBound:
    """An object with threads, locks or mapped files of its process.

    `pickle`, `copy.copy` and `copy.deepcopy` raise `TypeError` with what to pass on instead.
    """

    __slots__ = ()

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> NoReturn:
        kind: type[Any] = type(self)
        raise TypeError(
            f"a {kind.__name__} cannot be pickled or copied: it is attached to its store by this "
            "process. Pass the client, or its URL and the name of the topic, and open another one there; a "
            "Message and a MessageId can be pickled"
        )


class AcknowledgementsUnwritten(LockTimeout):
    """A consumer closed without writing all acknowledgements, because another process stayed in a lock.

    Attributes:
        lines: one for each subscription.
    """

    def __init__(self, lines: Iterable[str], cause: str = "") -> None:
        self.lines = tuple(lines)
        super().__init__("; ".join((*self.lines, cause) if cause else self.lines))

    def __reduce__(self) -> tuple[type[LockTimeout], tuple[str]]:
        return LockTimeout, (str(self),)


def together(errors: list[AcknowledgementsUnwritten]) -> AcknowledgementsUnwritten:
    """Return one error for several consumers."""
    if len(errors) == 1:
        return errors[0]
    return AcknowledgementsUnwritten(line for error in errors for line in error.lines)


class CloseGuard:
    """Distinguishes the second `close` of a consumer or reader, which is an error, from a late first one.

    Role: a consumer may be closed before its owner calls `close`: it has unsubscribed, its client was closed,
    or its topic was deleted. The first `close` of the owner is then no error, as with ``pulsar-client``.

    Example:
        >>> from types import SimpleNamespace
        >>> close_guard = CloseGuard(SimpleNamespace(is_closed=False))
        >>> close_guard.begin("the consumer has unsubscribed"), close_guard.begin("")
        (False, True)
        >>> close_guard.begin("the consumer is closed")
        Traceback (most recent call last):
        embeddedpulsar.exceptions.AlreadyClosed: Pulsar error: AlreadyClosed: the consumer is closed
    """

    __slots__ = ("_client", "_has_begun")

    def __init__(self, client: ClientContext) -> None:
        self._client = client
        self._has_begun = False

    def begin(self, closed_text: str) -> bool:
        """Begin to close.

        Args:
            closed_text: why the consumer is already closed; empty if it is open.

        Returns:
            True if the consumer is open and is to be closed.

        Raises:
            AlreadyClosed: `close` was called before, or the consumer belongs to the parent of this fork.
        """
        if closed_text and self._has_begun:
            raise AlreadyClosed(closed_text)
        # A client that closes sets its flag first. Then the client closed the consumer, and the owner may
        # still call `close` once.
        self._has_begun = bool(closed_text) or not self._client.is_closed
        return not closed_text

    def after_fork_in_child(self) -> None:
        """The consumer belongs to the parent: `close` in the child raises."""
        self._has_begun = True
