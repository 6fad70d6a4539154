"""What a wake-up takes by each kind of doorbell, and what a process costs that waits for one.

    python -m tests.multiprocess.wake_ups

The kinds take turns: a FIFO with epoll, a file with kqueue (imitated by inotify, so this is the cost of the
package and not of a BSD), and a file that is polled. Printed are the median and the 9th decile of half a
round trip between two processes that slept 5 ms before, how long the death of a process takes to be noticed,
and the CPU of a process that waits for ten seconds.
"""

from __future__ import annotations

import os
import select
import signal
import statistics
import tempfile
import time

from embeddedpulsar._engine.platform.doorbell import FifoDoorbell, PollingDoorbell, QueueDoorbell
from embeddedpulsar._engine.platform.mailbox import Mailbox
from embeddedpulsar._engine.platform.peers import Peers
from embeddedpulsar._engine.platform.threads import system
from tests.children import ForkedChild
from tests.support import other_unix

KINDS = {"FIFO, epoll": FifoDoorbell, "file, kqueue": QueueDoorbell, "file, polled": PollingDoorbell}
ROUNDS, PAUSE_S, DEATHS, IDLE_S = 100, 0.005, 15, 10.0


def main() -> None:
    """Measure and print."""
    other_unix.with_kqueue(setattr)
    system.kqueue, system.polls = other_unix.kqueue, select
    for name, kind in KINDS.items():
        with tempfile.TemporaryDirectory() as directory:
            times = sorted(_round_trips(kind, directory))
            deaths = sorted(_deaths(kind, directory))
            cpu_s = _idle(kind, directory)
        print(
            f"{name}: wake-up {times[len(times) // 2] * 5e5:.0f} us, 9th decile "
            f"{times[len(times) * 9 // 10] * 5e5:.0f} us; a death {statistics.median(deaths) * 1e3:.1f} ms; "
            f"idle {cpu_s / IDLE_S * 1e2:.3f} % of a processor"
        )


def _box(kind: type[FifoDoorbell] | type[PollingDoorbell], directory: str) -> Mailbox:
    return Mailbox(kind.create(directory))


def _round_trips(kind: type[FifoDoorbell] | type[PollingDoorbell], directory: str) -> list[float]:
    box = _box(kind, directory)

    def start() -> str:
        other = _box(kind, directory)
        peers = Peers(directory, other)

        def echo() -> None:
            seen = other.generation
            while True:
                seen = other.wait(seen, 10)
                peers.ring(box.uuid)

        system.start_new_thread(echo, ())
        return other.uuid.hex()

    child = ForkedChild(start)
    uuid, peers, times = bytes.fromhex(child.ready()), Peers(directory, box), []
    for _ in range(ROUNDS):
        time.sleep(PAUSE_S)
        seen, began = box.generation, time.perf_counter()
        peers.ring(uuid)
        box.wait(seen, 10)
        times.append(time.perf_counter() - began)
    child.end()
    peers.close()
    box.close()
    return times


def _deaths(kind: type[FifoDoorbell] | type[PollingDoorbell], directory: str) -> list[float]:
    box, times = _box(kind, directory), []
    kept: list[Mailbox] = []

    def start() -> str:
        kept.append(_box(kind, directory))
        return kept[0].uuid.hex()

    for _ in range(DEATHS):
        child = ForkedChild(start)
        uuid = bytes.fromhex(child.ready())
        dead: list[bytes] = []
        assert box.watch(uuid, dead.append)
        box.wait(box.generation, 0)
        time.sleep(PAUSE_S)
        began = time.perf_counter()
        os.kill(child.pid, signal.SIGKILL)
        while not dead:
            box.wait(box.generation, 5)
        times.append(time.perf_counter() - began)
        child.end()
    box.close()
    return times


def _idle(kind: type[FifoDoorbell] | type[PollingDoorbell], directory: str) -> float:
    box = _box(kind, directory)
    began, end = time.process_time(), time.monotonic() + IDLE_S
    while time.monotonic() < end:
        box.wait(box.generation, end - time.monotonic())
    box.close()
    return time.process_time() - began


if __name__ == "__main__":
    main()
