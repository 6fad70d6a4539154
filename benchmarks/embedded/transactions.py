"""Transactions, through the public API."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.contest import POWER, PROCESS, Contestant
from benchmarks.embedded import prepare

BATCH = 100
LEFT_MB = 1
"""What a million finished transactions may leave behind housekeeping."""
INPUT, OUTPUT = "input", "output"


class Transactions(Contestant):
    """Opens a store in which nothing is trimmed; each round has a new one."""

    key = "embeddedpulsar"
    survives = PROCESS
    durability = "process"
    batching = False

    def __init__(self, size: int = 100) -> None:
        super().__init__()
        self.payload = b"x" * size
        self._client: Any = None

    def start(self, place: Path) -> None:
        self._root = place / "store"
        self._open()

    def run(self, operations: int) -> float:
        self.prepare(operations)
        seconds = self.work(operations)
        self._client.close()
        self._client = None
        shutil.rmtree(self._root)
        self._open()
        return seconds

    def stop(self) -> None:
        if self._client is not None:
            self._client.close()

    def _open(self) -> None:
        from embeddedpulsar import Client, InitialPosition

        prepare.keep_everything(self._root)
        self._client = Client(self._root, durability=self.durability)
        self.consumer = self._client.subscribe(INPUT, "bench", initial_position=InitialPosition.Earliest)
        self.producer = self._client.create_producer(
            OUTPUT,
            batching_enabled=self.batching,
            batching_max_messages=BATCH,
            block_if_queue_full=True,
            max_pending_messages=10 * BATCH,
        )
        # The files of topic and transactions are made before, as the tables of the peers were.
        self.producer.send(self.payload)
        with self._client.transaction() as transaction:
            self.producer.send(self.payload, txn=transaction)

    def prepare(self, operations: int) -> None:
        """Before the time is taken."""

    def work(self, operations: int) -> float:
        raise NotImplementedError


class Empty(Transactions):
    """Nothing is done in them."""

    name = "embeddedpulsar, begin and commit"

    def work(self, operations: int) -> float:
        begin = self._client.new_transaction
        begun = time.perf_counter()
        for _ in range(operations):
            begin().commit()
        return time.perf_counter() - begun


class PlainPairs(Transactions):
    """The same work without transactions: a kill in between makes it half."""

    key = "plain"
    name = "embeddedpulsar, no transaction"

    def prepare(self, operations: int) -> None:
        with self._client.create_producer(INPUT) as producer:
            producer.send_many([self.payload] * operations, batching_max_messages=1)

    def work(self, operations: int) -> float:
        receive, send, acknowledge, payload = (
            self.consumer.receive,
            self.producer.send,
            self.consumer.acknowledge,
            self.payload,
        )
        begun = time.perf_counter()
        for _ in range(operations):
            message = receive(60_000)
            send(payload)
            acknowledge(message)
        return time.perf_counter() - begun


class Pairs(PlainPairs):
    """One message sent and one acknowledged in each; the receive is not in the time of a transaction."""

    key = "embeddedpulsar"
    name = "embeddedpulsar, 1 send, 1 acknowledgement, commit"

    def work(self, operations: int) -> float:
        consumer, producer, payload, client = self.consumer, self.producer, self.payload, self._client
        begun = time.perf_counter()
        for _ in range(operations):
            message = consumer.receive(60_000)
            transaction = client.new_transaction()
            producer.send(payload, txn=transaction)
            consumer.acknowledge(message, txn=transaction)
            transaction.commit()
        return time.perf_counter() - begun


class PlainBatches(Transactions):
    """`send_async` in batches of 100 and a flush after each."""

    key = "plain"
    name = f"embeddedpulsar, no transaction, batches of {BATCH}"
    batching = True

    def work(self, operations: int) -> float:
        send, flush, payload = self.producer.send_async, self.producer.flush, self.payload
        begun = time.perf_counter()
        for _ in range(operations // BATCH):
            for _ in range(BATCH):
                send(payload, None)
            flush()
        return time.perf_counter() - begun


class Batches(Transactions):
    """The same, each batch in a transaction."""

    name = f"embeddedpulsar, {BATCH} messages in each transaction, batched"
    batching = True

    def work(self, operations: int) -> float:
        send, payload, begin = self.producer.send_async, self.payload, self._client.new_transaction
        begun = time.perf_counter()
        for _ in range(operations // BATCH):
            transaction = begin()
            for _ in range(BATCH):
                send(payload, None, txn=transaction)
            transaction.commit()
        return time.perf_counter() - begun


class FlushedSends(Transactions):
    """Each message is on the disk before the next."""

    key = "plain-flush"
    name = 'embeddedpulsar send, durability="flush", no transaction'
    survives = POWER
    durability = "flush"

    def work(self, operations: int) -> float:
        send, payload = self.producer.send, self.payload
        begun = time.perf_counter()
        for _ in range(operations):
            send(payload)
        return time.perf_counter() - begun


class FlushedTransactions(FlushedSends):
    """Messages one by one, on the disk at the commit."""

    key = "embeddedpulsar-flush"
    name = f'embeddedpulsar, durability="flush", {BATCH} sends in each transaction'

    def work(self, operations: int) -> float:
        send, payload, begin = self.producer.send, self.payload, self._client.new_transaction
        begun = time.perf_counter()
        for _ in range(operations // BATCH):
            transaction = begin()
            for _ in range(BATCH):
                send(payload, txn=transaction)
            transaction.commit()
        return time.perf_counter() - begun


class OpenAfter(Contestant):
    """Opens a store with many finished transactions, and one without any, in turn, up to the last message."""

    key = "embeddedpulsar"
    survives = PROCESS

    def __init__(self, transactions: int) -> None:
        super().__init__()
        self._transactions = transactions
        self._at_first = 0.0
        self.name = f"embeddedpulsar, {transactions:,} transactions"

    def start(self, place: Path) -> None:
        self._root, self._bare = place / "store", place / "bare"
        _fill(self._root, self._transactions)
        _fill(self._bare, 0)
        self._at_first = _megabytes(self._root / "txn")
        _await_housekeeping(self._root)

    def run(self, operations: int) -> float:
        seconds, bare = [], []
        for _ in range(operations):
            seconds.append(_open(self._root))
            bare.append(_open(self._bare))
        self.notes = {
            "ms more than without": (median(seconds) - median(bare)) * 1e3,
            "MB of transactions": _megabytes(self._root / "txn"),
            "MB before housekeeping": self._at_first,
        }
        return median(seconds)

    def stop(self) -> None:
        """Nothing stays open."""


def _fill(root: Path, transactions: int) -> None:
    from embeddedpulsar import Client

    prepare.keep_everything(root)
    with Client(root) as client, client.create_producer(OUTPUT) as producer:
        producer.send(b"x")
        for _ in range(transactions):
            transaction = client.new_transaction()
            producer.send(b"x", txn=transaction)
            transaction.commit()
        producer.send(b"x")


def _await_housekeeping(root: Path) -> None:
    """Have the store open until it forgot what ended; two minutes at most."""
    from embeddedpulsar import Client, MessageId

    until = time.monotonic() + 120
    with Client(root) as client, client.create_reader(OUTPUT, MessageId.latest):
        while _megabytes(root / "txn") > LEFT_MB and time.monotonic() < until:
            time.sleep(0.5)


def _open(root: Path) -> float:
    from embeddedpulsar import Client, MessageId

    begun = time.perf_counter()
    client = Client(root)
    reader = client.create_reader(OUTPUT, MessageId.latest, start_message_id_inclusive=True)
    reader.read_next(1000)
    seconds = time.perf_counter() - begun
    client.close()
    return seconds


def _megabytes(directory: Path) -> float:
    return sum(os.stat(entry).st_blocks * 512 for entry in directory.glob("*")) / 1e6
