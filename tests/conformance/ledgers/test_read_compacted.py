"""Consumers and readers with ``is_read_compacted``: positions, replacement, trimming, and the threshold."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import Admin, Client, ConsumerType, Damage, InitialPosition, MessageId
from embeddedpulsar._engine.log import compacted_ledger
from embeddedpulsar._engine.store.care.store_check import check_store
from embeddedpulsar._engine.store.care.store_repair import repair_store
from embeddedpulsar.testing.trial_store import assert_clean
from tests.conformance.compacting import (
    TOPIC,
    compact,
    compacted,
    next_ledger,
    rest_of,
    send,
    send_batch,
    values,
)
from tests.conformance.manual_time import ManualTime
from tests.support.key_files import key_files


def consumer_of(client: Client, **options: Any) -> Any:
    """Of a durable subscription that begins at the earliest message."""
    return client.subscribe(
        TOPIC,
        "sub",
        is_read_compacted=True,
        initial_position=InitialPosition.Earliest,
        **{"ack_group_time_ms": 0} | options,
    )


def received(consumer: Any, count: int) -> list[bytes]:
    """Payloads; each is acknowledged."""
    found = []
    for _ in range(count):
        message = consumer.receive(1000)
        consumer.acknowledge(message)
        found.append(message.data())
    return found


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Failover])
def test_a_consumer_goes_on_in_the_log(admin, client, kind):
    """And its backlog is 0 at the end, although most messages were never delivered."""
    send(client, *((f"k{n % 3}", b"%d" % n) for n in range(30)))
    compact(admin)
    consumer = consumer_of(client, consumer_type=kind)
    send(client, ("k0", b"30"), ("k1", b"31"))
    assert received(consumer, 5) == [b"27", b"28", b"29", b"30", b"31"]
    send(client, ("k2", b"32"))
    assert received(consumer, 1) == [b"32"]
    assert consumer.receive_nowait() is None
    consumer.close()
    assert admin.topics().get_stats(TOPIC).subscriptions["sub"].msg_backlog == 0


def test_a_durable_subscription_is_taken_up_where_it_was_left(admin, client):
    """In the compacted ledger, and behind it; also singly in a batch."""
    send_batch(client, ("a", b"0"), ("b", b"1"), ("c", b"2"), ("a", b"3"), ("d", b"4"))
    compact(admin)
    consumer = consumer_of(client, batch_index_ack_enabled=True)
    assert received(consumer, 2) == [b"1", b"2"]
    consumer.close()
    consumer = consumer_of(client, batch_index_ack_enabled=True)
    assert received(consumer, 2) == [b"3", b"4"]
    consumer.close()
    send(client, ("e", b"5"))
    consumer = consumer_of(client, batch_index_ack_enabled=True)
    assert received(consumer, 1) == [b"5"]


def test_redelivery_and_negative_acknowledgement(admin, client):
    """From the first one that is not acknowledged, in the compacted ledger too."""
    send(client, *((f"k{n % 3}", b"%d" % n) for n in range(9)))
    compact(admin)
    consumer = consumer_of(client)
    assert received(consumer, 1) == [b"6"]
    assert consumer.receive(1000).data() == b"7"
    consumer.redeliver_unacknowledged_messages()
    assert [consumer.receive(1000).data() for _ in range(2)] == [b"7", b"8"]


@pytest.mark.in_memory
def test_seeks(admin, client):
    """To the earliest, to an id that was removed, to a time, to the end."""
    ids = send(client, *((f"k{n % 3}", b"%d" % n) for n in range(9)))
    next_ledger(client)
    compact(admin)
    send(client, ("k0", b"9"))
    admin.topics().trim_topic(TOPIC)
    consumer = consumer_of(client)
    everything = [b"6", b"7", b"8", b"9"]
    assert received(consumer, 4) == everything
    consumer.seek(MessageId.earliest)
    assert received(consumer, 4) == everything
    with client.create_reader(TOPIC, MessageId.earliest, is_read_compacted=True) as reader:
        first = reader.read_next(1000)
        reader.seek(ids[2])
        assert [one[2] for one in rest_of(reader)] == everything
        reader.seek(ids[6])
        assert [one[2] for one in rest_of(reader)] == everything[1:]
        reader.seek(first.publish_timestamp())
        assert [one[2] for one in rest_of(reader)] == everything
        reader.seek(MessageId.latest)
        assert not reader.has_message_available()


@pytest.mark.parametrize("damage", ["flipped", "zeroed", "cut", "empty", "noise"])
def test_a_damaged_start_passes_nothing_over(store_path: Path, damage: str):
    """What only the compacted ledger has comes, again if need be, and not each time; it is reported."""
    reports: list[Damage] = []
    with Client(store_path, on_damage=reports.append) as client, Admin(store_path) as admin:
        send(client, ("a", b"0"), ("b", b"1"))
        next_ledger(client)
        compact(admin)
        messages = send(client, ("c", b"2"))
        admin.topics().trim_topic(TOPIC)
        consumer_of(client).close()
        (start,) = store_path.glob("topics/*/subscriptions/*/compacted-start")
        whole = start.read_bytes()
        start.write_bytes(
            {
                "flipped": whole[:20] + bytes([whole[20] ^ 1]) + whole[21:],
                "zeroed": bytes(len(whole)),
                "cut": whole[:-1],
                "empty": b"",
                "noise": b"\x93" * len(whole),
            }[damage]
        )
        consumer = consumer_of(client)
        assert received(consumer, 3) == [b"0", b"1", b"2"]
        consumer.acknowledge_cumulative(messages[0])
        consumer.close()
        send(client, ("d", b"3"))
        assert received(consumer_of(client), 1) == [b"3"]
        (report,) = reports
        assert (report.path, report.kind, report.subscription) == (str(start), "journal", "sub")
    assert_clean(store_path)


@pytest.mark.parametrize("is_trimmed", [False, True], ids=["retained", "trimmed"])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_damaged_block_is_read_in_the_log(
    store_path: Path, number: int, is_trimmed: bool, monkeypatch: pytest.MonkeyPatch
):
    """As far as the log has its messages, which a subscription keeps there. Either way it is reported, the
    check finds it, a repair leaves it, and the other blocks are read."""
    monkeypatch.setattr(compacted_ledger, "MOST_ROWS", 4)
    reports: list[Damage] = []
    with Client(store_path, on_damage=reports.append) as client, Admin(store_path) as admin:
        if not is_trimmed:
            consumer_of(client).close()
        send(client, *((f"k{n}", b"old") for n in range(12)))
        next_ledger(client)
        send(client, *((f"k{n}", b"%d" % n) for n in range(12)))
        next_ledger(client)
        compact(admin)
        if is_trimmed:
            send(client, ("k12", b"12"))
            admin.topics().trim_topic(TOPIC)
    (path,) = store_path.glob("topics/*/compacted.*")
    whole = path.read_bytes()
    ledger = compacted_ledger.CompactedLedger(str(path), None)
    place = ledger.places[number]
    ledger.close()
    at = place.offset + 40
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    expected = {f"k{n}": b"%d" % n for n in range(12 + is_trimmed)}
    lost = {f"k{n}" for n in range(4 * number, 4 * number + 4)} if is_trimmed else set()
    with Client(store_path, on_damage=reports.append) as client:
        with client.create_reader(TOPIC, MessageId.earliest, is_read_compacted=True) as reader:
            newest = {message.partition_key(): message.data() for message in reader}
        assert newest == {key: value for key, value in expected.items() if key not in lost}
        view = client.create_table_view(TOPIC)
        assert dict(view.items()) == newest
        consumer = consumer_of(client)
        newest = {message.partition_key(): message.data() for message in iter(consumer.receive_nowait, None)}
        assert {*newest} == {*expected} - lost
    assert {(report.path, report.kind) for report in reports} == {(str(path), "hole")}
    found = check_store(store_path).damage
    assert [problem.path for problem in found] == [str(path)]
    assert [problem.path for problem in repair_store(str(store_path)).left] == [str(path)]
    path.write_bytes(whole)
    assert_clean(store_path)


def test_what_was_trimmed_begins_a_new_subscription(admin, client):
    """And begins it again until a message was acknowledged that the log has; later trims change nothing."""
    send(client, ("a", b"0"), ("b", b"1"))
    next_ledger(client)
    compact(admin)
    send(client, ("c", b"2"))
    admin.topics().trim_topic(TOPIC)
    for _ in range(2):
        consumer = consumer_of(client)
        assert received(consumer, 2) == [b"0", b"1"]
        consumer.close()
    consumer = consumer_of(client)
    assert received(consumer, 3) == [b"0", b"1", b"2"]
    consumer.close()
    next_ledger(client)
    compact(admin)
    admin.topics().trim_topic(TOPIC)
    consumer = consumer_of(client)
    assert consumer.receive_nowait() is None
    send(client, ("d", b"3"))
    assert received(consumer, 1) == [b"3"]


def test_a_reader_reads_a_replaced_ledger_to_its_end(admin, client):
    """Then the log, in which it sees removals; if that was trimmed, what compaction left behind it."""
    send(client, *((f"k{n}", b"%d" % n) for n in range(3000)))
    compact(admin)
    options = {"is_read_compacted": True, "receiver_queue_size": 1}
    with (
        client.create_reader(TOPIC, MessageId.earliest, **options) as one,
        client.create_reader(TOPIC, MessageId.earliest, **options) as other,
    ):
        assert one.read_next(1000).data() == other.read_next(1000).data() == b"0"
        send(client, ("k5", None), ("k6", b"new"))
        compact(admin)
        assert [found[2] for found in rest_of(one)] == [*(b"%d" % n for n in range(1, 3000)), b"", b"new"]
        next_ledger(client)
        send(client, ("k7", b"newer"))
        compact(admin)
        admin.topics().trim_topic(TOPIC)
        assert [found[2] for found in rest_of(other)] == [
            *(b"%d" % n for n in range(1, 3000)), b"new", b"newer",
        ]  # fmt: skip


def test_a_reader_at_the_end_of_the_log_sees_every_change(admin, client):
    """However often the topic is compacted and trimmed meanwhile."""
    send(client, ("a", b"1"))
    with client.create_reader(TOPIC, MessageId.earliest, is_read_compacted=True) as reader:
        assert reader.read_next(1000).data() == b"1"
        for turn in range(3):
            next_ledger(client)
            send(client, ("a", b"x"), ("a", b"%d" % turn), ("a", None))
            if turn != 1:
                compact(admin)
            assert [one[2] for one in rest_of(reader)] == [b"x", b"%d" % turn, b""]
            compact(admin)
            admin.topics().trim_topic(TOPIC)


def test_encrypted_messages_stay(tmp_path, store_path):
    """Their keys cannot be read; readers get all of them, in order."""
    keys = key_files(tmp_path)
    with Client(store_path) as client, Admin(store_path) as admin:
        options = {"encryption_key": "app", "crypto_key_reader": keys}
        send(client, ("a", b"0"))
        send(client, ("a", b"1"), ("a", b"2"), **options)
        send_batch(client, ("a", b"3"), ("b", b"4"), **options)
        send(client, ("a", b"5"))
        for _ in range(2):
            compact(admin)
            found = values(compacted(client, crypto_key_reader=keys))
            assert found == [("a", b"1"), ("a", b"2"), ("a", b"3"), ("b", b"4"), ("a", b"5")]
            send(client, ("c", None))
        assert values(compacted(client))[0] == ("a", b"5")
    assert_clean(store_path)


def test_the_threshold_starts_a_compaction(store_path):
    """When as much was stored, and again when as much was stored since; looked at every minute."""
    with contextlib.closing(ManualTime(store_path)) as time:
        client = time.client
        with Admin(store_path) as admin:
            admin.namespaces().set_compaction_threshold("public/default", 5000)
            send(client, *(("a", bytes(1000)) for _ in range(3)))
            time.pass_ms(61_000)
            assert admin.topics().compaction_status(TOPIC).status == "NOT_RUN"
            send(client, *(("a", b"%d" % n * 1000) for n in range(3)))
            time.pass_ms(61_000)
            assert admin.topics().compaction_status(TOPIC).status == "SUCCESS"
            assert len(compacted(client)) == 1
            send(client, ("a", b"x"))
            time.pass_ms(120_000)
            assert len(compacted(client)) == 2
            send(client, *(("a", bytes(1000)) for _ in range(6)))
            time.pass_ms(61_000)
            assert len(compacted(client)) == 1


def test_asyncio(run, store_url):
    """The same options."""

    async def main(client: Any) -> Any:
        producer = await client.create_producer(TOPIC)
        for number in range(4):
            await producer.send(b"%d" % number, partition_key=f"k{number % 2}")
        with Admin(store_url) as admin:
            await asyncio.to_thread(compact, admin)
        consumer = await client.subscribe(
            TOPIC, "sub", is_read_compacted=True, initial_position=InitialPosition.Earliest
        )
        reader = await client.create_reader(TOPIC, MessageId.earliest, is_read_compacted=True)
        view = await client.create_table_view(TOPIC)
        return (
            [(await consumer.receive()).data() for _ in range(2)],
            [(await reader.read_next()).data() for _ in range(2)],
            {key: view.get(key) for key in view},
        )

    assert run(main) == ([b"2", b"3"], [b"2", b"3"], {"k0": b"2", "k1": b"3"})
