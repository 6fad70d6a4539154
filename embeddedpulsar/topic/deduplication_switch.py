"""Switching deduplication for a topic or a namespace, everywhere at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embeddedpulsar.exceptions import TopicNotFound
from embeddedpulsar.topic.policy_documents import DEDUPLICATION
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from embeddedpulsar.format.catalog_record import TopicEntry
    from embeddedpulsar.topic.store import Store
    from embeddedpulsar.topic.store_session import StoreSession


def is_namespace(name: str) -> bool:
    """Whether a text names ``tenant/namespace`` and no topic.

    Example:
        >>> is_namespace("public/default"), is_namespace("orders"), is_namespace("persistent://a/b/c")
        (True, False, False)
    """
    return "://" not in name and name.count("/") == 1


def set_deduplication(store: Store, session: StoreSession, name: str, is_on: bool | None) -> None:
    """Note what a topic or namespace wants, then tell the topics that have or had producers.

    A crash between leaves topics that were not told; the next producer that attaches there does it, as does
    calling this again.

    Raises:
        TopicNotFound: there is no such topic or namespace.
        StorageError: a document is damaged, or cannot be written.
    """
    catalog, changes, durable = session.catalog, {DEDUPLICATION: is_on}, store.durability != "process"
    if is_namespace(name):
        if not catalog.has_namespace(name):
            raise TopicNotFound(f"there is no namespace {name} in {store.root}")
        concerned = [entry for entry in catalog.topics(name) if not entry.partitions]
    else:
        name = TopicName.parse(name).full
        concerned = _entries_of(session, name)
        if not concerned and catalog.find(name) is None:
            raise TopicNotFound(f"{name}: no such topic in {store.root}")
    try:
        catalog.lock.acquire()
        if is_namespace(name):
            session.policies.change_namespace(name, changes, durable=durable)
        else:
            session.policies.change_topic(name, changes, durable=durable)
    finally:
        catalog.lock.release()
    for entry in concerned:
        _tell(store, session, entry)


def _entries_of(session: StoreSession, name: str) -> list[TopicEntry]:
    """The topic itself, or those partitions of it that were opened before."""
    entry = session.catalog.find(name)
    if entry is None or not entry.partitions:
        return [] if entry is None else [entry]
    namespace = TopicName.parse(name).namespace_name
    return [
        one for one in session.catalog.topics(namespace) if TopicName.parse(one.name).base == name != one.name
    ]


def _tell(store: Store, session: StoreSession, entry: TopicEntry) -> None:
    use = store.use_topic(entry.name, create=False)
    try:
        topic = use.topic
        if topic.had_producers:
            topic.set_deduplication(session.policies.drops_duplicates(topic.name, topic.directory))
    finally:
        use.release()
