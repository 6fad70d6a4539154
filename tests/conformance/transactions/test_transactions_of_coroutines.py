"""Transactions in an asyncio loop."""

from __future__ import annotations

import asyncio

import pytest

from embeddedpulsar import ConsumerType, InitialPosition, TransactionConflict, TransactionState
from embeddedpulsar.exceptions import InvalidTxnStatusError, TransactionHasOperationFailed
from tests.support.held_elsewhere import held_elsewhere


async def taken(consumer, count):
    """So many messages, and then none."""
    found = [(await asyncio.wait_for(consumer.receive(), 10)).data() for _ in range(count)]
    assert consumer._blocking.receive_nowait() is None
    return found


@pytest.mark.parametrize("is_committed", [True, False])
def test_consume_transform_produce(run, is_committed):
    """Sends, whole columns and acknowledgements, all or none."""

    async def main(client):
        orders, bills = [await client.create_producer(name) for name in ("orders", "bills")]
        consumer = await client.subscribe("orders", "sub", ConsumerType.Shared)
        other = await client.subscribe("bills", "sub")
        await asyncio.gather(*(orders.send(b"%d" % number) for number in range(3)))
        messages = [await consumer.receive() for _ in range(3)]
        try:
            async with client.transaction() as txn:
                await asyncio.gather(*(bills.send(m.data(), txn=txn) for m in messages))
                await bills.send_many([b"a", b"b"], txn=txn)
                await consumer.acknowledge(messages[0], txn=txn)
                await consumer.acknowledge(messages[1:], txn=txn)
                assert await taken(other, 0) == []
                if not is_committed:
                    raise KeyError
        except KeyError:
            pass
        assert txn.state is (TransactionState.COMMITTED if is_committed else TransactionState.ABORTED)
        assert await taken(other, 5 * is_committed) == [b"0", b"1", b"2", b"a", b"b"][: 5 * is_committed]
        assert sorted(await taken(consumer, 3 * (not is_committed))) == [b"0", b"1", b"2"][3 * is_committed :]

    run(main)


def test_a_cancellation_aborts(run):
    """As an exception does."""

    async def main(client):
        producer, begun = await client.create_producer("topic"), []
        is_sent = asyncio.Event()

        async def work():
            async with client.transaction() as txn:
                begun.append(txn)
                await producer.send(b"a", txn=txn)
                is_sent.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await is_sent.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert begun[0].state is TransactionState.ABORTED

    run(main)


def test_errors(run):
    """They are those of the blocking client."""

    async def main(client):
        producer = await client.create_producer("topic")
        consumer = await client.subscribe("topic", "sub", initial_position=InitialPosition.Earliest)
        with pytest.raises(InvalidTxnStatusError, match="async with"):
            await producer.send(b"a", txn=client.transaction())
        txn = await client.new_transaction()
        with pytest.raises(ValueError, match="txn"):
            await producer.send(b"a", txn="x")
        await producer.send(b"a")
        message = await consumer.receive()
        await consumer.acknowledge_cumulative(message, txn=txn)
        with pytest.raises(TransactionConflict):
            await consumer.acknowledge_cumulative(message, txn=txn)
        with pytest.raises(TransactionHasOperationFailed):
            await txn.commit()
        with pytest.raises(InvalidTxnStatusError):
            await producer.send(b"b", txn=txn)
        with pytest.raises(ValueError, match="timeout"):
            await client.new_transaction(0)

    run(main)


def test_the_loop_goes_on_while_a_lock_is_held(run, store_path):
    """Beginning one that has to wait is left to a thread."""

    async def main(client):
        producer = await client.create_producer("topic")
        await (await client.new_transaction()).abort()
        txn = await client.new_transaction()
        await producer.send(b"a", txn=await client.new_transaction())
        with held_elsewhere(store_path / "txn" / "lock"):
            sending = asyncio.create_task(producer.send(b"b", txn=txn))
            await asyncio.wait([sending], timeout=0.05)
            assert not sending.done()
        await asyncio.wait_for(sending, 10)
        await txn.commit()

    run(main)


def test_the_loop_of_transactions(run):
    """Each pass is one transaction."""

    async def main(client):
        orders = await client.create_producer("orders")
        consumer = await client.subscribe("orders", "sub", ConsumerType.Shared)
        await orders.send_many([b"%d" % number for number in range(5)])
        passes = []
        async for messages, txn in consumer.transactions(2):
            passes.append([message.data() for message in messages])
            if sum(map(len, passes)) == 5:
                await txn.commit()
                break
        assert passes == [[b"0", b"1"], [b"2", b"3"], [b"4"]]
        assert await taken(consumer, 0) == []

    run(main)
