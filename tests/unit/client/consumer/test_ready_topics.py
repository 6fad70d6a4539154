"""Which of many topics are asked for messages, and when."""

from __future__ import annotations

from typing import Any

import pytest

from embeddedpulsar.client.consumer.ready_topics import ReadyTopics
from embeddedpulsar.exceptions import AlreadyClosed
from embeddedpulsar.testing.manual_clock import ManualClock


class Log:
    """A topic: two words, and what stands for the rest of it."""

    def __init__(self) -> None:
        self.words = memoryview(bytearray(16)).cast("Q")
        self.signs = ((self.words, 0), (self.words, 1))
        self.on_change: Any = int
        self.due = 0
        self.armed = 0
        self.is_blocked = False

    def forget_ended(self) -> bool:
        return not self.is_blocked

    def due_ms(self) -> int:
        return self.due

    def request_wakeup(self, seen: tuple[int, int]) -> bool:
        self.armed += 1
        return tuple(self.words) == seen


class Site:
    """Some topics, and the generation of a mailbox."""

    def __init__(self, count: int) -> None:
        self.clock = ManualClock()
        self.generation = 0
        self.logs = [Log() for _ in range(count)]
        self.topics = ReadyTopics(self.clock.monotonic, self.clock.wall_ms)
        self.topics.extend(self.logs)  # type: ignore[arg-type]

    def asked(self) -> list[int]:
        """The topics that are asked, all of which are found empty."""
        found = []
        while (number := self.topics.first(self.generation)) >= 0:
            found.append(number)
            self.topics.note_dry(number, self.topics.read_state(number))
        return found

    def settle(self) -> None:
        """Ask until nothing is left, and have all of them ring."""
        while self.asked() or not self.topics.request_wakeups():
            pass


@pytest.fixture
def site() -> Site:
    """A hundred topics that were found empty and will ring."""
    made = Site(100)
    assert made.asked() == list(range(100))
    assert made.topics.request_wakeups()
    made.generation += 1
    made.settle()
    return made


def test_a_ring_leads_to_the_topics_that_changed(site: Site):
    """And to no others; those that had nothing are asked to ring once."""
    site.logs[7].words[0] += 1
    site.logs[70].words[1] += 1
    assert site.asked() == []  # nobody rang
    site.generation += 1
    assert site.asked() == [7, 70]
    assert site.topics.request_wakeups()
    assert [log.armed for log in site.logs] == [2 if i in (7, 70) else 1 for i in range(100)]


def test_a_ring_leads_to_the_topics_that_wait_for_transactions(site: Site):
    """No word of theirs changes when a transaction ends. Each is asked once for that."""
    site.logs[7].words[0] += 1
    site.logs[7].is_blocked = True
    site.generation += 1
    assert site.asked() == [7]
    assert site.topics.request_wakeups()
    assert site.asked() == []
    site.logs[7].is_blocked = False
    site.generation += 1
    assert site.asked() == [7]
    assert site.topics.request_wakeups()
    site.generation += 1
    assert site.asked() == []


def test_a_transaction_that_ends_without_a_ring(site: Site):
    """The next look finds it: nobody had asked for a ring before its process died."""
    site.logs[7].words[0] += 1
    site.logs[7].is_blocked = True
    site.generation += 1
    assert site.asked() == [7]
    assert site.asked() == []
    site.logs[7].is_blocked = False
    assert site.asked() == [7]
    assert site.asked() == []


def test_a_topic_with_messages_stays_ready(site: Site):
    """Turns go round; no other topic is looked at meanwhile."""
    for number in (3, 5):
        site.logs[number].words[0] += 1
    site.generation += 1
    turns = []
    for _ in range(6):
        number = site.topics.first(site.generation)
        turns.append(number)
        site.topics.end_turn(number)
    assert turns == [3, 5] * 3
    assert not site.topics.request_wakeups()


def test_what_comes_while_a_topic_is_asked_is_found(site: Site):
    """The words are read before the topic is asked: a change in between makes it ready again."""
    site.logs[9].words[0] += 1
    site.generation += 1
    assert site.topics.first(site.generation) == 9
    seen = site.topics.read_state(9)
    site.logs[9].words[0] += 1
    site.topics.note_dry(9, seen)
    assert site.asked() == [9]


def test_what_comes_before_it_is_asked_to_ring_is_found(site: Site):
    """A topic that refuses to ring is ready."""
    site.logs[9].words[0] += 1
    site.generation += 1
    assert site.asked() == [9]
    site.logs[9].words[0] += 1
    assert not site.topics.request_wakeups()
    assert site.asked() == [9]


def test_a_touched_topic_is_ready_without_a_ring(site: Site):
    """Also one that is touched while it is asked, by another thread."""
    site.logs[4].on_change()
    assert site.topics.first(site.generation) == 4
    seen = site.topics.read_state(4)
    site.logs[4].on_change()
    site.topics.note_dry(4, seen)
    assert site.asked() == [4]


