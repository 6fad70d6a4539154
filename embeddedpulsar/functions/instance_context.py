"""The context of one instance of a function.

The logger of a function, and its log topic.
"""

from __future__ import annotations

import logging
import numbers
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar.enums import CompressionType
from embeddedpulsar.functions.context import Context, SerDe
from embeddedpulsar.functions.function_config import FunctionConfig
from embeddedpulsar.functions.function_status import InstanceReport
from embeddedpulsar.functions.io import Draft
from embeddedpulsar.functions.state import Changes, StateLog
from embeddedpulsar.functions.user_code import SecretsProvider, serde_of
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.results import Result
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from embeddedpulsar.client.client import Client
    from embeddedpulsar.message import Message


_PRODUCER_OPTIONS: Final = (
    "properties",
    "partition_key",
    "ordering_key",
    "event_timestamp",
    "sequence_id",
    "replication_clusters",
    "disable_replication",
)


class Definition(NamedTuple):
    """A function as it is registered.

    Attributes:
        config: its configuration, checked.
        id: made at its creation.
        version: how often it was updated.
        is_running: whether it is to be run.
        restarts: how often a restart was asked for.
    """

    config: FunctionConfig
    id: str
    version: int = 0
    is_running: bool = True
    restarts: int = 0


class InstanceContext(Context):
    """What one instance shows of itself to its function.

    Role: `begin` comes before each call of the function. What the call does to the state and publishes is in
    `changes` and `drafts` afterwards, for the instance to commit; with ``send``, messages are published at
    once. One thread.

    Args:
        definition: of the function.
        instance: number of the instance.
        state: of the function.
        report: gets the metrics.
        secrets: finds secrets.
        acknowledge: of a message, by id and topic.
        send: publishes a message at once; None to keep it in `drafts`.

    Attributes:
        changes: changes of the state that are not committed.
        drafts: messages that are not published.
        log: the logger of the function.
    """

    def __init__(
        self,
        definition: Definition,
        instance: int,
        state: StateLog,
        report: InstanceReport,
        secrets: SecretsProvider,
        acknowledge: Callable[[MessageId, str], object],
        send: Callable[[Draft], MessageId] | None,
    ) -> None:
        self.changes = Changes()
        self.drafts: list[Draft] = []
        self.log: logging.Logger = logging.getLogger("embeddedpulsar.function")
        self._definition: Final = definition
        self._config: Final = definition.config
        self._instance: Final = instance
        self._state: Final = state
        self._is_followed = False
        self._report: Final = report
        self._secrets: Final = secrets
        self._acknowledge: Final = acknowledge
        self._send: Final = send
        self._serdes: Final[dict[str, SerDe]] = {}
        self._before = Changes()
        self._message: Message[Any]

    def begin(self, message: Message[Any], before: Changes) -> None:
        """A message is about to be processed.

        Args:
            message: the message; with windows, the newest.
            before: changes of earlier messages of the same run, which are not committed yet.
        """
        if before is not self._before:  # of another run, so other instances may have committed meanwhile
            self._is_followed = False
        self._message, self._before = message, before
        self.changes, self.drafts = Changes(), []

    # -- the message and the function --------------------------------------------------------------

    def get_message_id(self) -> MessageId:
        return self._message.message_id()

    def get_message_key(self) -> str:
        return self._message.partition_key()

    def get_message_eventtime(self) -> int:
        return self._message.event_timestamp()

    def get_message_properties(self) -> dict[str, str]:
        return self._message.properties()

    def get_current_message_topic_name(self) -> str:
        return self._message.topic_name()

    def get_partition_key(self) -> str:
        return self._message.partition_key()

    def get_ordering_key(self) -> str:
        return self._message.ordering_key()

    def get_function_tenant(self) -> str:
        return self._config.tenant

    def get_function_namespace(self) -> str:
        return self._config.namespace

    def get_function_name(self) -> str:
        return self._config.name

    def get_function_id(self) -> str:
        return self._definition.id

    def get_instance_id(self) -> int:
        return self._instance

    def get_function_version(self) -> str:
        return str(self._definition.version)

    def get_logger(self) -> logging.Logger:
        return self.log

    def get_user_config_value(self, key: str) -> Any:
        return self._config.user_config.get(key)

    def get_user_config_map(self) -> dict[str, Any]:
        return dict(self._config.user_config)

    def get_secret(self, secret_name: str) -> str | None:
        return self._secrets.provide_secret(secret_name, self._config.secrets.get(secret_name))

    def get_input_topics(self) -> list[str]:
        pattern = [self._config.topics_pattern] if self._config.topics_pattern else []
        return [*self._config.named_inputs(), *pattern]

    def get_output_topic(self) -> str:
        return self._config.output

    def get_output_serde_class_name(self) -> str:
        return self._config.output_serde_class_name

    # -- what it does ------------------------------------------------------------------------------

    def record_metric(self, metric_name: str, metric_value: float) -> None:
        if not isinstance(metric_value, numbers.Real):
            raise TypeError(f"the metric {metric_name} is a number, not {metric_value!r}")
        self._report.record_metric(metric_name, float(metric_value))

    def publish(
        self,
        topic_name: str,
        message: Any,
        serde_class_name: str = "serde.IdentitySerDe",
        properties: dict[str, str] | None = None,
        compression_type: CompressionType | None = None,
        callback: Callable[[Any, MessageId], object] | None = None,
        message_conf: dict[str, Any] | None = None,
    ) -> None:
        options = dict(message_conf or {})
        unknown = sorted(options.keys() - set(_PRODUCER_OPTIONS))
        if unknown:
            raise ValueError(f"message_conf has {', '.join(_PRODUCER_OPTIONS)}, and not {unknown[0]!r}")
        # The argument wins over the same property in `message_conf`, as in Pulsar's SDK.
        if properties:
            options["properties"] = {**(options.get("properties") or {}), **properties}
        # One object for each class, as for the inputs: a SerDe may be slow to make.
        serde = self._serdes.get(serde_class_name)
        if serde is None:
            serde = self._serdes[serde_class_name] = serde_of(serde_class_name, self._config.py)
        topic = TopicName.parse(topic_name).full
        kind = CompressionType.NONE if compression_type is None else compression_type
        self.emit(Draft(topic, serde.serialize(message), options, kind, callback))

    def emit(self, draft: Draft) -> None:
        """Publish a message now, or with the others.

        Raises:
            ValueError: an option that is not possible with EFFECTIVELY_ONCE.
        """
        # EFFECTIVELY_ONCE: the message waits for the commit. What decides about duplicates is the sequence id
        # that `OutputProducers.number` gives it, so the function cannot choose one.
        if self._send is None:
            for name in ("sequence_id", "replication_clusters"):
                if draft.options.pop(name, None):
                    raise ValueError(f"{name} cannot be chosen with EFFECTIVELY_ONCE")
            draft.options.pop("disable_replication", None)
            self.drafts.append(draft)
            return
        message_id = self._send(draft)
        notify(draft, message_id)

    def ack(self, msgid: MessageId, topic: str) -> None:
        self._acknowledge(msgid, topic)

    # -- state -------------------------------------------------------------------------------------

    def incr_counter(self, key: str, amount: int) -> None:
        if isinstance(amount, bool) or not isinstance(amount, int):
            raise TypeError(f"a counter counts in whole numbers, not by {amount!r}")
        # It raises for a key that has a text, before anything is counted.
        self.get_counter(key)
        self.changes.add(_checked(key), amount)

    def get_counter(self, key: str) -> int:
        value = self._found(key)
        if value is not None and not isinstance(value, int):
            raise TypeError(f"{key!r} is no counter: put_state has set it")
        return value or 0

    def del_counter(self, key: str) -> None:
        self.changes.put(_checked(key), None)

    def put_state(self, key: str, value: str | bytes) -> None:
        if not isinstance(value, str | bytes):
            raise TypeError(f"the state of a key is str or bytes, not {type(value).__name__}")
        self.changes.put(_checked(key), value)

    def get_state(self, key: str) -> str | bytes | None:
        value = self._found(key)
        if isinstance(value, int):
            raise TypeError(f"{key!r} is a counter: use get_counter")
        return value

    def _found(self, key: str) -> int | str | bytes | None:
        # Three layers, the newest first: what this call changed, what earlier messages of the run changed,
        # and what is committed. The state topic is read at the first look only, and once for each run: a
        # function without state does not pay for it.
        changes = self.changes
        if key in changes.set:
            return changes.set[key]
        if not self._is_followed:
            self._state.catch_up()
            self._is_followed = True
        committed, amount = self._state.table.value(key, self._before), changes.added.get(key)
        if amount is None:
            return committed
        return (committed if isinstance(committed, int) else 0) + amount


