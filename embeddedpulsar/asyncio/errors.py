"""Errors with the text they have in ``pulsar.asyncio``."""

from __future__ import annotations

from embeddedpulsar import error_text
from embeddedpulsar.exceptions import PulsarException


def renumber(error: BaseException | None) -> None:
    """Begin the text of an error of this package with number and name of its result; idempotent.

    The same object, so that its class, its traceback and whoever has it already stay as they are.

    >>> from embeddedpulsar.exceptions import AlreadyClosed
    >>> error = AlreadyClosed()
    >>> renumber(error)
    >>> str(error)
    '15 AlreadyClosed'
    """
    if isinstance(error, PulsarException) and len(error.args) == 1:
        error.args = (error_text.renumbered(error.code, str(error.args[0])),)
