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

from typing import Any

from embeddedpulsar.asyncio.client import Client
from embeddedpulsar.asyncio.consumer import Consumer, Producer, Reader, TableView
from embeddedpulsar.asyncio.worker_threads import Transaction, late_imports
from embeddedpulsar.client.client_config import is_cluster
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


def connect(service_url: Any, **options: Any) -> Client:
    """Open a store in a directory, or connect to a Pulsar cluster, as `embeddedpulsar.connect` does.

    Args:
        service_url: as for `embeddedpulsar.connect`.
        **options: keyword arguments of `embeddedpulsar.Client`.

    Returns:
        A `Client`; for a cluster, one over that of the package ``pulsar-client``.

    Raises:
        ImportError: the URL names a cluster and ``pulsar-client`` is not installed.
        InvalidConfiguration: an option that ``pulsar-client`` does not have.

    Example:
        >>> import asyncio
        >>> async def main():
        ...     async with connect("memory://") as client:
        ...         return await client.get_topic_partitions("orders")
        >>> asyncio.run(main())
        ['persistent://public/default/orders']
    """
    if is_cluster(service_url):
        with late_imports():
            from embeddedpulsar.asyncio.cluster_client import connected
        return connected(service_url, **options)
    return Client(service_url, **options)


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
    "Transaction",
    "connect",
]
