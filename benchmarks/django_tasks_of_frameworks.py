"""The task of Django that `benchmarks.frameworks` measures: a module, for Django names tasks by theirs."""

from __future__ import annotations

import django

from benchmarks.frameworks import COUNTER

if django.VERSION >= (6, 0):
    from django.tasks import task
else:
    from django_tasks import task


@task
def nothing(number: int) -> int:
    """Count, and return the number."""
    COUNTER.count()
    return number
