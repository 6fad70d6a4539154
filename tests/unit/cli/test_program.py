"""The program `embeddedpulsar`: what each command does, prints and returns."""

from __future__ import annotations

import builtins
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from embeddedpulsar import Admin, Client, ConsumerType, MessageId, TopicTerminated
from embeddedpulsar.admin.admin import ResourceGroups, Tenants
from embeddedpulsar.admin.namespaces import Namespaces
from embeddedpulsar.admin.topics import Topics
from embeddedpulsar.cli.main import main
from embeddedpulsar.cli.policy_verbs import OF_BOTH, OF_NAMESPACES, OF_TOPICS
from embeddedpulsar.cli.program import program
from embeddedpulsar.testing.trial_store import assert_clean

ORDERS = "persistent://public/default/orders"


@pytest.fixture
def store(tmp_path: Path):
    """A store with twenty orders and a partitioned topic."""
    root = tmp_path / "store"
    with Client(root) as client, Admin(root) as admin:
        producer = client.create_producer("orders", "shop")
        for number in range(20):
            producer.send(b"order %d" % number, partition_key="k", properties={"n": str(number)})
        admin.topics().create_partitioned_topic("flights", 2)
        admin.topics().create_subscription("orders", "work", MessageId.earliest)
    yield root
    assert_clean(root)


def tree(root: Path) -> dict[str, bytes]:
    """The contents of all files but those of living processes."""
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def backlog(store: Path) -> list[bytes]:
    """What the subscription has not acknowledged."""
    with Admin(store) as admin:
        return [one.data() for one in admin.topics().peek_messages("orders", "work", 100)]


def test_topics(call):
    """Listed for people and for programs, created, and deleted after a question."""
    status, out, _ = call("topics", "list")
    assert status == 0 and out.splitlines()[0].split() == ["topic", "partitions"] and ORDERS in out
    assert call("topics", "create", "bills", "-p", "3") == (0, "", "")
    assert call("topics", "update-partitioned-topic", "bills", "-p", "4")[0] == 0
    listed = json.loads(call("topics", "list", "--json")[1])
    assert {"topic": "persistent://public/default/bills", "partitions": 4} in listed
    assert call("topics", "create", "audit")[0] == 0
    assert call("topics", "trim", "audit")[1] == "0 ledgers removed\n"
    status, out, err = call("topics", "delete", "audit", typed=b"n\n")
    assert status == 1 and "Delete the topic audit, with all messages?" in out and "Aborted" in err
    assert call("topics", "delete", "audit", "--dry-run")[1].startswith("would delete the topic audit")
    assert call("topics", "delete", "audit", typed=b"y\n")[0] == 0
    assert call("topics", "delete", "bills", "--yes")[0] == 0
    names = {one["topic"] for one in json.loads(call("topics", "list", "--json")[1])}
    assert ORDERS in names and not {name for name in names if "audit" in name or "bills" in name}


def test_topics_of_one_kind(call):
    """Persistent and non-persistent topics are listed together, or one kind alone."""
    readings = "non-persistent://public/default/readings"
    assert call("topics", "create", readings)[0] == 0

    def listed(*options: str) -> set[str]:
        return {one["topic"] for one in json.loads(call("topics", "list", "--json", *options)[1])}

    assert listed("--topic-domain", "non_persistent") == {readings}
    assert listed("-td", "persistent") == listed() - {readings}


def test_statistics_of_a_topic(call, store):
    """Who reads it and what is left; with --json, the fields of Pulsar."""
    with Client(store) as client:
        client.create_producer("flights").send(b"x")
        consumer = client.subscribe("orders", "work", ConsumerType.Shared, consumer_name="ann")
        for _ in range(4):
            consumer.acknowledge(consumer.receive())
        consumer.close()
        consumer = client.subscribe("orders", "work", ConsumerType.Shared, consumer_name="bea")
        out = call("topics", "stats", "orders")[1]
        assert "published" in out and "stored" in out
        row = next(line.split() for line in out.splitlines() if line.startswith("work"))
        assert row[1:3] == ["Shared", "16"] and row[-1] == "bea"
        stats = json.loads(call("topics", "stats", "orders", "--json")[1])
        assert stats["subscriptions"]["work"]["msgBacklog"] == 16 and stats["msgInCounter"] == 20
        assert json.loads(call("topics", "stats", "flights", "--json")[1])["metadata"]["partitions"] == 2
        assert call("topics", "stats", "flights")[0] == 0


def test_what_holds_a_topic(call):
    """By ledger."""
    row = call("topics", "why-kept", "orders")[1].splitlines()[1].split()
    assert row[1] == "20" and row[-2:] == ["open", "work"]
    assert json.loads(call("topics", "why-kept", "orders", "--json")[1])["ledgers"][0]["entries"] == 20


