"""Deleting topics, with all their partitions, while other processes may use them.

Steps, under the catalog lock: 1. check that no producer or consumer is attached; 2. the word STATE of each
log says "deleted", so from here on every open handle, in any process, gets an error that says so; 3. one
record of the catalog ends the topic and its partitions, durably: this is the deletion; 4. the directories
leave ``topics/``; and without the lock: 5. all processes are rung; 6. the files are removed, and then the
objects of offloaded ledgers. From before 2 to after 4 there is a note of the directories.

A process that dies before 3 leaves the topic as it was, but for its mark, which the next process that opens
the topic clears. One that dies after 3 leaves directories of a topic that is gone: they are removed when a
topic of that name is made, by the next opening of the store, which finds the note, and by the first opening
after a boot. A new life of a name has a directory of its own, so a handle of the old life meets nothing of
the new one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from embeddedpulsar._engine.format.control import TopicWord
from embeddedpulsar._engine.log.topic_control import ATTENTION, DELETED
from embeddedpulsar._engine.platform import failpoints, timing
from embeddedpulsar._engine.platform.descriptors import late_imports
from embeddedpulsar._engine.store.root_layout import OFFLOADED, in_root, remove_tree
from embeddedpulsar.exceptions import BrokerMetadataError, LockTimeout, TopicNotFound
from embeddedpulsar.records import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Final

    from embeddedpulsar._engine.format.catalog_record import TopicEntry
    from embeddedpulsar._engine.store.open_topics import TopicUse
    from embeddedpulsar._engine.store.store_session import StoreSession
    from embeddedpulsar._engine.store.topic import Topic

_BELOW_CATALOG_S: Final = 1.0
"""How long locks of the topic are waited for in all while no other process can make topics."""

failpoints.declare(
    "deletion:noted", "deletion:checked", "deletion:marked", "deletion:recorded", "deletion:moved"
)

Check = Callable[["Topic"], object]
"""Raises if a topic is not to be deleted."""


def delete(
    session: StoreSession,
    use_topic: Callable[[str], TopicUse],
    entry: TopicEntry,
    now_ms: int,
    check: Check,
) -> None:
    """Delete the topic of ``entry``, with all its partitions; see `Store.delete_topic`.

    Args:
        session: of the store.
        use_topic: a hold on a topic that exists, to look at it.
        entry: of the topic.
        now_ms: the time.
        check: called with each log before and after the mark, with nothing changed if it raises.
    """
    staged = None
    # None: partitions were added between the listing and the lock, and they have to be opened first.
    while staged is None:
        # Opened before the catalog lock is taken: opening may make files and wait, and all creation of topics
        # waits for that lock.
        with contextlib.ExitStack() as uses:
            topics = []
            for log_entry in _made(session.catalog.with_logs(entry)):
                use = use_topic(log_entry.name)
                uses.callback(use.release)
                topics.append(use.topic)
            staged = _delete_topics(session, entry, topics, now_ms, check)
    # After the locks: the processes that have the topic open find it deleted, and those that wait wake up.
    session.peers.ring_all()
    # The slow part: removing files needs no lock, since nothing refers to these directories any more.
    had_notes = [session.directories.staging.remove(directory) for directory in staged]
    if any(had_notes):
        with late_imports():
            from embeddedpulsar._engine.cold.fetching import remove_leftovers
        remove_leftovers(in_root(session.root, OFFLOADED))


def _delete_topics(
    session: StoreSession, entry: TopicEntry, topics: Sequence[Topic], now_ms: int, check: Check
) -> list[str] | None:
    """Delete the topic of ``entry``, whose logs are ``topics``: itself, or its partitions.

    Returns:
        The directories to be removed; None if there are other partitions than these by now.

    Raises:
        TopicNotFound: another process deleted it.
        BrokerMetadataError: ``check`` refused it. Nothing was changed.
        LockTimeout: another process stays in a lock of the topic. Nothing was changed.
    """
    # Under the catalog lock from here: no process can make the topic, or a partition of it, anew before it is
    # gone.
    catalog, directories, note = session.catalog, session.directories, ""
    try:
        catalog.lock.acquire()
        current = catalog.find(entry.name)
        # By incarnation: a topic that was deleted and made again in between is another one, and is not to be
        # deleted.
        if current is None or current.incarnation != entry.incarnation:
            raise TopicNotFound(f"{entry.name}: no such topic in {session.root}; it was deleted meanwhile")
        entries = catalog.with_logs(current)
        if {log_entry.name for log_entry in _made(entries)} != {topic.name for topic in topics}:
            return None
        # The partitioned topic itself has a directory with its description; for a topic without partitions
        # the two are one.
        ended = list(dict.fromkeys([current, *entries]))
        # The note first: a process that dies between the record and the move leaves it to the next opening of
        # the store, which puts the directories away. It is not flushed, since the first opening after a boot
        # looks at all of them.
        try:
            note = directories.staging.note_end([directories.relative(ended_entry) for ended_entry in ended])
            if failpoints.ACTIVE:
                failpoints.hit("deletion:noted")
            # A bounded time for locks of topics: while this waits, no topic of the store can be made.
            timing.within(_BELOW_CATALOG_S, lambda: _mark_all(session, current, topics, now_ms, check))
            if failpoints.ACTIVE:
                failpoints.hit("deletion:recorded")
            # The record is durable: the topic does not exist any more, whatever comes. Moving its directory
            # away frees the name for a new topic.
            staged = [directories.put_away(directories.relative(ended_entry)) for ended_entry in ended]
            if failpoints.ACTIVE:
                failpoints.hit("deletion:moved")
        finally:
            # Also after an error: the note names directories of topics that still exist then.
            if note:
                remove_tree(note)
    finally:
        catalog.lock.release()
    return staged


def _made(entries: Sequence[TopicEntry]) -> list[TopicEntry]:
    """Those that were ever opened: no process has the others open, or can open them without the lock."""
    return [entry for entry in entries if entry.is_made]


def _mark_all(
    session: StoreSession, entry: TopicEntry, topics: Sequence[Topic], now_ms: int, check: Check
) -> None:
    """Do steps 1 to 3."""
    # A first look without any change, so that a topic in use is refused without disturbing it.
    for topic in topics:
        check(topic)
    if failpoints.ACTIVE:
        failpoints.hit("deletion:checked")
    marked = []
    try:
        # Noted before it is marked: an interrupt between the two must not leave a mark behind.
        for topic in topics:
            marked.append(topic)
            mark(topic, DELETED)
        # Appends stop with the mark, and attaching looks at it under the lock of the topic. So who has
        # attached before the mark is seen here, and who comes after it is refused.
        for topic in topics:
            check(topic)  # a producer or consumer may have attached since
        if failpoints.ACTIVE:
            failpoints.hit("deletion:marked")
        # The decision, durable before anything is removed.
        session.catalog.append_topic_deleted(entry, now_ms, durable=True)
    except BaseException:
        # Still in the catalog: the record was not written, so the topic goes on. If it was written, the error
        # came after it, and the deletion stands.
        if session.catalog.find(entry.name) is not None:
            for topic in marked:
                # A process that stays in the lock keeps its mark until the next open, which clears it where
                # the catalog has the topic.
                with contextlib.suppress(LockTimeout):  # the next process that opens it clears the mark
                    timing.unbounded(timing.within, _BELOW_CATALOG_S, mark, topic, 0)
        raise


def check_unless(force: bool) -> Check:
    """What refuses to delete a topic that is in use; nothing if it is to be deleted anyway."""
    return lambda topic: None if force else _check_unused(topic)


def _check_unused(topic: Topic) -> None:
    """Refuse to delete a topic that is in use.

    Raises:
        BrokerMetadataError: producers or consumers are attached; names them.
    """
    users = [f"producer {name!r}" for name in topic.producers()]
    users += [f"consumer {name!r}" for name in topic.consumers()]
    if users:
        more = f" and {len(users) - 5} more" if len(users) > 5 else ""
        raise BrokerMetadataError(
            f"{topic.name} is in use by {', '.join(users[:5])}{more}; close them, or delete it with force"
        )


def mark(topic: Topic, state: int) -> None:
    """Mark a topic as `DELETED`, or (0) remove the mark."""
    lock, words = topic.ledger.lock, topic.ledger.words
    try:
        lock.acquire()
        words[TopicWord.STATE] = words[TopicWord.STATE] & ~DELETED | state
        words[TopicWord.OWNER] = ATTENTION  # every process looks at the state before its next append
    finally:
        lock.release()


def take_mark_back(session: StoreSession, entry: TopicEntry, topic: Topic) -> None:
    """Clear the mark of a topic, once its deletion has ended or the process that began it died.

    Raises:
        TopicNotFound: it is deleted. The topic is closed then, as after every error.
    """
    try:
        session.catalog.lock.acquire()
        current = session.catalog.find(entry.name)
        if current is None or current.incarnation != entry.incarnation:
            raise TopicNotFound(f"{entry.name}: no such topic in {session.root}; it was deleted")
        if topic.is_deleted:
            timing.within(_BELOW_CATALOG_S, mark, topic, 0)
    except BaseException:
        topic.close()
        raise
    finally:
        session.catalog.lock.release()
