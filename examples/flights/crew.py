"""Four workers of one Key_Shared subscription: one is killed, one comes late, all aircraft stay in order.

The flights are published once more, one message each, keyed by the number on the tail. Key_Shared gives each
aircraft to one worker at a time; when workers go and come, aircraft change hands, but only when nothing of
theirs is in flight.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from display import Bar, Display
from handled import Order
from ledger import Counter
from worker import HANDLED, LANDED

LOOK_SECONDS = 0.05
WORKERS = 4

Start = Callable[..., "subprocess.Popen[str]"]


class Crew:
    """The run of the workers, and what is to be checked afterwards."""

    def __init__(self, directory: Path, tails: list[str], display: Display) -> None:
        self._directory = directory
        self._display = display
        self._total = len(tails)
        self.order = Order(directory / HANDLED, tails)
        self.killed: int | None = None

    def run(self, start: Start, check_alive: Callable[[list[subprocess.Popen[str]]], None]) -> None:
        """Handle every flight, with one worker killed at a third and another started half way."""
        say, order = self._display.say, self.order
        say(f"{WORKERS} workers share the flights of {order.aircraft:,} aircraft, by Key_Shared ...")
        bars = [Bar("published", self._total), Bar("handled", self._total)]
        published = Counter(self._directory / "departed")
        workers = {number: start("work", number) for number in range(1, WORKERS + 1)}
        while not all((self._directory / f"worker-{number}.ready").exists() for number in workers):
            check_alive(list(workers.values()))
            time.sleep(LOOK_SECONDS)
        publisher = start("depart")
        begun = time.monotonic()
        while order.done < self._total:
            time.sleep(LOOK_SECONDS)
            order.look()
            bars[0].advance(published.value)
            bars[1].advance(order.done)
            self._display.show(bars)
            if self.killed is None and order.done >= self._total // 3:
                self.killed = 2
                victim = workers.pop(self.killed)
                victim.send_signal(signal.SIGKILL)
                victim.wait()
                order.look()
                say(f"worker {self.killed} killed with SIGKILL after {order.done:,} flights of all")
            if len(workers) < WORKERS and order.done >= self._total // 2:
                number = WORKERS + 1
                workers[number] = start("work", number)
                say(f"worker {number} started after {order.done:,} flights of all")
            check_alive([publisher, *workers.values()])
        bars[0].advance(self._total)
        seconds = time.monotonic() - begun
        (self._directory / LANDED).touch()
        self._display.settle()
        for process in (publisher, *workers.values()):
            process.wait(timeout=60)
        order.look()
        say(f"everything published and handled in {seconds:.1f} s")
        for number, flights in sorted(order.of_worker.items()):
            note = " until it was killed" if number == self.killed else ""
            note = ", which came late" if number > WORKERS else note
            say(f"  worker {number}: {flights:>8,} flights of {order.aircraft_of(number):>5,} aircraft{note}")

    def verdicts(self) -> list[tuple[bool, str]]:
        """What must hold: whether it does, and in words."""
        order, again = self.order, len(self.order.again)
        note = f", {again:,} of them twice, for want of an acknowledgement" if again else ""
        return [
            (
                order.done == self._total,
                f"the workers handled {order.done:,} of {self._total:,} flights{note}",
            ),
            (not order.wrong, f"the flights of all {order.aircraft:,} aircraft were handled in order"),
            (len(order.of_worker) == WORKERS + 1, f"all {WORKERS + 1} workers had something to do"),
        ]
