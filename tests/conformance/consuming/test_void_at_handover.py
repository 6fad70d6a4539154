"""What a consumer fetched is void once it was taken for dead, or the subscription moved: none of it reaches
the application any more, however that asks for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

import embeddedpulsar as pulsar
from embeddedpulsar._engine.format.subscription_record import DETACH_SILENT
from embeddedpulsar._engine.subscription.liveness_monitor import detach_command
from embeddedpulsar.client.consumer.message_receiver import BatchReceiver

KINDS = ["Exclusive", "Failover", "Shared", "KeyShared"]
COUNT = 20
QUICK = {"ack_group_time_ms": 0, "initial_position": pulsar.InitialPosition.Earliest}


def take_for_dead(consumer: pulsar.Consumer[Any]) -> None:
    """Detach a consumer behind its back, as others do when its process is stopped."""
    core: Any = consumer._core
    for one in getattr(core, "children", {"": core}).values():
        shared, consumer_id = one.session.subscription._existing(), one.session.attachment.consumer_id
        shared.transact(
            lambda state, shared=shared, consumer_id=consumer_id: shared.commit(
                [detach_command(state, shared.control, consumer_id, DETACH_SILENT)]
            )
        )


def drain(consumer: pulsar.Consumer[Any]) -> list[int]:
    """What comes, acknowledged."""
    found = []
    while (message := consumer.receive_nowait()) is not None:
        found.append(int(message.data()))
        consumer.acknowledge(message)
    return found


def send(client: pulsar.Client, topics: list[str], *, batched: bool) -> None:
    """Numbers to each topic: a batch, or one by one."""
    for topic in topics:
        options = {"batching_enabled": True, "batching_max_publish_delay_ms": 10_000} if batched else {}
        producer = client.create_producer(topic, **options)
        for number in range(COUNT):
            producer.send_async(b"%d" % number, None, partition_key="k")
        producer.flush()
        producer.close()


def receive(consumer: pulsar.Consumer[Any]) -> pulsar.Message[Any] | None:
    try:
        return consumer.receive(timeout_millis=1)
    except pulsar.Timeout:
        return None


def receive_batch(consumer: pulsar.Consumer[Any]) -> pulsar.Message[Any] | None:
    return next(iter(consumer.batch_receive()), None)


def receive_async(consumer: pulsar.Consumer[Any]) -> pulsar.Message[Any] | None:
    async def run() -> pulsar.Message[Any] | None:
        try:
            return await asyncio.wait_for(consumer.receive_async(), 0.01)
        except TimeoutError:
            return None

    return asyncio.run(run())


WAYS = [receive, pulsar.Consumer.receive_nowait, receive_batch, receive_async]
SETTINGS: list[dict[str, Any]] = [
    {},
    {"unacked_messages_timeout_ms": 60_000},
    {"receiver_queue_size": 5},
]


@pytest.mark.parametrize("batched", [True, False], ids=["batch", "singles"])
@pytest.mark.parametrize("settings", SETTINGS, ids=["plain", "tracked", "short-queue"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_a_successor_acknowledged_comes(
    client: pulsar.Client, kind: str, way: Callable[..., Any], settings: dict[str, Any], batched: bool
):
    """The successor gets everything and acknowledges it; who was taken for dead gets what comes later."""
    consumer_type = pulsar.ConsumerType[kind]
    policy = pulsar.ConsumerBatchReceivePolicy(1, -1, 10)
    options = {**QUICK, **settings, "batch_receive_policy": policy}
    stopped = client.subscribe("topic", "sub", consumer_type, **options)
    send(client, ["topic"], batched=batched)
    assert [int(stopped.receive(1000).data()) for _ in range(3)] == [0, 1, 2]
    take_for_dead(stopped)
    successor = client.subscribe("topic", "sub", consumer_type, **QUICK)
    assert drain(successor) == list(range(COUNT))
    assert way(stopped) is None
    successor.close()
    assert way(stopped) is None
    client.create_producer("topic").send(b"99", partition_key="k")
    assert [int(message.data()) for message in (way(stopped), way(stopped)) if message] == [99]


@pytest.mark.parametrize("kind", ["Exclusive", "Failover", "Shared"])
def test_consumers_of_several_topics(client: pulsar.Client, kind: str):
    """Each topic's consumer looks for itself."""
    consumer_type = pulsar.ConsumerType[kind]
    stopped = client.subscribe(["one", "two"], "sub", consumer_type, **QUICK)
    send(client, ["one", "two"], batched=True)
    assert [int(stopped.receive(1000).data()) for _ in range(3)] == [0, 1, 2]
    take_for_dead(stopped)
    successor = client.subscribe(["one", "two"], "sub", consumer_type, **QUICK)
    assert sorted(drain(successor)) == sorted(2 * list(range(COUNT)))
    assert receive(stopped) is None and stopped.receive_nowait() is None
    successor.close()
    assert receive(stopped) is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_that_became_void_while_it_was_collected(client: pulsar.Client, kind: str, monkeypatch):
    """The process stops with half of it: it is not given to the application, and what comes later is."""
    consumer_type = pulsar.ConsumerType[kind]
    policy = pulsar.ConsumerBatchReceivePolicy(COUNT, -1, 50)
    stopped = client.subscribe("topic", "sub", consumer_type, **QUICK, batch_receive_policy=policy)
    send(client, ["topic"], batched=True)
    collect = BatchReceiver._collect

    def collect_and_stop(receiver: BatchReceiver, deadline: float | None) -> list[Any]:
        monkeypatch.undo()
        found = collect(receiver, deadline)
        assert len(found) == COUNT
        take_for_dead(stopped)
        successor = client.subscribe("topic", "sub", consumer_type, **QUICK)
        assert drain(successor) == list(range(COUNT))
        successor.close()
        client.create_producer("topic").send(b"99")
        return found

    monkeypatch.setattr(BatchReceiver, "_collect", collect_and_stop)
    assert [int(message.data()) for message in stopped.batch_receive()] == [99]


