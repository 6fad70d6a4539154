"""A web application: handlers publish, four workers in the background do the jobs."""

import asyncio
import json

import pulsar
from pulsar.asyncio import Client, PulsarException


async def work(client, name, done):
    """One worker, until it is cancelled."""
    consumer = await client.subscribe(
        "jobs", "workers", consumer_type=pulsar.ConsumerType.Shared, consumer_name=name
    )
    try:
        while True:
            message = await consumer.receive()
            await done.put(json.loads(message.data())["job"])
            await consumer.acknowledge(message)
    finally:
        await consumer.close()


async def main():
    """The application."""
    client = Client("pulsar://localhost:6650", operation_timeout_seconds=5)
    done = asyncio.Queue()
    producer = await client.create_producer("jobs", batching_max_publish_delay_ms=1)
    await (await client.subscribe("jobs", "workers", consumer_type=pulsar.ConsumerType.Shared)).close()
    workers = [asyncio.create_task(work(client, f"worker-{number}", done)) for number in range(4)]
    ids = await asyncio.gather(*(producer.send(json.dumps({"job": job}).encode()) for job in range(100)))
    assert all(isinstance(one, pulsar.MessageId) for one in ids)
    jobs = [await asyncio.wait_for(done.get(), 10) for _ in range(100)]
    assert sorted(jobs) == list(range(100))
    try:
        await client.create_producer("no-tenant/no-namespace/jobs")
    except PulsarException as error:
        result = error.error()
    assert result == pulsar.Result.TopicNotFound
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
    await client.close()


asyncio.run(main())
