"""Texts of errors: Pulsar's text for a result, and the rule when it is used; numbers with their nouns."""

from __future__ import annotations

import sys
from functools import wraps

from embeddedpulsar.records import TYPE_CHECKING, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from embeddedpulsar.results import Result

    F = TypeVar("F", bound=Callable[..., Any])
    K = TypeVar("K", bound=type[Any])

_UNEXPECTED = "got an unexpected keyword argument "
_PREFIX = "Pulsar error: "
_PACKAGE = __name__.partition(".")[0] + "."
_CLASSES = _PACKAGE + "exceptions"

# Results whose text differs from their name. Pulsar's clients print the last ten with the prefix "Result".
_LAST_TEN = (
    *(
        "ConsumerAssignError",
        "CumulativeAcknowledgementNotAllowedError",
        "TransactionCoordinatorNotFoundError",
    ),
    *("InvalidTxnStatusError", "NotAllowedError", "TransactionConflict", "TransactionNotFound"),
    *("ProducerFenced", "MemoryBufferIsFull", "Interrupted"),
)
_TEXTS = {"Timeout": "TimeOut"} | {name: f"Result{name}" for name in _LAST_TEN}


def describe(result_name: str, detail: str) -> str:
    """Return Pulsar's text for the result of a name, followed by ``detail``.

    >>> describe("ProducerFenced", "till-1 took the topic")
    'Pulsar error: ResultProducerFenced: till-1 took the topic'
    """
    text = _PREFIX + _TEXTS.get(result_name, result_name)
    # A copied or unpickled error is rebuilt from its own text, in this form or in that of `numbered`.
    number, _, rest = detail.partition(" ")
    if detail.startswith(text) or (number.isdecimal() and rest.startswith(result_name)):
        return detail
    return f"{text}: {detail}" if detail else text


def numbered(code: Result, detail: object = None) -> str:
    """Return the text in the form of ``pulsar.asyncio``.

    >>> from embeddedpulsar import Result
    >>> numbered(Result.Timeout, "no answer"), numbered(Result.Timeout)
    ('3 Timeout: no answer', '3 Timeout')
    """
    return f"{code.value} {code.name}: {detail}" if detail else f"{code.value} {code.name}"


def renumbered(code: Result, text: str) -> str:
    """Return a text made by `describe` in the form of ``pulsar.asyncio``, and any other text unchanged.

    >>> from embeddedpulsar import Result
    >>> renumbered(Result.Timeout, describe("Timeout", "no answer"))
    '3 Timeout: no answer'
    """
    start = describe(code.name, "")
    return numbered(code, text.removeprefix(start).removeprefix(": ")) if text.startswith(start) else text


def counted(number: float, noun: str) -> str:
    """Return a number with its noun, in the plural for all numbers but 1.

    >>> counted(1, "message"), counted(0, "entry"), counted(1200, "process"), counted(2, "key")
    ('1 message', '0 entries', '1,200 processes', '2 keys')
    """
    text = f"{number:,.0f}"
    if text != "1":
        if noun.endswith("y") and noun[-2] not in "aeiou":
            noun = noun[:-1] + "ies"
        else:
            noun += "es" if noun.endswith(("ss", "x", "ch")) else "s"
    return f"{text} {noun}"


def nearest(name: str, known: Iterable[str], similarity: float = 0.75) -> str | None:
    """Return the known name that a wrong one most likely stands for; None if none is similar.

    >>> nearest("maxMesageSize", ["maxMessageSize", "brokerName"]), nearest("x", ["orders"])
    ('maxMessageSize', None)
    """
    import difflib  # takes 3 ms, and is needed for a wrong name only

    # Names are compared without their case, and shown as they are.
    lower: dict[str, str] = {}
    for known_name in known:
        lower.setdefault(known_name.lower(), known_name)
    near = difflib.get_close_matches(name.lower(), lower, 1, similarity)
    return lower[near[0]] if near else None


def with_nearest_argument(error: TypeError, function: Any) -> TypeError | None:
    """Return the error for an argument that a call of ``function`` does not have, with the argument that is
    most likely meant; None if that is not why the call failed.

    >>> def open_shop(*, doors): ...
    >>> try:
    ...     open_shop(door=1)
    ... except TypeError as error:
    ...     str(with_nearest_argument(error, open_shop))
    "open_shop() got an unexpected keyword argument 'door'; did you mean 'doors'?"
    """
    text = str(error)
    traceback = error.__traceback__
    # Only the call itself: an error with a deeper frame was raised inside of it, perhaps by a call of the
    # application, and has nothing to do with these arguments.
    if _UNEXPECTED not in text or traceback is None or traceback.tb_next is not None:
        return None  # raised further down, by another call
    # From 3.14 on Python's own guess follows; this one knows parts of names, too.
    before, _, after = text.rpartition(_UNEXPECTED)
    name = after.partition("'. Did you mean")[0].strip("'")
    code = function.__code__
    # Arguments with a default of a leading underscore are internal.
    known = [
        argument
        for argument in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if argument[0] != "_"
    ]
    known = [argument for argument in known if argument not in ("self", "cls")]
    # Where no spelling is similar, a part of the name: "timeout" for "timeout_millis".
    near = nearest(name, known) or next(
        (argument for argument in known if name in argument or argument in name), None
    )
    hint = f"did you mean {near!r}?" if near else f"there are {', '.join(known)}"
    return TypeError(f"{before}{_UNEXPECTED}{name!r}; {hint}")


def naming_arguments(function: F) -> F:
    """Decorate a function whose calls are not frequent, so that a wrong argument is answered with the nearest
    one: `with_nearest_argument`. Signature and documentation stay.

    Not for calls that attach something: an interrupt between the end of the call and that of this one would
    lose what is attached, and nothing would detach it.
    """

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            told = with_nearest_argument(error, function)
            if told is None:
                raise
            raise told from None

    return cast("F", call)


def naming_fields(kind: K) -> K:
    """Decorate a class of records, for its constructor: `naming_arguments`."""
    setattr(kind, "__new__", staticmethod(naming_arguments(kind.__new__)))
    return kind


def is_made_here() -> bool:
    """Return whether a module of this package makes the error, and not the application.

    Pulsar's text precedes the details of this package, and not those of an application.
    """
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__") == _CLASSES:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "")).startswith(_PACKAGE)
