"""What a producer needs of one partition, and what its attachments to all of them have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embeddedpulsar.client.producer.producer_session import ProducerSession
from embeddedpulsar.platform import fork, threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from embeddedpulsar.client.common.client_context import ClientContext
    from embeddedpulsar.client.common.partition_watch import WatchedTopic
    from embeddedpulsar.client.producer.producer_config import ProducerConfig
    from embeddedpulsar.topic.producers.producers import ProducerRegistration


class Membership:
    """One producer's membership of a partitioned topic: its name there, and the watch for more partitions.

    Role: the first partition that is attached may have the name made; the others take the same. The topic is
    watched from the first attachment to the end of the last, however that comes: a client closes and cleans
    up partition by partition. A forked child begins anew: no name, no attachment, no watch.
    Who may call: any thread.

    Args:
        core: of the client.
        topic: full name of the partitioned topic.
        name: the one asked for; None for one that is made.
        partitions: how many there are.
        on_changed: called with another number of partitions. Must not refer to producers: the client refers
            to it, and those who drop a producer without closing it would drop it in vain.

    Attributes:
        name: None until it is made.
    """

    def __init__(
        self,
        core: ClientContext,
        topic: str,
        name: str | None,
        partitions: int,
        on_changed: Callable[[int], object],
    ) -> None:
        self.name = name
        self._core = core
        self._topic = topic
        self._partitions = partitions
        self._on_changed = on_changed
        self._begin()
        fork.register(self)

    def _begin(self) -> None:
        self._lock = threads.RLock()  # guards what follows, and the making of the name
        self._attached = 0
        self._watched: WatchedTopic | None = None

    def attach(self, session: PartitionSession) -> ProducerRegistration:
        """Attach one partition, under the name if there is one, else making it."""
        registration = self._first(session) if self.name is None else session.attach_as(self.name)
        try:
            self._lock.acquire()
            self._attached += 1
            if self._watched is None:
                watch = self._core.partition_watch
                self._watched = watch.add(self._topic, self._partitions, self._on_changed)
        finally:
            self._lock.release()
        return registration

    def _first(self, session: PartitionSession) -> ProducerRegistration:
        """Under the lock, or two threads would have two names made. Of later attachments, which may wait for
        exclusive access, none holds it: those before them may be closed meanwhile.
        """
        try:
            self._lock.acquire()
            registration = session.attach_as(self.name)
            self.name = registration.name
        finally:
            self._lock.release()
        return registration

    def left(self) -> None:
        """One partition is not attached any more."""
        try:
            self._lock.acquire()
            self._attached -= 1
            watched = self._watched
            if self._attached or watched is None:
                return
            self._watched = None
        finally:
            self._lock.release()
        self._core.partition_watch.remove(watched)

    def after_fork_in_child(self) -> None:
        """Name, attachments and watch stay the parent's."""
        self.name = None
        self._begin()


class PartitionSession(ProducerSession):
    """One attachment of a producer to one of its partitions. Of a topic that was deleted there are none."""

    _creates = False

    def __init__(self, core: ClientContext, config: ProducerConfig, membership: Membership) -> None:
        super().__init__(core, config)
        self._membership = membership
        self._is_member = False

    def attach(self, name: str | None) -> ProducerRegistration:
        """Register with the partition under the name of the producer, whatever ``name`` says.

        Raises:
            ProducerBusy, ProducerFenced, TopicTerminated: see `Topic.attach_producer`.
        """
        self._is_member = False
        registration = self._membership.attach(self)
        self._is_member = True
        return registration

    def attach_as(self, name: str | None) -> ProducerRegistration:
        """Register with the partition under a name, or under one that is made."""
        return super().attach(name)

    def detach(self, highest: int | None = None) -> None:
        """Leave the partition."""
        super().detach(highest)
        if self._is_member:
            self._is_member = False
            self._membership.left()
