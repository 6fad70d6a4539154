"""The control words of topics that are not opened: whether anything changed since the last look."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Final

from embeddedpulsar._engine.log import filenames
from embeddedpulsar._engine.platform import descriptors, disk
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.topic.catalog import root_layout
from embeddedpulsar.topic.catalog.catalog import Catalog
from embeddedpulsar.topic_name import is_directory_of

_NOTHING: Final[Any] = None  # in place of a lock, for a catalog to which nothing is appended
_PAGE: Final = 4096


class TopicAtRest(NamedTuple):
    """A topic or partition that was ever opened, and its directory."""

    name: str
    directory: str

    def words(self) -> bytes:
        """The control words of the topic and its subscriptions, as they are; some 30 us for each file."""
        below = filenames.subscriptions_path(self.directory)
        found = [_page(filenames.control_path(self.directory))]
        with contextlib.suppress(OSError):
            names = sorted(descriptors.names_in(below))
            found += [_page(filenames.control_path(os.path.join(below, name))) for name in names]
        return b"".join(found)


def made_topics(root: str) -> list[TopicAtRest]:
    """The topics and partitions of a store that were ever opened, sorted by name."""
    topics = root_layout.in_root(root, root_layout.TOPICS)
    catalog = Catalog(root_layout.in_root(root, root_layout.CATALOG), _NOTHING, is_read_only=True)
    try:
        return [
            TopicAtRest(entry.name, os.path.join(topics, entry.below_topics()))
            for entry in catalog.topics()
            if entry.is_made and not entry.partitions and is_directory_of(entry.directory, entry.name)
        ]
    finally:
        catalog.close()


def _page(path: str) -> bytes:
    try:
        return disk.DISK.read_file(path, _PAGE)
    except OSError:
        return b""
