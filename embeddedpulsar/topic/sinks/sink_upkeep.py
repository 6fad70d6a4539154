"""Clearing away what sinks left whose jobs died."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Final

from embeddedpulsar.topic.catalog import root_layout
from embeddedpulsar.topic.sinks.sink_place import DONE, PENDING, SinkPlace, sinks_of

if TYPE_CHECKING:
    from embeddedpulsar.platform.clock import Clock
    from embeddedpulsar.topic.housekeeping import Housekeeping

STAGED_KEPT_S: Final = 24 * 3600
"""Rows that no commit took are removed so long after they were written: until then a job may still commit
them."""
SINK_KEPT_S: Final = 90 * 24 * 3600
"""Which batch a sink committed last is forgotten so long after it did."""
_EVERY_S: Final = 600.0
_MS: Final = 1000


class SinkUpkeep:
    """The `Chore` that removes staged rows that no commit took, and sinks that are not used any more.

    Role: one per store and process, under the housekeeping lock. Invariants: rows that a pending commit names
    stay; nothing of a sink is touched whose lock is held. Callers: the thread of housekeeping.

    Args:
        root: of the store.
        clock: the time of day is compared with that of files.
    """

    name: Final = "sinks"
    is_deleted: Final = False

    def __init__(self, root: str, clock: Clock) -> None:
        self._root: Final = root
        self._clock: Final = clock

    def begin(self, housekeeping: Housekeeping) -> None:
        """The store is opened."""
        if self.chores_every_s():
            housekeeping.look_at(self)

    def chores_every_s(self) -> float:
        """How often to look; 0 in a store that never had a sink."""
        has_any = os.path.isdir(root_layout.in_root(self._root, root_layout.SINKS))
        return _EVERY_S if has_any else 0.0

    def do_chores(self, done: list[str]) -> bool:
        """Look at every sink; what was removed is noted in ``done``. Always False."""
        for place in sinks_of(self._root):
            place.try_locked(partial(self._look_at, place, done))
        return False

    def _look_at(self, place: SinkPlace, done: list[str]) -> None:
        place.discard_unfinished()
        if os.path.exists(place.file(PENDING)):
            return  # the next commit finishes it
        orphans = [name for name in place.staged() if self._age_s(place, name) > STAGED_KEPT_S]
        removed = place.discard(orphans)
        if removed:
            done.append(f"{place.path}: {removed} files of rows that no commit took were removed")
        if (
            not place.staged()
            and self._age_s(place, DONE) > SINK_KEPT_S
            and self._age_s(place, "") > STAGED_KEPT_S
        ):
            place.remove()

    def _age_s(self, place: SinkPlace, name: str) -> float:
        """How long ago a file was written; any length without one."""
        try:
            return self._clock.wall_ms() / _MS - os.stat(place.file(name)).st_mtime
        except FileNotFoundError:
            return float("inf")
