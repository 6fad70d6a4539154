"""The table view: the last value of each key of a topic, kept up to date in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, cast, overload

from embeddedpulsar._engine.platform import fork, threads
from embeddedpulsar.client.client_context import ProcessBound
from embeddedpulsar.message import T
from embeddedpulsar.schema.schema import Schema

if TYPE_CHECKING:
    from embeddedpulsar._engine.store.schema_info import SchemaInfo
    from embeddedpulsar.client.client_threads import ClientLog
    from embeddedpulsar.client.consumer.reader import Reader, ReaderCore
    from embeddedpulsar.message import Message
    from embeddedpulsar.message_id import Position

_VERSION_SIZE: Final = 4
_ABSENT: Final[Any] = object()
D = TypeVar("D")


class TableView(ProcessBound, Mapping[str, T]):
    """The last value of each partition key of a topic, as a `Mapping`. Made by `Client.create_table_view`.

    The view holds what the topic retains, and what compaction left, when it is made, and follows the topic
    from there on, in memory. It needs no subscription, and does not prevent the removal of messages: have the
    topic compacted, or set a retention for it.
    Messages without a key are ignored. A message with an empty payload, as after ``send(None)``, removes its
    key. Values are decoded by the schema when they are asked for.

    All that a `Mapping` has works: ``view[key]``, ``in``, ``len``, `keys`, `values`, `items`, and ``==``,
    which compares the content with that of any other mapping. An iteration goes over the keys that were there
    when it began. In a `set` or as a key of a `dict`, a view is equal to itself alone.

    Thread-safe. Callbacks of `for_each_and_listen` are called on a listener thread of the client, one at a
    time, and see every change of a key in order. After `close`, after the deletion of the topic and in a
    forked child the view keeps its last content. A ``with`` block closes the view at the end.

    Example:
        >>> from embeddedpulsar import Client
        >>> with Client("memory://") as client:
        ...     producer = client.create_producer("prices")
        ...     for key, price in (("tea", b"2.80"), ("soup", b"6.50"), ("tea", b"3.10")):
        ...         message_id = producer.send(price, partition_key=key)
        ...     view = client.create_table_view("prices")
        ...     view.get("tea"), view.get("milk"), len(view), sorted(view)
        (b'3.10', None, 2, ['soup', 'tea'])
        >>> view == {"tea": b"3.10", "soup": b"6.50"}, dict(view) == view, view["soup"]
        (True, True, b'6.50')
        >>> sorted(view.items()), sorted(view.values())
        ([('soup', b'6.50'), ('tea', b'3.10')], [b'3.10', b'6.50'])
    """

    def __init__(self, topic: str, subscription_name: str | None, schema: Schema[T], log: ClientLog) -> None:
        self._topic = topic
        self._subscription_name = subscription_name
        self._schema: Final = schema
        self._keeps_version = type(schema).decode_written is not Schema.decode_written
        self._decode: Callable[[bytes], T] = self._decode_versioned if self._keeps_version else schema.decode
        # Of a schema whose values have the key of the message in them.
        self._decode_keyed: Callable[[bytes | None, str, Any], T] | None
        self._decode_keyed = getattr(schema, "decode_keyed", None)
        self._log = log
        self._lock = threads.RLock()  # guards the changes of everything below
        self._values: dict[str, bytes] = {}
        self._listeners: list[_Listener] = []
        self._reader: Reader[T]  # set by `open_table_view`; it calls `_on_message`
        fork.register(self)

    def _load(self) -> None:
        """Take all messages that are there now. The reader has not started to call `_on_message`.

        No message is missed or taken twice: the reader continues where this ends. It does not run after a
        producer: reading takes nearly as long as sending."""
        try:
            for part in self._reader._core.readers:
                last = part.ledger.last_readable()
                if last is None:
                    continue
                if self._keeps_version:
                    self._take_versioned(part, last)
                else:
                    self._take_all(part, last)
        except BaseException:
            self._reader.close()
            raise

    def _take_all(self, part: ReaderCore, last: Position) -> None:
        # Hot: 0.7 us a message. The columns of an entry are looked up once for all its messages.
        poll, take, values = part.delivery.poll, part.pop_message, self._values
        for keys, payload, offsets in part.compacted_columns():
            # What is compacted has no other message of its key, and none without a payload.
            values.update(
                (key, payload[start:end])
                for key, (start, end) in zip(keys, pairwise(offsets), strict=True)
                if key
            )
        entry: Any = None
        final = -1  # the index of the message to end with
        message = poll(take)
        while message is not None:
            if message._entry is not entry:
                entry = message._entry
                keys, payload, offsets = entry.keys(), entry.payload, entry.offsets
                final = entry.count - 1 if (entry.ledger_id, entry.entry_id) >= last else -1
            index = message._index
            if keys is not None and (key := keys[index]):
                start, end = offsets[index], offsets[index + 1]
                if start < end:
                    values[key] = payload[start:end]
                else:
                    values.pop(key, None)
            if index == final:
                return
            try:
                message = take()
            except IndexError:
                message = poll(take)

    def _take_versioned(self, part: ReaderCore, last: Position) -> None:
        """As `_take_all`, for a schema that needs the version with which a value was written."""
        while (message := part.delivery.poll(part.pop_message)) is not None:
            self._on_message(self, message)
            entry = message._entry
            if (entry.ledger_id, entry.entry_id) >= last and message._index == entry.count - 1:
                return

    def _value(self, key: str, data: bytes) -> T:
        """The value of a key, from what is kept for it."""
        decode = self._decode_keyed
        if decode is None:
            return self._decode(data)
        return decode(data[_VERSION_SIZE:], key, self._writer(data))

    def _decode_versioned(self, data: bytes) -> T:
        return self._schema.decode_written(data[_VERSION_SIZE:], self._writer(data))

    def _writer(self, data: bytes) -> SchemaInfo | None:
        version = int.from_bytes(data[:_VERSION_SIZE], "big", signed=True)
        return self._reader._core.readers[0].writers[version]

    def _on_message(self, _: object, message: Message[T]) -> None:
        key, data = message.partition_key(), message.data()
        if not key:
            return
        if data and self._keeps_version:
            data = _version_bytes(message._entry.schema_version) + data
        try:
            self._lock.acquire()
            if data:
                self._values[key] = data
            else:
                self._values.pop(key, None)
            listeners = [listener for listener in self._listeners if not listener.keeps(key, data)]
        finally:
            self._lock.release()
        for listener in listeners:
            try:
                listener.callback(key, self._value(key, data) if data else None)
            except BaseException:  # noqa: BLE001 - the user's code; the others have their turn
                self._log.exception("A listener of %r failed on the key %r", self, key, topic=self._topic)

    @overload
    def get(self, key: str, default: None = None) -> T | None: ...
    @overload
    def get(self, key: str, default: D) -> T | D: ...

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key; ``default`` if there is none."""
        data = self._values.get(key)
        if data is None:
            return default
        return self._decode(data) if self._decode_keyed is None else self._value(key, data)

    def values(self) -> ValuesView[T]:
        """Return the values. Each iteration decodes those that there are when it begins."""
        return _Values(self)

    def items(self) -> ItemsView[str, T]:
        """Return the keys with their values. Each iteration goes over those that there are when it begins."""
        return _Items(self)

    def _pairs(self) -> Iterator[tuple[str, T]]:
        """The keys with their values, of one moment. Values are decoded one by one."""
        for key, data in self._items():
            yield key, self._value(key, data)

    def for_each(self, callback: Callable[[str, T], object]) -> None:
        """Call ``callback(key, value)`` for each key, in this thread. Its exceptions end the call.

        Example:
            >>> from embeddedpulsar import Client
            >>> with Client("memory://") as client:
            ...     message_id = client.create_producer("prices").send(b"2.80", partition_key="tea")
            ...     client.create_table_view("prices").for_each(print)
            tea b'2.80'
        """
        for key, data in self._items():
            callback(key, self._value(key, data))

    def for_each_and_listen(self, callback: Callable[[str, T | None], object]) -> None:
        """`for_each`, and then call ``callback(key, value)`` for each later change, on a listener thread.

        No change is missed or reported twice. The value of a key that is removed is None, whatever the
        schema; ``pulsar-client`` decodes an empty payload. An exception while the existing keys are passed
        ends the call, and nothing is listened to. Later ones are logged.

        Example:
            >>> import queue
            >>> from embeddedpulsar import Client
            >>> changes = queue.Queue()
            >>> with Client("memory://") as client:
            ...     view = client.create_table_view("prices")
            ...     view.for_each_and_listen(lambda key, value: changes.put((key, value)))
            ...     message_id = client.create_producer("prices").send(b"2.80", partition_key="tea")
            ...     changes.get(timeout=10)
            ('tea', b'2.80')
        """
        # The listener is added with the same hold of the lock as the keys are listed: a change is in the list
        # or reported to it, and never both. Until the keys are passed, it keeps its changes.
        listener = _Listener(callback)
        try:
            self._lock.acquire()
            items = list(self._values.items())
            self._listeners.append(listener)
        finally:
            self._lock.release()
        try:
            for key, data in items:
                callback(key, self._value(key, data))
            while (change := self._next_kept(listener)) is not None:
                callback(change[0], self._value(*change) if change[1] else None)
        except BaseException:
            try:
                self._lock.acquire()
                self._listeners = [other for other in self._listeners if other is not listener]
            finally:
                self._lock.release()
            raise

    def _next_kept(self, listener: _Listener) -> tuple[str, bytes] | None:
        """Return the next change that came meanwhile; without any, later ones go to the callback at once."""
        try:
            self._lock.acquire()
            if listener.kept:
                return listener.kept.popleft()
            listener.kept = None
        finally:
            self._lock.release()
        return None

    def _items(self) -> list[tuple[str, bytes]]:
        try:
            self._lock.acquire()
            return list(self._values.items())
        finally:
            self._lock.release()

    def close(self) -> None:
        """Follow the topic no more.

        Raises:
            AlreadyClosed: it was closed before.

        Example:
            >>> from embeddedpulsar import Client
            >>> with Client("memory://") as client:
            ...     message_id = client.create_producer("prices").send(b"2.80", partition_key="tea")
            ...     view = client.create_table_view("prices")
            ...     view.close()
            ...     view.get("tea")
            b'2.80'
        """
        self._reader.close()

    def after_fork_in_child(self) -> None:
        """Replace the lock, which another thread may have held. Called by `_engine.platform.fork`."""
        self._lock = threads.RLock()

    def __getitem__(self, key: str) -> T:
        value = self.get(key, _ABSENT)
        if value is _ABSENT:
            raise KeyError(key)
        return cast("T", value)

    __hash__ = object.__hash__  # its content changes

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter([key for key, _ in self._items()])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._reader.is_connected():
            self.close()

    def __repr__(self) -> str:
        name = "" if self._subscription_name is None else f", subscription={self._subscription_name}"
        return f"TableView(topic={self._topic}{name})"


