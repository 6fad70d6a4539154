"""The last step of a publish: an encoded entry into the log of the topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from embeddedpulsar.client.producer_config import DEFAULT_SEND_TIMEOUT_MS
from embeddedpulsar.managed_ledger.position import Position

if TYPE_CHECKING:
    from embeddedpulsar.client.outgoing import Outgoing
    from embeddedpulsar.client.producer_session import ProducerSession
    from embeddedpulsar.storage.segment_writer import AppendGuard

_FOR_EVER_S: Final = 1e9


class LogWriter:
    """Appends the entries of one producer, and finds out what became of an append that was interrupted.

    Used under the publisher's lock. One per attachment to the topic: after a fork the child makes its own.
    """

    __slots__ = ("_durability", "_last_position", "_name", "_patience_s", "_session")

    def __init__(self, session: ProducerSession, name: str) -> None:
        self._session = session
        self._name = name
        self._durability = session.durability
        self._patience_s = _patience(session.config.send_timeout_ms)
        self._last_position: Position | None = session.ledger.last_position()

    def append(self, out: Outgoing, guard: AppendGuard) -> None:
        """Append an entry and note where it is; at level "flush" without waiting for the disk.

        Raises:
            Timeout: the log was locked longer than the send timeout.
            PulsarException: see `ManagedLedger.append`.
        """
        if self._patience_s is None:
            self._append(out, guard)
            return
        # The log's lock is re-entrant: taken here first, for as long as this producer is ready to wait.
        lock = self._session.ledger.lock
        try:
            lock.acquire(self._patience_s)
            self._append(out, guard)
        finally:
            lock.release()

    def _append(self, out: Outgoing, guard: AppendGuard) -> None:
        encoded = out.encoded
        if encoded is None:
            return
        out.attempted = True
        log = self._session.ledger
        if self._durability == "flush":
            ledger, entry, _, out.end_word = log.append_nowait(encoded, guard)
        else:
            ledger, entry, _ = log.append(encoded, self._durability, guard)
        self._note(out, ledger, entry)

    def was_stored(self, out: Outgoing) -> bool:
        """Whether an entry whose append was interrupted is in the log; if so, note where."""
        if out.entry >= 0:  # the interrupt came after that was noted
            self._note(out, out.ledger, out.entry)
            return True
        if not out.attempted:
            return False
        found = self._session.find_entry(self._last_position, self._name, out.first)
        if found is None:
            return False
        if self._durability == "flush":
            out.end_word = self._session.ledger.tail
        self._note(out, found.ledger_id, found.entry_id)
        return True

    def _note(self, out: Outgoing, ledger: int, entry: int) -> None:
        out.ledger = ledger
        out.entry = entry
        self._last_position = Position(ledger, entry)


def _patience(send_timeout_ms: int) -> float | None:
    """How many seconds to wait for the log; None for as long as the log does by itself.

    >>> _patience(30_000), _patience(250), _patience(0) > 10**6
    (None, 0.25, True)
    """
    if send_timeout_ms == DEFAULT_SEND_TIMEOUT_MS:
        return None
    return send_timeout_ms / 1000 if send_timeout_ms else _FOR_EVER_S
