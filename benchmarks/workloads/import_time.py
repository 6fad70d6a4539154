"""What `import` costs a script, above a bare interpreter."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from benchmarks.contest import MILLISECONDS, Budget, Contest, Contestant, Settings, Unavailable

ROOT = Path(__file__).resolve().parents[2]


class Import(Contestant):
    """Starts interpreters with and without the import, in turn, and compares the quickest of each."""

    survives = ""

    def __init__(self, module: str, package: str) -> None:
        super().__init__()
        self.key, self.name = module, f"import {module}" + (f"  ({package})" if package != module else "")
        self._module = module

    def start(self, place: Path) -> None:
        done = subprocess.run([*_command(f"import {self._module}")], capture_output=True, text=True, cwd=ROOT)
        if done.returncode:
            raise Unavailable(done.stderr.strip().splitlines()[-1])

    def run(self, operations: int) -> float:
        bare, loaded = [], []
        for _ in range(operations):
            bare.append(_seconds("pass"))
            loaded.append(_seconds(f"import {self._module}"))
        return max(0.0, min(loaded) - min(bare))


def _command(statement: str) -> list[str]:
    return [sys.executable, "-c", statement]


def _seconds(statement: str) -> float:
    begun = time.perf_counter()
    subprocess.run(_command(statement), check=True, cwd=ROOT)
    return time.perf_counter() - begun


def contests(settings: Settings) -> list[Contest]:
    """One table."""
    modules = [
        ("embeddedpulsar", "embeddedpulsar"),
        ("pulsar", "pulsar-client"),
        ("zmq", "pyzmq"),
        ("redis", "redis"),
        ("nats", "nats-py"),
        ("persistqueue", "persist-queue"),
        ("lmdb", "lmdb"),
    ]
    return [
        Contest(
            "import_time: above a bare interpreter",
            MILLISECONDS,
            [Import(module, package) for module, package in modules],
            [Budget("<= 60 ms", "embeddedpulsar", 60, at_least=False)],
            fixed=settings.scale(5, 1),
        )
    ]
