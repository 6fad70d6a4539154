"""The replicated state over its files: recovery, durability, divergence, interruption."""

from __future__ import annotations

import os
import queue
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from embeddedpulsar._engine.format import subscription_record as record
from embeddedpulsar._engine.platform import disk, failpoints, timing
from embeddedpulsar._engine.subscription import shared_state
from embeddedpulsar._engine.subscription.subscription import Subscription
from embeddedpulsar._engine.subscription.subscription_files import SubscriptionControl
from embeddedpulsar.enums import ConsumerType
from embeddedpulsar.exceptions import (
    NotAllowedError,
    StorageError,
    StorageFullError,
    SubscriptionNotFound,
)
from embeddedpulsar.message_id import BEFORE_FIRST, Position
from embeddedpulsar.testing.manual_clock import ManualClock, ManualScheduler
from tests.subscription_site import SubscriptionSite, positions, read_all
from tests.support.disks.fake_disk import FakeDisk
from tests.support.disks.faulty_disk import FaultyDisk


@pytest.fixture
def site(tmp_path: Path) -> Iterator[SubscriptionSite]:
    with SubscriptionSite(tmp_path / "a", max_entries=10, segment_size=16 << 10) as made:
        yield made


def half_acknowledged(site: SubscriptionSite) -> tuple[list[Position], list[Position]]:
    """A subscription of 25 messages of which some are acknowledged, closed; all positions, and those left."""
    sent = site.publish(25)
    subscription = site.subscription()
    consumer = subscription.attach("c")
    read_all(consumer)
    consumer.acknowledge([*sent[:4], sent[7], sent[21]])
    subscription.close()
    return sent, [*sent[4:7], *sent[8:21], *sent[22:]]


def test_a_reboot_finds_the_state_in_the_journal(site: SubscriptionSite, monkeypatch: pytest.MonkeyPatch):
    """Another boot id: no word is believed, and nothing acknowledged comes back."""
    _, left = half_acknowledged(site)
    words = os.path.join(site.directory_of(), "ctl")
    monkeypatch.setattr(timing, "boot_id", lambda: b"another boot id!")
    with open(words, "r+b") as file:
        file.seek(128)
        file.write(os.urandom(8000))
    subscription = site.subscription(initial=None)
    assert subscription.exists()
    assert positions(read_all(subscription.attach("c"))) == left
    assert site.damage == []


def test_a_copied_store_is_a_store_of_its_own(site: SubscriptionSite, tmp_path: Path):
    """Another inode: recovered from its files, and independent of the original from then on."""
    sent, left = half_acknowledged(site)
    shutil.copytree(tmp_path / "a", tmp_path / "b", ignore=shutil.ignore_patterns("clients"))
    with SubscriptionSite(tmp_path / "b", max_entries=10, segment_size=16 << 10) as copy:
        subscription = copy.subscription(initial=None)
        consumer = subscription.attach("c")
        assert positions(read_all(consumer)) == left
        consumer.acknowledge(sent)
        assert consumer.backlog() == 0
    assert positions(read_all(site.subscription(initial=None).attach("c"))) == left


@pytest.mark.parametrize("damage", ["header", "cut", "gone"])
def test_a_damaged_ctl_is_made_anew(site: SubscriptionSite, damage: str):
    """The words are derived; nothing but the journal counts."""
    _, left = half_acknowledged(site)
    path = Path(site.directory_of(), "ctl")
    if damage == "header":
        path.write_bytes(b"EPCT" + b"\xff" * 100 + path.read_bytes()[104:])
    elif damage == "cut":
        path.unlink()
        path.write_bytes(b"EPCT")
    else:
        path.unlink()
    subscription = site.subscription(initial=None)
    assert positions(read_all(subscription.attach("c"))) == left


def test_a_header_that_another_process_is_writing_is_not_damaged(
    site: SubscriptionSite, monkeypatch: pytest.MonkeyPatch
):
    """The process that adopts the ctl holds the lock; the other waits for it, and has nothing to report."""
    _, left = half_acknowledged(site)
    path = Path(site.directory_of(), "ctl")
    whole = path.read_bytes()
    path.write_bytes(whole[:40] + bytes(24) + whole[64:])
    reload = SubscriptionControl.reload

    def finished(control: SubscriptionControl) -> None:
        path.write_bytes(whole)
        reload(control)

    monkeypatch.setattr(SubscriptionControl, "reload", finished)
    assert positions(read_all(site.subscription(initial=None).attach("c"))) == left
    assert site.damage == []