def test_subscriptions(call, store):
    """Created, moved, emptied, deleted; what loses messages asks."""
    assert call("subscriptions", "list", "orders", "--json")[1].split() == ["[", '"work"', "]"]
    assert call("subscriptions", "create", "orders", "late", "--from", "latest")[0] == 0
    assert "late" in call("subscriptions", "list", "orders")[1]
    assert call("subscriptions", "delete", "orders", "late", "-y")[0] == 0
    assert "late" not in call("subscriptions", "list", "orders")[1]
    assert call("subscriptions", "skip", "orders", "work", "-n", "3", "--dry-run")[1].startswith(
        "would skip 3"
    )
    assert len(backlog(store)) == 20
    assert call("subscriptions", "skip", "orders", "work", "-n", "3", "-y")[1] == "3 messages skipped\n"
    assert backlog(store)[0] == b"order 3"
    assert call("subscriptions", "skip", "orders", "work")[0] == 2
    assert call("subscriptions", "skip", "orders", "work", "-n", "1", "--id", "1:5")[0] == 2
    assert call("subscriptions", "skip", "orders", "work", "--id", "5")[0] == 2
    assert call("subscriptions", "skip", "orders", "work", "--id", "1:5", "--dry-run")[1].startswith(
        "would skip message 1:5"
    )
    assert call("subscriptions", "skip", "orders", "work", "--id", "(1,5,-1,-1)", "-y")[0] == 0
    status, _, err = call("subscriptions", "skip", "orders", "work", "--id", "1:5", "-y")
    assert status == 1 and "it is acknowledged" in err
    assert b"order 5" not in backlog(store)
    assert call("subscriptions", "expire", "orders", "work", "--older-than", "3600", "-y")[0] == 0
    assert len(backlog(store)) == 16
    assert call("subscriptions", "skip-all", "orders", "work", "-y")[0] == 0
    assert backlog(store) == []
    assert call("subscriptions", "reset", "orders", "work", "--to", "earliest", "-y")[0] == 0
    assert len(backlog(store)) == 20
    assert call("subscriptions", "reset", "orders", "work", "--time", "99999999999999", "-y")[0] == 0
    assert backlog(store) == []
    status, _, err = call("subscriptions", "reset", "orders", "work", "-y")
    assert status == 2 and "either --to or --time" in err


def test_dead_letters(call, store):
    """Listed, shown, published again one by one or all, and given up."""
    with Client(store) as client:
        producer = client.create_producer("orders-work-DLQ")
        for text in (b"one", b"two", b"three"):
            producer.send(text)
    before = len(backlog(store))
    listed = json.loads(call("dlq", "list", "orders", "work", "--json")[1])
    assert len(listed) == 3 and listed[0]["originTopic"] == ORDERS
    out = call("dlq", "list", "orders", "work")[1]
    assert listed[1]["messageId"] in out
    assert call("dlq", "peek", "orders", "work")[1] == "one\n"
    out = call("dlq", "replay", "orders", "work", "--dry-run")[1]
    assert out.startswith("would publish all dead letters")
    second = listed[1]["messageId"]
    out = call("dlq", "replay", "orders", "work", "--id", second, "-y")[1]
    assert out == f"the dead letter {second} published again\n"
    assert backlog(store)[before:] == [b"two"]
    assert call("dlq", "replay", "orders", "work", "--id", "3", "-y")[0] == 2
    assert call("dlq", "replay", "orders", "work", "-y")[1] == "2 dead letters published again\n"
    assert backlog(store)[before:] == [b"two", b"one", b"three"]
    with Client(store) as client:
        client.create_producer("orders-work-DLQ").send(b"four")
    assert call("dlq", "purge", "orders", "work", "-y")[1] == "1 dead letter given up\n"
    first = len(backlog(store))
    add = ("dlq", "add", "orders", "work", "--id", "1:0", "--reason", "no\nprice")
    assert call(*add, "--dry-run")[1].startswith("would move 1:0 of work of orders to ")
    assert call(*add, "-y")[1].startswith("1:0 moved to ")
    assert len(backlog(store)) == first - 1
    assert json.loads(call("dlq", "list", "orders", "work", "--json")[1])[0]["reason"] == "no\nprice"
    assert call("dlq", "list", "orders", "work")[1].splitlines()[1].endswith(" no")
    assert "DEAD_LETTER_REASON=no" in call("dlq", "peek", "orders", "work", "-v")[1]
    assert call("dlq", "purge", "orders", "work", "-y")[0] == 0
    assert json.loads(call("dlq", "list", "orders", "work", "--json")[1]) == []


def test_namespaces(call):
    """Listed and created."""
    assert call("namespaces", "create", "acme/sales")[0] == 0
    assert json.loads(call("namespaces", "list", "acme", "--json")[1]) == ["acme/sales"]
    assert "public/default" in call("namespaces", "list")[1]


