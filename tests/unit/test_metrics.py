"""Metrics of a whole store: their names, their values, how many there are, and what a scrape reads."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

prometheus_client = pytest.importorskip("prometheus_client")

from prometheus_client import CollectorRegistry, generate_latest  # noqa: E402
from prometheus_client.parser import text_string_to_metric_families  # noqa: E402

from embeddedpulsar import Admin, AlreadyClosed, Client, ConsumerDeadLetterPolicy, ConsumerType  # noqa: E402
from embeddedpulsar.admin import activity  # noqa: E402
from embeddedpulsar.functions import FunctionConfig, LocalRunner  # noqa: E402
from embeddedpulsar.metrics import (  # noqa: E402
    OTHERS,
    StoreCollector,
    collector,
    exposition,
    metrics_of,
    text_of,
)
from embeddedpulsar.testing import ManualClock  # noqa: E402
from embeddedpulsar.testing.trial_store import trial_store  # noqa: E402
from tests.source_tree import PACKAGE  # noqa: E402
from tests.support.damaged_files import flip  # noqa: E402

ORDERS = "persistent://public/default/orders"
RECORDED = Path(__file__).parent.parent / "beside_pulsar" / "metric_labels.json"
# A broker has these when a transaction or a function was there; the names are those of its documentation.
DOCUMENTED = {"pulsar_txn_active_count", "pulsar_txn_created_total", "pulsar_txn_committed_total"} | {
    "pulsar_txn_aborted_total",
    *(
        f"pulsar_function_{end}"
        for end in ("received_total", "processed_successfully_total", "last_invocation")
    ),
    *(f"pulsar_function_{kind}_exceptions_total" for kind in ("user", "system")),
}


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A store that is checked at the end."""
    with trial_store(tmp_path / "store") as path:
        yield Path(path)


class Scrape:
    """What one scrape gets."""

    def __init__(self, metrics: StoreCollector) -> None:
        self.samples: dict[str, list[tuple[dict[str, str], float]]] = {}
        for family in text_string_to_metric_families(exposition(metrics).decode()):
            for sample in family.samples:
                self.samples.setdefault(sample.name, []).append((sample.labels, sample.value))

    def value(self, metric: str, /, **labels: str) -> float:
        """The sample with these labels, which is there once."""
        (value,) = [value for given, value in self.samples[metric] if labels.items() <= given.items()]
        return value

    def total(self, name: str) -> float:
        """The sum of all samples."""
        return sum(value for _, value in self.samples.get(name, []))


def test_names_and_labels_are_those_of_pulsar(root: Path):
    """As a broker 4.0.7 had them in a scrape that was recorded; what is not in Pulsar says so by its name."""
    recorded: dict[str, list[str]] = json.loads(RECORDED.read_text())
    with Client(root) as client, Admin(root) as admin:
        client.subscribe("orders", "work").close()
        metrics = collector(admin)
        scrape = Scrape(metrics)
    assert len(scrape.samples) > 40
    for name, samples in scrape.samples.items():
        labels = sorted(samples[0][0])
        if name.startswith("embeddedpulsar_"):
            assert name not in recorded
        elif name not in DOCUMENTED:
            assert labels == recorded[name], name
    described = {metric.name for metric in metrics.describe()}
    assert {name.removesuffix("_total") for name in DOCUMENTED} <= described


