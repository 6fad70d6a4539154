"""The list of topics for those who follow it: the topics that match, and how they change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from embeddedpulsar.topic_name import NON_PERSISTENT, PARTITION_SUFFIX, PERSISTENT, TopicName

if TYPE_CHECKING:
    from collections.abc import Callable

    from embeddedpulsar._engine.format.catalog_record import TopicEntry
    from embeddedpulsar.topic.catalog.catalog import Catalog

DOMAINS: Final = (NON_PERSISTENT, PERSISTENT)


class TopicChanges:
    """The topics of a store whose names match, partitioned ones in place of their partitions.

    Role: collects from its creation on which topics are made, grow or are deleted, so that `take` looks at
    these only, however many topics there are.

    Args:
        catalog: the catalog of the store.
        matches: whether a full name matches.
    """

    def __init__(self, catalog: Catalog, matches: Callable[[str], bool]) -> None:
        self._catalog: Final = catalog
        self._matches: Final = matches
        self._changed: Final = catalog.watch()

    def all(self, beginning: str = "") -> dict[str, TopicEntry]:
        """Return the topics that match, by name, sorted; of those alone whose names, behind the domain, begin
        so."""
        listed = [one for domain in DOMAINS for one in self._catalog.listed(f"{domain}://{beginning}")]
        names = [name for name, _ in listed if self._matches(name)]
        entries = {name: self._catalog.find(name) for name in names if not self._is_partition(name)}
        return {name: entry for name, entry in entries.items() if entry is not None}

    def take(self) -> dict[str, TopicEntry | None]:
        """Return the changes since the last call: what each topic is now, None if it does not exist."""
        names = [name for name in self._catalog.take_changes(self._changed) if self._matches(name)]
        return {name: self._catalog.find(name) for name in names if not self._is_partition(name)}

    def is_current(self, entry: TopicEntry) -> bool:
        """Whether the topic of an entry was neither deleted nor made again since the entry was read."""
        found = self._catalog.find(entry.name)
        return found is not None and found.incarnation == entry.incarnation

    def _is_partition(self, name: str) -> bool:
        if PARTITION_SUFFIX not in name:
            return False
        parsed = TopicName.parse(name)
        base = None if parsed.partition < 0 else self._catalog.find(parsed.base)
        return base is not None and base.partitions > 0

    def close(self) -> None:
        """Collect no more. Idempotent."""
        self._catalog.unwatch(self._changed)
