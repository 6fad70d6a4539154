"""What is created and opened, as namespaces and topics decide it: topics, subscriptions and their types,
encryption."""

from __future__ import annotations

from pathlib import Path

import pytest

from embeddedpulsar import (
    Admin,
    BrokerMetadataError,
    Client,
    ConsumerType,
    CryptoKeyReader,
    MessageId,
    NotAllowedError,
    SubscriptionNotFound,
    TopicNotFound,
)
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.policy_values import AutoSubscriptionCreationOverride, AutoTopicCreationOverride
from tests.conformance.pool import write_settings
from tests.support.key_files import key_files

SPACE = "public/default"
NO_TOPICS = AutoTopicCreationOverride(False)
NO_SUBSCRIPTIONS = AutoSubscriptionCreationOverride(False)


def test_a_namespace_that_creates_no_topics(admin, client):
    """Those of an Admin can be used; other namespaces go on, and this one after the removal."""
    admin.namespaces().set_auto_topic_creation(SPACE, NO_TOPICS)
    assert admin.namespaces().get_auto_topic_creation(SPACE) == NO_TOPICS
    with pytest.raises(TopicNotFound, match="set_auto_topic_creation"):
        client.create_producer("orders")
    admin.topics().create_non_partitioned_topic("orders")
    client.create_producer("orders").send(b"x")
    client.create_producer("public/functions/other").send(b"x")
    admin.namespaces().remove_auto_topic_creation(SPACE)
    assert admin.namespaces().get_auto_topic_creation(SPACE) is None
    client.create_producer("bills").send(b"x")


def test_a_namespace_that_creates_partitioned_topics(admin, client):
    """As many partitions as it says; a name of a partition stands for a plain topic, as ever."""
    admin.namespaces().set_auto_topic_creation(SPACE, AutoTopicCreationOverride(True, "partitioned", 3))
    client.create_producer("orders").send(b"x")
    client.create_producer("single-partition-1").send(b"x")
    assert client.get_topic_partitions("orders") == [
        f"persistent://{SPACE}/orders-partition-{index}" for index in range(3)
    ]
    assert admin.topics().get_partitioned_topic_metadata("single-partition-1").partitions == 0


def test_a_namespace_overrides_the_settings(tmp_path: Path):
    """In both directions."""
    write_settings(tmp_path, allowAutoTopicCreation=False, allowAutoSubscriptionCreation=False)
    with Client(tmp_path) as client, Admin(tmp_path) as admin:
        with pytest.raises(TopicNotFound):
            client.create_producer("orders")
        admin.namespaces().set_auto_topic_creation(SPACE, AutoTopicCreationOverride(True))
        client.create_producer("orders").send(b"x")
        with pytest.raises(SubscriptionNotFound, match="set_auto_subscription_creation"):
            client.subscribe("orders", "kitchen")
        admin.namespaces().set_auto_subscription_creation(SPACE, AutoSubscriptionCreationOverride(True))
        client.subscribe("orders", "kitchen")


@pytest.mark.parametrize(
    "wrong",
    [
        AutoTopicCreationOverride(1),  # type: ignore[arg-type]
        AutoTopicCreationOverride(True, "both"),
        AutoTopicCreationOverride(True, "partitioned"),
        AutoTopicCreationOverride(True, "partitioned", 0),
        AutoTopicCreationOverride(True, "partitioned", 10_001),
        AutoTopicCreationOverride(True, "non-partitioned", 2),
    ],
)
def test_an_override_that_makes_no_sense(admin, wrong: AutoTopicCreationOverride):
    """It is refused, and nothing is stored."""
    with pytest.raises(InvalidConfiguration):
        admin.namespaces().set_auto_topic_creation(SPACE, wrong)
    assert admin.namespaces().get_auto_topic_creation(SPACE) is None


def test_subscriptions_by_topic_and_namespace(admin, client):
    """The topic decides before its namespace. Others than new durable ones are not concerned."""
    for name in ("orders", "bills"):
        admin.topics().create_non_partitioned_topic(name)
    admin.namespaces().set_auto_subscription_creation(SPACE, NO_SUBSCRIPTIONS)
    admin.topics().set_auto_subscription_creation("bills", AutoSubscriptionCreationOverride(True))
    client.subscribe("bills", "kitchen")
    with pytest.raises(SubscriptionNotFound):
        client.subscribe("orders", "kitchen")
    client.create_reader("orders", MessageId.earliest)
    admin.topics().create_subscription("orders", "kitchen")
    client.subscribe("orders", "kitchen")


