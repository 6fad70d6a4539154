"""The modules that stand in for those of ``pulsar-client`` in a test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import embeddedpulsar
from embeddedpulsar import asyncio as asyncio_client
from embeddedpulsar.client.client import Client as BlockingClient
from embeddedpulsar.client.client_config import is_cluster

if TYPE_CHECKING:
    import os

_VERSION = "3.13.0"  # of the interface
_targets: Final[list[Any]] = []  # the store of the innermost `patched_pulsar` is the last


class StandIn(ModuleType):
    """A module with a name of ``pulsar-client`` and the content of a module of this package.

    Args:
        name: full name, for example ``pulsar.schema``.
        source: the module that has the content, or its name, to be imported when it is needed.
        own: names that differ from those of ``source``.
    """

    is_stand_in = True  # which `connect` asks: it opens the store of the test, too

    def __init__(self, name: str, source: ModuleType | str, **own: Any) -> None:
        super().__init__(name)
        self.__dict__.update(own)
        self.__dict__["__path__"] = []  # a package, so that a wrong submodule is a ModuleNotFoundError
        self.__spec__ = ModuleSpec(name, None, is_package=True)
        self._source_or_name = source

    @property
    def _source(self) -> ModuleType:
        if isinstance(self._source_or_name, str):
            self._source_or_name = import_module(self._source_or_name)
        return self._source_or_name

    def __getattr__(self, name: str) -> Any:
        # `import` asks modules for names of its own; finding those in the other module would mislead it.
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(self._source, name)

    def __dir__(self) -> list[str]:
        return sorted({*dir(self._source), *self.__dict__})


class Client(BlockingClient):
    """`embeddedpulsar.Client`, to which the address of a cluster means the store of the test."""

    def __init__(self, service_url: Any, *args: Any, **options: Any) -> None:
        super().__init__(_local(service_url), *args, **options)


class AsyncioClient(asyncio_client.Client):
    """The same for `embeddedpulsar.asyncio.Client`."""

    def __init__(self, service_url: Any, **kwargs: Any) -> None:
        super().__init__(_local(service_url), **kwargs)


def _local(service_url: Any) -> Any:
    if not is_cluster(service_url):
        return service_url
    # Nested stores: the last `with` statement counts. None refuses addresses of clusters.
    if not _targets or _targets[-1] is None:
        raise RuntimeError(
            f"{service_url!r} is a cluster, and no test that has a store for it is running: "
            "use the fixture patch_pulsar, or embeddedpulsar.testing.patched_pulsar"
        )
    return _targets[-1]


@cache
def stand_ins() -> dict[str, ModuleType]:
    """The modules by name. Made once: what a module imported in one test serves in the next one, too."""
    schema, exceptions = embeddedpulsar.schema, embeddedpulsar.exceptions
    modules: dict[str, ModuleType] = {
        "pulsar.asyncio": StandIn("pulsar.asyncio", asyncio_client, Client=AsyncioClient),
        "pulsar.exceptions": StandIn("pulsar.exceptions", exceptions),
        "pulsar.tableview": StandIn("pulsar.tableview", embeddedpulsar),
        "pulsar.schema": StandIn("pulsar.schema", schema),
    }
    # In `pulsar-client` these are modules of their own; here one module has all of their names.
    for part in ("definition", "schema", "schema_avro", "schema_protobuf"):
        modules[f"pulsar.schema.{part}"] = StandIn(f"pulsar.schema.{part}", schema)
    for name in (
        "pulsar.functions",
        *(f"pulsar.functions.{part}" for part in ("context", "function", "serde")),
    ):
        modules[name] = StandIn(name, "embeddedpulsar.functions")
    # The modules below `pulsar` are attributes of it.
    own = {name.partition(".")[2]: module for name, module in modules.items() if name.count(".") == 1}
    # `_pulsar` is the extension of `pulsar-client`, which programs import for its enumerations.
    for name in ("pulsar", "_pulsar"):
        modules[name] = StandIn(name, embeddedpulsar, Client=Client, __version__=_VERSION, **own)
    return modules


@contextmanager
def patched_pulsar(service_url: str | os.PathLike[str] | None = None) -> Iterator[Any]:
    """Have ``import pulsar`` give this package, and addresses of clusters mean a store. For tests.

    Inside the ``with`` statement, ``pulsar``, ``pulsar.asyncio``, ``pulsar.schema`` and the other modules of
    ``pulsar-client``, which need not be installed, are modules of this package. A client of ``pulsar://...``
    opens ``service_url``. Modules that imported ``pulsar`` before use this package, too: their global names
    for modules, classes and functions of ``pulsar-client`` are replaced. What they stored elsewhere, in
    a class or as a default argument, stays. At the end all of this is undone, except in modules that were
    imported inside: these keep what they imported, and use it in the next ``with``.

    In this process only, and for one test at a time.

    Args:
        service_url: the store, as for `embeddedpulsar.Client`; None to refuse addresses of clusters.

    Returns:
        The module ``pulsar``.

    Example:
        >>> with patched_pulsar("memory://cafe"):
        ...     import pulsar
        ...     client = pulsar.Client("pulsar://broker.example.com:6650")
        ...     consumer = client.subscribe("orders", "kitchen")
        ...     message_id = client.create_producer("orders").send(b"soup")
        ...     consumer.receive().data()
        ...     client.close()
        b'soup'
    """
    new = stand_ins()
    # What was imported before, of pulsar-client or of an earlier call, is put back at the end.
    before = {name: module for name, module in sys.modules.items() if _is_of_pulsar(name)}
    changes = _rebind(before, new)
    # The names are bound before anything that may fail; whatever fails, all is undone.
    try:
        _targets.append(service_url)
        for name in before:
            del sys.modules[name]
        sys.modules.update(new)
        yield new["pulsar"]
    finally:
        _targets.pop()
        # Also what was imported inside, or a later test would get modules of this one.
        for name in [name for name in sys.modules if _is_of_pulsar(name)]:
            del sys.modules[name]
        sys.modules.update(before)
        for namespace, name, old, stand_in in changes:
            # Only what still is the stand-in: the test may have bound the name to something else.
            if namespace.get(name) is stand_in:
                namespace[name] = old


def _is_of_pulsar(name: str) -> bool:
    return name.partition(".")[0] in ("pulsar", "_pulsar")


def _rebind(
    before: dict[str, ModuleType], new: dict[str, ModuleType]
) -> list[tuple[dict[str, Any], str, object, object]]:
    """Replace what modules imported from ``before``; return what was replaced, by what, and where."""
    # By identity, since a class may be bound under another name: `from pulsar import Client as C`.
    replacements: dict[int, object] = {}
    for name, module in before.items():
        # A stand-in of an outer call is right already.
        if isinstance(module, StandIn) or name not in new:
            continue
        replacements[id(module)] = new[name]
        # What a module has imported from elsewhere, `json` for example, is not pulsar's and stays.
        for attribute, value in vars(module).items():
            if _is_of_pulsar(getattr(value, "__module__", None) or "") and hasattr(new[name], attribute):
                replacements[id(value)] = getattr(new[name], attribute)
    changes: list[tuple[dict[str, Any], str, object, object]] = []
    if not replacements:
        return changes
    # A list, since looking at a module may import others.
    for name, module in list(sys.modules.items()):
        # Modules of this package know what they mean.
        if _is_of_pulsar(name) or name.partition(".")[0] == "embeddedpulsar":
            continue
        # Some entries of `sys.modules` are no modules.
        namespace = getattr(module, "__dict__", {})
        for attribute, value in list(namespace.items()):
            stand_in = replacements.get(id(value))
            if stand_in is not None:
                changes.append((namespace, attribute, value, stand_in))
                namespace[attribute] = stand_in
    return changes
