"""asyncio loops that watch the doorbell of their process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from embeddedpulsar.platform import threads

_POLL_S: Final = 0.02
_STOP_S: Final = 1.0


class _Entry:
    """One loop and what it runs after a ring."""

    __slots__ = ("callbacks", "ident", "loop", "timer")

    def __init__(self, loop: Any) -> None:
        self.loop = loop
        self.ident = threads.current_id()
        self.callbacks: list[Callable[[], None] | None] = []
        self.timer: Any = None


class LoopWaiters:
    """Registry of the loops of one mailbox.

    Each loop has the doorbell's descriptor in its own selector, so that a process whose only waiters are
    coroutines needs no thread; where there is no descriptor to watch, the loop polls every 20 ms. ``look``
    is called in the loop's thread when the descriptor is readable, and returns whether it published a ring.
    Truth value: whether any loop is registered.

    Attributes:
        entries: the registered loops.
    """

    def __init__(self, fd: int, look: Callable[[], bool]) -> None:
        self._fd = fd
        self._look = look
        self.entries: dict[Any, _Entry] = {}

    def __bool__(self) -> bool:
        return bool(self.entries)

    def add(self, loop: Any, callback: Callable[[], None] | None) -> None:
        """Watch from ``loop``; call in its thread."""
        entry = self.entries.get(loop)
        if entry is None:
            entry = self.entries[loop] = _Entry(loop)
            if self._fd >= 0:
                loop.add_reader(self._fd, self._look)
            else:
                self._poll(entry)
        entry.callbacks.append(callback)

    def remove(self, loop: Any, callback: Callable[[], None] | None) -> None:
        """Undo one `add`; call in the loop's thread."""
        entry = self.entries.get(loop)
        if entry is None:
            return
        if callback in entry.callbacks:
            entry.callbacks.remove(callback)
        if not entry.callbacks:
            self._stop(entry)

    def remove_all(self) -> None:
        """Stop watching, from any thread; waits up to a second for each running loop of another thread.

        The descriptor must be out of the loop's selector before it is closed: its number may be reused at
        once.
        """
        for entry in list(self.entries.values()):
            if entry.ident == threads.current_id() or not entry.loop.is_running():
                self._stop(entry)
                continue
            stopped = threads.Event()
            self._call(entry, self._stop, entry)
            self._call(entry, stopped.set)
            stopped.wait(_STOP_S)

    def call_all(self) -> None:
        """Run the callbacks of every loop, each in its loop."""
        for entry in list(self.entries.values()):
            self._call(entry, self._run, entry)

    def forget(self) -> None:
        """Drop all entries without touching the loops: they are the parent's."""
        self.entries.clear()

    def _run(self, entry: _Entry) -> None:
        for callback in list(entry.callbacks):
            if callback is not None:
                callback()

    def _call(self, entry: _Entry, function: Callable[..., object], *arguments: object) -> None:
        try:
            entry.loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            self.entries.pop(entry.loop, None)  # the loop was closed without saying so

    def _stop(self, entry: _Entry) -> None:
        if entry.loop.is_closed():
            self.entries.pop(entry.loop, None)
            return
        if self.entries.pop(entry.loop, None) is None:
            return
        if self._fd >= 0:
            entry.loop.remove_reader(self._fd)
        elif entry.timer is not None:
            entry.timer.cancel()

    def _poll(self, entry: _Entry) -> None:
        try:
            self._look()
        finally:
            entry.timer = entry.loop.call_later(_POLL_S, self._poll, entry)
