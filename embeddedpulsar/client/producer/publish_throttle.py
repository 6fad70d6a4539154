"""The publish rate of a topic, as one producer keeps it: which entries may be appended now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from embeddedpulsar._engine.platform import deadline
from embeddedpulsar._engine.platform.clock import SYSTEM_CLOCK
from embeddedpulsar.exceptions import LockTimeout

if TYPE_CHECKING:
    from collections.abc import Set

    from embeddedpulsar._engine.store.policies.resource_groups import RateLimiter
    from embeddedpulsar.client.producer.pending_entry import PendingEntry
    from embeddedpulsar.client.producer.producer_session import ProducerSession

_LOOK_S: Final = 0.05
"""How often a caller that waits looks whether the rate was changed."""
_SHORTEST_S: Final = 0.001
_NONE: Final[frozenset[PendingEntry]] = frozenset()


class PublishThrottle:
    """Admits entries of one producer as the publish rate of the topic allows, or waits.

    Role: tokens are taken before the append, one for each message and its bytes. An entry is admitted while
    there are any, however large it is, and later ones wait until that is made good. Entries that were
    admitted and could not be appended, because the topic was locked, keep what they have.
    Used under the producer's lock.
    """

    __slots__ = ("_paid", "_session")

    def __init__(self, session: ProducerSession) -> None:
        self._session = session
        # Most producers have no rate: they share one empty set, of 200 bytes.
        self._paid: Set[PendingEntry] = _NONE

    def admitted(self, entries: list[PendingEntry], timeout_s: float) -> list[PendingEntry]:
        """Return the first entries, those that may be appended now; none if ``timeout_s`` is 0 and none may.

        Raises:
            LockTimeout: none within ``timeout_s``, which is not 0; or the topic was not free.
        """
        end = SYSTEM_CLOCK.monotonic() + deadline.left(timeout_s)
        while (limiter := self._session.limiter) is not None:
            try:
                left = end - SYSTEM_CLOCK.monotonic() if timeout_s else 0.0
                found = deadline.within(max(left, 0.0), self._take, limiter, entries)
            except LockTimeout:
                if timeout_s:
                    raise
                return []
            if found or not timeout_s:
                return found
            left = end - SYSTEM_CLOCK.monotonic()
            if left <= 0:
                raise LockTimeout(
                    f"the publish rate of {self._session.topic_name} was reached, and there was no room for "
                    f"another message within {timeout_s:g} s; the message was not stored"
                )
            SYSTEM_CLOCK.sleep(min(max(self.due_in_s(), _SHORTEST_S), _LOOK_S, left))
            self._session.look_at_policies()
        return entries

    def _take(self, limiter: RateLimiter, entries: list[PendingEntry]) -> list[PendingEntry]:
        paid = {one for one in entries if one in self._paid or one.is_stored or one.error is not None}
        asked = [one for one in entries if one not in paid]
        if not asked:
            self._paid = paid
            return entries
        costs = [_cost(one) for one in asked]
        room, size = limiter.reserve(sum(cost[0] for cost in costs), sum(cost[1] for cost in costs))
        for out, (messages, length) in zip(asked, costs, strict=True):
            if room <= 0 or size <= 0:
                break
            room, size = room - messages, size - length
            paid.add(out)
        limiter.settle(room, size)
        self._paid = paid
        count = 0
        while count < len(entries) and entries[count] in paid:
            count += 1
        return entries[:count]

    def due_in_s(self) -> float:
        """Seconds until the rate has room again, after it had none; 0.0 otherwise."""
        limiter = self._session.limiter
        if limiter is None or not limiter.due_ns:
            return 0.0
        return max(limiter.left_ns / 1e9, _SHORTEST_S)


def _cost(out: PendingEntry) -> tuple[int, int]:
    """Messages and bytes of an entry; of a chunked message all its entries together."""
    if out.chunks is not None:
        return 1, out.chunks.length
    return out.count, 0 if out.encoded is None else out.encoded.size
