"""A herd: processes that all wait for the same messages. What is measured is CPU time, of all of them."""

from __future__ import annotations

import os
import select
import signal
import struct
import time
import traceback
from pathlib import Path
from typing import Any

from benchmarks.contest import Contestant, Unavailable

GAP_SECONDS = 0.01
PERIOD_SECONDS = 10.0
"""A process checks its neighbours at this interval, and those that started together do it together: a
measurement has to last a whole number of these."""
PATIENCE_SECONDS = 120.0
NOTE = struct.Struct("=q")


class Member:
    """One process of a herd; a peer fills in how to receive."""

    def receive(self) -> bytes:
        """Block until a message is there; acknowledge it; return its payload."""
        raise NotImplementedError


class Herd(Contestant):
    """Forks its processes for each run, before it opens anything itself, wakes all of them with a burst, and
    sends a message every 10 ms.

    The figure is the CPU time of a message: that of all processes and of the sender, from the first message
    to the last. Waiting is in it, starting is not. The notes separate the two: what all processes take in a
    second without any message, and what a message takes when that is subtracted. Between runs the processes
    are gone: other rows have the machine to themselves.
    """

    def __init__(self, members: int) -> None:
        super().__init__()
        self.members = members
        self._pids: list[int] = []

    def open(self, place: Path) -> None:
        """Prepare what the processes share."""

    def member(self) -> Member:
        """Open one, in its process."""
        raise NotImplementedError

    def sender(self) -> Any:
        """Open what has ``send(payload, number)`` and ``close()``, in the process of the benchmark."""
        raise NotImplementedError

    def cpu_elsewhere(self) -> list[int]:
        """Other processes whose CPU time belongs to it: a server."""
        return []

    def start(self, place: Path) -> None:
        if not os.path.exists("/proc/self/schedstat"):
            raise Unavailable("there is no /proc/<pid>/schedstat to read CPU times from")
        self.open(place)

    def run(self, operations: int) -> float:
        self._reader, self._writer = os.pipe()
        try:
            self._gather()
            source = self.sender()
            try:
                self._warm(source)
                return self._measure(source, operations)
            finally:
                source.close()
        finally:
            self._disperse()
            os.close(self._reader)
            os.close(self._writer)

    def _gather(self) -> None:
        for _ in range(self.members):
            pid = os.fork()
            if not pid:
                self._live()
            self._pids.append(pid)
            self._note()
        time.sleep(min(2.0, 0.05 * self.members))  # the last ones fall asleep

    def _disperse(self) -> None:
        for pid in self._pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self._pids.clear()

    def _live(self) -> None:
        try:
            member = self.member()
            os.write(self._writer, NOTE.pack(0))
            while True:
                sent = int.from_bytes(member.receive()[:8], "little")
                os.write(self._writer, NOTE.pack(time.monotonic_ns() - sent))
        except Exception:  # noqa: BLE001 - the parent waits for its notes in vain: say why
            traceback.print_exc()
        finally:
            os._exit(1)

    def _note(self) -> int:
        if not select.select([self._reader], [], [], PATIENCE_SECONDS)[0]:
            raise TimeoutError("a process of the herd did not answer in time")
        return int(NOTE.unpack(os.read(self._reader, NOTE.size))[0])

    def _warm(self, source: Any) -> None:
        """Ten messages for each process, without a pause: they wake all of them, and each learns which others
        attached after it."""
        number = 10 * self.members
        for one in range(number):
            self._send(source, one)
        for _ in range(number):
            self._note()
        time.sleep(min(6.0, 0.05 * self.members))  # they fall asleep again

    def _send(self, source: Any, number: int) -> None:
        source.send(time.monotonic_ns().to_bytes(8, "little") + bytes(92), number)

    def _measure(self, source: Any, operations: int) -> float:
        processes = [*self._pids, *self.cpu_elsewhere()]
        before, length_s = sum(map(cpu_ns, processes)), operations * GAP_SECONDS
        time.sleep(length_s)
        rest = (sum(map(cpu_ns, processes)) - before) / length_s
        before, began = sum(map(cpu_ns, processes)), time.monotonic()
        own = time.process_time_ns()
        for number in range(operations):
            self._send(source, number)
            time.sleep(GAP_SECONDS)
        ages = sorted(self._note() for _ in range(operations))
        own = time.process_time_ns() - own  # first: reading the files of the others takes as much again
        spent = own + sum(map(cpu_ns, processes)) - before
        waiting = rest * (time.monotonic() - began)
        self.notes = {
            "idle ms/s": rest / 1e6,
            "caused ms": (spent - waiting) / 1e6 / operations,
            "p50 ms": ages[len(ages) // 2] / 1e6,
            "p99 ms": ages[int(len(ages) * 0.99)] / 1e6,
        }
        return spent / 1e9 / operations

    def stop(self) -> None:
        self._disperse()


def cpu_ns(pid: int) -> int:
    """CPU time of a process, by all its threads."""
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        total += int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[0])
    return total
