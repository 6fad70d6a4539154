"""Spans of sends, receives, processing and acknowledgements, and how they hang together."""

from __future__ import annotations

import asyncio
import inspect
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="the SDK of OpenTelemetry is not installed")
pytest.importorskip("opentelemetry.instrumentation", reason="instrumentors are not installed")

from opentelemetry import baggage, context, propagate, trace
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import embeddedpulsar as pulsar
import embeddedpulsar.asyncio
from embeddedpulsar import otel
from embeddedpulsar.asyncio.cluster_client import ClusterAsyncioConsumer
from embeddedpulsar.cluster import client as cluster_module
from embeddedpulsar.cluster.client import ClusterConsumer, ClusterProducer
from embeddedpulsar.functions import FunctionConfig, LocalRunner, ProcessingGuarantees
from embeddedpulsar.testing.trial_store import trial_store

TOPIC = "persistent://public/default/orders"


class Spans:
    """What was exported, oldest first."""

    def __init__(self) -> None:
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.meters = MeterProvider([self.reader])
        self.tracer = self.provider.get_tracer("program")

    def of(self, operation: str) -> list[ReadableSpan]:
        """The spans of one operation."""
        return [span for span in self.exporter.get_finished_spans() if span.name.startswith(operation)]

    def one(self, operation: str) -> ReadableSpan:
        """The only span of an operation."""
        (span,) = self.of(operation)
        return span

    def points(self, name: str) -> list[Any]:
        """The data points of one metric."""
        data = self.reader.get_metrics_data()
        return [
            point
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]


@pytest.fixture
def spans() -> Iterator[Spans]:
    """All clients are instrumented; at the end no class is, and nothing is current."""
    spans = Spans()
    otel.instrument(tracer_provider=spans.provider, meter_provider=spans.meters)
    yield spans
    otel.uninstrument()
    spans.provider.shutdown()
    spans.meters.shutdown()
    assert trace.get_current_span() is trace.INVALID_SPAN


@pytest.fixture
def client(spans: Spans) -> Iterator[pulsar.Client]:
    """A client of a store of the test."""
    with trial_store() as store, pulsar.Client(store) as client:
        yield client


@contextmanager
def untraced() -> Iterator[None]:
    """Mark code by OpenTelemetry's key for what is not to be traced, that of exporters for example."""
    token = context.attach(context.set_value("suppress_instrumentation", True))
    try:
        yield
    finally:
        context.detach(token)


def traceparent_of(span: ReadableSpan) -> str:
    """The context of a span as messages have it."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier, trace.set_span_in_context(trace.NonRecordingSpan(span.context)))
    return carrier["traceparent"]


def parent_of(span: ReadableSpan) -> int | None:
    """The id of the span that a span is below."""
    return None if span.parent is None else span.parent.span_id


def linked(span: ReadableSpan) -> list[int]:
    """The ids of the spans that a span has links to."""
    return [link.context.span_id for link in span.links]


def test_a_send_has_a_span_whose_context_is_in_the_message(client: pulsar.Client, spans: Spans):
    """The properties of the message are those of the program, and the W3C context of the span."""
    with client.subscribe("orders", "kitchen") as consumer:
        sent = client.create_producer("orders", "till-1").send(b"tea", {"table": "7"})
        message = consumer.receive()
    span = spans.one("send")
    assert (span.name, span.kind, span.parent) == (f"send {TOPIC}", SpanKind.PRODUCER, None)
    assert dict(span.attributes) == {
        "messaging.system": "embeddedpulsar",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": TOPIC,
        "messaging.client.id": "till-1",
        "messaging.message.id": str(sent),
    }
    assert message.properties() == {"table": "7", "traceparent": traceparent_of(span)}
    assert f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-" in traceparent_of(span)


def test_a_receive_is_linked_and_a_block_continues_the_trace(client: pulsar.Client, spans: Spans):
    """The block's span is below the send's, in another trace than the receive's, and current in the block."""
    consumer = client.subscribe("orders", "kitchen", consumer_name="cook")
    client.create_producer("orders").send(b"tea")
    message = consumer.receive()
    with otel.process(message, consumer) as current:
        assert trace.get_current_span() is current
        consumer.acknowledge(message)
        client.create_producer("bills").send(b"2.50")
    send, bill = spans.of("send")
    receive, process, settle = spans.one("receive"), spans.one("process"), spans.one("settle")
    assert (receive.kind, receive.parent, linked(receive)) == (SpanKind.CLIENT, None, [send.context.span_id])
    assert receive.attributes["messaging.destination.subscription.name"] == "kitchen"
    assert receive.attributes["messaging.client.id"] == "cook"
    assert receive.attributes["messaging.message.id"] == str(message.message_id())
    assert (process.name, process.kind) == (f"process {TOPIC}", SpanKind.CONSUMER)
    assert parent_of(process) == send.context.span_id
    assert process.context.trace_id == send.context.trace_id == bill.context.trace_id
    assert parent_of(bill) == parent_of(settle) == process.context.span_id
    assert (settle.kind, settle.attributes["messaging.embeddedpulsar.settlement"]) == (SpanKind.CLIENT, "ack")


