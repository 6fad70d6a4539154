"""The public surface is that of `pulsar-client`: names, signatures, defaults, values. Ours may only add."""

from __future__ import annotations

import enum
import importlib
import inspect
import pkgutil
import subprocess
import sys
import types

import pulsar
import pulsar.exceptions
import pulsar.schema
import pytest

import embeddedpulsar
from tests.source_tree import PACKAGE

# Names that are in pulsar-client's namespace because it imports them, not because it offers them.
NOT_OFFERED = {"Callable", "List", "Optional", "Tuple", "Union", "logging", "re", "tableview", "timedelta"}


# Functions of pulsar-client that its own modules call.
HELPERS = {"is_unicode", "remove_reserved_key"}

# (class, method): why the signature differs.
DIFFERENT: dict[tuple[str, str], str] = {
    ("Message", "__init__"): "messages are created by consumers",
    ("Producer", "__init__"): "producers are created by clients",
    ("Consumer", "__init__"): "consumers are created by clients",
    ("Reader", "__init__"): "readers are created by clients",
    ("TableView", "__init__"): "table views are created by clients",
    ("TableView", "get"): "a Mapping has a default, which may be given by position",
}

IMPORT_NEVER_LOADS = (
    "asyncio",
    "cramjam",
    "dataclasses",
    "inspect",
    "logging",
    "lz4",
    "msgpack",
    "portalocker",
)
IMPORT_NEVER_LOADS += ("cryptography", "pyarrow", "pyspark", "tempfile", "uuid")
IMPORT_NEVER_LOADS += ("fastavro", "google.protobuf", "msgspec", "orjson")


def offered(module: types.ModuleType) -> list[str]:
    """The names a module of pulsar-client offers."""
    return sorted(name for name in dir(module) if not name.startswith("_") and name not in NOT_OFFERED)


def signature(function: object) -> list[inspect.Parameter]:
    """The parameters of a function, method or class without `self`, or [] if it has no signature."""
    try:
        parameters = list(inspect.signature(function).parameters.values())  # type: ignore[arg-type]
    except (ValueError, TypeError):
        return []
    return [parameter for parameter in parameters if parameter.name not in ("self", "cls")]


def comparable(default: object) -> object:
    """A default in a form that is equal for equal values of the two packages."""
    if default is inspect.Parameter.empty:
        return "required"
    if hasattr(default, "__members__") or isinstance(default, enum.Enum):
        return int(default)  # type: ignore[call-overload]
    if isinstance(default, int | str | None):
        return default
    return type(default).__name__


def methods(kind: type) -> dict[str, object]:
    """The public methods and properties of a class, and its constructor."""
    return {
        name: getattr(kind, name)
        for name in dir(kind)
        if (name == "__init__" and kind.__init__ is not object.__init__) or not name.startswith("_")
    }


def own_classes(module: types.ModuleType) -> list[str]:
    """The classes of pulsar-client that are written in Python, and are built here."""
    return [
        name
        for name in offered(module)
        if inspect.isclass(getattr(module, name)) and getattr(module, name).__module__.startswith("pulsar")
    ]


def submodules() -> list[str]:
    """The modules of pulsar-client whose content is built here."""
    found = [module.name for module in pkgutil.walk_packages(pulsar.__path__, "pulsar.")]
    return [name for name in found if name.split(".")[1] != "__about__"]


def enumerations() -> list[str]:
    """The enumerations of pulsar-client."""
    return [name for name in offered(pulsar) if hasattr(getattr(pulsar, name), "__members__")]


def test_every_name_is_offered():
    """What pulsar-client exports, this package exports."""
    missing = [name for name in offered(pulsar) if not hasattr(embeddedpulsar, name)]
    assert not missing


def test_every_exported_name_exists():
    """`__all__` holds no duplicate, and every name of it can be had."""
    assert len(set(embeddedpulsar.__all__)) == len(embeddedpulsar.__all__)
    for name in embeddedpulsar.__all__:
        assert getattr(embeddedpulsar, name) is not None
        assert name in dir(embeddedpulsar)


# Members that Pulsar's Java client has, and pulsar-client lacks.
OF_JAVA = {
    "SchemaType": {"BOOLEAN", "DATE", "TIME", "TIMESTAMP", "INSTANT"}
    | {"LOCAL_DATE", "LOCAL_TIME", "LOCAL_DATE_TIME"},
}


@pytest.mark.parametrize("name", enumerations())
def test_enumerations_have_the_same_members(name: str):
    """Members and values of an enumeration are those of pulsar-client."""
    theirs = {member: int(value) for member, value in getattr(pulsar, name).__members__.items()}
    added = OF_JAVA.get(name, set())
    ours = {one.name: int(one) for one in getattr(embeddedpulsar, name) if one.name not in added}
    assert ours == theirs
    first = next(iter(theirs))
    assert str(getattr(embeddedpulsar, name)[first]) == str(getattr(getattr(pulsar, name), first))
    assert repr(getattr(embeddedpulsar, name)[first]) == repr(getattr(getattr(pulsar, name), first))


@pytest.mark.parametrize("name", offered(pulsar.exceptions))
def test_exceptions_have_the_same_names(name: str):
    """Every exception exists under its name, in both places pulsar-client has it."""
    ours = getattr(embeddedpulsar.exceptions, name)
    assert getattr(embeddedpulsar, name) is ours
    assert issubclass(ours, embeddedpulsar.PulsarException)
    assert issubclass(ours, Exception)


