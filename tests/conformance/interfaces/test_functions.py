"""Functions: what they get, what becomes of what they return, and when a message is processed again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import embeddedpulsar as pulsar
from embeddedpulsar import Admin, Client, CompressionType, Function, IdentitySerDe, InitialPosition, SerDe
from embeddedpulsar.exceptions import CorruptionError, InvalidConfiguration
from embeddedpulsar.functions import FunctionConfig, LocalRunner, ProcessingGuarantees
from embeddedpulsar.functions.state import read_state
from embeddedpulsar.functions.user_code import find_code
from tests.conformance.compacting import compact
from tests.conformance.conftest import receive_all
from tests.conformance.manual_time import ManualTime
from tests.support.clients import send

GUARANTEES = [one for one in ProcessingGuarantees if one is not ProcessingGuarantees.MANUAL]
Run = Callable[..., LocalRunner]


@pytest.fixture
def run(client: Client) -> Iterator[Run]:
    """Make a runner of a function over ``in``, from the first message on."""
    made: list[LocalRunner] = []

    def runner(function: Any, **options: Any) -> LocalRunner:
        options = {
            "name": "tested",
            "inputs": ["in"],
            "subscription_position": InitialPosition.Earliest,
        } | options
        runner = LocalRunner(FunctionConfig(**options), function, client=client)
        made.append(runner)
        return runner

    yield runner
    for one in made:
        one.stop()


def data(client: Client, topic: str) -> list[bytes]:
    """The payloads in a topic."""
    with client.create_reader(topic, pulsar.MessageId.earliest) as reader:
        return [one.data() for one in reader]


def count_words(input: str, context: Any) -> None:
    """Count each word."""
    for word in input.split():
        context.incr_counter(word.lower(), 1)


class WordCount(Function):
    """As in Pulsar's tutorial: a counter for each word."""

    def process(self, input: str, context: Any) -> None:
        """Count each word."""
        count_words(input, context)


class Routing(Function):
    """As in Pulsar's tutorial: a topic for each kind, another one for the rest."""

    def __init__(self) -> None:
        self.fruits_topic = "persistent://public/default/fruits"
        self.vegetables_topic = "persistent://public/default/vegetables"

    def process(self, item: Any, context: Any) -> None:
        """Publish an item to the topic of its kind."""
        if item in (b"apple", "apple", "pear"):
            context.publish(self.fruits_topic, item)
        elif item == "carrot":
            context.publish(self.vegetables_topic, item)
        else:
            context.get_logger().warning("The item %s is neither a fruit nor a vegetable", item)


@pytest.mark.in_memory
@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_word_count(guarantee: ProcessingGuarantees, client: Client, run: Run):
    """Counters are the same by each guarantee, and outlive the runner."""
    runner = run(WordCount, processing_guarantees=guarantee)
    send(client, "in", b"Tea and cake", b"tea and tea")
    assert (runner.run_until_idle(), runner.run_until_idle()) == (2, 0)
    runner.stop()
    send(client, "in", b"cake")
    assert run(WordCount, processing_guarantees=guarantee).run_until_idle() == 1
    table = read_state(client, "public/default/tested")
    assert {key: table.value(key) for key in table.keys()} == {"and": 2, "cake": 2, "tea": 3}


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_routing(guarantee: ProcessingGuarantees, client: Client, run: Run, caplog: pytest.LogCaptureFixture):
    """A function publishes where it likes, and logs."""
    runner = run(Routing, processing_guarantees=guarantee)
    send(client, "in", b"apple", b"carrot", b"stone", b"pear")
    with caplog.at_level(logging.WARNING):
        runner.run_until_idle()
    assert (data(client, "fruits"), data(client, "vegetables")) == ([b"apple", b"pear"], [b"carrot"])
    assert "stone is neither" in caplog.text


