"""Transactions of a Pulsar broker, through its Java client: pulsar-client of Python has none."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from benchmarks.contest import POWER, PROCESS, Contestant, Unavailable
from benchmarks.peers import pulsar_standalone

SOURCE = Path(__file__).with_name("java") / "TransactionBench.java"
SETTINGS = "transactionCoordinatorEnabled=true\n"
BATCH = 100


class PulsarTransactions(Contestant):
    """A broker of its own, and a process with the client, which is told how many transactions to make.

    Args:
        work: ``empty``, ``pair`` (one message sent and one acknowledged) or ``batch`` (100 messages sent).
        size: bytes of a message.
        is_tuned: without a flush of its journal.
    """

    def __init__(self, work: str, size: int, *, is_tuned: bool) -> None:
        super().__init__()
        self._work, self._size, self._is_tuned = work, size, is_tuned
        self.key = "pulsar-no-flush" if is_tuned else "pulsar"
        self.name = f"Pulsar, {'no flush' if is_tuned else 'as shipped'}, Java client"
        self.survives = PROCESS if is_tuned else POWER
        self._broker: pulsar_standalone.Broker | None = None
        self._client: subprocess.Popen[str] | None = None

    def start(self, place: Path) -> None:
        if shutil.which("javac") is None:
            raise Unavailable("no javac (a JDK)")
        broker = pulsar_standalone.Broker(place, is_tuned=self._is_tuned, settings=SETTINGS)
        self._broker = broker
        library = f"{pulsar_standalone.JARS}/*"
        command = ["javac", "-nowarn", "-cp", library, "-d", str(place), str(SOURCE)]
        subprocess.run(command, check=True, capture_output=True)
        self._client = subprocess.Popen(
            [
                "java",
                "-Xmx512m",
                "-cp",
                f"{place}{os.pathsep}{library}",
                "TransactionBench",
                broker.url,
                str(self._size),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._answer()

    def _process(self) -> subprocess.Popen[str]:
        assert self._client is not None
        return self._client

    def _answer(self) -> str:
        """The next line that is none of its log."""
        for line in self._process().stdout or ():
            word = line.strip()
            if word == "ready" or word.replace(".", "", 1).replace("E-", "", 1).isdigit():
                return word
        raise Unavailable("the Java client ended")

    def run(self, operations: int) -> float:
        told = self._process().stdin
        assert told is not None
        count = operations // BATCH if self._work == "batch" else operations
        told.write(f"{self._work} {count}\n")
        told.flush()
        return float(self._answer())

    def stop(self) -> None:
        if self._client is not None:
            self._client.kill()
            self._client.communicate()
        if self._broker is not None:
            self._broker.stop()
