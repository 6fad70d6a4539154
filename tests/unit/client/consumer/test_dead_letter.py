"""The dead letter policy at work: what is shown, what is moved, and what happens when moving fails."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from embeddedpulsar._engine.format.entry import EntryView, ProducerPrefix, encode_plain, encode_single
from embeddedpulsar.client.client_threads import ClientLog
from embeddedpulsar.client.consumer.dead_letter import DeadLetters
from embeddedpulsar.exceptions import AlreadyClosed, LockTimeout, StorageFullError
from embeddedpulsar.message import MessageOrigin
from embeddedpulsar.schema import BytesSchema
from embeddedpulsar.testing.manual_clock import ManualClock, ManualScheduler
from tests.unit.client.fakes import view_of

LIMIT = 3
TOPIC = "persistent://public/default/t"
PREFIX = ProducerPrefix("p")


class Attachment:
    """Hands out what the test prepared, and remembers what is acknowledged."""

    def __init__(self) -> None:
        self.epoch = 1
        self.reads: list[list[EntryView]] = []
        self.acknowledged: list[tuple[list[tuple[int, int]], int]] = []
        self.fail: Exception | None = None
        self.chunks = SimpleNamespace(assembler=None)  # no entry here belongs to a chunked message

    def read(self, max_messages: int, max_bytes: int) -> list[EntryView]:
        return self.reads.pop(0) if self.reads else []

    def acknowledge(self, entries: Any, *, epoch: int) -> None:
        failure, self.fail = self.fail, None
        if failure is not None:
            raise failure
        self.acknowledged.append((list(entries), epoch))


class Producer:
    """Keeps letters, and fails for payloads on demand."""

    topic = "dead"

    def __init__(self) -> None:
        self.letters: list[Any] = []
        self.refused: dict[bytes, Exception] = {}
        self.fail_sync: Exception | None = None
        self.synced = 0
        self.closed = False

    def publish(self, letters: list[Any], names: tuple[str, ...] = (), written: Any = None) -> dict[str, int]:
        for letter in letters:
            if letter[0] in self.refused:
                raise self.refused[letter[0]]
            self.letters.append(letter)
        return {"log": len(self.letters)}

    def sync(self, end_words: dict[str, int]) -> None:
        failure, self.fail_sync = self.fail_sync, None
        if failure is not None:
            raise failure
        self.synced = end_words.get("log", self.synced)

    def close(self) -> None:
        self.closed = True

    def values(self) -> list[bytes]:
        """The payloads."""
        return [letter[0] for letter in self.letters]


class Ledger:
    """A log of the test's entries."""

    def __init__(self) -> None:
        self.views: dict[int, EntryView] = {}

    def cursor(self, position: Any, *, inclusive: bool) -> Any:
        view = self.views.get(position[1])
        return SimpleNamespace(read=lambda *_: [view] if view is not None else [])


class Site:
    """Dead letters on stand-ins."""

    def __init__(self) -> None:
        self.attachment = Attachment()
        self.producer = Producer()
        self.ledger = Ledger()
        self.scheduler = ManualScheduler(ManualClock())
        self.given_back: list[tuple[int, int]] = []
        self.forgotten: list[tuple[int, int]] = []
        self.woken = 0
        self.acks = SimpleNamespace(open={}, leaves_any=lambda view: True)
        session: Any = SimpleNamespace(
            attachment=self.attachment,
            decryption=SimpleNamespace(fetch=self.attachment.read, opened=lambda view: view),
            ledger=self.ledger,
            origin=MessageOrigin(TOPIC, BytesSchema()),
            topic_name=TOPIC,
            log_names=lambda: {"consumer": "c", "subscription": "sub", "topic": TOPIC},
            call_later=self.scheduler.call_later,
            client=SimpleNamespace(log=ClientLog(), workers=SimpleNamespace(start=lambda job: job())),
        )
        producer: Any = self.producer
        acks: Any = self.acks
        self.letters = DeadLetters(
            session,
            LIMIT,
            producer,
            acks,
            lambda ledger, entry: self.given_back.append((ledger, entry)),
            self.forgotten.extend,
            self._wake,
        )

    def _wake(self) -> None:
        self.woken += 1

    def entry(self, number: int, count: int = 0, messages: int = 1) -> EntryView:
        """Entry ``number`` of the log, with a redelivery count."""
        values = [b"%d.%d" % (number, index) for index in range(messages)]
        encoded = encode_plain(values, 0, PREFIX) if messages > 1 else encode_single(values[0], 0, PREFIX)
        self.ledger.views[number] = view_of(encoded, 7, number)
        view = view_of(encoded, 7, number)
        view.redelivery_count = count
        return view

    def fetch(self, *views: EntryView) -> list[int]:
        """The entries that are shown of those that were read."""
        self.attachment.reads.append(list(views))
        return [view.entry_id for view in self.letters.fetch(10, 1000)]

    def run(self) -> None:
        """Run the timer thread."""
        self.scheduler.run_due()