def test_a_native_function(client: Client, run: Run):
    """It gets the input alone, and what it returns is published with the properties of the message."""
    runner = run(lambda input: f"{input}!", output="out")
    (message_id,) = send(client, "in", b"tea", properties={"table": "7"})
    runner.run_until_idle()
    with client.create_reader("out", pulsar.MessageId.earliest) as reader:
        message = reader.read_next(1000)
    assert message.data() == b"tea!"
    properties = message.properties()
    assert properties["table"] == "7"
    assert properties["__pfn_input_topic__"] == "persistent://public/default/in"
    assert properties["__pfn_input_msg_id__"]
    assert message_id is not None


def test_properties_are_not_forwarded_on_request(client: Client, run: Run):
    """Only those that name the input are there."""
    runner = run(str.upper, output="out", forward_source_message_property=False)
    send(client, "in", b"tea", properties={"table": "7"})
    runner.run_until_idle()
    with client.create_reader("out", pulsar.MessageId.earliest) as reader:
        assert "table" not in reader.read_next(1000).properties()


def test_none_and_no_output_topic_publish_nothing(client: Client, run: Run):
    """The message is acknowledged all the same."""
    runner = run(lambda input: None, output="out")
    other = run(lambda input: "lost", name="other")
    send(client, "in", b"tea")
    assert (runner.run_until_idle(), other.run_until_idle()) == (1, 1)
    assert data(client, "out") == []
    runner.stop()
    with client.subscribe("in", "public/default/tested", pulsar.ConsumerType.Shared) as consumer:
        assert receive_all(consumer) == []


def test_the_context_shows_message_and_function(client: Client, run: Run):
    """What the methods return."""
    found: list[Any] = []

    class Look(Function):
        def process(self, input: Any, context: Any) -> None:
            found.append(
                (
                    context.get_message_id(),
                    context.get_message_key(),
                    context.get_partition_key(),
                    context.get_ordering_key(),
                    context.get_message_eventtime(),
                    context.get_message_properties(),
                    context.get_current_message_topic_name(),
                )
            )
            names = (
                context.get_function_tenant(),
                context.get_function_namespace(),
                context.get_function_name(),
            )
            found.append((*names, context.get_instance_id(), context.get_function_version()))
            found.append((context.get_user_config_value("a"), context.get_user_config_value("b")))
            found.append((context.get_user_config_map(), context.get_secret("pin"), context.get_secret("no")))
            found.append((context.get_input_topics(), context.get_output_topic()))
            found.append((len(context.get_function_id()) > 8, context.get_output_serde_class_name()))

    runner = run(
        Look, output="out", user_config={"a": [1]}, secrets={"pin": "1234"}, tenant="t", namespace="n"
    )
    options = {"partition_key": "k", "ordering_key": "o", "event_timestamp": 5, "properties": {"p": "q"}}
    ids = send(client, "in", b"x", **options)
    runner.run_until_idle()
    topic = "persistent://public/default/in"
    assert found == [
        (ids[0], "k", "k", "o", 5, {"p": "q"}, topic),
        ("t", "n", "tested", 0, "0"),
        ([1], None),
        ({"a": [1]}, "1234", None),
        ([topic], "persistent://public/default/out"),
        (True, ""),
    ]


def test_secrets_of_the_environment(client: Client, run: Run, monkeypatch: pytest.MonkeyPatch):
    """A provider by its name in Pulsar."""
    monkeypatch.setenv("PIN", "9876")
    found: list[str | None] = []

    class Look(Function):
        def process(self, input: Any, context: Any) -> None:
            found.append(context.get_secret("PIN"))

    runner = run(Look, secrets_provider_class_name="secretsprovider.EnvironmentBasedSecretsProvider")
    send(client, "in", b"x")
    runner.run_until_idle()
    assert found == ["9876"]


def test_several_inputs_and_a_pattern(client: Client, run: Run):
    """Named topics, and those whose names match."""
    send(client, "more-x", b"3")
    runner = run(
        lambda input: input,
        inputs=["a", "b"],
        topics_pattern="persistent://public/default/more-.*",
        output="out",
    )
    send(client, "a", b"1")
    send(client, "b", b"2")
    assert runner.run_until_idle() == 3
    assert sorted(data(client, "out")) == [b"1", b"2", b"3"]


