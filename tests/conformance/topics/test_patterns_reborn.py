"""Topics that are deleted and made again while consumers of a pattern open, read and acknowledge them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import AlreadyClosed, Client, ConsumerType, InitialPosition
from embeddedpulsar._engine.format.control import TopicWord
from embeddedpulsar._engine.log.topic_control import DELETED
from embeddedpulsar._engine.store import topic_deletion
from embeddedpulsar.client.consumer import topic_group
from embeddedpulsar.client.consumer.ack_grouping_tracker import AckGroupingTracker
from embeddedpulsar.exceptions import StoreGoneError
from tests.conformance.conftest import acknowledged_texts, receive_all
from tests.subscription_site import SubscriptionSite
from tests.support.clients import refresh_topics, send, store_of

JOBS = re.compile("jobs-.*")


@pytest.fixture
def client(tmp_path: Path):
    with Client(tmp_path) as made:
        yield made


def opening(monkeypatch: pytest.MonkeyPatch, name: str, before: Callable[[], object]) -> None:
    """Call ``before`` once, when a consumer of a topic is about to be opened for a pattern."""
    waiting = [before]

    def open_session(core: Any, config: Any, call_later: Any) -> Any:
        if config.topic.endswith(name) and waiting:
            waiting.pop()()
        return session_type(core, config, call_later)

    session_type = topic_group.ConsumerSession
    monkeypatch.setattr(topic_group, "ConsumerSession", open_session)


@pytest.mark.parametrize("partitions", [0, 2])
def test_a_topic_that_is_made_again_while_it_joins(client, monkeypatch, partitions):
    """No part of the new topic joins as one of the old topic: it would leave with that, and come back."""
    store, name = store_of(client), "jobs-1"
    last = f"{name}-partition-1" if partitions else name
    events: list[str] = []

    def make_again() -> None:
        if partitions:
            store.delete_partitioned_topic(name, force=True)
            store.topics.create_partitioned(name, partitions)
        else:
            store.delete_topic(name, force=True)
        send(client, name, "1", "2", "3")
        events.append("made again")

    if partitions:
        store.topics.create_partitioned(name, partitions)
    send(client, name, "old 1", "old 2")
    opening(monkeypatch, last, make_again)
    consumer: Any = client.subscribe(
        JOBS, "work", ConsumerType.Shared, initial_position=InitialPosition.Earliest
    )
    assert events == ["made again"]
    joined = dict(consumer._core.children)
    assert not any("jobs-1" in one for one in joined if one.endswith(last))
    refresh_topics(client)
    assert acknowledged_texts(consumer) == ["1", "2", "3"]
    now = dict(consumer._core.children)
    refresh_topics(client)
    assert dict(consumer._core.children) == now
    consumer.redeliver_unacknowledged_messages()
    assert acknowledged_texts(consumer) == []


def test_a_topic_that_was_lost_and_made_again_is_not_closed(client, monkeypatch):
    """A thread that met the deletion of the old topic reports it after the new topic has joined."""
    send(client, "jobs-1", "old")
    consumer: Any = client.subscribe(
        JOBS, "work", ConsumerType.Shared, initial_position=InitialPosition.Earliest
    )
    group = consumer._core._group
    (old,) = group.members.values()
    store_of(client).delete_topic("jobs-1", force=True)
    send(client, "jobs-1", "new")
    refresh_topics(client)
    (new,) = group.members.values()
    assert new is not old
    group._lost[old.topic_name] = old  # as `has_left` does it, later than it looked
    client._core.partition_watch._version = -1
    refresh_topics(client)
    assert list(group.members.values()) == [new]
    assert acknowledged_texts(consumer) == ["new"]


@pytest.mark.parametrize("kind", ["message", "id"])
def test_an_acknowledgement_beside_a_close_is_written_or_refused(client, monkeypatch, kind):
    """What `acknowledge` accepted is not delivered again, though another thread closes the consumer."""
    send(client, "jobs-1", *"abcd")
    options = {"initial_position": InitialPosition.Earliest}
    consumer: Any = client.subscribe("jobs-1", "work", ConsumerType.Shared, **options)
    messages = receive_all(consumer)
    targets = [one if kind == "message" else one.message_id() for one in messages]
    consumer.acknowledge(targets[0])
    accepted, refused = ["a"], []

    def acknowledge(index: int) -> None:
        try:
            consumer.acknowledge(targets[index])
            accepted.append("abcd"[index])
        except AlreadyClosed:
            refused.append("abcd"[index])

    flush, end = AckGroupingTracker.flush, AckGroupingTracker.end

    def flush_beside(self: Any) -> None:
        acknowledge(1)
        flush(self)
        acknowledge(2)

    def end_beside(self: Any) -> None:
        end(self)
        acknowledge(3)

    monkeypatch.setattr(AckGroupingTracker, "flush", flush_beside)
    monkeypatch.setattr(AckGroupingTracker, "end", end_beside)
    consumer.close()
    monkeypatch.undo()
    with client.subscribe("jobs-1", "work", ConsumerType.Shared) as other:
        left = {message.data().decode() for message in receive_all(other)}
    assert not left & set(accepted)
    assert refused == ["b", "c", "d"] and left == {"d"}  # those before are in the journal, or in the ring


def test_a_topic_whose_files_go_while_it_is_read(client, monkeypatch):
    """It was deleted: a consumer of the topic says so, and one of a pattern goes on."""
    for topic in ("jobs-1", "jobs-2"):
        send(client, topic, topic)
    options = {"initial_position": InitialPosition.Earliest}
    one = client.subscribe("jobs-1", "alone", **options)
    consumer: Any = client.subscribe(JOBS, "work", ConsumerType.Shared, **options)
    use = store_of(client).use_topic("jobs-1")
    gone = StoreGoneError(path="jobs-1", reason="it was removed")

    def fail(*_: Any) -> Any:
        topic_deletion.mark(use.topic, DELETED)  # between the look at the word and the reading
        raise gone

    for core in (one._core, consumer._core.children["persistent://public/default/jobs-1"]):
        monkeypatch.setattr(core.queue, "_fetch", fail)
    with pytest.raises(AlreadyClosed, match="was deleted"):
        one.receive(1000)
    topic_deletion.mark(use.topic, 0)
    assert consumer.receive(1000).data() == b"jobs-2"
    topic_deletion.mark(use.topic, 0)
    use.release()


@pytest.mark.parametrize("is_deleted", [True, False])
def test_the_missing_files_of_a_deleted_topic_are_no_damage(tmp_path, is_deleted):
    """The files of a subscription go while another process opens it."""
    with contextlib.closing(SubscriptionSite(tmp_path)) as site:
        site.subscription("s").close()
        (journal,) = Path(site.directory_of("s")).glob("journal.*")
        journal.unlink()
        words = site.log.words
        words[TopicWord.STATE] |= DELETED * is_deleted
        site.subscription("s", None).exists()
        site.subscription("s", None).backlog()
        assert bool(site.damage) is not is_deleted
        words[TopicWord.STATE] &= ~DELETED
