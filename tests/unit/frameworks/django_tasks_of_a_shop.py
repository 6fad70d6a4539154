"""Tasks of a user of Django; importing this module configures Django, if nothing else has."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import django
from django.conf import settings

if not settings.configured:
    settings.configure(
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        INSTALLED_APPS=[] if django.VERSION >= (6, 0) else ["django_tasks"],
        TASKS={
            "default": {
                "BACKEND": "embeddedpulsar.frameworks.django.TaskBackend",
                "QUEUES": [],
                "OPTIONS": {"path": "memory://shop"},
            }
        },
        USE_TZ=True,
    )
    django.setup()

if django.VERSION >= (6, 0):
    from django.tasks import task
else:
    from django_tasks import task

ran: list[Any] = []


@task
def show(word: str) -> str:
    """A task with a result."""
    ran.append(word)
    return word.upper()


@task(takes_context=True)
def attempts(context: Any) -> int:
    """Which attempt this is."""
    return int(context.attempt)


@task
async def wait(word: str) -> str:
    """A coroutine."""
    return word


@task
def fail() -> None:
    """A task with an error."""
    raise KeyError("soup")


@task
def leave() -> None:
    """A task that tries to end its worker."""
    sys.exit(3)


@task
def die() -> None:
    """A task that kills its worker."""
    os.kill(os.getpid(), signal.SIGKILL)
