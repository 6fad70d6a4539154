"""Which messages belong to which window: pure, by numbers and times that the caller passes in.

Which messages belong to which window of event time: pure, by the times that the caller passes in.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from operator import itemgetter
from typing import Final, Generic, NamedTuple, TypeVar

from embeddedpulsar.functions.function_config import WindowConfig

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
        # With an interval of time, only `poll` completes windows.
        if self._interval is None or self._new < self._interval:
            return None
        self._new = 0
        return self._complete(now_ms)

    def poll(self, now_ms: float) -> Window[Item] | None:
        """The window that time has completed, if any; to be called until there is none."""
        if self._interval_ms is None or now_ms < self._due_ms:
            return None
        # One window at a time: after a pause the caller polls for each that was missed, in order.
        end_ms, self._due_ms = self._due_ms, self._due_ms + self._interval_ms
        if not self._items:  # windows without messages need no calls
            # All intervals that passed without a message at once, by a division: a loop over them could take
            # long after a pause.
            missed = (now_ms - self._due_ms) // self._interval_ms + 1
            self._due_ms += max(0.0, missed) * self._interval_ms
            return None
        return self._complete(end_ms)

    def drop(self, items: list[Item]) -> None:
        """Forget messages that come again."""
        # By identity: two messages may be equal.
        gone = set(map(id, items))
        self._items = deque(entry for entry in self._items if id(entry[1]) not in gone)

    def _complete(self, end_ms: float) -> Window[Item] | None:
        items = self._items
        if self._length is not None:
            # The last `length` messages are the window. The next one is complete after `interval` further
            # ones, so of these the newest `length - interval` stay. With an interval of time their number is
            # not known, and all of the length stay.
            first, keep = len(items) - self._length, self._length - (self._interval or 0)
            window = [item for _, item in list(items)[max(0, first) :]]
            expired_count = len(items) - max(0, keep)
        else:
            assert self._length_ms is not None
            begin_ms = end_ms - self._length_ms
            if self._interval_ms is None:  # it ends with the message that completes it
                window = [item for at_ms, item in items if at_ms > begin_ms]
                expired_count = len(items) - len(window)
            else:  # it ends before the messages that come at its end
                window = [item for at_ms, item in items if begin_ms <= at_ms < end_ms]
                # Those before the beginning of the next window.
                expired_count = sum(at_ms < begin_ms + self._interval_ms for at_ms, _ in items)
        expired = [items.popleft()[1] for _ in range(max(0, expired_count))]
        # A window without messages is no call, but messages that expire have to be acknowledged.
        return Window(window, expired) if window or expired else None


_EMIT_MS: Final = 1000


class EventWindows(Generic[Item]):
    """The messages that belong to a window which is not complete yet, by their timestamps.

    The watermark is the newest timestamp of each input, the least of these, less the lag: older messages are
    late. It is moved at intervals on the clock of the caller, once each input had a message. A window is
    complete when its end is not behind the watermark. It has the messages in the order of their timestamps.
    Messages that are delivered again are never late: they form windows anew.

    Args:
        config: with durations.
        inputs: how many topics there are.
        now_ms: the time on the clock of the caller.

    Example:
        >>> windows = EventWindows(WindowConfig(window_length_duration_ms=10), 1, 0)
        >>> [windows.add(item, at_ms, "in") for item, at_ms in (("b", 7), ("a", 3), ("c", 12))]
        [True, True, True]
        >>> windows.poll(1000), windows.poll(1000)
        (Window(items=['a', 'b'], expired=['a', 'b']), None)
        >>> windows.add("late", 9, "in")
        False
    """

    def __init__(self, config: WindowConfig, inputs: int, now_ms: float) -> None:
        assert config.window_length_duration_ms is not None
        self._length_ms: Final = config.window_length_duration_ms
        self._interval_ms: Final = config.sliding_interval_duration_ms or self._length_ms
        self._lag_ms: Final = config.max_lag_ms or 0
        self._emit_ms: Final = config.watermark_emit_interval_ms or _EMIT_MS
        self._inputs: Final = inputs
        self._newest: Final[dict[str, float]] = {}
        self._items: list[tuple[float, Item]] = []  # in the order of timestamps, then of arrival
        self._watermark = -math.inf
        self._next_end = -math.inf
        self._again_end = -math.inf  # the next one of messages that are delivered again
        self._due_ms = now_ms + self._emit_ms
        self._is_looking = False

    @property
    def due_ms(self) -> float:
        """When the watermark is moved next."""
        return self._due_ms

    def add(self, item: Item, at_ms: float, topic: str, *, is_again: bool = False) -> bool:
        """A message comes, with its timestamp and its topic. False if it is late, and in no window."""
        # Late messages and repeated ones count as well: they say that their input lives.
        self._newest[topic] = max(at_ms, self._newest.get(topic, -math.inf))
        if is_again:
            # The windows of repeated messages begin with the oldest one, which may be this.
            self._again_end = -math.inf
        elif at_ms < self._watermark or self._is_behind(at_ms):
            return False
        insort(self._items, (at_ms, item), key=itemgetter(0))
        return True

    def poll(self, now_ms: float) -> Window[Item] | None:
        """The next window that is complete, if any; to be called until there is none."""
        # The watermark moves at intervals, not with each message: a message that is a little behind the
        # newest is then still in time. Once it has moved, all windows that it completes are given out, one
        # for each call.
        if now_ms >= self._due_ms:
            self._due_ms, self._is_looking = now_ms + self._emit_ms, True
            # An input without a message yet may have an old one: nothing is complete before it came.
            if len(self._newest) >= self._inputs:
                self._watermark = max(self._watermark, min(self._newest.values()) - self._lag_ms)
        window = self._complete() if self._is_looking and self._items else None
        self._is_looking = window is not None
        return window

    def _complete(self) -> Window[Item] | None:
        # There are two series of windows: that of messages which came first, and behind it one for messages
        # that are delivered again, whose windows were given out before. The oldest message decides which one
        # is next.
        items, interval_ms = self._items, self._interval_ms
        is_again = self._is_behind(items[0][0])
        least_ms = self._again_end if is_again else self._next_end
        # Windows without messages are left out: to the first that has the oldest one.
        end_ms = max(least_ms, math.ceil(items[0][0] / interval_ms) * interval_ms)
        if end_ms > self._watermark:
            return None
        following_ms = end_ms + interval_ms
        if is_again:
            self._again_end = following_ms
        else:
            self._next_end, self._again_end = following_ms, -math.inf
        # Behind the beginning, up to the end: a timestamp that is a multiple of the interval ends a window.
        window = [item for at_ms, item in items if end_ms - self._length_ms < at_ms <= end_ms]
        expired_count = sum(at_ms <= following_ms - self._length_ms for at_ms, _ in items)
        self._items = items[expired_count:]
        return Window(window, [item for _, item in items[:expired_count]])

    def _is_behind(self, at_ms: float) -> bool:
        """Whether all windows with this timestamp are over."""
        return at_ms <= self._next_end - self._length_ms

    def drop(self, gone: list[Item]) -> None:
        """Forget messages that come again."""
        # By identity: two messages may be equal.
        ids = set(map(id, gone))
        self._items = [entry for entry in self._items if id(entry[1]) not in ids]
