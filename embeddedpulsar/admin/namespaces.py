"""Administration of namespaces."""

from __future__ import annotations

from embeddedpulsar.admin.limit_calls import limit_calls
from embeddedpulsar.admin.policy_calls import PolicyCalls
from embeddedpulsar.exceptions import InvalidTopicName, NotAllowedError
from embeddedpulsar.platform import interrupts
from embeddedpulsar.topic import topic_limits
from embeddedpulsar.topic.policy_changes import is_namespace


class Namespaces(PolicyCalls):
    """Creates and lists namespaces, and sets policies for their topics. `Admin.namespaces` returns it.

    Names are ``tenant/namespace``. A new store has ``public/default`` and ``public/functions``. Namespaces
    are never deleted. See `PolicyCalls` for the errors of all methods.
    """

    def create_namespace(self, namespace: str) -> None:
        """Create a namespace, and its tenant if necessary.

        Args:
            namespace: ``tenant/namespace``.

        Raises:
            NotAllowedError: it exists already.
            InvalidTopicName: the text is not a namespace name.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.namespaces().create_namespace("acme/sales")
            ...     admin.namespaces().get_namespaces("acme")
            ['acme/sales']
        """
        with interrupts.translated:
            store = self._store()
            if namespace in store.topics.namespaces():
                raise NotAllowedError(f"there is a namespace {namespace} in {store.root} already")
            store.topics.create_namespace(namespace)

    def get_namespaces(self, tenant: str) -> list[str]:
        """Return the namespaces of a tenant, the built-in ones first; empty if there is no such tenant."""
        return [name for name in self._store().topics.namespaces() if name.partition("/")[0] == tenant]

    # -- limits ------------------------------------------------------------------------------------------

    set_max_producers_per_topic, get_max_producers_per_topic, remove_max_producers_per_topic = limit_calls(
        topic_limits.MAX_PRODUCERS, "max_producers_per_topic", "producers of each topic", "ProducerBusy"
    )
    set_max_consumers_per_topic, get_max_consumers_per_topic, remove_max_consumers_per_topic = limit_calls(
        topic_limits.MAX_CONSUMERS, "max_consumers_per_topic", "consumers of each topic", "ConsumerBusy"
    )
    (
        set_max_topics_per_namespace,
        get_max_topics_per_namespace,
        remove_max_topics_per_namespace,
    ) = limit_calls(
        topic_limits.MAX_TOPICS,
        "max_topics_per_namespace",
        "topics of the namespace, each partition counted",
        "NotAllowedError",
    )

    def _owner(self, name: str) -> str:
        if not is_namespace(name):
            raise InvalidTopicName(f"{name!r} is no namespace; write tenant/namespace")
        return name