def test_types_of_subscriptions(admin, client):
    """A consumer of another type is refused; the ones that are attached stay."""
    admin.topics().create_non_partitioned_topic("orders")
    attached = client.subscribe("orders", "one", ConsumerType.Exclusive)
    wanted = {ConsumerType.Shared, ConsumerType.KeyShared}
    admin.namespaces().set_subscription_types_enabled(SPACE, wanted)
    assert admin.namespaces().get_subscription_types_enabled(SPACE) == wanted
    for kind in (ConsumerType.Exclusive, ConsumerType.Failover):
        with pytest.raises(NotAllowedError, match="Shared, Key_Shared"):
            client.subscribe("orders", "two", kind)
    with pytest.raises(NotAllowedError):
        client.create_reader("orders", MessageId.earliest)
    client.subscribe("orders", "two", ConsumerType.KeyShared)
    admin.topics().set_subscription_types_enabled("orders", {ConsumerType.Failover})
    client.subscribe("orders", "three", ConsumerType.Failover)
    with pytest.raises(NotAllowedError):
        client.subscribe("orders", "four", ConsumerType.Shared)
    assert attached.is_connected()
    for wrong in (set(), {"Shared"}, "Shared"):
        with pytest.raises(InvalidConfiguration):
            admin.topics().set_subscription_types_enabled("orders", wrong)
    admin.topics().remove_subscription_types_enabled("orders")
    client.subscribe("orders", "four", ConsumerType.Shared)


@pytest.fixture
def reader(tmp_path_factory: pytest.TempPathFactory) -> CryptoKeyReader:
    """Reads a pair of keys."""
    return key_files(tmp_path_factory.mktemp("keys"))


def test_encryption_is_required(admin, client, reader):
    """Of new producers of the namespace, plain and partitioned; of no others."""
    admin.topics().create_partitioned_topic("parts", 2)
    open_before = client.create_producer("orders")
    admin.namespaces().set_encryption_required_status(SPACE, True)
    for topic in ("orders", "parts"):
        with pytest.raises(BrokerMetadataError, match="Encryption is required"):
            client.create_producer(topic)
        client.create_producer(topic, encryption_key="key", crypto_key_reader=reader).send(b"x")
    client.create_producer("public/functions/other").send(b"x")
    open_before.send(b"x")
    with pytest.raises(InvalidConfiguration):
        admin.namespaces().set_encryption_required_status(SPACE, 1)
    admin.namespaces().set_encryption_required_status(SPACE, False)
    client.create_producer("orders").send(b"x")


def test_encryption_is_required_everywhere(tmp_path: Path):
    """By the setting, unless a namespace says otherwise."""
    write_settings(tmp_path, encryptionRequireOnProducer=True)
    with Client(tmp_path) as client, Admin(tmp_path) as admin:
        with pytest.raises(BrokerMetadataError, match="encryptionRequireOnProducer"):
            client.create_producer("orders")
        admin.namespaces().set_encryption_required_status(SPACE, False)
        client.create_producer("orders").send(b"x")


@pytest.mark.parametrize(
    "name", ["__change_events", "__transaction_log_0", "a__transaction_pending_ack", "pulsar/system/mine"]
)
def test_system_topics_are_not_made(admin, client, name: str):
    """Neither by an Admin nor by use."""
    for make in (
        admin.topics().create_non_partitioned_topic,
        lambda topic: admin.topics().create_partitioned_topic(topic, 2),
        client.create_producer,
        lambda topic: client.subscribe(topic, "kitchen"),
        lambda topic: client.create_reader(topic, MessageId.earliest),
    ):
        with pytest.raises(NotAllowedError, match="system topics"):
            make(name)
    client.create_producer("__mine").send(b"x")
    assert admin.topics().get_list() == [f"persistent://{SPACE}/__mine"]


def test_system_topics_of_an_earlier_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """They can be used and are listed when asked for."""
    with monkeypatch.context() as earlier, Client(tmp_path) as client:
        earlier.setattr("embeddedpulsar._engine.store.topic_list.is_system_topic", lambda name: False)
        client.create_producer("__change_events").send(b"x")
    with Client(tmp_path) as client, Admin(tmp_path) as admin:
        client.create_producer("__change_events").send(b"x")
        assert admin.topics().get_list() == admin.namespaces().get_topics(SPACE) == []
        assert admin.topics().get_list(include_system_topic=True) == [f"persistent://{SPACE}/__change_events"]
        assert admin.topics().get_partitioned_topic_list(include_system_topic=True) == []
