"""A consumer that is alone reads on without claims, and nothing that it took is another's."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from embeddedpulsar._engine.format import subscription_record as record
from embeddedpulsar._engine.format.control import SubscriptionWord
from embeddedpulsar._engine.log.journal_file import JournalFile
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar._engine.subscription.attachment.attachment import Attachment
from embeddedpulsar.enums import ConsumerType, KeySharedMode
from embeddedpulsar.policies import KeySharedPolicy
from tests.storms.dispatch.virtual_log import VirtualEntry
from tests.storms.dispatch.virtual_process import Killed
from tests.unit.subscription.virtual_site import EVERYTHING, VirtualSite, ids, position, read

SHARED, KEY_SHARED = ConsumerType.Shared, ConsumerType.KeyShared
KINDS = [SHARED, KEY_SHARED]
pytestmark = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def _no_failpoint() -> Iterator[None]:
    yield
    failpoints.clear()


def alone(site: VirtualSite, kind: ConsumerType, **options: object) -> Attachment:
    """A consumer that has read the entries 0 and 1, and reads on without claims."""
    consumer = site.attach(kind, **options)
    for number in range(2):
        site.publish(1, key=number)
        assert read(consumer) == [number]
    assert owner(site) == consumer.consumer_id
    return consumer


def owner(site: VirtualSite) -> int:
    """The consumer whose range is open."""
    return int(site.process.shared.control.words[SubscriptionWord.RANGE_OWNER])


def commands(site: VirtualSite) -> int:
    """Commands so far, without a transaction."""
    shared = site.process.shared
    shared._journal.catch_up()
    return shared.state.commands


def test_it_writes_no_commands(site: VirtualSite, kind: ConsumerType):
    """However many entries come; the next transaction assigns them all at once."""
    consumer = alone(site, kind)
    before = commands(site)
    for number in range(2, 12):
        site.publish(1, key=number)
        assert read(consumer) == [number]
    assert read(consumer) == []
    assert commands(site) == before
    assert site.dispatch.read == position(12)
    assert commands(site) == before + 1
    consumer.acknowledge([position(number) for number in range(12)])
    assert site.process.subscription.mark_delete == position(11)
    assert owner(site) == consumer.consumer_id


def test_batches_count_with_their_messages(site: VirtualSite, kind: ConsumerType):
    """What it holds, and how much of it, is as if it had claimed."""
    consumer = alone(site, kind)
    site.publish(3, key=5, messages=4)
    assert read(consumer) == [2, 3, 4]
    assert site.dispatch.holds(consumer.consumer_id) == 2 + 3 * 4


def test_it_holds_no_more_than_it_may(tmp_path, kind: ConsumerType):
    """The limit of unacknowledged messages holds for what it takes without a claim, too."""
    with VirtualSite(tmp_path, maxUnackedMessagesPerConsumer=5) as site:
        consumer = alone(site, kind)
        site.publish(9)
        assert [read(consumer) for _ in range(3)] == [[2, 3, 4], [], []]
        consumer.acknowledge([position(number) for number in range(4)])
        assert read(consumer) == [5, 6, 7, 8]


@pytest.mark.parametrize("ends_by", ["close", "death"])
def test_another_gets_nothing_of_what_it_took(site: VirtualSite, kind: ConsumerType, ends_by: str):
    """Until it ends: then all of it; with a count what its application was given, unless it was closed."""
    other_process = site.world.start()
    consumer = alone(site, kind)
    site.publish(4, key=1)
    views = consumer.read(1000, EVERYTHING)
    assert ids(views) == [2, 3, 4, 5]
    for view in views[:2]:
        assert consumer.handed(view)
    other = site.attach(kind, process=other_process, name="other")
    assert owner(site) == 0
    assert read(other) == []
    if ends_by == "close":
        consumer.detach()
    else:
        site.world.kill(site.process)
        other_process.subscription.detach_dead()
    again = other.read(1000, EVERYTHING)
    assert ids(again) == [0, 1, 2, 3, 4, 5]
    handed = {2, 3} if ends_by == "death" else set()
    counted = {view.entry_id for view in again if view.redelivery_count}
    # The first two were handed out as far as the count of the last one says.
    assert counted >= handed
    assert not counted & {4, 5}


def at_the_store(consumer: Attachment, monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Have ``action`` happen when the consumer has noted what it took, before it compares the owner."""
    failpoints.set("range:taken", lambda: action())


def before_the_store(
    consumer: Attachment, monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]
) -> None:
    """Have ``action`` happen when the consumer has read, before it notes what."""
    read_on = consumer._ahead.read_on

    def read_and_act(*arguments: object) -> list[VirtualEntry]:
        views = read_on(*arguments)
        monkeypatch.undo()
        action()
        return views

    monkeypatch.setattr(consumer._ahead, "read_on", read_and_act)


@pytest.mark.parametrize("moment", [at_the_store, before_the_store])
def test_another_comes_while_it_takes(
    site: VirtualSite, kind: ConsumerType, moment: Callable[..., None], monkeypatch: pytest.MonkeyPatch
):
    """Each entry comes to one of them, at whatever moment of a read the range is closed."""
    process = site.world.start()
    consumer = alone(site, kind)
    site.publish(8, key=3)
    others: list[Attachment] = []
    theirs: list[int] = []

    def join() -> None:
        others.append(site.attach(kind, process=process, name="other"))
        theirs.extend(read(others[0]))

    moment(consumer, monkeypatch, join)
    mine = read(consumer)
    for _ in range(3):
        mine += read(consumer)
        theirs += read(others[0])
    assert sorted(mine + theirs) == list(range(2, 10))
    assert mine == sorted(mine)
    if moment is at_the_store:
        assert mine == list(range(2, 10))


