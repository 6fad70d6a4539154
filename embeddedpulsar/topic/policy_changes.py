"""Changing the policies of a topic or a namespace, which override ``broker.conf``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from embeddedpulsar.exceptions import TopicNotFound
from embeddedpulsar.topic.policy_documents import KEEP_UNTIL_SUBSCRIBED, LETTERS
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from embeddedpulsar.format.catalog_record import TopicEntry
    from embeddedpulsar.topic.store_session import StoreSession


def is_namespace(name: str) -> bool:
    """Whether a text names ``tenant/namespace`` and no topic.

    Example:
        >>> is_namespace("public/default"), is_namespace("orders"), is_namespace("persistent://a/b/c")
        (True, False, False)
    """
    return "://" not in name and name.count("/") == 1


def change_policies(
    session: StoreSession, name: str, changes: dict[str, Any], *, durable: bool
) -> list[TopicEntry]:
    """Note the policies of a topic or namespace; None takes a policy away.

    Returns:
        The topics and partitions that it may concern and that were opened before.

    Raises:
        TopicNotFound: there is no such topic or namespace.
        StorageError: the document is damaged, or cannot be written.
    """
    name, catalog = _existing(session, name), session.catalog
    if not is_namespace(name) and catalog.find(name) is None:
        # A partition that was never opened has no directory yet.
        session.topics.entry_to_open(TopicName.parse(name), [], create=False)
    try:
        catalog.lock.acquire()
        if is_namespace(name):
            session.policies.change_namespace(name, changes, durable=durable)
        else:
            session.policies.change_topic(name, changes, durable=durable)
    finally:
        catalog.lock.release()
    if is_namespace(name):
        return [entry for entry in catalog.topics(name) if not entry.partitions]
    return _entries_of(session, name)


def own_policies(session: StoreSession, name: str) -> dict[str, Any]:
    """The policies of a topic or namespace itself, whatever holds above it.

    Raises:
        TopicNotFound: there is no such topic or namespace.
        StorageError: the document is damaged.
    """
    name = _existing(session, name)
    return session.policies.of_namespace(name) if is_namespace(name) else session.policies.of_topic(name)


def keeps_until_subscribed(session: StoreSession, name: str) -> bool:
    """Whether a topic, or the topics of a namespace, keep everything while they have no subscription.

    Raises:
        TopicNotFound: there is no such topic or namespace.
        StorageError: a document is damaged.
    """
    name = _existing(session, name)
    if is_namespace(name):
        return bool(session.policies.of_namespace(name).get(KEEP_UNTIL_SUBSCRIBED))
    return session.policies.keeps_until_subscribed(name)


def note_letters(session: StoreSession, name: str) -> None:
    """Note, durably, that letters go to a topic; to be called before the first of them is stored there.

    Raises:
        TopicNotFound: there is no such topic.
        StorageError: the document is damaged, or cannot be written.
    """
    if not own_policies(session, name).get(LETTERS):
        change_policies(session, name, {LETTERS: True}, durable=True)


def _existing(session: StoreSession, name: str) -> str:
    """The name of a namespace, or the full name of a topic, that exists."""
    if is_namespace(name):
        if not session.catalog.has_namespace(name):
            raise TopicNotFound(f"there is no namespace {name} in {session.root}")
        return name
    parsed = TopicName.parse(name)
    if not session.topics.has(parsed):
        raise TopicNotFound(f"{parsed.full}: no such topic in {session.root}")
    return parsed.full


def _entries_of(session: StoreSession, name: str) -> list[TopicEntry]:
    """The topic itself, or those partitions of it that were opened before."""
    entry = session.catalog.find(name)
    if entry is None or not entry.partitions:
        return [] if entry is None else [entry]
    namespace = TopicName.parse(name).namespace_name
    return [
        one for one in session.catalog.topics(namespace) if TopicName.parse(one.name).base == name != one.name
    ]
