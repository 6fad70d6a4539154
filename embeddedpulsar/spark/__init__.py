"""Apache Spark's source of batches and streams over mapped segments.

    import embeddedpulsar.spark

    embeddedpulsar.spark.register(spark)
    df = spark.read.format("embeddedpulsar").option("path", "/data/store").option("topic", "orders").load()

Needs PySpark 4.2 or later, pyarrow and Java 17: ``pip install "embeddedpulsar[spark]"``. Columns, options
and what a query costs: docs/spark.md. Without `register` Spark finds the format by itself, but cannot push
filters down to it.

The driver and the workers are one machine, or see the directory under the same path. Workers must run this
Python: set ``PYSPARK_PYTHON`` to ``sys.executable`` before the session is started.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["finish_commits", "register", "table"]

PUSHDOWN_SETTING = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """Make the format ``embeddedpulsar`` known to a session, with filter pushdown.

    Filters on ``__publishTime``, ``__topic``, ``__partition``, ``__ledgerId`` and ``__entryId`` then decide
    which entries are read at all.
    Spark refuses sources that push filters down while its setting for that is off, so it is switched on.

    Args:
        spark: the session; other sessions of the process are not touched.

    Raises:
        ImportError: PySpark (4.2 or later) or pyarrow is not installed.

    Example:
        >>> register(SparkSession.builder.getOrCreate())  # doctest: +SKIP
    """
    from embeddedpulsar.spark.data_source import PushdownDataSource

    spark.conf.set(PUSHDOWN_SETTING, "true")
    spark.dataSource.register(PushdownDataSource)


def finish_commits(path: str | os.PathLike[str]) -> int:
    """Finish what writes of Spark began to publish when their driver died.

    The next write to the store does the same. What no commit was begun for is not touched.

    Args:
        path: directory of the store.

    Returns:
        How many messages were published.

    Raises:
        ImportError: pyarrow is not installed.

    Example:
        >>> finish_commits("./data")
        0
    """
    from embeddedpulsar.arrow.schema import require_pyarrow

    require_pyarrow()
    from embeddedpulsar.spark.engine import root_of
    from embeddedpulsar.spark.sink_commit import finish_commits as finish

    return finish(root_of(path))


def table(
    spark: SparkSession,
    path: str | os.PathLike[str],
    topic: str,
    columns: Sequence[str] | None = None,
    **options: Any,
) -> DataFrame:
    """A topic as a DataFrame whose offloaded ledgers Spark reads itself: with its vectorised reader of
    Parquet, column pruning and all its filters. The rest is read by the format ``embeddedpulsar``.

    The oldest ledgers are read so, as long as each has a table of messages; what is encrypted has none. Which
    these are is settled by this call. `register` the session first. For object stores, Spark needs its own
    connector and credentials (``s3a``).

    Args:
        spark: the session.
        path: directory of the store.
        topic: name of a topic, partition or partitioned topic.
        columns: names of columns; all by default.
        options: others of the format, for the rest: ``cryptoPrivateKeyPath``, ``maxPartitionBytes``.

    Returns:
        The rows that ``spark.read.format("embeddedpulsar")`` gives, in no order.

    Raises:
        TopicNotFound: no such topic.

    Example:
        >>> table(spark, "./data", "orders", ["value", "__key"]).count()  # doctest: +SKIP
    """
    from embeddedpulsar.spark import log_plan

    # Imported here: a session that only writes needs no planner of reads.
    return log_plan.table(spark, path, topic, columns, **options)
