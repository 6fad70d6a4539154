"""What readers of whole columns do about damage: raise an error, or log it and continue."""

from __future__ import annotations

from typing import Final, NoReturn

from embeddedpulsar.arrow.plan import EntryRange
from embeddedpulsar.exceptions import CorruptionError
from embeddedpulsar.storage.damage import DamageReport

REMEDY: Final = "pass fail_on_data_loss=False (Spark: failOnDataLoss) to read what is left"


def raise_damage(error: CorruptionError, first: int, after: int) -> NoReturn:
    """Raise the error, with the entries that are lost."""
    lost = f"entry {first}" if after == first + 1 else f"entries {first} to {after - 1}"
    raise CorruptionError(
        path=error.path, offset=error.offset, reason=f"{lost}: {error.reason}", remedy=error.remedy
    )


def warn_of_damage(error: CorruptionError, first: int, after: int) -> None:
    """Log what is left out."""
    import logging

    logging.getLogger("embeddedpulsar.arrow").warning(
        "left out %d entries from %d on: %s", after - first, first, error
    )


def raise_lost(report: DamageReport) -> NoReturn:
    """Raise for a segment that cannot be read at all."""
    raise CorruptionError(path=report.path, offset=report.offset, reason=report.reason, remedy=REMEDY)


def warn_of_lost(report: DamageReport) -> None:
    """Log which segment is left out."""
    import logging

    logging.getLogger("embeddedpulsar.arrow").warning("left out a segment: %s", report)


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