def test_messages_of_a_pattern_are_acknowledged_by_the_function(client: Client, run: Run):
    """Also where the pattern has no tenant and namespace."""

    class Ack(Function):
        def process(self, input: Any, context: Any) -> None:
            context.ack(context.get_message_id(), context.get_current_message_topic_name())

    options: dict[str, Any] = {"inputs": [], "topics_pattern": "more-.*"}
    send(client, "more-x", b"1")
    runner = run(Ack, processing_guarantees=ProcessingGuarantees.MANUAL, **options)
    assert runner.run_until_idle() == 1
    runner.stop()
    with client.subscribe("more-x", "public/default/tested", pulsar.ConsumerType.Shared) as consumer:
        assert receive_all(consumer) == []


class Json(SerDe):
    """Lists of numbers as text."""

    def serialize(self, input: Any) -> bytes:
        """Numbers, with blanks between."""
        return " ".join(map(str, input)).encode()

    def deserialize(self, input_bytes: bytes) -> Any:
        """The numbers."""
        return [int(word) for word in input_bytes.split()]


def test_serdes_of_an_application(client: Client, run: Run):
    """By the names of their classes, for one input and the output."""
    name = f"{Json.__module__}.Json"
    import sys

    sys.modules.setdefault(Json.__module__, sys.modules[__name__])
    runner = run(
        lambda input: [*input, 9] if isinstance(input, list) else [input],
        custom_serde_inputs={"numbers": name},
        output_serde_class_name=name,
        output="out",
    )
    send(client, "numbers", b"1 2")
    send(client, "in", b"3")
    assert runner.run_until_idle() == 2
    assert sorted(data(client, "out")) == [b"1 2 9", b"3"]


def test_the_identity_serde_is_that_of_pulsar():
    """The same values and errors as the class of pulsar-client."""
    from pulsar.functions.serde import IdentitySerDe as Theirs

    ours, theirs = IdentitySerDe(), Theirs()
    for payload in (b"12", b"-1.5", b"1e3", b"2j", b"tea", b"", b"\xff", b" 7 ", b"1_000", b"nan", b"0x1"):
        assert repr(ours.deserialize(payload)) == repr(theirs.deserialize(payload))
    for value in (12, 1.5, 2j, "tea", b"tea", True, None, [1]):
        assert outcome(ours.serialize, value) == outcome(theirs.serialize, value)


def outcome(serialize: Callable[[Any], bytes], value: Any) -> bytes | str:
    """The payload, or the text of the error."""
    try:
        return serialize(value)
    except TypeError as error:
        return str(error)


# -- failures ----------------------------------------------------------------------------------------


class Fails(Function):
    """Raises for the first runs of a message, behind a change of its state."""

    times = 2
    runs = 0

    def process(self, input: Any, context: Any) -> Any:
        """Fail, or return the input."""
        context.incr_counter("runs", 1)
        Fails.runs += 1
        if Fails.runs <= Fails.times:
            raise ValueError("not yet")
        return input


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> type[Fails]:
    """The class, with its counter at 0."""
    monkeypatch.setattr(Fails, "runs", 0)
    monkeypatch.setattr(Fails, "times", 2)
    return Fails


def runner_at(time: ManualTime, function: Any, **options: Any) -> LocalRunner:
    """A runner over ``in`` on a clock that the test moves."""
    options = {
        "name": "tested",
        "inputs": ["in"],
        "subscription_position": InitialPosition.Earliest,
    } | options
    return LocalRunner(FunctionConfig(**options), function, client=time.client)


def test_at_least_once_processes_again(time: ManualTime, failing: type[Fails]):
    """After the delay of a negative acknowledgement; a run that failed leaves no state."""
    with runner_at(time, failing, output="out") as runner:
        send(time.client, "in", b"tea")
        assert runner.run_until_idle() == 1
        time.pass_ms(59_000)
        assert runner.run_until_idle() == 0
        for _ in range(2):
            time.pass_ms(61_000)
            assert runner.run_until_idle() == 1
        assert data(time.client, "out") == [b"tea"]
        assert read_state(time.client, "public/default/tested").value("runs") == 1


