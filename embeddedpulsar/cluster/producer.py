"""The producer of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from embeddedpulsar.client.client_threads import ClientLog
from embeddedpulsar.client.producer.producer import Producer
from embeddedpulsar.cluster.cluster_errors import not_supported, translated
from embeddedpulsar.cluster.handle import ClusterHandle
from embeddedpulsar.cluster.translation import from_message_id
from embeddedpulsar.enums import Result
from embeddedpulsar.message import T

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from embeddedpulsar.client.producer.bulk_publisher import SentMessages
    from embeddedpulsar.client.statistics import ProducerStats
    from embeddedpulsar.message_id import MessageId


_LOG = ClientLog()


class ClusterProducer(ClusterHandle, Producer[T]):
    """`Producer` over the producer of ``pulsar-client``. Thread-safe."""

    def send(self, content: T | None, *args: Any, **options: Any) -> MessageId:
        with translated:
            return from_message_id(self.theirs.send(content, *args, **options), self.topic())

    def send_async(self, content: T | None, callback: Any, *args: Any, **options: Any) -> None:
        with translated:
            self.theirs.send_async(content, self._callback(callback), *args, **options)

    def _callback(self, callback: Callable[[Result, MessageId], object] | None) -> Any:
        """The callback for ``pulsar-client``, in which an exception would end the process."""
        if callback is None:
            return None
        topic = self.topic()

        def call(result: Any, message_id: Any) -> None:
            try:
                callback(Result[result.name], from_message_id(message_id, topic))
            except BaseException:  # noqa: BLE001 - the application's code
                _LOG.exception("The callback of a send to %s failed", topic)

        return call

    def send_many(self, contents: Iterable[T | None], **options: Any) -> SentMessages:
        raise not_supported("Producer.send_many()", "call send_async for each, and flush")

    def send_arrow(self, data: Any, **options: Any) -> SentMessages:
        raise not_supported("Producer.send_arrow()", "call send_async for each row, and flush")

    def flush(self) -> None:
        with translated:
            self.theirs.flush()

    def topic(self) -> str:
        return str(self.theirs.topic())

    def producer_name(self) -> str:
        return str(self.theirs.producer_name())

    def last_sequence_id(self) -> int:
        return int(self.theirs.last_sequence_id())

    def is_connected(self) -> bool:
        return bool(self.theirs.is_connected())

    def stats(self) -> ProducerStats:
        raise not_supported("Producer.stats()", "ask the admin interface of the cluster")

    def __exit__(self, *error: object) -> None:
        if self._is_closed:
            return
        try:
            if not any(error):
                self.flush()
        finally:
            super().__exit__(*error)

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open"
        return f"<Producer {self.producer_name()} on {self.topic()} {state}>"
