"""For the tests of applications: stores, a clock that the test moves, stand-ins (docs/testing.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from embeddedpulsar.testing.manual_clock import ManualClock
from embeddedpulsar.testing.trial_store import StoreReport, assert_clean, check_store, trial_store

if TYPE_CHECKING:
    from embeddedpulsar.testing.stand_in import patched_pulsar


def __getattr__(name: str) -> Any:
    if name == "patched_pulsar":  # needs the client of asyncio, which takes longer to import than all others
        from embeddedpulsar.testing.stand_in import patched_pulsar

        return patched_pulsar
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["ManualClock", "StoreReport", "assert_clean", "check_store", "patched_pulsar", "trial_store"]
