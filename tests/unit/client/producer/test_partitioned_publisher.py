"""The publisher of a partitioned topic stands in the place of the one of a plain topic."""

from __future__ import annotations

import ast
import inspect
from types import FunctionType

import pytest

from embeddedpulsar.client import interceptors
from embeddedpulsar.client.producer import producer
from embeddedpulsar.client.producer.partitioned_publisher import PartitionedPublisher
from embeddedpulsar.client.producer.publisher import Publisher


def used_of_a_publisher() -> set[str]:
    """The attributes of `_publisher` that the interface of the producer uses."""
    found = set()
    for module in (producer, interceptors):
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) in (
                "self._publisher",
                "publisher",
            ):
                found.add(node.attr)
    return found


@pytest.mark.parametrize("kind", [Publisher, PartitionedPublisher])
def test_a_publisher_has_what_the_interface_uses(kind):
    """Whichever it gets: as a method, a property, or an attribute that the constructor sets."""
    used = used_of_a_publisher()
    assert {"send", "enqueue", "end", "queue"} <= used
    source = inspect.getsource(kind)
    assert not [name for name in used if not hasattr(kind, name) and f"self.{name}" not in source]


def test_signatures_are_those_of_a_publisher():
    """Methods of the same name take the same arguments."""
    for name, attribute in vars(PartitionedPublisher).items():
        plain = getattr(Publisher, name, None)
        if isinstance(attribute, FunctionType) and isinstance(plain, FunctionType) and name != "__init__":
            assert inspect.signature(attribute) == inspect.signature(plain), name
