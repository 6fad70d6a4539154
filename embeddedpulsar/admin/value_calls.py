"""The methods of `Topics` and `Namespaces` that set, get and remove a policy whose value is one object."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from embeddedpulsar.platform import interrupts

if TYPE_CHECKING:
    from embeddedpulsar.admin.policy_calls import PolicyCalls
    from embeddedpulsar.topic.policies.topic_policy import TopicPolicy

Value = TypeVar("Value")
Calls = tuple[
    Callable[["PolicyCalls", str, Value], None],
    Callable[..., "Value | None"],
    Callable[["PolicyCalls", str], None],
]


def value_calls(
    policy: TopicPolicy[Value],
    name: str,
    text: str,
    example: str = "1000",
    module: str = "embeddedpulsar.policy_values",
    level: str = "topics",
    kept: Callable[[Value, str], Value] | None = None,
) -> Calls[Value]:
    """Return the methods that set, get and remove a policy.

    Args:
        policy: the policy.
        name: of the methods, without ``set_``.
        text: what is set: the object of a sentence that begins with Set.
        example: an expression of a value.
        module: has the class of the value.
        level: the part of the Admin that the example uses.
        kept: makes of the value what is stored, given the root of the store; by default the value.
    """

    def set_value(self: PolicyCalls, name: str, value: Value) -> None:
        if kept is not None:
            value = kept(value, self._store().root)
        with interrupts.translated:
            self._store().set_policy(self._owner(name), policy, value)

    def get_value(self: PolicyCalls, name: str, applied: bool = False) -> Value | None:
        if applied:
            return self._store().policy(self._owner(name), policy)
        return self._store().own_policy(self._owner(name), policy)

    def remove_value(self: PolicyCalls, name: str) -> None:
        with interrupts.translated:
            self._store().set_policy(self._owner(name), policy, None)

    texts: dict[Any, str] = {
        set_value: f"""Set {text}, in open topics of all processes within 50 ms.

        Args:
            name: of the topic or namespace.
            value: the value.

        Raises:
            InvalidConfiguration: the value makes no sense.
        {example_of(name, example, module, level)}""",
        get_value: "Return the value that is set for this topic or namespace; None if none is set. With "
        "``applied``, the value that holds.",
        remove_value: "Unset the value, so that the inherited one applies. Does nothing if it is not set.",
    }
    for verb, (function, docstring) in zip(("set", "get", "remove"), texts.items(), strict=True):
        function.__name__ = f"{verb}_{name}"
        function.__qualname__ = f"PolicyCalls.{function.__name__}"
        function.__doc__ = docstring
    return set_value, get_value, remove_value


def example_of(name: str, value: str, module: str, level: str) -> str:
    """The example in the docstring of ``set_...``, which shows the other two methods as well."""
    kind = re.search(r"\b[A-Z]\w+", value)
    topic = name.replace("_", "-")
    owner = "public/default" if level == "namespaces" else topic
    lines = ["from embeddedpulsar import Admin"]
    if kind is not None and kind[0] not in ("True", "False"):
        lines.append(f"from {module} import {kind[0]}")
    block = [f'admin.{level}().{verb}_{name}("{owner}"' for verb in ("set", "get", "remove")]
    block = [f"{block[0]}, {value})", f"{block[1]}) == {value}", f"{block[2]})"]
    if level == "topics":
        block.insert(0, f'admin.topics().create_non_partitioned_topic("{topic}")')
    if name.endswith("resource_group"):
        lines.append("from embeddedpulsar.policy_values import ResourceGroup")
        block.insert(0, f"admin.resource_groups().create_resource_group({value}, ResourceGroup())")
    lines.append('with Admin("./data") as admin:')
    shown = [f"            >>> {line}\n" for line in lines]
    shown += [f"            ...     {line}\n" for line in block]
    return f"\n        Example:\n{''.join(shown)}            True\n        "