@pytest.mark.parametrize(("noun", "name"), [("topics", "orders"), ("namespaces", "public/default")])
def test_expiry_and_quotas(call, noun: str, name: str):
    """Numbers and quotas are set, shown and removed, with the units of pulsar-admin."""
    for policy, given, stored in [("message-ttl", "2h", 7200), ("subscription-expiration-time", "90", 90)]:
        assert call(noun, f"get-{policy}", name)[1] == "not set\n"
        assert call(noun, f"set-{policy}", name, "-t", given)[0] == 0
        assert json.loads(call(noun, f"get-{policy}", name, "--json")[1]) == stored
        assert call(noun, f"remove-{policy}", name)[0] == 0
        assert call(noun, f"get-{policy}", name, "--applied")[1] == "0\n"
    assert call(noun, "set-backlog-quota", name, "-l", "10G", "-p", "producer_exception")[0] == 0
    assert call(noun, "set-backlog-quota", name, "-lt", "3h", "-t", "message_age")[0] == 0
    quotas = json.loads(call(noun, "get-backlog-quotas", name)[1])
    assert quotas["destination_storage"] == {
        "limitSize": 10 << 30,
        "limitTime": -1,
        "policy": "producer_exception",
    }
    assert quotas["message_age"]["limitTime"] == 10_800
    assert call(noun, "remove-backlog-quota", name, "-t", "message_age")[0] == 0
    assert call(noun, "remove-backlog-quota", name)[0] == 0
    assert json.loads(call(noun, "get-backlog-quotas", name)[1]) == {}
    assert call(noun, "set-message-ttl", name, "-t", "soon")[0] == 2
    assert call(noun, "set-backlog-quota", name, "-l", "-1G")[0] == 2


def test_messages_are_published(call):
    """From options, or from the lines of the input."""
    status, out, err = call("produce", "notes", "-m", "one", "-m", "two", "-k", "key", "-p", "a=b")
    assert (status, out, err) == (0, "", "2 messages published\n")
    assert call("produce", "notes", typed="three\nvier für\n".encode())[0] == 0
    lines = [json.loads(line) for line in call("tail", "notes", "--json")[1].splitlines()]
    assert [one["payload"] for one in lines] == ["one", "two", "three", "vier für"]
    assert lines[0]["key"] == "key" and lines[0]["properties"] == {"a": "b"}
    assert call("produce", "notes", "-m", "x", "-p", "wrong")[0] == 2
    status, _, err = call("produce", "notes", typed=b"small\n" + b"x" * 6_000_000 + b"\n")
    assert (status, err) == (1, "Error: 1 of 2 messages could not be stored: MessageTooBig\n")


def test_messages_are_consumed(call, store):
    """Printed and acknowledged, as many as asked for, or until there are no more."""
    assert call("consume", "orders", "-s", "work", "-n", "2")[1] == "order 0\norder 1\n"
    assert len(backlog(store)) == 18
    out = call("consume", "orders", "-s", "work", "-n", "0", "--wait", "0.05", "-v")[1]
    assert len(out.splitlines()) == 36 and "key=k" in out and "n=2" in out
    assert backlog(store) == []
    status, out, _ = call("consume", "orders", "-s", "more", "-t", "Key_Shared", "--from", "earliest")
    assert (status, out) == (0, "order 0\n")


def test_the_last_messages(call):
    """Of a topic, of several partitions, and of payloads that are no text."""
    assert call("tail", "orders", "-n", "2")[1] == "order 18\norder 19\n"
    assert len(call("tail", "orders", "-n", "100")[1].splitlines()) == 20
    assert call("tail", "orders", "-n", "0")[1] == ""
    call("produce", "flights", "-m", "a", "-m", "b")
    assert sorted(call("tail", "flights")[1].split()) == ["a", "b"]
    call("produce", "raw", typed=b"\xff\xfe\n")
    assert call("tail", "raw")[1] == "\ufffd\ufffd\n"  # the bytes themselves, as they are read here
    assert json.loads(call("tail", "raw", "--json")[1])["payloadBase64"] == "//4="


def test_a_backlog_is_peeked_at(call, store):
    """Nothing is consumed."""
    for _ in range(2):
        out = call("topics", "peek-messages", "orders", "-s", "work", "-n", "2")[1]
        assert out == "order 0\norder 1\n"


def test_errors_are_one_line(call, tmp_path, capfd):
    """With status 1; a wrong command line has status 2. No store is made."""
    status, out, err = call("topics", "delete", "no such", "-y")
    assert (status, out) == (1, "") and err.startswith("Error: ") and err.count("\n") == 1
    assert call("topics", "fly")[0] == 2
    assert main(["--store", str(tmp_path / "none"), "topics", "list"]) == 1
    assert "does not exist" in capfd.readouterr().err and not (tmp_path / "none").exists()
    assert main(["topics", "list"]) == 2
    assert "EMBEDDEDPULSAR_URL" in capfd.readouterr().err


def test_the_store_is_checked(call, store, capfd):
    """The same as the check that needs no further packages."""
    status, out, _ = call("check")
    assert status == 0 and "Everything is whole." in out
    assert json.loads(call("check", "--json")[1])["is_whole"]


