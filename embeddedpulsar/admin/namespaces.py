"""Administration of namespaces."""

from __future__ import annotations

from embeddedpulsar.admin.policy_calls import PolicyCalls
from embeddedpulsar.exceptions import InvalidTopicName, NotAllowedError
from embeddedpulsar.platform import interrupts
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

    def _owner(self, name: str) -> str:
        if not is_namespace(name):
            raise InvalidTopicName(f"{name!r} is no namespace; write tenant/namespace")
        return name
