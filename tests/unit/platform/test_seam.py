"""Nobody goes around the seam to the disk."""

from __future__ import annotations

import ast

from tests.source_tree import modules

# What a power loss can undo, or a full disk refuse. `os.open` is allowed for what need not survive.
DURABLE = set(
    "fallocate fdatasync fsync ftruncate link mkdir makedirs posix_fallocate pwrite pwritev remove "
    "removedirs rename renames replace rmdir sync truncate unlink write writev".split()
)

# Module -> the calls it may make, and why.
ALLOWED: dict[str, tuple[set[str], str]] = {
    "embeddedpulsar.futures.workers": ({"pwrite"}, "a deadline means nothing once its worker has ended"),
    "embeddedpulsar._engine.store.store_root": ({"mkdir"}, "a store that is thrown away survives nothing"),
}


def os_calls(tree: ast.AST) -> set[str]:
    """The functions of ``os`` a module calls."""
    return {
        node.func.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "os"
    }


def test_only_platform_calls_what_must_survive():
    """Storage and all above reach files through `disk.DISK`, so that tests can lose power and fail calls."""
    bad = []
    for name, tree in modules().items():
        layer = next((part for part in name.split(".")[1:] if part != "_engine"), "")
        if layer in ("platform", "testing", "cli", "spark", "arrow"):
            continue
        allowed, _ = ALLOWED.get(name, (set(), ""))
        bad += [f"{name}: os.{call}" for call in sorted((os_calls(tree) & DURABLE) - allowed)]
    assert not bad, "\n".join(bad)
