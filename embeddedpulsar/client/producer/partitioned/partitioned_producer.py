"""The producer of a partitioned topic. Hot: benchmarks measure it beside a plain one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from embeddedpulsar.client.common.message_options import DELIVER_AT, NULL_VALUE, PARTITION_KEY, check_options
from embeddedpulsar.client.common.value_type import T
from embeddedpulsar.client.producer.bulk.bulk_routing import BulkRouting
from embeddedpulsar.client.producer.partitioned.message_router import (
    CustomRouter,
    RoundRobinByBatch,
    make_router,
)
from embeddedpulsar.client.producer.partitioned.partitions import NOT_ATTACHED, Partitions
from embeddedpulsar.client.producer.producer import Producer
from embeddedpulsar.client.producer.producer_meter import BURST, snapshot_of
from embeddedpulsar.exceptions import AlreadyClosed, PulsarException
from embeddedpulsar.platform import interrupts
from embeddedpulsar.schema import BytesSchema

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from embeddedpulsar.client.common.client_context import ClientContext
    from embeddedpulsar.client.common.message_options import Options
    from embeddedpulsar.client.common.statistics import ProducerStats
    from embeddedpulsar.client.producer.bulk.bulk_publisher import Target
    from embeddedpulsar.client.producer.pending_entry import SendCallback
    from embeddedpulsar.client.producer.producer_config import ProducerConfig
    from embeddedpulsar.message_id import MessageId


class PartitionedProducer(Producer[T]):
    """Publishes messages to the partitions of one topic. Made by `Client.create_producer`.

    It consists of one plain producer per partition, and a router that chooses the partition of each message.
    Order, threads, forks and durability are those of `Producer` on each partition: messages of one key stay
    in order as long as the number of partitions is unchanged.

    Args:
        core: of the client.
        config: of the producer.
        partitions: their number.

    Raises:
        PulsarException: a partition could not be attached; then none is attached.
    """

    def __init__(self, core: ClientContext, config: ProducerConfig, partitions: int) -> None:
        router = make_router(config, partitions)
        self._config = config
        self._router = router
        self._partitions = Partitions(core, config, router)
        self._partitions.begin()
        self._producers = self._partitions.producers
        # The partition that messages join at once; none if the application's router must be called.
        self._goes_by_key = not isinstance(router, CustomRouter)
        self._takers = self._producers if self._goes_by_key else [NOT_ATTACHED]
        self._is_turning = isinstance(router, RoundRobinByBatch)
        self._encode: Callable[[T], bytes] = config.schema.encode
        self._raw: type[Any] = bytes if type(config.schema) is BytesSchema else Producer
        self._wall_ms = core.store.clock.wall_ms

    def topic(self) -> str:
        return self._partitions.topic.full

    def producer_name(self) -> str:
        return self._partitions.name

    def last_sequence_id(self) -> int:
        """Return the largest id of all partitions; each partition counts separately."""
        return max(one.last_sequence_id() for one in self._partitions)

    def stats(self) -> ProducerStats:
        """Return the statistics of all partitions together."""
        publishers = [one._publisher for one in self._partitions]
        found = snapshot_of([one.meter for one in publishers])
        for one in publishers:
            one.sample(BURST)
        return found

    def send(
        self,
        content: T | None,
        properties: dict[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool = False,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
    ) -> MessageId:
        value: Any = content if content.__class__ is self._raw else self._encoded(content)
        options = None
        if (
            content is None
            or properties is not None
            or partition_key is not None
            or ordering_key is not None
            or sequence_id is not None
            or replication_clusters is not None
            or event_timestamp is not None
            or deliver_at is not None
            or deliver_after is not None
            or disable_replication is not False
        ):
            options = check_options(
                content is None,
                properties,
                partition_key,
                ordering_key,
                sequence_id,
                replication_clusters,
                disable_replication,
                event_timestamp,
                deliver_at,
                deliver_after,
                self._wall_ms,
            )
        index = self._router.route(value, options)
        one = self._producers[index]
        if one is NOT_ATTACHED:
            one = self._attached(index)
        if self._is_turning and len(value) > one._box.share:
            one = self._with_room(one, len(value), options)
        if options is None and value is content:
            return one.send(content)
        with interrupts.translated:
            return one._send_slowly(value, options)

    def send_async(
        self,
        content: T | None,
        callback: SendCallback | None,
        properties: dict[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool = False,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
    ) -> None:
        # Hot: the fast path of the plain producer of the current partition, which is read once per message:
        # another thread may change it at any moment, and the timer must be started for the batch that got
        # the message.
        if (
            properties is None
            and partition_key is None
            and ordering_key is None
            and sequence_id is None
            and replication_clusters is None
            and event_timestamp is None
            and deliver_at is None
            and deliver_after is None
            and disable_replication is False
        ):
            if content.__class__ is self._raw:
                one = self._takers[self._router.current]
                box = one._box
                if len(content) <= box.share:  # type: ignore[arg-type]
                    items = box.items
                    if callback is None:
                        items.append(content)
                    else:
                        box.mixed = True
                        items.append((content, callback))
                    if len(items) < box.trigger:
                        if not box.armed:
                            one._publisher.arm()
                    else:
                        one._flush_full()
                    return
                self._enqueue(content, callback, None)  # type: ignore[arg-type]
                return
            self._enqueue(self._encoded(content), callback, NULL_VALUE if content is None else None)
            return
        value: Any = content if content.__class__ is self._raw else self._encoded(content)
        options = check_options(
            content is None,
            properties,
            partition_key,
            ordering_key,
            sequence_id,
            replication_clusters,
            disable_replication,
            event_timestamp,
            deliver_at,
            deliver_after,
            self._wall_ms,
        )
        if partition_key and self._goes_by_key:
            one = self._producers[self._router.of_key(partition_key)]
            if one is not NOT_ATTACHED:
                one._enqueue(value, callback, options)
                return
        self._enqueue(value, callback, options)

    def flush(self) -> None:
        attached = list(self._partitions)
        if self._is_closed:
            raise AlreadyClosed(f"the producer {self.producer_name()} is closed; create a new one")
        with interrupts.translated:
            # First store everything, then wait for callbacks. With nothing queued, the turn must not change.
            for one in attached:
                if not one._publisher.queue.is_empty:
                    one._publisher.flush_all()
            for one in attached:
                one._publisher.completions.wait()
        errors = []
        for one in attached:
            completions = one._publisher.completions
            error, completions.error = completions.error, None
            errors.append(error)
        for error in errors:
            if error is not None:
                raise error

    def close(self) -> None:
        with interrupts.translated:
            self._partitions.close()

    @property
    def _is_closed(self) -> bool:
        return self._partitions.is_closed or all(one._is_closed for one in self._partitions)

    def _is_admitted(self) -> bool:
        return any(one.is_connected() for one in self._partitions)

    def _bulk_config(self) -> ProducerConfig:
        return self._config

    def _bulk_routing(self) -> BulkRouting | None:
        return BulkRouting(self._router)

    def _target(self, partition: int) -> Target:
        return self._attached(partition)._target(0)

    def _route(self, value: bytes, options: Options | None) -> int:
        return self._router.route(value, options)

    # -- slow paths --------------------------------------------------------------------------------------

    def _attached(self, index: int) -> Producer[Any]:
        one = self._producers[index]
        if one is NOT_ATTACHED:
            with interrupts.translated:
                return self._partitions.attached(index)
        return one

    def _enqueue(self, value: bytes, callback: SendCallback | None, options: Options | None) -> None:
        try:
            one = self._attached(self._router.route(value, options))
            if options is None and len(value) <= one._publisher.single_max:
                one._publish_plain(value, callback)
                return
            if self._is_turning and len(value) > one._box.share:
                one = self._with_room(one, len(value), options)
        except PulsarException as error:
            self._tell_later(callback, error)
            return
        one._enqueue(value, callback, options)

    def _with_room(self, one: Producer[Any], size: int, options: Options | None) -> Producer[Any]:
        """End the batch of the current partition if the message does not fit, and use the next partition."""
        if options is not None and (options[PARTITION_KEY] or options[DELIVER_AT]):
            return one  # the message becomes an entry of its own
        for _ in self._producers:  # the next batch may hold keyed messages, and be full too
            with interrupts.translated:
                is_turn_over = one._publisher.finish_batch(size)
            if not is_turn_over:
                break
            one = self._attached(self._router.current)
        return one

    def _store_soon(self) -> None:
        for one in list(self._partitions):
            one._store_soon()

    def _tell_later(self, callback: SendCallback | None, error: Exception) -> None:
        next(iter(self._partitions))._tell_later(callback, error)
