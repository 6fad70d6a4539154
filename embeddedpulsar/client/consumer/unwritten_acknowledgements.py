"""The error for acknowledgements that a closing consumer could not write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embeddedpulsar.exceptions import LockTimeout

if TYPE_CHECKING:
    from collections.abc import Iterable

    from embeddedpulsar.client.consumer.consumer_session import ConsumerSession


class AcknowledgementsUnwritten(LockTimeout):
    """A consumer closed without writing all acknowledgements, because another process stayed in a lock.

    Attributes:
        lines: one for each subscription.
    """

    def __init__(self, lines: Iterable[str], cause: str = "") -> None:
        self.lines = tuple(lines)
        super().__init__("; ".join((*self.lines, cause) if cause else self.lines))

    def __reduce__(self) -> tuple[type[LockTimeout], tuple[str]]:
        return LockTimeout, (str(self),)


def unwritten_error(session: ConsumerSession, count: int, error: LockTimeout) -> AcknowledgementsUnwritten:
    """Return the error of one consumer, which is closed now."""
    line = (
        f"{count} acknowledgements of subscription {session.config.subscription_name!r} on "
        f"{session.topic_name} could not be written; the consumer {session.consumer_name} is closed, and "
        "their messages may come again"
    )
    return AcknowledgementsUnwritten((line,), str(error))


def together(errors: list[AcknowledgementsUnwritten]) -> AcknowledgementsUnwritten:
    """Return one error for several consumers."""
    if len(errors) == 1:
        return errors[0]
    return AcknowledgementsUnwritten(line for error in errors for line in error.lines)
