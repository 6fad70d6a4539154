"""Every public method is called in an example that is executed: in its own docstring, or in one of its class.

`test_docs.test_doctests` executes the examples.
"""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

from embeddedpulsar.admin.admin import Admin, Brokers, ResourceGroups, Tenants
from embeddedpulsar.admin.dead_letters import DeadLetters
from embeddedpulsar.admin.namespaces import Namespaces, Schemas
from embeddedpulsar.admin.topics import Topics
from embeddedpulsar.functions.function_calls import Functions

MODULES = [
    "embeddedpulsar",
    "embeddedpulsar.asyncio",
    "embeddedpulsar.functions",
    "embeddedpulsar.futures",
    "embeddedpulsar.schema",
    "embeddedpulsar.testing",
]
PARTS_OF_ADMIN = [Brokers, DeadLetters, Functions, Namespaces, ResourceGroups, Schemas, Tenants, Topics]

# Method or function -> why no example calls it.
NOT_SHOWN: dict[str, str] = {
    "TableView.after_fork_in_child": "called by the interpreter, in a forked child",
    "run_workers": "returns at a signal only",
    "run": "returns at Ctrl-C only; Supervisor.run is shown",
}


@cache
def public() -> dict[str, Any]:
    """The public classes and functions by module and name."""
    found: dict[str, Any] = {}
    for module in map(importlib.import_module, MODULES):
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isclass(value) or inspect.isfunction(value):
                found.setdefault(f"{value.__module__}.{name}", value)
    return found | {f"{kind.__module__}.{kind.__name__}": kind for kind in PARTS_OF_ADMIN}


def classes() -> list[type]:
    """The public classes."""
    return [value for value in public().values() if inspect.isclass(value)]


def methods(kind: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The public methods and properties of a class, those of its bases included, with their functions."""
    for name in dir(kind):
        value = inspect.getattr_static(kind, name)
        if isinstance(value, property):
            value = value.fget
        function = getattr(value, "__func__", value)
        is_ours = inspect.isfunction(function) and function.__module__.startswith("embeddedpulsar")
        if is_ours and not name.startswith("_"):
            yield name, function


def code_of(documented: object) -> str:
    """The code of the examples in a docstring."""
    text = getattr(documented, "__doc__", None) or ""
    return "".join(example.source for example in doctest.DocTestParser().get_examples(text))


@cache
def examples_of(kind: type) -> str:
    """The code of the examples of a class, its bases and their methods."""
    ours = [base for base in kind.__mro__ if base.__module__.startswith("embeddedpulsar")]
    return "".join(code_of(one) for base in ours for one in (base, *dict(methods(base)).values()))


def not_shown(kind: type) -> set[str]:
    """The public methods of a class that no example calls, or overrides.

    An Admin and its parts are one interface: their examples call methods of both.
    """
    code = examples_of(kind)
    if kind is Admin:
        code += "".join(map(examples_of, PARTS_OF_ADMIN))
    elif kind in PARTS_OF_ADMIN:
        code += examples_of(Admin)
    return {
        f"{kind.__name__}.{name}" for name, _ in methods(kind) if not re.search(rf"(?:\.|def ){name}\b", code)
    }


@pytest.mark.parametrize("kind", classes(), ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_every_public_method_is_in_an_example(kind: type):
    """The examples of a class call each of its methods."""
    assert not not_shown(kind) - NOT_SHOWN.keys()


def test_every_public_function_has_an_example():
    """So does the docstring of a function that belongs to no class."""
    functions = [value for value in public().values() if not inspect.isclass(value)]
    assert functions
    assert not [one for one in functions if not code_of(one) and one.__name__ not in NOT_SHOWN]


def test_exceptions_are_needed():
    """What is excepted exists, and is in no example."""
    missing = {name for kind in classes() for name in not_shown(kind)}
    missing |= {value.__name__ for value in public().values() if not code_of(value)}
    assert NOT_SHOWN.keys() <= missing
