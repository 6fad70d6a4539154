"""The layers: a module imports its own layer and lower ones only.

A new import that fails here is almost never a reason to change the table. It says that something lies in
the wrong place, or that a value should be passed in.
"""

from __future__ import annotations

import sys
from functools import cache

import pytest

from tests.source_tree import imported_modules, modules, modules_by_string

LAYERS: dict[str, int] = {
    # 0: values
    "records": 0,
    "damage": 0,
    "exceptions": 0,
    "results": 0,
    "encryption": 0,
    "enums": 0,
    "error_text": 0,
    "message_id": 0,
    "message": 0,
    "topic_name": 0,
    "policies": 0,
    "backlog_quota": 0,
    "policy_values": 0,
    "settings": 0,
    # 1: bytes without I/O, and all that the operating system does for us
    "filenames": 1,
    "format": 1,
    "platform": 1,
    # 2 to 5: the engine, which imports nothing of the packages below in this table
    "cold": 2,
    "log": 3,
    "txn": 4,
    "subscription": 4,
    "store": 5,
    "schema": 6,
    "crypto": 6,
    "arrow": 7,
    "offload": 8,
    "client": 8,
    "admin": 9,
    "functions": 9,
    "tableview": 9,
    "cluster": 9,
    "outbox": 9,
    "asyncio": 10,
    "frameworks": 10,
    "metrics": 10,
    "server": 11,
    "futures": 10,
    "testing": 11,
    "otel": 11,
    "cli": 12,
    "spark": 12,
    "__main__": 13,
}
ENGINE = "_engine"
"""What no user imports: a room of it is a layer like the packages beside it."""

RINGS: tuple[tuple[str, ...], ...] = (
    # The engine, with the values that its users share.
    tuple(name for name, layer in LAYERS.items() if layer <= 5),
    # The client, with what a program hands to it: schemas, keys, columns.
    ("schema", "crypto", "arrow", "client"),
    # Everything else: what administers stores, and the optional packages.
    (
        "admin",
        "functions",
        "futures",
        "outbox",
        "tableview",
        "cluster",
        "asyncio",
        "frameworks",
        "metrics",
        "server",
        "testing",
        "otel",
        "cli",
        "spark",
        "offload",
        "__main__",
    ),
)
"""No ring needs one behind it, not even for types."""

KNOWS_THE_ENGINE: dict[str, str] = {
    "": "what stores do for packages above, added to the engine here; two public types",
    "message": "the description of the schema of a message, as a type",
    "schema.schema": "descriptions of schemas, which topics keep",
    "schema.schema_avro": "how the definition of a schema reads",
    "crypto": "the bytes of an entry in the clear and encrypted",
    "arrow.engine": "ranges of entries, the bytes of entries, and definitions of schemas",
    "spark.engine": "ranges of entries, what keeps them, and the layout of entries",
    "spark.sink_place": "called by stores without Spark: files of a sink, its chore, its part of a backup",
    "offload": "called by topics with an offload location: the part of the engine with pyarrow",
    "functions.engine": "the policies that are definitions, the lock of a state, and processes of workers",
    "futures.engine": "processes of workers, threads, and the clock",
    "outbox.engine": "the lock of relays, waiting for files and sockets, and the partition of a key",
    "metrics": "a lock of threads, and the clock",
    "server.engine": "where a store lies, and whether its locks are free",
    "frameworks.engine": "the lock of a table of values, threads and the clock",
    "cli.engine": "the files of a store that cannot be opened, values that are printed, and the clock",
    "testing.manual_clock": "the clock of stores, which the test moves",
    "testing.trial_store": "a store that stays open, and the check at its end",
    "asyncio.worker_threads": "threads, and the time limit of a call",
    "otel": "the clock",
    "cluster.client": "a lock of threads",
    "cluster.translation": "the import of `pulsar-client`",
}
"""Which modules beside the engine, the client and the Admin import from it, and what they know of it: one of
each package, from which the others of the package have it, unless the reason says otherwise."""

# Siblings of one layer that do not know each other.
STRANGERS = [
    ("format", "platform"),
    ("txn", "subscription"),
    ("subscription", "schema"),
    ("subscription", "crypto"),
    ("schema", "crypto"),
    ("client", "admin"),
    ("cli", "spark"),
    ("asyncio", "functions"),
]

# Whole columns are a way in and out for those above; nothing below them may come to need pyarrow.
ARROW_READERS = {"arrow", "offload", "client", "asyncio", "testing", "spark", "cli"}

# Edges across the siblings above, each with its reason.
ALLOWED: dict[tuple[str, str], str] = {
    (
        "embeddedpulsar.admin.dead_letters",
        "embeddedpulsar.client.client",
    ): "dead letters are published again by a producer like any other, when the first one is",
    (
        "embeddedpulsar.admin.dead_letters",
        "embeddedpulsar.client.consumer.dead_letter",
    ): "what an operator moves to the dead letters is a letter like those of consumers",
}

