"""Looking at topics with an Admin changes nothing, and waits for no lock."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from embeddedpulsar import Admin, Client, ConsumerType, InitialPosition
from embeddedpulsar._engine.filenames import lock_path
from embeddedpulsar.admin.topics import Topics
from embeddedpulsar.testing.trial_store import assert_clean
from tests.conformance.conftest import numbers, receive_all
from tests.conformance.manual_time import ManualTime
from tests.support.held_elsewhere import held_elsewhere, subscription_lock


def look_at(topics: Topics) -> list[Any]:
    """Everything that an Admin says of topic ``jobs``."""
    looks: list[Callable[[str], Any]] = [
        topics.get_stats,
        topics.get_internal_stats,
        topics.get_subscriptions,
        topics.get_last_message_id,
        lambda name: topics.analyze_subscription_backlog(name, "work"),
        lambda name: numbers(topics.peek_messages(name, "work", 100)),
        lambda name: topics.examine_message(name).data(),
        lambda name: topics.get_message_id_by_timestamp(name, 0),
    ]
    return [look("jobs") for look in looks]


def filled(path: Path) -> None:
    """A store with messages, a Shared and an Exclusive subscription, and acknowledgements out of order."""
    with Client(path) as client:
        other = client.subscribe("jobs", "other")
        consumer = client.subscribe(
            "jobs", "work", ConsumerType.Shared, initial_position=InitialPosition.Earliest
        )
        with client.create_producer("jobs") as producer:
            for number in range(20):
                producer.send(b"hello-%d" % number)
        messages = [consumer.receive() for _ in range(20)]
        for message in messages[::3]:
            consumer.acknowledge(message)
        other.acknowledge_cumulative(other.receive())


def tree(path: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every file of the topics and of the catalog: size, time and bytes."""
    found = {}
    for directory, names, files in os.walk(path):
        names[:] = [name for name in names if name != "clients"]  # of the processes that have it open
        for name in [*files, "."]:
            one = os.path.join(directory, name)
            status = os.stat(one)
            data = b"" if name == "." else Path(one).read_bytes()
            found[os.path.relpath(one, path)] = (status.st_size, status.st_mtime_ns, data)
    # Opening a store gives its process a number, which is stored here; clients/ is made again.
    for name in ("store.ctl", "."):
        found.pop(name, None)
    return found


def test_a_store_that_is_not_open_stays_as_it_is(tmp_path: Path):
    """No file is made, removed or written: not by the first look, and not by the next."""
    filled(tmp_path)
    before = tree(tmp_path)
    with Admin(tmp_path) as admin:
        first = look_at(admin.topics())
        assert tree(tmp_path) == before
        assert look_at(admin.topics())[1:] == first[1:]
    assert tree(tmp_path) == before
    assert first[4].messages == 13 == len(first[5])
    assert_clean(tmp_path)


def test_nothing_is_made_for_what_was_never_used(tmp_path: Path):
    """Neither the directory of a partition, nor control words of a topic."""
    with Admin(tmp_path) as admin:
        admin.topics().create_partitioned_topic("jobs", 3)
        admin.topics().create_non_partitioned_topic("empty")
        before = tree(tmp_path)
        admin.topics().get_partitioned_stats("jobs")
        admin.topics().get_internal_stats("jobs-partition-2")
        admin.topics().get_stats("empty")
        assert tree(tmp_path) == before


def test_looking_trims_nothing(store_path: Path, time: ManualTime):
    """Although its time has come; the first use of the topic does it, also after a look."""
    time.client.close()
    (store_path / "broker.conf").write_text(
        "managedLedgerMaxEntriesPerLedger=5\ndefaultRetentionTimeInMinutes=1\ndefaultRetentionSizeInMB=-1\n"
    )
    time.reopen()
    with time.client.create_producer("jobs") as producer:
        for number in range(12):
            producer.send(b"hello-%d" % number)
    time.client.close()
    time.pass_ms(600_000)
    before = tree(store_path)
    with Admin(store_path) as admin:
        for _ in range(3):
            assert len(admin.topics().get_internal_stats("jobs").ledgers) == 3
            time.pass_ms(300_000)
        assert tree(store_path) == before
        time.client = Client(store_path)
        with time.client.create_producer("jobs"):
            time.pass_ms(1000)
            assert len(admin.topics().get_internal_stats("jobs").ledgers) == 1


def test_locks_are_not_waited_for(tmp_path: Path):
    """Those of the topic and of its subscriptions may be held by processes that are stopped."""
    filled(tmp_path)
    with Admin(tmp_path) as admin:
        expected = look_at(admin.topics())
    (directory,) = (tmp_path / "topics").iterdir()
    locks = [
        lock_path(str(directory)),
        *(subscription_lock(str(directory), one) for one in ("work", "other")),
    ]
    with Admin(tmp_path) as admin, held_elsewhere(locks[0]), held_elsewhere(locks[1]):
        with held_elsewhere(locks[2]):
            assert look_at(admin.topics())[1:] == expected[1:]


def test_a_copy_is_looked_at(tmp_path: Path):
    """Its control words are of another store, so the topic is recovered, and the subscriptions are read from
    their files."""
    filled(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two", ignore=shutil.ignore_patterns("clients"))
    with Admin(tmp_path / "one") as admin:
        expected = look_at(admin.topics())
    with Admin(tmp_path / "two") as admin:
        found = look_at(admin.topics())
    assert found[2:] == expected[2:]
    assert found[1].cursors["work"] == expected[1].cursors["work"]
    assert found[0].subscriptions == expected[0].subscriptions and found[0].msg_in_counter == 20
    assert_clean(tmp_path / "two")


@pytest.mark.parametrize("content", [None, b"EPCT"])
def test_control_words_that_are_lost(tmp_path: Path, content: bytes | None):
    """A power loss may take them; what is acknowledged is in the journal."""
    filled(tmp_path)
    with Admin(tmp_path) as admin:
        expected = look_at(admin.topics())
        for control in tmp_path.glob("topics/*/subscriptions/*/ctl"):
            control.unlink()
            if content is not None:
                control.write_bytes(content)
        assert look_at(admin.topics())[1:] == expected[1:]


def test_journals_that_are_compacted_meanwhile(tmp_path: Path):
    """A look follows from one generation of the journal to the next, and from one life of a subscription to
    the next."""
    with Client(tmp_path) as client, Admin(tmp_path) as admin:
        topics = admin.topics()
        producer = client.create_producer("jobs")
        use = client._core.store.use_topic("jobs")
        for _ in range(3):
            consumer = client.subscribe("jobs", "work", ConsumerType.Shared)
            for number in range(30):
                producer.send(b"hello-%d" % number)
                consumer.acknowledge(consumer.receive())
                client._core.save(5.0)
                assert topics.get_stats("jobs").subscriptions["work"].msg_backlog == 0
                if number % 7 == 0:
                    shared: Any = use.topic.subscription("work")._existing()
                    shared.transact(lambda _, shared=shared: shared._journal.compact(0))
            producer.send(b"hello-30")
            assert topics.get_stats("jobs").subscriptions["work"].msg_backlog == 1
            assert numbers(topics.peek_messages("jobs", "work", 10)) == [30]
            assert len(receive_all(consumer)) == 1
            consumer.unsubscribe()
            assert topics.get_subscriptions("jobs") == []
        use.release()
    assert_clean(tmp_path)
