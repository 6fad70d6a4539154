"""Openings of coroutines that are cancelled: wherever that comes, nothing stays attached."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import embeddedpulsar as pulsar
from embeddedpulsar import ConsumerType, MessageId
from embeddedpulsar._engine.platform import threads
from embeddedpulsar.asyncio import Client, worker_threads
from embeddedpulsar.client import client_threads

OPENINGS: dict[str, tuple[str, Callable[[Client], Any]]] = {
    "producer": ("create_producer", lambda client: client.create_producer("topic", "name")),
    "partitions": ("create_producer", lambda client: client.create_producer("parts", "name")),
    "exclusive": (
        "create_producer",
        lambda client: client.create_producer("topic", access_mode=pulsar.ProducerAccessMode.Exclusive),
    ),
    "consumer": ("subscribe", lambda client: client.subscribe("topic", "sub")),
    "shared": ("subscribe", lambda client: client.subscribe("topic", "sub", ConsumerType.Shared)),
    "several": ("subscribe", lambda client: client.subscribe(["topic", "parts"], "sub")),
    "reader": ("create_reader", lambda client: client.create_reader("topic", MessageId.earliest)),
    "table view": ("create_table_view", lambda client: client.create_table_view("topic")),
}
"""The method of the blocking client that attaches, and the coroutine."""
WITHIN_S = 30.0


class GivenUp:
    """Tells the thread of an opening when its coroutine gave up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._event = threads.Event()
        give_up = client_threads.AwaitedCall.give_up

        def give_up_and_tell(awaited: client_threads.AwaitedCall) -> None:
            give_up(awaited)
            self._event.set()

        monkeypatch.setattr(client_threads.AwaitedCall, "give_up", give_up_and_tell)

    def begin(self) -> None:
        """Another opening follows."""
        self._event = threads.Event()

    def wait(self) -> None:
        """Until it does."""
        assert self._event.wait(WITHIN_S)


