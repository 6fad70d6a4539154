"""Several C calls as one call, which no interrupt can split.

CPython delivers signals (and so KeyboardInterrupt) between bytecodes: after every call and at the head of
every Python function. A Python function that gives a lock back can therefore be interrupted before its first
line, and the lock stays taken for ever. One call into C cannot: these helpers chain C callables with C
iterators, so that the whole chain runs inside a single bytecode. What they return takes no argument and may
be called from any number of threads.

Only callables implemented in C keep the promise (bound methods of builtin types, builtin functions, other
chains).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

Step = Callable[[], object]
_NEVER = object()


def results(step: Step) -> Iterator[object]:
    """An endless iterator whose every ``next`` calls ``step``."""
    return iter(step, _NEVER)


def in_order(*steps: Step | Iterator[object]) -> Step:
    """One call that runs ``steps`` in order. A step that raises ends it, and the exception comes out.

    >>> from itertools import repeat
    >>> done = []
    >>> both = in_order(results(done.reverse), map(done.append, repeat(1)))
    >>> both(), done
    ((None, None), [1])
    """
    iterators = [step if isinstance(step, Iterator) else results(step) for step in steps]
    return zip(*iterators, strict=False).__next__


def choose(table: list[Iterator[object]], selector: Callable[[], int]) -> Step:
    """One call that takes the next item of ``table[selector()]`` and returns it.

    It nests two calls deeper than what is chosen, and makes no object. (An item of a tuple would: its
    arguments.)

    >>> from itertools import repeat
    >>> full = [7]
    >>> choose([repeat(None), results(full.pop)], full.__len__)()
    7
    """
    return map(next, map(table.__getitem__, results(selector))).__next__  # type: ignore[arg-type]


def store(words: memoryview, values: dict[int, int]) -> None:
    """Store words in the order of ``values``, which has their indexes; all of them, or none.

    >>> words = memoryview(bytearray(16)).cast("Q")
    >>> store(words, {1: 7, 0: 5})
    >>> words.tolist()
    [5, 7]
    """
    deque(map(words.__setitem__, values.keys(), values.values()), 0)


def count_of(lock: object) -> Callable[[], int]:
    """How often the calling thread holds the ``threading.RLock`` ``lock`` (0: not at all), as a C callable.

    CPython before 3.11.5 has no such method; there the count is a Python function, right but divisible.
    """
    counter: Callable[[], int] | None = getattr(lock, "_recursion_count", None)
    return counter if counter is not None else _CountByProbing(lock)


class _CountByProbing:
    """The count of an RLock without such a method: release until it is no longer ours, then take it back."""

    def __init__(self, lock: object) -> None:
        self._lock = lock

    def __call__(self) -> int:
        lock = self._lock
        if not lock._is_owned():  # type: ignore[attr-defined]
            return 0
        count, _ = state = lock._release_save()  # type: ignore[attr-defined]
        lock._acquire_restore(state)  # type: ignore[attr-defined]
        return int(count)
