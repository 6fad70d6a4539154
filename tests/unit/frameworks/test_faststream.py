"""The broker of FastStream."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("faststream", reason="the extra is not installed")

from faststream import AckPolicy, FastStream
from faststream.exceptions import IncorrectState, NackMessage, SubscriberNotFound
from faststream.specification import AsyncAPI

from embeddedpulsar import Admin, ConsumerType
from embeddedpulsar.frameworks import faststream_parts
from embeddedpulsar.frameworks.faststream import (
    EmbeddedPulsarBroker,
    EmbeddedPulsarPublisherArgs,
    EmbeddedPulsarRoute,
    EmbeddedPulsarRouter,
    MessageContext,
    TestEmbeddedPulsarBroker,
)
from embeddedpulsar.testing.trial_store import assert_clean

ORDERS = "persistent://public/default/orders"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedPulsarBroker]:
    """A broker, on a store that is whole in the end."""
    yield EmbeddedPulsarBroker(tmp_path / "store", logger=None)
    assert_clean(tmp_path / "store")


def running(broker: EmbeddedPulsarBroker, program: Callable[[], Awaitable[Any]]) -> Any:
    """Run a coroutine between the start and the end of a broker."""

    async def main() -> Any:
        async with broker:
            await broker.start()
            async with asyncio.timeout(30):
                return await program()

    return asyncio.run(main())


class Calls(asyncio.Queue[Any]):
    """What handlers were called with."""

    async def take_first(self, count: int) -> list[Any]:
        """The first calls, sorted."""
        return sorted([await self.get() for _ in range(count)])


def test_handlers_of_two_subscriptions(broker: EmbeddedPulsarBroker):
    """Each subscription gets each message, decoded for its handler; results are published."""
    calls = Calls()

    @broker.subscriber("orders", subscription="kitchen")
    @broker.publisher("dishes", headers={"from": "kitchen"})
    async def cook(order: dict[str, int]) -> str:
        await calls.put(f"cooked {order['table']}")
        return f"dish {order['table']}"

    @broker.subscriber("orders", subscription="audit", max_workers=3)
    async def audit(message: MessageContext) -> None:
        await calls.put(f"{message.headers['waiter']} {message.raw_message.key}")

    @broker.subscriber("dishes")
    async def serve(dish: str) -> None:
        await calls.put(dish)

    async def program() -> list[str]:
        message_id = await broker.publish({"table": 7}, "orders", headers={"waiter": "Ada"}, key="k")
        assert message_id and await broker.ping(5)
        return await calls.take_first(3)

    assert running(broker, program) == ["Ada k", "cooked 7", "dish 7"]
    assert not asyncio.run(broker.ping(5))


def test_batches_and_delays(broker: EmbeddedPulsarBroker):
    """Messages of a batch come one by one, in order; a delayed one when it is due."""
    calls = Calls()

    @broker.subscriber("orders")
    async def cook(order: int) -> None:
        await calls.put(order)

    async def program() -> list[int]:
        await broker.publish(3, "orders", delay=timedelta(milliseconds=200))
        await broker.publish_batch(1, 2, topic="orders")
        return [await calls.get() for _ in range(3)]

    assert running(broker, program) == [1, 2, 3]


def test_requests(broker: EmbeddedPulsarBroker):
    """A request returns the result of the handler; without one it ends in time."""

    @broker.subscriber("numbers")
    async def double(number: int) -> int:
        return 2 * number

    async def program() -> Any:
        publisher = broker.publisher("numbers")
        answers = [await broker.request(21, "numbers"), await publisher.request(4)]
        with pytest.raises(TimeoutError):
            await broker.request(1, "other", timeout=0.05)
        return [await answer.decode() for answer in answers]

    assert running(broker, program) == [42, 8]


def test_requests_that_are_answered_twice(broker: EmbeddedPulsarBroker):
    """Each request gets an answer of its own, also where two subscriptions answer all of them; requests one
    after the other share a topic for their answers, and those at the same time do not."""
    topics = set()

    @broker.subscriber("numbers", subscription="first", max_workers=4)
    async def double(number: int, message: MessageContext) -> int:
        topics.add(message.reply_to)
        return 2 * number

    @broker.subscriber("numbers", subscription="second", max_workers=4)
    async def again(number: int) -> int:
        return 2 * number

    async def answer(number: int) -> Any:
        return await (await broker.request(number, "numbers", timeout=20)).decode()

    async def program() -> tuple[list[Any], int, list[Any]]:
        first = [await answer(number) for number in range(10)]
        return first, len(topics), await asyncio.gather(*map(answer, range(5)))

    first, count, rest = running(broker, program)
    assert first == [2 * number for number in range(10)] and rest == first[:5]
    assert count == 1 and len(topics) == 5


def test_producers_of_answers_are_not_kept_for_ever(
    broker: EmbeddedPulsarBroker, monkeypatch: pytest.MonkeyPatch
):
    """A process that answers many clients closes its producers of those that it answered long ago."""
    prefix, count = faststream_parts._REPLIES, 6
    monkeypatch.setattr(faststream_parts, "_KEPT", 3)

    async def program() -> list[str]:
        for number in range(count):
            await broker.publish("dish", f"{prefix}{number}")
        await broker.publish("dish", f"{prefix}0")
        return list(broker.config.producer._answering)

    kept = running(broker, program)
    assert kept == [f"{prefix}{number}" for number in [*range(4, count), 0]]


def backlog(broker: EmbeddedPulsarBroker, subscription: str = "faststream") -> int:
    """Messages that are not acknowledged."""
    with Admin(broker._service_url) as admin:
        return admin.topics().get_stats(ORDERS).subscriptions[subscription].msg_backlog


def test_what_fails_is_a_dead_letter(broker: EmbeddedPulsarBroker):
    """By default; it can be listed and published again."""
    calls = Calls()

    @broker.subscriber("orders", subscription="kitchen")
    async def cook(order: str) -> None:
        await calls.put(order)
        if calls.qsize() == 1:
            raise ValueError(order)

    async def fail() -> None:
        await broker.publish("soup", "orders", headers={"waiter": "Ada"})
        while not calls.qsize():
            await broker.ping(5)

    running(broker, fail)
    assert backlog(broker, "kitchen") == 0
    with Admin(broker._service_url) as admin:
        letters = admin.dead_letters("orders", "kitchen")
        (letter,) = letters.peek(10)
        assert letter.properties()["waiter"] == "Ada" and letters.replay_all() == 1

    async def again() -> list[str]:
        return [await calls.get() for _ in range(2)]

    assert running(broker, again) == ["soup", "soup"]


@pytest.mark.parametrize("policy", [AckPolicy.NACK_ON_ERROR, AckPolicy.ACK, AckPolicy.ACK_FIRST])
def test_other_policies(broker: EmbeddedPulsarBroker, policy: AckPolicy):
    """A message that is given back comes again; one that is acknowledged does not."""
    calls = Calls()

    @broker.subscriber("orders", ack_policy=policy, negative_ack_redelivery_delay_ms=1)
    async def cook(order: str, message: MessageContext) -> None:
        await calls.put(message.raw_message.redelivery_count)
        if message.raw_message.redelivery_count == 0 and order == "soup":
            raise NackMessage if policy is AckPolicy.NACK_ON_ERROR else ValueError

    async def program() -> list[int]:
        await broker.publish("soup", "orders")
        if policy is AckPolicy.NACK_ON_ERROR:
            return [await calls.get() for _ in range(2)]
        await broker.publish("tea", "orders")
        return [await calls.get() for _ in range(2)]

    assert running(broker, program) == ([0, 1] if policy is AckPolicy.NACK_ON_ERROR else [0, 0])
    assert backlog(broker) == 0


def test_a_message_whose_handler_is_interrupted_comes_again(broker: EmbeddedPulsarBroker):
    """The end of the broker does not acknowledge it."""
    broker.config.broker_config.graceful_timeout = 0.01
    begun = asyncio.Event()

    @broker.subscriber("orders")
    async def cook(order: str) -> None:
        begun.set()
        await asyncio.Event().wait()

    async def program() -> None:
        await broker.publish("soup", "orders")
        await begun.wait()

    running(broker, program)
    assert backlog(broker) == 1


def test_subscribers_without_handlers(broker: EmbeddedPulsarBroker):
    """They are asked for one message, or iterated."""
    orders = broker.subscriber("orders", consumer_type=ConsumerType.Exclusive)

    async def program() -> list[str]:
        assert await orders.get_one(timeout=0.01) is None
        for order in ("soup", "tea", "cake"):
            await broker.publish(order, "orders")
        first = await orders.get_one()
        assert first is not None
        await first.ack()
        texts = [await first.decode()]
        async for message in orders:
            await message.ack()
            texts.append(await message.decode())
            if len(texts) == 3:
                return texts
        return []

    assert running(broker, program) == ["soup", "tea", "cake"]


def test_routers(broker: EmbeddedPulsarBroker):
    """Prefixes, routes, and routers in routers."""
    calls = Calls()

    async def cook(order: str) -> str:
        return f"{order}!"

    inner = EmbeddedPulsarRouter(prefix="inner-")

    @inner.subscriber("dishes")
    async def serve(dish: str) -> None:
        await calls.put(dish)

    route = EmbeddedPulsarRoute(cook, "orders", publishers=[EmbeddedPulsarPublisherArgs("inner-dishes")])
    router = EmbeddedPulsarRouter(prefix="shop-", handlers=[route], routers=[inner])
    broker.include_router(router)

    async def program() -> str:
        await broker.publish("soup", "shop-orders")
        return await calls.get()

    assert running(broker, program) == "soup!"


def test_the_document(broker: EmbeddedPulsarBroker):
    """AsyncAPI shows topics and types."""

    @broker.subscriber("orders", title="Orders")
    @broker.publisher("dishes")
    async def cook(order: int) -> str:
        return str(order)

    document = AsyncAPI(broker).to_specification().to_jsonable()
    addresses = {channel["address"] for channel in document["channels"].values()}
    assert addresses == {"orders", "dishes"}
    asyncio.run(broker.connect())
    asyncio.run(broker.stop())


def test_an_application(broker: EmbeddedPulsarBroker):
    """FastStream runs the broker, and ends it."""
    calls = Calls()
    app = FastStream(broker, logger=None)

    @broker.subscriber("orders")
    async def cook(order: str) -> None:
        await calls.put(order)
        app.exit()

    @app.after_startup
    async def send() -> None:
        await broker.publish("soup", "orders")

    asyncio.run(app.run())
    assert calls.get_nowait() == "soup"


def test_the_test_broker():
    """Handlers are called without a store; publishers have mocks; errors are raised."""
    broker = EmbeddedPulsarBroker("./never-opened", logger=None)
    dishes = broker.publisher("dishes")

    @broker.subscriber("orders")
    @dishes
    async def cook(order: str) -> str:
        if order == "stone":
            raise ValueError(order)
        return f"{order}!"

    async def main() -> None:
        async with TestEmbeddedPulsarBroker(broker) as tested:
            await tested.publish("soup", "orders")
            cook.mock.assert_called_once_with("soup")
            dishes.mock.assert_called_once_with("soup!")
            await tested.publish_batch("tea", "cake", topic="orders")
            assert cook.mock.call_count == 3
            assert await (await tested.request("pie", "orders")).decode() == "pie!"
            with pytest.raises(ValueError, match="stone"):
                await tested.publish("stone", "orders")
            with pytest.raises(SubscriberNotFound):
                await tested.request("soup", "nowhere")

    asyncio.run(main())
    assert not Path("never-opened").exists()


def test_wrong_use():
    """Errors name the argument, or the missing call."""
    broker = EmbeddedPulsarBroker("./never-opened", logger=None)
    with pytest.raises(ValueError, match="max_workers"):
        broker.subscriber("orders", max_workers=0)
    with pytest.raises(IncorrectState, match=r"start\(\)"):
        asyncio.run(broker.publish("soup", "orders"))
