"""Consumers of hundreds of topics on one loop: they wait without a thread each."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from embeddedpulsar.asyncio import Client

TOPICS = 150


def test_consumers_of_many_topics_share_their_threads(run: Any):
    """While all of them wait, the process has a handful of threads, and each gets its message."""

    async def main(client: Client) -> None:
        before = threading.active_count()
        consumers = [await client.subscribe(f"topic-{number}", "s") for number in range(TOPICS)]
        waiting = [asyncio.create_task(consumer.receive()) for consumer in consumers]
        assert await client.get_topic_partitions("other") == ["persistent://public/default/other"]
        threads = threading.active_count() - before
        assert threads < 8
        producers = [await client.create_producer(f"topic-{number}") for number in range(0, TOPICS, 10)]
        await asyncio.gather(*(producer.send(producer.topic().encode()) for producer in producers))
        for consumer, task in list(zip(consumers, waiting, strict=True))[::10]:
            assert (await asyncio.wait_for(task, 30)).data() == consumer.topic().encode()
        assert sum(not task.done() for task in waiting) == TOPICS - len(producers)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    run(main)
