"""One Spark session for all contestants: it starts once and stays warm."""

from __future__ import annotations

import atexit
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
_SESSIONS: list[Any] = []


def session() -> Any:
    """The local session of two cores, started when first asked for.

    Raises:
        Unavailable: PySpark or Java is missing.
    """
    if _SESSIONS:
        return _SESSIONS[0]
    if shutil.which("java") is None:
        raise Unavailable("no java on the PATH (apt-get install openjdk-17-jre-headless)")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    discovery = ROOT / "embeddedpulsar" / "spark" / "_discovery"
    os.environ["PYTHONPATH"] = os.pathsep.join((str(ROOT), str(discovery)))
    scratch = Path(tempfile.mkdtemp(prefix="bench-spark-"))
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    os.environ |= make_spark_home(scratch)
    from pyspark.sql import SparkSession

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.log.level", "ERROR")
        _SESSIONS.append(builder.getOrCreate())
    return _SESSIONS[0]
