"""The table of protocols in docs/concurrency.md, "Machines that reorder", beside the tests that it names."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.source_tree import ROOT

COLUMNS = 6


def rows() -> list[list[str]]:
    """The cells of the rows of the table."""
    page = (ROOT / "docs" / "concurrency.md").read_text("utf-8")
    section = page.partition("\n## Machines that reorder\n")[2].partition("\n## ")[0]
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if "|" in line
    ]
    return [row for row in cells if len(row) == COLUMNS and not row[0].startswith("---")][1:]


def named_tests() -> list[list[tuple[Path, str]]]:
    """File and function of the tests that each row names; a file stays that of the rows below it."""
    path, named = Path(), []
    for row in rows():
        tests = []
        for file, name in re.findall(r"`([\w/]*(?:\.py)?)::(\w+)`", row[-1]):
            path = ROOT / file if file else path
            tests.append((path, name))
        named.append(tests)
    return named


def functions(path: Path) -> set[str]:
    """The tests of a file."""
    tree = ast.parse(path.read_text("utf-8"))
    return {
        node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_each_row_names_its_tests():
    """Which are there; and no cell is empty."""
    assert len(rows()) >= 28
    for row, tests in zip(rows(), named_tests(), strict=True):
        assert all(row), row
        assert tests, row[0]
        for path, name in tests:
            assert name in functions(path), (row[0], name)


def test_each_test_is_in_a_row():
    """Every test of reordered stores stands for a row. One test of each file shows that its states matter."""
    named = {test for tests in named_tests() for test in tests}
    files = sorted((ROOT / "tests").rglob("test_reordered_*.py"))
    assert {path for path, _ in named} >= set(files)
    left_out = {
        (path, name)
        for path in files
        for name in functions(path)
        if (path, name) not in named and not name.startswith("test_these_states_")
    }
    assert not left_out
