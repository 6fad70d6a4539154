"""What ends the wait for exclusive access besides being granted it, and that nothing of it stays behind."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from embeddedpulsar import Admin, AlreadyClosed, Client, ProducerAccessMode
from embeddedpulsar.asyncio import Client as AsyncClient
from tests.support.clients import wait_until

Exclusive = ProducerAccessMode.Exclusive
Waiting = ProducerAccessMode.WaitForExclusive


def queue(client: Client, topic: str = "topic") -> list[str]:
    """Names of those who stand in the queue of the topic."""
    producers = client._core.store.use_topic(topic).topic._producers.get()
    producers.names()
    return [one.name for one in producers._table.waiting.values()]


def refused_when_closed(client: Client, topic: str, on_waiting) -> BaseException:
    """What a waiting thread gets from its client when that is closed as soon as ``on_waiting`` holds."""
    outcome: list[BaseException] = []

    def wait() -> None:
        try:
            client.create_producer(topic, "w", access_mode=Waiting)
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(on_waiting)
    client.close()
    thread.join(10)
    assert not thread.is_alive()
    return outcome[0]


def test_closing_the_client_ends_the_wait_though_another_keeps_the_store(tmp_path: Path):
    """The store stays open with its other client; who waited leaves the queue, and the name is free."""
    with Client(tmp_path) as staying:
        holder = staying.create_producer("topic", access_mode=Exclusive)
        error = refused_when_closed(Client(tmp_path), "topic", lambda: queue(staying) == ["w"])
        assert isinstance(error, AlreadyClosed)
        assert "the client is closed" in str(error)
        assert queue(staying) == []
        holder.close()
        staying.create_producer("topic", "w", access_mode=Exclusive).send(b"free")


def test_closing_the_only_client_ends_the_wait(tmp_path: Path):
    """As above, with the store closed under the waiting thread."""
    client = Client(tmp_path)
    holder = client.create_producer("topic", access_mode=Exclusive)
    assert isinstance(refused_when_closed(client, "topic", lambda: queue(client) == ["w"]), AlreadyClosed)
    assert not holder.is_connected()
    with Client(tmp_path) as again:
        again.create_producer("topic", "w", access_mode=Exclusive).send(b"free")


def test_closing_the_client_ends_the_wait_for_a_partition(tmp_path: Path):
    """Partitions that were claimed before are given back."""
    with Admin(tmp_path) as admin:
        admin.topics().create_partitioned_topic("parts", 2)
    with Client(tmp_path) as staying:
        second = "parts-partition-1"
        holder = staying.create_producer(second, access_mode=Exclusive)
        error = refused_when_closed(Client(tmp_path), "parts", lambda: queue(staying, second) == ["w"])
        assert isinstance(error, AlreadyClosed)
        holder.close()
        with staying.create_producer("parts", "w", access_mode=Exclusive) as producer:
            producer.send(b"free")


def test_a_producer_that_comes_when_its_client_is_closed_is_none(tmp_path: Path, monkeypatch):
    """The client did not see it when it closed its producers."""
    with Client(tmp_path) as staying:
        client = Client(tmp_path)
        add = client._core.add_publisher

        def close_first(publisher) -> None:
            client.close()
            add(publisher)

        monkeypatch.setattr(client._core, "add_publisher", close_first)
        with pytest.raises(AlreadyClosed):
            client.create_producer("topic", "late")
        staying.create_producer("topic", "late").send(b"free")


def test_a_cancelled_coroutine_leaves_the_queue(tmp_path: Path):
    """Its thread does not wait on for a producer that nobody wants."""

    async def main(staying: Client) -> None:
        client = AsyncClient(tmp_path)
        task = asyncio.create_task(client.create_producer("topic", "w", access_mode=Waiting))
        await asyncio.to_thread(wait_until, lambda: queue(staying) == ["w"])
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(wait_until, lambda: not queue(staying))
        await client.close()

    with Client(tmp_path) as staying:
        holder = staying.create_producer("topic", access_mode=Exclusive)
        asyncio.run(asyncio.wait_for(main(staying), 10))
        holder.send(b"holds on")


def test_closing_a_client_of_coroutines_ends_the_wait(tmp_path: Path):
    """Whoever awaits the producer is told."""

    async def main(staying: Client) -> None:
        client = AsyncClient(tmp_path)
        task = asyncio.create_task(client.create_producer("topic", "w", access_mode=Waiting))
        await asyncio.to_thread(wait_until, lambda: queue(staying) == ["w"])
        await client.close()
        with pytest.raises(AlreadyClosed):
            await task

    with Client(tmp_path) as staying:
        holder = staying.create_producer("topic", access_mode=Exclusive)
        asyncio.run(asyncio.wait_for(main(staying), 10))
        holder.send(b"holds on")
