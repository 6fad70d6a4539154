"""Table views: the last value of each key of a topic, sync and asyncio."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Mapping
from typing import Any

import pytest

import embeddedpulsar.asyncio as asyncio_client
from embeddedpulsar import (
    Admin,
    AlreadyClosed,
    BytesSchema,
    Client,
    InvalidTopicName,
    MessageId,
    StringSchema,
    TableView,
    TopicNotFound,
)
from embeddedpulsar.client.consumer.delivery import Delivery
from embeddedpulsar.schema import Int32Schema, SchemaInfo
from tests.children import in_child


class Evolving(BytesSchema):
    """Needs to know with which version a value was written."""

    def decode_written(self, data: bytes, writer: SchemaInfo | None) -> bytes:
        return data


def send(
    client: Client, *pairs: tuple[str | None, bytes | None], topic: str = "prices", **options: Any
) -> None:
    """Store messages: a key or None, and a value."""
    with client.create_producer(topic, **options) as producer:
        for key, value in pairs:
            producer.send(value, partition_key=key)  # type: ignore[arg-type]


def content(view: Any) -> dict[str, Any]:
    """What `for_each` passes."""
    found: dict[str, Any] = {}
    view.for_each(found.__setitem__)
    return found


def wait_for(view: Any, expected: dict[str, Any]) -> None:
    """Wait until the view has this content."""
    changes: queue.Queue[str] = queue.Queue()
    view.for_each_and_listen(lambda key, value: changes.put(key))
    while content(view) != expected:
        changes.get(timeout=30)


@pytest.mark.in_memory
def test_the_last_value_of_each_key(client):
    """What is there when the view is made; the other values are gone."""
    send(client, ("tea", b"1"), ("soup", b"2"), ("tea", b"3"))
    view = client.create_table_view("prices")
    assert isinstance(view, TableView)
    assert (view.get("tea"), view.get("soup"), view.get("milk")) == (b"3", b"2", None)
    assert content(view) == {"tea": b"3", "soup": b"2"}
    assert len(view) == 2 and list(view) == ["tea", "soup"] and "tea" in view and "milk" not in view


def test_null_and_empty_values_remove_their_key(client):
    """As in Pulsar: both have no payload. A key may come back."""
    send(client, ("a", b"1"), ("b", b"1"), ("c", b"1"), ("a", None), ("b", b""), ("c", None), ("c", b"2"))
    view = client.create_table_view("prices")
    assert content(view) == {"c": b"2"}
    send(client, ("c", None), ("d", b"1"), ("nothing", None))
    wait_for(view, {"d": b"1"})


def test_messages_without_a_key_are_ignored(client):
    """At the beginning and later; an empty key is none."""
    send(client, (None, b"1"), ("", b"2"), ("a", b"3"))
    view = client.create_table_view("prices")
    send(client, (None, b"4"), ("b", b"5"))
    wait_for(view, {"a": b"3", "b": b"5"})


@pytest.mark.parametrize("options", [{}, {"batching_enabled": True}, {"chunking_enabled": True}])
def test_batches_and_chunks(client, options):
    """Messages are taken out of batches, and put together from chunks."""
    if "chunking_enabled" in options:
        options = {**options, "chunk_max_message_size": 10}
    with client.create_producer("prices", **options) as producer:
        for i in range(100):
            producer.send_async(b"value %d" % i * 3, None, partition_key=f"k{i % 7}")
    view = client.create_table_view("prices")
    assert content(view) == {f"k{i % 7}": b"value %d" % i * 3 for i in range(100)}


def test_partitions(client):
    """All of them, also those that are added later."""
    store: Any = client._core.store
    store.topics.create_partitioned("prices", 3)
    send(client, *((f"k{i}", b"1") for i in range(20)))
    view = client.create_table_view("prices")
    assert content(view) == {f"k{i}": b"1" for i in range(20)}
    store.grow_partitions("prices", 5)
    client._core.partition_watch.report_changes()
    send(client, *((f"k{i}", b"2") for i in range(20)))
    wait_for(view, {f"k{i}": b"2" for i in range(20)})


def test_a_schema_decodes_on_access(client):
    """A value that cannot be decoded is an error of the call that asks for it."""
    client.create_producer("prices", schema=StringSchema()).close()
    send(client, ("a", b"1"), ("b", b"\xff"))
    view = client.create_table_view("prices", schema=StringSchema())
    assert view.get("a") == "1"
    with pytest.raises(UnicodeDecodeError):
        view.get("b")
    with pytest.raises(UnicodeDecodeError):
        view.for_each(lambda key, value: None)


def test_listening_passes_what_is_there_and_then_every_change(client):
    """In the order of the topic, removals with None; several callbacks, each complete."""
    send(client, ("a", b"1"), ("b", b"1"))
    view = client.create_table_view("prices")
    first: queue.Queue[tuple[str, bytes | None]] = queue.Queue()
    second: queue.Queue[tuple[str, bytes]] = queue.Queue()
    view.for_each_and_listen(lambda key, value: first.put((key, value)))
    assert [first.get_nowait(), first.get_nowait()] == [("a", b"1"), ("b", b"1")]
    send(client, ("a", b"2"), ("a", None))
    assert [first.get(timeout=30), first.get(timeout=30)] == [("a", b"2"), ("a", None)]
    view.for_each_and_listen(lambda key, value: second.put((key, value)))
    send(client, ("c", b"1"))
    assert [second.get(timeout=30), second.get(timeout=30)] == [("b", b"1"), ("c", b"1")]
    assert first.get(timeout=30) == ("c", b"1")


def test_no_change_is_lost_while_a_callback_gets_what_is_there(client):
    """Changes that come meanwhile follow, once, in order."""
    send(client, *((f"k{i}", b"0") for i in range(3)))
    view = client.create_table_view("prices")
    found = []

    def listen(key: str, value: bytes) -> None:
        if not found:
            send(client, ("k1", b"1"), ("k1", b"2"))
            wait_for(view, {"k0": b"0", "k1": b"2", "k2": b"0"})
        found.append((key, value))

    view.for_each_and_listen(listen)
    assert found == [("k0", b"0"), ("k1", b"0"), ("k2", b"0"), ("k1", b"1"), ("k1", b"2")]


def test_a_callback_that_fails(client, caplog):
    """For what is there, the caller gets the error and nothing is listened to; later errors are logged."""
    send(client, ("a", b"1"))
    view = client.create_table_view("prices")

    def fail(key: str, value: bytes) -> None:
        raise ValueError("no")

    for call in (view.for_each, view.for_each_and_listen):
        with pytest.raises(ValueError, match="no"):
            call(fail)
    assert not view._listeners
    send(client, ("a", None))
    wait_for(view, {})
    done = threading.Event()
    with caplog.at_level(logging.ERROR, logger="embeddedpulsar"):
        view.for_each_and_listen(fail)
        view.for_each_and_listen(lambda key, value: done.set())
        send(client, ("b", b"1"))
        assert done.wait(30)
    wait_for(view, {"b": b"1"})
    assert "failed on the key 'b'" in caplog.text


def test_nothing_is_missed_between_loading_and_following(client):
    """A producer sends all the time while views are made."""
    stop = threading.Event()
    last = [0]

    def produce() -> None:
        with client.create_producer("prices") as producer:
            while not stop.is_set():
                last[0] += 1
                producer.send(b"%d" % last[0], partition_key=f"k{last[0]}")

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        views = [client.create_table_view("prices") for _ in range(10)]
    finally:
        stop.set()
        thread.join()
    expected = {f"k{i}": b"%d" % i for i in range(1, last[0] + 1)}
    for view in views:
        wait_for(view, expected)


@pytest.mark.parametrize("schema", [BytesSchema(), Evolving()], ids=["plain", "versioned"])
def test_a_view_does_not_run_after_a_producer(client, monkeypatch, schema):
    """It loads what is there when it is made, and follows from there on, while another message is stored
    whenever it looks for one."""
    poll, sent, loading = Delivery.poll, 0, threading.current_thread()
    with client.create_producer("prices") as producer:
        for number in range(3):
            producer.send(b"%d" % number, partition_key=f"k{number}")

        def poll_after_a_send(self, take):
            nonlocal sent
            if threading.current_thread() is loading:  # another follows, perhaps before the patch ends
                assert sent < 10, "it never ends"
                producer.send(b"more", partition_key=f"m{sent}")
                sent += 1
            return poll(self, take)

        with monkeypatch.context() as patched:
            patched.setattr(Delivery, "poll", poll_after_a_send)
            view = client.create_table_view("prices", schema=schema)
            assert len(view) >= 3 and sent <= 4
    wait_for(view, {"k0": b"0", "k1": b"1", "k2": b"2"} | {f"m{number}": b"more" for number in range(sent)})


def test_its_text(client):
    """That of pulsar-client."""
    assert str(client.create_table_view("prices")) == "TableView(topic=prices)"
    view = client.create_table_view("prices", "mine")
    assert repr(view) == str(view) == "TableView(topic=prices, subscription=mine)"


def test_close(client):
    """The content stays, and changes no more; nothing is left in the client."""
    send(client, ("a", b"1"))
    with client.create_table_view("prices") as view:
        pass
    send(client, ("a", b"2"))
    assert view.get("a") == b"1"
    with pytest.raises(AlreadyClosed):
        view.close()
    assert not client._core._consumers and not client._made


def test_a_closed_client_or_a_deleted_topic(client):
    """The view keeps its content. The first `close` is no error."""
    send(client, ("a", b"1"))
    deleted, view = client.create_table_view("prices"), client.create_table_view("others")
    store: Any = client._core.store
    store.delete_topic("prices", force=True)
    deleted.close()
    client.close()
    view.close()
    assert deleted.get("a") == b"1" and len(view) == 0
    with pytest.raises(AlreadyClosed):
        client.create_table_view("prices")


def test_bad_arguments(client):
    """The texts of pulsar-client; names that cannot be topics."""
    for arguments in ((5,), ("t", 5), ("t", None, str)):
        with pytest.raises(ValueError, match="is expected to be "):
            client.create_table_view(*arguments)
    with pytest.raises(InvalidTopicName):
        client.create_table_view("a/b")
    with pytest.raises(TopicNotFound):
        client.create_table_view("none/none/t")


def test_a_view_has_no_subscription(client):
    """It holds nothing back; its name is that of the reader."""
    send(client, ("a", b"1"))
    view = client.create_table_view("prices", "mine")
    use = client._core.store.use_topic("prices")
    assert use.topic.subscriptions() == [] and use.topic.consumers() == []
    use.release()
    assert "mine" in repr(view._reader)


def test_many_keys_in_batches(client):
    """Whole batches with a million keys are read in about a second; here are fewer."""
    keys = [f"key-{i}" for i in range(20_000)]
    with client.create_producer("prices", batching_enabled=True) as producer:
        producer.send_many([key.encode() for key in keys], partition_keys=keys)
    view = client.create_table_view("prices")
    assert content(view) == {key: key.encode() for key in keys}


def test_a_forked_child_keeps_the_content(client, store_path):
    """It changes no more there; the parent's view does."""
    send(client, ("a", b"1"))
    view = client.create_table_view("prices")

    def child() -> None:
        assert content(view) == {"a": b"1"}
        with pytest.raises(AlreadyClosed):
            view.close()

    in_child(child)
    send(client, ("a", b"2"))
    wait_for(view, {"a": b"2"})


