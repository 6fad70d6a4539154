"""Rates that several processes keep together: what may be published or delivered now, and when more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from embeddedpulsar.records import NamedTuple

BOUNDLESS: Final = 1 << 50
"""What may be taken of something that is not limited."""
_SECOND_NS: Final = 1_000_000_000
_LONGEST_NS: Final = 1 << 62
WORDS: Final = 3
"""How many words a rate has, from its first one."""
_STAMP, _MESSAGES, _BYTES = 0, 1, 2


class Lock(Protocol):
    """The lock that guards the words of a rate."""

    def acquire(self, timeout_s: float = 30.0) -> None: ...
    def release(self) -> object: ...


class Unshared:
    """Stands for the lock where one thread at a time uses the words."""

    def acquire(self, timeout_s: float = 30.0) -> None: ...
    def release(self) -> object: ...


class Rate(NamedTuple):
    """What is allowed in a period; 0 for what is not limited."""

    messages: int
    size: int
    period_ns: int = _SECOND_NS


class SharedRate:
    """A rate in three words of shared memory, which processes keep together.

    Role: a token bucket that holds the tokens of one period. A word is not the number of tokens but the time
    at which the bucket was, or will be, empty when nothing flows in: one store changes it, and a process that
    dies at any instruction leaves a bucket that is right. Tokens may be owed: then the time is ahead.
    Invariants: the first word is the time of the last look. If the clock was set back since, the other two
    are set back as much, so that no time passes.
    Callers: any thread; the lock guards the words.

    Args:
        words: shared memory.
        first: the index of the first word.
        lock: guards them.
        rate: called at each look; what is allowed may change.
        on_throttled: called under the lock when tokens are missing that were there before.
    """

    __slots__ = ("_first", "_rate", "_words", "lock", "on_throttled")

    def __init__(
        self,
        words: Any,
        first: int,
        lock: Lock,
        rate: Callable[[], Rate],
        on_throttled: Callable[[], object] = int,
    ) -> None:
        self._words = words
        self._first = first
        self._rate = rate
        self.lock: Final = lock
        self.on_throttled: Final = on_throttled

    def room(self, now_ns: int) -> tuple[int, int]:
        """Messages and bytes that may pass now; 0 or less if none. Under the lock."""
        words, first, rate = self._words, self._first, self._rate()
        back = words[first + _STAMP] - now_ns
        if back > 0:
            for word in (first + _MESSAGES, first + _BYTES):
                words[word] = max(0, words[word] - back)
        words[first + _STAMP] = now_ns
        return (
            self._tokens(first + _MESSAGES, rate.messages, rate.period_ns, now_ns),
            self._tokens(first + _BYTES, rate.size, rate.period_ns, now_ns),
        )

    def _tokens(self, word: int, rate: int, period_ns: int, now_ns: int) -> int:
        if rate <= 0:
            return BOUNDLESS
        return int((now_ns - max(self._words[word], now_ns - period_ns)) * rate // period_ns)

    def take(self, messages: int, size: int, now_ns: int) -> None:
        """Take tokens, more than there are if need be; give them back if negative. Under the lock."""
        rate, floor = self._rate(), now_ns - self._rate().period_ns
        for word, most, count in ((_MESSAGES, rate.messages, messages), (_BYTES, rate.size, size)):
            if most > 0 and count:
                empty = max(self._words[self._first + word], floor) + count * rate.period_ns // most
                self._words[self._first + word] = min(max(0, empty), _LONGEST_NS)

    def due_ns(self) -> int:
        """When the next token of each kind is there."""
        rate, due = self._rate(), 0
        for word, most in ((_MESSAGES, rate.messages), (_BYTES, rate.size)):
            if most > 0:
                due = max(due, self._words[self._first + word] + -(-rate.period_ns // most))
        return due


class RateLimiter:
    """The rates that hold for one producer or consumer together.

    Role: `reserve` takes tokens from each of them before anything is stored or read, and `settle` returns
    what was not used. Between the two a process may die: then the tokens of this one step are lost, and come
    back with time.
    Callers: any thread that may wait for the locks.

    Attributes:
        due_ns: when to look again after a `reserve` that got nothing, wall time; 0 otherwise.

    Args:
        rates: from the outermost lock to the innermost.
        wall_ns: the time.
        count: called with the messages and bytes of each step that were used; None for nothing.
    """

    __slots__ = ("_asked_ns", "_count", "_got", "_rates", "_wall_ns", "due_ns")

    def __init__(
        self,
        rates: Sequence[SharedRate],
        wall_ns: Callable[[], int],
        count: Callable[[int, int], object] | None = None,
    ) -> None:
        self._rates: Final = tuple(rates)
        self._wall_ns: Final = wall_ns
        self._count: Final = count
        self._got = (0, 0)
        self.due_ns = self._asked_ns = 0

    def reserve(self, messages: int, size: int) -> tuple[int, int]:
        """Take up to these numbers of messages and bytes. Returns what was taken; 0 and 0 if not both.

        Raises:
            LockTimeout: a lock was not free in time; nothing was taken.
        """
        now_ns, got = self._wall_ns(), (messages, size)
        taken: list[tuple[int, int]] = []
        try:
            for rate in self._rates:
                got = self._take(rate, *got, now_ns)
                taken.append(got)
                if not got[0]:
                    return got
            self.due_ns = 0
            self._got = got
            return got
        except BaseException:
            got = 0, 0
            raise
        finally:  # of those that had more
            for rate, (had, had_size) in zip(self._rates, taken, strict=False):
                self._change(rate, got[0] - had, got[1] - had_size, now_ns)

    def _take(self, rate: SharedRate, messages: int, size: int, now_ns: int) -> tuple[int, int]:
        try:
            rate.lock.acquire()
            room, room_size = rate.room(now_ns)
            if room <= 0 or room_size <= 0:
                if not self.due_ns:
                    rate.on_throttled()
                self._asked_ns, self.due_ns = now_ns, max(rate.due_ns(), now_ns + 1)
                return 0, 0
            messages, size = min(messages, room), min(size, room_size)
            rate.take(messages, size, now_ns)
            return messages, size
        finally:
            rate.lock.release()

    def _change(self, rate: SharedRate, messages: int, size: int, now_ns: int) -> None:
        if messages or size:
            try:
                rate.lock.acquire()
                rate.take(messages, size, now_ns)
            finally:
                rate.lock.release()

    def settle(self, messages: int, size: int) -> None:
        """Return what was taken and not used; negative for what was used in addition.

        Raises:
            LockTimeout: a lock was not free in time; some rates were not changed.
        """
        got, self._got = self._got, (0, 0)
        if messages or size:
            now_ns = self._wall_ns()
            for rate in self._rates:
                self._change(rate, -messages, -size, now_ns)
        if self._count is not None and got != (messages, size):
            self._count(got[0] - messages, got[1] - size)

    @property
    def is_waiting(self) -> bool:
        """Whether the last `reserve` got nothing, and it is not due again."""
        return self.left_ns > 0

    @property
    def left_ns(self) -> int:
        """Nanoseconds until `due_ns`; 0 or less if it is due. It is due at once when the clock was set back
        since the last `reserve`: the next one sets the times of the rate back, too."""
        now_ns = self._wall_ns()
        return self.due_ns - now_ns if now_ns >= self._asked_ns else 0

    @property
    def due_ms(self) -> int:
        """When to look again, in milliseconds, rounded up."""
        return -(-(self._wall_ns() + self.left_ns) // 1_000_000)
