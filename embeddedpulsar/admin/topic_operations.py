"""The methods of `Topics` that end, unload and trim topics."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from embeddedpulsar._engine.platform import interrupts
from embeddedpulsar._engine.store.topic_access import HasStore, in_all, in_logs, partitions_of
from embeddedpulsar.admin.subscription_calls import skip_all
from embeddedpulsar.exceptions import NotAllowedError, TopicTerminated
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from embeddedpulsar._engine.store.store import Store
    from embeddedpulsar._engine.store.topic import Topic


# -- ending --------------------------------------------------------------------------------------------------


def terminate_topic(self: HasStore, topic: str) -> MessageId:
    """End a topic, for ever: it takes no more messages. Those it has stay, and are received as before.

    Producers of all processes get `TopicTerminated` from their next call, and so does `create_producer`.
    On return the end survives a power failure. May be repeated.

    Args:
        topic: its name, or that of a partition.

    Returns:
        The id of the last entry; `MessageId.earliest` if there is none.

    Raises:
        TopicNotFound: no such topic.
        NotAllowedError: it is partitioned; use `terminate_partitioned_topic`.

    Example:
        >>> from embeddedpulsar import Admin, Client
        >>> with Client("./data") as client, Admin("./data") as admin:
        ...     producer = client.create_producer("election")
        ...     last = producer.send(b"the last vote")
        ...     admin.topics().terminate_topic("election") == last
        True
    """
    with interrupts.translated:
        store = self._store()
        # The methods of Pulsar are two as well: one id, or one for each partition.
        if store.topics.partitions(topic):
            raise NotAllowedError(
                f"{TopicName.parse(topic).full} is partitioned; use terminate_partitioned_topic"
            )
        return _terminate(store, topic)


def terminate_partitioned_topic(self: HasStore, topic: str) -> dict[int, MessageId]:
    """End all partitions of a topic, one after the other; see `terminate_topic`. If the process is killed
    in between, the call can be made again.

    Returns:
        The id of the last entry of each partition, by the index of the partition.

    Raises:
        NotAllowedError: it is not partitioned.
    """
    with interrupts.translated:
        store = self._store()
        names = partitions_of(self, topic)
        if not names:
            store.topics.was_used(topic)  # raises if there is no such topic
            raise NotAllowedError(f"{TopicName.parse(topic).full} is not partitioned; use terminate_topic")
        # One after the other. A kill leaves some partitions that still take messages, and the call may be
        # made again.
        return {index: _terminate(store, name) for index, name in enumerate(names)}


def unload(self: HasStore, topic: str) -> None:
    """Have consumers of all processes begin anew, as when a broker gives up a topic: what they hold or
    have fetched is void, and what is not acknowledged is delivered again. The redelivery counts of Shared
    and Key_Shared subscriptions begin at 0. Nothing else is lost. The open ledger is closed, as by
    `roll_ledger`, unless the topic is terminated.

    For a partitioned topic, in all partitions. Concerns durable subscriptions.

    Raises:
        TopicNotFound: no such topic.

    Example:
        >>> from embeddedpulsar import Admin, Client
        >>> with Client("./data") as client, Admin("./data") as admin:
        ...     consumer = client.subscribe("alarms", "guard")
        ...     _ = client.create_producer("alarms").send(b"smoke")
        ...     first = consumer.receive()
        ...     admin.topics().unload("alarms")
        ...     consumer.receive().message_id() == first.message_id()
        True
    """
    with interrupts.translated:
        in_all(self, topic, lambda _, subscription: subscription.operator_commands().give_back())
        # A terminated topic has no open ledger, which is not what the caller asked about.
        with contextlib.suppress(TopicTerminated):
            in_logs(self, topic, lambda used_topic: used_topic.ledger.roll())


def roll_ledger(self: HasStore, topic: str) -> int:
    """Close the open ledger of a topic, and start the next one. What is closed can be trimmed and offloaded;
    producers and consumers go on without noticing. A ledger without messages stays open. For a partitioned
    topic, in all partitions.

    In Pulsar a ledger is closed when its broker unloads the topic. `unload` does it here, too; this
    method leaves the consumers alone.

    Returns:
        The number of ledgers that were closed.

    Raises:
        TopicNotFound: no such topic.
        TopicTerminated: the topic was ended; its last ledger stays.
        StorageFullError: there is no room for the next ledger, some 16 KiB. Nothing was changed.

    Example:
        >>> from embeddedpulsar import Admin, Client
        >>> with Client("./data") as client, Admin("./data") as admin:
        ...     _ = client.create_producer("journal").send(b"an entry")
        ...     admin.topics().roll_ledger("journal"), admin.topics().roll_ledger("journal")
        (1, 0)
    """
    closed: list[Topic] = []

    def roll(used_topic: Topic) -> None:
        # The tail word has the ledger id in its upper 32 bits. An empty ledger is not closed, and the id
        # stays.
        before = used_topic.ledger.tail >> 32
        if used_topic.ledger.roll() != before:
            closed.append(used_topic)

    with interrupts.translated:
        in_logs(self, topic, roll)
    return len(closed)


# -- trimming ------------------------------------------------------------------------------------------------


def trim_topic(self: HasStore, topic: str) -> int:
    """Remove ledgers now instead of in the background: those that every durable subscription has
    acknowledged, and retention does not keep. The open ledger is closed and removed, too, if it is one of
    them and holds more than 64 KiB. For a partitioned topic, in all partitions.

    Returns:
        The number of removed ledgers.

    Raises:
        TopicNotFound: no such topic.
        StorageFullError: there is no room for the successor of the open ledger, some 16 KiB. The closed ones
            were removed.

    Example:
        >>> from embeddedpulsar import Admin
        >>> with Admin("./data") as admin:
        ...     admin.topics().create_non_partitioned_topic("visits")
        ...     admin.topics().trim_topic("visits")
        0
    """
    with interrupts.translated:
        return sum(self._store().trim_topic(name) for name in partitions_of(self, topic) or [topic])


def truncate(self: HasStore, topic: str) -> None:
    """Acknowledge all messages for every durable subscription, and remove all ledgers, whatever retention
    says. The open ledger stays if it holds at most 64 KiB, if no durable subscription is there, or if
    messages are published meanwhile. For a partitioned topic, in all partitions.

    Readers and non-durable subscriptions go on with what is left.

    Raises:
        TopicNotFound: no such topic.
        StorageFullError: as of `trim_topic`.

    Example:
        >>> from embeddedpulsar import Admin, Client
        >>> with Client("./data") as client, Admin("./data") as admin:
        ...     admin.topics().create_subscription("debug", "nightly")
        ...     _ = client.create_producer("debug").send(b"...")
        ...     admin.topics().truncate("debug")
        ...     admin.topics().peek_messages("debug", "nightly", 1)
        []
    """
    with interrupts.translated:
        # Acknowledged first, since trimming removes only what no subscription needs. A kill in between leaves
        # the ledgers to the trimming in the background, which keeps to the retention.
        in_all(self, topic, skip_all)
        in_logs(self, topic, lambda used_topic: used_topic.trim_now(ignore_retention=True))


def _terminate(store: Store, name: str) -> MessageId:
    use = store.use_topic(name, create=False)
    try:
        last = use.topic.terminate()
    finally:
        use.release()
    if last.entry_id < 0:
        return MessageId.earliest
    return MessageId(TopicName.parse(name).partition, last.ledger_id, last.entry_id)
