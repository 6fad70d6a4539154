"""No more threads than RLIMIT_NPROC: what is refused, and what goes on when there may be more again."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from embeddedpulsar import Client, Consumer, InitialPosition, MessageId, Producer, ThreadLimitError
from embeddedpulsar.asyncio import Client as AsyncClient
from tests.children import in_child
from tests.support.clients import wait_until

pytestmark = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0,
    reason="only root can run children as a user who has no other process",
)

USER = 4711
SOON_S = 20.0
EARLIEST = InitialPosition.Earliest


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that another user can write to; and everything is imported that this user may not read."""
    made = Path(tempfile.mkdtemp(prefix="thread-limit-"))
    made.chmod(0o777)
    with Client(made / "loading") as client:
        use(open_producer(client), open_consumer(client), b"x")
    yield made
    shutil.rmtree(made)


def threads_at_most(number: int) -> None:
    """Threads that the user of this process may have."""
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    resource.setrlimit(resource.RLIMIT_NPROC, (number, hard))


def open_producer(client: Client) -> Producer:
    return client.create_producer(
        "topic", producer_name="p", batching_enabled=True, batching_max_publish_delay_ms=20
    )


def open_consumer(client: Client) -> Consumer:
    return client.subscribe("topic", "sub", initial_position=EARLIEST)


def open_listener(client: Client) -> Consumer:
    return client.subscribe("topic", "other", message_listener=lambda consumer, message: None)


def use(producer: Producer, consumer: Consumer, value: bytes) -> None:
    """Send and acknowledge; the batch, the callback and the acknowledgement are up to threads."""
    told = threading.Event()
    producer.send_async(value, lambda *_: told.set())
    message = consumer.receive(int(1000 * SOON_S))
    assert message.data() == value
    consumer.acknowledge(message)
    assert told.wait(SOON_S)


def is_written(client: Client) -> bool:
    """Whether everything that was sent is acknowledged."""
    return client._core.store.use_topic("topic").topic.subscription("sub").backlog() == 0


def as_user(action: Callable[[], object]) -> None:
    """Run ``action`` in a child whose user has no other process."""

    def run() -> str:
        os.setgroups([])
        os.setresgid(USER, USER, USER)
        os.setresuid(USER, USER, USER)
        action()
        return "done"

    assert in_child(run) == "done"


def test_what_cannot_be_opened_leaves_nothing_attached(place: Path):
    """The error names the reason and the remedy. As soon as the system allows threads, all calls work, under
    the same names."""

    def action() -> None:
        with Client(place / "store") as client:
            client.create_reader("topic", MessageId.earliest).close()
            threads_at_most(1)
            for make in (open_producer, open_consumer, open_listener):
                with pytest.raises(ThreadLimitError, match=r"can't start new thread.*ulimit -u") as caught:
                    make(client)
                assert isinstance(caught.value, RuntimeError)
                assert str(caught.value).startswith("Pulsar error: UnknownError: ")
                assert not client._core._consumers
                assert not client._core._publishers
            threads_at_most(100)
            open_listener(client).close()
            use(open_producer(client), open_consumer(client), b"1")
            wait_until(lambda: is_written(client))

    as_user(action)


def test_a_coroutine_is_told_of_the_limit(place: Path):
    """With the text that errors have in coroutines."""

    async def main() -> None:
        client = AsyncClient(place / "store")
        threads_at_most(1)
        with pytest.raises(ThreadLimitError, match=r"^1 UnknownError: .*ulimit -u"):
            await client.subscribe("topic", "sub")
        threads_at_most(100)
        await client.subscribe("topic", "sub")
        await client.close()

    as_user(lambda: asyncio.run(main()))


def test_what_is_open_goes_on(place: Path):
    """At the limit messages are taken, stored, received and acknowledged; what needs a thread happens as soon
    as the next call can start one."""

    def action() -> None:
        with Client(place / "store") as client:
            producer, consumer = open_producer(client), open_consumer(client)
            threads_at_most(1)
            told: list[object] = []
            producer.send_async(b"1", lambda _, message_id: told.append(message_id))
            assert isinstance(producer.send(b"2"), MessageId)
            for value in (b"1", b"2"):
                message = consumer.receive(1000)
                assert message.data() == value
                consumer.acknowledge(message)
            threads_at_most(100)
            use(producer, consumer, b"3")
            wait_until(lambda: is_written(client))
            assert len(told) == 1

    as_user(action)
