"""How a call and what comes of it are written: the place of a function, values, and exceptions."""

from __future__ import annotations

import importlib
import io
import json
import math
import os
import pickle
import runpy
import sys
import traceback
from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from types import ModuleType
from typing import Any, Final
from uuid import UUID

import msgpack

from embeddedpulsar.records import NamedTuple

MAIN: Final = "__mp_main__"
"""The name of a script that a worker has loaded, as in ``multiprocessing``: code behind
``if __name__ == "__main__":`` does not run there."""
_BY_NAME: Final = "-m "
_SERIALIZERS: Final = ("msgpack", "json", "pickle")
_LONGEST_TEXT: Final = 10_000
_HERE: Final = os.path.dirname(os.path.abspath(__file__))


class TaskError(Exception):
    """Raised by ``result`` of a `Future` in the place of an exception that this process cannot make again.
    Its class is not loaded here, or its arguments cannot be encoded.

    Attributes:
        type_name: ``module.Class`` of the exception.
        text: its text.

    Example:
        >>> str(TaskError("shop.SoldOut", "no tea"))
        'shop.SoldOut: no tea'
    """

    def __init__(self, type_name: str, text: str) -> None:
        super().__init__(type_name, text)
        self.type_name = type_name
        self.text = text

    def __str__(self) -> str:
        return f"{self.type_name}: {self.text}" if self.text else self.type_name


class WorkerLost(RuntimeError):
    """Raised by ``result`` of a `Future`: the worker of the task died each time that it was begun.

    Example:
        >>> raise WorkerLost("the task was begun 4 times, and its worker died each time")
        Traceback (most recent call last):
            ...
        embeddedpulsar.futures.encoding.WorkerLost: the task was begun 4 times, and its worker died each time
    """


class RemoteTraceback(Exception):
    """The ``__cause__`` of an exception of a task: the traceback in the worker, as text.

    Example:
        >>> print(RemoteTraceback("Traceback ..."))
        <BLANKLINE>
        Traceback ...
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text}"


# -- the place of a function -----------------------------------------------------------------------------


def reference_of(function: Callable[..., Any]) -> str:
    """Where other processes find a function: ``module:name``. In the place of the module stands
    ``/path/of/script.py`` or ``-m module`` for the main program.

    Raises:
        TypeError: it is not found by its name, so that no other process could call it.

    Example:
        >>> reference_of(math.sqrt), reference_of(str.upper)
        ('math:sqrt', 'builtins:str.upper')
    """
    # Methods written in C have a class, and no module.
    owner = getattr(function, "__objclass__", None) or getattr(function, "__self__", None)
    if not isinstance(owner, type):
        owner = None
    module = getattr(function, "__module__", None) or getattr(owner, "__module__", None)
    name = getattr(function, "__qualname__", None)
    if not callable(function) or not isinstance(module, str) or not isinstance(name, str):
        raise TypeError(
            f"{function!r} has no name by which a worker could import it; submit a function of a module, and "
            "what it needs as arguments"
        )
    if "<" in name:
        raise TypeError(
            f"{name} is defined inside of a function: a worker cannot import it; define it at the top of a "
            "module"
        )
    loaded: Any = sys.modules.get(module)
    value = loaded
    for part in name.split("."):
        value = getattr(value, part, None)
    # Also what another name hides: a decorator that returned something else, a bound method of an object.
    if loaded is None or not (value is function or value == function):
        raise TypeError(f"{module}.{name} is not {function!r}: a worker would not find it by its name")
    place = main_place() if module in ("__main__", MAIN) else module
    if place is None:
        raise TypeError(
            f"{name} is defined in an interactive session, or in no file: a worker cannot import it; put it "
            "into a module"
        )
    return f"{place}:{name}"


def main_place() -> str | None:
    """Where the main program of this process is: ``/path/of/script.py``, ``-m module``, or None if it is no
    file."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return f"{_BY_NAME}{spec.name}"
    file = getattr(main, "__file__", None)
    return os.path.abspath(file) if file and os.path.isfile(file) else None


def load_reference(reference: str) -> Callable[..., Any]:
    """The function of a `reference_of`, in a worker.

    Raises:
        ImportError: there is no such module, or no such name in it.

    Example:
        >>> load_reference("math:sqrt")(4)
        2.0
    """
    place, _, name = reference.rpartition(":")
    is_main = os.path.isabs(place) or place.startswith(_BY_NAME)
    value: Any = load_main(place) if is_main else importlib.import_module(place)
    for part in name.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            raise ImportError(f"there is no {name} in {place}") from None
    function: Callable[..., Any] = value
    return function