def test_a_live_consumer_survives_a_recovery_beside_it(
    site: SubscriptionSite, monkeypatch: pytest.MonkeyPatch
):
    """Somebody repairs the ctl while a consumer is attached: it looks again, and goes on."""
    sent = site.publish(12)
    subscription = site.subscription()
    consumer = subscription.attach("c")
    assert positions(consumer.read(5, 1 << 20)) == sent[:5]
    consumer.acknowledge(sent[:2])
    words = subscription._existing().control.view
    words[8:16] = b"\xff" * 8
    again = site.subscription(initial=None)
    assert again.mark_delete == sent[1]
    assert positions(read_all(consumer)) == sent[5:]
    assert consumer.acknowledge(sent)
    assert again.mark_delete >= sent[-1]


def test_nothing_left_to_read_starts_at_the_earliest_position(site: SubscriptionSite):
    """Loudly: messages come twice rather than not at all."""
    sent, _ = half_acknowledged(site)
    directory = Path(site.directory_of())
    journal = directory / "journal.1"
    journal.write_bytes(b"\xa5" * len(journal.read_bytes()))
    (directory / "ctl").unlink()
    subscription = site.subscription(initial=None)
    assert positions(read_all(subscription.attach("c"))) == sent
    assert any("acknowledgements of subscription 's' are lost" in str(error) for error in site.damage)


@pytest.mark.parametrize("what", ["everything", "all commands"])
def test_who_does_not_know_its_name_leaves_it_to_those_who_do(
    site: SubscriptionSite, monkeypatch: pytest.MonkeyPatch, what: str
):
    """Listing subscriptions must not make a damaged one look like one that never was: it would begin at the
    end of the log when it is opened again."""
    sent, _ = half_acknowledged(site)
    directory = Path(site.directory_of())
    journal = directory / "journal.1"
    data = journal.read_bytes()
    if what == "everything":
        journal.write_bytes(b"\xa5" * len(data))
        (directory / "ctl").unlink()
    else:  # the header is there, and the words say that more was
        journal.write_bytes(data[:64] + b"\xa5" * (len(data) - 64))
        monkeypatch.setattr(timing, "boot_id", lambda: b"another boot id!")
    for _ in range(2):
        nameless = Subscription.open(
            str(directory),
            managed_ledger=site.log,
            mailbox=site.mailbox,
            peers=site.peers,
            clock=site.clock,
            settings=site.settings,
            damage=site.damage.append,
        )
        assert nameless.name == ""
        nameless.exists()
        nameless.close()
    subscription = site.subscription(initial=None)
    assert subscription.exists()
    assert positions(read_all(subscription.attach("c"))) == sent
    assert any("acknowledgements of subscription 's' are lost" in str(error) for error in site.damage)


def test_a_damaged_journal_within_a_boot_loses_only_what_it_hit(site: SubscriptionSite):
    """The commands behind the damage count; what was hit is delivered again; it is reported once."""
    sent = site.publish(9)
    subscription = site.subscription()
    consumer = subscription.attach("c")
    read_all(consumer)
    for position in sent:
        consumer.acknowledge([position])
    consumer.detach()
    subscription.close()
    journal = Path(site.directory_of(), "journal.1")
    data = bytearray(journal.read_bytes())
    at = data.index(record.encode(record.Create("s", 1, 0, -1))[1][:16]) + 400
    data[at] ^= 1
    journal.write_bytes(data)
    again = site.subscription(initial=None)
    left = positions(read_all(again.attach("c")))
    assert len(left) == 1
    assert len(site.damage) == 1
    assert positions(read_all(site.subscription("s").attach("d"))) == left if not again.consumers() else True