class Pause:
    """Makes an opening stop at its n-th call of a function of the client, until its coroutine gave up.

    Attributes:
        at: which call; 0 for before the first.
        was_reached: whether the opening has so many calls.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
        self.at, self.was_reached = 0, False
        self._count = 0
        self._given_up = GivenUp(monkeypatch)
        self._cancel: Callable[[], object] = int
        original = getattr(pulsar.Client, method)

        def paused(*arguments: Any, **options: Any) -> Any:
            sys.setprofile(self._note)
            try:
                return original(*arguments, **options)
            finally:
                sys.setprofile(None)

        monkeypatch.setattr(pulsar.Client, method, paused)

    def begin(self, at: int, task: asyncio.Task[Any]) -> None:
        """Cancel a task at its n-th call."""
        loop = asyncio.get_running_loop()
        self._given_up.begin()
        self.at, self.was_reached, self._count = at, False, 0
        self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)

    def _note(self, frame: Any, event: str, _: object) -> None:
        if event != "call" or "/embeddedpulsar/client/" not in frame.f_code.co_filename:
            return
        self._count += 1
        if self._count == self.at:
            sys.setprofile(None)
            self.was_reached = True
            self._cancel()
            self._given_up.wait()


def assert_nothing_attached(client: Client, what: str) -> None:
    """Not in this client, and not in the store."""
    core = client._blocking._core
    assert not client._blocking._made, what
    assert not core._publishers, what
    assert not core._consumers, what
    for name in ("topic", "parts-partition-0", "parts-partition-1"):
        use = core.store.use_topic(name)
        assert not use.topic.producers(), what
        assert not use.topic.subscription("sub", True).consumers(), what
        use.release()


async def prepare(client: Client) -> None:
    """Make the topics."""
    producer = await client.create_producer("topic")
    await producer.send(b"x", partition_key="key")
    await producer.close()
    url = client._blocking.get_service_info().service_url
    with pulsar.Admin(url) as admin:
        admin.topics().create_partitioned_topic("parts", 2)


@pytest.mark.parametrize("kind", list(OPENINGS))
def test_cancelled_at_each_step(run, monkeypatch: pytest.MonkeyPatch, kind: str):
    """When the cancellation arrives, nothing is attached any more; nothing waits for the collector."""
    method, opening = OPENINGS[kind]

    async def main(client: Client) -> None:
        await prepare(client)
        pause = Pause(monkeypatch, method)
        at = 1
        while at == 1 or pause.was_reached:
            task = asyncio.ensure_future(opening(client))
            pause.begin(at, task)
            try:
                made = await asyncio.wait_for(task, WITHIN_S)
            except asyncio.CancelledError:
                assert pause.was_reached
            else:
                assert not pause.was_reached
                await made.close()
            assert_nothing_attached(client, f"call {at}")
            at += 3
        assert at > 15

    gc.disable()
    try:
        run(main)
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", list(OPENINGS))
def test_cancelled_between_the_result_and_the_coroutine(run, monkeypatch: pytest.MonkeyPatch, kind: str):
    """The thread has finished, and the coroutine has not seen it."""
    set_outcome = worker_threads._set_outcome
    tasks: list[asyncio.Task[Any]] = []

    def set_and_cancel(*arguments: Any) -> None:
        set_outcome(*arguments)
        if tasks:
            tasks.pop().cancel()

    async def main(client: Client) -> None:
        await prepare(client)
        monkeypatch.setattr(worker_threads, "_set_outcome", set_and_cancel)
        task = asyncio.ensure_future(OPENINGS[kind][1](client))
        tasks.append(task)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert_nothing_attached(client, "after the result")

    run(main)


@pytest.mark.parametrize("kind", list(OPENINGS))
def test_a_time_limit(run, monkeypatch: pytest.MonkeyPatch, kind: str):
    """`asyncio.wait_for` raises its error; the next call of the program finds the place free."""
    method, opening = OPENINGS[kind]
    original = getattr(pulsar.Client, method)
    given_up = GivenUp(monkeypatch)

    async def main(client: Client) -> None:
        await prepare(client)

        def slow(*arguments: Any, **options: Any) -> Any:
            given_up.wait()
            return original(*arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(pulsar.Client, method, slow)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(opening(client), 0.02)
        assert_nothing_attached(client, "after the time limit")
        await (await asyncio.wait_for(opening(client), WITHIN_S)).close()

    run(main)


@pytest.mark.parametrize("is_over", [False, True], ids=["in the call", "behind the call"])
@pytest.mark.parametrize("kind", list(OPENINGS))
def test_a_loop_that_ends(store_url: Path | str, monkeypatch: pytest.MonkeyPatch, kind: str, is_over: bool):
    """It is closed while the thread is in the call, or when the thread has finished and the loop has not
    looked: no coroutine and no loop is there to detach what was made."""
    method, opening = OPENINGS[kind]
    original = getattr(pulsar.Client, method)
    has_begun, may_go_on = threads.Event(), threads.Event()

    def held(*arguments: Any, **options: Any) -> Any:
        has_begun.set()
        assert may_go_on.wait(WITHIN_S)
        return original(*arguments, **options)

    loop = asyncio.new_event_loop()
    client = Client(store_url)
    loop.run_until_complete(prepare(client))
    started: list[threads.Daemon] = []
    start = threads._start
    monkeypatch.setattr(threads, "_start", lambda thread: (started.append(thread), start(thread)))
    monkeypatch.setattr(pulsar.Client, method, held)
    if is_over:
        monkeypatch.setattr(worker_threads, "_set_outcome", lambda *_: None)  # the loop does not come to it
    coroutine = opening(client)

    async def begin() -> None:
        task = asyncio.ensure_future(coroutine)
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        await asyncio.to_thread(has_begun.wait, WITHIN_S)
        if is_over:
            may_go_on.set()
            await asyncio.to_thread(started[0].join, WITHIN_S)

    loop.run_until_complete(begin())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    coroutine.close()  # as the collector does
    may_go_on.set()
    for thread in started:
        if thread.name.endswith(("blocking-call", "undo")):
            thread.join(WITHIN_S)
    try:
        assert_nothing_attached(client, "after the loop")
    finally:
        client.shutdown()
