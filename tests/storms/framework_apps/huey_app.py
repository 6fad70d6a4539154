"""A program of a user of huey."""

from __future__ import annotations

from embeddedpulsar.frameworks.huey import EmbeddedPulsarHuey
from tests.storms.framework_apps import STORE, work

huey = EmbeddedPulsarHuey("storm", service_url=STORE)


@huey.task()
def double(number: int) -> int:
    """A task that a thread of the worker runs."""
    return work(number)


def session(count: int, timeout_s: float) -> list[int]:
    """Send tasks and return their results."""
    try:
        results = [double(number) for number in range(count)]
        return [result.get(blocking=True, timeout=timeout_s) for result in results]
    finally:
        huey.storage.close()
