"""Offloading: ledgers go to a location and come back, byte for byte, whatever is in them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from embeddedpulsar import Admin, InitialPosition, MessageId
from embeddedpulsar._engine.platform import lease, threads
from embeddedpulsar.arrow import ALL_COLUMNS, read_topic
from embeddedpulsar.arrow.schema import PLACE_COLUMNS
from embeddedpulsar.exceptions import InvalidConfiguration, NotAllowedError
from embeddedpulsar.policy_values import OffloadPolicies
from embeddedpulsar.testing import assert_clean
from tests.conformance.offloading import PER_LEDGER, TOPIC, Site, finished
from tests.support.key_files import key_files
from tests.support.mixed_topics import MixedTopic


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.close()
    assert_clean(made.root)


def test_messages_come_back(site: Site) -> None:
    """A reader and a consumer get what they got before; the logs are away, but for the last ledger."""
    ids = site.publish(35)
    before = site.read_all()
    assert [found for found, _ in before] == ids
    assert site.offload() == ""
    assert site.logs() == [ids[-1].ledger_id()]
    assert len(site.notes()) == 3 and len(site.objects()) == 9
    site.reopen()
    assert site.read_all() == before
    assert len(site.logs()) == 4
    with site.client.subscribe(TOPIC, "s", initial_position=InitialPosition.Earliest) as consumer:
        for found, payload in before:
            message = consumer.receive(1000)
            assert (message.message_id(), message.data()) == (found, payload)
            consumer.acknowledge(message)


def test_logs_come_back_byte_for_byte(tmp_path: Path) -> None:
    """Entries of every kind: batches, single ones, all codecs, chunks, encrypted ones, and null values."""
    site = Site(
        tmp_path, maxMessageSize=3000, brokerDeduplicationEnabled="true", managedLedgerMaxEntriesPerLedger=60
    )
    topic = MixedTopic(site.client, 7, keys=key_files(tmp_path))
    topic.run(14)
    site.roll("mixed")
    before = site.read_all_ids("mixed")
    site.admin.topics().set_offload_policies("mixed", OffloadPolicies(str(site.cold)))
    logs = {path.name: path.read_bytes() for path in site.directory().glob("*.log")}
    tables = []
    assert site.offload("mixed") == ""
    for path in site.directory().glob("*.cold"):
        (site.directory() / f"{path.stem}.log").unlink()
    site.reopen()
    assert site.read_all_ids("mixed") == before
    for path in sorted(site.directory().glob("*.log")):
        found = path.read_bytes()
        assert logs[path.name][: len(found)] == found
        tables.append(path.name)
    assert len(tables) > 3
    kinds = {path.name.split(".")[1] for path in site.objects()}
    assert kinds == {"frames", "messages", "manifest"}
    assert len([path for path in site.objects() if "messages" in path.name]) < len(tables)  # encrypted ones
    site.close()
    assert_clean(site.root)


def test_the_table_of_messages_is_what_a_batch_read_gives(site: Site) -> None:
    """For other programs: one row for each message, with its place; and a manifest that says what it is."""
    ids = site.publish(20)
    site.roll()
    before = read_topic(site.root, TOPIC)
    placed = read_topic(site.root, TOPIC, PLACE_COLUMNS)
    assert site.offload() == ""
    tables = [pq.read_table(path) for path in site.objects() if "messages" in path.name]
    rows = [row for table in tables for row in table.select(ALL_COLUMNS).to_pylist()]
    assert rows == before.to_pylist()
    assert [row for table in tables for row in table.select(PLACE_COLUMNS).to_pylist()] == placed.to_pylist()
    assert placed.to_pylist()[11] == {"__ledgerId": ids[11].ledger_id(), "__entryId": 1, "__batchIndex": -1}
    manifest = json.loads(next(path for path in site.objects() if "manifest" in path.name).read_text())
    assert (manifest["topic"], manifest["rows"]) == (f"persistent://public/default/{TOPIC}", 10)
    assert read_topic(site.root, TOPIC).to_pylist() == before.to_pylist()
    part = read_topic(site.root, TOPIC, start=ids[4], end=ids[13])
    assert part.to_pylist() == before.slice(4, 9).to_pylist()
    assert len(site.logs()) == 1  # no log was fetched


def test_positions_and_counts_need_no_location(site: Site) -> None:
    """Seeking, statistics and backlogs are answered by the index, which stays."""
    ids = site.publish(35)
    consumer = site.client.subscribe(TOPIC, "s", initial_position=InitialPosition.Earliest)
    consumer.acknowledge_cumulative(ids[14])
    consumer.close()
    before = site.admin.topics().get_stats(TOPIC)
    kept = site.admin.why_kept(TOPIC)
    assert site.offload() == ""
    logs = site.logs()
    site.reopen()
    stats = site.admin.topics().get_stats(TOPIC)
    assert stats.subscriptions["s"].msg_backlog == before.subscriptions["s"].msg_backlog == 20
    assert stats.storage_size == before.storage_size
    assert stats.offloaded_storage_size == sum(one.size for one in kept.ledgers[:3]) > 0
    assert stats.last_offload_ledger_id == ids[29].ledger_id()
    assert stats.last_offload_success_time_stamp and not stats.last_offload_failure_time_stamp
    consumer = site.client.subscribe(TOPIC, "s")
    assert site.logs() == logs
    consumer.seek(ids[7])
    assert site.admin.topics().get_stats(TOPIC).subscriptions["s"].msg_backlog == 27
    assert [one.offloaded for one in site.admin.topics().get_internal_stats(TOPIC).ledgers] == [True] * 3 + [
        False
    ]
    after = site.admin.why_kept(TOPIC)
    assert [one.reason for one in after.ledgers] == ["backlog"] * 3 + ["open"]
    assert [one.is_offloaded for one in after.ledgers] == [True] * 3 + [False]
    assert site.admin.topics().get_message_id_by_timestamp(TOPIC, 0).ledger_id() == ids[0].ledger_id()
    assert consumer.receive(1000).message_id() == ids[8]
    assert site.logs() == [ids[0].ledger_id(), *logs]


def test_what_was_fetched_back_is_bounded(site: Site) -> None:
    """However many ledgers are read, a few logs are here; they go after the lag."""
    ids = site.publish(100)
    assert site.offload() == ""
    assert len(site.logs()) == 1
    assert [found for found, _ in site.read_all()] == ids
    assert 1 < len(site.logs()) <= 5
    assert site.offload() == ""
    assert len(site.logs()) == 1
    assert [found for found, _ in site.read_all()] == ids


def test_the_lag_keeps_the_log(tmp_path: Path) -> None:
    """It stays beside the objects as long as the policy says."""
    site = Site(tmp_path, lag_ms=3_600_000)
    site.publish(25)
    assert site.offload() == ""
    assert len(site.logs()) == 3 and len(site.notes()) == 2
    site.admin.namespaces().remove_offload_policies("public/default")
    site.admin.namespaces().set_offload_policies("public/default", OffloadPolicies(str(site.cold)))
    site.admin.namespaces().set_offload_deletion_lag("public/default", 0)
    assert site.offload() == ""
    assert len(site.logs()) == 1 and len(site.objects()) == 6
    site.close()


def test_a_size_and_a_message_say_how_far(site: Site) -> None:
    """`offload` keeps so many bytes, `trigger_offload` begins before the ledger of a message."""
    ids = site.publish(45)
    sizes = [one.size for one in site.admin.why_kept(TOPIC).ledgers]
    assert site.offload(size_threshold=sum(sizes)) == "" and not site.notes()
    assert site.offload(size_threshold=sum(sizes[1:])) == "" and len(site.notes()) == 1
    finished(site.admin, TOPIC, lambda: site.admin.topics().trigger_offload(TOPIC, ids[25]))
    assert site.notes() == [ids[0].ledger_id(), ids[10].ledger_id()]
    with pytest.raises(InvalidConfiguration):
        site.admin.topics().offload(TOPIC, -1)
    with pytest.raises(ValueError, match="message_id is a MessageId, not 5"):
        site.admin.topics().trigger_offload(TOPIC, 5)


def test_without_a_location(tmp_path: Path) -> None:
    """The error says what to set; and a topic in memory is refused."""
    site = Site(tmp_path)
    site.admin.namespaces().remove_offload_policies("public/default")
    site.publish(1)
    with pytest.raises(InvalidConfiguration, match=r"no location is set for .*set_offload_policies"):
        site.admin.topics().offload(TOPIC)
    site.admin.topics().set_offload_policies(TOPIC, OffloadPolicies("nosuch://place"))
    with pytest.raises(InvalidConfiguration, match="no file system for the location nosuch://place"):
        site.admin.topics().offload(TOPIC)
    assert site.admin.topics().offload_status(TOPIC).status == "NOT_RUN"
    site.publish(1, "non-persistent://public/default/volatile")
    with pytest.raises(NotAllowedError, match="kept in memory"):
        site.admin.topics().offload("non-persistent://public/default/volatile")
    site.close()


def test_trimming_removes_the_objects(site: Site) -> None:
    """Retention counts for offloaded ledgers as for others."""
    ids = site.publish(35)
    assert site.offload() == ""
    with site.client.subscribe(TOPIC, "s", initial_position=InitialPosition.Earliest) as consumer:
        consumer.acknowledge_cumulative(ids[24])
    site.admin.topics().set_retention(TOPIC, 0, 0)
    site.admin.topics().trim_topic(TOPIC)
    assert site.offload() == ""
    assert site.notes() == [ids[29].ledger_id()] and len(site.objects()) == 3
    assert [found for found, _ in site.read_all()] == ids[20:]


def test_deleting_a_topic_removes_the_objects(site: Site) -> None:
    """At once; the next life of the name has others."""
    site.publish(25)
    assert site.offload() == ""
    site.admin.topics().delete(TOPIC, force=True)
    assert site.objects() == []
    site.publish(25)
    assert site.offload() == ""
    assert len(site.objects()) == 6 and len(site.read_all()) == 25


def test_partitions_are_offloaded_one_by_one(site: Site) -> None:
    """Each has its own folder; the status is that of all."""
    site.admin.topics().create_partitioned_topic(TOPIC, 2)
    with site.client.create_producer(TOPIC) as producer:
        for number in range(60):
            producer.send(b"%d" % number)
    before = read_topic(site.root, TOPIC).to_pylist()
    site.admin.topics().offload(TOPIC)
    finished(site.admin, TOPIC, int)
    assert len({path.parent for path in site.objects()}) == 2
    assert site.admin.topics().offload_status(TOPIC).status == "SUCCESS"
    assert read_topic(site.root, TOPIC).to_pylist() == before


def test_a_topic_that_was_not_used(site: Site) -> None:
    """Has a status, too."""
    site.admin.topics().create_non_partitioned_topic("fresh")
    assert site.admin.topics().offload_status("fresh").json() == {"status": "NOT_RUN", "lastError": ""}
    with pytest.raises(Exception, match="no such topic"):
        site.admin.topics().offload("absent")


def test_the_smallest_ledgers(site: Site) -> None:
    """One message each; empty ledgers stay."""
    ids = []
    for _ in range(3):
        ids += site.publish(1)
        site.roll()
        site.roll()
    assert site.offload() == ""
    assert len(site.notes()) == 3
    site.reopen()
    assert [found for found, _ in site.read_all()] == ids


def test_a_reader_may_be_in_the_middle(site: Site) -> None:
    """It has the log mapped and reads on; one that begins later fetches."""
    ids = site.publish(35)
    reader: Any = site.client.create_reader(TOPIC, MessageId.earliest, receiver_queue_size=1)
    found = [reader.read_next(1000).message_id() for _ in range(3)]
    assert site.offload() == ""
    found += [reader.read_next(1000).message_id() for _ in range(32)]
    assert found == ids
    reader.close()


def test_a_store_is_recovered_with_its_ledgers_away(site: Site) -> None:
    """After a boot the log is put together from the notes and what is here."""
    ids = site.publish(35)
    assert site.offload() == ""
    site.close()
    for path in site.root.glob("topics/*/ctl"):
        path.unlink()
    site.reopen()
    assert len(site.logs()) == 1  # nothing was fetched for it
    assert [found for found, _ in site.read_all()] == ids
    site.publish(1)


def test_an_index_that_is_lost_is_derived_again(site: Site) -> None:
    """From the log, which is fetched for it."""
    ids = site.publish(25)
    assert site.offload() == ""
    site.close()
    first = site.directory() / f"{ids[0].ledger_id():020d}.idx"
    first.unlink()
    second = site.directory() / f"{ids[10].ledger_id():020d}.idx"
    damaged = bytearray(second.read_bytes())
    damaged[4096 + 24] ^= 0xFF
    second.write_bytes(damaged)
    site.reopen()
    with site.client.create_reader(TOPIC, ids[3]) as reader:
        assert reader.read_next(1000).message_id() == ids[4]
    with site.client.create_reader(TOPIC, ids[10]) as reader:
        assert reader.read_next(1000).message_id() == ids[11]
    assert PER_LEDGER == 10


def test_an_admin_in_another_store_handle(site: Site) -> None:
    """Offloading is refused while it goes on elsewhere, and the status shows it."""
    from embeddedpulsar._engine.filenames import offload_lock_path
    from embeddedpulsar._engine.platform.file_lock import FileLock

    site.publish(15)
    lock = FileLock(offload_lock_path(str(site.directory())))
    lock.acquire()
    try:
        assert site.admin.topics().offload_status(TOPIC).status == "RUNNING"
        with pytest.raises(NotAllowedError, match="being offloaded already"), Admin(site.root) as other:
            other.topics().offload(TOPIC)
    finally:
        lock.release()
        lock.close()


def test_a_check_looks_at_the_location(tmp_path: Path) -> None:
    """Objects that are missing or too short are found, and the index; nothing is fetched."""
    site = Site(tmp_path)
    ids = site.publish(35)
    assert site.offload() == ""
    site.close()
    assert_clean(site.root)
    one, other = [path for path in site.objects() if "frames" in path.name][:2]
    one.unlink()
    other.write_bytes(other.read_bytes()[:-1])
    (site.directory() / f"{ids[25].ledger_id():020d}.idx").unlink()
    with Admin(site.root) as admin:
        problems = admin.check(topic=TOPIC).problems
    assert [(problem.kind, problem.ledger_id) for problem in problems] == [
        ("offloaded", ids[0].ledger_id()),
        ("offloaded", ids[10].ledger_id()),
        ("index", ids[25].ledger_id()),
    ]
    assert "is missing" in problems[0].text and "bytes, not" in problems[1].text
    assert (problems[0].first_entry, problems[0].last_entry) == (0, 9)
    assert site.logs() == [ids[-1].ledger_id()]


def test_a_backup_shares_the_objects(site: Site, tmp_path: Path) -> None:
    """A store restored from it reads them, and never removes them."""
    ids = site.publish(35)
    assert site.offload() == ""
    site.admin.backup(tmp_path / "backup")
    Admin.restore(tmp_path / "backup", tmp_path / "restored")
    objects = site.objects()
    with Admin(tmp_path / "restored") as admin:
        assert [one.is_offloaded for one in admin.why_kept(TOPIC).ledgers] == [True] * 3 + [False]
        assert len(read_topic(tmp_path / "restored", TOPIC)) == len(ids)
        admin.topics().delete(TOPIC, force=True)
    assert site.objects() == objects
    assert [found for found, _ in site.read_all()] == ids


def test_a_repair_leaves_offloaded_ledgers_alone(site: Site) -> None:
    """There is nothing to repair."""
    ids = site.publish(35)
    assert site.offload() == ""
    site.close()
    with Admin(site.root) as admin:
        report = admin.repair()
    site.reopen()
    assert [found for found, _ in site.read_all()] == ids, report


def test_a_call_beside_what_begins_by_itself(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """An upkeep of this process that begins while the call looks for other processes is not one of them: the
    call joins it."""
    site.publish(25)
    assert site.offload() == ""
    site.publish(10)
    use = site.client._core.store.use_topic(TOPIC)
    work = use.topic.offload.get().work
    try_lock, is_asked = lease.try_lock, threads.Event()

    def begin_by_itself() -> None:
        work.begin(lambda: is_asked.wait(10), int, is_wanted=False)

    def look(*arguments: Any, **options: Any) -> bool:
        other = threads.start_daemon(begin_by_itself, "upkeep")
        other.join(0.2)  # not longer: it may have to wait for the end of the look
        return try_lock(*arguments, **options)

    def offload() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(lease, "try_lock", look)
            site.admin.topics().offload(TOPIC)
        is_asked.set()

    assert finished(site.admin, TOPIC, offload) == ""
    assert len(site.objects()) == 9
    use.release()
