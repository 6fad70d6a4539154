"""Functions with schemas: what they get, and what is published of what they return."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import embeddedpulsar as pulsar
from embeddedpulsar import Admin, Client, IncompatibleSchema, InitialPosition, Schema, SchemaType
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.functions import FunctionConfig, LocalRunner, ProcessingGuarantees
from embeddedpulsar.schema import AvroSchema, GenericRecord, Int32Schema, Integer, JsonSchema, Record, String
from tests.conformance.conftest import receive_all

MODULE = __name__
GUARANTEES = [one for one in ProcessingGuarantees if one is not ProcessingGuarantees.MANUAL]
Run = Callable[..., LocalRunner]


class Order(Record):
    """What is ordered."""

    item = String()
    count = Integer()


class Hex(Schema[int]):
    """A schema of the application, with the class of the values."""

    def __init__(self, kind: type[Any]) -> None:
        super().__init__(kind or int, SchemaType.STRING, None, "STRING")

    def encode(self, obj: int) -> bytes:
        """Hexadecimal digits."""
        return b"%x" % obj

    def decode(self, data: bytes) -> int:
        """The number."""
        return int(data, 16)


@pytest.fixture
def run(client: Client, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Make a runner of a function, from the first message on."""
    monkeypatch.setitem(sys.modules, MODULE, sys.modules[__name__])
    made: list[LocalRunner] = []

    def runner(function: Any, **options: Any) -> LocalRunner:
        options = {"name": "tested", "subscription_position": InitialPosition.Earliest} | options
        made.append(LocalRunner(FunctionConfig(**options), function, client=client))
        return made[-1]

    yield runner
    for one in made:
        one.stop()


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize(("kind", "name"), [(JsonSchema, "json"), (AvroSchema, "AVRO")])
def test_records(guarantee: ProcessingGuarantees, kind: Any, name: str, client: Client, run: Run):
    """The function gets and returns objects of the class; the output topic has the schema."""
    with client.create_producer("orders", schema=kind(Order)) as producer:
        producer.send(Order(item="tea", count=2))
    runner = run(
        lambda order: Order(item=order.item.upper(), count=order.count + 1),
        custom_schema_inputs={"orders": name},
        input_type_class_name=f"{MODULE}.Order",
        output="out",
        output_schema_type=name,
        output_type_class_name=f"{MODULE}.Order",
        processing_guarantees=guarantee,
    )
    assert runner.run_until_idle() == 1
    with client.subscribe("out", "s", schema=kind(Order), initial_position=InitialPosition.Earliest) as out:
        message = out.receive(1000)
    assert message.value() == Order(item="TEA", count=3)
    assert message.schema_version() != ""


@pytest.mark.parametrize("name", ["json", "avro", "auto_consume"])
def test_values_without_a_class(name: str, client: Client, run: Run):
    """They are decoded by the schema of their writer: to dicts, or generic records."""
    found: list[Any] = []
    kind = JsonSchema if name == "json" else AvroSchema
    with client.create_producer("orders", schema=kind(Order)) as producer:
        producer.send(Order(item="tea", count=2))
        producer.send(None)
    run(found.append, custom_schema_inputs={"orders": name}).run_until_idle()
    first, second = found
    assert (first.get_native_object() if name == "auto_consume" else first) == {"item": "tea", "count": 2}
    assert isinstance(first, GenericRecord) == (name == "auto_consume")
    assert second is None


def test_several_inputs_have_schemas_of_their_own(client: Client, run: Run):
    """Beside inputs with a SerDe, and those of a pattern; the function may acknowledge all of them."""
    found: list[Any] = []

    class Ack(pulsar.Function):
        def process(self, input: Any, context: Any) -> None:
            found.append(input)
            context.ack(context.get_message_id(), context.get_current_message_topic_name())

    sent = {"a": b"12", "b": Int32Schema().encode(7), "c": b"1f", "d": b"tea", "more-x": b"5"}
    for topic, payload in sent.items():
        with client.create_producer(topic) as producer:
            producer.send(payload)
    with Admin(client._core.config.url.text) as admin:
        for topic in "bcd":  # they have messages without a schema
            admin.topics().set_schema_compatibility_strategy(
                topic, pulsar.SchemaCompatibilityStrategy.ALWAYS_COMPATIBLE
            )
    runner = run(
        Ack,
        inputs=["a"],
        topics_pattern="more-.*",
        custom_schema_inputs={"b": "int32", "c": f"{MODULE}.Hex", "d": "string"},
        processing_guarantees=ProcessingGuarantees.MANUAL,
    )
    assert runner.run_until_idle() == 5
    assert set(found) == {12, 7, 31, "tea", 5}
    runner.stop()
    for topic in sent:
        with client.subscribe(topic, "public/default/tested", pulsar.ConsumerType.Shared) as consumer:
            assert receive_all(consumer) == []


def test_an_output_that_is_no_value_of_the_schema(client: Client, run: Run):
    """The function has failed; an output topic with another schema is refused."""
    runner = run(lambda input: input, inputs=["in"], output="out", output_schema_type="string")
    with client.create_producer("in") as producer:
        producer.send(b"12")
        producer.send(b"tea")
    assert runner.run_until_idle() == 2
    with client.create_reader("out", pulsar.MessageId.earliest) as reader:
        assert [one.data() for one in reader] == [b"tea"]
    client.create_producer("numbers", schema=Int32Schema()).close()
    with pytest.raises(IncompatibleSchema):
        run(lambda input: "x", inputs=["in"], output="numbers", output_schema_type="string", name="other")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"inputs": ["a"], "class_name": "", "name": "x"}, "class_name is missing"),
        ({"custom_schema_inputs": {"a": "nonsense"}}, "a schema is module.Class, or one of json"),
        ({"custom_schema_inputs": {"a": "json.JSONEncoder"}}, "no class derived from Schema"),
        ({"custom_schema_inputs": {"a": "none.Such"}}, "no module"),
        ({"inputs": ["a"], "output": "b", "output_schema_type": "json"}, "output_type_class_name"),
        ({"custom_schema_inputs": {"a": "json"}, "custom_serde_inputs": {"a": "x.Y"}}, "not both"),
        (
            {
                "inputs": ["a"],
                "output": "b",
                "output_schema_type": "string",
                "output_serde_class_name": "x.Y",
            },
            "the output of .* not both",
        ),
    ],
)
def test_schemas_that_are_refused(options: dict[str, Any], text: str, store_path: Path):
    """When the function is created."""
    with Admin(store_path) as admin, pytest.raises(InvalidConfiguration, match=text):
        admin.functions().create_function(FunctionConfig(**({"class_name": "json.dumps"} | options)))
