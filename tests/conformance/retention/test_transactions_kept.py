"""What counts and cuts a log, where transactions are open or were aborted: figures, trimming, expiry, quotas,
compaction, the end of a topic."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import Admin, CompressionType, ConsumerType, MessageId
from embeddedpulsar.exceptions import InvalidMessage, TopicTerminated
from embeddedpulsar.message_id import Position
from embeddedpulsar.policies import BacklogQuota
from embeddedpulsar.testing import assert_clean
from tests.conformance.compacting import compact
from tests.transactional_site import ALL_TYPES, Site, received

TOPIC = "persistent://public/default/topic"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A store, which is audited at the end."""
    made = Site(tmp_path / "store")
    try:
        yield made
    finally:
        made.client.close()
    assert_clean(tmp_path / "store")


@pytest.fixture
def admin(site: Site) -> Iterator[Admin]:
    """Looks at the same store."""
    with Admin(str(site.root)) as made:
        yield made


def topic_of(site: Site) -> Any:
    """The topic, as the client has it open."""
    use = site.client._core.store.use_topic(TOPIC)
    use.release()
    return use.topic


def fill(site: Site) -> tuple[Any, Any]:
    """Plain, committed, aborted and open messages; the transactions of the last two."""
    producer = site.producer()
    committed, aborted, is_open = site.begin(), site.begin(), site.begin()
    producer.send(b"plain")
    site.send(aborted, b"x", b"y")
    site.send(committed, b"c", b"d")
    site.send(aborted, b"z")
    site.send(is_open, b"o", b"p", b"q")
    producer.send(b"behind")
    committed.commit()
    aborted.abort()
    return aborted, is_open


@pytest.mark.parametrize("kind", ALL_TYPES)
def test_the_backlog_is_what_can_be_had(site: Site, admin: Admin, kind: ConsumerType):
    """By every call that says how much it is, before and after it was read."""
    consumer = site.subscribe(kind)
    _, is_open = fill(site)

    def check(expected: int) -> None:
        stats = admin.topics().get_stats("topic")
        assert stats.subscriptions["sub"].msg_backlog == expected
        assert consumer._core.session.attachment.backlog() == expected
        assert admin.topics().analyze_subscription_backlog("topic", "sub").messages == expected

    check(3)
    assert received(consumer) == [b"plain", b"c", b"d"]
    consumer._core.acks.flush()
    check(0)
    is_open.commit()
    check(4)
    assert received(consumer) == [b"o", b"p", b"q", b"behind"]
    consumer._core.acks.flush()
    check(0)


def test_messages_are_counted_from_both_ends(site: Site, admin: Admin):
    """`examine_message` finds those that can be read, and no others."""
    site.subscribe().close()
    _, is_open = fill(site)

    def examine(start: str) -> list[bytes]:
        found = []
        for number in range(1, 10):
            with contextlib.suppress(InvalidMessage):
                found.append(admin.topics().examine_message("topic", start, number).data())
        return found

    assert examine("earliest") == [b"plain", b"c", b"d"]
    assert examine("latest") == [b"d", b"c", b"plain"]
    is_open.abort()
    assert examine("earliest") == [b"plain", b"c", b"d", b"behind"]
    assert [message.data() for message in admin.topics().peek_messages("topic", "sub", 10)] == [
        b"plain",
        b"c",
        b"d",
        b"behind",
    ]


def test_a_ledger_that_waits_for_a_transaction_stays(site: Site):
    """Though no subscription needs it, and nothing is retained; so do those behind it."""
    producer, transaction = site.producer(), site.begin()
    topic = topic_of(site)
    producer.send(b"a")
    topic.ledger.roll()
    site.send(transaction, b"b")
    place = topic.ledger.last_position()
    topic.ledger.roll()
    producer.send(b"c")
    topic.ledger.roll()
    topic.trim_now()
    assert topic.ledger.first_position().ledger_id == place.ledger_id
    with Admin(str(site.root)) as admin:
        reasons = [ledger.reason for ledger in admin.why_kept("topic").ledgers]
    assert reasons == ["transaction", "transaction", "open"]
    topic.ledger.trim_before(topic.ledger.tail >> 32)
    assert topic.ledger.first_position().ledger_id == place.ledger_id
    transaction.commit()
    topic.trim_now()
    assert topic.ledger.first_position().ledger_id > place.ledger_id


def test_aborted_entries_at_the_end_hold_nothing(site: Site):
    """What they take is given back, though no message comes that a consumer could acknowledge behind them."""
    consumer, producer = site.subscribe(), site.producer()
    topic = topic_of(site)
    producer.send(b"a")
    assert received(consumer) == [b"a"]
    consumer._core.acks.flush()
    for _ in range(3):
        transaction = site.begin()
        site.send(transaction, b"x" * 100)
        transaction.abort()
        topic.ledger.roll()
    topic.trim_now()
    assert topic.ledger.first_position().ledger_id == topic.ledger.tail >> 32
    producer.send(b"b")
    assert received(consumer) == [b"b"]


def test_expiry_and_skipping_leave_what_waits(site: Site, admin: Admin):
    """It was not delivered, so it comes when it is committed."""
    consumer = site.subscribe()
    _, is_open = fill(site)
    subscriptions = topic_of(site)._subscriptions
    subscriptions.expire_through(Position(1 << 30, 0), is_expiry=True)
    assert received(consumer) == []
    admin.topics().skip_all_messages("topic", "sub")
    assert admin.topics().get_stats("topic").subscriptions["sub"].msg_backlog == 0
    is_open.commit()
    assert received(consumer) == [b"o", b"p", b"q", b"behind"]


