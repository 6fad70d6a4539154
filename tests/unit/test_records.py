"""The classes of records are those that `typing.NamedTuple` would make."""

from __future__ import annotations

import copy
import inspect
import pickle
import typing

import pytest

from embeddedpulsar import records


class Ours(records.NamedTuple):
    """A place."""

    ledger: int
    entry: int = -1
    name: str = "x"

    @property
    def both(self) -> tuple[int, int]:
        """Two of the fields."""
        return self.ledger, self.entry

    @classmethod
    def first(cls, ledger: int) -> Ours:
        """One at the beginning."""
        return cls(ledger, 0)


class Theirs(typing.NamedTuple):
    """A place."""

    ledger: int
    entry: int = -1
    name: str = "x"


class Lone(records.NamedTuple):
    field: int


class Empty(records.NamedTuple):
    """No fields."""


CALLS: dict[str, typing.Callable[[typing.Any], object]] = {
    "one": lambda kind: tuple(kind(1)),
    "all": lambda kind: tuple(kind(1, 2, "y")),
    "by name": lambda kind: tuple(kind(name="y", ledger=3)),
    "fields": lambda kind: (kind._fields, kind._field_defaults, kind.__match_args__, kind.__doc__),
    "parameters": lambda kind: [
        (one.name, one.default) for one in inspect.signature(kind).parameters.values()
    ],
    "replaced": lambda kind: tuple(kind(1)._replace(entry=5)),
    "made": lambda kind: tuple(kind._make(iter((1, 2, "z")))),
    "dict": lambda kind: kind(1)._asdict(),
    "repr": lambda kind: repr(kind(1, name="it's")).partition("(")[2],
    "equal": lambda kind: (kind(1) == (1, -1, "x"), hash(kind(1)) == hash((1, -1, "x")), kind(1) < kind(2)),
    "attributes": lambda kind: (kind(1, 2).ledger, kind(1, 2).entry, kind.entry.__doc__),
    "pickled": lambda kind: (
        pickle.loads(pickle.dumps(kind(7))) == kind(7),
        type(copy.copy(kind(7))) is kind,
    ),
    "slots": lambda kind: (hasattr(kind(1), "__dict__"), isinstance(kind(1), tuple), type(kind)),
}
MISTAKES: dict[str, typing.Callable[[typing.Any], object]] = {
    "none": lambda kind: kind(),
    "too many": lambda kind: kind(1, 2, 3, 4),
    "unknown": lambda kind: kind(1, other=2),
    "replacing": lambda kind: kind(1)._replace(other=2),
    "making": lambda kind: kind._make([1]),
    "setting": lambda kind: setattr(kind(1), "ledger", 2),
    "new": lambda kind: setattr(kind(1), "other", 2),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_calls_have_the_results_of_a_named_tuple(call):
    """Construction, comparison, copies and what is known of the class."""
    assert call(Ours) == call(Theirs)


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_mistakes_have_the_errors_of_a_named_tuple(mistake):
    """Wrong arguments, and changes of what does not change."""
    with pytest.raises(Exception) as expected:
        mistake(Theirs)
    with pytest.raises(type(expected.value)):
        mistake(Ours)


def test_methods_belong_to_the_class():
    """Also the class methods, and a class with one field or none."""
    assert Ours.first(5) == (5, 0, "x")
    assert Ours(5).both == (5, -1)
    assert Lone(3).field == 3 and tuple(Lone(3)) == (3,) and Lone.__doc__ == "Lone(field)"
    assert Empty() == () and repr(Empty()) == "Empty()"
    match Ours(1, 2):
        case Ours(ledger, entry):
            assert (ledger, entry) == (1, 2)


def test_a_field_without_a_default_behind_one_with_is_refused():
    """As by `typing`."""
    with pytest.raises(TypeError, match="without a default"):

        class Wrong(records.NamedTuple):
            first: int = 1
            second: int
