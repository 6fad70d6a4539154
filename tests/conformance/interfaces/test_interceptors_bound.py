"""Interceptors know their producer, consumer or reader from the first call on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from embeddedpulsar import (
    Client,
    ConsumerInterceptor,
    ConsumerType,
    InitialPosition,
    MessageId,
    ReaderInterceptor,
)
from embeddedpulsar.client.consumer.listener import ListenerThreads


class Owners(ConsumerInterceptor, ReaderInterceptor):
    """Notes for whom it is called."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def before_consume(self, consumer: Any, message: Any) -> Any:
        self.seen.append(consumer)
        return message

    def before_read(self, reader: Any, message: Any) -> Any:
        self.seen.append(reader)
        return message

    def on_acknowledge(self, consumer: Any, message_id: Any, error: Any) -> None:
        self.seen.append(consumer)


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Listeners are called before they are known to be added: no thread could be faster."""
    add = ListenerThreads.add

    def run_and_add(self: ListenerThreads, target: Any) -> None:
        target.run(100)
        add(self, target)

    monkeypatch.setattr(ListenerThreads, "add", run_and_add)


def opener(kind: str) -> Callable[[Client, Callable[..., Any], Owners], Any]:
    """How to make a consumer or a reader with a listener and an interceptor."""
    if kind.startswith("reader"):
        name = "parts" if kind == "reader of partitions" else "plain"
        return lambda client, listener, owners: client.create_reader(
            name, MessageId.earliest, reader_listener=listener, interceptors=[owners]
        )
    names = {"consumer": "plain", "of partitions": "parts", "of several": ["plain", "other"]}
    return lambda client, listener, owners: client.subscribe(
        names[kind],
        "s",
        ConsumerType.Shared,
        message_listener=listener,
        interceptors=[owners],
        initial_position=InitialPosition.Earliest,
    )


KINDS = ("consumer", "of partitions", "of several", "reader", "reader of partitions")


@pytest.fixture
def filled(client: Client) -> Client:
    """A client on a store with three messages in a plain topic, and in one of two partitions."""
    store: Any = client._core.store
    store.topics.create_partitioned("parts", 2)
    for name in ("plain", "parts"):
        with client.create_producer(name) as producer:
            for i in range(3):
                producer.send(b"%d" % i)
    return client


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("eager")
def test_every_call_names_the_owner(filled: Client, kind: str):
    """A listener that is called at once has interceptors that know whom they are called for."""
    owners, heard = Owners(), []

    def listener(owner: Any, message: Any) -> None:
        heard.append(owner)
        if not kind.startswith("reader"):
            owner.acknowledge(message)

    made = opener(kind)(filled, listener, owners)
    assert heard == [made] * 3
    assert owners.seen == [made] * (3 if kind.startswith("reader") else 6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("eager")
def test_a_listener_may_close_at_once(filled: Client, kind: str):
    """The first call of a listener closes its consumer or reader, before `subscribe` has returned."""
    heard = []

    def listener(owner: Any, message: Any) -> None:
        heard.append(message.data())
        owner.close()

    made = opener(kind)(filled, listener, Owners())
    assert len(heard) == 1
    assert not made.is_connected()
    assert not filled._core._consumers


def test_interceptors_make_no_other_class(client: Client):
    """Only a consumer with interceptors holds them; its class is the usual one, also for several topics."""
    plain = client.subscribe("plain", "a")
    watched = client.subscribe("plain", "b", interceptors=[Owners()])
    several = client.subscribe(["plain", "other"], "b2", interceptors=[Owners()])
    assert plain._chain is None and watched._chain is not None and several._chain is not None
    assert type(plain) is type(watched) is type(several)