def test_below_another_span_a_message_is_linked(client: pulsar.Client, spans: Spans):
    """A span has one parent: of a program that has a span already, the send is a link."""
    consumer = client.subscribe("orders", "kitchen")
    client.create_producer("orders").send(b"tea")
    message = consumer.receive()
    with spans.tracer.start_as_current_span("work") as work, otel.process(message, consumer):
        pass
    process = spans.one("process")
    assert parent_of(process) == work.get_span_context().span_id
    assert linked(process) == [spans.one("send").context.span_id]


def test_batches_have_links(client: pulsar.Client, spans: Spans):
    """One span for a list of messages, with a link to the send of each, which names the message."""
    policy = pulsar.ConsumerBatchReceivePolicy(2, -1, 10_000)
    consumer = client.subscribe("orders", "kitchen", batch_receive_policy=policy)
    producer = client.create_producer("orders")
    ids = [producer.send(b"tea"), producer.send(b"cake")]
    messages = consumer.batch_receive()
    with otel.process(messages, consumer):
        with client.transaction() as txn:
            consumer.acknowledge(messages, txn=txn)
    sends = [span.context.span_id for span in spans.of("send")]
    for operation in ("receive", "process", "settle"):
        span = spans.one(operation)
        assert linked(span) == sends
        assert span.attributes["messaging.batch.message_count"] == 2
        assert [link.attributes["messaging.message.id"] for link in span.links] == [*map(str, ids)]
    assert spans.one("process").parent is None
    with pytest.raises(ValueError, match="no message"):
        otel.process([])


@pytest.mark.parametrize("is_list", [True, False], ids=["list", "iterator"])
def test_many_messages_of_one_call_have_its_context(client: pulsar.Client, spans: Spans, is_list: bool):
    """`send_many` stays one call, also for iterators of unknown length, and keeps given properties."""
    consumer = client.subscribe("orders", "kitchen")
    values = [b"%d" % number for number in range(70_000)]
    sent = client.create_producer("orders").send_many(values if is_list else iter(values))
    client.create_producer("orders").send_many([b"a", b"b"], properties=[{"table": "7"}, None])
    first, second = spans.of("send")
    assert len(sent) == first.attributes["messaging.batch.message_count"] == 70_000
    with untraced():
        received = [consumer.receive().properties()["traceparent"] for _ in values]
    assert set(received) == {traceparent_of(first)}
    assert consumer.receive().properties() == {"table": "7", "traceparent": traceparent_of(second)}
    assert consumer.receive().properties() == {"traceparent": traceparent_of(second)}


