"""`NamedTuple`, `Protocol`, `Generic` and what belongs to them. To a type checker they are those of `typing`.

A process that produces and consumes has some 140 named tuples. `typing` compiles each annotation, and each
class has methods of its own: 0.16 ms a class, a fifth of a cold start. Here a class takes 0.02 ms, and its
annotations stay text.

A protocol says to a type checker what an object has to have. Nothing asks at run time, so there all of them
are one class: each would take as long as a record, and three times as long with `typing`.

A process that only sends and receives does not load `typing`, which loads `re`: 19 million instructions, a
fifteenth of its start. Its modules take `TYPE_CHECKING` from here, and what they need of `typing` for
annotations alone, `Any`, `Final` and the like, stands beside their other imports for type checkers.
"""

from __future__ import annotations

__all__ = ["TYPE_CHECKING", "Generic", "NamedTuple", "ParamSpec", "Protocol", "TypeVar", "cast"]

TYPE_CHECKING = False  # true to a type checker, which knows the name

if TYPE_CHECKING:
    from typing import Generic, NamedTuple, ParamSpec, Protocol, TypeVar, cast
else:
    from collections import namedtuple
    from sys import version_info
    from types import FunctionType, GenericAlias

    # Written in C, so that reading a field costs what it costs with `typing`.
    # The descriptor of a field, which is written in C.
    _Field = type(namedtuple("_", "field").field)
    _new = tuple.__new__
    # What `_replace` of a named tuple raises.
    _WRONG_NAMES = TypeError if version_info >= (3, 13) else ValueError

    _NEW = {"_new": _new, "locals": locals, "__builtins__": {}}
    # The constructor of what has more fields, such as the settings of a store, which are made once: 2 us more
    # a call, in place of a compilation of 20 us for each field. The first of its variables is the class.
    _OF_MANY = (lambda _cls: _new(_cls, (*locals().values(),)[1:])).__code__
    # Of nearly all of them: nothing is compiled when a class is made.
    # fmt: off
    _CONSTRUCTORS = (
        lambda _cls, a: _new(_cls, (a,)),
        lambda _cls, a, b: _new(_cls, (a, b)),
        lambda _cls, a, b, c: _new(_cls, (a, b, c)),
        lambda _cls, a, b, c, d: _new(_cls, (a, b, c, d)),
        lambda _cls, a, b, c, d, e: _new(_cls, (a, b, c, d, e)),
        lambda _cls, a, b, c, d, e, f: _new(_cls, (a, b, c, d, e, f)),
        lambda _cls, a, b, c, d, e, f, g: _new(_cls, (a, b, c, d, e, f, g)),
        lambda _cls, a, b, c, d, e, f, g, h: _new(_cls, (a, b, c, d, e, f, g, h)),
        lambda _cls, a, b, c, d, e, f, g, h, i: _new(_cls, (a, b, c, d, e, f, g, h, i)),
        lambda _cls, a, b, c, d, e, f, g, h, i, j: _new(_cls, (a, b, c, d, e, f, g, h, i, j)),
        lambda _cls, a, b, c, d, e, f, g, h, i, j, k: _new(_cls, (a, b, c, d, e, f, g, h, i, j, k)),
        lambda _cls, a, b, c, d, e, f, g, h, i, j, k, m: _new(_cls, (a, b, c, d, e, f, g, h, i, j, k, m)),
        lambda _cls, a, b, c, d, e, f, g, h, i, j, k, m, n:
            _new(_cls, (a, b, c, d, e, f, g, h, i, j, k, m, n)),
        lambda _cls, a, b, c, d, e, f, g, h, i, j, k, m, n, o:
            _new(_cls, (a, b, c, d, e, f, g, h, i, j, k, m, n, o)),
        lambda _cls, a, b, c, d, e, f, g, h, i, j, k, m, n, o, p, q:
            _new(_cls, (a, b, c, d, e, f, g, h, i, j, k, m, n, o, p, q)),
        # The columns of a batch, which are found again for each.
        lambda _cls, a, b, c, d, e, f, g, h, i, j, k, m, n, o, p, q, r, s, t, u, v, w, x:
            _new(_cls, (a, b, c, d, e, f, g, h, i, j, k, m, n, o, p, q, r, s, t, u, v, w, x)),
    )
    # fmt: on
    _CODES = {new.__code__.co_argcount - 1: new.__code__ for new in _CONSTRUCTORS}
    _FIELDS = []  # a descriptor has a position and no name, so all classes share them

    # One base for all records, so that methods exist once and not once for each class.
    class _Record(tuple):
        """What all the classes share. Compares, hashes and unpacks as a tuple."""

        __slots__ = ()

        @classmethod
        def _make(cls, iterable):
            """Make a record of the values of an iterable."""
            record = tuple.__new__(cls, iterable)
            if len(record) != len(cls._fields):
                raise TypeError(f"expected {len(cls._fields)} values, got {len(record)}")
            return record

        def _replace(self, /, **values):
            """Return a record with some fields replaced."""
            # `pop` leaves the names that are no field.
            record = self._make(map(values.pop, self._fields, self))
            if values:
                raise _WRONG_NAMES(f"unexpected field names: {list(values)!r}")
            return record

        __replace__ = _replace  # of `copy.replace`

        def _asdict(self):
            """Return a dict of the fields."""
            return dict(zip(self._fields, self, strict=True))

        def __repr__(self):
            fields = [f"{name}={value!r}" for name, value in zip(self._fields, self, strict=True)]
            return f"{type(self).__name__}({', '.join(fields)})"

        def __getnewargs__(self):
            return tuple(self)

    def _new_of(fields, defaults):
        """The ``__new__`` of a class: one code for each number of fields, with the names of these."""
        # The code of a constructor with as many fields is copied and its variables are renamed, so keyword
        # arguments and errors have the names of the fields.
        count = len(fields) + 1
        code = _CODES.get(len(fields))
        if code is None:
            code = _OF_MANY.replace(co_argcount=count, co_nlocals=count, co_varnames=("_cls", *fields))
        # Of no file: its line here says nothing of the class.
        code = code.replace(co_varnames=("_cls", *fields), co_name="__new__", co_filename="<string>")
        return FunctionType(code, _NEW, "__new__", defaults)

    class _RecordType(type):
        """Turns the body of a class with the base `NamedTuple` into a class of records."""

        def __new__(cls, name, bases, body):
            # Fields are the annotated names, in their order; other names of the body stay what they are.
            fields = tuple(body.get("__annotations__", ()))
            defaults = {field: body.pop(field) for field in fields if field in body}
            # As in `typing`: an argument without a default cannot follow one with a default.
            if tuple(defaults) != fields[len(fields) - len(defaults) :]:
                raise TypeError(f"{name}: fields without a default follow fields with one")
            while len(_FIELDS) < len(fields):
                _FIELDS.append(_Field(len(_FIELDS), f"Alias for field number {len(_FIELDS)}"))
            body.update(zip(fields, _FIELDS, strict=False))
            body["__new__"] = new = _new_of(fields, tuple(defaults.values()) or None)
            new.__annotations__ = body.get("__annotations__", {})
            new.__module__, new.__qualname__ = body.get("__module__", ""), f"{name}.__new__"
            body["_fields"] = body["__match_args__"] = fields
            body["_field_defaults"], body["__slots__"] = defaults, ()
            if "__doc__" not in body:
                body["__doc__"] = f"{name}({', '.join(fields)})"
            return type(name, (_Record,), body)

    # Without `_RecordType.__new__`, which is for classes that have this one as their base.
    NamedTuple = type.__new__(_RecordType, "NamedTuple", (), {})

    class _Protocol:
        """What all protocols are at run time. A class that implements one by name is a class of its own."""

        __slots__ = ()

    class _ProtocolType(type):
        """Makes no class of a body with the base `Protocol`."""

        def __new__(cls, name, bases, body):
            return _Protocol

    Protocol = type.__new__(_ProtocolType, "Protocol", (), {})

    class Generic:
        """What can be subscripted with types, as ``Message[int]``. The types are kept and not used."""

        __slots__ = ()
        __class_getitem__ = classmethod(GenericAlias)

    def TypeVar(name, *_constraints, **_options):
        """Stand for a type in the bases of a generic class. The text is as good as an object."""
        return name

    ParamSpec = TypeVar

    def cast(_kind, value):
        """Return the value. Says its type to a type checker."""
        return value
