"""Topics that have not been used for some time are deleted, where a policy or the setting asks for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from embeddedpulsar import (
    Admin,
    ConsumerDeadLetterPolicy,
    ConsumerType,
    InitialPosition,
    InvalidConfiguration,
    MessageId,
)
from embeddedpulsar._engine.store import inactive_topics
from embeddedpulsar._engine.store.policies import policy_documents
from embeddedpulsar.policy_values import InactiveTopicPolicies
from embeddedpulsar.testing.trial_store import assert_clean
from tests.conformance.manual_time import ManualTime
from tests.conformance.retention_site import TOPIC, publish, store_with

HOUR_S = 3600
LOOK_S = 60
POLICY = InactiveTopicPolicies(max_inactive_duration_seconds=HOUR_S)
CAUGHT_UP = POLICY._replace(inactive_topic_delete_mode="delete_when_subscriptions_caught_up")


@contextlib.contextmanager
def site(path: Path, **settings: object) -> Iterator[ManualTime]:
    """A store with these settings, that stands still."""
    time = ManualTime(store_with(path, **settings))
    try:
        yield time
    finally:
        time.close()
        assert_clean(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def time(path: Path) -> Iterator[ManualTime]:
    with site(path) as found:
        yield found


def names(path: Path) -> list[str]:
    """The topics that are left, by their local names."""
    with Admin(path) as admin:
        return [name.rpartition("/")[2] for name in admin.topics().get_list()]


def set_policy(path: Path, policy: InactiveTopicPolicies = POLICY, name: str = TOPIC) -> None:
    with Admin(path) as admin:
        admin.topics().set_inactive_topic_policies(name, policy)


def pass_s(time: ManualTime, seconds: float) -> None:
    time.pass_ms(1000 * seconds)


def test_by_default_none_is_deleted(time: ManualTime, path: Path) -> None:
    """Other than in Pulsar; and nothing is looked at."""
    publish(time, 1)
    pass_s(time, 365 * 86_400)
    assert names(path) == [TOPIC]
    with Admin(path) as admin:
        assert admin.topics().get_inactive_topic_policies(TOPIC) is None
        applied = admin.topics().get_inactive_topic_policies(TOPIC, applied=True)
    assert applied == InactiveTopicPolicies("delete_when_no_subscriptions", 60, False)


@pytest.mark.parametrize("level", ["topic", "namespace", "broker"])
def test_a_topic_is_deleted_that_was_not_used_for_so_long(path: Path, level: str) -> None:
    """The time counts from the last message, or from when its last producer or consumer was seen."""
    settings: dict[str, object] = {}
    if level == "broker":
        settings["brokerDeleteInactiveTopicsEnabled"] = "true"
        settings["brokerDeleteInactiveTopicsMaxInactiveDurationSeconds"] = HOUR_S
    with site(path, **settings) as time:
        publish(time, 1)
        producer = time.client.create_producer("attached")
        reader = time.client.create_reader("read", MessageId.earliest)
        with Admin(path) as admin:
            admin.topics().create_non_partitioned_topic("never-opened")
            if level == "topic":
                for name in (TOPIC, "attached", "read", "never-opened"):
                    admin.topics().set_inactive_topic_policies(name, POLICY)
            elif level == "namespace":
                admin.namespaces().set_inactive_topic_policies("public/default", POLICY)
        pass_s(time, HOUR_S - LOOK_S)
        assert names(path) == ["attached", "never-opened", "read", TOPIC]
        pass_s(time, 3 * LOOK_S)
        assert names(path) == ["attached", "read"]
        reader.close()
        pass_s(time, HOUR_S - 2 * LOOK_S)
        assert names(path) == ["attached", "read"]
        pass_s(time, 4 * LOOK_S)
        assert names(path) == ["attached"]
        producer.send(b"it may be used still")


@pytest.mark.parametrize("frequency", [10, 600])
def test_the_frequency(path: Path, frequency: int) -> None:
    """The time without use is that, or twice as long if processes use the topic that note it so often."""
    settings = {
        "brokerDeleteInactiveTopicsEnabled": "true",
        "brokerDeleteInactiveTopicsFrequencySeconds": frequency,
    }
    with site(path, **settings) as time:
        publish(time, 1)
        pass_s(time, frequency - 1)
        assert names(path) == [TOPIC]
        pass_s(time, 2 * frequency + 2)
        assert names(path) == []


def test_the_modes(path: Path) -> None:
    """With a subscription a topic stays, or as long as that has a backlog."""
    settings = {
        "brokerDeleteInactiveTopicsEnabled": "true",
        "brokerDeleteInactiveTopicsMode": "delete_when_subscriptions_caught_up",
    }
    with site(path, **settings) as time:
        for name in ("behind", "caught-up", "any"):
            consumer = time.client.subscribe(name, "s")
            with time.client.create_producer(name) as producer:
                producer.send(b"")
            if name != "behind":
                consumer.acknowledge(consumer.receive(1000))
            consumer.close()
        set_policy(path, POLICY._replace(max_inactive_duration_seconds=1), "any")
        pass_s(time, 5 * LOOK_S)
        assert names(path) == ["any", "behind"]
        with Admin(path) as admin:
            admin.topics().skip_all_messages("behind", "s")
        pass_s(time, 3 * LOOK_S)
        assert names(path) == ["any"]
        with Admin(path) as admin:
            admin.topics().delete_subscription("any", "s")
        pass_s(time, 3 * LOOK_S)
        assert names(path) == []


def test_the_nearest_level_counts(time: ManualTime, path: Path) -> None:
    """Also if it says that the topic stays, and after it was removed."""
    with Admin(path) as admin:
        publish(time, 1)
        admin.namespaces().set_inactive_topic_policies("public/default", POLICY)
        admin.topics().set_inactive_topic_policies(TOPIC, POLICY._replace(delete_while_inactive=False))
        pass_s(time, 2 * HOUR_S)
        assert names(path) == [TOPIC]
        admin.namespaces().remove_inactive_topic_policies("public/default")
        admin.topics().remove_inactive_topic_policies(TOPIC)
        pass_s(time, 2 * HOUR_S)
        assert names(path) == [TOPIC]
        admin.namespaces().set_inactive_topic_policies("public/default", POLICY)
        pass_s(time, 2 * LOOK_S)
        assert names(path) == []


def test_the_time_counts_while_the_store_is_closed(time: ManualTime, path: Path) -> None:
    """The next process that opens the store deletes the topic."""
    publish(time, 1)
    set_policy(path)
    pass_s(time, LOOK_S)
    time.client.shutdown()
    time.clock.advance(HOUR_S)
    time.reopen()
    pass_s(time, 1)
    assert names(path) == []


@pytest.mark.parametrize("minutes", [-1, 180])
def test_retention_keeps_a_topic(time: ManualTime, path: Path, minutes: int) -> None:
    """For as long as it keeps messages, as in Pulsar."""
    with Admin(path) as admin:
        publish(time, 1)
        admin.topics().set_retention(TOPIC, minutes, -1)
        set_policy(path)
        pass_s(time, 2 * HOUR_S)
        assert names(path) == [TOPIC]
        pass_s(time, 2 * HOUR_S)
        assert names(path) == ([] if minutes > 0 else [TOPIC])


@pytest.mark.parametrize("is_whole", [False, True])
def test_a_partitioned_topic_goes_as_a_whole(path: Path, is_whole: bool) -> None:
    """When all its partitions are inactive; and only if the setting says that they are deleted."""
    name = "brokerDeleteInactivePartitionedTopicMetadataEnabled"
    with site(path, **{name: str(is_whole).lower()}) as time, Admin(path) as admin:
        for topic in ("used", "never-used"):
            admin.topics().create_partitioned_topic(topic, 3)
            set_policy(path, name=topic)
        publisher = time.client.create_producer("used-partition-1")
        pass_s(time, 2 * HOUR_S)
        left = [name.rpartition("/")[2] for name in admin.topics().get_partitioned_topic_list()]
        assert left == (["used"] if is_whole else ["never-used", "used"])
        publisher.close()
        pass_s(time, 2 * HOUR_S)
        assert len(admin.topics().get_partitioned_topic_list()) == (0 if is_whole else 2)


@pytest.mark.parametrize("expire", [False, True])
def test_letters_stay_unless_their_topic_has_a_policy(path: Path, expire: bool) -> None:
    """Other than in Pulsar; with letterTopicsExpire=true those go that nothing keeps."""
    settings = {
        "letterTopicsExpire": str(expire).lower(),
        "letterTopicsKeepUntilSubscribed": str(not expire).lower(),
    }
    with site(path, **settings) as time, Admin(path) as admin:
        policy = ConsumerDeadLetterPolicy(1, "letters")
        consumer = time.client.subscribe(
            TOPIC,
            "s",
            ConsumerType.Shared,
            dead_letter_policy=policy,
            negative_ack_redelivery_delay_ms=1,
            initial_position=InitialPosition.Earliest,
        )
        publish(time, 1)
        for _ in range(2):
            consumer.negative_acknowledge(consumer.receive(1000))
            time.pass_ms(200)
        with contextlib.suppress(Exception):
            consumer.receive(10)
        consumer.close()
        assert names(path) == ["letters", TOPIC]
        admin.namespaces().set_inactive_topic_policies("public/default", POLICY)
        pass_s(time, 3 * HOUR_S)
        assert names(path) == ([TOPIC] if expire else ["letters", TOPIC])
        if not expire:
            set_policy(path, name="letters")
            pass_s(time, 2 * LOOK_S)
            assert names(path) == [TOPIC]


def test_what_is_kept_until_there_is_a_subscription(path: Path) -> None:
    """It stays, although the namespace has a policy; its own policy says otherwise."""
    with site(path) as time, Admin(path) as admin:
        publish(time, 1)
        admin.topics().set_keep_until_subscribed(TOPIC, True)
        admin.namespaces().set_inactive_topic_policies("public/default", POLICY)
        pass_s(time, 2 * HOUR_S)
        assert names(path) == [TOPIC]
        set_policy(path)
        pass_s(time, 2 * HOUR_S)
        assert names(path) == []


def test_non_persistent_and_system_topics_stay(path: Path) -> None:
    """They are not looked at."""
    with site(path, brokerDeleteInactiveTopicsEnabled="true") as time:
        time.client.create_producer("non-persistent://public/default/ring").close()
        time.client.create_producer("plain").close()
        pass_s(time, HOUR_S)
        assert names(path) == ["ring"]


def test_many_topics_are_looked_at_in_slices(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them in the end, whatever their number; and none is left out behind one that goes."""
    monkeypatch.setattr(inactive_topics, "SLICE", 3)
    with site(path, brokerDeleteInactiveTopicsEnabled="true") as time, Admin(path) as admin:
        admin.topics().create_non_partitioned_topics([f"t{number:02}" for number in range(20)])
        kept = time.client.create_producer("t07")
        pass_s(time, 4 * LOOK_S)
        assert names(path) == ["t07"]
        kept.close()


