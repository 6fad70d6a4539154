"""The configuration of a function, with the names of Pulsar's ``FunctionConfig`` in snake case.

The configuration of the windows of a function.

Which messages belong to which window: pure, by numbers and times that the caller passes in.

Which messages belong to which window of event time: pure, by the times that the caller passes in.
"""

from __future__ import annotations

import enum
import json
import math
import re
from bisect import insort
from collections import deque
from operator import itemgetter
from types import NoneType
from typing import Any, Final, Generic, NamedTuple, TypeVar

from embeddedpulsar.enums import InitialPosition
from embeddedpulsar.error_text import naming_fields, nearest
from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.policy_values import camel_case, json_form
from embeddedpulsar.topic_name import TopicName

_TEXTS: Final = ("timestamp_extractor_class_name", "late_data_topic")


@naming_fields
class WindowConfig(NamedTuple):
    """The windows of a function: how many messages, or milliseconds, each has, and how far the next one is.

    Without a sliding interval each window begins where the last one ended.

    Attributes:
        window_length_count: most messages of a window; or
        window_length_duration_ms: how long a message stays in the window.
        sliding_interval_count: messages after which there is a window; or
        sliding_interval_duration_ms: time after which there is one.
        timestamp_extractor_class_name: windows of event time: a class with a method
            ``extract_timestamp(input)`` that returns ms since 1970, or ``EventTimestamp`` for the event
            timestamp of the message. Windows then end at multiples of their interval, and have what lies
            behind their beginning up to their end.
        max_lag_ms: how far behind the newest timestamp another one is still waited for; default is 0.
        watermark_emit_interval_ms: how often is looked which windows are complete; default is 1000.
        late_data_topic: where messages go that come later than that; default is nowhere.

    Example:
        >>> WindowConfig(window_length_count=10, sliding_interval_count=5).check().interval_count
        5
        >>> WindowConfig(window_length_duration_ms=60_000).check().interval_ms
        60000
    """

    window_length_count: int | None = None
    window_length_duration_ms: int | None = None
    sliding_interval_count: int | None = None
    sliding_interval_duration_ms: int | None = None
    timestamp_extractor_class_name: str | None = None
    max_lag_ms: int | None = None
    watermark_emit_interval_ms: int | None = None
    late_data_topic: str | None = None

    @property
    def interval_count(self) -> int | None:
        """Messages between two windows; None if time passes between them."""
        # The four cases: a sliding interval of either kind decides; without one the next window begins where
        # the last one ended, so the interval is the length, of the kind that the length has. Exactly one of
        # this property and `interval_ms` is None.
        if self.sliding_interval_duration_ms is not None:
            return None
        return self.sliding_interval_count or self.window_length_count

    @property
    def interval_ms(self) -> int | None:
        """Time between two windows; None if messages are counted."""
        if self.sliding_interval_count is not None:
            return None
        return self.sliding_interval_duration_ms or self.window_length_duration_ms

    def check(self) -> WindowConfig:
        """Return this value if it is valid.

        Raises:
            InvalidConfiguration: not one length, more than one interval, a number below 1, or what belongs to
                windows of event time without a timestamp extractor.
            InvalidTopicName: ``late_data_topic`` is no topic name.
        """
        for name, value in zip(self._fields, self, strict=True):
            if name in _TEXTS:
                if not isinstance(value, str | None):
                    raise InvalidConfiguration(f"{name} is a text, not {value!r}")
                continue
            # No lag is the default, and may be given as well.
            if name == "max_lag_ms" and value == 0:
                continue
            # A bool is an int in Python, and is refused here by name.
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise InvalidConfiguration(f"{name} is a number from 1 on, not {value!r}")
        if (self.window_length_count is None) == (self.window_length_duration_ms is None):
            raise InvalidConfiguration(
                "a window has one length: window_length_count or window_length_duration_ms"
            )
        if self.sliding_interval_count is not None and self.sliding_interval_duration_ms is not None:
            raise InvalidConfiguration(
                "windows slide by sliding_interval_count or by sliding_interval_duration_ms"
            )
        # These options would be ignored for windows of arrival, and what is ignored is refused.
        of_event_time = (self.max_lag_ms, self.watermark_emit_interval_ms, self.late_data_topic)
        if not self.timestamp_extractor_class_name and any(option is not None for option in of_event_time):
            raise InvalidConfiguration(
                "max_lag_ms, watermark_emit_interval_ms and late_data_topic need "
                "timestamp_extractor_class_name"
            )
        # A window of so many messages has no end in event time: a message that comes late would move all
        # behind it.
        if self.timestamp_extractor_class_name and (
            self.window_length_count is not None or self.sliding_interval_count is not None
        ):
            raise InvalidConfiguration("windows of event time have durations, and not numbers of messages")
        if self.late_data_topic:
            return self._replace(late_data_topic=TopicName.parse(self.late_data_topic).full)
        return self


