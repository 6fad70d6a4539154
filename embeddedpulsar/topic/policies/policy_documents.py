"""Policies of namespaces and topics: small documents, replaced as a whole, that override ``broker.conf``."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

from embeddedpulsar._engine.format.catalog_record import TopicEntry
from embeddedpulsar._engine.format.document import KIND_POLICIES, decode_document, encode_document
from embeddedpulsar._engine.log import filenames
from embeddedpulsar._engine.platform import descriptors, disk, filesystem, threads
from embeddedpulsar.damage import REPLACE_POLICIES, TOPIC_FILES, Damage
from embeddedpulsar.exceptions import CorruptionError, ForeignFileError, StorageError
from embeddedpulsar.settings import BrokerSettings
from embeddedpulsar.topic.catalog import root_layout
from embeddedpulsar.topic.policies.keeping import LETTERS
from embeddedpulsar.topic.policies.policy import OWNER, TopicPolicy, Value
from embeddedpulsar.topic.policies.resource_groups import held_group
from embeddedpulsar.topic.policies.table import applied_to, stored_in
from embeddedpulsar.topic_name import TopicName, directory_name, namespace_file_name

_CHANGING: Final = 1
_EVERYWHERE: Final = ""
"""In place of the names of owners: there are too many."""
_KNOWN_SETTINGS: Final = 16
_KNOWN_PATHS: Final = 64
MOST_OWNERS: Final = 1000
"""The list is written anew with each change, and read with the policies of every topic."""


class PolicyDocuments:
    """The policies of one store.

    Role: `tenants/ns-<hash>-<name>` holds those of a namespace, `policies` in a topic's directory those of a
    topic (of a partitioned one, for its partitions). A document that is not there says nothing. What a
    release does not know it keeps.
    Invariants: `version` rises with every change. A reader sees a document before a change or after it.
    Callers: any thread; methods that change something under the catalog lock.

    Attributes:
        defaults: what holds where there are no documents, as far as it was asked for: for `HeldPolicies`.
        following: the lock of the thread that has its listeners follow a change; nothing is locked under it.

    Args:
        root: of the store.
        settings: of ``broker.conf``.
        find: the catalog's: a topic that was made again after a deletion has another directory.
        version: changes with every change of a document of a namespace, in whatever process, and is odd
            meanwhile: these are kept in memory until then. Without it they are read each time.
        report: called with a document that is damaged, under any lock.
    """

    def __init__(
        self,
        root: str,
        settings: BrokerSettings,
        find: Callable[[str], TopicEntry | None] = lambda name: None,
        version: Callable[[], int] = lambda: _CHANGING,
        report: Callable[[Damage], object] = bool,
    ) -> None:
        self._report: Final = report
        self._version: Final = version
        self.defaults: Final = _defaults_of(settings)
        self.following: Final = threads.RLock()
        self._kept: tuple[int, dict[str, dict[str, Any]]] = (_CHANGING, {})
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
        return self._read_namespace(self._namespace_path(namespace))

    def _read(self, path: str, topic: str = "") -> dict[str, Any]:
        """What a document says; reports it if it is damaged."""
        try:
            return _read(path)
        except (CorruptionError, ForeignFileError) as e:
            place = Damage(path, offset=e.offset or 0, reason=e.reason, kind=TOPIC_FILES, topic=topic)
            self._report(
                place._replace(
                    done="nothing is trimmed or expires, and no one opens it", remedy=REPLACE_POLICIES
                )
            )
            raise

    def _read_namespace(self, path: str) -> dict[str, Any]:
        version, kept = self._version(), self._kept  # the version before the document
        if kept[0] != version or version & 1:
            kept = self._kept = version, {}
        found = kept[1].get(path)
        if found is None:
            found = kept[1][path] = _policies(self._read(path))
        return found

    def of_topic(self, name: str) -> dict[str, Any]:
        """The policies of the topic of that full name, without those of its namespace.

        Raises:
            StorageError: the document is damaged.
        """
        return _policies(self._read(self._topic_path(name), name))

    def own(self, policy: TopicPolicy[Value], name: str) -> Value | None:
        """The value of a policy at a topic or namespace itself; None if it has none.

        Raises:
            StorageError: the document is damaged.
        """
        found = (self.of_topic(name) if "://" in name else self.of_namespace(name)).get(policy.key)
        return None if found is None else policy.unpack(found)

    def value(self, policy: TopicPolicy[Value], name: str, directory: str | None = None) -> Value:
        """The value of a policy that holds for a topic or namespace.

        Args:
            policy: the policy.
            name: full name of a topic, a partition or a namespace.
            directory: of the topic; None for that of a topic of this name.

        Raises:
            StorageError: a document is damaged.
        """
        found: Value = self.values((policy,), name, directory)[0]
        return found

    def values(
        self, policies: Sequence[TopicPolicy[Any]], name: str, directory: str | None = None
    ) -> list[Any]:
        """The values of several policies; see `value`. The documents are read once."""
        documents = self.documents(name, directory)
        return [self.nearest(policy, documents) for policy in policies]

    def documents(self, name: str, directory: str | None = None) -> list[dict[str, Any]]:
        """The policies at each level that holds for a topic or namespace, for `nearest`; with the last one,
        what the whole store has: dynamic settings, and the resource group.

        Raises:
            StorageError: a document is damaged.
        """
        *own, namespace = self._paths(name, directory)
        found = [*(_policies(self._read(path, name)) for path in own), self._read_namespace(namespace)]
        system = self.of_namespace(OWNER)
        if system:
            found[-1] = found[-1] | stored_in(system) | held_group(system, found)
        return found

    def nearest(self, policy: TopicPolicy[Value], documents: Sequence[dict[str, Any]]) -> Value:
        """The value of a policy by the `documents` of a topic or namespace."""
        own = documents[:-1]  # the last one is the namespace's, with the dynamic settings
        if not any(documents):  # as nearly always
            try:
                default: Value = self.defaults[policy.key]
            except KeyError:
                default = self.defaults[policy.key] = policy.default(self._settings, own)
            return default
        settings, dynamic = self._settings, stored_in(documents[-1])
        if dynamic:
            settings = applied_to(settings, dynamic)
        spared = policy.for_letters
        if spared is not None and (settings.letterTopicsExpire or not any(map(_has_letters, own))):
            spared = None
        for found in documents if spared is None else own:
            if found.get(policy.key) is not None:
                return policy.unpack(found[policy.key])
        return policy.default(settings, own) if spared is None else spared

    def _paths(self, name: str, directory: str | None) -> list[str]:
        """The documents that hold for a topic or namespace, the nearest first, that of the namespace last."""
        if "://" not in name:
            return [self._namespace_path(name)]
        parsed = TopicName.parse(name)
        paths = [self._topic_path(name) if directory is None else filenames.policies_path(directory)]
        if parsed.partition >= 0:
            paths.append(self._topic_path(parsed.base))
        paths.append(self._namespace_path(parsed.namespace_name))
        return paths

    def _namespace_path(self, namespace: str) -> str:
        return _namespace_path(self._tenants, namespace)

    def _topic_path(self, name: str) -> str:
        entry = self._find(name)
        directory = directory_name(name) if entry is None else entry.below_topics()
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

    def has_document(self, namespace: str) -> bool:
        """Whether there is a document of a namespace."""
        return os.path.exists(self._namespace_path(namespace))

    def owners(self, key: str) -> Sequence[str] | None:
        """The topics and namespaces that have a policy of their own, by `note_owner`; None if there are too
        many to know. Some may not exist any more."""
        found: Sequence[str] = self.of_namespace(OWNER).get(key, ())
        return None if _EVERYWHERE in found else found

    def note_owner(
        self, key: str, name: str, has_policy: bool, exists: Callable[[str], bool], *, durable: bool
    ) -> None:
        """Note that a topic or namespace has a policy of its own, or has it no more.

        Args:
            key: of the list, in the document of `OWNER`.
            name: of the topic or namespace.
            has_policy: whether it has it.
            exists: whether there is a topic or namespace of that name: others are forgotten.
            durable: whether the note has to survive a power loss.
        """
        before = self.owners(key)
        if before is None or (name in before) == has_policy:
            return
        found = [one for one in before if one != name and exists(one)] + [name] * has_policy
        if len(found) > MOST_OWNERS:
            found = [_EVERYWHERE]
        self.change_namespace(OWNER, {key: found or None}, durable=durable)

    def remove_namespace(self, namespace: str) -> None:
        """Remove all policies of a namespace, durably."""
        path = self._namespace_path(namespace)
        if os.path.exists(path):
            disk.DISK.unlink(path)
            disk.DISK.fsync_dir(self._tenants)

    def change_topic(self, name: str, changes: dict[str, Any], *, durable: bool) -> None:
        """Change some policies of a topic that exists; None takes one away.

        Raises:
            StorageFullError: nothing was changed.
        """
        _change(self._topic_path(name), name, changes, durable)


@lru_cache(_KNOWN_PATHS)
def _namespace_path(tenants: str, namespace: str) -> str:
    """A new topic asks for it six times."""
    return os.path.join(tenants, namespace_file_name(namespace))


@lru_cache(_KNOWN_SETTINGS)
def _defaults_of(settings: BrokerSettings) -> dict[Any, Any]:
    """What holds where there are no documents, in all stores with these settings, as far as it was asked."""
    return {}


def _change(path: str, owner: str, changes: dict[str, Any], durable: bool) -> None:
    remove_unfinished(path)
    fields = _read(path)
    policies = {key: value for key, value in (_policies(fields) | changes).items() if value is not None}
    fields = fields | {"owner": owner, "version": int(fields.get("version", 0)) + 1, "policies": policies}
    disk.DISK.atomic_write(path, encode_document(KIND_POLICIES, fields), durable)


def remove_unfinished(path: str) -> None:
    """Remove what processes left that died while they wrote the document. The caller holds the lock of the
    writers, so none of it is being written."""
    directory, name = os.path.split(path)
    for one in descriptors.names_in(directory):
        if one.startswith(f"{name}.") and one.endswith(".tmp"):
            with contextlib.suppress(FileNotFoundError):
                disk.DISK.unlink(os.path.join(directory, one))


def _read(path: str) -> dict[str, Any]:
    if not os.path.lexists(path):  # as nearly always: a fifth of the time that a failed opening takes
        return {}
    try:
        data = disk.DISK.read_file(path)
    except FileNotFoundError:
        return {}
    try:
        return decode_document(data, KIND_POLICIES)
    except (CorruptionError, ForeignFileError) as e:
        raise type(e)(path=path, reason=e.reason, offset=e.offset, remedy=REPLACE_POLICIES) from None
    except StorageError as e:
        raise e.at(path) from None


def _has_letters(policies: dict[str, Any]) -> bool:
    return bool(policies.get(LETTERS.key))


def _policies(fields: dict[str, Any]) -> dict[str, Any]:
    found = fields.get("policies", {})
    if not isinstance(found, dict):
        raise CorruptionError(reason="a policy document without policies")
    return found
