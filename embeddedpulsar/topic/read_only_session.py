"""A store of which a process may write nothing, or wants to write nothing: opening it to look at it.

What an opening for writing makes, takes or repairs is left out: the lock files, the doorbell, the number of
the client, the hold on ``store.ctl``, the healing after a reboot, and what processes left that were killed.
Words are mapped for reading, and every lock is one that refuses (`RefusedLock`).
"""

from __future__ import annotations

import contextlib
from typing import Final

from embeddedpulsar._engine.format.frame import require_little_endian
from embeddedpulsar._engine.log.topic_control import has_living
from embeddedpulsar._engine.platform import filesystem
from embeddedpulsar._engine.platform.access import Refusal
from embeddedpulsar._engine.platform.clock import Clock
from embeddedpulsar._engine.platform.deadline import LONGEST_S
from embeddedpulsar._engine.platform.file_lock import RefusedLock
from embeddedpulsar._engine.platform.filesystem import DirectoryLease
from embeddedpulsar._engine.platform.peers import Peers, onlooker_mailbox
from embeddedpulsar.exceptions import CorruptionError, ForeignFileError
from embeddedpulsar.topic import store_root
from embeddedpulsar.topic.catalog import root_layout
from embeddedpulsar.topic.catalog.catalog import Catalog
from embeddedpulsar.topic.damage_channel import DamageChannel
from embeddedpulsar.topic.housekeeping import Housekeeping
from embeddedpulsar.topic.store_control import StoreControl
from embeddedpulsar.topic.store_session import StoreSession, read_settings

_REMEDY: Final = (
    "a process that may write has to open the store first, or to repair it: embeddedpulsar repair"
)


def open_to_look(
    root: str, lease: DirectoryLease, clock: Clock, damage: DamageChannel, refusal: Refusal
) -> StoreSession:
    """Open the store in the directory ``root`` to look at it. Takes over ``lease``. Nothing is written.

    Raises:
        ForeignFileError: there is no store.
        CorruptionError, UnsupportedFormatVersion, InvalidConfiguration: see `StoreSession.open`. Of a store
            without a catalog, too: nothing is repaired.
        AccessDeniedError: a file of the root cannot be read.
    """
    require_little_endian()
    with contextlib.ExitStack() as undo:
        undo.callback(lease.close)
        filesystem.check_directories(root, lease, root_layout.ALL_DIRECTORIES)
        settings = read_settings(root)
        meta = store_root.read_meta(root)
        if meta is None:
            remedy = "name the directory of a store; without read_only one is made there"
            raise ForeignFileError(path=root, reason="there is no store here", remedy=remedy)
        control = StoreControl(root_layout.in_root(root, root_layout.CONTROL), writable=False)
        undo.callback(control.close)
        lock = RefusedLock(root_layout.in_root(root, root_layout.STORE_LOCK), refusal.error)
        session = StoreSession(root, lease, lock, control)
        session.refusal = refusal
        session.meta, session.settings, session.damage = meta, settings, damage
        header = control.header()
        if header is not None and has_living(root):
            session.boot = header.boot_id  # of those that have it open, whatever a container shows
        session.use_policies()
        _use_catalog(session, refusal)
        undo.callback(session.catalog.close)
        session.scheduler = clock.scheduler()
        undo.callback(session.scheduler.close)
        session.chores = clock.scheduler(LONGEST_S)
        undo.callback(session.chores.close)
        path = root_layout.in_root(root, root_layout.HOUSEKEEPING_LOCK)
        every_s = settings.retentionCheckIntervalInSeconds
        session.housekeeping = Housekeeping(path, session, every_s, clock.monotonic)  # nothing joins it
        clients = root_layout.in_root(root, root_layout.CLIENTS)
        session.mailbox = onlooker_mailbox(clients, control.path)
        undo.callback(session.mailbox.close)
        session.peers = Peers(clients, session.mailbox)
        undo.pop_all()
    return session


def _use_catalog(session: StoreSession, refusal: Refusal) -> None:
    path = root_layout.in_root(session.root, root_layout.CATALOG)
    lock = RefusedLock(root_layout.in_root(session.root, root_layout.CATALOG_LOCK), refusal.error)
    try:
        session.use_catalog(Catalog(path, lock, is_read_only=True))
    except FileNotFoundError:
        raise CorruptionError(path=path, reason="it is missing", remedy=_REMEDY) from None
