"""Administration of resource groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from embeddedpulsar._engine.platform import interrupts
from embeddedpulsar._engine.store.policies.policy import OWNER
from embeddedpulsar._engine.store.policies.resource_groups import GROUPS, GroupChange, HeldGroup, no_group
from embeddedpulsar.admin.absent_methods import SaysWhatThereIs
from embeddedpulsar.admin.topic_access import json_form
from embeddedpulsar.records import NamedTuple

if TYPE_CHECKING:
    from embeddedpulsar._engine.store.store import Store
    from embeddedpulsar.policy_values import ResourceGroup


class ResourceGroupUsage(NamedTuple):
    """What the members of a resource group used since it was created. Not in Pulsar, which has metrics.

    A direction is counted while the group limits it. After a restart of the machine the numbers may be
    somewhat older.

    Attributes:
        published_messages: messages that producers were let publish.
        published_bytes: bytes of their entries.
        dispatched_messages: messages that consumers and readers fetched.
        dispatched_bytes: bytes of their payloads.
        publish_rate_limited_times: how often a producer had to wait for the group.
        dispatch_rate_limited_times: how often a consumer or reader had to wait for the group.
    """

    published_messages: int
    published_bytes: int
    dispatched_messages: int
    dispatched_bytes: int
    publish_rate_limited_times: int
    dispatch_rate_limited_times: int

    def json(self) -> dict[str, Any]:
        """Return the fields as a dict."""
        return dict(json_form(self))


class ResourceGroups(SaysWhatThereIs):
    """Creates, shows, changes and deletes resource groups. `Admin.resource_groups` returns it.

    The topics of a group keep its rates together, beside rates of their own, in all processes.
    `Topics.set_resource_group` and `Namespaces.set_namespace_resource_group` put topics into it. Changes
    hold within 50 ms. Thread-safe. All methods raise `AlreadyClosed` if the Admin is closed, and a
    `StorageError` if files cannot be used.
    """

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store

    def create_resource_group(self, name: str, resource_group: ResourceGroup) -> None:
        """Create a group.

        Args:
            name: letters, digits and any of ``-=:._``.
            resource_group: its limits.

        Raises:
            NotAllowedError: it exists, or there are 80 groups.
            InvalidConfiguration: the name or a limit makes no sense.

        Example:
            >>> from embeddedpulsar import Admin
            >>> from embeddedpulsar.policy_values import ResourceGroup
            >>> with Admin("./data") as admin:
            ...     groups = admin.resource_groups()
            ...     groups.create_resource_group("batch-jobs", ResourceGroup(publish_rate_in_msgs=500))
            ...     admin.namespaces().create_namespace("acme/reports")
            ...     admin.namespaces().set_namespace_resource_group("acme/reports", "batch-jobs")
            ...     groups.get_resource_groups()
            ['batch-jobs']
            >>> with Admin("./data") as admin:
            ...     groups = admin.resource_groups()
            ...     groups.update_resource_group("batch-jobs", ResourceGroup(publish_rate_in_msgs=900))
            ...     groups.get_resource_group("batch-jobs").publish_rate_in_msgs
            ...     groups.get_usage("batch-jobs").published_messages
            ...     admin.namespaces().remove_namespace_resource_group("acme/reports")
            ...     groups.delete_resource_group("batch-jobs")
            900
            0
        """
        self._change(GroupChange(name, resource_group, True))

    def update_resource_group(self, name: str, resource_group: ResourceGroup) -> None:
        """Change the limits of a group.

        Args:
            name: of the group.
            resource_group: limits of -1 stay as they are, as in Pulsar; 0 takes one away.

        Raises:
            InvalidConfiguration: there is no such group, or a limit makes no sense.
        """
        self._change(GroupChange(name, resource_group))

    def delete_resource_group(self, name: str) -> None:
        """Delete a group.

        Raises:
            NotAllowedError: a topic or namespace is in it.
            InvalidConfiguration: there is no such group.
        """
        self._change(GroupChange(name, None))

    def get_resource_group(self, name: str) -> ResourceGroup:
        """Return the limits of a group.

        Raises:
            InvalidConfiguration: there is no such group.
        """
        return self._group(name).limits

    def get_resource_groups(self) -> list[str]:
        """Return the names of all groups, sorted."""
        return sorted(self._groups())

    def get_usage(self, name: str) -> ResourceGroupUsage:
        """Return what the members of a group used, in all processes.

        Raises:
            InvalidConfiguration: there is no such group.
        """
        found = self._store().group_words.usage(self._group(name).slot)
        return ResourceGroupUsage(
            *found.published, *found.dispatched, found.publish_limited, found.dispatch_limited
        )

    def _change(self, change: GroupChange) -> None:
        with interrupts.translated:
            self._store().set_policy(OWNER, GROUPS, change)

    def _groups(self) -> dict[str, HeldGroup]:
        return self._store().own_policy(OWNER, GROUPS) or {}

    def _group(self, name: str) -> HeldGroup:
        groups = self._groups()
        if name not in groups:
            raise no_group(name, groups)
        return groups[name]
