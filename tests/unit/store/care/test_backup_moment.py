"""What a backup is a picture of, positions at its start and messages at the end; and what it uses again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from embeddedpulsar import Admin, Client, ConsumerType, Function, InitialPosition, MessageId
from embeddedpulsar._engine.platform import disk, failpoints
from embeddedpulsar._engine.store.care import store_backup
from embeddedpulsar._engine.store.care.backup_target import FileRecord, Manifest, read_manifest
from embeddedpulsar.exceptions import StorageError, StorageFullError
from embeddedpulsar.functions import FunctionConfig, LocalRunner, ProcessingGuarantees
from embeddedpulsar.policy_values import OffloadPolicies
from embeddedpulsar.schema import AvroSchema
from embeddedpulsar.testing import assert_clean
from tests.conformance.chunks import log_of

assert store_backup  # imported: it declares the failpoints
EARLIEST = InitialPosition.Earliest
KINDS = (ConsumerType.Exclusive, ConsumerType.Shared, ConsumerType.Failover, ConsumerType.KeyShared)
SETTINGS = "managedLedgerMaxSizePerLedgerMbytes=1\nmanagedLedgerMaxEntriesPerLedger=20\n"


class Site:
    """A store with an open client, and backups of it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.root, self.target = place / "store", place / "backup"
        self.root.mkdir()
        (self.root / "broker.conf").write_text(SETTINGS)
        self._restored = 0
        self.open()

    def open(self) -> None:
        """Open the store."""
        self.client, self.admin = Client(self.root), Admin(self.root)
        self.topics = self.admin.topics()

    def close(self) -> None:
        """Let go of the store."""
        self.admin.close()
        self.client.close()

    def keep(self, *names: str) -> None:
        """Make topics that keep what is acknowledged."""
        for name in names:
            self.topics.create_non_partitioned_topic(name)
            self.topics.set_retention(name, -1, -1)

    def send(self, topic: str, *numbers: int) -> None:
        """One message for each number."""
        with self.client.create_producer(topic) as producer:
            for number in numbers:
                producer.send(b"%d" % number)

    def consume(self, topic: str, name: str, count: int, kind: ConsumerType = ConsumerType.Shared) -> None:
        """Acknowledge the next messages of a subscription."""
        with self.client.subscribe(topic, name, kind, initial_position=EARLIEST) as consumer:
            for _ in range(count):
                consumer.acknowledge(consumer.receive(1000))

    def backup_while(self, point: str, work: Callable[[], object], nth: int = 1) -> None:
        """Back up, and do something else when a step is reached."""
        failpoints.set(point, work, nth=nth)
        try:
            self.admin.backup(self.target)
        finally:
            failpoints.clear()

    def restore(self) -> Path:
        """A store of the backup, checked."""
        self._restored += 1
        place = self.place / f"restored-{self._restored}"
        Admin.restore(self.target, place)
        assert_clean(place)
        return place


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.close()
    assert_clean(made.root)


def left(root: Path, topic: str, name: str) -> list[int]:
    """What a subscription gives."""
    with Client(root) as client:
        consumer = client.subscribe(topic, name, ConsumerType.Shared, initial_position=EARLIEST)
        found = []
        while (message := consumer.receive_nowait()) is not None:
            found.append(int(message.data()))
        return found


def logged(root: Path, topic: str) -> list[int]:
    """The numbers in a log."""
    with Client(root) as client, client.create_reader(topic, MessageId.earliest) as reader:
        return [int(message.data()) for message in reader]


# -- which files are used again --------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("more", [0, 8])
def test_a_subscription_that_was_made_again(site: Site, kind: ConsumerType, more: int):
    """The second backup has the commands of the new one, whether they are as many or more."""
    site.keep("t")
    site.send("t", *range(5))
    site.consume("t", "s", 5, kind)
    site.admin.backup(site.target)
    site.client.subscribe("t", "s", kind).unsubscribe()
    for _ in range(1 + more):
        site.client.subscribe("t", "s", kind, initial_position=EARLIEST).close()
    site.admin.backup(site.target)
    assert left(site.restore(), "t", "s") == [*range(5)]


