"""The last step of a publish: an encoded entry into the log of the topic."""

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
    from embeddedpulsar.storage.append_hold import AppendHold
    from embeddedpulsar.storage.segment_writer import AppendGuard

_FOR_EVER_S: Final = 1e9

# A death there leaves parts of a message that does not exist; they expire.
failpoints.declare("chunk:part_stored")


class LogWriter:
    """Appends the entries of one producer, and finds out what became of an append that was interrupted.

    Used under the publisher's lock. One per attachment to the topic: after a fork the child makes its own.
    """

    __slots__ = ("_durability", "_last_position", "_name", "_session", "chunked", "keeper")

    def __init__(self, session: ProducerSession, name: str) -> None:
        self._session = session
        self._name = name
        self._durability = session.durability
        self.keeper: SequenceKeeper | None = None
        """Knows duplicates, where the topic drops them."""
        self._last_position: Position | None = session.ledger.last_position()
        self.chunked = 0
        """Messages that were stored in several entries."""

    def append_one(self, out: PendingEntry, guard: AppendGuard, timeout_s: float) -> None:
        """`append` for one entry, with less around it.

        Raises:
            LockTimeout: the lock was not free within ``timeout_s``, which may be 0; nothing was begun.
        """
        if out.__class__ is ChunkedPendingEntry:
            self._append_chunked(out, timeout_s, guard.check_connected)
            return
        if out.error is not None or out.encoded is None:
            return
        session = self._session
        try:
            if self.keeper is not None:
                # Looked at and stored in one hold of the lock, as if it were several.
                if not self.append([out], timeout_s, guard.check_connected):
                    raise LockTimeout("the topic is locked")
                return
            ledger, entry, _, end_word = session.ledger.append_nowait(out.encoded, guard, timeout_s)
        except LockTimeout:
            raise
        except DeduplicationSwitched:
            self.append_one(out, guard, timeout_s)  # it was switched on or off
            return
        except Exception as e:  # noqa: BLE001 - told to whoever sent the message
            out.error = named(e)
            return
        if self._durability == "flush":
            out.end_word = end_word
        elif self._durability == "interval":
            session.ledger.note_dirty()
        self._note(out, ledger, entry)

    def let_threads_pass(self, timeout_s: float) -> bool:
        """Wait until no other thread of this process is in the log's lock; False if one stays there. The
        interpreter may have put it aside, and it has no turn before the caller waits."""
        lock = self._session.ledger.lock
        try:
            lock.keep_threads_out(timeout_s)
        except LockTimeout:
            return False
        finally:
            lock.release()
        return True

    def append(self, entries: list[PendingEntry], timeout_s: float, check: Callable[[], object]) -> bool:
        """Append entries in one hold of the log's lock, and note in each where it is, or what went wrong.

        At level "flush" without waiting for the disk.

        Args:
            entries: those that failed already are left out.
            timeout_s: seconds to wait for the lock; 0 to try only.
            check: called with the lock held; what it raises is the error of all entries.

        Returns:
            Whether the lock was to be had; always True if ``timeout_s`` is not 0.

        Raises:
            LockTimeout: the lock was not free within ``timeout_s``; nothing was begun.
        """
        for at, out in enumerate(entries):
            if out.__class__ is ChunkedPendingEntry and not out.is_stored and out.error is None:
                if at and not self._append_group(entries[:at], timeout_s, check):
                    return False
                return self._append_chunked(out, timeout_s, check)  # the rest comes with the next call
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
        except Exception as e:  # noqa: BLE001 - no descriptors left, say: told to whoever sent the messages
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
        """Append the entries of a chunked message, with a hold of the lock for each: others may append
        between any two. If the lock is not to be had, the next call goes on from there.
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
        except Exception as e:  # noqa: BLE001 - told to whoever sent the message
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
            with contextlib.suppress(DeduplicationSwitched):  # effective from the next message on
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
            error = None  # nothing is begun: the entries are looked at as it is now
        except Exception as e:  # noqa: BLE001 - told to whoever sent the messages
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
            except LockTimeout:  # of the store, for the id of a new segment: nothing was begun
                out.attempted = False
                raise
            except Exception as e:  # noqa: BLE001 - told to whoever sent the messages
                out.error = named(e)
            else:
                if self._durability == "flush":
                    out.end_word = end_word
                self._note(out, ledger, entry)

    def was_stored(self, out: PendingEntry) -> bool:
        """Whether an entry whose append was interrupted is in the log; if so, note where."""
        if out.is_duplicate:
            return True
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

    def _note(self, out: PendingEntry, ledger: int, entry: int) -> None:
        if out.entry < 0:
            self._session.meter.stored(out)
        out.ledger = ledger
        out.entry = entry
        self._last_position = Position(ledger, entry)
        if self.keeper is not None:
            self.keeper.note_stored(out)


def patience(send_timeout_ms: int) -> float:
    """How many seconds a send waits for the log.

    >>> patience(250), patience(0) > 10**6
    (0.25, True)
    """
    return send_timeout_ms / 1000 if send_timeout_ms else _FOR_EVER_S
