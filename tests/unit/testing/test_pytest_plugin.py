"""The plug-in of pytest, as the tests of an application use it."""

from __future__ import annotations

import pytest

from tests.support.plug_in import PLUG_IN, PYTHONPATH

pytest_plugins = ["pytester"]

APPLICATION = """
import pulsar
from pulsar import Client as Connection

class Till:
    def __init__(self):
        self.client = Connection("pulsar://broker.example.com:6650", operation_timeout_seconds=5)
        self.producer = self.client.create_producer("orders", schema=pulsar.schema.StringSchema())
"""

TESTS = """
import asyncio, sys
from datetime import timedelta

import pytest
import till  # imports pulsar before any fixture

REAL = till.pulsar


def test_nothing_is_imported():
    assert not [name for name in sys.modules if name.partition(".")[0] == "embeddedpulsar"]


def test_a_client_and_an_admin(pulsar_client, pulsar_admin, pulsar_store):
    assert pulsar_store.startswith("memory://")
    assert pulsar_admin.topics().get_list() == []
    pulsar_client.create_producer("orders").send(b"soup")
    assert pulsar_admin.topics().get_list() == ["persistent://public/default/orders"]


def test_each_test_has_its_own_store(pulsar_admin):
    assert pulsar_admin.topics().get_list() == []


def test_a_store_in_memory_outlives_its_clients(pulsar_store):
    import embeddedpulsar as pulsar
    with pulsar.Client(pulsar_store) as client:
        client.create_producer("orders").send(b"soup")
    with pulsar.Client(pulsar_store) as client:
        reader = client.create_reader("orders", pulsar.MessageId.earliest)
        assert reader.read_next(1000).data() == b"soup"


@pytest.mark.pulsar_store("directory")
def test_a_directory(pulsar_store, pulsar_client):
    pulsar_client.create_producer("orders").send(b"soup")
    assert (pulsar_store / "store.ctl").is_file()


@pytest.mark.pulsar_store(maxMessageSize=1024, allowAutoTopicCreation=True)
def test_settings(pulsar_store, pulsar_client):
    import embeddedpulsar as pulsar
    with pytest.raises(pulsar.MessageTooBig):
        pulsar_client.create_producer("orders").send(bytes(2000))


@pytest.mark.pulsar_store("directory")
def test_what_is_left_open_is_closed(pulsar_store):
    import embeddedpulsar as pulsar
    test_what_is_left_open_is_closed.client = pulsar.Client(pulsar_store)
    test_what_is_left_open_is_closed.consumer = test_what_is_left_open_is_closed.client.subscribe("a", "s")


@pytest.mark.pulsar_store("directory")
def test_a_client_is_closed_before_the_check(pulsar_client):
    assert not test_what_is_left_open_is_closed.consumer.is_connected()


def test_the_clock_is_there_before_the_client(pulsar_client, pulsar_clock):
    import embeddedpulsar as pulsar
    shared = pulsar.ConsumerType.Shared
    consumer = pulsar_client.subscribe("a", "s", shared, unacked_messages_timeout_ms=3_600_000)
    pulsar_client.create_producer("a").send(b"soup", deliver_after=timedelta(days=1))
    assert consumer.receive_nowait() is None
    pulsar_clock.advance(timedelta(days=1))
    assert consumer.receive(5000).redelivery_count() == 0
    pulsar_clock.advance(2 * 3600)
    assert consumer.receive(5000).redelivery_count() == 1


@pytest.mark.pulsar_store(managedLedgerMaxEntriesPerLedger=5)
def test_retention_and_time_to_live(pulsar_client, pulsar_admin, pulsar_clock):
    import embeddedpulsar as pulsar
    pulsar_admin.namespaces().set_message_ttl("public/default", 3600)
    pulsar_client.subscribe("a", "s").close()
    producer = pulsar_client.create_producer("a")
    for _ in range(12):
        producer.send(b"soup")
    pulsar_clock.advance(2 * 3600)
    assert pulsar_admin.topics().get_stats("a").subscriptions["s"].msg_backlog == 0
    reader = pulsar_client.create_reader("a", pulsar.MessageId.earliest)
    assert len(list(reader)) == 2  # the closed ledgers are gone


def test_pulsar_is_replaced(patch_pulsar, pulsar_client):
    import pulsar, pulsar.asyncio, pulsar.schema, pulsar.exceptions, _pulsar
    from pulsar.schema import Record, String
    from _pulsar import ConsumerType
    assert pulsar is patch_pulsar and till.pulsar is pulsar and till.Connection is pulsar.Client
    assert ConsumerType is pulsar.ConsumerType
    consumer = pulsar_client.subscribe("orders", "kitchen", schema=pulsar.schema.StringSchema())
    shop = till.Till()
    shop.producer.send("soup")
    assert consumer.receive(1000).value() == "soup"
    assert isinstance(shop.client, pulsar.Client)
    shop.client.close()

    async def main():
        async with pulsar.asyncio.Client("pulsar+ssl://a:1,b:2") as client:
            await (await client.create_producer("orders")).send("tea".encode())
    asyncio.run(main())
    assert consumer.receive(1000).value() == "tea"
    with pytest.raises(ModuleNotFoundError):
        import pulsar.nothing


def test_pulsar_is_restored():
    import pulsar
    assert pulsar is REAL is till.pulsar and till.Connection is REAL.Client
    assert type(pulsar).__name__ == "module"
    assert not hasattr(pulsar, "connect")
"""

PATCHED_RUN = """
import pulsar  # for the whole run
from pulsar.schema import *
import pytest

client = None


def test_without_a_store_clusters_are_refused():
    with pytest.raises(RuntimeError, match="patch_pulsar"):
        pulsar.Client("pulsar://localhost:6650")


def test_a_store(patch_pulsar, pulsar_store):
    assert pulsar is patch_pulsar
    first, second = pulsar.ServiceInfo("pulsar://a"), pulsar.ServiceInfo("pulsar://b")
    client = pulsar.Client(pulsar.AutoClusterFailover(first, [second]))
    client.create_producer("orders", schema=StringSchema()).send("soup")
    assert (pulsar_store / "store.ctl").is_file()
    client.close()
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    """Run pytest in a process of its own, with the plug-in, and every warning as an error."""
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    return lambda *arguments: pytester.runpytest_subprocess(
        *PLUG_IN, "--strict-markers", "-W", "error", "-p", "no:cacheprovider", *arguments
    )


def test_the_fixtures(pytester: pytest.Pytester, run):
    """Stores, clients, clock and patch are there, separate for each test, and nothing is imported before."""
    pytester.makepyfile(till=APPLICATION, test_till=TESTS)
    run().assert_outcomes(passed=TESTS.count("\ndef test_"))


def test_options_of_the_configuration(pytester: pytest.Pytester, run):
    """The kind of store, and whether `import pulsar` is replaced for the whole run."""
    pytester.makeini("[pytest]\npulsar_store = directory\npatch_pulsar = true\n")
    pytester.makepyfile(PATCHED_RUN)
    run().assert_outcomes(passed=2)
