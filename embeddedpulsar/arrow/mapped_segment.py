"""The segments of ranges, mapped, and the ways into what their bytes do not say in the clear.

The frames of a range, checked and gathered into groups of a size that is worth a record batch. Hot.

One step of the loop per entry, none per message: both checksums of every frame are verified here, so that
everything behind it may take buffers out of the map as they are.

What readers of whole columns do about damage: raise an error, or log it and continue.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, starmap
from typing import Any, Final, NoReturn, TypeVar, Union
from zlib import crc32

import pyarrow as pa

from embeddedpulsar.arrow.engine import (
    FIELD_KEYS,
    FLAG_CHUNK,
    FLAG_ENCRYPTED,
    FLAG_TXN,
    HEADER,
    HEADER_SIZE,
    KIND_ENTRY,
    MAGIC,
    METADATA_SIZE,
    MIN_FRAME_SIZE,
    TRAILER_SIZE,
    ChunkReader,
    EntryRange,
    EntryView,
    FrameHeader,
    RawPosition,
    SealedView,
    SegmentParts,
    decode,
    descriptors,
    opened_columns,
    package_log,
    parse_ledger,
    resumed,
    sealed_view,
)
from embeddedpulsar.arrow.entry_pruning import ColdTable, cold_table
from embeddedpulsar.crypto import CryptoKeyReader, EntryOpener
from embeddedpulsar.damage import Damage
from embeddedpulsar.exceptions import CorruptionError, CryptoError
from embeddedpulsar.records import NamedTuple

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
        self.chunks: Final = ChunkReader(SegmentParts(planned.directory), self._open)
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
                # An error keeps the traceback of each time it is raised; without this, one that is raised for
                # each entry would grow.
                raise known.with_traceback(None)
        try:
            return act(sealed)
        except CryptoError as error:
            # The opener has the data key, so only this entry is bad: a changed byte, say. Without the data
            # key, every entry under the same wrapped keys fails alike, and trying costs a private-key
            # operation for each.
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
        mapped = planned.log()
        self._file: Final = mapped
        # The views end with the range: what a writer appends behind it is not committed for this read.
        self.view = mapped.view[: planned.end_offset]
        self.data: Any = mapped.view.obj
        # The file may be larger than the range, with zeros or newer entries behind it.
        self.path = planned.path
        self.ints = self.view.cast("i")
        self.longs = self.view.cast("q")
        self.buffer = pa.py_buffer(self.view)

    def will_need(self, start: int, end: int) -> None:
        """Ask the kernel to read these bytes ahead."""
        self._file.will_need(start, end)

    def decrypted(self, at: int, header: tuple[Any, ...]) -> bytes:
        """The columns of the encrypted entry whose frame is at that offset. They are remembered until
        `drop_decrypted`.

        Raises:
            CryptoError: they cannot be decrypted.
        """
        plain = self._plain.get(at)
        if plain is None:
            plain = self._plain[at] = self._decrypted(at, header)
        return plain

    def _decrypted(self, at: int, header: tuple[Any, ...]) -> bytes:
        # Decryption takes bytes, so the body is copied.
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
        return opened_columns(sealed, plain)

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
        # The reason is that of decrypting; the text around it names the entry, and so would differ each time.
        reason = str(error.__cause__ or error)
        if reason in self.access.warned:
            return
        self.access.warned.add(reason)
        import logging

        logging.getLogger("embeddedpulsar.arrow").warning(
            "left out entry %d of %s, and more that cannot be decrypted: %s", entry, self.path, reason
        )

    def drop_decrypted(self, but: int) -> None:
        """Drop what was decrypted, save the entry at that offset."""
        # An entry may be decrypted twice: to find out whether it can be, and for its columns. One group later
        # its plaintext is of no use, and the plaintexts of a segment would add up to its size.
        if self._plain:
            kept = self._plain.get(but)
            self._plain = {} if kept is None else {but: kept}


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
    # None stands for a segment that is in an offload location.
    ahead: deque[tuple[EntryRange, Source | None]] = deque()
    access: dict[str, Access] = {}
    # Topics of which a range was handed out.
    begun: set[str] = set()
    limit = min(AHEAD, descriptors.limit() // _SHARE)

    def first() -> Iterator[tuple[EntryRange, Source]]:
        planned, segment = ahead.popleft()
        begun.add(planned.topic)
        try:
            # What is away is read from its table of messages if it has one, and fetched as a log otherwise;
            # `MappedSegment` of a ledger that is away fetches it.
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
            # Order of the checks: what is here is mapped, which keeps it readable whatever is trimmed; what
            # is away keeps its place.
            ahead.append((planned, None if planned.is_offloaded() else MappedSegment(planned, of_log)))
        except FileNotFoundError:
            # Trimming removes the oldest ledgers first, so with this one all before it have gone. Their maps
            # would still give their entries, but the rows would have a gap behind them: dropping them is what
            # a plan a moment later would have given.
            is_early = is_fresh and planned.topic not in begun
            if is_early and planned.is_trimmed():
                while ahead and ahead[-1][0].topic == planned.topic:
                    ahead.pop()  # trimming begins with the oldest
            else:
                # A Spark task is no fresh read: its plan is older, and other tasks count on its numbers. Nor
                # is a read that has handed out rows of the log.
                on_gone(planned)
        if len(ahead) > limit:
            yield from first()
    while ahead:
        yield from first()


REMEDY: Final = "pass fail_on_data_loss=False (Spark: failOnDataLoss) to read what is left"


def raise_damage(error: CorruptionError, first: int, after: int) -> NoReturn:
    """Raise the error, with the entries that are lost."""
    lost = f"entry {first}" if after == first + 1 else f"entries {first} to {after - 1}"
    raise CorruptionError(
        path=error.path, offset=error.offset, reason=f"{lost}: {error.reason}", remedy=error.remedy
    )


def warn_of_damage(error: CorruptionError, first: int, after: int) -> None:
    """Log what is left out."""
    # The audit and the checks name a damaged place by its ledger, which is in the name of the file.
    path = error.path or ""
    ledger_id = parse_ledger(os.path.basename(path)) or 0
    package_log.damage(Damage(path, ledger_id, first, after - 1, error.offset or 0, 0, error.reason))


def raise_lost(report: Damage) -> NoReturn:
    """Raise for a segment that cannot be read at all."""
    raise CorruptionError(path=report.path, offset=report.offset, reason=report.reason, remedy=REMEDY)


def warn_of_lost(report: Damage) -> None:
    """Log which segment is left out."""
    package_log.damage(report)


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


GROUP_BYTES: Final = 8 << 20
"""A group is closed when its frames have this many bytes together, so that offsets stay far below 2 GiB."""

DamageHandler = Callable[[CorruptionError, int, int], None]
"""Called with the error, and the ids of the first entry lost and of the first one readable again."""


class ChunkedMessage(NamedTuple):
    """What of a chunked message is not in its last part.

    Attributes:
        earlier: the entries of the parts before the last.
        payload: of all parts; None if it cannot be decrypted.
    """

    earlier: tuple[RawPosition, ...]
    payload: bytes | None


class FrameGroup:
    """Frames that follow each other: `positions[i]` is where the frame of `headers[i]` starts.

    Attributes:
        rows: messages in all of them.
        flags: all flags that any of them has.
        uniform: whether all hold one uncompressed message each and have the same flags.
        chunked: a chunked message, the only one of its group; None for all others.
    """

    __slots__ = ("chunked", "flags", "headers", "positions", "rows", "segment", "uniform")

    def __init__(
        self,
        segment: MappedSegment,
        positions: list[int],
        headers: list[tuple[Any, ...]],
        rows: int,
        flags: int,
        uniform: bool,
        chunked: ChunkedMessage | None = None,
    ) -> None:
        self.segment = segment
        self.chunked = chunked
        self.positions = positions
        self.headers = headers
        self.rows = rows
        self.flags = flags
        self.uniform = uniform


def frame_groups(
    planned: EntryRange, segment: MappedSegment, *, rows: int, large: int, on_damage: DamageHandler
) -> Iterator[FrameGroup]:
    """The entries of `planned` in groups of about `rows` messages.

    Args:
        rows: a group is closed when it has this many messages (or `GROUP_BYTES`).
        large: an entry of this many messages or more is a group of its own, so that nothing of it is copied.
        on_damage: called with what is skipped; may raise.
    """
    # Locals for what the loop uses for each entry; see the module's docstring for why there is a step for
    # each entry at all.
    data, view, unpack = segment.data, segment.view, HEADER.unpack_from
    at, end, expected = planned.first_offset, planned.end_offset, planned.first_entry
    positions: list[int] = []
    headers: list[tuple[Any, ...]] = []
    total, union, uniform, shape = 0, 0, True, -1
    # `union` are the flags of all frames of the group, `shape` those of the first: `uniform` holds as long as
    # all are alike.
    group_end = at + GROUP_BYTES
    # A read that leaves out what cannot be decrypted tries each encrypted entry here. Any other read gets the
    # error when an encrypted column is asked for, and none if none is.
    tried = FLAG_ENCRYPTED if segment.access.discards else 0
    special = FLAG_CHUNK | tried
    # The plan knows what was aborted, so that the read needs no outcomes. Of most ranges it is nothing.
    aborted = frozenset(chain.from_iterable(starmap(range, planned.aborted)))
    if aborted:
        special |= FLAG_TXN
    segment.will_need(at, end)
    header: tuple[Any, ...] = ()
    while at < end:
        # The checks of read_header and verify_body, inlined: they would double the cost of small entries.
        # A frame that ends behind the range cannot be read; a length of 0 is refused by the first check.
        if at + MIN_FRAME_SIZE <= end:
            header = unpack(data, at)
            length = header[0]
        else:
            length = 0
        behind = at + length
        # In this order: what makes the frame readable at all, the cheap comparisons, the checksum of the
        # header, and that of the body. Each check relies on those before it: a length that is not plausible
        # must not reach a slice.
        if (
            length < MIN_FRAME_SIZE
            or length & 7
            or behind > end
            or header[4] != MAGIC
            or header[8] != expected
            or crc32(data[at + 8 : at + 48], length) != header[1]
            # A slice of the map is a copy and yet the cheaper one, up to some KiB.
            or crc32(data[at + 48 : behind - 8] if length < 4096 else view[at + 48 : behind - 8]) != header[3]
            or header[11] < METADATA_SIZE
            or 48 + header[11] + TRAILER_SIZE > length
            or (header[10] < 1 and not header[7] & FLAG_CHUNK)
        ):
            # Damage: reported, and the loop goes on where the next entry can be believed. Groups need no cut
            # there, since each frame has its own place.
            at, expected = _resume(planned, segment, at, expected, on_damage)
            continue
        flags = header[7]
        if flags & special:
            if flags & FLAG_TXN and expected in aborted:
                at, expected = behind, expected + 1
                continue
            if header[10] and flags & FLAG_CHUNK:  # the last part: a group of its own. The others have no row
                # The frames before it come first, to keep the order of rows.
                if positions:
                    yield FrameGroup(segment, positions, headers, total, union, uniform)
                    positions, headers = [], []
                yield from chunked_group(planned, segment, at, header, on_damage)
            # Three more kinds end here: a part of a chunked message, the last part that was just handed out
            # as a message, and an entry that is left out because it cannot be decrypted. Entry ids count on
            # over all of them.
            if flags & FLAG_CHUNK or (flags & tried and not segment.can_open(at, header)):
                at, expected = behind, expected + 1
                continue
        # Frames of other kinds are reserved for later releases, and hold no message.
        if header[5] == KIND_ENTRY:
            count = header[10]
            # A group is full, or this entry alone is worth a batch: then the frames so far are handed out
            # before it. An entry of `large` messages always begins a group; small entries behind it may join
            # it, and it is copied with them then.
            if positions and (count >= large or at >= group_end or total + count > rows):
                yield FrameGroup(segment, positions, headers, total, union, uniform)
                positions, headers = [], []
            # The consumer of the generator is done with the group before, so its plaintexts can go.
            if not positions:
                segment.drop_decrypted(but=at)
                total, union, uniform, shape = 0, 0, True, flags
                group_end = at + GROUP_BYTES
            positions.append(at)
            headers.append(header)
            total += count
            union |= flags
            # `Singles` needs one message in each entry, no codec, and the same columns.
            if count != 1 or flags != shape or header[6]:
                uniform = False
        at = behind
        expected += 1
    if positions:
        yield FrameGroup(segment, positions, headers, total, union, uniform)


def chunked_group(
    planned: EntryRange,
    segment: MappedSegment,
    at: int,
    header: tuple[Any, ...],
    on_damage: DamageHandler,
) -> Iterator[FrameGroup]:
    """The chunked message whose last part is the frame at ``at``, put together; nothing if it is damaged.

    Nor if an earlier part was trimmed before the plan was made: so was the message, then.
    """
    chunks = segment.access.chunks
    try:
        body = segment.view[at + HEADER_SIZE : at + header[0] - TRAILER_SIZE]
        last = decode(FrameHeader(*header), body, planned.ledger_id)
        # The earlier parts may be in other segments, before the range, too.
        earlier = chunks.earlier(last) or ()
        # The message was trimmed with its first part: a consumer would not deliver it either.
        if earlier and earlier[0][0] < planned.log_start:
            return
        payload: bytes | None = chunks.whole(last).payload
    except CryptoError as error:
        if segment.access.discards:
            segment.left_out(header[8], error)
            return
        # A caller that asks only for keys or times gets them of an entry that it cannot decrypt.
        payload = None  # a caller that asks for more than what is in the clear gets the error
    except (CorruptionError, FileNotFoundError) as error:
        reason = error.reason if isinstance(error, CorruptionError) else "a part of it is in no file any more"
        damage = CorruptionError(
            # A part that should be there and is not is damage of this message, and of no other: the entries
            # behind it are read.
            path=segment.path,
            offset=at,
            reason=f"chunked message: {reason}",
            remedy=REMEDY,
        )
        on_damage(damage, header[8], header[8] + 1)
        return
    segment.drop_decrypted(but=at)
    chunked = ChunkedMessage(earlier, payload)
    yield FrameGroup(segment, [at], [header], 1, header[7], uniform=False, chunked=chunked)


def _resume(
    planned: EntryRange, segment: MappedSegment, at: int, expected: int, on_damage: DamageHandler
) -> tuple[int, int]:
    """Report the damage at `at`, where entry `expected` should be; return where reading continues."""
    error, behind, next_entry = resumed(planned, segment.view, at, expected)
    # Once for each hole, with the first and the last entry that are lost in it.
    lost = CorruptionError(path=segment.path, offset=at, reason=error.reason, remedy=REMEDY)
    on_damage(lost, expected, next_entry)
    return behind, next_entry
