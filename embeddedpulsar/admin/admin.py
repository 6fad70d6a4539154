"""The administrator of a store, and the administration of its settings, its tenants and its resource
groups."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar._engine.platform import timing
from embeddedpulsar._engine.platform.descriptors import late_imports
from embeddedpulsar._engine.platform.package_log import tell
from embeddedpulsar._engine.store.policies.policy import OWNER
from embeddedpulsar._engine.store.policies.policy_documents import DYNAMIC_SETTINGS
from embeddedpulsar._engine.store.policies.resource_groups import GROUPS, GroupChange, HeldGroup, no_group
from embeddedpulsar._engine.store.store import Store
from embeddedpulsar._engine.store.store_root import (
    NEW_STORE_FORMAT,
    ServiceUrl,
    directory_of,
    is_private,
    read_meta,
)
from embeddedpulsar._engine.store.topic_access import SaysWhatThereIs, TopicAccess
from embeddedpulsar.admin.dead_letters import DeadLetters
from embeddedpulsar.admin.namespaces import Namespaces, Schemas, delete_topics
from embeddedpulsar.admin.topic_stats import KeptLedgers, all_kept_ledgers
from embeddedpulsar.admin.topics import Topics
from embeddedpulsar.damage import Damage
from embeddedpulsar.error_text import nearest
from embeddedpulsar.exceptions import AlreadyClosed, InvalidConfiguration, NotAllowedError, PulsarException
from embeddedpulsar.policy_values import json_form
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.settings import BrokerSettings, write_setting
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from collections.abc import Iterable

    from embeddedpulsar._engine.store.care.store_backup import BackupReport, RestoreReport
    from embeddedpulsar._engine.store.care.store_check import CareProgress, StoreReport
    from embeddedpulsar._engine.store.care.store_repair import RepairReport
    from embeddedpulsar._engine.store.policies.policy import TopicPolicy
    from embeddedpulsar.admin.activity import ActivityWatch, StatsWatch
    from embeddedpulsar.admin.transactions import Transactions
    from embeddedpulsar.functions.function_calls import Functions
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
        # True: there must be no group of this name.
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
        # The words of a group are shared memory: every process counts there, so no process has to be asked.
        usage = self._store().group_words.usage(self._group(name).slot)
        return ResourceGroupUsage(
            *usage.published, *usage.dispatched, usage.publish_limited, usage.dispatch_limited
        )

    def _change(self, change: GroupChange) -> None:
        with timing.translated:
            # The groups are one policy of the store, whose `amend` applies the change under the lock of the
            # catalog.
            self._store().set_policy(OWNER, GROUPS, change)

    def _groups(self) -> dict[str, HeldGroup]:
        return self._store().own_policy(OWNER, GROUPS) or {}

    def _group(self, name: str) -> HeldGroup:
        groups = self._groups()
        if name not in groups:
            raise no_group(name, groups)
        return groups[name]


class Brokers(SaysWhatThereIs):
    """Shows the settings of a store, and changes those that may change while it is in use. `Admin.brokers`
    returns it.

    Settings are strings, as in ``broker.conf``. A dynamic setting holds in place of that of ``broker.conf``,
    in all processes, until it is deleted. Thread-safe. All methods raise `AlreadyClosed` if the Admin is
    closed, and a `StorageError` if files cannot be used.
    """

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store

    def get_runtime_configuration(self) -> dict[str, str]:
        """Return all settings as they hold now, by name.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.brokers().get_runtime_configuration()["maxMessageSize"]
            '5242880'
        """
        store = self._store()
        settings = store.settings
        # `unknown` has what `broker.conf` has beyond the settings of this package.
        names = [name for name in settings._fields if name != "unknown"]
        values = {name: write_setting(getattr(settings, name)) for name in names}
        # A setting that was changed counts, and not that of the file.
        return values | {name: store.policy(OWNER, policy) for name, policy in DYNAMIC_SETTINGS.items()}

    def get_dynamic_configuration_names(self) -> list[str]:
        """Return the names of the settings that can be changed, sorted.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     "allowAutoTopicCreation" in admin.brokers().get_dynamic_configuration_names()
            True
        """
        return sorted(DYNAMIC_SETTINGS)

    def get_all_dynamic_configurations(self) -> dict[str, str]:
        """Return the settings that were changed, by name."""
        return self._changed(self._store())

    def update_dynamic_configuration(self, name: str, value: str) -> None:
        """Change a setting, in all processes within 50 ms. The change is atomic, and lasts as other changes
        of an Admin do.

        Args:
            name: of the setting.
            value: as in ``broker.conf``.

        Raises:
            InvalidConfiguration: the setting cannot be changed in this way, or the value is none.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.brokers().update_dynamic_configuration("allowAutoTopicCreation", "false")
            ...     admin.brokers().get_all_dynamic_configurations()
            {'allowAutoTopicCreation': 'false'}
        """
        with timing.translated:
            self._store().set_policy(OWNER, _named(name), value)

    def delete_dynamic_configuration(self, name: str) -> None:
        """Undo `update_dynamic_configuration`: ``broker.conf`` decides again.

        Raises:
            InvalidConfiguration: the setting cannot be changed in this way.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.brokers().update_dynamic_configuration("allowAutoTopicCreation", "false")
            ...     admin.brokers().delete_dynamic_configuration("allowAutoTopicCreation")
            ...     admin.brokers().get_all_dynamic_configurations()
            {}
        """
        with timing.translated:
            self._store().set_policy(OWNER, _named(name), None)

    def _changed(self, store: Store) -> dict[str, str]:
        values = {name: store.own_policy(OWNER, policy) for name, policy in DYNAMIC_SETTINGS.items()}
        return {name: value for name, value in values.items() if value is not None}


def _named(name: str) -> TopicPolicy[str]:
    if name in DYNAMIC_SETTINGS:
        return DYNAMIC_SETTINGS[name]
    # A setting that exists and cannot be changed gets another answer than a misspelt one.
    if name in BrokerSettings._field_defaults and name != "unknown":
        raise InvalidConfiguration(
            f"{name} is read from broker.conf when the store is opened, and cannot be changed while it is in "
            f"use; these can: {', '.join(DYNAMIC_SETTINGS)}"
        )
    near = nearest(str(name), DYNAMIC_SETTINGS, 0.6)
    hint = f"did you mean {near}?" if near else f"there are {', '.join(DYNAMIC_SETTINGS)}"
    raise InvalidConfiguration(f"there is no dynamic setting {name!r}; {hint}")


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
        with timing.translated:
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
        with timing.translated:
            store = self._store()
            namespaces = store.topics.namespaces
            # Before anything is deleted: a tenant that does not exist, or may not be deleted, keeps its
            # topics.
            namespaces.check_tenant(tenant)
            # Topics, then their namespace, then the tenant: a kill in between leaves a tenant with fewer
            # namespaces, and a second call goes on.
            if force:
                for namespace in namespaces.names(tenant):
                    delete_topics(store, namespace)
                    namespaces.delete(namespace)
            namespaces.delete_tenant(tenant)


class Admin(SaysWhatThereIs):
    """Administers the store in a directory, with the interface of Pulsar's Java class ``PulsarAdmin``.

    The methods are grouped by object: `topics`, `namespaces` and so on. An Admin may be used beside any
    number of clients, in any process; changes are visible to them at once. Thread-safe. After a fork the
    child may continue to use it; a pickled one is opened again in the process that reads it. A ``with`` block
    closes it at the end. Errors are those of ``embeddedpulsar.exceptions``.

    Args:
        service_url: as for `Client`: a path object; a string that begins with ``/``, ``./``, ``../`` or
            ``~``; ``file:///path``; or ``memory://name``. The store is created if necessary.
        durability: what the effect of a finished call survives: ``process``, the death of every process;
            ``interval`` and ``flush``, also a power failure. A deletion always survives that. The first
            client or Admin of the process on the store decides.
        allow_network_fs: see `Client`.
        on_damage: see `Client`. It runs on a thread of the store that also trims topics, so it should only
            take note and return.
        read_only: whether the store is only looked at: nothing is made, written, locked, registered, trimmed
            or recovered, other processes do not notice, and methods that would change something raise
            `ReadOnlyStoreError`. None: if this process may not write there, as on a read-only mount or as
            another user with the right to read. False: then an error says so. See
            docs/operations.md, "Looking without the right to write".

    Raises:
        ValueError: a wrong URL, or ``memory://`` without a name, which is the private store of one client;
            ``read_only=True`` for a store in memory.
        StorageError: the directory cannot be used as a store; the subclass says why.

    Example:
        >>> with Admin("./data") as admin:
        ...     admin.topics().create_partitioned_topic("flights", 4)
        ...     admin.topics().get_partitioned_topic_list()
        ['persistent://public/default/flights']
        >>> with Admin("./data", read_only=True) as admin:
        ...     print(admin.topics().get_partitioned_topic_list())
        ...     print(admin.is_read_only, admin.read_only_reason, admin.unrecovered())
        ...     try:
        ...         admin.topics().delete_partitioned_topic("flights")
        ...     except PermissionError as error:
        ...         print(type(error).__name__)
        ['persistent://public/default/flights']
        True that was asked for []
        ReadOnlyStoreError
    """

    def __init__(
        self,
        service_url: str | os.PathLike[str],
        *,
        durability: str = "process",
        allow_network_fs: bool = False,
        on_damage: Callable[[Damage], object] | None = None,
        read_only: bool | None = None,
    ) -> None:
        self._url: Final = ServiceUrl.parse(service_url)
        if is_private(self._url.text):
            raise ValueError(
                "each client of memory:// has a store of its own; for an Admin beside a client, give both "
                "the same name: memory://name"
            )
        # Damage that is found under a lock waits here until a thread without one calls `on_damage`.
        self._found: Final[deque[Damage]] = deque()
        self._on_damage: Final = on_damage
        self._options: Final = durability, allow_network_fs, read_only
        self._store = self._opened()
        # What the opening itself found: there was no store yet whose thread could report it.
        self._tell()
        self._is_closed = False
        self._topics: Final = Topics(self._open_store)
        self._namespaces: Final = Namespaces(self._open_store)

    _parts: Final = {
        "topics()": Topics,
        "namespaces()": Namespaces,
        "tenants()": Tenants,
        "brokers()": Brokers,
        "schemas()": Schemas,
        "resource_groups()": ResourceGroups,
    }

    def _opened(self) -> Store:
        durability, allow_network_fs, read_only = self._options
        return Store.open(
            self._url.store,
            durability=durability,
            allow_network_fs=allow_network_fs,
            on_damage=None if self._on_damage is None else self._note_damage,
            read_only=read_only,
        )

    def _open_store(self) -> Store:
        # Each part of an Admin asks for the store with each call, so parts that a program kept raise after
        # the close.
        if self._is_closed:
            raise AlreadyClosed("the Admin is closed; make a new one")
        return self._store

    @property
    def is_read_only(self) -> bool:
        """Whether the store is only looked at; see ``read_only``. Not in Pulsar."""
        return self._store.is_read_only

    @property
    def read_only_reason(self) -> str:
        """Why the store is only looked at; empty if it may be changed. Not in Pulsar."""
        return self._store.read_only_reason

    def unrecovered(self) -> list[str]:
        """Return the names of the topics that were looked at and need a recovery, sorted. Not in Pulsar.

        Only a store that is open read-only has any: after a restart of the machine, or in a copy, the end of
        such a topic is found in its files, and the next process that may write recovers it. Until then
        figures may be behind: what a subscription acknowledged last may be missing.
        """
        return sorted(self._store.unrecovered)

    def topics(self) -> Topics:
        """Return the methods for topics."""
        return self._topics

    def namespaces(self) -> Namespaces:
        """Return the methods for namespaces."""
        return self._namespaces

    def tenants(self) -> Tenants:
        """Return the methods for tenants."""
        return Tenants(self._open_store)

    def brokers(self) -> Brokers:
        """Return the methods for settings."""
        return Brokers(self._open_store)

    def resource_groups(self) -> ResourceGroups:
        """Return the methods for resource groups."""
        return ResourceGroups(self._open_store)

    def schemas(self) -> Schemas:
        """Return the methods for schemas."""
        return Schemas(self._open_store)

    def transactions(self) -> Transactions:
        """Return the methods for transactions.

        Example:
            >>> from embeddedpulsar import Client
            >>> with Client("./data") as client, Admin("./data") as admin:
            ...     txn = client.new_transaction(label="november")
            ...     message_id = client.create_producer("invoices").send(b"42 EUR", txn=txn)
            ...     found = admin.transactions().get_transaction_metadata(txn.id)
            ...     admin.transactions().abort_transaction(txn.id)
            ...     found.label, found.status, list(found.produced_partitions)
            ('november', 'OPEN', ['persistent://public/default/invoices'])
        """
        with late_imports():
            from embeddedpulsar.admin.transactions import Transactions
        return Transactions(self._open_store)

    def functions(self) -> Functions:
        """Return the methods for functions."""
        with late_imports():
            from embeddedpulsar.functions.function_calls import Functions
        return Functions(self._open_store)

    def dead_letters(
        self, topic: str, subscription: str, dead_letter_topic: str | None = None
    ) -> DeadLetters:
        """Return the dead letters of a subscription. Not in Pulsar.

        Args:
            topic: that the subscription is of; a partition stands for its topic.
            subscription: its name.
            dead_letter_topic: as in its `ConsumerDeadLetterPolicy`; None for the default one.

        Raises:
            InvalidTopicName: a text is not a topic name.

        Example:
            >>> from embeddedpulsar import Client
            >>> with Client("./data") as client, Admin("./data") as admin:
            ...     _ = client.create_producer("mails-sender-DLQ").send(b"Dear Sir")
            ...     client.subscribe("mails", "sender").close()
            ...     letters = admin.dead_letters("mails", "sender")
            ...     letters.peek()[0].data(), letters.purge(), letters.list()
            (b'Dear Sir', 1, [])
        """
        self._open_store()
        return DeadLetters(self._open_store, topic, subscription, dead_letter_topic)

    def why_kept(self, topic: str) -> KeptLedgers:
        """Return what holds the stored messages of a topic: subscriptions, retention, or neither. Not in
        Pulsar. Nothing is changed. Acknowledgements that are not written yet do not count.

        Args:
            topic: name of a topic, a partition, or a partitioned topic.

        Raises:
            TopicNotFound: no such topic.
            AlreadyClosed: the Admin is closed.
            StorageError: files cannot be read.

        Example:
            >>> from embeddedpulsar import Admin, Client
            >>> with Client("./data") as client, Admin("./data") as admin:
            ...     consumer = client.subscribe("meters", "billing")
            ...     message_id = client.create_producer("meters").send(b"42 kWh")
            ...     kept = admin.why_kept("meters")
            ...     kept.ledgers[0].reason, kept.ledgers[0].subscriptions
            ('open', ('billing',))
        """
        return all_kept_ledgers(TopicAccess(self._open_store), topic)

    def check(
        self, topic: str | None = None, *, on_progress: Callable[[CareProgress], object] | None = None
    ) -> StoreReport:
        """Read everything in the store, or in one topic, and verify it. Not in Pulsar. Nothing is changed, no
        lock is taken, and other processes may use the store meanwhile: what looks damaged is read again, and
        counts only if it stays so. Takes as long as reading all files.

        Args:
            topic: name of a topic, a partition, or a partitioned topic; None for the whole store.
            on_progress: called with how far it is, once a second, from the second second on. ``str`` of that
                is a line for people.

        Returns:
            What is wrong, where, what it means and what to do; and how much was read.

        Raises:
            TopicNotFound: no such topic.
            NotAllowedError: a store in memory.
            AlreadyClosed: the Admin is closed.
            AccessDeniedError: a directory cannot be listed. A file that cannot be read, or that a newer
                release wrote, is among what is found (`StoreReport.unverified`).

        Example:
            >>> from embeddedpulsar import Admin, Client
            >>> with Client("./data") as client, Admin("./data") as admin:
            ...     message_id = client.create_producer("pumps").send(b"on")
            ...     report = admin.check("pumps")
            ...     report.messages, report.damage
            (1, [])
        """
        store = self._open_store()
        name = None if topic is None else TopicName.parse(topic).full
        # Not loaded with every Admin: few programs check a store.
        with late_imports():
            from embeddedpulsar._engine.store.care.store_check import check_store
        return check_store(store.root, is_closed=False, topic=name, on_progress=on_progress)

    def backup(
        self,
        target: str | os.PathLike[str],
        topics: Iterable[str] | None = None,
        *,
        on_progress: Callable[[CareProgress], object] | None = None,
    ) -> BackupReport:
        """Copy the store into a directory, while others publish, acknowledge and trim. Not in Pulsar.

        The copy has the positions of all subscriptions as of its start, then all logs as of one moment after
        them, with everything that was stored before the call. So each message is unacknowledged, or what its
        consumer published before it acknowledged is there. A second backup into the same directory copies
        what is new since then. It takes the place of the first one as its last step, so a backup that is
        killed changes nothing.

        Args:
            target: a directory, outside of the store; made if necessary.
            topics: names of topics or partitioned topics; None for all. Policies and namespaces are always
                copied. An effectively-once function needs its inputs, outputs and the topic of its state.
            on_progress: see `check`.

        Returns:
            How much it holds, and how much was copied.

        Raises:
            TopicNotFound: no such topic.
            NotAllowedError: another backup is being made there, or is of another store; or a store in memory.
            ForeignFileError: the directory holds something else.
            StorageError: a file is damaged so that nothing says what of it to copy; or no room; or topics
                were trimmed whenever they were copied. The backup before is as it was.
            AlreadyClosed: the Admin is closed.

        Example:
            >>> import tempfile
            >>> from embeddedpulsar import Admin, Client
            >>> with tempfile.TemporaryDirectory() as directory:
            ...     with Client("./data") as client, Admin("./data") as admin:
            ...         message_id = client.create_producer("valves").send(b"open")
            ...         report = admin.backup(directory + "/backup", ["valves"])
            ...     restored = Admin.restore(directory + "/backup", directory + "/store")
            ...     report.topics, restored.topics
            (1, 1)
        """
        store = self._open_store()
        with late_imports():
            from embeddedpulsar._engine.store.care.store_backup import backup_store
        # An iterator is read here, before the copy begins.
        names = None if topics is None else [TopicName.parse(topic).full for topic in topics]
        return backup_store(store, directory_of(target), names, on_progress)

    @staticmethod
    def restore(
        source: str | os.PathLike[str],
        target: str | os.PathLike[str],
        *,
        on_progress: Callable[[CareProgress], object] | None = None,
    ) -> RestoreReport:
        """Make a store of a backup, as in the example of `backup`. Not in Pulsar.

        Every byte is verified. The directory gets its name as the last step. The store is the same one as
        before, with its id: message ids that were kept elsewhere stay valid, and later backups may go into
        the same directory. Ledger ids that the store gave out after the backup do not come again.

        Args:
            source: the directory that was given to `backup`.
            target: of the new store; must not be there, or be empty.
            on_progress: see `check`.

        Raises:
            ForeignFileError: there is no backup.
            NotAllowedError: the target is not empty, or another process makes or restores a backup there.
            StorageError: the backup is damaged, or no room. Nothing is made.
        """
        with late_imports():
            from embeddedpulsar._engine.store.care.store_backup import restore_store
        return restore_store(directory_of(source), directory_of(target), on_progress)

    def repair(
        self, *, dry_run: bool = False, on_progress: Callable[[CareProgress], object] | None = None
    ) -> RepairReport:
        """Check the store, and repair what can be repaired from its own files. Not in Pulsar.

        Indexes, control files, headers, journals, the catalog and the descriptions of topics are written
        again from what else is there. What is taken out of use is moved to the directory ``quarantine`` of
        the store: nothing that may hold a message is removed. A repair that was killed can be made again.

        The store must not be in use by another process, client or Admin, except in a dry run. A store that
        cannot be opened is repaired by the command ``embeddedpulsar repair``.

        Args:
            dry_run: change nothing, and return what would be done.
            on_progress: see `check`.

        Returns:
            What was done, and the damage that is left: messages that are lost stay lost, and `check` goes on
            naming them.

        Raises:
            NotAllowedError: the store is in use; or in memory.
            AlreadyClosed: the Admin is closed.
            UnsupportedFormatVersion: a newer release wrote a file. Nothing was changed.
            StorageOSError: a file cannot be read, which is no damage. Nothing was changed.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.repair(dry_run=True).left
            ()
        """
        store = self._open_store()
        with late_imports():
            from embeddedpulsar._engine.store.care.store_repair import repair_store
        # A plan reads beside other processes. A repair needs the store for itself, so this Admin gives it up
        # first and opens it again afterwards.
        if not dry_run:
            store.check_writable()
            if store.is_temporary:  # it would end when this Admin gives it up for the repair
                raise NotAllowedError(
                    f"{store.root} is a store in memory, which ends with its users; back it up, and repair "
                    "a copy"
                )
        else:
            return repair_store(store.root, is_dry_run=True, on_progress=on_progress)
        # The repair reports what it finds in its result. As damage the same places would be reported twice.
        store.damage.remove(self._note_damage)
        self._is_closed = True  # for other threads, and if it cannot be opened again
        store.release()
        try:
            done = repair_store(store.root, on_progress=on_progress)
        finally:
            self._store = self._opened()
            self._is_closed = False
        return done

    def format_version(self) -> int:
        """Return the format version of the store: a release that does not know it refuses the store. Not in
        Pulsar.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.format_version()
            1
        """
        meta = read_meta(self._open_store().root)
        return NEW_STORE_FORMAT if meta is None else meta.format

    def activity(self) -> ActivityWatch:
        """Return what looks at the whole store, as often as it is asked: rates, backlogs, and the processes
        that are attached. Not in Pulsar. Nothing is changed, and no message is read.

        Example:
            >>> from embeddedpulsar import Admin, Client
            >>> with Client("./data") as client, Admin("./data") as admin:
            ...     producer = client.create_producer("pulse")
            ...     topics = {topic.topic: topic for topic in admin.activity().look().topics}
            ...     topics["persistent://public/default/pulse"].attached[0].kind
            'producer'
        """
        self._open_store()
        with late_imports():
            from embeddedpulsar.admin.activity import ActivityWatch
        return ActivityWatch(self._open_store)

    def statistics(self) -> StatsWatch:
        """Return what reads the stats of all topics, as often as it is asked: what a monitor shows. Not in
        Pulsar. Nothing is changed, and no message is read.

        Example:
            >>> from embeddedpulsar import Admin, Client
            >>> with Client("./data") as client, Admin("./data") as admin:
            ...     message_id = client.create_producer("thermometers").send(b"21.5")
            ...     topics = {topic.topic: topic for topic in admin.statistics().read().topics}
            ...     topics["persistent://public/default/thermometers"].stats.msg_in_counter
            1
        """
        self._open_store()
        with late_imports():
            from embeddedpulsar.admin.activity import StatsWatch
        return StatsWatch(self._open_store)

    def close(self) -> None:
        """Release the store. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            # First no more damage is noted, then the rest is reported, then the store goes.
            self._store.damage.remove(self._note_damage)
            self._tell()
            self._store.release()

    def _note_damage(self, damage: Damage) -> None:
        """Call ``on_damage`` on another thread. Called under any lock."""
        self._found.append(damage)
        store = getattr(self, "_store", None)  # not while it is being opened: then `__init__` does it
        if store is not None:
            with contextlib.suppress(RuntimeError, PulsarException):  # no thread: `close` does it
                store.soon(self._tell)

    def _tell(self) -> None:
        # Several threads may be here: `popleft` gives each place to one of them.
        while self._found:
            damage = self._found.popleft()
            if self._on_damage is not None:
                tell(self._on_damage, damage)

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        if self._url.root is None:
            raise TypeError(
                f"an Admin of {self._url.text} cannot be pickled: its store belongs to this process and its "
                "forked children; use a directory, which processes share"
            )
        return _admin, (type(self), self._url.text, *self._options, self._on_damage)

    def __repr__(self) -> str:
        return f"<Admin {self._url.text} {'closed' if self._is_closed else 'open'}>"


def _admin(
    kind: type[Admin],
    url: str,
    durability: str,
    allow_network_fs: bool,
    read_only: bool | None,
    on_damage: Callable[[Damage], object] | None,
) -> Admin:
    """The copy of an Admin in another process."""
    return kind(
        url,
        durability=durability,
        allow_network_fs=allow_network_fs,
        on_damage=on_damage,
        read_only=read_only,
    )
