"""`await producer.send()` of a batching producer waits for no delay, only for the turn of the loop to end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import embeddedpulsar as pulsar
from embeddedpulsar import Admin, CompressionType
from embeddedpulsar.asyncio import Client, PulsarException

HOUR_MS = 3_600_000
WITHIN_S = 30


async def soon(awaitable: Any) -> Any:
    """Its outcome; a test fails rather than wait for the delay."""
    return await asyncio.wait_for(awaitable, WITHIN_S)


def entries(ids: list[Any]) -> list[tuple[int, int]]:
    """The entries of messages, each once, in order."""
    return list(dict.fromkeys((one.ledger_id(), one.entry_id()) for one in ids))


def test_a_send_that_is_awaited_alone_is_stored_at_once(run):
    """Whatever the delay, the other options, and how often."""

    async def main(client: Client) -> None:
        producer = await client.create_producer("topic", batching_max_publish_delay_ms=HOUR_MS)
        ids = [await soon(producer.send(b"%d" % i)) for i in range(3)]
        ids.append(await soon(producer.send(b"keyed", {"a": "b"}, partition_key="k")))
        assert len(entries(ids)) == 4

    run(main)


def test_sends_of_one_turn_share_a_batch(run):
    """A thousand that are awaited together make one entry; what is sent in later turns, others."""

    async def main(client: Client) -> None:
        producer = await client.create_producer("topic", batching_max_publish_delay_ms=HOUR_MS)
        together = await soon(asyncio.gather(*(producer.send(b"%d" % i) for i in range(1000))))
        assert len(entries(together)) == 1
        assert [one.batch_index() for one in together] == list(range(1000))
        more = await soon(asyncio.gather(*(producer.send(b"x") for _ in range(1500))))
        assert len(entries(more)) == 2, "a full batch, and the rest"

    run(main)


@pytest.mark.parametrize("is_keyed", [False, True])
def test_every_partition_stores_at_the_end_of_the_turn(run, store_url, is_keyed):
    """One message, and many over all partitions."""
    with Admin(store_url) as admin:
        admin.topics().create_partitioned_topic("parts", 3)

    async def main(client: Client) -> None:
        producer = await client.create_producer("parts", batching_max_publish_delay_ms=HOUR_MS)
        assert await soon(producer.send(b"alone"))
        keys = [f"key-{i % 7}" if is_keyed else None for i in range(60)]
        ids = await soon(asyncio.gather(*(producer.send(b"x", partition_key=key) for key in keys)))
        assert len({one.ledger_id() for one in ids}) == (3 if is_keyed else 1)

    run(main)


def test_large_compressed_and_delayed_messages_are_awaited_as_well(run):
    """What does not go into a batch, and what ends one."""

    async def main(client: Client) -> None:
        producer = await client.create_producer(
            "topic", batching_max_publish_delay_ms=HOUR_MS, compression_type=CompressionType.ZLib
        )
        sends = [producer.send(bytes(300_000)), producer.send(b"late", deliver_at=1), producer.send(b"small")]
        assert len(await soon(asyncio.gather(*sends))) == 3

    run(main)


def test_a_full_queue_that_blocks_waits_for_no_delay_either(run):
    """With `block_if_queue_full` the sends of a turn enter one after the other, and share a batch."""

    async def main(client: Client) -> None:
        producer = await client.create_producer(
            "topic",
            batching_max_publish_delay_ms=HOUR_MS,
            block_if_queue_full=True,
            max_pending_messages=500,
        )
        assert await soon(producer.send(b"alone"))
        ids = await soon(asyncio.gather(*(producer.send(b"%d" % i) for i in range(20))))
        assert len(entries(ids)) == 1

    run(main)


def test_a_send_that_is_cancelled_keeps_back_no_other(run):
    """Neither in its own turn nor afterwards."""

    async def main(client: Client) -> None:
        producer = await client.create_producer("topic", batching_max_publish_delay_ms=HOUR_MS)
        first, second = (asyncio.ensure_future(producer.send(b"%d" % i)) for i in range(2))
        await asyncio.wait([second], timeout=0)
        first.cancel()
        outcome, _ = await soon(asyncio.gather(first, second, return_exceptions=True))
        assert isinstance(outcome, asyncio.CancelledError) or outcome.batch_index() == 0
        assert await soon(second)
        assert await soon(producer.send(b"next"))

    run(main)


def test_a_producer_that_is_closed_in_the_turn_fails_its_sends(run):
    """Or has stored them; the loop sees no error."""
    errors: list[Any] = []
    outcomes: list[Any] = []

    async def main(client: Client) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        producer = await client.create_producer("topic", batching_max_publish_delay_ms=HOUR_MS)
        sent = asyncio.ensure_future(producer.send(b"x"))
        closing = asyncio.ensure_future(producer.close())
        outcome, _ = await soon(asyncio.gather(sent, closing, return_exceptions=True))
        if isinstance(outcome, BaseException):
            outcomes.append(outcome)

    run(main)
    assert not errors
    for error in outcomes:
        assert isinstance(error, PulsarException) and error.error() == pulsar.Result.AlreadyClosed


def test_each_loop_ends_its_own_turns(store_path):
    """A producer that outlives a loop goes on in the next."""
    client = Client(str(store_path))

    async def make() -> Any:
        producer = await client.create_producer("topic", batching_max_publish_delay_ms=HOUR_MS)
        await soon(producer.send(b"first loop"))
        return producer

    producer = asyncio.run(make())

    async def go_on() -> None:
        ids = await soon(asyncio.gather(*(producer.send(b"%d" % i) for i in range(5))))
        assert len(entries(ids)) == 1
        await client.close()

    asyncio.run(go_on())
