"""Ctrl-C at any instruction of everything a client does, and signal handlers that use it themselves."""

from __future__ import annotations

import contextlib
import functools
import gc
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import embeddedpulsar as pulsar
from embeddedpulsar import Client, ConsumerType, InitialPosition
from embeddedpulsar._engine.store.store import REGISTRY
from tests.multiprocess.children import Child, say

OPTIONS: dict[str, Any] = {"batching_enabled": True, "batching_max_messages": 50}


class Strikes:
    """SIGALRM after random times; its handler raises, or does something itself."""

    def __init__(self, wanted: int, handler: Callable[[], None] | None) -> None:
        self.rng = random.Random(wanted)
        self.wanted = wanted
        self.count = 0
        self._handler = handler
        self._is_on = False
        signal.signal(signal.SIGALRM, self._strike)

    def _strike(self, *_: object) -> None:
        if not self._is_on:
            return
        self.count += 1
        if self._handler is not None:
            self._handler()
            self._set()
            return
        raise KeyboardInterrupt

    def _set(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, self.rng.uniform(2e-5, 8e-4), 0.3)

    def over(self, action: Callable[[], object]) -> None:
        """Repeat an action until it is struck; where the handler does not raise, until there were enough."""
        try:
            try:
                self._is_on = True
                self._set()
                while not self.is_over:
                    action()
            finally:
                self._is_on = False
                signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            self._is_on = False

    @property
    def is_over(self) -> bool:
        """Whether there were enough."""
        return self.count >= self.wanted


def wait_until(what: str, condition: Callable[[], bool]) -> None:
    """Fail if a condition does not become true by itself."""
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def messages_in(client: Client, topic: str) -> list[int]:
    """The numbers stored in a topic."""
    return [int(one.data()) for one in client.create_reader(topic, pulsar.MessageId.earliest)]


def storm(root: str, wanted: str, mode: str) -> None:
    """Send, receive and acknowledge under strikes; then everything is stored and written by itself."""
    sys.unraisablehook = lambda _: None  # for those that hit a finalizer
    client = Client(root)
    producers = [
        client.create_producer("one", **OPTIONS),
        client.create_producer("one"),
        client.create_producer("two"),  # a batch would come again whole, unless all of it was acknowledged
    ]
    consumer = client.subscribe("two", "sub", ConsumerType.Shared, initial_position=InitialPosition.Earliest)
    numbers = iter(range(1 << 40))
    returned: list[tuple[int, int]] = []
    acked: list[int] = []
    asked: list[int] = []
    answered: list[int] = []

    def send(index: int) -> None:
        number = next(numbers)
        if mode == "raise":
            producers[index].send_async(b"%d" % number, None)
            returned.append((index, number))
        else:  # a handler's may be refused, which its callback hears
            heard = functools.partial(hear, index, number)
            producers[index].send_async(b"%d" % number, heard)
            asked.append(number)

    def hear(index: int, number: int, result: pulsar.Result, _: object) -> None:
        answered.append(number)
        if result == pulsar.Result.Ok:
            returned.append((index, number))

    def receive() -> None:
        message = consumer.receive_nowait()
        if message is not None:
            consumer.acknowledge(message)
            acked.append(int(message.data()))

    def handler() -> None:
        # In the middle of a section of its own thread it is refused, which is an error and not a deadlock.
        with contextlib.suppress(pulsar.NotAllowedError, pulsar.StorageError):
            send(strikes.rng.randrange(3))
        with contextlib.suppress(pulsar.NotAllowedError, pulsar.StorageError):
            receive()

    strikes = Strikes(int(wanted), handler if mode == "handler" else None)

    def use() -> None:
        send(strikes.rng.randrange(3))
        receive()

    while not strikes.is_over:
        strikes.over(use)
    # Nothing is flushed: timers run on, so all that was taken is stored, and acknowledged, by itself.
    wait_until("what waits is stored", lambda: not any(one._publisher.pending for one in producers))
    wait_until("acknowledgements are written", lambda: not consumer._acks.done)
    wait_until("every callback was called", lambda: len(answered) >= len(asked))
    assert sorted(answered) == sorted(asked)
    stored = {name: messages_in(client, name) for name in ("one", "two")}
    sets = [set(stored["one"]), set(stored["two"])]
    lost = [number for index, number in returned if number not in sets[index // 2]]
    assert not lost, f"lost: {lost[:10]}"
    for found in stored.values():
        assert len(found) == len(set(found)), "stored twice"
    consumer.close()
    again = client.subscribe("two", "sub", ConsumerType.Shared)
    rest = []
    while (message := again.receive_nowait()) is not None:
        rest.append(int(message.data()))
    assert not set(rest) & set(acked), "an acknowledged message came again"
    client.close()
    say(strikes.count)


def opening_storm(root: str, wanted: str) -> None:
    """Open and close things under Ctrl-C; then nothing is attached, and nothing is left open."""
    sys.unraisablehook = lambda _: None
    client = Client(root)
    client.create_producer("topic").send(b"0")
    strikes = Strikes(int(wanted), None)

    def make() -> None:
        kind = strikes.rng.choice(["exclusive", "shared", "producer", "named", "reader", "several"])
        if kind == "producer":
            client.create_producer("topic", **OPTIONS).close()
        elif kind == "named":
            client.create_producer("topic", producer_name="name", **OPTIONS).close()
        elif kind == "reader":
            client.create_reader("topic", pulsar.MessageId.earliest).close()
        elif kind == "several":
            client.subscribe(["topic", "other"], "several", ConsumerType.Shared).close()
        else:
            shared = kind == "shared"
            client.subscribe("topic", kind, ConsumerType.Shared if shared else ConsumerType.Exclusive).close()

    def try_to_make() -> None:
        with contextlib.suppress(
            pulsar.ConsumerBusy, pulsar.ProducerBusy
        ):  # the one before is on its way out
            make()

    while not strikes.is_over:
        strikes.over(try_to_make)
    gc.collect()
    for one in list(client._made.values()):  # interrupted behind the opening, or within close()
        with contextlib.suppress(pulsar.AlreadyClosed):
            one.close()
    gc.collect()
    topic = client._core.store.use_topic("topic").topic

    def is_left() -> bool:
        client._core._close_abandoned()
        return not any(topic.subscription(name).consumers() for name in names)

    names = ("exclusive", "shared", "several")
    for name in names:
        topic.subscription(name, True)
    wait_until("nobody is attached", is_left)
    client.subscribe("topic", "exclusive").close()
    wait_until("no producer is attached", lambda: not client._core.abandoned and not topic.producers())
    client.close()
    say(strikes.count)
    assert len(REGISTRY.stores) == 0


def run(function: Callable[..., None], *arguments: object, timeout_s: float) -> int:
    """Run a storm in a child; how many strikes there were."""
    with Child(function, *arguments) as child:
        count = int(child.read().split()[0])
        assert child.join(timeout_s) == 0
    return count


@pytest.mark.parametrize("mode", ["raise", "handler"])
@pytest.mark.parametrize("wanted", [400, pytest.param(20_000, marks=pytest.mark.slow)])
def test_sends_and_acknowledgements(tmp_path: Path, wanted: int, mode: str):
    """After any storm all that was taken is stored once, all that was acknowledged is written."""
    assert run(storm, tmp_path, wanted, mode, timeout_s=500) >= wanted


@pytest.mark.parametrize("wanted", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_opening_and_closing(tmp_path: Path, wanted: int):
    """Interrupted create_producer, subscribe and close leave nothing attached."""
    assert run(opening_storm, tmp_path, wanted, timeout_s=500) >= wanted
