"""Keeps a subscription free of dead consumers, and shows that those of this process live."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from embeddedpulsar.exceptions import LockTimeout, PulsarException
from embeddedpulsar.platform import threads
from embeddedpulsar.platform.background import BackgroundWork
from embeddedpulsar.platform.processes.mailbox import Mailbox
from embeddedpulsar.platform.scheduler import SchedulerLike
from embeddedpulsar.subscription.liveness.keep_alives import KeepAlives
from embeddedpulsar.subscription.liveness.watch_ring import WatchRing

if TYPE_CHECKING:
    from embeddedpulsar.subscription.attachment.attachment import Attachment


class LivenessMonitor:
    """Keeps a subscription free of consumers that are gone.

    Role: while this process has consumers of the subscription it shows that they live, three times in each
    keep-alive interval, looks for others that do not, and watches the processes behind its own (`WatchRing`):
    the kernel reports a death within a millisecond or two. Invariants: it waits for no lock of the
    subscription: what needs that lock is tried, and tried again by a timer. Callers: any thread, holding
    no lock.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        scheduler: SchedulerLike,
        keep_alives: KeepAlives,
        detach_lost: Callable[[], object],
    ) -> None:
        self._mailbox: Final = mailbox
        self._beat: Final = scheduler.beat(keep_alives.beat_s) if keep_alives.beat_s > 0 else None
        self._detach_lost: Final = detach_lost
        self.watch_ring: WatchRing | None = None
        """The processes to look after; set when the subscription is open."""
        self._lock: Final = threads.RLock()  # guards everything below
        self._ours: dict[int, weakref.ref[Attachment]] = {}  # a consumer that is dropped is closed elsewhere
        self._watched: set[bytes] = set()
        self._looking: Final = BackgroundWork(scheduler.call_later, self._look)
        self._tidying: Final = BackgroundWork(scheduler.call_later, self._tidy)
        self._checking: Final = BackgroundWork(scheduler.call_later, self._check)

    def begin(self, attachment: Attachment) -> None:
        """Watch over a consumer that attached in this process."""
        try:
            self._lock.acquire()
            self._ours[id(attachment)] = weakref.ref(attachment)
            attachment.on_left = self._forget
            if self._beat is not None:
                self._beat.join(self._on_beat)
        finally:
            self._lock.release()
        self.look()

    def _forget(self, attachment: Attachment) -> None:
        try:
            self._lock.acquire()
            self._ours.pop(id(attachment), None)
        finally:
            self._lock.release()

    def _on_beat(self) -> None:
        try:
            self._lock.acquire()
            attached = self._attached()
            if len(attached) < len(self._ours):
                self._ours = {id(one): weakref.ref(one) for one in attached}
            if not attached:
                self._rest()
                return
            for attachment in attached:
                attachment.show_alive()
        finally:
            self._lock.release()
        self._mailbox.tend()
        if self.watch_ring is not None and self.watch_ring.has_others():
            self._checking.run()

    def _rest(self) -> None:
        if self._beat is not None:
            self._beat.leave(self._on_beat)

    def _check(self) -> None:
        if self.watch_ring is not None and self.watch_ring.has_lost():
            self._tidying.run()

    def _tidy(self) -> None:
        try:
            self._detach_lost()
        except LockTimeout:
            raise  # tried again
        except PulsarException:
            return  # the subscription is gone; its users get the error
        self.look()

    def show_alive(self) -> None:
        """Show that our consumers live, however long this process was stopped, lest others detach them."""
        for attachment in self._attached():
            attachment.show_alive()

    def _attached(self) -> list[Attachment]:
        found = [reference() for reference in list(self._ours.values())]
        return [one for one in found if one is not None and one.is_attached]

    def look(self) -> None:
        """Watch the processes there are now, after consumers came or went, or as soon as the lock is free."""
        self._looking.run()

    def _look(self) -> None:
        try:
            self._lock.acquire()
            wanted = self.watch_ring.neighbours() if self._ours and self.watch_ring is not None else set()
            for uuid in self._watched - wanted:
                self._mailbox.unwatch(uuid, self._on_death)
            fresh = wanted - self._watched
            self._watched = wanted
        finally:
            self._lock.release()
        for uuid in fresh:
            try:
                self._mailbox.watch(uuid, self._on_death)
            except OSError:
                self._watched.discard(uuid)  # no descriptor to spare: the timer looks after it

    def _on_death(self, uuid: bytes) -> None:
        self._watched.discard(uuid)
        self._tidying.run()

    def end(self) -> None:
        """Stop watching. Idempotent."""
        try:
            self._lock.acquire()
            self._ours = {}
            self._rest()
        finally:
            self._lock.release()
        self._look()
        self._looking.cancel()
        self._tidying.cancel()
        self._checking.cancel()
