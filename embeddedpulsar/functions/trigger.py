"""Giving one value to a function, and waiting for what it returns."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Final

from embeddedpulsar.exceptions import NotAllowedError, Timeout
from embeddedpulsar.functions.inputs import is_of_pattern
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.schema.auto_schema import AutoProduceBytesSchema
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from embeddedpulsar.client.client import Client
    from embeddedpulsar.functions.function_config import FunctionConfig

_INPUT_TOPIC: Final = "__pfn_input_topic__"
_INPUT_ID: Final = "__pfn_input_msg_id__"


def marks_of(message_id: MessageId, topic: str) -> dict[str, str]:
    """The properties that say from which message an output was made; as in Pulsar."""
    return {_INPUT_TOPIC: topic, _INPUT_ID: base64.b64encode(message_id.serialize()).decode()}


def trigger(
    client: Client, config: FunctionConfig, value: bytes, topic: str | None, timeout_millis: int
) -> bytes | None:
    """Publish a value to an input of a function that is being run, and wait for its output.

    Args:
        client: of the store.
        config: of the function.
        value: the payload, which must fit the schema of the topic.
        topic: one of the inputs; None if there is one.
        timeout_millis: how long to wait.

    Returns:
        The payload of the output; None for a function without an output topic.

    Raises:
        NotAllowedError: the topic is no input, or is not named and there are several.
        Timeout: no output came.
    """
    name = _input_of(config, topic)
    if not config.output:
        _publish(client, name, value)
        return None
    monotonic = client._core.store.clock.monotonic
    end_s = monotonic() + timeout_millis / 1000
    with client.create_reader(config.output, MessageId.latest) as reader:
        wanted = marks_of(_publish(client, name, value), name)
        while (left_ms := int(1000 * (end_s - monotonic()))) > 0:
            try:
                message = reader.read_next(left_ms)
            except Timeout:
                break
            properties = message.properties()
            from_topic = properties.get(_INPUT_TOPIC)
            if properties.get(_INPUT_ID) == wanted[_INPUT_ID] and from_topic is not None:
                if TopicName.parse(from_topic).base == name:
                    return message.data()
    raise Timeout(f"{config.full_name} published nothing to {config.output} within {timeout_millis:,} ms")


def _publish(client: Client, topic: str, value: bytes) -> MessageId:
    with client.create_producer(topic, schema=AutoProduceBytesSchema()) as producer:
        return producer.send(value)


def _input_of(config: FunctionConfig, topic: str | None) -> str:
    named = config.named_inputs()
    if topic is None:
        if len(named) != 1 or config.topics_pattern:
            raise NotAllowedError(f"{config.full_name} has several inputs: name one of them as the topic")
        return named[0]
    full = TopicName.parse(topic).base
    if full not in named and not is_of_pattern(config, full):
        raise NotAllowedError(f"{full} is no input of {config.full_name}")
    return full
