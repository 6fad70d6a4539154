"""Ctrl-C in the middle of opening and closing: what the program did not get is detached."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import embeddedpulsar as pulsar
from embeddedpulsar import ConsumerType
from embeddedpulsar._engine.store.store import REGISTRY
from embeddedpulsar.client import client_core
from tests.strikes import strike


def interrupt() -> None:
    """What the handler of SIGINT does."""
    raise KeyboardInterrupt


def close_all(client: Any) -> None:
    """Close what the program has, and what the collector finds."""
    for one in list(client._made.values()):
        with contextlib.suppress(pulsar.AlreadyClosed):
            one.close()
    for _ in range(2):
        gc.collect()
        client._core._close_abandoned()


@pytest.fixture
def small_heap() -> Iterator[None]:
    """Collections look at the objects of the test alone."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    gc.collect()
    gc.freeze()  # as it was: what is loaded at the beginning is left out, see tests/conftest.py


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # interrupted finalizers
@pytest.mark.usefixtures("small_heap")
# Not where locks are taken: a signal is not handled between any two instructions there, but strikes are.
@pytest.mark.parametrize(
    ("within", "step"),
    [("client", 31), ("_engine/store/topic.py", 2), ("_engine/subscription/subscription.py", 2)],
)
@pytest.mark.parametrize("kind", ["producer", "Exclusive", "Shared"])
def test_nothing_stays_attached(client: Any, kind: str, within: str, step: int):
    """Wherever the interrupt comes, nothing is attached once the program has closed what it has."""
    client.create_producer("topic").close()
    topic = client._core.store.use_topic("topic").topic
    subscription = topic.subscription("sub", True)

    def producer() -> None:
        client.create_producer("topic").close()

    def consumer() -> None:
        client.subscribe("topic", "sub", ConsumerType[kind]).close()

    action: Callable[[], None] = producer if kind == "producer" else consumer
    index, is_within = 0, True
    while is_within:
        with contextlib.suppress(KeyboardInterrupt):
            is_within = strike(action, interrupt, index, within)
        close_all(client)
        assert not topic.producers(), f"instruction {index}"
        assert not subscription.consumers(), f"instruction {index}"
        index += step


@pytest.mark.usefixtures("small_heap")
@pytest.mark.parametrize(
    ("within", "step"),
    [("client", 17), ("_engine/store/topic.py", 2), ("_engine/subscription/subscription.py", 2)],
)
@pytest.mark.parametrize(
    "kind", ["producer", "partitions", "Exclusive", "Shared", "several", "reader", "table view"]
)
def test_what_is_interrupted_is_detached_at_once(client: Any, kind: str, within: str, step: int):
    """The program still has the traceback, as a notebook has: nothing waits for the end of its frames, or for
    the collector."""
    client.create_producer("topic").close()
    admin = pulsar.Admin(client.get_service_info().service_url)
    admin.topics().create_partitioned_topic("parts", 2)
    use = client._core.store.use_topic("topic")
    topic, subscription = use.topic, use.topic.subscription("sub", True)
    parts = [client._core.store.use_topic(f"parts-partition-{number}") for number in range(2)]
    opened: list[Any] = []
    openings: dict[str, Callable[[], Any]] = {
        "producer": lambda: client.create_producer("topic", "name"),
        "partitions": lambda: client.create_producer("parts", "name"),
        "several": lambda: client.subscribe(["topic", "parts"], "sub"),
        "reader": lambda: client.create_reader("topic", pulsar.MessageId.earliest),
        "table view": lambda: client.create_table_view("topic"),
    }
    make = openings.get(kind) or (lambda: client.subscribe("topic", "sub", ConsumerType[kind]))
    kept: list[BaseException] = []
    index, is_within = 0, True
    gc.disable()
    try:
        while is_within:
            try:
                is_within = strike(lambda: opened.append(make()), interrupt, index, within)
            except KeyboardInterrupt as error:
                kept[:] = [error]
            while opened:
                opened.pop().close()
            assert not topic.producers(), f"instruction {index}"
            assert not subscription.consumers(), f"instruction {index}"
            assert not any(part.topic.producers() for part in parts), f"instruction {index}"
            assert not client._made, f"instruction {index}"
            assert not client._core._publishers, f"instruction {index}"
            index += step
    finally:
        gc.enable()
    assert kept or within != "client"
    for one in (use, *parts):
        one.release()
    admin.close()


@pytest.mark.parametrize("kind", ["Exclusive", "producer", "exclusive producer"])
def test_busy_names_the_holder_in_this_process(client: Any, kind: str):
    """The error says that it is this very process, which object and thread, and what to do."""
    here = "; attached: 'first' by the thread 'MainThread' of this very process$"
    if kind == "Exclusive":
        client.subscribe("topic", "sub", consumer_name="first")
        with pytest.raises(
            pulsar.ConsumerBusy, match=r"'first' of this very process .* since 20.*; close it.*" + here
        ):
            client.subscribe("topic", "sub")
    elif kind == "producer":
        first = client.create_producer("topic", "first")
        with pytest.raises(pulsar.ProducerBusy, match="'first' is connected by this very process.*" + here):
            client.create_producer("topic", "first")
        first.close()
    else:
        first = client.create_producer("topic", "first", access_mode=pulsar.ProducerAccessMode.Exclusive)
        with pytest.raises(pulsar.ProducerBusy, match="'first' of this very process; close it.*" + here):
            client.create_producer("topic")
        with pytest.raises(pulsar.ProducerFenced, match="'first' of this very process; close it.*" + here):
            client.create_producer("topic", access_mode=pulsar.ProducerAccessMode.Exclusive)
        first.close()


@pytest.mark.parametrize("part", ["Workers", "Flusher", "PartitionWatch", "WaitingThreads"])
def test_an_interrupted_client_gives_the_store_back(monkeypatch: pytest.MonkeyPatch, part: str):
    """Wherever it is interrupted once it has the store, and while the program has the traceback."""

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(client_core, part, interrupted)
    with pytest.raises(KeyboardInterrupt) as kept:
        pulsar.Client("memory://interrupted")
    assert kept.traceback
    assert "memory://interrupted" not in REGISTRY.in_memory
