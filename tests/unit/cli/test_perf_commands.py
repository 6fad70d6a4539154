"""`embeddedpulsar perf`: what each load does, what it prints, and how it ends."""

from __future__ import annotations

import json
import math
import random
import re
import sys
from pathlib import Path

import pytest

from embeddedpulsar import Admin, Client, MessageId
from embeddedpulsar.cli import perf_commands
from embeddedpulsar.cli.perf_commands import HistogramLog, LatencyHistogram, Meter, Schedule
from embeddedpulsar.testing import patched_pulsar
from embeddedpulsar.testing.trial_store import assert_clean


@pytest.fixture
def store(tmp_path: Path):
    """A store whose topic `load` keeps its messages for a subscription."""
    root = tmp_path / "store"
    with Admin(root) as admin:
        admin.topics().create_subscription("load", "keep", MessageId.earliest)
    yield root
    assert_clean(root)


def stored(root: Path, topic: str = "load") -> list:
    """The messages of a topic."""
    with Client(root) as client, client.create_reader(topic, MessageId.earliest) as reader:
        messages = []
        while reader.has_message_available():
            messages.append(reader.read_next())
        return messages


def test_quantiles_of_a_histogram_are_those_of_the_values():
    """To three digits, however the values are divided between histograms; the largest has all digits."""
    generator = random.Random(7)
    values = [int(generator.lognormvariate(7, 2)) + 1 for _ in range(5000)]
    whole, first = LatencyHistogram(), LatencyHistogram()
    first.record(values[:1234])
    whole.record(values[1234:])
    whole.merge(first)
    ordered = sorted(values)
    for percent in (1, 50, 95, 99, 99.9, 100):
        exact = ordered[math.ceil(len(ordered) * percent / 100) - 1] / 1000
        assert whole.quantile_ms(percent) == pytest.approx(exact, rel=1e-3)
    assert whole.largest_ms == whole.quantile_ms(100) == ordered[-1] / 1000
    assert whole.mean_ms == pytest.approx(sum(values) / len(values) / 1000, rel=1e-3)
    assert LatencyHistogram().quantile_ms(50) == LatencyHistogram().mean_ms == 0.0


def test_messages_are_due_by_the_rate_however_late_the_load_is(monkeypatch: pytest.MonkeyPatch):
    """A latency counts from then, so a pause of the store is in the latencies of all that it holds up."""
    now = [100.0]
    monkeypatch.setattr(perf_commands, "perf_counter", lambda: now[0])
    schedule = Schedule(1000, 100.0)
    now[0] = 100.5
    assert [schedule.due(number) for number in (0, 100, 499)] == [100.0, 100.1, 100.499]
    assert Schedule(0, 100.0).due(499) == 100.5


def test_messages_are_published(call, store: Path):
    """So many of such a size, by all threads and producers together; the figures say how many."""
    status, out, _ = call(*"perf produce load -r 0 -m 1001 -s 10 -threads 3 -n 2 -w 0".split())
    assert status == 0
    line = out.splitlines()[-1]
    assert line.startswith("Aggregated throughput produced: 1001 msg --- ")
    assert re.search(
        r"msg/s --- [\d.,]+ Mbit/s --- failure 0 msg --- Latency: mean: [\d.,]+ ms - med: ", line
    )
    assert all(f" - {name}: " in line for name in ("95pct", "99pct", "99.9pct", "99.99pct", "Max"))
    messages = stored(store)
    assert len(messages) == 1001 and {len(message.data()) for message in messages} == {10}
    assert len({message.producer_name() for message in messages}) == 6


def test_options_of_the_messages(call, store: Path, tmp_path: Path):
    """Payloads of a file, keys, event times, names, compression."""
    file = tmp_path / "payloads"
    file.write_bytes(b"one;two;")
    options = f"-r 0 -m 5 -f {file} -e ; -mk autoIncrement -set -pn bench -z LZ4 -db"
    assert call("perf", "produce", "load", *options.split())[0] == 0
    messages = stored(store)
    assert [message.data() for message in messages] == [b"one", b"two", b"one", b"two", b"one"]
    assert [message.partition_key() for message in messages] == list("01234")
    assert {message.producer_name() for message in messages} == {"bench-0"}
    assert all(abs(message.event_timestamp() - message.publish_timestamp()) < 60_000 for message in messages)
    file.write_bytes(b"")
    status, _, err = call("perf", "produce", "load", "-f", str(file))
    assert (status, err) == (1, f"Error: {file} has no payload\n")


