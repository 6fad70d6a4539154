"""One leader among several processes: whoever has the topic for itself leads; then the next.

The lock is a producer with ``WaitForExclusive``. The kernel gives it back, however the process ends.
"""

from __future__ import annotations

import os
import signal
import time
from multiprocessing import Process

import embeddedpulsar as pulsar

TERMS = "terms"


def stand(number: int) -> None:
    """Wait to become the leader, say so, and lead until killed."""
    with pulsar.Client("./data") as client:
        leader = client.create_producer(
            TERMS, f"candidate-{number}", access_mode=pulsar.ProducerAccessMode.WaitForExclusive
        )
        while True:
            leader.send(b"%d" % number, properties={"pid": str(os.getpid())})
            time.sleep(0.02)


def main() -> None:
    candidates = {}
    for number in range(3):
        process = Process(target=stand, args=(number,), daemon=True)
        process.start()
        candidates[process.pid] = process
    leaders: list[str] = []
    with pulsar.Client("./data") as client:
        reader = client.create_reader(TERMS, pulsar.MessageId.earliest)
        while len(leaders) < 3:
            message = reader.read_next(timeout_millis=30_000)
            leader = message.data().decode()
            assert leader not in leaders[:-1], "who was killed leads no more, and nobody leads beside another"
            if leader not in leaders:
                leaders.append(leader)
                pid = int(message.properties()["pid"])
                os.kill(pid, signal.SIGKILL)
                candidates[pid].join()
    print(f"{len(set(leaders))} leaders, one after the other")


if __name__ == "__main__":
    main()
