"""The package as a zip: on the workers of a cluster, where nothing of it is installed."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.conformance.offloading import TOPIC, Site
from tests.conftest import ROOT
from tests.support.package_zip import bare_python, package_zip

READ = f"""
import sys
import embeddedpulsar.arrow
from embeddedpulsar.spark.data_source import PushdownDataSource
assert ".zip/" in embeddedpulsar.__file__
reader = PushdownDataSource({{"path": sys.argv[1], "topic": "{TOPIC}"}})
reader = reader.reader(reader.schema())
print(sum(batch.num_rows for task in reader.partitions() for batch in reader.read(task)))
"""


def read_by(place: Path, program: Path, *arguments: str, **environment: str) -> str:
    """What a program prints that runs in a directory."""
    done = subprocess.run(
        [str(program), *arguments],
        cwd=place,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_zip_reads_hot_and_cold(tmp_path: Path):
    """The driver's plan and a worker's read, with pyarrow and PySpark alone."""
    pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
    site = Site(tmp_path)
    site.publish(35)
    assert site.offload() == ""
    site.close()
    found = read_by(
        tmp_path, bare_python(tmp_path), "-c", READ, str(site.root), PYTHONPATH=str(package_zip(tmp_path))
    )
    assert found == "35\n"


@pytest.mark.slow
@pytest.mark.spark
def test_a_cluster_of_two_workers(tmp_path: Path):
    """A master and two workers that the test starts: batches by either way, a stream and a sink."""
    pyspark = pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
    site = Site(tmp_path)
    site.publish(35)
    assert site.offload() == ""
    site.publish(15)
    site.close()
    home = Path(pyspark.__file__).parent
    python, package = str(bare_python(tmp_path)), package_zip(tmp_path)
    found = read_by(
        tmp_path,
        home / "bin" / "spark-submit",
        *("--master", "local-cluster[2,1,1024]", "--conf", "spark.ui.enabled=false"),
        *("--conf", "spark.executor.memory=512m", "--conf", "spark.log.level=ERROR"),
        *("--conf", f"spark.local.dir={tmp_path / 'local'}", "--py-files", str(package)),
        str(ROOT / "tests" / "spark" / "cluster_job.py"),
        *(str(site.root), TOPIC, str(tmp_path / "checkpoint")),
        SPARK_HOME=str(home),
        PYSPARK_PYTHON=python,
        PYSPARK_DRIVER_PYTHON=python,
        PYTHONPATH=str(package),  # Spark starts the source of a stream beside the driver, without --py-files
        SPARK_WORKER_DIR=str(tmp_path / "work"),
    )
    result = json.loads(found.splitlines()[-1])
    assert result.pop("executors") == 2
    places = result.pop("places")
    assert all("embeddedpulsar.zip/" in place and str(package) not in place for place in places)
    assert result == {"format": 50, "table": 50, "filtered": 12 + 5, "streamed": 50, "copies": 50}
