"""The driver of a streaming query that the storm `spark` kills: ``python -m tests.storms.spark_driver``.

It starts the query again whenever that fails, and ends when the supervisor has asked for the rest: then the
query reads what there is and ends by itself.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from tests.storms.spark_storm import CLASSES, ERRORS, INPUTS, OUTPUT, REST, STARTED

_MOST_TRIES = 20


def main(folder: str) -> int:
    """Run the query until it is killed, or has read everything."""
    place = Path(folder)
    spark = open_session(place)
    tries = 0
    while tries < _MOST_TRIES:
        is_rest = (place / REST).exists()
        tries += is_rest
        query = _started(spark, place, is_rest)
        (place / STARTED).touch()
        try:
            query.awaitTermination()
        except Exception as error:
            with open(place / ERRORS, "a", encoding="utf-8") as file:
                file.write(f"{str(error)[:3000]!r}\n")
            continue
        return 0
    return 1


def open_session(place: Path) -> Any:
    """Spark in this process, with an archive of classes in the folder, which its first end makes."""
    from pyspark.sql import SparkSession

    archive = place / CLASSES
    classes = (
        f"-XX:SharedArchiveFile={archive}" if archive.exists() else f"-XX:ArchiveClassesAtExit={archive}"
    )
    session = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.driver.extraJavaOptions", f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {classes}")
        .config("spark.sql.warehouse.dir", str(place / "warehouse"))
        .config("spark.local.dir", str(place / "local"))
        .config("spark.log.level", "OFF")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    return session


def _started(spark: Any, place: Path, is_rest: bool) -> Any:
    root = os.fspath(place / "store")
    read = (
        spark.readStream.format("embeddedpulsar")
        .option("path", root)
        .option("topics", ",".join(INPUTS))
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "20000" if is_rest else "500")
    )
    write = (
        read.load()
        .select("value", "__key")
        .writeStream.format("embeddedpulsar")
        .option("path", root)
        .option("topic", OUTPUT)
        .option("checkpointLocation", os.fspath(place / "checkpoint"))
    )
    if is_rest:
        write = write.trigger(availableNow=True)
    return write.start()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
