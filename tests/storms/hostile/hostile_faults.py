"""What the hostile storm does to its processes, one fault at a time."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from embeddedpulsar._engine.platform.timing import perf_counter, sleep
from tests.storms.hostile.hostile_crew import HostileCrew
from tests.storms.hostile.hostile_roles import KEEP_ALIVE_S, HostilePage, store_of
from tests.storms.lock_holders import LockFiles

FAULTS: Final = ("kill", "interrupt", "signal", "pause", "remove-fifos", "stop", "stop-in-lock", "freeze")
IN_LOCK_S: Final = 5.0
"""How long a process stays stopped inside a lock."""
_AIM_TRIES: Final = 150
_BURST: Final = 12
_LONGEST_FREEZE_S: Final = 2.2 * KEEP_ALIVE_S
_CHECK_EVERY_TICKS: Final = 50


class HostileFaults:
    """Chooses and carries out faults.

    Attributes:
        counts: how many of each kind there were.
    """

    def __init__(self, crew: HostileCrew, board: HostilePage, folder: str, without: Sequence[str]) -> None:
        self.counts: Counter[str] = Counter()
        self._crew: Final = crew
        self._board: Final = board
        self._clients: Final = f"{store_of(folder)}/clients"
        self._locks: Final = LockFiles(folder)
        self._ticks = 0
        self._kinds: Final[dict[str, tuple[Callable[[], bool], float]]] = {
            "kill": (self._kill, 10),
            "interrupt": (self._interrupt, 8),
            "signal": (self._signal, 8),
            "pause": (self._pause, 6),
            "remove-fifos": (self._remove_fifos, 2),
            "stop": (self._stop_for_long, 1),
            "stop-in-lock": (self._stop_in_lock, 1),
            "freeze": (self._freeze, 0.7),
        }
        for name in without:
            self._kinds.pop(name, None)

    def strike(self) -> None:
        """Do one of them."""
        if self._ticks % _CHECK_EVERY_TICKS == 0:
            self._locks.refresh()
        self._ticks += 1
        rng = self._crew.rng
        names = list(self._kinds)
        (name,) = rng.choices(names, [self._kinds[one][1] for one in names])
        if self._kinds[name][0]():
            self.counts[name] += 1

    def _kill(self) -> bool:
        member = self._crew.victim()
        if member is None or not self._stop_where(member, inside=self._crew.rng.random() < 0.4):
            return False
        self.counts["killed inside a lock"] += bool(self._locks.held_by(self._crew.pid(member)))
        self._crew.kill_stopped(member)
        return True

    def _stop_where(self, member: int, *, inside: bool) -> bool:
        """Stop a process, inside a lock if it can be found there."""
        for _ in range(_AIM_TRIES if inside else 1):
            if not self._crew.stop(member):
                return False
            if not inside or self._locks.held_by(self._crew.pid(member)):
                return True
            self._crew.resume(member)
            sleep(self._crew.rng.uniform(0, 0.0005))
        return self._crew.stop(member)

    def _interrupt(self) -> bool:
        return self._burst(signal.SIGINT)

    def _signal(self) -> bool:
        return self._burst(signal.SIGUSR1)

    def _burst(self, number: signal.Signals) -> bool:
        member = self._crew.victim(at_work=True)
        if member is None:
            return False
        pid = self._crew.pid(member)
        for _ in range(self._crew.rng.randint(1, _BURST)):
            os.kill(pid, number)
            self.counts[f"{number.name} sent"] += 1
            sleep(self._crew.rng.uniform(0, 0.003))
        return True

    def _pause(self) -> bool:
        member = self._crew.victim()
        if member is None or not self._crew.stop(member):
            return False
        sleep(self._crew.rng.uniform(0, 0.1))
        self._crew.resume(member)
        return True

    def _remove_fifos(self) -> bool:
        """As a program does that cleans up old files."""
        rng = self._crew.rng
        if rng.random() < 0.2:
            shutil.rmtree(self._clients, ignore_errors=True)
            return True
        names = os.listdir(self._clients) if os.path.isdir(self._clients) else []
        for name in names if rng.random() < 0.2 else names[:1]:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{self._clients}/{name}")
        return bool(names)

    def _stop_for_long(self) -> bool:
        return self._leave_stopped(inside=False, seconds=KEEP_ALIVE_S * self._crew.rng.uniform(1.3, 2.5))

    def _stop_in_lock(self) -> bool:
        return self._leave_stopped(inside=True, seconds=IN_LOCK_S)

    def _leave_stopped(self, *, inside: bool, seconds: float) -> bool:
        member = None if self._crew.is_any_stopped else self._crew.victim(at_work=True)
        if member is None or not self._stop_where(member, inside=inside):
            return False
        self.counts["stopped inside a lock"] += bool(self._locks.held_by(self._crew.pid(member)))
        self._crew.leave_stopped(member, seconds)
        return True

    def _freeze(self) -> bool:
        """Stop everyone, as a suspended machine does, and let them go on one after the other."""
        if self._crew.is_any_stopped:
            return False
        pids = self._crew.pids
        begun = perf_counter()
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        sleep(self._crew.rng.uniform(0.2, _LONGEST_FREEZE_S))
        self._board.freeze_passed(int((perf_counter() - begun) * 1000) + 1)
        self._crew.rng.shuffle(pids)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
            sleep(self._crew.rng.uniform(0, 0.01))
        return True
