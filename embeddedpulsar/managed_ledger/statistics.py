"""What can be said of a managed ledger at a glance."""

from __future__ import annotations

from typing import NamedTuple


class LedgerStatistics(NamedTuple):
    """A snapshot. Counts without "here" are the topic's, over all processes.

    Attributes:
        ledgers: retained ledgers.
        retained_entries, retained_messages, retained_bytes: what they hold; bytes of frames.
        total_entries, total_messages, total_bytes: ever appended, as far as the control words know: after a
            reboot they start again at what is retained, and a process that died at the instant it started a
            ledger may have counted the one before twice.
        last_publish_ms: publish time of the last entry; 0 without one.
        is_synced: whether everything appended is durable.
        recoveries: holders of the topic lock that died inside, plus recoveries after a reboot.
        rolls_here, syncs_here: done by this process.
        damage_here: stretches of unreadable log this process met.
    """

    ledgers: int
    retained_entries: int
    retained_messages: int
    retained_bytes: int
    total_entries: int
    total_messages: int
    total_bytes: int
    last_publish_ms: int
    is_synced: bool
    recoveries: int
    rolls_here: int
    syncs_here: int
    damage_here: int
