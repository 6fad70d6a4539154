"""Which consumer of a Key_Shared subscription gets a key: the three ways to divide the keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from embeddedpulsar.subscription.state.sticky_key_selector_consistent_hashing import ConsistentHashingSelector
from embeddedpulsar.subscription.state.sticky_key_selector_hash_range import HashRangeSelector
from embeddedpulsar.subscription.state.sticky_key_selector_sticky import StickyRangeSelector

# Kinds are persistent: they are never renumbered.
HASH_RANGE: Final = 1
CONSISTENT_HASHING: Final = 2
STICKY: Final = 3

DEFAULT_POINTS: Final = 100
"""Points of a consumer on the ring, ``subscriptionKeySharedConsistentHashingReplicaPoints``."""


class StickyKeySelector(Protocol):
    """The keys of a subscription, divided among its consumers.

    Role: part of the replicated state. Pure: what is selected follows from the calls of `add` and `remove`
    alone, so replicas that saw the same calls select the same consumers. Guarded by the subscription's lock.
    """

    def add(self, consumer_id: int, name: str, ranges: Sequence[tuple[int, int]]) -> None:
        """A consumer joins. Only STICKY looks at ``ranges``, inclusive slots 0..65535.

        Raises:
            ValueError: it cannot be added, and the text says why; nothing has changed.
        """

    def remove(self, consumer_id: int) -> None:
        """A consumer leaves. One that is not there, perhaps because it was refused, changes nothing."""

    def select(self, hash31: int) -> int | None:
        """The consumer that gets keys of this hash; None if no consumer does."""

    def ranges_of(self, consumer_id: int) -> list[tuple[int, int]]:
        """The slots of a consumer as inclusive ranges, ascending; [] where it has none."""

    def pack(self) -> list[Any]:
        """The state in lists, numbers and strings; equal states give equal values. See `selector_of`."""


def make_selector(kind: int, points: int = DEFAULT_POINTS) -> StickyKeySelector:
    """A selector without consumers. ``points`` are those of a consumer under CONSISTENT_HASHING.

    Raises:
        ValueError: no such kind, or no usable number of points.

    >>> selector = make_selector(HASH_RANGE)
    >>> selector.add(1, "C1", [])
    >>> selector.add(2, "C2", [])
    >>> selector.ranges_of(2), selector.select(6067)
    ([(0, 32768)], 2)
    """
    return ConsistentHashingSelector(points) if kind == CONSISTENT_HASHING else _of(kind)([])


def selector_of(kind: int, packed: Sequence[Any]) -> StickyKeySelector:
    """The selector of that kind whose `pack` returned ``packed``.

    Raises:
        ValueError, TypeError: no such kind, or no selector of it packs like that.
    """
    return _of(kind)(packed)


def _of(kind: int) -> Callable[[Sequence[Any]], StickyKeySelector]:
    if kind == HASH_RANGE:
        return HashRangeSelector.of
    if kind == CONSISTENT_HASHING:
        return ConsistentHashingSelector.of
    if kind == STICKY:
        return StickyRangeSelector.of
    raise ValueError(f"{kind!r} is no kind of sticky key selector")
