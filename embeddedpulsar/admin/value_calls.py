"""The methods of `Topics` and `Namespaces` that set, get and remove a policy whose value is one object."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from embeddedpulsar.platform import interrupts

if TYPE_CHECKING:
    from embeddedpulsar.admin.policy_calls import PolicyCalls
    from embeddedpulsar.topic.topic_policy import TopicPolicy

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
    example: str = "",
    module: str = "embeddedpulsar.policy_values",
) -> Calls[Value]:
    """Return the methods that set, get and remove a policy.

    Args:
        policy: the policy.
        name: of the methods, without ``set_``.
        text: what is set: the object of a sentence that begins with Set.
        example: an expression of a value, for topics and namespaces.
        module: has the class of the value.
    """

    def set_value(self: PolicyCalls, name: str, value: Value) -> None:
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
        {_example(name, example, module)}""",
        get_value: "Return the value that is set for this topic or namespace; None if none is set. With "
        "``applied``, the value that holds.",
        remove_value: "Unset the value, so that the inherited one applies. Does nothing if it is not set.",
    }
    for verb, (function, docstring) in zip(("set", "get", "remove"), texts.items(), strict=True):
        function.__name__ = f"{verb}_{name}"
        function.__qualname__ = f"PolicyCalls.{function.__name__}"
        function.__doc__ = docstring
    return set_value, get_value, remove_value


def _example(name: str, value: str, module: str) -> str:
    if not value:
        return ""
    kind = re.split(r"\W", value)[0]
    return f"""
        Example:
            >>> from embeddedpulsar import Admin
            >>> from {module} import {kind}
            >>> with Admin("./data") as admin:
            ...     admin.namespaces().set_{name}("public/default", {value})
            ...     admin.namespaces().get_{name}("public/default") == {value}
            True
        """
