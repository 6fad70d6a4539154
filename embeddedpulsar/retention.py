"""How much of what everybody has acknowledged stays in a topic."""

from __future__ import annotations

from typing import NamedTuple

from embeddedpulsar.exceptions import InvalidConfiguration

UNLIMITED = -1


class Retention(NamedTuple):
    """A retention policy, by Pulsar's rules. What is not acknowledged stays in any case.

    Attributes:
        time_minutes: a closed ledger may go when its last entry was published longer ago; -1: age is no
            reason to go.
        size_mb: and when at least so many MiB of entries are left without it; -1: size is no reason.

    With both above 0 either of them is reason enough; with 0 and 0 nothing is retained.

    Example:
        >>> Retention(0, 0).is_none, Retention(-1, -1).is_unlimited
        (True, True)
    """

    time_minutes: int = 0
    size_mb: int = 0

    def check(self, where: str = "retention") -> Retention:
        """This policy, if it makes sense.

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
        """Whether everything goes once it is acknowledged."""
        return self.time_minutes == 0 and self.size_mb == 0

    @property
    def is_unlimited(self) -> bool:
        """Whether nothing ever goes."""
        return self.time_minutes == UNLIMITED and self.size_mb == UNLIMITED

    def is_over_time(self, age_ms: int) -> bool:
        """Whether an age is reason to go.

        Example:
            >>> Retention(1, -1).is_over_time(60_000), Retention(1, -1).is_over_time(60_001)
            (False, True)
        """
        return self.time_minutes >= 0 and age_ms > self.time_minutes * 60_000

    def is_over_size(self, left: int) -> bool:
        """Whether so many bytes that would be left are enough.

        Example:
            >>> Retention(-1, 1).is_over_size((1 << 20) - 1), Retention(-1, 1).is_over_size(1 << 20)
            (False, True)
        """
        return self.size_mb >= 0 and left >= self.size_mb << 20
