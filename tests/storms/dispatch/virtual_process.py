"""Processes that share one subscription, all in one: the real subscription over files, all else simulated."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Final, cast

from embeddedpulsar._engine.log.waiter_slots import Ringing, TailWait
from embeddedpulsar._engine.platform import failpoints
from embeddedpulsar._engine.platform.lease import Holder
from embeddedpulsar._engine.subscription.shared_state import SharedState
from embeddedpulsar._engine.subscription.subscription import Subscription
from embeddedpulsar.message_id import BEFORE_FIRST
from embeddedpulsar.settings import BrokerSettings
from embeddedpulsar.testing.manual_clock import ManualClock, ManualScheduler
from tests.storms.dispatch.virtual_log import VirtualLog

_MOST_LOOKS: Final = 3000
NAME: Final = "s"


class Killed(BaseException):
    """What a process that dies in the middle of a call raises, so that nothing of ours catches it."""


class Interruption(BaseException):
    """A signal handler raised in the middle of a call; the process goes on."""


class Spinning(AssertionError):
    """A call does not come to an end."""


def _refuse() -> None:
    raise Killed("the process is dead")


class WatchfulClock(ManualClock):
    """A clock that notices when one call looks at it again and again."""

    __slots__ = ("looks",)

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0

    def wall_ms(self) -> int:
        self.looks += 1
        if self.looks > _MOST_LOOKS:
            raise Spinning("a call goes round and round")
        return super().wall_ms()


class VirtualMailbox:
    """What `Mailbox` is to a subscription."""

    def __init__(self, world: VirtualWorld, uuid: bytes) -> None:
        self.uuid: Final = uuid
        self._world = world
        self.notices: list[bytes] = []
        """Processes whose death it has not been told of."""
        self.watched: dict[bytes, list[Callable[[bytes], object]]] = {}

    def tend(self) -> None:
        """Nobody removes its doorbell."""

    def watch(self, uuid: bytes, callback: Callable[[bytes], object]) -> bool:
        self.watched.setdefault(uuid, []).append(callback)
        if uuid in self._world.processes:
            return True
        self.notices.append(uuid)
        return False

    def unwatch(self, uuid: bytes, callback: Callable[[bytes], object] | None = None) -> None:
        self.watched.pop(uuid, None)


class VirtualPeers:
    """What `Peers` is to a subscription: doorbells and leases. ``owner`` is empty for the world's own."""

    def __init__(self, world: VirtualWorld, owner: bytes) -> None:
        self._world = world
        self._owner = owner

    def ring(self, uuid: bytes) -> bool:
        if self._owner and self._owner not in self._world.processes:
            return True  # the dying ring nobody
        return self._world.ring(uuid)

    def ring_all(self) -> None:
        for uuid in list(self._world.processes):
            self.ring(uuid)

    def is_alive(self, uuid: bytes) -> bool:
        return uuid in self._world.processes

    def described(self, holders: Sequence[Holder]) -> str:
        return ", ".join(holder.name for holder in holders)


