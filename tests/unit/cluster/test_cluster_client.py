"""The client of a cluster, as far as it goes without one; tests/conformance runs with a broker as well."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import sys
from types import SimpleNamespace
from typing import Any

import pytest

import embeddedpulsar
import embeddedpulsar.asyncio as asyncio_client
from embeddedpulsar.asyncio import cluster_client as cluster_asyncio
from embeddedpulsar.cluster.client import (
    ClusterClient,
    ClusterConsumer,
    ClusterMessage,
    ClusterProducer,
    ClusterReader,
    ClusterTableView,
)
from embeddedpulsar.testing import patched_pulsar

NOWHERE = "pulsar://127.0.0.1:1"
QUIET = embeddedpulsar.FileLogger(embeddedpulsar.LoggerLevel.Error, "/dev/null")


@pytest.mark.parametrize(
    "kind", [ClusterClient, ClusterProducer, ClusterConsumer, ClusterReader, ClusterTableView, ClusterMessage]
)
def test_no_method_works_on_a_store(kind: type[Any]):
    """Each public method is that of the cluster: one that was inherited would look for a store."""
    base = next(one for one in kind.__mro__[1:] if "cluster" not in one.__module__)
    own = {name for one in kind.__mro__[: kind.__mro__.index(base)] for name in vars(one)}
    inherited = {
        name
        for name, value in vars(base).items()
        if inspect.isfunction(value) and not name.startswith("_") and name not in own
    }
    # The first is called for registered objects only; the others give what `_pairs` gives, which is own.
    assert inherited <= {"after_fork_in_child", "items", "values"}
    assert kind.__name__ == f"Cluster{base.__name__}"


@pytest.mark.parametrize(
    ("made", "call"),
    [
        (ClusterProducer, lambda one: one.send_many([b"a"])),
        (ClusterProducer, lambda one: one.send_arrow({})),
        (ClusterProducer, lambda one: one.stats()),
        (ClusterConsumer, lambda one: one.stats()),
        (ClusterConsumer, lambda one: one.reconsume_later(None, 0)),
        (ClusterConsumer, lambda one: one.reconsume_later_cumulative(None, 0)),
        (ClusterReader, lambda one: one.to_arrow()),
        (ClusterMessage, lambda one: one.sequence_id()),
        (ClusterMessage, lambda one: one.replace(data=b"a")),
    ],
)
def test_what_a_cluster_does_not_have(made: type[Any], call: Any):
    """Says what to do instead."""
    with pytest.raises(embeddedpulsar.OperationNotSupported, match=r"\(\) needs a store .*; on a cluster, "):
        call(object.__new__(made))


def test_connect_chooses_by_the_address():
    """The address of a cluster, or of several, is that of a cluster; all else is a store."""
    info = embeddedpulsar.ServiceInfo(NOWHERE)
    for address in (NOWHERE, "http://127.0.0.1:1", embeddedpulsar.AutoClusterFailover(info, [info])):
        with embeddedpulsar.connect(address, logger=QUIET) as client:
            assert isinstance(client, ClusterClient)
            assert isinstance(client, embeddedpulsar.Client)
            assert repr(address) in repr(client)
        assert repr(client).endswith(" closed>")
        with pytest.raises(embeddedpulsar.AlreadyClosed):
            client.close()
    with embeddedpulsar.connect("memory://") as client:
        assert not isinstance(client, ClusterClient)
    with pytest.raises(NotImplementedError, match=r"embeddedpulsar\.connect"):
        embeddedpulsar.Client(embeddedpulsar.AutoClusterFailover(info, [info]))  # type: ignore[arg-type]


def test_errors_are_those_of_this_package():
    """Also where there is no cluster: a failed connection is a ConnectionError."""
    with embeddedpulsar.connect(NOWHERE, operation_timeout_seconds=1, logger=QUIET) as client:
        with pytest.raises((embeddedpulsar.ConnectError, embeddedpulsar.Timeout)):
            client.create_producer("orders")
        with pytest.raises(ValueError, match="topic"):
            client.subscribe(None, "s")  # type: ignore[arg-type]
        with pytest.raises(embeddedpulsar.InvalidConfiguration, match="interceptors"):
            client.create_producer("orders", interceptors=[embeddedpulsar.ProducerInterceptor()])
    with pytest.raises(embeddedpulsar.InvalidConfiguration, match="memory_limit_bytes of Client"):
        embeddedpulsar.connect(NOWHERE, memory_limit_bytes=5)
    with pytest.raises(ValueError, match="operation_timeout_seconds"):
        embeddedpulsar.connect(NOWHERE, operation_timeout_seconds="1")


def test_a_client_may_be_pickled():
    """The other process connects anew."""
    with embeddedpulsar.connect(NOWHERE, logger=QUIET, durability="flush") as client:
        again = pickle.loads(pickle.dumps(client))
        assert repr(again) == repr(client)
        again.close()


def test_asyncio_connects_by_the_same_rule():
    """To a cluster or to a store; errors have the form of coroutines."""

    async def main() -> None:
        async with asyncio_client.connect(NOWHERE, logger=QUIET) as client:
            assert isinstance(client, cluster_asyncio.ClusterAsyncioClient)
        for call in (client.create_producer("orders"), client.subscribe("orders", "kitchen"), client.close()):
            with pytest.raises(asyncio_client.PulsarException, match="15 AlreadyClosed"):
                await call
        async with asyncio_client.connect("memory://") as store:
            assert type(store) is asyncio_client.Client

    asyncio.run(main())


def test_without_pulsar_client(monkeypatch: pytest.MonkeyPatch):
    """The error has the command that installs it."""
    monkeypatch.setitem(sys.modules, "pulsar", None)  # type: ignore[arg-type]
    with pytest.raises(ImportError, match=r"pip install \"embeddedpulsar\[pulsar\]\""):
        embeddedpulsar.connect(NOWHERE)


def test_in_a_test_the_store_is_opened():
    """Where `pulsar` is replaced, `connect` opens the store of the test, too."""
    with patched_pulsar("memory://of-a-test"):
        with embeddedpulsar.connect(NOWHERE) as client:
            assert client.get_service_info().service_url == "memory://of-a-test"
        asyncio_client.connect(NOWHERE).shutdown()


def test_an_exception_in_a_callback_is_logged(caplog: pytest.LogCaptureFixture):
    """It does not reach pulsar-client, which would end the process."""
    import pulsar

    def send_async(content: bytes, callback: Any, **options: Any) -> None:
        callback(pulsar.Result.Ok, pulsar.MessageId.earliest)

    def fail(result: Any, message_id: Any) -> None:
        raise ZeroDivisionError(str(result))

    theirs = SimpleNamespace(topic=lambda: "persistent://public/default/orders", send_async=send_async)
    ClusterProducer(theirs).send_async(b"soup", fail)
    assert "The callback of a send to persistent://public/default/orders failed" in caplog.text
    assert "ZeroDivisionError: Result.Ok" in caplog.text
