"""Opening the log of one topic by itself, with tiny segments, for storms and tests."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, cast

from embeddedpulsar._engine.filenames import control_path
from embeddedpulsar._engine.format.control import (
    CONTROL_HEADER_SIZE,
    KIND_TOPIC,
    pack_control_header,
    parse_control_header,
)
from embeddedpulsar._engine.log.log_opening import LedgerOptions
from embeddedpulsar._engine.log.managed_ledger import ManagedLedger
from embeddedpulsar.exceptions import StorageError
from embeddedpulsar.testing.manual_clock import ManualClock, ManualScheduler

if TYPE_CHECKING:
    from embeddedpulsar._engine.platform.mailbox import Mailbox
    from embeddedpulsar._engine.platform.peers import Peers
    from embeddedpulsar.damage import DamageHook

STORE_ID: Final = b"store under test"
INCARNATION: Final = 1
OTHER_BOOT: Final = b"an earlier boot."


class Nobody:
    """The mailbox and the peers of a process that never waits and wakes nobody."""

    uuid: Final = bytes(16)
    generation: Final = 0

    def ring(self, _uuid: bytes) -> bool:
        """Nobody is there."""
        return False

    def is_alive(self, _uuid: bytes) -> bool:
        """Nobody is."""
        return False


class LedgerIds:
    """Ids that only rise, as the store gives them out; they survive every crash."""

    def __init__(self, last: int = 0) -> None:
        self.last = last

    def allocate(self, above: int) -> int:
        """A new id above `above`."""
        self.last = max(self.last, above) + 1
        return self.last


def tiny_options(durability: str = "process") -> LedgerOptions:
    """64 KiB segments of at most 40 entries, so that rolls happen all the time."""
    return LedgerOptions(
        segment_size=64 << 10,
        first_allocation=8 << 10,
        allocation_step=16 << 10,
        max_entries=40,
        max_open_segments=8,
        durability=durability,
    )


def open_ledger(
    directory: str | os.PathLike[str],
    ids: LedgerIds,
    clock: ManualClock,
    scheduler: ManualScheduler,
    *,
    durability: str = "process",
    damage: DamageHook | None = None,
) -> ManagedLedger:
    """Open (make, recover) the log in `directory` as the only thing in the world."""
    nobody = Nobody()
    return ManagedLedger.open(
        os.fspath(directory),
        name="persistent://public/default/storm",
        incarnation=INCARNATION,
        store_id=STORE_ID,
        allocate_ledger_id=ids.allocate,
        mailbox=cast("Mailbox", nobody),
        peers=cast("Peers", nobody),
        options=tiny_options(durability),
        clock=clock,
        scheduler=scheduler,
        damage=damage,
    )


def pretend_reboot(directory: str) -> None:
    """Make a copied topic look like the original after a reboot: same inode, other boot id.

    A copy is recovered as a copy (nothing of its ctl is believed); after this some words are, as after a real
    power loss. A damaged or missing ctl stays what it is.
    """
    path = control_path(directory)
    try:
        with open(path, "r+b") as file:
            try:
                header = parse_control_header(file.read(CONTROL_HEADER_SIZE), KIND_TOPIC)
            except StorageError:
                return
            status = os.fstat(file.fileno())
            file.seek(0)
            file.write(
                pack_control_header(
                    header._replace(boot_id=OTHER_BOOT, device=status.st_dev, inode=status.st_ino)
                )
            )
    except FileNotFoundError:
        return
