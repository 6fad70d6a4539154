"""A topic with partitions, and what is in each of them."""

from __future__ import annotations

from typing import Any

from embeddedpulsar import Client, Message, MessageId, Producer
from tests.conformance.conftest import numbers

NAME = "persistent://public/default/topic"


class PartitionedTopic:
    """One partitioned topic, as a test uses it."""

    def __init__(self, client: Client, partitions: int, name: str = "topic") -> None:
        self.client = client
        self.name = name
        self.store.topics.create_partitioned(self.name, partitions)

    @property
    def store(self) -> Any:
        """The store of the client."""
        return self.client._core.store

    def grow(self, partitions: int) -> None:
        """Give it more partitions, and have the client notice."""
        self.store.grow_partitions(self.name, partitions)
        self.client._core.partition_watch.report_changes()

    def producer(self, **options: Any) -> Producer[Any]:
        """A producer with some options."""
        return self.client.create_producer(self.name, **options)

    def batching(self, **options: Any) -> Producer[Any]:
        """A producer that batches, and is in no hurry."""
        options.setdefault("batching_max_publish_delay_ms", 60_000)
        return self.producer(batching_enabled=True, **options)

    def names(self) -> list[list[str]]:
        """The producers that are attached to each partition."""
        partitions = range(self.store.topics.partitions(self.name))
        return [
            self.store.use_topic(f"{self.name}-partition-{index}").topic.producers() for index in partitions
        ]

    def messages(self, partition: int) -> list[Message[Any]]:
        """What is in one partition."""
        with self.client.create_reader(f"{self.name}-partition-{partition}", MessageId.earliest) as reader:
            return list(reader)

    def numbers(self, partition: int) -> list[int]:
        """The numbers of the messages ``hello-<n>`` in one partition."""
        return numbers(self.messages(partition))

    def all_numbers(self) -> list[list[int]]:
        """Of every partition."""
        return [self.numbers(index) for index in range(self.store.topics.partitions(self.name))]

    def batches(self, partition: int) -> list[list[int]]:
        """The numbers in one partition, entry by entry."""
        found: dict[tuple[int, int], list[int]] = {}
        for message in self.messages(partition):
            sent = message.message_id()
            found.setdefault((sent.ledger_id(), sent.entry_id()), []).extend(numbers([message]))
        return list(found.values())


def hello(number: int) -> bytes:
    """The payload of message ``number``."""
    return b"hello-%d" % number
