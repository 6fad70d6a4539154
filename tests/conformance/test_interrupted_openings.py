"""Ctrl-C in the middle of opening and closing: what the program did not get is detached."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import embeddedpulsar as pulsar
from embeddedpulsar import ConsumerType
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
    ("within", "step"), [("client", 31), ("topic/topic.py", 2), ("subscription/subscription.py", 2)]
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