def test_several_topics_and_partitions(call, store: Path):
    """`TOPIC-0` and so on, with partitions that are made once."""
    for _ in range(2):
        assert call(*"perf produce many -t 2 -np 2 -r 0 -m 40".split())[0] == 0
    with Admin(store) as admin:
        for number in (0, 1):
            assert admin.topics().get_partitioned_topic_metadata(f"many-{number}").partitions == 2
            assert admin.topics().get_partitioned_stats(f"many-{number}").totals.msg_in_counter == 40


def test_a_failed_send_is_counted_and_ends_with_status_1(call):
    """The line has the number, and the error the reason; with -ef the first one ends the load."""
    status, out, err = call(*"perf produce load -r 0 -m 3 -s 6000000".split())
    assert status == 1 and "failure 3 msg" in out and err.startswith("Error: 3 of 3 failed: ")
    status, out, err = call(*"perf produce load -r 0 -ef -s 6000000".split())
    assert status == 1 and "failure" in out and "MessageTooBig" in err


@pytest.mark.parametrize("kind", ["Shared", "Key_Shared", "Failover"])
def test_messages_are_received_and_acknowledged(call, store: Path, kind: str):
    """As many as asked for by all consumers together; the subscription stays with what is behind them."""
    call(*"perf produce load -r 0 -m 100 -db".split())
    options = f"-ss work -st {kind} -sp Earliest -n 2 -m 60 -q 10 --acks-delay-millis 0 --json"
    status, out, _ = call("perf", "consume", "load", *options.split())
    figures = json.loads(out.splitlines()[-1])
    assert status == 0 and figures["kind"] == "aggregate" and figures["messages"] == 60
    assert figures["latencyMs"].keys() == {
        "mean", "p50", "p95", "p99", "p99.9", "p99.99", "p99.999", "max",
    }  # fmt: skip
    assert 0 <= figures["latencyMs"]["p50"] <= figures["latencyMs"]["max"]
    with Admin(store) as admin:
        assert admin.topics().get_stats("load").subscriptions["work"].msg_backlog == 40


def test_messages_are_read(call, store: Path):
    """Without a trace, from the beginning or from an id; an id that is none is a usage error."""
    call(*"perf produce load -r 0 -m 50 -db".split())
    for start, messages in (("earliest", 50), ("0:9", 40)):
        ledger = stored(store)[0].message_id().ledger_id()
        start = start.replace("0:", f"{ledger}:")
        out = call("perf", "read", "load", "-m", start, "-n", str(messages))[1]
        assert f"throughput read: {messages} msg" in out
    with Admin(store) as admin:
        assert admin.topics().get_subscriptions("load") == ["keep"]
    assert call("perf", "read", "load", "-m", "soon")[0] == 2


def test_a_load_ends_when_its_time_is_over(call):
    """Lines of intervals come before the figures of the whole, which are their sum."""
    status, out, _ = call(*"perf produce load -r 500 -time 0.3 -i 0.1 -w 0 --json".split())
    lines = [json.loads(line) for line in out.splitlines()]
    assert status == 0 and [line["kind"] for line in lines][-1] == "aggregate"
    intervals = [line["messages"] for line in lines[:-1]]
    assert intervals and sum(intervals) <= lines[-1]["messages"]
    assert lines[-1]["seconds"] >= 0.3 and lines[-1]["messages"] >= 100


