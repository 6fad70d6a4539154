"""Spark's own source of test data as a stream: what a micro-batch costs without any source to speak of."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.contest import READ_ONLY, Contestant
from benchmarks.peers.spark_session import session

_PATIENCE_S = 300.0


def query(frame: Any, place: Path) -> Any:
    """A running query of a stream into no sink, which makes a batch whenever there is something to read."""
    return (
        frame.writeStream.format("noop")
        .option("checkpointLocation", os.fspath(place / "checkpoint"))
        .trigger(processingTime="0 seconds")
        .start()
    )


def median_trigger(running: Any, batches: int, rows: int, publish: Callable[[], object]) -> float:
    """The median time of so many micro-batches that had rows, in seconds; the first one does not count.

    Args:
        running: the query.
        batches: how many.
        rows: of a batch.
        publish: gives the query the rows of one batch.
    """
    taken: dict[int, float] = {}
    before = {progress["batchId"] for progress in running.recentProgress if progress["numInputRows"]}
    while len(taken) <= batches:
        publish()
        until = time.monotonic() + _PATIENCE_S
        seen = len(taken)
        while len(taken) == seen:
            if time.monotonic() > until:
                raise TimeoutError(f"no batch for {_PATIENCE_S:.0f} s: {running.exception()}")
            time.sleep(0.005)
            for progress in running.recentProgress:
                if progress["numInputRows"] and progress["batchId"] not in before:
                    taken[progress["batchId"]] = progress["durationMs"]["triggerExecution"] / 1000
    return statistics.median([taken[number] for number in sorted(taken)[1 : batches + 1]])


class Trigger(Contestant):
    """The same rows of numbers and times from the source `rate-micro-batch`.

    Args:
        rows: of a batch.
    """

    key = "rate"
    name = "Spark's rate source"
    survives = READ_ONLY

    def __init__(self, rows: int) -> None:
        super().__init__()
        self._rows = rows

    def start(self, place: Path) -> None:
        self._place = place
        self._round = 0

    def run(self, operations: int) -> float:
        # It makes a batch at every trigger, so it runs only while it is measured.
        self._round += 1
        place = self._place / str(self._round)
        running = query(
            session().readStream.format("rate-micro-batch").option("rowsPerBatch", self._rows).load(), place
        )
        try:
            return median_trigger(running, operations, self._rows, int)
        finally:
            running.stop()
