"""A program of a user of FastStream, and its worker, which ``python -m`` runs."""

from __future__ import annotations

import asyncio

from faststream import FastStream

from embeddedpulsar.frameworks.faststream import EmbeddedPulsarBroker
from tests.storms.framework_apps import STORE, work

broker = EmbeddedPulsarBroker(STORE, logger=None)
app = FastStream(broker, logger=None)


@broker.subscriber("numbers", subscription="workers", max_workers=4)
@broker.publisher("doubles")
async def double(number: int) -> list[int]:
    """A handler that a thread helps: others run meanwhile."""
    return [number, await asyncio.to_thread(work, number)]


def session(count: int, timeout_s: float) -> list[int]:
    """Send messages and return the results; one that was published twice counts once."""
    client = EmbeddedPulsarBroker(STORE, logger=None)
    doubles = client.subscriber("doubles", subscription="client")

    async def main() -> list[int]:
        results: dict[int, int] = {}
        async with client, asyncio.timeout(timeout_s):
            await doubles.get_one(timeout=0.01)  # the subscription is there before the first result
            for number in range(count):
                await client.publish(number, "numbers")
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