def test_at_most_once_does_not(time: ManualTime, failing: type[Fails]):
    """The message is acknowledged before."""
    with runner_at(time, failing, processing_guarantees=ProcessingGuarantees.ATMOST_ONCE) as runner:
        send(time.client, "in", b"tea")
        assert runner.run_until_idle() == 1
        time.pass_ms(600_000)
        assert runner.run_until_idle() == 0


def test_messages_that_fail_too_often_become_dead_letters(time: ManualTime, failing: type[Fails]):
    """After as many repetitions as the configuration says."""
    failing.times = 99
    options = {
        "max_message_retries": 2,
        "dead_letter_topic": "dead",
        "negative_ack_redelivery_delay_ms": 1000,
    }
    with runner_at(time, failing, **options) as runner:
        send(time.client, "in", b"shoe")
        counts = []
        for _ in range(5):
            counts.append(runner.run_until_idle())
            time.pass_ms(1100)
        assert counts == [1, 1, 1, 0, 0]
        assert data(time.client, "dead") == [b"shoe"]


def test_a_message_that_is_not_acknowledged_in_time_comes_again(time: ManualTime):
    """With MANUAL, until the function acknowledges; with timeout_ms, by the timeout."""
    taken: list[Any] = []

    class Late(Function):
        def process(self, input: Any, context: Any) -> None:
            taken.append(context.get_message_id())
            if len(taken) > 1:
                context.ack(context.get_message_id(), context.get_current_message_topic_name())
            with pytest.raises(ValueError, match="Invalid topicname"):
                context.ack(context.get_message_id(), "other")

    options: dict[str, Any] = {"processing_guarantees": ProcessingGuarantees.MANUAL}
    with runner_at(time, Late, **options) as runner:
        send(time.client, "in", b"tea")
        assert runner.run_until_idle() == 1
    for expected in (1, 0):
        with runner_at(time, Late, **options) as runner:
            assert runner.run_until_idle() == expected


def test_effectively_once_stops_at_a_message_that_fails(client: Client, run: Run, failing: type[Fails]):
    """What was processed before is committed; the message comes again at once, with a new object."""
    failing.times = 0
    runner = run(failing, processing_guarantees=ProcessingGuarantees.EFFECTIVELY_ONCE, output="out")
    send(client, "in", b"1", b"2")
    assert runner.run_until_idle() == 2
    failing.runs, failing.times = 0, 1
    send(client, "in", b"3", b"4")
    with pytest.raises(ValueError, match="not yet"):
        runner.run_until_idle()
    assert runner.run_until_idle() >= 2
    assert data(client, "out") == [b"1", b"2", b"3", b"4"]
    assert read_state(client, "public/default/tested").value("runs") == 4


def test_changes_of_several_messages_are_one_commit(client: Client, run: Run):
    """Acknowledged when it is stored; a message that failed changes nothing and is delivered again."""

    class Count(Function):
        def process(self, input: Any, context: Any) -> None:
            context.incr_counter("all", input)
            if input == 3:
                raise ValueError("not this one")
            context.put_state("last", str(context.get_counter("all")))

    runner = run(Count)
    send(client, "in", *(b"%d" % number for number in range(1, 31)))
    assert runner.run_until_idle() == 30
    runner.stop()
    table = read_state(client, "public/default/tested")
    assert (table.value("all"), table.value("last")) == (sum(range(1, 31)) - 3, "462")
    assert len(entries(client, "persistent://public/functions/public+default+tested+state", "s/all")) < 10
    with client.subscribe("in", "public/default/tested", pulsar.ConsumerType.Shared) as consumer:
        assert [one.data() for one in receive_all(consumer)] == [b"3"]


def entries(client: Client, topic: str, key: str) -> list[int]:
    """The entries of a topic that have a key."""
    with client.create_reader(topic, pulsar.MessageId.earliest) as reader:
        return [one.message_id().entry_id() for one in reader if one.partition_key() == key]


