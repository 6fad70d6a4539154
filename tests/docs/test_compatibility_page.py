"""Each row of the page about compatibility has a test: `compatibility_tests.txt` names it."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from tests.source_tree import ROOT

PAGE = ROOT / "docs" / "compatibility.md"
TABLE = Path(__file__).with_name("compatibility_tests.txt")
HEADS = ("| feature |", "| where |", "|--")
NO_TEST = "no test: "


def rows() -> list[str]:
    """The rows of tables, the bullets, and the paragraphs that begin in bold, each without its marks.

    A paragraph that introduces a list is none: its bullets are.
    """
    found: list[str] = []
    blocks = PAGE.read_text("utf-8").split("\n\n")
    for block, following in zip(blocks, [*blocks[1:], ""], strict=True):
        for line in block.splitlines():
            if line.startswith("| ") and not line.startswith(HEADS):
                found.append(line.removeprefix("| "))
            elif line.startswith("* "):
                found.append(line.removeprefix("* "))
        if block.startswith("**") and not following.startswith("* "):
            found.append(block.replace("**", ""))
    return found


def table() -> list[tuple[str, str]]:
    """The beginning of a row, and its tests or why it has none."""
    lines = [line for line in TABLE.read_text("utf-8").splitlines() if line and not line.startswith("#")]
    split = [line.partition(" -> ") for line in lines]
    return [(beginning, test) for beginning, _, test in split]


@cache
def names_of(path: str) -> frozenset[str]:
    """The names of the tests in a file."""
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def test_each_row_is_in_the_table_once():
    """And each line of the table is the beginning of one row."""
    there, beginnings = rows(), [beginning for beginning, _ in table()]
    assert len(there) > 200
    found = {row: [one for one in beginnings if row.startswith(one)] for row in there}
    assert not {row[:80]: names for row, names in found.items() if len(names) != 1}
    assert not [one for one in beginnings if sum(row.startswith(one) for row in there) != 1]
    assert len(there) == len(beginnings)


def test_the_tests_of_the_table_exist():
    """A line without a test says why."""
    missing = []
    for beginning, found in table():
        if found.startswith(NO_TEST):
            assert len(found) > len(NO_TEST) + 20, beginning
            continue
        for test in found.split(", "):
            path, _, name = test.partition("::")
            if not (ROOT / path).is_file() or (name and name not in names_of(path)):
                missing.append(test)
    assert not missing
