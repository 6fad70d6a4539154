"""What hot calls take on several versions of Python, one beside the other.

    python -m tests.pythons.hot_cells .venv-3.11/bin/python .venv-3.13/bin/python

An argument is the command of an interpreter that has what the package needs. They take turns, and the least
time of a turn counts, so a busy machine matters little. The figures are CPU time of the process per message,
in microseconds, and how many times as fast the first interpreter is.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

TURNS = 7
MESSAGES = 20_000
REPOSITORY = Path(__file__).resolve().parents[2]


def measure() -> dict[str, float]:
    """Microseconds of CPU per message of each cell, in this interpreter."""
    import embeddedpulsar as pulsar

    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None) as directory:
        with pulsar.Client(f"{directory}/store") as client:
            payload = b"x" * 100
            single = client.create_producer("single")
            batching = client.create_producer("batches", batching_enabled=True, block_if_queue_full=True)
            earliest = pulsar.InitialPosition.Earliest
            alone = client.subscribe("single", "alone", initial_position=earliest)
            shared = client.subscribe(
                "batches", "shared", pulsar.ConsumerType.Shared, initial_position=earliest
            )

            def send() -> None:
                single.send(payload)

            def send_async() -> None:
                batching.send_async(payload, None)

            def take(consumer: pulsar.Consumer) -> Callable[[], None]:
                def receive() -> None:
                    consumer.acknowledge(consumer.receive(10_000))

                return receive

            cells = {"send": send, "send_async, batches": send_async}
            times = {name: _per_call(cell) for name, cell in cells.items()}
            batching.flush()
            times["receive and acknowledge, Exclusive"] = _per_call(take(alone))
            times["receive and acknowledge, Shared"] = _per_call(take(shared))
    return times


def _per_call(call: Callable[[], None]) -> float:
    begun = time.process_time()
    for _ in range(MESSAGES):
        call()
    return (time.process_time() - begun) / MESSAGES * 1e6


def compare(commands: list[str]) -> None:
    """Have the interpreters take turns, and print the least figures."""
    least: dict[str, dict[str, float]] = {command: {} for command in commands}
    for _ in range(TURNS):
        for command in commands:
            done = subprocess.run(
                [*shlex.split(command), "-m", "tests.pythons.hot_cells"],
                cwd=REPOSITORY,
                capture_output=True,
                text=True,
                check=True,
            )
            for name, figure in json.loads(done.stdout.splitlines()[-1]).items():
                least[command][name] = min(figure, least[command].get(name, figure))
    for name in least[commands[0]]:
        first = least[commands[0]][name]
        figures = [
            f"{least[command][name]:.2f} us ({first / least[command][name]:.2f} x)" for command in commands
        ]
        print(f"{name}: {', '.join(figures)}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        compare(sys.argv[1:])
    else:
        print(json.dumps(measure()))
