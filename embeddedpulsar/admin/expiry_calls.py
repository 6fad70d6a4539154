"""The methods of `Topics` and `Namespaces` that set what is taken away as time passes, and quotas."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

from embeddedpulsar.platform import interrupts
from embeddedpulsar.topic.topic_limits import MESSAGE_TTL

if TYPE_CHECKING:
    from embeddedpulsar.topic.store import Store
    from embeddedpulsar.topic.topic_policy import TopicPolicy, Value


class ExpiryCalls(ABC):
    """See `PolicyCalls` for levels and errors.

    A ``get`` method returns the value that is set for the name itself, None for none; with ``applied=True``
    the value that holds, whatever level it is from.
    """

    _store: Callable[[], Store]

    @abstractmethod
    def _owner(self, name: str) -> str:
        """The name under which the policy is stored."""

    def _set(self, name: str, policy: TopicPolicy[Value], value: Value | None) -> None:
        with interrupts.translated:
            self._store().set_policy(self._owner(name), policy, value)

    def _get(self, name: str, policy: TopicPolicy[Value], applied: bool) -> Value | None:
        store, owner = self._store(), self._owner(name)
        return store.policy(owner, policy) if applied else store.own_policy(owner, policy)

    # -- message expiry ----------------------------------------------------------------------------------

    def set_message_ttl(self, name: str, seconds: int) -> None:
        """Set after how many seconds a message counts as acknowledged by every durable subscription, whether
        it was received or not. This is checked when a process begins to use the topic, when the policy
        changes, and every ``messageExpiryCheckIntervalInMinutes``.

        Topics of dead letters and retry letters follow only a value that is set for the topic itself, unless
        ``broker.conf`` says ``letterTopicsExpire=true``.

        Args:
            name: of the topic or namespace.
            seconds: 0 for never, whatever other levels say.

        Raises:
            InvalidConfiguration: ``seconds`` is no number from 0 on.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.topics().create_non_partitioned_topic("prices")
            ...     admin.namespaces().set_message_ttl("public/default", 3600)
            ...     admin.topics().get_message_ttl("prices")
            ...     admin.topics().get_message_ttl("prices", applied=True)
            ...     admin.namespaces().remove_message_ttl("public/default")
            3600
        """
        self._set(name, MESSAGE_TTL, seconds)

    def get_message_ttl(self, name: str, applied: bool = False) -> int | None:
        """Return the time to live in seconds."""
        return self._get(name, MESSAGE_TTL, applied)

    def remove_message_ttl(self, name: str) -> None:
        """Unset the time to live, so that the inherited one applies. Does nothing if it is not set."""
        self._set(name, MESSAGE_TTL, None)
