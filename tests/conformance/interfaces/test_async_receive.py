"""Awaiting messages in an asyncio loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import pytest

from embeddedpulsar import AlreadyClosed, InvalidConfiguration
from tests.conformance.conftest import numbers, receive_all


async def turn() -> None:
    """Let the other coroutines of the loop run."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    loop.call_soon(lambda: future.done() or future.set_result(None))
    await future


def test_what_is_there_comes_at_once_and_in_order(topic):
    """Messages that were sent before are not waited for."""
    topic.publish(200)
    consumer = topic.consumer()

    async def main() -> list[Any]:
        return [await consumer.receive_async() for _ in range(200)]

    assert numbers(asyncio.run(main())) == list(range(200))


@pytest.mark.in_memory
def test_a_message_wakes_the_coroutine(topic):
    """Sent from a thread of this process while the loop sleeps."""
    consumer = topic.consumer()

    async def main() -> bytes:
        waiting = asyncio.create_task(consumer.receive_async())
        await turn()
        thread = threading.Thread(target=topic.publish, args=(1,))
        thread.start()
        try:
            return (await asyncio.wait_for(waiting, 10)).data()
        finally:
            thread.join()

    assert asyncio.run(main()) == b"hello-0"


def test_first_come_first_served(topic):
    """Coroutines of one loop get the messages in the order in which they began to wait."""
    consumer = topic.consumer()

    async def main() -> list[Any]:
        tasks = [asyncio.create_task(consumer.receive_async()) for _ in range(5)]
        await turn()
        await asyncio.to_thread(topic.publish, 5)
        return await asyncio.wait_for(asyncio.gather(*tasks), 10)

    assert numbers(asyncio.run(main())) == list(range(5))


def test_cancelling_loses_nothing(topic):
    """Whenever receivers are cancelled, each message comes to one that was not, or is still there."""
    consumer = topic.consumer()
    received: list[Any] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        publishing = loop.run_in_executor(None, topic.publish, 100)
        while not publishing.done() or len(received) < 50:
            tasks = [asyncio.create_task(consumer.receive_async()) for _ in range(4)]
            await turn()
            for task in tasks[::2]:
                task.cancel()
            _, pending = await asyncio.wait(tasks, timeout=0.001)
            for task in pending:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            received.extend(one for one in results if not isinstance(one, BaseException))
        await publishing

    asyncio.run(main())
    assert numbers(received + receive_all(consumer)) == list(range(100))


def test_a_timeout_takes_nothing(topic):
    """After wait_for gave up, the next message comes to the next receive."""
    consumer = topic.consumer()

    async def main() -> bytes:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(consumer.receive_async(), 0.05)
        topic.publish(1)
        return (await consumer.receive_async()).data()

    assert asyncio.run(main()) == b"hello-0"


def test_the_loop_is_not_starved(topic):
    """While messages are there, other coroutines have their turns."""
    topic.publish(500)
    consumer = topic.consumer()

    async def main() -> int:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await turn()

        counting = asyncio.create_task(count())
        for _ in range(500):
            await consumer.receive_async()
        counting.cancel()
        return turns

    assert asyncio.run(main()) >= 3


def test_closing_wakes_all_that_wait(topic):
    """They raise AlreadyClosed, as does every later call."""
    consumer = topic.consumer()

    async def main() -> list[Any]:
        tasks = [asyncio.create_task(consumer.receive_async()) for _ in range(3)]
        await turn()
        consumer.close()
        return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)

    assert [type(error) for error in asyncio.run(main())] == [AlreadyClosed] * 3
    with pytest.raises(AlreadyClosed):
        asyncio.run(consumer.receive_async())


def test_several_loops_share_a_consumer(topic):
    """Each message comes to one of them."""
    consumer = topic.consumer()
    received: list[list[Any]] = [[], []]

    async def receive(number: int) -> None:
        while sum(map(len, received)) < 50:
            with contextlib.suppress(TimeoutError):
                received[number].append(await asyncio.wait_for(consumer.receive_async(), 0.05))

    threads = [threading.Thread(target=lambda n=n: asyncio.run(receive(n))) for n in range(2)]
    for thread in threads:
        thread.start()
    topic.publish(50)
    for thread in threads:
        thread.join()
    assert sorted(numbers(received[0] + received[1])) == list(range(50))


def test_a_loop_that_ended_is_forgotten(topic):
    """A consumer goes on with the next loop."""
    consumer = topic.consumer()

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(consumer.receive_async(), 0.01)

    for _ in range(3):
        asyncio.run(give_up())
    topic.publish(1)
    assert asyncio.run(consumer.receive_async()).data() == b"hello-0"


def test_with_a_listener_there_is_nothing_to_await(topic):
    """As with receive."""
    consumer = topic.consumer(message_listener=lambda consumer, message: None)
    with pytest.raises(InvalidConfiguration):
        asyncio.run(consumer.receive_async())


def test_several_topics_are_awaited_together(client):
    """A consumer of several topics wakes for each of them."""
    consumer = client.subscribe(["red", "blue"], "sub")

    async def main() -> list[str]:
        tasks = [asyncio.create_task(consumer.receive_async()) for _ in range(2)]
        await turn()
        for name in ("blue", "red"):
            client.create_producer(name).send(name.encode())
        messages = await asyncio.wait_for(asyncio.gather(*tasks), 10)
        return sorted(message.topic_name().rpartition("/")[2] for message in messages)

    assert asyncio.run(main()) == ["blue", "red"]
