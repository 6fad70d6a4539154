"""The layers: a module imports its own layer and lower ones only.

A new import that fails here is almost never a reason to change the table. It says that something lies in
the wrong place, or that a value should be passed in.
"""

from __future__ import annotations

import sys

import pytest

from tests.source_tree import imported_modules, modules

LAYERS: dict[str, int] = {
    # 0: values
    "exceptions": 0,
    "encryption": 0,
    "enums": 0,
    "error_text": 0,
    "message_id": 0,
    "message": 0,
    "topic_name": 0,
    "policies": 0,
    "retention": 0,
    "settings": 0,
    # 1: bytes without I/O, and all that the operating system does for us
    "format": 1,
    "platform": 1,
    "storage": 2,
    "managed_ledger": 3,
    "subscription": 4,
    "schema": 4,
    "crypto": 4,
    "topic": 5,
    "arrow": 5,
    "client": 6,
    "admin": 6,
    "asyncio": 7,
    "testing": 8,
    "cli": 9,
    "spark": 9,
}

# Siblings of one layer that do not know each other.
STRANGERS = [
    ("format", "platform"),
    ("subscription", "schema"),
    ("subscription", "crypto"),
    ("schema", "crypto"),
    ("client", "admin"),
    ("cli", "spark"),
]

# Whole columns are a way in and out for those above; nothing below them may come to need pyarrow.
ARROW_READERS = {"arrow", "client", "asyncio", "testing", "spark", "cli"}

# Edges across the siblings above, each with its reason.
ALLOWED: dict[tuple[str, str], str] = {}

# Only platform/ meets the clock, locks, maps and threads of the operating system.
PLATFORM_ONLY = {"fcntl", "mmap", "select", "selectors", "signal", "threading", "time", "_thread"}
# Modules that may use one of these all the same, each with its reason.
PLATFORM_EXCEPTIONS: dict[tuple[str, str], str] = {}

# format/ turns bytes into values and back; it opens nothing and asks nobody.
FORMAT_NEVER = PLATFORM_ONLY | {"os", "io", "pathlib", "random", "socket", "tempfile"}

# Optional packages, and the only places that may import them.
OWNERS = {
    "pyspark": ("spark",),
    "pyarrow": ("arrow", "spark"),
    "cramjam": ("format",),
    "cryptography": ("crypto",),
    "lz4": ("format",),
    "msgpack": ("format",),
    "portalocker": ("platform",),
}


def layer_name(module: str) -> str | None:
    """The layer a module belongs to, None for the package itself."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else None


def edges() -> list[tuple[str, str, str]]:
    """All imports between the layers: importing module, its layer, the imported module."""
    found = []
    for name, tree in modules().items():
        own = layer_name(name)
        if own is None:
            continue  # the package itself re-exports from above
        for target in sorted(imported_modules(name, tree)):
            if target == "embeddedpulsar" or target.startswith("embeddedpulsar."):
                found.append((name, own, target))
    return found


def test_every_module_has_a_layer():
    """A new top-level name must be given its place in the table before it is used."""
    unknown = {layer_name(name) for name in modules()} - set(LAYERS) - {None}
    assert not unknown, f"not in the table of layers: {sorted(unknown)}"


def test_imports_point_downwards():
    """No module imports from a higher layer; ``spark`` and ``cli`` are imported by nobody."""
    bad = []
    for name, own, target in edges():
        other = layer_name(target)
        if other is None:
            if LAYERS[own] < 8:
                bad.append(f"{name} imports the package itself, which re-exports from every layer")
        elif LAYERS[other] > LAYERS[own]:
            bad.append(f"{name} (layer {LAYERS[own]}) imports {target} (layer {LAYERS[other]})")
    assert not bad, "\n".join(bad)


def test_siblings_do_not_know_each_other():
    """Layers side by side stay independent, with the exceptions that are listed."""
    bad = [
        f"{name} imports {target}"
        for name, own, target in edges()
        for pair in STRANGERS
        if {own, layer_name(target)} == set(pair) and (name, target) not in ALLOWED
    ]
    assert not bad, "\n".join(bad)


def test_arrow_stays_optional():
    """Only the client and what is above it know that columns can be had as Arrow."""
    bad = [
        name for name, own, target in edges() if layer_name(target) == "arrow" and own not in ARROW_READERS
    ]
    assert not bad


def test_only_platform_meets_the_operating_system():
    """Clock, locks, maps and threads are reached through platform/, which tests can replace."""
    bad = [
        f"{name} imports {target}"
        for name, tree in modules().items()
        if layer_name(name) != "platform" and LAYERS.get(layer_name(name) or "", 0) < 7
        for target in sorted(imported_modules(name, tree))
        if target.split(".")[0] in PLATFORM_ONLY and (name, target) not in PLATFORM_EXCEPTIONS
    ]
    assert not bad, "\n".join(bad)


def test_format_does_no_io():
    """format/ imports nothing it could open, wait for or ask."""
    bad = [
        f"{name} imports {target}"
        for name, tree in modules().items()
        if layer_name(name) == "format"
        for target in sorted(imported_modules(name, tree))
        if target.split(".")[0] in FORMAT_NEVER
    ]
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize("package", sorted(OWNERS))
def test_optional_packages_have_one_owner(package: str):
    """An optional or slow package is imported in the place that owns it, and nowhere else."""
    bad = [
        name
        for name, tree in modules().items()
        if layer_name(name) not in (*OWNERS[package], "testing")
        and any(target.split(".")[0] == package for target in imported_modules(name, tree))
    ]
    assert not bad, f"{package} is imported by {bad}"


def test_the_stdlib_names_we_reuse_stay_reachable():
    """`platform`, `asyncio` and `format` here must not hide the modules of the standard library."""
    import platform

    assert "embeddedpulsar" not in (platform.__file__ or "")
    assert not any(path.rstrip("/").endswith("embeddedpulsar") for path in sys.path)
