"""The last step of a publish: the append of an encoded entry to the log of the topic."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from embeddedpulsar.client.producer.chunker import ChunkedPendingEntry
from embeddedpulsar.client.producer.sequence_keeper import DeduplicationSwitched, SequenceKeeper
from embeddedpulsar.exceptions import LockTimeout
from embeddedpulsar.managed_ledger.position import Position
from embeddedpulsar.platform import deadline, failpoints
from embeddedpulsar.platform.access import named

if TYPE_CHECKING:
    from collections.abc import Callable

    from embeddedpulsar.client.producer.pending_entry import PendingEntry
    from embeddedpulsar.client.producer.producer_session import ProducerSession
    from embeddedpulsar.format.entry import EncodedEntry
    from embeddedpulsar.storage.segment_writer import AppendGuard, AppendHold

_FOR_EVER_S: Final = 1e9

# A process that dies there leaves chunks of a message that does not exist; they expire.
failpoints.declare("chunk:part_stored")


class LogWriter:
    """Appends the entries of one producer, and determines the outcome of an interrupted append.

    Used under the publisher's lock. There is one per attachment to the topic; after a fork the child makes
    its own.
    """

    __slots__ = ("_durability", "_last_position", "_name", "_session", "chunked", "keeper")

    def __init__(self, session: ProducerSession, name: str) -> None:
        self._session = session
        self._name = name
        self._durability = session.durability
        self.keeper: SequenceKeeper | None = None
        """Detects duplicates, if the topic drops them."""
        self._last_position: Position | None = session.ledger.last_position()
        self.chunked = 0
        """Messages that were stored as several entries."""

    def append_one(self, out: PendingEntry, guard: AppendGuard, timeout_s: float) -> None:
        """`append` for one entry, with less overhead.

        Raises:
            LockTimeout: the lock was not free within ``timeout_s``, which may be 0; nothing was appended.
        """
        if out.__class__ is ChunkedPendingEntry:
            self._append_chunked(out, timeout_s, guard.check_connected)
            return
        if out.error is not None or out.encoded is None:
            return
        session = self._session
        try:
            if self.keeper is not None:
                # Checked and stored in one hold of the lock, as in `append`.
                if not self.append([out], timeout_s, guard.check_connected):
                    raise LockTimeout("the topic is locked")
                return
            ledger, entry, _, end_word = session.ledger.append_nowait(out.encoded, guard, timeout_s)
        except LockTimeout:
            raise
        except DeduplicationSwitched:
            self.append_one(out, guard, timeout_s)  # deduplication was switched on or off
            return
        except Exception as e:  # noqa: BLE001 - passed to the sender of the message
            out.error = named(e)
            return
        if self._durability == "flush":
            out.end_word = end_word
        elif self._durability == "interval":
            session.ledger.note_dirty()
        self._note(out, ledger, entry)

    def let_threads_pass(self, timeout_s: float) -> bool:
        """Wait until no other thread of this process is in the log's lock. Returns False if one stays there.

        The interpreter may have suspended that thread, and resumes it only while the caller waits."""
        lock = self._session.ledger.lock
        try:
            lock.keep_threads_out(timeout_s)
        except LockTimeout:
            return False
        finally:
            lock.release()
        return True

    def append(self, entries: list[PendingEntry], timeout_s: float, check: Callable[[], object]) -> bool:
        """Append entries in one hold of the log's lock, and store the position or the error in each.

        Does not wait for the disk, even at level "flush".

        Args:
            entries: those that failed already are skipped.
            timeout_s: seconds to wait for the lock; 0 to try only.
            check: called with the lock held; an exception becomes the error of all entries.

        Returns:
            Whether the lock was acquired; always True if ``timeout_s`` is not 0.

        Raises:
            LockTimeout: the lock was not free within ``timeout_s``; nothing was appended.
        """
        for at, out in enumerate(entries):
            if out.__class__ is ChunkedPendingEntry and not out.is_stored and out.error is None:
                if at and not self._append_group(entries[:at], timeout_s, check):
                    return False
                return self._append_chunked(out, timeout_s, check)  # the next call appends the others
        return self._append_group(entries, timeout_s, check)

    def _append_group(
        self, entries: list[PendingEntry], timeout_s: float, check: Callable[[], object]
    ) -> bool:
        ledger = self._session.ledger
        lock, hold = ledger.lock, ledger.hold()
        try:
            if timeout_s:
                lock.acquire(timeout_s)
            elif not lock.try_acquire():
                return False
            deadline.within(timeout_s, self._append_all, entries, hold, check)
        except LockTimeout:
            if not timeout_s:
                return False
            raise
        except Exception as e:  # noqa: BLE001 - no descriptors left, for example: passed to the senders
            for out in entries:
                if out.entry < 0 and out.error is None:
                    out.error = named(e)
        finally:
            lock.release()
            hold.ring_all()
        if self._durability == "interval":
            ledger.note_dirty()
        return True

    def _append_chunked(
        self, out: ChunkedPendingEntry, timeout_s: float, check: Callable[[], object]
    ) -> bool:
        """Append the entries of a chunked message, in one hold of the lock each.

        Other producers may append in between. If the lock is not free, the next call continues.
        """
        if out.error is not None:
            return True
        if self.keeper is not None and not out.earlier and self.keeper.is_duplicate(out):
            out.let_go()
            return True
        try:
            with contextlib.closing(out.parts()) as parts:
                for encoded in parts:
                    place = self._append_part(encoded, timeout_s, check)
                    if place is None:
                        return False
                    out.earlier.append(place)
                    if failpoints.ACTIVE:
                        failpoints.hit("chunk:part_stored")
            out.attempted = True
            place = self._append_part(out.encoded or out.finish(), timeout_s, check)
            if place is None:
                out.attempted = False
                return False
        except LockTimeout:
            raise
        except Exception as e:  # noqa: BLE001 - passed to the sender of the message
            out.error = named(e)
        else:
            if self._durability == "flush":
                out.end_word = self._session.ledger.tail
            elif self._durability == "interval":
                self._session.ledger.note_dirty()
            self._note(out, *place)
            self.chunked += 1
        out.let_go()
        return True

    def _append_part(
        self, encoded: EncodedEntry, timeout_s: float, check: Callable[[], object]
    ) -> tuple[int, int] | None:
        ledger = self._session.ledger
        try:
            if timeout_s:
                ledger.lock.acquire(timeout_s)
            elif not ledger.lock.try_acquire():
                return None
            with contextlib.suppress(DeduplicationSwitched):  # takes effect with the next message
                check()
            return ledger.append_nowait(encoded)[:2]
        finally:
            ledger.lock.release()

    def _append_all(self, entries: list[PendingEntry], hold: AppendHold, check: Callable[[], object]) -> None:
        append = self._session.ledger.append_nowait
        error: Exception | None = None
        try:
            check()
        except DeduplicationSwitched:
            error = None  # nothing was appended: the entries are checked again in the new mode
        except Exception as e:  # noqa: BLE001 - passed to the senders of the messages
            error = named(e)
        for out in entries:
            if out.error is not None or out.is_stored or out.encoded is None:
                continue
            if error is not None:
                out.error = error
                continue
            if self.keeper is not None and self.keeper.is_duplicate(out):
                continue
            out.attempted = True
            try:
                ledger, entry, _, end_word = append(out.encoded, None, None, hold)
            except LockTimeout:  # of the store, for the id of a new segment: nothing was appended
                out.attempted = False
                raise
            except Exception as e:  # noqa: BLE001 - passed to the senders of the messages
                out.error = named(e)
            else:
                if self._durability == "flush":
                    out.end_word = end_word
                self._note(out, ledger, entry)

    def was_stored(self, out: PendingEntry) -> bool:
        """Look for an entry whose append was interrupted. Returns True, and stores its position, if found."""
        if out.is_duplicate:
            return True
        if out.entry >= 0:  # the interrupt came after the position was stored
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

    def _note(self, out: PendingEntry, ledger: int, entry: int) -> None:
        if out.entry < 0:
            self._session.meter.stored(out)
        out.ledger = ledger
        out.entry = entry
        self._last_position = Position(ledger, entry)
        if self.keeper is not None:
            self.keeper.note_stored(out)


def patience(send_timeout_ms: int) -> float:
    """Return how many seconds a send waits for the log.

    >>> patience(250), patience(0) > 10**6
    (0.25, True)
    """
    return send_timeout_ms / 1000 if send_timeout_ms else _FOR_EVER_S
