"""What reads of Spark keep from being trimmed: pins of the ledgers that they are about to read."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from typing import Final

from embeddedpulsar._engine.log.filenames import lock_path
from embeddedpulsar._engine.log.trimming import pin_for_reading
from embeddedpulsar._engine.platform.clock import CLOCK
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar._engine.platform.mapped_file import HeldFile
from embeddedpulsar.arrow.plan import topic_directory
from embeddedpulsar.exceptions import LockTimeout
from embeddedpulsar.spark.log_plan import Task
from embeddedpulsar.spark.stream_offsets import LogOffset, Offsets
from embeddedpulsar.topic_name import TopicName

_PATIENCE_S: Final = 0.2


class ReadPins:
    """Role: keeps what a streaming query has not read yet. Callers: one thread of the query's process, with
    whose end the pins go.

    Args:
        path: directory of the store.
    """

    def __init__(self, path: str) -> None:
        self._path: Final = path
        self._held: Final[dict[str, tuple[LogOffset, HeldFile | None]]] = {}

    def follow(self, offsets: Offsets) -> None:
        """Keep what is behind the offsets, and nothing before them."""
        for topic, offset in offsets.items():
            at = LogOffset(offset.incarnation, offset.ledger)
            held = self._held.get(topic)
            if held is None or held[0] != at:
                self._held[topic] = at, _pin(topic_directory(self._path, TopicName.parse(topic)), at.ledger)
                if held is not None and held[1] is not None:
                    held[1].close()

    def close(self) -> None:
        """Keep nothing more."""
        while self._held:
            _, (_, held) = self._held.popitem()
            if held is not None:
                held.close()


def pin_plan(tasks: Iterable[Task]) -> bool:
    """Keep what tasks are about to read until they begin; they have the time of a lease for that.

    Returns:
        Whether it is all there still: some of it may have been trimmed just before.
    """
    first = {os.path.dirname(task[0].path): task[0] for task in reversed(list(tasks))}
    for directory, planned in first.items():
        held = _pin(directory, planned.ledger_id)
        if held is not None:
            held.close()
    return all(os.path.exists(planned.path) for planned in first.values())


@contextlib.contextmanager
def pinned(task: Task | None) -> Iterator[None]:
    """Keep what a task reads while it does."""
    held = (
        pin_for_reading(os.path.dirname(task[0].path), task[0].ledger_id, CLOCK.wall_ms()) if task else None
    )
    try:
        yield
    finally:
        if held is not None:
            held.close()


def _pin(directory: str, ledger_id: int) -> HeldFile | None:
    """Pin a ledger, and wait for a trimming that has decided already: its result is seen from now on."""
    if not os.path.isdir(directory):
        return None
    held = pin_for_reading(directory, ledger_id, CLOCK.wall_ms())
    if held is not None:
        with contextlib.suppress(LockTimeout, OSError):
            lock = FileLock(lock_path(directory))
            try:
                lock.acquire(_PATIENCE_S)
            finally:
                lock.release()
                lock.close()
    return held
