"""What the command line knows of the engine; no other module of the package imports from it.

A command works by an Admin or a client. A check and a repair work on the files of a store, which may be too
damaged to be opened; the rest are values that are printed, the name of the store, and the clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from embeddedpulsar._engine.log.log_check import Problem
from embeddedpulsar._engine.platform import failpoints, threads
from embeddedpulsar._engine.platform.child_process import on_termination
from embeddedpulsar._engine.platform.descriptors import late_imports
from embeddedpulsar._engine.platform.filesystem import filesystem_type, is_network_type
from embeddedpulsar._engine.platform.threads import Event
from embeddedpulsar._engine.platform.timing import SYSTEM_CLOCK, perf_counter
from embeddedpulsar._engine.store.care.store_check import (
    NOTES,
    UNVERIFIED,
    CareProgress,
    StoreReport,
    TopicReport,
    check_store,
)
from embeddedpulsar._engine.store.store_root import ServiceUrl, directory_of, why_no_store

if TYPE_CHECKING:
    from embeddedpulsar._engine.store.care.store_backup import BackupReport, RestoreReport
    from embeddedpulsar._engine.store.care.store_repair import RepairReport
    from embeddedpulsar._engine.store.topic_compaction import LongRunningProcessStatus


def repair_store(
    root: str, *, is_dry_run: bool, on_progress: Callable[[CareProgress], object]
) -> RepairReport:
    """See `store_repair.repair_store`, which loads half of the engine: a check needs none of that."""
    with late_imports():
        from embeddedpulsar._engine.store.care import store_repair
    return store_repair.repair_store(root, is_dry_run=is_dry_run, on_progress=on_progress)
