"""A program of a user of huey."""

from __future__ import annotations

from typing import Any

from huey.api import chord, group

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


@huey.task()
def collect(results: list[int]) -> list[int]:
    """The end of a chord."""
    return results


def mixed(count: int, timeout_s: float) -> list[int]:
    """Send tasks with priorities and delays: alone, in groups, in chords and in pipelines."""
    try:
        results: list[Any] = []
        for begin in range(0, count, 10):
            numbers = range(begin, min(begin + 10, count))
            kind = begin // 10 % 4
            if kind == 0:
                options = [{"priority": number % 3, "delay": number % 2 or None} for number in numbers]
                pairs = zip(numbers, options, strict=True)
                results.extend(huey.enqueue(double.s(number, **option)) for number, option in pairs)
            elif kind == 1:
                results.append(huey.enqueue(group([double.s(number) for number in numbers])))
            elif kind == 2:
                results.append(huey.enqueue(chord([double.s(number) for number in numbers], collect)))
            else:
                # The results of a pipeline are those of its tasks.
                results.extend(list(huey.enqueue(double.s(number).then(collect)))[1] for number in numbers)
        values = [result.get(blocking=True, timeout=timeout_s) for result in results]
        return [number for value in values for number in (value if isinstance(value, list) else [value])]
    finally:
        huey.storage.close()
