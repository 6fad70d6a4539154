"""How the calls of an operator come to a topic, its partitions and its subscriptions.

The error for a method that a part of an Admin does not have, which names those that it has.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Final, NoReturn

from embeddedpulsar._engine.platform import timing
from embeddedpulsar.error_text import nearest
from embeddedpulsar.exceptions import BrokerMetadataError, SubscriptionNotFound
from embeddedpulsar.records import TypeVar
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
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


# A word in the name of a Pulsar method, and the feature it belongs to.
_NOT_BUILT: Final = {
    "stats": "statistics of other things than topics",
    "cluster": "clusters",
    "broker": "brokers: Admin.brokers() has settings only",
    "bookie": "bookies",
    "source": "connectors",
    "sink": "connectors",
    "permission": "permissions: those of the directory count",
    "replicat": "replication",
    "polic": "other policies than deduplication, retention and limits",
    "propert": "properties of topics",
}


class SaysWhatThereIs:
    """Adds the similar or available methods, or the feature that is not built, to the error for a method that
    is not there. What the methods of the classes below it raise is named as `deadline.translate` does."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name in dir(cls):  # those of its bases, too: not all of them are below this class
            if name.startswith("_") and name != "__init__":
                continue
            # From the class that defines it, as it was written: `getattr` would make a plain function of a
            # static method.
            method = next(vars(base)[name] for base in cls.__mro__ if name in vars(base))
            # Every public method of every part translates an interrupt into `Interrupted`, as the clients do.
            # One that does so by itself is left alone.
            if isinstance(method, FunctionType) and not timing.is_translating(method):
                setattr(cls, name, timing.translating(method))
            elif isinstance(method, staticmethod):
                setattr(cls, name, staticmethod(timing.translating(method.__func__)))

    if not TYPE_CHECKING:  # a type checker must report such a name itself

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(_text(type(self), name), name=name, obj=self)


def _text(kind: type, name: str) -> str:
    text = f"{kind.__name__!r} object has no attribute {name!r}"
    # `copy`, `pickle` and others ask for such names, and expect a plain AttributeError.
    if name.startswith("_"):
        return text
    available = [method_name for method_name in dir(kind) if not method_name.startswith("_")]
    # The remedies in their order: the name in Java's spelling; a method of another part, as `Admin.get_list`;
    # a similar name; one that begins with these words, or has this word; the feature that is not built. A
    # feature asks for more similarity before another method is proposed.
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    if snake in available:
        return f"{text}; it is written {snake}()"
    for call, part in getattr(kind, "_parts", {}).items():
        if hasattr(part, snake):
            return f"{text}; it is {call}.{snake}()"
    listed = f"it has {', '.join(available)}"
    feature = next((feature for word, feature in _NOT_BUILT.items() if word in snake), "")
    near = nearest(snake, available, 0.9 if feature else 0.7)
    near = near or next(
        (method_name for method_name in available if method_name.startswith(f"{snake}_")), None
    )
    near = near or next((method_name for method_name in available if snake in method_name.split("_")), None)
    if near:
        return f"{text}; did you mean {near}()? {listed}"
    if feature:
        return f"{text}; not built yet: {feature}; {listed}"
    return f"{text}; {listed}"