def notify(draft: Draft, message_id: MessageId) -> None:
    """Call the callback of a message that is stored."""
    if draft.callback is not None:
        draft.callback(Result.Ok, message_id)


def _checked(key: str) -> str:
    if not isinstance(key, str) or not key:
        raise TypeError(f"the key of a state is a str that is not empty, not {key!r}")
    return key


def logger_of(full_name: str) -> logging.Logger:
    """The logger of a function: a child of ``embeddedpulsar.function``."""
    return logging.getLogger(f"embeddedpulsar.function.{full_name}")


class LogTopicHandler(logging.Handler):
    """Publishes records of a logger, each as one message with its level in the properties.

    What the publishing itself logs is not published.
    """

    def __init__(self, client: Client, topic: str, full_name: str, instance: int) -> None:
        super().__init__()
        self._producer: Final = client.create_producer(topic)
        self._properties: Final = {"fqn": full_name, "instance": str(instance)}

    def emit(self, record: logging.LogRecord) -> None:
        """Publish a record. What goes wrong is reported as other handlers do."""
        try:
            text = self.format(record).encode()
            self._producer.send(text, properties=self._properties | {"loglevel": record.levelname})
        # A record that cannot be published must not fail the message: the function only logged.
        except Exception:  # noqa: BLE001 - logging reports it; the function goes on
            self.handleError(record)

    def close(self) -> None:
        """Detach from the topic."""
        if self._producer.is_connected():
            self._producer.close()
        super().close()
