"""One Spark session for all contestants: it starts once and stays warm."""

from __future__ import annotations

import atexit
import importlib.util
import os
import shutil
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

from benchmarks.contest import Unavailable
from tests.support.spark_home import make_spark_home

ROOT = Path(__file__).resolve().parents[2]
CPU = "s of CPU"
SOCKETS = "BENCH_SPARK_UNIX_SOCKETS"
"""Environment variable: `false` measures Spark as it is set up by itself, with TCP to its workers."""
_SESSIONS: list[Any] = []


def session() -> Any:
    """The local session of two cores, started when first asked for.

    Raises:
        Unavailable: PySpark or Java is missing.
    """
    if _SESSIONS:
        return _SESSIONS[0]
    if importlib.util.find_spec("pyspark") is None:
        raise Unavailable("no pyspark (pip install pyspark)")
    if shutil.which("java") is None:
        raise Unavailable("no java on the PATH (apt-get install openjdk-17-jre-headless)")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(ROOT)
    scratch = Path(tempfile.mkdtemp(prefix="bench-spark-"))
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    os.environ |= make_spark_home(scratch)
    from pyspark.sql import SparkSession

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.log.level", "ERROR")
        # As docs/spark.md recommends; it does not concern Spark's own sources.
        builder = builder.config("spark.python.unix.domain.socket.enabled", os.environ.get(SOCKETS, "true"))
        _SESSIONS.append(builder.getOrCreate())
    return _SESSIONS[0]


def processor_seconds() -> float:
    """The processor time that JVM and workers have taken so far, those that ended as well."""
    parents: dict[int, int] = {}
    used: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(name)] = int(fields[1])
            used[int(name)] = sum(map(int, fields[11:15]))

    def is_ours(number: int) -> bool:
        while number in parents:
            number = parents[number]
            if number == os.getpid():
                return True
        return False

    return sum(ticks for number, ticks in used.items() if is_ours(number)) / os.sysconf("SC_CLK_TCK")
