"""What an administrator sets for a topic or a namespace, over ``broker.conf``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

from embeddedpulsar.admin.missing import SaysWhatThereIs
from embeddedpulsar.platform import interrupts
from embeddedpulsar.retention import Retention

if TYPE_CHECKING:
    from embeddedpulsar.topic.store import Store


class PolicyCalls(SaysWhatThereIs, ABC):
    """The calls that `Topics` and `Namespaces` have in common.

    What a topic does not say, its namespace says, then ``broker.conf``; a partition asks its topic before the
    namespace. Policies go with the topic when it is deleted. They survive the death of every process, and
    what else the ``durability`` of the Admin says. Thread-safe.

    All methods raise `TopicNotFound` if there is no such topic, partition or namespace,
    `InvalidTopicName` for a text that is no name, `AlreadyClosed` if the Admin is closed, and a
    `StorageError` if files cannot be used.
    """

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store

    @abstractmethod
    def _owner(self, name: str) -> str:
        """The name the policy is noted under."""

    # -- deduplication -----------------------------------------------------------------------------------

    def set_deduplication_status(self, name: str, enabled: bool) -> None:
        """Drop duplicates from now on, or no longer: in open topics of all processes at once.

        A topic that has data is read first: what is in it counts.

        Args:
            name: of the topic or namespace.
            enabled: whether what is stored under a producer's name and sequence id is stored once.

        Raises:
            ValueError: ``enabled`` is not a bool.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.topics().create_non_partitioned_topic("payments")
            ...     admin.topics().set_deduplication_status("payments", True)
            ...     admin.topics().get_deduplication_status("payments")
            True
        """
        if not isinstance(enabled, bool):
            raise ValueError(f"enabled is True or False, not {enabled!r}; remove_deduplication_status unsets")
        with interrupts.translated:
            self._store().set_deduplication(self._owner(name), enabled)

    def get_deduplication_status(self, name: str) -> bool | None:
        """Return what was set for the topic or namespace itself; None if nothing was."""
        return self._store().own_deduplication(self._owner(name))

    def remove_deduplication_status(self, name: str) -> None:
        """Do as what is above it says, from now on. Does nothing if nothing was set."""
        with interrupts.translated:
            self._store().set_deduplication(self._owner(name), None)

    # -- retention ---------------------------------------------------------------------------------------

    def set_retention(self, name: str, retention_time_in_minutes: int, retention_size_in_mb: int) -> None:
        """Say how much of what every durable subscription has acknowledged stays. Open topics of all
        processes see it within ``retentionCheckIntervalInSeconds``.

        Args:
            name: of the topic or namespace.
            retention_time_in_minutes: a closed ledger may go when its last message is older; -1 for never.
            retention_size_in_mb: or when at least so many MiB are left without it; -1 for never. With 0 and 0
                nothing is retained; one of them cannot be 0 alone.

        Raises:
            InvalidConfiguration: the numbers contradict each other, or are below -1.
            ValueError: they are no integers.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.topics().create_non_partitioned_topic("ledger-book")
            ...     admin.topics().set_retention("ledger-book", -1, 1024)
            ...     admin.topics().get_retention("ledger-book")
            Retention(time_minutes=-1, size_mb=1024)
        """
        for number in (retention_time_in_minutes, retention_size_in_mb):
            if isinstance(number, bool) or not isinstance(number, int):
                raise ValueError(f"a retention is two integers, minutes and MB, not {number!r}")
        with interrupts.translated:
            retention = Retention(retention_time_in_minutes, retention_size_in_mb)
            self._store().set_retention(self._owner(name), retention)

    def get_retention(self, name: str) -> Retention | None:
        """Return what was set for the topic or namespace itself; None if nothing was."""
        return self._store().own_retention(self._owner(name))

    def remove_retention(self, name: str) -> None:
        """Keep what is above it says, from now on. Does nothing if nothing was set."""
        with interrupts.translated:
            self._store().set_retention(self._owner(name), None)

    # -- before the first subscription -------------------------------------------------------------------

    def set_keep_until_subscribed(self, name: str, enabled: bool) -> None:
        """Say whether topics keep everything while they have no durable subscription, whatever their
        retention. Dead letter and retry letter topics do so by default. Not in Pulsar.

        Raises:
            ValueError: ``enabled`` is no bool.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.topics().create_non_partitioned_topic("inbox")
            ...     admin.topics().set_keep_until_subscribed("inbox", True)
            ...     admin.topics().get_keep_until_subscribed("inbox")
            True
        """
        if not isinstance(enabled, bool):
            raise ValueError(f"enabled is True or False, not {enabled!r}")
        with interrupts.translated:
            self._store().set_keep_until_subscribed(self._owner(name), enabled)

    def get_keep_until_subscribed(self, name: str) -> bool:
        """Return whether the topic keeps everything while it has no durable subscription: as was set for it
        or above it, else True for a topic that letters went to, unless ``broker.conf`` says
        ``letterTopicsKeepUntilSubscribed=false`` or a retention was set for the topic itself."""
        return self._store().keeps_until_subscribed(self._owner(name))

    def remove_keep_until_subscribed(self, name: str) -> None:
        """Undo `set_keep_until_subscribed`. Does nothing if nothing was set."""
        with interrupts.translated:
            self._store().set_keep_until_subscribed(self._owner(name), None)