def test_wrong_columns_are_refused_as_without(client: pulsar.Client, spans: Spans):
    """What is no column, and columns of different lengths, have their own errors; nothing is stored."""
    producer = client.create_producer("orders")
    for contents, properties, text in (
        ("text", None, "contents must be"),
        ([b"a"], {"a": "b"}, "properties must be"),
        ([b"a"], [{}, {}], "properties has 2"),
        (iter([b"a"]), iter([{}, {}]), "properties has more"),
    ):
        with pytest.raises(ValueError, match=text):
            producer.send_many(contents, properties=properties)
    with pytest.raises(ValueError, match="properties"):
        producer.send(b"a", [("a", "b")])
    assert spans.of("send")[0].status.status_code is StatusCode.ERROR


def test_columns_of_arrow_have_the_context_of_their_call(client: pulsar.Client, spans: Spans):
    """One span for all rows, whose context each message has beside its own properties; a context that a row
    has is kept."""
    pa = pytest.importorskip("pyarrow", reason="the extra is not installed")
    consumer = client.subscribe("orders", "kitchen")
    producer = client.create_producer("orders")
    producer.send_arrow(pa.table({"value": ["tea", "cake"]}))
    other = f"00-{'1' * 32}-{'2' * 16}-01"
    rows = pa.array([[("table", "7")], [("traceparent", other)], None], pa.map_(pa.string(), pa.string()))
    table = pa.table({"value": ["a", "b", "c"], "own": rows})
    producer.send_arrow(table, properties="own", common_properties={"till": "1"})
    producer.send_arrow(pa.table({"value": ["d"]}), common_properties={"traceparent": other})
    first, second, third = spans.of("send")
    assert [span.attributes["messaging.batch.message_count"] for span in spans.of("send")] == [2, 3, 1]
    with untraced():
        received = [consumer.receive().properties() for _ in range(6)]
    context = {"traceparent": traceparent_of(second)}
    assert received == [
        *[{"traceparent": traceparent_of(first)}] * 2,
        {"till": "1", "table": "7"} | context,
        {"till": "1", "traceparent": other},
        {"till": "1"} | context,
        {"traceparent": other},
    ]
    assert (third.kind, third.links[0].context.trace_id) == (SpanKind.CLIENT, int("1" * 32, 16))
    with pytest.raises(ValueError, match="common_properties"):
        producer.send_arrow(table, common_properties=["a"])


def test_a_send_without_waiting_ends_with_its_callback(client: pulsar.Client, spans: Spans):
    """The span ends when the message is stored; the callback runs in the context of the sender."""
    seen: list[Any] = []
    with spans.tracer.start_as_current_span("order") as order:
        producer = client.create_producer(
            "orders", batching_enabled=True, batching_max_publish_delay_ms=60_000
        )
        producer.send_async(b"tea", lambda *_: seen.append(trace.get_current_span()))
        producer.send_async(b"cake", None)
        assert not spans.of("send")
        producer.flush()
    assert seen == [order]
    for index, span in enumerate(spans.of("send")):
        assert parent_of(span) == order.get_span_context().span_id
        assert span.attributes["messaging.message.id"].endswith(f",{index})")


def test_a_send_that_fails_is_an_error(client: pulsar.Client, spans: Spans):
    """The exception is on the span, and comes as without it: from the call, the callback, the flush."""
    producer = client.create_producer("orders", batching_enabled=True, batching_max_publish_delay_ms=60_000)
    with pytest.raises(pulsar.MessageTooBig):
        producer.send(b"x" * (6 << 20))
    results: list[Any] = []
    producer.send_async(b"x" * (6 << 20), lambda result, _: results.append(result))
    producer.send_async(b"x" * (6 << 20), None)
    with pytest.raises(pulsar.MessageTooBig):
        producer.flush()
    producer.flush()
    assert results == [pulsar.Result.MessageTooBig]
    failed = spans.of("send")
    assert [span.attributes["error.type"] for span in failed] == ["MessageTooBig"] * 3
    assert all(span.status.status_code is StatusCode.ERROR and span.events for span in failed)
    with pytest.raises(TypeError):
        producer.send_async("text", None)
    assert spans.of("send")[-1].attributes["error.type"] == "TypeError"
    producer.close()
    with pytest.raises(pulsar.AlreadyClosed):
        producer.send_async(b"late", None)


