"""`Admin.functions()`: definitions, and what is shown of functions that run."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import (
    Admin,
    Client,
    ConsumerType,
    Function,
    InitialPosition,
    MessageId,
    NotAllowedError,
    Timeout,
    TopicNotFound,
)
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.functions import FunctionConfig, LocalRunner, ProcessingGuarantees, WindowConfig
from embeddedpulsar.functions.function_calls import Definitions, Functions, config_of_file
from embeddedpulsar.functions.instance import Instance
from embeddedpulsar.functions.state import SUPERVISOR, make_state_topic

PLACE = "public", "default", "Meter"


class Meter(Function):
    """Counts, measures, and refuses what is no number."""

    def process(self, input: Any, context: Any) -> None:
        """Add a number."""
        context.record_metric("size", input)
        context.incr_counter("total", int(input))
        context.put_state("last", str(input))


@pytest.fixture
def functions(store_url: Path | str, client: Client, monkeypatch: pytest.MonkeyPatch) -> Iterator[Functions]:
    """The calls of an Admin beside a client."""
    monkeypatch.setitem(sys.modules, Meter.__module__, sys.modules[__name__])
    with Admin(store_url) as admin:
        yield admin.functions()


def definition(functions: Functions) -> Any:
    """What is stored of the function."""
    return Definitions(functions._store).get("/".join(PLACE))


def config(**options: Any) -> FunctionConfig:
    """A configuration of `Meter`."""
    return FunctionConfig(inputs=["in"], subscription_position=InitialPosition.Earliest, **options)


def test_a_function_is_created_updated_and_deleted(functions: Functions):
    """By its class; another one of its name is refused."""
    functions.create_function(config(), Meter)
    with pytest.raises(NotAllowedError, match="already"):
        functions.create_function(config(), Meter)
    functions.create_function(config(name="other", tenant="acme", namespace="sales"), Meter)
    assert functions.get_functions("public", "default") == ["Meter"]
    assert functions.get_functions("acme", "sales") == ["other"]
    found = functions.get_function(*PLACE)
    assert (found.class_name, found.inputs) == (
        f"{Meter.__module__}.Meter",
        ("persistent://public/default/in",),
    )
    functions.update_function(config(user_config={"a": 1}), Meter)
    assert functions.get_function(*PLACE).user_config == {"a": 1}
    assert (definition(functions).version, definition(functions).restarts) == (1, 0)
    functions.delete_function(*PLACE)
    assert functions.get_functions("public", "default") == []
    for call in (functions.get_function, functions.delete_function, functions.get_function_status):
        with pytest.raises(TopicNotFound, match="no function public/default/Meter"):
            call(*PLACE)


def test_what_belongs_to_the_state_is_not_altered(functions: Functions):
    """The guarantee, the order and the subscription."""
    functions.create_function(config(), Meter)
    guarantee = ProcessingGuarantees.EFFECTIVELY_ONCE
    for options in ({"processing_guarantees": guarantee}, {"retain_ordering": True}, {"sub_name": "s"}):
        with pytest.raises(NotAllowedError, match="cannot be altered"):
            functions.update_function(config(**options), Meter)


def test_a_function_of_a_file(functions: Functions, tmp_path: Path):
    """As ``--py`` of pulsar-admin: a class of the file, or the module; what the file lacks is refused."""
    path = tmp_path / "shout.py"
    path.write_text(
        "import beside\nclass Shout:\n    def process(self, input, context):\n        return input\n"
    )
    (tmp_path / "beside.py").write_text("")
    functions.create_function(config(class_name="shout.Shout"), path)
    found = functions.get_function("public", "default", "Shout")
    assert (found.class_name, found.py) == ("shout.Shout", str(path))
    (tmp_path / "plain.py").write_text("def process(input):\n    return input\n")
    functions.create_function(config(class_name="plain"), tmp_path / "plain.py")
    for class_name, file in (("shout.Whisper", "shout.py"), ("shout", "shout.py"), ("x", "missing.py")):
        with pytest.raises(InvalidConfiguration):
            functions.create_function(config(class_name=class_name, name="refused"), tmp_path / file)
    with pytest.raises(InvalidConfiguration, match="no module 'nowhere'"):
        functions.create_function(config(class_name="nowhere.Meter"))

    class Inner(Meter):
        pass

    with pytest.raises(InvalidConfiguration, match="inside of a function"):
        functions.create_function(config(), Inner)
    assert functions.get_functions("public", "default") == ["Shout", "plain"]


def test_starting_and_stopping(functions: Functions):
    """A supervisor follows what is stored."""
    functions.create_function(config(), Meter)
    assert definition(functions).is_running
    functions.stop_function(*PLACE)
    assert not definition(functions).is_running
    functions.start_function(*PLACE)
    functions.restart_function(*PLACE)
    assert (definition(functions).is_running, definition(functions).restarts) == (True, 1)


def test_the_status_of_a_function(client: Client, functions: Functions):
    """Instances that live, what they counted, and whether there is a supervisor."""
    functions.create_function(config(parallelism=2, negative_ack_redelivery_delay_ms=100), Meter)
    before = functions.get_function_status(*PLACE)
    assert (before.num_instances, before.num_running, before.supervisor_attached) == (2, 0, False)
    supervisor = client.create_producer(
        make_state_topic(client._core.store, "public/default/Meter"), SUPERVISOR
    )
    instance = Instance(client, definition(functions), 1)
    with client.create_producer("in") as producer:
        for payload in (b"2", b"3.5", b"tea"):
            producer.send(payload)
    while instance.step():
        continue
    instance._report_at = 0
    instance.step()
    status = functions.get_function_status(*PLACE)
    assert (status.num_running, status.is_started, status.supervisor_attached) == (1, True, True)
    first, second = status.instances
    assert (first.running, first.num_received) == (False, 0)
    assert (second.running, second.num_received, second.num_successfully_processed) == (True, 3, 2)
    assert second.num_user_exceptions == 1
    assert second.error.startswith("TypeError: the metric size is a number")
    assert second.latest_user_exceptions[0].timestamp_ms > 0
    assert status.json()["instances"][1]["numUserExceptions"] == 1
    stats = functions.get_function_stats(*PLACE)
    assert (stats.received_total, stats.processed_successfully_total, stats.user_exceptions_total) == (
        3,
        2,
        1,
    )
    assert stats.instances[0].user_metrics == {"size": {"count": 2, "sum": 5.5, "min": 2.0, "max": 3.5}}
    assert stats.json()["instances"][0]["userMetrics"]["size"]["count"] == 2
    assert functions.get_function_state(*PLACE, "total") == 5
    assert functions.get_function_state(*PLACE, "last") == "3.5"
    with pytest.raises(NotAllowedError, match="is being run"):
        functions.delete_function(*PLACE)
    instance.close()
    supervisor.close()
    assert functions.get_function_status(*PLACE).num_running == 0


def test_deleting_removes_state_and_subscription(client: Client, functions: Functions):
    """Unless the configuration keeps the subscription."""
    functions.create_function(config(), Meter)
    instance = Instance(client, definition(functions))
    with client.create_producer("in") as producer:
        producer.send(b"1")
    assert instance.step() == 1
    instance.close()
    functions.delete_function(*PLACE)
    with pytest.raises(LookupError):
        functions.get_function_state(*PLACE, "total")
    with client.subscribe(
        "in", "/".join(PLACE), ConsumerType.Shared, initial_position=InitialPosition.Earliest
    ) as one:
        assert one.receive(1000).data() == b"1"


def test_the_state_of_a_function_may_be_set(client: Client, functions: Functions):
    """By an operator, beside the instances."""
    functions.create_function(config(), Meter)
    instance = Instance(client, definition(functions))
    functions.put_function_state(*PLACE, "total", 100)
    functions.put_function_state(*PLACE, "raw", b"\xff")
    with client.create_producer("in") as producer:
        producer.send(b"1")
    instance.step()
    instance.close()
    assert functions.get_function_state(*PLACE, "total") == 101
    assert functions.get_function_state(*PLACE, "raw") == b"\xff"
    with pytest.raises(TypeError):
        functions.put_function_state(*PLACE, "raw", 1.5)  # type: ignore[arg-type]


def test_a_configuration_survives_its_file(tmp_path: Path):
    """All fields, by their names in Pulsar."""
    full = FunctionConfig(
        class_name="shop.Count",
        inputs=["in"],
        output="out",
        processing_guarantees=ProcessingGuarantees.ATMOST_ONCE,
        subscription_position=InitialPosition.Earliest,
        user_config={"snake_case": {"a": [1]}},
        secrets={"pin": "1"},
        custom_serde_inputs={"numbers": "shop.Numbers"},
        window_config=WindowConfig(window_length_count=5),
        parallelism=3,
    ).check()
    path = tmp_path / "function.json"
    path.write_text(json.dumps(full.json()))
    assert config_of_file(str(path)).check() == full
    assert full.json()["processingGuarantees"] == "ATMOST_ONCE"
    path.write_text('{"jar": "x.jar"}')
    with pytest.raises(InvalidConfiguration, match="jar is unknown"):
        config_of_file(str(path))
    path.write_text("[]")
    with pytest.raises(ValueError, match="no JSON object"):
        config_of_file(str(path))


YAML = """
className: json.dumps
runtime: PYTHON
autoAck: true
name: quote
inputSpecs:
    words: {serdeClassName: shop.Words, schemaType: ""}
    orders: {schemaType: json}
    more-.*: {isRegexPattern: true}
    plain: {}
