"""What a read does about lost data: an error with a stable code, or a warning."""

from __future__ import annotations

from typing import Final

from embeddedpulsar.arrow.damage import gone
from embeddedpulsar.arrow.plan import EntryRange
from embeddedpulsar.damage import Damage
from embeddedpulsar.exceptions import CorruptionError, ReadError

CODE: Final = "EMBEDDEDPULSAR_DATA_LOSS"


class DataLossError(ReadError):
    """Part of what was asked for is damaged or gone.

    Spark shows errors of its workers as text; the code in brackets stays the same.
    """

    def __init__(self, detail: str, remedy: str = "") -> None:
        other = f"{remedy}, or " if remedy else ""
        super().__init__(f"[{CODE}] {detail}; {other}set failOnDataLoss to false to read what is left")


class DataLossPolicy:
    """What to do about lost data: fail, or log it and continue.

    Args:
        fail: whether it is an error (option failOnDataLoss).
    """

    def __init__(self, fail: bool) -> None:
        self._fail = fail

    def lost(self, detail: str, remedy: str = "") -> None:
        """Report a loss; ``remedy`` is what else can be done than to read on.

        Raises:
            DataLossError: losses are errors.
        """
        if self._fail:
            raise DataLossError(detail, remedy)
        import logging

        logging.getLogger("embeddedpulsar.spark").warning("[%s] %s", CODE, detail)

    def damaged(self, error: CorruptionError, first: int, after: int) -> None:
        """Report entries that do not verify; the handler `record_batches` wants."""
        lost = f"entry {first}" if after == first + 1 else f"entries {first} to {after - 1}"
        where = f"{error.path} at offset {error.offset}"
        self.lost(f"{lost} of {where}: {error.reason}")

    def gone(self, planned: EntryRange) -> None:
        """Report a range whose segment went after the query was planned; the handler `open_ahead` wants."""
        self.lost(gone(planned))

    def segment_lost(self, report: Damage) -> None:
        """Report a segment that cannot be read at all; the handler `committed_segments` wants."""
        self.lost(str(report))
