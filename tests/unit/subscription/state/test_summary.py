"""Summaries in the journal: a replica that is far behind becomes what all commands would have made it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from embeddedpulsar._engine.format.control import SubscriptionWord, split_journal
from embeddedpulsar._engine.format.subscription_record import Limits
from embeddedpulsar._engine.log import journal_file
from embeddedpulsar._engine.platform import disk
from embeddedpulsar._engine.subscription import shared_state
from embeddedpulsar._engine.subscription.attachment.shared_attachment import SharedAttachment
from embeddedpulsar._engine.subscription.shared_state import SharedState
from embeddedpulsar._engine.subscription.state import replica
from embeddedpulsar._engine.subscription.state.replica import encode_snapshot
from embeddedpulsar.enums import ConsumerType
from embeddedpulsar.exceptions import CorruptionError
from tests.storms.dispatch import dispatch_storm
from tests.unit.subscription.virtual_site import EVERYTHING, VirtualSite

TYPES = [ConsumerType.Shared, ConsumerType.KeyShared]


class Leaps:
    """Counts what replicas applied, and how often they leapt."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.applied = self.leapt = self.diverged = 0
        real_apply, real_adopt = replica.SubscriptionReplica.apply, replica.adopt_summary

        def apply(one, command):
            self.applied += 1
            real_apply(one, command)
            self.diverged += one.has_diverged

        def adopt(state, content):
            is_adopted = real_adopt(state, content)
            self.leapt += is_adopted
            return is_adopted

        monkeypatch.setattr(replica.SubscriptionReplica, "apply", apply)
        monkeypatch.setattr(replica, "adopt_summary", adopt)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[VirtualSite]:
    with VirtualSite(tmp_path) as made:
        yield made


@pytest.fixture
def leaps(monkeypatch: pytest.MonkeyPatch) -> Leaps:
    return Leaps(monkeypatch)


def shared_of(attachment: SharedAttachment) -> SharedState:
    return attachment._shared


def work(site: VirtualSite, attachment: SharedAttachment, rounds: int, left: int = 7) -> None:
    """A consumer receives what is its own of each entry, and acknowledges all but one of ``left``."""
    for number in range(rounds):
        site.world.clock.looks = 0  # this is no call that goes round and round
        site.publish(1, key=number % 50 + 1)
        views = attachment.read(100, EVERYTHING)
        entries = [(view.ledger_id, view.entry_id) for view in views if (view.entry_id + 1) % left]
        if entries:
            attachment.acknowledge(entries)


def bytes_of(shared: SharedState) -> bytes:
    return shared.transact(encode_snapshot)


@pytest.mark.parametrize("kind", TYPES, ids=lambda one: one.name)
def test_a_process_that_is_far_behind_leaps(site: VirtualSite, leaps: Leaps, kind: ConsumerType):
    """It applies some twenty commands instead of hundreds, and is then like the others."""
    ours = [site.attach(kind, name=f"a{number}") for number in range(replica.LEAST_CONSUMERS)]
    far = site.attach(kind, process=site.world.start(), name="far")
    far.read(1, EVERYTHING)
    work(site, ours[0], 300)
    before = shared_of(far).state.commands
    leaps.applied = 0
    theirs = bytes_of(shared_of(far))
    assert leaps.leapt == 1
    assert leaps.applied < 60 < shared_of(far).state.commands - before
    assert theirs == bytes_of(shared_of(ours[0]))
    assert shared_of(far).divergences == 0


def test_few_consumers_write_no_summary(site: VirtualSite):
    """There is nothing to gain."""
    ours = [site.attach(name=f"a{number}") for number in range(replica.LEAST_CONSUMERS - 1)]
    work(site, ours[0], 200)
    assert shared_of(ours[0]).control.words[SubscriptionWord.SUMMARY] == 0


@pytest.mark.parametrize("kind", TYPES, ids=lambda one: one.name)
def test_consumers_that_came_or_left_in_between_are_not_leapt_over(
    site: VirtualSite, leaps: Leaps, kind: ConsumerType
):
    """A summary does not name the consumers: then all commands are applied."""
    ours = [site.attach(kind, name=f"a{number}") for number in range(replica.LEAST_CONSUMERS)]
    far = site.attach(kind, process=site.world.start(), name="far")
    work(site, ours[0], 100)
    ours.pop().detach()
    site.attach(kind, name="new")
    work(site, ours[0], 200)
    assert bytes_of(shared_of(far)) == bytes_of(shared_of(ours[0]))
    assert leaps.leapt == 0
    work(site, ours[0], 200)
    assert bytes_of(shared_of(far)) == bytes_of(shared_of(ours[0]))
    assert leaps.leapt == 1


