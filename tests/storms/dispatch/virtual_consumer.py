"""A consumer as a client has it, without threads: a queue, what the application holds, and sleep."""

from __future__ import annotations

from collections import deque
from typing import Any, Final, cast

from embeddedpulsar._engine.subscription.attachment.attachment import Attachment
from embeddedpulsar._engine.subscription.attachment.shared_attachment import SharedAttachment
from embeddedpulsar.message_id import Position
from tests.storms.dispatch.virtual_log import VirtualLog, VirtualView
from tests.storms.dispatch.virtual_process import VirtualProcess


class VirtualConsumer:
    """Role: does with an `Attachment` what `ConsumerCore` and `Delivery` do, one step at a time.

    Attributes:
        capacity: of its receiver queue.
        queue: fetched, and not given to the application.
        held: given to the application and not acknowledged, as far as the application knows.
        seen: entries of its present assignment that the application was given.
        is_willing: the application wants messages.
        may_start_over: something happened after which an active consumer begins at the first unacknowledged
            entry again.
        last: the entry it fetched last.
    """

    def __init__(
        self, process: VirtualProcess, log: VirtualLog, attachment: Attachment, capacity: int
    ) -> None:
        self.process: Final = process
        self.attachment: Final = attachment
        self.capacity: Final = capacity
        self.queue: deque[VirtualView] = deque()
        self.held: dict[Position, VirtualView] = {}
        self.seen: set[Position] = set()
        self.is_willing = True
        self.may_start_over = True
        self.last = Position(0, -1)
        self._log = log
        self._is_asleep = self._has_looked = self._has_armed = False
        self._looked_at: tuple[int, int, int] = (-1, -1, -1)
        self._due_ms = 0
        attachment.on_rewound = self.start_over
        attachment.on_switched = self._on_switched

    @property
    def is_awake(self) -> bool:
        """Whether it looks by itself: it does not sleep, was rung, or an entry is due."""
        if not self._is_asleep or self._looked_at[2] != self.process.rings:
            return True
        return 0 < self._due_ms <= self.process.now_ms()

    def wake(self) -> None:
        """The back-stop: it looks without being rung."""
        self._is_asleep = self._has_looked = False

    def start_over(self) -> None:
        """What was fetched is void."""
        self.queue.clear()
        self.held.clear()
        self.seen.clear()
        self.may_start_over = True
        self.wake()

    def _on_switched(self) -> None:
        self.queue.clear()
        self.may_start_over = True

    @property
    def has_looked(self) -> bool:
        """Whether it found nothing, and goes to sleep next."""
        return self._has_looked and not self.queue

    def poll(self, max_bytes: int) -> list[VirtualView]:
        """Fetch, if the queue is empty."""
        self._is_asleep = self._has_looked = False
        if self.queue:
            return []
        self._looked_at = (self._log.tail, self.attachment.version, self.process.rings)
        views = cast("list[VirtualView]", self.attachment.read(self.capacity, max_bytes))
        for view in views:
            self.seen.discard(Position(view.ledger_id, view.entry_id))
        self.queue.extend(views)
        self._has_looked = not views
        if views:
            self._leave(True)
        return views

    def stop_waiting(self) -> None:
        """The application does not want messages now, or the consumer is closed."""
        self.is_willing = False
        self._is_asleep = self._has_looked = False
        self._leave(False)

    def _leave(self, is_served: bool) -> None:
        if self._has_armed:
            self._has_armed = False
            self.process.waits.end_wait(self.attachment.key, self, self._looked_at[0], is_served)
            self.attachment.end_wait(is_served)

    def doze(self) -> None:
        """Go to sleep, unless something happened since it polled."""
        tail, version, rings = self._looked_at
        self._has_looked = False
        if self.queue or self._is_asleep or rings != self.process.rings:
            return
        self._has_armed = True
        attachment = self.attachment
        if attachment.awaits_appends and not self.process.waits.request_ring(tail, attachment.key, self):
            return
        if attachment.request_wakeup(version):
            self._is_asleep = True
            self._due_ms = attachment.due_ms()

    @property
    def sleeps(self) -> bool:
        """Whether only others, or the clock, can wake it."""
        return not self.is_awake

    def take(self) -> VirtualView | None:
        """Give the application the next entry; none if what was fetched turns out to be void."""
        while self.attachment.delivers_singly and self.queue:
            if self.attachment.handed(cast("Any", self.queue[0])):
                break
            cast("SharedAttachment", self.attachment).catch_up()
        if not self.queue:
            return None
        view = self.queue.popleft()
        position = Position(view.ledger_id, view.entry_id)
        self.held[position] = view
        self.seen.add(position)
        return view

    def forget(self, positions: list[Position]) -> None:
        """Entries are on their way back: they come anew if they come."""
        gone = set(positions)
        self.queue = deque(view for view in self.queue if Position(view.ledger_id, view.entry_id) not in gone)
        for position in positions:
            self.held.pop(position, None)
            self.seen.discard(position)

    def __repr__(self) -> str:
        return f"{self.attachment.name}#{self.attachment.consumer_id}@{self.process.uuid[0]}"
