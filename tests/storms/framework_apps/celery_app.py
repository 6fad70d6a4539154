"""A program of a user of Celery."""

from __future__ import annotations

from celery import Celery

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
