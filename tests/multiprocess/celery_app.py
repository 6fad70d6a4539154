"""A program of a user of Celery, for the tests of its workers."""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery

import embeddedpulsar.frameworks.kombu

app = Celery(
    "tests.multiprocess.celery_app", broker=os.environ.get("CELERY_STORE", "embeddedpulsar://./data")
)
app.conf.task_acks_late = True
app.conf.worker_prefetch_multiplier = 1
app.conf.task_ignore_result = True
assert embeddedpulsar.frameworks.kombu


def tell(*words: object) -> None:
    """Append a line to the file that the test reads."""
    descriptor = os.open(os.environ["CELERY_EFFECTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, (" ".join(map(str, words)) + "\n").encode())
    finally:
        os.close(descriptor)


@app.task(bind=True)
def work(self: Any, word: str, seconds: float = 0.0) -> None:
    """Say that the task begins, and in which process; then take some time, but not the third time."""
    tell(word, os.getppid(), bool(self.request.delivery_info.get("redelivered")), time.time())
    with open(os.environ["CELERY_EFFECTS"], encoding="ascii") as effects:
        if sum(line.startswith(f"{word} ") for line in effects) <= 2 or word == "quick":
            time.sleep(seconds)