output: null
userConfig: {rate: 3}
windowConfig:
    windowLengthCount: 10
"""


def test_a_configuration_in_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As in a file for pulsar-admin; without PyYAML the error names it, and JSON is read all the same."""
    path = tmp_path / "function.yaml"
    path.write_text(YAML)
    found = config_of_file(str(path))
    assert (found.class_name, found.name, found.output) == ("json.dumps", "quote", "")
    assert (found.custom_serde_inputs, found.custom_schema_inputs) == (
        {"words": "shop.Words"},
        {"orders": "json"},
    )
    assert (list(found.inputs), found.topics_pattern) == (["plain"], "more-.*")
    assert (found.user_config, found.window_config) == ({"rate": 3}, WindowConfig(10))
    path.write_text("a: [")
    with pytest.raises(InvalidConfiguration, match="neither JSON nor YAML"):
        config_of_file(str(path))
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(InvalidConfiguration, match="pip install pyyaml"):
        config_of_file(str(path))
    path.write_text('{"name": "a"}')
    assert config_of_file(str(path)).name == "a"


@pytest.mark.parametrize(
    "fields",
    [
        {"runtime": "JAVA"},
        {"autoAck": False},
        {"inputSpecs": []},
        {"inputSpecs": {"a": {"receiverQueueSize": 5}}},
        {"inputSpecs": {"a.*": {"isRegexPattern": True}}, "topicsPattern": "b.*"},
    ],
)
def test_fields_of_pulsar_that_mean_something_else(fields: dict[str, Any]):
    """They are refused, and not left out."""
    with pytest.raises(InvalidConfiguration, match=next(iter(fields))):
        FunctionConfig.from_json(fields)


