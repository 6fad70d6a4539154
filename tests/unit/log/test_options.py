"""Options are checked when they are made."""

from __future__ import annotations

from typing import Any

import pytest

from embeddedpulsar._engine.log.log_opening import LedgerOptions


def test_defaults():
    """Pulsar's limits of a ledger, and sizes that suit a laptop."""
    options = LedgerOptions()
    assert (options.segment_size, options.max_entries, options.max_age_ms) == (64 << 20, 250_000, 14_400_000)
    assert (options.durability, options.interval_ms) == ("process", 1000)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"durability": "maybe"}, "durability must be one of process, interval, flush, not 'maybe'"),
        ({"max_entries": 0}, "max_entries must be positive, not 0"),
        ({"max_entries": 10**6}, "max_entries must be at most 917504, not 1000000"),
        ({"segment_size": 4096}, "segment_size must be 8192 to 1073741824, not 4096"),
        ({"lock_timeout_s": -1.0}, "lock_timeout_s must be positive, not -1.0"),
    ],
)
def test_nonsense_is_refused(wrong: dict[str, Any], text: str):
    """The error names the option, the limit and the value."""
    with pytest.raises(ValueError) as caught:
        LedgerOptions(**wrong)
    assert str(caught.value) == text