def test_level_flush_flushes_before_it_returns(site: SubscriptionSite):
    """Every acknowledgement, once; nothing when there is nothing new."""
    sent = site.publish(3)
    subscription = site.subscription(durability="flush")
    consumer = subscription.attach("c")
    counting = FaultyDisk()
    with disk.use(counting):
        consumer.acknowledge(sent[:1])
        consumer.acknowledge(sent[1:2])
        consumer.backlog()
    assert [call for call, _ in counting.log].count("fdatasync") == 2


def test_level_flush_covers_what_a_process_of_another_level_made(tmp_path: Path):
    """The names of the files too, or an acknowledgement would be safe in a journal nobody can find."""
    (tmp_path / "topic").mkdir()
    fake = FakeDisk(tmp_path)
    with disk.use(fake), SubscriptionSite(tmp_path) as site:
        sent = site.publish(3)
        site.subscription().close()
        journal = os.path.join(site.directory_of(), "journal.1")
        assert not fake.is_durable(journal)
        site.subscription(durability="flush").attach("c").acknowledge(sent)
        assert fake.is_durable(journal)


def test_a_failed_flush_is_reported_and_left_behind(site: SubscriptionSite):
    """The acknowledgement is not called durable; the next one goes to new files, flushed themselves."""
    sent = site.publish(3)
    subscription = site.subscription(durability="flush")
    consumer = subscription.attach("c")
    faulty = FaultyDisk()
    faulty.fail("fdatasync")
    with disk.use(faulty):
        with pytest.raises(StorageError, match="a flush failed"):
            consumer.acknowledge(sent[:1])
        assert consumer.acknowledge(sent[1:])
        assert [call for call, _ in faulty.log].count("fsync_dir") == 1
    assert "journal.2" in os.listdir(site.directory_of())
    assert consumer.backlog() == 0


def test_level_process_flushes_nothing(site: SubscriptionSite):
    """Creating and using a subscription waits for no disk."""
    sent = site.publish(3)
    counting = FaultyDisk()
    with disk.use(counting):
        consumer = site.subscription().attach("c")
        consumer.acknowledge(sent)
    assert not {"fsync", "fdatasync", "fsync_dir"} & {call for call, _ in counting.log}


def test_level_interval_flushes_in_time_and_on_close(tmp_path: Path):
    """One flush per interval however much was acknowledged; none is left out at the end."""
    manual = ManualClock()
    scheduler = ManualScheduler(manual)
    counting = FaultyDisk()
    with SubscriptionSite(tmp_path, clock=manual) as site, disk.use(counting):
        sent = site.publish(4)
        subscription = site.subscription(durability="interval", scheduler=scheduler)
        consumer = subscription.attach("c")
        scheduler.run_due()

        def flushes() -> int:
            return [call for call, _ in counting.log].count("fdatasync")

        before = flushes()
        consumer.acknowledge(sent[:1])
        consumer.acknowledge(sent[1:2])
        assert scheduler.run_due() == 0
        manual.advance(1.0)
        assert scheduler.run_due() == 1
        assert flushes() == before + 1
        consumer.acknowledge(sent[2:])
        consumer.detach()
        subscription.close()
        assert flushes() == before + 2


def test_a_full_disk_acknowledges_nothing_and_stays_usable(site: SubscriptionSite):
    """The error says so; when there is room again the same acknowledgement goes through."""
    sent = site.publish(3)
    subscription = site.subscription()
    consumer = subscription.attach("c")
    full = FaultyDisk()
    full.fail("pwrite_all", errno=28)
    with disk.use(full), pytest.raises(StorageFullError):
        consumer.acknowledge(sent)
    assert subscription.mark_delete < sent[0]
    assert consumer.acknowledge(sent)
    assert subscription.mark_delete == sent[-1]


