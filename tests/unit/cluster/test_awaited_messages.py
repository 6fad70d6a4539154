"""Messages that coroutines wait for, and that one that is cancelled leaves to the next."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from embeddedpulsar.cluster.client import AwaitedMessages
from embeddedpulsar.exceptions import AlreadyClosed

OK, CLOSED = SimpleNamespace(name="Ok"), SimpleNamespace(name="AlreadyClosed")


class Source:
    """What fetches messages, without any thread: `answer` is its callback."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.awaited = AwaitedMessages(self.requests.append, lambda raw: raw)

    def answer(self, message: Any, result: Any = OK) -> None:
        """Answer the oldest request."""
        self.requests.pop(0)(result, message)


async def turns() -> None:
    """Let the loop run what is ready."""
    for _ in range(3):
        ready = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(ready.set_result, None)
        await ready


def test_messages_are_given_in_order():
    """To the coroutine that asked first; there is one request at a time, as long as coroutines wait."""

    async def main() -> None:
        source = Source()
        waiting = [asyncio.create_task(source.awaited.next()) for _ in range(3)]
        await turns()
        for number in range(3):
            assert len(source.requests) == 1
            source.answer(number)
        assert await asyncio.gather(*waiting) == [0, 1, 2]
        assert source.requests == []

    asyncio.run(main())


@pytest.mark.parametrize("settled", [False, True])
def test_a_cancelled_coroutine_has_taken_nothing(settled: bool):
    """Its request serves the next one, also if the message came just before the cancellation."""

    async def main() -> None:
        source = Source()
        first = asyncio.create_task(source.awaited.next())
        await turns()
        if settled:
            source.answer("soup")
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        await turns()
        second = asyncio.create_task(source.awaited.next())
        await turns()
        assert len(source.requests) == (not settled)
        if not settled:
            source.answer("soup")
        assert await second == "soup"
        assert source.awaited.take_kept() is None

    asyncio.run(main())


def test_a_message_that_no_coroutine_awaits_is_kept():
    """For the next call, also for one that blocks; in order."""

    async def main(source: Source) -> None:
        waiting = [asyncio.create_task(source.awaited.next()) for _ in range(2)]
        await turns()
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    source = Source()
    asyncio.run(main(source))
    source.answer("soup")  # the loop is closed
    assert source.requests == []
    assert source.awaited.take_kept() == "soup"
    asyncio.run(main(source))
    source.answer("tea")
    assert asyncio.run(source.awaited.next()) == "tea"
    assert source.awaited.take_kept() is None


def test_messages_that_are_given_back_keep_their_order():
    """Two coroutines that were cancelled with a message, and one that came later."""

    async def main() -> list[Any]:
        source = Source()
        waiting = [asyncio.create_task(source.awaited.next()) for _ in range(3)]
        await turns()
        for number in range(3):
            source.answer(number)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await turns()
        return [await source.awaited.next() for _ in range(3)]

    assert asyncio.run(main()) == [0, 1, 2]


def test_an_error_reaches_one_coroutine():
    """As the exception of this package; the others wait on."""

    async def main() -> None:
        source = Source()
        waiting = [asyncio.create_task(source.awaited.next()) for _ in range(2)]
        await turns()
        source.answer(None, CLOSED)
        with pytest.raises(AlreadyClosed):
            await waiting[0]
        source.answer("soup")
        assert await waiting[1] == "soup"

    asyncio.run(main())