def test_an_interrupted_read_loses_nothing(site: VirtualSite, kind: ConsumerType):
    """What was noted and not returned comes with the next read."""
    consumer = alone(site, kind)
    site.publish(3)
    failpoints.set("range:taken", "raise:KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        read(consumer)
    assert read(consumer) == [2, 3, 4]
    assert read(consumer) == []


@pytest.mark.parametrize(
    "point", ["range:closing", "range:assigned", "journal:body_done", "journal:word_stored"]
)
def test_who_closes_the_range_dies(site: VirtualSite, kind: ConsumerType, point: str):
    """The next process goes on with that, and the owner takes nothing meanwhile that would not count."""
    closer, third = site.world.start(), site.world.start()
    consumer = alone(site, kind)
    site.publish(2)
    assert read(consumer) == [2, 3]
    assert owner(site) == consumer.consumer_id
    failpoints.set(point, _die)
    with pytest.raises(Killed):
        site.attach(kind, process=closer, name="closer")
    site.world.kill(closer)
    failpoints.clear()
    site.publish(1, key=77)  # no entry of its key is under way
    other = site.attach(kind, process=third, name="third")
    found = read(consumer) + read(other)
    assert found == [4]
    assert site.dispatch.read == position(5)
    assert site.dispatch.holds(consumer.consumer_id) + site.dispatch.holds(other.consumer_id) == 5


def _die() -> None:
    raise Killed("here")


def test_the_owner_dies_at_the_store(site: VirtualSite, kind: ConsumerType):
    """Nobody knows whether its application was given the entries: they come without a count."""
    process = site.world.start()
    consumer = alone(site, kind)
    site.publish(2)
    failpoints.set("range:taken", _die)
    with pytest.raises(Killed):
        read(consumer)
    site.world.kill(site.process)
    other = site.attach(kind, process=process, name="other")
    views = other.read(1000, EVERYTHING)
    assert ids(views) == [0, 1, 2, 3]
    assert [view.redelivery_count for view in views][2:] == [0, 0]


def test_what_comes_back_goes_first(site: VirtualSite, kind: ConsumerType):
    """Also if new entries wait behind the tail."""
    consumer = alone(site, kind)
    site.publish(2)
    assert read(consumer) == [2, 3]
    consumer.redeliver_entries([position(2)])
    site.publish(1)
    views = consumer.read(1000, EVERYTHING)
    assert ids(views) == [2, 4]
    assert [view.redelivery_count for view in views] == [1, 0]


@pytest.mark.parametrize("what", ["delayed", "damaged", "ledger"])
def test_what_takes_a_claim_is_claimed(site: VirtualSite, kind: ConsumerType, what: str):
    """A delayed entry, damage and the next ledger; afterwards the consumer reads on as before."""
    consumer = alone(site, kind)
    if what == "ledger":
        site.log.roll(1)
        site.publish(1)
        assert read(consumer) == [0]
        expected, behind = [1], 1
    else:
        site.publish(1)
        site.publish(1, delay_ms=1000 if what == "delayed" else 0)[0].is_damaged = what == "damaged"
        site.publish(1)
        assert read(consumer) + read(consumer) == [2, 4]
        expected, behind = ([3, 5] if what == "delayed" else [5]), 1
        site.world.clock.advance(2.0)
    site.publish(behind)
    assert sorted(read(consumer) + read(consumer)) == expected
    site.publish(1)
    before = commands(site)
    assert len(read(consumer)) == 1
    assert commands(site) == before


def test_a_seek_voids_what_was_taken(site: VirtualSite, kind: ConsumerType):
    """All comes again, each entry once."""
    consumer = alone(site, kind)
    site.publish(3)
    assert read(consumer) == [2, 3, 4]
    consumer.seek(position(1), inclusive=True)
    assert read(consumer) == [1, 2, 3, 4]
    assert read(consumer) == []


def test_acknowledged_in_advance_it_does_not_come(site: VirtualSite, kind: ConsumerType):
    """The range ends before an entry that it did not take is acknowledged."""
    consumer = alone(site, kind)
    site.publish(4)
    consumer.acknowledge([position(3), position(4)])
    assert read(consumer) + read(consumer) == [2, 5]


def test_keys_with_ranges_of_their_own_are_claimed(site: VirtualSite, kind: ConsumerType):
    """A sticky consumer gets its own keys only, also while it is alone."""
    if kind == SHARED:
        return
    policy = KeySharedPolicy().set_key_shared_mode(KeySharedMode.Sticky).set_sticky_ranges([(0, 100)])
    consumer = site.attach(kind, key_shared=policy)
    for number in range(4):
        site.publish(1, key=50)
        site.publish(1, key=5000)
        assert read(consumer) == [2 * number]
    assert owner(site) == 0


def test_the_journal_says_that_a_range_is_open(site: VirtualSite, kind: ConsumerType):
    """In each of its generations: an older release refuses it, rather than claims what the consumer has."""
    consumer = alone(site, kind)
    shared = site.process.shared
    assert record.OPEN_RANGE in kinds_in(shared)
    shared.transact(lambda state: shared._journal.compact(0))
    assert record.OPEN_RANGE not in kinds_in(shared)
    site.publish(1)
    assert read(consumer) == [2]
    consumer.acknowledge([position(2)])
    assert owner(site) == consumer.consumer_id
    assert record.OPEN_RANGE in kinds_in(shared)


def kinds_in(shared) -> list[int]:
    """The types of the commands in the newest generation."""
    journal = JournalFile(shared.directory, shared._journal.generation)
    return [entry.type for _, entry in journal.records(strict=True)]
