"""Expiry of incomplete chunked messages, so that they do not hold back a subscription for ever."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from embeddedpulsar._engine.format.entry_decoder import EntryView
from embeddedpulsar._engine.log.position import Position
from embeddedpulsar._engine.platform import deadline, fork
from embeddedpulsar._engine.platform.scheduler import Backoff, is_idle
from embeddedpulsar.exceptions import (
    AlreadyClosed,
    ConsumerAssignError,
    ConsumerBusy,
    LockTimeout,
)
from embeddedpulsar.subscription.attachment.chunk_keeper import ChunkKeeper, Entry
from embeddedpulsar.subscription.shared_state import SharedState

if TYPE_CHECKING:
    from embeddedpulsar._engine.log.log import Log
    from embeddedpulsar._engine.platform.scheduler import Timer

_RETRY_S: Final = 1.0


class Timing(Protocol):
    """The part of `Membership` that measures time."""

    @property
    def monotonic(self) -> Callable[[], float]: ...
    @property
    def call_later(self) -> Callable[[float, Callable[[], object]], Timer]: ...


class ChunkExpiry:
    """Acknowledges the parts of messages whose last part does not come.

    Role: a timer while there are such parts. When the time of a message is over, the log is asked first: its
    last part may stand there and only not be read yet, or another consumer may have it; then it gets as much
    time again. On Shared and Key_Shared, parts whose reader died are found in the state. Callers: `arm`
    any thread, not under the subscription's lock; the rest runs in the timer thread.

    Args:
        keeper: what the consumer knows.
        log: the topic's.
        shared: the subscription's state.
        acknowledge: acknowledges entries in the consumer's name.
        is_usable: whether the consumer is still attached.
        time: has the clock and the timers.
        expire_ms: how long a last part may take; 0 for ever.
    """

    def __init__(
        self,
        keeper: ChunkKeeper,
        log: Log,
        shared: SharedState,
        acknowledge: Callable[[list[Entry]], object],
        is_usable: Callable[[], bool],
        time: Timing,
        expire_ms: int,
    ) -> None:
        self._keeper: Final = keeper
        self._log: Final = log
        self._shared: Final = shared
        self._acknowledge: Final = acknowledge
        self._is_usable: Final = is_usable
        self._monotonic: Final = time.monotonic
        self._call_later: Final = time.call_later
        self._expire_s: Final = expire_ms / 1000
        self._fork_generation: Final = fork.GENERATION
        self._timer: Timer | None = None
        self._armed_at = 0.0
        self._backoff: Final = Backoff()

    def arm(self) -> None:
        """Watch the parts that were read, so that they expire in time."""
        if self._expire_s and is_idle(self._timer):
            self._armed_at = self._monotonic()
            self._timer = self._call_later(self._expire_s, self._on_timer)

    def cancel(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _on_timer(self) -> None:
        self._timer = None
        if self._fork_generation != fork.GENERATION or not self._is_usable():
            return
        is_watched, wait_s = False, 0.0
        try:
            is_watched = deadline.try_now(self._look)
            self._backoff.reset()
        except LockTimeout:
            self._timer = self._call_later(self._backoff.next(), self._on_timer)
        except (AlreadyClosed, ConsumerBusy, ConsumerAssignError):
            return  # detached: others look after it
        except Exception:
            is_watched, wait_s = True, _RETRY_S
            raise  # to the log
        finally:
            if self._is_usable():
                self._go_on(is_watched, wait_s)

    def _go_on(self, is_watched: bool, wait_s: float) -> None:
        if not is_idle(self._timer) or not is_watched:
            return
        now, due = self._monotonic(), self._keeper.next_due()
        self._armed_at = now
        delay_s = self._expire_s if due is None else max(due - now, 0.0)
        self._timer = self._call_later(max(delay_s, wait_s, 0.001), self._on_timer)

    def _look(self) -> bool:
        """Acknowledge the parts of messages that expired. True if parts are left that may expire."""
        keeper = self._keeper
        known = keeper.known()
        parts = self._shared.transact(lambda state: state.dispatch.pending.parts())
        strange = [part for part in parts if part not in known]
        if strange:
            keeper.adopt(self._read(strange), self._armed_at)
        gone = []
        for one in keeper.expired():
            last = one.last or keeper.assembler.find_last(one.key, one.places)
            if last is not None and not self._is_acked(last):
                keeper.wait_on(one, last)
            else:
                gone.append(one)
        if gone:
            self._acknowledge([place for one in gone for place in sorted(one.places)])
            keeper.forget(gone)
        return bool(parts) or keeper.next_due() is not None

    def _is_acked(self, position: Position) -> bool:
        return self._shared.transact(lambda state: state.acks.is_acked(position))

    def _read(self, parts: list[Entry]) -> list[EntryView]:
        cursor = self._log.cursor(Position(0, 0), inclusive=True)
        found = []
        for part in parts:
            if cursor.position != part:
                cursor.seek(Position(*part))
            views = cursor.read(1, 1, 1)
            found += [view for view in views if (view.ledger_id, view.entry_id) == part and not view.count]
        return found
