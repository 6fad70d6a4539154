"""For the tests of applications: a clock that the test moves, the check of a store (docs/testing.md)."""

from embeddedpulsar.testing.manual_clock import ManualClock
from embeddedpulsar.testing.store_checks import assert_clean, check_store
from embeddedpulsar.topic.care.store_report import StoreReport

__all__ = ["ManualClock", "StoreReport", "assert_clean", "check_store"]