def test_values(root: Path):
    """What a topic and its subscription have: messages, consumers, bytes, and what waits."""
    with ManualClock() as clock, Client(root) as client, Admin(root) as admin, collector(client) as metrics:
        consumer = client.subscribe("orders", "work", ConsumerType.Shared, receiver_queue_size=4)
        producer = client.create_producer("orders", "shop")
        for number in range(20):
            producer.send(b"order %d" % number)
        before = Scrape(metrics)
        assert "pulsar_rate_out" not in before.samples  # of one look there is none
        for _ in range(6):
            consumer.acknowledge(consumer.receive(5000))
        clock.advance(timedelta(seconds=40))
        scrape = Scrape(metrics)
        stats = admin.topics().get_stats("orders")
        consumer.close()
    topic = {"cluster": "embeddedpulsar", "namespace": "public/default", "topic": ORDERS}
    expected = {
        "pulsar_subscriptions_count": 1,
        "pulsar_producers_count": 1,
        "pulsar_consumers_count": 1,
        "pulsar_in_messages_total": 20,
        "pulsar_in_bytes_total": stats.bytes_in_counter,
        "pulsar_rate_in": pytest.approx(20 / 60),
        "pulsar_rate_out": pytest.approx(6 / 40),
        "pulsar_msg_backlog": 14,
        "pulsar_storage_size": stats.storage_size,
        "pulsar_storage_backlog_age_seconds": pytest.approx(40, abs=1),
        "embeddedpulsar_stored_messages": 20,
    }
    assert {name: scrape.value(name, **topic) for name in expected} == expected
    work = {**topic, "subscription": "work"}
    of_subscription = {
        "pulsar_subscription_back_log": 14,
        "pulsar_subscription_unacked_messages": stats.subscriptions["work"].unacked_messages,
        "pulsar_subscription_consumers_count": 1,
        "pulsar_subscription_msg_rate_out": pytest.approx(6 / 40),
        "pulsar_out_messages_total": 6,
        "embeddedpulsar_subscription_oldest_message_age_seconds": pytest.approx(40, abs=1),
        "embeddedpulsar_subscription_stuck_consumers": 1,
    }
    assert {name: scrape.value(name, **work) for name in of_subscription} == of_subscription
    assert scrape.value("pulsar_broker_msg_backlog") == 14
    assert scrape.value("pulsar_topics_count", namespace="public/default") == 1
    assert scrape.value("embeddedpulsar_processes") == 1


def test_delayed_and_transactions(root: Path):
    """Messages that are not due, and transactions that are open or ended."""
    with Client(root) as client, Admin(root) as admin:
        consumer = client.subscribe("orders", "work", ConsumerType.Shared)
        producer = client.create_producer("orders")
        producer.send(b"later", deliver_after=timedelta(hours=1))
        producer.send(b"now")
        assert consumer.receive(5000).data() == b"now"
        metrics = collector(admin)
        with client.transaction() as txn:
            producer.send(b"both or none", txn=txn)
            during = Scrape(metrics)
        after = Scrape(metrics)
    assert during.value("pulsar_subscription_delayed") == 1
    assert during.value("pulsar_subscription_back_log_no_delayed") == 1
    assert during.value("pulsar_txn_active_count", coordinator_id="0") == 1
    assert during.value("pulsar_txn_tb_active_total", topic=ORDERS) == 1
    assert (after.value("pulsar_txn_active_count"), after.value("pulsar_txn_committed_total")) == (0, 1)
    assert after.value("pulsar_txn_tb_committed_total", topic=ORDERS) == 1


def test_dead_letters(root: Path):
    """Those that are there, until an operator replays them."""
    with Client(root) as client, Admin(root) as admin:
        policy = ConsumerDeadLetterPolicy(max_redeliver_count=1)
        worker = client.subscribe(
            "orders",
            "work",
            ConsumerType.Shared,
            dead_letter_policy=policy,
            negative_ack_redelivery_delay_ms=1,
        )
        client.create_producer("orders").send(b"x")
        for _ in range(2):
            worker.negative_acknowledge(worker.receive(5000))
        metrics = collector(admin)
        letters = admin.dead_letters("orders", "work")
        while not letters.list():
            with pytest.raises(Exception, match="TimeOut"):
                worker.receive(20)
        before = Scrape(metrics)
        assert letters.replay_all() == 1
        after = Scrape(metrics)
        worker.close()
    topic = f"{ORDERS}-work-DLQ"
    assert before.value("embeddedpulsar_dead_letters", topic=topic) == 1
    assert after.value("embeddedpulsar_dead_letters", topic=topic) == 0


