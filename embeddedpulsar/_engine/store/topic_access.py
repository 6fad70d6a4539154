"""How the calls of an operator come to a topic, its partitions and its subscriptions."""

from __future__ import annotations

from collections.abc import Callable

from embeddedpulsar._engine.platform import timing
from embeddedpulsar.exceptions import BrokerMetadataError, SubscriptionNotFound
from embeddedpulsar.records import TYPE_CHECKING, TypeVar
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from typing import Final

    from embeddedpulsar._engine.store.store import Store
    from embeddedpulsar._engine.store.topic import Topic
    from embeddedpulsar._engine.subscription.subscription import Subscription


# Seconds that a look waits at most, which happens only if a topic has to be recovered first.
_PATIENCE_S: Final = 5.0

R = TypeVar("R")


def log_names(topic: str, partitions: int) -> list[str]:
    """The full names of the topics that have the log of a topic."""
    parsed = TopicName.parse(topic)
    return [parsed.of_partition(index).full for index in range(partitions)] or [parsed.full]


class TopicAccess:
    """Finds what a call of an operator names: a topic, each of its partitions, or a subscription in each.

    Thread-safe. What it finds is used for the length of a call, and released.

    Args:
        store: the store of the Admin; raises if that is closed.
    """

    def __init__(self, store: Callable[[], Store]) -> None:
        self.store: Final = store

    def partitions_of(self, topic: str) -> list[str]:
        """The partitions of a topic; none if it is not partitioned, or does not exist."""
        name = TopicName.parse(topic)
        return [name.of_partition(index).full for index in range(self.store().topics.partitions(topic))]

    def inspect(self, topic: str, body: Callable[[Topic | None], R]) -> R:
        """``body(topic)``; with None for a topic that was never used."""

        def used() -> R:
            store = self.store()
            # Opening it would make its files, and these methods change nothing. What this process has open
            # was used; the catalog need not be asked for its directory.
            if not store.has_open(topic) and not store.topics.was_used(topic):
                return body(None)
            use = store.use_topic(topic, create=False, to_look=True)
            try:
                return body(use.topic)
            finally:
                use.release()

        with timing.translated:
            # The limit is that of locks: a process that was stopped in one may hold up the recovery.
            return timing.within(_PATIENCE_S, used)

    def in_each(self, topic: str, subscription: str, work: Callable[[Topic, Subscription], R]) -> list[R]:
        """Do ``work`` in the topic, or in each partition, that has the subscription.

        Raises:
            SubscriptionNotFound: none has it.
        """
        results: list[R] = []
        # Partitions without the subscription are left out, as those that were added after it was made.
        self.in_logs(
            topic, lambda used_topic: results.extend(_with_subscription(used_topic, subscription, work))
        )
        if not results:
            raise SubscriptionNotFound(
                f"{TopicName.parse(topic).full} has no subscription {subscription!r}; make it with "
                "create_subscription"
            )
        return results

    def delete_subscription(self, topic: str, subscription: str, force: bool) -> None:
        """Delete a durable subscription of the topic, or of each partition that has it.

        Raises:
            BrokerMetadataError: consumers are attached, and ``force`` is False.
            SubscriptionNotFound: no partition has it.
        """

        def check(topic: Topic, cursor: Subscription) -> None:
            names = ", ".join(repr(consumer.name) for consumer in cursor.consumers()[:5])
            if names:
                raise BrokerMetadataError(
                    f"the subscription {cursor.name!r} of {topic.name} has consumers: {names}; close them, "
                    "or delete it with force"
                )

        # All partitions are asked before the first subscription goes.
        if not force:
            self.in_each(topic, subscription, check)
        self.in_each(topic, subscription, lambda _, cursor: cursor.delete(force))

    def in_all(self, topic: str, work: Callable[[Topic, Subscription], object]) -> None:
        """Do ``work`` with every durable subscription of the topic, or of its partitions."""

        def in_log(used_topic: Topic) -> None:
            for subscription in used_topic.subscriptions():
                _with_subscription(used_topic, subscription, work)

        self.in_logs(topic, in_log)

    def in_logs(self, topic: str, work: Callable[[Topic], object]) -> None:
        """Do ``work`` with the topic, or with each partition, one after the other."""
        # One after the other: two locks of the same kind are never held together.
        store = self.store()
        for name in log_names(topic, store.topics.partitions(topic)):
            use = store.use_topic(name, create=False)
            try:
                work(use.topic)
            finally:
                use.release()


def _with_subscription(topic: Topic, name: str, work: Callable[[Topic, Subscription], R]) -> list[R]:
    """The result of ``work``; nothing if the topic has no such subscription."""
    try:
        subscription = topic.use_subscription(name, create=False)
    except SubscriptionNotFound:
        return []
    try:
        return [work(topic, subscription)]
    finally:
        topic.end_use(subscription, name)
