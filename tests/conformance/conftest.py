"""A client on a store of its own, and short words for what the tests do all the time."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

import embeddedpulsar.asyncio as asyncio_client
from embeddedpulsar import Admin, Client, Consumer, InitialPosition, Producer, Timeout, connect
from embeddedpulsar._engine.store import store_root
from embeddedpulsar._engine.store.store import REGISTRY
from embeddedpulsar.admin.topics import Topics
from tests.conformance import broker
from tests.conformance.manual_time import ManualTime
from tests.support.clients import texts


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    """The directory of the store."""
    return tmp_path / "store"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test in a directory; one that is marked `in_memory` on a store in memory as well."""
    if "store_url" in metafunc.fixturenames:
        is_sampled = metafunc.definition.get_closest_marker("in_memory") is not None
        places = ["directory", "memory"] if is_sampled else ["directory"]
        if broker.SERVICE_URL and broker.holds(metafunc.definition):
            places.append("broker")
        metafunc.parametrize("store_url", places, indirect=True)


@pytest.fixture
def store_url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path | str]:
    """What a client of the store is given: the path of a directory, or the URL of a store in memory."""
    if request.param == "directory":
        yield request.getfixturevalue("store_path")
        return
    if request.param == "broker":
        broker.delete_topics()
        yield broker.SERVICE_URL
        return
    create, store_path = store_root.create_in_memory, request.getfixturevalue("store_path")
    monkeypatch.setattr(store_root, "create_in_memory", lambda url, _: create(url, settings_in(store_path)))
    url = "memory://" + re.sub(r"[^\w.-]", "-", request.node.name)
    yield url
    assert url not in REGISTRY.in_memory, "a client of the store was not closed"


def settings_in(store_path: Path) -> str:
    """The settings that a test has for its store."""
    try:
        return (store_path / "broker.conf").read_text()
    except FileNotFoundError:
        return ""


@pytest.fixture
def client(store_url: Path | str) -> Iterator[Client]:
    """A client that is closed at the end, unless the test did so."""
    made = connect(store_url, **broker.options(store_url))
    yield made
    made.shutdown()


@pytest.fixture
def admin(store_url: Path | str, client: Client) -> Iterator[Admin]:
    """An Admin of the client's store."""
    with Admin(store_url) as made:
        yield made


@pytest.fixture
def topics(admin: Admin) -> Topics:
    """Its calls about topics."""
    return admin.topics()


@pytest.fixture
def run(
    store_url: Path | str,
) -> Callable[[Callable[[asyncio_client.Client], Coroutine[Any, Any, Any]]], Any]:
    """Run ``main(client)`` in a loop, with a client that is closed afterwards."""

    def runner(main: Callable[[asyncio_client.Client], Coroutine[Any, Any, Any]]) -> Any:
        async def whole() -> Any:
            client = asyncio_client.connect(store_url, operation_timeout_seconds=5)
            try:
                return await main(client)
            finally:
                client.shutdown()

        return asyncio.run(whole())

    return runner


class Topic:
    """One topic, as a test uses it."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.name = "topic"

    def producer(self, **options: Any) -> Producer[Any]:
        """A producer with some options."""
        return self.client.create_producer(self.name, **options)

    def consumer(self, **options: Any) -> Consumer[Any]:
        """A consumer of subscription ``sub`` from the earliest message."""
        options.setdefault("initial_position", InitialPosition.Earliest)
        return self.client.subscribe(self.name, "sub", **options)

    def publish(self, count: int, **options: Any) -> list[Any]:
        """Send ``hello-0``, ``hello-1`` and so on, and return their ids."""
        with self.producer(**options) as producer:
            return [producer.send(b"hello-%d" % i) for i in range(count)]

    def publish_batch(self, count: int, **options: Any) -> None:
        """Send ``hello-0``, ``hello-1`` and so on in one batch."""
        options.setdefault("batching_max_publish_delay_ms", 60_000)
        with self.producer(batching_enabled=True, **options) as producer:
            for i in range(count):
                producer.send_async(b"hello-%d" % i, None)


@pytest.fixture
def topic(client: Client) -> Topic:
    """A topic of the client."""
    return Topic(client)


@pytest.fixture
def time(store_url: Path | str) -> Iterator[ManualTime]:
    """A store, and a client of it, whose time passes when the test says so."""
    made = ManualTime(store_url)
    yield made
    made.close()


@pytest.fixture
def five_per_ledger(store_path: Path) -> None:
    """A ledger holds five entries. To be asked for before the client."""
    store_path.mkdir()
    (store_path / "broker.conf").write_text("managedLedgerMaxEntriesPerLedger=5\n")


def numbers(messages: list[Any]) -> list[int]:
    """The numbers of messages that `Topic.publish` sent."""
    return [int(message.data().removeprefix(b"hello-")) for message in messages]


def receive_all(consumer: Any, wait_ms: int = 500 if broker.SERVICE_URL else 20) -> list[Any]:
    """Every message that is there, without acknowledging."""
    messages = []
    while True:
        try:
            messages.append(consumer.receive(wait_ms))
        except Timeout:
            return messages


def acknowledged_texts(consumer: Any) -> list[str]:
    """The texts of every message that is there, which is acknowledged, sorted."""
    messages = receive_all(consumer)
    for message in messages:
        consumer.acknowledge(message)
    return texts(messages)
