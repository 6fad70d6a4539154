"""Who is silent, as measured on the clock of one process: stops, freezes of all, and clocks that differ."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from embeddedpulsar._engine.subscription.liveness_monitor import KeepAlives
from embeddedpulsar.exceptions import ConsumerBusy
from embeddedpulsar.testing.manual_clock import ManualClock

KEEP_ALIVE_S = 30.0
BEAT_S = 10.0


class Slots:
    """The words of some consumers, by id."""

    def __init__(self, *ids: int) -> None:
        self.words: dict[int, int] = dict.fromkeys(ids, 1)

    @property
    def consumers(self) -> Any:
        return SimpleNamespace(all=lambda: [SimpleNamespace(consumer_id=one, code=one) for one in self.words])

    def slot_word(self, code: int, consumer_id: int, word: int) -> int:
        return self.words[consumer_id]


class Process:
    """Shows itself and looks, every beat of its own clock; late when it was stopped."""

    def __init__(self, slots: Slots, consumer_id: int, offset_s: float = 0.0) -> None:
        self.slots = slots
        self.consumer_id = consumer_id
        self.clock = ManualClock(monotonic=1_000.0 + offset_s)
        self.keep_alives = KeepAlives(KEEP_ALIVE_S, self.clock)
        self.is_stopped = False
        self.found: set[int] = set()
        self._due = self.clock.monotonic()
        slots.words[consumer_id] = self._now_ms()

    def _now_ms(self) -> int:
        return int(self.clock.monotonic() * 1000)

    def look(self) -> set[int]:
        self.slots.words[self.consumer_id] = self._now_ms()
        found = self.keep_alives.find_silent(self.slots, self.slots)  # type: ignore[arg-type]
        self.found |= found
        return found

    def run(self) -> None:
        """Its timer, if it is due."""
        if not self.is_stopped and self.clock.monotonic() >= self._due:
            self.look()
            self._due = self.clock.monotonic() + BEAT_S


def pass_s(processes: list[Process], seconds: float, step_s: float = 1.0) -> None:
    """Time passes for all."""
    for _ in range(round(seconds / step_s)):
        for process in processes:
            process.clock.advance(step_s)
        for process in processes:
            process.run()


def test_one_that_is_stopped_is_found_after_the_interval():
    """Not before; and not more than a beat or two later."""
    slots = Slots()
    here, there = Process(slots, 1), Process(slots, 2)
    pass_s([here, there], 100)
    there.is_stopped = True
    pass_s([here, there], 29)
    assert not here.found
    pass_s([here, there], 21)
    assert here.found == {2}


@pytest.mark.parametrize("offset_s", [-900.0, 100_000.0])
def test_clocks_of_others_do_not_matter(offset_s: float):
    """Another time namespace: whose clock is behind or ahead is neither silent nor spared."""
    slots = Slots()
    here, there = Process(slots, 1), Process(slots, 2, offset_s)
    pass_s([here, there], 300)
    assert not here.found and not there.found
    there.is_stopped = True
    pass_s([here, there], 60)
    assert here.found == {2}


@pytest.mark.parametrize("frozen_s", [15, 19, 25, 31, 45, 3600])
@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0]])
def test_processes_that_were_stopped_together_find_nobody(frozen_s: int, order: list[int]):
    """They go on in any order, one a beat after another even, and each gives the others their time."""
    slots = Slots()
    processes = [Process(slots, number) for number in range(1, 4)]
    pass_s(processes, 57)
    for process in processes:
        process.is_stopped = True
    pass_s(processes, frozen_s)
    for number in order:
        processes[number].is_stopped = False
        pass_s(processes, BEAT_S)
    pass_s(processes, 100)
    assert not any(process.found for process in processes)


@pytest.mark.parametrize("seed", range(30))
def test_random_freezes_of_the_whole_group(seed: int):
    """However often and long: nobody that runs when the others run is found; one that stays stopped is."""
    chance, slots = random.Random(seed), Slots()
    processes = [Process(slots, number, chance.choice((0.0, 500.0, -500.0))) for number in range(1, 5)]
    for _ in range(20):
        pass_s(processes, chance.uniform(1, 40))
        for process in processes:
            process.is_stopped = True
        pass_s(processes, chance.choice((1, 9, 11, 21, 31, 100)))
        chance.shuffle(processes)
        for process in processes:
            process.is_stopped = False
            pass_s(processes, chance.choice((0, 0, 1)))
        assert not any(process.found for process in processes), seed
    processes[0].is_stopped = True
    pass_s(processes, 60)
    assert all(process.found == {processes[0].consumer_id} for process in processes[1:])


def test_a_look_without_a_transaction_counts():
    """The lock is held elsewhere for a minute: who is silent meanwhile is known when it is free."""
    slots = Slots()
    here, there = Process(slots, 1), Process(slots, 2)
    pass_s([here, there], 30)
    for _ in range(6):
        here.clock.advance(BEAT_S)
        here.keep_alives.find_silent(slots, slots)  # type: ignore[arg-type]
    assert here.look() == {2}


def test_nothing_is_found_without_a_keep_alive_interval():
    """keepAliveIntervalSeconds=0."""
    slots = Slots(7)
    keep_alives = KeepAlives(0, ManualClock())
    keep_alives.find_silent(slots, slots)  # type: ignore[arg-type]
    assert keep_alives.find_silent(slots, slots) == set()  # type: ignore[arg-type]


class Refused:
    """A newcomer that is refused while a consumer is there; what is silent is detached, as `join` does."""

    def __init__(self, slots: Slots, clock: ManualClock) -> None:
        self.slots = slots
        self.clock = clock
        self.keep_alives = KeepAlives(KEEP_ALIVE_S, clock)
        self.attempts = 0

    def look(self) -> None:
        for one in self.keep_alives.find_silent(self.slots, self.slots):  # type: ignore[arg-type]
            del self.slots.words[one]

    def attempt(self) -> str:
        self.attempts += 1
        self.look()
        if self.slots.words:
            raise ConsumerBusy("somebody is there")
        return "attached"

    def attach(self) -> str:
        return self.keep_alives.patiently(self.attempt, self.look)


def test_a_newcomer_is_refused_at_once_when_the_word_is_new():
    """No time passes for it."""
    clock = ManualClock()
    slots = Slots(7)
    slots.words[7] = int(clock.monotonic() * 1000) - 9_000
    newcomer = Refused(slots, clock)
    with pytest.raises(ConsumerBusy):
        newcomer.attach()
    assert newcomer.attempts == 1 and clock.monotonic() == 1_000.0


@pytest.mark.parametrize("age_s", [31, 800, -500])
def test_a_newcomer_watches_one_whose_word_is_old(age_s: int):
    """Or of the future: for two beats; then it takes the place."""
    clock = ManualClock()
    slots = Slots(7)
    slots.words[7] = int((clock.monotonic() - age_s) * 1000)
    newcomer = Refused(slots, clock)
    assert newcomer.attach() == "attached"
    assert 2 * BEAT_S <= clock.monotonic() - 1_000.0 < 2.5 * BEAT_S


def test_a_newcomer_spares_one_that_shows_itself():
    """It lives in another time namespace: its word looked old, and changed."""
    clock = ManualClock()
    slots = Slots(7)
    newcomer = Refused(slots, clock)
    look = newcomer.look

    def look_and_beat() -> None:
        look()
        if clock.monotonic() > 1_008:
            slots.words[7] += 1

    newcomer.look = look_and_beat  # type: ignore[method-assign]
    with pytest.raises(ConsumerBusy):
        newcomer.attach()
    assert slots.words and clock.monotonic() <= 1_000 + BEAT_S