def test_changes_that_do_not_fit_into_a_commit_are_those_of_a_message_that_failed(client: Client, run: Run):
    """The instance goes on with the messages behind it."""

    class Large(Function):
        def process(self, input: Any, context: Any) -> None:
            context.put_state("text", "x" * input)

    runner = run(Large)
    send(client, "in", b"6000000", b"7")
    assert runner.run_until_idle() == 2
    table = read_state(client, "public/default/tested")
    assert table.value("text") == "x" * 7
    runner.stop()
    assert read_state(client, "public/default/tested").reports[0]["userExceptions"] == 1


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_messages_that_fit_one_by_one_but_not_together(
    guarantee: ProcessingGuarantees, client: Client, run: Run
):
    """Each is committed: a commit takes no more of them than fit."""

    class Large(Function):
        def process(self, input: Any, context: Any) -> None:
            context.put_state(f"text {input}", "x" * 3_000_000)

    runner = run(Large, processing_guarantees=guarantee)
    send(client, "in", b"1", b"2", b"3")
    assert runner.run_until_idle() == 3
    assert len(read_state(client, "public/default/tested").keys()) == 3


def test_a_function_that_only_reads_sees_what_others_set(client: Client, run: Run):
    """An operator, for example, while it runs."""
    seen: list[Any] = []

    class Look(Function):
        def process(self, input: Any, context: Any) -> None:
            seen.append(context.get_state("rate"))

    config = FunctionConfig("json.dumps", "tested", inputs=["in"])
    runner = run(Look)
    with Admin(client._core.config.url.text) as admin:
        admin.functions().create_function(config)
        for rate in ("1", "2"):
            admin.functions().put_function_state("public", "default", "tested", "rate", rate)
            send(client, "in", b"x")
            runner.run_until_idle()
    assert seen == ["1", "2"]


def test_an_instance_without_messages_writes_nothing(time: ManualTime):
    """Its report says nothing new."""
    topic = "persistent://public/functions/public+default+tested+state"
    with runner_at(time, str.upper) as runner:
        send(time.client, "in", b"tea")
        runner.run_until_idle()
        time.pass_ms(1100)
        runner.run_until_idle()
        before = data(time.client, topic)
        for _ in range(3):
            time.pass_ms(1100)
            assert runner.run_until_idle() == 0
        assert data(time.client, topic) == before


def test_state_that_cannot_be_read_leaves_nothing_open(client: Client):
    """A runner on it fails, and may be made again when the state is mended."""
    topic = "persistent://public/functions/public+default+tested+state"
    send(client, topic, b"x", partition_key="s/broken")
    for _ in range(2):
        with pytest.raises(CorruptionError):
            LocalRunner(FunctionConfig(name="tested", inputs=["in"]), str.upper, client=client)
    with Admin(client._core.config.url.text) as admin:
        assert admin.topics().get_stats(topic).publishers == ()


def test_classes_of_an_application_with_names_of_this_package(tmp_path: Path, client: Client, run: Run):
    """They are those of the application; one in another class is found; other modules stay what they are."""
    (tmp_path / "json.py").write_text(
        "class IdentitySerDe:\n"
        "    def deserialize(self, data): return 'own'\n"
        "class Outer:\n"
        "    class Inner:\n"
        "        def process(self, input, context): return input\n"
    )
    runner = run(
        None,
        class_name="json.Outer.Inner",
        py=str(tmp_path / "json.py"),
        inputs=[],
        custom_serde_inputs={"in": "json.IdentitySerDe"},
        output="out",
    )
    send(client, "in", b"tea")
    runner.run_until_idle()
    assert data(client, "out") == [b"own"]
    import json

    assert json.loads("7") == 7
    assert find_code(f"{__name__}.Outer.Inner", "") is Outer.Inner


class Outer:
    """A class with a function in it."""

    class Inner(Function):
        """The function."""