def test_functions(root: Path):
    """What their instances counted."""
    with Client(root) as client, Admin(root) as admin:
        config = FunctionConfig("json.dumps", "text", inputs=["readings"], output="texts")
        admin.functions().create_function(config)
        metrics = collector(admin)
        runner = LocalRunner(config, client=client)
        client.create_producer("readings").send(b"7")
        assert runner.run_until_idle() == 1
        during = Scrape(metrics)
        runner.stop()
        after = Scrape(collector(admin))
    labels = {"fqfn": "public/default/text", "tenant": "public", "name": "text", "instance_id": "0"}
    assert during.value("embeddedpulsar_function_running", **labels) == 1
    assert after.value("embeddedpulsar_function_running", **labels) == 0
    assert after.value("pulsar_function_received_total", **labels) == 1
    assert after.value("pulsar_function_processed_successfully_total", **labels) == 1
    assert after.value("pulsar_function_last_invocation", **labels) > 0


def test_a_bounded_number_of_series(root: Path):
    """The topics with the largest backlog have series; sums are those of all topics."""
    with Client(root) as client, Admin(root) as admin:
        for namespace in ("a/one", "a/two", "a/three"):
            admin.namespaces().create_namespace(namespace)
            for number in range(4):
                topic = f"{namespace}/t{number}"
                for subscription in range(3):
                    admin.topics().create_subscription(topic, f"s{subscription}")
                producer = client.create_producer(topic)
                for _ in range(number):
                    producer.send(b"x")
                producer.close()
        everything = Scrape(collector(admin, subscriptions=100))
        scrape = Scrape(collector(admin, topics=2, subscriptions=2, namespaces=1))
        none = Scrape(collector(admin, topics=0, subscriptions=0, namespaces=0))
    assert len(everything.samples["pulsar_msg_backlog"]) == 12
    backlogs = {labels["topic"]: value for labels, value in scrape.samples["pulsar_msg_backlog"]}
    assert set(backlogs) == {OTHERS, "persistent://a/one/t3", "persistent://a/three/t3"}
    assert [labels["namespace"] for labels, _ in scrape.samples["pulsar_topics_count"]] == ["a/one", OTHERS]
    subscriptions = [
        labels["subscription"]
        for labels, _ in scrape.samples["pulsar_subscription_back_log"]
        if labels["topic"] == "persistent://a/one/t3"
    ]
    assert subscriptions == ["s0", "s1", OTHERS]
    assert {labels["topic"] for labels, _ in none.samples["pulsar_msg_backlog"]} == {OTHERS}
    for name in (
        "pulsar_msg_backlog",
        "pulsar_in_messages_total",
        "pulsar_storage_size",
        "pulsar_topics_count",
    ):
        assert everything.total(name) == scrape.total(name) == none.total(name) > 0
    for name in ("pulsar_subscription_back_log", "pulsar_subscriptions_count"):
        assert (
            everything.total(name) == scrape.total(name) == none.total(name) == (54 if "back" in name else 36)
        )
    for bound in ("topics", "subscriptions", "namespaces", "budget_s"):
        with pytest.raises(ValueError, match="0 or more"):
            collector(admin, **{bound: -1})


