"""The subscription that follows a streaming query, so that its backlog is kept and shown."""

from __future__ import annotations

import contextlib
from typing import Final

from embeddedpulsar.client.client import Client
from embeddedpulsar.client.consumer.consumer import Consumer
from embeddedpulsar.client.consumer.consumer_core import ConsumerCore
from embeddedpulsar.enums import InitialPosition
from embeddedpulsar.exceptions import ConsumerBusy
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.spark.stream_offsets import LogOffset, Offsets
from embeddedpulsar.topic_name import TopicName


class StreamSubscription:
    """Role: one exclusive consumer for each log of a query, which receives nothing. Callers: one thread.

    Args:
        path: directory of the store.
        name: of the subscription.
    """

    def __init__(self, path: str, name: str) -> None:
        self._name: Final = name
        self._client: Final = Client(path)
        self._followed: Final[Offsets] = {}
        self._consumers: Final[dict[str, tuple[int, Consumer[bytes]]]] = {}

    def attach(self, logs: Offsets, start: Offsets) -> None:
        """Attach to each log, which keeps what is not acknowledged from then on, and acknowledge what is
        before the start of the batch: Spark commits a batch only when there is something behind it.

        The process of a query that ended a moment ago may still be attached; `follow` tries again.
        """
        for topic, end in logs.items():
            with contextlib.suppress(ConsumerBusy):
                self.follow({topic: start.get(topic, LogOffset(end.incarnation))})

    def follow(self, offsets: Offsets) -> None:
        """Acknowledge everything before the offsets; a batch that was read in part counts as not read.

        Raises:
            ConsumerBusy: another query or consumer has the subscription.
        """
        for topic, offset in offsets.items():
            consumer = self._consumer(topic, offset)
            if offset.entry and self._followed.get(topic) != offset:
                partition = TopicName.parse(topic).partition
                core = consumer._core
                if isinstance(core, ConsumerCore):  # always, of one log
                    core.voided()  # follows a move by others: else no acknowledgement counts any more
                consumer.acknowledge_cumulative(MessageId(partition, offset.ledger, offset.entry - 1))
                self._followed[topic] = offset

    def close(self) -> None:
        """Detach; the subscription stays."""
        self._client.close()

    def _consumer(self, topic: str, offset: LogOffset) -> Consumer[bytes]:
        attached = self._consumers.get(topic)
        if attached is not None:
            if attached[0] == offset.incarnation:
                return attached[1]
            attached[1].close()  # of a topic that was deleted
            del self._consumers[topic]
        consumer = self._client.subscribe(
            topic,
            self._name,
            consumer_name="spark",
            receiver_queue_size=0,
            initial_position=InitialPosition.Earliest,
            ack_group_time_ms=0,
        )
        self._consumers[topic] = offset.incarnation, consumer
        return consumer