def test_changes_of_two_operators_at_once(
    functions: Functions, store_url: Path | str, monkeypatch: pytest.MonkeyPatch
):
    """Each is made on top of the other; a name is created once."""
    other = Admin(store_url)
    place, config = ("public", "default", "dumps"), FunctionConfig("json.dumps", inputs=["in"])
    functions.create_function(config)
    change = Definitions._set

    def between(self: Any, *args: Any) -> None:
        monkeypatch.undo()
        other.functions().stop_function(*place)
        change(self, *args)

    monkeypatch.setattr(Definitions, "_set", between)
    functions.update_function(config._replace(parallelism=2))
    status = functions.get_function_status(*place)
    assert (status.num_instances, status.is_started) == (2, False)

    def created(self: Any, *args: Any) -> None:
        monkeypatch.undo()
        other.functions().create_function(config._replace(name="second", output="first"))
        change(self, *args)

    monkeypatch.setattr(Definitions, "_set", created)
    with pytest.raises(NotAllowedError, match="already"):
        functions.create_function(config._replace(name="second", output="second"))
    assert functions.get_function("public", "default", "second").output.endswith("first")
    other.close()


@pytest.fixture
def in_background(client: Client) -> Iterator[Callable[..., None]]:
    """Registers functions, and runs them in threads of this process until the end of the test."""
    runners: list[tuple[LocalRunner, threading.Thread]] = []

    def run(functions: Functions, function: Any, **options: Any) -> None:
        config = FunctionConfig("json.loads", inputs=["in"], **options)
        functions.create_function(config)
        runner = LocalRunner(config, function, client=client)
        thread = threading.Thread(target=runner.run)
        thread.start()
        runners.append((runner, thread))

    yield run
    for runner, thread in runners:
        runner.stop()
        thread.join()


@pytest.mark.parametrize("partitions", [0, 2])
def test_triggering_a_function(
    functions: Functions, in_background: Any, tmp_path: Path, client: Client, partitions: int, store_url: Any
):
    """The output of that message is returned, and no other one."""
    if partitions:
        with Admin(store_url) as admin:
            admin.topics().create_partitioned_topic("in", partitions)
    place = ("public", "default", "add")
    in_background(functions, lambda input: None if input == "none" else input + 1, name="add", output="out")
    (tmp_path / "value").write_bytes(b"40")
    with client.create_producer("in") as producer:
        producer.send_async(b"1", None)
        assert functions.trigger_function(*place, trigger_file=tmp_path / "value") == b"41"
        producer.send(b"2")
        assert functions.trigger_function(*place, "in", "6") == b"7"
    with pytest.raises(Timeout, match=r"add published nothing to persistent.*out within 20 ms"):
        functions.trigger_function(*place, trigger_value=b"none", timeout_millis=20)
    with pytest.raises(ValueError, match="one of them"):
        functions.trigger_function(*place)
    with pytest.raises(NotAllowedError, match="is no input of public/default/add"):
        functions.trigger_function(*place, "other", "1")


def test_triggering_a_function_without_output_or_with_several_inputs(
    functions: Functions, in_background: Any, client: Client
):
    """The value is published; a topic must be named."""
    in_background(functions, lambda input: input, name="two", topics_pattern="more-.*")
    place = ("public", "default", "two")
    with pytest.raises(NotAllowedError, match="several inputs"):
        functions.trigger_function(*place, trigger_value="1")
    assert functions.trigger_function(*place, "more-x", "1") is None
    with client.create_reader("more-x", MessageId.earliest) as reader:
        assert reader.read_next(1000).data() == b"1"


def test_triggering_a_function_that_nothing_runs(functions: Functions):
    """The error says what to start, at once."""
    functions.create_function(config(), Meter)
    with pytest.raises(NotAllowedError, match="functions run"):
        functions.trigger_function(*PLACE, trigger_value="1")
