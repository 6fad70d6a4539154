"""Policies of namespaces and topics: small documents, replaced as a whole, that override ``broker.conf``."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

from embeddedpulsar.exceptions import CorruptionError, InvalidConfiguration, StorageError
from embeddedpulsar.format.catalog_record import TopicEntry
from embeddedpulsar.format.document import KIND_POLICIES, decode_document, encode_document
from embeddedpulsar.platform import disk, filesystem
from embeddedpulsar.retention import Retention
from embeddedpulsar.settings import BrokerSettings
from embeddedpulsar.storage import filenames
from embeddedpulsar.topic.catalog import root_layout
from embeddedpulsar.topic_name import TopicName, directory_name, namespace_file_name

DEDUPLICATION: Final = "deduplicationEnabled"
RETENTION: Final = "retentionPolicies"
KEEP_UNTIL_SUBSCRIBED: Final = "keepUntilSubscribed"
LETTERS: Final = "letters"
"""Set for a topic that a consumer passes dead letters or retry letters on to."""


class PolicyDocuments:
    """The policies of one store.

    Role: `tenants/ns-<hash>-<name>` holds those of a namespace, `policies` in a topic's directory those of a
    topic (of a partitioned one, for its partitions). A document that is not there says nothing. What a
    release does not know it keeps.
    Invariants: `version` rises with every change. A reader sees a document before a change or after it.
    Callers: any thread; `change_namespace` and `change_topic` under the catalog lock.

    Args:
        root: of the store.
        settings: of ``broker.conf``.
        find: the catalog's: a topic that was made again after a deletion has another directory.
    """

    def __init__(
        self,
        root: str,
        settings: BrokerSettings,
        find: Callable[[str], TopicEntry | None] = lambda name: None,
    ) -> None:
        self._find: Final = find
        self._tenants: Final = root_layout.in_root(root, root_layout.TENANTS)
        self._topics: Final = root_layout.in_root(root, root_layout.TOPICS)
        self._settings: Final = settings

    # -- reading -----------------------------------------------------------------------------------

    def of_namespace(self, namespace: str) -> dict[str, Any]:
        """The policies of ``tenant/namespace``; empty if there are none.

        Raises:
            StorageError: the document is damaged.
        """
        return _policies(_read(self._namespace_path(namespace)))

    def of_topic(self, name: str) -> dict[str, Any]:
        """The policies of the topic of that full name, without those of its namespace.

        Raises:
            StorageError: the document is damaged.
        """
        return _policies(_read(self._topic_path(name)))

    def drops_duplicates(self, name: str, directory: str) -> bool:
        """Whether a topic is to drop duplicates: as it says itself, or its namespace, or ``broker.conf``.

        Args:
            name: full name of a topic or partition.
            directory: its directory.

        Raises:
            StorageError: a document is damaged.
        """
        found = self._first(name, directory, DEDUPLICATION)
        return self._settings.brokerDeduplicationEnabled if found is None else bool(found)

    def retention(self, name: str, directory: str) -> Retention:
        """What a topic keeps: as it says itself, or its namespace, or ``broker.conf``.

        Args:
            name: full name of a topic or partition.
            directory: its directory.

        Raises:
            StorageError: a document is damaged.
        """
        found = self._first(name, directory, RETENTION)
        return self._settings.retention if found is None else read_retention(found)

    def keeps_until_subscribed(self, name: str, directory: str | None = None) -> bool:
        """Whether a topic keeps everything while it has no durable subscription: as it says itself, or its
        namespace; else if it is one of letters, its own retention is not set, and ``broker.conf`` allows it.

        Args:
            name: full name of a topic or partition.
            directory: its directory; None for that of a topic of this name.

        Raises:
            StorageError: a document is damaged.
        """
        paths = self._paths(name, directory)
        policies = [_policies(_read(path)) for path in paths]
        said = [found[KEEP_UNTIL_SUBSCRIBED] for found in policies if KEEP_UNTIL_SUBSCRIBED in found]
        if said:
            return bool(said[0])
        of_topic = policies[:-1]  # the last one is the namespace's
        return (
            self._settings.letterTopicsKeepUntilSubscribed
            and any(found.get(LETTERS) for found in of_topic)
            and not any(RETENTION in found for found in of_topic)
        )

    def _first(self, name: str, directory: str, policy: str) -> Any:
        """The policy at the nearest level that has it, from the topic upwards; None if no level has."""
        for path in self._paths(name, directory):
            found = _policies(_read(path)).get(policy)
            if found is not None:
                return found
        return None

    def _paths(self, name: str, directory: str | None) -> list[str]:
        """The documents that hold for a topic, the nearest first, that of the namespace last."""
        parsed = TopicName.parse(name)
        paths = [self._topic_path(name) if directory is None else filenames.policies_path(directory)]
        if parsed.partition >= 0:
            paths.append(self._topic_path(parsed.base))
        paths.append(self._namespace_path(parsed.namespace_name))
        return paths

    def _namespace_path(self, namespace: str) -> str:
        return os.path.join(self._tenants, namespace_file_name(namespace))

    def _topic_path(self, name: str) -> str:
        entry = self._find(name)
        directory = directory_name(name) if entry is None else entry.directory
        return filenames.policies_path(os.path.join(self._topics, directory))

    # -- changing ----------------------------------------------------------------------------------

    def change_namespace(self, namespace: str, changes: dict[str, Any], *, durable: bool) -> None:
        """Change some policies of a namespace; None takes one away.

        Raises:
            StorageFullError: nothing was changed.
        """
        if not os.path.isdir(self._tenants):
            filesystem.make_directories(self._tenants, mode=None)
        _change(self._namespace_path(namespace), namespace, changes, durable)

    def change_topic(self, name: str, changes: dict[str, Any], *, durable: bool) -> None:
        """Change some policies of a topic that exists; None takes one away.

        Raises:
            StorageFullError: nothing was changed.
        """
        _change(self._topic_path(name), name, changes, durable)


def retention_fields(retention: Retention) -> dict[str, int]:
    """A retention policy as part of a document."""
    return {"retentionTimeInMinutes": retention.time_minutes, "retentionSizeInMB": retention.size_mb}


def read_retention(fields: Any) -> Retention:
    """The policy that `retention_fields` wrote.

    Raises:
        CorruptionError: it is malformed.
    """
    try:
        found = Retention(int(fields["retentionTimeInMinutes"]), int(fields["retentionSizeInMB"]))
        return found.check()
    except (KeyError, TypeError, ValueError, InvalidConfiguration) as e:
        raise CorruptionError(reason=f"a policy document with a retention that is none: {e!r}") from e


def _change(path: str, owner: str, changes: dict[str, Any], durable: bool) -> None:
    fields = _read(path)
    policies = {key: value for key, value in (_policies(fields) | changes).items() if value is not None}
    fields = fields | {"owner": owner, "version": int(fields.get("version", 0)) + 1, "policies": policies}
    disk.DISK.atomic_write(path, encode_document(KIND_POLICIES, fields), durable)


def _read(path: str) -> dict[str, Any]:
    try:
        data = disk.DISK.read_file(path)
    except FileNotFoundError:
        return {}
    try:
        return decode_document(data, KIND_POLICIES)
    except StorageError as e:
        raise e.at(path) from None


def _policies(fields: dict[str, Any]) -> dict[str, Any]:
    found = fields.get("policies", {})
    if not isinstance(found, dict):
        raise CorruptionError(reason="a policy document without policies")
    return found
