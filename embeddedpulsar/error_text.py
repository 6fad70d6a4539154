"""The texts of errors: Pulsar's words for a result, and where the words come from."""

from __future__ import annotations

import sys

from embeddedpulsar.enums import Result

_PREFIX = "Pulsar error: "
_PACKAGE = __name__.partition(".")[0] + "."
_CLASSES = _PACKAGE + "exceptions"

# Results whose text differs from their name. Pulsar's clients print the texts of the last ten with "Result".
_TEXTS: dict[Result, str] = {Result.Timeout: "TimeOut"} | {
    result: f"Result{result.name}" for result in Result if result >= Result.ConsumerAssignError
}


def describe(code: Result, detail: str) -> str:
    """Pulsar's text for a result, and what happened.

    >>> describe(Result.ProducerFenced, "till-1 took the topic")
    'Pulsar error: ResultProducerFenced: till-1 took the topic'
    """
    text = _PREFIX + _TEXTS.get(code, code.name)
    if detail.startswith((text, numbered(code))):
        return detail  # a copied or unpickled error is rebuilt from its own text
    return f"{text}: {detail}" if detail else text


def numbered(code: Result, detail: object = None) -> str:
    """The text as ``pulsar.asyncio`` has it.

    >>> numbered(Result.Timeout, "no answer"), numbered(Result.Timeout)
    ('3 Timeout: no answer', '3 Timeout')
    """
    return f"{code.value} {code.name}: {detail}" if detail else f"{code.value} {code.name}"


def renumbered(code: Result, text: str) -> str:
    """A text made by `describe`, as ``pulsar.asyncio`` has it; any other text as it is.

    >>> renumbered(Result.Timeout, describe(Result.Timeout, "no answer"))
    '3 Timeout: no answer'
    """
    start = describe(code, "")
    return numbered(code, text.removeprefix(start).removeprefix(": ")) if text.startswith(start) else text


def is_made_here() -> bool:
    """Whether a module of this package makes the error whose constructor asks, and not the application.

    Pulsar's words belong before what this package has to say, and not before what an application says.
    """
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__") == _CLASSES:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "")).startswith(_PACKAGE)
