"""The state behind `Client`: store, threads, producers and consumers; and the clients that are left open."""

from __future__ import annotations

import contextlib
import itertools
import warnings
import weakref
from collections import deque
from itertools import repeat

from embeddedpulsar._engine.platform import fork, threads, timing
from embeddedpulsar._engine.platform.descriptors import late_imports
from embeddedpulsar._engine.platform.file_lock import in_order, results
from embeddedpulsar._engine.platform.package_log import tell
from embeddedpulsar._engine.platform.timing import SYSTEM_CLOCK, BackgroundWork
from embeddedpulsar._engine.store.store import Store
from embeddedpulsar.client.client_context import AcknowledgementsUnwritten, PartitionWatch, together
from embeddedpulsar.client.client_threads import (
    OPENED,
    CallbackThread,
    Flusher,
    MemoryLimit,
    WaitingThreads,
    Workers,
    fields_of,
)
from embeddedpulsar.exceptions import AlreadyClosed, LockTimeout, PulsarException, Timeout
from embeddedpulsar.records import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Final

    from embeddedpulsar._engine.store.open_topics import TopicUse
    from embeddedpulsar.client.client_config import ClientConfig
    from embeddedpulsar.client.client_context import Closable, OpenTransaction, PublisherLike, Receiver
    from embeddedpulsar.client.client_threads import ClientLog, Close
    from embeddedpulsar.client.consumer.listener import ListenerThreads
    from embeddedpulsar.damage import Damage


_MOST_TRANSACTIONS: Final = 64
LONGEST_S: Final = 5.0
"""Total time limit in seconds for all clients, even if another process holds a lock."""


class OpenClients:
    """The open clients of this process.

    Role: a client that became garbage is closed on a thread of its own. A finalizer runs at any instruction
    of any thread, perhaps in a critical section or in a signal handler, so it only starts this thread, which
    is one call into C; the thread holds no lock of this package and may wait. It first stores pending
    messages and acknowledgements, as a file writes its buffer. At the normal end of the program (see
    `fork.at_exit`) the batches and acknowledgements of the clients that are still open are stored.

    Any thread may call the methods. The references to clients are weak. A forked child stores only what it
    sent itself: its copies of the parent's batches are empty.
    """

    def __init__(self) -> None:
        self._clients: dict[int, weakref.ref[ClientCore]] = {}
        self._numbers = itertools.count()
        self._is_registered = False
        self._running: dict[int, threads.Daemon] = {}
        self._left: list[tuple[ClientCore, tuple[Any, ...]]] = []
        self._is_over = False
        fork.register(self)

    def add(self, client: ClientCore) -> None:
        # With the first client, so a process without one has no hook.
        if not self._is_registered:
            self._is_registered = True
            fork.at_exit(self.save_all)  # after the registry of stores, so it runs before it
        while self._left:  # closing these could not begin, because no thread could start
            self._close_apart(*self._left.pop())
        number = next(self._numbers)
        self._clients[number] = weakref.ref(client, lambda _: self._clients.pop(number, None))

    def of_store(self, root: str) -> list[ClientCore]:
        """Return the open clients of a store, by the path or URL that opens it."""
        # A copy of the table: a finalizer may remove an entry at any instruction.
        clients = [reference() for reference in list(self._clients.values())]
        return [
            client for client in clients if client and client.is_left_open and client.config.url.store == root
        ]

    def drop(self, core: ClientCore, consumers: tuple[Any, ...], name: str) -> None:
        """Close a client that is garbage, with its consumers and readers. Runs in a finalizer."""
        # At the end of the program `save_all` has stored what there was, and threads may not be started. A
        # client that was copied by a fork belongs to the parent.
        if self._is_over or not core.is_left_open or core.fork_generation != fork.GENERATION:
            return
        self._close_apart(core, consumers)
        warnings.warn(f"unclosed client {name}", ResourceWarning, stacklevel=3)

    def _close_apart(self, core: ClientCore, consumers: tuple[Any, ...]) -> None:
        def close() -> None:
            try:
                _close(core, consumers)
            finally:
                self._running.pop(id(core), None)

        # Without a thread the client is kept in `_left`, and the next client that is made closes it.
        try:
            self._running[id(core)] = threads.start_daemon(close, "unclosed")
        except RuntimeError:  # too many threads
            self._left.append((core, consumers))

    def save_all(self) -> None:
        """Store pending messages and acknowledgements of all open clients, at the end of the program."""
        end = SYSTEM_CLOCK.monotonic() + LONGEST_S
        self._is_over = True
        # Closings that run already come first: they hold what the loop below would look for.
        for thread in list(self._running.values()):
            thread.join(LONGEST_S)
        for reference in list(self._clients.values()):
            client = reference()
            if client is not None and not client.is_closed:
                client.save(max(0.0, end - SYSTEM_CLOCK.monotonic()))

    def after_fork_in_child(self) -> None:
        # The threads and what they close belong to the parent.
        self._running, self._left = {}, []