# Neither `/` nor `+`: the name of the state topic joins tenant, namespace and name with `+`, so no two
# functions share one.
_NAME: Final = re.compile(r"[\w\-=:.]+", re.ASCII)
# The least time that `Client.subscribe` takes for unacknowledged messages, as in Pulsar.
_LEAST_TIMEOUT_MS: Final = 10_000


class ProcessingGuarantees(enum.Enum):
    """How often a message has an effect, if a worker dies or the function raises.

    Example:
        >>> ProcessingGuarantees("ATLEAST_ONCE")
        <ProcessingGuarantees.ATLEAST_ONCE: 'ATLEAST_ONCE'>
    """

    ATLEAST_ONCE = "ATLEAST_ONCE"
    """Acknowledged when it was processed: processed again after a failure."""
    ATMOST_ONCE = "ATMOST_ONCE"
    """Acknowledged before it is processed: not processed again."""
    EFFECTIVELY_ONCE = "EFFECTIVELY_ONCE"
    """Processed again after a failure; but only one run changes the state, and publishes."""
    MANUAL = "MANUAL"
    """Acknowledged by the function, with `Context.ack`."""


@naming_fields
class FunctionConfig(NamedTuple):
    """What a function does, and how.

    Attributes:
        class_name: ``module.Class``, or ``module`` for a module with a function ``process(input)``.
        name: default is the last part of the class name.
        tenant, namespace: of the function; they are a part of its name, and do not limit its topics.
        py: path of the file with the class. It is read when a worker starts, and not copied into the store.
            Empty: the module is imported.
        inputs: names of input topics.
        topics_pattern: a regular expression for the names of further ones.
        custom_serde_inputs: further inputs, with the name of the class that deserializes their messages.
        custom_schema_inputs: further inputs, with the schema of their messages: ``string``, ``json``,
            ``avro``, ``int32`` and so on; ``auto_consume`` for `GenericRecord`; or the name of a class
            derived from `Schema`.
        input_type_class_name: the class of the values of ``json`` and ``avro``, derived from `Record`.
            Without it, values are dicts, decoded by the schemas of their writers.
        output: the topic for what the function returns; empty for none.
        output_serde_class_name: the class that serializes it; default is `IdentitySerDe`.
        output_schema_type: instead of that class, the schema of the output, as for the inputs.
        output_type_class_name: the class of its values for ``json`` and ``avro``.
        processing_guarantees: see `ProcessingGuarantees`.
        retain_ordering: one instance at a time processes the messages of an input, or partition, in order.
        retain_key_ordering: one instance at a time processes the messages of a key, in order.
        sub_name: name of the subscription; default is ``tenant/namespace/name``.
        subscription_position: where a new subscription begins.
        cleanup_subscription: whether deleting the function deletes the subscription.
        parallelism: number of instances, each in a process of its own.
        user_config: any JSON values, for `Context.get_user_config_value`.
        secrets: names of secrets, with what the provider needs to find each.
        secrets_provider_class_name: ``ClearTextSecretsProvider``, for which a secret is what stands in
            ``secrets``; ``EnvironmentBasedSecretsProvider``, for which it is in the environment variable of
            its name; or a class with a method ``provide_secret(secret_name, path_to_secret)``.
        log_topic: where records of `Context.get_logger` are published as well.
        timeout_ms: time after which a message that is not acknowledged is processed again; at least 10,000.
        max_message_retries: how often a message is processed again for which the function raises; -1 for any
            number.
        dead_letter_topic: where it goes then; default is ``<topic>-<subscription>-DLQ``.
        negative_ack_redelivery_delay_ms: time until a message is processed again for which the function
            raised. Not in Pulsar's class.
        receiver_queue_size: messages that an instance fetches ahead of each of its subscriptions. What an
            instance has fetched waits for it, also while it is in a long call; with 1, all other messages go
            to other instances meanwhile. Not in Pulsar's class.
        call_timeout_ms: longest time of one call. A worker process whose call takes longer is killed and
            started again, and the message is processed again (with ATMOST_ONCE it is not). None for no limit.
            A `LocalRunner` keeps it in worker processes alone. Not in Pulsar.
        forward_source_message_property: whether outputs have the properties of their message.
        window_config: windows instead of single messages.

    Example:
        >>> config = FunctionConfig("shop.Count", inputs=["orders"], output="counts").check()
        >>> config.full_name, config.inputs
        ('public/default/Count', ('persistent://public/default/orders',))
        >>> config.subscription, config.is_effectively_once, config.named_inputs()
        ('public/default/Count', False, ['persistent://public/default/orders'])
    """

    class_name: str = ""
    name: str = ""
    tenant: str = "public"
    namespace: str = "default"
    py: str = ""
    inputs: tuple[str, ...] | list[str] = ()
    topics_pattern: str = ""
    custom_serde_inputs: dict[str, str] = {}
    output: str = ""
    output_serde_class_name: str = ""
    processing_guarantees: ProcessingGuarantees = ProcessingGuarantees.ATLEAST_ONCE
    retain_ordering: bool = False
    retain_key_ordering: bool = False
    sub_name: str = ""
    subscription_position: InitialPosition = InitialPosition.Latest
    cleanup_subscription: bool = True
    parallelism: int = 1
    user_config: dict[str, Any] = {}
    secrets: dict[str, Any] = {}
    secrets_provider_class_name: str = "ClearTextSecretsProvider"
    log_topic: str = ""
    timeout_ms: int | None = None
    max_message_retries: int = -1
    dead_letter_topic: str = ""
    negative_ack_redelivery_delay_ms: int = 60_000
    forward_source_message_property: bool = True
    window_config: WindowConfig | None = None
    custom_schema_inputs: dict[str, str] = {}
    input_type_class_name: str = ""
    output_schema_type: str = ""
    output_type_class_name: str = ""
    receiver_queue_size: int = 1000
    call_timeout_ms: int | None = None

    @property
    def full_name(self) -> str:
        """``tenant/namespace/name``."""
        return f"{self.tenant}/{self.namespace}/{self.name}"

    @property
    def subscription(self) -> str:
        """The name of the subscription."""
        return self.sub_name or self.full_name

    def named_inputs(self) -> list[str]:
        """The names of input topics, without those that match the pattern."""
        return list(dict.fromkeys([*self.inputs, *self.custom_serde_inputs, *self.custom_schema_inputs]))

    @property
    def is_effectively_once(self) -> bool:
        """Whether the guarantee is EFFECTIVELY_ONCE."""
        return self.processing_guarantees is ProcessingGuarantees.EFFECTIVELY_ONCE

    def check(self) -> FunctionConfig:
        """Return the configuration with full names of topics, if it is valid.

        Raises:
            InvalidConfiguration: options contradict each other, or something is missing.
            InvalidTopicName: a text is not a topic name.
        """
        # The types come first: the steps behind it parse and compare the values, and would raise errors that
        # do not name the field.
        self._check_types()
        config = self._replace(
            # A function is called by the last part of its class, as in Pulsar. Names of topics are stored in
            # full, so a reader of the definition needs no defaults.
            name=self.name or self.class_name.rpartition(".")[2],
            inputs=tuple(dict.fromkeys(TopicName.parse(name).full for name in self.inputs)),
            custom_serde_inputs=_by_full_name(self.custom_serde_inputs),
            custom_schema_inputs=_by_full_name(self.custom_schema_inputs),
            output=_full(self.output),
            log_topic=_full(self.log_topic),
            dead_letter_topic=_full(self.dead_letter_topic),
        )
        config._check_names()
        config._check_guarantees()
        if config.window_config is not None:
            config = config._replace(window_config=config.window_config.check())
        return config

    def _check_types(self) -> None:
        for name, value in zip(self._fields, self, strict=True):
            # The type of a field is that of its default. A bool is an int in Python: it is taken only where
            # the default is one.
            kinds = _TYPES.get(name) or (type(self._field_defaults[name]),)
            if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                expected = " or ".join("None" if kind is NoneType else kind.__name__ for kind in kinds)
                raise InvalidConfiguration(f"{name} is of the type {expected}, not {value!r}")

    def _check_names(self) -> None:
        for what in ("tenant", "namespace", "name"):
            if not _NAME.fullmatch(getattr(self, what)):
                raise InvalidConfiguration(
                    f"the {what} of a function is made of A-Z a-z 0-9 _ - = : . and not empty; "
                    f"{getattr(self, what)!r} is not"
                )
        topics = self.named_inputs()
        # A topic has one conversion. Which of two would win is not to be guessed.
        both = self.custom_serde_inputs.keys() & self.custom_schema_inputs.keys()
        if both or (self.output_serde_class_name and self.output_schema_type):
            raise InvalidConfiguration(
                f"{min(both, default='the output')} of {self.full_name} has a SerDe or a schema, not both"
            )
        if not topics and not self.topics_pattern:
            raise InvalidConfiguration(f"{self.full_name} has no input: give inputs, or topics_pattern")
        # Such a function would get its own outputs, without end. A pattern is not checked: which topics match
        # it is known at run time only.
        for label in ("output", "log_topic", "dead_letter_topic"):
            if getattr(self, label) in topics:
                raise InvalidConfiguration(f"{getattr(self, label)} is an input of {self.full_name}, too")
        # A wrong pattern would fail in every worker, again and again.
        try:
            re.compile(self.topics_pattern)
        except re.error as e:
            raise InvalidConfiguration(f"topics_pattern {self.topics_pattern!r}: {e}") from e
        # Numbers that pass here have the right type; only their range is left to check.
        if self.parallelism < 1:
            raise InvalidConfiguration(f"parallelism is a number from 1 on, not {self.parallelism!r}")
        if self.receiver_queue_size < 1:
            raise InvalidConfiguration(
                f"receiver_queue_size is a number from 1 on, not {self.receiver_queue_size!r}"
            )
        if self.call_timeout_ms is not None and self.call_timeout_ms < 1:
            raise InvalidConfiguration(f"call_timeout_ms is a number from 1 on, not {self.call_timeout_ms!r}")
        # Both are stored in the definition, as JSON, and given to workers in their order.
        try:
            json.dumps([self.user_config, self.secrets])
        except (TypeError, ValueError) as e:
            raise InvalidConfiguration(f"user_config and secrets have JSON values: {e}") from e

    def _check_guarantees(self) -> None:
        guarantee = self.processing_guarantees
        # One needs a Failover subscription, the other a Key_Shared one.
        if self.retain_ordering and self.retain_key_ordering:
            raise InvalidConfiguration("retain_ordering or retain_key_ordering, not both")
        if self.timeout_ms is not None and self.timeout_ms < _LEAST_TIMEOUT_MS:
            raise InvalidConfiguration(
                f"timeout_ms is at least {_LEAST_TIMEOUT_MS:,}, not {self.timeout_ms!r}"
            )
        # A timeout is for messages that are acknowledged after the call. With the other guarantees they are
        # acknowledged before it, by the function, or in order by a commit.
        if self.timeout_ms is not None and guarantee is not ProcessingGuarantees.ATLEAST_ONCE:
            raise InvalidConfiguration("timeout_ms goes with the guarantee ATLEAST_ONCE only")
        if self.dead_letter_topic and self.max_message_retries < 0:
            raise InvalidConfiguration("dead_letter_topic needs max_message_retries")
        if self.max_message_retries != -1 and self.max_message_retries < 1:
            raise InvalidConfiguration(
                f"max_message_retries is -1 or a number from 1 on, not {self.max_message_retries!r}"
            )
        # The count of redeliveries, which a dead letter needs, is kept by message on Shared and Key_Shared. A
        # Failover subscription delivers all behind its position again.
        if self.max_message_retries >= 0 and self.retain_ordering:
            raise InvalidConfiguration(
                "retries are counted on Shared and Key_Shared: not with retain_ordering"
            )
        if not self.is_effectively_once:
            return
        # One position for each partition says what is counted. On Key_Shared several instances would process
        # a partition, each at its own place.
        if self.retain_key_ordering:
            raise InvalidConfiguration(
                "EFFECTIVELY_ONCE keeps the order of a partition: not retain_key_ordering"
            )
        # A position counts everything before it, so no message can be set aside.
        if self.max_message_retries >= 0:
            raise InvalidConfiguration("EFFECTIVELY_ONCE leaves out no message: not with max_message_retries")
        # A message can be in several windows, and one commit would have to count a part of it.
        if self.window_config is not None:
            raise InvalidConfiguration("windows go with ATLEAST_ONCE, ATMOST_ONCE and MANUAL")

    def json(self) -> dict[str, Any]:
        """Return the fields by their names in Pulsar, without those that are None or empty.

        Example:
            >>> FunctionConfig("shop.Count", inputs=["orders"]).json()["className"]
            'shop.Count'
        """
        fields = json_form(self)
        # Enums are stored by name: the numbers of `InitialPosition` are an accident of the client.
        fields["processingGuarantees"] = self.processing_guarantees.value
        fields["subscriptionPosition"] = self.subscription_position.name
        return {name: value for name, value in fields.items() if value not in ("", [], {})}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> FunctionConfig:
        """Return the configuration of such a form, as a file of ``--function-config-file`` has it.

        ``inputSpecs`` is taken as inputs with their SerDes and schemas. ``runtime`` and ``autoAck`` may have
        the values that are the only ones here.

        Raises:
            InvalidConfiguration: an unknown field, or a value of a wrong type.

        Example:
            >>> FunctionConfig.from_json({"className": "shop.Count", "outputSerdeClassName": "shop.Json"})
            FunctionConfig(class_name='shop.Count', ... output_serde_class_name='shop.Json', ...)
        """
        values = _by_names(cls._fields, _without_pulsars_own(fields))
        try:
            if "processing_guarantees" in values:
                # A word that is no guarantee is a ValueError, a position a KeyError, a number in its place an
                # AttributeError: all are reported below as faults of the configuration.
                values["processing_guarantees"] = ProcessingGuarantees(values["processing_guarantees"])
            if "subscription_position" in values:
                # Pulsar writes LATEST and EARLIEST, the client has Latest and Earliest.
                values["subscription_position"] = InitialPosition[
                    values["subscription_position"].capitalize()
                ]
            if values.get("window_config") is not None:
                values["window_config"] = WindowConfig(
                    **_by_names(WindowConfig._fields, values["window_config"])
                )
        except (AttributeError, KeyError, TypeError, ValueError) as e:
            raise InvalidConfiguration(f"the configuration of a function: {e}") from e
        return cls(**values)