# -- what a function publishes -----------------------------------------------------------------------


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_options_of_published_messages(guarantee: ProcessingGuarantees, client: Client, run: Run):
    """Keys, times, properties, compression, and a callback when the message is stored."""
    stored: list[Any] = []

    class Publish(Function):
        def process(self, input: Any, context: Any) -> None:
            context.publish(
                "aside",
                input,
                properties={"b": "2"},
                compression_type=CompressionType.LZ4,
                callback=lambda result, message_id: stored.append((result, message_id)),
                message_conf={
                    "partition_key": "k",
                    "ordering_key": "o",
                    "event_timestamp": 7,
                    "properties": {"a": "1", "b": "1"},
                },
            )
            context.publish("aside", b"plain")
            with pytest.raises(ValueError, match=r"partition_key, .* and not 'key'"):
                context.publish("aside", b"", message_conf={"key": "k"})

    runner = run(Publish, processing_guarantees=guarantee)
    send(client, "in", b"tea")
    runner.run_until_idle()
    with client.create_reader("aside", pulsar.MessageId.earliest) as reader:
        first, second = list(reader)
    assert (first.partition_key(), first.ordering_key(), first.event_timestamp()) == ("k", "o", 7)
    assert first.properties() == {"a": "1", "b": "2"}
    assert (second.data(), second.properties(), second.partition_key()) == (b"plain", {}, "")
    assert stored == [(pulsar.Result.Ok, first.message_id())]


def test_outputs_of_effectively_once_have_entries_of_their_own(client: Client, run: Run):
    """So that Key_Shared subscriptions keep the order of each key; on partitions, a key has one of them."""
    with Admin(client._core.config.url.text) as admin:
        admin.topics().create_partitioned_topic("aside", 3)

    class Publish(Function):
        def process(self, input: Any, context: Any) -> None:
            for key in "abab":
                context.publish("aside", input, message_conf={"partition_key": key})

    runner = run(Publish, processing_guarantees=ProcessingGuarantees.EFFECTIVELY_ONCE)
    send(client, "in", b"1", b"2")
    runner.run_until_idle()
    with client.create_reader("aside", pulsar.MessageId.earliest) as reader:
        messages = list(reader)
    places: dict[str, set[str]] = {}
    for one in messages:
        places.setdefault(one.partition_key(), set()).add(one.topic_name())
    assert len(messages) == 8
    assert [len(found) for found in places.values()] == [1, 1]
    assert {one.message_id().batch_index() for one in messages} <= {-1, 0}
    assert len({(one.topic_name(), str(one.message_id())) for one in messages}) == 8


def test_records_of_the_logger_go_to_the_log_topic(client: Client, run: Run):
    """With their level; the logger of a stopped function publishes nothing."""

    class Log(Function):
        def process(self, input: Any, context: Any) -> None:
            context.get_logger().info("got %s", input)

    runner = run(Log, log_topic="logs")
    send(client, "in", b"tea")
    runner.run_until_idle()
    runner.stop()
    logging.getLogger("embeddedpulsar.function.public/default/tested").info("late")
    with client.create_reader("logs", pulsar.MessageId.earliest) as reader:
        (record,) = list(reader)
    assert record.data() == b"got tea"
    assert record.properties() == {"loglevel": "INFO", "fqn": "public/default/tested", "instance": "0"}


def test_each_record_of_several_instances_is_published_once(client: Client, run: Run):
    """With the number of the instance that logged it."""

    class Log(Function):
        def process(self, input: Any, context: Any) -> None:
            context.get_logger().info("%s of %s", input, context.get_instance_id())

    runner = run(Log, log_topic="logs", parallelism=2)
    send(client, "in", *[b"tea"] * 8)
    runner.run_until_idle()
    with client.create_reader("logs", pulsar.MessageId.earliest) as reader:
        records = [(one.data().decode()[-1], one.properties()["instance"]) for one in reader]
    assert len(records) == 8
    assert all(said == instance for said, instance in records)


