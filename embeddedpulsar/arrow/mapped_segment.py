"""The segments of ranges, mapped, and the ways into what their bytes do not say in the clear."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar, Union

import pyarrow as pa

from embeddedpulsar._engine.format.entry_decoder import (
    FIELD_KEYS,
    EntryView,
    SealedView,
    decompressed_columns,
    sealed_view,
)
from embeddedpulsar._engine.format.frame import HEADER_SIZE, TRAILER_SIZE, FrameHeader
from embeddedpulsar._engine.log.cold_ledger import is_away, map_log
from embeddedpulsar._engine.log.log_view import ChunkReader, Part, segment_part
from embeddedpulsar._engine.log.segment import Segment
from embeddedpulsar._engine.log.segment_snapshot import is_trimmed
from embeddedpulsar._engine.platform import descriptors
from embeddedpulsar.arrow.cold_table import ColdTable, cold_table
from embeddedpulsar.arrow.plan import EntryRange
from embeddedpulsar.crypto.entry_cipher import EntryOpener
from embeddedpulsar.crypto.key_reader import CryptoKeyReader
from embeddedpulsar.exceptions import CorruptionError, CryptoError

AHEAD: Final = 64
"""So many segments are mapped ahead of the one that is read."""
_SHARE: Final = 8
"""Fewer where that would be more than one in so many of the descriptors there may be: a map may keep one."""

_Opened = TypeVar("_Opened")

Source = Union["MappedSegment", "ColdTable"]
"""What a range is read from: its log, or the table of messages of an offloaded ledger."""
GoneHandler = Callable[[EntryRange], None]
"""Called with a range whose segment is not there any more; may raise."""


class Access:
    """What all segments of one log have in common for one read: keys, and chunked messages put together.

    Attributes:
        chunks: reads the earlier parts of messages, wherever in the log they are.
        discards: whether entries that cannot be decrypted are left out; else a caller that asks for what is
            encrypted in them gets the error.
        warned: reasons of which the log says already that entries were left out for them.
    """

    def __init__(self, planned: EntryRange, key_reader: CryptoKeyReader | None, discards: bool) -> None:
        self._opener: Final = EntryOpener(planned.topic, key_reader)
        self._lacking: dict[str, CryptoError] = {}
        self.chunks: Final = ChunkReader(_Parts(os.path.dirname(planned.path)), self._open)
        self.discards: Final = discards
        self.warned: Final[set[str]] = set()

    def plain(self, sealed: SealedView) -> bytes:
        """What stands behind the metadata of an encrypted entry.

        Raises:
            CryptoError: it cannot be decrypted. To find that out costs a millisecond for each data key, once.
        """
        return self._tried(sealed, self._opener.plain)[1]

    def _open(self, view: EntryView) -> EntryView:
        return self._tried(view, self._opener.open) if isinstance(view, SealedView) else view

    def _tried(self, sealed: SealedView, act: Callable[[SealedView], _Opened]) -> _Opened:
        if self._lacking:
            known = self._lacking.get(repr(sealed.fields.get(FIELD_KEYS)))
            if known is not None:
                raise known.with_traceback(None)
        try:
            return act(sealed)
        except CryptoError as error:
            if not self._opener.knows(sealed):
                self._lacking[repr(sealed.fields.get(FIELD_KEYS))] = error
            raise


class MappedSegment:
    """The segment of a range, mapped up to the end of the range, with the views that columns are cut from.

    The map lives as long as any array made from it. `ints` and `longs` are the same bytes as 32- and 64-bit
    numbers: frames and columns are aligned to 8. `data` is the map itself, whose slices are bytes.

    Args:
        planned: what is to be read.
        access: of its log.

    Raises:
        FileNotFoundError: the segment is gone.
        CorruptionError: it is shorter than what was committed.
    """

    __slots__ = ("_file", "_plain", "access", "buffer", "data", "ints", "longs", "path", "view")

    def __init__(self, planned: EntryRange, access: Access) -> None:
        self.access: Final = access
        self._plain: dict[int, bytes] = {}
        mapped = map_log(planned.path)
        self._file: Final = mapped
        mapped.rest()  # the descriptor goes, the map stays as long as there are slices of it
        end = planned.end_offset
        if end > mapped.size:
            raise CorruptionError(
                path=planned.path,
                reason=f"the segment has {mapped.size} bytes where {end} were committed",
                remedy="restore the file from a backup",
            )
        self.view = mapped.view[:end]
        self.data: Any = mapped.view.obj
        self.path = planned.path
        self.ints = self.view.cast("i")
        self.longs = self.view.cast("q")
        self.buffer = pa.py_buffer(self.view)

    def will_need(self, start: int, end: int) -> None:
        """Ask the kernel to read these bytes ahead."""
        self._file.will_need(start, end)

    def decrypted(self, at: int, header: tuple[Any, ...]) -> bytes:
        """The columns of the encrypted entry whose frame is at that offset; remembered until `forget`.

        Raises:
            CryptoError: they cannot be decrypted.
        """
        plain = self._plain.get(at)
        if plain is None:
            plain = self._plain[at] = self._decrypted(at, header)
        return plain

    def _decrypted(self, at: int, header: tuple[Any, ...]) -> bytes:
        body = bytes(self.view[at + HEADER_SIZE : at + header[0] - TRAILER_SIZE])
        sealed = sealed_view(FrameHeader(*header), body, 0)
        try:
            plain = self.access.plain(sealed)
        except CryptoError as error:
            raise CryptoError(
                f"entry {header[8]} of {self.path} is encrypted, and whole columns were asked for; give the "
                "private key: crypto_key_reader, or the option cryptoPrivateKeyPath of Spark. "
                f"{error}"
            ) from error
        codec, start = sealed.envelope[3], header[11]
        return decompressed_columns(codec, body, body[:start] + plain, start) if codec else plain

    def can_open(self, at: int, header: tuple[Any, ...]) -> bool:
        """Whether the encrypted entry at that offset can be decrypted; the log says it once if not."""
        try:
            self.decrypted(at, header)
        except CryptoError as error:
            self.left_out(header[8], error)
            return False
        return True

    def left_out(self, entry: int, error: CryptoError) -> None:
        """Warn that an entry is left out because it cannot be decrypted, once for each reason."""
        reason = str(error.__cause__ or error)
        if reason in self.access.warned:
            return
        self.access.warned.add(reason)
        import logging

        logging.getLogger("embeddedpulsar.arrow").warning(
            "left out entry %d of %s, and more that cannot be decrypted: %s", entry, self.path, reason
        )

    def forget(self, but: int) -> None:
        """Drop what was decrypted, save the entry at that offset."""
        if self._plain:
            kept = self._plain.get(but)
            self._plain = {} if kept is None else {but: kept}


class _Parts:
    """The entries of a topic, of one segment at a time: the parts of a message are in order."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._last: Segment | None = None

    def __call__(self, place: tuple[int, int]) -> Part:
        ledger_id, entry_id = place
        if self._last is None or self._last.ledger_id != ledger_id:
            self._last = Segment.open(self._directory, ledger_id)
        return segment_part(self._last, entry_id)


