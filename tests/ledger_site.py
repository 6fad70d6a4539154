"""A place for managed ledgers: what a store gives them, without a store."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any

from embeddedpulsar._engine.format.entry import (
    EncodedEntry,
    EntryView,
    ProducerPrefix,
    encode_plain,
    encode_single,
)
from embeddedpulsar._engine.log.log import Cursor, Log
from embeddedpulsar._engine.log.log_opening import LedgerOptions
from embeddedpulsar._engine.log.log_view import Outcomes
from embeddedpulsar._engine.log.managed_ledger import ManagedLedger
from embeddedpulsar._engine.platform.mailbox import Mailbox
from embeddedpulsar._engine.platform.peers import Peers
from embeddedpulsar._engine.platform.timing import Clock, SchedulerLike, SystemClock
from embeddedpulsar.message_id import Position

PREFIX = ProducerPrefix("site")
START = Position(0, 0)
STORE_ID = b"s" * 16
EVERYTHING = 1 << 40


class LedgerSite:
    """One process's view of a directory with `clients/` and `topic/` in it. Close it at the end.

    Ledger ids come from the directory, so that several processes may share it.
    """

    def __init__(self, root: Path | str, *, clock: Clock | None = None) -> None:
        self.root = Path(root)
        self.clients = self.root / "clients"
        self.directory = str(self.root / "topic")
        self.clients.mkdir(exist_ok=True)
        os.makedirs(self.directory, exist_ok=True)
        self.clock = clock or SystemClock()
        self.mailbox = Mailbox.create(self.clients)
        self.peers = Peers(self.clients, self.mailbox)
        self.ledgers: list[Log] = []

    def allocate(self, above: int) -> int:
        """A ledger id nobody else gets: the creation of a file decides."""
        ledger_id = above + 1
        while True:
            try:
                os.close(os.open(self.root / f"id-{ledger_id}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                ledger_id += 1
            else:
                return ledger_id

    def open(
        self, *, scheduler: SchedulerLike | None = None, outcomes: Outcomes | None = None, **options: Any
    ) -> ManagedLedger:
        """Open the topic's ledger; options as in `LedgerOptions`."""
        ledger = ManagedLedger.open(
            self.directory,
            name="topic",
            incarnation=1,
            store_id=STORE_ID,
            allocate_ledger_id=self.allocate,
            mailbox=self.mailbox,
            peers=self.peers,
            options=LedgerOptions(**options),
            clock=self.clock,
            scheduler=scheduler,
            outcomes=outcomes,
        )
        self.ledgers.append(ledger)
        return ledger

    def close(self) -> None:
        """Close everything."""
        for ledger in self.ledgers:
            ledger.close()
        self.peers.close()
        self.mailbox.close()

    def __enter__(self) -> LedgerSite:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def send(ledger: Log, value: bytes, level: str | None = None) -> Position:
    """Append one message and return where it is."""
    ledger_id, entry_id, *_ = _append(ledger, encode_single(value, 0, PREFIX), level)
    return Position(ledger_id, entry_id)


def send_batch(ledger: Log, values: list[bytes]) -> Position:
    """Append a batch and return where it is."""
    ledger_id, entry_id, *_ = _append(ledger, encode_plain(values, 0, PREFIX), None)
    return Position(ledger_id, entry_id)


def _append(ledger: Log, entry: EncodedEntry, level: str | None) -> tuple[int, ...]:
    if isinstance(ledger, ManagedLedger):
        return ledger.append(entry, level)
    return ledger.append_nowait(entry)


def drain(cursor: Cursor, step: int = 1000) -> list[EntryView]:
    """Everything up to the tail."""
    found: list[EntryView] = []
    while entries := cursor.read(step, EVERYTHING, EVERYTHING):
        found += entries
    return found


def values(ledger: Log, start: Position = START) -> list[bytes]:
    """All payloads from `start` on."""
    return [value for entry in drain(ledger.cursor(start, inclusive=True)) for value in entry.values()]
