"""Switching deduplication for a topic or a namespace, everywhere at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embeddedpulsar.topic.policy_changes import change_policies
from embeddedpulsar.topic.policy_documents import DEDUPLICATION

if TYPE_CHECKING:
    from embeddedpulsar.format.catalog_record import TopicEntry
    from embeddedpulsar.topic.store import Store
    from embeddedpulsar.topic.store_session import StoreSession


def set_deduplication(store: Store, session: StoreSession, name: str, is_on: bool | None) -> None:
    """Note what a topic or namespace wants, then change the topics that have or had producers.

    A crash between leaves topics that are not changed; the next producer that attaches there changes them, as
    does calling this again.

    Raises:
        TopicNotFound: there is no such topic or namespace.
        StorageError: a document is damaged, or cannot be written.
    """
    durable = store.durability != "process"
    for entry in change_policies(session, name, {DEDUPLICATION: is_on}, durable=durable):
        _tell(store, session, entry)


def _tell(store: Store, session: StoreSession, entry: TopicEntry) -> None:
    use = store.use_topic(entry.name, create=False)
    try:
        topic = use.topic
        if topic.had_producers:
            topic.set_deduplication(session.policies.drops_duplicates(topic.name, topic.directory))
    finally:
        use.release()
