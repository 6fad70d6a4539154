"""Which messages belong to which window: pure, by numbers and times that the caller passes in."""

from __future__ import annotations

from collections import deque
from typing import Final, Generic, NamedTuple, TypeVar

from embeddedpulsar.functions.window_config import WindowConfig

Item = TypeVar("Item")


class Window(NamedTuple, Generic[Item]):
    """One window that is complete.

    Attributes:
        items: its messages, in the order of arrival.
        expired: those that belong to no later window.
    """

    items: list[Item]
    expired: list[Item]


class Windows(Generic[Item]):
    """The messages that belong to a window which is not complete yet.

    A window is complete when so many messages came, or so much time passed, as is between two windows. It has
    the last messages by number, or by the time of their arrival. Without a message there is no window.

    Args:
        config: lengths and intervals.
        now_ms: the time on the clock of the caller; windows of time are counted from there.

    Example:
        >>> windows = Windows(WindowConfig(window_length_count=3, sliding_interval_count=2), 0)
        >>> [windows.add(item, 0) for item in "abcd"]
        [None, Window(items=['a', 'b'], expired=['a']), None, Window(items=['b', 'c', 'd'], ...)]
    """

    def __init__(self, config: WindowConfig, now_ms: float) -> None:
        self._length: Final = config.window_length_count
        self._length_ms: Final = config.window_length_duration_ms
        self._interval: Final = config.interval_count
        self._interval_ms: Final = config.interval_ms
        self._items: deque[tuple[float, Item]] = deque()
        self._new = 0
        self._due_ms = now_ms + (self._interval_ms or 0)

    @property
    def due_ms(self) -> float | None:
        """When the next window is complete by time; None if messages are counted."""
        return None if self._interval_ms is None else self._due_ms

    def add(self, item: Item, now_ms: float) -> Window[Item] | None:
        """A message comes; the window that it completes, if any. `poll` comes first."""
        self._items.append((now_ms, item))
        self._new += 1
        if self._interval is None or self._new < self._interval:
            return None
        self._new = 0
        return self._complete(now_ms)

    def poll(self, now_ms: float) -> Window[Item] | None:
        """The window that time has completed, if any; to be called until there is none."""
        if self._interval_ms is None or now_ms < self._due_ms:
            return None
        end_ms, self._due_ms = self._due_ms, self._due_ms + self._interval_ms
        if not self._items:  # windows without messages need no calls
            missed = (now_ms - self._due_ms) // self._interval_ms + 1
            self._due_ms += max(0.0, missed) * self._interval_ms
            return None
        return self._complete(end_ms)

    def drop(self, items: list[Item]) -> None:
        """Forget messages that come again."""
        gone = set(map(id, items))
        self._items = deque(one for one in self._items if id(one[1]) not in gone)

    def _complete(self, end_ms: float) -> Window[Item] | None:
        items = self._items
        if self._length is not None:
            first, keep = len(items) - self._length, self._length - (self._interval or 0)
            window = [item for _, item in list(items)[max(0, first) :]]
            left = len(items) - max(0, keep)
        else:
            assert self._length_ms is not None
            begin_ms = end_ms - self._length_ms
            if self._interval_ms is None:  # it ends with the message that completes it
                window = [item for at_ms, item in items if at_ms > begin_ms]
                left = len(items) - len(window)
            else:  # it ends before the messages that come at its end
                window = [item for at_ms, item in items if begin_ms <= at_ms < end_ms]
                left = sum(at_ms < begin_ms + self._interval_ms for at_ms, _ in items)
        expired = [items.popleft()[1] for _ in range(max(0, left))]
        return Window(window, expired) if window or expired else None
