"""`embeddedpulsar migrate` between two stores: what is copied, what a later run adds, and what is refused."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import Admin, Client, ConsumerType, InitialPosition, MessageId, Timeout
from embeddedpulsar.cli.main import main
from embeddedpulsar.cli.migrate_commands import HOLD, NUMBER, ORIGIN_ID, ORIGIN_TIME, ORIGIN_TOPIC, StoreSide
from embeddedpulsar.exceptions import NotAllowedError
from embeddedpulsar.policies import BacklogQuota
from embeddedpulsar.policy_values import DispatchRate
from embeddedpulsar.schema import (
    Int64Schema,
    JsonSchema,
    KeyValue,
    KeyValueEncodingType,
    KeyValueSchema,
    StringSchema,
)
from embeddedpulsar.testing.trial_store import assert_clean

ORDERS = "persistent://public/default/orders"


@pytest.fixture
def origin(tmp_path: Path):
    """A store with a topic and a partitioned topic, in two namespaces."""
    root = tmp_path / "origin"
    with Client(root) as client, Admin(root) as admin:
        admin.namespaces().create_namespace("acme/sales")
        admin.topics().create_partitioned_topic("acme/sales/flights", 2)
        for topic in ("orders", "acme/sales/flights"):
            admin.topics().create_subscription(topic, "work", MessageId.earliest)
            with client.create_producer(topic, "shop", batching_enabled=True) as producer:
                for number in range(100):
                    producer.send_async(
                        b"%d" % number,
                        None,
                        properties={"n": str(number)},
                        partition_key=f"k{number % 7}",
                        ordering_key=f"o{number % 3}" if number % 2 else None,
                        event_timestamp=1000 + number,
                    )
    yield root
    assert_clean(root)


@pytest.fixture
def target(tmp_path: Path):
    """Where it is copied to."""
    yield tmp_path / "target"
    if (tmp_path / "target").exists():
        assert_clean(tmp_path / "target")


@pytest.fixture
def migrate(origin: Path, target: Path, capfd: pytest.CaptureFixture[str]):
    """Runs the command; returns the status, the output and the error output."""

    def run(*arguments: str) -> tuple[int, str, str]:
        status = main(["migrate", str(origin), str(target), *arguments])
        out, err = capfd.readouterr()
        return status, out, err

    return run


def stored(root: Path, topic: str) -> list[Any]:
    """The messages of a topic or partition."""
    messages = []
    with Client(root) as client, client.create_reader(topic, MessageId.earliest) as reader:
        while reader.has_message_available():
            messages.append(reader.read_next())
    return messages


def described(message: Any) -> tuple[Any, ...]:
    """What a copy has of its origin."""
    properties = {name: text for name, text in message.properties().items() if not name.startswith("ep.")}
    return (
        message.data(), message.has_null_value(), message.partition_key(), message.ordering_key(), properties,
        message.event_timestamp(),
    )  # fmt: skip


def backlog(root: Path, subscription: str, topic: str = "orders") -> list[bytes]:
    """What a subscription has not acknowledged."""
    with Admin(root) as admin:
        return [message.data() for message in admin.topics().peek_messages(topic, subscription, 1000)]


def test_topics_are_copied(migrate, origin: Path, target: Path):
    """With partitions, keys, properties and times; the place of the origin is in properties."""
    status, out, _ = migrate("--json")
    assert status == 0
    reports = {report["topic"]: report for report in json.loads(out)}
    assert sum(report["copied"] for report in reports.values()) == 200
    assert reports[ORDERS]["copied"] == 100 and reports[ORDERS]["subscriptions"] == ["work"]
    for topic in reports:
        before, after = stored(origin, topic), stored(target, topic)
        assert list(map(described, after)) == list(map(described, before))
        for number, (message, copy) in enumerate(zip(before, after, strict=True), start=1):
            properties, place = copy.properties(), message.message_id()
            parts = (place.partition(), place.ledger_id(), place.entry_id(), place.batch_index())
            assert properties[ORIGIN_ID] == ":".join(map(str, parts))
            assert properties[ORIGIN_TIME] == str(message.publish_timestamp())
            assert properties[ORIGIN_TOPIC] == topic and properties[NUMBER] == str(number)
            assert properties["ep.producer"] == "shop"
    with Admin(target) as admin:
        assert admin.topics().get_partitioned_topic_metadata("acme/sales/flights").partitions == 2


def test_a_later_run_copies_what_is_new(migrate, origin: Path, target: Path):
    """Nothing twice; --finish removes the subscription that says where to go on."""
    assert migrate("-t", "orders")[0] == 0
    first = [message.message_id() for message in stored(target, "orders")]
    (report,) = json.loads(migrate("-t", "orders", "--json")[1])
    assert (report["copied"], report["present"]) == (0, 100)
    with Client(origin) as client:
        client.create_producer("orders").send(b"late")
    (report,) = json.loads(migrate("-t", "orders", "--json", "--finish")[1])
    assert (report["copied"], report["present"]) == (1, 100)
    messages = stored(target, "orders")
    assert [message.message_id() for message in messages[:100]] == first
    assert messages[100].data() == b"late"
    with Admin(target) as admin:
        assert admin.topics().get_subscriptions("orders") == ["work"]


def test_the_last_message_is_kept_for_the_next_run(migrate, origin: Path, target: Path):
    """Also when all subscriptions of the target have consumed everything, and its ledgers are closed."""
    assert migrate("-t", "orders")[0] == 0
    with Admin(target) as admin:
        admin.topics().skip_all_messages("orders", "work")
        admin.topics().roll_ledger("orders")
        admin.topics().trim_topic("orders")
        assert HOLD in admin.topics().get_subscriptions("orders")
    (report,) = json.loads(migrate("-t", "orders", "--json")[1])
    assert (report["copied"], report["present"]) == (0, 100)


def test_subscriptions_are_moved(migrate, origin: Path, target: Path):
    """To the mark-delete position, and without what was acknowledged behind it; never back."""
    with Client(origin) as client, Admin(origin) as admin:
        admin.topics().create_subscription("single", "shared", MessageId.earliest)
        admin.topics().create_subscription("single", "all", MessageId.earliest)
        admin.topics().create_subscription("single", "none", MessageId.earliest)
        producer = client.create_producer("single")
        for number in range(20):
            producer.send(b"%d" % number)
        admin.topics().skip_all_messages("single", "all")
        with client.subscribe("single", "shared", ConsumerType.Shared) as consumer:
            messages = [consumer.receive() for _ in range(20)]
            for number in (0, 1, 2, 5, 6, 9, 19):
                consumer.acknowledge(messages[number])
    left = backlog(origin, "shared", "single")
    assert len(left) == 13
    (report,) = json.loads(migrate("-t", "single", "--json")[1])
    assert sorted(report["subscriptions"]) == ["all", "none", "shared"]
    assert backlog(target, "shared", "single") == left
    assert backlog(target, "all", "single") == []
    assert len(backlog(target, "none", "single")) == 20
    with Admin(target) as admin:
        admin.topics().skip_messages("single", "none", 5)
    (report,) = json.loads(migrate("-t", "single", "--json")[1])
    assert "none" not in report["subscriptions"]
    assert any(note.startswith("none is further at the target") for note in report["notes"])
    assert len(backlog(target, "none", "single")) == 15


def test_schemas_go_along(migrate, origin: Path, target: Path):
    """Messages of several versions, and without one, are decoded at the target as at the origin."""
    keyed = KeyValueSchema(StringSchema(), Int64Schema(), KeyValueEncodingType.INLINE)
    with Client(origin) as client, Admin(origin) as admin:
        for topic in ("numbers", "pairs"):
            admin.topics().create_subscription(topic, "keep", MessageId.earliest)
        with client.create_producer("numbers", schema=Int64Schema()) as producer:
            for number in range(5):
                producer.send(number)
        client.create_producer("numbers").send(b"raw")
        client.create_producer("numbers", schema=Int64Schema()).send(None)
        client.create_producer("pairs", schema=keyed).send(KeyValue("a", 7))
    assert migrate("--topics", "numbers|pairs")[0] == 0
    before, after = stored(origin, "numbers"), stored(target, "numbers")
    assert list(map(described, after)) == list(map(described, before))
    assert [message.schema_version() == "" for message in after] == [False] * 5 + [True, False]
    with Client(target) as client:
        reader = client.create_reader("pairs", MessageId.earliest, schema=keyed)
        assert tuple(reader.read_next().value()) == ("a", 7)
        reader.close()
        with pytest.raises(Exception, match=r"(?i)schema"):
            client.create_producer("numbers", schema=JsonSchema(dict))


def test_large_messages(migrate, origin: Path, target: Path):
    """In chunks, as at the origin."""
    with Client(origin) as client, Admin(origin) as admin:
        admin.topics().create_subscription("large", "keep", MessageId.earliest)
        with client.create_producer("large", chunking_enabled=True) as producer:
            for number in range(3):
                producer.send(b"%d" % number * 3_000_000)
                producer.send(b"small")
    assert migrate("-t", "large")[0] == 0
    assert [message.data()[:3] for message in stored(target, "large")] == [
        message.data()[:3] for message in stored(origin, "large")
    ]
    assert json.loads(migrate("-t", "large", "--json")[1])[0]["copied"] == 0


def test_retention_goes_along(migrate, origin: Path, target: Path):
    """A topic without subscriptions keeps its messages as at the origin; without a policy a note says so."""
    with Client(origin) as client, Admin(origin) as admin:
        client.create_producer("kept").send(b"a")
        client.create_producer("lone").send(b"b")
        admin.topics().set_retention("kept", 60, 100)
    reports = {each["topic"][-4:]: each for each in json.loads(migrate("--topics", "kept|lone", "--json")[1])}
    with Admin(target) as admin:
        policy = admin.topics().get_retention("kept")
        assert policy is not None and (policy.time_minutes, policy.size_mb) == (60, 100)
    assert reports["kept"]["notes"] == []
    assert "kept for the subscription ep-migrate alone" in reports["lone"]["notes"][0]
    assert backlog(target, HOLD, "lone") == [b"b"]


def test_what_is_chosen(migrate, origin: Path, target: Path):
    """By names, a pattern, namespaces; a dry run says what would be done, and makes nothing."""
    status, out, _ = migrate("--dry-run", "--json")
    listed = {each["topic"]: each for each in json.loads(out)}
    assert status == 0 and not target.exists()
    flights = "persistent://acme/sales/flights"
    assert listed.keys() == {ORDERS, flights} and listed[flights]["partitions"] == 2
    assert listed[ORDERS]["subscriptions"] == ["work"] and listed[ORDERS]["entries"] >= 1
    assert "nothing was done" in migrate("--dry-run")[1]
    for options in (
        ["-n", "acme/sales"],
        ["--topics", "fl.*"],
        ["--topics", "acme/sales/.*"],
        ["-t", flights],
    ):
        out = migrate("--dry-run", "--json", *options)[1]
        assert [each["topic"] for each in json.loads(out)] == [flights]
    out = migrate("-t", "orders", "--to-namespace", "new/place", "--json")[1]
    assert json.loads(out)[0]["target"] == "persistent://new/place/orders"
    assert len(stored(target, "new/place/orders")) == 100
    assert migrate("--topics", "(")[0] == 2
    assert migrate("--from-admin", "http://localhost:1")[0] == 2


def test_a_target_with_other_messages_is_refused(migrate, origin: Path, target: Path):
    """Nothing is added to it; a copy with a gap is refused as well, and so are other partitions."""
    with Client(target) as client, Admin(target) as admin:
        client.create_producer("orders").send(b"own")
        admin.topics().create_partitioned_topic("public/default/flights", 3)
    status, _, err = migrate("-t", "orders")
    assert status == 1 and "has messages that are no copies of" in err
    assert len(stored(target, "orders")) == 1
    status, _, err = migrate("-t", "acme/sales/flights", "--to-namespace", "public/default")
    assert status == 1 and "has 3 partitions at the target" in err
    with Client(target) as client, Admin(target) as admin:
        admin.namespaces().create_namespace("a/b")
        for number in (1, 3):
            properties = {ORIGIN_TOPIC: ORDERS, ORIGIN_ID: f"-1:1:{number}:-1", NUMBER: str(number)}
            client.create_producer("a/b/orders").send(b"", properties=properties)
    status, _, err = migrate("-t", "orders", "--to-namespace", "a/b")
    assert status == 1 and "is not whole: message 1 is followed by 3" in err


def test_two_migrations_of_one_topic(migrate, origin: Path, target: Path):
    """The second is refused while the first is at work."""
    with Client(target) as client:
        client.subscribe("orders", HOLD, initial_position=InitialPosition.Earliest)
        status, _, err = migrate("-t", "orders")
        assert status == 1 and "another migration copies to" in err


def test_encrypted_messages_are_refused(migrate, origin: Path, target: Path, tmp_path: Path):
    """A copy would have the ciphertext without the key."""
    serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")
    rsa = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.rsa")
    from embeddedpulsar import CryptoKeyReader

    key = rsa.generate_private_key(65537, 2048)
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    (tmp_path / "public.pem").write_bytes(public)
    reader = CryptoKeyReader(str(tmp_path / "public.pem"), str(tmp_path / "none.pem"))
    with Client(origin) as client, Admin(origin) as admin:
        admin.topics().create_subscription("secret", "keep", MessageId.earliest)
        client.create_producer("secret", encryption_key="k", crypto_key_reader=reader).send(b"x")
    status, _, err = migrate("-t", "secret")
    assert status == 1 and "is encrypted, and a copy would have no key" in err


def test_delays_and_policies_go_along(migrate, origin: Path, target: Path):
    """A message that is not due is not due at the target either; a topic has the policies that it had."""
    due_ms = time.time_ns() // 1_000_000 + 3_600_000
    with Client(origin) as client, Admin(origin) as admin:
        producer = client.create_producer("kept", batching_enabled=True)
        for delay in (None, due_ms, None):
            producer.send_async(b"a", None, deliver_at=delay)
        producer.flush()
        topics = admin.topics()
        topics.create_subscription("kept", "work", MessageId.earliest)
        topics.set_message_ttl("kept", 7200)
        topics.set_max_producers("kept", 0)
        topics.set_deduplication_status("kept", False)
        topics.set_dispatch_rate("kept", DispatchRate(500, -1, 1))
        topics.set_backlog_quota(
            "kept", BacklogQuota(1 << 20, 60, "consumer_backlog_eviction"), "message_age"
        )
        topics.set_schema_compatibility_strategy("kept", "FORWARD")
        topics.set_subscription_types_enabled("kept", {ConsumerType.Shared, ConsumerType.Exclusive})
        topics.set_max_consumers("acme/sales/flights", 9)
    assert [report["notes"] for report in json.loads(migrate("-t", "kept", "--json")[1])] == [[]]
    with Admin(target) as admin:
        topics = admin.topics()
        assert (topics.get_message_ttl("kept"), topics.get_max_producers("kept")) == (7200, 0)
        assert topics.get_deduplication_status("kept") is False
        assert topics.get_dispatch_rate("kept") == DispatchRate(500, -1, 1)
        quotas = topics.get_backlog_quota_map("kept")
        assert {kind: quota.limit_time for kind, quota in quotas.items()} == {"message_age": 60}
        assert topics.get_schema_compatibility_strategy("kept").name == "FORWARD"
        assert topics.get_subscription_types_enabled("kept") == {ConsumerType.Shared, ConsumerType.Exclusive}
        assert topics.get_max_consumers("kept") is None
        topics.set_message_ttl("kept", 60)  # what the target has is not replaced
    times = [message.deliver_at() for message in stored(origin, "kept")]
    assert sorted(times) == [0, 0, due_ms]
    assert [message.deliver_at() for message in stored(target, "kept")] == times
    assert migrate("-t", "kept", "-t", "acme/sales/flights", "--finish")[0] == 0
    with Admin(target) as admin, Client(target) as client:
        assert admin.topics().get_message_ttl("kept") == 60
        assert admin.topics().get_max_consumers("acme/sales/flights") == 9
        with client.subscribe("kept", "work", ConsumerType.Shared) as consumer:
            assert [consumer.receive(5000).data() for _ in range(2)] == [b"a", b"a"]
            with pytest.raises(Timeout):
                consumer.receive(50)


def test_a_policy_that_the_target_refuses(
    migrate, origin: Path, target: Path, monkeypatch: pytest.MonkeyPatch
):
    """Is a note of the report; the messages are copied all the same."""
    with Client(origin) as client, Admin(origin) as admin:
        client.create_producer("kept").send(b"a")
        admin.topics().set_message_ttl("kept", 7200)

    def refuse(side: StoreSide, topic: str, name: str, value: Any) -> None:
        raise NotAllowedError(f"{name} of {value} s is refused")

    monkeypatch.setattr(StoreSide, "set_policy", refuse)
    (report,) = json.loads(migrate("-t", "kept", "--json")[1])
    assert report["copied"] == 1
    assert report["notes"][-1] == "the policy messageTTL is not copied: messageTTL of 7200 s is refused"
