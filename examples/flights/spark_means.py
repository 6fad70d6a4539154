"""The same question to Spark: it reads the segments the topic lies in, and the topic stays open to all."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

SCHEMA = "row INT, carrier STRING, dep_delay INT"
BATCH = 50_000
GET_JAVA = (
    "Spark needs Java 17 or later and there is none on the PATH. Debian, Ubuntu: sudo apt-get install "
    "openjdk-17-jre-headless; macOS: brew install openjdk@17; others: https://adoptium.net"
)


class SparkMissing(Exception):
    """Spark cannot run here; the text says what to install."""


def check() -> None:
    """Raise SparkMissing unless there are Java and PySpark."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        raise SparkMissing(GET_JAVA)
    if importlib.util.find_spec("pyspark") is None:
        raise SparkMissing('PySpark is not installed: pip install "embeddedpulsar[spark]"')


def means(
    store: Path, topic: str, checkpoint: Path, log: Path, advance: Callable[[int], object]
) -> tuple[dict[str, float], int]:
    """Mean departure delay of each carrier, and the number of messages; what Java prints goes to `log`.

    A stream that ends where the topic ends now. After each batch Spark says how many rows it has read, and
    `advance` gets their number.
    """
    from pyspark.sql import SparkSession, functions

    os.environ["PYSPARK_PYTHON"] = sys.executable  # the workers need the packages of this interpreter
    with _stderr_into(log), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        builder = builder.config("spark.python.unix.domain.socket.enabled", "true")  # faster than TCP
        builder = builder.config("spark.sql.shuffle.partitions", "2")
        spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
        try:
            flights = (
                spark.readStream.format("embeddedpulsar")
                .option("path", os.fspath(store))
                .option("topic", topic)
                .option("startingOffsets", "earliest")
                .option("maxOffsetsPerTrigger", str(BATCH))
                .option("valueSchema", SCHEMA)
                .load()
            )
            rows = flights.groupBy("carrier").agg(
                functions.avg("dep_delay").alias("delay"), functions.count("*").alias("flights")
            )
            query = (
                rows.writeStream.outputMode("complete")
                .format("memory")
                .queryName("delays")
                .option("checkpointLocation", os.fspath(checkpoint))
                .trigger(availableNow=True)
                .start()
            )
            while query.isActive:
                time.sleep(0.2)
                advance(sum(batch["numInputRows"] for batch in query.recentProgress))
            query.awaitTermination()
            found = spark.table("delays").collect()
        finally:
            spark.stop()
    return {row["carrier"]: row["delay"] for row in found}, sum(row["flights"] for row in found)


@contextlib.contextmanager
def _stderr_into(path: Path) -> Iterator[None]:
    """Send what this process and its children write to stderr into a file."""
    sys.stderr.flush()
    saved = os.dup(2)
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(target, 2)
    os.close(target)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(saved, 2)
        os.close(saved)
