"""Operating on whole topics: ending, unloading, trimming, compacting and offloading them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from embeddedpulsar._engine.platform import timing
from embeddedpulsar._engine.platform.descriptors import late_imports
from embeddedpulsar._engine.store.background.topic_compaction import (
    NOT_RUN,
    LongRunningProcessStatus,
    joint_status,
)
from embeddedpulsar._engine.store.topic_access import TopicAccess
from embeddedpulsar.admin.subscription_calls import skip_all
from embeddedpulsar.exceptions import InvalidConfiguration, NotAllowedError, TopicTerminated
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from embeddedpulsar._engine.store.store import Store
    from embeddedpulsar._engine.store.topic import Topic


class TopicOperations:
    """Ends, unloads, trims, compacts and offloads whole topics: a part of `Topics`, which says what all
    methods raise. Thread-safe.
    """

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store
        self._access = TopicAccess(store)

    # -- ending ----------------------------------------------------------------------------------------------

    def terminate_topic(self, topic: str) -> MessageId:
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
        with timing.translated:
            store = self._store()
            # The methods of Pulsar are two as well: one id, or one for each partition.
            if store.topics.partitions(topic):
                raise NotAllowedError(
                    f"{TopicName.parse(topic).full} is partitioned; use terminate_partitioned_topic"
                )
            return _terminate(store, topic)

    def terminate_partitioned_topic(self, topic: str) -> dict[int, MessageId]:
        """End all partitions of a topic, one after the other; see `terminate_topic`. If the process is killed
        in between, the call can be made again.

        Returns:
            The id of the last entry of each partition, by the index of the partition.

        Raises:
            NotAllowedError: it is not partitioned.
        """
        with timing.translated:
            store = self._store()
            names = self._access.partitions_of(topic)
            if not names:
                store.topics.was_used(topic)  # raises if there is no such topic
                raise NotAllowedError(
                    f"{TopicName.parse(topic).full} is not partitioned; use terminate_topic"
                )
            # One after the other. A kill leaves some partitions that still take messages, and the call may be
            # made again.
            return {index: _terminate(store, name) for index, name in enumerate(names)}

    def unload(self, topic: str) -> None:
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
        with timing.translated:
            self._access.in_all(topic, lambda _, subscription: subscription.operator_commands().give_back())
            # A terminated topic has no open ledger, which is not what the caller asked about.
            with contextlib.suppress(TopicTerminated):
                self._access.in_logs(topic, lambda used_topic: used_topic.ledger.roll())

    def roll_ledger(self, topic: str) -> int:
        """Close the open ledger of a topic, and start the next one. What is closed can be trimmed and
        offloaded; producers and consumers go on without noticing. A ledger without messages stays open. For a
        partitioned topic, in all partitions.

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

        with timing.translated:
            self._access.in_logs(topic, roll)
        return len(closed)

    # -- trimming --------------------------------------------------------------------------------------------

    def trim_topic(self, topic: str) -> int:
        """Remove ledgers now instead of in the background: those that every durable subscription has
        acknowledged, and retention does not keep. The open ledger is closed and removed, too, if it is one of
        them and holds more than 64 KiB. For a partitioned topic, in all partitions.

        Returns:
            The number of removed ledgers.

        Raises:
            TopicNotFound: no such topic.
            StorageFullError: there is no room for the successor of the open ledger, some 16 KiB. The closed
                ones were removed.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.topics().create_non_partitioned_topic("visits")
            ...     admin.topics().trim_topic("visits")
            0
        """
        with timing.translated:
            return sum(
                self._store().trim_topic(name) for name in self._access.partitions_of(topic) or [topic]
            )

    def truncate(self, topic: str) -> None:
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
        with timing.translated:
            # Acknowledged first, since trimming removes only what no subscription needs. A kill in between
            # leaves the ledgers to the trimming in the background, which keeps to the retention.
            self._access.in_all(topic, skip_all)
            self._access.in_logs(topic, lambda used_topic: used_topic.trim_now(ignore_retention=True))

    def compact(self, topic: str) -> None:
        """Begin to compact a topic, or all partitions of a partitioned one, and return.

        The newest message of each key stays for those that read with ``is_read_compacted``. It runs in this
        process, in the background; closing the Admin, or the last client, waits for it.

        Raises:
            NotAllowedError: it is being compacted already, in whatever process, or is not persistent.
            TopicNotFound: no such topic.

        Example:
            >>> from embeddedpulsar import Admin, Client, MessageId
            >>> with Client("./data") as client, Admin("./data") as admin:
            ...     producer = client.create_producer("stock")
            ...     for count in (b"12", b"11", b"10"):
            ...         message_id = producer.send(count, partition_key="apples")
            ...     admin.topics().compact("stock")
            ...     while admin.topics().compaction_status("stock").status == "RUNNING":
            ...         pass
            ...     reader = client.create_reader("stock", MessageId.earliest, is_read_compacted=True)
            ...     reader.read_next().data(), reader.has_message_available()
            (b'10', False)
        """
        store = self._store()
        with timing.translated:
            for name in self._access.partitions_of(topic) or [topic]:
                use = store.use_topic(name, create=False)
                try:
                    if use.topic.ledger.is_volatile:
                        raise NotAllowedError(f"{use.topic.name} is not persistent, and cannot be compacted")
                    # The thread of the compaction takes the use over, and releases it at its end. Only if it
                    # does not start, it is released here.
                    use.topic.compaction.get().start(use.release)
                except BaseException:
                    use.release()
                    raise

    def compaction_status(self, topic: str) -> LongRunningProcessStatus:
        """Return how the compaction of a topic stands, in whatever process it runs; of a partitioned topic,
        ``RUNNING`` or ``ERROR`` if that holds for a partition."""
        return joint_status(
            self._access.inspect(name, _compaction_status)
            for name in self._access.partitions_of(topic) or [topic]
        )

    def offload(self, topic: str, size_threshold: int = 0) -> int:
        """Begin to move the oldest closed ledgers of a topic, or of each partition of a partitioned one, to
        its offload location, and return.

        It runs in this process, in the background; closing the Admin, or the last client, waits for it. The
        ledger that is being written stays. The messages are read back as before.

        Args:
            topic: the name.
            size_threshold: bytes of the topic, or of each partition, that stay in the store.

        Returns:
            How many ledgers are to be moved: 0 if no closed ledger lies beyond the threshold.

        Raises:
            NotAllowedError: the topic is being offloaded already, in whatever process, or is kept in memory.
            InvalidConfiguration: no location is set, or there is no such file system.
            TopicNotFound: no such topic.

        Example:
            >>> from embeddedpulsar import Admin, Client, MessageId
            >>> from embeddedpulsar.policy_values import OffloadPolicies
            >>> with Client("./data") as client, Admin("./data") as admin:
            ...     client.subscribe("archive", "readers").close()  # which keeps what it has not acknowledged
            ...     _ = client.create_producer("archive").send(b"old news")
            ...     admin.topics().set_offload_policies("archive", OffloadPolicies("./cold"))
            ...     nothing, closed = admin.topics().offload("archive"), admin.topics().roll_ledger("archive")
            ...     while admin.topics().offload_status("archive").status == "RUNNING":
            ...         pass
            ...     _ = admin.topics().offload("archive")  # 0, if the policy's threshold had it moved by now
            ...     while admin.topics().offload_status("archive").status == "RUNNING":
            ...         pass
            ...     client.create_reader("archive", MessageId.earliest).read_next().data()
            b'old news'
            >>> nothing, closed
            (0, 1)
        """
        if isinstance(size_threshold, bool) or not isinstance(size_threshold, int) or size_threshold < 0:
            raise InvalidConfiguration(f"size_threshold is a number of bytes from 0, not {size_threshold!r}")
        # The threshold is of a log: each partition keeps so many bytes.
        names = self._access.partitions_of(topic) or [topic]
        return sum(self._offload(name, lambda topic: _first_within(topic, size_threshold)) for name in names)

    def trigger_offload(self, topic: str, message_id: MessageId) -> int:
        """Begin to move all closed ledgers before that of a message, and return how many. As `offload`
        otherwise; of a partitioned topic, name a partition.

        Example:
            >>> from embeddedpulsar import Admin, Client, MessageId
            >>> from embeddedpulsar.policy_values import OffloadPolicies
            >>> with Client("./data") as client, Admin("./data") as admin:
            ...     message_id = client.create_producer("letters").send(b"news")
            ...     admin.topics().set_offload_policies("letters", OffloadPolicies("./cold"))
            ...     _ = admin.topics().trigger_offload("letters", message_id)
            ...     while admin.topics().offload_status("letters").status == "RUNNING":
            ...         pass
            ...     client.create_reader("letters", MessageId.earliest).read_next().data()
            b'news'
        """
        if not isinstance(message_id, MessageId):
            raise ValueError(f"message_id is a MessageId, not {message_id!r}")
        return self._offload(topic, lambda _: message_id.ledger_id())

    def offload_status(self, topic: str) -> LongRunningProcessStatus:
        """Return how the offloading of a topic stands, in whatever process it runs; of a partitioned topic,
        ``RUNNING`` or ``ERROR`` if that holds for a partition."""
        return joint_status(
            self._access.inspect(name, _offload_status)
            for name in self._access.partitions_of(topic) or [topic]
        )

    def adopt_offloaded(self, topic: str, moved: Mapping[str, str] | None = None) -> int:
        """Let a store own the objects of the offloaded ledgers of a topic, so that it removes them when the
        ledgers are trimmed or the topic is deleted.

        A store removes only what it offloaded itself, in the place where it is. One that was moved, copied or
        restored reads the objects, and leaves them alone: another store may count on them. Call this when
        none does, or to say where the objects are after the location was moved. It is durable and may be
        repeated.

        Args:
            topic: the name; of a partitioned topic, all partitions are meant.
            moved: new locations by the old ones, as they are in the notes of the ledgers.

        Returns:
            How many ledgers belong to this store now and did not before, or have another location.

        Raises:
            NotAllowedError: the topic is being offloaded, in whatever process, or is kept in memory.
            ColdReadError: the objects are not there.
            InvalidConfiguration: a new location is in the store, or makes no sense.
            TopicNotFound: no such topic.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.topics().create_non_partitioned_topic("adopted")
            ...     admin.topics().adopt_offloaded("adopted", {"./cold": "/mnt/cold"})
            0
        """
        with late_imports():
            from embeddedpulsar._engine.cold.location import absolute_location
        root = self._store().root
        # A relative place is one in the store, as in the policy of offloading.
        new = {old: absolute_location(place, root) for old, place in (moved or {}).items()}
        count = 0
        for name in self._access.partitions_of(topic) or [topic]:
            use = self._store().use_topic(name, create=False)
            try:
                with timing.translated:
                    count += use.topic.offload.get().adopt(new)
            finally:
                use.release()
        return count

    def _offload(self, name: str, before: Callable[[Topic], int]) -> int:
        use = self._store().use_topic(name, create=False)
        try:
            with timing.translated:
                offloading, ledger_id = use.topic.offload.get(), before(use.topic)
                # Counted before the start: afterwards the number falls while ledgers are moved.
                due = offloading.due_before(ledger_id)
                # The thread of the offloading takes the use over, and releases it at its end.
                offloading.start(ledger_id, use.release)
                return due
        except BaseException:
            use.release()
            raise


