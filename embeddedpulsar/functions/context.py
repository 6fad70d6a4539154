"""The interface of the context in which a function processes a message."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from embeddedpulsar.enums import CompressionType
    from embeddedpulsar.message_id import MessageId


class Context:
    """What a function knows of the message that it processes, and of itself; and its state.

    The second argument of `Function.process`. It is valid during that call, in its thread. With windows, the
    methods about the message are those of the newest message of the window.

    Example:
        >>> from embeddedpulsar import Client, Function
        >>> from embeddedpulsar.functions import FunctionConfig, LocalRunner
        >>> class Count(Function):
        ...     def process(self, input, context):
        ...         context.incr_counter(input, 1)
        ...         return f"{input}: {context.get_counter(input)}"
        >>> with Client("memory://") as client:
        ...     runner = LocalRunner(FunctionConfig(inputs=["words"], output="counts"), Count, client=client)
        ...     counts = client.subscribe("counts", "shop")
        ...     ids = [client.create_producer("words").send(b"tea") for _ in range(2)]
        ...     processed = runner.run_until_idle()
        ...     runner.stop()
        ...     counts.receive().data(), counts.receive().data()
        (b'tea: 1', b'tea: 2')

        What a function can ask for:

        >>> from embeddedpulsar.functions import ProcessingGuarantees
        >>> class Show(Function):
        ...     def process(self, input, context):
        ...         print(context.get_message_key(), context.get_partition_key(), context.get_ordering_key())
        ...         print(context.get_message_properties(), context.get_message_eventtime())
        ...         print(context.get_current_message_topic_name(), context.get_message_id().entry_id())
        ...         print(context.get_function_tenant(), context.get_function_namespace())
        ...         print(context.get_function_name(), context.get_instance_id())
        ...         print(context.get_function_version())
        ...         print(len(context.get_function_id()) > 0, context.get_logger().name)
        ...         print(context.get_user_config_value("rate"), context.get_user_config_map())
        ...         print(context.get_secret("pin"), context.get_input_topics(), context.get_output_topic())
        ...         print(context.get_output_serde_class_name())
        ...         context.record_metric("length", len(input))
        ...         context.put_state("last", input)
        ...         print(context.get_state("last"))
        ...         context.del_counter("last")
        ...         context.publish("copies", input, properties={"from": "Show"})
        ...         context.ack(context.get_message_id(), context.get_current_message_topic_name())
        >>> config = FunctionConfig(inputs=["words"], output="shown", user_config={"rate": 3},
        ...     secrets={"pin": "1234"}, processing_guarantees=ProcessingGuarantees.MANUAL)
        >>> with Client("memory://") as client, LocalRunner(config, Show, client=client) as runner:
        ...     copies, producer = client.subscribe("copies", "shop"), client.create_producer("words")
        ...     message_id = producer.send(b"tea", {"table": "7"}, "bar", "till", event_timestamp=5)
        ...     processed = runner.run_until_idle()
        ...     copies.receive().data()
        bar bar till
        {'table': '7'} 5
        persistent://public/default/words 0
        public default
        Show 0
        0
        True ...
        3 {'rate': 3}
        1234 ['persistent://public/default/words'] persistent://public/default/shown
        ...
        tea
        b'tea'
    """

    # -- the message -----------------------------------------------------------------------------------

    @abstractmethod
    def get_message_id(self) -> MessageId:
        """Return the id of the message."""

    @abstractmethod
    def get_message_key(self) -> str:
        """Return the partition key of the message, ``""`` without one."""

    @abstractmethod
    def get_message_eventtime(self) -> int:
        """Return the event time of the message in ms since 1970; 0 without one."""

    @abstractmethod
    def get_message_properties(self) -> dict[str, str]:
        """Return the properties of the message."""

    @abstractmethod
    def get_current_message_topic_name(self) -> str:
        """Return the full name of the topic, or partition, of the message."""

    @abstractmethod
    def get_partition_key(self) -> str:
        """Return the partition key of the message, ``""`` without one."""

    @abstractmethod
    def get_ordering_key(self) -> str:
        """Return the ordering key of the message, ``""`` without one."""

    # -- the function ----------------------------------------------------------------------------------

    @abstractmethod
    def get_function_tenant(self) -> str:
        """Return the tenant of the function."""

    @abstractmethod
    def get_function_namespace(self) -> str:
        """Return the namespace of the function, without its tenant."""

    @abstractmethod
    def get_function_name(self) -> str:
        """Return the name of the function."""

    @abstractmethod
    def get_function_id(self) -> str:
        """Return the id that the function got when it was created."""

    @abstractmethod
    def get_instance_id(self) -> int:
        """Return the number of this instance of the function, from 0."""

    @abstractmethod
    def get_function_version(self) -> str:
        """Return how often the function was updated."""

    @abstractmethod
    def get_logger(self) -> logging.Logger:
        """Return a logger; its records also go to the log topic of the function."""

    @abstractmethod
    def get_user_config_value(self, key: str) -> Any:
        """Return a value of the user config; None without one of that key."""

    @abstractmethod
    def get_user_config_map(self) -> dict[str, Any]:
        """Return the user config."""

    @abstractmethod
    def get_secret(self, secret_name: str) -> str | None:
        """Return a secret; None without one of that name."""

    @abstractmethod
    def get_input_topics(self) -> list[str]:
        """Return the names of the input topics; a pattern stands as it was written."""

    @abstractmethod
    def get_output_topic(self) -> str:
        """Return the full name of the output topic, ``""`` without one."""

    @abstractmethod
    def get_output_serde_class_name(self) -> str:
        """Return the name of the class that serializes outputs."""

    # -- what it does ----------------------------------------------------------------------------------

    @abstractmethod
    def record_metric(self, metric_name: str, metric_value: float) -> None:
        """Add a number to a metric, of which the count, sum, minimum and maximum are shown.

        Raises:
            TypeError: the value is no number.
        """

    @abstractmethod
    def publish(
        self,
        topic_name: str,
        message: Any,
        # The default of Pulsar's SDK, by the name that it has there (`user_code.named_class`).
        serde_class_name: str = "serde.IdentitySerDe",
        properties: dict[str, str] | None = None,
        compression_type: CompressionType | None = None,
        callback: Callable[[Any, MessageId], object] | None = None,
        message_conf: dict[str, Any] | None = None,
    ) -> None:
        """Publish a message to any topic.

        With EFFECTIVELY_ONCE it is published when the messages that caused it are counted as processed, once
        each; otherwise before the call returns.

        Args:
            topic_name: the topic.
            message: the value.
            serde_class_name: the class that serializes it.
            properties: of the message.
            compression_type: None for no compression.
            callback: called as ``callback(result, message_id)`` once the message is stored.
            message_conf: any of ``properties``, ``partition_key``, ``ordering_key``, ``sequence_id``,
                ``replication_clusters``, ``disable_replication`` and ``event_timestamp``. With
                EFFECTIVELY_ONCE the sequence id cannot be chosen.

        Raises:
            ValueError: an unknown option.
            PulsarException: the message could not be stored.
        """

    @abstractmethod
    def ack(self, msgid: MessageId, topic: str) -> None:
        """Acknowledge a message. For functions with the guarantee MANUAL.

        Args:
            msgid: its id.
            topic: its topic, as `get_current_message_topic_name` returned it.

        Raises:
            ValueError: the function has no such input.
        """

    # -- state -----------------------------------------------------------------------------------------

    @abstractmethod
    def incr_counter(self, key: str, amount: int) -> None:
        """Add to a counter, which begins at 0.

        Raises:
            TypeError: the amount is no int, or the key has a value of `put_state`.
        """

    @abstractmethod
    def get_counter(self, key: str) -> int:
        """Return a counter: what all instances had committed when the messages were taken that are processed
        together with this one, and what this instance counted since; 0 for a new one.

        Raises:
            TypeError: the key has a value of `put_state`.
        """

    @abstractmethod
    def del_counter(self, key: str) -> None:
        """Delete a counter, or a value."""

    @abstractmethod
    def put_state(self, key: str, value: str | bytes) -> None:
        """Set a value.

        Raises:
            TypeError: the value is neither str nor bytes.
        """

    @abstractmethod
    def get_state(self, key: str) -> str | bytes | None:
        """Return a value as it was set; None without one.

        Raises:
            TypeError: the key is a counter.
        """
