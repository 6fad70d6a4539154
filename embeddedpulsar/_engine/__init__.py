"""What no user imports: the store, its subscriptions and logs, their formats, and the platform below.

It imports nothing of the packages above it, for which it is the foundation. What a store does for one of
them by itself, such a package adds to `EXTENSIONS`.
"""

from __future__ import annotations

from embeddedpulsar.records import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from embeddedpulsar._engine.platform.timing import Clock
    from embeddedpulsar._engine.store.care.backup_target import BackupTarget
    from embeddedpulsar._engine.store.care.store_cut import SharedRecords
    from embeddedpulsar._engine.store.housekeeping import ExtraChore
    from embeddedpulsar.damage import DamageHook


class Extensions:
    """What packages above the engine do in every process that has a store open, also in one that never
    asks for them: a topic is offloaded when its policy says so, and a batch that a dead process committed is
    published.

    The root of the package, which every process imports, sets all of them: functions that import what they
    call.

    Attributes:
        offloading: makes the offloading of a topic, an `Offloading`.
        chores: makes the chore of a store, called with its root, its clock and what reports damage; by the
            name of the directory in the store without which nothing is due.
        shared_records: makes what a backup has of records that say of several logs at once what was written
            to them, called with the root of the store and the target.
    """

    offloading: Callable[..., Any]

    def __init__(self) -> None:
        self.chores: dict[str, Callable[[str, Clock, DamageHook], ExtraChore]] = {}
        self.shared_records: list[Callable[[str, BackupTarget], SharedRecords]] = []


EXTENSIONS = Extensions()
