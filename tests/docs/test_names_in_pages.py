"""What the pages name in the source exists: files, modules, classes and their members.

Only text in backticks is looked at, and of it only what can be decided: a path that ends in ``.py``, a folder
of the package, a dotted name that begins with a part of the package, ``CamelCase`` and ``Class.member``.
"""

from __future__ import annotations

import ast
import builtins
import re
from functools import cache
from pathlib import Path

import pytest

import embeddedpulsar
from tests.docs.test_docs import PAGES, label
from tests.source_tree import PACKAGE, ROOT, modules, nodes

FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
COMMAND = re.compile(r"python3? -m ((?:embeddedpulsar|tests|benchmarks)[\w.]*)")
FILE = re.compile(r"(?:[\w.-]+/)*\w+\.py")
FOLDER = re.compile(r"[a-z_]+(?:/[a-z_]+)*/?")
DOTTED = re.compile(r"([a-z_]+(?:\.\w+)+)(?:\(.*\))?")
MEMBER = re.compile(r"([A-Z]\w*)\.(\w+)(?:\(.*\))?")
CLASS = re.compile(r"[A-Z][a-z]+(?:[A-Z][a-z]+)+")

# Classes of others that the pages speak of. Those of Python's builtins need no entry.
DEFINED_ELSEWHERE = {
    "ContextVar": "contextvars",
    "CustomPartition": "a routing mode of pulsar-client",
    "DecodeError": "google.protobuf",
    "FakeDisk": "tests/support",
    "ProcessPoolExecutor": "concurrent.futures",
    "PulsarAdmin": "Pulsar's Java client",
    "RLock": "threading",
    "SimpleQueue": "queue",
    "Thread": "threading",
}

# Folders of the package that others have a name for, too: a Spark session, asyncio.
NOT_ONLY_OURS = frozenset(("asyncio", "spark"))

# Text that looks like a name of the package and is none, with what it is.
OTHER_NAMES: dict[str, str] = {
    "admin.schemas()": "a call, where `admin` is an Admin",
    "topic.meta": "a file of a topic",
    "store.meta": "a file of a store",
    "test_kitchen.py": "the file that a reader of testing.md makes",
}


@cache
def classes() -> dict[str, set[str]]:
    """Every class of the package with the names of its members; classes of one name are taken together."""
    own: dict[str, set[str]] = {}
    bases: dict[str, set[str]] = {}
    for tree in modules().values():
        for node in nodes(tree):
            if isinstance(node, ast.ClassDef):
                own.setdefault(node.name, set()).update(_members(node))
                named = {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases}
                bases.setdefault(node.name, set()).update(named)
    return {name: own[name].union(*(own.get(base, set()) for base in _above(name, bases))) for name in own}


def _members(node: ast.ClassDef) -> set[str]:
    found: set[str] = set()
    for part in ast.walk(node):
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(part.name)
        elif isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store):
            found.add(part.attr)
        elif isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            found.add(part.id)
    return found


def _above(name: str, bases: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    ahead = [name]
    while ahead:
        more = bases.get(ahead.pop(), set()) - found
        found |= more
        ahead += more
    return found


@cache
def names_of(module: str) -> frozenset[str]:
    """What a module defines or imports at its top level."""
    found: set[str] = set()
    for node in ast.walk(modules()[module]):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found.update(alias.asname or alias.name for alias in node.names)
    return frozenset(found)


def resolves(dotted: str) -> bool:
    """Whether a name below the package is a module, something in one, or a member of a class in one."""
    parts = dotted.split(".")
    if hasattr(embeddedpulsar, parts[0]) and parts[0] in classes():
        return len(parts) == 1 or parts[1] in classes()[parts[0]]
    if len(parts) == 1 and hasattr(embeddedpulsar, parts[0]):
        return True
    for split in range(len(parts), 0, -1):
        module = ".".join(["embeddedpulsar", *parts[:split]])
        if module in modules():
            rest = parts[split:]
            if not rest:
                return True
            if rest[0] not in names_of(module):
                return False
            return len(rest) == 1 or rest[1] in classes().get(rest[0], {rest[1]})
    return False


@cache
def file_names() -> frozenset[str]:
    """The names of all Python files of the project."""
    folders = ("embeddedpulsar", "tests", "benchmarks", "examples")
    return frozenset(path.name for folder in folders for path in (ROOT / folder).rglob("*.py"))


def is_class(name: str) -> bool:
    """Whether a name is one of a class, or of a member of an enumeration."""
    if name in classes() or name in DEFINED_ELSEWHERE or hasattr(builtins, name):
        return True
    return any(name in members for members in classes().values())


def complaint(text: str) -> str:
    """What is wrong with a text in backticks; empty if nothing is, or if it cannot be decided."""
    top = {path.name for path in PACKAGE.iterdir() if path.is_dir()}
    if text in OTHER_NAMES:
        return ""
    if FILE.fullmatch(text):
        if "/" not in text:
            return "" if text in file_names() else f"no file {text}"
        return "" if any((base / text).is_file() for base in (ROOT, PACKAGE)) else f"no file {text}"
    if FOLDER.fullmatch(text) and "/" in text.rstrip("/") and text.split("/")[0] in top:
        folder = PACKAGE / text
        return "" if folder.is_dir() or folder.with_suffix(".py").is_file() else f"no folder {text}"
    if (found := MEMBER.fullmatch(text)) and found[1] in classes():
        return "" if found[2] in classes()[found[1]] else f"{found[1]} has no {found[2]}"
    if found or CLASS.fullmatch(text):
        return "" if is_class(found[1] if found else text) else f"no class {text}"
    found = DOTTED.fullmatch(text)
    if found and found[1].startswith("embeddedpulsar."):
        return "" if resolves(found[1].removeprefix("embeddedpulsar.")) else f"no name {text}"
    if found and found[1].partition(".")[0] in top - NOT_ONLY_OURS:
        return "" if resolves(found[1]) else f"no name {text}"
    return ""


@pytest.mark.parametrize("page", PAGES, ids=label)
def test_names_in_pages_exist(page: Path):
    """A page that names a file, module, class or member of the package names one that is there."""
    text = page.read_text("utf-8")
    spans = SPAN.findall(FENCE.sub("", text))
    wrong = {found for span in spans if (found := complaint(span))}
    for module in COMMAND.findall(text):
        path = ROOT / module.replace(".", "/")
        if not path.with_suffix(".py").is_file() and not (path / "__main__.py").is_file():
            wrong.add(f"no program {module}")
    assert not wrong


def test_other_names_are_needed():
    """A name that is excepted stands in a page."""
    texts = "\n".join(page.read_text("utf-8") for page in PAGES)
    assert not {name for name in (*OTHER_NAMES, *DEFINED_ELSEWHERE) if f"`{name}" not in texts}


@pytest.mark.parametrize(
    ("text", "is_wrong"),
    [
        ("_engine/log/trimming.py", False),
        ("_engine/log/rolls.py", True),
        ("_engine/subscription/state", False),
        ("_engine/subscription/states", True),
        ("Producer.send_async", False),
        ("Producer.send_never", True),
        ("_engine.platform.disk.DISK", False),
        ("embeddedpulsar._engine.platform.disc", True),
        ("PulsarAdmin.topics()", False),
        ("ManagedLedgers", True),
    ],
)
def test_what_is_complained_about(text: str, is_wrong: bool):
    """The check finds what is not there, and leaves alone what it cannot decide."""
    assert bool(complaint(text)) == is_wrong
