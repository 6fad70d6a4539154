"""Putting a chunked message together from the entries that hold its parts."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from typing import Final, NoReturn
from zlib import crc32

from embeddedpulsar._engine.format.chunk import (
    LARGEST_MESSAGE,
    Chunk,
    Entry,
    WholeEntryView,
    read_chunk,
    whole_entry,
)
from embeddedpulsar._engine.format.columns import Slice, locate
from embeddedpulsar._engine.format.compression import decompress
from embeddedpulsar._engine.format.document import unpack_map
from embeddedpulsar._engine.format.entry_decoder import EntryView, decode
from embeddedpulsar._engine.format.frame import (
    FLAG_CHUNKS,
    FLAG_ENCRYPTED,
    HEADER_SIZE,
    TRAILER_SIZE,
    FrameHeader,
)
from embeddedpulsar._engine.platform.descriptors import late_import
from embeddedpulsar.exceptions import CorruptionError, CryptoError
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.storage.recovery.salvage import slot_of
from embeddedpulsar.storage.segment import Segment

_LARGE: Final = 256 << 10

Opener = Callable[[EntryView], EntryView]


class Part(NamedTuple):
    """An entry as it is stored, not yet verified; `let_go` says that its bytes are not needed again soon."""

    header: FrameHeader
    body: bytes | memoryview
    let_go: Callable[[], object]


class ChunkReader:
    """Reads the earlier parts of chunked messages, wherever in a topic's log they are.

    Role: knows entries as they are stored, neither tail nor subscription. Memory: one buffer of the size of
    the message, filled part by part; where the message is compressed, that and the payload.
    Callers: any thread. Takes no lock.

    Args:
        parts: reads one entry; raises CorruptionError, or FileNotFoundError if it was removed.

    Attributes:
        opened: makes an entry whose columns are ciphertext readable; None if there are no keys.
    """

    def __init__(self, parts: Callable[[Entry], Part], opened: Opener | None = None) -> None:
        self._parts: Final = parts
        self.opened = opened

    def whole(self, last: EntryView) -> WholeEntryView:
        """The message whose last part is ``last``, all of it verified.

        Raises:
            CorruptionError: a part is damaged, gone, or another message's.
            CryptoError: it is encrypted, and there is no key.
            FileNotFoundError: a part lies in a segment that was trimmed, or lost.
        """
        chunk = read_chunk(last.chunk(0))
        if not chunk.is_last:
            raise CorruptionError(reason=f"chunk {chunk.number} of {chunk.total} in the place of the last")
        last = self._opened(last)
        if not chunk.earlier:
            packed = last.payload
        else:
            packed = self._joined(last, chunk)
        if len(packed) != chunk.size:
            raise CorruptionError(reason=f"{len(packed)} bytes of a chunked message of {chunk.size}")
        if chunk.codec:
            packed = decompress(chunk.codec, packed, chunk.length, LARGEST_MESSAGE)
        return whole_entry(last, packed, chunk.earlier)

    def earlier(self, last: EntryView) -> tuple[Entry, ...] | None:
        """The parts a last part names; None if that cannot be read."""
        try:
            return read_chunk(last.chunk(0)).earlier
        except CorruptionError:
            return None

    def _opened(self, view: EntryView) -> EntryView:
        if not view.flags & FLAG_ENCRYPTED:
            return view
        if self.opened is None:
            raise CryptoError("a chunked message is encrypted, and there is no crypto_key_reader")
        return self.opened(view)

    def _joined(self, last: EntryView, chunk: Chunk) -> bytes:
        # A BytesIO of the final size gives its buffer away as bytes: nothing is ever there twice.
        out = io.BytesIO()
        out.seek(chunk.size - 1)
        out.write(b"\0")
        with out.getbuffer() as buffer:
            at = 0
            for number, place in enumerate(chunk.earlier):
                at = self._fill(buffer, at, place, chunk._replace(number=number))
            end = at + len(last.payload)
            if end != chunk.size:
                raise CorruptionError(reason=f"{end} bytes of a chunked message of {chunk.size}")
            buffer[at:end] = last.payload
        return out.getvalue()

    def _fill(self, buffer: memoryview, at: int, place: Entry, wanted: Chunk) -> int:
        """Copy the bytes of one part to ``at``; returns where the next one goes."""
        header, body, let_go = self._parts(place)
        if crc32(body) != header.body_crc:
            _refuse(place, "body checksum mismatch")
        if header.message_count or not header.flags & FLAG_CHUNKS:
            _refuse(place, "it is no part of a chunked message")
        payload, fields = self._content(header._replace(message_count=1), body, place)
        if read_chunk(fields)[:4] != wanted[:4]:
            _refuse(place, f"it is not part {wanted.number} of {wanted.uuid}")
        end = at + len(payload)
        if end > len(buffer):
            _refuse(place, f"it goes beyond the {len(buffer)} bytes of its message")
        buffer[at:end] = payload
        if len(payload) > _LARGE:
            let_go()
        return end

    def _content(
        self, header: FrameHeader, body: bytes | memoryview, place: Entry
    ) -> tuple[bytes | memoryview, dict[str, object]]:
        if header.codec or header.flags & FLAG_ENCRYPTED:
            view = decode(header, body, place[0])
            return self._opened(view).payload, view.chunk(0)
        at = locate(header.flags, 1, body, header.metadata_length, len(body))
        fields = at.chunk_data
        assert fields is not None
        return _cut(body, at.value_data), unpack_map(_cut(body, fields))


def _cut(body: bytes | memoryview, part: Slice) -> bytes | memoryview:
    return body[part[0] : part[0] + part[1]]


def segment_part(segment: Segment, entry_id: int) -> Part:
    """One entry of a segment, for a `ChunkReader`."""
    view = segment.view  # first: the log of an offloaded ledger is fetched by that
    offset, header = _frame_of(segment, entry_id)
    end = offset + header.length
    body = view[offset + HEADER_SIZE : end - TRAILER_SIZE]
    return Part(header, body, partial(segment.file.not_needed, offset, end))


def _frame_of(segment: Segment, entry_id: int) -> tuple[int, FrameHeader]:
    """Where an entry is: by the index, or, where that does not fit, by the frames."""
    try:
        return segment.frame_of(entry_id, segment.file.size)
    except (CorruptionError, FileNotFoundError):
        header = segment.header
        scan = late_import("embeddedpulsar.storage.recovery.chain_scan").scan_log(
            segment.path, chain_seed=header.chain_seed, base_publish_ms=header.base_publish_ms
        )
        slots = bytes(scan.slots)
        if entry_id > scan.last_entry_id or not slot_of(slots, entry_id).crc:
            _refuse((segment.ledger_id, entry_id), "it cannot be found")
        offset = slot_of(slots, entry_id).offset
        return offset, segment.frame_header(offset, segment.file.size)


def _refuse(place: Entry, reason: str) -> NoReturn:
    raise CorruptionError(reason=f"chunk in entry {place[0]}:{place[1]}: {reason}")
