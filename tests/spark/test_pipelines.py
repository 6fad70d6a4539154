"""What the examples of Spark print, each in an empty folder, in one session."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

import embeddedpulsar.spark
from embeddedpulsar.testing import assert_clean
from tests.conftest import ROOT

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

RESULTS = {
    "spark_backfill.py": ["['table-0: 10', 'table-1: 10', 'table-2: 10']"],
    "spark_compacted.py": ["{'a-1': '75', 'a-3': '1'}"],
    "spark_join.py": ["{'London': 10, 'New York': 10}"],
    "spark_windows.py": [
        f"{place} from {start:2} s: {start + 9.5}" for place in ("cellar", "roof") for start in (0, 20, 40)
    ],
}


def test_every_example_has_its_result():
    """Each is a short program."""
    found = {path.name: path for path in (ROOT / "examples").glob("spark_*.py")}
    assert RESULTS.keys() == found.keys()
    assert all(len(path.read_text("utf-8").splitlines()) <= 75 for path in found.values())


SLOW = "spark_join.py", "spark_windows.py"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in sorted(RESULTS)]
)
def test_an_example_prints_its_result(
    spark: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
):
    """As a user would run it, but for the session, which it shares with the others."""
    monkeypatch.chdir(tmp_path)
    embeddedpulsar.spark.register(spark)
    spec = importlib.util.spec_from_file_location(name[:-3], ROOT / "examples" / name)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main(spark)
    assert capfd.readouterr().out.splitlines() == RESULTS[name]
    assert_clean(tmp_path / "data")
