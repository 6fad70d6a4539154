"""Waiting for messages, shared by consumers and readers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from embeddedpulsar.exceptions import AlreadyClosed, Timeout

if TYPE_CHECKING:
    from embeddedpulsar.client.receiver_queue import ReceiverQueue
    from embeddedpulsar.managed_ledger.managed_ledger import ManagedLedger
    from embeddedpulsar.message import Message
    from embeddedpulsar.platform.mailbox import Mailbox

# A wake-up may be lost with the process that should have sent it, and whoever moves a subscription wakes
# nobody: then this is how long it takes.
_BACK_STOP_S: Final = 0.1
_IDLE_AFTER_S: Final = 1.0
_IDLE_BACK_STOP_S: Final = 0.5


def back_stop(idle_s: float) -> float:
    """How long to sleep at most, after so long without a message."""
    return _BACK_STOP_S if idle_s < _IDLE_AFTER_S else _IDLE_BACK_STOP_S


class Source(Protocol):
    """Where messages are to be had: of one topic (`Delivery`), or of several."""

    closed_text: str

    @property
    def tail(self) -> Any: ...
    def arm(self, seen: Any, /) -> bool: ...
    def poll(self, take: Callable[[], Message[Any]]) -> Message[Any] | None: ...
    def wait(self, take: Callable[[], Message[Any]], timeout_ms: int | None) -> Message[Any]: ...


class Delivery:
    """Blocks until the queue has a message.

    Role: the slow path of every receive. It reads the doorbell's generation first and the tail second, then
    fills the queue, then asks to be rung at the next append, then sleeps: so an append between any two steps
    is never slept through.

    Any number of threads may wait. `close` wakes them at once if its caller rings; so does Ctrl-C, and a
    signal handler runs when its signal arrives.
    """

    __slots__ = ("_ledger", "_mailbox", "_monotonic", "_queue", "closed_text")

    def __init__(
        self, queue: ReceiverQueue, ledger: ManagedLedger, mailbox: Mailbox, monotonic: Callable[[], float]
    ) -> None:
        self._queue = queue
        self._ledger = ledger
        self._mailbox = mailbox
        self._monotonic = monotonic
        self.closed_text = ""

    def check_open(self) -> None:
        """Refuse a closed consumer or reader."""
        if self.closed_text:
            raise AlreadyClosed(self.closed_text)

    @property
    def tail(self) -> Any:
        """What to compare with later, to know whether anything came: see `arm`."""
        return self._ledger.tail

    def arm(self, seen: Any) -> bool:
        """Ask to be rung when something comes; False if something came since `tail` was ``seen``."""
        return self._ledger.arm(seen)

    def wait(self, take: Callable[[], Message[Any]], timeout_ms: int | None) -> Message[Any]:
        """Take a message, waiting for it.

        Raises:
            Timeout: there was none within ``timeout_ms``.
            AlreadyClosed: the consumer or reader is closed, or was closed meanwhile.
        """
        begun = -1.0
        while True:
            generation = self._mailbox.generation
            tail = self._ledger.tail
            message = self.poll(take)
            if message is not None:
                return message
            now = self._monotonic()
            if begun < 0:
                begun = now
            nap = back_stop(now - begun)
            if timeout_ms is not None:
                left = begun + timeout_ms / 1000 - now
                if left <= 0:
                    raise Timeout(f"no message within {timeout_ms} ms")
                nap = min(nap, left)
            # Where appends come fast, the first of these spins a little before it gives up.
            if not self._ledger.wait(tail, 0):
                self._mailbox.wait(generation, nap)

    def poll(self, take: Callable[[], Message[Any]]) -> Message[Any] | None:
        """Take a message if there is one, fetching as needed; None if there is none."""
        queue = self._queue
        try:
            queue.lock.acquire()
            while True:
                if self.closed_text:
                    self.check_open()
                if not queue.messages and not queue.fill():
                    return None
                try:
                    return take()
                except IndexError:
                    continue  # another thread was faster
        except AlreadyClosed as error:
            # Closed here; or somebody else detached the consumer, or deleted its subscription.
            self.closed_text = self.closed_text or str(error)
            raise
        finally:
            queue.lock.release()

    def close(self, text: str) -> None:
        """Let every later call fail with ``text``."""
        queue = self._queue
        try:
            queue.lock.acquire()
            self.closed_text = text
            queue.clear()
        finally:
            queue.lock.release()
