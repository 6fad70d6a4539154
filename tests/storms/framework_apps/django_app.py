"""The tasks of a user of Django."""

from __future__ import annotations

import os
import time

import django

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
    results = [double.enqueue(number) for number in range(count)]
    end = time.monotonic() + timeout_s
    for result in results:
        while not result.is_finished and time.monotonic() < end:
            result.refresh()
            if not result.is_finished:
                time.sleep(0.02)
    return [result.return_value for result in results]
