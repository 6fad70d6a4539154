"""A program of a user of taskiq."""

from __future__ import annotations

import asyncio

from taskiq import gather

from embeddedpulsar.frameworks.taskiq import EmbeddedPulsarBroker, EmbeddedPulsarResultBackend
from tests.storms.framework_apps import STORE, work

broker = EmbeddedPulsarBroker(STORE, max_priority=2).with_result_backend(EmbeddedPulsarResultBackend(STORE))


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


def mixed(count: int, timeout_s: float) -> list[int]:
    """Send tasks with priorities and delays, several at a time, and get their results by their ids."""

    async def main() -> list[int]:
        await broker.startup()
        try:
            tasks = []
            for begin in range(0, count, 10):
                kickers = [
                    double.kicker()
                    .with_task_id(f"task-{number}")
                    .with_labels(priority=number % 3, delay=0.3 * (number % 4))
                    .kiq(number)
                    for number in range(begin, min(begin + 10, count))
                ]
                tasks.extend(await asyncio.gather(*kickers))
            async with asyncio.timeout(timeout_s):
                await gather(*tasks, timeout=timeout_s, periodicity=0.05)
            backend = broker.result_backend
            return [(await backend.get_result(f"task-{number}")).return_value for number in range(count)]
        finally:
            await broker.shutdown()

    return asyncio.run(main())