def test_a_context_of_the_program_is_kept(client: pulsar.Client, spans: Spans):
    """A message that has a context goes on with it; the span of its send has a link to it."""
    consumer = client.subscribe("orders", "kitchen")
    own = "00-000102030405060708090a0b0c0d0e0f-0102030405060708-01"
    client.create_producer("orders").send(b"tea", {"traceparent": own})
    span = spans.one("send")
    assert consumer.receive().properties() == {"traceparent": own}
    assert (span.kind, linked(span)) == (SpanKind.CLIENT, [0x0102030405060708])


def test_copied_properties_do_not_copy_the_context(client: pulsar.Client, spans: Spans):
    """What is sent on while its message is processed, with its properties, has a context of its own."""
    orders, bills = client.subscribe("orders", "kitchen"), client.subscribe("bills", "desk")
    client.create_producer("orders").send(b"tea", {"table": "7"})
    message = orders.receive()
    with otel.process(message, orders):
        client.create_producer("bills").send(message.data(), message.properties())
    _, bill = spans.of("send")
    properties = bills.receive().properties()
    assert properties["table"] == "7"
    assert f"{bill.context.span_id:016x}" in properties["traceparent"]
    assert parent_of(bill) == spans.one("process").context.span_id


def test_baggage_goes_along(client: pulsar.Client, spans: Spans):
    """What the sender has as baggage is there in the block that processes the message."""
    consumer = client.subscribe("orders", "kitchen")
    token = context.attach(baggage.set_baggage("tenant", "acme"))
    client.create_producer("orders").send(b"tea")
    context.detach(token)
    message = consumer.receive()
    with otel.process(message, consumer):
        assert baggage.get_baggage("tenant") == "acme"
    assert baggage.get_baggage("tenant") is None


def test_listeners_run_in_a_span(client: pulsar.Client, spans: Spans, request: pytest.FixtureRequest):
    """Of a consumer and of a reader; an exception of theirs is on the span. There is no receive."""
    logged, seen = threading.Semaphore(0), []

    class Failures(logging.Handler):
        """Counts what is logged when the span of a listener that failed has ended."""

        def emit(self, record: logging.LogRecord) -> None:
            logged.release()

    def listen(owner: Any, message: pulsar.Message[Any]) -> None:
        seen.append(trace.get_current_span().get_span_context().span_id)
        raise RuntimeError("no milk")

    logger = logging.getLogger("embeddedpulsar")
    logger.addHandler(failures := Failures())
    request.addfinalizer(lambda: logger.removeHandler(failures))

    client.subscribe("orders", "kitchen", message_listener=listen)
    client.create_reader("orders", pulsar.MessageId.latest, reader_listener=listen)
    client.create_producer("orders").send(b"tea")
    for _ in range(2):
        assert logged.acquire(timeout=10)
    client.close()
    send, processed = spans.one("send"), spans.of("process")
    assert {span.context.span_id for span in processed} == set(seen)
    assert [parent_of(span) for span in processed] == [send.context.span_id] * 2
    assert [span.attributes["error.type"] for span in processed] == ["RuntimeError"] * 2
    subscriptions = {span.attributes.get("messaging.destination.subscription.name") for span in processed}
    assert subscriptions == {"kitchen", None}
    assert not spans.of("receive")
    assert sum(point.value for point in spans.points("messaging.client.consumed.messages")) == 2