def test_without_the_packages(capfd, monkeypatch):
    """One line says what to install."""
    real = builtins.__import__

    def fails(name, *arguments, **options):
        if name == "click":
            raise ImportError("no click", name="click")
        return real(name, *arguments, **options)

    for name in [name for name in sys.modules if name.startswith("embeddedpulsar.cli.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", fails)
    assert main([]) == 2
    assert capfd.readouterr().err == (
        "the command line needs click and rich: pip install 'embeddedpulsar[cli]'\n"
    )


@pytest.mark.parametrize("arguments", [[], ["dlq"]])
def test_a_group_without_a_command_prints_its_help_once(capfd, arguments):
    """It is no error with a usage line before it."""
    main(arguments)
    printed = "".join(capfd.readouterr())
    assert printed.count("Usage: embeddedpulsar") == 1 and "Error" not in printed and "Commands:" in printed


def test_a_module_is_the_program(store):
    """Also with the store in the environment, without colours where the output is no terminal."""
    environment = os.environ | {"EMBEDDEDPULSAR_URL": str(store)}
    done = subprocess.run(
        [sys.executable, "-m", "embeddedpulsar", "tail", "orders", "-n", "1", "-v"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "order 19" and "\033" not in done.stdout


def test_topics_are_completed(store):
    """Full names and short ones, of the namespace that was typed."""
    from click.shell_completion import ShellComplete

    from embeddedpulsar.cli.program import program

    completer = ShellComplete(program, {}, "embeddedpulsar", "_EMBEDDEDPULSAR_COMPLETE")

    def completed(typed: str) -> list[str]:
        given = ["--store", str(store), "topics", "delete"]
        return [item.value for item in completer.get_completions(given, typed)]

    assert completed("or") == ["orders"]
    assert completed("persistent://public/default/o") == [ORDERS]
    assert completed("acme/sales/") == []


def test_a_store_is_named_by_a_url(store, capfd):
    """As for a client; one in memory or of a cluster is refused."""
    spaced = store.with_name("my store")
    store.rename(spaced)
    try:
        url = spaced.as_uri()
        assert "%20" in url and main(["--store", url, "tail", "orders", "-n", "1"]) == 0
        assert capfd.readouterr().out == "order 19\n"
    finally:
        spaced.rename(store)
    assert main(["--store", "memory://x", "topics", "list"]) == 2
    assert main(["--store", "pulsar://localhost:6650", "topics", "list"]) == 1
    assert "Pulsar cluster" in capfd.readouterr().err


def test_settings(call):
    """They are shown, changed and changed back."""
    assert json.loads(call("brokers", "get-runtime-config", "--json")[1])["maxMessageSize"] == "5242880"
    name = "allowAutoTopicCreation"
    assert call("brokers", "update-dynamic-config", "--config", name, "--value", "false")[0] == 0
    assert "false" in call("brokers", "get-all-dynamic-config")[1]
    assert name in json.loads(call("brokers", "list-dynamic-config", "--json")[1])
    assert name in call("brokers", "list-dynamic-config")[1]
    assert call("brokers", "delete-dynamic-config", "--config", name)[0] == 0
    assert json.loads(call("brokers", "get-all-dynamic-config", "--json")[1]) == {}
    status, _, err = call("brokers", "update-dynamic-config", "--config", "maxMessageSize", "--value", "5")
    assert status == 1 and "broker.conf" in err


@pytest.mark.parametrize(
    ("noun", "name", "verb", "options", "found"),
    [
        ("topics", "orders", "publish-rate", ["-m", "5"], {"publishThrottlingRateInMsg": 5}),
        (
            "namespaces",
            "public/default",
            "dispatch-rate",
            ["-bd", "9", "-dt", "2", "-p"],
            {"dispatchThrottlingRateInByte": 9, "ratePeriodInSecond": 2, "relativeToPublishRate": True},
        ),
        (
            "topics",
            "orders",
            "inactive-topic-policies",
            ["-d", "-t", "2h", "-m", "delete_when_subscriptions_caught_up"],
            {
                "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up",
                "maxInactiveDurationSeconds": 7200,
                "deleteWhileInactive": False,
            },
        ),
        ("topics", "orders", "subscription-dispatch-rate", ["-md", "3"], {"dispatchThrottlingRateInMsg": 3}),
        (
            "topics",
            "orders",
            "auto-subscription-creation",
            ["-d"],
            {"allowAutoSubscriptionCreation": False},
        ),
        (
            "namespaces",
            "public/default",
            "auto-topic-creation",
            ["-e", "-t", "partitioned", "-n", "4"],
            {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 4},
        ),
        (
            "namespaces",
            "public/default",
            "subscribe-rate",
            ["-sr", "5"],
            {"subscribeThrottlingRatePerConsumer": 5, "ratePeriodInSecond": 30},
        ),
        ("topics", "orders", "delayed-delivery", ["-d", "-t", "2s"], {"active": False, "tickTime": 2000}),
        ("namespaces", "public/default", "delayed-delivery", ["-t", "7"], {"active": True, "tickTime": 7}),
        (
            "topics",
            "orders",
            "retention",
            ["-t", "2h", "-s", "10M"],
            {"retentionTimeInMinutes": 120, "retentionSizeInMB": 10},
        ),
        (
            "namespaces",
            "public/default",
            "retention",
            ["-t", "-1", "-s", "-1"],
            {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
        ),
    ],
)
def test_policies(call, noun: str, name: str, verb: str, options: list[str], found: dict[str, object]):
    """Each is set, shown and removed, with the options of pulsar-admin."""
    assert call(noun, f"get-{verb}", name)[1] == "not set\n"
    assert call(noun, f"set-{verb}", name, *options) == (0, "", "")
    shown = json.loads(call(noun, f"get-{verb}", name, "--json")[1])
    assert shown | found == shown
    assert all(f"{key}={value}" in call(noun, f"get-{verb}", name)[1] for key, value in found.items())
    assert call(noun, f"remove-{verb}", name)[0] == 0
    assert json.loads(call(noun, f"get-{verb}", name, "--json")[1]) is None


_NUMBERS = [
    ("topics", "orders", "max-message-size", ["-m", "1M"], 1 << 20),
    ("topics", "orders", "max-unacked-messages-per-consumer", ["-m", "5"], 5),
    ("topics", "orders", "max-unacked-messages-per-subscription", ["--maxNum", "5"], 5),
    ("topics", "orders", "max-producers", ["-p", "5"], 5),
    ("topics", "orders", "max-consumers", ["-c", "5"], 5),
    ("namespaces", "public/default", "max-unacked-messages-per-consumer", ["-c", "5"], 5),
    ("namespaces", "public/default", "max-unacked-messages-per-subscription", ["-c", "5"], 5),
    ("namespaces", "public/default", "max-producers-per-topic", ["-p", "5"], 5),
    ("namespaces", "public/default", "max-consumers-per-topic", ["-c", "5"], 5),
    ("namespaces", "public/default", "max-topics-per-namespace", ["-t", "5"], 5),
    ("namespaces", "public/default", "encryption-required", ["-e"], True),
    ("topics", "orders", "deduplication", ["--disable"], False),
    ("topics", "orders", "max-consumers-per-subscription", ["-c", "5"], 5),
    ("namespaces", "public/default", "max-subscriptions-per-topic", ["-s", "5"], 5),
    ("topics", "orders", "subscription-types-enabled", ["-t", "Shared, Exclusive"], ["Exclusive", "Shared"]),
]


@pytest.mark.parametrize(("noun", "name", "verb", "options", "found"), _NUMBERS)
def test_policies_of_one_value(call, noun: str, name: str, verb: str, options: list[str], found: object):
    """Each is set, shown and removed, with the options of pulsar-admin."""
    assert call(noun, f"set-{verb}", name, *options) == (0, "", "")
    assert json.loads(call(noun, f"get-{verb}", name, "--json")[1]) == found
    text = ", ".join(found) if isinstance(found, list) else str(found)
    assert call(noun, f"get-{verb}", name)[1] == f"{text}\n"
    assert call(noun, f"remove-{verb}", name)[0] == 0
    assert json.loads(call(noun, f"get-{verb}", name, "--json")[1]) is None


def test_resource_groups(call):
    """They are created, shown, changed and deleted; a topic is in one until it is taken out."""
    assert call("resourcegroups", "create", "shop", "-mp", "500", "-bd", "7") == (0, "", "")
    assert call("resourcegroups", "update", "shop", "-mp", "600")[0] == 0
    assert json.loads(call("resourcegroups", "list", "--json")[1]) == ["shop"]
    assert "shop" in call("resourcegroups", "list")[1]
    shown = json.loads(call("resourcegroups", "get", "shop", "--json")[1])
    assert (shown["publishRateInMsgs"], shown["dispatchRateInBytes"]) == (600, 7)
    assert shown["usage"]["publishedMessages"] == 0
    assert "600" in call("resourcegroups", "get", "shop")[1]
    for noun, name in (("topics", "orders"), ("namespaces", "public/default")):
        assert call(noun, "set-resource-group", name, "-rgn", "shop") == (0, "", "")
        assert call(noun, "get-resource-group", name)[1] == "shop\n"
        assert "in use" in call("resourcegroups", "delete", "shop")[2]
        assert call(noun, "remove-resource-group", name)[0] == 0
    assert call("resourcegroups", "delete", "shop")[0] == 0
    assert call("resourcegroups", "get", "shop")[0] == 1


def test_values_of_policies_that_are_none(call):
    """They are refused with what is possible, and so is --applied where there is no such thing."""
    status, _, err = call("topics", "set-subscription-types-enabled", "orders", "-t", "Sharred")
    assert status == 2 and "Exclusive,Failover,Shared,Key_Shared" in err
    assert call("topics", "set-retention", "orders", "-t", "5", "-s", "10M")[0] == 2
    assert call("topics", "get-retention", "orders", "-ap")[0] == 2
    assert call("topics", "get-publish-rate", "orders", "-ap")[0] == 0
    assert call("topics", "set-keep-until-subscribed", "orders", "-e")[0] == 0
    assert call("topics", "get-keep-until-subscribed", "orders")[1] == "True\n"


@pytest.mark.parametrize(("noun", "kind"), [("topics", Topics), ("namespaces", Namespaces)])
def test_every_policy_of_an_admin_has_its_verbs(noun: str, kind: type):
    """For each method that sets a policy: set, get and remove."""
    policies = (*OF_BOTH, *(OF_TOPICS if noun == "topics" else OF_NAMESPACES))
    there = {one.method for one in policies}
    there |= {"backlog_quota"}  # whose options are their own
    verbs = set(program.commands[noun].commands)  # type: ignore[attr-defined]
    assert there == {name.removeprefix("set_") for name in dir(kind) if name.startswith("set_")}
    for one in policies:
        assert {f"{verb}-{one.verb}" for verb in ("set", "get", "remove")} <= verbs
    for verb in ("set-backlog-quota", "get-backlog-quotas", "remove-backlog-quota"):
        assert verb in verbs


VERBS = {
    "topics": {
        "create_non_partitioned_topics": "create",
        "create_non_partitioned_topic": "create",
        "create_partitioned_topic": "create",
        "delete_partitioned_topic": "delete",
        "get_list": "list",
        "get_partitioned_topic_list": "list-partitioned-topics",
        "get_stats": "stats",
        "compaction_progress": "compact",
        "offload_progress": "offload",
        "get_partitioned_stats": "partitioned-stats",
        "get_internal_stats": "stats-internal",
        "analyze_subscription_backlog": "analyze-backlog",
        "get_backlog_size_by_message_id": "get-backlog-size",
        "get_last_message_id": "last-message-id",
        "get_message_id_by_timestamp": "get-message-id",
        "get_messages_by_id": "get-message-by-id",
        "examine_message": "examine-messages",
        "expire_messages_for_all_subscriptions": "expire-messages-all-subscriptions",
        "terminate_topic": "terminate",
        "terminate_partitioned_topic": "terminate",
        "trim_topic": "trim",
        "trigger_offload": "offload",
        "get_backlog_quota_map": "get-backlog-quotas",
    },
    "subscriptions": {
        "create_subscription": "create",
        "delete_subscription": "delete",
        "expire_messages": "expire",
        "get_subscriptions": "list",
        "reset_cursor": "reset",
        "skip_message": "skip",
        "skip_messages": "skip",
        "skip_all_messages": "skip-all",
    },
    "namespaces": {
        "create_namespace": "create",
        "delete_namespace": "delete",
        "get_namespaces": "list",
        "get_topics": "topics",
        "get_backlog_quota_map": "get-backlog-quotas",
    },
    "tenants": {"create_tenant": "create", "delete_tenant": "delete", "get_tenants": "list"},
    "resourcegroups": {
        "create_resource_group": "create",
        "delete_resource_group": "delete",
        "get_resource_group": "get",
        "get_usage": "get",
        "get_resource_groups": "list",
        "update_resource_group": "update",
    },
}
"""Methods of an Admin whose verbs have other names."""


@pytest.mark.parametrize(
    ("noun", "kind"),
    [
        ("topics", Topics),
        ("namespaces", Namespaces),
        ("tenants", Tenants),
        ("resourcegroups", ResourceGroups),
    ],
)
def test_every_method_of_an_admin_has_a_verb(noun: str, kind: type):
    """One that pulsar-admin has, or its own name."""
    policies = (*OF_BOTH, *(OF_TOPICS if noun == "topics" else OF_NAMESPACES))
    of_policies = {f"{verb}_{one.method}" for one in policies for verb in ("set", "get", "remove")}
    verbs = {
        name: set(group.commands) for name, group in program.commands.items() if hasattr(group, "commands")
    }
    for method in (name for name in dir(kind) if not name.startswith("_")):
        if method in of_policies and noun in ("topics", "namespaces"):
            continue
        others = ("subscriptions",) if noun == "topics" else ()
        named = [(one, VERBS[one][method]) for one in (noun, *others) if method in VERBS[one]]
        group, verb = (named or [(noun, method.replace("_", "-"))])[0]
        assert verb in verbs[group], f"{kind.__name__}.{method}"


def test_looks_at_a_topic(call):
    """Figures, positions and single messages."""
    assert json.loads(call("topics", "list-partitioned-topics", "--json")[1]) == [
        "persistent://public/default/flights"
    ]
    assert "flights" in call("topics", "list-partitioned-topics")[1]
    assert json.loads(call("topics", "get-partitioned-topic-metadata", "flights")[1]) == {"partitions": 2}
    assert (
        len(json.loads(call("topics", "partitioned-stats", "flights", "--per-partition")[1])["partitions"])
        == 2
    )
    assert json.loads(call("topics", "stats-internal", "orders")[1])["numberOfEntries"] == 20
    call("subscriptions", "create", "orders", "auditor", "--from", "earliest")
    assert json.loads(call("topics", "analyze-backlog", "orders", "-s", "auditor")[1])["messages"] == 20
    last = json.loads(call("topics", "last-message-id", "orders", "--json")[1])
    assert last["entryId"] == 19
    place = f"{last['ledgerId']}:19"
    assert call("topics", "last-message-id", "orders")[1] == f"{place}:-1\n"
    assert call("topics", "get-backlog-size", "orders", "-m", place)[1] == "0\n"
    assert call("topics", "get-backlog-size", "orders", "-m", "nine")[0] == 2
    assert call("topics", "get-message-id", "orders", "-t", "0")[1] == f"{last['ledgerId']}:0:-1\n"
    assert (
        "order 19"
        in call("topics", "get-message-by-id", "orders", "-l", str(last["ledgerId"]), "-e", "19")[1]
    )
    assert "order 19" in call("topics", "examine-messages", "orders")[1]
    assert "order 1" in call("topics", "examine-messages", "orders", "-i", "earliest", "-m", "2")[1]


def test_operations_on_a_topic(call, store):
    """They ask first; a dry run does nothing."""
    call("subscriptions", "create", "orders", "auditor", "--from", "earliest")
    for verb, options in (("expire-messages-all-subscriptions", ["-t", "0"]), ("truncate", [])):
        assert call("topics", verb, "orders", *options, "--dry-run")[0] == 0
    assert json.loads(call("topics", "analyze-backlog", "orders", "-s", "auditor")[1])["messages"] == 20
    assert call("topics", "expire-messages-all-subscriptions", "orders", "-t", "0", "--yes")[0] == 0
    assert json.loads(call("topics", "analyze-backlog", "orders", "-s", "auditor")[1])["messages"] == 0
    assert call("topics", "truncate", "orders", "-y")[0] == 0
    assert call("topics", "unload", "orders")[0] == 0
    assert call("topics", "terminate", "orders", "--dry-run")[0] == 0
    assert "the last message is" in call("topics", "terminate", "orders", "--yes")[1]
    assert "partition 1" in call("topics", "terminate", "flights", "--yes")[1]
    with Client(store) as client, pytest.raises(TopicTerminated):
        client.create_producer("orders")


def test_namespaces_and_tenants(call):
    """They are made, listed and deleted, with force if there is something in them."""
    assert call("tenants", "create", "acme")[0] == 0
    assert "acme" in json.loads(call("tenants", "list", "--json")[1])
    assert call("namespaces", "create", "acme/sales")[0] == 0
    assert call("topics", "create", "acme/sales/orders")[0] == 0
    assert json.loads(call("namespaces", "topics", "acme/sales", "--json")[1]) == [
        "persistent://acme/sales/orders"
    ]
    assert "orders" in call("namespaces", "topics", "acme/sales", "-m", "ALL")[1]
    assert call("namespaces", "delete", "acme/sales", "--yes")[0] == 1
    assert call("namespaces", "delete", "acme/sales", "--force", "--dry-run")[0] == 0
    assert call("namespaces", "delete", "acme/sales", "--force", "--yes")[0] == 0
    assert call("tenants", "delete", "acme", "--yes")[0] == 0
    assert "acme" not in call("tenants", "list")[1]


def test_offloading(call, store, tmp_path):
    """Policies, and ledgers that go to a location."""
    cold = tmp_path / "cold"
    with Client(store) as client, client.create_producer("trips") as producer:
        producer.send(b"from A to B")
    assert call("topics", "offload-status", "trips")[:2] == (0, "NOT_RUN\n")
    assert call("topics", "offload", "trips", "-s", "0")[0] == 1
    options = ("-l", str(cold), "-t", "10M", "-ts", "3h", "-dl", "1m")
    assert call("namespaces", "set-offload-policies", "public/default", *options)[0] == 0
    assert json.loads(call("namespaces", "get-offload-policies", "public/default", "--json")[1]) == {
        "offloadLocation": str(cold),
        "offloadThresholdInBytes": 10 << 20,
        "offloadThresholdInSeconds": 10_800,
        "offloadDeletionLagInMillis": 60_000,
    }
    for verb, option, value in (
        ("threshold", "-s", "5M"),
        ("threshold-in-seconds", "-t", "1d"),
        ("deletion-lag", "-l", "500"),
    ):
        assert call("topics", f"set-offload-{verb}", "trips", option, value)[0] == 0
    assert call("topics", "get-offload-threshold-in-seconds", "trips")[1] == "86400\n"
    status, output, errors = call("topics", "offload", "trips", "-s", "0")
    assert (status, output) == (0, "SUCCESS\n") and errors.startswith(
        "nothing to offload: trips has no closed"
    )
    assert call("subscriptions", "create", "trips", "later", "--from", "earliest")[0] == 0
    assert call("topics", "roll-ledger", "trips")[:2] == (0, "1 ledger closed\n")
    assert call("topics", "offload", "trips", "-s", "0") == (0, "SUCCESS\n", "")
    assert json.loads(call("topics", "offload-status", "trips", "--json", "-w")[1])["status"] == "SUCCESS"
    assert (
        call("topics", "export", "trips", str(cold), "-f", "csv", "-c", "value")[1] == "1 message in 1 file\n"
    )
    assert next(cold.rglob("*.csv")).read_text() == "value\nfrom A to B\n"


def test_compaction(call, store):
    """By command and by threshold; the status says how it ended."""
    assert call("topics", "compaction-status", "orders")[:2] == (0, "NOT_RUN\n")
    with Client(store) as client:
        producer = client.create_producer("prices")
        for number in range(4):
            producer.send(b"%d" % number, partition_key="tea")
    assert call("topics", "compact", "prices")[:2] == (0, "SUCCESS\n")
    assert call("topics", "compaction-status", "prices", "--wait-complete")[:2] == (0, "SUCCESS\n")
    answer = json.loads(call("topics", "compaction-status", "prices", "--json", "-w")[1])
    assert answer == {"status": "SUCCESS", "lastError": ""}
    with Admin(store) as admin:
        assert admin.topics().get_stats("prices").compaction.last_compaction_removed_event_count == 3
    assert call("topics", "compact", "nothing")[0] == 1
    for group, name in (("topics", "prices"), ("namespaces", "public/default")):
        assert call(group, "get-compaction-threshold", name)[1] == "not set\n"
        assert call(group, "set-compaction-threshold", name, "-t", "10M")[0] == 0
        assert call(group, "get-compaction-threshold", name)[1] == "10.0 MiB\n"
        assert json.loads(call(group, "get-compaction-threshold", name, "--json")[1]) == 10 << 20
        assert call(group, "remove-compaction-threshold", name)[0] == 0
        assert call(group, "get-compaction-threshold", name, "--json")[1] == "null\n"
    assert call("topics", "set-compaction-threshold", "prices", "-t", "ten")[0] == 2


def test_schemas(call, store, tmp_path: Path):
    """Uploaded from a file, shown, compared and deleted; and the policies about them."""

    def file(name: str, **field: object) -> str:
        record = {"type": "record", "name": "Order", "fields": [{"name": name, "type": "int", **field}]}
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({"type": "AVRO", "schema": json.dumps(record)}), "utf-8")
        return str(path)

    first = file("table", default=0)
    assert call("schemas", "get", "orders")[0] == 1
    assert call("schemas", "upload", "orders", "-f", first)[:2] == (0, "version 0\n")
    assert call("schemas", "compatibility", "orders", "-f", first)[:2] == (0, "compatible (FULL)\n")
    status, out, _ = call("schemas", "compatibility", "orders", "-f", file("count"))
    assert status == 1 and "no default" in out
    found = call("schemas", "compatibility", "orders", "-f", file("count"), "--json")[1]
    assert json.loads(found)["isCompatibility"] is False
    assert call("topics", "set-schema-compatibility-strategy", "orders", "-c", "BACKWARD")[0] == 0
    assert call("topics", "get-schema-compatibility-strategy", "orders")[1] == "BACKWARD\n"
    assert call("schemas", "upload", "orders", "-f", file("sum", default=1))[1] == "version 1\n"
    assert call("schemas", "get", "orders", "-v", "0")[1].startswith("version 0, AVRO\n")
    assert "1" in call("schemas", "get", "orders", "-a")[1]
    assert [one["version"] for one in json.loads(call("schemas", "get", "orders", "-a", "--json")[1])] == [
        0,
        1,
    ]
    assert json.loads(call("schemas", "get", "orders", "--json")[1])["type"] == "AVRO"
    broken = tmp_path / "broken"
    broken.write_text("{")
    assert call("schemas", "upload", "orders", "-f", str(broken))[0] == 1
    pairs = {
        "type": "KEY_VALUE",
        "schema": '{"key":"","value":"int"}',
        "properties": {"key.schema.type": "STRING"},
    }
    pairs["properties"]["value.schema.type"] = "AVRO"
    broken.write_text(json.dumps(pairs))
    assert call("schemas", "upload", "pairs", "-f", str(broken))[1] == "version 0\n"
    assert call("schemas", "get", "pairs")[1] == 'version 0, KEY_VALUE\n{"key":"","value":"int"}\n'
    assert call("schemas", "delete", "orders", "--dry-run")[0] == 0
    assert call("schemas", "delete", "orders", "-y", "-f")[0] == 0
    assert call("schemas", "get", "orders")[0] == 1