def test_a_topic_that_was_made_again(site: Site):
    """Its producers, log, schemas and policies are those of the new one."""
    for life in range(2):
        with site.client.create_producer("t", f"p{life}") as producer:
            producer.send(b"%d" % life)
        site.topics.set_retention("t", life + 1, life + 1)
        site.admin.backup(site.target)
        place = site.restore()
        assert logged(place, "t") == [life]
        with Admin(place) as admin:
            retention = admin.topics().get_retention("t")
            assert retention is not None
            assert retention.time_minutes == life + 1
        site.topics.delete("t", force=True)


def test_a_small_document_that_changes_within_a_moment(site: Site):
    """Length, inode and times of a document may be those of the one before: its content tells."""
    site.keep("t")
    (policies,) = site.root.rglob("topics/*/policies")
    before = policies.stat()
    site.admin.backup(site.target)
    site.topics.set_retention("t", 7, 9)
    other = policies.read_bytes()
    site.topics.set_retention("t", 8, 8)
    assert len(other) == policies.stat().st_size
    with policies.open("r+b") as file:
        file.write(policies.read_bytes())
    os.utime(policies, ns=(before.st_atime_ns, before.st_mtime_ns))
    site.admin.backup(site.target)
    with Admin(site.restore()) as admin:
        retention = admin.topics().get_retention("t")
        assert retention is not None
        assert (retention.time_minutes, retention.size_mb) == (8, 8)


def test_a_journal_that_lost_its_end(site: Site):
    """A power loss may take the last commands; others stand in their place, behind the same header."""
    site.keep("t")
    site.send("t", *range(9))
    with site.client.subscribe("t", "s", initial_position=EARLIEST, ack_group_time_ms=0) as consumer:
        messages = [consumer.receive(1000) for _ in range(9)]
    site.close()
    copy = site.place / "early"
    shutil.copytree(site.root, copy)
    ends = []
    for root, numbers in ((site.root, range(6)), (copy, range(8, 0, -1))):
        if root is copy:  # what the power loss left, in the files that there are
            for path in copy.rglob("subscriptions/*/*"):
                (site.root / path.relative_to(copy)).write_bytes(path.read_bytes())
        site.open()
        with site.client.subscribe("t", "s", ConsumerType.Shared, ack_group_time_ms=0) as consumer:
            for number in numbers:
                consumer.acknowledge(messages[number])
        site.admin.backup(site.target)
        ends.append(left(site.restore(), "t", "s"))
        if root is site.root:
            site.close()
    assert ends == [[6, 7, 8], [0]]


def test_a_store_that_was_restored_from_an_older_copy(site: Site):
    """It may go on in the directory of the later backup: what is there of another future is not used."""
    site.send("t", *range(3))
    site.admin.backup(site.target)
    older = site.place / "older"
    shutil.copytree(site.target, older)
    site.send("t", *range(3, 9))
    site.admin.backup(site.target)
    Admin.restore(older, site.place / "again")
    with Client(site.place / "again") as client, client.create_producer("t") as producer:
        for number in range(100, 112):
            producer.send(b"%d" % number)
    with Admin(site.place / "again") as admin:
        admin.backup(site.target)
    assert logged(site.restore(), "t") == [0, 1, 2, *range(100, 112)]


