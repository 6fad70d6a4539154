"""The methods of `Topics` that end, unload and trim topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embeddedpulsar.admin.subscription_calls import skip_all
from embeddedpulsar.admin.topic_access import HasStore, in_all, in_logs, partitions_of
from embeddedpulsar.exceptions import NotAllowedError
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.platform import interrupts
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from embeddedpulsar.topic.store import Store


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
        return {index: _terminate(store, name) for index, name in enumerate(names)}


def unload(self: HasStore, topic: str) -> None:
    """Have consumers of all processes begin anew, as when a broker gives up a topic: what they hold or
    have fetched is void, and what is not acknowledged is delivered again. The redelivery counts of Shared
    and Key_Shared subscriptions begin at 0. Nothing else is lost.

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


# -- trimming ------------------------------------------------------------------------------------------------


def trim_topic(self: HasStore, topic: str) -> int:
    """Remove closed ledgers now instead of in the background: those that every durable subscription has
    acknowledged, and retention does not keep. For a partitioned topic, in all partitions.

    Returns:
        The number of removed ledgers.

    Raises:
        TopicNotFound: no such topic.

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
    """Acknowledge all messages for every durable subscription, and remove all closed ledgers, whatever
    retention says. The open ledger, which producers append to, stays. For a partitioned topic, in all
    partitions.

    Readers and non-durable subscriptions go on with the open ledger.

    Raises:
        TopicNotFound: no such topic.

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
        in_all(self, topic, skip_all)
        in_logs(self, topic, lambda one: one.trim_now(ignore_retention=True))


def _terminate(store: Store, name: str) -> MessageId:
    use = store.use_topic(name, create=False)
    try:
        last = use.topic.terminate()
    finally:
        use.release()
    if last.entry_id < 0:
        return MessageId.earliest
    return MessageId(TopicName.parse(name).partition, last.ledger_id, last.entry_id)
