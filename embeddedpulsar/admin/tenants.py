"""Administration of tenants."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from embeddedpulsar._engine.platform import interrupts
from embeddedpulsar.admin.absent_methods import SaysWhatThereIs
from embeddedpulsar.admin.namespaces import delete_topics

if TYPE_CHECKING:
    from embeddedpulsar._engine.store.store import Store


class Tenants(SaysWhatThereIs):
    """Creates, lists and deletes tenants. `Admin.tenants` returns it. Thread-safe.

    A tenant is the first part of the name of a namespace. A new store has ``public`` and ``pulsar``, which is
    that of the system. Creating a namespace creates its tenant, too.

    All methods raise `AlreadyClosed` if the Admin is closed, and a `StorageError` if files cannot be used.
    """

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store

    def create_tenant(self, tenant: str) -> None:
        """Create a tenant without namespaces.

        Raises:
            NotAllowedError: it exists already.
            InvalidTopicName: the text is not the name of a tenant.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.tenants().create_tenant("globex")
            ...     "globex" in admin.tenants().get_tenants(), admin.namespaces().get_namespaces("globex")
            (True, [])
        """
        with interrupts.translated:
            self._store().topics.namespaces.create_tenant(tenant)

    def get_tenants(self) -> list[str]:
        """Return the names of all tenants, the built-in ones first."""
        return self._store().topics.namespaces.tenants()

    def delete_tenant(self, tenant: str, force: bool = False) -> None:
        """Delete a tenant. On return the deletion survives a power failure.

        Args:
            tenant: its name.
            force: delete its namespaces first, with their topics; see `Namespaces.delete_namespace`. If the
                process is killed in between, some of them are deleted, and the call can be made again.

        Raises:
            NotAllowedError: it has namespaces, and ``force`` is False; or it is ``pulsar``.
            TopicNotFound: there is no such tenant.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.namespaces().create_namespace("initech/reports")
            ...     admin.tenants().delete_tenant("initech", force=True)
            ...     "initech" in admin.tenants().get_tenants()
            False
        """
        with interrupts.translated:
            store = self._store()
            namespaces = store.topics.namespaces
            namespaces.check_tenant(tenant)
            if force:
                for namespace in namespaces.names(tenant):
                    delete_topics(store, namespace)
                    namespaces.delete(namespace)
            namespaces.delete_tenant(tenant)
