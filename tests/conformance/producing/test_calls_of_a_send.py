"""How many Python functions, in how many files, a message passes on its way into the log."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from embeddedpulsar import BatchingType, StringSchema
from tests.conformance.conftest import Topic

NEVER_MS = 3_600_000


def calls_of(function: Callable[[], object]) -> list[tuple[str, str]]:
    """File and name of every Python function that ``function`` calls in this thread."""
    calls: list[tuple[str, str]] = []

    def note(frame: Any, event: str, argument: object) -> None:
        if event == "call":
            calls.append((frame.f_code.co_filename, frame.f_code.co_qualname))

    previous = sys.getprofile()
    try:
        sys.setprofile(note)
        function()
    finally:
        sys.setprofile(previous)
    return calls


def files_of(calls: list[tuple[str, str]]) -> set[str]:
    """The files of the calls."""
    return {file for file, _ in calls}


@pytest.mark.parametrize(
    ("options", "more"),
    [({}, 0), ({"durability": "interval"}, 1), ({"schema": StringSchema()}, 1)],
    ids=["plain", "interval", "schema"],
)
@pytest.mark.parametrize("way", ["send", "send_async"])
def test_a_keyed_message_passes_few_functions(topic: Topic, options: dict[str, Any], more: int, way: str):
    """`send`: at most 7 calls in 6 files, `send_async` 15 in 7, besides those of a codec or a timer."""
    value: Any = "x" if "schema" in options else b"x"
    with topic.producer(**options) as producer:

        def send() -> None:
            if way == "send":
                producer.send(value, {"kind": "new"}, "key")
            else:
                producer.send_async(value, None, {"kind": "new"}, "key")

        send()
        # The fewest of several: every 10 ms an append looks whether the topic is still in its place.
        calls = min((calls_of(send)[1:] for _ in range(10)), key=len)
        if "schema" in options:
            most, files = (17, 10) if way == "send" else (19, 9)  # the options are checked apart
        else:
            most, files = (7 + 3 * more, 6 + 2 * more) if way == "send" else (15 + 3 * more, 7 + 2 * more)
        assert len(calls) <= most, calls
        assert len(files_of(calls)) <= files, files_of(calls)


@pytest.mark.parametrize("way", ["send", "send_async"])
def test_a_message_with_an_ordering_key_and_an_event_time_passes_few_functions(topic: Topic, way: str):
    """No more than one with a key and properties."""
    more: dict[str, Any] = {"ordering_key": "o", "event_timestamp": 5, "properties": {"kind": "new"}}
    with topic.producer() as producer:

        def send() -> None:
            if way == "send":
                producer.send(b"x", partition_key="key", **more)
            else:
                producer.send_async(b"x", None, partition_key="key", **more)

        send()
        calls = min((calls_of(send)[1:] for _ in range(10)), key=len)
        assert len(calls) <= (7 if way == "send" else 18), calls


@pytest.mark.parametrize("batching", [False, True])
@pytest.mark.parametrize("key", [None, "key"])
def test_a_send_with_nothing_queued_passes_few_functions(topic: Topic, batching: bool, key: str | None):
    """At most 5 calls in 5 files, one more with a key: a batching producer appends it at once as well."""
    options = {"batching_enabled": batching, "batching_max_publish_delay_ms": NEVER_MS}
    with topic.producer(**options) as producer:
        producer.send(b"x", partition_key=key)
        calls = min(
            (calls_of(lambda: producer.send(b"x", partition_key=key))[1:] for _ in range(10)), key=len
        )
        assert len(calls) <= 5 + (key is not None), calls
        assert len(files_of(calls)) <= 5, files_of(calls)


def test_a_send_behind_a_batch_passes_few_functions(topic: Topic):
    """At most 65 in 16 files: it joins the batch, which is stored."""
    with topic.producer(batching_enabled=True, batching_max_publish_delay_ms=NEVER_MS) as producer:
        calls = []
        for _ in range(10):
            producer.send_async(b"x", None, partition_key="key")
            calls.append(calls_of(lambda: producer.send(b"x", partition_key="key"))[1:])
        fewest = min(calls, key=len)
        assert len(fewest) <= 65, fewest
        assert len(files_of(fewest)) <= 16, files_of(fewest)


@pytest.mark.parametrize("key", [None, "key"])
@pytest.mark.parametrize("callback", [None, lambda result, sent: None], ids=["without", "with callback"])
@pytest.mark.parametrize("count", [2, 500])
def test_a_batch_passes_few_functions(topic: Topic, callback: Any, count: int, key: str | None):
    """The message that fills it: at most 40 calls for any number of messages, and 4 for their callbacks."""
    options = {"batching_enabled": True, "batching_max_publish_delay_ms": NEVER_MS}
    with topic.producer(**options, batching_max_messages=count) as producer:
        calls = []
        for _ in range(4):
            for _ in range(count - 1):
                producer.send_async(b"x", callback, partition_key=key)
            calls.append(calls_of(lambda: producer.send_async(b"x", callback, partition_key=key))[1:])
            producer.flush()
        fewest = min(calls, key=len)
        assert len(fewest) <= (40 if callback is None else 44), fewest
        assert len(files_of(fewest)) <= (12 if callback is None else 15), files_of(fewest)


def test_a_flush_with_a_batch_passes_few_functions(topic: Topic):
    """At most 35, if there is no callback to be waited for."""
    with topic.producer(batching_enabled=True, batching_max_publish_delay_ms=NEVER_MS) as producer:
        calls = []
        for _ in range(10):
            producer.send_async(b"x", None)
            producer.send_async(b"x", None)
            calls.append(calls_of(producer.flush)[1:])
        assert len(min(calls, key=len)) <= 35, min(calls, key=len)


def test_a_message_of_a_batch_passes_one_function(topic: Topic):
    """It joins the batch in the call itself."""
    with topic.producer(batching_enabled=True, batching_max_publish_delay_ms=NEVER_MS) as producer:
        producer.send_async(b"x", None)
        assert len(calls_of(lambda: producer.send_async(b"x", None))[1:]) == 1


@pytest.mark.parametrize("size", [131, 132, 300, 1000])
def test_few_messages_of_a_batch_are_measured(topic: Topic, size: int):
    """Also if a thousand of them would not fit: nine of ten pass one function."""
    options = {"batching_enabled": True, "batching_max_publish_delay_ms": NEVER_MS}
    with topic.producer(**options) as producer:
        for _ in range(300):
            producer.send_async(bytes(size), None)
        calls = [calls_of(lambda: producer.send_async(bytes(size), None))[1:] for _ in range(300)]
        assert sum(len(one) > 1 for one in calls) <= 30
        producer.flush()


@pytest.mark.parametrize("more", [{}, {"properties": {"kind": "new"}, "event_timestamp": 5}])
def test_a_batch_by_key_passes_few_functions_a_key(topic: Topic, more: dict[str, Any]):
    """At most fourteen for each of a hundred keys, besides those of the flush."""
    options = {"batching_enabled": True, "batching_max_publish_delay_ms": NEVER_MS}
    with topic.producer(**options, batching_type=BatchingType.KeyBased) as producer:
        producer.send(b"warm")
        found = []
        for _ in range(4):
            for number in range(100):
                producer.send_async(b"x", None, partition_key=f"key-{number}", **more)
            found.append(len(calls_of(producer.flush)[1:]))
        # The fewest: an append looks every 10 ms whether the topic is still in its place, which is several
        # times in a flush on a slow machine.
        assert min(found) <= 100 * 14 + 60, found


def test_a_close_passes_few_functions(topic: Topic):
    """At most 90 in 28 files, most of them for the record in the topic's journal."""
    with topic.producer():
        calls = []
        for _ in range(5):
            producer = topic.producer()
            producer.send(b"x")
            calls.append(calls_of(producer.close)[1:])
        fewest = min(calls, key=len)
        assert len(fewest) <= 90, fewest
        assert len(files_of(fewest)) <= 28, files_of(fewest)
