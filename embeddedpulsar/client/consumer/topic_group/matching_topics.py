"""The topics of a store that match a pattern, followed as they come and go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from embeddedpulsar._engine.platform import deadline
from embeddedpulsar._engine.store.catalog.topic_list import partition_names
from embeddedpulsar.exceptions import AlreadyClosed, TopicNotFound

if TYPE_CHECKING:
    from collections.abc import Callable

    from embeddedpulsar._engine.format.catalog_record import TopicEntry
    from embeddedpulsar.client.common.client_context import ClientContext
    from embeddedpulsar.client.consumer.topic_group.topic_pattern import TopicPattern

_JOIN_S: Final = 1.0
"""How long the locks of a topic are waited for in all, because the other topics wait meanwhile."""


class MatchingTopics:
    """Lets the topics that match a pattern join a group, and those that were deleted leave it.

    Role: every name is matched once, when the store lists it: at first all of them, afterwards those of
    topics that were made, grew or were deleted. A topic that was deleted and made again is another topic.

    Invariants: a topic that cannot be joined, for example because an Exclusive consumer has its subscription,
    is tried again at the next `follow`; the reason is logged once. No topic is created. One thread at a time
    may call the methods.

    Args:
        client: the client.
        pattern: the pattern.
        join: opens logs of a topic that are not open yet: ``join(entry, names, was_known)``.
        leave: closes logs, by their names.

    Attributes:
        is_current: ``is_current(entry)`` is False if the topic was deleted, or made again, since then.
    """

    def __init__(
        self,
        client: ClientContext,
        pattern: TopicPattern,
        join: Callable[[TopicEntry, list[str], bool], object],
        leave: Callable[[list[str]], object],
    ) -> None:
        self._client: Final = client
        self._pattern: Final = pattern
        self._join: Final = join
        self._leave: Final = leave
        self._joined: dict[str, TopicEntry] = {}
        self._reasons: dict[str, str] = {}  # why topics could not be joined
        self._changes: Final = client.store.topics.changes_of(pattern.matches)
        self._waiting: dict[str, TopicEntry | None] = {**self._changes.all(pattern.beginning)}
        self.is_current: Final = self._changes.is_current

    @property
    def count(self) -> int:
        """The number of logs of the topics that are about to join."""
        return sum(len(_logs(entry)) for entry in self._waiting.values() if entry is not None)

    def begin(self) -> None:
        """Let the topics join that were there at the beginning.

        Raises:
            PulsarException: one of them cannot be joined.
        """
        for name in list(self._waiting):
            self._change(name)

    def follow(self) -> bool:
        """Let topics join and leave. Returns False if one of them is to be tried again."""
        self._waiting.update(self._changes.take())
        for name in list(self._waiting):
            try:
                deadline.within(_JOIN_S, self._change, name)
            except Exception as error:  # noqa: BLE001 - the other topics have their turn
                self._note(name, str(error))
        return not self._waiting

    def renew(self, topic: str) -> None:
        """Have a topic join again that has left, if it still exists."""
        if topic in self._joined:
            self._waiting.setdefault(topic, self._joined[topic])

    def _change(self, name: str) -> None:
        entry, known = self._waiting[name], self._joined.get(name)
        if known is not None and (entry is None or entry.incarnation != known.incarnation):
            self._leave(_logs(known))
            known = self._joined.pop(name)
        if entry is not None:
            self._joined[name] = entry
            try:
                self._join(entry, _logs(entry), known is not None and known.incarnation == entry.incarnation)
            except Exception as error:
                self._client.check_open()
                self._waiting.update(self._changes.take())
                is_going = isinstance(error, AlreadyClosed | FileNotFoundError | TopicNotFound)
                if self._waiting[name] == entry and not is_going:
                    raise
                return  # it is being deleted, or was: the next `follow` finds what it is then
        self._waiting.pop(name, None)
        self._reasons.pop(name, None)

    def _note(self, name: str, reason: str) -> None:
        if self._reasons.get(name) != reason:
            self._reasons[name] = reason
            self._client.log.warning(
                "%s matches %s and cannot be joined now; it is tried again every second: %s",
                name,
                self._pattern.text,
                reason,
            )

    def close(self) -> None:
        """Follow no more. Idempotent."""
        self._changes.close()


def _logs(entry: TopicEntry) -> list[str]:
    """The names of the partitions of a topic, or of the topic itself."""
    return partition_names(entry.name, entry.partitions) or [entry.name]
