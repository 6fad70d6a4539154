"""A home for Spark whose workers import PySpark from where it is installed.

Otherwise they import it from ``pyspark.zip``, which has no bytecode: half a second of processor time for each
of the twenty processes of a small streaming query.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path


def make_spark_home(folder: Path) -> dict[str, str]:
    """Make such a home in a folder.

    Returns:
        The environment for drivers, with a cache of bytecode in the folder.
    """
    spec = find_spec("pyspark")
    assert spec is not None and spec.origin is not None
    home = folder / "spark-home"
    home.mkdir(parents=True)
    for each in Path(spec.origin).parent.iterdir():
        if each.name in ("bin", "sbin", "jars", "data"):
            (home / each.name).symlink_to(each)
    return {
        "SPARK_HOME": os.fspath(home),
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": os.fspath(folder / "bytecode"),
    }
