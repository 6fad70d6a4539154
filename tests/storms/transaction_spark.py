"""Spark beside the storm of transactions: ``python -m tests.storms.transaction_spark FOLDER`` is its driver.

It reads all topics of accounts at once, again and again: each of these snapshots has whole transactions. A
streaming query writes down what it gets, a file for each of its batches. When the supervisor asks for the
rest, the query reads that and ends, and it has every booking that is visible once. In between the supervisor
kills the driver with its JVM and workers, and starts it again.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any, Final

from tests.storms.spark_driver import open_session
from tests.storms.spark_storm import ERRORS, REST, STARTED, Driver
from tests.storms.transaction_workload import ACCOUNTS, Booking, Judgement, judge_snapshot
from tests.support.spark_home import make_spark_home

_MODULE: Final = "tests.storms.transaction_spark"
_SNAPSHOT_EVERY_S: Final = 10.0
_TRIGGER: Final = "10 seconds"
_ROWS, _SNAPSHOTS = "rows", "snapshots"
_NICE: Final = 5
_TOPIC: Final = "__topic"


class SparkBeside:
    """What the supervisor has of it.

    Args:
        folder: of the storm, with the store in it.
    """

    def __init__(self, folder: str) -> None:
        self._place = Path(folder, "spark")
        self._place.mkdir()
        (self._place / "store").symlink_to(Path(folder, "store").absolute())
        self._home = make_spark_home(self._place)
        self._driver = Driver(self._place, self._home, module=_MODULE)
        self.kills = 0

    def kill(self) -> None:
        """Kill all of it, once it has begun to work, and start it again."""
        if (self._place / STARTED).exists():
            self._driver.kill(only_driver=False)
            self._driver = Driver(self._place, self._home, module=_MODULE)
            self.kills += 1

    def end(self) -> None:
        """Kill it."""
        self._driver.kill(only_driver=False)

    def judge(self, judgement: Judgement) -> tuple[dict[str, object], list[str]]:
        """Have it read the rest, and compare. The store is at rest.

        Returns:
            Figures and problems.
        """
        (self._place / REST).touch()
        problems = []
        status = self._driver.end()
        if status != 0:
            problems.append(
                f"Spark did not read the rest: status {status}; see errors and log in {self._place}"
            )
        for name in (ERRORS, _SNAPSHOTS):
            (self._place / name).touch()
        problems += [
            f"Spark: {line[:1000]}" for line in (self._place / ERRORS).read_text("utf-8").splitlines()
        ]
        counts = [int(line) for line in (self._place / _SNAPSHOTS).read_text("ascii").split()]
        got: list[list[tuple[int, int]]] = [[] for _ in ACCOUNTS]
        files = [path for path in (self._place / _ROWS).glob("*") if path.suffix != ".tmp"]
        for path in files:
            for line in path.read_text("ascii").splitlines():
                topic, attempt, part = map(int, line.split())
                got[topic].append((attempt, part))
        for number, (found, visible) in enumerate(zip(got, judgement.visible, strict=True)):
            if sorted(found) != sorted(visible):
                missing, more = set(visible) - set(found), set(found) - set(visible)
                problems.append(
                    f"the query got {len(found)} bookings of {ACCOUNTS[number]}, {len(visible)} are visible; "
                    f"missing: {sorted(missing)[:3]}, not visible: {sorted(more)[:3]}"
                )
        if status == 0 and counts[-1:] != [sum(map(len, judgement.visible))]:
            problems.append(f"the last snapshot had {counts[-1:]} bookings, not all that are visible")
        figures = {
            "snapshots by Spark": len(counts),
            "batches of the query": f"{len(files)}, {sum(map(len, got))} rows",
            "kills of Spark": self.kills,
        }
        return figures, problems


def main(folder: str) -> int:
    """Read until it is killed, or has read the rest."""
    os.nice(_NICE)
    place = Path(folder)
    (place / _ROWS).mkdir(exist_ok=True)
    spark = open_session(place)
    query = _started(spark, place, is_rest=False)
    while not (place / REST).exists():
        try:
            _read_snapshot(spark, place)
            if query.exception() is not None:
                raise AssertionError(f"the query failed: {query.exception()}")
        except Exception as error:
            with open(place / ERRORS, "a", encoding="utf-8") as file:
                file.write(f"{str(error)[:3000]!r}\n")
            return 1
        (place / STARTED).touch()
        until = time.monotonic() + _SNAPSHOT_EVERY_S
        while time.monotonic() < until and not (place / REST).exists():
            time.sleep(0.2)  # another process says when it is over
    query.stop()
    _started(spark, place, is_rest=True).awaitTermination()
    _read_snapshot(spark, place)
    return 0


def _read_snapshot(spark: Any, place: Path) -> None:
    frame = (
        spark.read.format("embeddedpulsar")
        .option("path", os.fspath(place / "store"))
        .option("topics", ",".join(ACCOUNTS))
        .load()
        .select("value")
    )
    bookings = [Booking.decode(value) for value in frame.toArrow()["value"].to_pylist()]
    if problems := judge_snapshot(bookings):
        raise AssertionError(f"a snapshot of {len(bookings)} bookings: {problems[:3]}")
    with open(place / _SNAPSHOTS, "a", encoding="ascii") as file:
        file.write(f"{len(bookings)}\n")


def _started(spark: Any, place: Path, is_rest: bool) -> Any:
    def store(frame: Any, number: int) -> None:
        """Once for all tries of a batch, whatever died."""
        table = frame.select(_TOPIC, "value").toArrow()
        path = place / _ROWS / str(number)
        with open(f"{path}.tmp", "w", encoding="ascii") as file:
            for topic, value in zip(table[_TOPIC].to_pylist(), table["value"].to_pylist(), strict=True):
                booking = Booking.decode(value)
                index = ACCOUNTS.index(topic.rpartition("/")[2])
                file.write(f"{index} {booking.attempt} {booking.part}\n")
        os.replace(f"{path}.tmp", path)

    write = (
        spark.readStream.format("embeddedpulsar")
        .option("path", os.fspath(place / "store"))
        .option("topics", ",".join(ACCOUNTS))
        .option("startingOffsets", "earliest")
        .load()
        .writeStream.foreachBatch(store)
        .option("checkpointLocation", os.fspath(place / "checkpoint"))
    )
    return write.trigger(**({"availableNow": True} if is_rest else {"processingTime": _TRIGGER})).start()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
