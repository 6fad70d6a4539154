"""`Admin.transactions`: what an operator sees of transactions, and their ends by one."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from embeddedpulsar import Admin, Client, ConsumerType, MessageId
from embeddedpulsar.admin import transactions as calls
from embeddedpulsar.exceptions import (
    InvalidTxnStatusError,
    NotAllowedError,
    ReadOnlyStoreError,
    SubscriptionNotFound,
    TopicNotFound,
    TransactionConflict,
    TransactionCoordinatorNotFoundError,
    TransactionNotFound,
)
from embeddedpulsar.testing import ManualClock
from embeddedpulsar.testing.trial_store import assert_clean

ORDERS, BILLS = "persistent://public/default/orders", "persistent://public/default/bills"


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "store"
    assert_clean(tmp_path / "store")


def test_a_store_without_transactions(root: Path) -> None:
    """Looking makes none of the files, and says that there is nothing."""
    with Client(root) as client, Admin(root) as admin:
        client.create_producer("orders").send(b"plain")
        stats = admin.transactions().get_coordinator_stats()
        assert stats == {0: calls.TransactionCoordinatorStats("Ready", 0, 0, 0)}
        assert admin.transactions().get_slow_transactions(0) == {}
        assert admin.transactions().get_prepared_transactions() == []
        buffer = admin.transactions().get_transaction_buffer_stats("orders")
        last = client.create_reader("orders", MessageId.earliest).read_next().message_id()
        assert buffer.max_read_position == f"{last.ledger_id()}:{last.entry_id()}"
        assert (buffer.ongoing_txn_size, buffer.last_snapshot_timestamps) == (0, 0)
        client.subscribe("orders", "s").close()
        assert admin.transactions().get_pending_ack_stats("orders", "s").state == "None"
        for end in (admin.transactions().abort_transaction, admin.transactions().commit_prepared_transaction):
            with pytest.raises(TransactionNotFound):
                end("(0,1)")
        assert not (root / "txn").exists()


def test_one_that_is_forgotten_is_found_and_aborted(root: Path) -> None:
    """What it stored is gone, what it acknowledged comes again, at once and to a consumer that waits."""
    with Client(root) as client, Admin(root) as admin:
        orders, bills = client.create_producer("orders"), client.create_producer("bills")
        consumer = client.subscribe("orders", "shipping", ConsumerType.Shared)
        orders.send(b"one")
        txn = client.new_transaction(label="forgotten")
        bills.send(b"bill", txn=txn)
        consumer.acknowledge(consumer.receive(), txn=txn)
        (found,) = admin.transactions().get_slow_transactions(0).values()
        assert (found.txn_id, found.label, found.status) == (str(txn.id), "forgotten", "OPEN")
        assert list(found.produced_partitions) == [BILLS] and found.is_alive
        assert list(found.acked_partitions[ORDERS]) == ["shipping"]
        assert 0 < found.timeout_at - found.open_timestamp <= 60_002  # of two clocks
        again = admin.transactions().get_transaction_metadata(txn.id)
        assert abs(again.timeout_at - found.timeout_at) <= 2  # of two clocks, read one after the other
        assert again._replace(timeout_at=0) == found._replace(timeout_at=0)
        admin.transactions().abort_transaction(txn.id)
        assert consumer.receive(2000).data() == b"one"
        assert txn.state.name == "ABORTED"
        admin.transactions().abort_transaction(txn.id)  # nothing is left to be done
        assert admin.transactions().get_slow_transactions(0) == {}
        assert admin.transactions().get_transaction_metadata(txn.id).status == "ABORTED"
        with pytest.raises(TransactionNotFound):
            admin.transactions().get_transaction_in_pending_ack_stats(txn.id, "orders", "shipping")


def test_one_that_ended(root: Path) -> None:
    """It is known for some time, and cannot be ended otherwise."""
    with Client(root) as client, Admin(root) as admin:
        producer, consumer = client.create_producer("orders"), client.subscribe("orders", "s")
        producer.send(b"plain")
        with client.transaction() as txn:
            first = producer.send(b"one", txn=txn)
            producer.send(b"two", txn=txn)
            consumer.acknowledge(consumer.receive(), txn=txn)
        found = admin.transactions().get_transaction_metadata(str(txn.id))
        place = f"{first.ledger_id()}:{first.entry_id()}"
        assert found.status == "COMMITTED"
        assert found.produced_partitions == {ORDERS: calls.TransactionInBufferStats(place, False)}
        assert list(found.acked_partitions[ORDERS]) == ["s"]
        in_buffer = admin.transactions().get_transaction_in_buffer_stats(txn.id, "orders")
        assert in_buffer == calls.TransactionInBufferStats(place, False)
        with pytest.raises(InvalidTxnStatusError, match="committed"):
            admin.transactions().abort_transaction(txn.id)
        client.create_producer("bills").send(b"x")
        with pytest.raises(TransactionNotFound, match="stored nothing"):
            admin.transactions().get_transaction_in_buffer_stats(txn.id, "bills")
        pending = admin.transactions().get_pending_ack_stats("orders", "s", low_water_marks=True)
        assert (pending.state, pending.ongoing_txn_size, pending.low_water_marks) == ("Ready", 0, {0: 1})


def test_prepared_ones(root: Path) -> None:
    """Listed with what they did; ended by an operator in the place of their program."""
    with Client(root) as client, Admin(root) as admin:
        orders, consumer = client.create_producer("orders"), client.subscribe("orders", "s")
        orders.send(b"plain")
        first, second = client.new_transaction(), client.new_transaction()
        orders.send(b"one", txn=first)
        consumer.acknowledge(consumer.receive(), txn=first)
        orders.send(b"two", txn=second)
        first.prepare("one", deadline_ms=1 << 42)
        second.prepare("two")
        listed = admin.transactions().get_prepared_transactions()
        assert [each.label for each in listed] == ["one", "two"]
        assert listed[0].produced_partitions == {ORDERS: 1} and listed[0].acked_partitions == {ORDERS: ("s",)}
        assert (listed[0].timeout_at, listed[1].timeout_at) == (1 << 42, 0)
        found = admin.transactions().get_transaction_metadata(first.id)
        assert (found.status, found.label, found.pid, found.is_alive) == ("PREPARED", "one", 0, None)
        admin.transactions().commit_prepared_transaction(first.id)
        admin.transactions().abort_transaction(second.id)
        assert admin.transactions().get_prepared_transactions() == []
        with pytest.raises(TransactionNotFound, match="is prepared"):
            admin.transactions().commit_prepared_transaction(first.id)
        stats = admin.transactions().get_coordinator_stats_by_id(0)
        assert (stats.committed_txn_count, stats.aborted_txn_count, stats.ongoing_txn_size) == (1, 1, 0)


def test_prepared_ones_after_a_restart_of_the_machine(root: Path, tmp_path: Path) -> None:
    """In a copy no control word is true: what is prepared is in the journal, with what it did."""
    with Client(root) as client:
        txn = client.new_transaction()
        client.create_producer("orders").send(b"one", txn=txn)
        txn.prepare("one")
    copy = tmp_path / "copy"
    shutil.copytree(root, copy)
    with Admin(copy, read_only=True) as admin:
        (waiting,) = admin.transactions().get_prepared_transactions()
        assert waiting.produced_partitions == {ORDERS: 1}
        assert admin.transactions().get_transaction_metadata(txn.id).status == "PREPARED"
        assert admin.transactions().get_coordinator_stats_by_id(0).ongoing_txn_size == 1
        with pytest.raises(ReadOnlyStoreError):
            admin.transactions().abort_transaction(txn.id)
    with Admin(copy) as admin:
        admin.transactions().commit_prepared_transaction(waiting.txn_id)
    assert_clean(copy)


def test_one_whose_time_is_up(root: Path) -> None:
    """Whoever looks next and may write aborts it: so it is shown."""
    clock = ManualClock()
    with clock, Client(root) as client, Admin(root) as admin:
        txn = client.new_transaction(5000)
        client.create_producer("orders").send(b"one", txn=txn)
        clock.advance(4)
        (found,) = admin.transactions().get_slow_transactions(3000).values()
        assert found.status == "OPEN"
        assert admin.transactions().get_slow_transactions(5000) == {}


@pytest.mark.parametrize("batch_index", [None, 1])
def test_positions_in_a_subscription(root: Path, batch_index: int | None) -> None:
    """Of entries, and of messages of batches."""
    with Client(root) as client, Admin(root) as admin:
        producer = client.create_producer("orders", batching_enabled=True, batching_max_publish_delay_ms=1000)
        consumer = client.subscribe("orders", "s", ConsumerType.Shared)
        for number in range(6):
            producer.send_async(b"%d" % number, None)
            if number % 2:
                producer.flush()
        messages = [consumer.receive(2000) for _ in range(6)]
        ids = [(message.message_id().ledger_id(), message.message_id().entry_id()) for message in messages]
        assert ids[0] == ids[1] != ids[2] == ids[3]
        consumer.acknowledge(messages[4])
        consumer.acknowledge(messages[5])
        txn = client.new_transaction()
        consumer.acknowledge(messages[1], txn=txn)
        with pytest.raises(TransactionConflict):
            consumer.acknowledge(messages[1], txn=client.new_transaction())

        def state(place: tuple[int, int], index: int | None = batch_index) -> str:
            got = admin.transactions().get_position_stats_in_pending_ack("orders", "s", *place, index)
            return got.state

        assert state(ids[0]) == "PendingAck" and state(ids[0], 0) == "NotInPendingAck"
        assert state(ids[2]) == "NotInPendingAck"
        assert state((ids[0][0], 99)) == state((ids[0][0] + 99, 0)) == "InvalidPosition"
        consumer.close()  # writes what it has acknowledged
        assert state(ids[4]) == "MarkDelete"
        pending = admin.transactions().get_pending_ack_stats("orders", "s")
        assert pending.transactions[str(txn.id)].batches == 1
        txn.abort()


def test_cumulative_acknowledgements(root: Path) -> None:
    """Everything up to one is pending."""
    with Client(root) as client, Admin(root) as admin:
        producer, consumer = client.create_producer("orders"), client.subscribe("orders", "s")
        ids = [producer.send(b"%d" % number) for number in range(3)]
        for _ in range(2):
            last = consumer.receive()
        txn = client.new_transaction()
        consumer.acknowledge_cumulative(last, txn=txn)
        own = admin.transactions().get_transaction_in_pending_ack_stats(txn.id, "orders", "s")
        assert own.cumulative_ack_position == f"{ids[1].ledger_id()}:{ids[1].entry_id()}"
        states = [
            admin.transactions()
            .get_position_stats_in_pending_ack("orders", "s", each.ledger_id(), each.entry_id())
            .state
            for each in ids
        ]
        assert states == ["PendingAck", "PendingAck", "NotInPendingAck"]


def test_counts_go_on_behind_what_was_folded(root: Path) -> None:
    """Those of a topic are the same before and after, whoever looks."""
    with Client(root) as client, Admin(root) as admin:
        producer = client.create_producer("orders")
        for number in range(4):
            txn = client.new_transaction()
            producer.send(b"x", txn=txn)
            txn.commit() if number % 2 else txn.abort()
        store = client._core.store
        log = store.transactions.log()
        words = log.control.words

        def counts() -> tuple[int, int, int]:
            stats = admin.topics().get_stats("orders")
            return stats.ongoing_txn_count, stats.committed_txn_count, stats.aborted_txn_count

        assert counts() == (0, 2, 2)
        words[32], opened = words[33], client.new_transaction()  # NEXT_ID: the next table
        producer.send(b"y", txn=opened)
        assert counts() == (1, 2, 2)
        folder = store.make_folder(store._current())
        while folder.fold(log, []):
            pass
        assert log.lowest() == opened.id.least_sig_bits and counts() == (1, 2, 2)
        opened.commit()
        assert counts() == (0, 3, 2)
        with pytest.raises(TransactionNotFound, match="long ago"):
            admin.transactions().get_transaction_metadata((0, 1))
        in_buffer = admin.transactions().get_transaction_in_buffer_stats((0, 1), "orders")
        assert in_buffer.aborted
        assert not admin.transactions().get_transaction_in_buffer_stats((0, 2), "orders").aborted
        buffer = admin.transactions().get_transaction_buffer_stats("orders")
        assert buffer.last_snapshot_timestamps > 0 and buffer.total_aborted_transactions == 2
        assert client.create_reader("orders", MessageId.earliest) is not None


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda part: part.get_transaction_metadata("17"), ValueError),
        (lambda part: part.get_transaction_metadata(17), ValueError),
        (lambda part: part.get_transaction_metadata((1, 17)), TransactionCoordinatorNotFoundError),
        (lambda part: part.get_transaction_metadata((0, 0)), TransactionNotFound),
        (lambda part: part.get_coordinator_stats_by_id(1), TransactionCoordinatorNotFoundError),
        (lambda part: part.get_coordinator_internal_stats(1), TransactionCoordinatorNotFoundError),
        (
            lambda part: part.get_slow_transactions_by_coordinator_id(1, 0),
            TransactionCoordinatorNotFoundError,
        ),
        (lambda part: part.scale_transaction_coordinators(2), NotAllowedError),
        (lambda part: part.get_transaction_buffer_stats("nowhere"), TopicNotFound),
        (lambda part: part.get_transaction_buffer_stats("parted"), NotAllowedError),
        (lambda part: part.get_pending_ack_stats("orders", "nobody"), SubscriptionNotFound),
        (lambda part: part.get_pending_ack_internal_stats("orders", "nobody"), SubscriptionNotFound),
        (lambda part: part.get_position_stats_in_pending_ack("orders", "nobody", 9, 9), SubscriptionNotFound),
    ],
)
def test_refusals(root: Path, call: Callable[[calls.Transactions], object], error: type[Exception]) -> None:
    """Each names what is not there."""
    with Client(root) as client, Admin(root) as admin:
        admin.topics().create_partitioned_topic("parted", 2)
        with client.transaction() as txn:
            client.create_producer("orders").send(b"x", txn=txn)
        with pytest.raises(error):
            call(admin.transactions())
