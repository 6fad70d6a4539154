"""Errors with the texts of ``pulsar.asyncio``."""

from __future__ import annotations

from embeddedpulsar import error_text
from embeddedpulsar.exceptions import PulsarException


def renumber(error: BaseException | None) -> None:
    """Put number and name of the result before the text of an error of this package. Idempotent.

    The same object is changed, so that its class, its traceback and references to it stay valid.

    >>> from embeddedpulsar.exceptions import AlreadyClosed
    >>> error = AlreadyClosed()
    >>> renumber(error)
    >>> str(error)
    '15 AlreadyClosed'
    """
    if isinstance(error, PulsarException) and len(error.args) == 1:
        error.args = (error_text.renumbered(error.code, str(error.args[0])),)
