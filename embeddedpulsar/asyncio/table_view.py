"""The table view of asyncio loops."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic

from embeddedpulsar.asyncio.offload import AsyncFacade, in_thread
from embeddedpulsar.message import T

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class TableView(AsyncFacade, Generic[T]):
    """A dictionary of the last value of each key. Made by `Client.create_table_view` of
    `embeddedpulsar.asyncio`; see `embeddedpulsar.TableView`. ``pulsar.asyncio`` has none.

    The calls that only use memory are not awaited. ``async with`` closes the view at the end.

    Example:
        >>> import asyncio
        >>> from embeddedpulsar.asyncio import Client
        >>> async def main():
        ...     async with Client("memory://") as client:
        ...         await (await client.create_producer("prices")).send(b"2.80", partition_key="tea")
        ...         async with await client.create_table_view("prices") as view:
        ...             return view.get("tea"), len(view)
        >>> asyncio.run(main())
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

    def get(self, key: str) -> T | None:
        """Return the value of a key; None if there is none."""
        value: T | None = self._blocking.get(key)
        return value

    def for_each(self, callback: Callable[[str, T], object]) -> None:
        """Call ``callback(key, value)`` for each key."""
        self._blocking.for_each(callback)

    def for_each_and_listen(self, callback: Callable[[str, T], object]) -> None:
        """`for_each`, and then call ``callback(key, value)`` in the loop for each later change.

        Called in the loop. The exceptions of later calls go to the exception handler of the loop.
        """
        loop = asyncio.get_running_loop()

        def pass_on(key: str, value: T) -> None:
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
