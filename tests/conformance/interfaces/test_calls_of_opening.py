"""How many functions an opening passes: of a store, of a topic in it, of a consumer and of a reader.

And closing a consumer, and looking at a topic.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import embeddedpulsar
from embeddedpulsar import Admin, Client, ConsumerType, MessageId

PACKAGE = str(Path(embeddedpulsar.__file__).parent)


def counted(action: Callable[[], object]) -> Counter[str]:
    """How often each function was called; those that are written in C by their names alone."""
    calls: Counter[str] = Counter()

    def note(frame: Any, event: str, function: Any) -> None:
        if event == "call":
            calls[frame.f_code.co_qualname] += 1
        elif event == "c_call":
            calls[function.__name__] += 1

    gc.collect()
    gc.disable()  # no finalizer is counted
    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls


def fewest(action: Callable[[], object]) -> Counter[str]:
    """Of several times: a call now and then does what is due every 10 ms."""
    return min((counted(action) for _ in range(5)), key=lambda calls: sum(calls.values()))


def walked(action: Callable[[], object]) -> tuple[int, int]:
    """How many functions of the package were called, and in how many files; of five times, the fewest."""
    walks = []
    for _ in range(5):
        files: list[str] = []

        def note(frame: Any, event: str, function: Any, files: list[str] = files) -> None:
            if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
                files.append(frame.f_code.co_filename)

        gc.collect()
        gc.disable()
        sys.setprofile(note)
        try:
            action()
        finally:
            sys.setprofile(None)
            gc.enable()
        walks.append((len(files), len(set(files))))
    return min(walks)


@pytest.fixture
def path(store_path: Path) -> str:
    """A store with a topic, a message and a subscription."""
    with Client(store_path) as client:
        with client.create_producer("t") as producer:
            producer.send(b"x")
        client.subscribe("t", "s").close()
    return str(store_path)


@pytest.mark.linux("the calls that are counted")
def test_an_opening_of_a_store_opens_few_files(path: str):
    """The store, its four files and the FIFO: nothing that is seldom there is tried, and that no link was
    followed is proved once. The catalog is read: damage in it has to be known before topics are made."""
    Client(path).close()
    calls = fewest(lambda: Client(path).close())
    assert calls["open"] <= 12, calls
    assert calls["listdir"] <= 3, calls  # the store, what is being made, and the processes
    assert calls["readlink"] <= 2, calls  # another to close
    assert sum(calls.values()) <= 1110, calls


def test_an_opening_of_a_topic_passes_few_functions(path: str):
    """With a store and a reader; the first time in a process, what the mounts are is read once."""

    def open_and_look() -> None:
        with Client(path) as client, client.create_reader("t", MessageId.latest) as reader:
            assert not reader.has_message_available()

    open_and_look()
    calls = fewest(open_and_look)
    assert not calls["filesystem_type"], calls
    assert sum(calls.values()) <= 2150, calls


def test_a_consumer_opens_nothing(path: str):
    """In a process that has the subscription open, and if it acknowledges nothing: two records, no file."""
    with Client(path) as client:
        client.subscribe("t", "s").close()
        client.subscribe("t", "s").close()
        calls = fewest(lambda: client.subscribe("t", "s").close())
        assert not calls["open"] and not calls["listdir"], calls
        assert calls["pwritev"] == 2, calls
        assert sum(calls.values()) <= 880, calls  # with room for the depth of the temporary directory


def test_a_reader_reads_no_file(path: str):
    """In a process that has the topic open."""
    with Client(path) as client, client.create_reader("t", MessageId.latest):
        client.create_reader("t", MessageId.latest).close()
        calls = fewest(lambda: client.create_reader("t", MessageId.latest).close())
        assert not calls["open"] and not calls["pread"], calls
        assert calls["lstat"] == 1, calls  # whether the topic is in its place
        assert sum(calls.values()) <= 245, calls


def test_policies_of_a_namespace_are_read_once(path: str):
    """However many topics are opened, until one of them is changed in any process."""
    with Client(path) as client:
        for name in ("t1", "t2"):
            client.create_producer(name).close()
        calls = counted(lambda: client.create_producer("t3").close())
        few = counted(lambda: client.create_producer("t3").close())
        assert calls["_read"] == 1, calls  # that of the topic itself
        assert not few["_read"], few


def test_a_first_message_passes_few_functions(path: str):
    """To a topic that is made for it, with its directory, ledger and journal."""
    with Client(path) as client:

        def send(name: str) -> None:
            with client.create_producer(name) as producer:
                producer.send(b"x")

        send("t0")
        calls = min((counted(partial(send, f"t{n}")) for n in range(1, 6)), key=lambda calls: calls.total())
        assert calls["listdir"] <= 6 and calls["fstat"] <= 34, calls
        assert calls["readlink"] <= 16, calls
        assert calls.total() <= 2150, calls


@pytest.mark.linux("the calls that are counted")
def test_a_new_subscription_passes_few_functions(path: str):
    """Its directory, lock, control words and journal are made, and a consumer is attached."""
    with Client(path) as client, client.create_producer("t"):
        made = [client.subscribe("t", "first", ConsumerType.Shared)]

        def subscribe() -> None:
            made.append(client.subscribe("t", f"n{len(made)}", ConsumerType.Shared))

        assert walked(subscribe) <= (535, 74)


def test_closing_a_consumer_passes_few_functions(path: str):
    """Its acknowledgements are written, and the others of its subscription learn that it left."""
    with Client(path) as client:
        consumers = [client.subscribe("t", f"n{number}", ConsumerType.Shared) for number in range(6)]
        consumers.pop().close()
        assert walked(lambda: consumers.pop().close()) <= (168, 46)


def test_a_producer_of_an_open_topic_passes_few_functions(path: str):
    """It is admitted beside others, and gets its limits and sequence ids."""
    with Client(path) as client, client.create_producer("t"):
        made = [client.create_producer("t")]  # kept: dropping one closes it, which is counted, too
        assert walked(lambda: made.append(client.create_producer("t"))) <= (175, 40)


def test_closing_a_producer_passes_few_functions(path: str):
    """It leaves the table of its topic, in which there are others of this process."""
    with Client(path) as client, client.create_producer("t"):
        producers = [client.create_producer("t") for _ in range(6)]
        producers.pop().close()
        assert walked(lambda: producers.pop().close()) <= (67, 21)


def test_a_look_at_a_topic_determines_its_end_once(path: str):
    """With four subscriptions, three of which have a backlog: each adds one look into the index at most."""
    with Client(path) as client, Admin(path) as admin, client.create_producer("t") as producer:
        for name in ("s1", "s2"):
            client.subscribe("t", name).close()
        producer.send(b"x")
        client.subscribe("t", "new", ConsumerType.Shared)
        topics = admin.topics()
        topics.get_stats("t")
        assert walked(lambda: topics.get_stats("t")) <= (400, 40)
        for name in ("s", "s1", "s2"):
            assert topics.get_stats("t").subscriptions[name].msg_backlog >= 1