def test_transactions(call, store: Path):
    """Each acknowledges and publishes so many messages; aborted ones leave nothing."""
    call(*"perf produce load -r 0 -m 100 -db".split())
    given = "perf transaction --topics-c load --topics-p done -nmc 2 -nmp 3 -ntxn 10 -threads 2".split()
    status, out, _ = call(*given, "-s", "5")
    assert status == 0 and "throughput transaction: 10 txn" in out
    messages = stored(store, "done")
    # A topic without subscriptions keeps what is in its open ledger.
    assert len(messages) == 30 and {len(message.data()) for message in messages} == {5}
    with Admin(store) as admin:
        assert admin.topics().get_stats("load").subscriptions["sub"].msg_backlog == 80
    assert call(*given, "-abort")[0] == 0
    assert len(stored(store, "done")) == 30
    assert call(*given, "--txn-disable")[0] == 0
    assert len(stored(store, "done")) == 60
    assert call("perf", "transaction")[0] == call(*given, "-abort", "--txn-disable")[0] == 2


def test_an_interrupt_ends_a_load_with_its_figures(call, monkeypatch: pytest.MonkeyPatch):
    """Ctrl-C, status 130; what was sent is stored."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(perf_commands, "_watch", interrupted)
    status, out, _ = call(*"perf produce load -r 10".split())
    assert status == 130 and "Aggregated throughput produced:" in out


def test_a_log_of_histograms(tmp_path: Path):
    """One for each interval, which the library reads back."""
    reader = pytest.importorskip("hdrh.log")
    histograms = pytest.importorskip("hdrh.histogram")
    latencies = LatencyHistogram()
    latencies.record([0, 1000, 1000, 90_000])
    log = HistogramLog(str(tmp_path / "log"))
    log.write(latencies, 1_700_000_000_000)
    log.write(LatencyHistogram(), 1_700_000_001_000)
    log.close()
    read = reader.HistogramLogReader(str(tmp_path / "log"), histograms.HdrHistogram(1, 3_600_000_000, 3))
    first = read.get_next_interval_histogram()
    assert first.get_total_count() == 4
    assert first.get_value_at_percentile(50) == pytest.approx(1000, rel=1e-3)
    assert read.get_next_interval_histogram().get_total_count() == 0
    read.close()


def test_the_log_without_its_package(call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """One line says what to install; no store and no file is made."""
    monkeypatch.setitem(sys.modules, "hdrh.histogram", None)
    status, out, err = call("perf", "produce", "load", "--histogram-file", str(tmp_path / "log"))
    assert (status, out) == (1, "") and 'pip install "embeddedpulsar[perf]"' in err
    assert not (tmp_path / "log").exists()


def test_a_meter_counts_what_several_threads_report():
    """What is drained once is not drained again; latencies of the warm-up are left out."""
    meter = Meter()
    meter.done(10, 0.001)
    meter.done(20, -1.0)
    meter.failed("too big")
    figures = meter.drain()
    assert (figures.messages, figures.payload, figures.failures) == (2, 30, 1)
    assert figures.latencies.counts.total() == 1
    assert figures.rates(2.0) == (1.0, 30 * 8 / 1e6 / 2)
    assert meter.drain().messages == 0


def test_no_latency_is_not_a_latency_of_zero():
    """A load that ends before its warm-up has recorded none, and says so."""
    histogram = LatencyHistogram()
    assert histogram.text() == "Latency: none recorded"
    histogram.record([1500])
    assert histogram.text().startswith("Latency: mean: 1.500 ms - ")


def test_a_cluster_instead_of_the_store(store: Path, call, capfd: pytest.CaptureFixture[str]):
    """By its address, with the same options; here a store stands in for it. What needs a store is refused."""
    cluster = ("-u", "pulsar://broker.example.com:6650")
    with patched_pulsar(str(store)):
        out = call("perf", "produce", "load", "-m", "50", "-r", "0", "--json", *cluster)[1]
        assert json.loads(out.splitlines()[-1])["messages"] == 50
        earliest = ("-sp", "Earliest", "-m", "50", "--json")
        for command in (("consume", "load", *earliest), ("read", "load", "-n", "50", "--json")):
            out = call("perf", *command, *cluster)[1]
            assert json.loads(out.splitlines()[-1])["messages"] == 50
    for options, text in (
        (("produce", "load", "-np", "3", *cluster), "pulsar-admin"),
        (("consume", "load", "--acks-delay-millis", "5", *cluster), "needs a store"),
        (("produce", "load", "-u", "nonsense"), "no address of a cluster"),
    ):
        status, _, err = call("perf", *options)
        assert status == 2 and text in err