def test_readers_and_empty_polls(client: pulsar.Client, spans: Spans):
    """Each message that is read has a span; no message in time has none, and neither has the end."""
    reader = client.create_reader("orders", pulsar.MessageId.earliest)
    assert reader.read_nowait() is None
    with pytest.raises(pulsar.Timeout):
        reader.read_next(1)
    consumer = client.subscribe("orders", "kitchen")
    assert consumer.receive_nowait() is None
    client.create_producer("orders").send(b"tea")
    assert [message.data() for message in reader] == [b"tea"]
    consumer.close()
    with pytest.raises(pulsar.AlreadyClosed):
        consumer.receive()
    span = spans.one("receive")
    assert "messaging.destination.subscription.name" not in span.attributes
    listening = client.subscribe("orders", "listener", message_listener=print)
    with pytest.raises(pulsar.InvalidConfiguration):
        listening.receive()
    assert spans.of("receive")[-1].attributes["error.type"] == "InvalidConfiguration"


def test_every_form_of_settling(client: pulsar.Client, spans: Spans):
    """One span each; what `reconsume_later` does is a part of it."""
    options = {"consumer_type": pulsar.ConsumerType.Failover, "enable_retry": True}
    consumer = client.subscribe("orders", "kitchen", **options)
    producer = client.create_producer("orders")
    for _ in range(4):
        producer.send(b"tea")
    messages = [consumer.receive() for _ in range(4)]
    consumer.acknowledge(messages[0].message_id())
    consumer.acknowledge_cumulative(messages[1])
    consumer.negative_acknowledge(messages[2])
    consumer.reconsume_later(messages[3], 0)
    settled = spans.of("settle")
    outcomes = [span.attributes["messaging.embeddedpulsar.settlement"] for span in settled]
    assert outcomes == ["ack", "ack_cumulative", "nack", "reconsume_later"]
    ids = [span.attributes["messaging.message.id"] for span in settled]
    assert ids == [str(message.message_id()) for message in messages]
    with pytest.raises(TypeError):
        consumer.acknowledge("no message")
    assert spans.of("settle")[-1].attributes["error.type"] == "TypeError"
    again = consumer.receive(10_000)
    assert again.properties()["traceparent"] == messages[3].properties()["traceparent"]


def test_partitions_are_an_attribute(spans: Spans):
    """The destination is the topic; the partition is named beside it."""
    with trial_store() as store, pulsar.Admin(store) as admin, pulsar.Client(store) as client:
        admin.topics().create_partitioned_topic("orders", 2)
        consumer = client.subscribe("orders", "kitchen")
        client.create_producer("orders").send(b"tea", partition_key="a")
        consumer.acknowledge(consumer.receive())
    for operation in ("send", "receive", "settle"):
        span = spans.one(operation)
        assert span.attributes["messaging.destination.name"] == TOPIC
        assert span.attributes["messaging.destination.partition.id"] in ("0", "1")


def test_asyncio(spans: Spans):
    """Coroutines: sends at the same time have their own spans, and calls on threads stay in the trace."""

    async def main(store: str) -> None:
        async with embeddedpulsar.asyncio.Client(store) as client:
            consumer = await client.subscribe("orders", "kitchen", ack_receipt_enabled=True)
            producer = await client.create_producer("orders")
            with spans.tracer.start_as_current_span("order"):
                await asyncio.gather(producer.send(b"tea"), producer.send(b"cake"))
                await producer.send_many([b"soup"])
            for _ in range(3):
                message = await consumer.receive()
                with otel.process(message, consumer):
                    await consumer.acknowledge(message)
            with pytest.raises(TypeError):
                await producer.send("text")

    with trial_store() as store:
        asyncio.run(main(store))
    order = spans.one("order").context.span_id
    sends, processed, settled = spans.of("send"), spans.of("process"), spans.of("settle")
    assert [parent_of(span) for span in sends] == [order] * 3 + [None]
    assert [parent_of(span) for span in processed] == [span.context.span_id for span in sends[:3]]
    assert [parent_of(span) for span in settled] == [span.context.span_id for span in processed]
    assert all(span.attributes["messaging.destination.subscription.name"] == "kitchen" for span in processed)
    assert sends[3].attributes["error.type"] == "TypeError"
    assert len(spans.of("receive")) == 3


