"""Keeps a subscription free of dead consumers, and shows that those of this process live.

Which consumers have to be detached. Decisions on a caught-up state, inside a transaction of their own.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Collection, Sequence
from functools import cached_property, partial

from embeddedpulsar._engine.format.acknowledgement import FORM_RANGE, Ack, AckGroup
from embeddedpulsar._engine.format.control import ConsumerSlotWord
from embeddedpulsar._engine.format.subscription_record import (
    DETACH_CLOSED,
    DETACH_DEAD,
    DETACH_SILENT,
    Command,
    Detach,
)
from embeddedpulsar._engine.platform import threads, timing
from embeddedpulsar._engine.platform.mailbox import Mailbox
from embeddedpulsar._engine.platform.peers import Peers
from embeddedpulsar._engine.platform.timing import (
    FIRST_PAUSE_S,
    BackgroundWork,
    CallLater,
    Clock,
    SchedulerLike,
)
from embeddedpulsar._engine.subscription.ack_ring import with_unwritten_acks
from embeddedpulsar._engine.subscription.log_queries import ledgers_of
from embeddedpulsar._engine.subscription.shared_state import SharedState
from embeddedpulsar._engine.subscription.state.dispatch_state import Consumer
from embeddedpulsar._engine.subscription.state.replica import SubscriptionState
from embeddedpulsar._engine.subscription.subscription_files import SubscriptionControl
from embeddedpulsar.exceptions import (
    ConsumerAssignError,
    ConsumerBusy,
    LockTimeout,
    PulsarException,
    StoreGoneError,
)
from embeddedpulsar.records import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from typing import Final

    from embeddedpulsar._engine.log.log import Log
    from embeddedpulsar._engine.subscription.attachment.attachment import Attachment


WATCHED: Final = 3
"""Processes behind it that each process watches: the kernel reports their death."""
PROBED: Final = 8
"""Processes whose lease it tries, each time it looks."""
BEATS: Final = 3
"""How often a process shows itself in each keep-alive interval."""
_NAPS: Final = 8
_ROUNDING_S: Final = 1e-3
_ALIVE: Final = ConsumerSlotWord.ALIVE_MS

R = TypeVar("R")


class _Seen(NamedTuple):
    """The word of a consumer, and for how long it has not changed."""

    word: int
    stands_s: float


class KeepAlives:
    """Measures, on the clock of this process, for how long the words of others have not changed.

    Role: a process shows that it runs by changing a word in the slot of each of its consumers, three times
    in each keep-alive interval; this finds consumers that did not for a whole one. Invariants: no decision
    compares the clocks of two processes: they may be of different time namespaces. Time counts only while
    this process looks: of the time between two looks a beat at most, and after two beats without a look all
    begins anew. A process that was stopped itself, alone or with all the others, cannot know how long they
    were silent. Callers: any thread.
    """

    def __init__(self, keep_alive_s: float, clock: Clock) -> None:
        self.beat_s: Final = keep_alive_s / BEATS
        self._keep_alive_s: Final = keep_alive_s
        self._clock: Final = clock
        self._lock: Final = threads.RLock()  # guards everything below
        self._looked_at = -1.0
        self._seen: dict[int, _Seen] = {}  # by consumer id

    def find_silent(self, state: SubscriptionState, control: SubscriptionControl) -> set[int]:
        """Ids of the consumers that were silent for a whole interval. Without the lock of the subscription
        they are those of the last transaction."""
        if self._keep_alive_s <= 0:
            return set()
        try:
            self._lock.acquire()
            now = self._clock.monotonic()
            gap = now - self._looked_at
            # After so long without a look this process may have been stopped itself, and says nothing
            # about others.
            is_new = self._looked_at < 0 or gap > 2 * self.beat_s
            before: dict[int, _Seen] = {} if is_new else self._seen
            seen_now: dict[int, _Seen] = {}
            for consumer in state.consumers.all():
                word = control.slot_word(consumer.code, consumer.consumer_id, _ALIVE)
                last = before.get(consumer.consumer_id)
                # Of a gap a beat counts at most, as this process may have been stopped for the rest
                # of it.
                stands_s = last.stands_s + min(gap, self.beat_s) if last and last.word == word else 0.0
                seen_now[consumer.consumer_id] = _Seen(word, stands_s)
            self._seen, self._looked_at = seen_now, now
        finally:
            self._lock.release()
        enough_s = self._keep_alive_s - _ROUNDING_S
        # The word is 0 if a recovery cleared the slot, which says nothing of the consumer. The sum of
        # the beats may be a little below the interval by rounding.
        return {who for who, seen in seen_now.items() if seen.word and seen.stands_s >= enough_s}

    def _suspects(self) -> set[int]:
        """Consumers that may have been silent before this process looked: their word would be old, or in the
        future, on our clock. That is only a hint."""
        now_ms = self._clock.monotonic() * 1000
        oldest, latest = now_ms - self._keep_alive_s * 1000, now_ms + self.beat_s * 1000
        return {
            consumer_id
            for consumer_id, seen in self._seen.items()
            if seen.word and not oldest <= seen.word <= latest
        }

    def patiently(self, attempt: Callable[[], R], look: Callable[[], object]) -> R:
        """Attach a consumer; if it is refused because of silent ones, once more.

        Args:
            attempt: attaches it.
            look: calls `find_silent` inside a transaction.
        """
        try:
            return attempt()
        except (ConsumerBusy, ConsumerAssignError):
            if not self._watch(look):
                raise
        return attempt()

    def _watch(self, look: Callable[[], object]) -> bool:
        """Find out whether consumers are silent, by watching those that are suspect: for up to two beats, and
        no longer than the present call has. Returns: whether some are; the next `find_silent` names them."""
        suspects = self._suspects() if self._keep_alive_s > 0 else set()
        words = {consumer_id: self._seen[consumer_id].word for consumer_id in suspects}
        # Two beats in naps of an eighth. After a nap that took longer than a beat the count begins
        # anew, because this process was stopped.
        naps = 0
        while words and naps < 2 * _NAPS and timing.left(self._keep_alive_s) > 0:
            began = self._clock.monotonic()
            self._clock.sleep(self.beat_s / _NAPS)
            look()
            was_late = self._clock.monotonic() - began > self.beat_s
            naps = 0 if was_late else naps + 1
            seen = self._seen
            # A consumer whose word has changed, or that left, is suspect no more.
            words = {
                consumer_id: word
                for consumer_id, word in words.items()
                if consumer_id in seen and seen[consumer_id].word == word
            }
        if naps < 2 * _NAPS:
            return False
        # Stored where `find_silent` continues, so that the next attempt finds them silent for a whole
        # interval.
        for consumer_id in words:
            self._seen[consumer_id] = self._seen[consumer_id]._replace(stands_s=self._keep_alive_s)
        return True


class WatchRing:
    """The processes of one subscription in the order in which they attached, as a ring.

    Role: each process watches the few that stand behind it, so that all are watched by some and none has
    hundreds of descriptors; now and then it also tries the leases of a few others in turn, and reads which
    consumers were silent. Every change of a neighbour wakes the process before it. Callers: any thread.
    """

    __slots__ = ("_keep_alives", "_next", "_peers", "_shared", "_uuid")

    def __init__(self, shared: SharedState, uuid: bytes, peers: Peers, keep_alives: KeepAlives) -> None:
        self._shared: Final = shared
        self._uuid: Final = uuid
        self._peers: Final = peers
        self._keep_alives: Final = keep_alives
        self._next = 0

    def neighbours(self) -> set[bytes]:
        """Leases of the processes to watch, of those there were at the last transaction. Takes no lock."""
        shared = self._shared
        if shared.control.closed or shared.is_foreign:
            return set()
        ring = processes_of(shared.state.consumers.all())
        if self._uuid not in ring:
            return set()
        at = ring.index(self._uuid)
        # The next ones in the ring, round its end.
        return set((ring[at + 1 :] + ring[:at])[:WATCHED])

    def has_others(self) -> bool:
        """Whether other processes had consumers at the last transaction. Lock-free."""
        # Of a copy: a thread that applies commands meanwhile may add consumers, and `each` then fails.
        return any(consumer.client_uuid != self._uuid for consumer in self._shared.state.consumers.all())

    def has_lost(self) -> bool:
        """Whether a consumer seems to be dead or silent: then all are looked at under the lock. Takes no
        lock, and replays nothing: it looks at the consumers there were at the last transaction."""
        shared = self._shared
        if shared.control.closed or shared.is_foreign:
            return False
        try:
            silent = self._keep_alives.find_silent(shared.state, shared.control)
        except ValueError:
            return False  # closed meanwhile
        return bool(silent) or self._is_any_dead(processes_of(shared.state.consumers.all()))

    def _is_any_dead(self, ring: list[bytes]) -> bool:
        # In turn: after a few beats each process was tried, however many there are.
        first, self._next = self._next, self._next + PROBED
        probed = {ring[(first + number) % len(ring)] for number in range(PROBED)} if ring else ()
        return not all(map(self._peers.is_alive, probed))


def processes_of(consumers: list[Consumer]) -> list[bytes]:
    """Leases of the processes of consumers, each once, in order."""
    return list(dict.fromkeys([consumer.client_uuid for consumer in consumers]))


def bereft(ring: list[bytes], staying_ring: list[bytes]) -> set[bytes]:
    """The processes of a ring that have another one behind them, now that only ``staying_ring`` is left.

    >>> bereft([b"a", b"b", b"c", b"d"], [b"b", b"d"]) == {b"b", b"d"}
    True
    >>> bereft([b"a", b"b", b"c"], [b"a", b"b"])
    {b'b'}
    """
    staying = set(staying_ring)
    deprived, last = set(), staying_ring[-1:]
    # ``last`` is the nearest one before that stays. Before the first of those that stay it is the
    # last of them, as this is a ring.
    for uuid in ring:
        if uuid in staying:
            last = [uuid]
        else:
            deprived.update(last)
    return deprived


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
        detach_lost: Callable[[bool], object],
    ) -> None:
        self._mailbox: Final = mailbox
        self._beat: Final = scheduler.beat(keep_alives.beat_s) if keep_alives.beat_s > 0 else None
        self._detach_lost: Final = detach_lost
        self.watch_ring: WatchRing | None = None
        """The processes to look after; set when the subscription is open."""
        self._lock: Final = threads.RLock()  # guards everything below
        self._ours: dict[int, weakref.ref[Attachment]] = {}  # a consumer that is dropped is closed elsewhere
        self._watched: set[bytes] = set()
        self._looks = 0
        self._call_later: Final = scheduler.call_later
        self._looking: Final = BackgroundWork(scheduler.call_later, self._update_watches)

    # Made when others are there, of whom most subscriptions of a process never hear.

    @cached_property
    def _tidying(self) -> BackgroundWork:
        return BackgroundWork(self._call_later, partial(self._tidy, True))

    @cached_property
    def _detaching_dead(self) -> BackgroundWork:
        return BackgroundWork(self._call_later, partial(self._tidy, False))

    @cached_property
    def _checking(self) -> BackgroundWork:
        return BackgroundWork(self._call_later, self._check)

    def begin(self, attachment: Attachment) -> None:
        """Watch over a consumer that attached in this process."""
        try:
            self._lock.acquire()
            self._ours[id(attachment)] = weakref.ref(attachment)
            # Its entry in `_ours` goes when it leaves, or at the next beat if it was dropped without
            # that.
            attachment.on_left = self._drop
            if self._beat is not None:
                self._beat.add(self._on_beat)
        finally:
            self._lock.release()
        self.watch_neighbours()

    def _drop(self, attachment: Attachment) -> None:
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
                self._ours = {id(own): weakref.ref(own) for own in attached}
            # Nothing to show any more; `begin` starts the beat again.
            if not attached:
                self._stop_beat()
                return
            for attachment in attached:
                attachment.show_alive()
        finally:
            self._lock.release()
        self._mailbox.tend()
        # Without other processes there is nothing to look for.
        if self.watch_ring is not None and self.watch_ring.has_others():
            self._checking.run()

    def _stop_beat(self) -> None:
        if self._beat is not None:
            self._beat.remove(self._on_beat)

    def _check(self) -> None:
        if self.watch_ring is not None and self.watch_ring.has_lost():
            self._tidying.run()

    def _tidy(self, with_silent: bool) -> None:
        looks = self._looks
        try:
            self._detach_lost(with_silent)
        except LockTimeout:
            raise  # tried again
        except PulsarException:
            return  # the subscription is gone; its users get the error
        if self._looks == looks:  # a consumer that left had it look already, before the first redelivery
            self.watch_neighbours()

    def show_alive(self) -> None:
        """Show that our consumers live, however long this process was stopped, lest others detach them."""
        for reference in list(self._ours.values()):
            attachment = reference()
            if attachment is not None:
                attachment.show_alive()

    def _attached(self) -> list[Attachment]:
        attachments = [reference() for reference in list(self._ours.values())]
        return [attachment for attachment in attachments if attachment is not None and attachment.is_attached]

    def watch_neighbours(self) -> None:
        """Watch the processes there are now, after consumers came or went, or as soon as the lock is free."""
        if self._ours or self._watched:  # else none of this process needs to know, and none is watched
            self._looking.run()

    def _update_watches(self) -> None:
        try:
            self._lock.acquire()
            self._looks += 1
            wanted = self.watch_ring.neighbours() if self._ours and self.watch_ring is not None else set()
            for uuid in self._watched - wanted:
                self._mailbox.unwatch(uuid, self._on_death)
            fresh = wanted - self._watched
            self._watched = wanted
        finally:
            self._lock.release()
        # `_watched` has them already: a death that is reported at once takes its process out again.
        for uuid in fresh:
            try:
                self._mailbox.watch(uuid, self._on_death)
            except OSError:
                self._watched.discard(uuid)  # no descriptor to spare: the timer looks after it

    def _on_death(self, uuid: bytes) -> None:
        self._watched.discard(uuid)
        self._detaching_dead.run()

    def end(self) -> None:
        """Stop watching. Idempotent."""
        try:
            self._lock.acquire()
            self._ours = {}
            self._stop_beat()
        finally:
            self._lock.release()
        self._update_watches()
        self._looking.cancel()
        self._tidying.cancel()
        self._detaching_dead.cancel()
        self._checking.cancel()


_DETACH_TIMEOUT_S: Final = 0.2


def detach_commands_for_dead(
    state: SubscriptionState, control: SubscriptionControl, is_alive: Callable[[bytes], bool]
) -> list[Detach]:
    """Take out consumers whose process is gone; the kernel says which, by their leases."""
    return [
        detach_command(state, control, consumer.consumer_id, DETACH_DEAD)
        for consumer in state.consumers.all()
        if not is_alive(consumer.client_uuid)
    ]


def detach_commands_for_silent(
    state: SubscriptionState, control: SubscriptionControl, ids: Collection[int]
) -> list[Detach]:
    """Take out consumers whose process lives and has not shown itself for too long."""
    return [detach_command(state, control, consumer_id, DETACH_SILENT) for consumer_id in sorted(ids)]


def detach_commands_for(
    state: SubscriptionState, control: SubscriptionControl, ids: Collection[int], uuid: bytes
) -> list[Detach]:
    """Take out those of the consumers ``ids`` that are still attached; with a ``uuid``, that process's."""
    return [
        Detach(consumer.consumer_id, DETACH_CLOSED, control.handed(consumer.code, consumer.consumer_id))
        for consumer in state.consumers.each()
        if consumer.consumer_id in ids and uuid in (b"", consumer.client_uuid)
    ]