def test_many_policies_have_all_topics_looked_at(
    time: ManualTime, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the list of their owners stays short. Owners that are gone leave it."""
    monkeypatch.setattr(policy_documents, "MOST_OWNERS", 2)
    with Admin(path) as admin:
        for name in ("a", "b", "gone"):
            admin.topics().create_non_partitioned_topic(name)
        set_policy(path, name="gone")
        admin.topics().delete("gone")
        for name in ("a", "b"):
            set_policy(path, name=name)
        admin.topics().create_non_partitioned_topic("c")
        set_policy(path, name="c")
        pass_s(time, 2 * HOUR_S)
        assert names(path) == []


@pytest.mark.parametrize(
    "wrong",
    [
        InactiveTopicPolicies("never"),
        InactiveTopicPolicies(max_inactive_duration_seconds=0),
        InactiveTopicPolicies(delete_while_inactive=1),  # type: ignore[arg-type]
    ],
)
def test_wrong_values_are_refused(time: ManualTime, path: Path, wrong: InactiveTopicPolicies) -> None:
    """As for every policy."""
    publish(time, 1)
    with pytest.raises(InvalidConfiguration):
        set_policy(path, wrong)
    with pytest.raises(ValueError):
        set_policy(path, 60)  # type: ignore[arg-type]