@pytest.mark.parametrize("name", own_classes(pulsar))
def test_classes_have_the_same_methods_and_signatures(name: str):
    """Methods, parameters, their order and their defaults are equal; what we add is keyword-only."""
    theirs, ours = getattr(pulsar, name), getattr(embeddedpulsar, name)
    problems = []
    for method, function in methods(theirs).items():
        if (name, method) in DIFFERENT or method.startswith("_pulsar"):
            continue
        if not hasattr(ours, method):
            problems.append(f"{name}.{method} is missing")
        elif callable(function) and not isinstance(function, enum.Enum):
            problems += differences(f"{name}.{method}", function, getattr(ours, method))
    assert not problems, "\n".join(problems)


def differences(label: str, theirs: object, ours: object) -> list[str]:
    """What keeps a call written for `theirs` from working with `ours`."""
    problems = []
    expected, found = signature(theirs), signature(ours)
    expected = [one for one in expected if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
    positional = [one for one in found if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    if [one.name for one in expected] != [one.name for one in positional]:
        return [f"{label}({[one.name for one in positional]}), not ({[one.name for one in expected]})"]
    for one, other in zip(expected, positional, strict=True):
        if comparable(one.default) != comparable(other.default):
            problems.append(f"{label}: {one.name}={other.default!r}, not {one.default!r}")
    for extra in found[len(positional) :]:
        required = extra.kind is extra.KEYWORD_ONLY and extra.default is extra.empty
        if required:
            problems.append(f"{label}: {extra.name} is ours, so it needs a default")
    return problems


@pytest.mark.parametrize("name", submodules())
def test_every_module_is_offered(name: str):
    """A module of pulsar-client has one of the same name here, with its public classes and functions."""
    theirs = importlib.import_module(name)
    ours = importlib.import_module(name.replace("pulsar", "embeddedpulsar", 1))
    missing = [
        own
        for own, value in vars(theirs).items()
        if getattr(value, "__module__", "") in (name, "_pulsar")
        and not own.startswith("_")
        and own not in HELPERS
        and not hasattr(ours, own)
    ]
    assert not missing


def test_schema_module_offers_the_same_names():
    """`schema` has the names of pulsar.schema."""
    missing = [name for name in offered(pulsar.schema) if not hasattr(embeddedpulsar.schema, name)]
    assert not missing
    assert set(embeddedpulsar.schema.__all__) <= set(dir(embeddedpulsar.schema))
    with pytest.raises(AttributeError, match="no attribute 'Recrod'"):
        embeddedpulsar.schema.Recrod  # noqa: B018


@pytest.mark.parametrize(
    "name", [name for name in offered(pulsar.schema) if inspect.isclass(getattr(pulsar.schema, name))]
)
def test_schemas_have_the_same_methods(name: str):
    """Schemas, records and fields have the methods and signatures of pulsar-client."""
    extra = {"AvroSchema": "fastavro", "ProtobufNativeSchema": "google.protobuf"}.get(name)
    if extra:
        pytest.importorskip(extra, reason="the extra is not installed")
    theirs, ours = getattr(pulsar.schema, name), getattr(embeddedpulsar.schema, name)
    problems = []
    for method, function in methods(theirs).items():
        assert hasattr(ours, method), method
        if (name, method) == ("Record", "__init__"):
            continue  # it has no names of its own, so that fields may have any: test_record_names.py
        problems += differences(f"{name}.{method}", function, getattr(ours, method))
    assert not problems


@pytest.mark.parametrize("name", ["Client", "Producer", "Consumer", "Reader"])
def test_asyncio_has_the_same_methods_and_signatures(name: str):
    """`embeddedpulsar.asyncio` mirrors `pulsar.asyncio` by the same rule."""
    import pulsar.asyncio as theirs_module

    import embeddedpulsar.asyncio as ours_module

    theirs, ours = getattr(theirs_module, name), getattr(ours_module, name)
    problems = []
    for method, function in methods(theirs).items():
        if (name, method) in DIFFERENT:
            continue
        if not hasattr(ours, method):
            problems.append(f"{name}.{method} is missing")
            continue
        problems += differences(f"{name}.{method}", function, getattr(ours, method))
        if inspect.iscoroutinefunction(function) != inspect.iscoroutinefunction(getattr(ours, method)):
            problems.append(f"{name}.{method} is a coroutine in one of the two only")
    assert not problems, "\n".join(problems)


def test_asyncio_has_the_enums():
    """Those that `pulsar.asyncio` has may be imported from here, too; they are those of the package."""
    import enum

    import pulsar.asyncio as theirs

    import embeddedpulsar.asyncio as ours

    names = [name for name in dir(theirs) if isinstance(getattr(pulsar, name, None), type)]
    enums = [name for name in names if issubclass(getattr(embeddedpulsar, name, object), enum.Enum)]
    assert len(enums) == 7
    for name in enums:
        assert getattr(ours, name) is getattr(embeddedpulsar, name)


@pytest.mark.parametrize("name", ["MessageId", "Client", "Producer", "Consumer", "Reader"])
def test_import_is_cheap(name: str):
    """Importing the package, and its clients, loads no optional dependency and no slow standard module."""
    command = f"import sys; from embeddedpulsar import {name}; print(*sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", command],
        cwd=PACKAGE.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert not set(IMPORT_NEVER_LOADS) & set(loaded.stdout.split())


def test_star_import_brings_the_public_names():
    """`from embeddedpulsar import *` brings `__all__`, lazily loaded names included."""
    namespace: dict[str, object] = {}
    exec("from embeddedpulsar import *", namespace)
    assert set(embeddedpulsar.__all__) <= set(namespace)
