"""Where a repair puts what it takes out of use: nothing that may hold a message is removed."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Final

from embeddedpulsar._engine.platform import disk, failpoints, filesystem
from embeddedpulsar._engine.platform.clock import SYSTEM_CLOCK
from embeddedpulsar.topic.catalog import root_layout

failpoints.declare("repair:moved")


class Quarantine:
    """A directory of one repair below ``quarantine/``, in which files keep their paths below the root.

    Callers: one thread, with the store to itself. Durable: what a method returned from.

    Attributes:
        path: the directory; it is made with the first file.
    """

    def __init__(self, root: str) -> None:
        self._root: Final = root
        begun = datetime.fromtimestamp(SYSTEM_CLOCK.wall_ms() // 1000, UTC)
        name = f"{begun:%Y%m%dT%H%M%SZ}-{os.urandom(3).hex()}"
        self.path: Final = os.path.join(root_layout.in_root(root, root_layout.QUARANTINE), name)

    def move(self, path: str) -> None:
        """Take a file or directory out of the store. Does nothing if it is not there."""
        if not os.path.lexists(path):
            return
        place = self._place(path)
        disk.DISK.replace(path, place)
        # The new name first: after a power loss it may be in both places, not in none.
        disk.DISK.fsync_dir(os.path.dirname(place))
        disk.DISK.fsync_dir(os.path.dirname(path))
        failpoints.hit("repair:moved")

    def copy(self, path: str) -> None:
        """Keep what is in a file, which is about to be written again."""
        try:
            data = disk.DISK.read_file(path)
        except FileNotFoundError:
            return
        self.keep(path, data)

    def keep(self, path: str, data: bytes) -> None:
        """Keep bytes of a file, which are about to be written again."""
        disk.DISK.atomic_write(self._place(path), data, durable=True)

    def _place(self, path: str) -> str:
        place = os.path.join(self.path, os.path.relpath(path, self._root))
        filesystem.make_directories(os.path.dirname(place), mode=None)
        return place
