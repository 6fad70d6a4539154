"""What readers of whole columns do about damage: stop, or go on and say so."""

from __future__ import annotations

from typing import NoReturn

from embeddedpulsar.exceptions import CorruptionError


def raise_damage(error: CorruptionError, first: int, after: int) -> NoReturn:
    """Raise the error, with the entries that are lost."""
    lost = f"entry {first}" if after == first + 1 else f"entries {first} to {after - 1}"
    raise CorruptionError(
        path=error.path, offset=error.offset, reason=f"{lost}: {error.reason}", remedy=error.remedy
    )


def warn_of_damage(error: CorruptionError, first: int, after: int) -> None:
    """Log what is left out and go on."""
    import logging

    logging.getLogger("embeddedpulsar.arrow").warning(
        "left out %d entries from %d on: %s", after - first, first, error
    )