def test_asyncio(run):
    """The same for coroutines; callbacks run in the loop."""

    async def main(client: asyncio_client.Client) -> None:
        await (await client.create_producer("prices", schema=StringSchema())).close()
        producer = await client.create_producer("prices")
        await producer.send(b"1", partition_key="a")
        found: asyncio.Queue[tuple[str, str | None, int]] = asyncio.Queue()
        async with await client.create_table_view("prices", "mine", StringSchema()) as view:
            view.for_each_and_listen(lambda key, value: found.put_nowait((key, value, threading.get_ident())))
            await producer.send(b"2", partition_key="b")
            await producer.send(None, partition_key="a")
            here = threading.get_ident()
            expected = [("a", "1", here), ("b", "2", here), ("a", None, here)]
            assert [await asyncio.wait_for(found.get(), 30) for _ in range(3)] == expected
            assert content(view) == {"b": "2"} and view.get("b") == "2" and list(view) == ["b"]
            assert len(view) == 1 and "b" in view and "a" not in view
            assert str(view) == "TableView(topic=prices, subscription=mine)"
        with pytest.raises(AlreadyClosed):
            await view.close()

    run(main)


def test_a_view_is_a_mapping(client):
    """As a dict: also compared, iterated while it changes, and with values that are falsy."""
    send(client, ("a", b"1"), ("b", b"2"), ("c", b"0"))
    view = client.create_table_view("prices")
    assert isinstance(view, Mapping)
    assert view == {"a": b"1", "b": b"2", "c": b"0"} == view
    assert view != {"a": b"1"}
    assert dict(view) == {**view} == dict(view.items()) == content(view)
    assert (set(view.keys()), sorted(view.values())) == ({"a", "b", "c"}, [b"0", b"1", b"2"])
    assert view.keys() & {"a", "z"} == {"a"}
    assert ("a", b"1") in view.items()
    assert ("z", b"1") not in view.items()
    assert (b"2" in view.values(), b"9" in view.values()) == (True, False)
    assert (view["a"], view.get("z"), view.get("z", b"9"), view.get("a", b"9")) == (b"1", None, b"9", b"1")
    with pytest.raises(KeyError, match="z"):
        view["z"]
    items, values, keys = iter(view.items()), iter(view.values()), iter(view)
    first = next(items), next(values), next(keys)
    send(client, ("a", None), ("b", None), ("c", None), ("d", b"3"))
    wait_for(view, {"d": b"3"})
    assert dict([first[0], *items]) == {"a": b"1", "b": b"2", "c": b"0"}
    assert sorted([first[1], *values]) == [b"0", b"1", b"2"]
    assert sorted([first[2], *keys]) == ["a", "b", "c"]
    assert {view: 1}[view] == 1
    match view:
        case {"d": price}:
            assert price == b"3"
        case _:
            pytest.fail("no mapping")


