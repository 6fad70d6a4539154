"""Results of Celery in a store, and its queues: importing this module registers both for their URLs.

``Celery(broker="embeddedpulsar:///srv/queue", backend="embeddedpulsar:///srv/queue")``. Celery finds the
result back end without the import, too, by an entry point; the broker is `embeddedpulsar.frameworks.kombu`.
docs/celery.md has the details.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, unquote

from embeddedpulsar.exceptions import AlreadyClosed, NotAllowedError, Timeout, TopicNotFound
from embeddedpulsar.frameworks import kombu
from embeddedpulsar.frameworks.engine import threads
from embeddedpulsar.frameworks.job_store import JobStore, ResultTable
from embeddedpulsar.frameworks.kombu_loop import SCHEME
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.policy_values import InactiveTopicPolicies

try:
    from celery import states
    from celery.app.backends import BACKEND_ALIASES
    from celery.backends.asynchronous import AsyncBackendMixin, BaseResultConsumer
    from celery.backends.base import BaseKeyValueStoreBackend
    from celery.canvas import maybe_signature
    from celery.exceptions import ChordError
    from celery.result import GroupResult, allow_join_result, result_from_tuple
    from celery.utils.log import get_logger
except ImportError as error:
    raise ImportError(
        'the result back end of Celery needs Celery: pip install "embeddedpulsar[celery]"', name="celery"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Final

    from embeddedpulsar.client.consumer.reader import Reader
    from embeddedpulsar.client.producer.producer import Producer
    from embeddedpulsar.message import Message

NAMESPACE: Final = "public/celery"
"""Where the topics of results are, unless the URL says otherwise."""

_CHORDS: Final = "-chords"
_MINUTE_S: Final = 60
_FOLLOWED: Final = 64
"""Chords that a worker process follows at a time."""

logger = get_logger(__name__)


class _Waiter(threading.local):
    """The reader of one thread, which wakes it when any result is stored.

    Attributes:
        pid: the process that made it.
    """

    reader: Reader[bytes] | None = None
    pid = 0


class ResultConsumer(BaseResultConsumer):  # type: ignore[misc]  # celery has no types
    """Waits for results of tasks without asking for each: a thread that waits sleeps until one is stored."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._awaited: set[str] = set()
        self._waiters: list[Reader[bytes]] = []
        self._of_thread = _Waiter()

    def start(self, initial_task_id: str, **kwargs: Any) -> None:
        """Begin to wait for results."""
        self.consume_from(initial_task_id)

    def consume_from(self, task_id: str) -> None:
        """Wait for the result of a task, too."""
        self._awaited.add(self.backend.get_key_for_task(task_id).decode())

    def cancel_for(self, task_id: str) -> None:
        """Wait for it no more."""
        self._awaited.discard(self.backend.get_key_for_task(task_id).decode())

    def on_after_fork(self) -> None:
        """Drop what belongs to the parent."""
        self._of_thread = _Waiter()
        self._waiters = []
        self._awaited = set()

    def _reader(self) -> Reader[bytes]:
        own = self._of_thread
        if own.reader is None or own.pid != os.getpid():
            own.reader, own.pid = self.backend.new_reader(), os.getpid()
            self._waiters.append(own.reader)
        return own.reader

    def on_wait_for_pending(self, result: Any, **kwargs: Any) -> None:
        """Take the results that are there."""
        self._reader()  # first, so that a result that comes meanwhile is seen by one of both
        for meta in result._iter_meta(**kwargs):
            if meta is not None:
                self.on_state_change(meta, None)

    def drain_events(self, timeout: float | None = None) -> None:
        """Take the results that are stored, waiting for the first of them.

        Raises:
            socket.timeout: there was none within ``timeout`` seconds.
        """
        reader = self._reader()
        try:
            message: Message[bytes] | None = reader.read_next(
                None if timeout is None else max(0, round(timeout * 1000))
            )
        except Timeout as error:
            raise TimeoutError(str(error)) from None
        while message is not None:
            if message.partition_key() in self._awaited and message.data():
                self.on_state_change(self.backend.decode_record(message.data()), None)
            message = reader.read_nowait()

    def stop(self) -> None:
        """Stop waiting, in all threads."""
        waiters, self._waiters = self._waiters, []
        self._of_thread = _Waiter()
        for reader in waiters:
            with contextlib.suppress(AlreadyClosed):  # with its client
                reader.close()


