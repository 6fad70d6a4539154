"""Readers with interceptors; `reader_opening` chooses the class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from embeddedpulsar.client.consumer.reader import Reader
from embeddedpulsar.client.consumer.topic_group.multi_topics_reader import MultiTopicsReader
from embeddedpulsar.message import Message

if TYPE_CHECKING:
    from embeddedpulsar.client.common.client_context import ClientContext
    from embeddedpulsar.client.common.interceptor_chain import InterceptorChain
    from embeddedpulsar.client.consumer.consumer_config import ReaderConfig


class InterceptingReader(Reader[Any]):
    """A reader that passes its messages to interceptors."""

    def __init__(self, core: ClientContext, config: ReaderConfig, *partitions: Any) -> None:
        assert config.chain is not None
        self._chain: InterceptorChain = config.chain
        self._chain.bind(core, self)
        super().__init__(core, config, *partitions)
        self._chain.begin()

    def read_next(self, timeout_millis: int | None = None) -> Message[Any]:
        """See `Reader.read_next`."""
        return self._chain.before_delivery(super().read_next(timeout_millis), "before_read")

    async def read_next_async(self) -> Message[Any]:
        """See `Reader.read_next_async`."""
        return self._chain.before_delivery(await super().read_next_async(), "before_read")

    def read_nowait(self) -> Message[Any] | None:
        """See `Reader.read_nowait`."""
        message = super().read_nowait()
        return message if message is None else self._chain.before_delivery(message, "before_read")

    def close(self) -> None:
        """See `Reader.close`."""
        super().close()
        self._chain.close()


class InterceptingMultiTopicsReader(InterceptingReader, MultiTopicsReader[Any]):
    """A reader of a partitioned topic that passes its messages to interceptors."""