def test_an_object_that_is_lost_is_copied_again(site: Site):
    """Removed, cut short, or changed at its end; the manifest names it all the same."""
    site.send("t", *range(50))
    site.consume("t", "s", 3)
    site.admin.backup(site.target)
    objects = sorted(path for path in (site.target / "objects").rglob("*") if path.is_file())
    for number, path in enumerate(objects):
        data = path.read_bytes()
        if number % 3 == 0:
            path.unlink()
        elif number % 3 == 1:
            path.write_bytes(data[: len(data) // 2])
        elif len(data) > 4:
            path.write_bytes(data[:-1])
    site.admin.backup(site.target)
    place = site.restore()
    assert logged(place, "t") == [*range(50)]
    assert left(place, "t", "s") == [*range(3, 50)]


def old_identity(root: Path, record: FileRecord) -> int:
    """As releases before wrote it: a CRC-32 over the beginning, which ends with its own, or 0."""
    name = record.path.rpartition("/")[2]
    data = (root / record.path).read_bytes() if (root / record.path).exists() else b""
    if name.startswith("journal."):
        return crc32(data[:64])
    return crc32(data[:4096]) if name.endswith(".log") else 0


def test_a_backup_of_the_release_before(site: Site):
    """It can be restored. The next backup into its directory copies every file anew, once; until its manifest
    is there the old one is whole."""
    site.keep("t")
    site.send("t", *range(5))
    site.consume("t", "s", 5)
    size = site.admin.backup(site.target).size
    manifest = read_manifest(str(site.target))
    assert manifest is not None
    files = {
        path: record._replace(identity=old_identity(site.root, record))
        for path, record in manifest.files.items()
    }
    Manifest(*manifest._replace(files=files)).write(str(site.target))
    assert left(site.restore(), "t", "s") == []
    site.client.subscribe("t", "s").unsubscribe()
    for _ in range(9):
        site.client.subscribe("t", "s", initial_position=EARLIEST).close()
    with pytest.raises(failpoints.InjectedFailure):
        site.backup_while("backup:objects_done", lambda: failpoints._raise(failpoints.InjectedFailure()))
    assert left(site.restore(), "t", "s") == []
    report = site.admin.backup(site.target)
    assert report.copied == report.size > size
    assert left(site.restore(), "t", "s") == [*range(5)]
    assert site.admin.backup(site.target).copied < 1000


# -- the moment ------------------------------------------------------------------------------------

STEPS = ("backup:journals_taken", "backup:sinks_taken", "backup:cut", "backup:logs_taken")


@pytest.mark.parametrize("names", [("a", "z"), ("z", "a")])
@pytest.mark.parametrize("point", STEPS)
def test_a_message_that_is_passed_on(site: Site, point: str, names: tuple[str, str]):
    """It is unacknowledged in the one topic, or in the other, however their names are sorted; the other may
    have been made meanwhile."""
    source, target = names
    site.keep(source)
    site.client.subscribe(source, "s", initial_position=EARLIEST).close()
    site.send(source, *range(4))

    def pass_on() -> None:
        with site.client.subscribe(source, "s", ack_group_time_ms=0) as consumer:
            for _ in range(2):
                message = consumer.receive(1000)
                site.send(target, int(message.data()))
                consumer.acknowledge(message)

    site.keep(target)
    pass_on()
    site.backup_while(point, pass_on)
    place = site.restore()
    unacked, outputs = left(place, source, "s"), logged(place, target)
    assert {*unacked, *outputs} == {*range(4)}
    assert not {0, 1} & set(unacked)


def test_an_output_topic_that_is_made_meanwhile(site: Site):
    """What was acknowledged of topics that come later has its effect in a topic that was not listed first."""
    site.keep("a", "b")
    for topic in ("a", "b"):
        site.client.subscribe(topic, "s", initial_position=EARLIEST).close()
        site.send(topic, 1)

    def once() -> None:
        failpoints.clear()  # the first file was copied: it is of the topic a
        site.send("new", 1)
        site.consume("b", "s", 1)

    site.backup_while("backup:object_written", once)
    place = site.restore()
    assert left(place, "b", "s") == [1] or logged(place, "new") == [1]


class Count(Function):
    """Counts its inputs, and passes them on."""

    def process(self, value: Any, context: Any) -> Any:
        context.incr_counter("n", 1)
        return value


def counting(client: Client) -> LocalRunner:
    """An effectively-once function from ``in`` to ``out``."""
    guarantee = ProcessingGuarantees.EFFECTIVELY_ONCE
    config = FunctionConfig(name="w", inputs=["in"], output="out", processing_guarantees=guarantee)
    return LocalRunner(config, Count, client=client)


@pytest.mark.parametrize("step", ["processed", "committed", "published", "settled", "acknowledged"])
def test_a_function_at_each_step_of_a_commit(site: Site, step: str):
    """Each input that the restored store has is counted once, and has one output."""
    site.keep("in", "out")
    runner = counting(site.client)
    site.send("in", *range(3))
    runner.run_until_idle()
    site.send("in", *range(3, 6))
    failpoints.set(f"function:{step}", lambda: site.admin.backup(site.target))
    runner.run_until_idle()
    failpoints.clear()
    runner.stop()
    check_counted(site.restore(), 6)


@pytest.mark.parametrize("point", STEPS)
@pytest.mark.parametrize("is_new", [False, True])
def test_a_function_that_commits_at_each_step_of_a_backup(site: Site, point: str, is_new: bool):
    """By the instance that is there, or by a new one under another name."""
    site.keep("in", "out")
    with counting(site.client) as runner:
        site.send("in", *range(3))
        runner.run_until_idle()
    with counting(site.client) as runner:
        if is_new:
            runner.run_until_idle()

        def commit() -> None:
            site.send("in", 3, 4, 5)
            with counting(site.client) as other:
                (runner if is_new else other).run_until_idle()

        site.backup_while(point, commit)
    check_counted(site.restore(), None)


def test_a_function_that_commits_all_the_time_waits(site: Site):
    """After some attempts its lock is taken while the ends of the logs are read."""
    site.keep("in", "out")
    tries = [0]
    with counting(site.client) as runner:
        site.send("in", 0)
        runner.run_until_idle()

        def commit() -> None:
            tries[0] += 1
            if tries[0] > 3:  # the backup has the lock
                return
            site.send("in", tries[0])
            runner.run_until_idle()

        site.backup_while("backup:cut", commit, nth=0)
    assert tries == [4]
    check_counted(site.restore(), 4)


def check_counted(place: Path, count: int | None) -> None:
    """Run the function to its end, and compare."""
    with Client(place) as client, Admin(place) as admin:
        with counting(client) as runner:
            runner.run_until_idle()
        inputs, outputs = logged(place, "in"), logged(place, "out")
        assert sorted(outputs) == inputs
        assert count is None or len(inputs) == count
        assert admin.functions().get_function_state("public", "default", "w", "n") == len(inputs)
    assert_clean(place)


@pytest.mark.parametrize("point", [*STEPS, "backup:objects_done"])
def test_a_producer_whose_name_comes_back(site: Site, point: str):
    """Its journal is as of the end of the log: nothing is stored twice, and nothing that is missing is
    dropped."""
    site.keep("t")
    site.topics.set_deduplication_status("t", True)

    def send(first: int, end: int) -> None:
        with site.client.create_producer("t", "p") as producer:
            for number in range(first, end):
                producer.send(b"%d" % number, sequence_id=number + 1)

    send(0, 3)
    site.backup_while(point, lambda: send(3, 6))
    place = site.restore()
    with Client(place) as client, client.create_producer("t", "p") as producer:
        assert producer.last_sequence_id() == len(logged(place, "t"))
        for number in range(8):
            producer.send(b"%d" % number, sequence_id=number + 1)
    assert logged(place, "t") == [*range(8)]


def record(*names: str) -> AvroSchema:
    """A schema with fields of these names."""
    fields = [{"name": name, "type": "int", "default": 0} for name in names]
    return AvroSchema(None, schema_definition={"type": "record", "name": "R", "fields": fields})


@pytest.mark.parametrize("point", STEPS)
@pytest.mark.parametrize("partitions", [0, 2])
def test_a_schema_that_is_new(site: Site, point: str, partitions: int):
    """Each message has its schema, and no other schema takes its version."""
    if partitions:
        site.topics.create_partitioned_topic("t", partitions)
        site.topics.set_retention("t", -1, -1)
    else:
        site.keep("t")

    def send(*names: str) -> None:
        with site.client.create_producer("t", schema=record(*names)) as producer:
            producer.send(dict.fromkeys(names, 7))

    def rows(root: Path) -> list[dict[str, int]]:
        with Client(root) as client:
            found = []
            with client.create_reader("t", MessageId.earliest, schema=record("a", "b")) as reader:
                for message in reader:
                    value = message.value()
                    found.append({name: value[name] for name in ("a", "b")})
            return found

    send("a")
    site.backup_while(point, lambda: send("a", "b"))
    place = site.restore()
    before = sorted(map(str, rows(place)))
    with Client(place) as client, client.create_producer("t", schema=record("a", "c")) as producer:
        producer.send({"a": 1, "c": 9})
    assert sorted(map(str, rows(place)))[1:] == before or str({"a": 1, "b": 0}) in map(str, rows(place))
    assert set(before) <= set(map(str, rows(place)))


def test_what_is_trimmed_and_offloaded_meanwhile(site: Site):
    """The positions of that topic are taken again; of an offloaded ledger the note is copied."""
    site.topics.create_non_partitioned_topic("t")
    site.client.subscribe("t", "s", initial_position=EARLIEST).close()
    site.send("t", *range(50))
    site.consume("t", "s", 5)

    def trim() -> None:
        site.consume("t", "s", 20)
        assert site.topics.trim_topic("t") == 1

    site.backup_while("backup:cut", trim)
    assert left(site.restore(), "t", "s") == [*range(25, 50)]

    def offload() -> None:
        site.topics.set_offload_policies("t", OffloadPolicies(str(site.place / "cold")))
        log_of(site.client, "t").roll()
        site.topics.offload("t")
        while site.topics.offload_status("t").status == "RUNNING":
            pass

    shutil.rmtree(site.target)
    site.backup_while("backup:cut", offload)
    assert left(site.restore(), "t", "s") == [*range(25, 50)]


def test_a_store_that_is_trimmed_all_the_time(site: Site):
    """A ledger that goes before it is copied, again and again: an error; the backup before stays."""
    site.topics.create_non_partitioned_topic("t")
    site.client.subscribe("t", "s", initial_position=EARLIEST).close()
    site.send("t", 0)
    site.admin.backup(site.target)

    def trim() -> None:
        log_of(site.client, "t").roll()
        site.send("t", 1)
        site.consume("t", "s", 1)
        site.topics.trim_topic("t")

    failpoints.set("backup:cut", trim, nth=0)
    with pytest.raises(StorageError, match="trimmed or compacted whenever"):
        site.admin.backup(site.target)
    failpoints.clear()
    assert left(site.restore(), "t", "s") == [0]


def test_topics_that_go_and_come_meanwhile(site: Site):
    """A topic that is deleted while its files are copied is not in the backup, nor is its next life."""
    site.keep("a", "b")
    site.send("a", 1)
    site.send("b", 1)

    def again() -> None:
        site.topics.delete("b", force=True)
        site.send("b", 2)

    site.backup_while("backup:logs_taken", again)
    place = site.restore()
    with Admin(place) as admin:
        assert [name.rpartition("/")[2] for name in admin.topics().get_list()] == ["a"]
    site.admin.backup(site.target)
    assert logged(site.restore(), "b") == [2]


# -- a restored store that nobody has used ---------------------------------------------------------


def test_statistics_of_a_restored_topic(site: Site):
    """Subscriptions with their backlogs, schemas and producers, also of a topic without a message."""
    site.keep("one", "empty", "named")
    site.send("one", *range(9))
    site.consume("one", "s", 4)
    site.topics.create_subscription("empty", "waits")
    site.topics.create_partitioned_topic("parts", 2)
    site.topics.create_subscription("parts", "s")
    site.client.create_producer("named", "p", schema=record("a")).close()
    site.admin.backup(site.target)
    place = site.restore()
    with Admin(place) as admin:
        topics = admin.topics()
        stats = topics.get_stats("one")
        assert {name: one.msg_backlog for name, one in stats.subscriptions.items()} == {"s": 5}
        assert stats.publishers == ()
        assert {*topics.get_stats("empty").subscriptions} == {"waits"}
        assert topics.get_subscriptions("empty") == ["waits"]
        assert {*topics.get_internal_stats("empty").cursors} == {"waits"}
        assert {*topics.get_partitioned_stats("parts").totals.subscriptions} == {"s"}
        schema = admin.schemas().get_schema_info("named")
        assert schema is not None and schema.version == 0
        assert topics.get_stats("named").publishers == ()
    assert_clean(place)


# -- a full disk -----------------------------------------------------------------------------------


def test_a_full_disk(site: Site, monkeypatch: pytest.MonkeyPatch):
    """The backup before is as it was, and what was written of the new one is gone; the next one is whole."""
    site.keep("t")
    site.send("t", *range(5))
    site.admin.backup(site.target)
    files = sorted(site.target.rglob("*"))
    for number in range(40, 60):
        site.send("t", number)

    class Full(disk.Disk):
        """A disk without room for the manifest."""

        def atomic_write(self, path: str, data: Any, durable: bool) -> None:
            if path.endswith("manifest"):
                raise StorageFullError(f"cannot write {path}")
            super().atomic_write(path, data, durable)

    monkeypatch.setattr(disk, "DISK", Full())
    with pytest.raises(StorageFullError):
        site.admin.backup(site.target)
    monkeypatch.undo()
    assert sorted(path for path in site.target.rglob("*") if path.is_file()) == [
        path for path in files if path.is_file()
    ]
    assert logged(site.restore(), "t") == [*range(5)]
    site.admin.backup(site.target)
    assert logged(site.restore(), "t") == [*range(5), *range(40, 60)]