def test_acknowledgements_beyond_what_can_be_read_are_made_up(site: Site):
    """A producer knows ids of messages that wait."""
    consumer = site.subscribe()
    transaction = site.begin()
    ledger_id, entry_id = site.send(transaction, b"a")
    session = consumer._core.session
    session.attachment.acknowledge([(ledger_id, entry_id)])
    session.attachment.acknowledge_cumulative(ledger_id, entry_id)
    transaction.commit()
    assert received(consumer) == [b"a"]


def test_a_quota_counts_what_can_be_read(site: Site, admin: Admin):
    """Neither aborted nor open messages are backlog."""
    consumer, producer = site.subscribe(), site.producer()
    admin.topics().set_backlog_quota("topic", BacklogQuota(limit_size=2000))
    producer.send(b"a")
    assert received(consumer) == [b"a"]
    consumer._core.acks.flush()
    for end in ("abort", ""):
        transaction = site.begin()
        site.send(transaction, b"x" * 10_000)
        if end:
            transaction.abort()
    quotas = topic_of(site).quotas
    quotas.run_due([])
    assert not quotas.is_held
    transaction.commit()
    quotas.run_due([])
    assert quotas.is_held
    assert received(consumer) == [b"x" * 10_000]
    consumer._core.acks.flush()
    quotas.run_due([])
    assert not quotas.is_held


def test_compaction_keeps_what_committed(site: Site, admin: Admin):
    """Up to the first message that waits; an aborted value replaces none."""
    site.subscribe().close()
    producer = site.producer()
    committed, aborted, is_open = site.begin(), site.begin(), site.begin()
    producer.send(b"1", partition_key="a")
    producer.send(b"1", partition_key="b")
    site.send(committed, b"2", keys=["a"])
    site.send(aborted, b"3", keys=["a"])
    site.send(aborted, b"3", keys=["c"])
    committed.commit()
    aborted.abort()
    site.send(is_open, b"4", keys=["b"])
    producer.send(b"5", partition_key="a")
    compact(admin, "topic")

    def compacted() -> dict[str, bytes]:
        reader = site.client.create_reader("topic", MessageId.earliest, is_read_compacted=True)
        found = [(message.partition_key(), message.data()) for message in iter(reader.read_nowait, None)]
        reader.close()
        return dict(found)

    assert compacted() == {"b": b"1", "a": b"2"}
    record = topic_of(site).compaction.get().ledgers.record()
    assert record.messages == 2
    is_open.commit()
    assert compacted() == {"b": b"4", "a": b"5"}
    compact(admin, "topic")
    assert compacted() == {"b": b"4", "a": b"5"}
    assert topic_of(site).compaction.get().ledgers.record().messages == 2


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_terminated_topic_has_what_commits_later(site: Site, admin: Admin, is_commit: bool):
    """Nothing has to be appended for that. Sends are refused."""
    consumer = site.subscribe()
    _, is_open = fill(site)
    admin.topics().terminate_topic("topic")
    with pytest.raises(TopicTerminated):
        site.send(is_open, b"late")
    assert received(consumer) == [b"plain", b"c", b"d"]
    if is_commit:
        is_open.commit()
    else:
        is_open.abort()
    assert received(consumer) == ([b"o", b"p", b"q"] if is_commit else []) + [b"behind"]


def test_an_aborted_transaction_has_used_its_sequence_ids(site: Site):
    """As in Pulsar: who repeats it sends with new ids."""
    use = site.client._core.store.use_topic(TOPIC)
    topic = use.topic
    topic.set_deduplication(True)
    floor = topic.ledger.tail
    transaction = site.begin()
    site.send(transaction, b"a", first_sequence_id=7)
    transaction.abort()
    assert topic.ledger.sequence_ids(None, topic.ledger.tail, floor) == {"transactional": 7}
    use.release()


@pytest.mark.parametrize("kind", ALL_TYPES)
@pytest.mark.parametrize(
    "options",
    [
        {"chunking_enabled": True, "batching_enabled": False},
        {"compression_type": CompressionType.ZLib},
        {"compression_type": CompressionType.ZLib, "chunking_enabled": True, "batching_enabled": False},
    ],
    ids=["chunks", "packed", "packed chunks"],
)
def test_entries_of_every_form_wait(site: Site, admin: Admin, kind: ConsumerType, options: dict[str, Any]):
    """Parts of chunked messages do not say in what is read of them which transaction they belong to."""
    consumer = site.subscribe(kind)
    plain = site.producer()
    if options.get("chunking_enabled"):
        admin.topics().set_max_message_size("topic", 20_000)
    producer = site.client.create_producer("topic", **options)
    value = random.Random(1).randbytes(77_000)
    for end in ("abort", "commit"):
        transaction = site.client.new_transaction()
        producer.send(value, partition_key="k", txn=transaction)
        plain.send(b"behind")
        assert received(consumer) == []
        getattr(transaction, end)()
        assert received(consumer) == ([value] if end == "commit" else []) + [b"behind"]
    consumer._core.acks.flush()
    assert consumer._core.session.attachment.backlog() == 0