_MAINS: Final[dict[str, ModuleType]] = {}


def load_main(place: str) -> ModuleType:
    """The main program of a submitter, in a worker, under the name `MAIN`.

    Raises:
        ImportError: there is none at this place.
    """
    # As `multiprocessing` does with the main program of the parent.
    module = _MAINS.get(place)
    if module is None:
        module = ModuleType(MAIN)
        sys.modules[MAIN] = module  # dataclasses look their module up while it runs
        module.__dict__.update(_names_of_main(place))
        _MAINS[place] = module
    # Classes of it are pickled by this name, and the tasks of a worker may have several mains.
    sys.modules[MAIN] = module
    return module


def _names_of_main(place: str) -> dict[str, Any]:
    if place.startswith(_BY_NAME):
        return runpy.run_module(place.removeprefix(_BY_NAME), run_name=MAIN)
    if not os.path.isfile(place):
        raise ModuleNotFoundError(f"there is no file {place}")
    folder = os.path.dirname(place)
    if folder not in sys.path:
        sys.path.append(folder)
    return runpy.run_path(place, run_name=MAIN)


# -- values ----------------------------------------------------------------------------------------------

# What msgpack has no type for, by the number of its extension type. Values come back as what they were.
_EXTENSIONS: Final[dict[int, tuple[type[Any], Callable[[Any], Any], Callable[[Any], Any]]]] = {
    1: (tuple, list, tuple),
    2: (set, list, set),
    3: (frozenset, list, frozenset),
    4: (int, str, int),  # beyond 64 bits
    5: (complex, lambda number: [number.real, number.imag], lambda parts: complex(*parts)),
    6: (Decimal, str, Decimal),
    7: (datetime, datetime.isoformat, datetime.fromisoformat),
    8: (date, date.isoformat, date.fromisoformat),
    9: (
        timedelta,
        lambda time: [time.days, time.seconds, time.microseconds],
        lambda parts: timedelta(*parts),
    ),
    10: (UUID, str, UUID),
}
_CODES: Final = {kind: code for code, (kind, _, _) in _EXTENSIONS.items()}


def _extension_of(value: Any) -> msgpack.ExtType:
    code = _CODES.get(type(value))
    if code is None:
        raise TypeError(f"an object of the class {type(value).__module__}.{type(value).__qualname__}")
    return msgpack.ExtType(code, _packed(_EXTENSIONS[code][1](value)))


def _value_of(code: int, data: bytes) -> Any:
    if code not in _EXTENSIONS:
        return msgpack.ExtType(code, data)
    return _EXTENSIONS[code][2](_unpacked(data))


def _packed(value: Any) -> bytes:
    # Strict: subclasses, such as named tuples and enums, would come back as their base.
    data: bytes = msgpack.packb(value, default=_extension_of, strict_types=True)
    return data


def _unpacked(data: bytes) -> Any:
    return msgpack.unpackb(data, ext_hook=_value_of, strict_map_key=False, use_list=True)


def _check_json(value: Any) -> None:
    """Refuse what JSON would change without an error."""
    if value is None or type(value) in (bool, int, str):
        return
    if type(value) is float:
        if not math.isfinite(value):
            raise TypeError(f"the number {value}")
    elif type(value) is list:
        for item in value:
            _check_json(item)
    elif type(value) is dict:
        for key, item in value.items():
            if type(key) is not str:
                raise TypeError(f"the key {key!r}, which is no str")
            _check_json(item)
    else:
        raise TypeError(f"an object of the class {type(value).__module__}.{type(value).__qualname__}")


class _Unpickler(pickle.Unpickler):
    """Finds the classes of the main program, which has another name in a worker."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        """The class or function of a name."""
        if module_name in ("__main__", MAIN):
            module_name = MAIN if MAIN in sys.modules else "__main__"
        return super().find_class(module_name, global_name)


def check_serializer(name: str) -> str:
    """Return the name of a serializer if there is one of that name.

    Raises:
        ValueError: there is none.
    """
    if name not in _SERIALIZERS:
        raise ValueError(f"serializer is one of {', '.join(_SERIALIZERS)}, not {name!r}")
    return name


def encoded(serializer: str, value: Any, what: str) -> bytes:
    """A value as bytes.

    Args:
        serializer: ``msgpack``, ``json`` or ``pickle``.
        value: the value.
        what: what it is, for the text of the error.

    Raises:
        TypeError: the serializer cannot hold it.

    Example:
        >>> decoded("msgpack", encoded("msgpack", {"a": (1, {2})}, "the result"))
        {'a': (1, {2})}
        >>> encoded("json", [(1, 2)], "the result of shop.count")
        Traceback (most recent call last):
            ...
        TypeError: json cannot hold the result of shop.count: it has an object of the class builtins.tuple; \