class _Items(ItemsView[str, T]):
    """The pairs of a view, which changes while they are iterated."""

    __slots__ = ()
    _mapping: TableView[T]

    def __iter__(self) -> Iterator[tuple[str, T]]:
        return self._mapping._pairs()


class _Values(ValuesView[T]):
    """The values of a view, which changes while they are iterated."""

    __slots__ = ()
    _mapping: TableView[T]

    def __iter__(self) -> Iterator[T]:
        return (value for _, value in self._mapping._pairs())

    def __contains__(self, value: object) -> bool:
        return any(other is value or other == value for other in self)


def _version_bytes(version: int) -> bytes:
    """What stands before a kept payload whose decoding needs the version."""
    return version.to_bytes(_VERSION_SIZE, "big", signed=True)


class _Listener:
    """A callback, and the changes that it gets after the existing keys; None when it has got these."""

    __slots__ = ("callback", "kept")

    def __init__(self, callback: Callable[[str, Any], object]) -> None:
        self.callback: Final = callback
        self.kept: deque[tuple[str, bytes]] | None = deque()

    def keeps(self, key: str, data: bytes) -> bool:
        """Keep a change for later. Returns False if it goes to the callback at once. Under the lock."""
        if self.kept is None:
            return False
        self.kept.append((key, data))
        return True