@pytest.mark.parametrize("guarantee", ["ATLEAST_ONCE", "EFFECTIVELY_ONCE"])
def test_functions(client: pulsar.Client, spans: Spans, guarantee: str):
    """The call has a span, below the send of its message; what it returns is sent in its trace, also in a
    commit after the call. The topics of the package itself have no spans."""
    current = []

    def shout(value: str) -> str:
        current.append(trace.get_current_span())
        return value.upper()

    results = client.subscribe("results", "test")
    with spans.tracer.start_as_current_span("order"):
        client.create_producer("orders").send(b"tea")
    config = FunctionConfig(
        name="shout",
        inputs=["orders"],
        output="results",
        subscription_position=pulsar.InitialPosition.Earliest,
        processing_guarantees=ProcessingGuarantees[guarantee],
        forward_source_message_property=True,
    )
    runner = LocalRunner(config, shout, client=client)
    runner.run_until_idle()
    runner.stop()
    result = results.receive(10_000)
    process = spans.one("process")
    order, _ = spans.of("send")
    assert parent_of(process) == order.context.span_id
    assert process.attributes["messaging.embeddedpulsar.function"] == "public/default/shout"
    assert process.attributes["messaging.destination.subscription.name"] == "public/default/shout"
    assert [span.get_span_context().span_id for span in current] == [process.context.span_id]
    assert f"{process.context.trace_id:032x}" in result.properties()["traceparent"]
    assert f"{order.context.span_id:016x}" not in result.properties()["traceparent"]
    names = {
        span.attributes.get("messaging.destination.name", "") for span in spans.exporter.get_finished_spans()
    }
    assert not [name for name in names if "public/functions" in name]


def test_measurements(client: pulsar.Client, spans: Spans):
    """Counts and durations, by topic and subscription; no ids among their attributes."""
    consumer = client.subscribe("orders", "kitchen")
    producer = client.create_producer("orders")
    producer.send_many([b"tea", b"cake"])
    for _ in range(2):
        message = consumer.receive()
        with otel.process(message, consumer):
            consumer.acknowledge(message)
    (sent,), (consumed,) = (
        spans.points(f"messaging.client.{name}.messages") for name in ("sent", "consumed")
    )
    assert (sent.value, consumed.value) == (2, 2)
    assert dict(consumed.attributes) == {
        "messaging.system": "embeddedpulsar",
        "messaging.operation.name": "receive",
        "messaging.operation.type": "receive",
        "messaging.destination.name": TOPIC,
        "messaging.destination.subscription.name": "kitchen",
    }
    durations = spans.points("messaging.client.operation.duration")
    counted = {point.attributes["messaging.operation.name"]: point.count for point in durations}
    assert counted == {"send": 1, "receive": 2, "settle": 2}
    (processed,) = spans.points("messaging.process.duration")
    assert (processed.count, processed.explicit_bounds[0]) == (2, 0.0001)


def test_a_choice_of_operations_and_of_clients():
    """Without a span of an operation the context goes on all the same; other clients are not traced."""
    spans = Spans()
    with trial_store() as store, pulsar.Client(store) as traced, pulsar.Client(store) as other:
        try:
            otel.instrument(
                traced, tracer_provider=spans.provider, meter_provider=spans.meters, operations=["process"]
            )
            consumer = traced.subscribe("orders", "kitchen")
            other.create_producer("orders").send(b"not traced")
            with spans.tracer.start_as_current_span("order"):
                traced.create_producer("orders").send(b"tea")
            assert "traceparent" not in consumer.receive().properties()
            message = consumer.receive()
            with otel.process(message, consumer):
                consumer.acknowledge(message)
        finally:
            otel.uninstrument()
    order, process = spans.exporter.get_finished_spans()
    assert (process.name, parent_of(process)) == (f"process {TOPIC}", order.context.span_id)
    assert len(spans.points("messaging.client.operation.duration")) == 3


