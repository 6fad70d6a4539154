"""The process that test_lock_interrupts runs: python -c "... lock_storm.main()" <path> <interrupts> <shape>
<role>.

A timer raises at random moments in the main thread, which locks and unlocks all the time, while a second
thread and a second process (role ``rival``) do the same now and then. Whoever is inside writes its number
into a shared word and looks whether it stays there.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time

from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar._engine.platform.mapped_file import MappedFile

INSIDE, INTRUSIONS, STOP = 0, 8, 16  # words of the shared page


class Tick(BaseException):
    """What the timer raises."""


class Fragile:
    """The same lock with a release written in Python: what a reasonable person would write."""

    def __init__(self, inner: FileLock) -> None:
        self.acquire = inner.acquire
        self.give_back = inner.release
        self.count = inner._count

    @property
    def held(self) -> bool:
        return self.count() > 0

    def release(self) -> None:
        if self.held:
            self.give_back()


class Storm:
    """One process of the storm."""

    def __init__(self, path: str, shape: str) -> None:
        self.words = MappedFile.open(f"{path}.page", writable=True, size=4096, create=True).words
        lock = FileLock(path)
        self.lock = Fragile(lock) if shape == "fragile" else lock
        self.nested = shape == "nested"
        self.budget = 0

    def section(self, me: int) -> None:
        words = self.words
        words[INSIDE] = me
        for _ in range(5):
            if words[INSIDE] != me:
                words[INTRUSIONS] += 1
        words[INSIDE] = 0

    def once(self, me: int) -> None:
        lock = self.lock
        try:
            lock.acquire()
            if self.nested:
                try:
                    lock.acquire()
                    self.section(me)
                finally:
                    lock.release()
            else:
                self.section(me)
        finally:
            lock.release()

    def work(self, me: int) -> None:
        while not self.words[STOP]:
            for _ in range(5):
                self.once(me)
            time.sleep(0.0005)

    def tick(self, *_: object) -> None:
        if self.budget:
            self.budget -= 1
            raise Tick

    def blow(self, wanted: int) -> tuple[int, int]:
        """Interrupts that hit, and locks found held after one."""
        me = os.getpid()
        rng = random.Random(1)
        signal.signal(signal.SIGALRM, self.tick)
        interrupts = leaks = 0
        while interrupts < wanted:
            try:
                try:
                    # Two a round: the second may hit while the first unwinds, in the middle of the finally.
                    self.budget = 2
                    signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-6, 1e-4), rng.uniform(2e-5, 8e-5))
                    while True:
                        self.once(me)
                except Tick:
                    interrupts += 1
                    self.budget = 0
            except Tick:
                interrupts += 1
            self.budget = 0
            signal.setitimer(signal.ITIMER_REAL, 0)
            if self.lock.held:
                leaks += 1
                while self.lock.held:
                    self.lock.release()
        return interrupts, leaks


def main() -> None:
    path, wanted, shape, role = sys.argv[1:]
    storm = Storm(path, shape)
    if role == "rival":
        storm.work(os.getpid())
        return
    thread = threading.Thread(target=storm.work, args=(2**40 + os.getpid(),))
    thread.start()
    interrupts, leaks = storm.blow(int(wanted))
    storm.words[STOP] = 1
    thread.join()
    print(interrupts, leaks, storm.words[INTRUSIONS])