@pytest.mark.parametrize("kind", KINDS)
def test_a_listener(client: pulsar.Client, kind: str):
    """It is called for the first message, during which its process stops for long; then for what comes."""
    consumer_type, seen, done = pulsar.ConsumerType[kind], [], threading.Event()

    def on_message(consumer: pulsar.Consumer[Any], message: pulsar.Message[Any]) -> None:
        seen.append(int(message.data()))
        if len(seen) == 1:
            take_for_dead(consumer)
            successor = client.subscribe("topic", "sub", consumer_type, **QUICK)
            assert drain(successor) == list(range(COUNT))
            successor.close()
            client.create_producer("topic").send(b"99")
        else:
            done.set()

    send(client, ["topic"], batched=True)
    client.subscribe("topic", "sub", consumer_type, message_listener=on_message, **QUICK)
    assert done.wait(10)
    assert seen == [0, 99]


@pytest.mark.parametrize("kind", KINDS)
def test_coroutines(run: Callable[..., Any], client: pulsar.Client, kind: str):
    """The consumer of the asyncio client."""
    consumer_type = pulsar.ConsumerType[kind]

    async def main(other: Any) -> list[int]:
        stopped = await other.subscribe("topic", "sub", consumer_type=consumer_type, **QUICK)
        send(client, ["topic"], batched=True)
        found = [int((await stopped.receive()).data())]
        take_for_dead(stopped._blocking)
        successor = client.subscribe("topic", "sub", consumer_type, **QUICK)
        assert drain(successor) == list(range(COUNT))
        successor.close()
        client.create_producer("topic").send(b"99")
        return [*found, int((await stopped.receive()).data())]

    assert run(main) == [0, 99]


def test_what_others_do_without_moving_anything_voids_nothing(client: pulsar.Client):
    """Standbys that come and go: the active consumer of a Failover subscription goes on in its queue."""
    active = client.subscribe("topic", "sub", pulsar.ConsumerType.Failover, **QUICK)
    send(client, ["topic"], batched=True)
    found = []
    for _ in range(COUNT // 2):
        found.append(int(active.receive(1000).data()))
        standby = client.subscribe("topic", "sub", pulsar.ConsumerType.Failover, **QUICK)
        found.append(int(active.receive(1000).data()))
        standby.close()
    assert found == list(range(COUNT))
