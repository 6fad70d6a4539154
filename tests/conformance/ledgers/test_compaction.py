"""Compaction: which messages stay, and how the calls about it behave."""

from __future__ import annotations

import pytest

from embeddedpulsar import (
    Admin,
    Client,
    CompressionType,
    ConsumerType,
    InitialPosition,
    InvalidConfiguration,
    MessageId,
    NotAllowedError,
    TopicNotFound,
)
from tests.conformance.compacting import (
    TOPIC,
    compact,
    compacted,
    next_ledger,
    send,
    send_batch,
    values,
)


@pytest.mark.in_memory
def test_the_newest_message_of_each_key_stays(admin, client):
    """With its id; others read everything."""
    ids = send(client, ("a", b"1"), ("b", b"1"), ("a", b"2"), ("c", b"1"))
    assert admin.topics().compaction_status(TOPIC) == ("NOT_RUN", "")
    compact(admin)
    assert compacted(client) == [(ids[1], "b", b"1"), (ids[2], "a", b"2"), (ids[3], "c", b"1")]
    with client.create_reader(TOPIC, MessageId.earliest) as reader:
        assert [reader.read_next(1000).data() for _ in ids] == [b"1", b"1", b"2", b"1"]


@pytest.mark.in_memory
def test_before_the_first_compaction_everything_is_read(client):
    """As without the option."""
    send(client, ("a", b"1"), ("a", b"2"))
    assert values(compacted(client)) == [("a", b"1"), ("a", b"2")]


def test_null_and_empty_values_remove_their_key(admin, client):
    """A key may come back."""
    send(client, ("a", b"1"), ("b", b"1"), ("c", b"1"), ("a", None), ("b", b""), ("c", None), ("c", b"2"))
    compact(admin)
    assert values(compacted(client)) == [("c", b"2")]
    send(client, ("c", None), ("a", b"3"))
    assert values(compacted(client)) == [("c", b"2"), ("c", b""), ("a", b"3")]
    compact(admin)
    assert values(compacted(client)) == [("a", b"3")]


def test_messages_without_a_key_are_dropped(admin, client):
    """An empty key is none."""
    send(client, (None, b"1"), ("a", b"2"), ("", b"3"))
    send_batch(client, (None, b"4"), ("b", b"5"))
    compact(admin)
    assert values(compacted(client)) == [("a", b"2"), ("b", b"5")]


def test_messages_without_a_key_stay_if_the_setting_says_so(store_path):
    """As Pulsar had it before 3.2; null values without a key, too. Later compactions keep them."""
    store_path.mkdir()
    (store_path / "broker.conf").write_text("topicCompactionRetainNullKey=true\n", "utf-8")
    with Client(store_path) as client, Admin(store_path) as admin:
        send(client, (None, b"1"), ("a", b"2"), (None, None), ("a", b"3"))
        send_batch(client, (None, b"4"), ("a", b"5"), ("b", b"6"), (None, b"7"))
        compact(admin)
        expected = [("", b"1"), ("", b""), ("", b"4"), ("a", b"5"), ("b", b"6"), ("", b"7")]
        assert values(compacted(client)) == expected
        send(client, ("b", b"8"))
        compact(admin)
        assert values(compacted(client)) == [*expected[:4], ("", b"7"), ("b", b"8")]


def test_batches_are_taken_apart(admin, client):
    """What stays keeps ledger, entry and batch index, and the size of the batch."""
    first = send_batch(client, ("a", b"1"), ("b", b"1"), ("c", b"1"), ("a", b"2"))
    second = send_batch(client, ("c", b"2"), ("d", b"1"), ("d", None))
    compact(admin)
    assert compacted(client) == [(first[1], "b", b"1"), (first[3], "a", b"2"), (second[0], "c", b"2")]
    assert compacted(client)[1][0]._batch_size == 4


def test_every_field_stays(admin, client):
    """Properties, times, keys, sequence id and producer, of single messages and of batches."""
    with client.create_producer(TOPIC, "maker", batching_enabled=True) as producer:
        for number in range(6):
            producer.send_async(
                b"%d" % number,
                None,
                partition_key=f"k{number % 4}",
                ordering_key=f"o{number}",
                properties={"n": str(number)},
                event_timestamp=1000 + number,
                sequence_id=10 * number + 1,
            )
        producer.flush()
    with client.create_producer(TOPIC, "other") as producer:
        producer.send(b"6", partition_key="k3", properties={"n": "6"})

    def facts(reader: object) -> dict[str, list[object]]:
        found = {}
        while reader.has_message_available():
            m = reader.read_next(1000)
            found[m.message_id().serialize()] = [
                m.data(), m.partition_key(), m.ordering_key(), m.properties(), m.event_timestamp(),
                m.publish_timestamp(), m.sequence_id(), m.producer_name(), m.has_null_value(),
                m.redelivery_count(), m.schema_version(), repr(m.message_id()),
            ]  # fmt: skip
        return found

    with client.create_reader(TOPIC, MessageId.earliest) as reader:
        everything = facts(reader)
    compact(admin)
    with client.create_reader(TOPIC, MessageId.earliest, is_read_compacted=True) as reader:
        left = facts(reader)
    assert [one[0] for one in left.values()] == [b"2", b"4", b"5", b"6"]
    assert left == {key: everything[key] for key in left}


