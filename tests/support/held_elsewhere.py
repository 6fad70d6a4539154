"""A lock file that another process holds, played by a second descriptor of this one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from embeddedpulsar._engine.filenames import lock_path, subscriptions_path
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar.topic_name import subscription_directory_name


@contextmanager
def held_elsewhere(path: str | os.PathLike[str]) -> Iterator[None]:
    """Hold the lock file until the end of the block, as a process does that is stopped inside."""
    lock = FileLock(path)
    try:
        lock.acquire(0)
        yield
    finally:
        lock.release()
        lock.close()


def subscription_lock(topic_directory: str, name: str, *, durable: bool = True) -> str:
    """The lock file of a subscription."""
    directory = subscription_directory_name(name, durable=durable)
    return lock_path(os.path.join(subscriptions_path(topic_directory), directory))
