"""The state of a function in its topic: reading it, and committing to it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from embeddedpulsar._engine.log import filenames
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar.admin.topics import Topics
from embeddedpulsar.exceptions import MessageTooBig, NotAllowedError
from embeddedpulsar.functions.state_table import Record, StateTable
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.policy_values import InactiveTopicPolicies

if TYPE_CHECKING:
    from embeddedpulsar._engine.store.store import Store
    from embeddedpulsar.client.client import Client

NAMESPACE: Final = "public/functions"
"""Where the state topics are, and in whose document the definitions."""
SUPERVISOR: Final = "supervisor"
"""The name of the producer that a supervisor has on the state topic of a function as long as it runs it."""

_COMPACT_AT: Final = 16 << 20
_OVERHEAD: Final = 64
"""Bytes of an entry for each message of it, besides key and payload; more than there are."""


def state_topic(full_name: str) -> str:
    """The topic with the state of a function.

    Example:
        >>> state_topic("public/default/count")
        'persistent://public/functions/public+default+count+state'
    """
    return f"persistent://{NAMESPACE}/{full_name.replace('/', '+')}+state"


def make_state_topic(store: Store, full_name: str) -> str:
    """Make the state topic of a function, unless it is there; return its name.

    The newest record of each key is kept by compaction, and nothing else removes it.
    """
    name = state_topic(full_name)
    if store.topics.has(name):
        return name
    topics = Topics(lambda: store)
    store.topics.namespaces.create(NAMESPACE)
    try:
        topics.create_non_partitioned_topic(name)
    except NotAllowedError:
        if not store.topics.has(name):
            raise
    return name


def protect(store: Store, topic: str) -> None:
    """Have a state topic compacted, and never removed because it is not used."""
    topics = Topics(lambda: store)
    if topics.get_compaction_threshold(topic) is None:
        topics.set_inactive_topic_policies(topic, InactiveTopicPolicies(delete_while_inactive=False))
        topics.set_compaction_threshold(topic, _COMPACT_AT)


def read_state(client: Client, full_name: str) -> StateTable:
    """What the state of a function is now; empty if it has none. Makes nothing.

    Raises:
        CorruptionError: a record is none.
    """
    table = StateTable()
    name = state_topic(full_name)
    if client._core.store.topics.has(name):
        with client.create_reader(name, MessageId.earliest, is_read_compacted=True) as reader:
            for message in reader:
                table.apply(message.partition_key(), message.data())
    return table


class StateLog:
    """The state of a function, for one of its instances.

    Role: `catch_up` follows what all instances have committed; `commit` adds records as one entry, which is
    there as a whole or not at all, however the process dies.
    Invariants: `commit` is called within the lock (`acquire`, `release`), after `catch_up`, so the table has
    everything before the entry: no instance overwrites what it has not seen. An instance alone writes its
    report, so it commits that without the lock. The lock is a file lock: it ends with its holder.
    Callers: one thread.

    Args:
        client: of the store.
        full_name: of the function.
        producer_name: unique among all instances.

    Attributes:
        table: the state, as far as it was followed.
        most: bytes of a commit.
    """

    def __init__(self, client: Client, full_name: str, producer_name: str) -> None:
        self.table: Final = StateTable()
        store = client._core.store
        self.topic: Final = make_state_topic(store, full_name)
        protect(store, self.topic)
        self.most: Final = store.settings.maxMessageSize
        use = store.use_topic(self.topic)
        try:
            directory = use.topic.directory
        finally:
            use.release()
        with contextlib.ExitStack() as opened:
            self._lock: Final = FileLock(filenames.function_lock_path(directory))
            opened.callback(self._lock.close)
            self.release: Final = self._lock.release
            self._producer: Final = client.create_producer(self.topic, producer_name, send_timeout_millis=0)
            opened.callback(self._producer.close)
            self._reader: Final = client.create_reader(self.topic, MessageId.earliest, is_read_compacted=True)
            opened.callback(self._reader.close)
            self.catch_up()
            opened.pop_all()

    def acquire(self) -> None:
        """Enter the section in which one instance at a time commits. To be followed by `release` in a
        ``finally``.

        Raises:
            LockTimeout: another instance stays inside.
        """
        self._lock.acquire()

    def catch_up(self) -> None:
        """Follow all that is committed by now.

        Raises:
            CorruptionError: a record is none.
        """
        for message in self._reader:
            self.table.apply(message.partition_key(), message.data())

    def commit(self, records: Sequence[Record]) -> None:
        """Add records, as one entry.

        Raises:
            MessageTooBig: they do not fit into one; nothing is added.
            PulsarException: nothing is added.
        """
        size = sum(len(one.key.encode()) + len(one.payload or b"") + _OVERHEAD for one in records)
        if size > self.most:
            raise MessageTooBig(
                f"the changes and outputs of one message are {size:,} bytes; at most {self.most:,} "
                "(maxMessageSize) can be committed at once"
            )
        sent = self._producer.send_many(
            [one.payload for one in records],
            partition_keys=[one.key for one in records],
            batching_max_messages=len(records) + 1,
            batching_max_allowed_size_in_bytes=self.most,
        )
        assert len(sent) == len(records)
        for key, payload in records:
            self.table.apply(key, payload)

    def close(self) -> None:
        """Detach from the topic. Idempotent."""
        self._lock.close()
        for one in (self._reader, self._producer):
            if one.is_connected():
                one.close()
