"""The sample that `make quick` runs, and the list of the slowest tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import sample, slowest

UNIT = Path("tests/unit/test_a.py")
BEHAVIOUR = Path("tests/conformance/topics/test_b.py")


def test_few_sets_of_parameters_of_a_unit() -> None:
    """Each test, and three of its sets over all that it has, the first among them."""
    tests = [(UNIT, "one")] * 60 + [(UNIT, "two")] * 3
    assert sample.sample(tests) == {0, 20, 40, 60, 61, 62}


def test_a_third_of_conformance() -> None:
    """Every third test of a file with one set each, beginning anew in each file."""
    tests = [(BEHAVIOUR, name) for name in "aabbccddee"] + [(BEHAVIOUR.with_name("test_c.py"), "f")]
    assert sample.sample(tests) == {0, 6, 10}


def test_the_order_of_collection_may_mix_files() -> None:
    """As fixtures of modules make it do."""
    tests = [(UNIT, "one"), (BEHAVIOUR, "a"), (UNIT, "two"), (BEHAVIOUR, "a"), (UNIT, "one")]
    assert sample.sample(tests) == {0, 1, 2, 4}


class _Report:
    def __init__(self, nodeid: str, duration: float) -> None:
        self.nodeid, self.duration = nodeid, duration


def test_the_slowest_of_several_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A test counts with its fixtures; each run adds its tests to the file."""
    path = tmp_path / "made" / "durations"
    for run in ({"a": (1.0, 2.0), "b": (0.5,)}, {"c[x y]": (4.0,)}):
        durations = slowest.DurationsFile(path)
        for nodeid, parts in run.items():
            for part in parts:
                durations.pytest_runtest_logreport(_Report(nodeid, part))  # type: ignore[arg-type]
        durations.pytest_sessionfinish()
    assert slowest.main([str(path), "--count", "2"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.startswith("3 tests, 8 s")
    assert [line.split(maxsplit=2) for line in lines] == [["4.00", "s", "c[x y]"], ["3.00", "s", "a"]]


def test_a_run_without_tests_has_no_slowest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file is not there."""
    assert slowest.main([str(tmp_path / "durations")]) == 0
    assert capsys.readouterr().out.startswith("0 tests")
