"""The producers of the partitions to which a producer is attached."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from embeddedpulsar._engine.platform import deadline, fork, threads
from embeddedpulsar.client.producer.partitioned.partition_membership import PartitionMembership
from embeddedpulsar.client.producer.producer import attach_producer
from embeddedpulsar.client.producer.producer_session import ProducerSession
from embeddedpulsar.client.producer.publisher import Publisher
from embeddedpulsar.enums import ProducerAccessMode
from embeddedpulsar.exceptions import AlreadyClosed, TopicNotFound
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from collections.abc import Iterator

    from embeddedpulsar.client.common.client_context import ClientContext
    from embeddedpulsar.client.producer.partitioned.message_router import Router
    from embeddedpulsar.client.producer.producer import Producer
    from embeddedpulsar.client.producer.producer_config import ProducerConfig


class Partitions:
    """The plain producers of one partitioned producer.

    Role: attaches partitions, all at once or each with its first message, under one name.
    Invariants: `publishers` has an item for each partition that the router knows. An item changes once, from
    None to a publisher; the list only grows. Once `is_closed` is set, no partition is attached. Any
    thread may call the methods.

    Attributes:
        publishers: one per partition.
        is_closed: whether no more partitions may be attached.
        is_deleted: likewise, because the topic was deleted. A new topic of the same name is another one.
        chain: interceptors to notify of more partitions; or None.
    """

    def __init__(self, core: ClientContext, config: ProducerConfig, router: Router) -> None:
        self.topic = TopicName.parse(config.topic)
        self.publishers: list[Publisher | None] = [None] * router.partitions
        self._producers: list[Producer[Any]] = []  # each closes its publisher when it is dropped
        self.is_closed = self.is_deleted = False
        self.chain = config.chain
        self._core = core
        self._config = config
        self._router = router
        mine = weakref.ref(self)
        self._membership = PartitionMembership(
            core, self.topic.full, config.name, router.partitions, lambda partitions: _grow(mine, partitions)
        )
        self._lock = threads.RLock()
        fork.register(self)

    def __iter__(self) -> Iterator[Publisher]:
        return iter([one for one in self.publishers if one is not None])

    @property
    def name(self) -> str:
        return self._membership.name or next(iter(self)).name

    def begin(self) -> None:
        """Attach all partitions, or, if they are attached lazily, the first one for messages.

        In order of their numbers: of two producers that want exclusive access, one gets all partitions.
        If one cannot be attached, none stays attached.
        """
        is_lazy = self._config.lazy_start and self._config.access_mode == ProducerAccessMode.Shared
        try:
            for index in [self._router.current] if is_lazy else range(self._router.partitions):
                self.attached(index)
        except BaseException:
            self.close()
            raise
        if self._config.access_mode == ProducerAccessMode.WaitForExclusive:
            # Only the first partition is waited for. Later ones are free, or another process has exclusive
            # access to them, and a send must not wait for that.
            self._config = self._config._replace(access_mode=ProducerAccessMode.Exclusive)

    def attached(self, index: int) -> Publisher:
        """Return the publisher of a partition, which is attached first if necessary.

        Raises:
            ProducerBusy, ProducerFenced, TopicTerminated: see `Topic.attach_producer`.
            AlreadyClosed: the producer is closed.
            TopicNotFound: the topic was deleted.
        """
        found = self.publishers[index]
        if found is not None:
            return found
        try:
            self._lock.acquire()
            if self.is_closed:
                raise AlreadyClosed(f"the producer {self._membership.name} is closed; create a new one")
            if self.is_deleted:
                raise TopicNotFound(f"{self.topic.full}: the topic was deleted; create a new producer")
            found = self.publishers[index]
            if found is None:
                found = self._attach(index)
        finally:
            self._lock.release()
        return found

    def _attach(self, index: int) -> Publisher:
        config = self._config._replace(
            topic=self.topic.of_partition(index).full,
            max_pending_messages=pending_limit(self._config, self._router.partitions),
        )
        session = ProducerSession(self._core, config, self._membership)
        made = attach_producer(self._core, session, config)
        publisher, router = made._publisher, self._router
        assert isinstance(publisher, Publisher)
        # The client refers to the batch container, which must not refer to `self`.
        publisher.batch.on_left = lambda: router.batch_left(index)
        router.attached(index, publisher.batch)
        self._producers.append(made)
        self.publishers[index] = publisher
        return publisher

    def grow(self, partitions: int) -> None:
        """Add partitions, each attached with its first message. A smaller number changes nothing."""
        try:
            self._lock.acquire()
            more = partitions - len(self.publishers)
            if more > 0 and not self.is_closed:
                # First the items of `publishers`, then the router that uses them.
                self.publishers.extend([None] * more)
                self._router.grow(partitions)
        finally:
            self._lock.release()

    def close(self) -> None:
        """Close the attached producers. After an interrupt, the next call continues.

        Raises:
            AlreadyClosed: everything was closed before.
        """
        self._core.in_time(self._close)

    def _close(self) -> None:
        try:
            self._lock.acquire()
            was_closed, self.is_closed = self.is_closed, True
        finally:
            self._lock.release()
        still_open = [one for one in self if one.is_connected()]
        if was_closed and not still_open:
            raise AlreadyClosed(f"the producer {self._membership.name} was closed before")
        for one in still_open:
            deadline.within_half(one.end)

    def after_fork_in_child(self) -> None:
        """In the parent, another thread may have been attaching."""
        self._lock = threads.RLock()


def _grow(reference: weakref.ref[Partitions], partitions: int) -> None:
    found = reference()
    if found is not None:
        found.is_deleted = not partitions
        found.grow(partitions)
        if found.chain is not None:
            found.chain.tell("on_partitions_change", found.topic.full, partitions)


def pending_limit(config: ProducerConfig, partitions: int) -> int:
    """The ``max_pending_messages`` of each partition; 0 for no limit.

    >>> from types import SimpleNamespace as Config
    >>> limits = [(1000, 50_000), (1000, 8000), (1000, 3), (0, 8000), (1000, 0)]
    >>> [pending_limit(Config(max_pending_messages=one, max_pending_across=all), 10) for one, all in limits]
    [1000, 800, 1, 0, 0]
    """
    share = config.max_pending_across // partitions
    if config.max_pending_across and not share:
        share = 1  # 0 would mean no limit
    return min(config.max_pending_messages, share)
