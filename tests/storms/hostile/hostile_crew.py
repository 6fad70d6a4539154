"""The processes of the hostile storm: which there are, which run, which are stopped."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from embeddedpulsar._engine.platform.timing import perf_counter, sleep
from tests.storms import storm_diary
from tests.storms.hostile.hostile_bystander import SHARED_TOPIC, Bystander
from tests.storms.hostile.hostile_daemons import DaemonParent
from tests.storms.hostile.hostile_functions import FunctionKeeper
from tests.storms.hostile.hostile_notebook import Notebook
from tests.storms.hostile.hostile_roles import (
    FIRST_PROCESS,
    PRODUCERS,
    TOPICS,
    HostilePage,
    HostileRole,
    diary_of,
)
from tests.storms.hostile.hostile_stores import Remover, Tenant
from tests.storms.hostile.hostile_workload import HostileConsumer, HostileProducer
from tests.storms.storm_children import StormChildren
from tests.storms.storm_diary import Diary

_CLOSED_SHARE: Final = 0.3
_TENANTS: Final = 2


class HostileProcess(Protocol):
    """What a forked process does."""

    def run(self) -> None:
        """All of it."""


LONERS: Final[dict[str, Callable[[HostileRole], HostileProcess]]] = {
    "daemons": DaemonParent,
    "notebooks": Notebook,
    "hung-workers": FunctionKeeper,
}
"""Processes that bring their fault about themselves, by its name."""


class HostileCrew:
    """Starts, stops and kills processes, and writes what it does to a consumer into the diary of its topic.

    ``victims`` are the members that faults may strike: producers and consumers. The bystander, the processes
    around the store that is removed, and those that bring their fault about themselves (`LONERS`), are only
    stopped together with all others.
    """

    def __init__(
        self, folder: str, board: HostilePage, seed: int, consumers: int, without: Sequence[str]
    ) -> None:
        self.problems: list[str] = []
        self.rng: Final = random.Random(seed)
        self.leaves = 0
        self._folder: Final = folder
        self._closed_share: Final = 0.0 if "closed-streams" in without else _CLOSED_SHARE
        self._board: Final = board
        self._began: Final = perf_counter()
        self._children: Final = StormChildren(folder, self.problems)
        self._pids: dict[int, int] = {}
        self._born_at: dict[int, int] = {}
        self._stopped: dict[int, float] = {}
        first = FIRST_PROCESS + PRODUCERS
        self.producers: Final = range(FIRST_PROCESS, first)
        self.consumers: Final = range(first, first + consumers)
        self.bystander: Final = first + consumers
        tenants = 0 if "removed-stores" in without else _TENANTS
        self.tenants: Final = range(self.bystander + 1, self.bystander + 1 + tenants)
        self._removers: Final = range(self.tenants.stop, self.tenants.stop + (tenants > 0))
        self._seed: Final = seed
        self._loners: Final = dict(
            enumerate((kind for kind in LONERS if kind not in without), self._removers.stop)
        )

    @property
    def members(self) -> range:
        """Everyone."""
        return range(FIRST_PROCESS, self._removers.stop + len(self._loners))

    @property
    def loners(self) -> list[str]:
        """The faults that processes bring about themselves."""
        return list(self._loners.values())

    def topic_of(self, member: int) -> str | None:
        """What a consumer consumes."""
        if member == self.bystander:
            return SHARED_TOPIC
        if member in self.consumers:
            return list(TOPICS)[(member - self.consumers[0]) % len(TOPICS)]
        return None

    # -- starting ----------------------------------------------------------------------------------

    def run_alone(self, work: Callable[[], object], name: str) -> None:
        """Run ``work()`` in a process and wait for it."""
        self._children.wait_for(self._children.fork(work, name), name)

    def start(self, member: int) -> None:
        """Begin the next life of a process."""
        page = self._board.page
        share = self._closed_share if member <= self.bystander else 0.0
        closed = tuple(fd for fd in range(3) if self.rng.random() < share)
        role = HostileRole(
            member, page.next_life(member), self._folder, self._board, self._began, closed, self._seed
        )
        self._born_at[member] = page.progress(member)
        self._pids[member] = self._children.fork(lambda: self._work(role), self.name(member))

    def _work(self, role: HostileRole) -> None:
        process = self._process(role)
        for descriptor in role.closed:  # once the files of the storm are open, which must not be hit
            os.close(descriptor)
        process.run()

    def _process(self, role: HostileRole) -> HostileProcess:
        topic = self.topic_of(role.member)
        if role.member in self.producers:
            return HostileProducer(role)
        if role.member == self.bystander:
            return Bystander(role, diary_of(role.folder, SHARED_TOPIC))
        if topic is not None:
            return HostileConsumer(role, topic)
        if role.member in self._loners:
            return LONERS[self._loners[role.member]](role)
        return Tenant(role) if role.member in self.tenants else Remover(role)

    def name(self, member: int) -> str:
        """Of a process, for reports."""
        if member in self.producers:
            return f"producer-{member}"
        if member in self.consumers:
            return f"consumer-{member}"
        if member == self.bystander:
            return "bystander"
        if member in self._loners:
            return self._loners[member]
        return f"tenant-{member}" if member in self.tenants else "remover"

    # -- who can be struck -------------------------------------------------------------------------

    @property
    def pids(self) -> list[int]:
        """The processes that run."""
        return list(self._pids.values())

    @property
    def is_any_stopped(self) -> bool:
        """Whether a process is stopped for long."""
        return bool(self._stopped)

    def victim(self, *, at_work: bool = False) -> int | None:
        """A producer or consumer that runs; with ``at_work`` one that has begun its work."""
        members: list[int] = [*self.producers, *self.consumers]
        self.rng.shuffle(members)
        for member in members:
            if member in self._stopped or member not in self._pids:
                continue
            if not at_work or self._board.page.progress(member) != self._born_at[member]:
                return member
        return None

    def pid(self, member: int) -> int:
        """Of a member that runs."""
        return self._pids[member]

    # -- striking ----------------------------------------------------------------------------------

    def stop(self, member: int) -> bool:
        """SIGSTOP; False if it has ended."""
        status = self._children.stop(self._pids[member])
        if status is not None:
            self._note_end(member, status)
        return status is None

    def resume(self, member: int) -> None:
        """SIGCONT."""
        os.kill(self._pids[member], signal.SIGCONT)

    def kill_stopped(self, member: int) -> None:
        """SIGKILL a process that is stopped, and begin its next life."""
        self._write(member, storm_diary.KILLED)
        self._children.kill(self._pids[member])
        self.start(member)

    def leave_stopped(self, member: int, seconds: float) -> None:
        """It stays stopped for longer than the others put up with."""
        self._write(member, storm_diary.STOPPED)
        self._stopped[member] = perf_counter() + seconds

    def look_after(self, *, resume_all: bool = False) -> None:
        """Resume those whose time has come, and start anew those that left in good order."""
        now = perf_counter()
        for member, until in list(self._stopped.items()):
            if resume_all or now >= until:
                del self._stopped[member]
                self._write(member, storm_diary.RESUMED)
                self.resume(member)
        for member, pid in list(self._pids.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                self._note_end(member, status)

    def _note_end(self, member: int, status: int) -> None:
        del self._pids[member]
        if not status and member not in self.consumers and self._board.page.is_stopped:
            return
        if status or member not in self.consumers:
            name = self.name(member)
            self.problems.append(f"{name} ended by itself ({status}): {self._children.error(name)}")
            return
        self.leaves += 1
        self.start(member)

    def _write(self, member: int, kind: int) -> None:
        topic = self.topic_of(member)
        if topic is not None:
            diary = Diary(diary_of(self._folder, topic), member, self._board.page.lives(member))
            diary.write(kind)
            diary.close()

    # -- the end -----------------------------------------------------------------------------------

    def finish(self) -> None:
        """Let everyone end in order: who sends, then who consumes once everything came."""
        page = self._board.page
        page.stop()
        sleep(0.2)  # consumers that were leaving have left, and are started once more
        self.look_after(resume_all=True)
        first = (*self.producers, *self.tenants, *self._removers, *self._loners)
        for members in (first, (*self.consumers, self.bystander)):
            for member in members:
                pid = self._pids.pop(member, None)
                if pid is not None:
                    self._children.wait_for(pid, self.name(member))
            page.drain()

    def end(self) -> None:
        """Kill what still runs."""
        for pid in self._pids.values():
            self._children.kill(pid)
        self._pids.clear()

    def progress(self) -> Iterator[int]:
        """How far each process has come."""
        return map(self._board.page.progress, self.members)
