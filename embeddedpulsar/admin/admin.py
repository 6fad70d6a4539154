"""The administrator of a store."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from embeddedpulsar._engine.platform.descriptors import late_import
from embeddedpulsar._engine.store.damage_channel import tell
from embeddedpulsar._engine.store.memory_root import is_private
from embeddedpulsar._engine.store.store import Store
from embeddedpulsar._engine.store.store_root import STORE_FORMAT, ServiceUrl, read_meta
from embeddedpulsar.admin import store_care
from embeddedpulsar.admin.absent_methods import SaysWhatThereIs
from embeddedpulsar.admin.brokers import Brokers
from embeddedpulsar.admin.dead_letters import DeadLetters
from embeddedpulsar.admin.kept_ledgers import KeptLedgers
from embeddedpulsar.admin.namespaces import Namespaces
from embeddedpulsar.admin.resource_groups import ResourceGroups
from embeddedpulsar.admin.schemas import Schemas
from embeddedpulsar.admin.tenants import Tenants
from embeddedpulsar.admin.topic_looks import all_kept_ledgers
from embeddedpulsar.admin.topics import Topics
from embeddedpulsar.damage import Damage
from embeddedpulsar.exceptions import AlreadyClosed, NotAllowedError, PulsarException

if TYPE_CHECKING:
    from embeddedpulsar._engine.store.care.store_check import CareProgress
    from embeddedpulsar._engine.store.care.store_repair import RepairReport
    from embeddedpulsar.admin.store_activity import ActivityWatch
    from embeddedpulsar.functions.function_calls import Functions


class Admin(SaysWhatThereIs):
    """Administers the store in a directory, with the interface of Pulsar's Java class ``PulsarAdmin``.

    The methods are grouped by object: `topics`, `namespaces` and so on. An Admin may be used beside any
    number of clients, in any process; changes are visible to them at once. Thread-safe. After a fork the
    child may continue to use it. A ``with`` block closes it at the end. Errors are those of
    ``embeddedpulsar.exceptions``.

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
        self._found: Final[deque[Damage]] = deque()
        self._on_damage: Final = on_damage
        self._options: Final = durability, allow_network_fs, read_only
        self._store = self._opened()
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

    def functions(self) -> Functions:
        """Return the methods for functions."""
        found: Functions = late_import("embeddedpulsar.functions.function_calls").Functions(self._open_store)
        return found

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
        return all_kept_ledgers(self._topics, topic)

    check = store_care.check
    backup = store_care.backup
    restore = staticmethod(store_care.restore)

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
        late = late_import("embeddedpulsar._engine.store.care.store_repair")
        if not dry_run:
            store.check_writable()
            if store.is_temporary:  # it would end when this Admin gives it up for the repair
                raise NotAllowedError(
                    f"{store.root} is a store in memory, which ends with its users; back it up, and repair "
                    "a copy"
                )
        else:
            planned: RepairReport = late.repair_store(store.root, is_dry_run=True, on_progress=on_progress)
            return planned
        store.damage.remove(self._note_damage)
        self._is_closed = True  # for other threads, and if it cannot be opened again
        store.release()
        try:
            done: RepairReport = late.repair_store(store.root, on_progress=on_progress)
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
        return STORE_FORMAT if meta is None else meta.format

    def activity(self) -> ActivityWatch:
        """Return what looks at the whole store, as often as it is asked: rates, backlogs, and the processes
        that are attached. Not in Pulsar. Nothing is changed, and no message is read.

        Example:
            >>> from embeddedpulsar import Admin, Client
            >>> with Client("./data") as client, Admin("./data") as admin:
            ...     producer = client.create_producer("pulse")
            ...     topics = {one.topic: one for one in admin.activity().look().topics}
            ...     topics["persistent://public/default/pulse"].attached[0].kind
            'producer'
        """
        self._open_store()
        late = late_import("embeddedpulsar.admin.store_activity")
        watch: ActivityWatch = late.ActivityWatch(self._open_store)
        return watch

    def close(self) -> None:
        """Release the store. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._store.damage.remove(self._note_damage)
            self._tell()
            self._store.release()

    def _note_damage(self, found: Damage) -> None:
        """Call ``on_damage`` on another thread. Called under any lock."""
        self._found.append(found)
        store = getattr(self, "_store", None)  # not while it is being opened: then `__init__` does it
        if store is not None:
            with contextlib.suppress(RuntimeError, PulsarException):  # no thread: `close` does it
                store.soon(self._tell)

    def _tell(self) -> None:
        while self._found:
            found = self._found.popleft()
            if self._on_damage is not None:
                tell(self._on_damage, found)

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Admin {self._url.text} {'closed' if self._is_closed else 'open'}>"