# What the client and the Admin know of the log. They reach files through the topic alone, but for the last
# two.
OF_THE_LOG: dict[str, str] = {
    "log_positions": "what is found in a log: values, and questions that it answers",
    "topic_control": "a word of the map says that the topic is deleted; asked for at every wake-up",
    "waiter_slots": "how often a waiter without a slot looks, which the log says of its own waiters alone",
}

# Only platform/ meets the clock, locks, maps and threads of the operating system.
PLATFORM_ONLY = {"fcntl", "mmap", "select", "selectors", "signal", "threading", "time", "_thread"}
# Modules that may use one of these all the same, each with its reason.
PLATFORM_EXCEPTIONS: dict[tuple[str, str], str] = {}

# format/ turns bytes into values and back; it opens nothing and asks nobody.
FORMAT_NEVER = PLATFORM_ONLY | {"os", "io", "pathlib", "random", "socket", "tempfile"}

# Optional packages, and the only places that may import them.
OWNERS = {
    "pyspark": ("spark",),
    "fsspec": ("cold",),
    "pyarrow": ("arrow", "cold", "offload", "spark"),
    "cramjam": ("format",),
    "dramatiq": ("frameworks",),
    "cryptography": ("crypto",),
    "fast_depends": ("frameworks",),
    "fastavro": ("schema",),
    "faststream": ("frameworks",),
    "google": ("schema",),
    "hdrh": ("cli",),
    "celery": ("frameworks",),
    "django": ("frameworks",),
    "django_tasks": ("frameworks",),
    "kombu": ("frameworks",),
    "huey": ("frameworks",),
    "lz4": ("format",),
    "msgpack": ("format", "futures"),
    "msgspec": ("schema",),
    "opentelemetry": ("otel",),
    "orjson": ("schema",),
    "polars": ("arrow",),
    "portalocker": ("platform",),
    "psycopg": ("outbox",),
    "pulsar": ("cluster",),
    "_pulsar": ("cluster",),
    "sortedcontainers": ("subscription",),
    "prometheus_client": ("metrics",),
    "starlette": ("server", "cli"),
    "uvicorn": ("cli",),
    "sqlalchemy": ("outbox",),
    "taskiq": ("frameworks",),
}


# Modules that import others by a string, each with its reason.
BY_STRING: dict[str, str] = {
    "embeddedpulsar": "its public names, each loaded by its first use",
    "embeddedpulsar.schema": "as the package",
    "embeddedpulsar.topic_name": "the SHA-256 of CPython has another name in each version",
    "embeddedpulsar._engine.platform.threads": "private modules of CPython, by version and system",
    "embeddedpulsar.client.consumer.topic_pattern": "the private parser of regular expressions",
    "embeddedpulsar.functions.user_code": "the code of a user, by the name that the user gives",
    "embeddedpulsar.futures.encoding": "the code of a user, by the name that the user gives",
    "embeddedpulsar.testing.stand_in": "the module that a test names",
}


def layer_name(module: str) -> str | None:
    """The layer a module belongs to, None for the package itself and for the face of the engine."""
    parts = [part for part in module.split(".") if part != ENGINE]
    return parts[1] if len(parts) > 1 else None


@cache
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
        if target == f"embeddedpulsar.{ENGINE}":
            continue  # what packages above it add to it
        if other is None:
            if LAYERS[own] < 10:
                bad.append(f"{name} imports the package itself, which re-exports from every layer")
        elif LAYERS[other] > LAYERS[own]:
            bad.append(f"{name} (layer {LAYERS[own]}) imports {target} (layer {LAYERS[other]})")
    assert not bad, "\n".join(bad)


def test_the_engine_knows_no_package_above_it():
    """The engine, then the client, then everything else: an engine without them can be read, tested and used.

    Types count. What a store does for a package above, that adds to `EXTENSIONS`.
    """
    values = {name for name, layer in LAYERS.items() if layer == 0}
    bad = [
        f"{name} needs {target}"
        for name, targets in needs().items()
        if name.startswith(f"embeddedpulsar.{ENGINE}")
        for target in sorted(targets)
        if not target.startswith(f"embeddedpulsar.{ENGINE}") and layer_name(target) not in values
    ]
    assert not bad, "\n".join(bad)


def test_the_engine_then_the_client_then_everything_else():
    """A ring can be read, tested and used without those behind it. Types count."""
    ring_of = {name: ring for ring, names in enumerate(RINGS) for name in names}
    assert ring_of.keys() == LAYERS.keys()
    bad = [
        f"{name} needs {target}"
        for name, targets in needs().items()
        for target in sorted(targets)
        if (own := layer_name(name)) is not None
        and (other := layer_name(target)) is not None
        and ring_of[other] > ring_of[own]
    ]
    assert not bad, "\n".join(bad)


