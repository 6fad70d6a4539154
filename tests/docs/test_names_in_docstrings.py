"""What docstrings name in backticks exists: as in the pages, and single names and members too.

The name of a function that was renamed, or of a module that was merged into another, leads to nothing.
Text in double backticks (code, paths, values) is not looked at.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import keyword
import re
import sys
from functools import cache

import pytest

from tests.docs.test_names_in_pages import SPAN, complaint, resolves
from tests.source_tree import modules, nodes

NAME = re.compile(r"[A-Za-z_]\w*(?:\(.*\))?")
DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.\w+)+(?:\(.*\))?")

# What is no name of the source, with what it is.
OTHER_NAMES: dict[str, str] = {
    "ctl": "a file of a topic",
    "store.meta": "a file of a store",
    "topic.meta": "a file of a topic",
    "spark.readStream": "of Spark",
    "df.write": "of Spark",
    "df.writeStream": "of Spark",
}


@cache
def known_names() -> frozenset[str]:
    """Every name that the source defines, imports, reads or passes, and those of the language."""
    found = {*dir(builtins), *keyword.kwlist, *sys.stdlib_module_names}
    for module, tree in modules().items():
        found.update(module.split("."))
        for node in nodes(tree):
            if isinstance(node, ast.Name):
                found.add(node.id)
            elif isinstance(node, ast.Attribute):
                found.add(node.attr)
            elif isinstance(node, ast.arg):
                found.add(node.arg)
            elif isinstance(node, ast.keyword) and node.arg is not None:
                found.add(node.arg)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.alias):
                found.add(node.asname or node.name)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value[:2] == "__":
                found.add(node.value)  # columns have names of that form
    return frozenset(found)


@cache
def modules_named(name: str) -> tuple[str, ...]:
    """The modules of the package with that last part."""
    return tuple(module for module in modules() if module.rpartition(".")[2] == name)


def is_of_a_library(first: str, rest: list[str]) -> bool:
    """Whether the standard library has the name."""
    if first not in sys.stdlib_module_names:
        return False
    return hasattr(importlib.import_module(first), rest[0])


def wrong_name(text: str) -> str:
    """What is wrong with a text in backticks in a docstring; empty if nothing is, or if it is no name."""
    if text in OTHER_NAMES:
        return ""
    name = text.partition("(")[0]
    if NAME.fullmatch(text):
        return "" if name in known_names() else f"no name {name}"
    if DOTTED.fullmatch(text):
        first, *rest = name.split(".")
        if is_of_a_library(first, rest):
            return ""
        named = modules_named(first)
        if any(resolves(".".join([*module.split(".")[1:], *rest])) for module in named):
            return ""
        if named or not {first, *rest} <= known_names():
            return complaint(text) or f"no name {text}"
    return complaint(text)


def docstrings(tree: ast.Module) -> list[tuple[str, str]]:
    """The docstrings of a module, each with the name of its owner."""
    owners = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    return [
        (getattr(node, "name", ""), ast.get_docstring(node) or "")
        for node in nodes(tree)
        if isinstance(node, owners)
    ]


def test_names_in_docstrings_exist():
    """A docstring that names a module, class, function, member or argument names one that is there."""
    wrong = [
        f"{module} {owner}: {found}"
        for module, tree in modules().items()
        for owner, text in docstrings(tree)
        for span in SPAN.findall(text)
        if (found := wrong_name(span))
    ]
    assert not wrong, "\n".join(wrong)


def test_other_names_are_needed():
    """A name that is excepted stands in a docstring."""
    texts = "\n".join(text for tree in modules().values() for _, text in docstrings(tree))
    assert not {name for name in OTHER_NAMES if f"`{name}`" not in texts}


@pytest.mark.parametrize(
    ("text", "is_wrong"),
    [
        ("close_descriptor", False),
        ("close_descriptors_of_all", True),
        ("journal_file.Replica", False),
        ("journal_file.Duplicate", True),
        ("FileLock.acquire", False),
        ("FileLock.arm", True),
        ("salvage.complete", True),
        ("struct.pack_into", False),
        ("struct.pack_onto", True),
        ("embeddedpulsar.Client.subscribe", False),
        ("words[i] = v", False),
    ],
)
def test_what_is_complained_about(text: str, is_wrong: bool):
    """The check finds what is not there, and leaves alone what is no name."""
    assert bool(wrong_name(text)) == is_wrong