def test_a_view_of_a_value_that_is_none_or_false(client):
    """A value that a schema decodes to a falsy one is there."""
    producer = client.create_producer("prices", schema=Int32Schema())
    producer.send(0, partition_key="a")
    view = client.create_table_view("prices", schema=Int32Schema())
    assert (view["a"], view.get("a", 5), "a" in view, dict(view)) == (0, 0, True, {"a": 0})


def test_a_view_of_coroutines_is_a_mapping(run):
    """It has the content of the blocking view."""

    async def main(client: asyncio_client.Client) -> None:
        await (await client.create_producer("prices")).send(b"1", partition_key="a")
        view = await client.create_table_view("prices")
        assert isinstance(view, Mapping)
        assert view == {"a": b"1"} == dict(view)
        assert (list(view.keys()), list(view.values()), list(view.items())) == (["a"], [b"1"], [("a", b"1")])
        assert (view["a"], view.get("z", b"9"), len(view), "a" in view) == (b"1", b"9", 1, True)
        assert {view: 1}[view] == 1

    run(main)


@pytest.mark.parametrize("topics", [1, 3])
def test_for_and_async_for_over_a_reader_are_alike(client, run, store_url, topics):
    """Both end at the end of the topic, go on from there later, and end for a closed reader."""
    if topics > 1:
        with Admin(store_url) as admin:
            admin.topics().create_partitioned_topic("lines", topics)
    send(client, *((str(number), b"%d" % number) for number in range(200)), topic="lines")
    reader = client.create_reader("lines", MessageId.earliest)
    got = [[message.data() for message in reader] for _ in range(2)]
    send(client, ("a", b"new"), topic="lines")
    got.append([message.data() for message in reader])
    reader.close()
    got.append([message.data() for message in reader])
    assert [sorted(part) for part in got] == [
        sorted(b"%d" % number for number in range(200)),
        [],
        [b"new"],
        [],
    ]

    async def main(asynchronous: asyncio_client.Client) -> None:
        reader = await asynchronous.create_reader("lines", MessageId.earliest)
        turns: list[int] = []
        loop = asyncio.get_running_loop()

        def count() -> None:
            """Note a turn of the loop, and ask for another one."""
            turns.append(loop.call_soon(count).cancelled())

        loop.call_soon(count)
        got = [[message.data() async for message in reader] for _ in range(2)]
        assert len(turns) > 2
        await (await asynchronous.create_producer("lines")).send(b"newer")
        got.append([message.data() async for message in reader])
        await reader.close()
        got.append([message.data() async for message in reader])
        expected = sorted([*(b"%d" % number for number in range(200)), b"new"])
        assert [sorted(part) for part in got] == [expected, [], [b"newer"], []]

    run(main)
