"""The modules of the package as syntax trees, for the tests that read the source instead of running it."""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "embeddedpulsar"


@cache
def modules() -> dict[str, ast.Module]:
    """Every module by its dotted name, `embeddedpulsar` first."""
    trees = {module_name(path): ast.parse(path.read_text("utf-8"), str(path)) for path in python_files()}
    gc.freeze()  # a million nodes, which each collection of a later test would look through
    return trees


@cache
def nodes(tree: ast.Module) -> tuple[ast.AST, ...]:
    """All nodes of a module, in the order of `ast.walk`."""
    return tuple(ast.walk(tree))


@cache
def trees_of_tests() -> dict[Path, ast.Module]:
    """Every file of the tests."""
    trees = {path: ast.parse(path.read_text("utf-8")) for path in sorted((ROOT / "tests").rglob("*.py"))}
    gc.freeze()
    return trees


@cache
def python_files() -> tuple[Path, ...]:
    """Every file of the package."""
    return tuple(sorted(PACKAGE.rglob("*.py")))


def module_name(path: Path) -> str:
    """The dotted name of a file below the project root."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(name: str, tree: ast.Module, *, with_types: bool = False) -> set[str]:
    """The absolute names of all modules a module imports, wherever in it the import stands.

    Imports that only type checkers see (below `if TYPE_CHECKING`) are left out, except ``with_types``.
    """
    cached: dict[bool, frozenset[str]] = tree.__dict__.setdefault("_imported", {})
    if with_types not in cached:
        cached[with_types] = frozenset(_imported_modules(name, tree, with_types))
    return set(cached[with_types])


def _imported_modules(name: str, tree: ast.Module, with_types: bool) -> set[str]:
    found: set[str] = set()
    hidden = {
        id(child)
        for node in nodes(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test) and not with_types
        for statement in node.body
        for child in ast.walk(statement)
    }
    for node in nodes(tree):
        if id(node) in hidden:
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: relative imports hide the layer"
            module = node.module or ""
            found.update(_submodule_or(module, alias.name) for alias in node.names)
    return found


def modules_by_string(tree: ast.Module) -> list[str]:
    """The calls of a module that import another by a string, which neither a type checker nor the table of
    layers follows."""
    return [
        ast.unparse(node)
        for node in nodes(tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).rpartition(".")[2] in ("__import__", "import_module", "late_import")
    ]


def _submodule_or(module: str, name: str) -> str:
    full = f"{module}.{name}"
    return full if full in _names() else module


@cache
def _names() -> frozenset[str]:
    return frozenset(module_name(path) for path in python_files())
