"""The producer of a partitioned topic has no publisher of its own: what needs one is overridden."""

from __future__ import annotations

import inspect
from types import FunctionType
from typing import Any

from embeddedpulsar.client.producer.partitioned.partitioned_producer import PartitionedProducer
from embeddedpulsar.client.producer.producer import Producer

OF_ONE_TOPIC = {"_publisher", "_session", "_box", "_partition"}
# Looks whether there is a session before it uses it; the plain producers underneath have one each.
HARMLESS = {"__init__", "__del__"}
# Called by methods that are overridden, on the plain producers.
OF_PLAIN_PRODUCERS = {"_send_slowly", "_publish_plain", "_flush_full", "_send_async_slowly"}


def code_of(attribute: Any) -> Any:
    """The code of a method or property, if it is one."""
    function = attribute.fget if isinstance(attribute, property) else attribute
    return function.__code__ if isinstance(function, FunctionType) else None


def test_nothing_is_inherited_that_needs_one_topic():
    """Every method of a producer either is overridden, or is made of methods that are."""
    for name, attribute in inspect.getmembers(Producer):
        code = code_of(attribute)
        if code is None or name in HARMLESS | OF_PLAIN_PRODUCERS or hasattr(object, name):
            continue
        if getattr(PartitionedProducer, name) is attribute:
            assert not OF_ONE_TOPIC & set(code.co_names), f"{name} must be overridden for partitions"


def test_signatures_are_those_of_a_producer():
    """Overridden methods take what the plain ones take."""
    for name, attribute in vars(PartitionedProducer).items():
        plain = getattr(Producer, name, None)
        if isinstance(attribute, FunctionType) and isinstance(plain, FunctionType) and name != "__init__":
            assert inspect.signature(attribute) == inspect.signature(plain), name