pass None, bool, int, float, str, list and dict, or choose another serializer
    """
    try:
        if serializer == "pickle":
            return pickle.dumps(value)
        if serializer == "json":
            _check_json(value)
            return json.dumps(value, separators=(",", ":")).encode()
        return _packed(value)
    # pickle raises errors of its own, AttributeError and what a `__reduce__` raises; a value that contains
    # itself ends in RecursionError or ValueError.
    except Exception as error:
        kinds = {
            "pickle": "pass something that can be pickled",
            "json": "pass None, bool, int, float, str, list and dict, or choose another serializer",
            "msgpack": "pass None, bool, int, float, str, bytes, list, tuple, set, dict, dates, Decimal and "
            "UUID, or choose serializer='pickle' if all that write to the store are trusted",
        }
        raise TypeError(f"{serializer} cannot hold {what}: it has {error}; {kinds[serializer]}") from error


def decoded(serializer: str, data: bytes) -> Any:
    """The value of `encoded`."""
    if serializer == "pickle":
        return _Unpickler(io.BytesIO(data)).load()
    if serializer == "json":
        return json.loads(data)
    return _unpacked(data)


# -- exceptions ------------------------------------------------------------------------------------------


class Failure(NamedTuple):
    """What a task ended with in the place of a result.

    Attributes:
        place: ``module:Class`` of the exception.
        arguments: its arguments by msgpack; None if it cannot hold them.
        text: its text.
        trace: the traceback.
        pickled: the exception by pickle; None without that serializer.
    """

    place: str
    arguments: bytes | None
    text: str
    trace: str
    pickled: bytes | None = None


def encoded_failure(serializer: str, error: BaseException) -> bytes:
    """An exception as bytes, with the traceback without the frames of the worker."""
    kind, frames = type(error), error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_HERE):
        frames = frames.tb_next
    trace = "".join(traceback.format_exception(kind, error, frames))
    pickled = None
    if serializer == "pickle":
        try:
            pickled = pickle.dumps(error)
        except Exception:  # noqa: BLE001 - any class may refuse; the fields below are what is left of it
            pickled = None
    try:
        arguments: bytes | None = _packed(list(error.args))
    except (TypeError, ValueError):
        arguments = None
    failure = Failure(f"{kind.__module__}:{kind.__qualname__}", arguments, str(error), trace, pickled)
    return _packed(list(failure._replace(text=failure.text[:_LONGEST_TEXT])))


def decoded_failure(data: bytes) -> BaseException:
    """The exception of `encoded_failure`, with the traceback of the worker as its ``__cause__``.

    A class that is loaded in this process is called with the arguments. Nothing is imported for it.
    """
    failure = Failure(*_unpacked(data))
    error = _unpickled(failure) or _made_again(failure)
    if error is None:
        error = TaskError(failure.place.replace(":", "."), failure.text)
    error.__cause__ = RemoteTraceback(failure.trace)
    return error


def _unpickled(failure: Failure) -> BaseException | None:
    if failure.pickled is None:
        return None
    try:
        error = decoded("pickle", failure.pickled)
    except Exception:  # noqa: BLE001 - a class that does not accept its own arguments
        return None
    return error if isinstance(error, BaseException) else None


def _made_again(failure: Failure) -> BaseException | None:
    module, _, name = failure.place.partition(":")
    kind: Any = sys.modules.get(_loaded_name(module))
    for part in name.split("."):
        kind = getattr(kind, part, None)
    # Only exceptions: a call of anything else that a store names would run code of its choice.
    if failure.arguments is None or not isinstance(kind, type) or not issubclass(kind, BaseException):
        return None
    arguments: Sequence[Any] = _unpacked(failure.arguments)
    try:
        error = kind(*arguments)
    except Exception:  # noqa: BLE001 - a class whose constructor wants other arguments than `args` has
        return None
    return error if isinstance(error, kind) else None


def _loaded_name(module: str) -> str:
    """The name under which this process has a module of a worker."""
    return "__main__" if module == MAIN and MAIN not in sys.modules else module
