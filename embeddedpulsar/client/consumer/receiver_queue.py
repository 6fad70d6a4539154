"""Messages fetched ahead for the application. Hot: `fill` makes the messages of whole batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Set
from typing import TYPE_CHECKING, Any, Final

from embeddedpulsar.exceptions import NotAllowedError
from embeddedpulsar.message import Message, Origin, is_skipped, messages_left, messages_of, size_of
from embeddedpulsar.platform import threads

if TYPE_CHECKING:
    from embeddedpulsar.format.entry import EntryView
    from embeddedpulsar.topic.policies.rate_limiter import RateLimiter

# The size of a processor cache: with a queue eight times as large, reading payloads of 1 MiB took three times
# as long (benchmarks/workloads/publish_1MiB.py).
_FETCH_BYTES: Final = 1 << 20

_AT_ONCE: Final = 256
"""Messages of batches that exist at a time. Each is an object of the garbage collector, which looks at all of
the youngest whenever there are 700: with a thousand at a time that took 6 % of receiving."""

VOID: Final = -1
"""The number of an entry whose messages are void; see `ReceiverQueue.drop`."""

Fetch = Callable[[int, int], "list[EntryView]"]


class ReceiverQueue:
    """A bounded queue between the log and the application.

    Role: consumers and readers take from `messages` without a lock (one atomic call each). A caller that
    finds it empty fills it under `lock`: from fetched batches whose messages are not made yet, else from the
    log. Nothing is fetched in the background, because reading a memory map is fast.

    Invariants: at most ``capacity`` messages are fetched ahead, plus the rest of the last batch, because
    entries are fetched whole; and no more than 1 MiB of payload, plus the last entry. While there are batches
    without messages, they follow all of `messages` in the log.

    Attributes:
        messages: those made and not taken.
        take: removes and returns the first message; raises IndexError when there is none.
        fetched: number of messages put into `messages` so far, without those that were dropped.
        fetched_bytes: the size of their payloads.
        prepare: called with each entry of several messages that is fetched; or None.
        voided: how often all fetched messages were dropped.
        limiter: the rates that fetching keeps; None without any.
    """

    __slots__ = (
        "__weakref__",
        "_capacity",
        "_fetch",
        "_fetch_all",
        "_is_filling",
        "_later",
        "_origin",
        "_part",
        "_start",
        "fetched",
        "fetched_bytes",
        "limiter",
        "lock",
        "messages",
        "prepare",
        "take",
        "voided",
    )

    def __init__(
        self,
        fetch: Fetch,
        capacity: int,
        origin: Origin,
        prepare: Callable[[EntryView], None] | None = None,
    ) -> None:
        self.lock = threads.RLock()
        self.messages: deque[Message[Any]] = deque()
        self._later: deque[EntryView] = deque()
        # A batch, and how many of its messages are made. That it is not the first any more says that all are:
        # an interrupt between two steps can so make messages twice, but none is left out.
        self._part: tuple[EntryView | None, int] = (None, 0)
        self.take = self.messages.popleft
        self.fetched = 0
        self.fetched_bytes = 0
        self.voided = 0
        self._fetch = self._fetch_all = fetch
        self.limiter: RateLimiter | None = None
        self._is_filling = False
        self._capacity = max(1, capacity)
        self._origin = origin
        self.prepare = prepare
        self._start: tuple[int, int, int] | None = None

    def __len__(self) -> int:
        """Number of messages fetched ahead, with those that are void."""
        return len(self.messages) + self._unmade

    @property
    def _unmade(self) -> int:
        later = list(self._later)  # a copy in one step: other threads may take from it
        view, made = self._part
        return sum(map(_count_left, later)) - (made if later and later[0] is view else 0)

    @property
    def ahead(self) -> int:
        """Number of valid messages fetched ahead. Slower than ``len``."""
        return len(self.valid()) + self._unmade

    @property
    def is_dry(self) -> bool:
        """Whether no message is fetched ahead."""
        return not self.messages and not self._later

    def start_within(self, ledger: int, entry: int, index: int) -> None:
        """Deliver an entry from message ``index`` on, even if it is fetched again. Call under the lock."""
        self._start = (ledger, entry, index) if index > 0 else None

    def first_within(self, ledger: int, entry: int) -> int:
        """Return the index of the first message of an entry to deliver; 0 for all. Call under the lock."""
        start = self._start
        return start[2] if start is not None and start[:2] == (ledger, entry) else 0

    def limit_by(self, limiter: RateLimiter | None) -> None:
        """Keep rates from the next fetch on; None for none. In any thread; takes no lock."""
        fetch = self._fetch_all

        def fetch_some(most: int, most_bytes: int) -> list[EntryView]:
            assert limiter is not None
            try:
                room, size = limiter.reserve(most, most_bytes)
            except ValueError:  # the words are not mapped any more: the fetch says why
                return fetch(most, most_bytes)
            if not room:
                return []
            views: list[EntryView] = []
            try:
                views = fetch(room, size)
            finally:
                room -= sum(view.count for view in views)
                limiter.settle(room, size - sum(view.offsets[-1] - view.offsets[0] for view in views))
            return views

        self.limiter = limiter
        self._fetch = fetch if limiter is None else fetch_some

    @property
    def is_throttled(self) -> bool:
        """Whether a rate was reached, and there is no room yet."""
        return self.limiter is not None and self.limiter.is_waiting

    def fill(self) -> bool:
        """Have the next messages in `messages`, and return whether there are any. Call under the lock.

        Raises:
            NotAllowedError: called by a signal handler during a call in the same thread.
        """
        if self._is_filling:
            raise NotAllowedError(
                "a signal handler (or finalizer) received while its own thread was fetching messages for the "
                "same consumer or reader; let the handler set a flag instead"
            )
        messages = self.messages
        if messages:
            return True
        try:
            self._is_filling = True
            if not self._later:
                self._fetch_more()
            if self._later:
                self._make()
        finally:
            self._is_filling = False
        return bool(messages)

    def _fetch_more(self) -> None:
        messages, later = self.messages, self._later
        new: Any = object.__new__
        prepare = self.prepare
        origin = self._origin
        views = self._fetch(self._capacity, _FETCH_BYTES)
        size = 0
        for view in views:
            if view.count == 1 and view.skip is None and not later:
                message = new(Message)  # as `messages_of`
                message._entry = view
                message._index = 0
                message._origin = origin
                messages.append(message)
                start, end = view.offsets
                size += end - start
                continue
            if prepare is not None:
                prepare(view)
            later.append(view)
        self.fetched += len(views) - len(later)
        self.fetched_bytes += size

    def _make(self) -> None:
        """Make messages of the fetched batches, as many as `_AT_ONCE` allows."""
        messages, later = self.messages, self._later
        while later and (room := _AT_ONCE - len(messages)) > 0:
            view = later[0]
            if view.skip is None and not self.first_within(view.ledger_id, view.entry_id):
                part, made = self._part
                first = made if part is view else 0
                end = min(first + room, view.count)
                messages.extend(messages_of(view, first, end, self._origin))
                self._part = view, end
                offsets = view.offsets
                self.fetched_bytes += offsets[end] - offsets[first]
                self.fetched += end - first
                if end < view.count:
                    return
            else:
                rest = self._some(view)
                messages.extend(rest)
                self.fetched_bytes += size_of(rest)
                self.fetched += len(rest)
            later.popleft()

    def clear(self) -> None:
        """Drop the fetched messages. Call under the lock."""
        self.voided += 1
        self._later.clear()
        if not self.messages:
            return
        dropped = self.valid()
        self.messages.clear()
        self.fetched -= len(dropped)
        self.fetched_bytes -= size_of(dropped)

    def drop(self, entries: Set[tuple[int, int]]) -> None:
        """Make the messages of some entries void. Call under the lock.

        They stay in the queue, because `take` needs no lock, and are skipped when they are taken.
        """
        dropped = []
        for message in self.valid():
            entry: Any = message._entry
            if (entry.ledger_id, entry.entry_id) in entries:
                dropped.append(message)
        for message in dropped:
            entry = message._entry
            entry.number = VOID
        self.fetched -= len(dropped)
        self.fetched_bytes -= size_of(dropped)
        for view in list(self._later):
            if (view.ledger_id, view.entry_id) in entries:
                self._later.remove(view)

    def valid(self) -> list[Message[Any]]:
        """Return the items of `messages` that are not void."""
        return [message for message in list(self.messages) if not _is_void(message)]

    def after_fork_in_child(self) -> None:
        self.lock = threads.RLock()
        self._is_filling = False
        self.messages.clear()
        self._later.clear()

    def _some(self, view: EntryView) -> list[Message[Any]]:
        """Return the messages of an entry that are not acknowledged, from the start position on."""
        first = self.first_within(view.ledger_id, view.entry_id)
        if first and view.acked is not None:
            view.acked[:first] = b"\x01" * min(first, view.count)
        return messages_left(view, view.skip, self._origin, first)


def _is_void(message: Message[Any]) -> bool:
    entry: Any = message._entry
    return bool(entry.number == VOID)


def _count_left(view: EntryView) -> int:
    skip = view.skip
    return view.count if skip is None else sum(not is_skipped(skip, i) for i in range(view.count))
