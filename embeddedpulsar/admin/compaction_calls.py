"""The methods of `Topics` that compact."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embeddedpulsar._engine.platform import interrupts
from embeddedpulsar._engine.store.background.topic_compaction import (
    NOT_RUN,
    LongRunningProcessStatus,
    joint_status,
)
from embeddedpulsar._engine.store.topic_access import HasStore, look, partitions_of
from embeddedpulsar.exceptions import NotAllowedError

if TYPE_CHECKING:
    from embeddedpulsar._engine.store.topic import Topic


def compact(self: HasStore, topic: str) -> None:
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
    with interrupts.translated:
        for name in partitions_of(self, topic) or [topic]:
            use = store.use_topic(name, create=False)
            try:
                if use.topic.ledger.is_volatile:
                    raise NotAllowedError(f"{use.topic.name} is not persistent, and cannot be compacted")
                # The thread of the compaction takes the use over, and releases it at its end. Only if it does
                # not start, it is released here.
                use.topic.compaction.get().start(use.release)
            except BaseException:
                use.release()
                raise


def compaction_status(self: HasStore, topic: str) -> LongRunningProcessStatus:
    """Return how the compaction of a topic stands, in whatever process it runs; of a partitioned topic,
    ``RUNNING`` or ``ERROR`` if that holds for a partition."""
    return joint_status(look(self, name, _status) for name in partitions_of(self, topic) or [topic])


def compaction_progress(self: HasStore, topic: str) -> tuple[int, int]:
    """How many entries a compaction in this process has read, of about how many."""
    progress = [look(self, name, _progress) for name in partitions_of(self, topic) or [topic]]
    return sum(done for done, _ in progress), sum(total for _, total in progress)


def _status(topic: Topic | None) -> LongRunningProcessStatus:
    return LongRunningProcessStatus(NOT_RUN) if topic is None else topic.compaction.get().status()


def _progress(topic: Topic | None) -> tuple[int, int]:
    progress = None if topic is None else topic.compaction.get().work.progress
    return progress or (0, 0)