def detach(shared: SharedState, log: Log, ids: Collection[int], uuid: bytes = b"") -> None:
    """Detach consumers that are closed, outside of a transaction; with a ``uuid``, those of its process."""
    with contextlib.suppress(StoreGoneError):  # then there is nothing to leave
        shared.transact(
            lambda state: commit_detach_commands(
                state, shared, log, detach_commands_for(state, shared.control, ids, uuid)
            )
        )


def detach_surely(
    shared: SharedState, log: Log, ids: Collection[int], call_later: CallLater, uuid: bytes
) -> None:
    """`detach`; if that fails, or is interrupted, a timer does it.

    Args:
        uuid: of the process of the consumers: ids that none of them got may be those of others.
    """

    def detach_later() -> None:
        if not (shared.control.closed or shared.is_foreign):
            detach(shared, log, ids, uuid)

    try:
        detach(shared, log, ids, uuid)
    except BaseException:
        # An interrupt as well as an error leaves the consumers attached: nothing but this would
        # detach them while the process lives.
        BackgroundWork(call_later, detach_later).after(FIRST_PAUSE_S)
        raise


def commit_detach_commands(
    state: SubscriptionState, shared: SharedState, log: Log, leaving: Sequence[Detach]
) -> None:
    """Let consumers leave, if any: with what they acknowledged and did not come to write.

    The processes that stood before theirs have other neighbours then, and are woken to watch them.
    """
    if leaving:
        is_empty_then = len(leaving) == len(state.consumers)  # and no process has another neighbour
        # From before the commit, which takes the consumers out of the ring.
        ring = [] if is_empty_then else processes_of(state.consumers.all())
        # The acknowledgements come before the departures: afterwards the consumers cannot
        # acknowledge.
        settled = settle_left(state, leaving) if log.is_volatile else []
        directory, boot = shared.directory, shared.control.boot_id
        shared.commit(settled + with_unwritten_acks(state, directory, boot, leaving, lambda: ledgers_of(log)))
        if ring:
            shared.wakeups.processes(bereft(ring, processes_of(state.consumers.all())))


