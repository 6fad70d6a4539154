"""The methods of `Admin` that verify and copy the files of a store, beside those that use it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from embeddedpulsar._engine.platform.descriptors import late_import
from embeddedpulsar._engine.store.store_root import directory_of
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from embeddedpulsar._engine.store.care.store_backup import BackupReport
    from embeddedpulsar._engine.store.care.store_check import CareProgress, StoreReport
    from embeddedpulsar._engine.store.care.store_restore import RestoreReport
    from embeddedpulsar._engine.store.store import Store


class HasFiles(Protocol):
    """The part of an `Admin` that these need."""

    def _open_store(self) -> Store:
        """The store; raises if it is in memory, or the Admin is closed."""


def check(
    self: HasFiles, topic: str | None = None, *, on_progress: Callable[[CareProgress], object] | None = None
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
        AccessDeniedError: a directory cannot be listed. A file that cannot be read, or that a newer release
            wrote, is among what is found (`StoreReport.unverified`).

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
    late = late_import("embeddedpulsar._engine.store.care.store_check")
    done: StoreReport = late.check_store(store.root, is_closed=False, topic=name, on_progress=on_progress)
    return done


def backup(
    self: HasFiles,
    target: str | os.PathLike[str],
    topics: Iterable[str] | None = None,
    *,
    on_progress: Callable[[CareProgress], object] | None = None,
) -> BackupReport:
    """Copy the store into a directory, while others publish, acknowledge and trim. Not in Pulsar.

    The copy has the positions of all subscriptions as of its start, then all logs as of one moment after
    them, with everything that was stored before the call. So each message is unacknowledged, or what its
    consumer published before it acknowledged is there. A second backup into the same directory copies what
    is new since then. It takes the place of the first one as its last step, so a backup that is killed
    changes nothing.

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
        StorageError: a file is damaged so that nothing says what of it to copy; or no room; or topics were
            trimmed whenever they were copied. The backup before is as it was.
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
    late = late_import("embeddedpulsar._engine.store.care.store_backup")
    names = None if topics is None else [TopicName.parse(topic).full for topic in topics]
    report: BackupReport = late.backup_store(store, directory_of(target), names, on_progress)
    return report


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
    late = late_import("embeddedpulsar._engine.store.care.store_restore")
    report: RestoreReport = late.restore_store(directory_of(source), directory_of(target), on_progress)
    return report
