"""The protocol of the client that producers, consumers and readers use.

Objects that belong to the process that made them: they are neither copied nor pickled.

Closing of a consumer or reader once, and the error for acknowledgements that could not be written.

The topics that a client uses: made, growing or deleted meanwhile, and their schemas.

What is opened while another process deletes it is opened again. The schema of a producer or consumer is
registered before anything is attached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from embeddedpulsar._engine.platform import fork, threads
from embeddedpulsar._engine.store.policies.admitting import SCHEMA_VALIDATION
from embeddedpulsar._engine.store.topic_list import partition_names
from embeddedpulsar.enums import SchemaType
from embeddedpulsar.exceptions import AlreadyClosed, IncompatibleSchema, LockTimeout, TopicNotFound
from embeddedpulsar.records import TYPE_CHECKING, Protocol, TypeVar
from embeddedpulsar.schema.schema import BYTES, CopiedSchema, Schema
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from typing import Any, Final, NoReturn, SupportsIndex

    from embeddedpulsar._engine.platform.mailbox import Mailbox
    from embeddedpulsar._engine.platform.timing import SchedulerLike, Timer
    from embeddedpulsar._engine.store.open_topics import TopicUse
    from embeddedpulsar._engine.store.store import Store
    from embeddedpulsar._engine.store.topic import Topic
    from embeddedpulsar.client.client_config import ClientConfig
    from embeddedpulsar.client.client_threads import (
        CallbackThread,
        ClientLog,
        Flusher,
        MemoryLimit,
        WaitingThreads,
        Workers,
    )


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


LOOK_EVERY_S: Final = 1.0
_LOOK_AT_ALL_EVERY_S: Final = 0.5
"""With a pattern: making a topic wakes no other process, as that would wake all of them for every topic."""


class WatchedTopic:
    """The registration of one user of one partitioned topic; see `PartitionWatch.add`.

    Attributes:
        topic: the full name.
        partitions: the number of partitions that was last reported to the user.
    """

    __slots__ = ("on_changed", "partitions", "topic")

    def __init__(self, topic: str, partitions: int, on_changed: Callable[[int], object]) -> None:
        self.topic: Final = topic
        self.partitions = partitions
        self.on_changed: Final = on_changed


class WatchedCatalog:
    """The registration of one user of all topics; see `PartitionWatch.add_catalog`."""

    __slots__ = ("on_changed", "topic")

    def __init__(self, topic: str, on_changed: Callable[[], bool]) -> None:
        self.topic: Final = topic
        self.on_changed: Final = on_changed


class PartitionWatch:
    """Reports a changed number of partitions to the producers, consumers and readers of a topic.

    Role: one per client (`ClientCore.partition_watch`), used by producers, consumers and readers::

        self._watched = core.partition_watch.add(topic, partitions, self._on_partitions)
        ...
        core.partition_watch.remove(self._watched)  # when the user closes; idempotent

    Consumers of a pattern follow all topics, by `add_catalog`.

    It reads the version of the catalog, which is one ``fstat``, once a second (twice with a pattern) and on
    each wake-up of this process: a process that grows or deletes a topic wakes all others. Without a topic to
    watch there is neither timer nor listener. ``on_changed(partitions)`` is called with the new number,
    always greater than the last one, or with 0 when the topic was deleted, after which it is not called
    again. It runs on a thread of its own, or in `report_changes`, with no lock held, one call at a time. It
    may open topics, which may wait for locks. It may be called once after `remove`. If it raises, the
    exception is logged, and it is called again a second later.

    Thread-safe. After a fork the child's copy watches nothing; users in the child register again.
    """

    def __init__(self, core: ClientContext) -> None:
        self._core = core
        self._reset()
        fork.register(self)

    def _reset(self) -> None:
        self._lock = threads.RLock()  # guards everything below
        self._watched: dict[int, WatchedTopic | WatchedCatalog] = {}
        self._version = -1
        self._timer: Timer | None = None
        self._mailbox: Mailbox | None = None
        self._turn = threads.RLock()  # held by the thread that looks; taken before the other
        self._is_looking = False
        self._has_failed = False  # a callback raised; the timer calls it again, a wake-up does not

    def add(self, topic: str, partitions: int, on_changed: Callable[[int], object]) -> WatchedTopic:
        """Watch a topic.

        Args:
            topic: full name of a partitioned topic.
            partitions: how many the caller knows of. Later changes are reported soon by the timer thread.
            on_changed: see above.
        """
        watched = WatchedTopic(topic, partitions, on_changed)
        self._add(watched)
        return watched

    def add_catalog(self, topic: str, on_changed: Callable[[], bool]) -> WatchedCatalog:
        """Watch all topics.

        Args:
            topic: the pattern, for the log.
            on_changed: called without arguments when any topic was made, grew or was deleted. Returns False
                to be called again a second later.
        """
        watched = WatchedCatalog(topic, on_changed)
        self._add(watched)
        return watched

    def _add(self, watched: WatchedTopic | WatchedCatalog) -> None:
        try:
            self._lock.acquire()
            self._watched[id(watched)] = watched
            # -1 is no version, so the next look finds a difference.
            self._version = -1  # the number may have changed since the caller read it
            # One timer and one listener serve all users of this client; they end with the last one.
            if self._timer is None:
                self._timer = self._core.scheduler.call_later(0.0, self._look_regularly)
            if self._mailbox is None:
                self._mailbox = self._core.store.mailbox
                self._mailbox.add_listener(self._on_ring)
        finally:
            self._lock.release()

    def look_again(self) -> None:
        """Call every ``on_changed`` within a second, as if the topics had changed."""
        # The timer takes it for a callback that failed, and calls all again.
        self._has_failed = True

    def remove(self, watched: WatchedTopic | WatchedCatalog) -> None:
        """Stop watching it. Idempotent."""
        try:
            self._lock.acquire()
            self._watched.pop(id(watched), None)
            if not self._watched:
                self._stop()
        finally:
            self._lock.release()

    def close(self) -> None:
        try:
            self._lock.acquire()
            self._watched.clear()
            self._stop()
        finally:
            self._lock.release()

    def _stop(self) -> None:
        # Taken out first: `_look_regularly` sets no further timer when it finds none.
        timer, self._timer = self._timer, None
        mailbox, self._mailbox = self._mailbox, None
        if timer is not None:
            timer.cancel()
        if mailbox is not None:
            mailbox.remove_listener(self._on_ring)

    # -- looking -----------------------------------------------------------------------------------------

    def _on_ring(self) -> None:
        """Check only whether there is a reason to look, because any waiting thread may run this."""
        try:
            # One `fstat`: the thread that runs this waits for something else, and must not be kept.
            if self._version != self._core.store.topics.version:
                self._core.scheduler.call_later(0.0, self._look_apart)
        except (AlreadyClosed, RuntimeError):
            return  # the client is being closed

    def _look_regularly(self) -> None:
        try:
            # Only the timer repeats a failed call: wake-ups may come thousands of times a second.
            if self._has_failed:
                self._version = -1
            self._look_apart()
        finally:
            try:
                self._lock.acquire()
                if self._watched and self._timer is not None and not self._core.is_closed:
                    follows_all = any(
                        isinstance(watched, WatchedCatalog) for watched in self._watched.values()
                    )
                    every_s = _LOOK_AT_ALL_EVERY_S if follows_all else LOOK_EVERY_S
                    self._timer = self._core.scheduler.call_later(every_s, self._look_regularly)
            finally:
                self._lock.release()

    def _look_apart(self) -> None:
        """In the timer thread: start another thread if a topic may have changed."""
        # A callback may open topics and wait for locks, which would delay all timers of this client.
        if self._watched and not self._is_looking and self._version != self._core.store.topics.version:
            self._core.workers.start(self.report_changes)

    def report_changes(self) -> None:
        """Look now, and report the changes. Another thread that looks is awaited first.

        On return, all callbacks know of every change made before the call, unless a callback calls this."""
        try:
            self._turn.acquire()
            self._report_changes()
        finally:
            self._turn.release()

    def _report_changes(self) -> None:
        store = self._core.store
        try:
            self._lock.acquire()
            # Read before the topics: a change during the loop leaves a version that differs, and is found by
            # the next look.
            version = store.topics.version
            if self._is_looking or not self._watched or self._version == version:
                return
            self._is_looking = True
            self._has_failed = False
            self._version = version
            watched = list(self._watched.values())
        finally:
            self._lock.release()
        # The callbacks run without the lock, since they add and remove topics. `_turn` is held, so they run
        # one at a time; `_is_looking` keeps a callback that looks again from a loop.
        try:
            for watched_topic in watched:
                if isinstance(watched_topic, WatchedCatalog):
                    self._tell_of_all(watched_topic)
                    continue
                partitions = store.topics.partitions(watched_topic.topic)
                # It may have been removed since the list was made.
                if partitions != watched_topic.partitions and id(watched_topic) in self._watched:
                    self._tell(watched_topic, partitions)
        except BaseException:
            self._has_failed = True
            raise
        finally:
            self._is_looking = False

    def _tell(self, watched: WatchedTopic, partitions: int) -> None:
        # Deleted: reported once, and not watched any more. A topic that is made again under the name is
        # another one.
        if not partitions:
            self.remove(watched)
        try:
            watched.on_changed(partitions)
            watched.partitions = partitions
        except AlreadyClosed:
            self.remove(watched)  # the user was closed meanwhile
        except Exception:
            self._has_failed = True
            text = "Following the partitions of %s failed"
            self._core.log.exception(text, watched.topic, topic=watched.topic)

    def _tell_of_all(self, watched: WatchedCatalog) -> None:
        try:
            if id(watched) in self._watched and not watched.on_changed():
                self._has_failed = True
        except Exception:
            self._has_failed = True
            self._core.log.exception("Following the topics of %s failed", watched.topic)

    def after_fork_in_child(self) -> None:
        self._reset()


MOST_ATTEMPTS: Final = 30
"""Attempts. Each meets another deletion; in between, the caller waits for the lock of the catalog."""


def despite_deletion(open_it: Callable[[], R]) -> R:
    """Open a topic or an object on it, and retry if it is deleted meanwhile.

    A retry looks the name up again and creates the topic if creation is allowed, as if the deletion had ended
    before the call.

    Raises:
        TopicNotFound: there is no such topic, and the caller may not create it.
    """
    for _ in range(MOST_ATTEMPTS - 1):
        try:
            return open_it()
        except (FileNotFoundError, TopicNotFound) as error:
            last = error
    # The last attempt is outside of the loop: its `TopicNotFound` goes to the caller as it is, whereas a
    # missing file is named as what it is.
    try:
        return open_it()
    except FileNotFoundError as error:
        raise TopicNotFound(f"the topic was repeatedly deleted while it was opened: {error}") from last


_PROCESS: Final = "process"


def registered(
    store: Store, topic: str, schema: Schema[Any], durability: str | None
) -> tuple[Schema[Any], int]:
    """Register the schema of a producer with a topic that exists.

    Returns:
        The schema that encodes, and its version; -1 for none.

    Raises:
        IncompatibleSchema: the topic does not accept it.
        TopicNotFound: the topic was deleted meanwhile.
    """
    info = schema.schema_info()
    kind = info.schema_type()
    # The cases: a producer of bytes that fit the schema of the topic takes that over; a schema without a
    # type, as of bytes, is not registered; one that was copied with messages of another topic, as to a dead
    # letter topic, is taken whatever the compatibility strategy says; any other is added, if it is
    # compatible.
    if kind == SchemaType.AUTO_PUBLISH:
        stored = store.schemas.latest(topic)
        if stored is None:
            return schema, -1
        return schema.for_topic(stored.info()), stored.version  # type: ignore[attr-defined]
    if kind.value <= 0:
        return schema, -1
    # A message that survives a power failure needs the schema that decodes it.
    is_durable = durability not in (None, _PROCESS)
    if isinstance(schema, CopiedSchema):
        return schema, store.schemas.copy(topic, info, durable=is_durable)
    return schema, store.schemas.add(topic, info, durable=is_durable)


def admit_all(store: Store, topics: Iterable[str], schema: Schema[Any]) -> None:
    """Check the schema of a consumer or reader of topics that exist; an idle topic without one gets it.

    Raises:
        IncompatibleSchema: a topic does not accept it.
        TopicNotFound: a topic was deleted meanwhile.
    """
    if schema is BYTES:
        return
    info = schema.schema_info()
    # AUTO_CONSUME and bytes read whatever there is.
    if info.schema_type().value > 0:
        for topic in topics:
            store.schemas.admit(topic, info, partial(_is_idle, store, topic))


def _is_idle(store: Store, topic: str) -> bool:
    """Whether a topic has no messages, producers and consumers."""
    full = TopicName.parse(topic).full
    for name in partition_names(full, store.topics.partitions(full)) or [full]:
        # A topic that was never opened has no files, and asking them would make some.
        if not store.topics.was_used(name):
            continue
        use = store.use_topic(name, create=False, to_look=True)
        try:
            topic_in_use = use.topic
            # A stored message, or an attached program, may use another schema.
            has_entries = any(segment.entries for segment in topic_in_use.ledger.segments())
            if has_entries or topic_in_use.view.producers().connected or topic_in_use.consumers():
                return False
        finally:
            use.release()
    return True


def check_has_schema(store: Store, topic: Topic) -> None:
    """Refuse a producer without a schema, if the topic has one and asks for it.

    Raises:
        IncompatibleSchema: it does.
    """
    if topic.policies.value(SCHEMA_VALIDATION) and store.schemas.latest(topic.name) is not None:
        raise IncompatibleSchema(
            f"{topic.name} has a schema and schema_validation_enforced: create the producer with the schema, "
            "or with AutoProduceBytesSchema"
        )