def detach_at_last(shared: SharedState, log: Log, ids: Collection[int], uuid: bytes) -> None:
    """Detach consumers when the subscription is closed here, unless another process stays in the lock.

    Then others detach them, because this process soon has no lease.
    """
    with contextlib.suppress(LockTimeout):
        timing.within(_DETACH_TIMEOUT_S, detach, shared, log, ids, uuid)


def detach_command(
    state: SubscriptionState, control: SubscriptionControl, consumer_id: int, reason: int
) -> Detach:
    """The command by which an attached consumer leaves: it says what its application has seen."""
    consumer = state.consumers.get(consumer_id)
    handed = 0
    if consumer is not None:
        handed = control.handed(consumer.code, consumer_id)
    return Detach(consumer_id, reason, handed)


def settle_left(state: SubscriptionState, leaving: Sequence[Detach]) -> list[Command]:
    """On a non-persistent topic: acknowledgements of what the applications of leaving consumers got."""
    commands: list[Command] = []
    for leaver in leaving:
        consumer = state.consumers.get(leaver.consumer_id)
        assigned = state.dispatch.assigned_by_consumer.get(leaver.consumer_id)
        if consumer is None or assigned is None:
            continue
        # What an application did not see goes to the other consumers; the rest was delivered, and
        # comes once only.
        unseen = list(assigned.behind(leaver.handed))
        groups = [
            AckGroup(ledger_id, first, last, FORM_RANGE, b"")
            for run in state.dispatch.pending.runs(consumer.code)
            for ledger_id, first, last in _without(run, unseen)
        ]
        if groups:
            commands.append(Ack(leaver.consumer_id, consumer.epoch, tuple(groups), ()))
    return commands


def _without(run: tuple[int, int, int], others: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """What of a run of entries is in none of the others."""
    ledger_id, first, last = run
    pieces = []
    for _, start, stop in sorted(other for other in others if other[0] == ledger_id):
        if start > last:
            break
        if start > first:
            pieces.append((ledger_id, first, start - 1))
        # The others may overlap.
        first = max(first, stop + 1)
    if first <= last:
        pieces.append((ledger_id, first, last))
    return pieces