class _Chord:
    """What a worker process has read of the topic of a chord.

    Attributes:
        parts: by task: place in the header, state, result.
        size: how many there will be; None until that is known.
        header: the results of the header, if there are groups among them.
        completed_by: the part with which all were there.
        is_done: whether the body was sent.
    """

    def __init__(self, reader: Reader[bytes], producer: Producer[bytes]) -> None:
        self.reader: Final = reader
        self.producer: Final = producer
        self.parts: dict[str, tuple[int, str, Any]] = {}
        self.size: int | None = None
        self.added = 0
        self.header: Any = None
        self.completed_by: MessageId | None = None
        self.is_done = False

    def read(self, decode: Any) -> None:
        """Read on."""
        while (message := self.reader.read_nowait()) is not None:
            kind, value = decode(message.data().decode())
            if kind == "part":
                task_id, place, state, result = value
                self.parts[task_id] = place, state, result
            elif kind == "size":
                self.size = value
            elif kind == "add":
                self.added += value
            elif kind == "header":
                self.header = value
            else:
                self.is_done = True
            if self.completed_by is None and self.is_complete:
                self.completed_by = message.message_id()

    @property
    def is_complete(self) -> bool:
        return self.size is not None and len(self.parts) >= self.size + self.added

    def close(self) -> None:
        """Detach from the topic, which may have been deleted, or be that of the parent before a fork."""
        for part in (self.reader, self.producer):
            with contextlib.suppress(AlreadyClosed):
                part.close()


