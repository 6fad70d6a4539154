"""What goes over between an executor and its workers: places of functions, values, exceptions."""

from __future__ import annotations

import enum
import functools
import math
import sys
from collections import namedtuple
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from types import ModuleType
from typing import Any
from uuid import UUID

import pytest

from embeddedpulsar.futures import RemoteTraceback, TaskError
from embeddedpulsar.futures.encoding import (
    decoded,
    decoded_failure,
    encoded,
    encoded_failure,
    load_main,
    load_reference,
    main_place,
    reference_of,
)
from tests.multiprocess import pool_functions

VALUES = [
    None,
    True,
    -7,
    2**70,
    1.5,
    "tea",
    b"\x00",
    [1, [2]],
    (1, (2, "x")),
    {1: "a", "b": (2,)},
    {1, 2},
    frozenset({"a"}),
    1 + 2j,
    Decimal("1.10"),
    datetime(2026, 3, 1, 12, 30, tzinfo=timezone(timedelta(hours=2))),
    date(2026, 3, 1),
    timedelta(days=-1, microseconds=5),
    UUID(int=7),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
@pytest.mark.parametrize("serializer", ["msgpack", "pickle"])
def test_values_come_back_as_they_were(serializer: str, value: Any):
    """Of the same class, in any depth."""
    again = decoded(serializer, encoded(serializer, [value], "it"))
    assert again == [value]
    assert type(again[0]) is type(value)


Point = namedtuple("Point", "x y")


class Colour(enum.IntEnum):
    """A subclass of int."""

    RED = 1


@pytest.mark.parametrize("value", [pool_functions.NotPlain(1), Point(1, 2), Colour.RED, object(), [len]])
def test_msgpack_refuses_what_it_would_change(value: Any):
    """Also subclasses of what it holds; the error names the class and what to do."""
    with pytest.raises(TypeError, match=r"msgpack cannot hold the result of f: .*pickle"):
        encoded("msgpack", value, "the result of f")


@pytest.mark.parametrize("value", [(1,), {1: 2}, b"x", math.nan, [{"a": {1}}]])
def test_json_refuses_what_it_would_change(value: Any):
    """A tuple would come back as a list, a key as a text."""
    with pytest.raises(TypeError, match="json cannot hold"):
        encoded("json", value, "the arguments")
    fine = {"a": [1, 2.5, None, True, "x"]}
    assert decoded("json", encoded("json", fine, "it")) == fine


def test_a_value_that_contains_itself_is_refused():
    """As an error of the value, whatever the serializer raises."""
    endless: list[Any] = []
    endless.append(endless)
    for serializer in ("msgpack", "json"):
        with pytest.raises(TypeError, match="cannot hold it"):
            encoded(serializer, endless, "it")


def test_functions_are_called_by_their_place():
    """Functions of modules, builtins, methods of classes, classes."""
    for function in (
        math.sqrt,
        len,
        str.upper,
        pool_functions.double,
        pool_functions.NotPlain,
        dict.fromkeys,
    ):
        assert load_reference(reference_of(function)) == function


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda: 1, "inside of a function"),
        (functools.partial(len, "x"), "no name"),
        ("text".upper, "no name"),
        (7, "no name"),
    ],
)
def test_what_workers_could_not_import_is_refused(function: Any, text: str):
    """When it is submitted, and not in the worker."""
    with pytest.raises(TypeError, match=text):
        reference_of(function)


def test_a_function_that_another_name_hides_is_refused(monkeypatch: pytest.MonkeyPatch):
    """A worker would call something else."""
    original = pool_functions.double
    monkeypatch.setattr(pool_functions, "double", pool_functions.same)
    with pytest.raises(TypeError, match=r"double is not <function double"):
        reference_of(original)


@pytest.mark.parametrize("place", ["gone_module:f", "math:gone", "/gone/file.py:f"])
def test_what_is_not_there_is_an_import_error(place: str):
    """With the name."""
    with pytest.raises(ImportError, match="gone"):
        load_reference(place)


def test_functions_of_the_main_program(tmp_path: Any, monkeypatch: pytest.MonkeyPatch):
    """They are found by the file, or by the name of the module after ``-m``; a session has neither."""
    script = tmp_path / "program.py"
    script.write_text("def f():\n    return 'of the script'\nassert __name__ != '__main__'\n")
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.delitem(sys.modules, "__mp_main__", raising=False)
    exec("def f():\n    return 'here'", main.__dict__)
    with pytest.raises(TypeError, match="interactive session"):
        reference_of(main.f)
    main.__file__ = str(script)
    place = reference_of(main.f)
    assert place == f"{script}:f"
    assert load_reference(place)() == "of the script"
    assert load_main(str(script)) is sys.modules["__mp_main__"]
    main.__spec__ = sys.modules["tests.multiprocess.pool_functions"].__spec__
    assert main_place() == "-m tests.multiprocess.pool_functions"
    monkeypatch.delitem(sys.modules, "__mp_main__")


def raised(function: Any, *arguments: Any) -> BaseException:
    """What a function raises."""
    try:
        function(*arguments)
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize("serializer", ["msgpack", "pickle"])
def test_an_exception_comes_back(serializer: str):
    """With its class and arguments, and with the traceback as its cause."""
    error = decoded_failure(encoded_failure(serializer, raised(pool_functions.fail, "value")))
    assert (type(error), error.args) == (ValueError, ("no tea", 7))
    assert isinstance(error.__cause__, RemoteTraceback)
    assert 'raise ValueError("no tea", 7)' in str(error.__cause__)


def test_an_exception_that_cannot_be_made_again():
    """A class that is not loaded here, or refuses its own arguments, is named by a `TaskError`."""
    error = decoded_failure(encoded_failure("msgpack", raised(pool_functions.fail, "other")))
    assert isinstance(error, TaskError)
    assert (error.type_name, error.text) == ("tests.multiprocess.pool_functions.Refused", "1 and 2")
    made = ModuleType("made_for_this_test")
    exec("class Own(Exception):\n    pass", made.__dict__)
    sys.modules["made_for_this_test"] = made
    data = encoded_failure("msgpack", made.Own("x"))
    assert type(decoded_failure(data)) is made.Own
    del sys.modules["made_for_this_test"]
    assert str(decoded_failure(data)) == "made_for_this_test.Own: x"


def test_only_exceptions_are_made():
    """The name of another class or function in a failure is not called."""
    data = encoded_failure("msgpack", ValueError("echo"))
    forged = data.replace(b"builtins:ValueError", b"posix:system\x00\x00\x00\x00\x00\x00\x00")
    assert isinstance(decoded_failure(forged), TaskError)
