"""A program of a user of FastStream, and its worker, which ``python -m`` runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

from faststream import AckPolicy, FastStream

from embeddedpulsar import ConsumerType
from embeddedpulsar.frameworks.faststream import EmbeddedPulsarBroker
from tests.storms.framework_apps import STORE, work

broker = EmbeddedPulsarBroker(STORE, logger=None)
app = FastStream(broker, logger=None)


@broker.subscriber("numbers", subscription="workers", max_workers=4)
@broker.publisher("doubles")
async def double(number: int) -> list[int]:
    """A handler that a thread helps: others run meanwhile."""
    return [number, await asyncio.to_thread(work, number)]


@broker.subscriber(
    "urgent",
    subscription="workers",
    max_workers=4,
    consumer_type=ConsumerType.KeyShared,
    ack_policy=AckPolicy.ACK,
)
@broker.publisher("doubles")
async def double_in_order(number: int) -> list[int]:
    """The handler of messages with keys."""
    return [number, await asyncio.to_thread(work, number)]


async def _alone(client: EmbeddedPulsarBroker, count: int) -> None:
    for number in range(count):
        await client.publish(number, "numbers")


async def _mixed(client: EmbeddedPulsarBroker, count: int) -> None:
    for begin in range(0, count, 10):
        numbers = range(begin, min(begin + 10, count))
        if begin // 10 % 3 == 0:
            await client.publish_batch(*numbers, topic="numbers")
        elif begin // 10 % 3 == 1:
            for number in numbers:
                await client.publish(number, "urgent", key=f"{number % 4}")
        else:
            for number in numbers:
                await client.publish(number, "numbers", delay=timedelta(seconds=number % 3))


def session(count: int, timeout_s: float) -> list[int]:
    """Send messages and return the results."""
    return _results(_alone, count, timeout_s)


def mixed(count: int, timeout_s: float) -> list[int]:
    """Send messages in batches, with keys to a Key_Shared subscription, and with delays."""
    return _results(_mixed, count, timeout_s)


def _results(
    send: Callable[[EmbeddedPulsarBroker, int], Awaitable[None]], count: int, timeout_s: float
) -> list[int]:
    """Send, and return the results; one that was published twice counts once."""
    client = EmbeddedPulsarBroker(STORE, logger=None)
    doubles = client.subscriber("doubles", subscription="client")

    async def main() -> list[int]:
        results: dict[int, int] = {}
        async with client, asyncio.timeout(timeout_s):
            await doubles.get_one(timeout=0.01)  # the subscription is there before the first result
            await send(client, count)
            async for message in doubles:
                number, result = await message.decode()
                results[number] = result
                await message.ack()
                if len(results) == count:
                    break
            await doubles.stop()
        return [results[number] for number in range(count)]

    return asyncio.run(main())


if __name__ == "__main__":
    asyncio.run(app.run())
