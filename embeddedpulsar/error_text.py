"""Texts of errors: Pulsar's text for a result, and the rule when it is used."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from embeddedpulsar.enums import Result

_PREFIX = "Pulsar error: "
_PACKAGE = __name__.partition(".")[0] + "."
_CLASSES = _PACKAGE + "exceptions"

# Results whose text differs from their name. Pulsar's clients print the last ten with the prefix "Result".
_TEXTS: dict[Result, str] = {Result.Timeout: "TimeOut"} | {
    result: f"Result{result.name}" for result in Result if result >= Result.ConsumerAssignError
}


def describe(code: Result, detail: str) -> str:
    """Return Pulsar's text for a result, followed by ``detail``.

    >>> describe(Result.ProducerFenced, "till-1 took the topic")
    'Pulsar error: ResultProducerFenced: till-1 took the topic'
    """
    text = _PREFIX + _TEXTS.get(code, code.name)
    if detail.startswith((text, numbered(code))):
        return detail  # a copied or unpickled error is rebuilt from its own text
    return f"{text}: {detail}" if detail else text


def numbered(code: Result, detail: object = None) -> str:
    """Return the text in the form of ``pulsar.asyncio``.

    >>> numbered(Result.Timeout, "no answer"), numbered(Result.Timeout)
    ('3 Timeout: no answer', '3 Timeout')
    """
    return f"{code.value} {code.name}: {detail}" if detail else f"{code.value} {code.name}"


def renumbered(code: Result, text: str) -> str:
    """Return a text made by `describe` in the form of ``pulsar.asyncio``, and any other text unchanged.

    >>> renumbered(Result.Timeout, describe(Result.Timeout, "no answer"))
    '3 Timeout: no answer'
    """
    start = describe(code, "")
    return numbered(code, text.removeprefix(start).removeprefix(": ")) if text.startswith(start) else text


def nearest(name: str, known: Iterable[str], similarity: float = 0.75) -> str | None:
    """Return the known name that a wrong one most likely stands for; None if none is similar.

    >>> nearest("maxMesageSize", ["maxMessageSize", "brokerName"]), nearest("x", ["orders"])
    ('maxMessageSize', None)
    """
    import difflib  # takes 3 ms, and is needed for a wrong name only

    lower: dict[str, str] = {}
    for one in known:
        lower.setdefault(one.lower(), one)
    near = difflib.get_close_matches(name.lower(), lower, 1, similarity)
    return lower[near[0]] if near else None


def is_made_here() -> bool:
    """Return whether a module of this package makes the error, and not the application.

    Pulsar's text precedes the details of this package, and not those of an application.
    """
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__") == _CLASSES:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "")).startswith(_PACKAGE)
