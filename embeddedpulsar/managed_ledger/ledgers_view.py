"""What is asked of the ledgers of a log, wherever they are stored."""

from __future__ import annotations

from typing import Protocol

from embeddedpulsar.damage import DamageHook
from embeddedpulsar.format.index import IndexSlot, SlotColumns
from embeddedpulsar.storage.chunk_reader import Part
from embeddedpulsar.storage.segment_chain import LedgerChain


class LedgersView(Protocol):
    """The read side of one log by ledger and entry id: `storage.log_view.LogView`, or that of another kind.

    Positions, counts of messages, trimming and chunked messages rest on it. Each method may raise
    FileNotFoundError for a ledger that was trimmed, and CorruptionError for what cannot be read.
    """

    @property
    def words(self) -> memoryview:
        """The control words of the topic."""

    @property
    def report(self) -> DamageHook:
        """Takes what cannot be read."""

    def chain(self) -> LedgerChain:
        """The ledgers now."""

    def end_of(self, ledger_id: int) -> int:
        """Where the ledger ends now: its end offset; 0 if it is not in the log (any more)."""

    def extent(self, ledger_id: int) -> tuple[int, int]:
        """The last entry of a ledger, -1 for none, and its end offset, of one moment."""

    def trimmed_before(self, ledger_id: int) -> tuple[int, int] | None:
        """The last entry of the ledger before, which is trimmed; None if there was none, or it is unknown."""

    def messages_through(self, ledger_id: int, entry_id: int) -> int:
        """Messages of a ledger up to and including a visible entry; 0 for entry -1."""

    def slot(self, ledger_id: int, entry_id: int) -> IndexSlot:
        """What the index says of a visible entry."""

    def slots(self, ledger_id: int, first: int, stop: int) -> SlotColumns:
        """What the index says of visible entries, ``first`` to ``stop`` - 1."""

    def flags(self, ledger_id: int, first: int, stop: int) -> bytes:
        """The low byte of the entry flags of visible entries, ``first`` to ``stop`` - 1."""

    def part(self, place: tuple[int, int]) -> Part:
        """An entry as it is stored, not verified."""

    def offset_of(self, ledger_id: int, entry_id: int) -> int:
        """Where a visible entry begins."""

    def path_of(self, ledger_id: int) -> str:
        """Where a ledger is, for a damage report."""

    def barrier(self) -> None:
        """Wait until everything that holders of the topic lock have stored is seen here."""
