"""Settings that are changed while a store is in use, by `Admin.brokers`."""

from __future__ import annotations

from pathlib import Path

import pytest

from embeddedpulsar import Admin, Client, SubscriptionNotFound, TopicNotFound
from embeddedpulsar._engine.store.policies.admitting import PUBLISH_RATE
from embeddedpulsar._engine.store.policies.policy_documents import DYNAMIC_SETTINGS, applied_to
from embeddedpulsar.exceptions import CorruptionError, InvalidConfiguration
from embeddedpulsar.policy_values import AutoTopicCreationOverride, PublishRate
from embeddedpulsar.settings import BrokerSettings
from embeddedpulsar.testing.trial_store import assert_clean
from tests.children import in_child
from tests.conformance.pool import write_settings


def test_a_setting_changes_and_changes_back(admin, client):
    """Of topics that are open and of those that come, below what namespaces and topics say."""
    brokers = admin.brokers()
    producer = client.create_producer("orders")
    brokers.update_dynamic_configuration("allowAutoTopicCreation", " FALSE ")
    assert brokers.get_all_dynamic_configurations() == {"allowAutoTopicCreation": "false"}
    assert brokers.get_runtime_configuration()["allowAutoTopicCreation"] == "false"
    with pytest.raises(TopicNotFound):
        client.create_producer("bills")
    admin.namespaces().set_auto_topic_creation("public/functions", AutoTopicCreationOverride(True))
    client.create_producer("public/functions/bills")
    brokers.update_dynamic_configuration("allowAutoSubscriptionCreation", "no")
    with pytest.raises(SubscriptionNotFound):
        client.subscribe("orders", "kitchen")
    brokers.update_dynamic_configuration("maxPublishRatePerTopicInMessages", "7")
    assert admin.topics().get_publish_rate("orders", applied=True) == PublishRate(7, 0)
    assert admin.topics().get_publish_rate("orders") is None
    for name in (
        "allowAutoTopicCreation",
        "allowAutoSubscriptionCreation",
        "maxPublishRatePerTopicInMessages",
    ):
        brokers.delete_dynamic_configuration(name)
    brokers.delete_dynamic_configuration("defaultNumPartitions")  # which was not set
    assert brokers.get_all_dynamic_configurations() == {}
    client.create_producer("bills").send(b"x")
    client.subscribe("orders", "kitchen")
    producer.send(b"x")


def test_every_dynamic_setting_both_ways(tmp_path: Path):
    """Each is stored, holds in another process, survives all of them, and goes."""
    write_settings(tmp_path, maxPublishRatePerTopicInMessages=5)
    with Admin(tmp_path) as admin:
        brokers = admin.brokers()
        assert brokers.get_dynamic_configuration_names() == sorted(DYNAMIC_SETTINGS)
        before = brokers.get_runtime_configuration()
        assert before["maxPublishRatePerTopicInMessages"] == "5"
        others = {"true": "false", "false": "true", "non-partitioned": "partitioned"}
        changed = {name: others.get(before[name], "77") for name in DYNAMIC_SETTINGS}
        for name, value in changed.items():
            brokers.update_dynamic_configuration(name, value)
        assert brokers.get_all_dynamic_configurations() == changed
        assert brokers.get_runtime_configuration() == before | changed

    def look() -> object:
        with Admin(tmp_path) as admin:
            return sorted(admin.brokers().get_all_dynamic_configurations().items())

    assert in_child(look) == str(sorted(changed.items()))
    with Admin(tmp_path) as admin:
        for name in DYNAMIC_SETTINGS:
            admin.brokers().delete_dynamic_configuration(name)
        assert admin.brokers().get_runtime_configuration() == before
    assert_clean(tmp_path)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("allowAutoTopicCreation", "maybe", "allowAutoTopicCreation is true or false, not 'maybe'"),
        ("allowAutoTopicCreationType", "both", "is non-partitioned or partitioned"),
        ("defaultNumPartitions", "0", "from 1 to 10000, not 0"),
        ("maxPublishRatePerTopicInMessages", "many", "is a number, not 'many'"),
        ("maxPublishRatePerTopicInMessages", 5, "the value is a str"),
        ("maxMessageSize", "5", "maxMessageSize is read from broker.conf when the store is opened"),
        ("allowAutoTopicCreations", "true", r"did you mean allowAutoTopicCreation\?"),
        ("unknown", "x", "there is no dynamic setting 'unknown'"),
    ],
)
def test_what_cannot_be_changed(admin, name: str, value: str, text: str):
    """It is refused with the setting, and nothing is stored."""
    with pytest.raises(InvalidConfiguration, match=text):
        admin.brokers().update_dynamic_configuration(name, value)
    assert admin.brokers().get_all_dynamic_configurations() == {}


def test_a_stored_value_that_is_none():
    """It is damage, and names of a later release are ignored."""
    stored = {"dynamicConfiguration.later": "x", "dynamicConfiguration.defaultNumPartitions": "3"}
    assert applied_to(BrokerSettings(), stored).defaultNumPartitions == 3
    with pytest.raises(CorruptionError, match="defaultNumPartitions"):
        applied_to(BrokerSettings(), {"dynamicConfiguration.defaultNumPartitions": "x"})


def test_a_change_by_another_process_reaches_open_topics(tmp_path: Path):
    """The next look of a topic sees it."""
    with Client(tmp_path) as client:
        client.create_producer("orders")
        use = client._core.store.use_topic("orders")
        assert use.topic.policies.value(PUBLISH_RATE) == PublishRate(0, 0)

        def change() -> None:
            with Admin(tmp_path) as admin:
                admin.brokers().update_dynamic_configuration("maxPublishRatePerTopicInBytes", "9")

        in_child(change)
        assert use.topic.policies.value(PUBLISH_RATE) == PublishRate(0, 9)
        use.release()
