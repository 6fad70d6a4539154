"""What a topic is opened with: its lock, its control words, and the log of the damage that is met."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from embeddedpulsar._engine.platform import descriptors, package_log
from embeddedpulsar._engine.platform.file_lock import FileLock, RefusedLock
from embeddedpulsar._engine.platform.scheduler import SchedulerLike
from embeddedpulsar.damage import CONTROL, Damage, DamageHook
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.managed_ledger.options import PROCESS, LedgerOptions
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.storage.append_point import WriterOptions
from embeddedpulsar.storage.filenames import control_path, ledgers_of, lock_path
from embeddedpulsar.storage.topic_control import TopicControl
from embeddedpulsar.topic_name import NON_PERSISTENT

_REMEMBERED: Final = 4096
_NO_BOOT = bytes(16)


class DamageLog:
    """Collects the damage reports of one topic in this process and hands them on.

    Role: a reader that meets damage calls `report`, with or without the topic lock; the hook runs without it.
    Invariants: one stretch is handed on and counted once, however many cursors meet it.
    Callers: any thread.
    """

    def __init__(
        self,
        name: str,
        is_locked: Callable[[], bool],
        call_later: Callable[[float, Callable[[], object]], object],
        hook: DamageHook | None,
    ) -> None:
        self.hook = hook
        self.count = 0
        self._name: Final = name
        self._is_locked: Final = is_locked
        self._call_later: Final = call_later
        self._seen: dict[tuple[str, int, int], None] = {}
        self._pending: list[Damage] = []

    def report(self, damage: Damage) -> None:
        """Hand `damage` on: now, or from the timer thread if the caller is inside the topic lock."""
        damage = damage._replace(topic=self._name)
        key = (damage.kind, damage.ledger_id, damage.offset)
        is_locked = self._is_locked()
        if key not in self._seen:
            if len(self._seen) >= _REMEMBERED:
                self._seen.clear()
            self._seen[key] = None
            self.count += 1
            self._pending.append(damage)
            if is_locked:
                self._call_later(0.0, self.deliver)
        if not is_locked:
            self.deliver()

    def deliver(self) -> None:
        """Hand on what is pending."""
        while self._pending:
            damage = self._pending.pop(0)
            (self.hook or package_log.damage)(damage)


def writer_options(options: LedgerOptions, store_id: bytes, incarnation: int) -> WriterOptions:
    """What the writer needs of the options, and of the topic."""
    return WriterOptions(
        options.segment_size,
        options.first_allocation,
        options.allocation_step,
        options.max_entries,
        options.max_age_ms,
        options.lock_timeout_s,
        options.durability != PROCESS,
        options.boot_id,
        store_id,
        incarnation,
        options.is_temporary,
    )


class OpenedTopic(NamedTuple):
    """What every kind of log needs of its topic's directory."""

    control: TopicControl
    lock: FileLock
    damage: DamageLog

    def close(self) -> None:
        self.lock.close()
        self.control.close()


def open_topic(
    directory: str,
    name: str,
    incarnation: int,
    options: LedgerOptions,
    scheduler: SchedulerLike,
    hook: DamageHook | None,
) -> OpenedTopic:
    """Open a topic's directory; recover it first if its control words are of another boot or damaged.

    Raises:
        FileNotFoundError: the directory is gone.
        StorageError: it belongs to another incarnation of the topic, or cannot be recovered.
    """
    if options.refusal is not None:
        return _open_to_look(directory, name, incarnation, options, scheduler, hook)
    lock = FileLock(lock_path(directory))
    damage = DamageLog(name, lambda: lock.held, scheduler.call_later, hook)
    try:
        control = _control_of(directory, lock, incarnation, options, damage.report)
    except BaseException:
        lock.close()
        raise
    lock.describe, lock.check_reopened = control.describe_owner, control.check_in_place
    return OpenedTopic(control, lock, damage)


def _open_to_look(
    directory: str,
    name: str,
    incarnation: int,
    options: LedgerOptions,
    scheduler: SchedulerLike,
    hook: DamageHook | None,
) -> OpenedTopic:
    """As `open_topic`, without a lock, and nothing is written."""
    assert options.refusal is not None
    damage = DamageLog(name, lambda: False, scheduler.call_later, hook)
    late = descriptors.late_import("embeddedpulsar.storage.read_only_log")
    control: TopicControl = late.read_control(
        directory,
        incarnation,
        options.boot_id,
        damage.report,
        is_kept=not name.startswith(NON_PERSISTENT),
    )
    return OpenedTopic(control, RefusedLock(lock_path(directory), options.refusal.error), damage)


def _control_of(
    directory: str, lock: FileLock, incarnation: int, options: LedgerOptions, report: DamageHook
) -> TopicControl:
    """The control words of a topic, true for this boot: mapped, made, or recovered under the topic lock."""
    try:
        control = TopicControl.open(directory)
    except (FileNotFoundError, CorruptionError):
        control = _create(directory, lock, incarnation, options, report)
    try:
        if not control.is_trusted(options.boot_id) or not _is_possible(control):
            _recover(directory, control, lock, incarnation, options, report)
        control.check_incarnation(incarnation)
    except BaseException:
        control.close()
        raise
    return control


def _create(
    directory: str, lock: FileLock, incarnation: int, options: LedgerOptions, report: DamageHook
) -> TopicControl:
    try:
        lock.acquire(options.lock_timeout_s)
        try:
            return TopicControl.open(directory)  # another process was faster
        except (FileNotFoundError, CorruptionError):
            # Segments without control words: they were lost, and recovery has to find the tail.
            is_new = not ledgers_of(descriptors.names_in(directory))
            boot = options.boot_id if is_new else _NO_BOOT
            if not is_new:
                reason = "it is missing, or too short"
                report(Damage(control_path(directory), reason=reason, kind=CONTROL))
            return TopicControl.create(directory, incarnation, boot)
    finally:
        lock.release()


def _is_possible(control: TopicControl) -> bool:
    return control.is_possible() and not control.has_lost_tail()


def _recover(
    directory: str,
    control: TopicControl,
    lock: FileLock,
    incarnation: int,
    options: LedgerOptions,
    report: DamageHook,
) -> None:
    recovery = descriptors.late_import("embeddedpulsar.storage.recovery.recovery")
    try:
        lock.acquire(options.lock_timeout_s)
        control.reload()
        control.check_incarnation(incarnation)
        is_possible = _is_possible(control)
        if not control.is_trusted(options.boot_id) or not is_possible:
            if control.is_damaged:
                report(Damage(control.path, reason="its header is damaged", kind=CONTROL))
            elif control.is_trusted(options.boot_id):
                report(Damage(control.path, reason="its words are damaged", kind=CONTROL))
            recovery.recover_topic(
                directory, control, incarnation=incarnation, boot_id=options.boot_id, report=report
            )
    finally:
        lock.release()