@pytest.fixture
def site() -> Site:
    return Site()


def test_counts_up_to_the_limit_are_shown(site):
    """An entry is shown with redelivery counts 0 to the limit, and stays where it is."""
    assert site.fetch(*(site.entry(count, count) for count in range(LIMIT + 1))) == [0, 1, 2, 3]
    site.run()
    assert site.producer.letters == []


def test_beyond_the_limit_it_is_moved(site):
    """An entry with a higher count is not shown: it is published, synced and acknowledged."""
    assert site.fetch(site.entry(0, 1), site.entry(1, LIMIT + 1), site.entry(2, LIMIT + 5)) == [0]
    assert site.producer.letters == []  # not under the lock of the queue
    site.run()
    assert site.producer.values() == [b"1.0", b"2.0"]
    assert site.producer.synced == 2
    assert site.attachment.acknowledged == [([(7, 1), (7, 2)], 1)]
    assert site.woken == 1


def test_fetching_goes_on_behind_the_dead(site):
    """Entries that are only dead do not look like the end of the topic."""
    site.attachment.reads = [[site.entry(0, LIMIT + 1)], [site.entry(1, LIMIT + 1)]]
    assert site.fetch(site.entry(2)) == [2]
    assert site.fetch(site.entry(3, LIMIT + 1)) == []


def test_a_candidate_moves_when_it_is_due(site):
    """What was shown with the limit's count moves instead of coming again; others are left to come."""
    site.fetch(site.entry(0, LIMIT - 1), site.entry(1, LIMIT))
    assert site.letters.take_due([(7, 0), (7, 1)]) == [(7, 0)]
    assert site.producer.values() == [b"1.0"]
    assert site.attachment.acknowledged == [([(7, 1)], 1)]
    assert site.forgotten == [(7, 1)]


def test_an_acknowledged_candidate_stays(site):
    """An entry that was acknowledged is none any more."""
    site.fetch(site.entry(0, LIMIT))
    site.letters.discard((7, 0))
    assert site.letters.take_due([(7, 0)]) == [(7, 0)]
    assert site.producer.letters == []


def test_a_letter_says_where_it_came_from(site):
    """The topic and the id go with it."""
    site.fetch(site.entry(5, LIMIT + 1))
    site.run()
    ((_, options),) = site.producer.letters
    assert options[0] == {"REAL_TOPIC": TOPIC, "ORIGIN_MESSAGE_ID": "(7,5,-1,-1)"}


def test_messages_of_a_batch_move_one_by_one(site):
    """Of a batch, what was not acknowledged moves, each with its own id, and the entry is acknowledged."""
    view = site.entry(0, LIMIT + 1, messages=4)
    view.skip = 0b0010
    site.fetch(view)
    site.run()
    assert site.producer.values() == [b"0.0", b"0.2", b"0.3"]
    assert [letter[1][0]["ORIGIN_MESSAGE_ID"] for letter in site.producer.letters] == [
        "(7,0,-1,0)",
        "(7,0,-1,2)",
        "(7,0,-1,3)",
    ]
    assert site.attachment.acknowledged == [([(7, 0)], 1)]


