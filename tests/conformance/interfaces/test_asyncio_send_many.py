"""Whole columns from coroutines: the loop goes on, and who is cancelled knows what was stored."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

from embeddedpulsar import MessageId, MessageTooBig, OperationNotSupported, ProducerInterceptor
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar.asyncio import Client
from tests.conformance.held import held, payloads

VALUES = [b"%d" % i for i in range(100)]


@contextmanager
def stopped_at(nth: int) -> Iterator[tuple[asyncio.Event, threading.Event]]:
    """The thread that stores the ``nth`` entry stops behind it: that it is there, and what lets it go."""
    loop, reached, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def stop() -> None:
        loop.call_soon_threadsafe(reached.set)
        go_on.wait(10)

    failpoints.set("append:tail_stored", stop, nth=nth)
    try:
        yield reached, go_on
    finally:
        go_on.set()
        failpoints.clear()


async def turn_of_the_loop(task: asyncio.Task[Any]) -> None:
    """Let everything run that is ready; the task must not be done by that."""
    await asyncio.wait([task], timeout=0.02)
    assert not task.done()


@pytest.mark.in_memory
def test_columns_are_stored_behind_what_was_sent(run):
    """In order, with ids that consumers see; `send` of the same loop goes first."""

    async def main(client: Client) -> None:
        producer = await client.create_producer("topic", batching_max_publish_delay_ms=600_000)
        first = asyncio.create_task(producer.send(b"first"))
        await asyncio.wait([first], timeout=0)
        sent = await producer.send_many(VALUES, partition_keys=["k"] * 100, batching_max_messages=30)
        assert (await first).entry_id() == 0
        assert (len(sent), sent.entries()) == (100, 4)
        reader = await client.create_reader("topic", MessageId.earliest)
        messages = [await reader.read_next() for _ in range(101)]
        assert [message.data() for message in messages] == [b"first", *VALUES]
        assert [message.message_id() for message in messages[1:]] == list(sent)
        assert messages[1].partition_key() == "k"

    run(main)


def test_arrow_columns(run):
    """A message for each row."""

    async def main(client: Client) -> None:
        producer = await client.create_producer("topic")
        table = pa.table({"text": ["tea", "cake"], "table": ["7", None]})
        sent = await producer.send_arrow(table, value="text", key="table")
        assert len(sent) == 2
        reader = await client.create_reader("topic", MessageId.earliest)
        messages = [await reader.read_next() for _ in range(2)]
        assert [(one.data(), one.partition_key()) for one in messages] == [(b"tea", "7"), (b"cake", "")]

    run(main)


def test_the_loop_goes_on_while_the_topic_is_locked(run):
    """Sends of another producer are answered meanwhile."""

    async def main(client: Client) -> None:
        producer = await client.create_producer("topic")
        other = await client.create_producer("other")
        with held(client._blocking):
            task = asyncio.create_task(producer.send_many(VALUES))
            await other.send(b"meanwhile")
            await turn_of_the_loop(task)
        assert len(await task) == 100

    run(main)


def test_who_is_cancelled_knows_what_was_stored(run):
    """The entry under way is the last; the rest can be sent then, without a loss or a double."""

    async def main(client: Client) -> None:
        producer = await client.create_producer("topic")
        with stopped_at(3) as (reached, go_on):
            task = asyncio.create_task(producer.send_many(VALUES, batching_max_messages=10))
            await reached.wait()
            task.cancel()
            await turn_of_the_loop(task)
            go_on.set()
            with pytest.raises(asyncio.CancelledError) as caught:
                await task
        stored = caught.value.stored  # type: ignore[attr-defined]
        assert list(stored.numbers()) == list(range(30))
        await producer.send_many(VALUES[30:])
        assert payloads(client._blocking) == VALUES

    run(main)


def test_who_is_cancelled_behind_the_last_entry(run):
    """Everything was stored, and the cancellation stands."""

    async def main(client: Client) -> None:
        producer = await client.create_producer("topic")
        with stopped_at(10) as (reached, go_on):
            task = asyncio.create_task(producer.send_many(VALUES, batching_max_messages=10))
            await reached.wait()
            task.cancel()
            go_on.set()
            with pytest.raises(asyncio.CancelledError) as caught:
                await task
        assert len(caught.value.stored) == 100  # type: ignore[attr-defined]
        assert payloads(client._blocking) == VALUES

    run(main)


def test_who_is_cancelled_before_the_first_entry(run):
    """Nothing is stored, whatever the values would have been."""

    async def main(client: Client) -> None:
        loop, reached, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

        def contents() -> Iterator[bytes]:
            loop.call_soon_threadsafe(reached.set)
            go_on.wait(10)
            yield from VALUES

        producer = await client.create_producer("topic")
        task = asyncio.create_task(producer.send_many(contents()))
        await reached.wait()
        task.cancel()
        await turn_of_the_loop(task)
        go_on.set()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        assert list(caught.value.stored) == []  # type: ignore[attr-defined]
        assert payloads(client._blocking) == []

    run(main)


def test_a_second_cancellation_waits_for_nothing(run):
    """The thread may hang for ever, in the application's iterator say: whoever insists gets away."""

    async def main(client: Client) -> None:
        producer = await client.create_producer("topic")
        with stopped_at(1) as (reached, _):
            task = asyncio.create_task(producer.send_many(VALUES))
            await reached.wait()
            task.cancel()
            await turn_of_the_loop(task)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    run(main)


def test_errors_tell_what_was_stored(run):
    """As those of the blocking producer."""

    async def main(client: Client) -> None:
        producer = await client.create_producer("topic")
        with pytest.raises(MessageTooBig, match="maxMessageSize") as caught:
            await producer.send_many([b"a", b"b", bytes(6 << 20)], batching_max_messages=1)
        assert list(caught.value.stored.numbers()) == [0, 1]  # type: ignore[attr-defined]
        with pytest.raises(ValueError, match="1 elements"):
            await producer.send_many(VALUES, partition_keys=["k"])
        await producer.close()
        seeing = await client.create_producer("topic", interceptors=[ProducerInterceptor()])
        with pytest.raises(OperationNotSupported, match="send_async"):
            await seeing.send_many(VALUES)

    run(main)
