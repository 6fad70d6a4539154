"""Which tenants and namespaces a store has: making and deleting them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar.exceptions import InvalidTopicName, NotAllowedError, TopicNotFound
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from collections.abc import Callable

    from embeddedpulsar._engine.platform.clock import Clock
    from embeddedpulsar._engine.store.catalog.catalog import Catalog

_SYSTEM: Final = "pulsar/system"

failpoints.declare("namespace:policies_removed", "namespace:deleted")


class NamespaceList:
    """The tenants and namespaces of a store, as its catalog has them.

    Role: decides under the catalog lock what may be made and deleted, so no topic is created in a namespace
    that is being deleted. Each change is one record of the catalog. A namespace begins without policies:
    those of an earlier one of its name are removed after its deletion, and, if a process was killed in
    between, before it is made again.
    Callers: any thread, holding no file lock.

    Args:
        root: of the store, for messages.
        catalog: of the store.
        clock: stamps records.
        remove_policies: removes the policies of a namespace, if there are any, durably.
        durable: whether what is made must survive a power loss when the call returns. Deletions always do.
    """

    def __init__(
        self,
        root: str,
        catalog: Catalog,
        clock: Clock,
        remove_policies: Callable[[str], object],
        *,
        durable: bool,
    ) -> None:
        self._root = root
        self._catalog = catalog
        self._remove_policies = remove_policies
        self._clock = clock
        self._durable = durable

    def names(self, tenant: str | None = None) -> list[str]:
        """All namespaces as ``tenant/namespace``, or those of one tenant, the built-in ones first."""
        names = self._catalog.namespaces()
        return names if tenant is None else [name for name in names if name.partition("/")[0] == tenant]

    def create(self, name: str) -> None:
        """Make the namespace ``tenant/namespace``, and its tenant with it. Does nothing if it is there.

        Raises:
            InvalidTopicName: the text names no namespace.
        """
        parsed = TopicName.parse(f"persistent://{name}/topic")
        if parsed.namespace_name != name or name.count("/") != 1:
            raise InvalidTopicName(f"{name!r}: a namespace is written tenant/namespace")
        try:
            self._catalog.lock.acquire()
            if not self._catalog.has_namespace(name):
                self._remove_policies(name)
                if failpoints.ACTIVE:
                    failpoints.hit("namespace:policies_removed")
                self._catalog.append_namespace(name, self._clock.wall_ms(), durable=self._durable)
        finally:
            self._catalog.lock.release()

    def check(self, name: str) -> None:
        """Refuse a name that no namespace has.

        Raises:
            TopicNotFound: there is no such namespace.
        """
        if not self._catalog.has_namespace(name):
            raise TopicNotFound(
                f"there is no namespace {name} in {self._root}, which has "
                f"{', '.join(self._catalog.namespaces())}; use one of those"
            )

    def delete(self, name: str) -> None:
        """Delete a namespace without topics, with its policies.

        Raises:
            TopicNotFound: there is no such namespace.
            NotAllowedError: it has topics, or is that of the system.
        """
        try:
            self._catalog.lock.acquire()
            self.check(name)
            if name == _SYSTEM:
                raise NotAllowedError(f"{name} belongs to the system and cannot be deleted")
            topics = self._catalog.listed_in(name)
            if topics:
                raise NotAllowedError(
                    f"the namespace {name} has {len(topics)} topics, such as {topics[0][0]}; delete them, "
                    "or delete it with force"
                )
            self._catalog.append_namespace_deleted(name, self._clock.wall_ms())
            if failpoints.ACTIVE:
                failpoints.hit("namespace:deleted")
            self._remove_policies(name)
        finally:
            self._catalog.lock.release()

    # -- tenants -----------------------------------------------------------------------------------

    def tenants(self) -> list[str]:
        """All tenants, the built-in ones first."""
        return self._catalog.tenants()

    def create_tenant(self, name: str) -> None:
        """Make a tenant without namespaces.

        Raises:
            InvalidTopicName: the text names no tenant.
            NotAllowedError: there is a tenant of that name.
        """
        if "/" in name or TopicName.parse(f"persistent://{name}/namespace/topic").tenant != name:
            raise InvalidTopicName(f"{name!r} is not the name of a tenant")
        try:
            self._catalog.lock.acquire()
            if name in self._catalog.tenants():
                raise NotAllowedError(f"there is a tenant {name} in {self._root} already")
            self._catalog.append_tenant(name, self._clock.wall_ms(), durable=self._durable)
        finally:
            self._catalog.lock.release()

    def check_tenant(self, name: str) -> None:
        """Refuse a name that no tenant has, and that of the system.

        Raises:
            TopicNotFound: there is no such tenant.
            NotAllowedError: it is that of the system.
        """
        if name not in self._catalog.tenants():
            raise TopicNotFound(
                f"there is no tenant {name} in {self._root}, which has "
                f"{', '.join(self._catalog.tenants())}; use one of those"
            )
        if name == _SYSTEM.partition("/")[0]:
            raise NotAllowedError(f"the tenant {name} belongs to the system and cannot be deleted")

    def delete_tenant(self, name: str) -> None:
        """Delete a tenant without namespaces.

        Raises:
            TopicNotFound: there is no such tenant.
            NotAllowedError: it has namespaces, or is that of the system.
        """
        try:
            self._catalog.lock.acquire()
            self.check_tenant(name)
            namespaces = self.names(name)
            if namespaces:
                raise NotAllowedError(
                    f"the tenant {name} has the namespaces {', '.join(namespaces[:5])}; delete them, or "
                    "delete it with force"
                )
            self._catalog.append_tenant_deleted(name, self._clock.wall_ms())
        finally:
            self._catalog.lock.release()