@pytest.mark.parametrize("codec", [CompressionType.ZLib, CompressionType.NONE])
def test_many_keys_and_long_ones(admin, client, codec):
    """Several blocks, keys that are represented by a digest, values of all sizes, compressed batches."""
    expected = {}
    for turn in range(2):
        pairs = [
            (f"{'long-' * 20 if n % 3 else ''}{n}", b"%d-%d" % (turn, n) * (n % 50 + 1)) for n in range(2500)
        ]
        pairs.append(("large", bytes([turn]) * 600_000))
        send_batch(client, *pairs, compression_type=codec)
        expected.update(pairs)
        compact(admin)
        assert dict(values(compacted(client))) == expected
    with client.create_table_view(TOPIC) as view:
        assert {key: view.get(key) for key in view} == expected


def test_chunked_messages_are_whole(admin, client):
    """Only the newest of a key; its id is the one it had."""
    send(client, ("a", b"small"))
    options = {"chunking_enabled": True, "batching_enabled": False}
    ids = send(client, ("a", bytes(6 << 20)), ("b", bytes(6 << 20)), ("a", b"x" * (6 << 20)), **options)
    compact(admin)
    found = compacted(client)
    assert values(found) == [("b", bytes(6 << 20)), ("a", b"x" * (6 << 20))]
    assert [repr(one[0]) for one in found] == [repr(one) for one in ids[1:]]


def test_what_is_not_acknowledged_is_compacted_too(admin, client):
    """Consumers that do not read compacted get every message all the same."""
    consumer = client.subscribe(TOPIC, "all")
    send(client, ("a", b"1"), ("a", b"2"))
    compact(admin)
    assert values(compacted(client)) == [("a", b"2")]
    assert [consumer.receive(1000).data() for _ in range(2)] == [b"1", b"2"]


def test_what_is_compacted_outlives_the_log(admin, client):
    """Ledgers that nothing else needs are trimmed; the next compaction merges both."""
    ids = send(client, ("a", b"1"), ("b", b"1"))
    next_ledger(client)
    ids += send(client, ("a", b"2"), ("c", b"1"))
    next_ledger(client)
    ids += send(client, ("d", b"1"))
    compact(admin)
    admin.topics().trim_topic(TOPIC)
    assert len(admin.topics().get_internal_stats(TOPIC).ledgers) == 1
    expected = [(ids[1], "b", b"1"), (ids[2], "a", b"2"), (ids[3], "c", b"1"), (ids[4], "d", b"1")]
    assert compacted(client) == expected
    assert compacted(client, ids[2]) == expected[2:]
    assert compacted(client, ids[2], start_message_id_inclusive=True) == expected[1:]
    ids += send(client, ("c", None), ("b", b"2"))
    compact(admin)
    assert compacted(client) == [expected[1], expected[3], (ids[6], "b", b"2")]


def test_the_log_behind_is_kept_until_it_is_compacted(admin, client):
    """Otherwise messages would be missing between both."""
    send(client, ("a", b"1"))
    next_ledger(client)
    compact(admin)
    send(client, ("b", b"1"))
    next_ledger(client)
    send(client, ("c", b"1"))
    admin.topics().trim_topic(TOPIC)
    assert [one.reason for one in admin.why_kept(TOPIC).ledgers] == ["compaction", "open"]
    assert values(compacted(client)) == [("a", b"1"), ("b", b"1"), ("c", b"1")]
    compact(admin)
    admin.topics().trim_topic(TOPIC)
    assert [one.reason for one in admin.why_kept(TOPIC).ledgers] == ["open"]
    assert values(compacted(client)) == [("a", b"1"), ("b", b"1"), ("c", b"1")]


def test_a_topic_with_a_threshold_is_kept_until_its_first_compaction(admin, client):
    """By topic or namespace; without one the ledgers go."""
    admin.namespaces().set_compaction_threshold("public/default", 1 << 30)
    send(client, ("a", b"1"))
    next_ledger(client)
    send(client, ("b", b"1"))
    assert admin.topics().trim_topic(TOPIC) == 0
    admin.topics().set_compaction_threshold(TOPIC, 0)
    admin.topics().trim_topic(TOPIC)  # unless housekeeping was faster
    assert len(admin.topics().get_internal_stats(TOPIC).ledgers) == 1


def test_thresholds(admin, client):
    """Topic before namespace; unset is None, and 0 is a value."""
    send(client, ("a", b"1"))
    topics, namespaces = admin.topics(), admin.namespaces()
    assert topics.get_compaction_threshold(TOPIC) is None
    namespaces.set_compaction_threshold("public/default", 5)
    topics.set_compaction_threshold(TOPIC, 0)
    assert (
        topics.get_compaction_threshold(TOPIC),
        namespaces.get_compaction_threshold("public/default"),
    ) == (0, 5)
    topics.remove_compaction_threshold(TOPIC)
    namespaces.remove_compaction_threshold("public/default")
    assert topics.get_compaction_threshold(TOPIC) is None
    for wrong in (-1, True, "1"):
        with pytest.raises(InvalidConfiguration):
            topics.set_compaction_threshold(TOPIC, wrong)


