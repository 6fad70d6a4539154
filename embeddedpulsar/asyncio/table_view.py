"""The table view of asyncio loops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import Any, TypeVar, overload

from embeddedpulsar.asyncio.worker_threads import AsyncFacade, in_thread
from embeddedpulsar.client.client_context import ProcessBound
from embeddedpulsar.message import T

D = TypeVar("D")


class TableView(ProcessBound, AsyncFacade, Mapping[str, T]):
    """The last value of each key, as a `Mapping`. Made by `Client.create_table_view` of
    `embeddedpulsar.asyncio`; see `embeddedpulsar.TableView`. ``pulsar.asyncio`` has none.

    The calls that only use memory are not awaited. ``async with`` closes the view at the end.

    Example:
        >>> import asyncio
        >>> from embeddedpulsar.asyncio import Client
        >>> async def main():
        ...     async with Client("memory://") as client:
        ...         await (await client.create_producer("prices")).send(b"2.80", partition_key="tea")
        ...         async with await client.create_table_view("prices") as view:
        ...             print(view.keys(), list(view.values()), list(view.items()))
        ...             return view.get("tea"), len(view)
        >>> asyncio.run(main())
        KeysView(TableView(topic=prices)) [b'2.80'] [('tea', b'2.80')]
        (b'2.80', 1)
        >>> async def changes():
        ...     async with Client("memory://") as client:
        ...         view, seen = await client.create_table_view("prices"), asyncio.Queue()
        ...         view.for_each_and_listen(lambda key, value: seen.put_nowait((key, value)))
        ...         await (await client.create_producer("prices")).send(b"2.80", partition_key="tea")
        ...         print(await seen.get())
        ...         view.for_each(print)
        ...         await view.close()
        >>> asyncio.run(changes())
        ('tea', b'2.80')
        tea b'2.80'
    """

    @overload
    def get(self, key: str, default: None = None) -> T | None: ...
    @overload
    def get(self, key: str, default: D) -> T | D: ...

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key; ``default`` if there is none."""
        return self._blocking.get(key, default)

    def keys(self) -> KeysView[str]:
        """Return the keys, as the blocking view does."""
        keys: KeysView[str] = self._blocking.keys()
        return keys

    def values(self) -> ValuesView[T]:
        """Return the values, as the blocking view does."""
        values: ValuesView[T] = self._blocking.values()
        return values

    def items(self) -> ItemsView[str, T]:
        """Return the keys with their values, as the blocking view does."""
        items: ItemsView[str, T] = self._blocking.items()
        return items

    def for_each(self, callback: Callable[[str, T], object]) -> None:
        """Call ``callback(key, value)`` for each key."""
        self._blocking.for_each(callback)

    def for_each_and_listen(self, callback: Callable[[str, T | None], object]) -> None:
        """`for_each`, and then call ``callback(key, value)`` in the loop for each later change.

        Called in the loop. The value of a key that is removed is None. The exceptions of later calls go to
        the exception handler of the loop.
        """
        loop = asyncio.get_running_loop()

        def pass_on(key: str, value: T | None) -> None:
            # The first calls, for what is there, come within this call, in the loop; later ones on the thread
            # that follows the topic.
            if _running_loop() is loop:
                callback(key, value)
            else:
                loop.call_soon_threadsafe(callback, key, value)

        self._blocking.for_each_and_listen(pass_on)

    async def close(self) -> None:
        """Follow the topic no more.

        Raises:
            AlreadyClosed: it was closed before.
        """
        await in_thread(self._blocking.close)

    def __getitem__(self, key: str) -> T:
        value: T = self._blocking[key]
        return value

    __hash__ = object.__hash__  # its content changes

    def __len__(self) -> int:
        return len(self._blocking)

    def __contains__(self, key: object) -> bool:
        return key in self._blocking

    def __iter__(self) -> Iterator[str]:
        return iter(self._blocking)

    def __repr__(self) -> str:
        return repr(self._blocking)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