def _close(core: ClientCore, consumers: tuple[Any, ...]) -> None:
    for consumer in consumers:
        # They are garbage together with their client, and the table of the core has weak references, which
        # are dead by now.
        core.know(consumer)
    try:
        core.save(LONGEST_S)
        core.close()
    except AlreadyClosed:
        return
    except Exception:
        core.log.exception("Closing a client that was dropped failed")


OPEN_CLIENTS: Final = OpenClients()


R = TypeVar("R")


class ClientCore:
    """What producers, consumers and readers of one client share.

    Role: owns one reference to the store, the timer thread, the callback thread, the flusher and the listener
    threads. `close` closes them in the order of their dependencies. Threads start when first needed.

    Attributes:
        abandoned: functions that close producers and consumers which were dropped without being closed.
        at_close: functions to call when everything else is closed, by the ``id`` of their owner.

    Args:
        config: of the client.
        log: for its messages.
        opened: gets a function that gives the store back, for a caller that is interrupted.
    """

    def __init__(self, config: ClientConfig, log: ClientLog, opened: list[Callable[[], object]]) -> None:
        self.config = config
        self.log = log
        self.is_closed = False
        self._was_interrupted = False
        self.abandoned: deque[Callable[[], object]] = deque()
        self._tidying_threads: set[int] = set()
        self._lock = threads.RLock()
        self._publishers: dict[int, PublisherLike] = {}
        self._consumers: dict[int, weakref.ref[Receiver]] = {}  # the client holds the strong references
        self._transactions: dict[int, OpenTransaction] = {}
        self.fork_generation = fork.GENERATION
        self.at_close: dict[int, Callable[[], object]] = {}
        self.callbacks = CallbackThread(log)
        # None is the log of the package, which the store writes by itself, once for all clients of the
        # process.
        self._on_damage = None if config.on_damage is None and log.is_shared else self._note_damage
        self.store = Store.open(
            config.url.store,
            durability=config.durability,
            interval_ms=config.durability_interval_ms,
            allow_network_fs=config.allow_network_fs,
            on_damage=self._on_damage,
            read_only=config.read_only,
        )
        self._reference = [self.store]  # emptied by its release: an interrupted `close` is called again
        opened.append(lambda: self.store.release(self._reference))
        log.info("Connected to the store %s", config.url.text)
        self.scheduler = self.store.clock.scheduler()
        self.workers = Workers(log, self.store.clock.thread)
        self.flusher = Flusher(log)
        self.memory = MemoryLimit(config.memory_limit_bytes) if config.memory_limit_bytes else None
        # One at most; of threads that make them at once, one wins.
        self._listeners: Final[dict[None, ListenerThreads]] = {}
        self.partition_watch = PartitionWatch(self)
        self.waiting = WaitingThreads()
        self._tidying = BackgroundWork(self.scheduler.call_later, self._close_abandoned)

        fork.register(self)
        OPEN_CLIENTS.add(self)

    def _note_damage(self, damage: Damage) -> None:
        """Call ``on_damage`` on the callback thread. Called under any lock."""
        on_damage = self.config.on_damage or (
            lambda damage: self.log.warning(
                "%s", damage, topic=damage.topic, subscription=damage.subscription
            )
        )
        # Only an append: this may be called under a lock for which other processes wait, and user code may
        # take any time.
        self.callbacks.put(lambda: tell(on_damage, damage))

    def use_topic(self, name: str, create: bool = True, *, to_look: bool = False) -> TopicUse:
        """Return a reference to the topic of that name, which is created if necessary and allowed.

        Args:
            name: of the topic.
            create: whether it is.
            to_look: nothing is changed.
        """
        self.check_open()
        # A producer that was dropped may still have the name that the caller is about to take.
        if self.abandoned:
            self._close_abandoned()
        return self.store.use_topic(name, create, to_look=to_look)

    def abandon(self, close: Callable[[], object]) -> None:
        """Close a dropped object later. Finalizers call this, at any instruction of any thread."""
        self.abandoned.append(close)
        if not self.is_closed and self.fork_generation == fork.GENERATION:
            with contextlib.suppress(RuntimeError):  # no thread; the next call that opens a topic closes it
                self._tidying.after(0.0)

    def when_dropped(self, close: Callable[[], object]) -> Callable[[], object]:
        """Return what a finalizer is to call, so that ``close()`` is called later: one call into C. An
        interrupt inside of a finalizer would be printed and lost, and with it the rest of the finalizer."""
        opened = OPENED.get()
        if opened is not None:
            opened.append(close)
        listed = map(self.abandoned.append, repeat(close))
        # Two calls of C in one: list the object, then set the timer.
        return in_order(listed, results(self.scheduler.trigger(self._tidying.run)))

    def _close_abandoned(self) -> None:
        """Close what is dropped. When it returns, nothing dropped before is attached."""
        thread = threads.current_id()
        if thread in self._tidying_threads:
            return  # closing a producer led here, and the loop below goes on with the others
        try:
            self._tidying_threads.add(thread)
            for close in self.abandoned.copy():
                if self.is_closed:
                    return
                # It stays listed until it is closed. A second thread calls it too, and so waits for the lock
                # of the producer; the name of a producer that is being closed would still be taken.
                with contextlib.suppress(AlreadyClosed):
                    close()
                with contextlib.suppress(ValueError):  # the other thread was first
                    self.abandoned.remove(close)
        finally:
            self._tidying_threads.discard(thread)

    def check_open(self) -> None:
        if self.is_closed:
            raise AlreadyClosed("the client is closed; make a new one")

    def begin_operation(self) -> None:
        """Refuse an operation on a closed client, or one without any time.

        Raises:
            AlreadyClosed: the client is closed.
            Timeout: ``operation_timeout_seconds`` is 0.
        """
        self.check_open()
        if self.config.operation_timeout_s <= 0:
            raise Timeout("operation_timeout_seconds=0 leaves no time for any operation")

    def in_time(self, function: Callable[..., R], *arguments: object) -> R:
        """Call a function that may wait for locks, with the operation timeout as its deadline."""
        return timing.within(self.config.operation_timeout_s, function, *arguments)

    def wake(self) -> None:
        """Let all waiting threads of this process check their condition again."""
        self.store.mailbox.ring_self()

    @property
    def listeners(self) -> ListenerThreads:
        """The threads that call listeners, made for the first consumer that has one."""
        threads = self._listeners.get(None)
        if threads is None:
            with late_imports():
                from embeddedpulsar.client.consumer.listener import ListenerThreads
            threads_of = ListenerThreads(self.config.listener_threads, lambda: self.store.mailbox, self.log)
            threads = self._listeners.setdefault(None, threads_of)
            if self.is_closed:  # meanwhile: `close` may not have seen them
                threads.close()
        return threads

    def add_publisher(self, publisher: PublisherLike) -> None:
        # Before the publisher is registered: an interrupt at the next instruction finds it in one of the two.
        opened = OPENED.get()
        if opened is not None:
            opened.append(lambda: self._close_publisher(publisher))
        self._publishers[id(publisher)] = publisher

    def _close_publisher(self, publisher: PublisherLike) -> None:
        """Close the producer of an interrupted call, unless that has closed it."""
        if id(publisher) in self._publishers:
            publisher.close()
            self.forget_publisher(publisher)

    def forget_publisher(self, publisher: PublisherLike) -> None:
        self._publishers.pop(id(publisher), None)

    def add_consumer(self, consumer: Receiver) -> None:
        """Register a complete consumer or reader: the client closes it, and its listener may be called."""
        self.know(consumer)
        try:
            consumer._start()
        except BaseException:
            consumer.close()
            raise
        if self.log.is_heard:
            what = "Subscribed: %s" if hasattr(consumer, "subscription_name") else "Created %s"
            self.log.info(what, _label(consumer), **fields_of(consumer))

    def know(self, consumer: Receiver) -> None:
        self._consumers[id(consumer)] = weakref.ref(consumer)

    def _known(self) -> list[Receiver]:
        return [
            receiver for reference in list(self._consumers.values()) if (receiver := reference()) is not None
        ]

    def forget_consumer(self, consumer: Receiver) -> None:
        if consumer._client is not None:
            consumer._client._made.pop(id(consumer), None)
        if self._consumers.pop(id(consumer), None) is not None and self.log.is_heard:
            self.log.info("Closed %s", _label(consumer), **fields_of(consumer))

    def close_dropped(self, consumer: Closable) -> None:
        """Close a consumer or reader that was dropped without being closed, soon. Runs in a finalizer."""
        if not self.is_closed:
            # By a timer and a worker: a finalizer may hold any lock, and closing waits for some.
            self.scheduler.call_later(0.0, lambda: self.workers.start(lambda: self._close_dropped(consumer)))

    def _close_dropped(self, consumer: Closable) -> None:
        try:
            self.in_time(consumer.close)
        except AlreadyClosed:
            return  # another thread closed it meanwhile, or it belongs to the parent
        except PulsarException:
            self.log.exception("Closing %r failed", consumer)

    def know_transaction(self, transaction: OpenTransaction) -> None:
        """Note a transaction that was begun: the client aborts what it leaves open."""
        known = self._transactions
        if len(known) >= _MOST_TRANSACTIONS:  # those that were dropped have timed out
            for number, other in list(known.items()):
                if other._is_over:
                    known.pop(number, None)
        known[id(transaction)] = transaction

    def forget_transaction(self, transaction: OpenTransaction) -> None:
        self._transactions.pop(id(transaction), None)

    def flush(self) -> None:
        # A copy: a callback may make or close producers meanwhile.
        for publisher in list(self._publishers.values()):
            if not publisher.is_closed:
                publisher.flush_all()
        self.callbacks.wait_done()

    def save(self, timeout_s: float) -> None:
        """Store batches and acknowledgements, as far as possible within the time limit.

        Failures are logged.
        """
        end = SYSTEM_CLOCK.monotonic() + timeout_s
        timing.within(timeout_s, self._save)
        self.callbacks.wait_done(max(0.0, end - SYSTEM_CLOCK.monotonic()))

    def _save(self) -> None:
        for publisher in list(self._publishers.values()):
            self._try_to_save(publisher, publisher.save)
        for consumer in self._known():
            self._try_to_save(consumer, consumer._save)

    def _try_to_save(self, what: object, save: Callable[[], object]) -> None:
        try:
            save()
        except AlreadyClosed:
            return  # it was closed meanwhile, or belongs to the parent
        except Exception as error:  # noqa: BLE001 - the others have their turn
            self.log.warning("%r could not store at the end what it had: %s", what, error)

    def after_fork_in_child(self) -> None:
        """In the parent, another thread may have been closing the client, or waiting."""
        self._lock = threads.RLock()
        self._transactions = {}  # the parent's
        self.waiting.reset()

    def close(self) -> None:
        """Close the producers, consumers and readers, then the threads, then the reference to the store.

        Raises:
            AcknowledgementsUnwritten: some were not written within the operation timeout. All is closed.
        """
        self.in_time(self._close)

    @property
    def is_left_open(self) -> bool:
        """Whether the client was never closed, or its close was interrupted."""
        return not self.is_closed or self._was_interrupted

    def _close(self) -> None:
        try:
            self._lock.acquire()
            # The error of a second `close`. A close that was interrupted may be called again, and goes on.
            if not self.is_left_open:
                self.check_open()
            self._was_interrupted, self.is_closed = False, True
        finally:
            self._lock.release()
        try:
            self._close_all()
        # An error does not make a second `close` begin again; only an interrupt leaves work for it.
        except BaseException as error:
            self._was_interrupted = timing.is_interrupt(error)  # the next `close` continues
            raise

    def _close_all(self) -> None:
        self.log.info("Closing the client of %s", self.config.url.text)
        # First, calls that wait without a time limit are let out: they use what is closed below.
        if self.waiting.others():
            self.wake()
            self.waiting.wait_gone()
        # Nothing new begins from here on: no listener is called, and no partition is followed.
        for listeners in list(self._listeners.values()):
            listeners.close()
        self.partition_watch.close()
        unwritten: list[AcknowledgementsUnwritten] = []
        closables: list[Closable] = [*self._known(), *self._publishers.values()]
        # Each gets half of the time that is left, so that one that hangs in a lock leaves some to the others.
        # One that fails does not keep the rest open.
        for closable in closables:
            try:
                timing.within_half(closable.close)
            except AlreadyClosed:
                continue  # another thread closed it meanwhile, or it belongs to the parent
            except AcknowledgementsUnwritten as error:
                unwritten.append(error)
            except PulsarException:
                self.log.exception("Closing %r failed", closable)
        self._consumers.clear()
        self._publishers.clear()
        # What they queued has failed, so nothing is left that could be committed.
        while self._transactions:
            _, transaction = self._transactions.popitem()
            with contextlib.suppress(PulsarException):  # it ends at its timeout, or with the process
                timing.within_half(transaction._end_with_client)
        # The publishers are closed, so nothing is left to store. The callbacks come behind them: each failed
        # message has one.
        self.flusher.close()
        if self._on_damage is not None:
            self.store.damage.remove(self._on_damage)
        self.callbacks.close()
        # Interceptors, whose last calls were made by the callbacks above.
        for function in list(self.at_close.values()):
            function()
        # Workers and timers use the store, so they end before it is given back.
        self.workers.close()
        self.scheduler.close()
        self.store.release(self._reference)
        self.log.info("Closed the client of %s", self.config.url.text)
        self.log.close()
        # After everything is closed: the error says what is redelivered, and must not leave the client half
        # open.
        if unwritten:
            raise together(unwritten)


def _label(closable: Closable) -> str:
    """The type and name without the state, because a log record is formatted later than it is made."""
    return repr(closable).strip("<>").removesuffix(" open").removesuffix(" closed")


def close_opened(core: ClientCore, resource: Any, opened: list[Close]) -> None:
    """Close what an interrupted call has made: the whole if it is complete, and each part that is not closed.

    What cannot be closed now, because another process stays in a lock, is closed later.
    """
    # First, so that what is opened below, while closing, is not listed.
    OPENED.set(None)
    if resource is not None:
        with contextlib.suppress(AlreadyClosed, LockTimeout):
            core.in_time(resource.close)
    # Last attached, first closed. One that the whole has closed before raises `AlreadyClosed`.
    while opened:
        close = opened.pop()
        try:
            core.in_time(close)
        except AlreadyClosed:
            continue
        except LockTimeout:
            # Another process stays in the lock, and the caller has an interrupt or error to raise: it does
            # not wait any longer.
            core.abandon(close)
