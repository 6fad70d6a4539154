"""`embeddedpulsar.asyncio`: the client of coroutines."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

import embeddedpulsar as pulsar
from embeddedpulsar import ConsumerType, InitialPosition, MessageId, Result
from embeddedpulsar._engine.platform import threads
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar.asyncio import Client, Consumer, Producer, PulsarException

EARLIEST = InitialPosition.Earliest
WITHIN_S = 10


async def receive(consumer: Consumer[Any], count: int) -> list[bytes]:
    """Payloads of the next messages."""
    return [(await asyncio.wait_for(consumer.receive(), WITHIN_S)).data() for _ in range(count)]


async def one_step() -> None:
    """Let all tasks that are ready to run begin."""
    loop = asyncio.get_running_loop()
    stepped = loop.create_future()
    loop.call_soon(stepped.set_result, None)
    await stepped


async def error_of(awaitable: Awaitable[Any]) -> Result:
    """The result of the error it fails with, whose text is that of `pulsar.asyncio`."""
    with pytest.raises(PulsarException) as caught:
        await awaitable
    result = caught.value.error()
    assert str(caught.value).startswith(f"{result.value} {result.name}: ")
    assert type(caught.value) is not PulsarException
    return result


def test_sends_that_are_awaited_together_make_one_batch(run):
    """Batching is on by default; ids, sequence ids and order are those of the calls."""

    async def main(client: Client) -> None:
        producer = await client.create_producer("topic", producer_name="mine")
        assert (producer.topic(), producer.producer_name()) == ("persistent://public/default/topic", "mine")
        ids = await asyncio.gather(*(producer.send(b"%d" % i) for i in range(5)))
        assert [one.batch_index() for one in ids] == [0, 1, 2, 3, 4]
        assert len({(one.ledger_id(), one.entry_id()) for one in ids}) == 1
        assert producer.last_sequence_id() == 4
        consumer = await client.subscribe("topic", "sub", initial_position=EARLIEST)
        assert await receive(consumer, 5) == [b"0", b"1", b"2", b"3", b"4"]

    run(main)


def test_keys_and_properties_travel(run):
    """The options of a message are those of the blocking producer."""

    async def main(client: Client) -> None:
        consumer = await client.subscribe("topic", "sub")
        producer = await client.create_producer("topic", schema=pulsar.StringSchema())
        await producer.send("text", {"a": "1"}, "key", "order", event_timestamp=5)
        message = await consumer.receive()
        assert message.data() == b"text"
        assert (message.partition_key(), message.ordering_key()) == ("key", "order")
        assert (message.properties(), message.event_timestamp()) == ({"a": "1"}, 5)

    run(main)


def test_flush_ends_the_sends_that_wait(run):
    """A batch is stored by `flush`, and its sends are done when that returns."""

    async def main(client: Client) -> None:
        producer = await client.create_producer("topic", batching_max_publish_delay_ms=600_000)
        tasks = [asyncio.create_task(producer.send(b"%d" % i)) for i in range(2)]
        await one_step()
        await producer.flush()
        done, _ = await asyncio.wait(tasks, timeout=0)
        assert len(done) == 2
        assert [task.result().batch_index() for task in tasks] == [0, 1]

    run(main)


def test_errors_carry_their_result(run):
    """`PulsarException.error()` is the result; the text says what happened and what to do."""

    async def main(client: Client) -> None:
        assert await error_of(client.create_producer("no/such/topic")) == Result.TopicNotFound
        producer = await client.create_producer("topic")
        with pytest.raises(pulsar.MessageTooBig, match="maxMessageSize"):
            await producer.send(bytes(10 << 20))
        assert await error_of(producer.send(bytes(10 << 20))) == Result.MessageTooBig
        with pytest.raises(ValueError, match="partition_key"):
            await producer.send(b"", partition_key=5)  # type: ignore[arg-type]
        assert producer.is_connected()
        await producer.close()
        assert not producer.is_connected()
        assert await error_of(producer.close()) == Result.AlreadyClosed
        assert await error_of(producer.send(b"")) == Result.AlreadyClosed
        consumer = await client.subscribe("topic", "sub", ConsumerType.Shared)
        with pytest.raises(pulsar.CumulativeAcknowledgementNotAllowedError):
            await consumer.acknowledge_cumulative(MessageId.earliest)
        cumulative = consumer.acknowledge_cumulative(MessageId.earliest)
        assert await error_of(cumulative) == Result.CumulativeAcknowledgementNotAllowedError
        waiting = asyncio.create_task(error_of(consumer.receive()))
        await consumer.close()
        assert await waiting == Result.AlreadyClosed
        assert await error_of(consumer.acknowledge(MessageId.earliest)) == Result.AlreadyClosed
        with pytest.raises(ValueError, match="is_pattern_topic"):
            await client.subscribe(["a", "b"], "sub", is_pattern_topic=True)

    run(main)


def test_errors_come_through_interceptors_with_their_text(run):
    """A coroutine gets the same error with interceptors as without."""

    async def main(client: Client) -> None:
        producer = await client.create_producer("topic", interceptors=[pulsar.ProducerInterceptor()])
        with pytest.raises(pulsar.MessageTooBig, match="maxMessageSize"):
            await producer.send(bytes(10 << 20))
        await producer.send(b"small")

    run(main)


def test_close_fails_the_sends_that_wait(run):
    """As in Pulsar, closing does not flush: what another process keeps from being stored is given up."""

    async def main(client: Client) -> None:
        producer = await client.create_producer("topic", batching_max_publish_delay_ms=600_000)
        other = FileLock(client._blocking._core.store.use_topic("topic").topic.ledger.lock.path)
        try:
            other.acquire()
            waiting = asyncio.create_task(producer.send(b"never"))
            await asyncio.wait([waiting], timeout=0.01)
            await producer.close()
        finally:
            other.release()
            other.close()
        assert await error_of(waiting) == Result.AlreadyClosed

    run(main)


def test_shutdown_ends_what_waits(run):
    """Everything of the client fails with AlreadyClosed, and a receive that waits does."""

    async def main(client: Client) -> None:
        producer = await client.create_producer("topic")
        consumer = await client.subscribe("topic", "sub")
        waiting = asyncio.create_task(consumer.receive())
        await asyncio.wait([waiting], timeout=0.01)
        client.shutdown()
        assert await error_of(waiting) == Result.AlreadyClosed
        assert await error_of(producer.send(b"")) == Result.AlreadyClosed
        assert await error_of(client.create_producer("topic")) == Result.AlreadyClosed

    run(main)


@pytest.mark.in_memory
@pytest.mark.parametrize("options", [{}, {"ack_receipt_enabled": True}, {"ack_group_time_ms": 0}], ids=str)
def test_acknowledged_messages_do_not_come_back(run, options: dict[str, Any]):
    """One by one and up to a message, grouped, at once and with receipt."""

    async def main(client: Client) -> None:
        producer = await client.create_producer("topic", batching_enabled=False)
        shared = await client.subscribe("topic", "one by one", ConsumerType.Shared, **options)
        exclusive = await client.subscribe("topic", "up to", **options)
        for i in range(5):
            await producer.send(b"%d" % i)
        messages = [await shared.receive() for _ in range(5)]
        for i in (0, 2, 4):
            await shared.acknowledge(messages[i])
        for _ in range(3):
            last = await exclusive.receive()
        await exclusive.acknowledge_cumulative(last.message_id())
        await shared.close()
        await exclusive.close()
        shared = await client.subscribe("topic", "one by one", ConsumerType.Shared)
        assert await receive(shared, 2) == [b"1", b"3"]
        assert await receive(await client.subscribe("topic", "up to"), 2) == [b"3", b"4"]

    run(main)


def test_negative_acknowledgement_and_redelivery(run):
    """A message that was given back comes again; so does everything when asked for."""

    async def main(client: Client) -> None:
        consumer = await client.subscribe(
            "topic", "sub", ConsumerType.Shared, negative_ack_redelivery_delay_ms=100
        )
        producer = await client.create_producer("topic")
        await producer.send(b"again")
        for count in range(2):
            message = await asyncio.wait_for(consumer.receive(), WITHIN_S)
            assert message.redelivery_count() == count
            await consumer.negative_acknowledge(message)
        message = await asyncio.wait_for(consumer.receive(), WITHIN_S)
        consumer.redeliver_unacknowledged_messages()
        assert (await asyncio.wait_for(consumer.receive(), WITHIN_S)).redelivery_count() == 3

    run(main)


def test_seek_last_id_and_unsubscribe(run):
    """The rest of what a consumer can do."""

    async def main(client: Client) -> None:
        consumer = await client.subscribe("topic", "sub", consumer_name="me")
        assert (consumer.topic(), consumer.subscription_name(), consumer.consumer_name()) == (
            "persistent://public/default/topic",
            "sub",
            "me",
        )
        producer = await client.create_producer("topic", batching_enabled=False)
        ids = [await producer.send(b"%d" % i) for i in range(3)]
        assert await consumer.get_last_message_id() == ids[-1]
        assert await receive(consumer, 3) == [b"0", b"1", b"2"]
        await consumer.seek(ids[0])
        assert await receive(consumer, 2) == [b"1", b"2"]
        await consumer.unsubscribe()
        assert not consumer.is_connected()
        for _ in range(2):
            await consumer.close()  # nothing is left to do, and that is no error

    run(main)


def test_readers(run):
    """A reader awaits what comes, says whether there is more, and seeks."""

    async def main(client: Client) -> None:
        producer = await client.create_producer("topic", batching_enabled=False)
        reader = await client.create_reader("topic", MessageId.latest)
        assert not await reader.has_message_available()
        waiting = asyncio.create_task(reader.read_next())
        await asyncio.wait([waiting], timeout=0.01)
        ids = [await producer.send(b"%d" % i) for i in range(3)]
        assert (await asyncio.wait_for(waiting, WITHIN_S)).data() == b"0"
        assert await reader.has_message_available()
        await reader.seek(ids[1])
        assert (await reader.read_next()).data() == b"2"
        assert (reader.topic(), reader.is_connected()) == ("persistent://public/default/topic", True)
        await reader.close()
        assert not reader.is_connected()
        assert await error_of(reader.read_next()) == Result.AlreadyClosed

    run(main)


def test_several_topics(run):
    """One consumer of two topics awaits both."""

    async def main(client: Client) -> None:
        names = ["first", "second"]
        producers = [await client.create_producer(name) for name in names]
        consumer = await client.subscribe(names, "sub")
        waiting = asyncio.create_task(receive(consumer, 2))
        for name, producer in zip(names, producers, strict=True):
            await producer.send(name.encode())
        assert sorted(await waiting) == [b"first", b"second"]
        assert await client.get_topic_partitions("first") == ["persistent://public/default/first"]

    run(main)


def test_a_full_queue_holds_up_the_sender_but_not_the_loop(run):
    """With ``block_if_queue_full`` more sends than fit wait their turn, in order; the loop goes on."""

    async def main(client: Client) -> None:
        producer = await client.create_producer("topic", max_pending_messages=5, block_if_queue_full=True)
        consumer = await client.subscribe("topic", "sub")
        sends = asyncio.gather(*(producer.send(b"%d" % i) for i in range(23)))
        assert await receive(consumer, 23) == [b"%d" % i for i in range(23)]
        assert len(set(await sends)) == 23

    run(main)


def test_a_producer_goes_from_loop_to_loop(store_url: Path | str):
    """One loop after the other may use it, and what waits for room in one is no concern of the next."""
    loops = [asyncio.new_event_loop(), asyncio.new_event_loop()]
    client = Client(store_url)
    producer = loops[0].run_until_complete(
        client.create_producer("topic", max_pending_messages=1, block_if_queue_full=True)
    )

    async def main() -> int:
        return len(await asyncio.gather(*(producer.send(b"x") for _ in range(3))))

    try:
        assert [loop.run_until_complete(main()) for loop in loops] == [3, 3]
    finally:
        client.shutdown()
        for loop in loops:
            loop.close()


def test_a_cancelled_send_disturbs_no_other(run):
    """Its message may be stored all the same; the sends beside it get their own ids."""

    async def main(client: Client) -> None:
        producer = await client.create_producer("topic", batching_max_publish_delay_ms=600_000)
        tasks = [asyncio.create_task(producer.send(b"%d" % i)) for i in range(3)]
        await one_step()
        tasks[1].cancel()
        await producer.flush()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(done[1], asyncio.CancelledError)
        assert [one.batch_index() for one in (done[0], done[2])] == [0, 2]

    run(main)


@pytest.mark.parametrize("what", ["consumer", "producer", "reader"])
def test_what_is_made_for_a_cancelled_coroutine_is_closed(run, call_threads, what: str):
    """Nobody would know of it, and it would hold messages, or the topic."""

    async def main(client: Client) -> None:
        for _ in range(20):
            task = asyncio.create_task(making(client, what))
            await asyncio.wait([task], timeout=0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await ended(call_threads)  # also of those that had not begun
        core = client._blocking._core
        assert not core._consumers
        assert not core._publishers
        if what != "reader":
            await asyncio.wait_for(making(client, what), WITHIN_S)

    run(main)


def test_a_call_that_has_begun_when_it_is_cancelled_is_undone_by_its_thread(run, call_threads, monkeypatch):
    """The cancellation waits for that: the next call finds the subscription free."""
    has_begun, is_cancelled = threads.Event(), threads.Event()
    subscribe = pulsar.Client.subscribe

    def held(*arguments: Any, **options: Any) -> Any:
        has_begun.set()
        assert is_cancelled.wait(WITHIN_S)
        return subscribe(*arguments, **options)

    monkeypatch.setattr(pulsar.Client, "subscribe", held)

    async def main(client: Client) -> None:
        task = asyncio.create_task(making(client, "consumer"))
        await asyncio.to_thread(has_begun.wait, WITHIN_S)
        task.cancel()
        await one_step()
        is_cancelled.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(call_threads) == 1
        await making(client, "consumer")

    run(main)


def test_a_call_that_has_not_begun_when_it_is_cancelled_makes_nothing(run, call_threads, monkeypatch):
    """Its thread starts late: the next call, on the same subscription, meets no consumer of it."""
    is_over = threads.Event()
    start = threads._start_from_inside

    def start_late(thread: threads.Daemon) -> None:
        if thread is call_threads[0]:
            assert is_over.wait(WITHIN_S)
        start(thread)

    monkeypatch.setattr(threads, "_start_from_inside", start_late)

    async def main(client: Client) -> None:
        task = asyncio.create_task(making(client, "consumer"))
        await one_step()
        assert len(call_threads) == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        is_over.set()
        await ended(call_threads)
        assert len(call_threads) == 1, "there was something to undo"
        await making(client, "consumer")

    run(main)


def making(client: Client, what: str) -> Any:
    """A coroutine that makes what nobody else may have beside it, or a reader."""
    if what == "consumer":
        return client.subscribe("topic", "sub")
    if what == "producer":
        return client.create_producer("topic", access_mode=pulsar.ProducerAccessMode.WaitForExclusive)
    return client.create_reader("topic", MessageId.earliest)


@pytest.fixture
def call_threads(monkeypatch) -> list[threads.Daemon]:
    """The threads on which something was made or undone. `threading` lists them only once they run."""
    started: list[threads.Daemon] = []
    start = threads._start

    def recorded(thread: threads.Daemon) -> None:
        if thread.name.endswith(("blocking-call", "undo")):
            started.append(thread)
        start(thread)

    monkeypatch.setattr(threads, "_start", recorded)
    return started


async def ended(call_threads: list[threads.Daemon]) -> None:
    """Wait until all calls have ended, and what was made for nobody is undone."""
    for thread in call_threads:  # grows: the loop has started what undoes a call when its end is seen here
        await asyncio.to_thread(thread.join, WITHIN_S)
        assert thread.is_over


def test_async_with_and_async_for(run):
    """`async with` flushes and closes a producer and closes the rest; `async for` ends with the consumer."""

    async def main(client: Client) -> None:
        async with await client.create_producer("topic", batching_max_publish_delay_ms=600_000) as producer:
            sends = [asyncio.create_task(producer.send(b"%d" % i)) for i in range(3)]
            await asyncio.wait(sends, timeout=0.01)
        assert all(send.done() for send in sends)
        assert not producer.is_connected()
        got = []
        async with await client.subscribe("topic", "sub", initial_position=EARLIEST) as consumer:
            async for message in consumer:
                got.append(message.data())
                if len(got) == 3:
                    await consumer.close()
        assert got == [b"0", b"1", b"2"]
        async with await client.create_reader("topic", MessageId.earliest) as reader:
            async for message in reader:
                assert message.data() == b"0"
                break
        assert not reader.is_connected()

    run(main)


def test_a_client_closes_and_nothing_is_left(tmp_path: Path, call_threads):
    """`async with` on the client; its threads end, and a second close says AlreadyClosed."""

    async def main() -> None:
        async with Client(tmp_path) as client:
            producer = await client.create_producer("topic")
            assert repr(client).startswith("<asyncio Client ")
            assert repr(producer).startswith("<asyncio Producer ")
            await producer.send(b"")
        assert await error_of(client.close()) == Result.AlreadyClosed
        await ended(call_threads)
        assert len(call_threads) == 3

    asyncio.run(main())
    gc.collect()


def test_two_loops_use_one_store(tmp_path: Path):
    """A loop in another thread sends, this one receives."""
    ready = threads.Event()

    async def sender() -> None:
        async with Client(tmp_path) as client:
            producer: Producer[bytes] = await client.create_producer("topic")
            ready.wait(WITHIN_S)
            await asyncio.gather(*(producer.send(b"%d" % i) for i in range(100)))

    async def receiver() -> list[bytes]:
        async with Client(tmp_path) as client:
            consumer = await client.subscribe("topic", "sub")
            ready.set()
            return await receive(consumer, 100)

    thread = threads.Thread(lambda: asyncio.run(sender()), "sender")
    thread.start()
    assert asyncio.run(receiver()) == [b"%d" % i for i in range(100)]
    thread.join()
