"""The methods of `Topics` that offload."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from embeddedpulsar._engine.platform import interrupts
from embeddedpulsar._engine.platform.descriptors import late_import
from embeddedpulsar._engine.store.background.topic_compaction import (
    NOT_RUN,
    LongRunningProcessStatus,
    joint_status,
)
from embeddedpulsar._engine.store.topic_access import HasStore, look, partitions_of
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.message_id import MessageId

if TYPE_CHECKING:
    from embeddedpulsar._engine.store.topic import Topic


def offload(self: HasStore, topic: str, size_threshold: int = 0) -> int:
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
    names = partitions_of(self, topic) or [topic]
    return sum(_offload(self, name, lambda topic: _first_within(topic, size_threshold)) for name in names)


def trigger_offload(self: HasStore, topic: str, message_id: MessageId) -> int:
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
    return _offload(self, topic, lambda _: message_id.ledger_id())


def offload_status(self: HasStore, topic: str) -> LongRunningProcessStatus:
    """Return how the offloading of a topic stands, in whatever process it runs; of a partitioned topic,
    ``RUNNING`` or ``ERROR`` if that holds for a partition."""
    return joint_status(look(self, name, _status) for name in partitions_of(self, topic) or [topic])


def adopt_offloaded(self: HasStore, topic: str, moved: Mapping[str, str] | None = None) -> int:
    """Let a store own the objects of the offloaded ledgers of a topic, so that it removes them when the
    ledgers are trimmed or the topic is deleted.

    A store removes only what it offloaded itself, in the place where it is. One that was moved, copied or
    restored reads the objects, and leaves them alone: another store may count on them. Call this when none
    does, or to say where the objects are after the location was moved. It is durable and may be repeated.

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
    location = late_import("embeddedpulsar._engine.cold.location")
    root = self._store().root
    # A relative place is one in the store, as in the policy of offloading.
    new = {old: location.absolute_location(place, root) for old, place in (moved or {}).items()}
    count = 0
    for name in partitions_of(self, topic) or [topic]:
        use = self._store().use_topic(name, create=False)
        try:
            with interrupts.translated:
                count += use.topic.offload.get().adopt(new)
        finally:
            use.release()
    return count


def _offload(self: HasStore, name: str, before: Callable[[Topic], int]) -> int:
    use = self._store().use_topic(name, create=False)
    try:
        with interrupts.translated:
            offloading, ledger_id = use.topic.offload.get(), before(use.topic)
            # Counted before the start: afterwards the number falls while ledgers are moved.
            due = offloading.due_before(ledger_id)
            # The thread of the offloading takes the use over, and releases it at its end.
            offloading.start(ledger_id, use.release)
            return due
    except BaseException:
        use.release()
        raise


def offload_progress(self: HasStore, topic: str) -> tuple[int, int]:
    """How many ledgers an offloading in this process has done, of how many."""
    progress = [look(self, name, _progress) for name in partitions_of(self, topic) or [topic]]
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


def _status(topic: Topic | None) -> LongRunningProcessStatus:
    if topic is None or not topic.offload.exists:
        return LongRunningProcessStatus(NOT_RUN)
    return topic.offload.get().status()


def _progress(topic: Topic | None) -> tuple[int, int]:
    progress = None if topic is None else topic.offload.get().work.progress
    return progress or (0, 0)
