"""The attachment of a producer to a partitioned topic: what its partitions have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embeddedpulsar._engine.platform import fork, threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from embeddedpulsar._engine.store.producers.producers import ProducerRegistration
    from embeddedpulsar.client.client_context import ClientContext
    from embeddedpulsar.client.partition_watch import WatchedTopic
    from embeddedpulsar.client.producer.producer_session import ProducerSession


class PartitionMembership:
    """One producer's attachment to a partitioned topic: its name, and the watch for more partitions.

    Role: the name may be made with the first partition that is attached; the others use the same name. The
    topic is watched from the first attachment to the end of the last one, because a closing client detaches
    one partition after the other. A forked child starts with no name, no attachment and no watch. Any thread
    may call the methods.

    Args:
        on_changed: called with a changed number of partitions. It must not refer to producers: the client
            refers to it, so a producer that the application drops would never be collected.

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
        self._lock = threads.RLock()  # guards the following, and the making of the name
        self._attached = 0
        self._watched: WatchedTopic | None = None

    def attach(self, session: ProducerSession) -> ProducerRegistration:
        """Attach one partition, under the name if there is one; otherwise the topic makes the name."""
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

    def _first(self, session: ProducerSession) -> ProducerRegistration:
        """Attach under the lock, so that two threads do not have two names made.

        Later attachments, which may wait for exclusive access, do not hold it, so that others can be closed.
        """
        try:
            self._lock.acquire()
            registration = session.attach_as(self.name)
            self.name = registration.name
        finally:
            self._lock.release()
        return registration

    def left(self) -> None:
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
        self.name = None
        self._begin()
