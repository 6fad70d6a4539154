"""Changing the policies of a topic or a namespace, which override ``broker.conf``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from embeddedpulsar._engine.store.policies.keeping import LETTERS
from embeddedpulsar._engine.store.policies.policy import TopicPolicy, Value
from embeddedpulsar.exceptions import TopicNotFound
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from embeddedpulsar._engine.format.catalog_record import TopicEntry
    from embeddedpulsar._engine.store.open_topics import TopicUse
    from embeddedpulsar._engine.store.store_session import StoreSession


def is_namespace(name: str) -> bool:
    """Whether a text names ``tenant/namespace`` and no topic.

    Example:
        >>> is_namespace("public/default"), is_namespace("orders"), is_namespace("persistent://a/b/c")
        (True, False, False)
    """
    return "://" not in name and name.count("/") == 1


def change_policy(
    session: StoreSession, name: str, policy: TopicPolicy[Value], value: Value | None, *, durable: bool
) -> list[TopicEntry]:
    """Note a policy of a topic or namespace, and ring all processes; None takes it away.

    Returns:
        The topics and partitions that are to be changed at once, and that were opened before.

    Raises:
        TopicNotFound: there is no such topic or namespace.
        InvalidConfiguration: the value makes no sense.
        StorageError: the document is damaged, or cannot be written.
    """
    if policy.resolve is not None and value is not None:
        value = policy.resolve(value, session.root)
    changes = {policy.key: None if value is None else policy.pack(value)}
    name, catalog = existing(session, name), session.catalog
    known = None if is_namespace(name) else catalog.find(name)
    if not is_namespace(name) and (known is None or not known.is_made):
        # A topic or partition that was never opened has no directory yet.
        session.topics.entry_to_open(TopicName.parse(name), create=False)
    try:
        catalog.lock.acquire()
        documents = session.policies
        change = documents.change_namespace if is_namespace(name) else documents.change_topic

        def note(has_policy: bool) -> None:
            if policy.owners and has_policy == (value is not None):
                exists = partial(_exists, session)
                documents.note_owner(policy.owners, name, has_policy, exists, durable=durable)

        def write() -> None:
            if policy.amend is not None and value is not None:
                changes[policy.key] = policy.amend(session, changes[policy.key])
            note(True)
            change(name, changes, durable=durable)
            note(False)  # a process that dies in between leaves a name too many

        session.control.change_policies(write)
    finally:
        catalog.lock.release()
    session.peers.ring_all()
    if policy.apply is None:
        return []
    entries = catalog.topics(name) if is_namespace(name) else _entries_of(session, name)
    return [entry for entry in entries if entry.is_made and not entry.partitions]


def apply_policy(
    session: StoreSession,
    policy: TopicPolicy[Value],
    entries: Iterable[TopicEntry],
    use_topic: Callable[[TopicEntry], TopicUse],
) -> None:
    """Change topics at once, if the policy acts at once."""
    if policy.apply is None:
        return
    for entry in entries:
        use = use_topic(entry)
        try:
            policy.apply(use.topic, session.policies.value(policy, use.topic.name, use.topic.directory))
        finally:
            use.release()


def note_letters(session: StoreSession, name: str) -> None:
    """Note, durably, that letters go to a topic; to be called before the first of them is stored there.

    Raises:
        TopicNotFound: there is no such topic.
        StorageError: the document is damaged, or cannot be written.
    """
    if not session.policies.own(LETTERS, existing(session, name)):
        change_policy(session, name, LETTERS, True, durable=True)


def existing(session: StoreSession, name: str) -> str:
    """The name of a namespace, or the full name of a topic, that exists.

    Raises:
        TopicNotFound: there is no such topic or namespace.
    """
    if is_namespace(name):
        if not session.catalog.has_namespace(name):
            raise TopicNotFound(f"there is no namespace {name} in {session.root}")
        return name
    parsed = TopicName.parse(name)
    if not session.topics.has(name):
        raise TopicNotFound(f"{parsed.full}: no such topic in {session.root}")
    return parsed.full


def _exists(session: StoreSession, name: str) -> bool:
    if is_namespace(name):
        return session.catalog.has_namespace(name)
    return session.catalog.find(name) is not None


def _entries_of(session: StoreSession, name: str) -> list[TopicEntry]:
    """The topic itself, or those partitions of it that were opened before."""
    entry = session.catalog.find(name)
    return [] if entry is None else session.catalog.with_logs(entry)
