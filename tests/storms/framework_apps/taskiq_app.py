"""A program of a user of taskiq."""

from __future__ import annotations

import asyncio

from embeddedpulsar.frameworks.taskiq import EmbeddedPulsarBroker, EmbeddedPulsarResultBackend
from tests.storms.framework_apps import STORE, work

broker = EmbeddedPulsarBroker(STORE).with_result_backend(EmbeddedPulsarResultBackend(STORE))


@broker.task
def double(number: int) -> int:
    """A task that a thread of the worker runs."""
    return work(number)


def session(count: int, timeout_s: float) -> list[int]:
    """Send tasks and return their results."""

    async def main() -> list[int]:
        await broker.startup()
        try:
            tasks = [await double.kiq(number) for number in range(count)]
            async with asyncio.timeout(timeout_s):
                return [(await task.wait_result(check_interval=0.05)).return_value for task in tasks]
        finally:
            await broker.shutdown()

    return asyncio.run(main())
