"""Chunked messages as readers of a topic see them: whole, or damaged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from embeddedpulsar.exceptions import CorruptionError, CryptoError
from embeddedpulsar.format.entry_view import EntryView
from embeddedpulsar.format.frame import FLAG_CHUNK
from embeddedpulsar.managed_ledger.chunk_finder import ChunkLocator, has_parts, last_parts, read_last_part
from embeddedpulsar.managed_ledger.ledgers_view import LedgersView
from embeddedpulsar.managed_ledger.position import Position
from embeddedpulsar.storage.chunk_reader import ChunkReader
from embeddedpulsar.storage.damage import HOLE, DamageReport


def has_chunks(views: Sequence[EntryView]) -> bool:
    """Whether any of the entries belongs to a chunked message. Hot: one look per entry."""
    for view in views:
        if view.flags & FLAG_CHUNK:
            return True
    return False


class ChunkAssembler(ChunkReader):
    """Makes messages of the entries a cursor gives.

    Role: between a cursor and the reader of its messages. A message that cannot be put together is
    reported as any other damage is, once each time it is read.
    Callers: any thread; takes the topic lock only where a part does not verify.

    Attributes:
        last_parts: tells which entries are last parts.
    """

    def __init__(self, view: LedgersView) -> None:
        super().__init__(view.part)
        self._view: Final = view
        self.last_parts: Final = ChunkLocator(view)

    def complete(
        self, views: Sequence[EntryView], max_bytes: int
    ) -> tuple[list[EntryView], EntryView | None]:
        """Of entries that were read, those with messages, chunked messages whole.

        Args:
            views: as a cursor gave them.
            max_bytes: of payload, about.

        Returns:
            The entries, and the first that was not looked at because they are large enough.
        """
        found: list[EntryView] = []
        size = 0
        for view in views:
            if size >= max_bytes and found:
                return found, view
            if view.flags & FLAG_CHUNK:
                found_one = self.try_whole(view) if view.count else None
                if found_one is None:
                    continue
                view = found_one
            found.append(view)
            size += view.offsets[-1]
        return found, None

    def are_in(self, ledger_id: int) -> bool:
        """Whether a ledger holds anything of chunked messages, or cannot tell."""
        return has_parts(self._view, ledger_id)

    def find_last(self, key: tuple[str, int], parts: Iterable[Position]) -> Position | None:
        """The last part of a message, if it is in the log behind the others: by the index, about 0.3 us per
        entry.

        Args:
            key: producer and sequence id.
            parts: those that are known; a last part that can be read names one of them.
        """
        known = set(parts)
        for view in last_parts(self._view, max(known)):
            if (view.producer_name, view.first_sequence_id) == key:
                earlier = self.earlier(view)
                if earlier is None or known.intersection(earlier):
                    return Position(view.ledger_id, view.entry_id)
        return None

    def parts_of(self, place: Position) -> tuple[Position, ...]:
        """The parts before a last part; none if that cannot be read."""
        last = read_last_part(self._view, place)
        earlier = None if last is None else self.earlier(last)
        return tuple(Position(*one) for one in earlier or ())

    def try_whole(self, last: EntryView) -> EntryView | None:
        """The message of a last part; None, and a report, if it is damaged.

        One that cannot be decrypted is left as it is: the caller decides what becomes of it.
        """
        try:
            try:
                return self.whole(last)
            except CorruptionError:
                self._view.barrier()  # for machines that reorder; and a last look at the files
                return self.whole(last)
        except CryptoError:
            return last
        except (CorruptionError, FileNotFoundError) as e:
            reason = e.reason if isinstance(e, CorruptionError) else "a part of it is not in the log any more"
            path = self._view.path_of(last.ledger_id)
            offset = self._offset_of(last)
            lost = (last.entry_id, last.entry_id, offset, offset)
            self._view.report(DamageReport(path, last.ledger_id, *lost, f"chunked message: {reason}", HOLE))
            return None

    def _offset_of(self, view: EntryView) -> int:
        try:
            return self._view.offset_of(view.ledger_id, view.entry_id)
        except (CorruptionError, FileNotFoundError):
            return 0  # trimmed since it was read
