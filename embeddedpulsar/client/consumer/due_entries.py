"""Entries to be redelivered at a given time, after negative acknowledgements and acknowledgement timeouts.

The delay before a redelivery, by redelivery count.
"""

from __future__ import annotations

import heapq
import math
from array import array
from collections.abc import Callable

from embeddedpulsar._engine.format.entry_decoder import RawPosition
from embeddedpulsar._engine.platform import threads, timing
from embeddedpulsar._engine.platform.timing import Backoff, is_idle
from embeddedpulsar.client.arguments import check_type
from embeddedpulsar.error_text import naming_arguments
from embeddedpulsar.exceptions import LockTimeout
from embeddedpulsar.records import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Final

    from embeddedpulsar._engine.platform.timing import Timer


RETRY_S: Final = 1.0
_SHORTEST_TICK_MS: Final = 10
_LONGEST_TICK_MS: Final = 100
_AT_ONCE: Final = 10_000
_SWEEP_FROM: Final = 10_000
_PATIENCE_S: Final = 0.02
"""How long a redelivery waits for locks. The thread that consumes takes them for every message, and gives up
the interpreter while it is inside: a redelivery that only tries finds them held nearly always."""
_ROUNDING_MS: Final = 1e-4  # the rounding error of a float of seconds, shorter than any delay


class _Tick:
    """The entries that are due at one time, by ledger; some may have been discarded since."""

    __slots__ = ("number", "places")

    def __init__(self, number: int) -> None:
        self.number = number
        self.places: dict[int, array[int]] = {}

    def append(self, ledger: int, entry: int) -> None:
        place = self.places.get(ledger)
        if place is None:
            place = self.places[ledger] = array("Q")
        place.append(entry)


