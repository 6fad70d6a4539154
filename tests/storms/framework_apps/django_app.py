"""The tasks of a user of Django."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any

import django
from django.utils import timezone

from tests.storms.framework_apps import work

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.storms.framework_apps.django_settings")
django.setup()

if django.VERSION >= (6, 0):
    from django.tasks import task
else:
    from django_tasks import task


@task
def double(number: int) -> int:
    """A task that a worker runs."""
    return work(number)


def session(count: int, timeout_s: float) -> list[int]:
    """Send tasks and return their results."""
    return _values([double.enqueue(number) for number in range(count)], timeout_s)


def mixed(count: int, timeout_s: float) -> list[int]:
    """Send tasks to two queues, with priorities, and some to be run later."""
    now = timezone.now()
    tasks = [
        double.using(
            queue_name=("default", "urgent")[number % 2],
            priority=number % 5 * 10 - 20,
            run_after=now + timedelta(seconds=1 + number % 3) if number % 4 == 0 else None,
        )
        for number in range(count)
    ]
    return _values([task.enqueue(number) for number, task in enumerate(tasks)], timeout_s)


def _values(results: list[Any], timeout_s: float) -> list[int]:
    end = time.monotonic() + timeout_s
    for result in results:
        while not result.is_finished and time.monotonic() < end:
            result.refresh()
            if not result.is_finished:
                time.sleep(0.02)
    return [result.return_value for result in results]
