"""What readers of whole columns do about damage: raise an error, or log it and continue."""

from __future__ import annotations

import os
from typing import Final, NoReturn

from embeddedpulsar._engine.log.filenames import ledgers_of
from embeddedpulsar._engine.platform import package_log
from embeddedpulsar.arrow.plan import EntryRange
from embeddedpulsar.damage import Damage
from embeddedpulsar.exceptions import CorruptionError

REMEDY: Final = "pass fail_on_data_loss=False (Spark: failOnDataLoss) to read what is left"


def raise_damage(error: CorruptionError, first: int, after: int) -> NoReturn:
    """Raise the error, with the entries that are lost."""
    lost = f"entry {first}" if after == first + 1 else f"entries {first} to {after - 1}"
    raise CorruptionError(
        path=error.path, offset=error.offset, reason=f"{lost}: {error.reason}", remedy=error.remedy
    )


def warn_of_damage(error: CorruptionError, first: int, after: int) -> None:
    """Log what is left out."""
    path = error.path or ""
    (ledger_id,) = ledgers_of([os.path.basename(path)]) or (0,)
    package_log.damage(Damage(path, ledger_id, first, after - 1, error.offset or 0, 0, error.reason))


def raise_lost(report: Damage) -> NoReturn:
    """Raise for a segment that cannot be read at all."""
    raise CorruptionError(path=report.path, offset=report.offset, reason=report.reason, remedy=REMEDY)


def warn_of_lost(report: Damage) -> None:
    """Log which segment is left out."""
    package_log.damage(report)


def raise_gone(planned: EntryRange) -> NoReturn:
    """Raise for a segment that went after the plan was made."""
    raise CorruptionError(path=planned.path, reason=gone(planned), remedy=REMEDY)


def warn_of_gone(planned: EntryRange) -> None:
    """Log what is left out for that reason."""
    import logging

    logging.getLogger("embeddedpulsar.arrow").warning("left out: %s", gone(planned))


def gone(planned: EntryRange) -> str:
    """What a range is called whose segment went after the plan was made."""
    return (
        f"{planned.topic}: ledger {planned.ledger_id} was trimmed after the read was planned "
        f"(wanted entries {planned.first_entry} to {planned.end_entry - 1})"
    )