def test_a_lost_ring_is_made_good(site: Site):
    """The words are compared in slices as time passes."""
    site.logs[50].words[0] += 1
    before = site.topics.check()
    site.clock.advance(0.2)
    assert site.topics.check() != before
    assert site.asked() == [50]


def test_all_are_asked_in_the_course_of_time(site: Site):
    """Whatever their words say, a few at a time."""
    found: set[int] = set()
    for _ in range(3):
        site.clock.advance(2.1)
        part = site.asked()
        assert len(part) <= 64
        found |= set(part)
    assert found == set(range(100))


def test_delayed_messages(site: Site):
    """The earliest of all topics counts; when it is due its topic is ready."""
    now = site.clock.wall_ms()
    for number, delay in ((1, 90), (2, 50), (3, 70)):
        site.logs[number].due = now + delay
        site.logs[number].on_change()
    site.settle()
    assert site.topics.next_due_ms() == now + 50
    site.clock.advance(0.06)
    site.logs[2].due = 0
    assert site.asked() == [2]
    assert site.topics.next_due_ms() == now + 70


def test_a_topic_whose_lock_is_held_is_put_off(site: Site):
    """It is tried again after 1 ms, then 2, up to 50; the others have their turns meanwhile."""
    pauses = []
    for _ in range(8):
        site.logs[6].words[0] += 1
        site.logs[8].words[0] += 1
        site.generation += 1
        while (number := site.topics.first(site.generation)) >= 0:
            seen = site.topics.read_state(number)
            if number == 6:
                site.topics.put_off(number, seen)
            else:
                site.topics.note_dry(number, seen)
        pauses.append(round(1000 * site.topics.pause_s()))
        site.clock.advance(site.topics.pause_s() + 1e-6)
    assert pauses == [1, 2, 4, 8, 16, 32, 50, 50]
    assert site.asked() == [6]
    site.logs[6].words[0] += 1
    site.generation += 1
    number = site.topics.first(site.generation)
    site.topics.put_off(number, site.topics.read_state(number))
    assert round(1000 * site.topics.pause_s()) == 1


def test_more_topics(site: Site):
    """They are ready at once."""
    site.topics.extend([Log()])  # type: ignore[list-item]
    assert site.asked() == [100]


def test_a_closed_topic_is_asked(site: Site):
    """It says itself that it is closed."""
    site.logs[3].words.release()
    site.generation += 1
    number = site.topics.first(site.generation)
    while number != 3:
        site.topics.note_dry(number, site.topics.read_state(number))
        number = site.topics.first(site.generation)
    with pytest.raises(AlreadyClosed):
        site.topics.read_state(3)


def test_a_removed_topic_is_not_asked_and_its_number_is_used_again(site: Site):
    """Nor does anything that belongs to it make it ready; the next topic of its number is asked at once."""
    gone = site.logs[7]
    site.topics.remove(7, gone)  # type: ignore[arg-type]
    site.topics.remove(7, gone)  # type: ignore[arg-type]
    gone.words[0] += 1
    gone.on_change()
    site.generation += 1
    for _ in range(3):
        site.clock.advance(3)
        assert 7 not in site.asked()
    site.settle()
    new = Log()
    site.topics.put(7, new)  # type: ignore[arg-type]
    site.topics.remove(7, gone)  # type: ignore[arg-type]  # too late: another topic has the number
    assert site.asked() == [7]
    new.words[0] += 1
    site.generation += 1
    assert 7 in site.asked()


def test_what_was_seen_of_a_removed_topic_does_not_count(site: Site):
    """A thread that looked at the old topic does not make the new one dry."""
    site.logs[7].words[0] += 1
    site.generation += 1
    assert site.topics.first(site.generation) == 7
    seen = site.topics.read_state(7)
    site.topics.remove(7, site.logs[7])  # type: ignore[arg-type]
    site.topics.put(7, Log())  # type: ignore[arg-type]
    site.topics.note_dry(7, seen)
    assert site.topics.first(site.generation) == 7


def test_a_removed_topic_is_forgotten_in_every_state(site: Site):
    """Ready, dry, waiting for a lock or for a delayed message."""
    for log in site.logs[:4]:
        log.words[0] += 1
    site.generation += 1
    assert site.topics.first(site.generation) == 0
    site.logs[1].due = site.clock.wall_ms() + 10
    site.topics.note_dry(1, site.topics.read_state(1))
    site.topics.put_off(2, site.topics.read_state(2))
    site.topics.note_dry(3, site.topics.read_state(3))
    for number, log in enumerate(site.logs[:4]):
        site.topics.remove(number, log)  # type: ignore[arg-type]
    site.clock.advance(5)
    assert not {0, 1, 2, 3} & set(site.asked())
