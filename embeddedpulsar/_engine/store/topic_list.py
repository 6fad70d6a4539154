"""Which tenants, namespaces and topics a store has: finding, making and growing them. Partitioned topics are
decided here.

`TopicList` makes and finds topics, `NamespaceList` tenants and namespaces. Consumers of a pattern follow
the list of topics, and get the names that match and how they change.
"""

from __future__ import annotations

import os
from itertools import islice

from embeddedpulsar._engine.filenames import subscriptions_path
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar.error_text import nearest
from embeddedpulsar.exceptions import InvalidTopicName, NotAllowedError, TopicNotFound
from embeddedpulsar.message_id import BEFORE_FIRST
from embeddedpulsar.records import TYPE_CHECKING
from embeddedpulsar.topic_name import (
    NON_PERSISTENT,
    PARTITION_SUFFIX,
    PERSISTENT,
    TopicName,
    check_visible,
    is_system_topic,
    subscription_directory_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Final

    from embeddedpulsar._engine.format.catalog_record import TopicEntry
    from embeddedpulsar._engine.platform.timing import Clock
    from embeddedpulsar._engine.store.catalog import Catalog
    from embeddedpulsar._engine.store.store_session import StoreSession
    from embeddedpulsar._engine.store.topic import Topic
    from embeddedpulsar.policy_values import AutoTopicCreationOverride


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

    def create(self, name: str) -> bool:
        """Make the namespace ``tenant/namespace``, and its tenant with it. False if it is there, for one of
        the processes that create it at the same time as well.

        Raises:
            InvalidTopicName: the text names no namespace.
        """
        parsed = TopicName.parse(f"persistent://{name}/topic")
        if parsed.namespace_name != name or name.count("/") != 1:
            raise InvalidTopicName(f"{name!r}: a namespace is written tenant/namespace")
        try:
            self._catalog.lock.acquire()
            if self._catalog.has_namespace(name):
                return False
            self._remove_policies(name)
            if failpoints.ACTIVE:
                failpoints.hit("namespace:policies_removed")
            self._catalog.append_namespace(name, self._clock.wall_ms(), durable=self._durable)
            return True
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


DOMAINS: Final = (NON_PERSISTENT, PERSISTENT)


class TopicChanges:
    """The topics of a store whose names match, partitioned ones in place of their partitions.

    Role: collects from its creation on which topics are made, grow or are deleted, so that `take_changes`
    looks at these only, however many topics there are.

    Args:
        catalog: the catalog of the store.
        matches: whether a full name matches.
    """

    def __init__(self, catalog: Catalog, matches: Callable[[str], bool]) -> None:
        self._catalog: Final = catalog
        self._matches: Final = matches
        self._changed: Final = catalog.watch()

    def all(self, beginning: str = "") -> dict[str, TopicEntry]:
        """Return the topics that match, by name, sorted; of those alone whose names, behind the domain, begin
        so."""
        listed = [pair for domain in DOMAINS for pair in self._catalog.listed(f"{domain}://{beginning}")]
        names = [name for name, _ in listed if self._matches(name)]
        entries = {name: self._catalog.find(name) for name in names if not self._is_partition(name)}
        return {name: entry for name, entry in entries.items() if entry is not None}

    def take_changes(self) -> dict[str, TopicEntry | None]:
        """Return the changes since the last call: what each topic is now, None if it does not exist."""
        names = [name for name in self._catalog.take_changes(self._changed) if self._matches(name)]
        return {name: self._catalog.find(name) for name in names if not self._is_partition(name)}

    def is_current(self, entry: TopicEntry) -> bool:
        """Whether the topic of an entry was neither deleted nor made again since the entry was read."""
        current = self._catalog.find(entry.name)
        return current is not None and current.incarnation == entry.incarnation

    def _is_partition(self, name: str) -> bool:
        if PARTITION_SUFFIX not in name:
            return False
        parsed = TopicName.parse(name)
        base = None if parsed.partition < 0 else self._catalog.find(parsed.base)
        return base is not None and base.partitions > 0

    def close(self) -> None:
        """Collect no more. Idempotent."""
        self._catalog.unwatch(self._changed)


AT_ONCE: Final = 5000
"""So many topics are made in one record of the catalog, which holds twice as many of the longest names."""
MOST_PARTITIONS: Final = 10_000
"""Each is a topic with files of its own."""


def check_has_log(name: TopicName, entry: TopicEntry) -> None:
    """Refuse a partitioned topic.

    Raises:
        NotAllowedError: the topic has partitions.
    """
    if entry.partitions:
        raise NotAllowedError(
            f"{name.full} is a partitioned topic and has no log of its own; open its partitions, "
            f"{name.of_partition(0).full} to {name.of_partition(entry.partitions - 1).full}"
        )


def check_partition(name: TopicName, partitions: int) -> None:
    """Refuse the name of a partition that the topic does not have.

    Raises:
        TopicNotFound: the topic has not as many partitions.
    """
    if name.partition >= partitions:
        raise TopicNotFound(
            f"{name.full}: {name.base} has {partitions} partitions, numbered from 0; let it grow first, with "
            "Admin.topics().update_partitioned_topic"
        )


def check_partitions(partitions: int) -> None:
    """Refuse what is no number of partitions.

    Raises:
        ValueError: it is not an int from 1 to `MOST_PARTITIONS`.

    Example:
        >>> check_partitions(0)
        Traceback (most recent call last):
        ValueError: a topic has 1 to 10000 partitions, not 0
    """
    is_number = isinstance(partitions, int) and not isinstance(partitions, bool)
    if not is_number or not 0 < partitions <= MOST_PARTITIONS:
        raise ValueError(f"a topic has 1 to {MOST_PARTITIONS} partitions, not {partitions!r}")


def check_not_of_system(name: TopicName) -> None:
    """Refuse to make one of Pulsar's system topics.

    Raises:
        NotAllowedError: the name is that of one.
    """
    if is_system_topic(name.full):
        reason = "the name is one of Pulsar's system topics"
        if "transaction" in name.local:
            reason += ", and transactions are in no topic here: Admin.transactions() shows them"
        raise NotAllowedError(f"{name.full} cannot be made: {reason}; use another name")


def partition_names(name: str, partitions: int) -> list[str]:
    """The full names of the partitions of a topic.

    Example:
        >>> partition_names("persistent://public/default/t", 2)
        ['persistent://public/default/t-partition-0', 'persistent://public/default/t-partition-1']
    """
    return [f"{name}{PARTITION_SUFFIX}{index}" for index in range(partitions)]


failpoints.declare("partitions:prepared")

_COORDINATOR_COUNT: Final = 1
_COORDINATORS: Final = f"{PERSISTENT}://{_SYSTEM}/transaction_coordinator_assign"
_OF_COORDINATORS: Final = frozenset(
    (f"{_COORDINATORS}{PARTITION_SUFFIX}0", f"{PERSISTENT}://{_SYSTEM}/__transaction_log_0")
)
_OF_NAMESPACES: Final = frozenset(
    f"__transaction_buffer_snapshot{suffix}" for suffix in ("", "_segments", "_indexes")
)
_PENDING_ACK: Final = "__transaction_pending_ack"
_LOOKED_AT: Final = 2000
"""So many names of a namespace are compared with a wrong one."""


class TopicList:
    """The topics of a store, as its catalog has them.

    Role: decides under the catalog lock what may be made; `TopicDirectories` does it. A partitioned topic is
    one entry with a number of partitions and no log. Its partitions are topics named ``<name>-partition-<i>``
    that get directory and entry of their own when first opened; they exist as soon as the number says so.
    Invariants: making or growing a partitioned topic is one record of the catalog, so others see all of it
    or nothing. While a topic is partitioned, every topic named like a partition of it is one.
    Callers: any thread, holding no file lock.

    Attributes:
        namespaces: in which the topics are.

    Args:
        durable: whether what is made must survive a power loss when the call returns.
    """

    def __init__(self, session: StoreSession, clock: Clock, *, durable: bool) -> None:
        self._session = session
        self._catalog = session.catalog
        self._clock = clock
        self._durable = durable
        self.namespaces = NamespaceList(
            session.root,
            session.catalog,
            clock,
            session.remove_policies,
            durable=durable,
        )

    # -- finding -----------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """Rises when topics come, grow or go."""
        self._catalog.catch_up()
        return self._catalog.version

    def partitions(self, name: str) -> int:
        """How many partitions a topic has; 0 if it is not partitioned, or does not exist. One ``fstat``."""
        entry = self._catalog.find(TopicName.parse(name).full)
        return 0 if entry is None else entry.partitions

    def has(self, name: str) -> bool:
        """Whether the topic exists; a partitioned one exists, and so does each of its partitions."""
        parsed = TopicName.parse(name)
        is_known = self._catalog.find(parsed.full) is not None
        return is_known or 0 <= parsed.partition < self._partitions_of_base(parsed)

    def names(self, namespace: str | None = None) -> list[str]:
        """Full names of all topics, or those of a namespace, sorted; partitions in place of their topic."""
        full_names = []
        for name, partitions in self._catalog.listed_in(namespace):
            # The topic itself has no log: its partitions stand for it.
            if partitions:
                full_names += partition_names(name, partitions)
            elif PARTITION_SUFFIX not in name or not self._partitions_of_base(TopicName.parse(name)):
                # A partition that was opened has an entry of its own; it is in the list already, by its
                # topic.
                full_names.append(name)
        return full_names

    def changes_of(self, matches: Callable[[str], bool]) -> TopicChanges:
        """The topics whose full names match, and how they change from now on; to be closed."""
        return TopicChanges(self._catalog, matches)

    def partitioned_names(self, namespace: str | None = None) -> list[str]:
        """Full names of the partitioned topics, sorted."""
        return [name for name, partitions in self._catalog.listed_in(namespace) if partitions]

    def partitions_of_transactions(self, name: str) -> int | None:
        """How many partitions a topic has in which Pulsar keeps transactions, by its metadata: what finds
        coordinators asks for that. Here no such topic has files, and none can be used.

        Returns:
            None for other topics, and where there would be none: transactions are switched off, or there is
            no such namespace, topic or subscription.
        """
        parsed = TopicName.parse(name)
        if not is_system_topic(parsed.full) or not self._session.settings.transactionCoordinatorEnabled:
            return None
        if parsed.full == _COORDINATORS:
            return _COORDINATOR_COUNT
        if parsed.full in _OF_COORDINATORS:
            return 0
        namespace, local = f"{parsed.tenant}/{parsed.namespace}", parsed.local
        if local in _OF_NAMESPACES:
            is_there = self._catalog.has_namespace(namespace) and self._session.transactions.exists
        else:
            is_there = local.endswith(_PENDING_ACK) and self._has_subscription(parsed)
        return 0 if is_there else None

    def _has_subscription(self, name: TopicName) -> bool:
        """Whether there is a subscription by the name of the topic in which Pulsar keeps its pending
        acknowledgements, ``<topic>-<subscription>__transaction_pending_ack``."""
        base = name.full.removesuffix(_PENDING_ACK)
        hyphens = [at for at, character in enumerate(base) if character == "-"]
        for at in hyphens:  # topics and subscriptions may have hyphens, too
            entry = self._catalog.find(base[:at])
            if entry is not None and entry.is_made and not entry.partitions:
                place = subscriptions_path(self._session.directories.path(entry))
                if os.path.isdir(os.path.join(place, subscription_directory_name(base[at + 1 :]))):
                    return True
        return False

    def partitions_of_possible(self, name: str) -> int:
        """As `partitions`, of a topic that exists or could be made.

        Raises:
            TopicNotFound: there is no such namespace, or the name is that of a partition too many.
        """
        parsed = TopicName.parse(name)
        self._check_namespace(parsed)
        partitions = self._partitions_of_base(parsed)
        if partitions:
            check_partition(parsed, partitions)
        return self.partitions(name)

    def _partitions_of_base(self, name: TopicName) -> int:
        """How many partitions the topic has that ``name`` is named like a partition of."""
        base = None if name.partition < 0 else self._catalog.find(name.base)
        return 0 if base is None else base.partitions

    # -- finding or making -------------------------------------------------------------------------

    def resolve(self, text: str, create: bool = True) -> int:
        """As `partitions`, but a topic that does not exist is made, of the kind ``broker.conf`` says.

        Args:
            text: its name.
            create: make it if there is none and ``allowAutoTopicCreation`` is on; with False it stays 0.

        Raises:
            InvalidTopicName: see `Store.use_topic`.
            NotAllowedError: it is non-persistent, and ``broker.conf`` allows none.
            TopicNotFound: no such topic or namespace, and it may not be made.
        """
        name = TopicName.parse(text)
        # The usual case without a lock: a topic that exists.
        entry = self._catalog.find(name.full)
        if entry is not None:
            return entry.partitions
        # The partitions of a partitioned topic exist with it; a name beyond them is refused where it is
        # opened.
        if not create or self._partitions_of_base(name):
            return 0
        # Looked up again under the lock: another process may have made it, and a name is made once.
        try:
            self._catalog.lock.acquire()
            entry = self._catalog.find(name.full)
            if entry is None:
                wanted = self._check_may_create(name, True)
                # A name like that of a partition is never partitioned itself.
                entry = self._create(name, 0 if name.partition >= 0 else wanted.default_num_partitions or 0)
        finally:
            self._catalog.lock.release()
        return entry.partitions

    def of_incarnation(self, incarnation: int) -> TopicEntry | None:
        """The topic or partition of that incarnation; None if it was deleted. Looks at all of them."""
        return next((entry for entry in self._catalog.topics() if entry.incarnation == incarnation), None)

    def entry_to_open(self, name: TopicName, *, create: bool) -> TopicEntry:
        """The entry of a topic with a log; made if need be and allowed.

        Args:
            name: of a plain topic, or of a partition.
            create: make a topic that does not exist. Partitions of a partitioned topic exist.

        Raises:
            TopicNotFound: no such topic or partition, and it may not be made.
            NotAllowedError: it is the name of a partitioned topic, or the topic is of a kind that is off.
        """
        self._check_enabled(name)
        entry = self._catalog.find(name.full)
        if entry is None:
            try:
                self._catalog.lock.acquire()
                entry = self._catalog.find(name.full)
                if entry is None:
                    partitions = self._partitions_of_base(name)
                    # Either a topic of its own, for which the rules of creation hold, or a partition that
                    # exists with its topic and only has no entry yet.
                    if not partitions:
                        self._check_may_create(name, create)
                    else:
                        check_partition(name, partitions)
                    entry = self._create(name, 0)
            finally:
                self._catalog.lock.release()
        check_has_log(name, entry)
        # Announced with many others and never opened: its directory is made now.
        if not entry.is_made:
            entry = self._session.directories.make(entry, self._clock.wall_ms(), durable=self._durable)
        return entry

    def was_used(self, text: str) -> bool:
        """Whether a topic with a log was ever opened: if not, it holds nothing. Nothing is made.

        Raises:
            TopicNotFound, NotAllowedError: as `entry_to_open`.
        """
        name = TopicName.parse(text)
        entry = self._catalog.find(name.full)
        if entry is not None:
            check_has_log(name, entry)
            return self._session.directories.is_used(entry)
        # No entry: a partition that was never opened, or nothing at all.
        partitions = self._partitions_of_base(name)
        if not partitions:
            self._check_may_create(name, create=False)
        check_partition(name, partitions)
        return False

    def _check_may_create(self, name: TopicName, create: bool) -> AutoTopicCreationOverride:
        root = self._session.root
        self._check_namespace(name)
        if not create:
            raise TopicNotFound(f"{name.full}: no such topic in {root}{self._similar(name)}")
        wanted = self._session.auto_creation(name)
        if not wanted.allow_auto_topic_creation:
            raise TopicNotFound(
                f"{name.full}: no such topic in {root}, and allowAutoTopicCreation=false holds for "
                f"{name.namespace_name}, by broker.conf or by set_auto_topic_creation; use a topic that "
                "exists, or allow it there"
            )
        return wanted

    def _check_namespace(self, name: TopicName) -> None:
        if "/" in name.namespace:
            return  # a legacy name, such as any with a slash in the topic: Pulsar asks for no such namespace
        if not self._catalog.has_namespace(name.namespace_name):
            raise TopicNotFound(
                f"{name.full}: there is no namespace {name.namespace_name} in {self._session.root}, which "
                f"has {', '.join(self._catalog.namespaces())}; use one of those, or make it: "
                f"Admin(path).namespaces().create_namespace({name.namespace_name!r})"
            )

    def _check_enabled(self, name: TopicName) -> None:
        if not (name.is_persistent or self._session.settings.enableNonPersistentTopics):
            raise NotAllowedError(
                f"{name.full}: broker.conf says enableNonPersistentTopics=false; set it to true there, "
                "or use persistent://"
            )

    def _create(self, name: TopicName, partitions: int) -> TopicEntry:
        self._check_enabled(name)
        check_visible(name)
        if name.partition < 0 or not self._partitions_of_base(name):
            check_not_of_system(name)
            self._session.check_limit(name, max(1, partitions))
        return self._session.directories.create(
            name.full, self._clock.wall_ms(), durable=self._durable, partitions=partitions
        )

    # -- making and growing partitioned topics -----------------------------------------------------

    def create_topic(self, text: str) -> None:
        """As `create_topics`, one."""
        self.create_topics([text])

    def create_topics(self, texts: Iterable[str], *, durable: bool | None = None) -> None:
        """Make topics that are not partitioned, or partitions, `AT_ONCE` of them at once or none.

        Raises:
            NotAllowedError: there is a topic of one of the names, or it is that of a system topic.
            TopicNotFound: no such namespace, or a topic has not as many partitions.
        """
        names = list({name.full: name for name in map(TopicName.parse, texts)}.values())
        is_durable = self._durable if durable is None else durable
        # Steps of a bounded size: one record of the catalog is written at once, so a step is made whole or
        # not at all.
        for first in range(0, len(names), AT_ONCE):
            step = names[first : first + AT_ONCE]
            try:
                self._catalog.lock.acquire()
                self._check_new(step)
                full_names = [name.full for name in step]
                self._session.directories.announce(full_names, self._clock.wall_ms(), durable=is_durable)
            finally:
                self._catalog.lock.release()

    def _check_new(self, names: Sequence[TopicName]) -> None:
        # By namespace, because the limit of topics is one of the namespace.
        more: dict[str, list[TopicName]] = {}
        for name in names:
            if self._catalog.find(name.full) is not None:
                raise NotAllowedError(f"{name.full} exists already")
            partitions = self._partitions_of_base(name)
            if partitions and name.partition >= partitions:
                raise TopicNotFound(f"{name.full}: {name.base} has {partitions} partitions only")
            self._check_namespace(name)
            self._check_enabled(name)
            if not partitions:  # a partition counts with its topic
                check_visible(name)
                check_not_of_system(name)
                more.setdefault(name.namespace_name, []).append(name)
        # Once for all new topics of a namespace, or each would pass by itself and all together exceed it.
        for those in more.values():
            self._session.check_limit(those[0], len(those))

    def create_partitioned(self, text: str, partitions: int) -> None:
        """Make a partitioned topic, whatever ``allowAutoTopicCreation`` says.

        Raises:
            InvalidTopicName: the name is one of a partition.
            ValueError: the number is no number of partitions.
            NotAllowedError: there is a topic of that name, or one named like a partition of it.
            TopicNotFound: no such namespace.
        """
        name = TopicName.parse(text)
        # A partitioned topic "t-partition-0" would have a partition that looks like one of "t".
        if name.partition >= 0:
            raise InvalidTopicName(
                f"{name.full!r}: this is the name of a partition; the topic would be {name.base}"
            )
        check_partitions(partitions)
        check_visible(name)
        # All checks are made under the lock: between them and the record no other process can make a topic of
        # the name.
        try:
            self._catalog.lock.acquire()
            known = self._catalog.find(name.full)
            if known is not None:
                kind = f"with {known.partitions} partitions" if known.partitions else "and is not partitioned"
                raise NotAllowedError(f"{name.full} exists already, {kind}")
            self._check_namespace(name)
            # A topic that is named like a partition would become one, with messages that were never routed.
            for other, _ in self._catalog.listed(f"{name.full}{PARTITION_SUFFIX}"):
                parsed = TopicName.parse(other)
                if parsed.partition >= 0 and parsed.base == name.full:
                    raise NotAllowedError(
                        f"{name.full} cannot be partitioned: {other} is a topic of its own; delete that "
                        "one, or use another name"
                    )
            self._create(name, partitions)
        finally:
            self._catalog.lock.release()

    def grow(
        self,
        name: TopicName,
        partitions: int,
        subscriptions: Sequence[str],
        open_topic: Callable[[TopicEntry], Topic],
    ) -> None:
        """Give a partitioned topic more partitions.

        Args:
            name: of the topic.
            partitions: how many it is to have.
            subscriptions: those the new partitions have from the start, so that they miss nothing.
            open_topic: opens one of the new partitions, which no other process knows of yet.

        Raises:
            TopicNotFound: no such topic.
            NotAllowedError: it is not partitioned, or has more than that. As many as it has change nothing.
            ValueError: the number is no number of partitions.
        """
        check_partitions(partitions)
        try:
            self._catalog.lock.acquire()
            entry = self.partitioned_entry(name)
            if partitions < entry.partitions:
                raise NotAllowedError(
                    f"{name.full} has {entry.partitions} partitions and cannot have {partitions}: a topic "
                    "only grows, because messages would be lost"
                )
            # As many as there are changes nothing, so a call that is repeated after an interrupt is no error.
            if partitions > entry.partitions:
                self._session.check_limit(name, partitions - entry.partitions)
                # Partitions are made with their subscriptions before the catalog knows them: producers see
                # them only afterwards, so no message of theirs is without a subscription. A kill leaves
                # directories that no entry names; the next growth takes them as they are.
                if subscriptions:
                    for index in range(entry.partitions, partitions):
                        self._prepare(name.of_partition(index), subscriptions, open_topic)
                # From here on producers and consumers see the new partitions.
                self._session.directories.grow(
                    entry._replace(partitions=partitions), self._clock.wall_ms(), durable=self._durable
                )
        finally:
            self._catalog.lock.release()

    def _prepare(
        self, name: TopicName, subscriptions: Sequence[str], open_topic: Callable[[TopicEntry], Topic]
    ) -> None:
        """Make a partition with subscriptions that begin with its first message. The catalog does not know it
        yet: the first process that opens it adds it."""
        topic = open_topic(self._session.directories.prepare(name.full, durable=self._durable))
        try:
            topic.begin_use()
            for subscription in subscriptions:
                topic.create_subscription(subscription, BEFORE_FIRST)
            if failpoints.ACTIVE:
                failpoints.hit("partitions:prepared")
        finally:
            topic.close()

    def partitioned_entry(self, name: TopicName) -> TopicEntry:
        """The entry of a partitioned topic.

        Raises:
            TopicNotFound: no such topic.
            NotAllowedError: it is not partitioned.
        """
        entry = self._entry(name)
        if not entry.partitions:
            raise NotAllowedError(f"{name.full} is not partitioned")
        return entry

    def plain_entry(self, name: TopicName) -> TopicEntry:
        """The entry of a topic that is neither partitioned nor a partition.

        Raises:
            TopicNotFound: no such topic.
            NotAllowedError: it is one of these.
        """
        if self._partitions_of_base(name):
            raise NotAllowedError(f"{name.full} is a partition; delete {name.base} as a whole")
        entry = self._entry(name)
        if entry.partitions:
            raise NotAllowedError(f"{name.full} is partitioned; use delete_partitioned_topic")
        return entry

    def _entry(self, name: TopicName) -> TopicEntry:
        entry = self._catalog.find(name.full)
        if entry is None:
            raise TopicNotFound(f"{name.full}: no such topic in {self._session.root}{self._similar(name)}")
        return entry

    def _similar(self, name: TopicName) -> str:
        """What to say of a topic that is not there: the name of one that is, if it differs little."""
        listed = islice(self._catalog.listed_in(name.namespace_name), _LOOKED_AT)
        start = name.full[: -len(name.local)]
        near = nearest(name.local, [other.removeprefix(start) for other, _ in listed])
        return f"; did you mean {start}{near}?" if near else ""
