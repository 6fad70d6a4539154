"""Which kind of log a topic has. A new kind is a module with a `Log`, and a line of `LOGS`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from embeddedpulsar.format.catalog_record import TopicEntry
from embeddedpulsar.managed_ledger.managed_ledger import ManagedLedger
from embeddedpulsar.platform.descriptors import late_import
from embeddedpulsar.topic_name import NON_PERSISTENT, PERSISTENT

if TYPE_CHECKING:
    from embeddedpulsar.managed_ledger.log import Log
    from embeddedpulsar.managed_ledger.memory_ledgers import Contents
    from embeddedpulsar.managed_ledger.options import LedgerOptions
    from embeddedpulsar.platform.clock import Clock
    from embeddedpulsar.platform.processes.mailbox import Mailbox
    from embeddedpulsar.platform.processes.peers import Peers
    from embeddedpulsar.platform.scheduler import SchedulerLike
    from embeddedpulsar.settings import BrokerSettings
    from embeddedpulsar.topic.damage_channel import DamageChannel
    from embeddedpulsar.topic.store_control import LedgerIds
    from embeddedpulsar.topic.store_root import StoreMeta

MEMORY: Final = "memory"
"""The kind of every topic of a store in memory; other kinds are domains of topic names."""


class LogHost(Protocol):
    """What a log needs of its store; see `StoreSession`."""

    meta: StoreMeta
    settings: BrokerSettings
    ledger_ids: LedgerIds
    mailbox: Mailbox
    peers: Peers
    scheduler: SchedulerLike
    damage: DamageChannel
    memory_url: str
    memory_logs: dict[str, Contents]


def _open_memory_log(session: LogHost, directory: str, **options: Any) -> Log:
    module = late_import("embeddedpulsar.managed_ledger.memory_log")
    return cast("Log", module.MemoryLog.open(directory, keep=session.memory_logs, **options))


def _open_managed_ledger(session: LogHost, directory: str, **options: Any) -> Log:
    meta, damage = session.meta, session.damage
    return ManagedLedger.open(directory, store_id=meta.store_id, damage=damage.report, **options)


def _open_volatile_ledger(session: LogHost, directory: str, **options: Any) -> Log:
    module = late_import("embeddedpulsar.managed_ledger.volatile_ledger")
    store_id, report = session.meta.store_id, session.damage.report
    return cast("Log", module.open_volatile_ledger(directory, store_id=store_id, damage=report, **options))


LOGS: Final[dict[str, Callable[..., Log]]] = {
    PERSISTENT: _open_managed_ledger,
    NON_PERSISTENT: _open_volatile_ledger,
    MEMORY: _open_memory_log,
}


def log_options(session: LogHost, entry: TopicEntry, options: LedgerOptions) -> LedgerOptions:
    """The options of the log of a topic, by those of its store."""
    if not entry.name.startswith(NON_PERSISTENT):
        return options
    module = late_import("embeddedpulsar.managed_ledger.volatile_ledger")
    ring_size = session.settings.nonPersistentTopicRingSizeInMB << 20
    return cast("LedgerOptions", module.volatile_options(options, ring_size))


def open_log(
    session: LogHost, directory: str, entry: TopicEntry, options: LedgerOptions, clock: Clock
) -> Log:
    """Open the log of a topic.

    Raises:
        StorageError: its files cannot be used.
    """
    kind = MEMORY if session.memory_url else entry.name.partition("://")[0]
    return LOGS[kind](
        session,
        directory,
        name=entry.name,
        incarnation=entry.incarnation,
        allocate_ledger_id=session.ledger_ids.allocate,
        mailbox=session.mailbox,
        peers=session.peers,
        options=options,
        clock=clock,
        scheduler=session.scheduler,
    )
