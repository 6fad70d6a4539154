"""Options of a managed ledger."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from embeddedpulsar._engine.platform import clock
from embeddedpulsar._engine.platform.access import Refusal
from embeddedpulsar.records import NamedTuple
from embeddedpulsar.settings import BrokerSettings

PROCESS: Final = "process"
INTERVAL: Final = "interval"
FLUSH: Final = "flush"
DURABILITIES: Final = (PROCESS, INTERVAL, FLUSH)
_REMEMBERED: Final = 16
"""Options as they were made: each opening of a topic asks for them."""


class _Fields(NamedTuple):
    segment_size: int
    first_allocation: int
    allocation_step: int
    max_entries: int
    max_age_ms: int
    max_open_segments: int
    lock_timeout_s: float
    max_message_size: int
    durability: str
    interval_ms: int
    boot: bytes
    refusal: Refusal | None
    is_temporary: bool


class LedgerOptions(_Fields):
    """How a managed ledger lays out its files and when it makes them durable. Immutable.

    Processes may open one topic with different options: what a segment was created with stands in its header.

    Args:
        segment_size: bytes of a segment file; an entry that is larger gets a segment of its own size.
        first_allocation: bytes of disk taken by a new segment; it grows from there, doubling.
        allocation_step: bytes, the largest step of that growth.
        max_entries: entries per ledger.
        max_age_ms: milliseconds after which the next append starts a new ledger.
        max_open_segments: this topic's share of the segments a process keeps mapped. All topics together use
            at most a quarter of the descriptors the process may have open.
        lock_timeout_s: seconds to wait for a file lock before `LockTimeout`.
        max_message_size: bytes of an entry's body, at most; beyond is the topic's error, not the disk's.
        durability: "process" (survives the death of processes), "interval" (and power loss, but for the last
            `interval_ms`) or "flush" (power loss, once `append` returned).
        interval_ms: milliseconds between syncs at level "interval".
        boot: identity of the boot in which the control words of the store are true; empty for the machine's.
        refusal: why nothing is written to the topic; None if it may be.
        is_temporary: whether the files go with the processes that use them: nothing is flushed at any level.

    Raises:
        ValueError: a value makes no sense; the text says which.

    Example:
        >>> LedgerOptions(segment_size=1 << 20).max_entries
        250000
    """

    __slots__ = ()

    def __new__(
        cls,
        *,
        segment_size: int = 64 << 20,
        first_allocation: int = 8 << 10,
        allocation_step: int = 4 << 20,
        max_entries: int = 250_000,
        max_age_ms: int = 240 * 60_000,
        max_open_segments: int = 32,
        lock_timeout_s: float = 30.0,
        max_message_size: int = 5 << 20,
        durability: str = PROCESS,
        interval_ms: int = 1_000,
        boot: bytes = b"",
        refusal: Refusal | None = None,
        is_temporary: bool = False,
    ) -> LedgerOptions:
        if durability not in DURABILITIES:
            raise ValueError(f"durability must be one of {', '.join(DURABILITIES)}, not {durability!r}")
        values = (
            segment_size,
            first_allocation,
            allocation_step,
            max_entries,
            max_age_ms,
            max_open_segments,
            lock_timeout_s,
            max_message_size,
            durability,
            interval_ms,
            boot,
            refusal,
            is_temporary,
        )
        for name, value in zip(cls._fields, values, strict=True):
            if isinstance(value, (int, float)) and value <= 0 and name != "is_temporary":
                raise ValueError(f"{name} must be positive, not {value}")
        if not _SMALLEST_SEGMENT <= segment_size <= _LARGEST_SEGMENT:
            raise ValueError(
                f"segment_size must be {_SMALLEST_SEGMENT} to {_LARGEST_SEGMENT}, not {segment_size}"
            )
        if max_entries > _MOST_ENTRIES:
            raise ValueError(f"max_entries must be at most {_MOST_ENTRIES}, not {max_entries}")
        return super().__new__(cls, *values)

    @property
    def boot_id(self) -> bytes:
        """16 bytes: control words that carry others are derived again before they are believed."""
        return self.boot or clock.boot_id()


_PAGE: Final = 4096
_SMALLEST_SEGMENT: Final = 8 << 10
_LARGEST_SEGMENT: Final = 1 << 30
_MOST_ENTRIES: Final = 896 * 1024
"""The index header has room for the checksums of that many slots."""


_TEMPORARY_SEGMENTS: Final = (1 << 20, 32 << 20)
_TEMPORARY_SHARE: Final = 64
_TEMPORARY_STEP: Final = 1 << 20
_DEFAULT_SEGMENT: Final = BrokerSettings().managedLedgerMaxSizePerLedgerMbytes << 20


@lru_cache(_REMEMBERED)
def temporary_options(options: LedgerOptions, room: int) -> LedgerOptions:
    """The options of a log in memory.

    The ``/dev/shm`` of a container often has 64 MiB for all topics, and the open ledger cannot be trimmed. So
    ledgers grow in small steps, and a full one takes a small part of the room, unless the settings give it a
    size.

    Args:
        options: those of a log in a directory.
        room: bytes of the file system.

    Example:
        >>> temporary_options(LedgerOptions(durability="flush"), 64 << 20)[:3]
        (1048576, 8192, 1048576)
    """
    size = options.segment_size
    if size == _DEFAULT_SEGMENT:
        least, most = _TEMPORARY_SEGMENTS
        size = max(least, min(room // _TEMPORARY_SHARE // _PAGE * _PAGE, most))
    return options._replace(
        segment_size=size,
        allocation_step=min(options.allocation_step, size, _TEMPORARY_STEP),
        durability=PROCESS,
        is_temporary=True,
    )


@lru_cache(_REMEMBERED)
def ledger_options(
    settings: BrokerSettings, durability: str, interval_ms: int, boot: bytes = b""
) -> LedgerOptions:
    """The options of every log of a store, by its settings.

    Example:
        >>> ledger_options(BrokerSettings(), "process", 1000).segment_size >> 20
        64
    """
    return LedgerOptions(
        segment_size=min(settings.managedLedgerMaxSizePerLedgerMbytes << 20, _LARGEST_SEGMENT),
        max_entries=min(settings.managedLedgerMaxEntriesPerLedger, _MOST_ENTRIES),
        max_age_ms=settings.managedLedgerMaxLedgerRolloverTimeMinutes * 60_000,
        max_message_size=settings.maxMessageSize,
        durability=durability,
        interval_ms=interval_ms,
        boot=boot,
    )
