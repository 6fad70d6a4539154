"""Sixteen threads of one process, which change every microsecond.

The interpreter changes threads where it looks for signals (docs/concurrency.md#interrupts), and with this
switch interval at nearly each such place. Producers are shared by threads, and so is the consumer of the
shared subscription. Nobody dies, so each message arrives once, and those of a thread in its order.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from embeddedpulsar import (
    Client,
    ConsumerType,
    InitialPosition,
    Message,
    MessageId,
    Producer,
    Timeout,
)
from embeddedpulsar.testing import assert_clean
from tests.storms.storm_report import StormReport

THREADS = 16
SENDERS = 8
SWITCH_S = 1e-6
WAIT_MS = 50
LONGEST_S = 60
"""What was not received so long after the last message was sent is lost."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of the command line."""
    parser.add_argument("--messages", type=int, default=20_000, help="of each sending thread (default 20000)")


def run(options: argparse.Namespace) -> StormReport:
    """Have threads send and receive so many messages, then compare."""
    with tempfile.TemporaryDirectory(prefix="storm-", dir=options.workspace) as workspace:
        storm = ThreadStorm(Path(workspace) / "store", options.seed, options.messages)
        before = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_S)
        try:
            storm.run()
        finally:
            sys.setswitchinterval(before)
        return storm.report()


class ThreadStorm:
    """The threads of one run, and what each of them saw.

    Every list belongs to one thread until all have ended, so the storm itself relies on no order of threads.

    Args:
        store: its directory.
        seed: of the choices of each thread.
        messages: how many each thread sends.
    """

    def __init__(self, store: Path, seed: int, messages: int) -> None:
        self._store = store
        self._seed = seed
        self._messages = messages
        self._sent: list[list[bytes]] = [[] for _ in range(SENDERS)]
        self._received: dict[str, list[list[bytes]]] = {
            "shared": [],
            "keys": [],
            "failover": [],
            "reader": [],
        }
        self._problems: list[str] = []
        self._are_sent = threading.Event()
        self._give_up_at = math.inf

    def run(self) -> None:
        """All of it; returns when every thread has ended and the store is closed."""
        with Client(str(self._store)) as client:
            # Attached before anything is sent, so that each gets all of it.
            subscribe = partial(
                client.subscribe, "topic", initial_position=InitialPosition.Earliest, receiver_queue_size=50
            )
            shared = subscribe("shared", ConsumerType.Shared)
            keys = [subscribe("keys", ConsumerType.KeyShared) for _ in range(2)]
            failover = [subscribe("failover", ConsumerType.Failover)]
            receivers = [self._receiver("shared", shared.receive, shared.acknowledge) for _ in range(4)]
            receivers += [self._receiver("keys", one.receive, one.acknowledge) for one in keys]
            receivers += [self._receiver("failover", one.receive, one.acknowledge) for one in failover]
            reader = client.create_reader("topic", MessageId.earliest)
            receivers.append(self._receiver("reader", reader.read_next, None))
            producers = [
                client.create_producer(
                    "topic", batching_enabled=is_batching, batching_max_messages=20, block_if_queue_full=True
                )
                for is_batching in (True, False)
            ]
            senders = [self._sender(number, producers[number % 2]) for number in range(SENDERS)]
            threads = [threading.Thread(target=self._guarded, args=(one,)) for one in senders + receivers]
            assert len(threads) == THREADS
            for thread in threads:
                thread.start()
            for thread in threads[:SENDERS]:
                thread.join()
            for producer in producers:
                producer.flush()
            self._give_up_at = time.monotonic() + LONGEST_S
            self._are_sent.set()
            for thread in threads[SENDERS:]:
                thread.join()

    def report(self) -> StormReport:
        """Compare what was sent with what each subscription and the reader got."""
        report = StormReport(f"{THREADS} threads, switch interval {SWITCH_S * 1e6:.0f} us")
        sent = Counter(payload for payloads in self._sent for payload in payloads)
        report.figures["messages sent"] = sent.total()
        for name, by_thread in self._received.items():
            received = Counter(payload for payloads in by_thread for payload in payloads)
            report.figures[f"received, {name}"] = received.total()
            lost, extra = sent - received, received - sent
            if lost or extra:
                self._problems.append(
                    f"{name}: {lost.total()} lost, {extra.total()} more than once or never sent"
                )
        for name in ("failover", "reader"):
            (payloads,) = self._received[name]
            self._problems += [f"{name}: {text}" for text in out_of_order(payloads)]
        report.problems = self._problems
        try:
            report.figures["messages in the store"] = assert_clean(self._store).messages
        except AssertionError as error:
            report.problems.append(f"the store: {error}")
        return report

    def _sender(self, number: int, producer: Producer) -> Callable[[], None]:
        def send() -> None:
            chance = random.Random(f"{self._seed} {number}")
            sent = self._sent[number]
            for index in range(self._messages):
                payload = b"%d %d" % (number, index)
                key = str(chance.randrange(50))
                if chance.random() < 0.1:
                    producer.send(payload, partition_key=key)
                else:
                    producer.send_async(payload, None, partition_key=key)
                sent.append(payload)

        return send

    def _receiver(
        self, name: str, receive: Callable[[int], Message], acknowledge: Callable[[Message], object] | None
    ) -> Callable[[], None]:
        received: list[bytes] = []
        self._received[name].append(received)

        def take() -> None:
            while not self._are_all_received(name) and time.monotonic() < self._give_up_at:
                try:
                    message = receive(WAIT_MS)
                except Timeout:
                    continue
                received.append(message.data())
                if acknowledge is not None:
                    acknowledge(message)

        return take

    def _are_all_received(self, name: str) -> bool:
        received = sum(map(len, self._received[name]))
        return self._are_sent.is_set() and received >= sum(map(len, self._sent))

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            self._problems.append(f"{type(error).__name__}: {error}")


def out_of_order(payloads: list[bytes]) -> list[str]:
    """Where a thread's messages do not follow each other; at most one place for each thread."""
    following: dict[int, int] = {}
    wrong: dict[int, str] = {}
    for payload in payloads:
        sender, number = map(int, payload.split())
        if number != following.get(sender, 0):
            wrong.setdefault(
                sender, f"message {number} of thread {sender} after {following.get(sender, 0) - 1}"
            )
        following[sender] = number + 1
    return list(wrong.values())