class VirtualProcess:
    """One process: its own replica, its own timers.

    Attributes:
        is_stopped: it does nothing, like after SIGSTOP; rings wait.
        rings: how often it was rung.
    """

    def __init__(self, world: VirtualWorld, uuid: bytes) -> None:
        self.uuid: Final = uuid
        self.is_stopped = False
        self.rings = 0
        self._clock: Final = world.clock
        self.mailbox: Final = VirtualMailbox(world, uuid)
        self.scheduler: Final = ManualScheduler(world.clock)
        peers, lock = cast("Any", VirtualPeers(world, uuid)), cast("Any", world.log.lock)
        words = world.log.words
        ringing = Ringing(words, lock, peers)
        self.waits: Final = TailWait(words, lock, ringing, cast("Any", self.mailbox), 0.0, lambda: None)
        self.subscription: Final = Subscription.open(
            world.directory,
            NAME,
            managed_ledger=cast("Any", world.log),
            mailbox=cast("Any", self.mailbox),
            peers=peers,
            clock=world.clock,
            settings=world.settings,
            scheduler=self.scheduler,
            compact_bytes=world.compact_bytes,
            damage=world.damage.append,
            outcomes=world.outcomes,
        )
        self.subscription.create(BEFORE_FIRST)
        self._opened: Final = [self.shared]

    @property
    def is_open(self) -> bool:
        """Whether it did not begin to close its subscription."""
        return self.subscription._shared is not None

    @property
    def shared(self) -> SharedState:
        """Its hold on the replicated state."""
        shared = self.subscription._shared
        assert shared is not None
        return shared

    def now_ms(self) -> int:
        """Wall time."""
        self._clock.looks = 0
        return self._clock.wall_ms()

    def tell_of_deaths(self) -> None:
        """The kernel reports who died."""
        notices, self.mailbox.notices = self.mailbox.notices, []
        for uuid in notices:
            for callback in self.mailbox.watched.pop(uuid, []):
                callback(uuid)

    def stop_for_good(self) -> None:
        """Dying: no further call of this process does anything."""
        for shared in self._opened:
            setattr(shared, "_check_usable", _refuse)

    def vanish(self) -> None:
        """Give back what the kernel would."""
        self.subscription._lives.pop_current()
        for shared in self._opened:
            shared.close()


class VirtualWorld:
    """A log, a directory, a clock, and the living processes.

    Attributes:
        has_lost_rings: a process died, or was interrupted, at a moment when it may have owed others a ring.
            The back-stop of waiting heals that, so it is no fault.
        acting: the process that makes the present call.
        decided: the outcomes of transactions, by id.
        asked: how often they were asked for.
    """

    def __init__(self, directory: str, log: VirtualLog, settings: BrokerSettings, compact_bytes: int) -> None:
        self.directory: Final = directory
        self.log: Final = log
        self.settings: Final = cast("BrokerSettings", SimpleNamespace(**settings._asdict()))
        self.compact_bytes: Final = compact_bytes
        self.clock: Final = WatchfulClock()
        self.processes: dict[bytes, VirtualProcess] = {}
        self.damage: list[object] = []
        self.has_lost_rings = False
        self.acting: VirtualProcess | None = None
        self.decided: dict[tuple[int, int], int] = {}
        self.asked = 0
        self._born = 0
        log.ring_by(cast("Any", VirtualPeers(self, b"")))
        os.makedirs(directory, exist_ok=True)

    def outcomes(self, transactions: Sequence[tuple[int, int]]) -> list[int]:
        """What the log of the transactions says of them; 0 for an open one."""
        self.asked += 1
        return [self.decided.get(one, 0) for one in transactions]

    def start(self) -> VirtualProcess:
        """A new process."""
        self._born += 1
        uuid = self._born.to_bytes(16, "little")
        process = VirtualProcess(self, uuid)
        self.processes[uuid] = process
        return process

    def ring(self, uuid: bytes) -> bool:
        """Ring a doorbell; False if its process is gone."""
        process = self.processes.get(uuid)
        if process is not None:
            process.rings += 1
        return process is not None

    def kill(self, process: VirtualProcess) -> None:
        """A process is no more. The others learn of it when they are told, or look."""
        self.processes.pop(process.uuid, None)
        process.vanish()
        for other in self.processes.values():
            if process.uuid in other.mailbox.watched:
                other.mailbox.notices.append(process.uuid)

    def run_timers(self, chance: random.Random) -> None:
        """Timers that are due, of processes that run."""
        running = [one for one in self.processes.values() if not one.is_stopped]
        chance.shuffle(running)
        for process in running:
            self.acting = process
            process.scheduler.run_due()

    def close(self) -> None:
        """The end of all processes."""
        failpoints.clear()
        for process in list(self.processes.values()):
            self.kill(process)