def open_ahead(
    ranges: Iterable[EntryRange],
    key_reader: CryptoKeyReader | None,
    on_gone: GoneHandler,
    *,
    discards: bool = False,
    is_fresh: bool = False,
    from_tables: bool = True,
) -> Iterator[tuple[EntryRange, Source]]:
    """Map the segments of ranges, some of them ahead: what is mapped can be read, whatever is trimmed.

    Args:
        ranges: of one log after the other.
        key_reader: where private keys come from, or None.
        on_gone: called with ranges that cannot be read any more, and are left out.
        discards: leave out entries that cannot be decrypted.
        is_fresh: the plan was made for this call. What is trimmed before anything of its log was read is
            then as good as trimmed before the plan: it is not reported.
        from_tables: whether offloaded ledgers are read from their tables of messages, if they have one.
            A table has no `__schemaVersion`; the log of its ledger, which is fetched otherwise, has.
    """
    ahead: deque[tuple[EntryRange, Source | None]] = deque()
    access: dict[str, Access] = {}
    begun: set[str] = set()
    most = min(AHEAD, descriptors.limit() // _SHARE)

    def first() -> Iterator[tuple[EntryRange, Source]]:
        planned, segment = ahead.popleft()
        begun.add(planned.topic)
        try:
            cold = cold_table(planned) if from_tables and segment is None else None
            yield planned, segment or cold or MappedSegment(planned, access[planned.topic])
        except FileNotFoundError:  # trimmed before its turn
            on_gone(planned)

    for planned in ranges:
        of_log = access.get(planned.topic)
        if of_log is None:
            of_log = access[planned.topic] = Access(planned, key_reader, discards)
        try:
            # What is in a location is fetched when it is its turn: all of it may be more than the disk holds.
            ahead.append((planned, None if _is_away(planned) else MappedSegment(planned, of_log)))
        except FileNotFoundError:
            is_early = is_fresh and planned.topic not in begun
            if is_early and is_trimmed(os.path.dirname(planned.path), planned.ledger_id):
                while ahead and ahead[-1][0].topic == planned.topic:
                    ahead.pop()  # trimming begins with the oldest
            else:
                on_gone(planned)
        if len(ahead) > most:
            yield from first()
    while ahead:
        yield from first()


def _is_away(planned: EntryRange) -> bool:
    return not os.path.exists(planned.path) and is_away(os.path.dirname(planned.path), planned.ledger_id)