_TYPES: Final[dict[str, tuple[type[Any], ...]]] = {
    "inputs": (tuple, list),
    "timeout_ms": (int, NoneType),
    "call_timeout_ms": (int, NoneType),
    "window_config": (WindowConfig, NoneType),
}
"""Types of the fields that are not of the type of their default."""


def _full(topic: str) -> str:
    return TopicName.parse(topic).full if topic else ""


def _by_full_name(names: dict[str, str]) -> dict[str, str]:
    return {TopicName.parse(topic).full: name for topic, name in names.items()}


def _without_pulsars_own(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields that are set, with those of this package for those that only Pulsar has."""
    own_fields = {name: value for name, value in fields.items() if value is not None}
    # Pulsar's files say these for functions of every language. The only value that they can have here is
    # accepted, so such a file can be used as it is.
    for name, only in (("runtime", "PYTHON"), ("autoAck", True)):
        if own_fields.pop(name, only) != only:
            raise InvalidConfiguration(
                f"{name} is {only} for functions in Python; MANUAL acknowledges itself"
            )
    specs = own_fields.pop("inputSpecs", {})
    if not isinstance(specs, dict) or not all(isinstance(spec, dict) for spec in specs.values()):
        raise InvalidConfiguration(f"inputSpecs has an object for each topic, and is not {specs!r}")
    # One entry of inputSpecs is one of three: a pattern without a conversion, a topic with a SerDe or a
    # schema, or a plain topic. Empty fields are left out, as Pulsar's tools write all of them.
    for topic, spec in specs.items():
        given = {name: value for name, value in spec.items() if value}
        is_pattern = given.pop("isRegexPattern", False) or given.pop("regexPattern", False)
        serde, schema = given.pop("serdeClassName", ""), given.pop("schemaType", "")
        # What is left in `given` are options of the consumer, which this package does not have for one topic
        # alone. There is one pattern for a function.
        if given or (is_pattern and (serde or schema or "topicsPattern" in own_fields)):
            raise InvalidConfiguration(
                f"inputSpecs of {topic}: serdeClassName, schemaType, or isRegexPattern of one pattern, and "
                f"not {spec!r}"
            )
        if is_pattern:
            own_fields["topicsPattern"] = topic
        elif serde or schema:
            name = "customSerdeInputs" if serde else "customSchemaInputs"
            own_fields[name] = {**own_fields.get(name, {}), topic: serde or schema}
        else:
            own_fields["inputs"] = [*own_fields.get("inputs", []), topic]
    return own_fields


def _by_names(names: tuple[str, ...], fields: dict[str, Any]) -> dict[str, Any]:
    # Pulsar's names are camel case. An unknown field is an error with the nearest name: ignored, a misspelt
    # guarantee would silently be the default.
    known = {camel_case(name): name for name in names}
    unknown = [name for name in fields if name not in known]
    if unknown:
        near = nearest(unknown[0], known)
        hint = f"did you mean {near}?" if near else f"there are {', '.join(known)}"
        raise InvalidConfiguration(f"{unknown[0]} is unknown here; {hint}")
    return {known[name]: value for name, value in fields.items()}


Item = TypeVar("Item")


class Window(NamedTuple, Generic[Item]):
    """One window that is complete.

    Attributes:
        items: its messages, in the order of arrival.
        expired: those that belong to no later window.
    """

    items: list[Item]
    expired: list[Item]


class Windows(Generic[Item]):
    """The messages that belong to a window which is not complete yet.

    A window is complete when so many messages came, or so much time passed, as is between two windows. It has
    the last messages by number, or by the time of their arrival. Without a message there is no window.

    Args:
        config: lengths and intervals.
        now_ms: the time on the clock of the caller; windows of time are counted from there.

    Example:
        >>> windows = Windows(WindowConfig(window_length_count=3, sliding_interval_count=2), 0)
        >>> [windows.add(item, 0) for item in "abcd"]
        [None, Window(items=['a', 'b'], expired=['a']), None, Window(items=['b', 'c', 'd'], ...)]
    """

    def __init__(self, config: WindowConfig, now_ms: float) -> None:
        self._length: Final = config.window_length_count
        self._length_ms: Final = config.window_length_duration_ms
        self._interval: Final = config.interval_count
        self._interval_ms: Final = config.interval_ms
        self._items: deque[tuple[float, Item]] = deque()
        self._new = 0
        self._due_ms = now_ms + (self._interval_ms or 0)

    @property
    def due_ms(self) -> float | None:
        """When the next window is complete by time; None if messages are counted."""
        return None if self._interval_ms is None else self._due_ms

    def add(self, item: Item, now_ms: float) -> Window[Item] | None:
        """A message comes; the window that it completes, if any. `poll` comes first."""
        self._items.append((now_ms, item))
        self._new += 1
        # With an interval of time, only `poll` completes windows.
        if self._interval is None or self._new < self._interval:
            return None
        self._new = 0
        return self._complete(now_ms)

    def poll(self, now_ms: float) -> Window[Item] | None:
        """The window that time has completed, if any; to be called until there is none."""
        if self._interval_ms is None or now_ms < self._due_ms:
            return None
        # One window at a time: after a pause the caller polls for each that was missed, in order.
        end_ms, self._due_ms = self._due_ms, self._due_ms + self._interval_ms
        if not self._items:  # windows without messages need no calls
            # All intervals that passed without a message at once, by a division: a loop over them could take
            # long after a pause.
            missed = (now_ms - self._due_ms) // self._interval_ms + 1
            self._due_ms += max(0.0, missed) * self._interval_ms
            return None
        return self._complete(end_ms)

    def drop(self, items: list[Item]) -> None:
        """Forget messages that come again."""
        # By identity: two messages may be equal.
        gone = set(map(id, items))
        self._items = deque(entry for entry in self._items if id(entry[1]) not in gone)

    def _complete(self, end_ms: float) -> Window[Item] | None:
        items = self._items
        if self._length is not None:
            # The last `length` messages are the window. The next one is complete after `interval` further
            # ones, so of these the newest `length - interval` stay. With an interval of time their number is
            # not known, and all of the length stay.
            first, keep = len(items) - self._length, self._length - (self._interval or 0)
            window = [item for _, item in list(items)[max(0, first) :]]
            expired_count = len(items) - max(0, keep)
        else:
            assert self._length_ms is not None
            begin_ms = end_ms - self._length_ms
            if self._interval_ms is None:  # it ends with the message that completes it
                window = [item for at_ms, item in items if at_ms > begin_ms]
                expired_count = len(items) - len(window)
            else:  # it ends before the messages that come at its end
                window = [item for at_ms, item in items if begin_ms <= at_ms < end_ms]
                # Those before the beginning of the next window.
                expired_count = sum(at_ms < begin_ms + self._interval_ms for at_ms, _ in items)
        expired = [items.popleft()[1] for _ in range(max(0, expired_count))]
        # A window without messages is no call, but messages that expire have to be acknowledged.
        return Window(window, expired) if window or expired else None


_EMIT_MS: Final = 1000


class EventWindows(Generic[Item]):
    """The messages that belong to a window which is not complete yet, by their timestamps.

    The watermark is the newest timestamp of each input, the least of these, less the lag: older messages are
    late. It is moved at intervals on the clock of the caller, once each input had a message. A window is
    complete when its end is not behind the watermark. It has the messages in the order of their timestamps.
    Messages that are delivered again are never late: they form windows anew.

    Args:
        config: with durations.
        inputs: how many topics there are.
        now_ms: the time on the clock of the caller.

    Example:
        >>> windows = EventWindows(WindowConfig(window_length_duration_ms=10), 1, 0)
        >>> [windows.add(item, at_ms, "in") for item, at_ms in (("b", 7), ("a", 3), ("c", 12))]
        [True, True, True]
        >>> windows.poll(1000), windows.poll(1000)
        (Window(items=['a', 'b'], expired=['a', 'b']), None)
        >>> windows.add("late", 9, "in")
        False
    """

    def __init__(self, config: WindowConfig, inputs: int, now_ms: float) -> None:
        assert config.window_length_duration_ms is not None
        self._length_ms: Final = config.window_length_duration_ms
        self._interval_ms: Final = config.sliding_interval_duration_ms or self._length_ms
        self._lag_ms: Final = config.max_lag_ms or 0
        self._emit_ms: Final = config.watermark_emit_interval_ms or _EMIT_MS
        self._inputs: Final = inputs
        self._newest: Final[dict[str, float]] = {}
        self._items: list[tuple[float, Item]] = []  # in the order of timestamps, then of arrival
        self._watermark = -math.inf
        self._next_end = -math.inf
        self._again_end = -math.inf  # the next one of messages that are delivered again
        self._due_ms = now_ms + self._emit_ms
        self._is_looking = False

    @property
    def due_ms(self) -> float:
        """When the watermark is moved next."""
        return self._due_ms

    def add(self, item: Item, at_ms: float, topic: str, *, is_again: bool = False) -> bool:
        """A message comes, with its timestamp and its topic. False if it is late, and in no window."""
        # Late messages and repeated ones count as well: they say that their input lives.
        self._newest[topic] = max(at_ms, self._newest.get(topic, -math.inf))
        if is_again:
            # The windows of repeated messages begin with the oldest one, which may be this.
            self._again_end = -math.inf
        elif at_ms < self._watermark or self._is_behind(at_ms):
            return False
        insort(self._items, (at_ms, item), key=itemgetter(0))
        return True

    def poll(self, now_ms: float) -> Window[Item] | None:
        """The next window that is complete, if any; to be called until there is none."""
        # The watermark moves at intervals, not with each message: a message that is a little behind the
        # newest is then still in time. Once it has moved, all windows that it completes are given out, one
        # for each call.
        if now_ms >= self._due_ms:
            self._due_ms, self._is_looking = now_ms + self._emit_ms, True
            # An input without a message yet may have an old one: nothing is complete before it came.
            if len(self._newest) >= self._inputs:
                self._watermark = max(self._watermark, min(self._newest.values()) - self._lag_ms)
        window = self._complete() if self._is_looking and self._items else None
        self._is_looking = window is not None
        return window

    def _complete(self) -> Window[Item] | None:
        # There are two series of windows: that of messages which came first, and behind it one for messages
        # that are delivered again, whose windows were given out before. The oldest message decides which one
        # is next.
        items, interval_ms = self._items, self._interval_ms
        is_again = self._is_behind(items[0][0])
        least_ms = self._again_end if is_again else self._next_end
        # Windows without messages are left out: to the first that has the oldest one.
        end_ms = max(least_ms, math.ceil(items[0][0] / interval_ms) * interval_ms)
        if end_ms > self._watermark:
            return None
        following_ms = end_ms + interval_ms
        if is_again:
            self._again_end = following_ms
        else:
            self._next_end, self._again_end = following_ms, -math.inf
        # Behind the beginning, up to the end: a timestamp that is a multiple of the interval ends a window.
        window = [item for at_ms, item in items if end_ms - self._length_ms < at_ms <= end_ms]
        expired_count = sum(at_ms <= following_ms - self._length_ms for at_ms, _ in items)
        self._items = items[expired_count:]
        return Window(window, [item for _, item in items[:expired_count]])

    def _is_behind(self, at_ms: float) -> bool:
        """Whether all windows with this timestamp are over."""
        return at_ms <= self._next_end - self._length_ms

    def drop(self, gone: list[Item]) -> None:
        """Forget messages that come again."""
        # By identity: two messages may be equal.
        ids = set(map(id, gone))
        self._items = [entry for entry in self._items if id(entry[1]) not in ids]