def test_limits_that_changed_in_between_are_not_leapt_over(site: VirtualSite, leaps: Leaps):
    """A summary does not contain them."""
    ours = [site.attach(name=f"a{number}") for number in range(replica.LEAST_CONSUMERS)]
    far = site.attach(process=site.world.start(), name="far")
    work(site, ours[0], 100)
    shared_of(ours[0]).transact(lambda state: shared_of(ours[0]).commit([Limits(900, 0)]))
    work(site, ours[0], 200)
    assert bytes_of(shared_of(far)) == bytes_of(shared_of(ours[0]))
    assert leaps.leapt == 0
    assert shared_of(far).state.consumers.limits


def test_a_leap_into_another_generation(site: VirtualSite, leaps: Leaps):
    """The journal was replaced meanwhile, more than once: its snapshot is not needed."""
    ours = [site.attach(name=f"a{number}") for number in range(replica.LEAST_CONSUMERS)]
    far = site.attach(process=site.world.start(), name="far")
    far.read(1, EVERYTHING)
    generation = split_journal(shared_of(far).control.words[SubscriptionWord.JOURNAL])[0]
    work(site, ours[0], 4000, left=1 << 20)
    assert split_journal(shared_of(far).control.words[SubscriptionWord.JOURNAL])[0] > generation
    leaps.applied = 0
    assert bytes_of(shared_of(far)) == bytes_of(shared_of(ours[0]))
    assert leaps.leapt == 1 and leaps.applied < 60
    work(site, far, 3)
    assert bytes_of(shared_of(far)) == bytes_of(shared_of(ours[0]))


def test_redeliveries_from_before_the_last_consumer_left(site: VirtualSite, leaps: Leaps):
    """Their counts wait for the entries to be read again: a leap over that takes them along."""
    first = site.attach(name="first")
    site.publish(40)
    views = first.read(100, EVERYTHING)
    first.redeliver_entries([(view.ledger_id, view.entry_id) for view in views])
    first.detach()
    ours = [site.attach(name=f"a{number}") for number in range(replica.LEAST_CONSUMERS)]
    far = site.attach(process=site.world.start(), name="far")
    assert len(shared_of(far).transact(lambda state: state.dispatch.counts)) == 40
    work(site, ours[0], 300)
    assert bytes_of(shared_of(far)) == bytes_of(shared_of(ours[0]))
    assert leaps.leapt == 1
    assert not shared_of(far).state.dispatch.counts


def test_a_damaged_summary_is_passed_by(site: VirtualSite, leaps: Leaps):
    """The replica is built from the files, and the damage reported, as with any command."""
    ours = [site.attach(name=f"a{number}") for number in range(replica.LEAST_CONSUMERS)]
    far = site.attach(process=site.world.start(), name="far")
    far.read(1, EVERYTHING)
    work(site, ours[0], 300)
    shared = shared_of(far)
    generation, at = split_journal(shared.control.words[SubscriptionWord.SUMMARY])
    fd = disk.DISK.open_file(os.path.join(shared.directory, f"journal.{generation}"), os.O_RDWR)
    disk.DISK.pwrite_all(fd, [b"\xff" * 8], at + 40)
    os.close(fd)
    state = shared.transact(lambda state: state.mark_delete)
    assert leaps.leapt == 0
    assert state == shared_of(ours[0]).transact(lambda state: state.mark_delete)


def test_a_distorted_summary_is_an_error(site: VirtualSite):
    """Its checksum is right, and it says something else."""
    ours = [site.attach(name=f"a{number}") for number in range(3)]
    state = shared_of(ours[0]).state
    other = [site.attach(process=site.world.start(), name=f"b{number}") for number in range(2)]
    content = replica.pack_summary(state)
    with pytest.raises(CorruptionError):
        replica.adopt_summary(state, content[:-1])
    foreign = replica.pack_summary(shared_of(other[0]).transact(lambda state: state))
    assert not replica.adopt_summary(state, foreign)
    with pytest.raises(CorruptionError, match="summary"):
        replica.adopt_summary(state, replica.pack_map({"epoch": state.epoch, "commands": 1 << 40}))


def test_the_simulator_with_summaries_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Every few commands a summary, and a leap over all there is to leap over."""
    monkeypatch.setattr(replica, "LEAST_CONSUMERS", 1)
    monkeypatch.setattr(shared_state, "EVERY_BYTES", 100)
    monkeypatch.setattr(journal_file, "WORTH_A_LEAP", 1)
    monkeypatch.setattr(shared_state, "CHECKPOINT_EVERY", 5)
    leaps = Leaps(monkeypatch)
    for seed in range(1, 121):
        result = dispatch_storm.run_seed(seed, str(tmp_path / str(seed)))
        assert not result.violations, (seed, result.violations)
    assert leaps.leapt > 100
    assert leaps.diverged == 0