class ResultBackend(BaseKeyValueStoreBackend, AsyncBackendMixin):  # type: ignore[misc]  # celery has no types
    """Results of tasks in a topic of a store, and chords.

    URL: ``embeddedpulsar:///srv/queue``, as that of the broker, with ``?namespace=tenant/namespace`` for
    other topics than those in ``public/celery``, and ``?durability=flush``.

    A worker appends a message for each result, and reads nothing. A process that asks for results has those
    of the last ``result_expires`` in memory. A chord has a topic, in which each of its tasks puts its result;
    the task that completes it sends the body, and one that is run twice counts once.

    Callers: any thread. After a fork the child reads anew.

    Raises:
        ValueError: the URL names no directory, or an option is unknown.

    Example:
        >>> from celery import Celery
        >>> app = Celery("shop", broker="embeddedpulsar://./jobs", backend="embeddedpulsar://./jobs")
        >>> app.backend.store_result("task-1", 42, "SUCCESS")
        42
        >>> app.AsyncResult("task-1").get(timeout=10)
        42
        >>> app.backend.close()
    """

    ResultConsumer = ResultConsumer
    supports_autoexpire = True
    supports_native_join = True
    persistent = True

    def __init__(self, *args: Any, url: str | None = None, expires: Any = None, **kwargs: Any) -> None:
        super().__init__(*args, expires_type=int, url=url, **kwargs)
        path, _, query = (url or "").removeprefix(f"{SCHEME}://").partition("?")
        options = dict(parse_qsl(query, strict_parsing=bool(query)))
        if not path or path == "/":
            raise ValueError(f"{url!r} names no directory: write {SCHEME}:///srv/queue")
        self._namespace: Final = options.pop("namespace", NAMESPACE)
        durability = options.pop("durability", "process")
        if options:
            raise ValueError(f"unknown options of an embeddedpulsar URL: {', '.join(sorted(options))}")
        self.expires = self.prepare_expires(expires, int)
        self.thread_safe = True  # so that the threads of a process share one
        self._jobs: Final = JobStore(unquote(path), durability=durability)
        self._topic: Final = f"persistent://{self._namespace}/results"
        self._table: Final = ResultTable(
            self._jobs, self._topic, retention_ms=self.expires * 1000 if self.expires else None
        )
        self._is_prepared = False
        self._lock: Final = threads.RLock()  # guards what follows
        self._chords: OrderedDict[str, _Chord] = OrderedDict()
        self._chords_pid = 0
        self.result_consumer = self.ResultConsumer(
            self, self.app, self.accept, self._pending_results, self._pending_messages
        )

    # -- results -------------------------------------------------------------------------------------------

    @property
    def _results(self) -> ResultTable:
        if not self._is_prepared:
            self._prepare()
            self._is_prepared = True
        return self._table

    def _prepare(self) -> None:
        """Make the namespaces, whose topics of chords are deleted when they have expired."""
        namespaces = self._jobs.admin.namespaces()
        for namespace in (self._namespace, self._namespace + _CHORDS):
            with contextlib.suppress(NotAllowedError):  # it exists
                namespaces.create_namespace(namespace)
        chords = self._namespace + _CHORDS
        expires_s = self.chord_expires
        if namespaces.get_retention(chords) is None:
            # The topic of a chord has no subscription. What is in it is kept until the body is sent.
            namespaces.set_retention(chords, -1 if not expires_s else -(-expires_s // _MINUTE_S), -1)
        if expires_s and namespaces.get_inactive_topic_policies(chords) is None:
            policies = InactiveTopicPolicies(max_inactive_duration_seconds=max(1, expires_s))
            namespaces.set_inactive_topic_policies(chords, policies)

    def new_reader(self) -> Reader[bytes]:
        """Return a reader of the results that are stored from now on."""
        self._results.prepare_topic()
        return self._jobs.client.create_reader(self._topic, MessageId.latest)

    def decode_record(self, record: bytes) -> Any:
        """Return the result in a message of the topic."""
        return self.decode_result(ResultTable.result_of(record))

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""
        return self._results.get(key.decode())

    def mget(self, keys: Iterable[bytes]) -> list[bytes | None]:
        """Return the values of keys, None for those without one."""
        return [self.get(key) for key in keys]

    def set(self, key: bytes, value: str | bytes) -> None:
        """Set the value of a key."""
        self._set_with_state(key, value, "")

    def _set_with_state(self, key: bytes, value: str | bytes, state: str) -> None:
        text = value.encode() if isinstance(value, str) else value
        self._results.put_result(key.decode(), text, is_final=state == states.SUCCESS)

    def delete(self, key: bytes) -> None:
        """Remove a key."""
        self._results.remove(key.decode())

    def _store_result(
        self, task_id: str, result: Any, state: str, traceback: Any = None, request: Any = None, **kwargs: Any
    ) -> Any:
        # Not as the base class, which reads the present result first: readers leave a success as it is.
        meta = self._get_result_meta(result=result, state=state, traceback=traceback, request=request)
        meta["task_id"] = str(task_id)
        self._set_with_state(self.get_key_for_task(task_id), self.encode(meta), state)
        return result

    def forget(self, task_id: str) -> None:
        """Remove the result of a task."""
        super().forget(task_id)
        self.result_consumer.cancel_for(task_id)

    # -- chords --------------------------------------------------------------------------------------------

    def _chord_topic(self, group_id: str) -> str:
        return f"persistent://{self._namespace}{_CHORDS}/{quote(str(group_id), safe='')}"

    def _tell_chord(self, group_id: str, kind: str, value: Any) -> MessageId:
        """Add to the topic of a chord."""
        self._results  # noqa: B018 - its namespaces are there from now on
        with self._jobs.client.create_producer(self._chord_topic(group_id)) as producer:
            return producer.send(self._chord_record(kind, value))

    def _chord_record(self, kind: str, value: Any) -> bytes:
        return str(self.encode([kind, value])).encode()

    def set_chord_size(self, group_id: str, chord_size: int) -> None:
        """Say how many tasks a chord has. Celery does so before it sends the last one."""
        self._tell_chord(group_id, "size", chord_size)

    def add_to_chord(self, chord_id: str, result: Any) -> None:
        """Say that a chord has one task more."""
        self._tell_chord(chord_id, "add", 1)

    def apply_chord(self, header_result_args: Any, body: Any, **kwargs: Any) -> None:
        """Begin a chord. If there are groups in its header, its topic says which."""
        self.ensure_chords_allowed()
        results = header_result_args[1]
        if isinstance(results, list | tuple) and any(isinstance(result, GroupResult) for result in results):
            header = self.app.GroupResult(*header_result_args)
            self._tell_chord(header.id, "header", header.as_tuple())

    def _opened_chord(self, group_id: str) -> _Chord:
        if self._chords_pid != os.getpid():
            self._chords_pid = os.getpid()
            self._chords = OrderedDict()
        chord = self._chords.get(group_id)
        if chord is None:
            self._results  # noqa: B018 - its namespaces are there from now on
            client, topic = self._jobs.client, self._chord_topic(group_id)
            reader = client.create_reader(topic, MessageId.earliest)
            chord = self._chords[group_id] = _Chord(reader, client.create_producer(topic))
            while len(self._chords) > _FOLLOWED:
                self._chords.popitem(last=False)[1].close()
        self._chords.move_to_end(group_id)
        return chord

    def on_chord_part_return(self, request: Any, state: str, result: Any, **kwargs: Any) -> None:
        """Put the result of a task into its chord, and send the body if it was the last one.

        The part with which all are there sends the body. If its worker dies before that, the task is run
        again, and its second part finds that the body was not sent.
        """
        group_id, task_id = request.group, request.id
        if not group_id or not task_id:
            return
        place = -1 if request.group_index is None else request.group_index
        part = [task_id, place, state, self.encode_result(result, state)]
        try:
            self._lock.acquire()
            completed = self._completed_chord(group_id, part)
        finally:
            self._lock.release()
        if completed is not None:
            self._send_body(request, group_id, completed)

    def _completed_chord(self, group_id: str, part: list[Any]) -> _Chord | None:
        """Put a part into a chord, and return the chord if the body is to be sent now."""
        chord = self._opened_chord(group_id)
        try:
            own_id = chord.producer.send(self._chord_record("part", part))
            chord.read(self.decode)
        except (AlreadyClosed, TopicNotFound):
            # The body was sent, and the topic deleted; this is the second run of a task.
            self._chords.pop(group_id).close()
            return None
        if chord.completed_by is None or chord.is_done:
            return None
        # A part that came before the last one leaves the body to that.
        return chord if own_id >= chord.completed_by else None

    def _send_body(self, request: Any, group_id: str, chord: _Chord) -> None:
        callback = maybe_signature(request.chord, app=self.app)
        try:
            results = self._chord_results(chord)
        except Exception as error:  # noqa: BLE001 - whatever a task raised
            logger.warning("Chord %r: %s", group_id, error)
            failure = error
            if not isinstance(error, ChordError):
                failure = ChordError(repr(error))
                failure.__cause__ = error
            self.chord_error_from_stack(callback, failure)
        else:
            try:
                callback.delay(results)
            except Exception as error:
                logger.exception("The body of chord %r cannot be sent", group_id)
                self.chord_error_from_stack(callback, ChordError(f"Callback error: {error!r}"))
        chord.producer.send(self._chord_record("done", None))
        try:
            self._lock.acquire()
            self._chords.pop(group_id, chord).close()
        finally:
            self._lock.release()
        with contextlib.suppress(TopicNotFound):
            self._jobs.admin.topics().delete(self._chord_topic(group_id), force=True)

    def _chord_results(self, chord: _Chord) -> list[Any]:
        if chord.header is not None:
            header = result_from_tuple(chord.header, self.app)
            with allow_join_result():
                joined: list[Any] = header.join(
                    timeout=self.app.conf.result_chord_join_timeout, propagate=True
                )
                return joined
        results = []
        for task_id, (_, state, result) in sorted(chord.parts.items(), key=lambda part: part[1][0]):
            if state in states.PROPAGATE_STATES:
                cause = self.exception_to_python(result)
                failure = ChordError(f"Dependency {task_id} raised {cause!r}")
                failure.__cause__ = cause
                raise failure
            results.append(result)
        return results

    # -- the process ---------------------------------------------------------------------------------------

    def on_task_call(self, producer: Any, task_id: str) -> dict[str, Any]:
        """Nothing: who waits for a result says so."""
        return {}

    def close(self) -> None:
        """Leave the store. The next use opens it again."""
        self.result_consumer.stop()
        for chord in self._chords.values():
            chord.close()
        self._chords = OrderedDict()
        self._table.close()
        self._jobs.close()

    def __reduce__(self, args: Any = (), kwargs: Any = None) -> Any:
        return super().__reduce__(args, {**(kwargs or {}), "url": self.url, "expires": self.expires})


kombu.register()
BACKEND_ALIASES[SCHEME] = f"{__name__}:ResultBackend"
