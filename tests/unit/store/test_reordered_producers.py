"""A producer that was fenced out by another process, with words that are seen in another order.

Each test is named in a row of the table in docs/concurrency.md, "Machines that reorder".
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from embeddedpulsar._engine.filenames import control_path
from embeddedpulsar._engine.format.control import TopicWord
from embeddedpulsar._engine.format.entry import encode_single
from embeddedpulsar._engine.store.producers import ProducerRegistration
from embeddedpulsar._engine.store.store import REGISTRY, Store
from embeddedpulsar._engine.store.topic import Topic
from embeddedpulsar.enums import ProducerAccessMode as Mode
from embeddedpulsar.exceptions import ProducerFenced
from tests.ledger_site import PREFIX
from tests.support.weak_memory import Stores, reordering, samples


class Guard:
    """What asks in each append of a producer whether it is still connected, if the journal has moved."""

    def __init__(self, topic: Topic, producer: ProducerRegistration) -> None:
        self.topic, self.producer = topic, producer
        self.checked = int(topic.ledger.words[TopicWord.JOURNAL])

    def check_connected(self) -> None:
        """Raise if it was fenced out."""
        self.topic.check_producer(self.producer)


@pytest.fixture
def other(root: Path, store: Store) -> Iterator[Topic]:
    """The topic as another process sees it."""
    REGISTRY.stores.clear()
    second = Store.open(root)
    yield second.use_topic("orders").topic
    second.release()


def test_who_is_fenced_out_stores_nothing(store: Store, other: Topic):
    """JOURNAL is compared under lock 5, in the append: whatever was seen before, it is refused."""
    topic = store.use_topic("orders").topic
    for seed in range(40):
        holder = topic.attach_producer(access_mode=Mode.ExclusiveWithFencing)
        topic.check_producer(holder)
        guard = Guard(topic, holder)
        stores = Stores(control_path(topic.ledger.view.directory))
        usurper = other.attach_producer(access_mode=Mode.ExclusiveWithFencing)
        stores.end()
        *_, seen = samples(stores.changes, 1 + seed % 3, seed=seed)
        before = topic.ledger.tail
        with reordering(stores.deliver):
            stores.show(seen)
            with pytest.raises(ProducerFenced):
                topic.ledger.append_nowait(encode_single(b"late", 0, PREFIX), guard)
        assert topic.ledger.tail == before
        other.detach_producer(usurper)
        topic.detach_producer(holder)