def test_what_a_scrape_reads(root: Path, monkeypatch: pytest.MonkeyPatch):
    """Topics at rest are opened once; one that changed is opened again, and one that was deleted is gone."""
    read: list[str] = []
    figures = activity._figures

    def counted(store: Any, name: str, *rest: Any) -> Any:
        read.append(name.rpartition("/")[2])
        return figures(store, name, *rest)

    monkeypatch.setattr(activity, "_figures", counted)
    with ManualClock() as clock, Client(root) as client, Admin(root) as admin:
        for number in range(5):
            client.create_producer(f"t{number}").close()
            admin.topics().create_subscription(f"t{number}", "work")
        metrics = collector(admin)
        first = Scrape(metrics)
        assert read == ["t0", "t1", "t2", "t3", "t4"]
        read.clear()
        clock.advance(1)
        again = Scrape(metrics)
        assert read == []
        assert again.value("pulsar_broker_rate_out") == 0
        assert first.total("pulsar_storage_size") == again.total("pulsar_storage_size")
        producer = client.create_producer("t3")
        producer.send(b"x")
        assert Scrape(metrics).value("pulsar_msg_backlog", topic="persistent://public/default/t3") == 1
        assert set(read) == {"t3"}
        producer.close()
        Scrape(metrics)
        read.clear()
        Scrape(metrics)  # of the last minute there is a rate, which sinks
        assert read == ["t3"]
        clock.advance(timedelta(minutes=2))
        Scrape(metrics)
        read.clear()
        admin.topics().create_subscription("t2", "more")
        admin.topics().delete("t4")
        last = Scrape(metrics)
        assert set(read) == {"t2"}
        assert last.value("pulsar_subscriptions_count", topic="persistent://public/default/t2") == 2
        assert last.value("pulsar_broker_topics_count") == 4


def test_a_scrape_without_time(root: Path):
    """It reads some topics, says how many are missing, and the next one goes on there."""
    with Client(root) as client, Admin(root) as admin:
        for number in range(4):
            client.create_producer(f"t{number}").close()
        metrics = collector(admin, budget_s=0)
        pending = [Scrape(metrics).value("embeddedpulsar_topics_pending") for _ in range(5)]
        topics = Scrape(metrics).value("pulsar_broker_topics_count")
    assert pending == [3, 2, 1, 0, 0]
    assert topics == 4


def test_a_damaged_topic(root: Path):
    """The others are shown, and it is counted."""
    with Client(root) as client, Admin(root) as admin:
        for name in ("good", "bad"):
            client.create_producer(name).send(b"x")
    meta = next(path for path in root.glob("topics/*bad*/topic.meta"))
    kept = meta.read_bytes()
    flip(meta, 8)
    with Admin(root, read_only=True) as admin:
        scrape = Scrape(collector(admin))
    meta.write_bytes(kept)
    assert scrape.value("pulsar_in_messages_total") == 1
    assert scrape.value("embeddedpulsar_topics_unread") == 1
    assert scrape.value("pulsar_broker_topics_count") == 2


def test_the_text_is_that_of_the_library(root: Path):
    """To the byte, whatever a name has."""
    with Client(root) as client, Admin(root) as admin:
        for name in ('a "quoted" \\ name', "ä ☃", "plain"):
            client.subscribe(name, 's"ub').close()
        series = collector(admin).series()

    class Collected:
        """Gives what was collected."""

        def collect(self) -> list[Any]:
            return metrics_of(series)

    registry = CollectorRegistry()
    registry.register(Collected())
    assert text_of(series).encode() == generate_latest(registry)


def test_in_a_registry(root: Path):
    """Registering reads nothing; a closed Admin raises in the scrape."""
    registry = CollectorRegistry()
    with Client(root) as client:
        metrics = collector(client)
        registry.register(metrics)
        assert registry.get_sample_value("pulsar_broker_topics_count", {"cluster": "embeddedpulsar"}) == 0
        with collector(client) as second, pytest.raises(ValueError, match="Duplicated"):
            registry.register(second)
        metrics.close()
        metrics.close()
        with pytest.raises(AlreadyClosed):
            metrics.collect()


def test_the_dashboard_has_these_names():
    """Each metric that it asks for is there, with the labels by which it asks."""
    dashboard = json.loads((PACKAGE / "grafana_dashboard.json").read_text())
    text = "\n".join(
        [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
        + [variable["query"] for variable in dashboard["templating"]["list"]]
    )
    used = set(re.findall(r"\b(?:embedded)?pulsar_\w+", text))
    with trial_store() as store, Admin(store) as admin:
        known = set()
        for metric in collector(admin).describe():
            known |= {f"{metric.name}_total" if metric.type == "counter" else metric.name}
    assert len(used) > 25
    assert used <= known
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