# -- state -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_state_of_values_and_counters(guarantee: ProcessingGuarantees, client: Client, run: Run):
    """What a call changes, it sees, and so do the calls after it."""
    seen: list[Any] = []

    class Change(Function):
        def process(self, input: Any, context: Any) -> None:
            seen.append((context.get_counter("n"), context.get_state("text"), context.get_state("raw")))
            context.incr_counter("n", 2)
            context.put_state("text", f"{input}")
            context.put_state("raw", b"\x00\xff")
            if input == "drop":
                context.del_counter("n")
                context.del_counter("text")
                context.incr_counter("n", 1)
            seen.append((context.get_counter("n"), context.get_state("text")))
            for call in (
                lambda: context.get_counter("raw"),
                lambda: context.get_state("n"),
                lambda: context.put_state("x", 1),
                lambda: context.incr_counter("n", 1.5),
                lambda: context.incr_counter("", 1),
            ):
                with pytest.raises(TypeError):
                    call()

    runner = run(Change, processing_guarantees=guarantee)
    send(client, "in", b"a", b"drop", b"b")
    assert runner.run_until_idle() == 3
    assert seen == [
        *((0, None, None), (2, "a")),
        *((2, "a", b"\x00\xff"), (1, None)),
        *((1, None, b"\x00\xff"), (3, "b")),
    ]


def test_instances_count_together(client: Client, run: Run):
    """Counters of several instances are one; with keys in order, a key has one instance."""
    seen: dict[str, set[int]] = {}

    class Count(Function):
        def process(self, input: Any, context: Any) -> None:
            context.incr_counter("all", 1)
            seen.setdefault(context.get_message_key(), set()).add(context.get_instance_id())

    runner = run(Count, parallelism=3, retain_key_ordering=True)
    for number in range(60):
        send(client, "in", b"x", partition_key=str(number % 12))
    assert runner.run_until_idle() == 60
    assert read_state(client, "public/default/tested").value("all") == 60
    assert [len(found) for found in seen.values()] == [1] * 12
    assert len(set.union(*seen.values())) > 1


def test_the_state_is_compacted(client: Client, run: Run):
    """The newest records stay, and the function goes on with them."""
    runner = run(WordCount, processing_guarantees=ProcessingGuarantees.EFFECTIVELY_ONCE)
    send(client, "in", *[b"tea"] * 5)
    runner.run_until_idle()
    topic = "persistent://public/functions/public+default+tested+state"
    with Admin(client._core.config.url.text) as admin:
        assert admin.topics().get_compaction_threshold(topic) == 16 << 20
        compact(admin, topic)
    send(client, "in", b"tea")
    assert runner.run_until_idle() == 1
    assert read_state(client, "public/default/tested").value("tea") == 6


# -- configuration -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"inputs": []}, "has no input"),
        ({"name": "a/b"}, "name of a function"),
        ({"output": "in"}, "is an input"),
        ({"parallelism": 0}, "parallelism"),
        ({"topics_pattern": "("}, "topics_pattern"),
        ({"user_config": {"a": b""}}, "JSON"),
        ({"retain_ordering": True, "retain_key_ordering": True}, "not both"),
        ({"timeout_ms": 5}, "at least 10,000"),
        ({"timeout_ms": 20_000, "processing_guarantees": ProcessingGuarantees.ATMOST_ONCE}, "ATLEAST_ONCE"),
        ({"dead_letter_topic": "dead"}, "max_message_retries"),
        ({"max_message_retries": 0}, "from 1 on"),
        ({"max_message_retries": 1, "retain_ordering": True}, "Shared"),
        ({"processing_guarantees": "ATLEAST_ONCE"}, "ProcessingGuarantees"),
        ({"inputs": "orders"}, "inputs is of the type tuple or list"),
        ({"timeout_ms": "20000"}, "timeout_ms is of the type int or None"),
        ({"parallelism": True}, "parallelism is of the type int"),
    ],
)
def test_configurations_that_are_refused(options: dict[str, Any], text: str):
    """With what to write instead."""
    with pytest.raises(InvalidConfiguration, match=text):
        FunctionConfig(**({"class_name": "a.B", "inputs": ["in"]} | options)).check()


@pytest.mark.parametrize("options", [{"retain_key_ordering": True}, {"max_message_retries": 3}])
def test_what_does_not_go_with_effectively_once(options: dict[str, Any]):
    """As in Pulsar."""
    guarantee = ProcessingGuarantees.EFFECTIVELY_ONCE
    with pytest.raises(InvalidConfiguration, match="EFFECTIVELY_ONCE"):
        FunctionConfig("a.B", inputs=["in"], processing_guarantees=guarantee, **options).check()
