"""Policies of namespaces and topics: small documents, replaced as a whole, that override ``broker.conf``.

The policies that hold for an open topic, kept in memory until one is changed in any process.

The table of the policies: one row each, in two sheets by subject.
A row says what the policy is called in a document, which settings decide what holds without it, its range,
at which levels it can be set, and what its users see: the methods of `Admin`, their docstrings, and the
options of the command line. After a change of a row, ``make policies`` writes those anew. The code that
enforces a policy reads it by its row: ``_engine.store.policies.value(MAX_PRODUCERS)``.

The policies that decide what is created and opened: topics, subscriptions, their types, encryption.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from embeddedpulsar._engine import filenames
from embeddedpulsar._engine.format.catalog_record import TopicEntry
from embeddedpulsar._engine.format.control import StoreWord
from embeddedpulsar._engine.format.document import KIND_POLICIES, decode_document, encode_document
from embeddedpulsar._engine.platform import descriptors, disk, filesystem, threads
from embeddedpulsar._engine.store import root_layout
from embeddedpulsar._engine.store.policies import admitting, keeping
from embeddedpulsar._engine.store.policies.admitting import (
    ENCRYPTION_REQUIRED,
    MAX_TOPICS,
    SUBSCRIPTION_TYPES,
    type_names,
)
from embeddedpulsar._engine.store.policies.keeping import LETTERS
from embeddedpulsar._engine.store.policies.policy import OWNER, Fields, Setting, TopicPolicy, Value
from embeddedpulsar._engine.store.policies.resource_groups import held_group
from embeddedpulsar.damage import REPLACE_POLICIES, TOPIC_FILES, Damage
from embeddedpulsar.enums import ConsumerType
from embeddedpulsar.exceptions import (
    BrokerMetadataError,
    CorruptionError,
    ForeignFileError,
    InvalidConfiguration,
    NotAllowedError,
    StorageError,
)
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple, Protocol, TypeVar
from embeddedpulsar.settings import BrokerSettings, read_setting, write_setting
from embeddedpulsar.topic_name import PARTITION_SUFFIX, TopicName, directory_name, namespace_file_name

if TYPE_CHECKING:
    from typing import Any, Final, TypeAlias

    from embeddedpulsar._engine.platform.mailbox import Mailbox
    from embeddedpulsar._engine.platform.timing import SchedulerLike
    from embeddedpulsar._engine.store.catalog import Catalog

ROWS: Final[Mapping[str, TopicPolicy[Any]]] = {
    f"{sheet.__name__}.{name}": row
    for sheet in (keeping, admitting)
    for name, row in vars(sheet).items()
    if isinstance(row, TopicPolicy) and row.calls
}
"""The policies that users set, by their names in the source."""

# -- settings that are changed while the store is in use -----------------------------------------------------

_PREFIX: Final = "dynamicConfiguration."


def _dynamic(setting: Setting) -> TopicPolicy[str]:
    name = setting.name

    def pack(value: str) -> str:
        if not isinstance(value, str):
            raise InvalidConfiguration(f"{name}: the value is a str, as in broker.conf, not {value!r}")
        return write_setting(read_setting(f"update of {name}", name, value.strip(), setting.default))

    return TopicPolicy(
        f"{_PREFIX}{name}", lambda settings, own: write_setting(getattr(settings, name)), pack, str
    )


DYNAMIC_SETTINGS: Final = {
    name: _dynamic(setting)
    for name, setting in sorted(
        {known.name: known for row in ROWS.values() for known in row.settings}.items()
    )
    if setting.is_dynamic
}
"""Those that Pulsar lets change, as policies of `OWNER`, in whose place they are stored."""


def stored_in(policies: Mapping[str, Any]) -> dict[str, Any]:
    """The dynamic settings that the policies of `OWNER` have, by their keys there."""
    return {key: value for key, value in policies.items() if key.startswith(_PREFIX)}


def applied_to(settings: BrokerSettings, stored: Mapping[str, Any]) -> BrokerSettings:
    """The settings with the stored ones in their places. Names of a later release are ignored.

    Raises:
        CorruptionError: a value is none.
    """
    values = {key.removeprefix(_PREFIX): value for key, value in stored.items()}
    try:
        values_read: dict[str, Any] = {
            name: read_setting("the store", name, str(value), BrokerSettings._field_defaults[name])
            for name, value in values.items()
            if name in DYNAMIC_SETTINGS
        }
    except InvalidConfiguration as e:
        raise CorruptionError(reason=f"a policy document with a setting that is none: {e}") from e
    return settings._replace(**values_read)


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
        self._owner_path: Final = self._namespace_path(OWNER)

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
        policies = kept[1].get(path)
        if policies is None:
            policies = kept[1][path] = _policies(self._read(path))
        return policies

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
        packed = (self.of_topic(name) if "://" in name else self.of_namespace(name)).get(policy.key)
        return None if packed is None else policy.unpack(packed)

    def value(self, policy: TopicPolicy[Value], name: str, directory: str | None = None) -> Value:
        """The value of a policy that holds for a topic or namespace.

        Args:
            policy: the policy.
            name: full name of a topic, a partition or a namespace.
            directory: of the topic; None for that of a topic of this name.

        Raises:
            StorageError: a document is damaged.
        """
        return self.nearest(policy, self.documents(name, directory))

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
        documents = [_policies(self._read(path, name)) for path in own]
        documents.append(self._read_namespace(namespace))
        system = self._read_namespace(self._owner_path)
        if system:
            documents[-1] = documents[-1] | stored_in(system) | held_group(system, documents)
        return documents

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
        for document in documents if spared is None else own:
            if document.get(policy.key) is not None:
                return policy.unpack(document[policy.key])
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
        owners: Sequence[str] = self.of_namespace(OWNER).get(key, ())
        return None if _EVERYWHERE in owners else owners

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
        owners = [owner for owner in before if owner != name and exists(owner)] + [name] * has_policy
        if len(owners) > MOST_OWNERS:
            owners = [_EVERYWHERE]
        self.change_namespace(OWNER, {key: owners or None}, durable=durable)

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
    for file_name in descriptors.names_in(directory):
        if file_name.startswith(f"{name}.") and file_name.endswith(".tmp"):
            with contextlib.suppress(FileNotFoundError):
                disk.DISK.unlink(os.path.join(directory, file_name))


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
    policies = fields.get("policies", {})
    if not isinstance(policies, dict):
        raise CorruptionError(reason="a policy document without policies")
    return policies


Answer = TypeVar("Answer")
ValueOf: TypeAlias = "Callable[[TopicPolicy[Any]], Any]"

_POLICIES: Final = StoreWord.POLICIES
_ABANDONED_S: Final = 1.0
"""After this time of an unfinished change the documents are read a last time. If the process that makes it
lives, the word changes once more."""
_NEVER: Final = -1
_PATIENCE_S: Final = 1.0
"""How long to wait for a thread that calls the listeners. They wait for nothing; but after a fork that thread
may not exist."""


class _Held(NamedTuple):
    """What was read, and the word before the reading. Replaced as a whole."""

    word: int
    documents: Sequence[Fields]
    values: dict[Any, Any]  # by the key of a policy, or by the question of `once`; shared without documents


class HeldPolicies:
    """The values of the policies of one topic, at the cost of comparing a word of ``store.ctl``, which
    changes with every change of a policy in the store.

    Invariants: a value is that of the documents as they were when the word had its present value. While a
    change is under way the word is odd, and documents that were read then are read again. When
    `call_listeners` returns, the listeners have followed every change that was made before it was called.
    Callers: any thread, a signal handler too. Listeners run in the thread that sees the change first, which
    may hold the lock of the topic or of a subscription: they take no lock, and wait for nothing. Other
    threads wait for them, because one that finds the values read but not followed would use the old ones.

    Args:
        source: the documents of the store.
        words: of ``store.ctl``.
        topic: its name and directory.
        monotonic: the time in seconds.
    """

    __slots__ = (
        "_directory",
        "_followed",
        "_held",
        "_listeners",
        "_monotonic",
        "_name",
        "_odd",
        "_source",
        "_words",
    )

    def __init__(
        self,
        source: PolicyDocuments,
        words: memoryview,
        topic: tuple[str, str],
        monotonic: Callable[[], float],
    ) -> None:
        self._source: Final = source
        self._words: Final = words
        self._name, self._directory = topic
        self._monotonic: Final = monotonic
        self._held = _Held(_NEVER, (), {})
        self._followed = _NEVER  # the word of the values that the listeners have followed
        self._odd = (_NEVER, 0.0)  # a word of an unfinished change, and since when it stands
        # A dict, because two threads may add to it at once.
        self._listeners: dict[Callable[[], object], None] = {}

    def value(self, policy: TopicPolicy[Value]) -> Value:
        """The value that holds now.

        Raises:
            StorageError: a document is damaged.
        """
        held = self._held
        if self._words[_POLICIES] != held.word:
            held = self._renew()
        try:
            value: Value = held.values[policy.key]  # as `_value_in`, without a call
        except KeyError:
            value = self._value_in(held, policy)
        return value

    def _value_in(self, held: _Held, policy: TopicPolicy[Value]) -> Value:
        try:
            value: Value = held.values[policy.key]
        except KeyError:
            value = held.values[policy.key] = self._source.nearest(policy, held.documents)
        return value

    def values(self, policies: Sequence[TopicPolicy[Any]]) -> list[Any]:
        """The values of several policies; see `value`."""
        held, values = self._held, []
        if self._words[_POLICIES] != held.word:
            held = self._renew()
        for policy in policies:
            try:
                values.append(held.values[policy.key])
            except KeyError:
                values.append(self._value_in(held, policy))
        return values

    def once(self, question: Callable[[ValueOf], Answer]) -> Answer:
        """The answer to a question about values, asked once and again after a change.

        Args:
            question: a function of what gives the value of a policy, and of nothing else.
        """
        held = self._held
        if self._words[_POLICIES] != held.word:
            held = self._renew()
        try:
            answer: Answer = held.values[question]
        except KeyError:
            answer = held.values[question] = question(lambda policy: self._value_in(held, policy))
        return answer

    def call_listeners(self) -> None:
        """Call the listeners if policies of this topic were changed. Some 50 ns if none was in the store."""
        if self._words[_POLICIES] != self._followed and self._listeners:
            with contextlib.suppress(StorageError, OSError):  # the next that needs a value raises it
                self._renew()

    def listen(self, listener: Callable[[], object]) -> None:
        """Call ``listener()`` after each change of these policies, until `unlisten`."""
        self._listeners[listener] = None
        self.call_listeners()

    def unlisten(self, listener: Callable[[], object]) -> None:
        """Undo `listen`. Idempotent."""
        self._listeners.pop(listener, None)

    def _renew(self) -> _Held:
        lock = self._source.following
        try:
            lock.acquire(True, _PATIENCE_S)
            word = self._words[_POLICIES]
            if word != self._followed:
                self._reload(word)
            return self._held
        finally:
            lock.release()

    def _reload(self, word: int) -> None:
        before = self._held
        seen = word if not word & 1 or self._is_abandoned(word) else _NEVER
        documents = self._source.documents(self._name, self._directory)
        if documents == before.documents:
            self._held = before._replace(word=seen)
        else:
            values = {} if any(documents) else self._source.defaults
            self._held = _Held(seen, documents, values)
            if before.word != _NEVER or before.documents:
                self._call_listeners()
        self._followed = self._held.word

    def _call_listeners(self) -> None:
        # Again if a signal handler renewed the values meanwhile: between a listener's look at an older value
        # and its use of it, the handler has called the same listener.
        called_for: object = None
        while called_for is not self._held.documents:
            called_for = self._held.documents
            for listener in tuple(self._listeners):
                with contextlib.suppress(StorageError):  # what it follows stays as it was
                    listener()

    def _is_abandoned(self, word: int) -> bool:
        since, now = self._odd, self._monotonic()
        if since[0] != word:
            self._odd = (word, now)
            return False
        return now - since[1] > _ABANDONED_S


class PolicyWatch:
    """When this process is rung after a change of a policy, has the topics that it has open look at
    theirs, and wakes its threads that wait. Callers: the mailbox, in any thread; files are read on the
    thread of housekeeping.

    Args:
        words: of ``store.ctl``.
        mailbox: of this process.
        chores: the timers of housekeeping.
        look_at_all: looks at the policies of the open topics.
    """

    def __init__(
        self, words: memoryview, mailbox: Mailbox, chores: SchedulerLike, look_at_all: Callable[[], object]
    ) -> None:
        self._words: Final = words
        self._seen = words[_POLICIES]
        self._mailbox: Final = mailbox
        self._chores: Final = chores
        self._look_at_all: Final = look_at_all
        mailbox.add_listener(self._on_ring)

    def _on_ring(self) -> None:
        word = self._words[_POLICIES]
        if word != self._seen:
            self._seen = word
            with contextlib.suppress(RuntimeError):  # the store is being closed
                self._chores.call_later(0.0, self._poll)

    def _poll(self) -> None:
        self._look_at_all()
        self._mailbox.ring_self()


class PolicedTopic(Protocol):
    """The part of an open topic that says which policies hold."""

    @property
    def name(self) -> str: ...
    @property
    def policies(self) -> HeldPolicies: ...


def check_subscription_type(topic: PolicedTopic, consumer_type: ConsumerType) -> None:
    """Refuse a type of subscription that is not enabled.

    Raises:
        NotAllowedError: it is not.
    """
    enabled = topic.policies.value(SUBSCRIPTION_TYPES)
    if consumer_type not in enabled:
        raise NotAllowedError(
            f"{topic.name} has no subscriptions of the type {consumer_type.name}: subscription_types_enabled "
            f"says {', '.join(type_names(enabled))}"
        )


def check_encryption(topic: PolicedTopic, *, is_encrypting: bool) -> None:
    """Refuse a producer that does not encrypt, if it has to.

    Raises:
        BrokerMetadataError: it does not.
    """
    if not is_encrypting and topic.policies.value(ENCRYPTION_REQUIRED):
        raise BrokerMetadataError(
            f"Encryption is required in {topic.name}: create the producer with an encryption key, or change "
            "encryptionRequireOnProducer in broker.conf or the policy of the namespace"
        )


def check_topics(policies: PolicyDocuments, catalog: Catalog, name: TopicName, more: int) -> None:
    """Refuse ``more`` topics in the namespace of a topic, if that exceeds its limit.

    Call under the catalog lock, with which topics are made. Each partition is a topic, and counts when its
    partitioned topic is made or grows.

    Raises:
        NotAllowedError: the limit is exceeded.
    """
    namespace = name.namespace_name
    limit = policies.value(MAX_TOPICS, namespace)
    if not limit:
        return
    topics = 0
    for full_name, partitions in catalog.listed_in(namespace):
        # A partition that was opened is in the catalog beside its topic, which counts all of them already.
        base = catalog.find(TopicName.parse(full_name).base) if PARTITION_SUFFIX in full_name else None
        is_counted_with_base = base is not None and base.partitions and base.name != full_name
        # A partitioned topic counts as many as it has partitions.
        topics += 0 if is_counted_with_base else max(1, partitions)
    if topics + more > limit:
        raise NotAllowedError(
            f"{name.full} cannot be made: the namespace {namespace} has {topics} topics, and its limit is "
            f"{limit} (max_topics_per_namespace); delete topics, or raise the limit"
        )
