"""The Spark session of the examples."""

from __future__ import annotations

import os
import sys
import warnings

from pyspark.sql import SparkSession

import embeddedpulsar.spark


def session() -> SparkSession:
    """A session of two cores, whose workers run this Python."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        builder = builder.config("spark.python.unix.domain.socket.enabled", "true")  # faster than TCP
        builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.log.level", "ERROR")
        spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    embeddedpulsar.spark.register(spark)
    return spark
