"""Every file name in the root of a store; the files of a topic's directory are named in
`_engine.log.filenames`.

broker.conf · store.meta · store.ctl · store.lock · catalog · catalog.index · catalog.lock · housekeeping.lock
clients/<uuid> · topics/<dir>/ · staging/<random>/ · tenants/ · sinks/<key>/ · quarantine/ · offloaded/
"""

from __future__ import annotations

import os
from typing import Final

from embeddedpulsar._engine.log import filenames, topic_control

SETTINGS: Final = "broker.conf"
META: Final = "store.meta"
CONTROL: Final = topic_control.STORE_CONTROL
STORE_LOCK: Final = "store.lock"
CATALOG: Final = "catalog"
CATALOG_INDEX: Final = "catalog.index"
CATALOG_LOCK: Final = "catalog.lock"
HOUSEKEEPING_LOCK: Final = "housekeeping.lock"
CLIENTS: Final = topic_control.CLIENTS
TOPICS: Final = filenames.TOPICS
STAGING: Final = "staging"
TENANTS: Final = "tenants"
SINKS: Final = filenames.SINKS
QUARANTINE: Final = "quarantine"
OFFLOADED: Final = "offloaded"

DIRECTORIES: Final = (CLIENTS, TOPICS, STAGING)
ALL_DIRECTORIES: Final = (*DIRECTORIES, TENANTS, SINKS, QUARANTINE, OFFLOADED)
OURS: Final = frozenset(
    (
        *(SETTINGS, META, CONTROL, STORE_LOCK, CATALOG, CATALOG_INDEX, CATALOG_LOCK, HOUSEKEEPING_LOCK),
        *ALL_DIRECTORIES,
    )
)
_LEFTOVERS: Final = (".tmp", ".new")


def is_ours(name: str) -> bool:
    """Whether a file of that name belongs in the root of a store.

    Example:
        >>> is_ours("store.meta"), is_ours("store.meta.4f-0.tmp"), is_ours("holiday.jpg")
        (True, True, False)
    """
    return name in OURS or name.endswith(_LEFTOVERS)


def in_root(root: str, name: str) -> str:
    """The path of one of the names above."""
    return f"{root}{os.sep}{name}"  # `os.path.join` takes five times as long
