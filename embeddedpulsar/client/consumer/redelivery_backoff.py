"""The delay before a redelivery, by redelivery count."""

from __future__ import annotations

import math

from embeddedpulsar.client.common.arguments import check_type
from embeddedpulsar.error_text import naming_arguments


class MultiplierRedeliveryBackoff:
    """A delay that is multiplied with every redelivery, up to a limit. Not in ``pulsar-client`` for Python.

    Immutable. It corresponds to the class of that name in Pulsar's Java client. For negative acknowledgements
    it is the whole delay; for the acknowledgement timeout it is added to the timeout.

    Args:
        min_delay_ms: delay of the first redelivery, in ms; at least 0.
        max_delay_ms: longest delay, in ms; at least ``min_delay_ms``.
        multiplier: factor from one redelivery to the next; more than 1.

    Raises:
        ValueError: a wrong type or value.

    Example:
        >>> backoff = MultiplierRedeliveryBackoff(1000, 60_000, 2)
        >>> [backoff.next(count) // 1000 for count in range(9)]
        [1, 2, 4, 8, 16, 32, 60, 60, 60]
        >>> backoff.min_delay_ms, backoff.max_delay_ms, backoff.multiplier
        (1000, 60000, 2)
    """

    __slots__ = ("_largest_power", "_max_delay_ms", "_min_delay_ms", "_multiplier")

    @naming_arguments
    def __init__(
        self, min_delay_ms: int = 10_000, max_delay_ms: int = 600_000, multiplier: float = 2.0
    ) -> None:
        check_type(int, min_delay_ms, "min_delay_ms")
        check_type(int, max_delay_ms, "max_delay_ms")
        if not isinstance(multiplier, int):
            check_type(float, multiplier, "multiplier")
        if min_delay_ms < 0:
            raise ValueError(f"min_delay_ms must be >= 0, not {min_delay_ms}")
        if max_delay_ms < min_delay_ms:
            raise ValueError(f"max_delay_ms must be >= min_delay_ms, {min_delay_ms}, not {max_delay_ms}")
        if not 1 < multiplier < math.inf:
            raise ValueError(f"multiplier must be > 1, not {multiplier}")
        self._min_delay_ms = min_delay_ms
        self._max_delay_ms = max_delay_ms
        self._multiplier = multiplier
        # Powers above this one are not computed, because they would exceed the range of a float.
        self._largest_power = 0
        if min_delay_ms:
            self._largest_power = math.floor(math.log(max_delay_ms / min_delay_ms, multiplier)) + 1

    @property
    def min_delay_ms(self) -> int:
        """Delay of the first redelivery, in ms."""
        return self._min_delay_ms

    @property
    def max_delay_ms(self) -> int:
        """Longest delay, in ms."""
        return self._max_delay_ms

    @property
    def multiplier(self) -> float:
        """Factor from one redelivery to the next."""
        return self._multiplier

    def next(self, redelivery_count: int) -> int:
        """Return the delay in ms for a message that was redelivered ``redelivery_count`` times.

        Example:
            >>> MultiplierRedeliveryBackoff().next(0), MultiplierRedeliveryBackoff().next(100)
            (10000, 600000)
        """
        if redelivery_count <= 0 or not self._min_delay_ms:
            return self._min_delay_ms
        if redelivery_count > self._largest_power:
            return self._max_delay_ms
        return min(int(self._min_delay_ms * self._multiplier**redelivery_count), self._max_delay_ms)

    def __repr__(self) -> str:
        return (
            f"MultiplierRedeliveryBackoff(min_delay_ms={self._min_delay_ms}, "
            f"max_delay_ms={self._max_delay_ms}, multiplier={self._multiplier})"
        )