class ClusterTopic:
    """What is asked of ``pulsar-client``, over a list: a producer and a consumer in one."""

    def __init__(self) -> None:
        self.stored: list[Any] = []
        self.settled: list[Any] = []
        self._consumer = self

    def topic(self) -> str:
        return TOPIC

    topic_name = topic

    def producer_name(self) -> str:
        return "till-1"

    def subscription_name(self) -> str:
        return "kitchen"

    def consumer_name(self) -> str:
        return "cook"

    def is_connected(self) -> bool:
        return True

    def send(self, content: bytes, properties: dict[str, str] | None = None) -> Any:
        number = len(self.stored)
        message_id = SimpleNamespace(
            ledger_id=lambda: 7, entry_id=lambda: number, partition=lambda: -1, batch_index=lambda: -1,
            batch_size=lambda: 0, serialize=lambda: pulsar.MessageId(-1, 7, number, -1).serialize(),
        )  # fmt: skip
        message = SimpleNamespace(
            data=lambda: content, properties=lambda: properties or {}, topic_name=self.topic,
            message_id=lambda: message_id,
        )  # fmt: skip
        self.stored.append(message)
        return message_id

    def send_async(self, content: bytes, callback: Any, properties: dict[str, str] | None = None) -> None:
        message_id = self.send(content, properties)
        name = "Ok" if content else "ProducerFenced"
        callback(SimpleNamespace(name=name), message_id)

    def receive(self, timeout_millis: int | None) -> Any:
        return self.stored[len(self.settled)]

    def receive_async(self, callback: Any) -> None:
        raise AssertionError("nothing awaits here")

    def acknowledge(self, message: Any) -> None:
        self.settled.append(message)

    negative_acknowledge = acknowledge

    def acknowledge_async(self, message: Any, callback: Any) -> None:
        self.settled.append(message)
        callback(SimpleNamespace(name="Ok"))


def test_clients_of_a_cluster(spans: Spans):
    """Sends, receives and acknowledgements of `connect` have the same spans, and their system is pulsar."""
    topic = ClusterTopic()
    producer: Any = ClusterProducer(topic)
    consumer: Any = ClusterConsumer(topic)
    results: list[Any] = []
    producer.send(b"tea", {"table": "7"})
    producer.send_async(b"cake", lambda result, _: results.append(result))
    producer.send_async(b"", lambda result, _: results.append(result))
    assert results == [pulsar.Result.Ok, pulsar.Result.ProducerFenced]
    first = consumer.receive()
    with otel.process(first, consumer):
        consumer.acknowledge(first)
    second = consumer.receive_nowait()
    consumer.negative_acknowledge(second)
    heard: list[Any] = []
    call = cluster_module._listener(
        lambda *_: heard.append(trace.get_current_span()), [consumer], ClusterConsumer
    )
    call(topic, topic.stored[0])

    async def settle() -> None:
        closing: Any = SimpleNamespace(close_dropped=lambda source: None)
        await ClusterAsyncioConsumer(consumer, closing).acknowledge(second)

    asyncio.run(settle())
    sends, processed = spans.of("send"), spans.of("process")
    assert len(topic.settled) == 3 and len(spans.of("receive")) == 2
    assert first.properties() == {"table": "7", "traceparent": traceparent_of(sends[0])}
    assert second.properties() == {"traceparent": traceparent_of(sends[1])}
    assert [span.status.status_code for span in sends] == [StatusCode.UNSET] * 2 + [StatusCode.ERROR]
    assert sends[2].attributes["error.type"] == "ProducerFenced"
    assert [parent_of(span) for span in processed] == [sends[0].context.span_id] * 2
    assert heard[0].get_span_context() == processed[1].get_span_context()
    outcomes = [span.attributes["messaging.embeddedpulsar.settlement"] for span in spans.of("settle")]
    assert outcomes == ["ack", "nack", "ack"]
    exported = spans.exporter.get_finished_spans()
    assert {span.attributes["messaging.system"] for span in exported} == {"pulsar"}
    assert {span.attributes["messaging.destination.name"] for span in exported} == {TOPIC}


