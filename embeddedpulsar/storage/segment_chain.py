"""Which segments of a topic belong to its log, in which order, by their headers alone.

Every segment names the ledger before it and where that ended. Walking those links back from the newest
segment gives the log; a segment that no link leads to is a stray of a roll that died.
"""

from __future__ import annotations

from typing import NamedTuple

from embeddedpulsar import damage
from embeddedpulsar.damage import Damage
from embeddedpulsar.exceptions import CorruptionError, StorageError, UnsupportedFormatVersion
from embeddedpulsar.format.segment_header import SegmentHeader
from embeddedpulsar.platform import descriptors
from embeddedpulsar.storage.filenames import ledgers_of, log_path
from embeddedpulsar.storage.segment_headers import find_segment_header


class Link(NamedTuple):
    """One ledger of the log. Its ending is what the next ledger says; all four -1 if there is none."""

    header: SegmentHeader
    end_offset: int = -1
    last_entry_id: int = -1
    last_crc: int = -1
    messages: int = -1

    @property
    def is_closed(self) -> bool:
        """Whether the next ledger says where this one ends."""
        return self.end_offset >= 0


class SegmentChain(NamedTuple):
    """The log, oldest ledger first, and what is beside it."""

    links: list[Link]
    strays: list[int]
    damaged: list[Damage]
    highest_ledger_id: int


def walk_segments(
    directory: str, trim: int, *, without: frozenset[int] = frozenset(), limit: int | None = None
) -> SegmentChain:
    """Read the headers of all segments in `directory` and link them.

    Args:
        directory: the topic's.
        trim: first ledger that is retained, as far as known; 0 if not.
        without: ledgers to treat as strays, whatever their headers say.
        limit: the tail's ledger, if it is known; files above it do not exist.
    """
    ledgers = [
        ledger for ledger in ledgers_of(descriptors.names_in(directory)) if limit is None or ledger <= limit
    ]
    headers, damaged = _read_headers(directory, [ledger for ledger in ledgers if ledger not in without])
    links: list[Link] = []
    link = Link(headers[max(headers)]) if headers else None
    while link is not None:
        links.append(link)
        link = _link_before(directory, link.header, headers, trim, damaged)
    links.reverse()
    visited = {link.header.ledger_id for link in links}
    lowest = links[0].header.ledger_id if links else 0
    strays = [ledger for ledger in ledgers if ledger not in visited and ledger > lowest]
    strays = [ledger for ledger in strays if ledger in headers or ledger in without]
    return SegmentChain(links, strays, damaged, max(ledgers, default=0))


def _read_headers(directory: str, ledgers: list[int]) -> tuple[dict[int, SegmentHeader], list[Damage]]:
    headers: dict[int, SegmentHeader] = {}
    damaged: list[Damage] = []
    for ledger in ledgers:
        path = log_path(directory, ledger)
        try:
            found = find_segment_header(directory, ledger)
        except FileNotFoundError:
            continue  # trimmed since the directory was listed
        except UnsupportedFormatVersion as e:
            raise e.at(path) from None
        except StorageError as e:
            reason = f"{e.reason}; {e.remedy}"
            damaged.append(Damage(path, ledger, -1, -1, 0, 0, reason, damage.SEGMENT_HEADER))
        else:
            headers[ledger] = found.header
            if found.damage:
                damaged.append(found.report(path))
    return headers, damaged


def _link_before(
    directory: str,
    header: SegmentHeader,
    headers: dict[int, SegmentHeader],
    trim: int,
    damaged: list[Damage],
) -> Link | None:
    """The ledger before that of `header`; None if that was the first one, or those before it are trimmed."""
    previous = header.prev_ledger_id
    if previous >= header.ledger_id:
        raise CorruptionError(
            path=log_path(directory, header.ledger_id),
            reason=f"ledger {header.ledger_id} claims to follow ledger {previous}; ids rise",
        )
    if previous in headers:
        return Link(
            headers[previous],
            header.prev_end_offset,
            header.prev_last_entry_id,
            header.prev_last_crc,
            header.prev_messages,
        )
    older = [ledger for ledger in headers if ledger < previous]
    if previous >= trim > 0 or (previous and older and not trim):
        path = log_path(directory, previous)
        if not any(report.ledger_id == previous for report in damaged):
            damaged.append(
                Damage(
                    path,
                    previous,
                    0 if header.prev_last_entry_id >= 0 else -1,
                    header.prev_last_entry_id,
                    0,
                    0,
                    "the file is gone, although it was not trimmed",
                    damage.MISSING_SEGMENT,
                )
            )
    return Link(headers[max(older)]) if older else None
