"""Finishing commits whose jobs died, and clearing away what else these left."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Final

from embeddedpulsar._engine.platform import package_log
from embeddedpulsar._engine.platform.descriptors import late_import
from embeddedpulsar.topic.catalog import root_layout

if TYPE_CHECKING:
    from embeddedpulsar._engine.platform.clock import Clock
    from embeddedpulsar.damage import DamageHook
    from embeddedpulsar.topic.housekeeping import Housekeeping
    from embeddedpulsar.topic.sinks.sink_place import SinkPlace

STAGED_KEPT_S: Final = 24 * 3600
"""Rows that no commit took are removed so long after they were written: until then a job may still commit
them."""
SINK_KEPT_S: Final = 90 * 24 * 3600
"""Which batch a sink committed last is forgotten so long after it did."""
_EVERY_S: Final = 60.0
"""How often to look at most; no less often than topics are looked after."""
_MS: Final = 1000


class SinkUpkeep:
    """The `Chore` that finishes commits, and removes staged rows that no commit took and sinks that are not
    used any more.

    Role: one per store and process, under the housekeeping lock. Invariants: rows that a pending commit names
    stay; nothing of a sink is touched whose lock is held. A commit is finished in a thread with a client of
    its own, as it may take long; if the process ends meanwhile, the commit is begun still. Callers: the
    thread of housekeeping.

    Args:
        root: of the store.
        clock: the time of day is compared with that of files.
        interval_s: how often topics are looked after.
        report: called with a document of a sink that is damaged; default: it is logged.
    """

    name: Final = "sinks"
    is_deleted: Final = False

    def __init__(
        self, root: str, clock: Clock, interval_s: float = _EVERY_S, report: DamageHook = package_log.damage
    ) -> None:
        self._report: Final = report
        self._root: Final = root
        self._directory: Final = root_layout.in_root(root, root_layout.SINKS)
        self._clock: Final = clock
        self._every_s: Final = min(interval_s, _EVERY_S)
        self._is_finishing = False

    def begin(self, housekeeping: Housekeeping, has_sinks: bool) -> None:
        """The store is opened. One without a sink is looked at when its topics are: it may get one."""
        if has_sinks:
            housekeeping.look_at(self)
        else:
            housekeeping.watch(self)

    def chores_every_s(self) -> float:
        """How often to look."""
        return self._every_s

    def do_chores(self, done: list[str]) -> bool:
        """Look at every sink; what was removed is noted in ``done``. Always False."""
        if not os.path.isdir(self._directory):
            return False
        begun: list[str] = []
        sinks = late_import("embeddedpulsar.topic.sinks.sink_place")
        for place in sinks.sinks_of(self._root):
            place.try_locked(partial(self._look_at, place, done, begun))
        if begun and not self._is_finishing:
            self._is_finishing = True
            self._clock.thread(self._finish, "sinks").start()
        return False

    def _finish(self) -> None:
        """Finish the commits that were begun, as the next write would."""
        try:
            stored = late_import("embeddedpulsar.spark.sink_commit").finish_commits(
                self._root, report=self._report
            )
        finally:
            self._is_finishing = False
        if stored:
            package_log.info("%s: %d messages of commits that were begun were published", self._root, stored)

    def _look_at(self, place: SinkPlace, done: list[str], begun: list[str]) -> None:
        sinks = late_import("embeddedpulsar.topic.sinks.sink_place")
        place.discard_unfinished()
        if os.path.exists(place.file(sinks.PENDING)):
            begun.append(place.key)
            return
        orphans = [name for name in place.staged() if self._age_s(place, name) > STAGED_KEPT_S]
        removed = place.discard(orphans)
        if removed:
            done.append(f"{place.path}: {removed} files of rows that no commit took were removed")
        if (
            not place.staged()
            and self._age_s(place, sinks.DONE) > SINK_KEPT_S
            and self._age_s(place, "") > STAGED_KEPT_S
        ):
            place.remove()

    def _age_s(self, place: SinkPlace, name: str) -> float:
        """How long ago a file was written; any length without one."""
        try:
            return self._clock.wall_ms() / _MS - os.stat(place.file(name)).st_mtime
        except FileNotFoundError:
            return float("inf")
