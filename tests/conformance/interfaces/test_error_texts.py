"""What a new user does wrong gets an error that names the thing, the reason and the remedy."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import embeddedpulsar as pulsar
from embeddedpulsar import Admin, Client, ConsumerType, InitialPosition, StringSchema
from embeddedpulsar._engine.store import store_root
from tests.children import ROOT

CONSUMER_TYPES = (
    "write ConsumerType.Exclusive, ConsumerType.Shared, ConsumerType.Failover or ConsumerType.KeyShared"
)


@pytest.mark.parametrize(
    ("schema", "content", "remedy"),
    [
        (
            None,
            "one tea",
            "encode the text: send(text.encode()), or create the producer with schema=StringSch",
        ),
        (None, {"kind": "tea"}, "json.dumps(value).encode()"),
        (None, bytearray(b"tea"), "copy it: send(bytes(data))"),
        (StringSchema(), b"tea", "create the producer without it"),
    ],
)
def test_a_payload_of_the_wrong_type(client: Client, schema: Any, content: Any, remedy: str):
    """The text of pulsar-client, and then how to send it. The producer stays usable."""
    producer = client.create_producer("orders", **({"schema": schema} if schema else {}))
    with pytest.raises(TypeError, match="Invalid record obj of type") as caught:
        producer.send(content)
    assert remedy in str(caught.value)
    assert producer.is_connected()


@pytest.mark.parametrize("wrong", ["Shared", 1, InitialPosition.Latest, None])
def test_a_wrong_enum(client: Client, wrong: Any):
    """The members are listed."""
    with pytest.raises(ValueError, match=CONSUMER_TYPES):
        client.subscribe("orders", "kitchen", wrong)


def test_a_wrong_enum_elsewhere(client: Client):
    """In every place that takes one."""
    with pytest.raises(TypeError, match=r"write PartitionsRoutingMode.UseSinglePartition, "):
        client.create_producer("orders", message_routing_mode=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"write CompressionType.NONE, CompressionType.LZ4, "):
        client.create_producer("orders", compression_type="lz4")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"write KeySharedMode.AutoSplit or KeySharedMode.Sticky"):
        pulsar.ConsumerKeySharedPolicy(1)  # type: ignore[arg-type]


def test_the_documented_name_of_key_shared_works(client: Client):
    """`ConsumerType.Key_Shared` subscribes as KeyShared does."""
    consumer = client.subscribe("orders", "kitchen", ConsumerType.Key_Shared)
    assert client.subscribe("orders", "kitchen", ConsumerType.KeyShared).is_connected()
    assert consumer.is_connected()


@pytest.mark.parametrize("wrong", [None, 5, b"./data", ["./data"]])
def test_no_directory(wrong: Any):
    """`Client(None)`, as after a missing environment variable: what was given, and what may be."""
    with pytest.raises(ValueError, match="service_url is expected to be of type 'str'") as caught:
        Client(wrong)
    assert f"and not {wrong!r}; write a directory, as './data'" in str(caught.value)


@pytest.mark.parametrize("path", ["C:\\data", "C:/data", "data\\orders", "\\\\server\\share"])
@pytest.mark.parametrize(("system", "remedy"), [("posix", "/srv/data"), ("nt", "pathlib.Path(")])
def test_a_path_of_windows(path: str, system: str, remedy: str, monkeypatch: pytest.MonkeyPatch):
    """It is no scheme: how a directory is written on this system."""
    monkeypatch.setattr(store_root.os, "name", system)
    with pytest.raises(ValueError, match="The scheme part is missing") as caught:
        store_root.ServiceUrl.parse(path)
    assert remedy in str(caught.value)


@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        ("data", "for a directory write ./data"),
        ("", "for a directory write ./"),
        ("localhost:6650", "for a cluster, connect('pulsar://localhost:6650')"),
        ("pulsar://localhost:6650", "use embeddedpulsar.connect(url)"),
    ],
)
def test_a_url_of_something_else(url: str, remedy: str):
    """What to write instead."""
    with pytest.raises(ValueError) as caught:
        Client(url)
    assert remedy in str(caught.value)


def test_a_typo_in_the_settings(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """The nearest setting is named, whatever the case of the letters; there may be none near."""
    lines = ["maxMesageSize=1", "defaultretentiontimeinminutes=5", "zookeeperServers=localhost"]
    (tmp_path / "broker.conf").write_text("\n".join(lines))
    with caplog.at_level(logging.WARNING, "embeddedpulsar"):
        Client(tmp_path).close()
    found = [text.partition(": ")[2] for text in caplog.messages]
    assert found == [
        "unknown setting maxMesageSize, ignored; did you mean maxMessageSize?",
        "unknown setting defaultretentiontimeinminutes, ignored; did you mean defaultRetentionTimeInMinutes?",
        "unknown setting zookeeperServers, ignored",
    ]


@pytest.mark.parametrize(
    ("ask", "remedy"),
    [
        (
            lambda admin: admin.clusters,
            "not built yet: clusters; it has ",
        ),
        (lambda admin: admin.get_list, "it is topics().get_list()"),
        (lambda admin: admin.topics().getList, "it is written get_list()"),
        (lambda admin: admin.topics().getStats, "it is written get_stats()"),
        (lambda admin: admin.get_stats, "it is topics().get_stats()"),
        (
            lambda admin: admin.topics().grant_permission,
            "not built yet: permissions: those of the directory count; it has adopt_offloaded, ",
        ),
        (lambda admin: admin.topics().trim, "did you mean trim_topic()?"),
        (lambda admin: admin.topics().createSubscription, "it is written create_subscription()"),
        (lambda admin: admin.namespaces().deleteNamespace, "it is written delete_namespace()"),
        (lambda admin: admin.namespaces().nonsense, "it has create_namespace, "),
    ],
)
def test_a_missing_method_of_an_admin(tmp_path: Path, ask: Callable[[Admin], Any], remedy: str):
    """What is meant, that it is not built, and what there is; `hasattr` and copies work as ever."""
    with Admin(tmp_path) as admin:
        with pytest.raises(AttributeError) as caught:
            ask(admin)
        assert remedy in str(caught.value)
        assert not hasattr(admin, "nonsense")
        with pytest.raises(AttributeError, match=r"no attribute '__nothing__'$"):
            admin.__nothing__  # noqa: B018


def test_a_listener_that_cannot_be_called(client: Client):
    """Refused at once, and nothing is attached: a result in place of the function is a common slip."""
    with pytest.raises(
        ValueError, match=r"Argument message_listener is expected to be callable, and 5 is not"
    ):
        client.subscribe("orders", "kitchen", message_listener=5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"Argument reader_listener is expected to be callable"):
        client.create_reader("orders", pulsar.MessageId.earliest, reader_listener="f")
    assert client.subscribe("orders", "kitchen").is_connected()


def test_a_class_in_place_of_an_object(client: Client):
    """`schema=StringSchema`, without the parentheses."""
    with pytest.raises(ValueError, match=r"make one: StringSchema\(\)"):
        client.create_producer("orders", schema=StringSchema)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", ["earliest", 0, None])
def test_a_reader_without_a_place(client: Client, wrong: Any):
    """Which ids have names."""
    with pytest.raises(ValueError, match=r"write MessageId\.earliest, MessageId\.latest or"):
        client.create_reader("orders", wrong)


def test_wrong_ids(client: Client):
    """A method in place of its result; a place that is no id and no time."""
    consumer = client.subscribe("orders", "kitchen")
    client.create_producer("orders").send(b"soup")
    message = consumer.receive(1000)
    with pytest.raises(TypeError, match=r"not method; call it: message\.message_id\(\)"):
        consumer.acknowledge(message.message_id)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"a time in milliseconds: int\(moment\.timestamp\(\) \* 1000\)"):
        consumer.seek("earliest")  # type: ignore[arg-type]


def test_a_namespace_that_is_not_there(client: Client):
    """Which there are, and how to make it."""
    with pytest.raises(pulsar.TopicNotFound, match=r"namespaces\(\)\.create_namespace\('acme/sales'\)"):
        client.create_producer("acme/sales/orders")


def test_names_that_are_not_there():
    """Parts of pulsar-client that are not built say so; the nearest name can be found for a typo."""
    with pytest.raises(AttributeError, match="no attribute 'Clinet'") as caught:
        pulsar.Clinet  # noqa: B018
    assert (caught.value.name, caught.value.obj) == ("Clinet", pulsar)


UNCAUGHT = """
import _thread, sys, threading
import embeddedpulsar as pulsar
with pulsar.Client("memory://") as client:
    consumer = client.subscribe("orders", "kitchen")
    {call}
"""


@pytest.mark.parametrize(
    ("call", "last"),
    [
        (
            "consumer.receive(timeout_millis=10)",
            "exceptions.Timeout: Pulsar error: TimeOut: no message within 10 ms",
        ),
        (
            "threading.Timer(0.3, _thread.interrupt_main).start(); consumer.receive()",
            "exceptions.Interrupted: Pulsar error: ResultInterrupted",
        ),
    ],
)
def test_an_uncaught_error_is_short(call: str, last: str):
    """One traceback: not those of how this package waits, and of what it tried before."""
    command = [sys.executable, "-W", "error", "-c", UNCAUGHT.format(call=call)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stderr.count("Traceback (most recent call last)") == 1
    assert done.stderr.rstrip().endswith(last)
