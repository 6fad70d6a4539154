"""The methods of `Topics` and `Namespaces` that set limits; Pulsar's names for one limit differ by level."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from embeddedpulsar.admin.value_calls import example_of
from embeddedpulsar.platform import interrupts

if TYPE_CHECKING:
    from embeddedpulsar.admin.policy_calls import PolicyCalls
    from embeddedpulsar.topic.policies.topic_limits import Limit

Calls = tuple[
    Callable[["PolicyCalls", str, int], None],
    Callable[["PolicyCalls", str], "int | None"],
    Callable[["PolicyCalls", str], None],
]


def limit_calls(limit: Limit, name: str, what: str, error: str, level: str = "topics") -> Calls:
    """Return the methods that set, get and remove a limit.

    Args:
        limit: the policy.
        name: of the methods, without ``set_``.
        what: is limited.
        error: raised when the limit is reached.
        level: the part of the Admin that the example uses.
    """

    def set_limit(self: PolicyCalls, name: str, most: int) -> None:
        with interrupts.translated:
            self._store().set_policy(self._owner(name), limit, most)

    def get_limit(self: PolicyCalls, name: str) -> int | None:
        return self._store().own_policy(self._owner(name), limit)

    def remove_limit(self: PolicyCalls, name: str) -> None:
        with interrupts.translated:
            self._store().set_policy(self._owner(name), limit, None)

    texts = {
        set_limit: f"""Set the largest number of {what}. What is there stays when the limit is lowered.

        Args:
            name: of the topic or namespace.
            most: the largest number, beyond which `{error}` is raised; 0 for no limit, whatever other levels
                say.

        Raises:
            InvalidConfiguration: ``most`` is no number from 0 on.
        {example_of(name, "1000", "", level)}""",
        get_limit: f"Return the largest number of {what} that is set for this name; None if none is set.",
        remove_limit: "Unset the limit, so that the inherited one applies. Does nothing if it is not set.",
    }
    for verb, (function, text) in zip(("set", "get", "remove"), texts.items(), strict=True):
        function.__name__ = f"{verb}_{name}"
        function.__qualname__ = f"PolicyCalls.{function.__name__}"
        function.__doc__ = text
    return set_limit, get_limit, remove_limit