def test_a_package_knows_the_engine_in_one_place():
    """What an optional package knows of the engine is read, and changed, in one module of it. Types count."""
    engine = f"embeddedpulsar.{ENGINE}"
    knowing = {
        name.removeprefix("embeddedpulsar").lstrip(".")
        for name, targets in needs().items()
        if not name.startswith(engine) and layer_name(name) not in ("client", "admin")
        if any(target.startswith(engine) for target in targets)
    }
    assert knowing == KNOWS_THE_ENGINE.keys()


def test_what_a_package_knows_of_the_engine_is_its_own():
    """The module is no way to the engine for other packages."""
    bad = [
        f"{name} imports {target}"
        for name, targets in needs().items()
        for target in sorted(targets)
        if target.endswith(".engine")
        and not name.startswith(f"{target.removesuffix('.engine')}.")
        and name != target.removesuffix(".engine")
    ]
    assert not bad, "\n".join(bad)


def test_no_module_is_imported_by_a_string():
    """One way to import: by a statement, within `late_imports()` where few processes need it."""
    found = {name: calls for name, tree in modules().items() if (calls := modules_by_string(tree))}
    assert found.keys() == BY_STRING.keys(), found


def test_siblings_do_not_know_each_other():
    """Layers side by side stay independent, with the exceptions that are listed."""
    bad = [
        f"{name} imports {target}"
        for name, own, target in edges()
        for pair in STRANGERS
        if {own, layer_name(target)} == set(pair) and (name, target) not in ALLOWED
    ]
    assert not bad, "\n".join(bad)


def test_the_client_reaches_files_through_the_topic():
    """What the client needs of files, a topic or its log offers."""
    found = {
        target.removeprefix("embeddedpulsar._engine.log.")
        for _, own, target in edges()
        if own in ("client", "admin", "asyncio") and layer_name(target) == "log"
    }
    assert found == OF_THE_LOG.keys()


def test_no_circle_of_imports():
    """Modules can be understood one after the other: no two need each other at run time, however indirectly.

    Imports inside of functions count; those that only type checkers see do not.
    """
    graph = {name: imported_modules(name, tree) & set(modules()) - {name} for name, tree in modules().items()}
    while leaves := [name for name, needs in graph.items() if not needs & graph.keys()]:
        for name in leaves:
            del graph[name]
    # What is left is a circle, or needs one: leave out what no other module needs.
    while tops := graph.keys() - {target for needs in graph.values() for target in needs}:
        for name in tops:
            del graph[name]
    assert not graph, sorted(graph)


# Folders with neighbours that need each other, types counted, and how many do. Two or
# three classes that are one machine may; the larger ones are to be untied, and none may grow.
KNOTS: dict[str, tuple[int, ...]] = {
    "_engine.log": (3, 2),
    "_engine.store": (3,),
    "_engine.subscription": (2, 2),
    "client": (3,),
    "client.consumer": (3,),
}


@cache
def needs() -> dict[str, set[str]]:
    """What each module imports of the package, in functions and for types, too."""
    return {
        name: imported_modules(name, tree, with_types=True) & modules().keys() - {name, "embeddedpulsar"}
        for name, tree in modules().items()
    }


def knots(graph: dict[str, set[str]]) -> list[set[str]]:
    """The sets of names that need each other, however indirectly; largest first."""
    reached = {name: reachable(name, graph) for name in graph}
    found = {frozenset(other for other in reached[name] if name in reached[other]) for name in graph}
    return sorted((set(knot) for knot in found if len(knot) > 1), key=len, reverse=True)


def neighbours(folder: str) -> dict[str, set[str]]:
    """What lies in a folder, each module and each folder in it, with what of that it needs."""

    def room(module: str) -> str:
        return module.removeprefix(f"{folder}.").split(".")[0] if module.startswith(f"{folder}.") else ""

    graph: dict[str, set[str]] = {}
    for name, targets in needs().items():
        if own := room(name):
            graph.setdefault(own, set()).update({room(target) for target in targets} - {own, ""})
    return graph


def test_neighbours_need_no_circles():
    """Neither packages nor what lies in one folder need each other, but for the knots that are listed."""
    folders = {name.rpartition(".")[0] for name in modules()} - {""}
    found = {
        folder.removeprefix("embeddedpulsar").lstrip(".") or ".": tuple(map(len, knots(neighbours(folder))))
        for folder in folders
    }
    assert {folder: sizes for folder, sizes in found.items() if sizes} == KNOTS


def reachable(start: str, graph: dict[str, set[str]]) -> set[str]:
    """The names that ``start`` needs, directly or through others."""
    found: set[str] = set()
    ahead = [start]
    while ahead:
        more = graph.get(ahead.pop(), set()) - found
        found |= more
        ahead += more
    return found


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
        if layer_name(name) != "platform"
        and (LAYERS.get(layer_name(name) or "", 0) < 9 or layer_name(name) == "admin")
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
