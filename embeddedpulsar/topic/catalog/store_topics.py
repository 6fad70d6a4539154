"""The list of topics of a store, without opening them, and making, growing and deleting topics."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from embeddedpulsar.topic.catalog.topic_deletion import delete_topics
from embeddedpulsar.topic.catalog.topic_directories import remove_tree
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from embeddedpulsar.format.catalog_record import TopicEntry
    from embeddedpulsar.platform.clock import Clock
    from embeddedpulsar.topic.open_topics import TopicUse
    from embeddedpulsar.topic.store_session import StoreSession
    from embeddedpulsar.topic.topic import Topic


class StoreTopics(ABC):
    """The half of `Store` that deals with the list of topics."""

    clock: Clock

    @abstractmethod
    def _present(self) -> StoreSession: ...

    @abstractmethod
    def use_topic(self, name: str, create: bool = True) -> TopicUse:
        """A hold on a topic."""

    @abstractmethod
    def _open_topic(self, session: StoreSession, entry: TopicEntry, notes: list[str]) -> Topic: ...

    @property
    def catalog_version(self) -> int:
        """Rises when topics come or go: pattern consumers compare it instead of listing."""
        catalog = self._present().catalog
        catalog.follow()
        return catalog.version

    @staticmethod
    def _parse(name: str) -> TopicName:
        parsed = TopicName.parse(name)
        if not parsed.is_persistent:
            raise NotImplementedError(
                f"{parsed.full} needs non-persistent topics, which are not built yet; use persistent://"
            )
        return parsed

    def has_topic(self, name: str) -> bool:
        """Whether the topic exists. Does not open it."""
        return self._present().topics.has(TopicName.parse(name))

    def topic_names(self, namespace: str | None = None) -> list[str]:
        """Full names of all topics, or of those in ``tenant/namespace``, in order of creation.

        Of a partitioned topic these are its partitions; see `partitioned_topic_names`.
        """
        return self._present().topics.names(namespace)

    def partitioned_topic_names(self, namespace: str | None = None) -> list[str]:
        """Full names of all partitioned topics, or of those in ``tenant/namespace``."""
        return self._present().topics.partitioned_names(namespace)

    def partitions(self, name: str) -> int:
        """How many partitions a topic has; 0 if it is not partitioned, or does not exist. One ``fstat``."""
        return self._present().topics.partitions(TopicName.parse(name))

    def partitions_of_possible(self, name: str) -> int:
        """As `partitions`, of a topic that exists or could be made.

        Raises:
            TopicNotFound: there is no such namespace, or the name is that of a partition too many.
        """
        topics, parsed = self._present().topics, TopicName.parse(name)
        topics.check_possible(parsed)
        return topics.partitions(parsed)

    def resolve_partitions(self, name: str, create: bool = True) -> int:
        """As `partitions`, but a topic that does not exist is made, of the kind ``broker.conf`` says.

        Args:
            name: short or full.
            create: make it if there is none and ``allowAutoTopicCreation`` is on; with False it stays 0.

        Raises:
            InvalidTopicName, NotImplementedError: see `topic`.
            TopicNotFound: no such topic or namespace, and it may not be made.
        """
        return self._present().topics.resolve(self._parse(name), create)

    def create_new_topic(self, name: str) -> None:
        """Make a topic that is not partitioned. See `TopicList.create_topic` for the errors."""
        self._present().topics.create_topic(self._parse(name))

    def create_partitioned_topic(self, name: str, partitions: int) -> None:
        """Make a partitioned topic. See `TopicList.create_partitioned` for the errors."""
        self._present().topics.create_partitioned(self._parse(name), partitions)

    def grow_partitions(self, name: str, partitions: int) -> None:
        """Give a partitioned topic more partitions; all processes are notified. See `TopicList.grow` for the
        errors."""
        session = self._present()
        parsed = self._parse(name)
        subscriptions = self._subscriptions_of(parsed.of_partition(0).full)
        session.topics.grow(
            parsed, partitions, subscriptions, lambda entry: self._open_topic(session, entry, [])
        )
        session.peers.ring_all()

    def delete_topic(self, name: str, *, force: bool = False) -> None:
        """Delete a topic that is not partitioned, with its subscriptions and messages.

        Args:
            name: short or full.
            force: although producers or consumers are attached. Their next call says that the topic was
                deleted, as do those of readers, which are never in the way.

        Raises:
            TopicNotFound: no such topic.
            NotAllowedError: it is partitioned, or a partition.
            BrokerMetadataError: producers or consumers are attached, and not ``force``.
        """
        self._delete(self._present().topics.plain_entry(self._parse(name)), force)

    def delete_partitioned_topic(self, name: str, *, force: bool = False) -> None:
        """Delete a partitioned topic with all its partitions: all of them or, with an error, none.

        Raises:
            TopicNotFound: no such topic.
            NotAllowedError: it is not partitioned.
            BrokerMetadataError: see `delete_topic`.
        """
        self._delete(self._present().topics.partitioned_entry(self._parse(name)), force)

    def _delete(self, entry: TopicEntry, force: bool) -> None:
        session = self._present()
        staged = None
        while staged is None:
            with contextlib.ExitStack() as uses:
                topics = []
                for one in session.catalog.with_logs(entry):
                    use = self.use_topic(one.name, create=False)
                    uses.callback(use.release)
                    topics.append(use.topic)
                now_ms = self.clock.wall_ms()
                staged = delete_topics(session, entry, topics, now_ms, force=force)
        session.peers.ring_all()
        for directory in staged:
            remove_tree(directory)

    def _subscriptions_of(self, name: str) -> list[str]:
        """The durable subscriptions of a topic; none if it was never opened."""
        if self._present().catalog.find(name) is None:
            return []
        use = self.use_topic(name, create=False)
        try:
            return use.topic.subscriptions()
        finally:
            use.release()

    def namespaces(self) -> list[str]:
        """All namespaces as ``tenant/namespace``."""
        return self._present().catalog.namespaces()

    def create_namespace(self, name: str) -> None:
        """Make the namespace ``tenant/namespace``, and its tenant with it. Does nothing if it is there.

        Raises:
            InvalidTopicName: the text names no namespace.
        """
        self._present().topics.create_namespace(name)
