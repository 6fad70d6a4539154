"""The client for asyncio loops, with the interface of ``pulsar.asyncio``.

Calls that may wait are awaited and never block the loop; calls that only use memory run in the loop. Stores,
topics and files are those of `embeddedpulsar.Client`: both kinds of clients may share a store in one process.

Example:
    >>> import asyncio
    >>> from embeddedpulsar.asyncio import Client
    >>> async def main():
    ...     async with Client("memory://") as client:
    ...         consumer = await client.subscribe("orders", "billing")
    ...         producer = await client.create_producer("orders")
    ...         await asyncio.gather(*(producer.send(b"order %d" % i) for i in range(3)))
    ...         return [(await consumer.receive()).data() for _ in range(3)]
    >>> asyncio.run(main())
    [b'order 0', b'order 1', b'order 2']
"""

from __future__ import annotations

from embeddedpulsar.asyncio.client import Client
from embeddedpulsar.asyncio.consumer import Consumer, Reader
from embeddedpulsar.asyncio.producer import Producer
from embeddedpulsar.asyncio.table_view import TableView
from embeddedpulsar.enums import (
    BatchingType,
    CompressionType,
    ConsumerCryptoFailureAction,
    InitialPosition,
    PartitionsRoutingMode,
    ProducerAccessMode,
    RegexSubscriptionMode,
)
from embeddedpulsar.exceptions import PulsarException

__all__ = [
    "BatchingType",
    "Client",
    "CompressionType",
    "Consumer",
    "ConsumerCryptoFailureAction",
    "InitialPosition",
    "PartitionsRoutingMode",
    "Producer",
    "ProducerAccessMode",
    "PulsarException",
    "Reader",
    "RegexSubscriptionMode",
    "TableView",
]
