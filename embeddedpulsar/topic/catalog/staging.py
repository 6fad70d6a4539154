"""``staging/`` of a store: directories that are not topics yet, or no longer."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from typing import Final

from embeddedpulsar._engine.platform import descriptors, disk
from embeddedpulsar.exceptions import StorageFullError
from embeddedpulsar.topic.catalog import root_layout
from embeddedpulsar.topic.catalog.topic_places import remove_topic

_NOTE: Final = ".end"


class Staging:
    """Role: topics are built here before they get their name, and go here when they are deleted.
    Invariant: what is in it while no process holds the catalog lock was left by a process that died, or is
    being removed.
    Callers: the holder of the catalog lock, except `is_empty`.

    Attributes:
        path: the directory.
    """

    def __init__(self, root: str) -> None:
        self.path: Final = root_layout.in_root(root, root_layout.STAGING)
        self._notes: Final = root_layout.in_root(root, root_layout.OFFLOADED)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left, or being made or deleted."""
        return not descriptors.names_in(self.path)

    def place(self) -> str:
        """A path that no process looks for."""
        return f"{self.path}{os.sep}{os.urandom(8).hex()}"

    def put_away(self, directory: str) -> str:
        """Take the directory of a topic that is gone; returns where it is to be removed from."""
        staged = self.place()
        with contextlib.suppress(FileNotFoundError):  # made, and never filled
            disk.DISK.replace(directory, staged)
        return staged

    def remove(self, path: str) -> bool:
        """Remove what was put away; see `remove_topic`. Any thread, without a lock."""
        return remove_topic(path, self._notes)

    def note_end(self, directories: Iterable[str]) -> str:
        """Note that the topics in these directories are about to be deleted, so that an opening of the store
        puts them away if this process dies before it has.

        Returns:
            The note, to be removed by `remove_tree` once they are put away, or are not deleted.
        """
        note = f"{self.place()}{_NOTE}"
        with contextlib.suppress(StorageFullError):  # a deletion makes room: it must not need any
            disk.DISK.atomic_write(note, "\n".join(directories).encode(), durable=False)
        return note

    def clear(self, remove_if_ended: Callable[[str], object]) -> None:
        """Remove everything, and what notes say by ``remove_if_ended(directory)``."""
        for name in descriptors.names_in(self.path):
            path = os.path.join(self.path, name)
            if name.endswith(_NOTE):
                for directory in disk.DISK.read_file(path).decode(errors="replace").splitlines():
                    remove_if_ended(directory)
            self.remove(path)
