"""A program of a user of Celery."""

from __future__ import annotations

from celery import Celery, chord, group

import embeddedpulsar.frameworks.celery
from tests.storms.framework_apps import STORE, work

URL = f"{embeddedpulsar.frameworks.celery.SCHEME}://{STORE}"
app = Celery(__name__, broker=URL, backend=URL)
app.conf.task_acks_late = True
app.conf.worker_prefetch_multiplier = 4
app.conf.worker_hijack_root_logger = False


@app.task
def double(number: int) -> int:
    """A task that a process of the pool runs."""
    return work(number)


def session(count: int, timeout_s: float) -> list[int]:
    """Send tasks and return their results."""
    results = [double.delay(number) for number in range(count)]
    return [result.get(timeout=timeout_s) for result in results]


@app.task
def collect(results: list[int]) -> list[int]:
    """The body of a chord."""
    return results


def mixed(count: int, timeout_s: float) -> list[int]:
    """Send tasks to two queues with priorities and countdowns: alone, in groups, in chords and in chains."""
    results = []
    for begin in range(0, count, 10):
        signatures = [
            double.s(number).set(
                queue=("celery", "urgent")[number % 2], priority=number % 10, countdown=0.3 * (number % 3)
            )
            for number in range(begin, min(begin + 10, count))
        ]
        kind = begin // 10 % 4
        if kind == 0:
            results.append([signature.apply_async() for signature in signatures])
        elif kind == 1:
            results.append([group(signatures).apply_async()])
        elif kind == 2:
            results.append([chord(signatures, collect.s().set(queue="urgent")).apply_async()])
        else:
            results.append([(signature | collect.s()).apply_async() for signature in signatures])
    values = [result.get(timeout=timeout_s) for batch in results for result in batch]
    return [number for value in values for number in (value if isinstance(value, list) else [value])]