def test_messages_acknowledged_here_stay_too(site):
    """The messages of a candidate that this consumer acknowledged do not move."""
    site.fetch(site.entry(0, LIMIT, messages=3))
    site.acks.open[7, 0] = bytearray([0, 1, 0])
    assert site.letters.take_due([(7, 0)]) == []
    assert site.producer.values() == [b"0.0", b"0.2"]


def test_what_cannot_be_published_comes_again(site, caplog):
    """A failure concerns its entry alone: it is given back, with a line in the log; the others have moved."""
    site.producer.refused[b"1.0"] = StorageFullError("no room")
    site.fetch(*(site.entry(number, LIMIT + 1) for number in range(3)))
    with caplog.at_level(logging.WARNING, "embeddedpulsar"):
        site.run()
    assert site.producer.values() == [b"0.0", b"2.0"]
    assert site.attachment.acknowledged == [([(7, 0), (7, 2)], 1)]
    assert site.given_back == [(7, 1)]
    assert "1 entries of" in caplog.text
    assert "no room" in caplog.text


def test_a_candidate_that_cannot_be_published_comes_again(site, caplog):
    """It is among those to be delivered again, whatever went wrong."""
    site.producer.refused[b"0.0"] = ValueError("odd")
    site.fetch(site.entry(0, LIMIT))
    assert site.letters.take_due([(7, 0)]) == [(7, 0)]
    assert site.attachment.acknowledged == []
    assert "odd" in caplog.text


def test_nothing_is_acknowledged_before_it_is_stored(site, caplog):
    """When the disk fails, or the acknowledgement, everything of that move comes again."""
    site.producer.fail_sync = StorageFullError("no room")
    site.fetch(site.entry(0, LIMIT + 1))
    site.run()
    assert (site.attachment.acknowledged, site.given_back) == ([], [(7, 0)])
    site.attachment.fail = LockTimeout("held")
    site.fetch(site.entry(0, LIMIT + 2))
    site.run()
    assert (site.attachment.acknowledged, site.given_back) == ([], [(7, 0), (7, 0)])
    assert len(caplog.records) == 2


def test_a_closed_consumer_says_nothing(site, caplog):
    """What a consumer did not get done before it was closed goes to the next one, without a warning."""
    site.producer.refused[b"0.0"] = AlreadyClosed("closed")
    site.fetch(site.entry(0, LIMIT + 1))
    site.run()
    assert not caplog.records


def test_the_acknowledgement_carries_the_epoch_of_the_fetch(site):
    """A seek between fetching and moving makes it void: the subscription was put elsewhere since."""
    site.fetch(site.entry(0, LIMIT))
    site.fetch(site.entry(1, LIMIT + 1))
    site.attachment.epoch = 2
    site.run()
    site.letters.take_due([(7, 0)])
    assert site.attachment.acknowledged == [([(7, 1)], 1), ([(7, 0)], 1)]


def test_clear_forgets(site):
    """After a rewind nothing moves: everything is fetched anew."""
    site.fetch(site.entry(0, LIMIT), site.entry(1, LIMIT + 1))
    site.letters.clear()
    site.run()
    assert site.letters.take_due([(7, 0)]) == [(7, 0)]
    assert site.producer.letters == []
    site.letters.close()
    assert site.producer.closed


def test_an_entry_that_is_gone_is_left_to_come_again(site):
    """A candidate that cannot be read again is not moved."""
    site.fetch(site.entry(0, LIMIT))
    site.ledger.views.clear()
    assert site.letters.take_due([(7, 0)]) == [(7, 0)]


def test_the_dead_do_not_pile_up(site):
    """When a thousand wait to be moved, nothing more is fetched until they are."""
    for first in range(0, 1100, 100):
        site.attachment.reads.append([site.entry(first + i, LIMIT + 1) for i in range(100)])
    assert site.letters.fetch(100, 1 << 20) == []
    assert len(site.attachment.reads) == 1
    site.run()
    assert site.letters.fetch(100, 1 << 20) == []
    site.run()
    assert len(site.producer.letters) == 1100
