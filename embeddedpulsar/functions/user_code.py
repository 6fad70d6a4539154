"""The code of the application: functions and SerDes, found by the names that a configuration has.

Where the secrets of a function come from.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar.exceptions import InvalidConfiguration
from embeddedpulsar.functions.context import Context
from embeddedpulsar.functions.function_config import FunctionConfig
from embeddedpulsar.functions.serde import IdentitySerDe, PickleSerDe, SerDe
from embeddedpulsar.records import Protocol

if TYPE_CHECKING:
    from embeddedpulsar.message import Message


_OWN_SERDES: Final[dict[str, type[SerDe]]] = {"IdentitySerDe": IdentitySerDe, "PickleSerDe": PickleSerDe}

Process = Callable[[Any, Context], Any]
Timestamp = Callable[["Message[Any]"], float]


def find_code(class_name: str, py: str) -> Any:
    """The class, function or module of a name.

    Args:
        class_name: ``module.Class``, ``module.function`` or ``module``.
        py: path of the file of the module; empty to import it.

    Raises:
        InvalidConfiguration: there is none. What the module itself raises comes out as it is.

    Example:
        >>> find_code("json.JSONEncoder", "").__name__
        'JSONEncoder'
    """
    if not class_name:
        raise InvalidConfiguration("class_name is missing: module.Class, or module for a native function")
    # A name may repeat the name of the file, as `file.Class`, or leave it out.
    if py:
        module = _module_of_file(os.path.abspath(py))
        path = class_name.split(".")
        if path[0] == _stem(py):
            path = path[1:]
        return _member(module, path, f"{class_name} in {py}")
    path = class_name.split(".")
    # The longest prefix that is a module wins, as `a.b` of `a.b.Outer.Inner`: a module hides an attribute of
    # the same name.
    for length in range(max(1, len(path) - 1), 0, -1):  # the rest are classes, one in another
        module_name = ".".join(path[:length])
        try:
            return _member(importlib.import_module(module_name), path[length:], class_name)
        except ModuleNotFoundError as e:
            # Only if the module itself, or a package around it, is missing. One that it imports in turn is a
            # fault of that module, and raises as such.
            if e.name is None or not f"{module_name}.".startswith(f"{e.name}."):
                raise
    raise InvalidConfiguration(
        f"no module {path[0]!r} for {class_name}; give the path of its file as py, or put it on PYTHONPATH"
    )


def _module_of_file(path: str) -> ModuleType:
    # A module of that name from elsewhere stays what it is, such as one of the standard library.
    for name in (_stem(path), f"{_stem(path)}:{path}"):
        loaded = sys.modules.get(name)
        if loaded is None:
            break
        if os.path.abspath(getattr(loaded, "__file__", None) or "") == path:
            return loaded
    if not os.path.isfile(path):
        raise InvalidConfiguration(f"there is no file {path}")
    folder = os.path.dirname(path)
    if folder not in sys.path:
        # At the end: a file beside it must not hide a module of the library.
        sys.path.append(folder)  # for what the file imports from beside it
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InvalidConfiguration(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    # As the import system does, before the code runs: dataclasses and pickle look the module up by its name.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _stem(path: str) -> str:
    return os.path.splitext(os.path.basename(path))[0]


def _member(value: Any, path: list[str], label: str) -> Any:
    for part in path:
        try:
            value = getattr(value, part)
        except AttributeError:
            raise InvalidConfiguration(f"there is no {label}: {value!r} has no {part!r}") from None
    return value


def process_of(function: Any) -> Process:
    """What is called for each message: the method of an object, or a native function.

    Args:
        function: a class with a method ``process(input, context)``, or an object of one; a function
            ``process(input)``, or a module with one.

    Raises:
        InvalidConfiguration: it is none of these.

    Example:
        >>> process_of(len)("tea", None)
        3
    """
    # Four cases: a class is made an object of; an object has a method `process`, which gets the context; a
    # module has a function `process`, and any other callable is one: both are native functions, without a
    # context.
    if inspect.isclass(function):
        function = function()
    if not isinstance(function, ModuleType) and callable(getattr(function, "process", None)):
        method: Process = function.process
        return method
    native = getattr(function, "process", None) if isinstance(function, ModuleType) else function
    if not callable(native):
        raise InvalidConfiguration(f"{function!r} has no process(input, context), and no process(input)")
    return lambda input, context: native(input)


class EventTimestamp:
    """Stands for the event timestamp of the message, as the timestamp extractor of windows."""


def timestamp_of(class_name: str, py: str, value_of: Callable[[Message[Any]], Any]) -> Timestamp:
    """What returns the timestamp of a message, in ms since 1970, for windows of event time.

    Args:
        class_name: of the extractor; `EventTimestamp` by its last name.
        py: path of the file of the application; empty to import its module.
        value_of: returns the value of a message.

    Raises:
        InvalidConfiguration: there is no such class, or it has no method ``extract_timestamp(input)``.
    """
    extractor = named_class(class_name, py, {"EventTimestamp": EventTimestamp}, "windowing")
    if extractor is EventTimestamp:
        return lambda message: message.event_timestamp()
    extract = getattr(extractor(), "extract_timestamp", None)
    if not callable(extract):
        raise InvalidConfiguration(f"{class_name} has no method extract_timestamp(input)")
    return lambda message: extract(value_of(message))


def serde_of(class_name: str, py: str = "") -> SerDe:
    """An object of a SerDe class; those of this package by their last name, ``serde.IdentitySerDe`` too.

    Example:
        >>> type(serde_of("serde.IdentitySerDe")).__name__
        'IdentitySerDe'
    """
    serde: SerDe = named_class(class_name or "IdentitySerDe", py, _OWN_SERDES, "serde")()
    return serde


def named_class(class_name: str, py: str, ours: Mapping[str, type[Any]], module: str) -> Any:
    """The class of a name: one of this package by its last name, and by those that it has in Pulsar.

    Args:
        class_name: the name.
        py: path of the file of the application; empty to import its module.
        ours: classes of this package by their last names.
        module: the module of Pulsar that has them.

    Raises:
        InvalidConfiguration: there is none.

    Example:
        >>> named_class("pulsar.functions.serde.IdentitySerDe", "", _OWN_SERDES, "serde").__name__
        'IdentitySerDe'
    """
    place, _, name = class_name.rpartition(".")
    # Configurations written for Pulsar have its module names. A class of the application with the same last
    # name, in another module, is its own.
    if name in ours and (place in ("", module) or place.startswith(("pulsar.", "embeddedpulsar"))):
        return ours[name]
    return find_code(class_name, py)


def described(config: FunctionConfig, function: Any) -> FunctionConfig:
    """The configuration with the place of a function, so that other processes find it.

    Raises:
        InvalidConfiguration: it is defined inside of a function, or in no file.

    Example:
        >>> import json
        >>> described(FunctionConfig(), json.JSONDecoder).class_name
        'json.decoder.JSONDecoder'
    """
    if isinstance(function, ModuleType):
        return config._replace(class_name=function.__name__, py=config.py)
    # An object is found again by its class, and loses what was set on it: a worker makes one of its own.
    kind = function if inspect.isclass(function) or inspect.isroutine(function) else type(function)
    module, name = kind.__module__, kind.__qualname__
    # `<locals>` or `<lambda>` in the qualified name.
    if "<" in name:
        raise InvalidConfiguration(f"{name} is defined inside of a function: other processes do not find it")
    if module != "__main__":
        return config._replace(class_name=f"{module}.{name}")
    # The main program of this process is not that of a worker, so the class is given by the file.
    file = getattr(sys.modules[module], "__file__", None)
    if not file:
        raise InvalidConfiguration(f"{name} is defined in no file: other processes do not find it")
    return config._replace(class_name=f"{_stem(file)}.{name}", py=os.path.abspath(file))


class SecretsProvider(Protocol):
    """The interface of a provider, which an application may write.

    Example:
        >>> class FileSecrets:
        ...     def provide_secret(self, secret_name, path_to_secret):
        ...         with open(path_to_secret) as file:
        ...             return file.read()
        >>> with open("pin.txt", "w") as file:
        ...     written = file.write("1234")
        >>> FileSecrets().provide_secret("pin", "pin.txt")
        '1234'
    """

    def provide_secret(self, secret_name: str, path_to_secret: Any) -> str | None:
        """Return a secret; None if there is none.

        Args:
            secret_name: its name.
            path_to_secret: what the configuration of the function has for that name.
        """


class ClearTextSecretsProvider:
    """A secret is what stands in the configuration."""

    def provide_secret(self, secret_name: str, path_to_secret: Any) -> str | None:
        """Return the text.

        Example:
            >>> ClearTextSecretsProvider().provide_secret("pin", "1234")
            '1234'
        """
        return None if path_to_secret is None else str(path_to_secret)


class EnvironmentBasedSecretsProvider:
    """A secret is in the environment variable of its name."""

    def provide_secret(self, secret_name: str, path_to_secret: Any) -> str | None:
        """Return the value of the variable.

        Example:
            >>> EnvironmentBasedSecretsProvider().provide_secret("no such variable", "")
        """
        return os.environ.get(secret_name)


_OWN_PROVIDERS: Final = {
    kind.__name__: kind for kind in (ClearTextSecretsProvider, EnvironmentBasedSecretsProvider)
}


def provider_of(class_name: str, py: str = "") -> SecretsProvider:
    """An object of the class of that name; those of this module by their last name.

    Example:
        >>> type(provider_of("secretsprovider.ClearTextSecretsProvider")).__name__
        'ClearTextSecretsProvider'
    """
    provider: SecretsProvider = named_class(class_name, py, _OWN_PROVIDERS, "secretsprovider")()
    return provider