def test_replicas_that_disagree_are_built_anew_and_counted(
    site: SubscriptionSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A checkpoint finds out; afterwards the replica is what the files say."""
    monkeypatch.setattr(shared_state, "CHECKPOINT_EVERY", 20)
    sent = site.publish(60)
    subscription = site.subscription()
    consumer = subscription.attach("c")
    with SubscriptionSite(tmp_path / "a", max_entries=10) as watcher:
        watching = watcher.subscription(initial=None)
        state = watching._existing().state
        state.epoch += 7
        for position in sent:
            consumer.acknowledge([position])
        told = watching.statistics()
        assert told.divergences == 1
        assert told == subscription.statistics()._replace(divergences=1)
        for position in site.publish(40):
            consumer.acknowledge([position])
        assert watching.statistics() == subscription.statistics()._replace(divergences=1)
    assert subscription.statistics().divergences == 0


def test_a_signal_handler_is_refused_in_the_middle_of_a_call(site: SubscriptionSite):
    """It would decide on a state that is half changed; the interrupted call is not harmed."""
    sent = site.publish(4)
    subscription = site.subscription()
    consumer = subscription.attach("c")
    refused: list[str] = []

    def handler(*_: object) -> None:
        try:
            consumer.acknowledge(sent[3:])
        except NotAllowedError as error:
            refused.append(str(error))

    before = signal.signal(signal.SIGUSR1, handler)
    failpoints.set("journal:body_done", lambda: os.kill(os.getpid(), signal.SIGUSR1))
    try:
        assert consumer.acknowledge(sent[:1])
    finally:
        failpoints.clear()
        signal.signal(signal.SIGUSR1, before)
    assert len(refused) == 1
    assert "signal handler" in refused[0]
    assert consumer.acknowledge(sent[1:])
    assert consumer.backlog() == 0


@pytest.mark.parametrize("point", ["journal:body_done", "journal:word_stored", "subscription:announced"])
def test_an_interrupt_leaves_no_lock_and_no_doubt(site: SubscriptionSite, tmp_path: Path, point: str):
    """Ctrl-C in the middle: either it happened or it did not, here and in every other process."""
    sent = site.publish(6)
    subscription = site.subscription()
    consumer = subscription.attach("c")
    read_all(consumer)
    consumer.acknowledge(sent[:2])
    failpoints.set(point, "raise:KeyboardInterrupt")
    try:
        with pytest.raises(KeyboardInterrupt):
            consumer.seek(sent[4], inclusive=True)
    finally:
        failpoints.clear()
    with SubscriptionSite(tmp_path / "a", max_entries=10) as other:
        theirs = other.subscription(initial=None)
        assert theirs.statistics() == subscription.statistics()
        happened = theirs.mark_delete == sent[3]
        assert happened == (point == "journal:word_stored")
    assert positions(read_all(consumer)) == (sent[4:] if happened else [])
    assert consumer.acknowledge(sent)
    assert consumer.backlog() == 0


def test_the_damage_of_others_is_reported_outside_the_lock(site: SubscriptionSite):
    """Whoever is told may use the subscription."""
    half_acknowledged(site)
    journal = Path(site.directory_of(), "journal.1")
    data = bytearray(journal.read_bytes())
    data[61] ^= 1
    journal.write_bytes(data)
    seen: list[Position] = []
    subscription = site.subscription(initial=None)
    subscription.exists()
    assert len(site.damage) == 1
    seen.append(subscription.mark_delete)
    assert subscription.create(BEFORE_FIRST) is False


@pytest.mark.parametrize("point", ["journal:word_stored", "subscription:published", "subscription:announced"])
def test_an_interrupted_attach_leaves_no_consumer_behind(site: SubscriptionSite, point: str):
    """Ctrl-C while attaching: nobody would ever detach a consumer that was never handed out."""
    subscription = site.subscription()
    failpoints.set(point, "raise:KeyboardInterrupt")
    try:
        with pytest.raises(KeyboardInterrupt):
            subscription.attach("interrupted")
    finally:
        failpoints.clear()
    assert subscription.consumers() == []
    subscription.attach("next").detach()


def test_a_consumer_makes_its_subscription_in_one_commit(site: SubscriptionSite, tmp_path: Path):
    """One word names it and its consumer, so for other processes there is never one without the other."""
    sent = site.publish(25)
    subscription = site.subscription(initial=None)
    failpoints.set("journal:word_stored", "raise", nth=2)
    try:
        consumer = subscription.attach("first", initial=sent[9])
    finally:
        failpoints.clear()
    with SubscriptionSite(tmp_path / "a", max_entries=10) as other:
        theirs = other.subscription(initial=None)
        assert theirs.statistics() == subscription.statistics()
        assert theirs.statistics().consumers
        assert theirs.create(BEFORE_FIRST) is False
    assert positions(read_all(consumer)) == sent[10:]
    assert consumer.acknowledge(sent[10:])
    assert subscription.mark_delete == sent[-1]


@pytest.mark.parametrize("kind", list(ConsumerType))
def test_whoever_makes_it_first_decides_where_it_starts(site: SubscriptionSite, kind: ConsumerType):
    """A consumer that would have made it elsewhere attaches to what is there."""
    sent = site.publish(25)
    site.subscription(initial=None).attach("first", kind, initial=BEFORE_FIRST).detach()
    again = site.subscription(initial=None)
    assert positions(read_all(again.attach("second", kind, initial=sent[-1]))) == sent


@pytest.mark.parametrize(
    "point", ["journal:created", "journal:word_stored", "subscription:published", "subscription:announced"]
)
def test_an_interrupted_birth_leaves_no_consumer_behind(site: SubscriptionSite, tmp_path: Path, point: str):
    """Ctrl-C while the first consumer makes its subscription: there is none, or one without consumers."""
    sent = site.publish(5)
    subscription = site.subscription(initial=None)
    failpoints.set(point, "raise:KeyboardInterrupt")
    try:
        with pytest.raises(KeyboardInterrupt):
            subscription.attach("interrupted", initial=BEFORE_FIRST)
    finally:
        failpoints.clear()
    is_made = point in ("journal:word_stored", "subscription:published")
    with SubscriptionSite(tmp_path / "a", max_entries=10) as other:
        theirs = other.subscription(initial=None)
        assert theirs.exists() is is_made
        assert not is_made or theirs.consumers() == []
    assert positions(read_all(subscription.attach("next", initial=BEFORE_FIRST))) == sent


def test_a_birth_in_a_directory_that_is_taken_away(
    site: SubscriptionSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Another process ends the subscription before this one has the lock: the consumer is told."""
    subscription = site.subscription(initial=None)
    make = subscription._lives.make

    def make_and_lose() -> shared_state.SharedState:
        shared = make()
        with SubscriptionSite(tmp_path / "a", max_entries=10) as other:
            other.subscription().delete()
        return shared

    with monkeypatch.context() as patched:
        patched.setattr(subscription._lives, "make", make_and_lose)
        with pytest.raises(SubscriptionNotFound, match="deleted"):
            subscription.attach("first", initial=BEFORE_FIRST)
    assert subscription.attach("again", initial=BEFORE_FIRST).is_attached


def test_a_birth_while_ledgers_go(site: SubscriptionSite):
    """Ledgers that are given up before the commit are not waited for: the mark-delete position passes
    them."""
    sent = site.publish(25)
    subscription, trimming = site.subscription(initial=None), site.log.trimming

    def trim() -> None:
        assert trimming.give_up(sent[19].ledger_id, trimming.rewind_count())

    failpoints.set("journal:file_created", trim)
    try:
        consumer = subscription.attach("first", initial=BEFORE_FIRST)
    finally:
        failpoints.clear()
    assert subscription.mark_delete.ledger_id == sent[19].ledger_id
    assert positions(read_all(consumer)) == [one for one in sent if one.ledger_id >= sent[19].ledger_id]


def test_threads_share_a_consumer(site: SubscriptionSite):
    """Four threads acknowledge while one reads: every message once, nothing lost or left."""
    consumer = site.subscription().attach("c")
    waiting: queue.SimpleQueue[list[Position]] = queue.SimpleQueue()
    failures: list[BaseException] = []

    def acknowledge() -> None:
        try:
            while group := waiting.get():
                assert consumer.acknowledge(group)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=acknowledge) for _ in range(4)]
    for thread in threads:
        thread.start()
    sent, got = [], []
    for _ in range(60):
        sent += site.publish(7)
        while views := consumer.read(4, 1 << 20):
            got += positions(views)
            waiting.put(positions(views))
    for _ in threads:
        waiting.put([])
    for thread in threads:
        thread.join()
    assert failures == []
    assert got == sent
    assert consumer.backlog() == 0