class DueEntries:
    """Redelivers entries when their time has come, never earlier and at most one tick later.

    Role: times are rounded up to ticks. Per ledger a dict maps each entry to its tick, and each tick has
    arrays of its entries. That takes about 100 bytes per entry, and due entries are found without looking at
    the others. A discarded entry stays in its array; when such entries outnumber the others, the arrays are
    rebuilt.

    Invariants: an entry is in at most one tick, the first it was added for. An item of an array counts only
    if the dict agrees. While there are entries one timer runs, for the earliest tick.

    Called by any thread. ``redeliver`` gets at most 10,000 due positions at a time, sorted. It runs in the
    timer thread without a lock, and waits for locks for 20 ms: if one is held for longer (`LockTimeout`), it
    is called again after a pause (`Backoff`). After any other exception it is called again after a second. A
    caller that redelivers all unacknowledged entries calls `clear`. A million entries take about 100 MB.

    Args:
        tick_ms: how late an entry may be.
        delay_ms: returns the delay for a redelivery count.
        redeliver: see above.
        call_later, monotonic: timers and time.
    """

    __slots__ = (
        "_call_later",
        "_count",
        "_delay_ms",
        "_lock",
        "_monotonic",
        "_order",
        "_redeliver",
        "_retries",
        "_stale",
        "_tick_ms",
        "_ticks",
        "_timer",
        "_timer_tick",
        "_where",
    )

    def __init__(
        self,
        tick_ms: int,
        delay_ms: Callable[[int], int],
        redeliver: Callable[[list[RawPosition]], object],
        call_later: Callable[[float, Callable[[], object]], Timer],
        monotonic: Callable[[], float],
    ) -> None:
        self._tick_ms = tick_ms
        self._delay_ms = delay_ms
        self._redeliver = redeliver
        self._call_later = call_later
        self._monotonic = monotonic
        self._lock = threads.RLock()
        self._where: dict[int, dict[int, _Tick]] = {}
        self._ticks: dict[int, _Tick] = {}
        self._order: list[int] = []  # a heap of the numbers of `_ticks`
        self._count = 0
        self._stale = 0
        self._timer: Timer | None = None
        self._timer_tick = 0
        self._retries: Final = Backoff()

    def __len__(self) -> int:
        return self._count

    def __contains__(self, position: RawPosition) -> bool:
        entries = self._where.get(position[0])
        return entries is not None and position[1] in entries

    def schedule(self, position: RawPosition, redelivery_count: int = 0) -> None:
        """Redeliver an entry after the delay for its redelivery count, unless it is added already."""
        self.add(position, self._delay_ms(redelivery_count))

    def add(self, position: RawPosition, delay_ms: int) -> None:
        """Redeliver an entry after a delay, unless it is added already."""
        ledger, entry = position
        entries = self._where.get(ledger)
        if entries is not None and entry in entries and not is_idle(self._timer):
            return  # else an interrupt came between the entry and its timer
        due_ms = math.ceil(self._monotonic() * 1000 - _ROUNDING_MS) + delay_ms
        number = -(-due_ms // self._tick_ms)
        try:
            self._lock.acquire()
            self._put(ledger, entry, number)
            if is_idle(self._timer) or number < self._timer_tick:
                self._set_timer()
        finally:
            self._lock.release()

    def discard(self, position: RawPosition) -> None:
        ledger, entry = position
        if ledger not in self._where:
            return
        try:
            self._lock.acquire()
            entries = self._where.get(ledger)
            if entries is not None and entries.pop(entry, None) is not None:
                self._count -= 1
                self._stale += 1
                if not entries:
                    del self._where[ledger]
                if self._stale > _SWEEP_FROM + self._count:
                    self._sweep()
        finally:
            self._lock.release()

    def clear(self) -> None:
        if not self._ticks:
            return
        try:
            self._lock.acquire()
            self._where = {}
            self._ticks = {}
            self._order = []
            self._count = self._stale = 0
            self._set_timer()
        finally:
            self._lock.release()

    # -- under the lock ----------------------------------------------------------------------------------

    def _put(self, ledger: int, entry: int, number: int) -> None:
        entries = self._where.get(ledger)
        if entries is None:
            entries = self._where[ledger] = {}
        elif entry in entries:
            return
        tick = self._ticks.get(number)
        if tick is None:
            tick = self._ticks[number] = _Tick(number)
            heapq.heappush(self._order, number)
        tick.append(ledger, entry)
        entries[entry] = tick
        self._count += 1

    def _sweep(self) -> None:
        """Rebuild the arrays without the discarded entries."""
        for tick in self._ticks.values():
            tick.places = {}
        for ledger, entries in self._where.items():
            for entry, tick in entries.items():
                tick.append(ledger, entry)
        self._ticks = {number: tick for number, tick in self._ticks.items() if tick.places}
        self._order = sorted(self._ticks)
        self._stale = 0

    def _set_timer(self, least_s: float = 0.0) -> None:
        """Set the timer for the earliest tick, which may have changed."""
        if not self._order:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            return
        first = self._order[0]
        if self._timer is not None and self._timer.is_pending:
            if self._timer_tick <= first:
                return
            self._timer.cancel()
            self._timer = None
        delay_s = first * self._tick_ms / 1000 - self._monotonic()
        self._timer = self._call_later(max(delay_s, least_s), self._on_timer)
        self._timer_tick = first

    def _pop_due(self, tick: _Tick, ledger: int, most: int) -> list[RawPosition]:
        """Take up to ``most`` entries of a ledger out of a tick that is due."""
        place = tick.places[ledger]
        entries = self._where.get(ledger, {})
        taken = []
        for entry in place[:most]:
            if entries.get(entry) is tick:
                del entries[entry]
                taken.append((ledger, entry))
            else:
                self._stale -= 1
        del place[:most]
        self._count -= len(taken)
        if not place:
            del tick.places[ledger]
        if not entries:
            self._where.pop(ledger, None)
        return taken

    # -- in the timer thread -----------------------------------------------------------------------------

    def _on_timer(self) -> None:
        wait_s = 0.0
        due: list[RawPosition] = []
        self._timer = None  # first: a call of `add` from here on starts another
        try:
            while due := self._take_due():
                timing.anew(_PATIENCE_S, self._redeliver, due)
                self._retries.reset()  # at each: while some get through, the rest must not wait for longer
        except LockTimeout:
            wait_s = self._retries.next()
        except BaseException:
            wait_s = RETRY_S
            raise  # to the log
        finally:
            self._go_on(due, wait_s)

    def _take_due(self) -> list[RawPosition]:
        """Return the next due entries, at most 10,000."""
        due: list[RawPosition] = []
        try:
            self._lock.acquire()
            now = math.floor(self._monotonic() * 1000 + _ROUNDING_MS) // self._tick_ms
            while self._order and self._order[0] <= now and len(due) < _AT_ONCE:
                tick = self._ticks[self._order[0]]
                for ledger in list(tick.places):
                    if len(due) < _AT_ONCE:
                        due += self._pop_due(tick, ledger, _AT_ONCE - len(due))
                if not tick.places:
                    del self._ticks[heapq.heappop(self._order)]
        finally:
            self._lock.release()
        due.sort()
        return due

    def _go_on(self, failed: list[RawPosition], wait_s: float) -> None:
        """Put back entries whose redelivery failed, and set the timer for the next tick."""
        try:
            self._lock.acquire()
            for ledger, entry in failed:
                self._put(ledger, entry, math.floor(self._monotonic() * 1000) // self._tick_ms)
            self._set_timer(wait_s)
        finally:
            self._lock.release()


def negative_acks(
    delay_ms: int,
    backoff: MultiplierRedeliveryBackoff | None,
    redeliver: Callable[[list[RawPosition]], object],
    call_later: Callable[[float, Callable[[], object]], Timer],
    monotonic: Callable[[], float],
) -> DueEntries:
    """Negatively acknowledged entries, until their delay is over.

    The delay is exact to a tenth of the shortest delay, or 100 ms. Repeated negative acknowledgements of one
    entry, as for the messages of a batch, do not postpone it.

    Args:
        delay_ms: the delay without a backoff.
        backoff: returns the delay by redelivery count, or None.
        redeliver, call_later, monotonic: see `DueEntries`.
    """
    delay: Callable[[int], int] = (lambda _: delay_ms) if backoff is None else backoff.next
    tick_ms = min(max(delay(0) // 10, _SHORTEST_TICK_MS), _LONGEST_TICK_MS)
    return DueEntries(tick_ms, delay, redeliver, call_later, monotonic)


def unacked_messages(
    timeout_ms: int,
    tick_ms: int,
    backoff: MultiplierRedeliveryBackoff | None,
    redeliver: Callable[[list[RawPosition]], object],
    call_later: Callable[[float, Callable[[], object]], Timer],
    monotonic: Callable[[], float],
) -> DueEntries:
    """Received entries without an acknowledgement, while ``unacked_messages_timeout_ms`` runs.

    An entry is added when the application receives its first message, and is due between the timeout and one
    tick later. With a backoff, its delay for the entry's redelivery count is added to the timeout.
    """

    def delay(redelivery_count: int) -> int:
        return timeout_ms if backoff is None else timeout_ms + backoff.next(redelivery_count)

    return DueEntries(tick_ms, delay, redeliver, call_later, monotonic)


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