def _terminate(store: Store, name: str) -> MessageId:
    use = store.use_topic(name, create=False)
    try:
        last = use.topic.terminate()
    finally:
        use.release()
    if last.entry_id < 0:
        return MessageId.earliest
    return MessageId(TopicName.parse(name).partition, last.ledger_id, last.entry_id)


def compaction_progress(topics: TopicOperations, topic: str) -> tuple[int, int]:
    """How many entries a compaction in this process has read, of about how many."""
    access = topics._access
    progress = [access.inspect(name, _compaction_progress) for name in access.partitions_of(topic) or [topic]]
    return sum(done for done, _ in progress), sum(total for _, total in progress)


def _compaction_status(topic: Topic | None) -> LongRunningProcessStatus:
    return LongRunningProcessStatus(NOT_RUN) if topic is None else topic.compaction.get().status()


def _compaction_progress(topic: Topic | None) -> tuple[int, int]:
    progress = None if topic is None else topic.compaction.get().work.progress
    return progress or (0, 0)


def offload_progress(topics: TopicOperations, topic: str) -> tuple[int, int]:
    """How many ledgers an offloading in this process has done, of how many."""
    access = topics._access
    progress = [access.inspect(name, _offload_progress) for name in access.partitions_of(topic) or [topic]]
    return sum(done for done, _ in progress), sum(total for _, total in progress)


def _first_within(topic: Topic, room: int) -> int:
    """The first ledger that stays if at most so many bytes are to stay."""
    # From the newest ledger back: those within the limit stay, and the first that exceeds it is moved, with
    # all older ones.
    for ledger in reversed(topic.ledger.survey().ledgers()):
        room -= ledger.size
        if room < 0:
            return ledger.ledger_id + 1
    return 0


def _offload_status(topic: Topic | None) -> LongRunningProcessStatus:
    if topic is None or not topic.offload.exists:
        return LongRunningProcessStatus(NOT_RUN)
    return topic.offload.get().status()


def _offload_progress(topic: Topic | None) -> tuple[int, int]:
    progress = None if topic is None else topic.offload.get().work.progress
    return progress or (0, 0)