def test_suppressed_code_is_not_traced(client: pulsar.Client, spans: Spans):
    """What an exporter sends has no spans, and no context."""
    with untraced():
        client.create_producer("orders").send(b"tea")
    assert not spans.exporter.get_finished_spans()


def test_everything_is_as_before_afterwards():
    """Every method that was replaced is there again, after several calls; signatures are kept meanwhile."""
    before = {
        (owner, name): owner.__dict__[name] for owner, _, names in otel._WRAPPERS for name in names.split()
    }
    otel.instrument()
    otel.instrument(operations=["send"])
    for (owner, name), original in before.items():
        assert owner.__dict__[name] is not original
        assert inspect.signature(owner.__dict__[name]) == inspect.signature(original)
    otel.uninstrument()
    otel.uninstrument()
    assert {key: key[0].__dict__[key[1]] for key in before} == before


def test_without_instrumentation_blocks_run_and_listeners_too():
    """A listener that was given to a client while it was traced is called without a span later."""
    heard: list[Any] = []
    done = threading.Event()

    def listen(owner: Any, message: Any) -> None:
        heard.append(trace.get_current_span())
        done.set()

    with trial_store() as store, pulsar.Client(store) as client:
        otel.instrument()
        client.subscribe("orders", "listener", message_listener=listen)
        otel.uninstrument()
        consumer = client.subscribe("orders", "kitchen")
        client.create_producer("orders").send(b"tea")
        message = consumer.receive()
        with otel.process(message, consumer) as span:
            assert span is trace.INVALID_SPAN
        assert message.properties() == {}
        assert done.wait(10)
    assert heard == [trace.INVALID_SPAN]


def test_the_instrumentor():
    """It is one of OpenTelemetry's, passes its options on, and ignores those that it does not know."""
    spans = Spans()
    instrumentor = otel.EmbeddedPulsarInstrumentor()
    assert isinstance(instrumentor, BaseInstrumentor)
    instrumentor.instrument(
        tracer_provider=spans.provider, skip_dep_check=False, raise_exception_on_conflict=True
    )
    try:
        with trial_store() as store, pulsar.Client(store) as client:
            client.create_producer("orders").send(b"tea")
    finally:
        instrumentor.uninstrument()
    assert spans.one("send").name == f"send {TOPIC}"


WITHOUT = """
import sys
for name in sys.argv[1].split(","):
    sys.modules[name] = None
try:
    from embeddedpulsar import otel
    otel.instrument()
    otel.uninstrument()
    otel.EmbeddedPulsarInstrumentor()
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("missing", "text"),
    [
        (
            "opentelemetry",
            'embeddedpulsar.otel needs the API of OpenTelemetry: pip install "embeddedpulsar[otel]"',
        ),
        (
            "opentelemetry.instrumentation,opentelemetry.instrumentation.instrumentor",
            "EmbeddedPulsarInstrumentor needs: pip install opentelemetry-instrumentation; "
            "embeddedpulsar.otel.instrument() works without it",
        ),
    ],
    ids=["api", "instrumentation"],
)
def test_what_is_missing_is_named(missing: str, text: str):
    """Without the API the import says what to install; without instrumentors the rest works."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, missing], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, text, "")


def test_who_is_not_traced_imports_nothing():
    """A client, its producers and consumers load nothing of OpenTelemetry, nor this module."""
    code = """
import sys, embeddedpulsar
with embeddedpulsar.Client("memory://") as client, client.subscribe("orders", "kitchen") as consumer:
    client.create_producer("orders").send(b"tea")
    consumer.acknowledge(consumer.receive())
print([name for name in sys.modules if "opentelemetry" in name or name == "embeddedpulsar.otel"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
