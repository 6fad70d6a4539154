"""Chunked messages in an asyncio loop: awaited, cancelled, and sent by coroutines."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from embeddedpulsar import ConsumerType, InitialPosition, MessageId
from embeddedpulsar.asyncio import Client
from tests.conformance.chunks import LIMIT, HalfSent, log_of, payload, subscription_of

pytestmark = pytest.mark.usefixtures("small_entries")

EARLIEST = InitialPosition.Earliest
WITHIN_S = 10


async def still_waits(task: asyncio.Task[Any]) -> None:
    """Let everything run that is ready; the task is not done by that."""
    await asyncio.wait([task], timeout=0.02)
    assert not task.done()


@pytest.mark.parametrize("kind", list(ConsumerType))
def test_receive_async_waits_for_the_last_part(topic, kind):
    """Parts wake the loop and are no message; the last one is, with the others, and its acknowledgement is
    theirs."""
    consumer = topic.consumer(consumer_type=kind)
    slow = HalfSent(topic.producer(chunking_enabled=True), payload(4 * LIMIT))

    async def main() -> Any:
        waiting = asyncio.create_task(consumer.receive_async())
        for _ in range(2):
            await still_waits(waiting)
            slow.send(1)
        await still_waits(waiting)
        slow.finish()
        return await asyncio.wait_for(waiting, WITHIN_S)

    message = asyncio.run(main())
    assert message.data() == payload(4 * LIMIT)
    consumer.acknowledge(message)
    consumer._acks.flush()
    assert subscription_of(consumer).mark_delete == log_of(topic.client).last_position()


def test_messages_between_the_parts_come_first(topic):
    """In the order of their last parts, to coroutines in the order in which they came."""
    consumer = topic.consumer()
    slow = HalfSent(topic.producer(chunking_enabled=True), payload(3 * LIMIT))

    async def main() -> list[bytes]:
        waiting = [asyncio.create_task(consumer.receive_async()) for _ in range(3)]
        slow.send(1)
        topic.publish(2)
        await asyncio.wait_for(asyncio.gather(*waiting[:2]), WITHIN_S)
        await still_waits(waiting[2])
        slow.finish()
        return [message.data() for message in await asyncio.wait_for(asyncio.gather(*waiting), WITHIN_S)]

    assert asyncio.run(main()) == [b"hello-0", b"hello-1", payload(3 * LIMIT)]


def test_who_is_cancelled_between_the_parts_has_taken_none(topic):
    """The next one gets the whole message."""
    consumer = topic.consumer()
    slow = HalfSent(topic.producer(chunking_enabled=True), payload(3 * LIMIT)).send(1)

    async def main() -> bytes:
        waiting = asyncio.create_task(consumer.receive_async())
        await still_waits(waiting)
        slow.send(1)
        waiting.cancel()
        await asyncio.wait([waiting])
        slow.finish()
        return (await asyncio.wait_for(consumer.receive_async(), WITHIN_S)).data()

    assert asyncio.run(main()) == payload(3 * LIMIT)


def test_coroutines_send_and_receive_them(run):
    """In the order in which their sends began, large and small, whole, once, with the ids of the sends."""

    async def main(client: Client) -> None:
        values = [
            payload(size, seed) for seed, size in enumerate([3 * LIMIT, 10, 5 * LIMIT, 2 * LIMIT, 20] * 4)
        ]
        producer = await client.create_producer("topic", batching_enabled=False, chunking_enabled=True)
        consumer = await client.subscribe("topic", "sub", ConsumerType.Shared, initial_position=EARLIEST)
        ids = await asyncio.gather(*(producer.send(value) for value in values))
        messages = [await asyncio.wait_for(consumer.receive(), WITHIN_S) for _ in values]
        assert [message.data() for message in messages] == values
        assert [message.message_id() for message in messages] == ids
        assert [message.message_id().serialize() for message in messages] == [one.serialize() for one in ids]
        for message in messages:
            await consumer.acknowledge(message)
        await consumer.close()
        again = await client.subscribe("topic", "sub", ConsumerType.Shared)
        waiting = asyncio.create_task(again.receive())
        await still_waits(waiting)
        waiting.cancel()

    run(main)


def test_sends_keep_their_order(run, monkeypatch):
    """However long one of them takes until the producer has it; whole columns stay behind them, too."""

    async def main(client: Client) -> None:
        producer = await client.create_producer("topic", batching_enabled=False, chunking_enabled=True)
        first = threading.Event()
        below = producer._blocking.send_async

        def late(content: bytes, *arguments: Any, **options: Any) -> None:
            if content == b"0":
                first.wait(0.05)  # what comes behind it has time to overtake it
            below(content, *arguments, **options)

        monkeypatch.setattr(producer._blocking, "send_async", late)
        sends = [asyncio.create_task(producer.send(b"%d" % i)) for i in range(3)]
        await asyncio.gather(*sends, producer.send_many([b"3"]))
        reader = await client.create_reader("topic", MessageId.earliest)
        assert [(await reader.read_next()).data() for _ in range(4)] == [b"0", b"1", b"2", b"3"]

    run(main)


def test_one_that_is_given_back_comes_again(run):
    """Whole, and as one message."""

    async def main(client: Client) -> None:
        producer = await client.create_producer("topic", batching_enabled=False, chunking_enabled=True)
        consumer = await client.subscribe(
            "topic", "sub", ConsumerType.Shared, negative_ack_redelivery_delay_ms=1, initial_position=EARLIEST
        )
        await producer.send(payload(3 * LIMIT))
        first = await asyncio.wait_for(consumer.receive(), WITHIN_S)
        await consumer.negative_acknowledge(first)
        second = await asyncio.wait_for(consumer.receive(), WITHIN_S)
        assert (second.data(), second.redelivery_count()) == (payload(3 * LIMIT), 1)
        assert second.message_id() == first.message_id()

    run(main)


def test_a_reader_of_a_loop(run):
    """Reads it whole; its id takes the reader behind it, and inclusively before it."""

    async def main(client: Client) -> None:
        producer = await client.create_producer("topic", batching_enabled=False, chunking_enabled=True)
        sent = await producer.send(payload(3 * LIMIT))
        await producer.send(b"behind")
        reader = await client.create_reader("topic", MessageId.earliest)
        assert (await asyncio.wait_for(reader.read_next(), WITHIN_S)).data() == payload(3 * LIMIT)
        await reader.seek(sent)
        assert (await asyncio.wait_for(reader.read_next(), WITHIN_S)).data() == b"behind"
        including = await client.create_reader("topic", sent, start_message_id_inclusive=True)
        assert (await asyncio.wait_for(including.read_next(), WITHIN_S)).data() == payload(3 * LIMIT)

    run(main)
