"""Repairs a store from what is in it, by what a check finds."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from embeddedpulsar._engine.log import filenames
from embeddedpulsar._engine.log.filenames import SUBSCRIPTIONS
from embeddedpulsar._engine.log.log_check import NEWER, Problem
from embeddedpulsar._engine.log.log_opening import PROCESS, ledger_options
from embeddedpulsar._engine.platform import clock as clocks
from embeddedpulsar._engine.platform import disk, nofollow
from embeddedpulsar._engine.platform.filesystem import DirectoryLease, prepare_root
from embeddedpulsar.damage import JOURNAL
from embeddedpulsar.exceptions import (
    CorruptionError,
    ForeignFileError,
    NotAllowedError,
    StorageOSError,
    UnsupportedFormatVersion,
)
from embeddedpulsar.topic.care import repair_plan as plan
from embeddedpulsar.topic.care.catalog_repair import catalogue, rewrite_catalog, rewrite_meta, store_id_of
from embeddedpulsar.topic.care.quarantine import Quarantine
from embeddedpulsar.topic.care.repair_plan import RepairReport, RepairStep, planned
from embeddedpulsar.topic.care.store_check import check_store
from embeddedpulsar.topic.care.store_report import REPAIR
from embeddedpulsar.topic.care.topic_repair import (
    distrust,
    rewrite_header,
    rewrite_index,
    rewrite_journal,
)
from embeddedpulsar.topic.damage_channel import DamageChannel
from embeddedpulsar.topic.store_session import StoreSession
from embeddedpulsar.topic.topic import Topic

if TYPE_CHECKING:
    from embeddedpulsar.topic.care.care_progress import CareProgress
    from embeddedpulsar.topic.care.store_report import StoreReport

_MOST_ROUNDS: Final = 3
"""A round may find what the one before uncovered: a topic that the catalog did not know."""
_OFFLINE: Final = frozenset((plan.REMOVE, plan.PUT_AWAY))


def repair_store(
    root: str,
    *,
    is_dry_run: bool = False,
    on_progress: Callable[[CareProgress], object] | None = None,
) -> RepairReport:
    """Check a store, and repair what can be repaired from its own files.

    What is taken out of use is moved to the directory ``quarantine``; nothing that may hold a message is
    removed. A repair that was interrupted or killed can be made again.

    Args:
        root: the directory of the store.
        is_dry_run: change nothing, and say what would be done. Processes may use the store meanwhile.
        on_progress: see `check_store`.

    Raises:
        NotAllowedError: processes use the store.
        StorageError: this process may not write there.
        StorageOSError, DescriptorLimitError: a file cannot be read, which is no damage. Nothing was changed.
        UnsupportedFormatVersion: a newer release wrote a file.
        OSError: a file cannot be read or written.
    """
    root = nofollow.canonical(root)
    if is_dry_run:
        report = check_store(root, is_closed=False, on_progress=on_progress)
        return RepairReport(root, planned(report), True, "", (*report.damage, *report.unverified))
    prepare_root(root, create=False, allow_network=True)  # one in which this process may not write is refused
    lease = DirectoryLease.open(root)
    try:
        if not lease.try_exclusive():
            raise NotAllowedError(
                f"the store {root} is in use; close it in all processes, and repair it again. `check`, and a "
                "repair with dry_run, work meanwhile"
            )
        repair = _Repair(root, lease)
        for _ in range(_MOST_ROUNDS):
            report = check_store(root, on_progress=on_progress)
            _require_verified(report)
            if not repair.round(planned(report)):
                break
        report = check_store(root, on_progress=on_progress) if repair.steps else report
    finally:
        lease.close()
    quarantine = repair.quarantine.path
    is_used = os.path.isdir(quarantine)
    left = tuple(_told_after(problem) for problem in report.damage)
    return RepairReport(root, tuple(repair.steps), False, quarantine if is_used else "", left)


def _told_after(problem: Problem) -> Problem:
    """A problem that a repair has left: to repair once more is no remedy."""
    if REPAIR not in problem.remedy:
        return problem
    remedy = "nothing in the store says what was there; restore it from a backup, or remove it"
    parent = os.path.dirname(os.path.dirname(problem.path))
    if problem.kind == JOURNAL and os.path.basename(parent) == SUBSCRIPTIONS:
        remedy = "subscribe with the name of the subscription, which delivers again; or remove its directory"
    return problem._replace(remedy=remedy)


def _require_verified(report: StoreReport) -> None:
    """Raise if something could not be read: what a repair derives without it could replace what is whole."""
    for problem in report.unverified:
        text = f"{problem.text}; nothing was repaired"
        if problem.kind == NEWER:
            raise UnsupportedFormatVersion(path=problem.path, reason=text, remedy=problem.remedy)
        raise StorageOSError(path=problem.path, reason=text, remedy=problem.remedy)


class _Repair:
    """Carries steps out, each once. Its caller holds the store alone."""

    def __init__(self, root: str, lease: DirectoryLease) -> None:
        self.root: Final = root
        self.quarantine: Final = Quarantine(root)
        self.steps: Final[dict[RepairStep, None]] = {}
        self._lease: Final = lease
        self._now_ms: Final = clocks.CLOCK.wall_ms()

    def round(self, steps: tuple[RepairStep, ...]) -> bool:
        """Carry out the steps that were not done before; returns whether there were any."""
        new = [step for step in steps if step not in self.steps]
        to_describe: list[str] = []
        for step in new:
            if self._do(step):
                self.steps[step] = None
            if step.what == plan.DESCRIBE:
                to_describe.append(step.path)
        if any(step.what not in _OFFLINE for step in new):
            self._open_what_changed(new, to_describe)
        return bool(new)

    def _do(self, step: RepairStep) -> bool:
        """Carry out one step, as far as it needs no open store."""
        what, path, quarantine = step.what, step.path, self.quarantine
        directory = os.path.dirname(path)
        if what == plan.WRITE_META:
            rewrite_meta(self.root, self._now_ms, quarantine)
        elif what == plan.REMOVE:
            with contextlib.suppress(FileNotFoundError):
                disk.DISK.unlink(path)
        elif what in (plan.PUT_AWAY, plan.REPLACE_WORDS):
            quarantine.move(path)
        elif what == plan.WRITE_CATALOG:
            rewrite_catalog(self.root, self._now_ms, quarantine)
        elif what == plan.WRITE_HEADER:
            rewrite_header(directory, step.ledger_id, store_id_of(self.root), quarantine)
        elif what == plan.WRITE_INDEX:
            rewrite_index(directory, step.ledger_id)
        elif what == plan.WRITE_JOURNAL:
            is_topic = os.path.basename(directory) != filenames.SUBSCRIPTIONS
            return rewrite_journal(path, is_topic, self._now_ms, quarantine)
        elif what == plan.RECOVER:
            distrust(path, quarantine)
        return True

    def _open_what_changed(self, steps: list[RepairStep], to_describe: list[str]) -> None:
        """Open the store and its topics as any process would, so that what is derived is derived again."""
        with contextlib.ExitStack() as closing:
            lease = DirectoryLease.open(self.root)  # the session closes it if it cannot be opened
            closing.callback(lease.close)
            try:
                session = StoreSession.open(self.root, lease, clocks.CLOCK, DamageChannel())
            except (CorruptionError, ForeignFileError):
                return  # the check names what is in the way
            closing.callback(session.close)
            try:
                session.catalog.lock.acquire()
                catalogue(session, to_describe, self._now_ms, self.quarantine)
            finally:
                session.catalog.lock.release()
            touched = {path for step in steps for path in (step.path, *_parents(step.path))}
            for entry in session.catalog.topics():
                directory = session.directories.path(entry)
                if directory in touched and not entry.partitions:
                    with contextlib.suppress(CorruptionError, ForeignFileError):
                        self._open_topic(session, entry.name)

    def _open_topic(self, session: StoreSession, name: str) -> None:
        entry = session.catalog.find(name)
        assert entry is not None
        options = ledger_options(session.settings, PROCESS, 1000, session.boot)
        topic = Topic.open(
            session.directories.ensure(entry), entry, session=session, options=options, clock=clocks.CLOCK
        )
        try:
            topic.producers()
            topic.subscriptions()
        finally:
            topic.close()


def _parents(path: str) -> tuple[str, str, str]:
    first = os.path.dirname(path)
    second = os.path.dirname(first)
    return first, second, os.path.dirname(second)
