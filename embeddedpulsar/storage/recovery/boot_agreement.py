"""Whether control words of another boot id are true nevertheless: for readers that do not open the store.

Containers may show another boot id than their neighbours. A process that opens the store takes the boot that
the processes in it agree on (`topic.store_control`); one that only reads the files asks whether any of those
processes lives: then the machine was not rebooted since, and the words of their boot are true.
"""

from __future__ import annotations

import os
from typing import Final

from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.format.control import (
    CONTROL_HEADER_SIZE,
    KIND_STORE,
    ControlHeader,
    parse_control_header,
)
from embeddedpulsar.platform import clock, descriptors
from embeddedpulsar.platform.processes import lease, liveness

STORE_CONTROL: Final = "store.ctl"
CLIENTS: Final = "clients"
_DEPTH: Final = 4  # of a subscription's directory below the root


def is_of_this_boot(header: ControlHeader, directory: str) -> bool:
    """Whether the words of a topic or subscription in ``directory`` were stored since the last reboot.

    Args:
        header: of its ``ctl``.
        directory: in a store, or a copy of a topic alone.
    """
    return header.boot_id == clock.boot_id() or header.boot_id == _boot_of_neighbours(directory)


def _boot_of_neighbours(directory: str) -> bytes | None:
    """The boot of the living processes of the store; None if there are none, or no store."""
    root = os.path.abspath(directory)
    for _ in range(_DEPTH):
        root = os.path.dirname(root)
        header = _header(os.path.join(root, STORE_CONTROL))
        if header is not None:
            return header.boot_id if _has_living(root) else None
    return None


def _header(path: str) -> ControlHeader | None:
    try:
        with open(path, "rb") as file:
            return parse_control_header(file.read(CONTROL_HEADER_SIZE), KIND_STORE)
    except (OSError, CorruptionError):
        return None


def _has_living(root: str) -> bool:
    if liveness.has_any(os.path.join(root, STORE_CONTROL)):
        return True
    clients = os.path.join(root, CLIENTS)
    if not os.path.isdir(clients):
        return False
    return any(_is_held(os.path.join(clients, name)) for name in descriptors.names_in(clients))


def _is_held(path: str) -> bool:
    try:
        return lease.is_held(path)
    except OSError:
        return False
