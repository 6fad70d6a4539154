"""How the logs of a store are kept, by its settings."""

from __future__ import annotations

from typing import Final

from embeddedpulsar.managed_ledger.options import LedgerOptions
from embeddedpulsar.settings import BrokerSettings

_LARGEST_SEGMENT_MBYTES: Final = 1024
_MOST_ENTRIES: Final = 896 * 1024


def ledger_options(settings: BrokerSettings, durability: str, interval_ms: int) -> LedgerOptions:
    """The options of every log of a store.

    Args:
        settings: of the store.
        durability: "process", "interval" or "flush".
        interval_ms: time between syncs at level "interval".

    Example:
        >>> ledger_options(BrokerSettings(), "process", 1000).segment_size >> 20
        64
    """
    return LedgerOptions(
        segment_size=min(settings.managedLedgerMaxSizePerLedgerMbytes, _LARGEST_SEGMENT_MBYTES) << 20,
        max_entries=min(settings.managedLedgerMaxEntriesPerLedger, _MOST_ENTRIES),
        max_age_ms=settings.managedLedgerMaxLedgerRolloverTimeMinutes * 60_000,
        max_message_size=settings.maxMessageSize,
        durability=durability,
        interval_ms=interval_ms,
    )
