"""A process that is killed while it manages a topic leaves it as it was, or as it is to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from embeddedpulsar import Admin, Client, ConsumerType, MessageId, TopicTerminated
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar._engine.subscription import shared_state  # it declares steps when it is imported
from embeddedpulsar.testing.trial_store import assert_clean
from tests.children import die_at

MODULES = (shared_state,)
STEPS = [name for name in failpoints.names() if name.startswith(("journal:", "subscription:"))]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with 6 messages in a topic, and a subscription that has acknowledged one in the middle."""
    with Client(tmp_path) as client, Admin(tmp_path) as admin:
        admin.topics().create_subscription("topic", "sub", MessageId.earliest)
        with client.create_producer("topic") as producer:
            for number in range(6):
                producer.send(b"%d" % number)
        consumer = client.subscribe("topic", "sub", ConsumerType.Shared)
        for message in [consumer.receive(1000) for _ in range(6)]:
            if message.data() == b"3":
                consumer.acknowledge(message)
        consumer.close()
    return tmp_path


def left(admin: Admin) -> list[bytes]:
    """What the subscription has not acknowledged."""
    return [message.data() for message in admin.topics().peek_messages("topic", "sub", 99)]


@pytest.mark.parametrize("kind", [None, ConsumerType.Exclusive, ConsumerType.Shared])
@pytest.mark.parametrize("step", STEPS)
def test_skipping(root: Path, step: str, kind: ConsumerType | None):
    """Two messages are skipped or none, with and without a consumer; and the rest can be skipped."""

    def skip() -> None:
        with Admin(root) as other:
            other.topics().skip_messages("topic", "sub", 2)

    with Client(root) as client, Admin(root) as admin:
        consumer = None if kind is None else client.subscribe("topic", "sub", kind)
        die_at(step, skip)
        assert left(admin) in ([b"0", b"1", b"2", b"4", b"5"], [b"2", b"4", b"5"])
        if consumer is not None:
            assert consumer.receive(5000).data() in (b"0", b"2")
        admin.topics().skip_all_messages("topic", "sub")
        assert left(admin) == []
    Admin(root).close()  # clears away what the killed process left
    assert_clean(root)


@pytest.mark.parametrize("step", STEPS)
def test_expiring(root: Path, step: str):
    """What expired is counted in the commit that acknowledges it, once."""

    def expire() -> None:
        with Admin(root) as other:
            other.topics().expire_messages("topic", "sub", 0)

    with Admin(root) as admin:
        die_at(step, expire)
        for _ in range(2):
            found = admin.topics().get_stats("topic").subscriptions["sub"]
            assert found.msg_backlog + found.total_msg_expired == 5
            admin.topics().expire_messages("topic", "sub", 0)
        assert found.total_msg_expired == 5
    Admin(root).close()  # clears away what the killed process left
    assert_clean(root)


@pytest.mark.parametrize("is_new", [True, False])
def test_terminating(root: Path, is_new: bool):
    """Between the record and the word: the next producer that looks at the journal completes the end."""

    def terminate() -> None:
        with Admin(root) as other:
            other.topics().terminate_topic("topic")

    with Client(root) as client, Admin(root) as admin:
        producer = client.create_producer("topic")
        assert die_at("termination:recorded", terminate)
        with pytest.raises(TopicTerminated):
            client.create_producer("topic") if is_new else producer.send(b"6")
        with pytest.raises(TopicTerminated):
            producer.send(b"7")
        admin.topics().terminate_topic("topic")
        assert left(admin) == [b"0", b"1", b"2", b"4", b"5"]
    Admin(root).close()  # clears away what the killed process left
    assert_clean(root)


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize(
    "step",
    ["deletion:marked", "deletion:recorded", "catalog:record_written", "namespace:deleted"],
)
def test_deleting_a_tenant(tmp_path: Path, step: str, nth: int):
    """What is left of it is complete, and can be deleted."""

    def delete() -> None:
        with Admin(tmp_path) as other:
            other.tenants().delete_tenant("acme", force=True)

    with Client(tmp_path) as client, Admin(tmp_path) as admin:
        for namespace in ("acme/sales", "acme/support"):
            admin.namespaces().create_namespace(namespace)
            admin.namespaces().set_retention(namespace, -1, -1)
            client.create_producer(f"{namespace}/topic").send(b"0")
    assert die_at(step, delete, nth)
    with Client(tmp_path) as client, Admin(tmp_path) as admin:
        for namespace in admin.namespaces().get_namespaces("acme"):
            for topic in admin.namespaces().get_topics(namespace):
                with client.create_reader(topic, MessageId.earliest) as reader:
                    assert reader.read_next(1000).data() == b"0"
        admin.tenants().delete_tenant("acme", force=True)
        assert "acme" not in admin.tenants().get_tenants()
        for namespace in ("acme/sales", "acme/support"):
            admin.namespaces().create_namespace(namespace)
            assert admin.namespaces().get_retention(namespace) is None
            client.create_producer(f"{namespace}/topic").close()  # removes what is left of the old one
    assert_clean(tmp_path)


@pytest.mark.parametrize("step", ["replay:published", "journal:word_stored", "append:tail_stored"])
def test_replaying(tmp_path: Path, step: str):
    """Each dead letter is published at least once, whatever the death interrupts."""

    def replay() -> None:
        with Admin(tmp_path) as other:
            other.dead_letters("topic", "sub").replay_all()

    with Client(tmp_path) as client, Admin(tmp_path) as admin:
        admin.topics().create_subscription("topic", "sub")
        with client.create_producer("topic-sub-DLQ") as producer:
            for number in range(3):
                producer.send(b"%d" % number)
    assert die_at(step, replay)
    with Admin(tmp_path) as admin:
        letters = admin.dead_letters("topic", "sub")
        before = left(admin)
        waiting = [message.data() for message in letters.peek(9)]
        assert {*before, *waiting} == {b"0", b"1", b"2"}
        assert letters.replay_all() == len(waiting)
        assert left(admin) == before + waiting and letters.list() == []
    assert_clean(tmp_path)
