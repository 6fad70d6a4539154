"""Retention: how many of the acknowledged messages a topic keeps."""

from __future__ import annotations

from typing import NamedTuple

from embeddedpulsar.exceptions import InvalidConfiguration

UNLIMITED = -1


class Retention(NamedTuple):
    """A retention policy, by Pulsar's rules. Unacknowledged messages are always kept.

    Attributes:
        time_minutes: age of the last entry from which on a closed ledger may be removed; -1 for no limit by
            age.
        size_mb: size in MiB of the other entries from which on it may be removed; -1 for no limit by size.

    With both above 0, either condition suffices. With 0 and 0 nothing is retained.

    Example:
        >>> Retention(0, 0).is_none, Retention(-1, -1).is_unlimited
        (True, True)
    """

    time_minutes: int = 0
    size_mb: int = 0

    def check(self, where: str = "retention") -> Retention:
        """Return this policy if it is valid.

        Raises:
            InvalidConfiguration: exactly one of the two is 0, or one is below -1.

        Example:
            >>> Retention(10, 0).check()
            Traceback (most recent call last):
            embeddedpulsar.exceptions.InvalidConfiguration: Pulsar error: ...
        """
        if self.time_minutes < UNLIMITED or self.size_mb < UNLIMITED:
            raise InvalidConfiguration(
                f"{where}: {self.time_minutes} minutes and {self.size_mb} MB; use -1 for no limit"
            )
        if (self.time_minutes == 0) != (self.size_mb == 0):
            raise InvalidConfiguration(
                f"{where}: {self.time_minutes} minutes and {self.size_mb} MB; if one of the two is 0 the "
                "other must be 0 too (nothing is retained); use -1 for no limit"
            )
        return self

    @property
    def is_none(self) -> bool:
        """Whether all acknowledged ledgers are removed."""
        return self.time_minutes == 0 and self.size_mb == 0

    @property
    def is_unlimited(self) -> bool:
        """Whether no ledger is ever removed."""
        return self.time_minutes == UNLIMITED and self.size_mb == UNLIMITED

    def is_over_time(self, age_ms: int) -> bool:
        """Whether a ledger of this age may be removed.

        Example:
            >>> Retention(1, -1).is_over_time(60_000), Retention(1, -1).is_over_time(60_001)
            (False, True)
        """
        return self.time_minutes >= 0 and age_ms > self.time_minutes * 60_000

    def is_over_size(self, left: int) -> bool:
        """Whether a ledger may be removed if this number of bytes remains without it.

        Example:
            >>> Retention(-1, 1).is_over_size((1 << 20) - 1), Retention(-1, 1).is_over_size(1 << 20)
            (False, True)
        """
        return self.size_mb >= 0 and left >= self.size_mb << 20