def test_it_is_refused_where_it_has_no_meaning(client):
    """As in Pulsar."""
    for kind in (ConsumerType.Shared, ConsumerType.KeyShared):
        with pytest.raises(InvalidConfiguration, match="Exclusive and Failover"):
            client.subscribe(TOPIC, "s", kind, is_read_compacted=True)
    for call in (
        lambda name: client.subscribe(name, "s", is_read_compacted=True),
        lambda name: client.create_reader(name, MessageId.earliest, is_read_compacted=True),
    ):
        with pytest.raises(InvalidConfiguration, match="persistent topics"):
            call("non-persistent://public/default/topic")


def test_of_a_topic_that_does_not_exist(admin):
    """Neither is made."""
    for call in (admin.topics().compact, admin.topics().compaction_status):
        with pytest.raises(TopicNotFound):
            call("nothing")


def test_an_empty_topic(admin, client):
    """There is nothing to do, and that succeeds."""
    client.create_producer(TOPIC).close()
    compact(admin)
    assert compacted(client) == []
    send(client, ("a", b"1"))
    assert values(compacted(client)) == [("a", b"1")]


def test_partitions(admin, client):
    """All of them are compacted by one call."""
    admin.topics().create_partitioned_topic(TOPIC, 3)
    for turn in (b"1", b"2"):
        send(client, *((f"k{n}", turn) for n in range(9)))
    assert admin.topics().compaction_status(TOPIC).status == "NOT_RUN"
    compact(admin)
    assert sorted(values(compacted(client))) == [(f"k{n}", b"2") for n in range(9)]
    consumer = client.subscribe(
        TOPIC, "s", ConsumerType.Failover, is_read_compacted=True, initial_position=InitialPosition.Earliest
    )
    assert {consumer.receive(1000).partition_key() for _ in range(9)} == {f"k{n}" for n in range(9)}
    consumer.close()
    assert (
        admin.topics().get_partitioned_stats(TOPIC).totals.compaction.last_compaction_removed_event_count == 9
    )


def test_statistics(admin, client):
    """Pulsar's fields."""
    send(client, ("a", b"1"), ("a", b"2"), ("b", None))
    assert admin.topics().get_stats(TOPIC).compaction == (0, 0, 0, 0)
    compact(admin)
    stats = admin.topics().get_stats(TOPIC)
    assert stats.compaction.last_compaction_removed_event_count == 2
    assert stats.compaction.last_compaction_succeed_timestamp > 0
    assert set(stats.json()["compaction"]) == {
        "lastCompactionRemovedEventCount", "lastCompactionSucceedTimestamp",
        "lastCompactionFailedTimestamp", "lastCompactionDurationTimeInMills",
    }  # fmt: skip


def test_a_second_compaction_at_the_same_time_is_refused(admin, client):
    """The status says that one is running."""
    send(client, ("a", b"1"))
    use = client._core.store.use_topic(TOPIC)
    compaction = use.topic.compaction.get()
    compaction.work.progress = (0, 0)
    with pytest.raises(NotAllowedError, match="already"):
        admin.topics().compact(TOPIC)
    assert admin.topics().compaction_status(TOPIC).status == "RUNNING"
    compaction.work.progress = None
    use.release()


def test_progress_of_a_compaction(admin, client):
    """What is read in this process, in all partitions together; 0 of 0 without a compaction, or a use."""
    admin.topics().create_partitioned_topic("shelves", 3)
    assert admin.topics().compaction_progress("shelves") == (0, 0)
    uses = []
    for index, progress in ((0, (3, 10)), (2, (1, 4))):
        client.create_producer(f"shelves-partition-{index}").send(b"a book")
        uses.append(client._core.store.use_topic(f"shelves-partition-{index}"))
        uses[-1].topic.compaction.get().work.progress = progress
    assert admin.topics().compaction_progress("shelves") == (4, 14)
    assert admin.topics().offload_progress("shelves") == (0, 0)
    for use in uses:
        use.topic.compaction.get().work.progress = None
        use.release()


def test_closing_waits_for_a_compaction(store_path):
    """A script that asks for one and ends has it done."""
    with Client(store_path) as client:
        send_batch(client, *((f"k{n % 100}", b"%d" % n) for n in range(20_000)))
    with Admin(store_path) as admin:
        admin.topics().compact(TOPIC)
    with Client(store_path) as client:
        assert len(compacted(client)) == 100


def test_a_deleted_topic_leaves_nothing(admin, client):
    """A topic of the same name begins anew."""
    send(client, ("a", b"1"))
    compact(admin)
    admin.topics().delete(TOPIC)
    send(client, ("b", b"1"))
    assert values(compacted(client)) == [("b", b"1")]
    assert admin.topics().compaction_status(TOPIC).status == "NOT_RUN"
