"""The producer of a partitioned topic behind its interface. Hot: benchmarks measure it beside a plain one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embeddedpulsar._engine.platform import interrupts
from embeddedpulsar.client.common.message_options import DELIVER_AT, PARTITION_KEY, check_options
from embeddedpulsar.client.producer.partitioned.message_router import (
    BulkRouting,
    CustomRouter,
    RoundRobinByBatch,
    make_router,
)
from embeddedpulsar.client.producer.partitioned.partitions import Partitions
from embeddedpulsar.client.producer.producer_meter import BURST, snapshot_of
from embeddedpulsar.exceptions import AlreadyClosed, PulsarException

if TYPE_CHECKING:
    from collections.abc import Callable

    from embeddedpulsar.client.common.client_context import ClientContext
    from embeddedpulsar.client.common.message_options import Options
    from embeddedpulsar.client.common.statistics import ProducerStats
    from embeddedpulsar.client.producer.bulk.bulk_publisher import Target
    from embeddedpulsar.client.producer.pending_entry import SendCallback
    from embeddedpulsar.client.producer.producer_config import ProducerConfig
    from embeddedpulsar.client.producer.publisher import Publisher
    from embeddedpulsar.message_id import MessageId


class PartitionedPublisher:
    """A publisher per partition, and a router that chooses the partition of each message.

    Has the interface of `Publisher` to `Producer`. Thread-safe.

    Attributes:
        state, singles: this object, with `alone_max` and `send_alone` for the hot path of `Producer.send`.
        lane: has the open batch that messages without a key join: the router.
        routing: of whole columns.
    """

    def __init__(self, core: ClientContext, config: ProducerConfig, partitions: int) -> None:
        router = make_router(config, partitions)
        self.config = config
        self.wall_ms: Callable[[], int] = core.store.clock.wall_ms
        self._router = self.lane = router
        self.routing = BulkRouting(router)
        self._partitions = Partitions(core, config, router)
        self._partitions.begin()
        self._publishers = self._partitions.publishers
        is_custom = isinstance(router, CustomRouter)
        self._goes_by_key = not is_custom
        self._is_turning = isinstance(router, RoundRobinByBatch)
        self.alone_max = -1 if config.batching or is_custom else 1 << 62

    @property
    def singles(self) -> PartitionedPublisher:
        return self

    state = singles

    @property
    def topic_name(self) -> str:
        return self._partitions.topic.full

    @property
    def name(self) -> str:
        return self._partitions.name

    @property
    def last_sequence_id(self) -> int:
        return max(one.last_sequence_id for one in self._partitions)

    @property
    def is_closed(self) -> bool:
        return self._partitions.is_closed or all(one.is_closed for one in self._partitions)

    def is_connected(self) -> bool:
        return not self.is_closed and any(one.is_connected() for one in self._partitions)

    def stats(self) -> ProducerStats:
        publishers = list(self._partitions)
        found = snapshot_of([one.meter for one in publishers])
        for one in publishers:
            one.sample(BURST)
        return found

    def send_alone(
        self,
        value: bytes,
        properties: dict[str, str] | None,
        key: str | None,
        ordering_key: str | None = None,
        event_time: int | None = None,
    ) -> MessageId | None:
        if key:
            if key.__class__ is not str or not key.isascii():
                return None
            index = self._router.of_key(key)
        else:
            index = self._router.route(value, None)
        one = self._publishers[index]
        if one is None:
            one = self._attached(index)
        if len(value) <= one.state.alone_max:
            found = one.singles.send_alone(value, properties, key, ordering_key, event_time)
            if found is not None:
                return found
        options = check_options(
            False, properties, key, ordering_key, None, None, False, event_time, None, None, self.wall_ms
        )
        return one.send(value, options)

    def send(self, value: bytes, options: Options | None) -> MessageId:
        one = self._attached(self._router.route(value, options))
        if self._is_turning and len(value) > one.batch.share:
            one = self._with_room(one, len(value), options)
        return one.send(value, options)

    def enqueue(self, value: bytes, callback: SendCallback | None, options: Options | None) -> None:
        if options is not None and options[PARTITION_KEY] and self._goes_by_key:
            found = self._publishers[self._router.of_key(options[PARTITION_KEY])]
            if found is not None:
                found.enqueue(value, callback, options)
                return
        try:
            one = self._attached(self._router.route(value, options))
            if self._is_turning and len(value) > one.batch.share:
                one = self._with_room(one, len(value), options)
        except PulsarException as error:
            next(iter(self._partitions)).tell_later(callback, error)
            return
        one.enqueue(value, callback, options)

    def store_soon(self) -> None:
        for one in list(self._partitions):
            one.store_soon()

    def flush(self) -> None:
        attached = list(self._partitions)
        if self.is_closed:
            raise AlreadyClosed(f"the producer {self.name} is closed; create a new one")
        # First store everything, then wait for callbacks. With nothing queued, the turn must not change.
        for one in attached:
            if not one.queue.is_empty:
                one.flush_all()
        for one in attached:
            one.completions.wait()
        errors = [one.completions.taken_failure() for one in attached]
        for error in errors:
            if error is not None:
                raise error

    def end(self) -> None:
        self._partitions.close()

    def abandon(self) -> None:
        """The producers of the partitions are garbage, too, and close themselves."""

    def target(self, partition: int) -> Target:
        return self._attached(partition).target(0)

    def target_of(self, value: bytes, options: Options) -> Target:
        return self.target(self._router.route(value, options))

    def _attached(self, index: int) -> Publisher:
        one = self._publishers[index]
        if one is None:
            with interrupts.translated:
                return self._partitions.attached(index)
        return one

    def _with_room(self, one: Publisher, size: int, options: Options | None) -> Publisher:
        """End the batch of the current partition if the message does not fit, and use the next partition."""
        if options is not None and (options[PARTITION_KEY] or options[DELIVER_AT]):
            return one  # the message becomes an entry of its own
        for _ in self._publishers:  # the next batch may hold keyed messages, and be full too
            with interrupts.translated:
                is_turn_over = one.batches.finish_batch(size)
            if not is_turn_over:
                break
            one = self._attached(self._router.current)
        return one
