"""Errors of ``pulsar-client`` as those of this package."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Final

from embeddedpulsar import error_text, exceptions
from embeddedpulsar.enums import Result
from embeddedpulsar.exceptions import InvalidConfiguration, OperationNotSupported, PulsarException


def translated_error(error: BaseException) -> PulsarException | None:
    """Return the error of this package for one of ``pulsar-client``; None for any other error."""
    if isinstance(error, PulsarException) or not any(
        one.__name__ == "PulsarException" for one in type(error).__mro__
    ):
        return None
    found = _class(type(error).__name__)()
    found.args = (str(error),)  # the text of pulsar-client, which is that of this package
    return found


def _class(name: str) -> type[PulsarException]:
    found = getattr(exceptions, name, None)
    if isinstance(found, type) and issubclass(found, PulsarException):
        return found
    return PulsarException


def not_supported(what: str, instead: str) -> OperationNotSupported:
    """The error of a method that a cluster, or ``pulsar-client``, does not have."""
    return OperationNotSupported(f"{what} needs a store of embeddedpulsar; on a cluster, {instead}")


def unknown_option(call: str, name: str) -> InvalidConfiguration:
    """The error of an option that ``pulsar-client`` does not have."""
    return InvalidConfiguration(f"pulsar-client has no option {name} of {call}; leave it out for a cluster")


class _Translation:
    """Context manager without state: one object serves every call and thread."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and (found := translated_error(error)) is not None:
            raise found from error


translated: Final = _Translation()
"""``with translated:`` around a call of ``pulsar-client`` raises the errors of this package."""


def failure(result: Any) -> PulsarException:
    """The error for a result of ``pulsar-client`` other than ``Ok``."""
    error = _class(result.name)()
    error.args = (error_text.describe(Result[result.name], ""),)
    return error
